"""The sections on schedules and fixed shapes: loss curves, the best schedules, tuned baselines."""

from __future__ import annotations

from nasgrow.report import words
from nasgrow.report.figures.budgets import loss_over_budget
from nasgrow.report.figures.compute import loss_over_compute
from nasgrow.report.figures.contenders import tuning
from nasgrow.report.figures.staircase import staircases
from nasgrow.report.figures.timeline import timeline, unlike
from nasgrow.report.findings import Findings
from nasgrow.report.naming import names_of, setting_name, settings
from nasgrow.report.page import PageTable, Paragraph, Picture, Section
from nasgrow.report.ranking import Contender, contender, distinct
from nasgrow.report.sections.common import Gallery, aside
from nasgrow.spaces.fixed import SCHEDULE_PARAMETER
from nasgrow.spaces.training import SEARCHABLE
from nasgrow.study.trials import TrialRecord

TOP = 10
"""The most rows of the leaderboard."""
SIZES = 5
"""The most fixed shapes in the figure of tuning: the final one and the best others."""
CURVES, LINES = 3, 5
"""The most schedules in figures of loss curves, and in the staircases and the timeline."""


def compute(found: Findings, gallery: Gallery) -> Section:
    """Return the section with the loss over compute, tokens and seconds, and the baseline curve."""
    schedules, fixed = _shown(found)
    figure = loss_over_compute(schedules, fixed, found.records.study)
    if figure is None:
        missing = aside("No curve yet: no schedule or fixed shape has finished.")
        return Section("Loss over compute", [missing])
    whose = "means over fresh seeds" if found.verdict.confirmed else "means over the search's seeds"
    picture = gallery.show(
        "loss-over-compute",
        figure,
        "Validation loss over compute, tokens and seconds: the best schedules, and fixed shapes at "
        f"their best setting. Curves are {whose}; bands reach from the lowest to the highest loss. "
        "Diamonds are events. All points are measured on the same text, the last one after the last "
        "step; the losses of the verdict are measured on more text.",
    )
    return Section("Loss over compute", [picture, *_budgets(found, gallery)])


def _budgets(found: Findings, gallery: Gallery) -> list[Picture]:
    """Return the figure of the first rival that has several budgets; empty if there is none."""
    verdict = found.verdict
    known = [(one.rival, one.equal) for one in verdict.comparisons if one.equal is not None]
    if not known or verdict.ours is None:
        return []
    rival, equal = known[0]
    figure = loss_over_budget(verdict.ours, rival, equal, found.records.study.budget, verdict.split)
    caption = (
        f"Final {verdict.split} loss over training compute: {rival}, tuned and fully decayed under each "
        "budget, and the best schedule. Dots are seeds; the band reaches from the lowest to the highest. The "
        "arrow points to the budget at which the fixed shape has the schedule's loss; it is left out if that "
        "is almost the schedule's budget."
    )
    return [gallery.show("loss-over-budget", figure, caption)]


def _shown(found: Findings) -> tuple[list[Contender], list[tuple[str, Contender]]]:
    """Return the schedules, and the fixed shapes with names, whose curves are shown.

    The schedules are confirmed ones if the verdict is, else the best of the search. The fixed
    shapes are the verdict's rivals; without a schedule, all that finished.
    """
    records, ranking, verdict = found.records, found.ranking, found.verdict
    if verdict.confirmed:
        schedules = [one for one in ranking.confirmed if one.trial.grows]
    else:
        schedules = [contender(records, trial.record) for trial in ranking.schedules[:CURVES]]
    rivals = [comparison.theirs for comparison in verdict.comparisons]
    if not schedules:
        rivals = [contender(records, tuned.best) for tuned in ranking.sizes if tuned.best is not None]
    return schedules[:CURVES], [(ranking.size_of(one.trial), one) for one in rivals]


def schedules(found: Findings, gallery: Gallery) -> Section:
    """Return the section with the best schedules: their sizes over the budget, and the leaderboard."""
    ranking = found.ranking
    title = "The best schedules"
    if not ranking.searched:
        return Section(title, [aside("No trial of the search has finished.")])
    if not ranking.schedules:
        return Section(title, [*_leaders(found)])
    lines = unlike(ranking.schedules)[:LINES]
    which = "the best schedules, the best first" if len(lines) > 1 else "the one schedule of all trials"
    stairs = gallery.show(
        "staircases",
        staircases(lines, found.records.study.variant),
        f"Parameters over the budget, for {which}.",
    )
    which += " (thinner lines rank higher)" * (len(lines) > 1)
    sizes = gallery.show(
        "timeline",
        timeline(lines),
        f"Size of each dimension over the budget, for {which}. Sizes within layers are means over "
        "the layers that exist; a size that no schedule changes is left out.",
    )
    return Section(title, [stairs, sizes, *_leaders(found)])


def _leaders(found: Findings) -> list[PageTable | Paragraph]:
    """Return the leaderboard; if all its rows have the same schedule, a note below describes it once."""
    final = found.ranking.final.best
    leaders = distinct(found.ranking.searched)[:TOP]
    offered = found.records.study.space.settings
    # The trial names of a fixed space already hold the settings.
    searched = [] if SCHEDULE_PARAMETER in offered else [name for name in offered if name in SEARCHABLE]
    told = {trial.record.words for trial in leaders}
    names = names_of(leaders)
    rows = [
        {
            "": str(place),
            "schedule": name,
            "trial": str(trial.record.number),
            "validation loss": words.loss(trial.loss),
            "against final": words.signed(trial.loss - final.loss)
            if final and final.loss and trial.loss
            else "",
            "learning rate": f"{trial.record.learning_rate:.3g}",
            "settings": settings(trial.record.parameters, searched),
            "in full": trial.record.words,
        }
        for place, (name, trial) in enumerate(zip(names, leaders, strict=True), 1)
    ]
    blank = {"settings"} if not any(row["settings"] for row in rows) else set()
    once = {"in full"} if len(told) == 1 < len(rows) else set()
    columns = [column for column in rows[0] if column not in blank | once]
    text = frozenset({"settings", "schedule", "in full"})
    table = PageTable(columns, [[row[column] for column in columns] for row in rows], text)
    return [table, aside(f"All rows have the same schedule: {min(told)}.")] if once else [table]


def baselines(found: Findings, gallery: Gallery) -> Section:
    """Return the section with the fixed shapes and their learning rates."""
    ranking = found.ranking
    if not any(tuned.best for tuned in ranking.sizes):
        missing = aside("No baseline has finished, so growth cannot be judged yet.")
        return Section("Baselines", [missing])
    picture = gallery.show(
        "tuning",
        tuning(ranking.sizes[:SIZES], ranking.schedules),
        "Validation loss over the peak learning rate: the final shape and the best fixed shapes, trained "
        f"{ranking.begun} under the same budget, and the schedules of the search. A fair baseline has "
        "its lowest point inside the range. A shape that is off the scale is named in the legend with "
        "its lowest loss; points of much worse rates may lie above the figure.",
    )
    rows = [
        [
            tuned.size.name,
            words.loss(best.loss) if (best := tuned.best) else "",
            f"{best.learning_rate:.3g}" if best else "",
            ", ".join(map(setting_name, tuned.edges)),
            ", ".join(map(_rate, tuned.tried)),
            words.count(best.parameter_count) if best else "",
            str(tuned.size.shape),
        ]
        for tuned in ranking.sizes + ranking.others
    ]
    columns = ["fixed shape", "validation loss", "best rate", "at the edge", "rates tried", "parameters"]
    text = frozenset({"fixed shape", "at the edge", "rates tried", "shape"})
    note = aside(
        "At the edge: the best value is the lowest or the highest of those with a result, so a better one "
        "may lie beyond. A pruned trial was stopped early and has no result."
    )
    return Section("Baselines", [picture, PageTable([*columns, "shape"], rows, text), note])


def _rate(trial: TrialRecord) -> str:
    """Return the learning rate of a trial, with its status if it has not finished."""
    rate = f"{trial.learning_rate:.3g}"
    return rate if trial.status == "finished" else f"{rate} ({trial.status})"
