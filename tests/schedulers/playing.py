"""Searches that are played, not trained: small studies, synthetic losses, and a driver of a few lines."""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nasgrow.flops import forward_flops, parameter_count
from nasgrow.schedule import schedule_to
from nasgrow.schedulers.base import Decision, Resume, Scheduler, Start
from nasgrow.strict import parse
from nasgrow.study.config import StudyConfig
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trial_runs import plan
from nasgrow.study.trials import Kind, TrialRecord

SPACE: dict[str, Any] = {
    "kind": "compound",
    "start": [1, 0.5],
    "events": 2,
    "times": {"low": 0.1, "high": 0.7, "step": 0.15},
    "known": {"no growth": {"start": 1}, "half": {"start": 0.5, "at.1": 0.4, "at.2": 0.4}},
}


def small_study(**changes: Any) -> ResolvedStudy:
    """A study of 16 distinct points, two of them known; None leaves a field out."""
    data = {
        "name": "played",
        "final": {"hidden": 16, "layers": 2, "mlp": 32, "heads": 2, "key": 4, "value": 4},
        "budget": {"flops": 1e11},
        "space": SPACE,
        "sampler": {"kind": "tpe"},
        "pruner": {"kind": "none"},
        "trials": 12,
        "tune": {"learning_rate.peak": ["x1"]},
        "baselines": {"compute": 0},
        **changes,
    }
    given = {name: value for name, value in data.items() if value is not None}
    return ResolvedStudy.resolve(parse(StudyConfig, given, "played.yaml"), "played.yaml")


def luck(parameters: Mapping[str, Any], salt: str = "") -> float:
    """A number between 0 and 1 that depends on the parameters alone."""
    return float(np.random.default_rng(zlib.crc32(f"{sorted(parameters.items())}{salt}".encode())).random())


@dataclass
class Play:
    """Plays a search: several trials at once, each a step further in turn.

    Attributes:
        study: The study.
        make: Makes the scheduler from the study and its records.
        kind: The kind of its trials.
        workers: How many trials run at once.
        loss: The final loss of a trial.
        odd: Whether some trials diverge, fail or have no evaluations.
        rebuilt: Whether every decision is made by a scheduler that was built from the records just before.
        checked: Whether the records are compared before and after every decision, which takes time.
    """

    study: ResolvedStudy
    make: Callable[[ResolvedStudy, Mapping[int, TrialRecord]], Scheduler]
    kind: Kind = "search"
    workers: int = 3
    loss: Callable[[TrialRecord], float] = lambda trial: luck(trial.parameters)
    odd: bool = False
    rebuilt: bool = False
    checked: bool = False
    trials: dict[int, TrialRecord] = field(default_factory=dict)
    resumed: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scheduler = self.make(self.study, self.trials)

    def run(self, starts: int = 1000) -> None:
        """Play until the scheduler has nothing more to suggest, or so many trials have started."""
        for _ in range(20_000):
            while len(self.running()) < self.workers and len(self.trials) < starts:
                suggestion = self.suggest()
                if suggestion is None:
                    break
                self.act(suggestion)
            if not self.running():
                return
            for trial in self.running():
                self.step(trial)
        raise AssertionError("the search does not end")

    def running(self) -> list[TrialRecord]:
        return [trial for trial in self.trials.values() if trial.status == "running"]

    def suggest(self) -> Start | Resume | None:
        suggestion: Start | Resume | None = self._ask(lambda scheduler: scheduler.suggest())
        return suggestion

    def act(self, suggestion: Start | Resume) -> None:
        """Start or resume a trial, as the driver does."""
        if isinstance(suggestion, Resume):
            trial = self.trials[suggestion.number]
            assert trial.status == "paused", f"{trial.status} trials cannot be resumed"
            trial.status = "running"
            self.resumed.append(trial.number)
            return
        parameters = dict(suggestion.parameters)
        assert all(math.isfinite(value) for value in parameters.values() if isinstance(value, float))
        candidates = {0: record(self.study, 0, self.study.space.known.get("half", {}))}
        planned = plan(self.study, self.kind, parameters, {"search": candidates})
        trial = record(self.study, len(self.trials), parameters, kind=self.kind, name=suggestion.name)
        trial.schedule = schedule_to(planned.schedule)
        self.trials[trial.number] = trial

    def step(self, trial: TrialRecord) -> None:
        """Train a tenth of the budget, and evaluate."""
        done = round(10 * trial.evaluations[-1][0]) if trial.evaluations else 0
        chance = luck(trial.parameters, "odd") if self.odd else 1.0
        if chance < 0.1:
            trial.status = "failed"
        elif chance < 0.2 and done == 4:
            self._evaluate(trial, 0.5, math.nan)
            trial.status = "diverged"
        elif chance < 0.3:
            trial.status = "diverged"
        elif done == 10:
            trial.losses, trial.executed = [self.loss(trial)], 1
            trial.status = "finished"
        else:
            at = (done + 1) / 10
            self._evaluate(trial, at, self.loss(trial) + 1 - at)

    def _evaluate(self, trial: TrialRecord, at: float, loss: float) -> None:
        if not math.isfinite(loss) or at in dict(trial.evaluations):  # as the driver does
            return
        trial.evaluations.append((at, loss))
        if self._ask(lambda scheduler: scheduler.on_evaluation(trial, at, loss)) is Decision.PAUSE:
            trial.status, trial.executed = "paused", 1

    def _ask(self, question: Callable[[Scheduler], Any]) -> Any:
        """What the scheduler says to something; it must leave the records as they are."""
        if self.rebuilt:
            self.scheduler = self.make(self.study, self.trials)
        before = copy.deepcopy(self.trials) if self.checked else self.trials
        answer = question(self.scheduler)
        assert self.trials == before, "a scheduler must not change records"
        return answer


def record(study: ResolvedStudy, number: int, parameters: Mapping[str, Any], **changes: Any) -> TrialRecord:
    """The record of a trial that has just started, but for its schedule."""
    return TrialRecord(
        **{
            "kind": "search",
            "number": number,
            "name": None,
            "parameters": dict(parameters),
            "schedule": {"start": {}, "events": []},
            "words": "",
            "learning_rate": 0.001,
            "parameter_count": parameter_count(study.final, study.variant),
            "inference_flops": forward_flops(study.final, study.variant, 1),
            **changes,
        }
    )


def finished(study: ResolvedStudy, number: int, parameters: Mapping[str, Any], loss: float) -> TrialRecord:
    """The record of a trial that has finished with a loss."""
    return record(study, number, parameters, status="finished", losses=[loss], executed=1)
