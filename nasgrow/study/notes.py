"""What the dashboard's notes say, in Markdown: of a trial, its schedule; of a study, its summary."""

from __future__ import annotations

from nasgrow.study.markdown import escape
from nasgrow.study.summary import Summary, answer
from nasgrow.study.trials import TrialRecord

STUDIES = "/dashboard/studies"
"""Where the dashboard shows studies, each below its id."""


def trial_note(record: TrialRecord) -> str:
    """A trial's schedule in words, a line for the start and for each event, under its name."""
    parts = [f"- {escape(part)}" for part in record.words.split("; ")]
    return "\n".join([f"**{escape(record.title)}**", "", *parts])


def study_note(summary: Summary, search: int, baselines: int) -> str:
    """Where a study stands and what it says.

    Args:
        summary: The study at this moment.
        search: The id of the study of its trials.
        baselines: The id of the study of its baselines.
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
        # A sentence for each item; what is indented goes on in the item before it, on a line of its own.
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
        lines.append(_row(size.name, loss, rate, size.progress, size.shape))
    return "\n".join(lines)


def _row(*cells: str) -> str:
    """A row of a table; the dashboard leaves no space between columns."""
    return f"| {'&emsp; | '.join(cells)} |"
