"""Training fields that a space may search, or a study may tune, besides the schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from nasgrow.config import TrainingConfig
from nasgrow.errors import UserError
from nasgrow.spaces.settings import Setting
from nasgrow.strict import parse


def with_training(config: TrainingConfig, values: Mapping[str, object]) -> TrainingConfig:
    """Return the configuration with other values in these fields, given by dotted name.

    The result has no ``trackers``, because ``model_dump`` leaves them out.

    Raises:
        UserError: There is no such field, or a value is invalid.
    """
    data = config.model_dump()
    for name, value in values.items():
        *groups, last = name.split(".")
        section: Any = data
        for group in groups:
            section = section.get(group)
            if not isinstance(section, dict):
                raise UserError(f"training: {name}: there is no such field")
        section[last] = value
    return parse(TrainingConfig, data, "training")


Tunable = Literal["learning_rate.peak", "batch_tokens", "ramp.until"]
PEAK: Tunable = "learning_rate.peak"
BATCH: Tunable = "batch_tokens"
RAMP: Tunable = "ramp.until"
"""The fields that a study may tune, for schedules and fixed shapes alike; a space may not search them."""

OPERATOR_FIELDS = ("operator", "operator.width", "operator.depth")
"""The fields that name an operator."""

FROM_THE_START = (PEAK, "learning_rate.width_power")
"""The fields of a point that have an effect from the first step on; all others act at events."""

SEARCHABLE = (
    "learning_rate.rewarm",
    "learning_rate.rewarm_from",
    "learning_rate.rewarm_scope",
    "learning_rate.event_factor",
    "learning_rate.width_power",
    "moments",
    *OPERATOR_FIELDS,
)
"""The fields that a space may search: they only act at events, or only differ between stages.

Any other field would be tuned for schedules but not for the fixed shapes that they are compared with.
"""


def check_training(config: TrainingConfig, settings: Mapping[str, Setting]) -> None:
    """Raise ``UserError`` if a field cannot be searched, or one of its values is invalid."""
    for name in settings:
        if name in (PEAK, BATCH, RAMP):
            raise UserError(
                f"training: {name}: is tuned for schedules and fixed shapes alike: name its values in the "
                "study's tune section"
            )
        if name not in SEARCHABLE:
            raise UserError(f"training: {name}: cannot be searched; what can is {', '.join(SEARCHABLE)}")
    for name, setting in settings.items():
        for value in setting.values:
            with_training(config, {name: value})
