"""The commit that runs record."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from nasgrow.training import machine


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=tester", "-c", "user.email=tester@example.org")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


def test_only_changes_of_the_package_mark_a_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, report = tmp_path / "nasgrow" / "training" / "machine.py", tmp_path / "reports" / "a.md"
    monkeypatch.setattr(machine, "__file__", str(code))
    described = machine._commit
    assert described() is None, "no checkout"
    for file in (code, report):
        file.parent.mkdir(parents=True)
        file.write_text("first")
    git(tmp_path, "init")
    assert described() is None, "no commit yet"
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "first")
    commit = described()
    assert commit is not None
    assert len(commit) == 12
    report.unlink()
    (tmp_path / "nasgrow" / "notes.txt").write_text("not tracked")
    assert described() == commit
    code.write_text("second")
    assert described() == f"{commit}-dirty"
