"""The sections on the search: which parameters matter, its progress and cost, and the effect of events."""

from __future__ import annotations

from nasgrow.report import words
from nasgrow.report.figures.effects import effects, marginal
from nasgrow.report.figures.grown_first import differ, heat_map
from nasgrow.report.figures.progress import pareto, search_progress
from nasgrow.report.figures.recovery import recovery
from nasgrow.report.findings import Findings
from nasgrow.report.load import Records
from nasgrow.report.page import Block, PageTable, Paragraph, Section
from nasgrow.report.ranking import distinct
from nasgrow.report.sections.common import Gallery, aside
from nasgrow.study.baselines import FINAL
from nasgrow.study.trials import TRIAL_KINDS, Kind

OTHERS = 4
"""The most fixed shapes, besides the final one, in the figure of the search's progress."""
ENOUGH = 8
"""The fewest distinct finished trials for effects of parameters; with fewer they would be noise."""


def matters(found: Findings, gallery: Gallery) -> Section:
    """Return the section with the effects of the first event and of the search parameters on the loss."""
    return Section("What matters", [_grown_first(found, gallery), _parameters(found, gallery)])


def _grown_first(found: Findings, gallery: Gallery) -> Block:
    schedules = found.ranking.schedules
    if not schedules:
        return aside("No heat map: no schedule that grows has finished.")
    if not differ(schedules):
        return aside("No heat map: all schedules grow the same dimensions first, at the same time.")
    return gallery.show(
        "first-grown",
        heat_map(schedules),
        "Mean validation loss by the dimension that the first event grows and by when it happens; n is the "
        "number of schedules. A schedule whose first event grows several dimensions counts for each of them. "
        "A cell with one schedule is pale, as it says little.",
    )


def _parameters(found: Findings, gallery: Gallery) -> Block:
    searched = found.ranking.searched
    once = distinct(searched)
    if len(once) < ENOUGH:
        few = words.many(len(once), "distinct finished trial")
        return aside(f"No effects of parameters yet: {few}, and {ENOUGH} are needed.")
    strongest = effects(once, found.records.study.space)
    if not strongest:
        return aside("No effects of parameters: none has two values with at least two distinct runs each.")
    pruned = sum(trial.record.status == "pruned" for trial in found.records.of_kind("search"))
    counted = f"{words.many(len(once), 'distinct run')} of {words.many(len(searched), 'finished trial')}"
    if pruned:
        counted += f"; {words.many(pruned, 'pruned trial')} left out"
    return gallery.show(
        "marginal-effects",
        marginal(strongest),
        "Mean validation loss at each value, or range of values, of a search parameter, with 95% intervals; "
        "intervals of few runs may leave the figure. Shown are the parameters that alone explain most of "
        "the loss's variance. n counts the distinct runs in which the parameter has an effect: where a "
        "dimension does not grow, its time of growth has none. A value with one run has no mean. The "
        "sampler prefers good regions, so parameters are not independent: a guide, not a proof. "
        f"{counted}.",
    )


def search(found: Findings, gallery: Gallery) -> Section:
    """Return the section with the progress of the search, and the cost of the study."""
    records, ranking = found.records, found.ranking
    cost = _cost(records)
    if not ranking.searched:
        missing = aside("No progress to show: no trial of the search has finished.")
        return Section("The search", [missing, cost])
    fixed = [
        (tuned.size.name, tuned.best.loss)
        for tuned in ranking.sizes
        if tuned.best is not None and tuned.best.loss is not None
    ]
    others = sorted((one for one in fixed if one[0] != FINAL), key=lambda one: one[1])
    pictures = [
        gallery.show(
            "progress",
            search_progress(
                records.of_kind("search"), [one for one in fixed if one[0] == FINAL] + others[:OTHERS]
            ),
            "Validation loss of each trial, in the order in which trials ended, over the compute that "
            "the search had executed; the line is the best so far. Dashed: the best loss of the final "
            f"shape and of the best {OTHERS} other fixed shapes; one that is off the scale is named in "
            "the legend with its loss. Trials with a high loss may lie above the figure. A cross is a "
            "pruned trial at its last evaluation; if that is above the figure, it is just below the edge.",
        )
    ]
    objectives = records.study.config.objectives
    if len(objectives) == 2:
        caption = "Loss against the cost of the final model. No trial beats one of the Pareto front in both."
        pictures.append(gallery.show("pareto", pareto(ranking.searched, objectives[1]), caption))
    return Section("The search", [*pictures, cost])


def events(found: Findings, gallery: Gallery) -> Section:
    """Return the section with the effect of events on logits and loss, and the time to recover."""
    events = found.records.events
    if not len(events):
        return Section("Events", [aside("No event is recorded.")])
    back = events["recovery"].astype(float)
    told = (
        f"After {int(back.notna().sum()):,} of {words.many(len(events), 'event')} the loss fell below its "
        "value before the event"
    )
    if back.notna().any():
        told += f", for half of them within {back.median():.0%} of the budget"
    unknown = [aside("No figure of logit changes: no event has recorded one.")]
    picture = gallery.show(
        "events",
        recovery(events),
        "Every event of every run. An operator that preserves the function leaves logits and loss "
        "unchanged; afterwards the new parameters and the re-warmed learning rate may raise the loss for "
        "a while. Recovery is seen at evaluations only, so its time is only as exact as their spacing.",
    )
    notes = [] if events["change"].notna().any() else unknown
    return Section("Events", [*notes, Paragraph(f"{told}."), picture])


def _cost(records: Records) -> PageTable:
    kinds: dict[str, tuple[Kind, ...]] = {
        "search": ("search",),
        "fixed shapes": ("fixed",),
        "baselines": ("baseline",),
        "confirmations": ("confirmation",),
        "all": TRIAL_KINDS,
    }
    rows = []
    for name, among in kinds.items():
        trials = [trial.record for trial in records.trials if trial.record.kind in among]
        pruned = sum(trial.status == "pruned" for trial in trials)
        runs = [run for trial in trials for run in trial.runs]
        rows.append(
            [
                name,
                *(words.count(number) for number in (len(trials), pruned, len(runs), len({*runs}))),
                words.compute(sum(trial.charged for trial in trials)),
                words.compute(sum(trial.executed for trial in trials)),
                f"{sum(trial.seconds for trial in trials) / 3600:.2f}",
            ]
        )
    columns = ["cost", "trials", "of these pruned", "runs", "distinct runs", "charged", "executed"]
    return PageTable([*columns, "hours of training"], rows, frozenset({"cost"}))
