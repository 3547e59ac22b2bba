"""Studies that are searched and confirmed for real, in threads of this process."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.artifacts import get_all_artifact_meta
from optuna.trial import FrozenTrial, TrialState

from nasgrow.driver import Driver
from nasgrow.schedule import schedule_from
from nasgrow.study.baselines import best_first, best_values, rival_shapes
from nasgrow.study.config import DATA
from nasgrow.study.storage import DATABASE
from nasgrow.study.study import open_study
from nasgrow.study.study_folder import KnownStudy, opened, read_study
from nasgrow.study.trials import RUNS
from nasgrow.study.tuning import contender, tries
from nasgrow.training import loop
from nasgrow.training.records import CHECKPOINTS, RESULT, read_result, read_run
from tests.study.records import make_record
from tests.study.studies import SPACE, Quiet, begin_study, run_study, write_study


def shown(folder: Path, name: str) -> optuna.Study:
    """A study as Optuna has it."""
    return optuna.load_study(study_name=name, storage=f"sqlite:///{folder / DATABASE}")


def attached(folder: Path, trial: FrozenTrial) -> list[str]:
    """The names of the files of a trial."""
    storage = optuna.storages.RDBStorage(f"sqlite:///{folder / DATABASE}")
    return sorted(one.filename for one in get_all_artifact_meta(trial, storage=storage))


def cut_short(path: Path, evaluations: int) -> KnownStudy:
    """Run a study until so many evaluations are new."""
    counts: list[int] = []

    def count(driver: Driver) -> None:
        every = (trial for trials in driver.trials.values() for trial in trials.values())
        counts.append(sum(len(trial.evaluations) for trial in every))

    def stop() -> bool:
        return len(counts) > 1 and counts[-1] >= counts[0] + evaluations

    return run_study(path, quiet=Quiet(watch=count, stop_when=stop))[2]


def test_a_search_trains_baselines_known_schedules_and_samples(ended: tuple[Path, Path]) -> None:
    _, folder = ended
    known = read_study(folder)
    search, fixed = known.trials["search"], known.trials["baseline"]
    assert known.state == "ended"
    assert [search[number].name for number in sorted(search)] == ["no growth", "half", None, None]
    assert {trial.status for trial in [*search.values(), *fixed.values()]} == {"finished"}
    first = search[1]
    (run,) = first.runs
    assert first.loss == read_result(folder / RUNS / run).validation
    assert [at for at, _ in first.evaluations] == [index / 10 for index in range(10)]
    assert min(trial.ended or 0 for trial in search.values()) >= min(
        trial.ended or 0 for trial in fixed.values()
    )


def test_a_study_says_what_its_data_is(ended: tuple[Path, Path]) -> None:
    _, folder = ended
    told = json.loads((folder / DATA).read_text(encoding="utf-8"))
    (trial, *_) = read_study(folder).trials["search"].values()
    (run,) = trial.runs
    assert told["fingerprint"] == read_run(folder / RUNS / run).fingerprint
    assert told["overlap"] == 0, "its documents are words at random"
    assert set(told["tokens"]) == set(told["documents"]) == {"train", "validation", "test"}


def test_optuna_shows_every_trial_once_with_its_value_parameters_and_reports(
    ended: tuple[Path, Path],
) -> None:
    _, folder = ended
    known = read_study(folder)
    trials = shown(folder, "tiny").trials
    assert [trial.number for trial in trials] == sorted(known.trials["search"])
    for trial in trials:
        record = known.trials["search"][trial.number]
        assert trial.state == TrialState.COMPLETE
        assert trial.value == record.loss
        assert trial.params == record.parameters
        assert trial.intermediate_values == {round(100 * at): loss for at, loss in record.evaluations}
        assert trial.user_attrs["schedule"] == record.words
        assert trial.user_attrs["status"] == "finished"
        assert attached(folder, trial) == ["curve.png", "schedule.yaml"]
    fixed = shown(folder, "tiny (baselines)").trials
    assert len(fixed) == len(known.trials["baseline"])


def test_no_growth_and_the_final_baseline_are_one_run_that_is_trained_once(ended: tuple[Path, Path]) -> None:
    known = read_study(ended[1])
    trial = known.trials["search"][0]
    twin = next(one for one in known.trials["baseline"].values() if one.runs.keys() == trial.runs.keys())
    assert trial.loss == twin.loss
    assert trial.executed == trial.seconds == 0 < twin.executed == trial.charged


def test_more_trials_go_on_where_the_study_ended(ended: tuple[Path, Path]) -> None:
    path, folder = ended
    before = read_study(folder)
    _, _, after = run_study(path, trials=6)
    assert len(after.trials["search"]) == 6
    for number, record in before.trials["search"].items():
        assert after.trials["search"][number] == record
    assert len(shown(folder, "tiny").trials) == 6


def test_a_study_that_has_ended_trains_nothing_more(ended: tuple[Path, Path]) -> None:
    path, folder = ended
    before = read_study(folder)
    _, _, after = run_study(path)
    assert before == after


def test_an_interrupted_study_goes_on_to_the_same_losses(ended: tuple[Path, Path]) -> None:
    path, folder = ended
    whole = read_study(folder)
    shutil.rmtree("runs")
    cuts = 0
    while (known := cut_short(path, evaluations=5)).state != "ended":
        cuts += 1
    assert cuts >= 2
    for kind in ("baseline", "search"):
        losses = {number: trial.losses for number, trial in known.trials[kind].items()}
        assert losses == {number: trial.losses for number, trial in whole.trials[kind].items()}


def test_with_several_seeds_the_loss_is_the_mean(tmp_path: Path) -> None:
    _, _, known = run_study(write_study(tmp_path, trials=2, seeds=[3, 5]))
    trial = known.trials["search"][1]
    assert trial.seeds == [3, 5]
    assert len(trial.runs) == 2
    assert trial.loss == pytest.approx(sum(loss or math.nan for loss in trial.losses) / 2)


def test_two_objectives(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "objectives": ["loss", "parameters"],
        "sampler": {"kind": "nsga-ii"},
        "pruner": {"kind": "none"},
    }
    _, folder, known = run_study(write_study(tmp_path, trials=3, **changes))
    for trial in shown(folder, "tiny").trials:
        record = known.trials["search"][trial.number]
        assert trial.values == [record.loss, float(record.parameter_count)]


def test_weights_are_kept_of_the_best_trial_and_of_each_size_only(ended: tuple[Path, Path]) -> None:
    path, folder = ended
    known = read_study(folder)
    best = min(known.trials["search"].values(), key=lambda trial: trial.loss or math.inf)
    kept = {run for trial in [best, *known.trials["baseline"].values()] for run in trial.runs}
    runs = list((folder / RUNS).iterdir())
    dropped = [run for run in runs if not (run / CHECKPOINTS).exists()]
    assert {run.name for run in runs} - {run.name for run in dropped} == kept
    assert dropped
    assert all((run / RESULT).exists() for run in runs)

    (dropped[0] / CHECKPOINTS).mkdir()  # its driver died before it dropped them
    begin_study(path)
    assert {run.name for run in runs if (run / CHECKPOINTS).exists()} == kept


def test_weights_of_a_best_trial_are_dropped_when_others_beat_it_at_once(tmp_path: Path) -> None:
    study, folder = open_study(write_study(tmp_path))
    runs = [f"{number:012x}" for number in range(4)]
    point = {"start": 0.5, "at.1": 0.3, "at.2": 0.3, "learning_rate.peak": 0.006}
    with opened(study, folder, "data", lambda trial, record, path: None, pytest.fail) as driven:
        trials = [
            make_record("search", 0, loss, runs={run: 1}, parameters=point)
            for run, loss in zip(runs, (2.0, 1.8, 1.9, 1.85), strict=True)
        ]
        for trial, run in zip(trials, runs, strict=True):
            driven.store.add(trial)
            (folder / RUNS / run / CHECKPOINTS).mkdir(parents=True)
        for trial in trials:
            driven.store.end(trial)
    assert [run for run in runs if (folder / RUNS / run / CHECKPOINTS).exists()] == [runs[1]]


def test_a_diverged_trial_is_recorded_and_the_search_goes_on(
    ended: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, folder = ended
    with monkeypatch.context() as patch:
        patch.setattr(loop, "DIVERGED", 0.0)
        _, _, known = run_study(path, trials=10)
    new = [known.trials["search"][number] for number in range(4, 10)]
    assert "diverged" in {trial.status for trial in new}, "a run that was trained before has its loss"
    for trial, shown_trial in zip(new, shown(folder, "tiny").trials[4:], strict=True):
        assert (trial.loss is None) == (trial.status == "diverged")
        assert shown_trial.state == (TrialState.COMPLETE if trial.loss else TrialState.PRUNED)
    assert known.state == "ended"


def test_diverged_trials_of_two_objectives_count_as_infinitely_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "DIVERGED", 0.0)
    changes: dict[str, Any] = {"objectives": ["loss", "parameters"], "sampler": {"kind": "random"}}
    _, folder, known = run_study(write_study(tmp_path, trials=1, **changes))
    assert known.state == "ended"
    assert known.trials["search"][0].status == "diverged"
    (trial,) = shown(folder, "tiny").trials
    assert trial.values[0] == math.inf


def test_fixed_shapes_are_searched_with_as_much_compute_stages_and_shallower_shapes_first(
    tmp_path: Path,
) -> None:
    study, folder, known = run_study(write_study(tmp_path, trials=2, baselines={"compute": 1.0}))
    search, fixed = (list(known.trials[kind].values()) for kind in ("search", "fixed"))
    assert sum(trial.executed for trial in fixed) >= sum(trial.executed for trial in search)
    assert not any(trial.schedule["events"] for trial in fixed)
    shapes = [schedule_from(trial.schedule).start for trial in fixed]
    assert shapes[: len(rival_shapes(study, search))] == rival_shapes(study, search)[: len(shapes)]
    assert [trial.number for trial in shown(folder, "tiny (fixed shapes)").trials] == list(range(len(fixed)))


def test_the_best_schedule_and_the_best_fixed_shape_are_tuned_until_their_setting_is_the_best(
    tmp_path: Path,
) -> None:
    tune = {"learning_rate.peak": ["x0.5", "x1"], "batch_tokens": ["x1", "x2"]}
    study, folder, known = run_study(
        write_study(tmp_path, trials=2, tune=tune, baselines={"compute": 1.0}, budget={"flops": 2e8})
    )
    tuning, trials = study.tuning, known.trials
    assert known.state == "ended"
    grown = [trial for trial in trials["search"].values() if trial.schedule["events"]]
    for contenders in (grown, list(trials["fixed"].values()), list(trials["baseline"].values())):
        best = best_first(contenders)[0]
        own = [trial for trial in contenders if contender(trial) == contender(best)]
        assert tuning.next(*tries(tuning, own)) is None
    first = [trial for trial in trials["search"].values() if trial.name in study.space.known]
    tuned = best_values(study, trials["baseline"].values())
    assert [tuning.values(trial.parameters) for trial in first] == [tuned] * len(first)
    held = {trial.parameters["batch_tokens"] for trial in trials["search"].values() if not trial.tunes}
    assert held == {tuned["batch_tokens"]}
    assert all(
        read_run(folder / RUNS / run).config.training.batch_tokens == trial.parameters["batch_tokens"]
        for trial in trials["search"].values()
        for run in trial.runs
    )


def test_a_tree_finishes_as_many_trials_as_are_asked_for_and_prunes_the_others(tmp_path: Path) -> None:
    space = {**SPACE, "times": {"low": 0.2, "high": 0.8, "step": 0.2}, "known": {}}
    tree: dict[str, Any] = {"sampler": {"kind": "tree", "startup": 2}, "space": space}
    study, folder, known = run_study(write_study(tmp_path, trials=4, **tree))
    trials = known.trials["search"].values()
    assert known.state == "ended"
    assert {trial.status for trial in trials} <= {"finished", "pruned"}
    assert [trial.status for trial in trials].count("finished") == 4
    keys = {study.space.at(trial.parameters).key for trial in trials}
    assert len(keys) == len(trials), "no point twice"
    for trial in shown(folder, "tiny").trials:
        assert len(attached(folder, trial)) == 2, "once, however often it was paused"


def test_a_limit_of_time_ends_a_search(tmp_path: Path) -> None:
    limits: dict[str, Any] = {"trials": None, "hours": 1e-9}
    _, _, known = run_study(write_study(tmp_path, **limits))
    assert known.state == "ended"
    assert [trial.seconds > 0 for trial in known.trials["search"].values()] == [False, True]


def test_asha_pauses_and_what_is_never_resumed_is_pruned(tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "pruner": {"kind": "asha", "recovery": 0.0},  # every trial is judged at every rung
        "space": {**SPACE, "start": [1, 0.5, 0.25], "known": {}},
    }
    _, folder, known = run_study(write_study(tmp_path, trials=12, **changes), workers=2)
    by_status: dict[str, int] = {}
    for trial in known.trials["search"].values():
        by_status[trial.status] = by_status.get(trial.status, 0) + 1
    assert by_status.keys() == {"finished", "pruned"}
    states = [trial.state for trial in shown(folder, "tiny").trials]
    assert states.count(TrialState.PRUNED) == by_status["pruned"]
    assert len(states) == 12
