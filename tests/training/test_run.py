"""Runs: what tells them apart, and what their random draws depend on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from nasgrow.config import TrainingConfig
from nasgrow.model import Transformer
from nasgrow.params import table
from nasgrow.training.optimizers import build_optimizers
from nasgrow.training.run import Run
from nasgrow.verify import BASE, PAPER
from tests.training.runs import SCHEDULE, make_config


def make(schedule: dict[str, Any] = SCHEDULE, pattern: str = "*.txt", **changes: Any) -> Run:
    config = make_config(pattern, schedule=schedule, **changes)
    return Run.resolve(config, vocab=256, fingerprint="f")


def with_events(*events: tuple[float, list[dict[str, Any]]]) -> dict[str, Any]:
    return {"start": SCHEDULE["start"], "events": [{"at": at, "grow": grow} for at, grow in events]}


WIDER: list[dict[str, Any]] = [{"expand": "mlp", "to": 24}]
DEEPER: list[dict[str, Any]] = [{"expand": "layers", "at": [1]}]


def test_the_draw_at_an_event_depends_on_the_seed_and_the_path_up_to_it() -> None:
    run = make(with_events((0.3, WIDER), (0.6, DEEPER)))
    later = make(with_events((0.4, WIDER), (0.5, [{"expand": "hidden", "to": 12}])))
    assert run.growth_seed(0) == later.growth_seed(0)
    assert run.growth_seed(1) != later.growth_seed(1)
    assert run.growth_seed(0) != run.growth_seed(1)
    assert run.growth_seed(0) != make(with_events((0.3, WIDER)), seed=1).growth_seed(0)
    assert run.growth_seed(0) != make(with_events((0.3, DEEPER))).growth_seed(0)


@pytest.mark.parametrize("flops", [3e7, 82024425971125868, 1e30])
def test_a_description_gives_the_run_back(flops: float) -> None:
    run = make(budget={"flops": flops}, variant={"activation": "gelu"})
    again = Run.from_description(json.loads(json.dumps(run.describe())), "here")
    assert again.identity == run.identity
    assert again.budget == run.budget
    assert again.stages == run.stages


def test_large_token_budgets_survive_their_description() -> None:
    run = make(budget={"tokens": 1e14 + 1})
    assert run.budget > 2**53
    assert Run.from_description(json.loads(json.dumps(run.describe())), "here").budget == run.budget


def test_where_the_text_lies_does_not_matter_but_all_else_does() -> None:
    assert make(pattern="a/*.txt").identity == make(pattern="/b/*.txt").identity
    others = [
        make(seed=1),
        make(budget={"flops": 4e7}),
        make(variant={"tied": True}),
        make(training={"clip": None}),
        make(with_events((0.3, WIDER))),
        Run.resolve(make_config("*.txt"), vocab=256, fingerprint="g"),
        Run.resolve(make_config("*.txt"), vocab=255, fingerprint="f"),
    ]
    identities = {make().identity, *(run.identity for run in others)}
    assert len(identities) == 1 + len(others)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_matrices_decay_and_gains_and_biases_do_not(optimizer: str) -> None:
    model = Transformer(BASE, PAPER)
    config = TrainingConfig.model_validate({"optimizer": optimizer, "weight_decay": 0.3})
    entries = table(model.shape, model.variant)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    seen: set[str] = set()
    for built in build_optimizers(model, config):
        for group in built.param_groups:
            for parameter in group["params"]:
                name = names[id(parameter)]
                assert name not in seen
                seen.add(name)
                assert group["weight_decay"] == (0.3 if entries[name].row.decays else 0.0), name
                by_muon = optimizer == "muon" and entries[name].row.multiplies
                assert isinstance(built, torch.optim.Muon) == by_muon, name
    assert seen == entries.keys()


def test_a_wrong_schedule_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"events\[0\]\.at: the budget .* leaves no step for stage 2 of 2"):
        make(with_events((0.999, WIDER)), budget={"flops": 2e6})


def test_the_operator_is_part_of_a_run_and_old_runs_keep_their_identity() -> None:
    plain = make(with_events((0.3, DEEPER)))
    stacked = make(with_events((0.3, DEEPER)), training={"operator": "stack"})
    assert stacked.identity != plain.identity
    for run in (plain, stacked):
        again = Run.from_description(json.loads(json.dumps(run.describe())), "description.json")
        assert again.identity == run.identity
        assert again.config.training == run.config.training
    old = plain.describe()
    del old["training"]["operator"]
    read = Run.from_description(old, "description.json")
    assert read.identity == plain.identity == "bec0f1cbc0a7"
    assert read.config.training == plain.config.training


def named(*operators: str | None, default: str = "preserve") -> Run:
    """A run whose events name these operators."""
    events = with_events((0.3, DEEPER), (0.6, [{"expand": "layers", "at": [2]}]))
    for event, operator in zip(events["events"], operators, strict=True):
        if operator is not None:
            event["operator"] = operator
    return make(events, training={"operator": default})


def test_operators_that_act_tell_runs_apart_wherever_they_are_named() -> None:
    alike = [
        [named(None, None), named("preserve", None), named("preserve", "preserve", default="stack")],
        [named(None, None, default="stack"), named("stack", "stack"), named("stack", None, default="stack")],
        [named("stack", None), named("stack", "preserve", default="interleave")],
        [named(None, "stack"), named("preserve", None, default="stack")],
        [named("stack", "interleave"), named("stack", "interleave", default="ligo")],
        [named("interleave", "stack")],
        [named("masked(opening=0.2)", "stack")],
        [named("masked", "stack")],
    ]
    identities = [{run.identity for run in runs} for runs in alike]
    assert [len(found) for found in identities] == [1] * len(alike)
    assert len(set.union(*identities)) == len(alike)
    for run in (run for runs in alike for run in runs):
        again = Run.from_description(json.loads(json.dumps(run.describe())), "description.json")
        assert (again.identity, again.operators, again.stages) == (run.identity, run.operators, run.stages)


def test_what_looks_at_the_model_waits_until_masks_are_open() -> None:
    with pytest.raises(
        ValueError,
        match=r"^events\[1\]\.operator: ligo looks at the model, and cannot see the masks of events\[0\], "
        r"which open until 0\.6\d* of the budget",
    ):
        named("masked(opening=0.35)", "ligo(steps=1)")
    assert named("masked(opening=0.2)", "ligo(steps=1)").stages
    assert named("ligo(steps=1)", "masked").stages


def test_an_operator_that_cannot_do_an_event_is_refused_before_anything_starts() -> None:
    with pytest.raises(ValueError, match=r"^events\[1\]\.grow: operator stack cannot grow mlp"):
        make(with_events((0.3, DEEPER), (0.6, WIDER)), training={"operator": "stack"})
