"""What to call trials that are shown side by side: by what differs between them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from nasgrow.spaces.training import PEAK


def apart(titles: Sequence[str]) -> list[str]:
    """Titles of trials with what names of several parts have in common left out.

    A fixed space names a trial by its schedule and each setting of the training, parted by commas. Cut to the
    width of a figure, such names lose just what tells them apart: ``search 4 (doubling, operator net2net,
    learning_rate.peak 0.012)`` among others of the same schedule is ``net2net, rate 0.012 (search 4)``.
    """
    split = [_parts(title) for title in titles]
    several = [set(parts) for _, parts in split if len(parts) > 1]
    common = set.intersection(*several) if len(several) > 1 else set()
    found = []
    for title, (label, parts) in zip(titles, split, strict=True):
        kept = [part for part in parts if part not in common] or parts
        told = ", ".join(_part(part) for part in kept)
        found.append(f"{told} ({label})" if told != ", ".join(parts) else title)
    return found


def settings(parameters: Mapping[str, Any], names: Sequence[str]) -> str:
    """Searched settings of the training in words, the learning rate aside: it has a place of its own."""
    return ", ".join(
        _part(f"{name} {_value(parameters[name])}") for name in names if name in parameters and name != PEAK
    )


def _parts(title: str) -> tuple[str, list[str]]:
    """The label of a title and the parts of its name; commas within brackets part nothing."""
    found = re.fullmatch(r"(\w+ \d+) \((.+)\)", title)
    if found is None:
        return title, []
    return found[1], re.split(r", (?![^(]*\))", found[2])


def _part(text: str) -> str:
    """A setting and its value, without the words that a reader does not need."""
    return re.sub(r"^learning_rate\.peak ", "rate ", re.sub(r"^operator ", "", text)).removeprefix(
        "learning_rate."
    )


def _value(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
