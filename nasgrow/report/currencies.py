"""The FLOPs, tokens and seconds that a schedule has spent at each fraction of its budget."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from nasgrow.flops import step_flops
from nasgrow.report.ranking import Contender
from nasgrow.report.trajectory import Floats
from nasgrow.spaces.training import with_training
from nasgrow.study.study import ResolvedStudy


def spent(study: ResolvedStudy, one: Contender, fraction: Floats) -> Mapping[str, Floats]:
    """Return the ``FLOPs``, ``tokens`` and ``seconds`` spent at fractions of the budget, by name.

    Within a stage, in the ramp or after it, each currency grows linearly with the budget. At the
    end it is the mean cost of a run, as trial records have it.

    Args:
        study: The study. If it has no measured step times, there are no ``seconds``.
        one: The contender whose schedule and training settings are used.
        fraction: The fractions, from 0 to 1.
    """
    schedule, tuned = one.trial.schedule, study.tuning.values(one.origin.record.parameters)
    training = with_training(study.config.training, tuned)
    begun = [0.0, *(event.at for event in schedule.events)]
    muon, ramp = training.optimizer == "muon", 0.0 if training.ramp is None else training.ramp.until
    times = np.array(sorted({*begun, ramp, 1.0}))
    parts = [
        (schedule.shapes[bisect_right(begun, time) - 1], training.kinds[-1 if time >= ramp else 0])
        for time in times[:-1]
    ]
    flops = np.array(
        [
            step_flops(shape, study.variant.with_context(kind.context), kind.sequences, muon=muon)
            for shape, kind in parts
        ],
        float,
    )
    each: dict[str, tuple[Floats, float]] = {
        "FLOPs": (flops, one.per_run("charged")),
        "tokens": (np.array([kind.batch_tokens for _, kind in parts], float), one.per_run("tokens")),
    }
    seconds = np.array([])
    if study.steps is not None:
        seconds = np.array([study.steps.of(shape, study.variant, kind) for shape, kind in parts])
        each["seconds"] = seconds, one.per_run("schedule_seconds")
    price = flops if study.config.budget.seconds is None else seconds
    steps = np.array([end - begin for begin, end in pairwise(times)]) / price
    found = {}
    for name, (cost, total) in each.items():
        along = np.concatenate([[0.0], np.cumsum(steps * cost)])
        found[name] = np.interp(fraction, times, total * along / along[-1])
    return found
