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
ALONE = {
    ROOT / name
    for name in (
        "test_survival.py",
        "executors/test_contract.py",
        "executors/test_ray.py",
        "executors/test_slow_disk.py",
        "cli/test_secrets.py",
    )
}
"""Tests that start many processes each."""


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file together, and those that start many processes.

    So fixtures are made once, and no two tests that need both cores run at once. They come first, because a
    group that is begun last is waited for.
    """
    for item in items:
        item.add_marker(pytest.mark.xdist_group("processes" if item.path in ALONE else str(item.path)))
    items.sort(key=lambda item: item.path not in ALONE)
