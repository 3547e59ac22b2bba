"""Python spaces: a user's function that asks a trial for parameters and returns a schedule."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from importlib import import_module
from math import inf
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from nasgrow.errors import UserError
from nasgrow.schedule import Schedule
from nasgrow.shape import Shape, Variant
from nasgrow.spaces.common import GRID
from nasgrow.spaces.levels import DIMS
from nasgrow.spaces.settings import Setting, Suggests
from nasgrow.spaces.space import Point, Space
from nasgrow.spaces.training import SEARCHABLE
from nasgrow.strict import Strict, with_prefix


class Python(Strict):
    """A function ``(trial, final)`` that returns a schedule, or a schedule and training fields."""

    python: Annotated[str, Field(pattern=r"^[\w.]+:\w+$")]
    """The function, as ``module:function``."""
    folder: str = "."
    """The folder where the module is searched first; by default that of the file that names the function."""


class PythonSpace(Space):
    """A space defined by a user's function; its parameters are not known in advance.

    The function is imported when the first point is decoded. So a command that only reads a study runs no
    code that the study's folder names.
    """

    def __init__(self, model: Python, final: Shape, variant: Variant, tuned: Mapping[str, Setting]) -> None:
        super().__init__(final, variant, DIMS, GRID)
        self.declared, self.training = False, tuned
        self._model, self._name = model, model.python

    @cached_property
    def _function(self) -> Callable[[Suggests, Shape], Any]:
        return _import(self._model)

    @property
    def size(self) -> float:
        """The number of points, which is unknown."""
        return inf

    def at(self, parameters: Mapping[str, Any]) -> Point:
        """Decode parameters; the function may ask for them by any ``suggest_`` method of Optuna.

        Raises:
            UserError: As for :meth:`sample`.
        """
        from optuna.trial import FixedTrial

        return self.sample(FixedTrial(dict(parameters)))

    def sample(self, trial: Suggests) -> Point:
        """Call the function; check its schedule and the names of its training fields.

        The values of these fields are not checked here, but when a run is made of them. The study's
        tuned fields are asked for after that. Their values replace those that the
        function returns.

        Raises:
            UserError: The function cannot be imported, raises any exception (also Optuna's
                ``TrialPruned``), or returns something invalid, such as a schedule that does not end
                at the final shape.
        """
        function = self._function
        try:
            returned = function(trial, self.final)
        except (Exception, SystemExit) as error:
            raise UserError(f"python: {self._name} failed: {_said(error)}") from None
        schedule, training = (
            returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, {})
        )
        if not isinstance(schedule, Schedule) or not isinstance(training, dict):
            raise UserError(
                f"python: {self._name} must return a Schedule, or a Schedule and a dict, not {returned!r}"
            )
        if schedule.final != self.final:
            raise UserError(
                f"python: {self._name} must end at the final shape {self.final}, not at {schedule.final}"
            )
        for shape in schedule.shapes:
            with_prefix(f"python: {self._name}", partial(self.variant.check, shape))
        for name in training:
            if name not in SEARCHABLE:  # fixed shapes would not have it
                raise UserError(
                    f"python: {self._name} may return {', '.join(SEARCHABLE)}, which can be searched, "
                    f"not {name!r}"
                )
        tuned = {name: setting.suggest(name, trial) for name, setting in self.training.items()}
        return Point(schedule, {**training, **tuned})


def _import(model: Python) -> Callable[[Suggests, Shape], Any]:
    """Import the function, with its folder first on the module path.

    Raises:
        UserError: The module cannot be imported, or has no such function.
    """
    module, _, name = model.python.partition(":")
    folder = str(Path(model.folder).resolve())
    sys.path.insert(0, folder)
    try:
        function = getattr(import_module(module), name, None)
    except (Exception, SystemExit) as error:
        raise UserError(f"python: {module} cannot be imported: {_said(error)}") from None
    finally:
        sys.path.remove(folder)
    if not callable(function):
        raise UserError(f"python: {module} has no function {name!r}")
    return function  # type: ignore[no-any-return]


def _said(error: BaseException) -> str:
    """Describe an exception of a user's code in one line."""
    return ": ".join([type(error).__name__, *str(error).splitlines()[:1]])
