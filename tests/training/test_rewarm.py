"""A warm-up of new entries alone: the others train as if there were none."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from nasgrow.config import LearningRate, TrainingConfig
from nasgrow.data import Corpus
from nasgrow.expansions import AddHeads, GrowHidden, InsertLayers
from nasgrow.flops import parameter_count
from nasgrow.growth import Growth, grow
from nasgrow.growth.masks import Mask, warming_up
from nasgrow.model import Transformer
from nasgrow.params import index, table
from nasgrow.shape import Shape, Variant
from nasgrow.training import checkpoint
from nasgrow.training.loop import InterruptedRunError
from nasgrow.training.optimizers import build_optimizers
from nasgrow.training.records import CHECKPOINTS, read_metrics
from nasgrow.training.run import Run
from nasgrow.training.state import TrainState
from nasgrow.training.step import update
from tests.steps import backward, train
from tests.training.runs import SCHEDULE, equal, make_run, run_in, stop_after, timeless, weights

VARIANT = Variant(vocab=11, context=6)
RATE = 0.01


def stepped(optimizer: str, share: float) -> tuple[Transformer, Growth, dict[str, Tensor]]:
    """A model one step after an event, with its values before that step; new entries moved by a share."""
    model = Transformer(Shape.uniform(hidden=8, layers=1, mlp=16, heads=2, key=4, value=4), VARIANT, seed=0)
    optimizers = build_optimizers(model, TrainingConfig.model_validate({"optimizer": optimizer}))
    for one in optimizers:
        for group in one.param_groups:
            group["lr"] = RATE
    train(model, optimizers, 3)
    growth = grow(model, optimizers, [GrowHidden(12), AddHeads(3), InsertLayers((1,))])
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    backward(model, 3)
    with warming_up(model, growth.warming([], 0.5, 0.2), 0.55, 4 / 3 * (share - 0.25)):  # m is 0.25
        update(optimizers, model, RATE, None)
    return model, growth, before


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_new_entries_move_by_a_share_and_old_ones_to_the_bit_as_without(optimizer: str) -> None:
    whole, growth, before = stepped(optimizer, 1.0)
    part, _, _ = stepped(optimizer, 0.4)
    moved = 0
    for name, values in before.items():
        new = torch.zeros(growth.plans[name].entry.sizes, dtype=torch.bool)
        for box in growth.added[name]:
            new[index(box)] = True
        new = new.view(values.shape)
        a, b = whole.get_parameter(name).detach(), part.get_parameter(name).detach()
        assert torch.equal(a[~new], b[~new]), name
        torch.testing.assert_close((b - values)[new], 0.4 * (a - values)[new], rtol=1e-4, atol=1e-7)
        moved += int((a != b).sum())
    assert moved > 500


def test_the_first_update_of_a_new_zero_entry_is_its_share_of_the_learning_rate() -> None:
    """Adam's first update is the sign of the gradient, and zero weights do not decay."""
    model, growth, _ = stepped("adamw", 0.4)
    (zeros,) = (plan.zeros for name, plan in growth.plans.items() if name == "embedding")
    moved = model.embedding.detach()[index(zeros[0])]
    known = moved[moved != 0]  # tokens that no sequence had
    assert len(known)
    torch.testing.assert_close(known.abs(), torch.full_like(known, 0.4 * RATE), rtol=1e-3, atol=0)


MERGING: dict[str, Any] = {
    **SCHEDULE,
    "events": [
        SCHEDULE["events"][0],
        {
            "at": 0.4,
            "operator": {"width": "preserve", "depth": "stack"},
            "grow": [{"expand": "key", "to": 6, "heads": [1]}, {"expand": "layers", "at": [1]}],
        },
    ],
}
"""The groups of heads that the first event parts become one, and a layer is copied."""


def warm_run(folder: Path, **rate: Any) -> tuple[Run, Corpus]:
    """The entries of the first event, at 30%, still warm up at the second, at 40%."""
    changes = {"rewarm": 0.2, "rewarm_from": 0.1, **rate}
    return make_run(folder, schedule=MERGING, training={"learning_rate": changes}, budget={"flops": 6e7})


def entries_of(state: TrainState, parts: Iterable[Mask]) -> int:
    """How many entries some boxes hold; none is in two."""
    sizes = {name: entry.sizes for name, entry in table(state.model.shape, state.model.variant).items()}
    held = {name: torch.zeros(size) for name, size in sizes.items()}
    for part in parts:
        held[part.name][index(part.box)] += 1
    assert all(bool((tensor <= 1).all()) for tensor in held.values())
    return int(sum(tensor.sum() for tensor in held.values()))


def test_a_run_that_is_interrupted_while_new_entries_warm_up_ends_with_the_same_bits(tmp_path: Path) -> None:
    run, corpus = warm_run(tmp_path, rewarm_scope="new")
    whole, parted = tmp_path / "whole", tmp_path / "parted"
    run_in(whole, run, corpus)
    begun = [stage.spent / run.budget for stage in run.stages]
    counts = [parameter_count(stage.shape, run.variant) for stage in run.stages]
    added = {begun[1]: counts[1] - counts[0], begun[2]: counts[2] - counts[1]}
    last = next(
        s for s in range(run.stages[2].end) if run.stages[2].spent_at(s) > (begun[1] + 0.2) * run.budget
    )
    places = ((run.stages[1].first + 1, [1]), (run.stages[2].first + 1, [1, 2]), (last, [2]))
    for at, warming in places:
        state = checkpoint.load(parted / CHECKPOINTS, run, pytest.fail)
        with pytest.raises(InterruptedRunError):
            run_in(parted, run, corpus, stop=stop_after(at - (state.step if state else 0)))
        state = checkpoint.load(parted / CHECKPOINTS, run, pytest.fail)
        assert state is not None
        assert {part.begun for part in state.warming} == {begun[event] for event in warming}
        for event in warming:
            own = [part for part in state.warming if part.begun == begun[event]]
            assert entries_of(state, own) == added[begun[event]]
    run_in(parted, run, corpus)
    assert equal(weights(whole, run), weights(parted, run))
    assert timeless(list(read_metrics(whole))) == timeless(list(read_metrics(parted)))
    end = checkpoint.load(whole / CHECKPOINTS, run, pytest.fail)
    assert end is not None
    assert not end.warming


def test_old_entries_learn_at_the_rate_of_a_run_without_a_warm_up(tmp_path: Path) -> None:
    def rates(name: str, **rate: Any) -> list[float]:
        run, corpus = warm_run(tmp_path, **rate)
        with pytest.raises(InterruptedRunError):
            run_in(tmp_path / name, run, corpus, stop=stop_after(run.stages[2].end * 2 // 3))
        return [r["learning_rate"] for r in read_metrics(tmp_path / name) if r["kind"] == "train"]

    assert rates("new", rewarm_scope="new") == rates("none", rewarm=0.0) != rates("all")


def test_the_default_scope_is_no_part_of_a_description() -> None:
    assert "rewarm_scope" not in LearningRate().model_dump()
    assert LearningRate(rewarm_scope="new").model_dump()["rewarm_scope"] == "new"
