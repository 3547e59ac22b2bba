"""What a trial comes to: trained for real, reported, pruned, accounted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import Trial, TrialState

from nasgrow.data import prepare
from nasgrow.search import objective
from nasgrow.search.confirm import candidate_config
from nasgrow.search.ledger import Claim, Ledger
from nasgrow.search.objective import pursue
from nasgrow.search.outcome import RUNS, Setting
from nasgrow.search.trials import read_trials
from nasgrow.training import loop
from nasgrow.training.folder import read_run
from nasgrow.training.loop import Interrupted
from nasgrow.training.records import CHECKPOINTS, RESULT
from nasgrow.training.run import Run
from tests.search.studies import SPACE, begin_study, write_study
from tests.search.test_ledger import another, play, take

pytestmark = pytest.mark.usefixtures("place")

ONE = {"shares": [], "learning_rates": [0.006]}


def setting_of(ledger: Ledger, folder: Path, stop: Callable[[], bool] = lambda: False) -> Setting:
    corpus = prepare(ledger.study.config.data)
    runs = folder / "runs" / ledger.study.config.name
    return Setting(runs, corpus, torch.device("cpu"), lambda progress: None, lambda line: None, stop)


def nothing(trial: Trial, run: Run, folder: Path) -> None:
    """Attach nothing."""


def train_all(ledger: Ledger, folder: Path) -> None:
    setting = setting_of(ledger, folder)
    while (claim := ledger.claim()) is not None:
        pursue(claim, ledger, setting, nothing)


def start(folder: Path, **changes: Any) -> Ledger:
    return begin_study(write_study(folder, **{"baselines": ONE, "trials": 2, **changes}))[2]


def next_search(ledger: Ledger, folder: Path) -> Claim:
    """Train the baselines, and take the first trial of the search."""
    setting = setting_of(ledger, folder)
    while (claim := take(ledger)).kind == "baseline":
        pursue(claim, ledger, setting, nothing)
    return claim


def test_a_trial_is_worth_the_loss_of_its_run(tmp_path: Path) -> None:
    ledger = start(tmp_path)
    train_all(ledger, tmp_path)
    for kind in ("search", "baseline"):
        for trial in ledger.trials(kind):
            told = trial.user_attrs
            ((identity, executed),) = told["runs"].items()
            result = json.loads((tmp_path / "runs/tiny" / RUNS / identity / RESULT).read_text())
            assert trial.state == TrialState.COMPLETE
            assert trial.value == result["validation"] == told["losses"][0]
            assert told["status"] == "finished"
            assert told["charged"] == result["charged"]
            assert told["executed"] == executed
            assert 0.9 * 8e7 < told["charged"] <= 8e7
            assert told["schedule"].startswith("start h=")
    records = read_trials(tmp_path / "runs/tiny")
    assert [(record.kind, record.number) for record in records] == [
        ("baseline", 0),
        ("baseline", 1),
        ("search", 0),
        ("search", 1),
    ]
    assert [record.name for record in records] == ["final", "start", "no growth", "half"]
    for record in records:
        ended = ledger.trials(record.kind)[record.number]  # type: ignore[arg-type]
        assert record.losses == [ended.value]
        assert record.parameters == ended.params
        assert record.runs == list(ended.user_attrs["runs"])
        assert record.learning_rate == 0.006
    scratch, grown = ledger.trials("search")
    assert scratch.user_attrs["events"] == 0
    assert "no growth" in scratch.user_attrs["schedule"]
    assert grown.user_attrs["events"] == 1
    assert "at 0.3: hidden 16" in grown.user_attrs["schedule"]


def test_no_growth_and_the_final_baseline_are_one_run_that_is_trained_once(tmp_path: Path) -> None:
    ledger = start(tmp_path, trials=1)
    train_all(ledger, tmp_path)
    baseline, scratch = ledger.trials("baseline")[0], ledger.trials("search")[0]
    assert baseline.params["size"] == "final"
    assert scratch.value == baseline.value
    assert list(scratch.user_attrs["runs"]) == list(baseline.user_attrs["runs"])
    assert baseline.user_attrs["executed"] == baseline.user_attrs["charged"] > 0
    assert scratch.user_attrs["executed"] == 0
    assert scratch.user_attrs["charged"] == baseline.user_attrs["charged"]
    assert scratch.user_attrs["seconds"] == 0


def test_a_baseline_of_another_budget_is_trained_under_it_and_confirmed_under_it(tmp_path: Path) -> None:
    ledger = start(tmp_path, baselines={**ONE, "budgets": [0.5]})
    train_all(ledger, tmp_path)
    folder = tmp_path / "runs" / "tiny"
    records = {record.name: record for record in read_trials(folder) if record.kind == "baseline"}
    whole, half = records["final"], records["final, 0.5x budget"]
    assert read_run(folder / RUNS / half.runs[0]).budget == ledger.study.budget // 2
    assert half.charged == pytest.approx(whole.charged / 2, rel=0.05)
    config = candidate_config(folder, f"baseline {half.number}")
    assert config.budget.flops == ledger.study.budget // 2


def test_evaluations_are_reported_at_percents_of_the_budget(tmp_path: Path) -> None:
    ledger = start(tmp_path)
    train_all(ledger, tmp_path)
    for trial in ledger.trials("search"):
        steps = sorted(trial.intermediate_values)
        assert set(steps) <= {5 * index for index in range(20)}
        assert len(steps) > 15  # a step of this small budget is 4% of it, so some fractions share one
        assert steps[0] == 0


def test_with_several_seeds_the_loss_is_the_mean(tmp_path: Path) -> None:
    ledger = start(tmp_path, seeds=[3, 4], trials=1)
    train_all(ledger, tmp_path)
    (trial,) = ledger.trials("search")
    assert len(trial.user_attrs["runs"]) == 2
    first, second = trial.user_attrs["losses"]
    assert first != second
    assert trial.value == fmean([first, second])


def test_two_objectives(tmp_path: Path) -> None:
    ledger = start(tmp_path, objectives=["loss", "parameters"], sampler={"kind": "nsga-ii"})
    train_all(ledger, tmp_path)
    for trial in ledger.trials("search"):
        assert trial.values == [trial.user_attrs["losses"][0], trial.user_attrs["parameters"]]
        assert not trial.intermediate_values
    assert len(ledger.trials("baseline")[0].values) == 1


def test_a_diverged_trial_is_recorded_and_the_study_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = start(tmp_path, space={**SPACE, "known": HALF})
    claim = next_search(ledger, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(loop, "DIVERGED", 0.0)
        pursue(claim, ledger, setting_of(ledger, tmp_path), nothing)
    (trial,) = ledger.trials("search")
    assert trial.user_attrs["status"] == "diverged"
    assert trial.state == TrialState.PRUNED
    train_all(ledger, tmp_path)
    assert ledger.ended()
    assert len(ledger.trials("search")) == 2


def test_diverged_trials_of_two_objectives_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "DIVERGED", 0.0)
    ledger = start(tmp_path, objectives=["loss", "parameters"], sampler={"kind": "random"})
    train_all(ledger, tmp_path)
    assert ledger.ended()
    assert [trial.user_attrs["status"] for trial in ledger.trials("search")] == ["diverged"] * 2


class Prunes:
    """A pruner that always says the same, and notes when it was asked."""

    def __init__(self, answer: bool) -> None:
        self.answer = answer
        self.asked: list[int] = []

    def prune(self, study: object, trial: Any) -> bool:
        self.asked.append(trial.last_step)
        return self.answer


HALF = {"half": {"start": 0.5, "at.1": 0.3, "at.2": 0.3}}


@pytest.mark.parametrize(
    ("after", "recovery", "last"),
    [(0.2, 0.25, 20), (0.3, 0.25, 30), (0.35, 0.25, 55), (0.35, 0.0, 35), (0.75, 0.25, 75)],
)
def test_pruning_waits_for_its_time_and_for_recovery(
    after: float, recovery: float, last: int, tmp_path: Path
) -> None:
    """The event is at 30%, after the evaluation there."""
    pruner = {"kind": "median", "after": after, "recovery": recovery}
    ledger = start(tmp_path, space={**SPACE, "known": HALF}, pruner=pruner, trials=1)
    claim = next_search(ledger, tmp_path)
    prunes = Prunes(answer=True)
    claim.trial.study.pruner = prunes  # type: ignore[assignment]
    pursue(claim, ledger, setting_of(ledger, tmp_path), nothing)
    # Asked at every evaluation from `after` on: pruners that compare need all trials at the same places.
    assert prunes.asked == list(range(round(100 * after), last + 1, 5))
    (trial,) = ledger.trials("search")
    assert trial.user_attrs["status"] == "pruned"


def test_a_run_that_ended_before_is_never_pruned(tmp_path: Path) -> None:
    """No growth is the final baseline's run: its result is there."""
    ledger = start(tmp_path, trials=1, pruner={"kind": "median", "after": 0.0})
    claim = next_search(ledger, tmp_path)
    prunes = Prunes(answer=True)
    claim.trial.study.pruner = prunes  # type: ignore[assignment]
    pursue(claim, ledger, setting_of(ledger, tmp_path), nothing)
    (trial,) = ledger.trials("search")
    assert trial.state == TrialState.COMPLETE
    assert prunes.asked == []
    assert len(trial.intermediate_values) > 15


def test_a_pruned_trial_is_charged_for_what_it_trained_and_can_be_taken_up(tmp_path: Path) -> None:
    ledger = start(tmp_path, space={**SPACE, "known": HALF}, pruner={"kind": "median"}, trials=1)
    claim = next_search(ledger, tmp_path)
    claim.trial.study.pruner = Prunes(answer=True)  # type: ignore[assignment]
    pursue(claim, ledger, setting_of(ledger, tmp_path), nothing)
    (pruned,) = ledger.trials("search")
    assert pruned.state == TrialState.PRUNED
    assert pruned.user_attrs["status"] == "pruned"
    assert 0.2 * 8e7 < pruned.user_attrs["executed"] == pruned.user_attrs["charged"] < 0.4 * 8e7
    _, _, more = begin_study(tmp_path / "tiny.yaml", trials=2)
    more.optuna_study("search").enqueue_trial(dict(pruned.params))
    more.optuna_study("search").pruner = Prunes(answer=False)  # type: ignore[assignment]
    train_all(more, tmp_path)
    again = more.trials("search")[1]
    assert again.user_attrs["status"] == "finished"
    assert again.user_attrs["executed"] + pruned.user_attrs["executed"] == again.user_attrs["charged"]


def test_an_interrupted_trial_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = start(tmp_path, name="whole")
    train_all(whole, tmp_path)
    ledger = start(tmp_path)
    claim = next_search(ledger, tmp_path)
    pursue(claim, ledger, setting_of(ledger, tmp_path), nothing)  # the final shape, trained already
    claim = take(ledger)
    asked = iter([False] * 12)
    with pytest.raises(Interrupted):
        pursue(claim, ledger, setting_of(ledger, tmp_path, lambda: next(asked, True)), nothing)
    ledger.give_back(claim)
    other = another(ledger, tmp_path)
    train_all(other, tmp_path)
    assert other.ended()
    ours, theirs = other.trials("search")[1], whole.trials("search")[1]
    assert ours.value == theirs.value
    assert ours.intermediate_values == theirs.intermediate_values
    assert ours.user_attrs["executed"] == theirs.user_attrs["executed"]


def test_weights_are_kept_of_the_best_trials_only(tmp_path: Path) -> None:
    ledger = start(tmp_path, trials=4)
    train_all(ledger, tmp_path)
    best = min(ledger.trials("search"), key=lambda trial: trial.value or 0.0)
    kept = {*best.user_attrs["runs"]}
    for trial in ledger.trials("baseline"):  # one for each size
        kept |= trial.user_attrs["runs"].keys()
    runs = tmp_path / "runs/tiny" / RUNS
    with_weights = {path.name for path in runs.iterdir() if (path / CHECKPOINTS).exists()}
    assert with_weights == kept
    assert len(list(runs.iterdir())) > len(kept)
    assert all((path / RESULT).exists() for path in runs.iterdir())


def test_the_weights_of_a_trial_that_is_outdone_are_dropped(tmp_path: Path) -> None:
    two = {"shares": [], "start": False, "learning_rates": [0.003, 0.006], "extended": False}
    ledger = start(tmp_path, trials=4, baselines=two)
    runs, kept = tmp_path / "weights", []
    for loss in (3.0, 2.0, 4.0, 3.0, 3.5, 1.0):  # two baselines, and the trials of the search
        claim = take(ledger)
        name = f"{claim.kind} {loss}"
        (runs / name / CHECKPOINTS).mkdir(parents=True)
        claim.trial.set_user_attr("runs", {name: 1})
        play(ledger, claim, loss)
        objective._drop_checkpoints(claim, ledger, runs)
        kept.append({path.parent.name for path in runs.glob(f"*/{CHECKPOINTS}")})
    best = "baseline 2.0"
    assert kept == [
        {"baseline 3.0"},
        {best},
        {best, "search 4.0"},
        {best, "search 3.0"},
        {best, "search 3.0"},
        {best, "search 1.0"},
    ]


def test_the_weights_of_a_baseline_stay_when_the_trial_that_is_the_same_run_is_outdone(
    tmp_path: Path,
) -> None:
    one = {"shares": [], "start": False, "learning_rates": [0.006], "extended": False}
    ledger, runs = start(tmp_path, trials=3, baselines=one), tmp_path / "weights"
    for name, events, loss in (("same", 0, 2.0), ("same", 0, 2.0), ("grown", 1, 1.0), ("worse", 1, 3.0)):
        claim = take(ledger)
        (runs / name / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        claim.trial.set_user_attr("runs", {name: 1})
        claim.trial.set_user_attr("events", events)
        play(ledger, claim, loss)
        objective._drop_checkpoints(claim, ledger, runs)
    assert {path.parent.name for path in runs.glob(f"*/{CHECKPOINTS}")} == {"same", "grown"}


def test_files_are_attached_before_the_trial_ends(tmp_path: Path) -> None:
    ledger = start(tmp_path)
    claim = next_search(ledger, tmp_path)
    attached: list[tuple[int, str]] = []

    def attach(trial: Trial, run: Run, folder: Path) -> None:
        assert ledger.storage.get_trial(trial._trial_id).state == TrialState.RUNNING
        assert (folder / RESULT).exists()
        attached.append((trial.number, run.identity))

    objective.pursue(claim, ledger, setting_of(ledger, tmp_path), attach)
    assert [number for number, _ in attached] == [claim.trial.number]


def test_two_trials_of_one_run_account_for_it_once_whichever_ends_first(tmp_path: Path) -> None:
    """The second finds the run finished while the first has not told the ledger yet."""
    known = {
        "one": {"start": 0.5, "at.1": 0.3, "at.2": 0.6},
        "other": {"start": 0.5, "at.1": 0.6, "at.2": 0.3},
    }
    ledger = start(tmp_path, space={**SPACE, "known": known})
    first = next_search(ledger, tmp_path)
    other = another(ledger, tmp_path)
    second = take(other)

    def overtaken(trial: Trial, run: Run, folder: Path) -> None:
        pursue(second, other, setting_of(other, tmp_path), nothing)

    pursue(first, ledger, setting_of(ledger, tmp_path), overtaken)
    one, two = ledger.trials("search")
    assert one.user_attrs["runs"].keys() == two.user_attrs["runs"].keys()
    assert one.user_attrs["executed"] + two.user_attrs["executed"] == one.user_attrs["charged"]


def test_a_trial_taken_for_dead_is_left_to_whoever_has_it_now(tmp_path: Path) -> None:
    ledger = start(tmp_path, space={**SPACE, "known": HALF})
    claim = next_search(ledger, tmp_path)
    ledger.storage.set_trial_state_values(claim.trial._trial_id, TrialState.FAIL)
    with pytest.raises(UpdateFinishedTrialError):
        pursue(claim, ledger, setting_of(ledger, tmp_path), nothing)
