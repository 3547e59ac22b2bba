"""Baselines: fixed shapes trained from scratch, which schedules are compared with.

A report answers two questions, each with its own baseline. *Same final shape*: the final shape from scratch,
under the study's budget and under others, so that the report can say how much compute growth saves. *Same
compute, any shape*: the best fixed shape, which is searched. The shape of a long stage of a schedule is its
natural rival, and is among the first that the search tries.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from nasgrow.schedule import Schedule, schedule_from
from nasgrow.shape import Shape
from nasgrow.spaces.operators import sizes_of
from nasgrow.spaces.shapes import SHARE_PREFIX
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import SEARCHED, Kind, TrialRecord
from nasgrow.study.tuning import Key, Values, key, tries

FINAL = "final"
"""The name of the final shape."""

MIN_RIVAL_SHARE = 0.2
"""The shape of a stage is tried as a rival if the stage takes this share of the budget or more."""

RIVALS = 3
"""The shapes of the long stages of this many of the best schedules are tried as fixed shapes."""


@dataclass(frozen=True)
class BaselineSize:
    """A shape to train from scratch under one budget.

    Attributes:
        name: ``final``, or the label of a fixed-shape trial with this shape; followed by the budget
            if it is not the study's, such as ``final, 2x budget``. :func:`tuned_sizes` describes
            the shape in place of the label.
        shape: The shape.
        times: Its budget as a multiple of the study's.
    """

    name: str
    shape: Shape
    times: float = 1.0

    @property
    def of(self) -> str:
        """The name without the budget: that of the same shape under the study's own budget.

        The name must have a label, and not a description.
        """
        return self.name.partition(", ")[0]


@dataclass(frozen=True)
class TunedBaseline:
    """A size, and the trials that tuned it.

    Attributes:
        size: The size.
        tried: Its trials, sorted by learning rate: of each setting the first that finished or
            diverged, or else the first, which may be running.
        best: The trial with the lowest loss; None if none has finished.
        edges: The tuned fields whose best value is the lowest or the highest that was tried.
    """

    size: BaselineSize
    tried: tuple[TrialRecord, ...]
    best: TrialRecord | None
    edges: tuple[str, ...]


def tuned_sizes(study: ResolvedStudy, trials: Iterable[TrialRecord]) -> list[TunedBaseline]:
    """Group trials from scratch by size.

    Args:
        study: The study.
        trials: Its baselines and fixed-shape trials.

    Returns:
        The final shape first, even without trials; then fixed shapes by loss; then sizes under
        other budgets by budget and loss. A size without a loss is the last of its budget.
    """
    groups: dict[tuple[float, Shape], list[TrialRecord]] = {(1.0, study.final): []}
    for trial in trials:
        groups.setdefault(_budget_and_shape(trial), []).append(trial)
    found = []
    for (times, shape), own in groups.items():
        distinct: dict[Key, TrialRecord] = {}
        for trial in sorted(own, key=lambda trial: trial.status not in ("finished", "diverged")):
            distinct.setdefault(key(study.tuning.values(trial.parameters)), trial)
        tried = sorted(distinct.values(), key=lambda trial: trial.learning_rate)
        losses, _ = tries(study.tuning, tried)
        best = next(iter(best_first(tried)), None)
        edges = tuple(study.tuning.edges(losses))
        found.append(TunedBaseline(_size(study, times, shape), tuple(tried), best, edges))
    final = (study.final, 1.0)

    def order(one: TunedBaseline) -> tuple[bool, bool, float, float]:
        loss = math.inf if one.best is None or one.best.loss is None else one.best.loss
        size = one.size
        return (size.shape, size.times) != final, size.times != 1, size.times, loss

    return sorted(found, key=order)


def title_of(
    study: ResolvedStudy, trials: Mapping[Kind, Mapping[int, TrialRecord]], trial: TrialRecord
) -> str:
    """Return the name of a trial in tables of a study.

    A fixed shape has its name in :func:`tuned_sizes`, a confirmation that of its candidate, and any
    other trial its title.
    """
    if trial.kind == "confirmation":
        every = (one for kind in SEARCHED for one in trials[kind].values())
        return next((title_of(study, trials, one) for one in every if one.label == trial.name), trial.title)
    return trial.title if trial.kind == "search" else size_of(study, trial).name


def size_of(study: ResolvedStudy, trial: TrialRecord) -> BaselineSize:
    """Return the shape that a trial begins with, under its budget; the name describes it."""
    return _size(study, *_budget_and_shape(trial))


def _budget_and_shape(trial: TrialRecord) -> tuple[float, Shape]:
    """Return the budget of a trial, as a multiple of the study's, and the shape that it begins with."""
    times = times_of(trial.name or "") if trial.kind == "baseline" else 1.0
    return times, schedule_from(trial.schedule).start


def _size(study: ResolvedStudy, times: float, shape: Shape) -> BaselineSize:
    budget = "" if times == 1 else f", {times:.4g}x budget"
    return BaselineSize(describe(shape, study.final) + budget, shape, times)


def describe(shape: Shape, final: Shape) -> str:
    """Describe a shape by the sizes in which it differs from the final one.

    The final shape is :data:`FINAL`. A shape with unequal layers or heads is described completely.
    """
    if shape == final:
        return FINAL
    own, whole = sizes_of(shape), sizes_of(final)
    if any(len(sizes) > 1 for sizes in own.values()):
        return str(shape)
    return ", ".join(f"{dim} {min(own[dim])}" for dim in own if own[dim] != whole[dim])


def final_size(study: ResolvedStudy) -> BaselineSize:
    """Return the final shape under the study's budget."""
    return BaselineSize(FINAL, study.final)


def other_budgets(study: ResolvedStudy, sizes: Iterable[BaselineSize]) -> list[BaselineSize]:
    """Return these sizes under each of the study's other budgets (``baselines.budgets``)."""
    return [
        BaselineSize(f"{size.of}, {times:.4g}x budget", size.shape, times)
        for size in sizes
        for times in sorted(study.config.baselines.budgets)
    ]


def find_size(
    study: ResolvedStudy, name: str, trials: Mapping[Kind, Mapping[int, TrialRecord]]
) -> BaselineSize:
    """Return the size that the name of a baseline trial stands for.

    ``fixed 12`` is the shape of that fixed-shape trial, which must be in ``trials``. Every other
    name is the final shape, even a description by :func:`tuned_sizes`. A budget may follow.
    """
    of, times = name.partition(", ")[0], times_of(name)
    found = re.fullmatch(r"fixed (\d+)", of)
    if found is None:
        return BaselineSize(name, study.final, times)
    return BaselineSize(name, schedule_from(trials["fixed"][int(found[1])].schedule).start, times)


def times_of(name: str) -> float:
    """Read the budget in the name of a size, as a multiple of the study's; 1 if it names none."""
    budget = name.partition(", ")[2]
    return float(budget.partition("x")[0]) if budget else 1.0


def long_stages(schedule: Schedule) -> Iterator[tuple[float, Shape]]:
    """Yield budget share and shape of the stages that take :data:`MIN_RIVAL_SHARE` or more."""
    times = [0.0, *(event.at for event in schedule.events), 1.0]
    for (begin, end), shape in zip(pairwise(times), schedule.shapes, strict=True):
        if round(end - begin, 9) >= MIN_RIVAL_SHARE:
            yield end - begin, shape


def best_first(trials: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Return the finished trials, the lowest loss first."""
    done = [(trial.loss, trial) for trial in trials if trial.loss is not None]
    return [trial for _, trial in sorted(done, key=lambda pair: pair[0])]


def rival_shapes(study: ResolvedStudy, search: Iterable[TrialRecord]) -> list[Shape]:
    """Return the fixed shapes that are natural rivals of the best schedules, without the final shape.

    They are the shapes of the long stages of the best schedules, and the final shape with fewer
    layers, which is often the best model for the compute. There are none before a schedule that
    grows has finished. If the study starts from a checkpoint, the first rival, even before that, is
    the checkpoint's shape: training continues without growth. The other rivals are grown from the
    checkpoint at the first step; shapes that it cannot grow into are left out.
    """
    grown = [trial for trial in best_first(search) if trial.schedule["events"]]
    schedules = list(dict.fromkeys(schedule_from(trial.schedule) for trial in grown))
    found = [] if study.config.start is None else [study.config.start.shape]
    found += [shape for one in schedules[:RIVALS] for _, shape in long_stages(one)]
    shares = study.of_fixed_shapes.space.settings.get(f"{SHARE_PREFIX}layers")
    if schedules and shares is not None:
        found += [study.space.fixed(share, ["layers"]) for share in shares.values]
    return [shape for shape in dict.fromkeys(found) if shape != study.final and study.reaches(shape)]


def best_values(study: ResolvedStudy, baselines: Iterable[TrialRecord]) -> Values:
    """Return the best tuned values of the final shape so far; the study's own if no trial has finished."""
    own = best_first(trial for trial in baselines if trial.name == FINAL)
    return study.tuning.values(own[0].parameters if own else {})
