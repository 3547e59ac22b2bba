"""Find the study that a schedule file comes from, and its gain there, in the report beside the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from nasgrow.errors import UserError
from nasgrow.report import words
from nasgrow.report.statistics import Estimate
from nasgrow.strict import read_as


@dataclass(frozen=True)
class ScheduleOrigin:
    """The study that found a schedule.

    Attributes:
        study: The study's name.
        gain: The difference of its loss from that of each rival there, in words.
        final_rate: The best learning rate of the study's final shape from scratch; None if it has none.
    """

    study: str
    gain: str
    final_rate: float | None


@dataclass(frozen=True)
class _Comparison:
    rival: str
    difference: Estimate

    def __str__(self) -> str:
        sure = "" if self.difference.low is None else f" (95% interval {words.interval(self.difference)})"
        return f"{words.apart(self.difference.value)}{sure} than {self.rival}"


@dataclass(frozen=True)
class _Verdict:
    schedule: dict[str, Any]
    comparisons: list[_Comparison]
    confirmed: bool
    split: str


@dataclass(frozen=True)
class _Summary:
    """The fields of ``summary.json`` that are used here."""

    study: str
    verdict: _Verdict
    baselines: list[dict[str, Any]]


_SUMMARY = TypeAdapter(_Summary)


def origin(file: Path, schedule: Mapping[str, Any]) -> ScheduleOrigin | None:
    """Return the study whose report lies beside a file, if ``schedule`` is that report's best.

    Return None otherwise, and if there is no report or its ``summary.json`` cannot be read.

    Args:
        file: The file that the schedule was read from.
        schedule: The schedule as plain data, as in a schedule file.
    """
    try:
        summary = read_as(file.with_name("summary.json"), _SUMMARY)
    except UserError:
        return None
    verdict = summary.verdict
    if verdict.schedule.get("schedule") != schedule:
        return None
    against = [str(one) for one in verdict.comparisons]
    sure = "fresh seeds" if verdict.confirmed else "a candidate, not confirmed"
    told = f"{verdict.split} loss {words.listed(against)} ({sure})" if against else "nothing compared"
    rate = summary.baselines[0].get("learning_rate") if summary.baselines else None  # the final shape's
    return ScheduleOrigin(summary.study, told, rate if isinstance(rate, float) else None)
