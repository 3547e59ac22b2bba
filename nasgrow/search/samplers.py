"""Optuna's samplers and pruners, as a study file names them."""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from heapq import nsmallest
from typing import Any

import numpy as np
import optuna
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import BasePruner, HyperbandPruner, MedianPruner, NopPruner
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.samplers._tpe.parzen_estimator import _ParzenEstimator
from optuna.samplers._tpe.sampler import _get_pruned_trial_score, default_gamma
from optuna.trial import FrozenTrial, TrialState

from nasgrow.search.cma_es import ToldAnew
from nasgrow.search.config import Pruner, Sampler
from nasgrow.search.spaces import Space
from nasgrow.search.taking_up import ETA, Halving

FULL = 100
"""The step of a report at the end of a run: steps are percents of the budget."""


def trial_seed(name: str, number: int) -> int:
    """The sampler's seed for one trial: from study and number alone, so that resuming replays nothing."""
    return int.from_bytes(hashlib.sha256(f"{name}/{number}".encode()).digest()[:4])


MODELLED = 500
"""Trials that TPE's model is made of at most, beside those that are being trained.

It has a kernel for each, so that without a bound each draw would take longer than the one before. From 250 on
the number of good trials stays the same, so that fewer trials have no other good ones.
"""


def modelled(study: optuna.Study, trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The trials that a model is made of: of many the good ones and a sample of the others, in their order.

    Each trial has a fixed lot, by the study's name and its number: every worker draws the same sample, and a
    trial that comes changes at most one place of it.

    Args:
        study: Their study, of one objective.
        trials: Those that were completed or given up, and those that are being trained.
    """
    state = TrialState.RUNNING  # looking it up takes longer than comparing with it
    running = [one for one in trials if one.state is state]
    if len(trials) - len(running) <= MODELLED:
        return list(trials)
    ended = [one for one in trials if one.state is not state]
    numbers = np.array([one.number for one in ended])
    lots = np.random.default_rng(trial_seed(study.study_name, 0)).random(numbers.max() + 1)[numbers]
    lots[_good(study, ended)] = -1.0  # they are always drawn
    drawn = [ended[place] for place in np.argsort(lots, kind="stable")[:MODELLED]]
    return sorted([*drawn, *running], key=lambda one: one.number)


def _good(study: optuna.Study, ended: Sequence[FrozenTrial]) -> list[int]:
    """The places of the trials that TPE takes for good: before those that were given up, all others."""
    count = default_gamma(len(ended))
    losses = np.array([values[0] if (values := one.values) else np.nan for one in ended])
    good: list[int] = np.argsort(losses, kind="stable")[:count].tolist()  # those without a loss come last
    good = [place for place in good if not np.isnan(losses[place])]
    if len(good) < count:
        scores = {
            place: _get_pruned_trial_score(ended[place], study)
            for place in np.flatnonzero(np.isnan(losses)).tolist()
        }
        good += nsmallest(count - len(good), scores, key=scores.__getitem__)
    return good


class _Fewer(optuna.Study):
    """A study as a model sees it: of very many trials some."""

    def __init__(self, study: optuna.Study) -> None:
        vars(self).update(vars(study))
        self._whole = study

    def _get_trials(
        self,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
        use_cache: bool = False,
    ) -> list[FrozenTrial]:
        found = self._whole._get_trials(deepcopy=False, states=states, use_cache=use_cache)
        fewer = modelled(self._whole, found)
        return copy.deepcopy(fewer) if deepcopy else fewer


class _Tpe(TPESampler):
    """TPE that can draw before the trial exists, by a model that does not grow without end.

    Optuna's notes what it drew in the trial, so that others running at the same time can avoid it while its
    parameters are written one by one. Ours are written at once, with the trial itself.
    """

    def _sample(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Draw by a model of some trials; with two objectives, whose good ones are a share, of all."""
        seen = study if study._is_multi_objective() else _Fewer(study)
        return super()._sample(seen, trial, search_space)

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Draw, and note nothing."""
        return self._sample_relative(study, trial, search_space)

    def _get_internal_repr(
        self, trials: list[FrozenTrial], search_space: dict[str, BaseDistribution], study: optuna.Study
    ) -> dict[str, NDArray[np.float64]]:
        """The parameters of trials as numbers; those of a trial that ended are worked out once.

        The samplers of a process share them: they took most of the time that drawing takes.
        """
        names = tuple(search_space)
        rows = []
        for trial in trials:
            known, of, row = _NUMBERS.get(trial._trial_id, (None, (), ()))
            if known is not trial or of != names:
                numbers = super()._get_internal_repr([trial], search_space, study)
                row = tuple(float(numbers[name][0]) for name in names if len(numbers[name]))
                if trial.state.is_finished():
                    _NUMBERS[trial._trial_id] = trial, names, row
            if row:
                rows.append(row)
        table = np.array(rows, dtype=np.float64).reshape(len(rows), len(names))
        return {name: np.ascontiguousarray(table[:, place]) for place, name in enumerate(names)}


_NUMBERS: dict[int, tuple[FrozenTrial, tuple[str, ...], tuple[float, ...]]] = {}
"""By a trial's id: the trial, the names of parameters, and their values as TPE sees them."""


Cost = Callable[[Mapping[str, Any]], float]
"""The FLOPs that the point of some parameters would execute now; 0 if its result is known."""


class _Thrifty(_Tpe):
    """TPE by expected improvement for each FLOP that is left to execute.

    TPE draws candidates from the density l of good points, and takes the one with the largest l / g, g being
    the density of the others. Its expected improvement is proportional to 1 / (y + (1 - y) g / l), where y is
    the share of good points (Bergstra et al. 2011, section 4.1): that is divided by the cost.
    """

    def __init__(self, cost: Cost, *, seed: int, startup: int) -> None:
        super().__init__(seed=seed, n_startup_trials=startup)
        self._cost = cost
        self._good = 0.5
        self._of: Mapping[str, BaseDistribution] = {}

    def _sample(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        ended = len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)))
        self._good = default_gamma(ended) / ended
        self._of = search_space
        return super()._sample(study, trial, search_space)

    def _compute_acquisition_func(
        self, samples: dict[str, Any], mpe_below: _ParzenEstimator, mpe_above: _ParzenEstimator
    ) -> NDArray[np.float64]:
        promise = super()._compute_acquisition_func(samples, mpe_below, mpe_above)
        improvement = -np.logaddexp(np.log(self._good), np.log1p(-self._good) - promise)
        costs = np.array([self._cost_of(samples, index) for index in range(len(promise))])
        if not costs.any():
            return promise
        with np.errstate(divide="ignore"):
            return np.where(costs > 0, improvement - np.log(costs), -np.inf)

    def _cost_of(self, samples: Mapping[str, Any], index: int) -> float:
        return self._cost(
            {name: one.to_external_repr(samples[name][index].item()) for name, one in self._of.items()}
        )


def make_sampler(config: Sampler, seed: int, cost: Cost | None = None) -> BaseSampler:
    """The sampler of one trial; what it learns from is in the storage.

    Args:
        config: The study's settings.
        seed: The trial's.
        cost: What points would cost, where that is known; without it none is dearer than others.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        if config.kind in ("random", "tree"):  # what the tree chooses is there before it is sampled
            return RandomSampler(seed=seed)
        if config.kind == "gp":
            return GPSampler(seed=seed, n_startup_trials=config.startup, warn_independent_sampling=False)
        if config.kind == "cma-es":
            return ToldAnew(seed, config.startup)
        if config.kind == "nsga-ii":
            return NSGAIISampler(seed=seed, population_size=max(2, config.startup))
        if config.kind == "thrifty" and cost is not None:
            return _Thrifty(cost, seed=seed, startup=config.startup)
        return _Tpe(seed=seed, n_startup_trials=config.startup)


NEED_TRIAL = ("cma-es", "nsga-ii", "gp")
"""Samplers that keep notes in the trial they sample for, so that they cannot draw before it exists."""


class _Listing:
    """Asked like a trial, it takes down what each parameter's distribution is."""

    def __init__(self) -> None:
        self.found: dict[str, BaseDistribution] = {}

    def suggest_categorical(self, name: str, choices: Sequence[Any], /) -> Any:
        self.found[name] = CategoricalDistribution(choices)
        return choices[0]

    def suggest_float(
        self, name: str, low: float, high: float, /, *, step: float | None = None, log: bool = False
    ) -> float:
        self.found[name] = FloatDistribution(low, high, step=step, log=log)
        return low


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """The distribution of every parameter of a space whose parameters are always the same."""
    listing = _Listing()
    space.sample(listing)
    return listing.found


def draw(study: optuna.Study, sampler: BaseSampler, of: Mapping[str, BaseDistribution]) -> dict[str, Any]:
    """A point of the space, all parameters at once: asked one by one, each would be a write of its own."""
    trial = optuna.create_trial(state=TrialState.RUNNING)
    together = sampler.sample_relative(study, trial, dict(of))
    return {
        name: together[name]
        if name in together
        else sampler.sample_independent(study, trial, name, distribution)
        for name, distribution in of.items()
    }


def recovered(config: Pruner, events: Iterable[float], fraction: float) -> bool:
    """Whether a trial's loss at a fraction of the budget tells how good it is.

    Args:
        config: The study's settings.
        events: The fractions at which its events happen; an evaluation at one of them comes before it.
        fraction: The fraction of an evaluation.
    """
    last = max((event for event in events if event < fraction), default=None)
    return last is None or fraction >= last + config.recovery - 1e-9


def make_pruner(config: Pruner) -> BasePruner:
    """The pruner; a report's step is the percent of the budget that was spent."""
    first = max(1, round(FULL * config.after))
    if config.kind == "median":
        return MedianPruner(n_startup_trials=5, n_warmup_steps=first)
    if config.kind == "halving":
        return Halving(first, FULL)
    if config.kind == "hyperband":
        return HyperbandPruner(min_resource=first, max_resource=FULL, reduction_factor=ETA)
    return NopPruner()
