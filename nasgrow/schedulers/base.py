"""The contract of schedulers: what to train next, and whether a trial goes on at an evaluation.

A scheduler decides and does nothing else. It reads the study's trial records, which the driver keeps up to
date, so that a study is resumed by building its scheduler from the records on disk. It never waits, writes,
trains or asks a storage.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from nasgrow.study.study import Study
from nasgrow.study.trials import TrialRecord

Trials = Mapping[int, TrialRecord]
"""Trials of one kind by number. The driver owns them; schedulers only read."""


@dataclass(frozen=True)
class Start:
    """Start a trial with these parameters; ``name`` is that of a known schedule, if it is one."""

    parameters: Mapping[str, Any]
    name: str | None = None


@dataclass(frozen=True)
class Resume:
    """Resume the paused trial of this number."""

    number: int


class Decision(Enum):
    """What a trial does after an evaluation.

    A paused trial keeps its training state, and the scheduler may resume it. Whatever is still paused when a
    study ends counts as pruned.
    """

    CONTINUE = "continue"
    PAUSE = "pause"


class Costs(Protocol):
    """What training would cost now, given the prefixes that are cached."""

    def flops(self, parameters: Mapping[str, Any]) -> float:
        """FLOPs that a trial with these parameters would still execute; 0 if its result is known."""


class Scheduler(ABC):
    """Decides over the trials of one kind of one study.

    Args:
        study: The study.
        trials: Its trials, those of earlier launches among them.
    """

    def __init__(self, study: Study, trials: Trials) -> None:
        self.study, self.trials = study, trials

    @abstractmethod
    def suggest(self) -> Start | Resume | None:
        """What to train next; None if there is nothing now.

        The driver calls it whenever the executor has room, and adds the trial to ``trials`` before it calls
        again. Once it returns None while no trial is running, the search is over.
        """

    def planned(self) -> int | None:
        """How many trials there will be, those so far included; None if that depends on results."""
        return None

    def on_evaluation(self, trial: TrialRecord, at: float, loss: float) -> Decision:
        """Decide whether a trial goes on; ``trial.evaluations`` holds this evaluation already.

        Args:
            trial: The trial.
            at: The fraction of the budget it has spent.
            loss: Its validation loss.
        """
        return Decision.CONTINUE

    def on_finished(self, trial: TrialRecord) -> None:  # noqa: B027 - most schedulers need no hook
        """A trial has ended, with the status and the losses in its record."""


class CompleteScheduler(Scheduler):
    """A scheduler of trials that a verdict needs: those that failed in an earlier launch start again."""

    def __init__(self, study: Study, trials: Trials) -> None:
        super().__init__(study, trials)
        self._failed_before = {number for number, trial in trials.items() if trial.status == "failed"}

    def counted(self) -> list[TrialRecord]:
        """The trials but those that failed in an earlier launch."""
        return [trial for number, trial in self.trials.items() if number not in self._failed_before]


class SearchScheduler(Scheduler):
    """A scheduler of the search: known schedules first, and no more trials than the study asks for."""

    def suggest(self) -> Start | Resume | None:
        """The next known schedule, or else what this scheduler chooses."""
        if self.is_full() or self.study.is_spent(self.trials.values()):
            return None
        return next_known(self.study, self.trials) or self.choose()

    @abstractmethod
    def choose(self) -> Start | Resume | None:
        """What to train once all known schedules have started; None if there is nothing now."""

    def is_full(self) -> bool:
        """Whether no further trial is to start, because the study asks for no more."""
        limit = self.study.config.trials
        return limit is not None and sum(not trial.tunes for trial in self.trials.values()) >= limit


def next_known(study: Study, trials: Trials) -> Start | None:
    """The first known schedule of the space that no trial has; None if all have started."""
    started = {trial.name for trial in trials.values()}
    for name, parameters in study.space.known.items():
        if name not in started:
            return Start(parameters, name)
    return None


def trial_seed(study: Study, number: int) -> int:
    """The random seed of one decision.

    It derives from the study's name and the number of trials so far, so that a study that is resumed does
    not suggest its first trials again.
    """
    return int.from_bytes(hashlib.sha256(f"{study.config.name}/{number}".encode()).digest()[:4])
