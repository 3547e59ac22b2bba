"""Where a study stands, and what it says so far."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from nasgrow.study.baselines import FINAL, best_first, tuned_sizes
from nasgrow.study.best import confirmed_schedules
from nasgrow.study.counts import Counts, count_trials, is_asked_for
from nasgrow.study.study import Study
from nasgrow.study.trials import Kind, TrialRecord
from nasgrow.study.tuning import EXTENSIONS

TUNED = 3
"""What a search tunes, each by up to :data:`EXTENSIONS` runs more than planned: the final shape, the best
schedule and the best fixed shape."""

ERRORS = 2.0
"""Standard errors of the mean time of a trial that the time left allows for."""


@dataclass(frozen=True)
class Candidate:
    """A trial that ended with a loss."""

    number: int
    loss: float
    name: str
    schedule: str
    events: int
    losses: tuple[float, ...]
    """For each seed."""
    seconds: float | None = None
    """Of training the schedule once on the study's device."""


@dataclass(frozen=True)
class Baseline:
    """One fixed shape: its best loss so far, at which learning rate, and how many were tried.

    At least ``planned`` will be: more where the best lies at an edge. ``times`` is its budget as a multiple
    of the study's, ``seconds`` are those of training it once.
    """

    name: str
    shape: str
    loss: float | None
    rate: float | None
    tried: int
    planned: int
    best_at_edge: bool
    times: float = 1.0
    seconds: float | None = None

    @property
    def progress(self) -> str:
        """How many settings were tried, and of how many at least."""
        return str(self.tried) if self.tried >= self.planned else f"{self.tried} of {self.planned}+"


@dataclass(frozen=True)
class Summary:
    """A study at one moment.

    Attributes:
        name: The study's name.
        seeds: How many seeds each loss is the mean of.
        counts: How many trials it has.
        failed: The trials of all kinds whose workers kept dying, unless another has taken their place.
        exhausted: Whether the search ended with fewer trials because its space has no further point.
        running: Trials being trained, baselines among them.
        best: The best trial of all.
        best_grown: The best trial that grows.
        best_scratch: The best trial that does not.
        baselines: The final shape, fixed shapes by loss, and other budgets.
        charged: FLOPs that all trials and baselines were billed.
        executed: FLOPs that machines spent on them.
        seconds: Wall time of training, added up over workers.
        left: Seconds that one worker would need for the rest, at least and at most, where that can be told.
        confirmed: What fresh seeds say on the test split, in a sentence; None without any.
        checkpoint: The folder of the checkpoint that every run starts from, if they do.
        currency: What all runs at the study's budget have as much of: compute, or time.
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
        """The share of what was charged that machines did not have to spend."""
        return max(0.0, 1 - self.executed / self.charged) if self.charged else 0.0

    @property
    def best_fixed(self) -> Baseline | None:
        """The fixed shape with the lowest loss at equal compute."""
        return min(self._finished, key=lambda baseline: baseline.loss or 0.0, default=None)

    @property
    def finished_sizes(self) -> int:
        """How many fixed shapes have a loss at equal compute."""
        return len(self._finished)

    @property
    def _finished(self) -> list[Baseline]:
        return [one for one in self.baselines if one.loss is not None and one.times == 1]


def summarise(
    study: Study,
    trials: Mapping[Kind, Mapping[int, TrialRecord]],
    *,
    ended: bool,
    confirming: int | None = None,
) -> Summary:
    """Where a study is.

    Args:
        study: The study.
        trials: Its trials by kind.
        ended: Whether its search is over.
        confirming: How many confirmation runs there will be, while they are trained.
    """
    config = study.config
    search, confirmations = (list(trials[kind].values()) for kind in ("search", "confirmation"))
    fixed = [*trials["baseline"].values(), *trials["fixed"].values()]
    every = [*search, *fixed, *confirmations]
    seconds = sum(trial.seconds for trial in every)
    sizes = tuple(_baselines(study, fixed))
    counts = count_trials(study, every, confirming)
    waiting = sum(size.planned - size.tried for size in sizes)
    if confirming is not None:
        waiting += confirming - counts.confirmed
    return Summary(
        name=config.name,
        seeds=len(config.seeds),
        counts=counts,
        failed=tuple(trial.label for trial in failed(every)),
        exhausted=ended and counts.ended < (config.trials or 0) and not study.is_spent(search),
        running=sum(trial.status == "running" for trial in every),
        best=_candidate(search),
        best_grown=_candidate(trial for trial in search if trial.schedule["events"]),
        best_scratch=_candidate(trial for trial in search if not trial.schedule["events"]),
        baselines=sizes,
        charged=sum(trial.charged for trial in every),
        executed=sum(trial.executed for trial in every),
        seconds=seconds,
        left=_range(study, trials, ended=ended, waiting=waiting),
        confirmed=_confirmed(trials),
        checkpoint=None if config.start is None else config.start.folder,
        currency=config.budget.currency,
    )


def _confirmed(trials: Mapping[Kind, Mapping[int, TrialRecord]]) -> str | None:
    """What fresh seeds say: the best schedule and the best fixed shape, as a report chooses them."""
    every = confirmed_schedules(trials)
    grown, fixed = (
        [one for one in every if bool(one.trial.schedule["events"]) == grows] for grows in (True, False)
    )
    told = [
        f"{what} {one.trial.title} ({one.trial.label}) {one.loss:.4f}"
        for what, found in (("schedule", grown), ("fixed shape", fixed))
        for one in found[:1]
    ]
    seeds = max((one.seeds for one in every), default=0)
    of = "one fresh seed" if seeds == 1 else f"{seeds} fresh seeds"
    return (
        f"Confirmed, mean test loss of {of}: {', '.join(told)}; the report has the verdict." if told else None
    )


def _range(
    study: Study, trials: Mapping[Kind, Mapping[int, TrialRecord]], *, ended: bool, waiting: int
) -> tuple[float, float] | None:
    """The seconds that are left, at least and at most: trials differ, and tuning may go on for longer."""
    took = [trial.seconds for kind in trials.values() for trial in kind.values() if trial.is_ended]
    if not took:
        return None
    each = fmean(took)
    error = ERRORS * stdev(took) / math.sqrt(len(took)) if len(took) > 1 else each
    least, most = max(min(took), each - error), each + error
    low = _left(study, trials, least, ended=ended, waiting=waiting)
    more = 0 if ended else TUNED * EXTENSIONS
    high = _left(study, trials, most, ended=ended, waiting=waiting + more)
    return None if low is None or high is None else (low, high)


def _left(
    study: Study,
    trials: Mapping[Kind, Mapping[int, TrialRecord]],
    each: float,
    *,
    ended: bool,
    waiting: int,
) -> float | None:
    """The seconds until the first limit of the search is reached, and those of what it is compared with.

    Args:
        study: The study.
        trials: Its trials by kind.
        each: The seconds of a trial.
        ended: Whether the search is over.
        waiting: Runs of baselines and confirmations that have not ended.
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
    if config.total_flops is not None and executed:
        limits.append(spent / executed * (config.total_flops - executed))
    if not limits:
        return None
    left = max(0.0, min(limits))
    shapes = config.baselines.compute * (spent + left) - sum(trial.seconds for trial in fixed)
    return left + max(0.0, shapes) + each * waiting


def failed(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """The trials that failed, but those that were started again since, as baselines are."""
    done = [trial for trial in trials if trial.status != "failed"]
    return [
        trial
        for trial in trials
        if trial.status == "failed"
        and not any(trial.kind == one.kind and trial.parameters == one.parameters for one in done)
    ]


def missing_lines(summary: Summary) -> list[str]:
    """Why fewer trials were done than the study asks for; empty if all were."""
    lines = []
    if summary.failed:
        lines.append(f"Failed, as their workers kept dying: {', '.join(summary.failed)}.")
    if summary.exhausted:
        lines.append(
            f"The search ended after {summary.counts.ended} of {summary.counts.planned} trials: the space "
            "has no further point to try."
        )
    return lines


def answer(summary: Summary) -> list[str]:
    """What the study says so far, in plain sentences."""
    grown, fixed = summary.best_grown, summary.best_fixed
    if grown is None:
        ended = summary.counts.ended
        if ended and summary.counts.among.get("diverged") == ended:
            return [f"Training diverged in {_every(ended, 'trial')} that ended."]
        return ["No schedule that grows has finished yet."]
    lines = [
        f"Best schedule (trial {grown.number}), {grown.name}: loss {grown.loss:.4f}.",
        f"  {grown.schedule}",
    ]
    final = next((baseline for baseline in summary.baselines if baseline.name == FINAL), None)
    if final is not None and final.loss is not None:
        begun = "from scratch" if summary.checkpoint is None else f"grown at once from {summary.checkpoint}"
        lines.append(
            f"Final shape {begun}: loss {final.loss:.4f} at learning rate {final.rate:.3g} "
            f"({final.tried} tried): the schedule is {_apart(grown.loss, final.loss)}."
        )
    if fixed is None:
        tried = sum(baseline.tried for baseline in summary.baselines if baseline.times == 1)
        if tried:
            return [*lines, f"Training diverged in {_every(tried, 'run')} of fixed shapes that ended."]
        return [*lines, "No fixed shape has finished yet."]
    if fixed.name != FINAL:
        apart = _apart(grown.loss, fixed.loss or 0.0)
        lines.append(
            f"Best of {_sizes(summary)} ({fixed.name}): loss {fixed.loss:.4f} at learning rate "
            f"{fixed.rate:.3g} ({fixed.tried} tried): the schedule is {apart}."
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
        lines.append(f"The best setting is the first or last tried for: {', '.join(edges)}.")
    return lines


def _sizes(summary: Summary) -> str:
    """The fixed shapes that a schedule is compared with."""
    many = summary.finished_sizes
    return "the one fixed shape tried" if many == 1 else f"the {many} fixed shapes searched"


def _every(many: int, what: str) -> str:
    return f"the one {what}" if many == 1 else f"all {many} {what}s"


def _apart(ours: float, theirs: float) -> str:
    return f"{abs(ours - theirs):.4f} {'lower' if ours < theirs else 'higher'}"


def _candidate(trials: Iterable[TrialRecord]) -> Candidate | None:
    """The best of some trials; None if none has a loss."""
    for trial in best_first(trials)[:1]:
        return Candidate(
            number=trial.number,
            loss=trial.loss or 0.0,
            name=trial.title,
            schedule=trial.words,
            events=len(trial.schedule["events"]),
            losses=tuple(loss for loss in trial.losses if loss is not None),
            seconds=trial.schedule_seconds,
        )
    return None


def _baselines(study: Study, trials: Sequence[TrialRecord]) -> Iterable[Baseline]:
    first = len(study.tuning.first())
    for tuned in tuned_sizes(study, trials):
        best, size = tuned.best, tuned.size
        yield Baseline(
            name=size.name,
            shape=str(size.shape),
            loss=None if best is None else best.loss,
            rate=None if best is None else best.learning_rate,
            tried=sum(trial.is_ended for trial in tuned.tried),
            planned=max(first if size.name == FINAL else 0, len(tuned.tried)),
            best_at_edge=bool(tuned.edges),
            times=size.times,
            seconds=next((trial.schedule_seconds for trial in tuned.tried), None),
        )
