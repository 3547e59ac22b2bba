"""The learning rate as a function of the fraction of the budget spent.

If only new entries of parameters warm up after an event, this is the rate of all other entries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nasgrow.config import LearningRate
from nasgrow.schedule import Stage


def learning_rate(
    config: LearningRate, fraction: float, events: Sequence[float] = (), width_ratio: float = 1.0
) -> float:
    """Return the learning rate when ``fraction`` of the budget is spent.

    Args:
        config: The law and its settings.
        fraction: The fraction of the budget spent.
        events: The fractions at which events have happened so far, in order, none beyond ``fraction``.
        width_ratio: The final hidden size divided by the current one.
    """
    rate: float = config.peak * _law(config, fraction)
    rate *= config.event_factor ** len(events) * width_ratio**config.width_power
    if events and config.rewarm > 0 and config.rewarm_scope == "all":
        recovered = min(1.0, (fraction - events[-1]) / config.rewarm)
        rate *= config.rewarm_from + (1 - config.rewarm_from) * recovered
    return rate


def step_rate(config: LearningRate, stages: Sequence[Stage], budget: int, index: int, step: int) -> float:
    """Return the learning rate of step ``step`` in stage ``index``, as of the middle of the step."""
    stage = stages[index]
    fraction = stage.spent_in_middle(step) / budget
    events = [past.spent / budget for past in stages[1 : index + 1]]
    ratio = stages[-1].shape.hidden / stage.shape.hidden
    return learning_rate(config, fraction, events, ratio)


@np.errstate(over="ignore")  # by the smallest of shares: recovered, or not yet decaying
def step_rates(
    config: LearningRate, stages: Sequence[Stage], budget: int, index: int, steps: range
) -> NDArray[np.float64]:
    """Return the learning rates of steps in stage ``index``, equal to :func:`step_rate` to the last bit."""
    stage = stages[index]
    # Beyond 64 bits, Python's whole numbers.
    places = np.arange(len(steps), dtype=np.int64 if budget < 2**62 else object) + (steps.start - stage.first)
    small = np.minimum(places, stage.ramp_steps)
    spent = stage.spent + small * stage.ramp_cost + (places - small) * stage.step_cost
    halves = np.where(places < stage.ramp_steps, stage.ramp_cost / 2, stage.step_cost / 2)
    fractions = (spent.astype(np.float64) + halves) / float(budget)
    rates = config.peak * _shares(config, fractions)
    rates *= config.event_factor**index * (stages[-1].shape.hidden / stage.shape.hidden) ** config.width_power
    if index and config.rewarm > 0 and config.rewarm_scope == "all":
        recovered = np.minimum(1.0, (fractions - stage.spent / budget) / config.rewarm)
        rates *= config.rewarm_from + (1 - config.rewarm_from) * recovered
    return rates


def _shares(config: LearningRate, fractions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the shares of the peak at some fractions of the budget: :func:`_law` for an array."""
    courses = np.ones_like(fractions)
    if config.law == "cosine":
        done = np.minimum(1.0, (fractions - config.warmup) / (1 - config.warmup))
        # NumPy's cosine has other bits.
        courses = (1 + np.array([math.cos(math.pi * one) for one in done.tolist()])) / 2
    elif config.law == "wsd":
        courses = np.minimum(1.0, np.maximum(0.0, 1 - fractions) / config.decay)
    shares = courses if config.law == "constant" else config.final + (1 - config.final) * courses
    warming = fractions < config.warmup
    shares[warming] = fractions[warming] / config.warmup
    return shares


def _law(config: LearningRate, fraction: float) -> float:
    """Return the learning rate as a share of the peak: warm-up, then the law's decay to ``final``."""
    if fraction < config.warmup:
        return fraction / config.warmup
    if config.law == "constant":
        return 1.0
    if config.law == "cosine":
        done = (fraction - config.warmup) / (1 - config.warmup)
        course = (1 + math.cos(math.pi * min(1.0, done))) / 2
    else:
        course = min(1.0, max(0.0, 1 - fraction) / config.decay)
    return config.final + (1 - config.final) * course
