"""CMA-ES without a pickle: what its state comes from is in the trials."""

from __future__ import annotations

from typing import Any

import numpy as np
import optuna
from optuna._transform import _SearchSpaceTransform
from optuna.distributions import BaseDistribution
from optuna.samplers import CmaEsSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

ASKED = "x_for_tell"
"""The system attribute in which Optuna notes the point that a trial stands for."""


class ToldAnew(CmaEsSampler):
    """Optuna's CMA-ES with margins, told of all generations each time.

    Optuna's own keeps its state in the storage as a pickle and loads it, and a pickle can run any code. But
    the state follows from the losses of its points alone, and chance is drawn anew for each trial.

    Args:
        seed: The trial's.
        startup: Trials before the first that it samples.
    """

    def __init__(self, seed: int, startup: int) -> None:
        super().__init__(
            seed=seed, n_startup_trials=startup, warn_independent_sampling=False, with_margin=True
        )
        self._space: dict[str, BaseDistribution] = {}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Sample a point."""
        self._space = search_space
        return super().sample_relative(study, trial, search_space)

    def _restore_optimizer(self, completed_trials: list[FrozenTrial]) -> Any:
        """The state that these trials lead to: up to date, so that nothing is left to be told and kept."""
        space = _SearchSpaceTransform(self._space, transform_step=False, transform_0_1=True)
        optimizer = self._init_optimizer(space, StudyDirection.MINIMIZE)
        while True:
            trials = self._get_solution_trials(completed_trials, optimizer.generation)
            if len(trials) < optimizer.population_size:
                return optimizer
            some = trials[: optimizer.population_size]
            optimizer.tell([(np.array(one.system_attrs[ASKED]), one.value) for one in some])

    def _get_solution_trials(self, trials: list[FrozenTrial], generation: int) -> list[FrozenTrial]:
        """The trials of a generation, but those of other parameters: a function's may change."""
        found = super()._get_solution_trials(trials, generation)
        return [one for one in found if len(one.system_attrs[ASKED]) == len(self._space)]
