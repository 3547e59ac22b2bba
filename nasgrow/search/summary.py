"""Where a study stands, and what it says so far."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from optuna.trial import FrozenTrial, TrialState

from nasgrow.search.agenda import asked
from nasgrow.search.baselines import PEAK, baselines
from nasgrow.search.ledger import SIZE, Ledger


@dataclass(frozen=True)
class Candidate:
    """A trial that ended with a loss."""

    number: int
    loss: float
    schedule: str
    events: int
    losses: tuple[float, ...]
    """For each seed."""


@dataclass(frozen=True)
class Baseline:
    """One fixed size: its best loss so far, at which learning rate, and how many were tried.

    ``times`` is its budget as a multiple of the study's.
    """

    name: str
    shape: str
    loss: float | None
    rate: float | None
    tried: int
    planned: int
    best_at_edge: bool
    times: float = 1.0


@dataclass(frozen=True)
class Summary:
    """A study at one moment.

    Attributes:
        name: The study's name.
        seeds: How many seeds each loss is the mean of.
        ended: Trials of the search that ended, those pruned and diverged among them; branches that a tree
            left are not.
        planned: Trials that the study asks for, if it says so.
        pruned: Trials given up early.
        diverged: Trials whose training diverged.
        running: Trials being trained, baselines among them.
        best: The best trial of all.
        best_grown: The best trial that grows.
        best_scratch: The best trial that does not.
        baselines: The fixed sizes.
        charged: FLOPs that all trials and baselines were billed.
        executed: FLOPs that machines spent on them.
        seconds: Wall time of training, added up over workers.
        left: Seconds that one worker would need for the rest, where that can be told.
        confirmed: Runs that confirm candidates and have ended.
        confirmations: Runs that were asked for to confirm candidates.
        branches: Branches that a tree search has left before their end.
    """

    name: str
    seeds: int
    ended: int
    planned: int | None
    pruned: int
    diverged: int
    running: int
    best: Candidate | None
    best_grown: Candidate | None
    best_scratch: Candidate | None
    baselines: tuple[Baseline, ...]
    charged: int
    executed: int
    seconds: float
    left: float | None
    confirmed: int
    confirmations: int
    branches: int = 0

    @property
    def done(self) -> int:
        """Trials of all kinds that ended."""
        return self.ended + sum(baseline.tried for baseline in self.baselines) + self.confirmed

    @property
    def left_early(self) -> str:
        """What is said of the branches that a tree search has left; nothing if there are none."""
        many = self.branches
        return f"{many} branch{'' if many == 1 else 'es'} left early" if many else ""

    @property
    def reused(self) -> float:
        """The share of what was charged that machines did not have to spend."""
        return max(0.0, 1 - self.executed / self.charged) if self.charged else 0.0

    @property
    def best_fixed(self) -> Baseline | None:
        """The fixed size with the lowest loss at equal compute."""
        done = [baseline for baseline in self.baselines if baseline.loss is not None and baseline.times == 1]
        return min(done, key=lambda baseline: baseline.loss or 0.0, default=None)


def summarise(ledger: Ledger) -> Summary:
    """Read a study's ledger."""
    config = ledger.study.config
    trials, fixed = ledger.trials("search"), ledger.trials("baseline")
    confirming = ledger.trials("confirmation")
    finished = [trial for trial in trials if trial.state.is_finished()]
    ended = [trial for trial in finished if ledger.counts(trial)]
    branches = len(finished) - len(ended)
    begun = [trial for kind in (trials, fixed, confirming) for trial in kind]
    every = [trial for trial in begun if trial.state.is_finished()]
    counted = len(every) - branches
    candidates = sorted(_candidates(ended), key=lambda candidate: candidate.loss)
    # What a trial that goes on had spent when it was given up stays with it.
    seconds = sum(float(trial.user_attrs.get("seconds", 0.0)) for trial in begun)
    confirmed = [trial for trial in confirming if trial.state.is_finished()]
    running = [trial for trial in begun if trial.state == TrialState.RUNNING]
    waiting = sum(trial.state == TrialState.WAITING for trial in [*fixed, *confirming])
    planned = ledger.planned
    return Summary(
        name=config.name,
        seeds=len(config.seeds),
        ended=len(ended),
        planned=None if planned is None else max(planned, len(ended)),
        pruned=_count(ended, "pruned"),
        diverged=_count(ended, "diverged"),
        running=len(running),
        best=next(iter(candidates), None),
        best_grown=next((candidate for candidate in candidates if candidate.events), None),
        best_scratch=next((candidate for candidate in candidates if not candidate.events), None),
        baselines=tuple(_baselines(ledger, fixed)),
        charged=sum(trial.user_attrs.get("charged", 0) for trial in begun),
        executed=sum(trial.user_attrs.get("executed", 0) for trial in begun),
        seconds=seconds,
        left=_left(ledger, trials, len(ended), waiting, seconds / counted) if counted else None,
        confirmed=len(confirmed),
        confirmations=len(confirming),
        branches=branches,
    )


def _left(
    ledger: Ledger, trials: Sequence[FrozenTrial], ended: int, waiting: int, each: float
) -> float | None:
    """The seconds until the first limit of the search is reached, and those of all that waits beside it.

    Args:
        ledger: The study's.
        trials: The trials of the search.
        ended: How many of them count as ended.
        waiting: Runs of other kinds that were not begun.
        each: The mean seconds of a trial.
    """
    if ledger.ended(("search",)):  # perhaps before its limits: its space has no more that is worth training
        return each * waiting
    config = ledger.study.config
    spent, executed = (sum(one.user_attrs.get(name, 0) for one in trials) for name in ("seconds", "executed"))
    limits = []
    if ledger.planned is not None:
        limits.append(each * (ledger.planned - ended))
    if config.hours is not None:
        limits.append(3600 * config.hours - spent)
    if config.total_flops is not None and executed:
        limits.append(spent / executed * (config.total_flops - executed))
    return max(0.0, min(limits)) + each * waiting if limits else None


def answer(summary: Summary) -> list[str]:
    """What the study says so far, in plain sentences."""
    grown, fixed = summary.best_grown, summary.best_fixed
    if grown is None:
        if summary.ended and summary.diverged == summary.ended:
            return [f"Training diverged in {_every(summary.ended, 'trial')} that ended."]
        return ["No schedule that grows has finished yet."]
    lines = [f"Best schedule (trial {grown.number}): loss {grown.loss:.4f}.", f"  {grown.schedule}"]
    final = next((baseline for baseline in summary.baselines if baseline.name == "final"), None)
    if final is not None and final.loss is not None:
        lines.append(
            f"Final shape from scratch: loss {final.loss:.4f} at learning rate {final.rate:.3g} "
            f"({final.tried} tried): the schedule is {_apart(grown.loss, final.loss)}."
        )
    if fixed is None:
        tried = sum(baseline.tried for baseline in summary.baselines if baseline.times == 1)
        if tried:
            return [*lines, f"Training diverged in {_every(tried, 'run')} of fixed sizes that ended."]
        return [*lines, "No fixed size has finished yet."]
    if fixed.name != "final":
        lines.append(
            f"Best fixed size ({fixed.name}): loss {fixed.loss:.4f} at learning rate {fixed.rate:.3g} "
            f"({fixed.tried} tried): the schedule is {_apart(grown.loss, fixed.loss or 0.0)}."
        )
    scratch = summary.best_scratch
    if scratch is not None and scratch.loss < (fixed.loss or 0.0):
        lines.append(
            f"Best trial that does not grow (trial {scratch.number}): loss {scratch.loss:.4f}: "
            f"the schedule is {_apart(grown.loss, scratch.loss)}."
        )
    won = grown.loss < min(fixed.loss or 0.0, scratch.loss if scratch is not None else math.inf)
    lines.append(
        "Growth leads every fixed size at equal compute."
        if won
        else "Growth does not lead: a fixed size is at least as good at equal compute."
    )
    seeds = "one seed" if summary.seeds == 1 else f"{summary.seeds} seeds"
    lines.append(
        f"That is the best of {summary.ended} trials, {seeds} each, on the validation split: "
        "a candidate, not yet a verdict."
    )
    edges = [baseline.name for baseline in summary.baselines if baseline.best_at_edge]
    if edges:
        lines.append(f"The best learning rate is the first or last tried for: {', '.join(edges)}.")
    return lines


def _every(many: int, what: str) -> str:
    return f"the one {what}" if many == 1 else f"all {many} {what}s"


def _apart(ours: float, theirs: float) -> str:
    return f"{abs(ours - theirs):.4f} {'lower' if ours < theirs else 'higher'}"


def _count(trials: Iterable[FrozenTrial], status: str) -> int:
    return sum(trial.user_attrs.get("status") == status for trial in trials)


def _candidates(trials: Iterable[FrozenTrial]) -> Iterable[Candidate]:
    for trial in trials:
        attributes = trial.user_attrs
        if trial.state == TrialState.COMPLETE and attributes["status"] == "finished":
            yield Candidate(
                trial.number,
                trial.values[0],
                attributes["schedule"],
                attributes["events"],
                tuple(attributes["losses"]),
            )


def _baselines(ledger: Ledger, trials: Sequence[FrozenTrial]) -> Iterable[Baseline]:
    for size in baselines(ledger.study):
        own = [trial for trial in trials if asked(trial)[SIZE] == size.name]
        done = {asked(trial)[PEAK]: trial.values[0] for trial in own if trial.state == TrialState.COMPLETE}
        best = min(done, key=lambda rate: done[rate], default=None)
        rates = sorted(asked(trial)[PEAK] for trial in own)
        yield Baseline(
            name=size.name,
            shape=str(size.shape),
            loss=None if best is None else done[best],
            rate=best,
            tried=sum(trial.state.is_finished() for trial in own),
            planned=len(own),
            best_at_edge=best is not None and best in (rates[0], rates[-1]),
            times=size.times,
        )
