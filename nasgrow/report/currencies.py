"""The FLOPs, tokens and seconds that a schedule has spent at each fraction of its budget."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from nasgrow.flops import step_flops
from nasgrow.report.ranking import Contender
from nasgrow.report.trajectory import Floats
from nasgrow.study.study import ResolvedStudy


def spent(study: ResolvedStudy, one: Contender, fraction: Floats) -> Mapping[str, Floats]:
    """Return the FLOPs, tokens and seconds spent at each fraction of the budget, by the name of the currency.

    Within a stage each of them grows linearly with the steps, and the run's records hold the totals. Seconds
    are left out if the study has not measured step times.
    """
    schedule, training = one.trial.schedule, study.config.training
    times = np.array([0.0, *(event.at for event in schedule.events), 1.0])
    muon = training.optimizer == "muon"
    flops = np.array([step_flops(shape, study.variant, 1, muon=muon) for shape in schedule.shapes], float)
    each: dict[str, tuple[Floats, float]] = {
        "FLOPs": (flops, one.per_run("charged")),
        "tokens": (np.ones(len(flops)), one.per_run("tokens")),
    }
    seconds = np.array([])
    if study.steps is not None:
        seconds = np.array([study.steps.of(shape, study.variant, training) for shape in schedule.shapes])
        each["seconds"] = seconds, one.per_run("schedule_seconds")
    price = flops if study.config.budget.seconds is None else seconds
    steps = np.array([end - begin for begin, end in pairwise(times)]) / price
    found = {}
    for name, (cost, total) in each.items():
        along = np.concatenate([[0.0], np.cumsum(steps * cost)])
        found[name] = np.interp(fraction, times, total * along / along[-1])
    return found
