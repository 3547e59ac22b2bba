"""The simulated cluster: exact accounts of small searches of recorded runs, on one slot and on several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from nasgrow.driver import Driver
from nasgrow.executors.base import Evaluated, Finished, Job, TrialKey
from nasgrow.executors.table import TableExecutor
from nasgrow.schedulers.base import Decision, Resume, Scheduler, Start, Trials
from nasgrow.study.memory_store import MemoryStore
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.table import ForkPoint, RunRow, RunTable, name_run
from nasgrow.study.trial_runs import plan
from nasgrow.study.trials import TrialRecord
from tests.study.made import made_table

GROWN = {"hidden": 0.5, "layers": 1, "mlp": 1}
"""Where the dimensions of hand-made points start: only the width grows, at different times."""


def point(at: float, start: float = 0.5) -> dict[str, Any]:
    """A point of the made space that grows its width at a time, or not at all."""
    found: dict[str, Any] = {}
    for dim, value in {**GROWN, "hidden": start}.items():
        found |= {f"start.{dim}": value, f"at.{dim}": at if dim == "hidden" else 0.2}
    return found


EARLY, LATE, FIXED = point(0.4), point(0.8), point(0.2, start=1)


def row(parameters: dict[str, Any], keys: Sequence[str], loss: float | None) -> RunRow:
    """A run of 1000 FLOPs; prefixes end after 200, 400, 600 and 800, with evaluations at all but the last."""
    way = [ForkPoint(0, 0, None, False, 0.0, 6.0)]
    for index, key in enumerate(keys, start=1):
        evaluated = index < 4
        kept = index % 2 == 0
        known = (index / 5, 5.0 - index) if evaluated else (None, None)
        way.append(ForkPoint(10 * index, 200 * index, key, kept, *known))
    return RunRow(name_run(parameters, 0), parameters, "", 0, loss, 1000, tuple(way))


def small_table(*, timed: bool = False) -> RunTable:
    """Three runs: two that share 400 FLOPs, and one that shares nothing; kept are 400 and 800 FLOPs.

    Unless it is timed, a FLOP takes a second.
    """
    rows = [
        row(EARLY, ["a1", "a2", "b3", "b4"], 1.5),
        row(LATE, ["a1", "a2", "a3", "a4"], 1.0),
        row(FIXED, ["c1", "c2", "c3", "c4"], None),
    ]
    if timed:  # the first 400 FLOPs take as long as all others
        rows = [replace(one, places=tuple(map(timed_place, one.places)), seconds=12.0) for one in rows]
    made = made_table().study
    unlimited = made.config.model_copy(update={"trials": None})
    return RunTable(replace(made, config=unlimited, budget=1), rows, {})


def timed_place(place: ForkPoint) -> ForkPoint:
    return replace(place, elapsed=6 * min(place.flops, 400) / 400 + 6 * max(0, place.flops - 400) / 600)


class Listed(Scheduler):
    """Suggests points in their order, then resumes each paused trial once."""

    def __init__(self, study: ResolvedStudy, trials: Trials, points: Sequence[dict[str, Any]]) -> None:
        super().__init__(study, trials)
        self._points = list(points)
        self.resumed: set[int] = set()
        self.pauses: dict[int, float] = {}

    def suggest(self) -> Start | Resume | None:
        if self._points:
            return Start(self._points.pop(0))
        for number, trial in self.trials.items():
            if trial.status == "paused" and number not in self.resumed:
                self.resumed.add(number)
                return Resume(number)
        return None

    def on_evaluation(self, trial: TrialRecord, at: float, loss: float) -> Decision:
        pauses = self.pauses.get(trial.number) == at and trial.number not in self.resumed
        return Decision.PAUSE if pauses else Decision.CONTINUE


def drive(
    points: Sequence[dict[str, Any]],
    pauses: dict[int, float] | None = None,
    *,
    slots: int = 1,
    timed: bool = False,
    share: bool = True,
) -> tuple[TableExecutor, dict[int, TrialRecord]]:
    table = small_table(timed=timed)
    records: dict[int, TrialRecord] = {}
    scheduler = Listed(table.study, records, points)
    scheduler.pauses = pauses or {}
    executor = TableExecutor(table, slots, share=share)
    assert Driver(table.study, {"search": scheduler}, {"search": records}, executor, MemoryStore()).run()
    return executor, records


def told(records: dict[int, TrialRecord], name: str) -> list[Any]:
    return [getattr(trial, name) for trial in records.values()]


def test_a_run_reports_its_evaluations_and_its_cost() -> None:
    executor, records = drive([EARLY])
    trial = records[0]
    assert trial.evaluations == [(0.0, 6.0), (0.2, 4.0), (0.4, 3.0), (0.6, 2.0)]
    assert (trial.status, trial.loss, trial.seeds) == ("finished", 1.5, [0])
    assert (trial.charged, trial.executed, trial.seconds) == (1000, 1000, 1000)
    assert (executor.now, executor.trained, executor.waited, executor.executed) == (1000, 1000, 0, 1000)
    assert executor.utilisation == 1


def test_a_cached_prefix_is_skipped_and_its_evaluations_are_known() -> None:
    executor, records = drive([EARLY, LATE, EARLY])
    assert told(records, "charged") == [1000, 1000, 1000]
    assert told(records, "executed") == [1000, 600, 0], "the third is the first again"
    assert told(records, "loss") == [1.5, 1.0, 1.5]
    assert [at for at, _ in records[1].evaluations] == [0.0, 0.2, 0.4, 0.6]
    assert records[2].evaluations == records[0].evaluations, "known, though nothing is decided upon"
    assert executor.now == 1600
    _, apart = drive([EARLY, LATE, EARLY], share=False)
    assert told(apart, "executed") == [1000, 1000, 0]


def test_a_diverged_run_has_no_loss() -> None:
    _, records = drive([FIXED])
    assert (records[0].status, records[0].losses, records[0].executed) == ("diverged", [None], 1000)


def test_two_slots_wait_for_the_prefix_that_they_share() -> None:
    executor, records = drive([EARLY, LATE], slots=2)
    assert sorted(told(records, "executed")) == [600, 1000]
    assert (executor.now, executor.waited, executor.trained) == (1000, 400, 1600)
    assert executor.utilisation == 0.8
    apart, records = drive([EARLY, LATE], slots=2, share=False)
    assert told(records, "executed") == [1000, 1000]
    assert (apart.now, apart.waited) == (1000, 0)


def test_two_slots_wait_for_a_run_that_both_want() -> None:
    executor, records = drive([EARLY, EARLY], slots=2)
    assert told(records, "executed") == [1000, 0]
    assert (executor.now, executor.waited) == (1000, 1000)


def test_recorded_seconds_are_those_of_each_part() -> None:
    executor, records = drive([EARLY, LATE], timed=True)
    assert told(records, "seconds") == pytest.approx([12.0, 6.0]), "what is shared is the slow part"
    assert executor.now == pytest.approx(18.0)


@pytest.mark.parametrize("share", [True, False])
def test_a_paused_trial_is_charged_for_what_it_trained_and_resumed_from_there(share: bool) -> None:
    executor, records = drive([EARLY, FIXED], {0: 0.6}, share=share)
    assert records[0].status == "finished"
    assert records[0].executed == records[0].charged == 1000, "nothing is trained twice"
    assert records[0].evaluations == [(0.0, 6.0), (0.2, 4.0), (0.4, 3.0), (0.6, 2.0)]
    assert executor.executed == 2000
    assert records[0].seconds == 1000


def test_what_stays_paused_ends_as_pruned_and_keeps_its_account() -> None:
    table = small_table()
    records: dict[int, TrialRecord] = {}
    scheduler = Listed(table.study, records, [EARLY, LATE])
    scheduler.pauses, scheduler.resumed = {0: 0.6}, set()
    scheduler.suggest = lambda: Start(scheduler._points.pop(0)) if scheduler._points else None  # type: ignore[method-assign]
    executor = TableExecutor(table, 1)
    Driver(table.study, {"search": scheduler}, {"search": records}, executor, MemoryStore()).run()
    assert told(records, "status") == ["pruned", "finished"]
    assert told(records, "executed") == [600, 600]
    assert told(records, "charged") == [600, 1000]


def test_a_prefix_that_a_pause_left_is_cached_whether_or_not_it_would_be_kept() -> None:
    _, records = drive([EARLY, LATE], {0: 0.2})
    assert told(records, "executed") == [200 + 600, 800], "each goes on from what the other left"


def test_a_pause_frees_those_who_wait_for_the_prefix() -> None:
    executor, records = drive([EARLY, LATE], {0: 0.2}, slots=2)
    assert executor.waited == 200 + 200, "then the first waits for the second"
    assert sum(told(records, "executed")) == 1600


def submitted(executor: TableExecutor, parameters: dict[str, Any], number: int = 0) -> TrialKey:
    trial = TrialKey("search", number)
    study = small_table().study
    executor.submit(Job(trial, plan(study, "search", parameters, {}).runs, parameters))
    return trial


def until(executor: TableExecutor, at: float) -> TrialKey:
    """Continue a job until its evaluation at a fraction, which is left without an answer."""
    while True:
        (event,) = executor.events(0.0)
        assert isinstance(event, Evaluated)
        if event.at == at:
            return event.trial
        executor.reply(event.trial, Decision.CONTINUE)


def test_a_worker_waits_for_the_reply() -> None:
    executor = TableExecutor(small_table())
    trial = submitted(executor, EARLY)
    until(executor, 0.2)
    assert executor.now == 200
    assert executor.events(60.0) == [], "at once"
    executor.reply(TrialKey("search", 7), Decision.PAUSE)  # to nobody
    executor.reply(trial, Decision.PAUSE)
    (event,) = executor.events(0.0)
    assert isinstance(event, Finished)
    assert event.status == "paused"
    (run,) = event.runs
    assert (run.loss, run.charged, run.executed) == (None, 200, 200)


def test_costs_are_what_would_be_executed() -> None:
    executor = TableExecutor(small_table())
    costs = executor.costs([0])
    assert [costs.flops(parameters) for parameters in (EARLY, LATE, FIXED)] == [1000, 1000, 1000]
    submitted(executor, EARLY)
    executor.reply(until(executor, 0.6), Decision.CONTINUE)
    assert [costs.flops(parameters) for parameters in (EARLY, LATE, FIXED)] == [400, 600, 1000]
    executor.events(0.0)
    assert [costs.flops(parameters) for parameters in (EARLY, LATE, FIXED)] == [0, 600, 1000]


def test_stopped_jobs_are_interrupted_and_go_on_later() -> None:
    executor = TableExecutor(small_table(), 3)
    submitted(executor, EARLY, 0)
    until(executor, 0.6)
    submitted(executor, EARLY, 1)  # waits for the first
    assert executor.events(0.0) == []
    submitted(executor, FIXED, 2)  # has not begun
    executor.stop()
    ended = executor.events(0.0)
    assert [event.status for event in ended if isinstance(event, Finished)] == ["interrupted"] * 3
    submitted(executor, EARLY, 0)
    executor.reply(until(executor, 0.6), Decision.CONTINUE)
    (event,) = executor.events(0.0)
    assert isinstance(event, Finished)
    assert (event.status, event.runs[0].executed) == ("finished", 1000)
