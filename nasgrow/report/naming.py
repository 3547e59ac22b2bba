"""What to call trials that are shown side by side: by what differs between them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from nasgrow.report.load import Trial
from nasgrow.spaces.training import PEAK


def names_of(trials: Sequence[Trial]) -> list[str]:
    """The names of trials, without what all of them have in common.

    A fixed space names a trial by its schedule and each setting of the training, parted by commas. Cut to the
    width of a figure, such names lose just what tells them apart: ``doubling, operator net2net,
    learning_rate.peak 0.012`` among others of the same schedule is ``net2net, rate 0.012``.
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
    """The same; where two names are equal, with the learning rate, or else the label."""
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
    """A field of the training in words."""
    return "learning rate" if field == PEAK else field.removeprefix("learning_rate.").replace("_", " ")


def settings(parameters: Mapping[str, Any], names: Sequence[str]) -> str:
    """Searched settings of the training in words, the learning rate aside: it has a place of its own."""
    return ", ".join(
        _part(f"{name} {_value(parameters[name])}") for name in names if name in parameters and name != PEAK
    )


def _parts(name: str) -> list[str]:
    """The parts of a name; commas within brackets part nothing."""
    return re.split(r", (?![^(]*\))", name)


def _part(text: str) -> str:
    """A setting and its value, without the words that a reader does not need."""
    return re.sub(r"^learning_rate\.peak ", "rate ", re.sub(r"^operator ", "", text)).removeprefix(
        "learning_rate."
    )


def _value(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
