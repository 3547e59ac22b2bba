"""The slope rule: a run that finds the times of its events while it trains.

A policy is a run whose events may have a ``slope``; the time of an event with a slope is its latest time. The
policy trains as that run. When, at an evaluation, the loss curve of a stage has flattened to the slope of the
event that ends the stage, the policy continues as the run with the event at that time. Both are ordinary
runs, equal to the last bit until then, so the second resumes from the state of the first, and one budget is
trained in all. The result is an ordinary run with an ordinary schedule, independent of the rule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from nasgrow.config import RunConfig, run_document, run_from
from nasgrow.data import Corpus
from nasgrow.errors import UserError
from nasgrow.experiments.sequential_runs import RunObserver, Trainer
from nasgrow.huggingface.start import with_checkpoint
from nasgrow.operators import Masked
from nasgrow.schedule import Schedule
from nasgrow.study.folders import POLICY, check_folder
from nasgrow.study.trials import RUNS
from nasgrow.training.atomic_files import write_text
from nasgrow.training.loop import StopTrainingError
from nasgrow.training.records import Result
from nasgrow.training.run import Run
from nasgrow.training.slope import slope_at_end, stage_until

SLOPE = "slope"
"""The field of an event that holds its slope."""

SCHEDULE_FILE = "schedule.yaml"
"""The run file with the times that the rule found."""


@dataclass(frozen=True)
class Policy:
    """A run with slopes.

    Attributes:
        config: The run; an event with a slope has its latest time.
        slopes: The slope of each event; None if its time is fixed.
    """

    config: RunConfig
    slopes: tuple[float | None, ...]

    def with_options(self, *, flops: float | None, seed: int | None) -> Policy:
        """Return the policy with another budget or seed, if given."""
        return replace(self, config=self.config.with_options(flops=flops, seed=seed))

    def earlier(self, event: int, at: float) -> Policy:
        """Return the policy with one event, given by index, at an earlier time."""
        events = list(self.config.schedule.events)
        events[event] = replace(events[event], at=at)
        schedule = Schedule(self.config.schedule.start, tuple(events))
        return replace(self, config=self.config.model_copy(update={"schedule": schedule}))

    def resolve(self, vocab: int, fingerprint: str) -> Run:
        """Resolve the run with the current times of its events.

        Raises:
            UserError: The run is invalid, or might become so with events at earlier times.
        """
        if self.config.training.in_ramp is not None:
            raise UserError(
                f"training.ramp: must not be there for events with a {SLOPE}: the training loss jumps where "
                "a ramp ends, and its slope tells nothing"
            )
        run = Run.resolve(self.config, vocab=vocab, fingerprint=fingerprint)
        self._check_room(run)
        self._check_masks(run)
        return run

    def _check_room(self, run: Run) -> None:
        """Raise ``UserError`` if an earlier time of an event might leave a stage without a step.

        The rule can move any step to another point of the budget. So there must be room from the
        latest time of each event to that of the next one, and from the last event to the end of the
        budget: for a step before the event, the event itself, and a step after it.
        """
        times = [*(event.at for event in run.schedule.events), 1.0]
        for index, (before, after) in enumerate(pairwise(run.stages)):
            room = (times[index + 1] - times[index]) * run.budget
            least = before.step_cost + after.event_cost + after.step_cost
            if room < least:
                size, unit = (1e9, "seconds") if run.is_timed else (1, "FLOPs")
                raise UserError(
                    f"events[{index}].at: the budget of {run.budget / size:.3g} {unit} leaves "
                    f"{room / size:.3g} between {times[index]:g} and {times[index + 1]:g}; a step there may "
                    f"take up to {least / size:.3g}"
                )

    def _check_masks(self, run: Run) -> None:
        """Raise ``UserError`` if an operator that learns might act while the masks of an earlier event open.

        An operator that learns from the model must wait for these masks, so its event must not have a slope.
        """
        masked = False
        for index, (operator, event) in enumerate(zip(run.operators, run.schedule.events, strict=True)):
            parts = [single for single, _ in operator.parts(run.schedule.shapes[index], event.expansions)]
            learns = [single.kind for single in parts if single.learns]
            if masked and learns and self.slopes[index] is not None:
                raise UserError(
                    f"events[{index}].{SLOPE}: {learns[0]} looks at the model, and has to wait for the masks "
                    "of an earlier event, not for a slope"
                )
            masked |= any(isinstance(single, Masked) for single in parts)


def load_policy(path: Path) -> Policy:
    """Read a policy: a run file or schedule file in which at least one event has a ``slope``.

    Such an event happens when the loss curve has flattened to this slope, and at its ``at`` at the
    latest. A slope is negative, because losses fall. Events without one happen at their ``at``.

    Raises:
        UserError: The file is invalid, or no event has a slope.
    """
    document, where = run_document(path)
    schedule = document["schedule"]
    events = schedule.get("events") if isinstance(schedule, dict) else None
    slopes: list[float | None] = []
    if isinstance(events, list):  # otherwise reading the run below reports the error
        slopes = [_slope(event, f"{where}: events[{index}]") for index, event in enumerate(events)]
        document = {**document, "schedule": {**schedule, "events": [_plain(event) for event in events]}}
    config = run_from(with_checkpoint(document, str(path)), path, where)
    if not any(slopes):
        raise UserError(f"{where}: no event has a {SLOPE}: nasgrow train trains it as it is")
    return Policy(config, tuple(slopes))


def dump_policy(policy: Policy) -> str:
    """Return the text of the file that :func:`load_policy` reads."""
    plain = policy.config.model_dump(mode="json", exclude_none=True)
    for event, slope in zip(plain["schedule"]["events"], policy.slopes, strict=True):
        if slope is not None:
            event[SLOPE] = slope
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


def _slope(event: object, where: str) -> float | None:
    if not isinstance(event, dict) or SLOPE not in event:
        return None
    slope: Any = event[SLOPE]
    if isinstance(slope, bool) or not isinstance(slope, int | float) or not slope < 0:
        raise UserError(f"{where}.{SLOPE}: must be a number below 0, as losses fall, not {slope!r}")
    return float(slope)


def _plain(event: object) -> object:
    """Return an event without its slope."""
    return {k: v for k, v in event.items() if k != SLOPE} if isinstance(event, dict) else event


class Watching:
    """Watches a run's evaluations, and stops it at the first one at which an event is due by its slope.

    Attributes:
        found: The index of that event and its time; None until there is one.
    """

    def __init__(self, policy: Policy, run: Run, folder: Path) -> None:
        self._slopes, self._folder = policy.slopes, folder
        self._times = [event.at for event in run.schedule.events]
        self._rate = run.config.training.learning_rate
        self.found: tuple[int, float] | None = None

    def judge(self, fraction: float, loss: float) -> None:
        """Raise :class:`StopTrainingError` if an event is due now, before its latest time.

        Set :attr:`found` to that event.
        """
        stage, curve = stage_until(self._folder, fraction, self._rate)
        if stage == len(self._times) or fraction >= self._times[stage]:
            return
        flat, slope = self._slopes[stage], slope_at_end(curve)
        if flat is not None and slope is not None and slope >= flat:
            self.found = stage, fraction
            raise StopTrainingError


def claim_policy(folder: Path, policy: Policy) -> None:
    """Write a policy to its folder, which may already hold the same policy.

    Raises:
        UserError: The folder holds another policy, or something else.
    """
    check_folder(folder, POLICY, "choose another --name")
    path = folder / POLICY
    if path.exists() and load_policy(path) != policy:
        raise UserError(f"{folder}: holds another run with slopes; choose another --name")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(path, dump_policy(policy))


def train_policy(policy: Policy, folder: Path, corpus: Corpus, observer: RunObserver) -> tuple[Run, Result]:
    """Train a policy to the end; return the last run, with the times found, and its result.

    Whenever an event is due by its slope, training continues as the run with the event at that
    time. Runs that an earlier launch finished or saved are not trained anew.

    Raises:
        InterruptedRunError: The user asked to stop; the state is saved.
        UserError: As for :meth:`Policy.resolve`, or the run's folder cannot be used.
    """
    many = policy.config.training.evaluations
    trainer = Trainer(folder, corpus, [index / many for index in range(1, many)], observer)
    while True:
        run = policy.resolve(corpus.vocab, corpus.fingerprint)
        watching = Watching(policy, run, folder / RUNS / run.identity)
        result, _ = trainer.train(run, watching.judge)
        if watching.found is None:
            return run, result
        event, at = watching.found
        observer.say(f"event {event + 1} at {at:.3g} of the budget: the loss is flat enough")
        policy = policy.earlier(event, at)


def write_found(folder: Path, file: str, policy: Policy, trained: Run) -> Path:
    """Write the run file with the times that the rule found, and return its path.

    Args:
        folder: The folder of the policy.
        file: The name of the file that held the policy, for the header.
        policy: The policy with its slopes.
        trained: The last run, which has the times found.
    """
    rules = [
        f"event {index + 1} at {event.at:.3g}" + ("" if slope is None else f" (slope {slope:g})")
        for index, (event, slope) in enumerate(zip(trained.schedule.events, policy.slopes, strict=True))
    ]
    head = (
        f"# Times found by nasgrow slope {file}: {', '.join(rules)}.\n"
        f"# It is a run like any other: nasgrow train {SCHEDULE_FILE} trains it.\n"
    )
    path = folder / SCHEDULE_FILE
    write_text(path, head + yaml.safe_dump(trained.document(), sort_keys=False, allow_unicode=True))
    return path
