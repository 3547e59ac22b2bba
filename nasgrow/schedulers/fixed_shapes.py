"""The scheduler of fixed shapes: natural rivals of the best schedules first, then a sampler's choices."""

from __future__ import annotations

from nasgrow.schedule import schedule_from
from nasgrow.schedulers.base import Decision, Resume, Scheduler, Start, Trials
from nasgrow.spaces.shapes import SHAPE_PARAMETER, given
from nasgrow.study.baselines import best_values, rival_shapes
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import TrialRecord


class FixedShapesScheduler(Scheduler):
    """Searches for the best fixed shape.

    The search goes on until it has executed ``baselines.compute`` times the FLOPs that the search of
    schedules executed.

    Args:
        study: The study.
        trials: Its fixed-shape trials so far.
        inner: The scheduler that samples fixed shapes.
        search: Its search trials.
        baselines: Its baselines. The rivals are trained with the best setting of the final shape.
    """

    def __init__(
        self, study: ResolvedStudy, trials: Trials, inner: Scheduler, search: Trials, baselines: Trials
    ) -> None:
        super().__init__(study, trials)
        self._inner, self._search, self._baselines = inner, search, baselines

    def suggest(self) -> Start | Resume | None:
        """Start the next rival shape that has no trial yet, or else what the sampler chooses.

        Return None while the search of fixed shapes has executed enough, or if the sampler has
        nothing to start.
        """
        multiple = self.study.config.baselines.compute
        spent = sum(trial.executed for trial in self._search.values())
        if sum(trial.executed for trial in self.trials.values()) >= multiple * spent:
            return None
        tried = {schedule_from(trial.schedule).start for trial in self.trials.values()}
        values = best_values(self.study, self._baselines.values())
        for shape in rival_shapes(self.study, self._search.values()):
            if shape not in tried:
                return Start({**given(shape), **self.study.tuning.parameters(values)})
        return self._inner.suggest()

    def on_evaluation(self, trial: TrialRecord, at: float, loss: float) -> Decision:
        """Ask the sampler's scheduler about its trials; rival shapes are always trained to the end."""
        return (
            Decision.CONTINUE
            if SHAPE_PARAMETER in trial.parameters
            else self._inner.on_evaluation(trial, at, loss)
        )
