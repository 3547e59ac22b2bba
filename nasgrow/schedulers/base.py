"""The scheduler interface: decide what to train next, and whether a trial goes on after an evaluation.

A scheduler only decides. It never waits, writes, trains or reads a storage. Its input is the study's trial
records, which the driver keeps up to date. So a study is resumed by building its scheduler from the records
on disk.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import TrialRecord

Trials = Mapping[int, TrialRecord]
"""The trials of one kind, by number. The driver owns them; schedulers only read."""


@dataclass(frozen=True)
class Start:
    """Suggestion to start a trial with these parameters.

    ``name`` says what the trial is: a known schedule of the space, the size of a baseline, the
    candidate of a confirmation, or the trial that this one tunes. It is None for any other trial.
    """

    parameters: Mapping[str, Any]
    name: str | None = None


@dataclass(frozen=True)
class Resume:
    """Suggestion to resume the paused trial with this number."""

    number: int


class Decision(Enum):
    """Whether a trial continues or pauses after an evaluation.

    A paused trial keeps its training state, and the scheduler may resume it. A trial that is still paused
    when the study ends counts as pruned.
    """

    CONTINUE = "continue"
    PAUSE = "pause"


class Costs(Protocol):
    """Predicts what a trial would cost now, given the prefixes that are cached."""

    def flops(self, parameters: Mapping[str, Any]) -> float:
        """Return the FLOPs that a trial with these parameters would execute; 0 if its result is known."""


class Scheduler(ABC):
    """Decides which trials of one kind a study trains.

    Args:
        study: The study.
        trials: Its trials of that kind, including those of earlier launches.
    """

    def __init__(self, study: ResolvedStudy, trials: Trials) -> None:
        self.study, self.trials = study, trials

    @abstractmethod
    def suggest(self) -> Start | Resume | None:
        """Return what to train next; None if there is nothing to train now.

        The driver calls this when the executor has a free slot, and adds the trial to ``trials``
        before it calls again. After None it calls again once a trial reports an evaluation or ends.
        The search is over once this returns None while no trial is running.
        """

    def planned(self) -> int | None:
        """Return how many trials there will be at least, with those so far; None if unknown."""
        return None

    def on_evaluation(self, trial: TrialRecord, at: float, loss: float) -> Decision:
        """Decide whether a trial goes on after an evaluation; by default it does.

        The driver calls this for the evaluations of the trial's first run. It leaves out losses
        that are not finite, and evaluations that a resumed trial reports again.

        Args:
            trial: The trial; its ``evaluations`` include this one already.
            at: The fraction of the budget at which the evaluation was due.
            loss: Its validation loss.
        """
        return Decision.CONTINUE


class CompleteScheduler(Scheduler):
    """Base of schedulers whose trials a verdict needs: trials that failed earlier are repeated."""

    def __init__(self, study: ResolvedStudy, trials: Trials) -> None:
        super().__init__(study, trials)
        self._failed_before = {number for number, trial in trials.items() if trial.status == "failed"}

    def counted(self) -> list[TrialRecord]:
        """Return the trials except those that had failed when this scheduler was made."""
        return [trial for number, trial in self.trials.items() if number not in self._failed_before]


class SearchScheduler(Scheduler):
    """Base of schedulers that search: known schedules first, and no more trials than the study asks for."""

    def suggest(self) -> Start | Resume | None:
        """Start the next known schedule, or else return what :meth:`choose` chooses.

        Return None if the study has all its trials, or has spent its compute or time.
        """
        if self.is_full() or self.study.is_spent(self.trials.values()):
            return None
        return next_known(self.study, self.trials) or self.choose()

    @abstractmethod
    def choose(self) -> Start | Resume | None:
        """Choose what to train once all known schedules have started; None if there is nothing now."""

    def is_full(self) -> bool:
        """Return whether the study has as many trials as it asks for; False if it sets no number.

        Trials that tune do not count.
        """
        limit = self.study.config.trials
        return limit is not None and sum(not trial.tunes for trial in self.trials.values()) >= limit


def next_known(study: ResolvedStudy, trials: Trials) -> Start | None:
    """Start the first known schedule of the space that has no trial yet; None if all have one."""
    started = {trial.name for trial in trials.values()}
    for name, parameters in study.space.known.items():
        if name not in started:
            return Start(parameters, name)
    return None


def trial_seed(study: ResolvedStudy, number: int) -> int:
    """Return the random seed of one decision.

    The seed derives from the study's name and ``number``, which grows with the number of trials so
    far. So a resumed study does not suggest its first trials again.
    """
    return int.from_bytes(hashlib.sha256(f"{study.config.name}/{number}".encode()).digest()[:4])
