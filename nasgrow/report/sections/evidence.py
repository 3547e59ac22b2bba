"""The sections on integrity (function preservation, data, machines) and on the files beside the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from nasgrow.flops import parameter_count
from nasgrow.report import words
from nasgrow.report.findings import Findings
from nasgrow.report.integrity import MAX_ROUNDING
from nasgrow.report.load import Records, Trial
from nasgrow.report.page import Bullets, PageTable, Section
from nasgrow.report.sections.common import Gallery
from nasgrow.study.trials import Kind


def integrity(found: Findings, gallery: Gallery) -> Section:
    """Return the section with a table of function preservation, trial counts, data, software and machines."""
    records, state = found.records, found.integrity
    origins = records.origins
    others = []
    if state.other_events:
        what = "Largest change, operators that do not claim to preserve the function exactly"
        others = [[what, _largest(state.largest_other, state.other_events)]]
    rows = [
        [
            "Largest change of a logit at an event",
            _largest(state.largest_change, state.events - state.other_events),
        ],
        [f"Events above {MAX_ROUNDING:g}", "; ".join(state.broken) or "none"],
        *others,
        ["Trials recorded", _by_kind(records.trials)],
        ["Pruned", _by_kind([trial for trial in records.trials if trial.record.status == "pruned"])],
        ["Diverged", _by_kind([trial for trial in records.trials if trial.record.status == "diverged"])],
        ["Workers that died", str(state.died)],
        ["Data fingerprint", _listing(origins.fingerprints)],
        ["Commit", _listing(origins.commits)],
        ["Versions", _listing(origins.versions)],
        ["Machine", _listing(origins.machines)],
    ]
    return Section("Integrity", [PageTable(["", "found"], rows, frozenset({"", "found"}))])


def _by_kind(trials: Sequence[Trial]) -> str:
    """Return the number of trials and that of each kind, such as ``3 (2 search trials, 1 baseline run)``."""
    nouns: Mapping[Kind, str] = {
        "search": "search trial",
        "fixed": "fixed-shape trial",
        "baseline": "baseline run",
        "confirmation": "confirmation run",
    }
    counted = Counter(trial.record.kind for trial in trials)
    of_kinds = [words.many(counted[kind], noun) for kind, noun in nouns.items() if counted[kind]]
    return words.count(len(trials)) + (f" ({', '.join(of_kinds)})" if of_kinds else "")


def _largest(change: float | None, events: int) -> str:
    if change is None:
        return "no event recorded"
    return f"{change:.1e} of the largest logit, over {words.many(events, 'event')}"


def files(found: Findings, gallery: Gallery) -> Section:
    """Return the section with the list of files beside this page."""
    listed = [
        "runs.parquet and runs.csv: a row for each run, with all of its numbers",
        "events.csv: a row for each event of each run, with the change of the logits and the recovery time",
        "summary.json: the verdict and the state of the study, for programs",
        "figures: each figure as SVG and PNG",
    ]
    if found.winner is not None:
        listed.insert(0, "best-schedule.yaml: the best schedule as a run file, for nasgrow train")
    return Section("Files", [Bullets(listed)])


def facts(records: Records) -> str:
    """Return the final shape, the budget, the numbers of trials and the study's note, in a line."""
    study = records.study
    parameters = parameter_count(study.final, study.variant)
    return (
        f"Final shape {study.final}, {words.count(parameters)} parameters; {words.compute(study.budget)} of "
        f"training for every run; {records.counts}." + (f" {study.config.note}" if study.config.note else "")
    )


def _listing(counted: Mapping[str, int]) -> str:
    if len(counted) <= 1:
        return next(iter(counted), "not recorded")
    return "; ".join(f"{name} ({words.many(number, 'run')})" for name, number in counted.items())
