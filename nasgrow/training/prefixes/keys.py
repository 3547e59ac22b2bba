"""Keys: one hash of all that determines a run's state at a step.

Two runs share a prefix up to the last step at which their keys are equal. A key must include everything that
has an effect before the step, and nothing that has an effect only later. So it includes all training
settings except those that are named here because they act later. Some settings are included by their effect:
the learning rate by the rates that were used, operators by those that have acted, a ramp by the small steps
that were done. Settings that act at events are included from the first event on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from nasgrow.config import TrainingConfig
from nasgrow.schedule import schedule_to
from nasgrow.training.budget_steps import evaluation_steps, first_step
from nasgrow.training.learning_rate import step_rates
from nasgrow.training.run import Run, acting

AT_THE_END = {"final_tokens"}
"""Training settings that act after the last step."""

AT_EVENTS = {"moments"}
"""Training settings that act from the first event on."""


@dataclass(frozen=True)
class Fork:
    """A step at which two runs with the same training so far may begin to differ.

    If an event happens at this step, the fork is before the event.

    Attributes:
        step: The number of steps done.
        charged: FLOPs charged for them.
        spent: The part of the budget spent on them, in FLOPs or nanoseconds.
        key: The hash of all that determines the state.
        kept: Whether the state is cached here for other runs. If not, a run may only pause here.
    """

    step: int
    charged: int
    spent: int
    key: str
    kept: bool


def forks(run: Run, times: Iterable[float], environment: Mapping[str, Any]) -> tuple[Fork, ...]:
    """Return the forks of a run in order: the steps at ``times`` and of evaluations, except step 0.

    Args:
        run: The run.
        times: The fractions of the budget at which states are cached.
        environment: The hardware and software that the exact bits of a result depend on.
    """
    stages, config = run.stages, run.config.training
    kept = {first_step(stages, Fraction(str(time)) * run.budget) for time in times}
    path = schedule_to(run.schedule)
    events = [[stage.first, event["grow"]] for stage, event in zip(stages[1:], path["events"], strict=True)]
    settings = config.model_dump(mode="json", exclude={"learning_rate", "operator", "ramp", *AT_THE_END})
    common = {
        "environment": dict(environment),
        "fingerprint": run.fingerprint,
        "seed": run.config.seed,
        "budget": run.budget,
        "variant": run.variant.described(),
        "start": path["start"],
        **run.origin,
    }
    base = hashlib.sha256(json.dumps(common, sort_keys=True).encode())
    rates, index, done, found = hashlib.sha256(), 0, 0, []
    used = step_rates(config.learning_rate, stages, run.budget, 0, range(stages[0].end))
    for step in sorted({step for step in (*kept, *evaluation_steps(run)) if step}):
        while done < step:
            if done == stages[index].end:
                index += 1
                steps = range(done, stages[index].end)
                used = step_rates(config.learning_rate, stages, run.budget, index, steps)
            begin, end = stages[index].first, min(step, stages[index].end)
            rates.update(used[done - begin : end - begin].astype("<f8").tobytes())
            done = end
        charged, spent = stages[index].charged(step), stages[index].spent_at(step)
        acted = {"operator": acting(run.operators[:index])} if index else {}
        later = set() if index else AT_EVENTS
        rate = config.learning_rate
        warmed = {"rewarm_new": [rate.rewarm, rate.rewarm_from]} if index and rate.warms_new else {}
        determined = {
            "training": {name: value for name, value in settings.items() if name not in later} | acted,
            "events": events[:index],
            "step": step,
            "charged": charged,
            "rates": rates.hexdigest(),
            **({"nanoseconds": spent} if run.is_timed else {}),
            **warmed,
            **({"ramp": _sizes(run.training_at(0), min(step, run.ramp_steps))} if run.ramp_steps else {}),
        }
        key = base.copy()
        key.update(json.dumps(determined, sort_keys=True).encode())
        found.append(Fork(step, charged, spent, key.hexdigest(), step in kept))
    return tuple(found)


def _sizes(small: TrainingConfig, steps: int) -> list[int | None]:
    """Return the number of steps done in the ramp, and the settings that they depend on."""
    return [steps, small.context, small.batch_tokens, small.micro_tokens]
