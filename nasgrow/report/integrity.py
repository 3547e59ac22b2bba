"""What a claim stands on: preservation at events, data, software, machines, and all that weakens it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nasgrow.operators import operator_from
from nasgrow.report import words
from nasgrow.report.load import Records
from nasgrow.report.ranking import Contender, Ranking
from nasgrow.report.verdict import FINAL, Verdict
from nasgrow.study.baselines import PEAK, long_stages
from nasgrow.study.lock import doing

LIMIT = 1e-4
"""The largest change of a logit at an event, relative to the largest logit, that rounding explains."""

SEEDS = 5
"""With fewer seeds than these, an interval is wide and rests on the assumption that losses are normal."""

EACH = 10
"""With fewer trials than these for each searched parameter, a search has seen little of its space."""

NAMED = 10
"""Items of a kind that a list names; more are counted."""


@dataclass(frozen=True)
class Integrity:
    """The state of a study's records.

    Attributes:
        events: Events recorded.
        largest_change: The largest relative change of a logit at an event whose operator is said to preserve
            the function exactly.
        other_events: Events of other operators, which are counted in ``events`` too.
        largest_other: The largest change at one of those.
        broken: Events above the limit whose operator is said to preserve the function, by name.
        pruned: Trials that were paused at a rung, and not resumed before the search ended.
        diverged: Trials that diverged.
        died: Workers that died while they trained a trial.
        weaknesses: What weakens the claim, a sentence each.
    """

    events: int
    largest_change: float | None
    other_events: int
    largest_other: float | None
    broken: tuple[str, ...]
    pruned: int
    diverged: int
    died: int
    weaknesses: tuple[str, ...]


def examine(records: Records, ranking: Ranking, verdict: Verdict) -> Integrity:
    """Look for all that a reader must know before believing the verdict."""
    events = records.events
    exact = events["operator"].map(_preserves).astype(bool)
    preserving, others = events[exact], events[~exact]
    broken = [
        f"{row.trial}, event {row.event + 1} at {row.fraction:.0%} ({row.dimensions}): {row.change:.1e}"
        for row in preserving[~(preserving["change"].astype(float) <= LIMIT)].itertuples()
    ]
    statuses = [trial.record.status for trial in records.trials]
    return Integrity(
        events=len(events),
        largest_change=float(preserving["change"].max()) if len(preserving) else None,
        other_events=len(others),
        largest_other=float(others["change"].max()) if len(others) else None,
        broken=_some(broken),
        pruned=statuses.count("pruned"),
        diverged=statuses.count("diverged"),
        died=sum(trial.record.deaths for trial in records.trials),
        weaknesses=tuple(_weaknesses(records, ranking, verdict, len(broken))),
    )


def _preserves(operator: object) -> bool:
    """Whether an operator is said to preserve the function exactly; so is one that no record names."""
    return not isinstance(operator, str) or operator_from(operator).preserves == "exact"


def _some(items: list[str]) -> tuple[str, ...]:
    more = len(items) - NAMED
    return tuple(items[:NAMED] + ([f"and {more:,} more"] if more > 0 else []))


def _weaknesses(records: Records, ranking: Ranking, verdict: Verdict, broken: int) -> Iterator[str]:
    yield from _of_confirmation(ranking, verdict)
    yield from _of_baselines(ranking)
    yield from _of_budgets(verdict)
    yield from _of_search(records, verdict.ours)
    if broken:
        yield f"Growing changed the function by more than {LIMIT:g} at {words.many(broken, 'event')}."
    origins = records.origins
    for what, found in (
        ("machines", origins.machines),
        ("versions of software", origins.versions),
        ("commits", origins.commits),
        ("data fingerprints", origins.fingerprints),
    ):
        if len(found) > 1:
            yield f"Runs have different {what}: {len(found)}, listed under Integrity."
    changed = [commit for commit in origins.commits if commit.endswith("-dirty")]
    if changed:
        yield f"Runs come from a checkout with changes that no commit holds: {words.listed(changed)}."
    if records.damaged:
        named = "; ".join(_some(records.damaged))
        yield f"{words.many(len(records.damaged), 'record')} could not be read and were left out: {named}."


def _of_confirmation(ranking: Ranking, verdict: Verdict) -> Iterator[str]:
    if not verdict.confirmed:
        have = (
            " Confirmations so far hold no schedule and fixed size with all seeds."
            if ranking.confirmed
            else ""
        )
        yield f"Nothing is confirmed: losses are on the validation split that chose the schedule.{have}"
        return
    counts = [len(one.losses) for one in (verdict.ours, *(c.theirs for c in verdict.comparisons)) if one]
    counts += [len(rung.losses) for one in verdict.comparisons if one.equal for rung in one.equal.rungs]
    if counts and min(counts) < SEEDS:
        yield f"Few seeds: {min(counts)} for some of those compared, where {SEEDS} would be a fair number."
    every = [*ranking.confirmed, *ranking.confirmed_others, *ranking.diverged]
    for one in every:
        if one.failed:
            yield f"{words.many(one.failed, 'training')} of {one.title} with fresh seeds did not finish."
    best = next(iter(ranking.schedules), None)
    if best is not None and best.label not in [one.label for one in every]:
        yield f"The best schedule of the search, {best.title}, is not confirmed."
    shapes = {one.trial.schedule.start for one in ranking.confirmed if not one.trial.grows}
    left = [tuned.size.name for tuned in ranking.sizes if tuned.size.shape not in shapes]
    if left:
        yield f"Fixed sizes without confirmation, and so not compared with: {words.listed(left)}."
    if verdict.ours is not None:
        for _, part, shape in long_stages(verdict.ours.trial.schedule):
            if shape not in shapes:
                yield (
                    f"The schedule stays at {shape} for {part:.0%} of the budget, and that shape was not "
                    "confirmed from scratch: it may be better than growing."
                )
    rivals = [one for one in ranking.confirmed if one.trial.grows]
    if len(rivals) > 1:
        yield (
            f"The schedule is the best of {len(rivals)} confirmed ones, chosen by the validation loss of the "
            "same runs: intervals do not account for that choice, which matters more the more there are."
        )


def _of_budgets(verdict: Verdict) -> Iterator[str]:
    for comparison in verdict.comparisons:
        equal = comparison.equal
        if equal is None and comparison.rival == FINAL:
            yield ("Compute saved is read off curves: the final shape was trained under one budget only.")
        elif equal is not None and equal.times is None:
            yield (
                "The budget at which the final shape has the schedule's loss lies outside those it was tuned "
                f"for ({words.listed([f'{rung.times:.4g}' for rung in equal.rungs])} times the study's)."
            )


def _of_baselines(ranking: Ranking) -> Iterator[str]:
    tried = len(ranking.finished_sizes)
    if tried:
        yield (
            f"The fixed sizes are a list, and {tried} of it {'were' if tried > 1 else 'was'} tried: the best "
            "one for this compute may be another."
        )
    fixed = ranking.sizes + ranking.others
    missing = [tuned.size.name for tuned in fixed if tuned.best is None]
    if missing:
        yield f"Fixed sizes without a finished baseline: {words.listed(missing)}."
    for tuned in fixed:
        if tuned.best is None:
            continue
        rate = f"{tuned.best.record.learning_rate:.3g}"
        if len(tuned.tried) == 1:
            yield f"The baseline {tuned.size.name} was trained at one learning rate only, {rate}."
        elif tuned.at_edge:
            yield (
                f"The best learning rate of the baseline {tuned.size.name}, {rate}, is the first or the last "
                f"of the {len(tuned.tried)} tried: a better one may lie beyond."
            )


def _of_search(records: Records, ours: Contender | None) -> Iterator[str]:
    study = records.study
    ended, planned = records.ended, study.config.trials
    search = [trial.record for trial in records.of_kind("search")]
    if planned is not None and ended < planned and not study.is_spent(search):
        over = doing(records.folder)["state"] == "ended"
        why = "The space has no further point to try" if over else "The search has not ended"
        besides = f", and {found}" if (found := words.besides(records.besides)) else ""
        yield f"{why}: {ended} of {planned} trials are recorded{besides}."
    if records.unfinished:
        yield f"Begun, and not ended or not recorded: {words.many(records.unfinished, 'run')}."
    searched = {name for trial in records.of_kind("search") for name in trial.record.parameters}
    if searched and ended < min(EACH * len(searched), study.space.size):
        yield (
            f"A small search: {words.many(ended, 'trial')} for {words.many(len(searched), 'parameter')}, "
            f"fewer than {EACH} for each."
        )
    if study.space.opened:
        yield (
            "The space searches the final shape, and fixed sizes are those of the study's own: a schedule "
            "may end at a shape that was not trained from scratch."
        )
    if (start := study.config.start) is not None:
        yield (
            f"Every run starts from the checkpoint {start.folder} (hash {start.hash[:12]}), whose cost is "
            "charged to none. Fixed sizes are grown from it at once; that is what 'from scratch' means here."
        )
    offered = study.space.settings.get(PEAK)
    if ours is not None and offered is not None:
        rates = [float(rate) for rate in offered.values]
        best = ours.trial.record.learning_rate
        if best in (min(rates), max(rates)):
            yield (
                f"The best schedule's learning rate, {best:.3g}, is the lowest or the highest that the space "
                "offers: growth may be undersold."
            )
