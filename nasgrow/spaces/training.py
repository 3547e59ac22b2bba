"""Training settings that a space searches beside the schedule."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from nasgrow.config import TrainingConfig
from nasgrow.errors import UserError
from nasgrow.spaces.settings import Setting
from nasgrow.strict import parse, with_prefix


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


PEAK = "learning_rate.peak"
"""The field that baselines tune as well."""

LOWEST, HIGHEST = 1e-9, 10.0
"""The learning rates that a study tries, with one distribution for its whole life: what lies beyond was
mistyped."""


def check_peak(rate: float) -> float:
    """The learning rate, if a study may try it.

    Raises:
        UserError: It may not.
    """
    if not LOWEST <= rate <= HIGHEST:
        raise UserError(f"must be a learning rate from {LOWEST:g} to {HIGHEST:g}, not {rate!r}")
    return rate


OPERATOR_FIELDS = ("operator", "operator.width", "operator.depth")
"""The fields that name an operator."""

FROM_THE_START = (PEAK, "learning_rate.width_power")
"""What a space may search that acts from the first step; all else acts at events."""

SEARCHABLE = (
    PEAK,
    "learning_rate.rewarm",
    "learning_rate.rewarm_from",
    "learning_rate.event_factor",
    "learning_rate.width_power",
    "moments",
    *OPERATOR_FIELDS,
)
"""What a space may search: the learning rate, which baselines tune as well, and what acts at events only.

Anything else would be tuned for schedules and not for the fixed sizes that they are compared with.
"""


def check_training(config: TrainingConfig, settings: Mapping[str, Setting]) -> None:
    """Raise ``UserError`` if a setting cannot be searched, or training refuses a value of it."""
    for name in settings:
        if name not in SEARCHABLE:
            raise UserError(f"training: {name}: cannot be searched; what can is {', '.join(SEARCHABLE)}")
    for name, setting in settings.items():
        for value in setting.values:
            with_training(config, {name: value})
            if name == PEAK:
                with_prefix(f"training: {name}", partial(check_peak, value))
