"""The driver: what it does with each event, whoever decides and whoever trains."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from nasgrow.driver import RETRIES, Driver
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
from nasgrow.schedulers.base import Decision, Resume, Scheduler, Start
from nasgrow.study.memory_store import MemoryStore
from nasgrow.study.trials import TRIAL_KINDS, Kind, TrialRecord
from tests.schedulers.playing import small_study

STUDY = small_study()
POINTS = [{"start": 0.5, "at.1": at, "at.2": 0.55} for at in (0.1, 0.25, 0.4)]


class Listed(Scheduler):
    """Starts the given points, and pauses each trial once at the fractions that it is told to."""

    def __init__(self, points: Sequence[dict[str, Any]] = POINTS, pause_at: float | None = None) -> None:
        super().__init__(STUDY, {})
        self.left = deque(points)
        self.pause_at = pause_at
        self.asked = 0
        self.decided: list[tuple[int, float]] = []
        self.paused: list[int] = []

    def suggest(self) -> Start | Resume | None:
        self.asked += 1
        if self.left:
            return Start(self.left.popleft(), "known")
        return Resume(self.paused.pop()) if self.paused else None

    def on_evaluation(self, trial: TrialRecord, at: float, loss: float) -> Decision:
        assert trial.evaluations[-1] == (at, loss)
        self.decided.append((trial.number, at))
        if at != self.pause_at:
            return Decision.CONTINUE
        self.paused.append(trial.number)
        return Decision.PAUSE


Play = Callable[[Job, int], Sequence[Event]]
"""The events of a job at its n-th submission; Evaluated ends them when the reply is to pause."""


def whole(job: Job, attempt: int = 0) -> list[Event]:
    """A job that trains to its end."""
    key = job.trial
    return [
        Progressed(key, 1, 2, 0.0, None),
        *(Evaluated(key, at, 3.0 - at - 0.1 * key.number) for at in (0.25, 0.5, 0.75)),
        done(job),
    ]


def done(job: Job, status: Any = "finished", executed: int = 100, **changes: Any) -> Finished:
    loss = 2.0 - 0.1 * job.trial.number if status == "finished" else None
    values = {"loss": loss, "test": None, "charged": 100, "executed": executed, "seconds": 4.0, "tokens": 7}
    runs = [
        RunOutcome(identity=f"run-{job.trial.number}", seed=run.seed, **{**values, **changes})
        for run in job.runs
    ]
    return Finished(job.trial, status, tuple(runs))


@dataclass
class Scripted(Executor):
    """Plays the events of each job, one a round, and ends a job that is paused."""

    play: Play = whole
    most: int = 2
    jobs: dict[TrialKey, deque[Event]] = field(default_factory=dict)
    submitted: list[Job] = field(default_factory=list)
    replies: list[tuple[TrialKey, Decision]] = field(default_factory=list)
    stopped: bool = False

    @property
    def slots(self) -> int:
        return self.most

    def submit(self, job: Job) -> None:
        assert job.trial not in self.jobs
        assert len(self.jobs) < self.most
        assert Job.from_json(job.to_json()) == job
        attempt = sum(other.trial == job.trial for other in self.submitted)
        self.submitted.append(job)
        self.jobs[job.trial] = deque(self.play(job, attempt))

    def reply(self, trial: TrialKey, decision: Decision) -> None:
        self.replies.append((trial, decision))
        if decision == Decision.PAUSE:
            job = next(job for job in reversed(self.submitted) if job.trial == trial)
            self.jobs[trial] = deque([done(job, "paused", executed=40)])

    def events(self, timeout: float) -> Sequence[Event]:
        found = []
        for trial, left in list(self.jobs.items()):
            event = left.popleft()
            found.append(event)
            if isinstance(event, Finished | Died):
                del self.jobs[trial]
        return found

    def stop(self) -> None:
        self.stopped = True
        for job in self.submitted:
            if job.trial in self.jobs:
                self.jobs[job.trial] = deque([done(job, "interrupted", executed=30)])

    def close(self) -> None:
        raise AssertionError("the driver does not own its executor")


@dataclass
class Saved(MemoryStore):
    """Takes down what is written, in order."""

    trials: Mapping[Kind, Mapping[int, TrialRecord]]
    written: list[tuple[str, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self.trials)

    def add(self, record: TrialRecord) -> int:
        number = super().add(record)
        self.written.append(("add", f"{record.kind} {number}", record.status))
        return number

    def report(self, record: TrialRecord, at: float, loss: float) -> None:
        self.written.append(("report", record.label, f"{at}"))

    def save(self, record: TrialRecord) -> None:
        self.written.append(("save", record.label, record.status))

    def end(self, record: TrialRecord) -> None:
        self.written.append(("end", record.label, record.status))


def driver(
    scheduler: Scheduler | None = None, play: Play = whole, known: Sequence[TrialRecord] = (), **changes: Any
) -> Driver:
    trials: dict[Kind, dict[int, TrialRecord]] = {kind: {} for kind in TRIAL_KINDS}
    for record in known:
        trials[record.kind][record.number] = record
    most = changes.pop("most", 2)
    executor = Scripted(play, most)
    return Driver(STUDY, {"search": scheduler or Listed()}, trials, executor, Saved(trials), **changes)


def scripted(made: Driver) -> Scripted:
    assert isinstance(made.executor, Scripted)
    return made.executor


def test_every_suggestion_is_one_trial_with_its_losses_and_costs() -> None:
    made = driver()
    assert made.run()
    trials = made.trials["search"]
    assert [trial.status for trial in trials.values()] == ["finished"] * 3
    assert [trial.loss for trial in trials.values()] == [2.0, 1.9, 1.8]
    assert [trial.parameters for trial in trials.values()] == POINTS
    first = trials[0]
    assert (first.charged, first.executed, first.seconds, first.tokens) == (100, 100, 4.0, 7)
    assert first.evaluations == [(0.25, 2.75), (0.5, 2.5), (0.75, 2.25)]
    assert first.runs == {"run-0": 100}
    assert (first.name, first.words) == ("known", first.words)
    assert first.schedule["events"]
    assert first.ended is not None
    assert made.running == {}


def test_the_record_is_there_before_the_trial_is_trained_and_after_it_has_ended() -> None:
    made = driver(Listed(POINTS[:1]))
    made.run()
    assert isinstance(made.store, Saved)
    kinds = [kind for kind, _, _ in made.store.written]
    assert kinds == ["add", "report", "report", "report", "end"]


def test_no_more_jobs_are_submitted_than_there_are_slots() -> None:
    made = driver(most=1)  # the scripted executor asserts it
    assert made.run()
    assert len(scripted(made).submitted) == 3


def test_a_paused_trial_is_resumed_under_its_number_and_decided_upon_once_at_each_fraction() -> None:
    scheduler = Listed(POINTS[:2], pause_at=0.5)
    made = driver(scheduler)
    assert made.run()
    trials = made.trials["search"]
    assert [trial.status for trial in trials.values()] == ["finished", "finished"]
    assert len(scripted(made).submitted) == 4
    assert sorted(scheduler.decided) == [(number, at) for number in (0, 1) for at in (0.25, 0.5, 0.75)]


def test_what_is_paused_when_the_study_ends_is_pruned() -> None:
    scheduler = Listed(POINTS[:1], pause_at=0.5)
    scheduler.paused = list[int]()
    scheduler.suggest = lambda: Start(scheduler.left.popleft()) if scheduler.left else None  # type: ignore[method-assign]
    made = driver(scheduler)
    assert made.run()
    (trial,) = made.trials["search"].values()
    assert (trial.status, trial.executed) == ("pruned", 40)


def test_a_worker_that_dies_is_an_event_and_its_trial_is_resumed() -> None:
    warnings: list[str] = []

    def play(job: Job, attempt: int) -> list[Event]:
        return [*whole(job)[:2], Died(job.trial, "killed by signal 9")] if attempt < 2 else whole(job)

    made = driver(Listed(POINTS[:1]), play, warn=warnings.append)
    assert made.run()
    (trial,) = made.trials["search"].values()
    assert (trial.status, trial.deaths) == ("finished", 2)
    assert len(scripted(made).submitted) == 3
    assert warnings == ["search 0: its worker died: killed by signal 9; it is resumed"] * 2


def test_a_trial_fails_once_its_workers_have_died_too_often_without_progress() -> None:
    warnings: list[str] = []

    def play(job: Job, attempt: int) -> list[Event]:
        dies = job.parameters == POINTS[0]
        return [*whole(job)[:1], Died(job.trial, "boom")] if dies else whole(job)

    made = driver(Listed(), play, warn=warnings.append)
    assert made.run()
    assert [trial.status for trial in made.trials["search"].values()] == ["failed", "finished", "finished"]
    assert made.trials["search"][0].deaths == RETRIES + 1
    assert warnings[-1] == f"search 0: failed: its workers died {RETRIES + 1} times without progress: boom"


def test_a_trial_that_makes_progress_between_deaths_never_fails() -> None:
    deaths = 3 * RETRIES

    def play(job: Job, attempt: int) -> list[Event]:
        begun = Progressed(job.trial, 1, 2, attempt / 20, None)
        return [begun, Died(job.trial, "preempted")] if attempt < deaths else [begun, *whole(job)[1:]]

    made = driver(Listed(POINTS[:1]), play)
    assert made.run()
    (trial,) = made.trials["search"].values()
    assert (trial.status, trial.deaths) == ("finished", deaths)


def test_workers_that_only_die_end_the_search() -> None:
    made = driver(Listed(POINTS * 5), lambda job, attempt: [Died(job.trial, "no libc")])
    with pytest.raises(UserError, match="workers keep dying, so the search stops: no libc"):
        made.run()


def test_a_users_mistake_in_a_worker_is_one_line_and_a_bug_keeps_its_traceback() -> None:
    made = driver(play=lambda job, attempt: [Failed("text.txt: is gone", None)])
    with pytest.raises(UserError, match=r"^text.txt: is gone$"):
        made.run()
    made = driver(play=lambda job, attempt: [Failed("KeyError: 'x'", "Traceback: line 1")])
    with pytest.raises(WorkerError, match="KeyError: 'x'\nTraceback: line 1"):
        made.run()


def test_warnings_are_passed_on() -> None:
    warnings: list[str] = []
    made = driver(
        Listed(POINTS[:1]), lambda job, attempt: [Warned("slow disk"), *whole(job)], warn=warnings.append
    )
    made.run()
    assert warnings == ["slow disk"]


def test_stopping_saves_every_trial_and_the_same_study_goes_on() -> None:
    rounds = 0

    def stop() -> bool:
        nonlocal rounds
        rounds += 1
        return rounds > 3

    made = driver(stop=stop)
    assert not made.run()
    assert scripted(made).stopped
    trials = made.trials["search"]
    assert [trial.status for trial in trials.values()] == ["running", "running"]
    assert [trial.executed for trial in trials.values()] == [30, 30]
    again = driver(Listed(POINTS[2:]), known=list(trials.values()))
    assert again.run()
    assert [job.trial.number for job in scripted(again).submitted] == [0, 1, 2]
    assert [trial.status for trial in again.trials["search"].values()] == ["finished"] * 3


def test_trials_that_an_earlier_driver_left_running_come_first() -> None:
    made = driver(Listed(POINTS[:1]))
    made.run()
    (left,) = made.trials["search"].values()
    left.status, left.ended = "running", None
    again = driver(Listed([]), known=[left])
    assert again.run()
    assert [job.trial.number for job in scripted(again).submitted] == [0]
    assert [trial.status for trial in again.trials["search"].values()] == ["finished"]


def test_known_evaluations_are_reported_and_decided_upon_once() -> None:
    scheduler = Listed(POINTS[:1])

    def play(job: Job, attempt: int) -> list[Event]:
        return whole(job) if attempt else [*whole(job)[:3], Died(job.trial, "killed")]

    made = driver(scheduler, play)
    made.run()
    assert isinstance(made.store, Saved)
    assert [what for kind, _, what in made.store.written if kind == "report"] == ["0.25", "0.5", "0.75"]
    assert scheduler.decided == [(0, 0.25), (0, 0.5), (0, 0.75)]


def test_losses_that_are_no_number_are_not_decided_upon() -> None:
    scheduler = Listed(POINTS[:1])

    def play(job: Job, attempt: int) -> list[Event]:
        return [Evaluated(job.trial, 0.25, float("nan")), done(job, "diverged")]

    made = driver(scheduler, play)
    made.run()
    (trial,) = made.trials["search"].values()
    assert (trial.status, trial.loss, trial.evaluations) == ("diverged", None, [])
    assert scheduler.decided == []


def test_flops_of_a_run_that_two_trials_share_are_accounted_for_once() -> None:
    def play(job: Job, attempt: int) -> list[Event]:
        (outcome,) = done(job, executed=100).runs
        same = RunOutcome(**{**vars(outcome), "identity": "same"})
        return [Finished(job.trial, "finished", (same,))]

    made = driver(Listed(POINTS[:2]), play, most=1)
    made.run()
    first, second = made.trials["search"].values()
    assert (first.executed, second.executed) == (100, 0)
    assert (first.charged, second.charged) == (100, 100)
    assert (first.seconds, second.seconds) == (4.0, 0.0)


def test_a_scheduler_with_nothing_to_suggest_is_asked_again_only_once_something_happened() -> None:
    scheduler = Listed(POINTS[:1])

    def play(job: Job, attempt: int) -> list[Event]:
        return [*[Progressed(job.trial, 1, 2, at / 100, None) for at in range(50)], *whole(job)[1:]]

    made = driver(scheduler, play)
    made.run()
    assert scheduler.asked <= 7
