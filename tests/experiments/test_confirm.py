"""Confirmation: fresh seeds, the test split, the best of each kind."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch

from nasgrow.data import evaluation_windows, prepare
from nasgrow.experiments.confirm import candidates, count_candidates, fresh_seeds
from nasgrow.shape import Shape
from nasgrow.study.baselines import BaselineSize, best_first
from nasgrow.study.study import open_study
from nasgrow.study.trials import RUNS, SEARCHED, TrialRecord
from nasgrow.training.records import CHECKPOINTS, TEST, read_run
from nasgrow.training.resume import trained
from nasgrow.training.step import evaluate
from tests.study.records import make_record
from tests.study.studies import begin_study, confirm_study, run_study, write_study

pytestmark = pytest.mark.usefixtures("place")

FIXED = {"compute": 1, "budgets": [2]}


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a study that has searched: no growth, and one schedule."""
    folder = tmp_path_factory.mktemp("example")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("NASGROW_CACHE", str(folder.parent / "study-cache"))
        run_study(write_study(folder, baselines=FIXED, trials=2))
    return folder


@pytest.fixture
def searched(example: Path, place: Path) -> tuple[Path, Path]:
    """The file and the folder of a copy of that study."""
    shutil.copytree(example, place, dirs_exist_ok=True)
    return place / "tiny.yaml", place / "runs" / "tiny"


def test_the_best_schedules_that_grow_and_the_best_of_each_size_are_confirmed() -> None:
    early, late = ({"start": {}, "events": [{"at": at}]} for at in (0.1, 0.5))
    records = [
        make_record("search", 0, 2.0, schedule={"start": {}, "events": []}),
        make_record("search", 1, 2.5),
        make_record("search", 2, 2.2, schedule=early, parameters={"at": 1, "learning_rate.peak": 0.1}),
        make_record("search", 3, 2.2, schedule=early, parameters={"at": 2, "learning_rate.peak": 0.2}),
        make_record("search", 4, None),
        make_record("search", 5, 2.4, status="pruned"),
        make_record("search", 6, 2.3, schedule=late),
        make_record("search", 7, 2.4, schedule=early, parameters={"at": 1, "moments": "carry"}),
        make_record("baseline", 0, 2.9, name="final"),
        make_record("baseline", 1, 2.7, name="final"),
        make_record("baseline", 2, 2.8, name="start"),
    ]
    chosen = [found.label for found in candidates(records, 2)]
    assert chosen == ["search 2", "search 6", "baseline 1", "baseline 2"]
    assert [found.label for found in candidates(records, 3)][2] == "search 7", "other moments"
    assert candidates([], 3) == []


def test_under_other_budgets_the_final_shape_and_the_best_fixed_shape_there_are_confirmed() -> None:
    losses = {
        "final": 2.9,
        "final, 0.5x budget": 3.4,
        "fixed 0, 0.5x budget": 3.0,
        "fixed 3, 0.5x budget": 3.1,
        "final, 2x budget": 2.4,
        "fixed 0, 2x budget": 2.6,
        "fixed 3, 2x budget": 2.5,
    }
    records = [make_record("baseline", n, loss, name=name) for n, (name, loss) in enumerate(losses.items())]
    chosen = {found.name for found in candidates(records, 1)}
    assert chosen == {*losses} - {"fixed 3, 0.5x budget", "fixed 0, 2x budget"}


def test_the_number_of_candidates_is_known_before_other_budgets_are_tuned() -> None:
    before = [make_record("search", 0, 2.2), make_record("fixed", 0, 2.3), make_record("fixed", 3, 2.4)]
    before += [make_record("baseline", 0, 2.9, name="final")]
    names = ["final, 0.5x budget", "final, 2x budget", "fixed 0, 0.5x budget", "fixed 3, 0.5x budget"]
    tuned = [make_record("baseline", 1 + n, 3.0 + n / 10, name=name) for n, name in enumerate(names)]
    curves = [
        BaselineSize(name, Shape.uniform(hidden=16, layers=1, mlp=32, heads=1, key=8, value=8))
        for name in names
    ]
    after = candidates([*before, *tuned], 1)
    assert count_candidates(candidates(before, 1), curves) == len(after) == 6
    assert count_candidates(after, curves) == 6, "a confirmation that is resumed"


def test_the_best_of_each_value_of_a_parameter_can_be_confirmed() -> None:
    records = [
        make_record("search", 0, 2.0, parameters={"operator": "preserve", "rate": 1}),
        make_record("search", 1, 2.1, parameters={"operator": "preserve", "rate": 2}),
        make_record("search", 2, 2.5, parameters={"operator": "stack", "rate": 1}),
        make_record("search", 3, 2.4, parameters={"operator": "stack", "rate": 2}),
        make_record("baseline", 0, 2.9, name="final"),
    ]
    chosen = [found.label for found in candidates(records, 1, "operator")]
    assert chosen == ["search 0", "search 3", "baseline 0"]
    with pytest.raises(ValueError, match=r"--each: .* .size.; it has operator, rate"):
        candidates(records, 1, "size")


def test_a_schedule_that_names_its_operators_is_confirmed_once_whatever_was_searched() -> None:
    own = {"start": {}, "events": [{"at": 0.3, "operator": "stack"}]}
    mixed = {"start": {}, "events": [{"at": 0.3, "operator": "stack"}, {"at": 0.5}]}
    records = [
        make_record("search", index, 2.0 + index / 10, schedule=schedule, parameters={"operator": operator})
        for index, (schedule, operator) in enumerate(
            [(own, "preserve"), (own, "lemon"), (mixed, "preserve"), (mixed, "lemon")]
        )
    ]
    assert [found.label for found in candidates(records, 4)] == ["search 0", "search 2", "search 3"]


def test_seeds_are_fresh(tmp_path: Path) -> None:
    study, _ = open_study(write_study(tmp_path, seeds=[0, 2]))
    assert fresh_seeds(study, 3) == [1, 3, 4]


def confirmed(path: Path, seeds: int = 1) -> list[TrialRecord]:
    return list(confirm_study(path, top=1, seeds=seeds).trials["confirmation"].values())


def test_candidates_are_trained_with_fresh_seeds_and_judged_on_the_test_split(
    searched: tuple[Path, Path],
) -> None:
    path, folder = searched
    known = confirm_study(path, top=1, seeds=2)
    originals = {trial.label: trial for kind in SEARCHED for trial in known.trials[kind].values()}
    found = list(known.trials["confirmation"].values())
    assert {(trial.name, *trial.seeds) for trial in found} >= {
        (name, seed) for name in ("search 1", "baseline 0") for seed in (1, 2)
    }
    for trial in found:
        assert trial.name is not None
        assert trial.schedule == originals[trial.name].schedule
        assert trial.learning_rate == originals[trial.name].learning_rate
        (identity,) = trial.runs
        run = folder / RUNS / identity
        assert read_run(run).config.seed == trial.seeds[0]
        tested = json.loads((run / TEST).read_text())
        assert tested["test"] == trial.test[0] != trial.losses[0]
        assert tested["prompt"]
        assert len(tested["sample"]) > len(tested["prompt"])
        assert not (run / CHECKPOINTS).exists()
    assert len({trial.test[0] for trial in found}) == len(found)
    rival = known.trials["fixed"][0]
    assert rival.schedule == {"start": known.trials["search"][1].schedule["start"], "events": []}
    best = best_first(known.trials["fixed"].values())[0]
    assert best.label in {trial.name for trial in found}
    richer = [trial for trial in known.trials["baseline"].values() if trial.name != "final"]
    assert {trial.name for trial in richer} >= {"final, 2x budget", f"{best.label}, 2x budget"}
    assert {trial.label for trial in richer} <= {trial.name for trial in found}, "curves have fresh seeds too"
    for trial in richer:
        (identity,) = trial.runs
        assert read_run(folder / RUNS / identity).budget == 2 * open_study(path)[0].budget
    assert confirm_study(path, top=1, seeds=2) == known, "asking again trains nothing"


def test_the_test_loss_is_that_of_the_test_split(
    searched: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder = searched
    monkeypatch.setattr(
        "nasgrow.study.store.shutil.rmtree", lambda *given, **options: None
    )  # checkpoints stay
    (found,) = (trial for trial in confirmed(path) if trial.name == "search 1")
    config = open_study(path)[0].config
    windows = torch.from_numpy(evaluation_windows(prepare(config.data).test, count=128 // 16, length=16))
    (identity,) = found.runs
    model = trained(folder / RUNS / identity, torch.device("cpu")).model
    assert found.test == [pytest.approx(evaluate(model, windows, 64), abs=1e-6)]
    recorded = json.loads((folder / RUNS / identity / TEST).read_text())["stretches"]
    assert recorded == [pytest.approx(evaluate(model, window[None], 64), abs=1e-6) for window in windows]


def test_a_test_loss_that_is_no_number_is_recorded_as_diverged(
    searched: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder = searched
    monkeypatch.setattr("nasgrow.training.runner.evaluate", lambda *given: math.nan)
    found = confirmed(path)
    assert {(trial.status, *trial.test) for trial in found} == {("diverged",)}
    for trial in found:
        (identity,) = trial.runs
        assert json.loads((folder / RUNS / identity / TEST).read_text())["test"] is None


def test_a_search_that_has_finished_nothing_cannot_be_confirmed(tmp_path: Path) -> None:
    path = write_study(tmp_path)
    begin_study(path)
    with pytest.raises(ValueError, match="runs/tiny: no trial has finished, so there is nothing to confirm"):
        confirm_study(path)


@pytest.mark.parametrize(("trials", "state"), [(2, "ended"), (3, "stopped")])
def test_confirming_ends_no_search_that_has_more_to_try(
    trials: int, state: str, searched: tuple[Path, Path]
) -> None:
    path, _ = searched
    assert confirm_study(write_study(path.parent, baselines=FIXED, trials=trials)).state == state
