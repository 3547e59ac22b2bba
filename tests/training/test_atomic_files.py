"""Files that several write at once, perhaps from machines with equal process numbers, or on a full disk."""

from __future__ import annotations

import json
import resource
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from nasgrow.training.atomic_files import write_text
from nasgrow.training.tensors import write_tensors
from tests.permissions import modes, with_umask


@contextmanager
def full_disk(size: int) -> Iterator[None]:
    """A limit on the size of files stands for it: writing beyond it fails just so."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_writers_with_one_process_number_do_not_meet(tmp_path: Path) -> None:
    """Threads have one, as processes of two machines may."""
    path = tmp_path / "record.json"
    texts = [json.dumps([number] * 2000) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            list(pool.map(lambda text: write_text(path, text), texts))
            assert path.read_text(encoding="utf-8") in texts
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]


def test_a_full_disk_leaves_what_was_there_and_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    write_text(path, "before")
    with full_disk(100), pytest.raises(ValueError, match=r"record\.json: cannot be written: file too large$"):
        write_text(path, "after" * 100)
    assert path.read_text(encoding="utf-8") == "before"
    assert [file.name for file in tmp_path.iterdir()] == ["record.json"]


@pytest.mark.parametrize(("mask", "mode"), [(0o022, "644"), (0o007, "660")])
def test_files_are_for_whom_the_umask_says(tmp_path: Path, mask: int, mode: str) -> None:
    with with_umask(mask):
        write_tensors(tmp_path / "new.safetensors", {"it": torch.zeros(2)})
        write_text(tmp_path / "new.txt", "it")
    assert modes(tmp_path) == {"new.safetensors": mode, "new.txt": mode}
