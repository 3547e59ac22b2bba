"""The beginning of a search: it waits until the final shape is tuned, and starts from that setting."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace

from nasgrow.schedulers.base import Decision, Resume, Scheduler, Start
from nasgrow.schedulers.baselines import BaselineScheduler, is_tuned
from nasgrow.spaces.training import BATCH
from nasgrow.study.baselines import best_values
from nasgrow.study.trials import TrialRecord


class WarmStartScheduler(Scheduler):
    """Gives a search what tuning the final shape has found.

    Known schedules and the sampler's first trials have its best setting. The batch, if it is tuned, is that
    of the final shape for every trial, because runs with different batches share no prefix.

    Args:
        search: The scheduler of the search.
        baselines: That of the final shape.
    """

    def __init__(self, search: Scheduler, baselines: BaselineScheduler) -> None:
        super().__init__(search.study, search.trials)
        self._search, self._baselines = search, baselines

    def suggest(self) -> Start | Resume | None:
        """What the search suggests, once the final shape is tuned."""
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
        """Whether a trial starts before the sampler learns; every point of a grid has its own setting."""
        sampler = self.study.config.sampler
        early = len(self.trials) < len(self.study.space.known) + sampler.startup
        return found.name is not None or (early and sampler.kind != "grid")

    def _keys(self) -> set[Hashable]:
        return {self.study.space.at(trial.parameters).key for trial in self.trials.values()}

    def on_evaluation(self, trial: TrialRecord, at: float, loss: float) -> Decision:
        """Ask the search."""
        return self._search.on_evaluation(trial, at, loss)

    def on_finished(self, trial: TrialRecord) -> None:
        """Pass it on to the search."""
        self._search.on_finished(trial)
