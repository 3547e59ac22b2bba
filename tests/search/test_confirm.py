"""Confirmation: fresh seeds, the test split, the best of each kind."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from nasgrow.data import evaluation_windows, prepare
from nasgrow.export import trained
from nasgrow.search.confirm import candidate_name, candidates, fresh_seeds
from nasgrow.search.ledger import KINDS, Kind
from nasgrow.search.objective import pursue
from nasgrow.search.outcome import RUNS, TEST
from nasgrow.search.trials import TrialRecord, read_trials, write_trial
from nasgrow.training.folder import read_run
from nasgrow.training.records import CHECKPOINTS
from nasgrow.training.step import evaluate
from tests.search.studies import begin_study, write_study
from tests.search.test_objective import ONE, nothing, setting_of, train_all

CONFIRMATION: tuple[Kind, ...] = ("confirmation",)


def record(kind: str, number: int, loss: float | None, **changes: Any) -> TrialRecord:
    values: dict[str, Any] = {
        "status": "finished" if loss is not None else "diverged",
        "name": None,
        "parameters": {},
        "schedule": {"start": {}, "events": [{"at": 0.3}] if kind == "search" else []},
        "words": "words",
        "learning_rate": 0.006,
        "seeds": [0],
        "losses": [loss],
        "test": [],
        "runs": [f"{kind}{number}"],
        "charged": 1,
        "executed": 1,
        "seconds": 1.0,
        "tokens": 1,
        "parameter_count": 1,
        "inference_flops": 1,
        "replaces": [],
    }
    return TrialRecord(kind=kind, number=number, **{**values, **changes})


def test_the_best_schedules_that_grow_and_the_best_of_each_size_are_confirmed() -> None:
    early, late = ({"start": {}, "events": [{"at": at}]} for at in (0.1, 0.5))
    records = [
        record("search", 0, 2.0, schedule={"start": {}, "events": []}),
        record("search", 1, 2.5),
        record("search", 2, 2.2, schedule=early, parameters={"at": 1, "learning_rate.peak": 0.1}),
        record("search", 3, 2.2, schedule=early, parameters={"at": 2, "learning_rate.peak": 0.2}),
        record("search", 4, None),
        record("search", 5, 2.4, status="pruned"),
        record("search", 6, 2.3, schedule=late),
        record("search", 7, 2.4, schedule=early, parameters={"at": 1, "moments": "carry"}),
        record("baseline", 0, 2.9, name="final"),
        record("baseline", 1, 2.7, name="final"),
        record("baseline", 2, 2.8, name="start"),
    ]
    chosen = [candidate_name(found) for found in candidates(records, 2)]
    assert chosen == ["search 2", "search 6", "baseline 1", "baseline 2"]
    assert [candidate_name(found) for found in candidates(records, 3)][2] == "search 7", "other moments"
    assert candidates([], 3) == []


def test_the_best_of_each_value_of_a_parameter_can_be_confirmed() -> None:
    records = [
        record("search", 0, 2.0, parameters={"operator": "preserve", "rate": 1}),
        record("search", 1, 2.1, parameters={"operator": "preserve", "rate": 2}),
        record("search", 2, 2.5, parameters={"operator": "stack", "rate": 1}),
        record("search", 3, 2.4, parameters={"operator": "stack", "rate": 2}),
        record("baseline", 0, 2.9, name="final"),
    ]
    chosen = [candidate_name(found) for found in candidates(records, 1, "operator")]
    assert chosen == ["search 0", "search 3", "baseline 0"]
    with pytest.raises(ValueError, match=r"--each: .* .size.; there are operator, rate"):
        candidates(records, 1, "size")


def test_a_schedule_that_names_its_operators_is_confirmed_once_whatever_was_searched() -> None:
    own = {"start": {}, "events": [{"at": 0.3, "operator": "stack"}]}
    mixed = {"start": {}, "events": [{"at": 0.3, "operator": "stack"}, {"at": 0.5}]}
    records = [
        record("search", index, 2.0 + index / 10, schedule=schedule, parameters={"operator": operator})
        for index, (schedule, operator) in enumerate(
            [(own, "preserve"), (own, "lemon"), (mixed, "preserve"), (mixed, "lemon")]
        )
    ]
    assert [candidate_name(found) for found in candidates(records, 4)] == ["search 0", "search 2", "search 3"]


def test_seeds_are_fresh(tmp_path: Path) -> None:
    study, _, _ = _begin(tmp_path, seeds=[0, 2])
    assert fresh_seeds(study, 3) == [1, 3, 4]


def _begin(folder: Path, **changes: Any) -> Any:
    return begin_study(write_study(folder, **{"baselines": ONE, "trials": 2, **changes}))


@pytest.fixture(autouse=True)
def _place(place: Path) -> None:
    """Every test here works in an empty folder."""


def test_confirmations_are_trained_with_their_seed_and_judged_on_the_test_split(tmp_path: Path) -> None:
    _, folder, ledger = _begin(tmp_path)
    train_all(ledger, tmp_path)
    ledger.queue_confirmations(["search 1", "baseline 0"], [7, 8])
    ledger.queue_confirmations(["search 1", "baseline 0"], [7, 8])  # asking twice asks once
    assert ledger.claim(KINDS) is None, "a search trains none of them"
    setting = setting_of(ledger, tmp_path)
    while (claim := ledger.claim(CONFIRMATION)) is not None:
        pursue(claim, ledger, setting, nothing)
    assert ledger.ended(CONFIRMATION)
    confirmed = [found for found in read_trials(folder) if found.kind == "confirmation"]
    assert [(found.name, found.seeds) for found in confirmed] == [
        ("search 1", [7]),
        ("search 1", [8]),
        ("baseline 0", [7]),
        ("baseline 0", [8]),
    ]
    originals = {candidate_name(found): found for found in read_trials(folder)}
    for found in confirmed:
        assert found.name is not None
        assert found.schedule == originals[found.name].schedule
        assert found.learning_rate == originals[found.name].learning_rate
        run = folder / RUNS / found.runs[0]
        assert read_run(run).config.seed == found.seeds[0]
        assert json.loads((run / TEST).read_text())["test"] == found.test[0] != found.losses[0]
        assert not (run / CHECKPOINTS).exists()
    assert len({found.test[0] for found in confirmed}) == 4


def test_the_test_loss_is_that_of_the_test_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, folder, ledger = _begin(tmp_path)
    train_all(ledger, tmp_path)
    ledger.queue_confirmations(["search 1"], [7])
    monkeypatch.setattr("nasgrow.search.objective.shutil.rmtree", lambda *args, **options: None)
    claim = ledger.claim(CONFIRMATION)
    assert claim is not None
    pursue(claim, ledger, setting_of(ledger, tmp_path), nothing)
    (found,) = (found for found in read_trials(folder) if found.kind == "confirmation")
    corpus = prepare(study.config.data)
    windows = torch.from_numpy(evaluation_windows(corpus.test, count=128 // 16, length=16))
    assert found.test == [evaluate(trained(folder / RUNS / found.runs[0]).model, windows, 64)]


def test_a_test_loss_that_is_no_number_is_recorded_as_diverged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder, ledger = _begin(tmp_path)
    train_all(ledger, tmp_path)
    ledger.queue_confirmations(["search 1"], [7])
    monkeypatch.setattr("nasgrow.search.objective.test_loss", lambda folder, setting: math.nan)
    claim = ledger.claim(CONFIRMATION)
    assert claim is not None
    pursue(claim, ledger, setting_of(ledger, tmp_path), nothing)
    (found,) = (found for found in read_trials(folder) if found.kind == "confirmation")
    assert (found.status, found.test) == ("diverged", [])
    assert ledger.ended(CONFIRMATION)


def test_a_record_of_a_worker_that_died_before_telling_is_not_counted_twice(tmp_path: Path) -> None:
    write_trial(tmp_path, record("search", 3, 2.0))
    write_trial(tmp_path, record("search", 5, 2.0, replaces=[3]))
    write_trial(tmp_path, record("baseline", 3, 2.0))
    assert [(found.kind, found.number) for found in read_trials(tmp_path)] == [("baseline", 3), ("search", 5)]


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    write_trial(tmp_path, record("search", 3, 2.0))
    (tmp_path / "trials" / "search-00003.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ValueError, match=r"search-00003\.json: is damaged"):
        read_trials(tmp_path)
