"""Decode the parameters of a trial into a schedule and a run for each seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nasgrow.config import RunConfig
from nasgrow.schedule import Schedule
from nasgrow.study.baselines import find_size
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import Kind, TrialRecord

SIZE = "size"
"""The parameter of a baseline that names its size; its other parameters are the tuned fields."""

CANDIDATE, SEED = "candidate", "seed"
"""The parameters of a confirmation: the label of the trial that it confirms, and a fresh seed."""


@dataclass(frozen=True)
class Plan:
    """The schedule of a trial, and its run for each seed."""

    schedule: Schedule
    runs: tuple[RunConfig, ...]


def plan(
    study: ResolvedStudy,
    kind: Kind,
    parameters: Mapping[str, object],
    trials: Mapping[Kind, Mapping[int, TrialRecord]],
) -> Plan:
    """Decode the parameters of a trial.

    A confirmation has a single run: that of its candidate with the fresh seed.

    Args:
        study: The study.
        kind: The trial's kind.
        parameters: Its parameters.
        trials: The study's trials, among which a confirmation finds its candidate, and a baseline its shape.

    Raises:
        UserError: The parameters are invalid, or the budget is in seconds and the seconds of steps
            are not measured.
    """
    if kind == "confirmation":
        found, _, number = str(parameters[CANDIDATE]).partition(" ")
        of: Kind = found if found in ("search", "fixed") else "baseline"  # type: ignore[assignment]
        candidate = plan(study, of, trials[of][int(number)].parameters, trials)
        return Plan(candidate.schedule, (candidate.runs[0].model_copy(update={"seed": parameters[SEED]}),))
    times, training = 1.0, dict[str, object](study.tuning.values(parameters))
    if kind == "baseline":
        size = find_size(study, str(parameters[SIZE]), trials)
        schedule, times = Schedule(size.shape), size.times
    else:
        space = study.space if kind == "search" else study.of_fixed_shapes.space
        point = space.at(parameters)
        schedule, training = point.schedule, {**point.training, **training}
    seeds = study.config.seeds
    return Plan(schedule, tuple(study.run(schedule, training, seed, times) for seed in seeds))
