"""What determines a state, and what does not: runs share a prefix as far as their keys agree."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from nasgrow.config import LearningRate, TrainingConfig
from nasgrow.training.machine import numerics
from nasgrow.training.run import Run
from tests.training import runs
from tests.training.prefixes import BUDGET, FIRST, SECOND, START, WIDER, keys, schedule
from tests.training.runs import CPU

FROM_THE_START: dict[str, Any] = {
    "training.context": {"training": {"context": 32}},
    "training.batch_tokens": {"training": {"batch_tokens": 128}},
    "training.micro_tokens": {"training": {"micro_tokens": 32}},
    "training.ramp": {"training": {"ramp": {"until": 0.5, "context": 8}}},
    "training.optimizer": {"training": {"optimizer": "muon"}},
    "training.weight_decay": {"training": {"weight_decay": 0.2}},
    "training.beta1": {"training": {"beta1": 0.8}},
    "training.beta2": {"training": {"beta2": 0.9}},
    "training.clip": {"training": {"clip": None}},
    "training.evaluations": {"training": {"evaluations": 10}},
    "training.evaluation_tokens": {"training": {"evaluation_tokens": 128}},
    "learning_rate.peak": {"training": {"learning_rate": {"peak": 6.000001e-3}}},
    "learning_rate.warmup": {"training": {"learning_rate": {"warmup": 0.2}}},
    "learning_rate.width_power": {"training": {"learning_rate": {"width_power": 0.5}}},
    "law cosine": {"training": {"learning_rate": {"law": "cosine"}}},
    "seed": {"seed": 1},
    "budget": {"budget": {"flops": 6.01e7}},
    "variant": {"variant": {"norm": "after"}},
    "start": {"schedule": {"start": {**START, "mlp": 20}, "events": [FIRST, SECOND]}},
}
FROM_THE_FIRST_EVENT: dict[str, Any] = {
    "training.moments": {"training": {"moments": "reset"}},
    "training.operator": {"training": {"operator": {"kind": "preserve", "init": "matched"}}},
    "learning_rate.rewarm": {"training": {"learning_rate": {"rewarm": 0.2}}},
    "learning_rate.rewarm_from": {"training": {"learning_rate": {"rewarm_from": 0.5}}},
    "learning_rate.rewarm_scope": {"training": {"learning_rate": {"rewarm_scope": "new"}}},
    "learning_rate.event_factor": {"training": {"learning_rate": {"event_factor": 0.5}}},
    "what the event grows": {
        "schedule": schedule({**FIRST, "grow": [{"expand": "hidden", "to": 16}]}, SECOND)
    },
    "the event's own operator": {"schedule": schedule({**FIRST, "operator": "net2net"}, SECOND)},
    "no such event": {"schedule": schedule(SECOND)},
}
FROM_THE_SECOND_EVENT: dict[str, Any] = {
    "the second event's own operator": {"schedule": schedule(FIRST, {**SECOND, "operator": "net2net"})},
    "the operator of all but the first": {
        "schedule": schedule({**FIRST, "operator": "preserve"}, SECOND),
        "training": {"operator": "net2net"},
    },
    "where a layer is put, at the same cost": {
        "schedule": schedule(FIRST, {**SECOND, "grow": [{"expand": "layers", "at": [0]}, SECOND["grow"][1]]})
    },
}
FROM_THE_DECAY: dict[str, Any] = {
    "learning_rate.final": {"training": {"learning_rate": {"final": 0.1}}},
    "learning_rate.decay": {"training": {"learning_rate": {"decay": 0.2}}},
    "learning_rate.law": {"training": {"learning_rate": {"law": "constant"}}},
}
NEVER: dict[str, Any] = {
    "training.final_tokens": {"training": {"final_tokens": 256}},
    "training.trackers": {"training": {"trackers": ["tensorboard"]}},
    "an operator that never acts": {
        "schedule": schedule({**FIRST, "operator": "preserve"}, {**SECOND, "operator": "preserve"}),
        "training": {"operator": "net2net"},
    },
    "an event later on": {"schedule": schedule(FIRST, SECOND, {**WIDER, "at": 0.85})},
    "the time of an event that happens at the same step": {
        "schedule": schedule({**FIRST, "at": 0.2999}, SECOND)
    },
}


def described(**changes: Any) -> Run:
    """A run that nobody trains, on data that nobody reads."""
    config = runs.make_config("text", **{"budget": {"flops": BUDGET}, **changes})
    return Run.resolve(config, vocab=256, fingerprint="text")


@pytest.mark.parametrize(
    ("name", "change", "first"),
    [
        *((name, change, 10) for name, change in FROM_THE_START.items()),
        *((name, change, 40) for name, change in FROM_THE_FIRST_EVENT.items()),
        *((name, change, 70) for name, change in FROM_THE_SECOND_EVENT.items()),
        *((name, change, 80) for name, change in FROM_THE_DECAY.items()),
        *((name, change, 101) for name, change in NEVER.items()),
    ],
)
def test_a_change_prevents_reuse_from_where_it_acts_on(name: str, change: dict[str, Any], first: int) -> None:
    """Events are at 0.3 and 0.6; the decay begins at 0.7."""
    ours, theirs = keys(described()), keys(described(**change))
    for percent in ours:
        if percent != 70 or name not in FROM_THE_DECAY:  # a step may begin before the decay and end in it
            assert (ours[percent] == theirs[percent]) == (percent < first), (name, percent)


def test_every_training_setting_is_among_these() -> None:
    tried = [*FROM_THE_START, *FROM_THE_FIRST_EVENT, *FROM_THE_DECAY, *NEVER]
    named = {name.split(".")[1] for name in tried if "." in name}
    assert named | {"learning_rate"} == {*TrainingConfig.model_fields, *LearningRate.model_fields}


def test_the_scope_of_a_warm_up_matters_only_where_there_is_one() -> None:
    def ours(**rate: Any) -> dict[int, str]:
        return keys(described(training={"learning_rate": rate}))

    assert ours(rewarm=0.0) == ours(rewarm=0.0, rewarm_scope="new")
    assert ours(rewarm_from=1.0) == ours(rewarm_from=1.0, rewarm_scope="new")
    new = ours(rewarm=0.1, rewarm_scope="new")
    for other in (ours(rewarm=0.0), ours(rewarm=0.2, rewarm_scope="new")):
        assert [percent for percent in new if new[percent] == other[percent]] == [10, 20, 30]


def test_other_data_another_vocabulary_or_another_environment_prevent_reuse() -> None:
    run = described()
    ours, config = keys(run), run.config
    others = [
        keys(replace(run, fingerprint="other")),
        keys(Run.resolve(config, vocab=300, fingerprint=run.fingerprint)),
    ]
    environment = numerics(CPU)
    assert {"nasgrow", "versions", "device", "threads", "dtype", "instructions", "system"} < set(environment)
    others += [keys(run, {**environment, name: "other"}) for name in environment]
    for theirs in others:
        assert not set(ours.values()) & set(theirs.values())


def test_a_key_is_of_the_state_before_an_event() -> None:
    """Growing now and waiting share it; after the event they part."""
    now, wait = (keys(described(schedule=schedule(*events))) for events in ([FIRST], []))
    assert [percent for percent in now if now[percent] == wait[percent]] == [10, 20, 30]
