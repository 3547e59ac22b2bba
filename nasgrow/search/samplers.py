"""Optuna's samplers and pruners, as a study file names them."""

from __future__ import annotations

import hashlib
import warnings

from optuna.exceptions import ExperimentalWarning
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, CmaEsSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler

from nasgrow.search.config import Pruner, Sampler

FULL = 100
"""The step of a report at the end of a run: steps are percents of the budget."""


def trial_seed(name: str, number: int) -> int:
    """The sampler's seed for one trial: from study and number alone, so that resuming replays nothing."""
    return int.from_bytes(hashlib.sha256(f"{name}/{number}".encode()).digest()[:4])


def make_sampler(config: Sampler, seed: int) -> BaseSampler:
    """The sampler of one trial; what it learns from is in the storage."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        if config.kind == "random":
            return RandomSampler(seed=seed)
        if config.kind == "gp":
            return GPSampler(seed=seed, n_startup_trials=config.startup, warn_independent_sampling=False)
        if config.kind == "cma-es":
            return CmaEsSampler(
                seed=seed, n_startup_trials=config.startup, warn_independent_sampling=False, with_margin=True
            )
        if config.kind == "nsga-ii":
            return NSGAIISampler(seed=seed, population_size=max(2, config.startup))
        return TPESampler(seed=seed, n_startup_trials=config.startup)


def make_pruner(config: Pruner) -> BasePruner:
    """The pruner; a report's step is the percent of the budget that was spent."""
    first = max(1, round(FULL * config.after))
    if config.kind == "median":
        return MedianPruner(n_startup_trials=5, n_warmup_steps=first)
    if config.kind == "halving":
        return SuccessiveHalvingPruner(min_resource=first, reduction_factor=2)
    if config.kind == "hyperband":
        return HyperbandPruner(min_resource=first, max_resource=FULL, reduction_factor=2)
    return NopPruner()
