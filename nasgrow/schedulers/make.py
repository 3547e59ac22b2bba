"""The scheduler of a search, as a study file names it."""

from __future__ import annotations

from nasgrow.schedulers.asha import AshaScheduler
from nasgrow.schedulers.base import Costs, Scheduler, Trials
from nasgrow.schedulers.fixed import GridScheduler
from nasgrow.schedulers.samplers import OptunaScheduler
from nasgrow.schedulers.tree import TreeScheduler
from nasgrow.study.study import Study


def make_scheduler(study: Study, trials: Trials, costs: Costs | None = None) -> Scheduler:
    """The scheduler of a study's search.

    Args:
        study: The study.
        trials: Its search trials so far.
        costs: What points would cost, where that is known.
    """
    config = study.config
    if config.sampler.kind == "tree":
        return TreeScheduler(study, trials, costs)
    starts: Scheduler = (
        GridScheduler(study, trials, costs)
        if config.sampler.kind == "grid"
        else OptunaScheduler(study, trials)
    )
    return AshaScheduler(study, trials, starts) if config.pruner.kind == "asha" else starts
