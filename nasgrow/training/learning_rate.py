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


def learning_rates(
    config: LearningRate,
    fractions: NDArray[np.float64],
    events: Sequence[float] = (),
    width_ratio: float = 1.0,
) -> NDArray[np.float64]:
    """Return the learning rates when these fractions of the budget are spent, all in one stage.

    Args:
        config: The law and its settings.
        fractions: The fractions of the budget spent.
        events: The fractions at which events have happened so far, in order, none beyond ``fractions``.
        width_ratio: The final hidden size divided by the current one.
    """
    rates = config.peak * _shares(config, fractions)
    rates *= config.event_factor ** len(events) * width_ratio**config.width_power
    if events and config.rewarm > 0 and config.rewarm_scope == "all":
        recovered = np.minimum(1.0, (fractions - events[-1]) / config.rewarm)
        rates *= config.rewarm_from + (1 - config.rewarm_from) * recovered
    return rates


@np.errstate(over="ignore")  # a division by a tiny share of the budget may give inf, which is cut to 1
def step_rates(
    config: LearningRate, stages: Sequence[Stage], budget: int, index: int, steps: range
) -> NDArray[np.float64]:
    """Return the learning rate of each step in a range, as of the middle of the step.

    Args:
        config: The law and its settings.
        stages: All stages of the run.
        budget: The run's budget.
        index: The index of the stage to which all these steps belong.
        steps: The steps, counted from the start of the run.
    """
    stage = stages[index]
    # Beyond 64 bits, Python's whole numbers.
    places = np.arange(len(steps), dtype=np.int64 if budget < 2**62 else object) + (steps.start - stage.first)
    small = np.minimum(places, stage.ramp_steps)
    spent = stage.spent + small * stage.ramp_cost + (places - small) * stage.step_cost
    halves = np.where(places < stage.ramp_steps, stage.ramp_cost / 2, stage.step_cost / 2)
    fractions = (spent.astype(np.float64) + halves) / float(budget)
    events = [past.spent / budget for past in stages[1 : index + 1]]
    return learning_rates(config, fractions, events, stages[-1].shape.hidden / stage.shape.hidden)


def _shares(config: LearningRate, fractions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the learning rates as shares of the peak: warm-up, then the law's decay to ``final``."""
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
