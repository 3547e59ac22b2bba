"""The slope rule on curves whose answer is known."""

from __future__ import annotations

import json
import random
from math import log
from pathlib import Path

import pytest

from nasgrow.training.records import METRICS
from nasgrow.training.slope import growth_fraction, growth_point

A, B, ALPHA = 1.5, 40.0, 0.4


def loss(compute: float) -> float:
    """A + B C^-ALPHA, whose slope is -ALPHA B C^-ALPHA / (A + B C^-ALPHA)."""
    return A + B * float(compute**-ALPHA)


def answer(slope: float) -> float:
    """Where that slope is ``slope``."""
    return float((B * (ALPHA + slope) / (-slope * A)) ** (1 / ALPHA))


def curve(noise: float = 0.0, points: int = 300, end: float = 1e6) -> list[tuple[float, float]]:
    generator = random.Random(0)
    places = [end * (index + 1) / points for index in range(points)]
    return [(place, loss(place) * (1 + generator.gauss(0, noise))) for place in places]


@pytest.mark.parametrize("slope", [-0.052, -0.0575, -0.0475, -0.08])
def test_the_point_is_where_the_slope_is(slope: float) -> None:
    found = growth_point(curve(), slope)
    assert found is not None
    assert abs(log(found / answer(slope))) < 0.005


def test_noise_moves_it_little() -> None:
    found = growth_point(curve(noise=0.005), -0.05)
    assert found is not None
    assert abs(log(found / answer(-0.05))) < 0.3


def test_a_flat_beginning_does_not_count() -> None:
    begins = [(compute, 5.5) for compute in range(10, 100, 5)]
    falls = [(compute, 5.5 * (100 / compute) ** 0.3) for compute in range(100, 1000, 5)]
    flat = [(compute, 5.5 * 0.1**0.3 * (1000 / compute) ** 0.01) for compute in range(1000, 9000, 50)]
    found = growth_point(begins + falls + flat, -0.1)
    assert found is not None
    assert 700 < found < 1400


def test_a_curve_that_stays_steep_has_no_point() -> None:
    assert growth_point([(c, (1000 / c) ** 0.5) for c in range(1, 400)], -0.1) is None


def test_what_is_no_curve_or_no_slope_is_refused() -> None:
    with pytest.raises(ValueError, match=r"slope must be below 0, as losses fall, not 0\.05"):
        growth_point(curve(), 0.05)
    with pytest.raises(
        ValueError, match="needs 5 losses within a factor 2 of compute, and there are 3 in all"
    ):
        growth_point(curve()[:3], -0.05)


def test_the_fraction_is_that_of_the_budget_in_the_stage_that_was_asked_for(tmp_path: Path) -> None:
    budget = 2e6
    lines = [{"kind": "train", "charged": c, "fraction": c / budget, "loss": y} for c, y in curve()]
    lines.insert(5, {**lines[4], "loss": None})  # no number
    later = [{"kind": "train", "charged": 1e6 + c, "fraction": 0.5 + c / budget, "loss": 9.0} for c in (1, 2)]
    records = [*lines, {"kind": "evaluation", "charged": 1e6}, {"kind": "event", "charged": 1e6}, *later]
    (tmp_path / METRICS).write_text("".join(json.dumps(record) + "\n" for record in records))
    found = growth_fraction(tmp_path, -0.05)
    assert found is not None
    assert abs(log(found * budget / answer(-0.05))) < 0.005
    with pytest.raises(ValueError, match="needs 5 losses"):
        growth_fraction(tmp_path, -0.05, stage=1)
    with pytest.raises(ValueError, match="has no training records of stage 3"):
        growth_fraction(tmp_path, -0.05, stage=2)
