"""Search spaces bound to a study: decode the parameters of a trial into a schedule.

A schedule ends at the final shape, unless the space allows an event at 1, which never happens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any

from nasgrow.config import TrainingConfig
from nasgrow.errors import UserError
from nasgrow.flops import forward_flops, parameter_count
from nasgrow.operators import AnyOperator
from nasgrow.schedule import Schedule
from nasgrow.shape import Shape, Variant
from nasgrow.spaces.common import Declarative
from nasgrow.spaces.levels import Dim, Level, Rounding, rising, shape_at
from nasgrow.spaces.open_ended import BoundFinal
from nasgrow.spaces.operators import check_operators, operators, sizes_of
from nasgrow.spaces.settings import Given, Range, Setting, Suggests
from nasgrow.spaces.training import OPERATOR_FIELDS, check_training
from nasgrow.strict import with_prefix


@dataclass(frozen=True)
class Point:
    """A decoded point of a space: a schedule, and the values of training fields by dotted name."""

    schedule: Schedule
    training: Mapping[str, object]

    @property
    def acting(self) -> Mapping[str, object]:
        """The training fields that have an effect. An operator has none if every event names its own."""
        without = OPERATOR_FIELDS if self.schedule.names_operators else ()
        return {name: value for name, value in self.training.items() if name not in without}

    @property
    def key(self) -> Hashable:
        """A key that is equal for points that mean the same runs."""
        return self.schedule, tuple(sorted(self.acting.items()))


class Space(ABC):
    """A space bound to a study's final shape.

    Attributes:
        declared: Whether all points have the same parameters, known in advance; False for a user's function.
        settings: The setting of every parameter, in the order in which a trial is asked for them. A
            setting with a single value is no parameter. Empty for a user's function.
        training: The settings of training fields by dotted name: those that the space searches,
            also with a single value, and the learning rates that the study tunes.
        known: The parameters of the points to try first, by the name of the point.
        final: The study's final shape.
        variant: Its variant.
        rounding: How shares of a final size are rounded.
        free_final: The final shapes if they are searched too; None if every schedule ends at the study's.
        largest: The final shape with the most expensive forward pass; the study's if none is searched.
        smallest: The smallest shape from which a schedule may start that ends at the study's final
            shape. For a user's function, whose starts are unknown, the final shape itself.
        grown: The dimensions that may grow, with the smallest share that each starts from; 0 if unknown.
        longest: The smallest shape from which a schedule may start that ends at the largest final shape, and
            that final shape: growing between them is the most expensive event for an operator.
        operators: The operators that points may have; empty for a user's function.
        times: The fractions of the budget at which events may happen.
        grid: The smallest distance between two times.
        last: The latest time.
    """

    def __init__(self, final: Shape, variant: Variant, dims: Iterable[Dim], times: Range) -> None:
        assert times.step is not None
        variant.check(final)
        self.final, self.variant, self._dims = final, variant, tuple(dims)
        self.rounding = Rounding()
        self.free_final: BoundFinal | None = None
        self.declared = True
        self.settings: Mapping[str, Setting] = {}
        self.training: Mapping[str, Setting] = {}
        self.known: Mapping[str, Mapping[str, Any]] = {}
        self.largest = self.smallest = final
        self.grown: Mapping[Dim, float] = dict.fromkeys(self._dims, 0.0)
        self.longest = final, final
        self.operators: Sequence[AnyOperator] = ()
        self.times: tuple[float, ...] = tuple(at for at in times.values if at < 1)
        self.grid, self.last = float(times.step), self.times[-1]

    @property
    def opened(self) -> bool:
        """Whether the final shape is searched too."""
        return self.free_final is not None

    @abstractmethod
    def sample(self, trial: Suggests) -> Point:
        """Ask a trial for its parameters, and decode them."""

    def at(self, parameters: Mapping[str, Any]) -> Point:
        """Decode recorded parameters; those that the space does not have are ignored."""
        return self.sample(Given(parameters))

    @property
    def size(self) -> float:
        """The number of points; infinite if a range is continuous, or if the number is unknown."""
        return prod(setting.count for setting in self.settings.values())

    def fixed(self, share: float, dims: Iterable[Dim] | None = None) -> Shape:
        """Return the study's final shape with some dimensions at a share of their final sizes.

        Args:
            share: The share.
            dims: The dimensions; by default all that this space may grow.

        Raises:
            UserError: The share is not above 0 and at most 1.
        """
        if not 0 < share <= 1:
            raise UserError(f"a share must be above 0 and at most 1, not {share!r}")
        dims = self._dims if dims is None else dims
        level = Level.of(dict.fromkeys(dims, share), len(self.final.layers))
        return shape_at(self.final, level, "top", self.variant, self.rounding)[0]


class DeclaredSpace(Space):
    """A declarative space: every point has the same parameters."""

    def __init__(
        self,
        model: Declarative,
        final: Shape,
        variant: Variant,
        training: TrainingConfig,
        tuned: Mapping[str, Setting],
    ) -> None:
        super().__init__(final, variant, model.starts, model.times)
        if model.order.count > 1 and "layers" not in model.starts:
            raise UserError(f"order: must be one value where layers do not grow, not {model.order.root}")
        check_training(training, model.training)
        self._model, self.rounding = model, model.rounding
        self.training = {**model.training, **tuned}
        self.free_final = BoundFinal(model.final, final, variant) if model.final else None
        shapes = [final]
        if self.free_final:
            shapes = with_prefix("final", self.free_final.all)
            self.largest = max(shapes, key=lambda shape: forward_flops(shape, variant, 1))
        for dim, multiple in model.round.items():
            for whole in {size for shape in shapes for size in sizes_of(shape)[dim]}:
                if dim in model.starts and multiple > whole:
                    raise UserError(f"round.{dim}: must be at most the final size {whole}, not {multiple}")
        self._all: dict[str, Setting] = {
            **(self.free_final.parameters if self.free_final else {}),
            **model.parameters,
            "order": model.order,
            **self.training,
        }
        self.settings = {name: setting for name, setting in self._all.items() if setting.count > 1}
        self.known = {name: self._complete(f"known.{name}", point) for name, point in model.known.items()}
        self.smallest = self._smallest(final)
        least = {dim: float(min(start.values)) for dim, start in model.starts.items()}
        self.grown = {dim: share for dim, share in least.items() if share < 1}
        self.longest = self._smallest(self.largest), self.largest
        self.operators = operators(training, model.training)
        check_operators(self.operators, model, shapes, variant)

    def _smallest(self, final: Shape) -> Shape:
        """Return the smallest shape from which a schedule may start that ends at this final shape."""
        shares = {dim: min(start.values) for dim, start in self._model.starts.items()}
        least = Level.of(shares, len(final.layers))
        starts = [
            shape_at(final, least, order, self.variant, self.rounding)[0]
            for order in self._model.order.values
        ]
        return min(starts, key=lambda shape: parameter_count(shape, self.variant))

    def sample(self, trial: Suggests) -> Point:
        """Ask a trial for its parameters, and decode them."""
        values = {name: setting.suggest(name, trial) for name, setting in self._all.items()}
        final = self.free_final.shape(values) if self.free_final else self.final
        start, later = self._model.rise(values, len(final.layers))
        # An event at the end of the budget never happens: the schedule ends below the final shape.
        stays = any(at == 1 for at, _ in later)
        later = [(at, level) for at, level in later if at < 1]
        schedule = rising(final, start, later, values["order"], self.variant, self.rounding)
        assert stays or schedule.final == final, (schedule, final)
        return Point(schedule, {name: values[name] for name in self.training})

    def _complete(self, where: str, point: Mapping[str, object]) -> Mapping[str, Any]:
        """Complete a known point: each parameter that it leaves out gets its first value.

        Raises:
            UserError: It has an unknown parameter or an invalid value; the message begins with ``where``.
        """
        given: dict[str, Any] = {}
        for name, value in point.items():
            if name not in self._all:
                raise UserError(
                    f"{where}.{name}: there is no such parameter; there are {', '.join(self.settings)}"
                )
            given[name] = with_prefix(f"{where}.{name}", partial(self._all[name].accept, value))
        return {name: given.get(name, setting.values[0]) for name, setting in self.settings.items()}
