"""Features of points: encode schedules as rows of a matrix, whatever parameters a space has.

Two schedules are similar if their shapes are similar most of the time. So each dimension of the shape has a
group of columns: the logarithm of its size in each interval of the budget. The columns are weighted such that
the squared distance of two rows is the mean over time of their squared difference. Every other searched
setting is a group too.

A row also says what a point shares with others. Points with equal keys are the same runs. Points with equal
prefixes at a rung are the same runs until that rung.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import log2, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nasgrow.flops import forward_flops
from nasgrow.shape import Shape
from nasgrow.spaces import Point, Setting
from nasgrow.spaces.training import FROM_THE_START, OPERATOR_FIELDS
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import TrialRecord

Floats = NDArray[np.float64]
Rows = NDArray[np.void]
"""A structured array with a row for each point: ``X`` (features), ``key`` (equal for points that are the same
runs), and for each rung ``prefix`` (equal for points that share their training until the rung), ``recovered``
(whether the loss has recovered from the last event, and so predicts the final loss) and ``log_flops`` (the
logarithm of the FLOPs of a forward pass)."""

RUNGS = 0.2, 0.4, 0.6, 0.8
"""The fractions of the budget at which a trial may be paused."""

N_DIMENSIONS = 6
"""The number of dimensions of a shape: hidden, layers, MLP, heads, key, value."""

NOT_ACTING = ""
"""The category of an operator that has no effect, because every event names another."""


class Encoder:
    """Encodes points of a study's space as rows.

    Attributes:
        groups: The group of each feature column: one group for each dimension and each other setting.
    """

    def __init__(self, study: ResolvedStudy) -> None:
        self._space, self._variant = study.space, study.variant
        self._recovery = study.config.pruner.recovery
        self._intervals = list(pairwise([0.0, *study.space.times, 1.0]))
        settings = {**study.space.training, "order": study.space.settings.get("order")}
        self._settings = {
            name: _Column(setting) for name, setting in settings.items() if setting and setting.count > 1
        }
        widths = [len(self._intervals)] * N_DIMENSIONS + [one.width for one in self._settings.values()]
        self.groups = np.repeat(np.arange(len(widths)), widths)
        rungs = (len(RUNGS),)
        self._type = np.dtype(
            [
                ("X", np.float64, (len(self.groups),)),
                ("key", np.int64),
                ("prefix", np.int64, rungs),
                ("recovered", np.bool_, rungs),
                ("log_flops", np.float64, rungs),
            ]
        )

    def rows(self, points: Iterable[Mapping[str, Any]]) -> Rows:
        """Return the rows of the points with these parameters."""
        return np.array([self._row(self._space.at(one), one) for one in points], self._type)

    def _row(self, point: Point, parameters: Mapping[str, Any]) -> tuple[Any, ...]:
        schedule, times = point.schedule, [event.at for event in point.schedule.events]
        prefixes = _prefixes(point)
        before = [sum(at < rung - 1e-9 for at in times) for rung in RUNGS]  # the events before each rung
        return (
            self._features(point, parameters, times),
            hash(point.key),
            [prefixes[count] for count in before],
            [
                not n or rung >= times[n - 1] + self._recovery - 1e-9
                for n, rung in zip(before, RUNGS, strict=True)
            ],
            [self._log_flops(schedule.shapes[count]) for count in before],
        )

    def _features(self, point: Point, parameters: Mapping[str, Any], times: Sequence[float]) -> list[float]:
        logs = [_log_sizes(shape) for shape in point.schedule.shapes]
        sizes = [
            [sqrt(end - begin) * size for size in logs[sum(at <= begin + 1e-9 for at in times)]]
            for begin, end in self._intervals
        ]
        found = [size for dimension in zip(*sizes, strict=True) for size in dimension]
        values = {**parameters, **point.acting}
        for name, column in self._settings.items():
            acts = name not in point.training or name in point.acting
            found += column.encode(values[name] if acts else NOT_ACTING)
        return found

    def _log_flops(self, shape: Shape) -> float:
        return log2(forward_flops(shape, self._variant, 1))


class TrialTable:
    """The features and losses of all trials as arrays, in the order of their numbers.

    Args:
        encoder: Makes the rows.
        trials: The records, which the driver keeps up to date; new ones come last.

    Attributes:
        numbers: The numbers of the trials.
        rows: Their encoded points.
        status: Their statuses.
        rung_losses: Their losses at each rung, from the first evaluation at or after it; NaN at
            rungs that a trial has not reached.
        loss: Their final losses; NaN if they have not finished.
    """

    def __init__(self, encoder: Encoder, trials: Mapping[int, TrialRecord]) -> None:
        self._encoder, self._trials = encoder, trials
        self._states: list[tuple[str, int]] = []
        self.numbers: list[int] = []
        self.rows = encoder.rows([])
        self.status = np.empty(0, "U8")
        self.rung_losses = np.empty((0, len(RUNGS)))
        self.loss = np.empty(0)

    def update(self) -> None:
        """Update the arrays from the records that have changed."""
        trials, self.numbers = list(self._trials.values()), list(self._trials)
        new = trials[len(self._states) :]
        if new:
            self._states += [("", 0)] * len(new)
            self.rows = np.concatenate([self.rows, self._encoder.rows([trial.parameters for trial in new])])
            self.status = np.append(self.status, [""] * len(new))
            self.rung_losses = np.concatenate([self.rung_losses, np.full((len(new), len(RUNGS)), np.nan)])
            self.loss = np.append(self.loss, [np.nan] * len(new))
        for place, trial in enumerate(trials):
            state = trial.status, len(trial.evaluations)
            if state != self._states[place]:
                self._states[place] = state
                self.status[place] = trial.status
                self.loss[place] = np.nan if trial.loss is None else trial.loss
                for index, rung in enumerate(RUNGS):
                    reached = [one for one in trial.evaluations if one[0] >= rung - 1e-9]
                    self.rung_losses[place, index] = min(reached, default=(1.0, np.nan))[1]

    @property
    def trained(self) -> Floats:
        """The last rung that each trial has reached, as a fraction of the budget; 0 before the first."""
        return np.asarray(np.array([0.0, *RUNGS])[(~np.isnan(self.rung_losses)).sum(axis=1)])

    def losses_on_the_way(self, rows: Rows) -> Floats:
        """Return the known losses of points at each rung, NaN where unknown.

        A point's loss at a rung is known if some trial shares its training until that rung.
        """
        found = np.full(rows["prefix"].shape, np.nan)
        for rung in range(len(RUNGS)):
            reached = np.flatnonzero(~np.isnan(self.rung_losses[:, rung]))
            if len(reached):
                reached = reached[np.argsort(self.rows["prefix"][reached, rung], kind="stable")]
                prefixes, wanted = self.rows["prefix"][reached, rung], rows["prefix"][:, rung]
                places = np.minimum(np.searchsorted(prefixes, wanted), len(reached) - 1)
                same = prefixes[places] == wanted
                found[same, rung] = self.rung_losses[reached[places[same]], rung]
        return found


class _Column:
    """Encodes the values of one setting as feature columns.

    A number becomes its logarithm, or its share of the range if not all values are positive. Other values are
    one-hot categories, scaled so that the squared distance of two different ones is 1.
    """

    def __init__(self, setting: Setting) -> None:
        values = list(setting.values)
        self._categories: list[str] = []
        if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            self._categories = [*map(str, values), NOT_ACTING]
        else:
            self._range = None if min(values) > 0 else max(values) - min(values)
        self.width = len(self._categories) or 1

    def encode(self, value: Any) -> list[float]:
        """Return the features of a value."""
        if self._categories:
            return [sqrt(0.5) * (str(value) == category) for category in self._categories]
        return [log2(value) if self._range is None else value / self._range]


def _log_sizes(shape: Shape) -> tuple[float, ...]:
    """Return the logarithms of hidden size, layers, and the mean MLP, heads, key and value sizes."""
    layers = shape.layers
    groups = [group for layer in layers for group in layer.groups]
    heads = sum(group.count for group in groups)
    return (
        log2(shape.hidden),
        log2(len(layers)),
        log2(sum(layer.mlp for layer in layers) / len(layers)),
        log2(heads / len(layers)),
        log2(sum(group.count * group.key for group in groups) / heads),
        log2(sum(group.count * group.value for group in groups) / heads),
    )


def _prefixes(point: Point) -> list[int]:
    """Return a hash of the training after 0, 1, 2, ... events; points with equal hashes share that training.

    The rules are those of the prefix cache's keys. Settings that only act at events count from the first
    event on. The operator of the training section counts only if some event so far names none.
    """
    start = {name: value for name, value in point.training.items() if name in FROM_THE_START}
    acting = {**point.acting, **start}
    without = {name: value for name, value in acting.items() if name not in OPERATOR_FIELDS}
    settings = [tuple(sorted(one.items())) for one in (start, without, acting)]
    path, named = hash(point.schedule.start), True
    found = [hash((path, settings[0]))]
    for event in point.schedule.events:
        path, named = hash((path, event)), named and event.operator is not None
        found.append(hash((path, settings[1 if named else 2])))
    return found
