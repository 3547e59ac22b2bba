"""The learning rate over the budget."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nasgrow.config import LearningRate
from nasgrow.training.learning_rate import learning_rates

WSD = LearningRate(peak=2.0, law="wsd", warmup=0.1, decay=0.4)
COSINE = LearningRate(peak=2.0, law="cosine", warmup=0.1)


def learning_rate(config: LearningRate, fraction: float, *events: Any, **options: Any) -> float:
    return float(learning_rates(config, np.array([fraction]), *events, **options)[0])


@pytest.mark.parametrize(
    ("config", "fraction", "expected"),
    [
        (WSD, 0.0, 0.0),
        (WSD, 0.05, 1.0),
        (WSD, 0.1, 2.0),
        (WSD, 0.6, 2.0),
        (WSD, 0.8, 1.0),
        (WSD, 1.0, 0.0),
        (COSINE, 0.05, 1.0),
        (COSINE, 0.1, 2.0),
        (COSINE, 0.55, 1.0),
        (COSINE, 1.0, 0.0),
        (COSINE.model_copy(update={"final": 0.25}), 1.0, 0.5),
        (WSD.model_copy(update={"final": 0.25}), 1.0, 0.5),
        (WSD.model_copy(update={"final": 0.25}), 0.5, 2.0),
        (LearningRate(peak=2.0, law="constant", warmup=0.0), 0.0, 2.0),
        (LearningRate(peak=2.0, law="constant", warmup=0.5), 1.0, 2.0),
    ],
)
def test_the_law_at_its_corners(config: LearningRate, fraction: float, expected: float) -> None:
    assert learning_rate(config, fraction) == pytest.approx(expected, abs=1e-12)


def test_an_event_dips_and_recovers() -> None:
    config = LearningRate(peak=1.0, law="constant", warmup=0.0, rewarm=0.2, rewarm_from=0.5)
    rates = [learning_rate(config, fraction, [0.1, 0.4]) for fraction in (0.4, 0.5, 0.6, 0.9)]
    assert rates == pytest.approx([0.5, 0.75, 1.0, 1.0])
    assert learning_rate(config, 0.4, []) == 1.0


def test_each_event_has_a_lasting_factor() -> None:
    config = LearningRate(peak=1.0, law="constant", warmup=0.0, event_factor=0.5)
    assert [learning_rate(config, 0.9, [0.1] * n) for n in range(3)] == [1.0, 0.5, 0.25]


def test_width_scales_by_its_power() -> None:
    config = LearningRate(peak=1.0, law="constant", warmup=0.0, width_power=0.5)
    assert learning_rate(config, 0.5, width_ratio=4.0) == 2.0


@given(st.floats(0, 1), st.sampled_from(["wsd", "cosine", "constant"]), st.floats(0, 0.5))
def test_it_stays_between_zero_and_the_peak(fraction: float, law: str, warmup: float) -> None:
    config = LearningRate.model_validate({"peak": 3.0, "law": law, "warmup": warmup})
    rate = learning_rate(config, fraction, [0.2] if fraction >= 0.2 else [])
    assert math.isfinite(rate)
    assert 0 <= rate <= 3.0
