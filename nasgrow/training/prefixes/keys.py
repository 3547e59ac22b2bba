"""Keys: what a run's state at a step is determined by, in one hash.

Two runs share a prefix as far as their keys agree. Nothing that acts before the step may be left out
of a key, and nothing that acts only later may enter it. So the training settings enter whole, but for
those that are named here because they act later, or by their effect: the learning-rate law enters by
the rates that were used, operators by those that have acted, a ramp by the small steps that were done,
and what acts at all events only from the first one on.
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
    """A step before which runs may part: right before an event, if one happens there.

    Attributes:
        step: Steps done.
        charged: FLOPs charged for them.
        spent: What they took of the budget.
        key: The hash of all that determines the state.
        kept: Whether states are kept here for others; else a run may only pause here.
    """

    step: int
    charged: int
    spent: int
    key: str
    kept: bool


def forks(run: Run, times: Iterable[float], environment: Mapping[str, Any]) -> tuple[Fork, ...]:
    """The forks of a run in their order: the steps at ``times``, and those of its evaluations.

    Args:
        run: The run.
        times: The fractions of the budget at which states are kept.
        environment: What the bits of a result depend on besides the run.
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
    """The steps in a ramp that were done, and what they depend on."""
    return [steps, small.context, small.batch_tokens, small.micro_tokens]
