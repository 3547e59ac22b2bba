"""Warm start of a search: wait until the final shape is tuned, then start from its best setting."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from nasgrow.schedulers.base import Decision, Resume, Scheduler, Start
from nasgrow.schedulers.baselines import BaselineScheduler, is_tuned
from nasgrow.spaces.training import BATCH
from nasgrow.study.baselines import best_values
from nasgrow.study.trials import TrialRecord


class WarmStartScheduler(Scheduler):
    """Starts a search with the best setting of the tuned final shape.

    Known schedules and the sampler's first trials get the final shape's best learning rate, unless
    the search has that trial already. If the batch size or the ramp is tuned, every trial gets the
    final shape's best one, because runs with different batch sizes or ramps share no prefix.

    Args:
        search: The scheduler of the search.
        baselines: The scheduler that tunes the final shape.
    """

    def __init__(self, search: Scheduler, baselines: BaselineScheduler) -> None:
        super().__init__(search.study, search.trials)
        self._search, self._baselines = search, baselines

    def suggest(self) -> Start | Resume | None:
        """Return what the search suggests, with the tuned setting; None until the final shape is tuned."""
        if not is_tuned(self._baselines):
            return None
        found = self._search.suggest()
        if not isinstance(found, Start):
            return found
        study = self.study
        tuned = study.tuning.parameters(best_values(study, self._baselines.trials.values()))
        parameters = {**found.parameters, **tuned}
        if not self._is_first(found) or study.space.at(parameters).key in self._keys():
            parameters |= {name: value for name, value in found.parameters.items() if name != BATCH}
        return replace(found, parameters=parameters)

    def _is_first(self, found: Start) -> bool:
        """Return whether a trial is a known schedule, or starts before the sampler learns.

        A grid never learns: each of its points names a learning rate.
        """
        sampler = self.study.config.sampler
        early = len(self.trials) < len(self.study.space.known) + sampler.startup
        return found.name is not None or (early and sampler.kind != "grid")

    def _keys(self) -> set[Hashable]:
        return {self.study.space.at(trial.parameters).key for trial in self.trials.values()}

    def on_evaluation(self, trial: TrialRecord, at: float, loss: float) -> Decision:
        """Ask the search's scheduler."""
        return self._search.on_evaluation(trial, at, loss)
