"""Where a schedule file comes from: the report beside it says which study found it, and what it gained."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nasgrow.report import words
from nasgrow.report.statistics import Estimate


@dataclass(frozen=True)
class Origin:
    """The study that found a schedule.

    Attributes:
        study: Its name.
        gain: What it gained there, in words.
        final_rate: The best learning rate of the final shape from scratch there; None if there was none.
    """

    study: str
    gain: str
    final_rate: float | None


def origin(file: Path, schedule: Mapping[str, Any]) -> Origin | None:
    """The study whose report lies beside a file, if the schedule is that report's best."""
    try:
        summary = json.loads(file.with_name("summary.json").read_bytes())
        verdict = summary["verdict"]
        if verdict["schedule"]["schedule"] != schedule:
            return None
        against = [f"{_gain(one)} than {one['rival']}" for one in verdict["comparisons"]]
        sure = "fresh seeds" if verdict["confirmed"] else "a candidate, not confirmed"
        told = f"{verdict['split']} loss {words.listed(against)} ({sure})" if against else "nothing compared"
        rate = summary["baselines"][0]["learning_rate"]  # the final shape comes first
        return Origin(str(summary["study"]), told, None if rate is None else float(rate))
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _gain(comparison: Mapping[str, Any]) -> str:
    estimate = Estimate(**comparison["difference"])
    sure = "" if estimate.low is None else f" (95% interval {words.interval(estimate)})"
    return f"{words.apart(estimate.value)}{sure}"
