"""Training settings that a space searches beside the schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from nasgrow.config import TrainingConfig
from nasgrow.errors import UserError
from nasgrow.spaces.settings import Setting
from nasgrow.strict import parse


def with_training(config: TrainingConfig, values: Mapping[str, object]) -> TrainingConfig:
    """The configuration with other values in the fields of these dotted names, validated again."""
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
"""What a study tunes, for schedules and fixed shapes alike; a space does not search it."""

OPERATOR_FIELDS = ("operator", "operator.width", "operator.depth")
"""The fields that name an operator."""

FROM_THE_START = (PEAK, "learning_rate.width_power")
"""What a space may search that acts from the first step; all else acts at events."""

SEARCHABLE = (
    "learning_rate.rewarm",
    "learning_rate.rewarm_from",
    "learning_rate.rewarm_scope",
    "learning_rate.event_factor",
    "learning_rate.width_power",
    "moments",
    *OPERATOR_FIELDS,
)
"""What a space may search: what acts at events only, or differs between stages only.

Anything else would be tuned for schedules and not for the fixed shapes that they are compared with.
"""


def check_training(config: TrainingConfig, settings: Mapping[str, Setting]) -> None:
    """Raise ``UserError`` if a setting cannot be searched, or training refuses a value of it."""
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
