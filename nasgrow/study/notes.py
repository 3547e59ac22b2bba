"""The texts of the dashboard's notes in Markdown: a trial's schedule, and a study's summary."""

from __future__ import annotations

from nasgrow.study.markdown import escape
from nasgrow.study.summary import Summary, answer
from nasgrow.study.trials import TrialRecord

STUDIES = "/dashboard/studies"
"""The path of studies in the dashboard; each study is below its id."""


def trial_note(record: TrialRecord) -> str:
    """Return the note of a trial: its name, then a line for the start shape and for each event."""
    parts = [f"- {escape(part)}" for part in record.words.split("; ")]
    return "\n".join([f"**{escape(record.title)}**", "", *parts])


def study_note(summary: Summary, search: int, baselines: int) -> str:
    """Return the note of a study: its progress, its result so far, and a table of its fixed shapes.

    Args:
        summary: The summary of the study.
        search: The id of the Optuna study of its search trials.
        baselines: The id of the Optuna study of its baselines.
    """
    trials = f"{STUDIES}/{search}/trials"
    links = [f"[all trials]({trials})", f"[baselines]({STUDIES}/{baselines}/trials)"]
    if summary.best_grown is not None:
        links.insert(0, f"[the best schedule]({trials}?numbers={summary.best_grown.number})")
    lines = [
        f"# {summary.name}",
        "",
        f"{summary.counts}; {summary.charged:.3g} FLOPs charged, {summary.executed:.3g} executed "
        f"({summary.reused:.0%} reused).",
        "",
        # One item for each sentence. An indented line continues the item before it, on a new line.
        *(f"{line}  " if line.startswith(" ") else f"- {line}  " for line in answer(summary)),
        "",
        f"See {', '.join(links)}.",
        "",
        _row("fixed shape", "loss", "learning rate", "tried", "shape"),
        "|---|---|---|---|---|",
    ]
    for size in summary.baselines:
        loss = "" if size.loss is None else f"{size.loss:.4f}"
        rate = "" if size.rate is None else f"{size.rate:.3g}"
        lines.append(_row(size.name, loss, rate, str(size.tried), size.shape))
    return "\n".join(lines)


def _row(*cells: str) -> str:
    """Return a row of a table, with extra space, because the dashboard leaves none between columns."""
    return f"| {'&emsp; | '.join(cells)} |"
