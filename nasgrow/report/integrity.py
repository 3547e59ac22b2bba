"""Check how far a verdict can be trusted: function preservation, data, software, tuning, search effort."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from pydantic import TypeAdapter

from nasgrow.errors import UserError
from nasgrow.operators import operator_from
from nasgrow.report import words
from nasgrow.report.budgets import EqualLoss
from nasgrow.report.load import Records
from nasgrow.report.naming import setting_name
from nasgrow.report.ranking import Ranking
from nasgrow.report.verdict import Verdict
from nasgrow.spaces.space import DeclaredSpace
from nasgrow.strict import read_as
from nasgrow.study.baselines import TunedBaseline, long_stages
from nasgrow.study.config import DATA
from nasgrow.study.lock import doing
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.tuning import contender, tries

MAX_ROUNDING = 1e-4
"""The largest change of a logit at an event, relative to the largest logit, that rounding explains."""

SEEDS = 5
"""The fewest seeds without a warning: with fewer, intervals are wide and assume normal losses."""

EACH = 10
"""The fewest trials for each searched parameter without a warning that the search was small."""

OVERLAP = 0.01
"""The largest share of the test text that may occur in the training text without a warning."""

NAMED = 10
"""The most items that a list names; further ones are only counted."""


@dataclass(frozen=True)
class _Tokens:
    train: int


@dataclass(frozen=True)
class _Data:
    """The fields of the study's data file that a verdict depends on."""

    tokens: _Tokens
    overlap: float | None
    """The share of the test text that also occurs in the training text; None if texts are too short."""


_DATA = TypeAdapter(_Data)


@dataclass(frozen=True)
class Integrity:
    """The reasons to trust or doubt a verdict.

    Attributes:
        events: The number of events recorded.
        largest_change: The largest relative change of a logit at an event whose operator claims to
            preserve the function exactly, or was not recorded; None without such an event.
        other_events: The number of events of other operators, which ``events`` includes.
        largest_other: The largest relative change of a logit at one of these; None without one.
        broken: A description of each event that ``largest_change`` covers and whose change is not
            finite or above :data:`MAX_ROUNDING`. After :data:`NAMED` of them, the last item is the
            number of further ones.
        pruned: The number of trials that a rung paused and that were not resumed before the search ended.
        diverged: The number of trials that diverged.
        died: The number of workers that died while they trained a trial.
        weaknesses: The weaknesses of the verdict, a sentence each.
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
    """Collect everything that a reader must know before believing the verdict."""
    events = records.events
    exact = events["operator"].map(_preserves).astype(bool)
    preserving, others = events[exact], events[~exact]
    broken = [
        f"{row.trial}, event {row.event + 1} at {row.fraction:.0%} ({row.dimensions}): {row.change:.1e}"
        for row in preserving[~(preserving["change"].astype(float) <= MAX_ROUNDING)].itertuples()
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
    """Return whether an operator claims to preserve the function exactly; True if it was not recorded."""
    return not isinstance(operator, str) or operator_from(operator).preserves == "exact"


def _some(items: list[str]) -> tuple[str, ...]:
    more = len(items) - NAMED
    return tuple(items[:NAMED] + ([f"{more:,} more"] if more > 0 else []))


def _weaknesses(records: Records, ranking: Ranking, verdict: Verdict, broken: int) -> Iterator[str]:
    yield from _of_confirmation(ranking, verdict)
    yield from _of_final(records, verdict)
    yield from _of_costs(verdict)
    yield from _of_tuning(records, ranking, verdict)
    yield from _of_times(records, verdict)
    yield from _of_search(records)
    yield from _of_data(records, verdict)
    if broken:
        yield f"Growing changed the function by more than {MAX_ROUNDING:g} at {words.many(broken, 'event')}."
    origins = records.origins
    for what, found in (
        ("machines", origins.machines),
        ("versions of software", origins.versions),
        ("commits", origins.commits),
        ("data fingerprints", origins.fingerprints),
    ):
        if len(found) > 1:
            yield f"The runs have {len(found)} different {what}, listed under Integrity."
    changed = [commit for commit in origins.commits if commit.endswith("-dirty")]
    if changed:
        yield f"Runs come from a checkout with uncommitted changes: {words.listed(changed)}."
    if records.damaged:
        named = "; ".join(_some(records.damaged))
        yield f"The report leaves out {words.many(len(records.damaged), 'unreadable record')}: {named}."


def _of_confirmation(ranking: Ranking, verdict: Verdict) -> Iterator[str]:
    if not verdict.confirmed:
        have = (
            " The confirmations so far do not have both a schedule and a fixed shape with all seeds."
            if ranking.confirmed
            else ""
        )
        yield f"Nothing is confirmed: losses are on the validation split, which chose the schedule.{have}"
        return
    counts = [len(one.losses) for one in (verdict.ours, *(c.theirs for c in verdict.comparisons)) if one]
    counts += [len(rung.losses) for one in verdict.comparisons if one.equal for rung in one.equal.rungs]
    yield from few_seeds(counts)
    for comparison in verdict.comparisons:
        assert verdict.ours is not None
        on_validation = fmean(verdict.ours.validation) - fmean(comparison.theirs.validation)
        if on_validation * comparison.difference.value < 0:
            yield (
                f"On the validation split the same runs say the opposite: the schedule's loss is "
                f"{words.apart(on_validation)} than that of {comparison.rival}."
            )
    every = [*ranking.confirmed, *ranking.confirmed_others, *ranking.diverged]
    for one in every:
        if one.failed:
            yield f"{words.many(one.failed, 'training')} of {one.title} with fresh seeds did not finish."
    best = next(iter(ranking.schedules), None)
    if best is not None and best.label not in [one.label for one in every]:
        yield f"The best schedule of the search, {best.title}, is not confirmed."
    shapes = {one.trial.schedule.start for one in ranking.confirmed if not one.trial.grows}
    best_size = ranking.best_size
    if best_size is not None and best_size.size.shape not in shapes:
        yield f"The best fixed shape of the search, {best_size.size.name}, is not confirmed."
    if ranking.final.size.shape not in shapes:
        yield f"The final shape {ranking.begun} is not confirmed."
    yield from _of_lucky_rival(ranking)
    if verdict.ours is not None:
        tried = {tuned.size.shape for tuned in ranking.finished_sizes}
        for part, shape in long_stages(verdict.ours.trial.schedule):
            if shape not in tried:
                yield (
                    f"The schedule stays at {shape} for {part:.0%} of the budget, but that shape was not "
                    f"trained {ranking.begun} as a baseline: it may be better than growing."
                )
    rivals = [one for one in ranking.confirmed if one.trial.grows]
    if len(rivals) > 1:
        yield (
            f"The schedule is the best of {len(rivals)} confirmed ones, chosen by the validation loss of the "
            "same runs. The intervals do not account for that choice, which matters more with more schedules."
        )


def few_seeds(counts: Sequence[int]) -> Iterator[str]:
    """Warn if some of the models compared, or all of them, have fewer than :data:`SEEDS` fresh seeds.

    Args:
        counts: The number of fresh seeds of each model; may be empty.
    """
    if counts and min(counts) < SEEDS:
        which = "each" if min(counts) == max(counts) else "some"
        yield f"Few seeds: only {min(counts)} for {which} of the models compared; {SEEDS} would be better."


def _of_lucky_rival(ranking: Ranking) -> Iterator[str]:
    """Warn if fixed shapes that are not confirmed may be better than the confirmed ones."""
    better = ranking.unconfirmed_rivals
    if better:
        yield (
            f"{words.many(len(better), 'fixed shape')} had a lower validation loss in the search than the "
            f"best confirmed one with fresh seeds. {'It is' if len(better) == 1 else 'They are'} not "
            f"confirmed, so the best rival may be missing: {'; '.join(_some(better))}. nasgrow confirm "
            "--top N confirms the N best fixed shapes."
        )


def _of_final(records: Records, verdict: Verdict) -> Iterator[str]:
    """Warn if the best schedule ends at another shape than the final one, which some spaces allow."""
    ends = verdict.ours.trial.schedule.final if verdict.ours else records.study.final
    if ends != records.study.final:
        yield (
            f"The best schedule ends at {ends}, not at the final shape: a lower loss than the final shape's "
            "does not show that growing to the final shape pays."
        )


def _of_costs(verdict: Verdict) -> Iterator[str]:
    """Warn if the schedule spent more tokens or seconds than a rival, or if its saving is not known."""
    for comparison in verdict.comparisons:
        more = [f"{one.ratio:.2f} times the {one.name}" for one in comparison.currencies if one.ratio > 1]
        if more:
            yield f"At the same budget the schedule spent {words.listed(more)} of {comparison.rival}."
        yield from of_saving(comparison.rival, comparison.equal, verdict.currency)


def of_saving(rival: str, equal: EqualLoss | None, currency: str) -> Iterator[str]:
    """Warn if what a schedule saves over a rival is not known, or known as a bound only.

    Args:
        rival: The rival in words.
        equal: The budget at which it has the schedule's loss; None if it has one budget only.
        currency: The unit of the budget: ``compute`` or ``time``.
    """
    if equal is None:
        yield (
            f"{currency.capitalize()} saved over {rival} is not known: that rival was trained with one "
            "budget only."
        )
    elif equal.times is None:
        yield (
            f"The budget at which {rival} has the schedule's loss lies outside the budgets trained "
            f"({words.listed([f'{rung.times:.4g}' for rung in equal.rungs])} times the study's)."
        )


def _of_tuning(records: Records, ranking: Ranking, verdict: Verdict) -> Iterator[str]:
    """Warn of best settings at the edge of the values tried, and of unequal tuning or search effort."""
    study = records.study
    for baseline in (ranking.final, *ranking.others):
        if baseline.best is not None:
            for name in baseline.edges:
                yield _edge(f"the baseline {baseline.size.name}", name, _effort(study, baseline))
    if ranking.final.best is None:
        yield f"The final shape {ranking.begun} has no finished baseline."
    efforts = {}
    for rival, tuned in (("the final shape", ranking.final), ("the best fixed shape", ranking.best_size)):
        if tuned is not None and tuned.best is not None:
            efforts[rival] = _effort(study, tuned)
    ours = verdict.ours
    if ours is not None:
        own = [
            trial.record
            for trial in records.of_kind("search")
            if contender(trial.record) == contender(ours.origin.record)
        ]
        losses, _ = tries(study.tuning, own)
        for name in study.tuning.edges(losses):
            yield _edge("the best schedule", name, len(losses))
        for rival, effort in efforts.items():
            if effort < len(losses):
                yield (
                    f"Unequal tuning: {words.many(len(losses), 'setting')} tried for the best schedule, "
                    f"{effort} for {rival}."
                )
    best = ranking.best_size
    if best is not None and best is not ranking.final:
        for name in best.edges:
            yield _edge("the best fixed shape", name, _effort(study, best))
    spent = {
        kind: sum(trial.record.executed for trial in records.of_kind(kind)) for kind in ("search", "fixed")
    }
    if spent["fixed"] < 0.98 * spent["search"]:
        yield (
            f"The search of fixed shapes executed {words.compute(spent['fixed'])}, the search of schedules "
            f"{words.compute(spent['search'])}: more search may find a better fixed shape."
        )


def _effort(study: ResolvedStudy, tuned: TunedBaseline) -> int:
    """Return the number of settings of a fixed shape that have a result: pruned ones have none."""
    losses, _ = tries(study.tuning, tuned.tried)
    return len(losses)


def _edge(whose: str, name: str, tried: int) -> str:
    return (
        f"The best {setting_name(name)} of {whose} is the lowest or the highest of "
        f"{words.many(tried, 'setting')} tried: a better one may lie beyond."
    )


def _of_times(records: Records, verdict: Verdict) -> Iterator[str]:
    """Warn if the best schedule grows at the earliest or the latest time searched.

    A single time is a choice of the study, and so are the times of listed schedules. Those of a
    user's function are not known.
    """
    space = records.study.space
    if verdict.ours is None or not isinstance(space, DeclaredSpace) or len(space.times) == 1:
        return
    events = verdict.ours.trial.schedule.events
    for at, end, which, other in (
        (events[0].at, space.times[0], "earliest", "an earlier"),
        (events[-1].at, space.last, "latest", "a later"),
    ):
        if at == end:
            grows = f"The best schedule grows at {at:.0%}, the {which} time searched"
            yield f"{grows}: {other} one may be better."


def _of_data(records: Records, verdict: Verdict) -> Iterator[str]:
    """Warn of repeated training text, and of test text that also occurs in the training text.

    There is no warning if the data file cannot be read.
    """
    try:
        data = read_as(records.folder / DATA, _DATA)
    except UserError:
        return
    seen = {"the schedule": verdict.ours, **{one.rival: one.theirs for one in verdict.comparisons}}
    epochs = {name: one.per_run("tokens") / data.tokens.train for name, one in seen.items() if one}
    repeated = [f"{name} sees it {often:.1f} times" for name, often in epochs.items() if often > 1]
    if repeated:
        yield f"Training text is repeated: {words.listed(repeated)}."
    if data.overlap is not None and data.overlap > OVERLAP:
        yield f"{data.overlap:.1%} of the test text's 64-byte windows also occur in the training text."


def _of_search(records: Records) -> Iterator[str]:
    study = records.study
    ended, planned = records.counts.ended, study.config.trials
    search = [trial.record for trial in records.of_kind("search")]
    if planned is not None and ended < planned and not study.is_spent(search):
        over = doing(records.folder)["state"] == "ended"
        why = "The space has no further point to try" if over else "The search has not ended"
        besides = f", and {found}" if (found := words.besides(records.counts.besides)) else ""
        yield f"{why}: {ended} of {planned} trials are recorded{besides}."
    if records.unfinished:
        yield f"{words.many(records.unfinished, 'run')} started, but did not finish or left no record."
    searched = {name for trial in records.of_kind("search") for name in trial.record.parameters}
    if searched and ended < min(EACH * len(searched), study.space.size):
        yield (
            f"A small search: {words.many(ended, 'trial')} for {words.many(len(searched), 'parameter')}, "
            f"fewer than {EACH} per parameter."
        )
    if ended:
        yield (
            f"The best schedule was chosen from {words.many(ended, 'trial')} of one search: how much the "
            "result varies between searches is not known."
        )
    if (start := study.config.start) is not None:
        yield (
            f"Every run starts from the checkpoint {start.folder} (hash {start.hash[:12]}), whose cost is "
            "charged to no run. Fixed shapes are grown from it at once."
        )
