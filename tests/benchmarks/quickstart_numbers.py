"""Print what README.md and the header of studies/quickstart.yaml say of the quickstart, from its records.

python -m tests.benchmarks.quickstart_numbers [--picture docs/quickstart.png]

Run it where ``nasgrow search``, ``confirm --top 2`` and ``report`` of studies/quickstart.yaml were run, on
one commit. With ``--picture`` the report's figure of loss over compute becomes the README's.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from nasgrow.study.trials import TrialRecord, read_trials


def lines(summary: Mapping[str, Any], records: Sequence[TrialRecord]) -> list[str]:
    """The lines to paste.

    Args:
        summary: The report's ``summary.json``.
        records: The study's trials.
    """
    verdict = summary["verdict"]
    if not verdict["confirmed"]:
        raise SystemExit("nothing is confirmed: run nasgrow confirm and nasgrow report first")
    sides = [("the best schedule", verdict["schedule"])]
    sides += [(one["rival"], one["theirs"]) for one in verdict["comparisons"]]
    found = [verdict["headline"], "", "| | validation | test | parameters | tokens | seconds |"]
    found.append("|---|---|---|---|---|---|")
    for name, side in sides:
        seconds = f"{side['schedule_seconds'] or side['seconds']:.3g}"
        row = [name, f"{_validation(side['trial'], records):.3f}", f"{side['loss']:.3f}"]
        row += [f"{side['parameters']:,}", f"{side['tokens']:,.0f}", seconds]
        found.append(f"| {' | '.join(row)} |")
    found.append("")
    found += [f"Test loss {_apart(one)} that of {one['rival']}." for one in verdict["comparisons"]]
    found.append(f"The schedule: {verdict['schedule']['words']}.")
    done = [one for one in summary["baselines"] if one["loss"] is not None]
    best = min(done, key=lambda one: float(one["loss"]))
    first = min(_losses(records, "search"))
    found += [
        f"Search, validation, one seed: final shape {done[0]['loss']:.3f}, best of {len(done)} fixed "
        f"shapes searched ({best['name']}) {best['loss']:.3f}, best schedule {first:.3f}.",
        f"Cost: {summary['budget']:.2g} FLOPs a run; {', '.join(_costs(records))}, added up over workers.",
    ]
    return found


def _validation(trial: str, records: Sequence[TrialRecord]) -> float:
    """The mean validation loss of a candidate over its fresh seeds."""
    own = [one for one in records if one.kind == "confirmation" and one.name == trial]
    return fmean(loss for one in own for loss in one.losses if loss is not None)


def _apart(comparison: Mapping[str, Any]) -> str:
    """The difference from a rival, and its interval."""
    apart = comparison["difference"]
    interval = "" if apart["low"] is None else f" (95% interval {apart['low']:+.3f} to {apart['high']:+.3f})"
    return f"{apart['value']:+.3f}{interval} against"


def _losses(records: Sequence[TrialRecord], kind: str) -> list[float]:
    """The mean losses of the trials of a kind that grow and finished."""
    grown = [one for one in records if one.kind == kind and one.schedule.get("events")]
    return [
        fmean(loss for loss in one.losses if loss is not None) for one in grown if one.status == "finished"
    ]


def _costs(records: Sequence[TrialRecord]) -> list[str]:
    """Trials of each kind, without branches that a tree left, and how long all of them trained."""
    kinds = {
        "search": "trials",
        "fixed": "trials of fixed shapes",
        "baseline": "baseline runs",
        "confirmation": "confirmation runs",
    }
    told = []
    for kind, name in kinds.items():
        own = [one for one in records if one.kind == kind]
        whole, minutes = sum(one.status != "pruned" for one in own), sum(one.seconds for one in own) / 60
        told.append(f"{whole} {name} in {minutes:.1f} min")
    return told


def main() -> None:
    """Print the lines; put the picture in its place if that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--study", type=Path, default=Path("runs/quickstart"))
    parser.add_argument("--report", type=Path, default=Path("reports/quickstart"))
    parser.add_argument("--picture", type=Path)
    asked = parser.parse_args()
    summary = json.loads((asked.report / "summary.json").read_bytes())
    print("\n".join(lines(summary, read_trials(asked.study))))
    if asked.picture is not None:
        shutil.copyfile(asked.report / "figures" / "loss-over-compute.png", asked.picture)


if __name__ == "__main__":
    main()
