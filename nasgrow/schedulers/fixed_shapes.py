"""The scheduler of fixed shapes: natural rivals of the best schedules first, then what a sampler chooses."""

from __future__ import annotations

from nasgrow.schedule import schedule_from
from nasgrow.schedulers.base import Decision, Resume, Scheduler, Start, Trials
from nasgrow.spaces.shapes import SHAPE_PARAMETER, given
from nasgrow.study.baselines import best_values, rival_shapes
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import TrialRecord


class FixedShapesScheduler(Scheduler):
    """Searches fixed shapes with at least the compute that the search of schedules executed.

    Args:
        study: The study.
        trials: Its fixed-shape trials so far.
        inner: The study's sampler over fixed shapes.
        search: Its search trials.
        baselines: Its baselines, whose best setting the first shapes are trained with.
    """

    def __init__(
        self, study: ResolvedStudy, trials: Trials, inner: Scheduler, search: Trials, baselines: Trials
    ) -> None:
        super().__init__(study, trials)
        self._inner, self._search, self._baselines = inner, search, baselines

    def suggest(self) -> Start | Resume | None:
        """A shape that the best schedules stay at, a shallower final shape, or what the sampler chooses."""
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
        """Ask the sampler's scheduler; shapes that are given whole are trained to their end."""
        return (
            Decision.CONTINUE
            if SHAPE_PARAMETER in trial.parameters
            else self._inner.on_evaluation(trial, at, loss)
        )

    def on_finished(self, trial: TrialRecord) -> None:
        """Pass it on to the sampler's scheduler."""
        self._inner.on_finished(trial)
