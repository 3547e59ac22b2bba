"""Build the schedulers that a study file asks for."""

from __future__ import annotations

from collections.abc import Mapping

from nasgrow.schedulers.asha import AshaScheduler
from nasgrow.schedulers.base import Costs, Scheduler, Trials
from nasgrow.schedulers.baselines import BaselineScheduler
from nasgrow.schedulers.fixed_shapes import FixedShapesScheduler
from nasgrow.schedulers.listed import GridScheduler
from nasgrow.schedulers.samplers import OptunaScheduler
from nasgrow.schedulers.tree import TreeScheduler
from nasgrow.schedulers.tune_best import TuneBestScheduler
from nasgrow.schedulers.warm_start import WarmStartScheduler
from nasgrow.study.baselines import final_size
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import Kind


def make_schedulers(
    study: ResolvedStudy, trials: Mapping[Kind, Trials], costs: Costs | None = None
) -> dict[Kind, Scheduler]:
    """Build the schedulers of ``nasgrow search``, in the order in which the driver asks them.

    The driver tunes the final shape first. Then it searches schedules, and then fixed shapes. The search of
    fixed shapes executes a given multiple of the FLOPs of the search of schedules.

    Args:
        study: The study.
        trials: Its trials so far.
        costs: Predicts what schedules would cost, as for :class:`GridScheduler`; other samplers
            ignore it.
    """
    baselines = BaselineScheduler(study, trials["baseline"], [final_size(study)], trials["fixed"])
    sampled = WarmStartScheduler(make_scheduler(study, trials["search"], costs), baselines)
    inner = WarmStartScheduler(make_scheduler(study.of_fixed_shapes, trials["fixed"]), baselines)
    fixed = FixedShapesScheduler(study, trials["fixed"], inner, trials["search"], trials["baseline"])
    return {
        "baseline": baselines,
        "search": TuneBestScheduler(study, trials["search"], sampled, grows=True),
        "fixed": TuneBestScheduler(study, trials["fixed"], fixed, grows=False),
    }


def make_scheduler(study: ResolvedStudy, trials: Trials, costs: Costs | None = None) -> Scheduler:
    """Build the scheduler for the sampler and the pruner that a study file names.

    Args:
        study: The study.
        trials: The trials of the search so far.
        costs: Predicts what points would cost, as for :class:`GridScheduler`; other samplers ignore
            it.
    """
    config = study.config
    if config.sampler.kind == "tree":
        return TreeScheduler(study, trials)
    starts: Scheduler = (
        GridScheduler(study, trials, costs)
        if config.sampler.kind == "grid"
        else OptunaScheduler(study, trials)
    )
    return AshaScheduler(study, trials, starts) if config.pruner.kind == "asha" else starts
