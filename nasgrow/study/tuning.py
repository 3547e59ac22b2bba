"""Tuning: one procedure for schedules and fixed shapes, so that neither is tuned better than the other.

A study declares which fields it tunes and their values. A contender (a schedule, or a fixed shape under one
budget) is tuned by a local search: its best setting so far is compared with the next lower and the next
higher value of every tuned field, until none of them is better. If the best lies at an edge of the declared
values, the search continues beyond that edge.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nasgrow.config import LONGEST_RAMP, TrainingConfig
from nasgrow.errors import UserError
from nasgrow.spaces import Choices
from nasgrow.spaces.training import BATCH, OPERATOR_FIELDS, PEAK, RAMP, SEARCHABLE, Tunable, with_training
from nasgrow.strict import with_prefix
from nasgrow.study.trials import TrialRecord
from nasgrow.training.atomic_files import to_json

EXTENSIONS = 3
"""The most values that are tried beyond each edge of the declared ones."""

LOWEST, HIGHEST = 1e-9, 10.0
"""The range of learning rates that a study accepts; anything outside is probably a typing error."""

Values = Mapping[str, float]
"""The value of each tuned field."""

Key = tuple[tuple[str, float], ...]


def key(values: Values) -> Key:
    """Return tuned values in a form that can be a dictionary key."""
    return tuple(sorted(values.items()))


@dataclass(frozen=True)
class Tuning:
    """The tuned fields of a study.

    Attributes:
        declared: The values of each tuned field, ascending.
        own: The value of each field in the study's training section.
        training: The study's training section; it refuses some values.
    """

    declared: Mapping[str, tuple[float, ...]]
    own: Values
    training: TrainingConfig

    @staticmethod
    def of(tune: Mapping[Tunable, Sequence[float | str]], training: TrainingConfig) -> Tuning:
        """Resolve the ``tune`` section of a study file.

        Raises:
            UserError: A value is invalid.
        """
        own: dict[str, float] = {PEAK: training.learning_rate.peak, BATCH: training.batch_tokens}
        if RAMP in tune:
            if training.ramp is None:
                raise UserError(
                    f"tune.{RAMP}: training.ramp must say what is ramped, such as {{until: 0.3, context: 32}}"
                )
            own[RAMP] = training.ramp.until
        declared: dict[str, tuple[float, ...]] = {}
        for name, given in tune.items():
            values = {_absolute(name, value, own[name]) for value in given}
            for value in values:
                _check(training, name, value)
            declared[name] = tuple(sorted(values))
        return Tuning(declared, own, training)

    @property
    def rates(self) -> Choices:
        """The declared learning rates, as a setting of a search space."""
        return Choices(list(self.declared[PEAK]))

    @property
    def longest_ramp(self) -> float | None:
        """The latest end of a ramp that tuning may try; None if ramps are not tuned."""
        *before, longest = self.declared.get(RAMP, (None,))
        if longest is None or not before:
            return longest
        return min(LONGEST_RAMP, longest + EXTENSIONS * (longest - before[-1]))

    def values(self, parameters: Mapping[str, Any]) -> Values:
        """Return the values of all tuned fields of a trial with these parameters.

        A field without a parameter has its only declared value, else the study's own.
        """
        only = {name: values[0] for name, values in self.declared.items() if len(values) == 1}
        return {
            **self.own,
            **only,
            **{name: parameters[name] for name in self.declared if name in parameters},
        }

    def parameters(self, values: Values) -> dict[str, float]:
        """Return the parameters of a trial with these values: fields that have several declared values."""
        return {name: values[name] for name, known in self.declared.items() if len(known) > 1}

    def first(self) -> list[Values]:
        """Return the first settings to try: every declared learning rate, at one batch size and one ramp.

        Of the declared batch sizes and ramps, these are the ones closest to the study's own.
        """
        batch = min(self.declared[BATCH], key=lambda value: abs(math.log(value / self.own[BATCH])))
        rest: dict[str, float] = {BATCH: batch}
        if RAMP in self.declared:
            rest[RAMP] = min(self.declared[RAMP], key=lambda value: abs(value - self.own[RAMP]))
        return [{PEAK: rate, **rest} for rate in self.declared[PEAK]]

    def next(self, tried: Mapping[Key, float | None], pending: Collection[Key] = ()) -> Values | None:
        """Return the next setting to try for a contender; None if no neighbour of its best is left to try.

        If every setting diverged, it is the next lower learning rate. None too if nothing was
        tried.

        Args:
            tried: The loss of each setting that was tried; None if training diverged.
            pending: Settings without a result yet. While there are any, nothing more is tried, so that the
                settings do not depend on which of them ends first.
        """
        if pending:
            return None
        losses = {setting: loss for setting, loss in tried.items() if loss is not None}
        if not losses:
            lowest = min(tried, key=lambda setting: dict(setting)[PEAK], default=None)
            beyond = None if lowest is None else self._neighbour(dict(lowest), PEAK, -1)
            return beyond if beyond is not None and key(beyond) not in tried else None
        best = dict(_best(losses))
        for name in self.declared:
            for side in (-1, 1):
                beside = self._neighbour(best, name, side)
                if beside is not None and key(beside) not in tried:
                    return beside
        return None

    def edges(self, tried: Mapping[Key, float | None]) -> list[str]:
        """Return the tuned fields whose best value lies at an end of the values tried.

        Fields with one declared value are left out, and so is a ramp until 0: nothing is below it.

        Args:
            tried: The loss of each setting that was tried; None if training diverged. Settings that
                diverged count as tried. If all diverged, the result is empty.
        """
        losses = {setting: loss for setting, loss in tried.items() if loss is not None}
        if not losses:
            return []
        best = dict(_best(losses))
        found = []
        for name, declared in self.declared.items():
            values = [dict(setting)[name] for setting in tried]
            if len(declared) > 1 and best[name] and best[name] in (min(values), max(values)):
                found.append(name)
        return found

    def _neighbour(self, values: Values, name: str, side: int) -> Values | None:
        """Return the setting with one field at its next lower (-1) or higher (1) value; None without one.

        Beyond the declared values, the last ratio between two of them continues for up to
        :data:`EXTENSIONS` values. Batches only become smaller than declared. Below the shortest
        declared ramp is the value 0, which means no ramp. Longer ramps than declared continue the
        last difference. A field with one declared value has no neighbours. Beyond the declared
        values, an invalid value is no neighbour either.
        """
        declared = self.declared[name]
        if len(declared) == 1:
            return None
        here = values[name]
        between = [one for one in declared if (one - here) * side > 1e-9 * here]
        if between:
            return {**values, name: min(between) if side > 0 else max(between)}
        if name == RAMP:
            return self._longer(values) if side > 0 else {**values, RAMP: 0.0} if here else None
        edge, ratio = (declared[-1], declared[-1] / declared[-2])
        if side < 0:
            edge, ratio = declared[0], declared[0] / declared[1]
        beyond = here * ratio
        if abs(math.log(beyond / edge)) > (EXTENSIONS + 0.5) * abs(math.log(ratio)):
            return None
        if name == BATCH:  # larger ones than declared may be too large for the budget
            whole = side < 0 and beyond > 0 and beyond == int(beyond)
            return self._allowed({**values, name: int(beyond)}) if whole else None
        return {**values, name: beyond} if LOWEST <= beyond <= HIGHEST else None

    def _longer(self, values: Values) -> Values | None:
        """Return the values with a longer ramp than before; None if it would be too long.

        The difference is that between the two longest declared ramps.
        """
        *_, before, longest = self.declared[RAMP]
        until = float(f"{values[RAMP] + longest - before:.6g}")
        if until > longest + (EXTENSIONS + 0.5) * (longest - before):
            return None
        return self._allowed({**values, RAMP: until})

    def _allowed(self, values: Values) -> Values | None:
        """Return the values; None if they are invalid for the training settings."""
        try:
            with_training(self.training, values)
        except UserError:
            return None
        return values


def _best(losses: Mapping[Key, float]) -> Key:
    return min(losses, key=lambda setting: losses[setting])


def contender(record: TrialRecord) -> str:
    """Return a key that is equal for trials that differ only in tuned fields.

    It holds the schedule and the searched training fields that have an effect.
    """
    searched = {name: record.parameters[name] for name in SEARCHABLE if name in record.parameters}
    if all("operator" in event for event in record.schedule["events"]):
        searched = {name: value for name, value in searched.items() if name not in OPERATOR_FIELDS}
    return to_json([record.schedule, searched])


def tries(tuning: Tuning, trials: Iterable[TrialRecord]) -> tuple[dict[Key, float | None], list[Key]]:
    """Return the losses of one contender's trials by setting, and the settings without a result.

    The loss of a diverged trial is None. The settings without a result belong to trials that are
    being trained, or have failed. Paused and pruned trials do not count.
    """
    ended, pending = {}, []
    for trial in trials:
        setting = key(tuning.values(trial.parameters))
        if trial.status in ("finished", "diverged"):
            ended[setting] = trial.loss
        elif trial.status in ("running", "failed"):
            pending.append(setting)
    return ended, pending


def _absolute(name: str, value: float | str, own: float) -> float:
    """Return a declared value as a number; ``x2`` is twice the study's own value."""
    found = own * float(value[1:]) if isinstance(value, str) else value
    if name == BATCH:
        if found != int(found):
            raise UserError(f"tune.batch_tokens: must be whole tokens, not {found:g}")
        return int(found)
    return found


def _check(training: TrainingConfig, name: str, value: float) -> None:
    if name == PEAK and not LOWEST <= value <= HIGHEST:
        raise UserError(f"tune.{PEAK}: must be from {LOWEST:g} to {HIGHEST:g}, not {value:g}")
    with_prefix(f"tune.{name}", lambda: with_training(training, {name: value}))
