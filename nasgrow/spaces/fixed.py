"""Fixed spaces: a list of schedules, such as those of the literature, or one that won in another study."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from nasgrow.config import ScheduleField, TrainingConfig, load_run
from nasgrow.errors import UserError
from nasgrow.expansions import EXPANSION_TYPES
from nasgrow.flops import parameter_count
from nasgrow.schedule import Schedule, check_operator, schedule_from
from nasgrow.shape import Shape, Variant
from nasgrow.spaces.common import GRID
from nasgrow.spaces.levels import DIMS
from nasgrow.spaces.operators import operators, sizes_of
from nasgrow.spaces.settings import Choices, Setting, Suggests
from nasgrow.spaces.space import Point, Space
from nasgrow.spaces.training import PEAK, check_training
from nasgrow.strict import Strict, with_prefix

SCHEDULE_PARAMETER = "schedule"
"""The parameter that names the schedule."""
NO_GROWTH = "no growth"
"""The name of training from scratch, which is added if every schedule of a space has an event."""
MAX_LISTED_POINTS = 1_000
"""A space with up to this many points, not counting learning rates, has all of them as known points.

They are tried first and in order. In a larger space, the sampler chooses.
"""


class Fixed(Strict):
    """Schedules by name. Training from scratch is added if none of them is that."""

    kind: Literal["fixed"]
    schedules: Annotated[dict[str, ScheduleField], Field(min_length=1)]
    """Schedules by name: start and events, or the path of a schedule file or run file."""
    training: dict[str, Setting] = Field(default_factory=dict)
    """Fields of the training section to search, by dotted name such as ``learning_rate.rewarm``."""


def with_files(data: dict[str, Any], where: str, folder: Path) -> dict[str, Any]:
    """Return a copy of the data of a fixed space, with each schedule as a :class:`Schedule`.

    A schedule may be given as plain data, or as the path of a schedule file or run file. Without a
    mapping of schedules the data is returned unchanged.

    Args:
        data: The fields of the space.
        where: The prefix of error messages.
        folder: The folder that paths are relative to.

    Raises:
        UserError: A file cannot be read, or a schedule is invalid.
    """
    named = data.get("schedules")
    if not isinstance(named, dict):
        return data  # the model's validation reports the error

    def read(item: object) -> Schedule:
        if isinstance(item, Schedule):
            return item
        return load_run(folder / item).schedule if isinstance(item, str) else schedule_from(item)

    schedules = {
        name: with_prefix(f"{where}: schedules.{name}", partial(read, item)) for name, item in named.items()
    }
    return {**data, "schedules": schedules}


class FixedSpace(Space):
    """A list of schedules: one parameter names the schedule, the others are training fields."""

    def __init__(
        self,
        model: Fixed,
        final: Shape,
        variant: Variant,
        training: TrainingConfig,
        tuned: Mapping[str, Setting],
    ) -> None:
        self._schedules = dict(model.schedules)
        for name, schedule in self._schedules.items():
            with_prefix(f"schedules.{name}", partial(_check, schedule, final, variant))
        every = self._schedules.values()
        grown = {
            kind for schedule in every for event in schedule.events for kind in map(type, event.expansions)
        }
        dims = [dim for dim in DIMS if EXPANSION_TYPES[dim] in grown]
        super().__init__(final, variant, dims or DIMS, GRID)
        check_training(training, model.training)
        default = operators(training, model.training)
        for name, schedule in self._schedules.items():
            for operator in default:
                with_prefix(f"schedules.{name}", partial(check_operator, schedule, operator, variant))
        named = (event.operator for schedule in every for event in schedule.events if event.operator)
        self.operators = list(dict.fromkeys([*default, *named]))
        if all(schedule.events for schedule in every):
            if NO_GROWTH in self._schedules:
                raise UserError(f"schedules.{NO_GROWTH}: has events, so it needs another name")
            self._schedules[NO_GROWTH] = Schedule(final)
        self._names = Choices(list(self._schedules))
        self.training = {**model.training, **tuned}
        self.settings = {
            name: setting
            for name, setting in {SCHEDULE_PARAMETER: self._names, **self.training}.items()
            if setting.count > 1
        }
        self.known = dict(self._points()) if self.size / tuned[PEAK].count <= MAX_LISTED_POINTS else {}
        self.smallest = min(
            (schedule.start for schedule in every), key=lambda shape: parameter_count(shape, variant)
        )
        self.grown = {
            dim: min(min(sizes_of(schedule.start)[dim]) for schedule in every) / max(sizes_of(final)[dim])
            for dim in dims
        }
        self.longest = self.smallest, final
        self.times = tuple(sorted({event.at for schedule in every for event in schedule.events}))
        self.grid = min(
            (later - at for schedule in every for at, later in pairwise(_times(schedule))), default=self.grid
        )
        self.last = max(self.times, default=self.last)

    def sample(self, trial: Suggests) -> Point:
        """Ask a trial for the name of a schedule and for the searched and tuned training fields."""
        schedule = self._schedules[self._names.suggest(SCHEDULE_PARAMETER, trial)]
        return Point(
            schedule, {name: setting.suggest(name, trial) for name, setting in self.training.items()}
        )

    def _points(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield the name and the parameters of every distinct point, at the first learning rate.

        Of points that mean the same runs, only the first is yielded.
        """
        seen = set()
        every = [setting.values[: 1 if name == PEAK else None] for name, setting in self.settings.items()]
        for values in product(*every):
            parameters = dict(zip(self.settings, values, strict=True))
            point = self.at(parameters)
            if point.key not in seen:
                seen.add(point.key)
                acting = point.acting.keys() - {PEAK}
                told = [f"{name} {value}" for name, value in parameters.items() if name in acting]
                yield (
                    ", ".join([parameters.get(SCHEDULE_PARAMETER, self._names.values[0]), *told]),
                    parameters,
                )


def _check(schedule: Schedule, final: Shape, variant: Variant) -> None:
    """Raise ``UserError`` if a schedule does not end at the final shape, or does not fit the variant."""
    if schedule.final != final:
        raise UserError(f"must end at the final shape {final}, not at {schedule.final}")
    for shape in schedule.shapes:
        variant.check(shape)


def _times(schedule: Schedule) -> list[float]:
    """Return 0 and the times of a schedule's events."""
    return [0.0, *(event.at for event in schedule.events)]
