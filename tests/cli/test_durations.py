"""Durations for the terminal."""

from __future__ import annotations

import pytest

from nasgrow.cli.durations import duration


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(59.4, "59 s"), (59.7, "1 min"), (95, "1.6 min"), (599.7, "10 min"), (7169, "119 min"), (7199, "2.0 h")],
)
def test_a_duration_has_the_unit_that_it_rounds_to(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown
