"""The tree scheduler: train the trial with the largest expected improvement (EI) per remaining FLOP.

Schedules that share prefixes form a tree. When a trial reaches a rung, the scheduler compares it with the
paused trials and with new points, by log EI - log FLOPs. It ignores the FLOPs that cached prefixes would
save, because counting them made searches no better (docs/log/2026-11.md). The first few trials are far apart
in the space and are trained to the end: from them the model learns how a loss at a rung predicts the final
loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist  # type: ignore[import-untyped]

from nasgrow.schedulers.base import Decision, Resume, SearchScheduler, Start, Trials, trial_seed
from nasgrow.schedulers.tree.features import RUNGS, Encoder, Rows, TrialTable
from nasgrow.schedulers.tree.model import LossModel, log_ei
from nasgrow.spaces.grid import points
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import TrialRecord

Points = tuple[Sequence[Mapping[str, Any]], Rows]
"""The parameters of points, and their encoded rows."""

MAX_CONSIDERED = 5_000
"""The scheduler considers every point of a space of up to this size, and a random sample of a larger one."""

PARTS, FRESH, PARENTS, TURNS = 32, 2, 8, 2
"""The sample of a large space, which changes with each trial.

It has ``PARTS`` parts. Each part has ``FRESH`` random points, and mutations of the best ``PARENTS``
trials, of which each has one mutation in every ``TURNS``-th part. Each new trial adds a part and
drops the oldest. A part is drawn once, because points of large models take milliseconds to decode.
"""

PAUSED = 100
"""The most paused trials that the scheduler considers: those with the lowest expected final losses."""

CHEAPEST = 0.001
"""The share of the budget below which a lower remaining cost is no further advantage."""


class TreeScheduler(SearchScheduler):
    """Starts, pauses and resumes the trials of a search by EI per remaining FLOP.

    Args:
        study: The study; every point of its space has the same parameters.
        trials: Its trials.
    """

    def __init__(self, study: ResolvedStudy, trials: Trials) -> None:
        super().__init__(study, trials)
        self._encoder = Encoder(study)
        self._table = TrialTable(self._encoder, trials)
        self._listed: Points | None = None
        self._sample: dict[tuple[int, int | None], Points] = {}

    def is_full(self, besides: TrialRecord | None = None) -> bool:
        """Return whether no further trial may start or resume.

        It is False if the study sets no number of trials, even if its compute or time is spent.

        Paused and pruned trials, and those that tune, do not count towards the study's number of
        trials. But all trials together may not execute more than that number of complete trials, or
        exceed the study's compute or time.

        Args:
            besides: A trial that does not count either; its FLOPs and seconds still do.
        """
        config, trials = self.study.config, self.trials.values()
        if config.trials is None:
            return False
        counted = sum(
            one.status not in ("paused", "pruned") and not one.tunes for one in trials if one is not besides
        )
        return counted >= config.trials or self.study.is_spent(trials)

    def choose(self) -> Start | Resume | None:
        """Choose the first few trials far apart, then the best of paused trials and new points.

        The first few are the sampler's ``startup``, and more until two trials have finished. At most
        :data:`PAUSED` paused trials are compared, and of a large space only a sample of its points.
        Return None if there is nothing to choose.
        """
        self._table.update()
        new = self._new_points()
        if len(self.trials) < self.study.config.sampler.startup or self._finished < 2:
            return self._farthest(new)
        return self._best(new, None)

    def on_evaluation(self, trial: TrialRecord, at: float, loss: float) -> Decision:
        """Pause a trial at a rung unless it is still the best choice.

        A trial always goes on if too few trials have finished, if its loss has not recovered from
        an event, or if another trial has trained the same prefix until the next rung.
        """
        rung = next((index for index, rung in enumerate(RUNGS) if math.isclose(at, rung)), None)
        if rung is None or not math.isfinite(loss):
            return Decision.CONTINUE
        self._table.update()
        place = self._table.numbers.index(trial.number)
        if (
            self._finished < max(2, self.study.config.sampler.startup)
            or not self._table.rows["recovered"][place, rung]
            or self._is_trained_ahead(place, rung)
        ):
            return Decision.CONTINUE
        new: Points = ([], self._encoder.rows([])) if self.is_full(besides=trial) else self._new_points()
        return Decision.CONTINUE if self._best(new, place) == Resume(trial.number) else Decision.PAUSE

    @property
    def _finished(self) -> int:
        return int((self._table.status == "finished").sum())

    def _is_trained_ahead(self, place: int, rung: int) -> bool:
        """Return whether another trial shares the training until the next rung: going on costs nothing."""
        if rung + 1 == len(RUNGS):
            return False
        prefix, losses = self._table.rows["prefix"][:, rung + 1], self._table.rung_losses[:, rung + 1]
        return bool(((prefix == prefix[place]) & ~np.isnan(losses)).any())

    def _farthest(self, new: Points) -> Start | None:
        """Start the new point that is farthest from all trials; the first one is random."""
        parameters, rows = new
        if not parameters:
            return None
        if not self.trials:
            rng = np.random.default_rng(trial_seed(self.study, 0))
            return Start(parameters[int(rng.integers(len(parameters)))])
        nearest = cdist(rows["X"], self._table.rows["X"], "sqeuclidean").min(axis=1)
        return Start(parameters[int(nearest.argmax())])

    def _best(self, new: Points, own: int | None) -> Start | Resume | None:
        """Choose the option with the largest log EI - log FLOPs; None if there is no option.

        Args:
            new: New points. If there are none, a trial goes on only if it is expected to become the best.
            own: The index of the running trial at a rung, which competes with the paused ones; None if
                there is none.
        """
        table, (parameters, rows) = self._table, new
        model = LossModel(table, self._encoder.groups)
        pending = np.isnan(model.expected) & (table.status == "running")
        paused = np.flatnonzero(table.status == "paused")
        begun = np.sort(paused[np.argsort(model.expected[paused], kind="stable")[:PAUSED]])
        if own is not None:
            begun, pending[own] = np.append(begun, own), False
        model.condition_on_pending(pending)

        mean, std = model.posterior(table.rows[begun])
        gain = log_ei(mean, std, model.best)
        whole = len(self.study.config.seeds) * self.study.budget
        left = whole - table.trained[begun] * self.study.budget
        options: list[Start | Resume] = [Resume(table.numbers[place]) for place in begun]
        if parameters:
            gain_of_new = log_ei(*model.posterior_of_new(rows), model.best)
            first = int(gain_of_new.argmax())
            gain, left = np.append(gain, gain_of_new[first]), np.append(left, whole)
            options.append(Start(parameters[first]))
        else:
            gain[mean >= model.best] = -np.inf
        if not np.isfinite(gain).any():
            return None
        least = CHEAPEST * self.study.budget
        return options[int((gain - np.log(np.maximum(least, left))).argmax())]

    def _new_points(self) -> Points:
        """Return the points that may start: those without a trial, or with only a pruned one."""
        taken = self._table.rows["key"][self._table.status != "pruned"]
        if self.study.space.size <= MAX_CONSIDERED:
            if self._listed is None:
                every = list(points(self.study.space).values())
                self._listed = every, self._encoder.rows(every)
            return _without(self._listed, taken)
        for ahead in range(0, 4 * PARTS, PARTS):  # if all points of a sample have trials, draw another
            found = _without(self._draw_sample(len(self.trials) + ahead), taken)
            if found[0]:
                break
        return found

    def _draw_sample(self, number: int) -> Points:
        """Return a sample of a large space: random points, and mutations of the best trials.

        It may contain a point twice, or a point that has a trial.

        Args:
            number: The newest part of the sample (see ``PARTS``).
        """
        best = np.argsort(self._table.loss, kind="stable")[:PARENTS]  # those without a loss come last
        parents = [self._table.numbers[place] for place in best]
        parts = [
            (part, parent)
            for part in range(number - PARTS + 1, number + 1)
            for parent in (None, *parents)
            if parent is None or (part + parent) % TURNS == 0
        ]
        self._sample = {part: self._sample.get(part) or self._draw(*part) for part in parts}
        drawn = self._sample.values()
        return [one for points, _ in drawn for one in points], np.concatenate([rows for _, rows in drawn])

    def _draw(self, part: int, parent: int | None) -> Points:
        """Draw ``FRESH`` random points, or one mutation of the point of a parent trial.

        Args:
            part: The part of the sample (see ``PARTS``). It and ``parent`` seed the draw.
            parent: The number of the parent trial; None for random points.
        """
        settings = self.study.space.settings
        rng = np.random.default_rng([trial_seed(self.study, part), 0 if parent is None else parent + 1])
        if parent is None:
            columns = [setting.draw(FRESH, rng) for setting in settings.values()]
            parameters = [dict(zip(settings, row, strict=True)) for row in zip(*columns, strict=True)]
        else:
            changed = rng.random(len(settings)) < 2 / len(settings)
            changed[rng.integers(len(settings))] = True
            parameters = [dict(self.trials[parent].parameters)]
            for name, change in zip(settings, changed, strict=True):
                if change:
                    (parameters[0][name],) = settings[name].draw(1, rng)
        return parameters, self._encoder.rows(parameters)


def _without(found: Points, taken: NDArray[np.int64]) -> Points:
    """Return the distinct points whose keys are not taken."""
    parameters, rows = found
    first = np.sort(np.unique(rows["key"], return_index=True)[1])
    places = first[~np.isin(rows["key"][first], taken)]
    return [parameters[place] for place in places], rows[places]
