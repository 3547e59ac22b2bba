"""Summarise a study: its progress, its best trials, and its result so far in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from nasgrow.study.baselines import FINAL, best_first, title_of, tuned_sizes
from nasgrow.study.best import confirmed_schedules
from nasgrow.study.counts import Counts, count_trials, is_asked_for, many
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import Kind, TrialRecord
from nasgrow.study.tuning import EXTENSIONS, contender, tries

ERRORS = 2.0
"""The half width of the interval of a trial's mean time, in standard errors, for estimates of time left."""


@dataclass(frozen=True)
class Candidate:
    """A trial that finished with a loss."""

    number: int
    loss: float
    name: str
    schedule: str
    rate: float
    """The peak learning rate."""
    events: int
    losses: tuple[float, ...]
    """The loss of each seed."""
    seconds: float | None = None
    """The seconds of training the schedule once on the study's device; None if not measured."""


@dataclass(frozen=True)
class Baseline:
    """One fixed shape, trained from scratch.

    Attributes:
        name: Its name.
        shape: Its sizes.
        loss: Its best loss so far; None if no trial has finished.
        rate: The learning rate of that loss; None without it.
        tried: How many settings were trained to their end, or diverged or failed.
        best_at_edge: Whether the best value of a tuned field is the lowest or the highest tried.
        times: Its budget as a multiple of the study's.
        seconds: The seconds of training it once; None if not measured or not tried.
    """

    name: str
    shape: str
    loss: float | None
    rate: float | None
    tried: int
    best_at_edge: bool
    times: float = 1.0
    seconds: float | None = None


@dataclass(frozen=True)
class Summary:
    """A study at one moment.

    Attributes:
        name: The study's name.
        seeds: How many seeds each loss is the mean of.
        counts: How many trials it has.
        failed: The labels of trials of all kinds that failed and were not started again.
        exhausted: Whether the search ended early because its space has no further point. It is not
            said during a confirmation, which may follow a search that was stopped.
        running: How many trials of all kinds are being trained.
        best: The best search trial; None if none has finished.
        best_grown: The best search trial that grows; None if none has finished.
        best_scratch: The best search trial that does not grow; None if none has finished.
        baselines: The final shape, fixed shapes by loss, and sizes under other budgets.
        charged: FLOPs that trials of all kinds were billed.
        executed: FLOPs that machines spent on them.
        seconds: Wall time of training, added up over workers.
        left: The least and the most seconds that one worker would need for the rest; None if unknown.
        confirmed: A sentence with the test losses of the confirmed best; None if nothing is confirmed.
        checkpoint: The folder of the checkpoint that every run starts from; None for fresh weights.
        currency: The unit of the budget, which is equal for all runs: ``compute`` or ``time``.
    """

    name: str
    seeds: int
    counts: Counts
    failed: tuple[str, ...]
    exhausted: bool
    running: int
    best: Candidate | None
    best_grown: Candidate | None
    best_scratch: Candidate | None
    baselines: tuple[Baseline, ...]
    charged: int
    executed: int
    seconds: float
    left: tuple[float, float] | None
    confirmed: str | None = None
    checkpoint: str | None = None
    currency: str = "compute"

    @property
    def reused(self) -> float:
        """The share of the charged FLOPs that machines did not have to execute."""
        return max(0.0, 1 - self.executed / self.charged) if self.charged else 0.0

    @property
    def best_fixed(self) -> Baseline | None:
        """The fixed shape with the lowest loss under the study's budget; None if none has finished.

        The final shape counts as one.
        """
        return min(self._finished, key=lambda baseline: baseline.loss or 0.0, default=None)

    @property
    def searched_sizes(self) -> list[Baseline]:
        """The final shape, and fixed shapes with a tried setting under the study's budget."""
        return [one for one in self.baselines if one.times == 1 and (one.tried or one.name == FINAL)]

    @property
    def finished_sizes(self) -> int:
        """How many fixed shapes, with the final one, have a loss under the study's budget."""
        return len(self._finished)

    @property
    def _finished(self) -> list[Baseline]:
        return [one for one in self.baselines if one.loss is not None and one.times == 1]


def summarise(
    study: ResolvedStudy,
    trials: Mapping[Kind, Mapping[int, TrialRecord]],
    *,
    ended: bool,
    baselines: int | None = None,
    confirming: int | None = None,
) -> Summary:
    """Summarise a study.

    Args:
        study: The study.
        trials: Its trials by kind.
        ended: Whether its search is over.
        baselines: How many baseline trials there will be at least, while they are trained; else
            None.
        confirming: How many confirmation trials there will be, during a confirmation; else None.
    """
    config = study.config
    search, confirmations = (list(trials[kind].values()) for kind in ("search", "confirmation"))
    fixed = [*trials["baseline"].values(), *trials["fixed"].values()]
    every = [*search, *fixed, *confirmations]
    seconds = sum(trial.seconds for trial in every)
    sizes = tuple(_baselines(study, fixed))
    counts = count_trials(study, every, baselines, confirming)
    first = 0 if ended else len(study.tuning.first())
    waiting = max(baselines or first, len(trials["baseline"])) - counts.baselines
    if confirming is not None:
        waiting += confirming - counts.confirmed
    few = counts.ended < (config.trials or 0)
    return Summary(
        name=config.name,
        seeds=len(config.seeds),
        counts=counts,
        failed=tuple(trial.label for trial in failed(every)),
        exhausted=ended and confirming is None and few and not study.is_spent(search),
        running=sum(trial.status == "running" for trial in every),
        best=_candidate(search),
        best_grown=_candidate(trial for trial in search if trial.schedule["events"]),
        best_scratch=_candidate(trial for trial in search if not trial.schedule["events"]),
        baselines=sizes,
        charged=sum(trial.charged for trial in every),
        executed=sum(trial.executed for trial in every),
        seconds=seconds,
        left=_range(study, trials, ended=ended, waiting=waiting),
        confirmed=_confirmed(study, trials),
        checkpoint=None if config.start is None else config.start.folder,
        currency=config.budget.currency,
    )


def _confirmed(study: ResolvedStudy, trials: Mapping[Kind, Mapping[int, TrialRecord]]) -> str | None:
    """Return a sentence with the test losses of the confirmed best schedule and best fixed shape.

    As in a report, the validation loss of the fresh seeds chooses them. None if nothing is confirmed.
    """
    every = confirmed_schedules(trials)
    grown, fixed = (
        [one for one in every if bool(one.trial.schedule["events"]) == grows] for grows in (True, False)
    )
    told = [
        f"{what} {title_of(study, trials, one.trial)} ({one.trial.label}) {one.loss:.4f}"
        for what, found in (("schedule", grown), ("fixed shape", fixed))
        for one in found[:1]
    ]
    seeds = max((one.seeds for one in every), default=0)
    of = "one fresh seed" if seeds == 1 else f"{seeds} fresh seeds"
    return (
        f"Confirmed, mean test loss of {of}: {', '.join(told)}; the report has the verdict." if told else None
    )


def _range(
    study: ResolvedStudy, trials: Mapping[Kind, Mapping[int, TrialRecord]], *, ended: bool, waiting: int
) -> tuple[float, float] | None:
    """Estimate the least and the most seconds that one worker needs for the rest; None if unknown.

    The time of a trial varies, and each contender that is not tuned yet may need
    :data:`EXTENSIONS` runs more.

    Args:
        study: The study.
        trials: Its trials by kind.
        ended: Whether the search is over.
        waiting: How many baselines and confirmations are planned or started, but have not ended.
    """
    took = _durations(study, trials, ended=ended)
    if not took:
        return None
    each = fmean(took)
    error = ERRORS * stdev(took) / math.sqrt(len(took)) if len(took) > 1 else each
    least, most = max(min(took), each - error), each + error
    low = _left(study, trials, least, ended=ended, waiting=waiting)
    more = 0 if ended else EXTENSIONS * _untuned(study, trials)
    high = _left(study, trials, most, ended=ended, waiting=waiting + more)
    return None if low is None or high is None else (low, high)


def _durations(
    study: ResolvedStudy, trials: Mapping[Kind, Mapping[int, TrialRecord]], *, ended: bool
) -> list[float]:
    """Return the seconds of trials like those that are left.

    After a search these are complete runs. A tree pauses most trials, or has trained their
    beginning before. So their times are those of complete runs at the same pace.
    """
    if ended:
        complete = [*trials["baseline"].values(), *trials["confirmation"].values()]
        return [trial.seconds for trial in complete if trial.is_ended]
    every = [trial for kind in trials.values() for trial in kind.values()]
    if study.config.sampler.kind != "tree":
        return [trial.seconds for trial in every if trial.is_ended]
    whole = len(study.config.seeds) * study.budget
    return [whole * trial.seconds / trial.executed for trial in every if trial.executed]


def _untuned(study: ResolvedStudy, trials: Mapping[Kind, Mapping[int, TrialRecord]]) -> int:
    """Count the final shape, the best schedule and the best fixed shape, without those that are tuned."""
    finals = [trial for trial in trials["baseline"].values() if trial.name == FINAL]
    schedules = [trial for trial in trials["search"].values() if trial.schedule["events"]]
    fixed = [list(trials["fixed"].values())] if study.config.baselines.compute else []
    return sum(not _is_best_tuned(study, among) for among in (finals, schedules, *fixed))


def _is_best_tuned(study: ResolvedStudy, trials: Sequence[TrialRecord]) -> bool:
    """Return whether the best contender of these trials has no further setting to try."""
    for best in best_first(trials)[:1]:
        own = (one for one in trials if one.schedule == best.schedule and contender(one) == contender(best))
        tried, pending = tries(study.tuning, own)
        return not pending and study.tuning.next(tried) is None
    return False


def _left(
    study: ResolvedStudy,
    trials: Mapping[Kind, Mapping[int, TrialRecord]],
    each: float,
    *,
    ended: bool,
    waiting: int,
) -> float | None:
    """Estimate the seconds that one worker needs for the search, fixed shapes, baselines and confirmations.

    The search ends at the first of its limits. None if it has no limit that can be estimated yet.

    Args:
        study: The study.
        trials: Its trials by kind.
        each: The seconds that one trial is assumed to take.
        ended: Whether the search is over.
        waiting: How many baselines and confirmations are planned or started, but have not ended.
    """
    config = study.config
    if ended:
        return each * waiting
    search, fixed = trials["search"].values(), trials["fixed"].values()
    spent, executed = sum(trial.seconds for trial in search), sum(trial.executed for trial in search)
    limits = []
    if config.trials is not None:
        done = sum(trial.is_ended and is_asked_for(study, trial) for trial in search)
        limits.append(each * (config.trials - done))
    if config.hours is not None:
        limits.append(3600 * config.hours - spent)
    if executed and math.isfinite(study.search_flops):
        limits.append(spent / executed * (study.search_flops - executed))
    if not limits:
        return None
    left = max(0.0, min(limits))
    shapes = config.baselines.compute * (spent + left) - sum(trial.seconds for trial in fixed)
    return left + max(0.0, shapes) + each * waiting


def failed(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the failed trials, without those that another trial of the same kind and parameters replaces.

    The next launch replaces failed baselines and confirmations in this way.
    """
    done = [trial for trial in trials if trial.status != "failed"]
    return [
        trial
        for trial in trials
        if trial.status == "failed"
        and not any(trial.kind == one.kind and trial.parameters == one.parameters for one in done)
    ]


def missing_lines(summary: Summary) -> list[str]:
    """Return a sentence for trials that failed, and one for a search whose space ran out of points.

    Each is left out if there is nothing to say.
    """
    lines = []
    if summary.failed:
        lines.append(f"These trials failed because their workers kept dying: {', '.join(summary.failed)}.")
    if summary.exhausted:
        lines.append(
            f"The search ended after {summary.counts.ended} of {summary.counts.planned} trials: the space "
            "has no further point to try."
        )
    return lines


def answer(summary: Summary) -> list[str]:
    """State the result of the study so far in sentences.

    An item that begins with a space continues the sentence before it on a new line.
    """
    grown, fixed = summary.best_grown, summary.best_fixed
    if grown is None:
        ended = summary.counts.ended
        if ended and summary.counts.among.get("diverged") == ended:
            return [f"Training diverged in {_every(ended, 'trial')} that ended."]
        return ["No schedule that grows has finished yet."]
    lines = [
        f"Best schedule (trial {grown.number}), {grown.name}: loss {grown.loss:.4f} at learning rate "
        f"{grown.rate:.3g}.",
        f"  {grown.schedule}",
    ]
    final = next((baseline for baseline in summary.baselines if baseline.name == FINAL), None)
    if final is not None and final.loss is not None:
        begun = "from scratch" if summary.checkpoint is None else f"grown at once from {summary.checkpoint}"
        lines.append(
            f"Final shape {begun}: loss {final.loss:.4f} at learning rate {final.rate:.3g} "
            f"({many(final.tried, 'setting')} tried): the schedule is {_apart(grown.loss, final.loss)}."
        )
    if fixed is None:
        tried = sum(baseline.tried for baseline in summary.baselines if baseline.times == 1)
        if tried:
            return [
                *lines,
                f"Training diverged or failed in {_every(tried, 'run')} of fixed shapes that ended.",
            ]
        return [*lines, "No fixed shape has finished yet."]
    if fixed.name != FINAL:
        apart = _apart(grown.loss, fixed.loss or 0.0)
        lines.append(
            f"Best of {_sizes(summary)} ({fixed.name}): loss {fixed.loss:.4f} at learning rate "
            f"{fixed.rate:.3g} ({many(fixed.tried, 'setting')} tried): the schedule is {apart}."
        )
    scratch = summary.best_scratch
    if scratch is not None and scratch.loss < (fixed.loss or 0.0):
        lines.append(
            f"Best trial that does not grow (trial {scratch.number}): loss {scratch.loss:.4f}: "
            f"the schedule is {_apart(grown.loss, scratch.loss)}."
        )
    won = grown.loss < min(fixed.loss or 0.0, scratch.loss if scratch is not None else math.inf)
    growth = "Growth" if summary.confirmed is None else "In the search growth"
    lines.append(
        f"{growth} leads {_sizes(summary)} at equal {summary.currency}."
        if won
        else f"{growth} does not lead: a fixed shape is at least as good at equal {summary.currency}."
    )
    seeds = "one seed" if summary.seeds == 1 else f"{summary.seeds} seeds"
    lines.append(
        summary.confirmed
        or f"That is the best of {summary.counts.ended} trials, {seeds} each, on the validation split: "
        "a candidate, not yet a verdict."
    )
    edges = [one.name for one in summary.baselines if one.best_at_edge and one.name in (FINAL, fixed.name)]
    if edges:
        lines.append(f"The best setting is the lowest or the highest tried for: {', '.join(edges)}.")
    return lines


def _sizes(summary: Summary) -> str:
    """Name the fixed shapes that a schedule is compared with."""
    many = summary.finished_sizes
    return "the one fixed shape tried" if many == 1 else f"the {many} fixed shapes searched"


def _every(many: int, what: str) -> str:
    return f"the one {what}" if many == 1 else f"all {many} {what}s"


def _apart(ours: float, theirs: float) -> str:
    return f"{abs(ours - theirs):.4f} {'lower' if ours < theirs else 'higher'}"


def _candidate(trials: Iterable[TrialRecord]) -> Candidate | None:
    """Return the best of some trials; None if none has a loss."""
    for trial in best_first(trials)[:1]:
        return Candidate(
            number=trial.number,
            loss=trial.loss or 0.0,
            name=trial.title,
            schedule=trial.words,
            rate=trial.learning_rate,
            events=len(trial.schedule["events"]),
            losses=tuple(loss for loss in trial.losses if loss is not None),
            seconds=trial.schedule_seconds,
        )
    return None


def _baselines(study: ResolvedStudy, trials: Sequence[TrialRecord]) -> Iterable[Baseline]:
    for tuned in tuned_sizes(study, trials):
        best, size = tuned.best, tuned.size
        yield Baseline(
            name=size.name,
            shape=str(size.shape),
            loss=None if best is None else best.loss,
            rate=None if best is None else best.learning_rate,
            tried=sum(trial.is_ended and trial.status != "pruned" for trial in tuned.tried),
            best_at_edge=bool(tuned.edges),
            times=size.times,
            seconds=next((trial.schedule_seconds for trial in tuned.tried), None),
        )
