"""What tests of studies share: a working folder, a data cache, and a study that has ended."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.study.studies import run_study, write_study


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder; the cache is shared by the tests of one process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path.parent / "study-cache"))
    for name in ("NASGROW_STORAGE", "NASGROW_STORAGE_FILE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture(autouse=True)
def _in_place(place: Path) -> None:
    """Every test of studies works there."""


@pytest.fixture(scope="session")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with the study of ``tiny.yaml``, searched to its end; only copies are changed."""
    folder = tmp_path_factory.mktemp("example")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("NASGROW_CACHE", str(folder.parent / "study-cache"))
        run_study(write_study(folder))
    return folder


@pytest.fixture
def ended(example: Path, place: Path) -> tuple[Path, Path]:
    """The file and the folder of a study that was searched to its end, in the working folder."""
    shutil.copytree(example, place, dirs_exist_ok=True)
    return Path("tiny.yaml"), Path("runs/tiny")
