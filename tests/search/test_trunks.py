"""Trunks in a study: trials, baselines, confirmations and other studies pay for a prefix once."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec  # type: ignore[import-untyped]
import pytest
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

from nasgrow.search.confirm import candidate_name, candidates
from nasgrow.search.ledger import KINDS, Ledger
from nasgrow.search.objective import pursue
from nasgrow.search.outcome import RUNS, Setting
from nasgrow.search.summary import summarise
from nasgrow.search.trials import read_trials
from nasgrow.search.trunks import open_trunks, trunk_times
from nasgrow.training.records import CHECKPOINTS
from tests.cli.test_run_commands import call
from tests.search.studies import SPACE, begin_study, write_study
from tests.search.test_objective import HALF, ONE, Prunes, next_search, nothing, setting_of

pytestmark = pytest.mark.usefixtures("place")

PARTING = {
    "early": {"start": 0.5, "at.1": 0.3, "at.2": 0.3},
    "late": {"start": 0.5, "at.1": 0.5, "at.2": 0.5},
}


CHEAP = {"gigabytes": 1, "share": 1e9}
"""Runs of a moment are worth storing, whatever that takes."""


def start(folder: Path, stem: str = "tiny", **changes: Any) -> tuple[Ledger, Setting]:
    path = write_study(folder, stem, **{"baselines": ONE, "trials": 2, "trunks": CHEAP, **changes})
    _, where, ledger = begin_study(path)
    setting = setting_of(ledger, folder)
    return ledger, replace(setting, trunks=open_trunks(ledger.study, where))


def train_all(ledger: Ledger, setting: Setting, *kinds: Any) -> None:
    while (claim := ledger.claim(*kinds)) is not None:
        pursue(claim, ledger, setting, nothing)


def told(ledger: Ledger) -> list[tuple[float | None, dict[int, float], list[float]]]:
    """What came out of each trial and baseline."""
    trials = [trial for kind in KINDS for trial in ledger.trials(kind)]
    return [(trial.value, trial.intermediate_values, trial.user_attrs["losses"]) for trial in trials]


def test_a_study_with_trunks_comes_to_the_same_and_executes_less(tmp_path: Path) -> None:
    space = {**SPACE, "known": PARTING}
    ledgers = []
    for name in ("alone", "shared"):
        ledger, setting = start(tmp_path, name, space=space)
        train_all(ledger, setting if name == "shared" else replace(setting, trunks=None))
        ledgers.append(ledger)
    alone, shared = ledgers
    assert told(alone) == told(shared)
    before, after = summarise(alone), summarise(shared)
    assert before.executed == before.charged == after.charged
    budget = 8e7
    # The baseline of the start shape leaves states up to 0.7: one schedule finds 0.3 of them, the other 0.5.
    assert after.executed == pytest.approx(after.charged - 0.8 * budget, abs=0.1 * budget)
    for record in read_trials(tmp_path / "runs/shared"):
        (trial,) = (t for t in shared.trials(record.kind) if t.number == record.number)  # type: ignore[arg-type]
        assert record.executed == trial.user_attrs["executed"]
        assert record.charged == trial.user_attrs["charged"]


def test_another_study_with_the_same_settings_reuses_what_the_first_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    space = {**SPACE, "known": PARTING}
    first, setting = start(tmp_path, "first", space=space)
    train_all(first, setting)
    second, setting = start(tmp_path, "second", space=space)
    train_all(second, setting)
    assert told(first) == told(second)
    summary = summarise(second)
    assert summary.charged == summarise(first).charged
    assert summary.reused > 0.6, "all but what comes after the last time of the space"
    third, setting = start(tmp_path, "third", space=space, training={"context": 32, "batch_tokens": 64})
    claim = third.claim()
    assert claim is not None
    pursue(claim, third, setting, nothing)
    assert summarise(third).reused == 0, "its settings differ"
    capsys.readouterr()
    assert call(monkeypatch, "status", "second.yaml") == 0
    assert f"({summary.reused:.0%} reused)" in capsys.readouterr().out


def test_a_pruned_run_keeps_no_checkpoint_and_is_taken_up_from_the_store(tmp_path: Path) -> None:
    ledger, setting = start(tmp_path, space={**SPACE, "known": HALF}, pruner={"kind": "median"}, trials=1)
    claim = next_search(ledger, tmp_path)
    claim.trial.study.pruner = Prunes(answer=True)  # type: ignore[assignment]
    pursue(claim, ledger, setting, nothing)
    (pruned,) = ledger.trials("search")
    assert pruned.user_attrs["status"] == "pruned"
    (identity,) = pruned.user_attrs["runs"]
    assert not (setting.folder / RUNS / identity / CHECKPOINTS).exists()
    _, _, more = begin_study(tmp_path / "tiny.yaml", trials=2)
    more.optuna_study("search").enqueue_trial(dict(pruned.params))
    more.optuna_study("search").pruner = Prunes(answer=False)  # type: ignore[assignment]
    train_all(more, setting)
    again = more.trials("search")[1]
    assert again.user_attrs["status"] == "finished"
    assert again.user_attrs["executed"] + pruned.user_attrs["executed"] == again.user_attrs["charged"]


def test_confirmations_share_trunks_among_themselves(tmp_path: Path) -> None:
    ledger, setting = start(tmp_path, space={**SPACE, "known": PARTING})
    train_all(ledger, setting)
    chosen = candidates(read_trials(setting.folder), top=2)
    ledger.queue_confirmations([candidate_name(record) for record in chosen], [7])
    train_all(ledger, setting, ("confirmation",))
    confirmed = [record for record in read_trials(setting.folder) if record.kind == "confirmation"]
    assert len(confirmed) == 4
    executed, charged = (sum(getattr(one, name) for one in confirmed) for name in ("executed", "charged"))
    assert executed < 0.85 * charged
    assert all(record.test for record in confirmed)


def test_states_are_kept_only_where_another_point_may_need_them(tmp_path: Path) -> None:
    listed, _ = start(tmp_path)
    assert trunk_times(listed.study.space) == (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
    rates = {"learning_rate.peak": {"low": 1e-3, "high": 1e-2, "log": True}}
    continuous, _ = start(tmp_path, "continuous", space={**SPACE, "known": {}, "training": rates})
    assert trunk_times(continuous.study.space) == ()
    rewarm = {"learning_rate.rewarm": {"low": 0.01, "high": 0.1}}
    later, _ = start(tmp_path, "later", space={**SPACE, "known": {}, "training": rewarm})
    assert trunk_times(later.study.space) == listed.study.space.times


def test_a_study_may_want_none(tmp_path: Path) -> None:
    path = write_study(tmp_path, baselines=ONE)
    path.write_text(path.read_text(encoding="utf-8") + "trunks: null\n", encoding="utf-8")
    study, folder, _ = begin_study(path)
    assert open_trunks(study, folder) is None
    path = write_study(tmp_path, baselines=ONE, trunks={"gigabytes": 2})
    study, folder, _ = begin_study(path)  # it changes no result, so it may change
    trunks = open_trunks(study, folder)
    assert trunks is not None
    assert trunks.store.limit == 2e9
    assert trunks.store.root == folder.parent / "trunks"


def test_studies_that_share_no_folder_share_states_behind_a_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    far = f"file://{tmp_path}/far"
    changes: dict[str, Any] = {"space": {**SPACE, "known": PARTING}, "trunks": {**CHEAP, "folder": far}}
    first, setting = start(tmp_path, "first", **changes)
    train_all(first, setting)
    states = len(list((tmp_path / "far").iterdir()))
    assert states > 10
    shutil.rmtree("runs/trunks")  # as on another machine
    capsys.readouterr()
    second, setting = start(tmp_path, "second", **changes)
    train_all(second, setting)
    assert told(first) == told(second)
    assert summarise(second).reused > 0.6
    assert call(monkeypatch, "trunks", "--at", far) == 0
    assert f"{far}: {states} states" in capsys.readouterr().out
    worst = next((tmp_path / "far").glob("*.tar"))
    worst.write_bytes(worst.read_bytes()[:5000])
    assert call(monkeypatch, "trunks", "--at", far, "verify") == 1
    out = capsys.readouterr().out
    assert f"{far}/{worst.name}: " in out
    assert f"{states - 1} of {states} states are whole" in out
    assert call(monkeypatch, "trunks", "--at", far, "prune", "--gigabytes", "0") == 0
    assert f"removed 1 damaged and {states - 1} other states; 0 states" in capsys.readouterr().out


class Absent(MemoryFileSystem):  # type: ignore[misc]
    """A store that cannot be reached, and tells what should not be told."""

    protocol = "absent"

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        raise PermissionError(13, "wrong key for absent://me:hunter2@host")


def test_a_url_that_cannot_be_used_is_refused_in_a_line_before_anything_is_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = "Install a package to reach it"
    fsspec.register_implementation("uninstalled", "no.such.package", errtxt=missing, clobber=True)
    for protocol, line in {
        "uninstalled": f"'uninstalled://bucket/x' needs a package that is not installed: {missing}",
        "unknown": "'unknown://bucket/x' is no URL that fsspec knows, such as s3://, gs://",
        "": "'://bucket/x' is no URL that fsspec knows",
    }.items():
        write_study(tmp_path, baselines=ONE, trunks={"folder": f"{protocol}://bucket/x"})
        for command in ("search", "worker", "plan"):
            assert call(monkeypatch, command, "tiny.yaml") == 2
            error = capsys.readouterr().err
            assert error.startswith(f"nasgrow: tiny.yaml: trunks.folder: {line}")
            assert error.count("\n") == 1
        assert call(monkeypatch, "trunks", "--at", f"{protocol}://bucket/x") == 2
        assert line in capsys.readouterr().err
    write_study(tmp_path, baselines=ONE, trunks={"folder": "tiny.yaml"})
    assert call(monkeypatch, "search", "tiny.yaml") == 2
    told = "nasgrow: tiny.yaml: trunks.folder: must be a folder, not the file 'tiny.yaml'\n"
    assert capsys.readouterr().err == told
    assert not Path("runs").exists()
    fsspec.register_implementation("absent", Absent, clobber=True)
    assert call(monkeypatch, "trunks", "--at", "absent://bucket/x") == 2
    assert capsys.readouterr().err == "nasgrow: absent://bucket/x: wrong key for absent://***@host\n"


def test_the_command_lists_verifies_and_prunes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "trunks") == 2
    assert capsys.readouterr().err == (
        "nasgrow: runs/trunks: no such store; studies make it beside their folders\n"
    )
    ledger, setting = start(tmp_path, space={**SPACE, "known": HALF}, trials=1)
    claim = ledger.claim()
    assert claim is not None
    assert setting.trunks is not None
    pursue(claim, ledger, setting, nothing)
    store = setting.trunks.store
    assert call(monkeypatch, "trunks") == 0
    out = capsys.readouterr().out
    assert "runs/trunks: 7 states" in out
    assert all(entry.key[:12] in out for entry in store.entries())
    assert call(monkeypatch, "trunks", "list", "--json") == 0
    assert call(monkeypatch, "trunks", "verify") == 0
    assert "7 of 7 states are whole" in capsys.readouterr().out
    worst = next(iter(store))
    (store.path(worst) / "state.json").write_text("{}", encoding="utf-8")
    assert call(monkeypatch, "trunks", "verify") == 1
    out = capsys.readouterr().out
    assert f"{worst}: state.json is damaged" in out
    assert "6 of 7 states are whole" in out
    assert call(monkeypatch, "trunks", "prune") == 0
    assert "removed 1 damaged and 0 other states; 6 states" in capsys.readouterr().out
    assert call(monkeypatch, "trunks", "prune", "--gigabytes", "0") == 0
    assert "removed 0 damaged and 6 other states; 0 states, 0 GB left" in capsys.readouterr().out
