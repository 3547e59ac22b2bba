"""The prefix cache of a study: what trials have in common is trained once, and a command looks after it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from nasgrow.study.study_folder import KnownStudy, read_study
from nasgrow.training.prefixes import StateStore
from tests.cli.calling import call
from tests.study.studies import run_study, write_study

CHEAP = {"gigabytes": 1, "share": 1e9}
"""Runs of a moment are worth storing, however long that takes."""


def losses(known: KnownStudy) -> dict[str, Any]:
    return {
        trial.label: (trial.losses, trial.evaluations)
        for trials in known.trials.values()
        for trial in trials.values()
    }


@pytest.fixture(scope="module")
def sharing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a study that differs from that of ``ended`` by its cache."""
    folder = tmp_path_factory.mktemp("sharing")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("NASGROW_CACHE", str(folder.parent / "study-cache"))
        run_study(write_study(folder, prefix_cache=CHEAP))
    return folder


def test_a_study_with_a_prefix_cache_comes_to_the_same_and_executes_less(
    ended: tuple[Path, Path], sharing: Path
) -> None:
    known = read_study(sharing / "runs" / "tiny")
    assert losses(known) == losses(read_study(ended[1]))
    search = known.trials["search"].values()
    shared = [trial.number for trial in search if 0 < trial.executed < 0.95 * trial.charged]
    assert shared, [(trial.executed / trial.charged, trial.words) for trial in search]


def test_another_study_with_the_same_settings_reuses_what_the_first_trained(
    sharing: Path, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(sharing / "runs" / "prefixes", place / "runs" / "prefixes")
    write_study(place, stem="second", prefix_cache=CHEAP, trials=2)
    _, _, known = run_study(Path("second.yaml"))
    trials = [trial for kind in known.trials.values() for trial in kind.values()]
    executed, charged = (sum(getattr(trial, name) for trial in trials) for name in ("executed", "charged"))
    assert executed < 0.4 * charged, "only what comes after the last time of the space"
    assert call(monkeypatch, "status", "second.yaml") == 0
    assert f"({1 - executed / charged:.0%} reused)" in capsys.readouterr().out


def test_the_command_lists_verifies_and_prunes(
    sharing: Path, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "prefixes") == 2
    error = "nasgrow: runs/prefixes: no prefix cache here; studies make it beside their folders\n"
    assert capsys.readouterr().err == error
    shutil.copytree(sharing / "runs" / "prefixes", place / "runs" / "prefixes")
    store = StateStore(place / "runs" / "prefixes", limit=1e9)
    many = len(list(store))
    assert call(monkeypatch, "prefixes") == 0
    out = capsys.readouterr().out
    assert f"runs/prefixes: {many} states" in out
    assert all(entry.key[:12] in out for entry in store.entries())
    assert call(monkeypatch, "prefixes", "list", "--json") == 0
    assert call(monkeypatch, "prefixes", "verify") == 0
    assert f"{many} of {many} states are intact" in capsys.readouterr().out
    worst = next(iter(store))
    (store.path(worst) / "state.json").write_text("{}", encoding="utf-8")
    assert call(monkeypatch, "prefixes", "verify") == 1
    out = capsys.readouterr().out
    assert f"{worst}: state.json is damaged" in out
    assert f"{many - 1} of {many} states are intact" in out
    assert call(monkeypatch, "prefixes", "prune") == 0
    assert f"removed 1 damaged and 0 other states; {many - 1} states" in capsys.readouterr().out
    assert call(monkeypatch, "prefixes", "prune", "--gigabytes", "0") == 0
    assert f"removed 0 damaged and {many - 1} other states; 0 states" in capsys.readouterr().out
