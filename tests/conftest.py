"""What holds for every test."""

from pathlib import Path

import pytest
import torch
from hypothesis import settings

# No test asserts a time; Hypothesis would, by 0.2 s for an example.
settings.register_profile("untimed", settings.default, deadline=None)
settings.load_profile("untimed")
# Tests run side by side, one process for each core; models here are too small to share one.
torch.set_num_threads(1)

ENGINES = Path(__file__).parent / "engines"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file together, and those of engines, which start many processes each.

    So fixtures are made once, and no two tests that need both cores run at once. They come first, because a
    group that is begun last is waited for.
    """
    for item in items:
        alone = ENGINES in item.path.parents
        item.add_marker(pytest.mark.xdist_group("engines" if alone else str(item.path)))
    items.sort(key=lambda item: ENGINES not in item.path.parents)
