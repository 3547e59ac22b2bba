"""Tuning: declared values, neighbours, edges; the same for every contender."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from nasgrow.config import LearningRate, Ramp, TrainingConfig
from nasgrow.errors import UserError
from nasgrow.spaces.training import BATCH, PEAK, RAMP
from nasgrow.study.study import open_study
from nasgrow.study.trials import RUNS
from nasgrow.study.tuning import EXTENSIONS, Tuning, Values, contender, key, tries
from nasgrow.training.records import read_run
from nasgrow.training.step_seconds import StepSeconds
from tests.study.records import make_record
from tests.study.studies import SPACE, run_study, write_study
from tests.training import runs

TRAINING = TrainingConfig(context=16, batch_tokens=64, learning_rate=LearningRate(peak=0.006))


def tuning(rates: list[float | str], batches: list[float | str] | None = None) -> Tuning:
    return Tuning.of({PEAK: rates, BATCH: batches or ["x1"]}, TRAINING)


def at(rate: float, batch: int = 64) -> Any:
    return key({PEAK: rate, BATCH: batch})


def test_values_are_numbers_or_multiples_of_the_studys_own_none_twice() -> None:
    found = tuning(["x2", 0.003, "x0.5", "x1"], [128, "x1", "x0.5"])
    assert found.declared == {PEAK: (0.003, 0.006, 0.012), BATCH: (32, 64, 128)}
    assert found.rates.values == [0.003, 0.006, 0.012]
    assert [values[PEAK] for values in found.first()] == [0.003, 0.006, 0.012]
    assert {values[BATCH] for values in found.first()} == {64}, "at the study's own batch"


@pytest.mark.parametrize(
    ("rates", "batches", "message"),
    [
        ([11.0], ["x1"], r"tune.learning_rate.peak: must be from 1e-09 to 10, not 11"),
        (["x1"], [100], r"tune.batch_tokens: training: batch_tokens must be a multiple of the context of 16"),
        (["x1"], ["x0.3"], r"tune.batch_tokens: must be whole tokens, not 19.2"),
    ],
)
def test_what_training_refuses_cannot_be_tuned(rates: Any, batches: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        tuning(rates, batches)


def test_the_best_is_compared_with_both_of_its_neighbours() -> None:
    three = tuning(["x0.5", "x1", "x2"])
    assert three.next({at(0.006): 2.0}) == {PEAK: 0.003, BATCH: 64}
    assert three.next({at(0.006): 2.0, at(0.003): 2.1}) == {PEAK: 0.012, BATCH: 64}
    assert three.next({at(0.006): 2.0, at(0.003): 2.1}, [at(0.012)]) is None, "it is being trained"
    inside = {at(0.003): 2.1, at(0.006): 2.0, at(0.012): None}
    assert three.next(inside) is None, "one neighbour is worse, the other diverged"
    assert three.edges(inside) == []


def test_beyond_an_edge_the_search_goes_on_a_few_times_and_then_names_the_edge() -> None:
    two = tuning(["x1", "x2"])
    tried: dict[Any, float | None] = {at(0.006): 2.0, at(0.012): 1.9}
    for step in range(1, EXTENSIONS + 1):
        beyond = two.next(tried)
        assert beyond is not None
        assert beyond[PEAK] == pytest.approx(0.012 * 2**step)
        tried[key(beyond)] = 1.9 - step
    assert two.next(tried) is None
    assert two.edges(tried) == [PEAK]


def test_a_ramp_is_tuned_down_to_none_and_up_by_equal_steps() -> None:
    training = TRAINING.model_copy(update={"ramp": Ramp(until=0.3, context=4)})
    found = Tuning.of({PEAK: ["x1"], BATCH: ["x1"], RAMP: [0.2, 0.4]}, training)
    assert found.first() == [{PEAK: 0.006, BATCH: 64, RAMP: 0.2}]
    assert found.parameters(found.own) == {RAMP: 0.3}

    def until(value: float) -> Any:
        return key({PEAK: 0.006, BATCH: 64, RAMP: value})

    tried: dict[Any, float | None] = {until(0.2): 2.0}
    assert [found.next(tried), found.next(tried | {until(0.0): 1.9})] == [
        {PEAK: 0.006, BATCH: 64, RAMP: 0.0},
        None,
    ], "below no ramp there is nothing"
    assert found.edges({**tried, until(0.0): 1.9}) == []
    for expected in (0.4, 0.6, 0.8):
        tried |= {until(0.0): 2.1, until(expected): 2.0 - expected}
        assert found.edges(tried) == [RAMP]
        longer = found.next(tried)
        assert longer == (
            None if expected == 0.8 else {PEAK: 0.006, BATCH: 64, RAMP: round(expected + 0.2, 1)}
        )
    with pytest.raises(UserError, match=r"tune.ramp.until: training.ramp must say what is ramped"):
        Tuning.of({PEAK: ["x1"], BATCH: ["x1"], RAMP: [0.2]}, TRAINING)


@pytest.mark.parametrize(
    ("declared", "longest"), [([0.0], 0.0), ([0.2], 0.2), ([0.0, 0.1], 0.4), ([0.2, 0.4], 0.9)]
)
def test_the_longest_ramp_is_the_last_that_tuning_may_try(declared: list[Any], longest: float) -> None:
    training = TRAINING.model_copy(update={"ramp": Ramp(until=0.3, context=4)})
    assert tuning(["x1"]).longest_ramp is None
    found = Tuning.of({PEAK: ["x1"], BATCH: ["x1"], RAMP: declared}, training)
    assert found.longest_ramp == pytest.approx(longest)
    values: Values | None = {**found.own, RAMP: max(declared)}
    while values is not None:
        assert values[RAMP] <= longest + 1e-9
        values = found._neighbour(values, RAMP, 1)


def test_no_batch_beyond_what_a_ramp_allows() -> None:
    training = TRAINING.model_copy(update={"ramp": Ramp(until=0.3, batch_tokens=16)})
    found = Tuning.of({PEAK: ["x1"], BATCH: [32, 64]}, training)
    assert found.next({at(0.006, 32): 2.0, at(0.006, 64): 2.1}) is None


def test_no_rate_beyond_what_is_one_and_one_rate_alone_is_not_tuned() -> None:
    high = tuning([3.0, 6.0])
    assert high.next({at(3.0): 2.0, at(6.0): 1.9}) is None
    one = tuning(["x1"])
    assert one.next({at(0.006): 2.0}) is None
    assert one.edges({at(0.006): 2.0}) == []
    assert one.parameters(one.own) == {}


def test_where_every_rate_diverged_lower_ones_are_tried() -> None:
    two = tuning(["x1", "x2"])
    assert two.next({at(0.006): None, at(0.012): None}) == {PEAK: pytest.approx(0.003), BATCH: 64}
    assert two.next({}) is None, "nothing has begun"


def test_batches_are_whole_sequences_and_none_is_larger_than_declared() -> None:
    both = tuning(["x1"], [32, 64])
    assert both.next({at(0.006, 64): 1.9}) == {PEAK: 0.006, BATCH: 32}
    assert both.next({at(0.006, 64): 1.9, at(0.006, 32): 2.0}) is None
    assert both.edges({at(0.006, 64): 1.9, at(0.006, 32): 2.0}) == [BATCH]
    assert both.next({at(0.006, 64): 2.0, at(0.006, 32): 1.9}) == {PEAK: 0.006, BATCH: 16}
    assert both.next({at(0.006, 32): 1.9, at(0.006, 64): 2.0, at(0.006, 16): 1.8}) is None, "8 is half a one"


@pytest.mark.parametrize("best", [{PEAK: 0.048, BATCH: 16}, {PEAK: 0.00075, BATCH: 64}])
def test_the_best_is_found_wherever_it_lies_by_the_same_steps_for_all(best: Values) -> None:
    """A contender's loss falls towards its best setting: the local search ends there."""
    both = tuning(["x0.5", "x1", "x2"], [32, 64])

    def loss(values: Values) -> float:
        return sum(abs(math.log(values[name] / best[name])) for name in best)

    tried: dict[Any, float | None] = {key(values): loss(values) for values in both.first()}
    while (values := both.next(tried)) is not None:
        tried[key(values)] = loss(values)
        assert len(tried) < 30
    found = dict(min(tried, key=lambda setting: tried[setting] or 0.0))
    assert found == {PEAK: pytest.approx(best[PEAK]), BATCH: best[BATCH]}


def test_a_contender_is_its_schedule_and_what_acts_at_events_however_it_is_tuned() -> None:
    early = {"start": {}, "events": [{"at": 0.1}]}
    one = make_record("search", 0, 2.0, schedule=early, parameters={"at": 1, PEAK: 0.1, "moments": "carry"})
    two = make_record("search", 1, 2.1, schedule=early, parameters={"at": 2, PEAK: 0.2, "moments": "carry"})
    other = make_record("search", 2, 2.1, schedule=early, parameters={"at": 2, PEAK: 0.2, "moments": "reset"})
    assert contender(one) == contender(two) != contender(other)
    three = tuning(["x0.5", "x1", "x2"])
    running = make_record("search", 3, None, parameters={PEAK: 0.012}, status="running")
    ended, pending = tries(three, [make_record("search", 4, 1.5, parameters={PEAK: 0.003}), running])
    assert (ended, pending) == ({at(0.003): 1.5}, [at(0.012)])


def test_ramps_are_tried_for_schedules_and_baselines_alike(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = StepSeconds("here", step=(0, 0, 0, 1e-9, 0), evaluation=(0, 0, 0, 0, 0))
    monkeypatch.setattr("nasgrow.experiments.search.measure_steps", lambda *_: steps)
    training = {**runs.TRAINING, "ramp": {"until": 0.9, "context": 8}}
    tune = {PEAK: ["x1"], RAMP: [0.0, 0.9]}
    path = write_study(place, training=training, tune=tune, budget={"flops": 3e7})
    with pytest.raises(UserError, match=r"too few for the end of a ramp and that of a run, which are 0.1 of"):
        open_study(path)
    coarse = {**SPACE, "times": {"low": 0.2, "high": 0.6, "step": 0.2}, "known": {}}
    for short in ([0.2], [0.0, 0.2]):  # no ramp that is tried ends later than 0.8
        shorter: dict[str, Any] = {"tune": {**tune, RAMP: short}, "budget": {"flops": 3e7}, "space": coarse}
        open_study(write_study(place, training=training, **shorter))
    half = {**SPACE, "known": {"half": SPACE["known"]["half"]}}
    path = write_study(place, training=training, tune=tune, trials=1, budget={"flops": 6e7}, space=half)
    study, folder, known = run_study(path)
    in_ramp = [kind for _, kind in study.timed_cases if kind.context == 8]
    assert in_ramp, "its steps are measured too"
    for kind in ("baseline", "search"):
        tried = set()
        for trial in known.trials[kind].values():
            assert trial.status == "finished"
            (run,) = trial.runs
            described = read_run(folder / RUNS / run)
            ramp, until = described.config.training.ramp, trial.parameters[RAMP]
            assert (0.0 if ramp is None else ramp.until) == until
            assert (described.ramp_steps > 0) == (until > 0)
            assert trial.schedule_seconds == pytest.approx(1e-9 * trial.charged)
            assert trial.tokens == described.tokens_at(described.stages[-1].end)
            tried.add(until)
        assert tried == {0.0, 0.9}, kind
