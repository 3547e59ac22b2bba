"""Training settings that a space searches beside the schedule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nasgrow.config import TrainingConfig
from nasgrow.search.spaces.settings import Setting
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
                raise ValueError(f"training: {name}: there is no such field")
        section[last] = value
    return parse(TrainingConfig, data, "training")


def check_training(config: TrainingConfig, settings: Mapping[str, Setting]) -> None:
    """Raise ``ValueError`` if a training configuration refuses a value of a setting."""
    if "context" in settings:
        raise ValueError("training: context: cannot be searched, it is the final shape's")
    for name, setting in settings.items():
        for value in setting.values:
            with_training(config, {name: value})
