"""The driver: the main loop of a study, which connects schedulers, an executor and the study's records.

    schedulers --suggest--> driver --submit--> executor
        ^                     |                   |
        +---- evaluations ----+----- events ------+
                              v
                  trial records, Optuna's storage

The driver is the only process that writes a study. Repeating any of its steps is harmless: runs are
deterministic and named by their content, and the driver writes a trial's record before the trial trains. If
the driver dies, the same command resumes the study. If a worker dies, the driver requeues its trial.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from nasgrow.errors import UserError, WorkerError
from nasgrow.executors.base import (
    Died,
    Evaluated,
    Event,
    Executor,
    Failed,
    Finished,
    Job,
    Progressed,
    RunOutcome,
    TrialKey,
    Warned,
)
from nasgrow.flops import inference_flops, parameter_count
from nasgrow.schedule import in_words, schedule_to
from nasgrow.schedulers.base import Decision, Resume, Scheduler, Start
from nasgrow.study.baselines import title_of
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.summary import Summary, summarise
from nasgrow.study.trial_runs import Plan, plan
from nasgrow.study.trials import Kind, Status, TrialRecord

RETRIES = 3
"""How often the driver resumes a trial whose workers die without making progress."""

PAUSE = 0.5
"""Seconds that the driver waits for events before it refreshes the view."""


class TrialStore(Protocol):
    """Where the driver writes a study: the study's folder and Optuna's storage, or memory for a replay."""

    def add(self, record: TrialRecord) -> int:
        """Add a trial that starts now, and return the number that Optuna gives it."""

    def report(self, record: TrialRecord, at: float, loss: float) -> None:
        """Report an evaluation of a trial to Optuna."""

    def save(self, record: TrialRecord) -> None:
        """Write the record of a trial that has not ended."""

    def end(self, record: TrialRecord) -> None:
        """Write the record of a trial that has ended, and pass its results to Optuna."""

    def renew(self) -> None:
        """Renew this driver's lease on the study, if it has one."""


@dataclass
class Running:
    """A trial that is being trained.

    Attributes:
        record: Its record.
        title: Its name in tables.
        progress: Its latest progress event; None before the first.
    """

    record: TrialRecord
    title: str
    progress: Progressed | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the trial and its progress as plain data."""
        trial, progress = self.record, self.progress
        return {
            "kind": trial.kind,
            "trial": trial.number,
            "schedule": self.title,
            "begun": progress is not None,
            "stage": 1 if progress is None else progress.stage,
            "stages": len(trial.schedule["events"]) + 1,
            "fraction": 0.0 if progress is None else progress.fraction,
            "loss": None if progress is None else progress.loss,
        }


@dataclass
class Driver:
    """Runs a study until its schedulers suggest nothing more.

    Attributes:
        study: The study.
        schedulers: The scheduler of each kind of trial. The driver asks them in this order.
        trials: All trials of the study by kind and number; the driver keeps them up to date.
        executor: Trains the trials.
        store: Writes the trials.
        watch: Called with the driver after every round, to refresh a view.
        warn: Called with each warning.
        stop: Called before every round; returns True if the user wants to stop. Workers then save their
            trials.
        later: How many confirmation trials will follow when this driver has ended; None without a
            confirmation.
        running: The trials that are being trained.
    """

    study: ResolvedStudy
    schedulers: Mapping[Kind, Scheduler]
    trials: Mapping[Kind, dict[int, TrialRecord]]
    executor: Executor
    store: TrialStore
    watch: Callable[[Driver], None] = lambda driver: None
    warn: Callable[[str], None] = lambda message: None
    stop: Callable[[], bool] = lambda: False
    later: int | None = None
    running: dict[TrialKey, Running] = field(default_factory=dict)
    _requeued: list[TrialRecord] = field(default_factory=list)
    _asked_in_vain: set[Kind] = field(default_factory=set)
    _deaths_in_a_row: int = 0

    def run(self) -> bool:
        """Train until nothing is left to do; return False if the user stopped the study before.

        At the end, paused trials become pruned, unless the user stopped the study.

        Raises:
            UserError: A worker reported an error of the user or of the operating system, too many
                workers died in a row, or another driver has taken the lease on the study.
            WorkerError: A worker raised another exception.
        """
        # Trials that an earlier driver left running come first: their workers ended with that driver.
        for kind in self.schedulers:
            self._requeued += [trial for trial in self.trials[kind].values() if trial.status == "running"]
        stopping = False
        while True:
            # Fill the executor, unless the user wants to stop.
            if self.stop() and not stopping:
                stopping = True
                self.executor.stop()
            idle = stopping
            while not idle and len(self.running) < self.executor.slots:
                idle = not self._submit_next()
            if idle and not self.running:
                break

            # Wait for events.
            for event in self.executor.events(PAUSE):
                self._handle(event)
            self.store.renew()
            self.watch(self)

        # The study has ended: no paused trial will be resumed.
        if not stopping:
            for kind in self.schedulers:
                for trial in self.trials[kind].values():
                    if trial.status == "paused":
                        self._end(trial, "pruned")
        self.watch(self)
        return not stopping

    def planned(self) -> dict[str, int | None]:
        """Return how many baseline and confirmation trials there will be, for ``summarise``.

        None: no trials of that kind are due, or their number is unknown.
        """
        planned = {kind: scheduler.planned() for kind, scheduler in self.schedulers.items()}
        return {
            "baselines": planned.get("baseline"),
            "confirming": planned.get("confirmation", self.later),
        }

    def summary(self) -> Summary:
        """Summarise the progress of the study."""
        return summarise(self.study, self.trials, ended="search" not in self.schedulers, **self.planned())

    def _submit_next(self) -> bool:
        """Submit one more job; return False if there is nothing to train at the moment."""
        if self._requeued:
            self._submit(self._requeued.pop(0))
            return True
        for kind, scheduler in self.schedulers.items():
            if kind in self._asked_in_vain:
                continue
            suggestion = scheduler.suggest()
            if isinstance(suggestion, Start):
                self._submit(self._start(kind, suggestion))
                return True
            if isinstance(suggestion, Resume):
                trial = self.trials[kind][suggestion.number]
                trial.status = "running"
                self.store.save(trial)
                self._submit(trial)
                return True
            self._asked_in_vain.add(kind)  # until a trial reports something
        return False

    def _start(self, kind: Kind, suggestion: Start) -> TrialRecord:
        """Record a new trial, and return it."""
        planned = self._plan(kind, suggestion.parameters)
        variant, schedule = self.study.variant, planned.schedule
        trial = TrialRecord(
            kind=kind,
            number=-1,
            name=suggestion.name,
            parameters=dict(suggestion.parameters),
            schedule=schedule_to(schedule),
            words=in_words(schedule),
            learning_rate=planned.runs[0].training.learning_rate.peak,
            parameter_count=parameter_count(schedule.final, variant),
            inference_flops=inference_flops(schedule.final, variant),
            schedule_seconds=self.study.seconds(planned.runs[0]),
        )
        trial.number = self.store.add(trial)
        self.trials[kind][trial.number] = trial
        return trial

    def _plan(self, kind: Kind, parameters: Mapping[str, object]) -> Plan:
        return plan(self.study, kind, parameters, self.trials)

    def _submit(self, trial: TrialRecord) -> None:
        key = TrialKey(trial.kind, trial.number)
        self.running[key] = Running(trial, title_of(self.study, self.trials, trial))
        runs = self._plan(trial.kind, trial.parameters).runs
        self.executor.submit(Job(key, runs, trial.parameters, test=trial.kind == "confirmation"))

    def _handle(self, event: Event) -> None:
        """Handle one event of the executor.

        Raises:
            UserError: A worker reported a mistake of the user, or too many workers died in a row.
            WorkerError: A worker raised another exception.
        """
        if isinstance(event, Warned):
            self.warn(event.message)
            return
        if isinstance(event, Failed):
            if event.traceback is None:
                raise UserError(event.message)
            raise WorkerError(f"a worker failed: {event.message}\n{event.traceback}")
        trial = self.running[event.trial].record
        if not isinstance(event, Died):
            self._deaths_in_a_row = 0
        if isinstance(event, Progressed):
            if self.running[event.trial].progress is None and event.fraction > trial.resumed_at:
                trial.resumed_at, trial.stalled = event.fraction, 0
            self.running[event.trial].progress = event
            return
        self._asked_in_vain.clear()
        if isinstance(event, Evaluated):
            self.executor.reply(event.trial, self._evaluated(trial, event.at, event.loss))
            return
        del self.running[event.trial]
        if isinstance(event, Died):
            self._died(trial, event.reason)
        else:
            self._finished(trial, event)

    def _evaluated(self, trial: TrialRecord, at: float, loss: float) -> Decision:
        """Record an evaluation, and ask the scheduler whether the trial goes on.

        A resumed trial reports its earlier evaluations again. The scheduler sees each of them once.
        """
        if not self._record(trial, at, loss):
            return Decision.CONTINUE
        return self.schedulers[trial.kind].on_evaluation(trial, at, loss)

    def _record(self, trial: TrialRecord, at: float, loss: float) -> bool:
        """Add an evaluation to a trial; return False if it is a repeated one or the loss is not finite."""
        if not math.isfinite(loss) or any(at == known for known, _ in trial.evaluations):
            return False
        trial.evaluations.append((at, loss))
        self.store.report(trial, at, loss)
        return True

    def _died(self, trial: TrialRecord, reason: str) -> None:
        """Requeue a trial whose worker died, unless workers keep dying without progress.

        Raises:
            UserError: Too many workers died in a row, so that the cause is probably not one trial.
        """
        trial.deaths += 1
        trial.stalled += 1
        self._deaths_in_a_row += 1
        if self._deaths_in_a_row >= RETRIES + self.executor.slots:
            raise UserError(f"workers keep dying, so the search stops: {reason}; the same command goes on")
        if trial.stalled > RETRIES:
            self.warn(
                f"{trial.label}: failed: its workers died {trial.stalled} times without progress: {reason}"
            )
            self._end(trial, "failed")
            return
        self.warn(f"{trial.label}: its worker died: {reason}; it is resumed")
        self.store.save(trial)
        self._requeued.append(trial)

    def _finished(self, trial: TrialRecord, event: Finished) -> None:
        """Record the results and costs of a job; end its trial, unless it was paused or interrupted."""
        for at, loss in event.evaluations:
            self._record(trial, at, loss)  # a run that had ended before sent no evaluation events
        if event.runs:
            self._account(trial, event.runs)
        if event.status == "interrupted":
            self.store.save(trial)
        elif event.status == "paused":
            trial.status = "paused"
            self.store.save(trial)
        else:
            self._end(trial, event.status)

    def _end(self, trial: TrialRecord, status: Status) -> None:
        trial.status = status
        trial.ended = time.time()
        self.store.end(trial)

    def _account(self, trial: TrialRecord, runs: tuple[RunOutcome, ...]) -> None:
        """Write the results and costs of a trial's runs into its record.

        Two trials may train the same run. Executed FLOPs that another trial's record holds already
        do not count, nor do the seconds that they took. Charged FLOPs and tokens count in full.
        """
        trial.seeds = [run.seed for run in runs]
        trial.losses = [run.loss for run in runs]
        trial.test = [run.test for run in runs if run.test is not None]
        trial.charged = sum(run.charged for run in runs)
        trial.tokens = sum(run.tokens for run in runs)
        trial.runs = {run.identity: max(0, run.executed - self._of_others(trial, run)) for run in runs}
        trial.executed = sum(trial.runs.values())
        trial.seconds = sum(run.seconds * trial.runs[run.identity] / max(1, run.executed) for run in runs)

    def _of_others(self, trial: TrialRecord, run: RunOutcome) -> int:
        """Return the executed FLOPs of a run that the records of other trials hold."""
        every = (other for trials in self.trials.values() for other in trials.values())
        return sum(other.runs.get(run.identity, 0) for other in every if other is not trial)
