"""What holds for every test."""

import os
import secrets
from pathlib import Path

import pytest
import torch
from hypothesis import settings

# No test asserts a time; Hypothesis would, by 0.2 s for an example.
settings.register_profile("untimed", settings.default, deadline=None)
settings.load_profile("untimed")
# Tests run side by side, one process for each core; models here are too small to share one.
torch.set_num_threads(1)
# Ray reads the token at import, which comes before the tests; theirs is one for each process.
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}

ROOT = Path(__file__).parent
FIRST = {
    ROOT / name
    for name in (
        "test_survival.py",
        "executors/test_contract.py",
        "executors/test_ray.py",
        "executors/test_slow_disk.py",
        "cli/test_secrets.py",
    )
}
"""Tests that start many processes each, and take longest."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest: a file of it that is begun last is waited for."""
    items.sort(key=lambda item: item.path not in FIRST)
