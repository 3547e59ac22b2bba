"""Name trials that a figure or table shows side by side, by their differences."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from nasgrow.report.load import Trial
from nasgrow.spaces.training import PEAK


def names_of(trials: Sequence[Trial]) -> list[str]:
    """Return a name for each trial, without the parts that the names have in common.

    A fixed space names a trial by its schedule and each training setting, separated by commas.
    Such a name, cut to the width of a figure, would lose the part that differs. So ``doubling,
    operator net2net, learning_rate.peak 0.012`` among trials of the same schedule becomes
    ``net2net, rate 0.012``. Trials without such a name have their title. Names may be equal.
    """
    given = [
        _parts(trial.record.title) if trial.record.title == trial.record.name else [] for trial in trials
    ]
    several = [set(parts) for parts in given if len(parts) > 1]
    common = set.intersection(*several) if len(several) > 1 else set()
    return [
        ", ".join(_part(part) for part in [part for part in parts if part not in common] or parts)
        or trial.record.title
        for trial, parts in zip(trials, given, strict=True)
    ]


def side_by_side(trials: Sequence[Trial]) -> list[str]:
    """Return a distinct name for each trial.

    Names of :func:`names_of` that are equal get the learning rate, and if they are still equal, the
    trial's label too.
    """
    names = names_of(trials)
    rates = [
        f"{name}, rate {trial.record.learning_rate:.3g}" for name, trial in zip(names, trials, strict=True)
    ]
    names = [rated if names.count(name) > 1 else name for name, rated in zip(names, rates, strict=True)]
    return [
        f"{name} ({trial.label})" if names.count(name) > 1 else name
        for name, trial in zip(names, trials, strict=True)
    ]


def setting_name(field: str) -> str:
    """Return the readable name of a training setting: "learning rate" for ``learning_rate.peak``."""
    return "learning rate" if field == PEAK else field.removeprefix("learning_rate.").replace("_", " ")


def settings(parameters: Mapping[str, Any], names: Sequence[str]) -> str:
    """Return searched training settings as text, without the learning rate.

    Args:
        parameters: The trial's parameters.
        names: The settings to include; those that the trial does not have are skipped.
    """
    return ", ".join(
        _part(f"{name} {_value(parameters[name])}") for name in names if name in parameters and name != PEAK
    )


def _parts(name: str) -> list[str]:
    """Split a name at its commas, but not at commas within brackets."""
    return re.split(r", (?![^(]*\))", name)


def _part(text: str) -> str:
    """Shorten a setting and its value: ``operator net2net`` becomes ``net2net``."""
    return re.sub(r"^learning_rate\.peak ", "rate ", re.sub(r"^operator ", "", text)).removeprefix(
        "learning_rate."
    )


def _value(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
