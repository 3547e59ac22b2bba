"""A study measures the seconds of a step once, and prices every trial by them."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest

from nasgrow.errors import UserError
from nasgrow.schedule import Schedule
from nasgrow.study.step_prices import STEPS_FILE, read_steps, write_steps
from nasgrow.study.storage import DATABASE
from nasgrow.study.study import open_study
from nasgrow.study.study_folder import read_study
from nasgrow.study.trials import RUNS
from nasgrow.training.records import read_run
from nasgrow.training.step_seconds import StepSeconds
from tests.study.studies import Quiet, confirm_study, run_study, write_study

EVEN = StepSeconds("another machine, 3 threads", step=(0.5, 0, 0, 0, 0), evaluation=(0, 0, 0, 0, 0))
"""Every step takes half a second, whatever its shape."""

BY_LAYER = StepSeconds("here", step=(0.003, 0.003, 0, 0, 0), evaluation=(0, 0, 0, 0, 0))
"""A step takes 3 milliseconds, and as much for each layer."""


def test_few_shapes_are_measured_from_the_smallest_to_the_largest(tmp_path: Path) -> None:
    study, _ = open_study(write_study(tmp_path))
    shapes = [shape for shape, _ in study.timed_cases]
    assert {study.space.smallest, study.final} < set(shapes)
    assert len(set(shapes)) == len(shapes) <= 4 + len(study.space.grown)
    assert {shape.hidden for shape in shapes} == {8, 16}


def test_trials_are_priced_by_what_was_measured_when_the_study_began(place: Path) -> None:
    path = write_study(place, trials=2)
    study, folder, known = run_study(path)
    measured = read_steps(folder)
    assert measured is not None
    assert [timing.batch_tokens for timing in measured.timings] == [64] * len(study.timed_cases)
    trial = known.trials["search"][1]
    assert trial.schedule_seconds is not None
    each = [timing.step for timing in measured.timings]
    assert min(each) / 3 < trial.schedule_seconds / (trial.tokens / 64) < 3 * max(each)

    write_steps(folder, EVEN)
    quiet = Quiet()
    run_study(path, trials=3, quiet=quiet)
    assert read_steps(folder) == EVEN, "what is stored stays"
    (line,) = [line for line in quiet.warnings if "seconds" in line]
    assert line.startswith(
        "tiny: the seconds of its steps were measured on another machine, 3 threads, and are kept; this is "
    )
    new = read_study(folder).trials["search"][2]
    assert new.schedule_seconds == pytest.approx(0.5 * new.tokens / 64)
    (confirmed, *_) = confirm_study(path).trials["confirmation"].values()
    assert confirmed.schedule_seconds == pytest.approx(0.5 * confirmed.tokens / 64)


def test_every_run_of_a_study_of_seconds_takes_as_long(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nasgrow.experiments.search.measure_steps", lambda *_: BY_LAYER)
    path = write_study(place, budget={"seconds": 0.5}, trials=3, baselines={"compute": 1})
    study, folder, known = run_study(path)
    again, _ = open_study(path)
    assert (study.budget, study.steps) == (0, None), "before it was measured"
    assert again.steps == read_steps(folder) == BY_LAYER
    trials = [trial for kind in known.trials.values() for trial in kind.values()]
    for trial in trials:
        assert trial.status == "finished"
        assert trial.schedule_seconds == pytest.approx(0.5, abs=0.009), "all but less than a step"
        (run,) = trial.runs
        assert read_run(folder / RUNS / run).budget == 5 * 10**8
    final = known.trials["baseline"][0].tokens // 64
    small = {
        trial.tokens // 64 for trial in known.trials["fixed"].values() if "N=1:" in trial.words.split(";")[0]
    }
    assert (final, small) == (55, {83}), "a step takes 9 milliseconds with two layers, 6 with one"


def test_seconds_are_an_objective(place: Path) -> None:
    path = write_study(place, objectives=["loss", "seconds"], trials=2)
    _, folder, known = run_study(path)
    shown = optuna.load_study(study_name="tiny", storage=f"sqlite:///{folder / DATABASE}")
    assert [trial.values for trial in shown.trials] == [
        [trial.loss, trial.schedule_seconds] for trial in known.trials["search"].values()
    ]
    with pytest.raises(UserError, match="every schedule takes the same seconds if the budget is in seconds"):
        open_study(write_study(place, "both", objectives=["loss", "seconds"], budget={"seconds": 1.0}))


def test_a_budget_of_seconds_is_checked_once_it_is_measured(place: Path) -> None:
    study, _ = open_study(write_study(place, budget={"seconds": 4.0}))
    assert study.budget == 0
    with pytest.raises(UserError, match=r"^tiny: the seconds of its steps are not measured yet$"):
        study.run(Schedule(study.final), {}, 0)
    with pytest.raises(
        UserError, match=r"^here: budget: 4 seconds are too few for events that are 0.1 of it"
    ):
        study.measured(EVEN, "here")
    with pytest.raises(UserError, match=r"budget.step_seconds: are measured by the study itself"):
        open_study(write_study(place, "given", budget={"seconds": 4.0, "step_seconds": [1.0]}))


def test_a_damaged_measurement_is_named(tmp_path: Path) -> None:
    assert read_steps(tmp_path) is None
    for text in ("", "{}", '{"device": 3, "step": [], "evaluation": []}'):
        (tmp_path / STEPS_FILE).write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=r"steps\.json: is damaged"):
            read_steps(tmp_path)
