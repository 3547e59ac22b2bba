"""Forecasts: what a plan says of a study before it runs is what the study comes to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nasgrow.experiments.forecast import Forecast, Work, forecast
from nasgrow.schedulers.base import Start
from nasgrow.schedulers.make import make_scheduler
from nasgrow.study.costs import Trained
from nasgrow.study.trials import SEARCHED, Kind, TrialRecord
from nasgrow.training.machine import numerics
from nasgrow.training.run import Run
from nasgrow.training.step_seconds import StepSeconds
from tests.experiments.live import GRID, Live, small_study
from tests.training.runs import CPU


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data's cache is the test's own."""
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path / "cache"))


def spent(work: Work) -> tuple[int, int, int, int]:
    return work.trials, work.runs, work.charged, work.executed


@pytest.mark.parametrize(("changes", "workers"), [({}, 1), ({**GRID, "seeds": [0, 1]}, 3)])
def test_what_is_known_is_foretold_to_the_last_flop(
    tmp_path: Path, changes: dict[str, Any], workers: int
) -> None:
    live = Live(small_study(tmp_path, **changes), tmp_path)
    (before,) = live.foretell(workers=workers).courses
    live.train(most=4)
    midway = live.foretell()
    (left,) = midway.courses
    assert {kind: midway.done[kind].trials for kind in SEARCHED} == {
        "baseline": 1,
        "search": 3,
        "fixed": 0,
    }
    live.train()
    for kind in SEARCHED:
        actual = Work.of(live.trials[kind])
        assert spent(before.work[kind]) == spent(actual)
        assert spent(midway.done[kind] + left.work[kind]) == spent(actual)
    assert before.total.executed < 0.9 * before.total.charged
    assert before.total.seconds is None, "nothing was measured"
    assert left.total.seconds is not None
    assert left.total.seconds > 0, "as the first trials took"
    assert live.cache is not None
    entries = {entry.key: entry.size for entry in live.cache.entries()}
    assert entries.keys() == before.states.keys()
    tensors = {key: (live.cache.path(key) / "state.safetensors").stat().st_size for key in entries}
    assert all(0.8 * tensors[key] < size < tensors[key] for key, size in before.states.items())
    (nothing_left,) = live.foretell().courses
    assert spent(nothing_left.total) == (0, 0, 0, 0)

    other = Live(small_study(tmp_path, "other", **changes), tmp_path)
    (reusing,) = other.foretell().courses
    assert reusing.total.executed < 0.6 * before.total.executed, "what the first has cached counts"
    other.train()
    assert reusing.total.executed == sum(Work.of(other.trials[kind]).executed for kind in SEARCHED)


def test_a_trial_executes_what_it_was_said_to_cost(tmp_path: Path) -> None:
    live = Live(small_study(tmp_path, seeds=[0, 1], **{**GRID, "trials": 4}), tmp_path)
    live.train(most=1)  # the final shape
    said = []
    for number in range(4):
        start = make_scheduler(live.study, live.trials["search"], live.costs).suggest()
        assert isinstance(start, Start)
        said.append(live.costs.flops(start.parameters))
        live.train(most=1)
        assert live.trials["search"][number].executed == said[-1]
        assert live.costs.flops(start.parameters) == 0, "its result is known"
    assert min(said) < 0.7 * 2 * live.study.budget


def untrained(folder: Path, **changes: Any) -> Forecast:
    settings: dict[str, Any] = {"steps": changes.pop("steps", None), "fingerprint": "", "environment": {}}
    study = small_study(folder, **changes)
    none: dict[Kind, dict[int, TrialRecord]] = {kind: {} for kind in SEARCHED}
    return forecast(study, none, Trained(study, folder / "none"), workers=1, **settings)


def test_without_a_prefix_cache_all_is_executed_but_what_is_sampled_again(tmp_path: Path) -> None:
    (shared,) = untrained(tmp_path).courses
    (alone,) = untrained(tmp_path, prefix_cache=None).courses
    assert not alone.states
    assert alone.total.charged == shared.total.charged
    assert shared.total.executed < alone.total.executed <= alone.total.charged


def test_what_is_not_known_is_a_range(tmp_path: Path) -> None:
    rates = {"learning_rate.peak": [0.003, 0.006, 0.012]}
    told = untrained(tmp_path, trials=30, pruner={"kind": "asha"}, sampler={"kind": "tpe"}, tune=rates)
    assert told.draws == 10
    assert len(told.courses) == 20
    trials = told.between(lambda course: course.work["search"].trials)
    assert trials is not None
    assert trials[0] > 30, "the best schedule is tuned"
    # Three rates, and up to three more.
    assert told.between(lambda course: course.work["baseline"].trials) == (3, 6)
    charged = told.between(lambda course: course.work["search"].charged)
    assert charged is not None
    budget = told.study.budget
    assert 0.25 * 30 * budget < charged[0] < charged[1] < 0.98 * trials[1] * budget, "ASHA pauses some"
    assert told.between(lambda course: course.total.seconds) is None
    alone = untrained(tmp_path, trials=10, sampler={"kind": "tpe"})
    assert len(alone.courses) == alone.draws == 10
    assert alone.between(lambda course: course.work["search"].charged) == pytest.approx(
        (10 * budget, 10 * budget), rel=0.02
    )


def test_a_tree_spends_at_most_what_its_trials_would_alone(tmp_path: Path) -> None:
    tree = untrained(tmp_path, trials=5, sampler={"kind": "tree"})
    executed = tree.between(lambda course: course.work["search"].executed)
    assert executed is not None
    assert executed[0] < 0.9 * executed[1]
    assert executed[1] == pytest.approx(5 * tree.study.budget, rel=0.01)
    assert tree.between(lambda course: course.work["search"].trials) == (5, 5)


def test_midway_paused_trials_go_on_from_where_they_are(tmp_path: Path) -> None:
    live = Live(small_study(tmp_path, trials=1), tmp_path)
    live.train()
    (trial,) = live.trials["search"].values()
    (identity,) = trial.runs
    whole, half = trial.charged, trial.charged // 2
    (live.folder / "runs" / identity / "result.json").unlink()
    trial.status, trial.losses = "running", [None]
    trial.charged = trial.executed = trial.runs[identity] = half
    study = small_study(tmp_path, trials=1, prefix_cache=None)
    told = forecast(
        study,
        live.trials,
        Trained(study, live.folder),
        fingerprint=live.corpus.fingerprint,
        environment=numerics(CPU),
        steps=None,
        workers=1,
    )
    (left,) = told.courses
    assert spent(told.done["search"]) == (0, 1, half, half)
    assert spent(left.work["search"]) == (1, 0, whole - half, whole - half)
    assert trial.charged == half, "the study's own records are not touched"


def test_limits_of_compute_and_time_end_it_too(tmp_path: Path) -> None:
    flops = untrained(tmp_path, trials=None, total_flops=2e8)
    for course in flops.courses:
        assert 2e8 <= course.work["search"].executed < 2e8 + flops.study.budget
    with pytest.raises(ValueError, match="tiny: hours is its only limit"):
        untrained(tmp_path, trials=None, hours=0.1)
    slow = StepSeconds("slow", step=(3.0, 0, 0, 0, 0), evaluation=(0.0, 0, 0, 0, 0))
    hours = untrained(tmp_path, trials=None, hours=0.1, steps=slow)
    for course in hours.courses:
        assert course.work["search"].seconds is not None
        assert 360 <= course.work["search"].seconds < 900


def test_what_would_take_forever_to_simulate_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        ValueError, match=r"^tiny: trials: a plan simulates at most 5,000, not 1,000,000,000$"
    ):
        untrained(tmp_path, trials=10**9)
    monkeypatch.setattr("nasgrow.executors.dry.MOST_STEPS", 1e5)
    with pytest.raises(ValueError, match=r"^tiny: budget: 1e\+12 FLOPs per run are too many for a plan"):
        untrained(tmp_path, budget={"flops": 1e12})
    monkeypatch.setattr("nasgrow.experiments.forecast.MOST_TRIALS", 20)
    with pytest.raises(
        ValueError, match=r"^tiny: its limits allow more than 20 trials, the most that a plan simulates$"
    ):
        untrained(tmp_path, trials=None, total_flops=1e300)
    monkeypatch.setattr("nasgrow.experiments.forecast.MAX_SIMULATED_TRIALS", 30)
    assert untrained(tmp_path, trials=20, sampler={"kind": "tpe"}).draws == 2, "of 22 trials each"


def test_the_time_of_a_part_of_a_run_is_that_of_its_steps_and_evaluations(tmp_path: Path) -> None:
    study = small_study(tmp_path)
    point = study.space.at({"start": 0.5, "at.1": 0.3, "at.2": 0.5})
    run = Run.resolve(study.run(point.schedule, point.training, 0), vocab=256, fingerprint="")
    charged = run.stages[-1].charged(run.stages[-1].end)
    steps = StepSeconds("", step=(2.0, 0, 0, 0, 0), evaluation=(0.0, 0, 0, 0, 0)).elapsed(run)
    looks = StepSeconds("", step=(0.0, 0, 0, 0, 0), evaluation=(1.0, 0, 0, 0, 0)).elapsed(run)
    assert steps(0) == 0
    assert steps(charged) == pytest.approx(2.0 * run.stages[-1].end)
    assert steps(run.stages[1].charged(run.stages[1].end)) == pytest.approx(2.0 * run.stages[1].end)
    training = run.config.training
    tokens = (20 + 2 * 2 + 1) * training.evaluation_tokens + training.final_tokens
    assert looks(charged) == pytest.approx(tokens / training.batch_tokens)
    assert looks(charged - 1) == pytest.approx(
        (20 + 2 * 2) * training.evaluation_tokens / training.batch_tokens
    )
    assert looks(0) == training.evaluation_tokens / training.batch_tokens
