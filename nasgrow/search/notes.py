"""What the dashboard's notes say, in Markdown: of a trial, its schedule; of a study, its summary."""

from __future__ import annotations

from typing import Any

from optuna.storages import BaseStorage
from optuna.trial import Trial
from optuna_dashboard._note import save_note_with_version  # type: ignore[import-untyped]

from nasgrow.schedule import Schedule, in_lines
from nasgrow.search.summary import Summary, answer

STUDIES = "/dashboard/studies"
"""Where the dashboard shows studies, each below its id."""


def trial_note(schedule: Schedule, known: str | None) -> str:
    """A trial's schedule in words, under the name it is known by."""
    name = [] if known is None else [f"**{known}**", ""]
    return "\n".join([*name, *(f"- {line}" for line in in_lines(schedule))])


class _Unread:
    """A storage in which a trial has no note yet.

    The dashboard keeps the notes of all trials with their study, and reads them all before it writes one.
    """

    def __init__(self, storage: BaseStorage) -> None:
        self.set_study_system_attr = storage.set_study_system_attr

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        return {}


def note_trial(trial: Trial, text: str) -> None:
    """Write the note of a trial that has none, or this one."""
    save_note_with_version(_Unread(trial.storage), trial.study._study_id, trial._trial_id, 1, text)


def study_note(summary: Summary, search: int, baselines: int) -> str:
    """Where a study stands and what it says.

    Args:
        summary: The study at this moment.
        search: The id of the study of its trials.
        baselines: The id of the study of its baselines.
    """
    planned = "" if summary.planned is None else f" of {summary.planned}"
    branches = f", {summary.left_early}" if summary.left_early else ""
    trials = f"{STUDIES}/{search}/trials"
    links = [f"[all trials]({trials})", f"[baselines]({STUDIES}/{baselines}/trials)"]
    if summary.best_grown is not None:
        links.insert(0, f"[the best schedule]({trials}?numbers={summary.best_grown.number})")
    lines = [
        f"# {summary.name}",
        "",
        f"{summary.ended}{planned} trials ({summary.pruned} pruned, {summary.diverged} diverged{branches}), "
        f"{summary.charged:.3g} FLOPs charged, {summary.executed:.3g} executed "
        f"({summary.reused:.0%} reused).",
        "",
        # A sentence for each item; what is indented goes on in the item before it, on a line of its own.
        *(f"{line}  " if line.startswith(" ") else f"- {line}  " for line in answer(summary)),
        "",
        f"See {', '.join(links)}.",
        "",
        _row("fixed size", "loss", "learning rate", "tried", "shape"),
        "|---|---|---|---|---|",
    ]
    for size in summary.baselines:
        loss = "" if size.loss is None else f"{size.loss:.4f}"
        rate = "" if size.rate is None else f"{size.rate:.3g}"
        lines.append(_row(size.name, loss, rate, f"{size.tried} of {size.planned}", size.shape))
    return "\n".join(lines)


def _row(*cells: str) -> str:
    """A row of a table; the dashboard leaves no space between columns."""
    return f"| {'&emsp; | '.join(cells)} |"
