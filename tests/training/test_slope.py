"""The slope rule on curves and records whose answer is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from nasgrow.config import LearningRate
from nasgrow.training.records import METRICS
from nasgrow.training.slope import slope_at_end, stage_until


def power(exponent: float, begin: float, end: float, points: int) -> list[tuple[float, float]]:
    """Losses that fall as a power of compute, evenly spaced in it."""
    places = [begin + (end - begin) * index / (points - 1) for index in range(points)]
    return [(place, 3 * (place / end) ** exponent) for place in places]


@pytest.mark.parametrize("exponent", [-0.3, -0.05, 0.1])
def test_the_slope_of_a_power_law_is_its_exponent(exponent: float) -> None:
    assert slope_at_end(power(exponent, 1.0, 100.0, 50)) == pytest.approx(exponent)


def test_only_the_last_factor_of_two_counts() -> None:
    steep, flat = power(-0.5, 1.0, 49.0, 49), power(-0.01, 50.0, 100.0, 51)
    assert slope_at_end(steep + flat) == pytest.approx(-0.01)
    found = slope_at_end(steep + flat[:-10])
    assert found is not None
    assert found < -0.02, "ten records earlier some of the steep stretch still counts"


def test_there_is_no_slope_before_compute_has_doubled_over_five_records() -> None:
    curve = power(-0.1, 10.0, 20.0, 11)
    assert slope_at_end(curve[:-1]) is None
    assert slope_at_end(curve) == pytest.approx(-0.1)
    assert slope_at_end(power(-0.1, 1.0, 4.0, 5)) is None, "three of these five are in the last doubling"


def write(folder: Path, records: list[dict[str, Any]]) -> Path:
    (folder / METRICS).write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder


def trained(first: int, last: int) -> list[dict[str, Any]]:
    """Train records at these percents of a budget of 1000."""
    return [
        {"kind": "train", "charged": 10 * at, "fraction": at / 100, "loss": 5 - at / 100}
        for at in range(first, last + 1)
    ]


def test_a_stage_begins_once_the_learning_rate_is_warm(tmp_path: Path) -> None:
    folder = write(
        tmp_path,
        [
            {"kind": "evaluation", "aligned": 0.0, "fraction": 0.0, "charged": 0},
            *trained(1, 20),
            {"kind": "evaluation", "aligned": 0.2, "fraction": 0.2, "charged": 200},
            *trained(21, 30),
            {"kind": "event", "charged": 302, "fraction": 0.302},
            *trained(31, 39),
            {**trained(40, 40)[0], "loss": None},
            {"kind": "evaluation", "aligned": 0.4, "fraction": 0.4, "charged": 400},
            *trained(41, 50),
        ],
    )
    rate = LearningRate(warmup=0.02, rewarm=0.03)

    def percents(aligned: float) -> tuple[int, list[int]]:
        stage, curve = stage_until(folder, aligned, rate)
        assert [loss for _, loss in curve] == [5 - flops / 1000 for flops, _ in curve]
        return stage, [int(flops / 10) for flops, _ in curve]

    assert percents(0.0) == (0, [])
    assert percents(0.2) == (0, list(range(3, 21))), "the record at 3% is the first of steps after 2%"
    assert percents(0.4) == (1, list(range(35, 40))), "warm from 33.2%; what is no number is left out"
    assert percents(0.6) == (1, [*range(35, 40), *range(41, 51)])
