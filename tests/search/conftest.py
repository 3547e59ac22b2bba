"""What tests of search share: a working folder with a cache of its own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder; the cache is shared by the tests of one process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path.parent / "search-cache"))
    monkeypatch.delenv("NASGROW_STORAGE", raising=False)
    return tmp_path
