"""Baselines: what schedules are compared with, trained from scratch by the same loop.

Two questions, each with its own baseline. *Same final shape*: the final shape, under the study's budget and
under others, so that a report can say how much compute growth saves. *Same compute, any shape*: the best
fixed shape, which is searched; a shape at which a schedule stays for long is its natural rival, and is among
the first that are tried.
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
from nasgrow.study.trials import Kind, TrialRecord
from nasgrow.study.tuning import Values, key, tries

FINAL = "final"
"""The name of the final shape."""

MIN_RIVAL_SHARE = 0.2
"""The part of the budget from which on the shape of a stage is a rival of its schedule."""

RIVALS = 3
"""The schedules whose long stages are tried as fixed shapes: the best ones."""


@dataclass(frozen=True)
class BaselineSize:
    """A shape from scratch under one budget.

    Attributes:
        name: ``final``, or the label of the trial that has the shape, and its budget if that is another.
        shape: The shape.
        times: Its budget as a multiple of the study's.
    """

    name: str
    shape: Shape
    times: float = 1.0

    @property
    def of(self) -> str:
        """The name of the same shape under the study's budget."""
        return self.name.partition(", ")[0]


@dataclass(frozen=True)
class TunedBaseline:
    """A size, and all that was tried for it.

    Attributes:
        size: The size.
        tried: Its trials, one for each setting, by learning rate.
        best: The one with the lowest loss; None if none has finished.
        edges: The tuned fields whose best value is the lowest or the highest that was tried.
    """

    size: BaselineSize
    tried: tuple[TrialRecord, ...]
    best: TrialRecord | None
    edges: tuple[str, ...]


def tuned_sizes(study: ResolvedStudy, trials: Iterable[TrialRecord]) -> list[TunedBaseline]:
    """Every size that was trained from scratch: the final shape, fixed shapes by loss, other budgets.

    Args:
        study: The study.
        trials: Its baselines and fixed-shape trials.
    """
    groups: dict[tuple[float, Shape], list[TrialRecord]] = {(1.0, study.final): []}
    for trial in trials:
        times = times_of(trial.name or "") if trial.kind == "baseline" else 1.0
        groups.setdefault((times, schedule_from(trial.schedule).start), []).append(trial)
    found = []
    for (times, shape), own in groups.items():
        name = describe(shape, study.final) + ("" if times == 1 else f", {times:.4g}x budget")
        distinct = {key(study.tuning.values(trial.parameters)): trial for trial in reversed(own)}
        tried = sorted(distinct.values(), key=lambda trial: trial.learning_rate)
        losses, _ = tries(study.tuning, tried)
        best = next(iter(best_first(tried)), None)
        edges = tuple(study.tuning.edges(losses))
        found.append(TunedBaseline(BaselineSize(name, shape, times), tuple(tried), best, edges))
    final = (study.final, 1.0)

    def order(one: TunedBaseline) -> tuple[bool, bool, float, float]:
        loss = math.inf if one.best is None or one.best.loss is None else one.best.loss
        size = one.size
        return (size.shape, size.times) != final, size.times != 1, size.times, loss

    return sorted(found, key=order)


def describe(shape: Shape, final: Shape) -> str:
    """A shape in few words: the sizes in which it differs from the final one."""
    if shape == final:
        return FINAL
    own, whole = sizes_of(shape), sizes_of(final)
    if any(len(sizes) > 1 for sizes in own.values()):
        return str(shape)
    return ", ".join(f"{dim} {min(own[dim])}" for dim in own if own[dim] != whole[dim])


def final_size(study: ResolvedStudy) -> BaselineSize:
    """The final shape under the study's budget."""
    return BaselineSize(FINAL, study.final)


def other_budgets(study: ResolvedStudy, sizes: Iterable[BaselineSize]) -> list[BaselineSize]:
    """Sizes under the other budgets of a study."""
    return [
        BaselineSize(f"{size.of}, {times:.4g}x budget", size.shape, times)
        for size in sizes
        for times in sorted(study.config.baselines.budgets)
    ]


def find_size(
    study: ResolvedStudy, name: str, trials: Mapping[Kind, Mapping[int, TrialRecord]]
) -> BaselineSize:
    """The size of a name, whose shape is the study's final one or that of a fixed-shape trial."""
    of, times = name.partition(", ")[0], times_of(name)
    found = re.fullmatch(r"fixed (\d+)", of)
    if found is None:
        return BaselineSize(name, study.final, times)
    return BaselineSize(name, schedule_from(trials["fixed"][int(found[1])].schedule).start, times)


def times_of(name: str) -> float:
    """The budget in the name of a size, as a multiple of the study's."""
    budget = name.partition(", ")[2]
    return float(budget.partition("x")[0]) if budget else 1.0


def long_stages(schedule: Schedule) -> Iterator[tuple[float, Shape]]:
    """The stages that take a fifth of the budget or more: part of the budget, and shape."""
    times = [0.0, *(event.at for event in schedule.events), 1.0]
    for (begin, end), shape in zip(pairwise(times), schedule.shapes, strict=True):
        if round(end - begin, 9) >= MIN_RIVAL_SHARE:
            yield end - begin, shape


def best_first(trials: Iterable[TrialRecord]) -> list[TrialRecord]:
    """Trials that have finished, the lowest loss first."""
    done = [(trial.loss, trial) for trial in trials if trial.loss is not None]
    return [trial for _, trial in sorted(done, key=lambda pair: pair[0])]


def rival_shapes(study: ResolvedStudy, search: Iterable[TrialRecord]) -> list[Shape]:
    """The natural rivals of schedules, none of them the final shape.

    They are the shapes of the long stages of the best schedules, and the final shape with fewer layers, which
    is often the best model for the compute. Where a study starts from a checkpoint, the first is its shape:
    training that goes on without growth. All of them are grown from it at once.
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
    """The best tuned values of the final shape so far, the study's own if none has finished."""
    own = best_first(trial for trial in baselines if trial.name == FINAL)
    return study.tuning.values(own[0].parameters if own else {})
