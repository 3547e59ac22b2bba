"""The contract that every operator is held to; one that is registered is covered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import AdamW

from nasgrow.data import Corpus
from nasgrow.expansions import (
    EXPANSION_TYPES,
    AddHeads,
    Expansion,
    GrowHidden,
    GrowKeys,
    GrowMlp,
    GrowValues,
    InsertLayers,
    expand,
)
from nasgrow.growth import grow
from nasgrow.growth.masks import masked
from nasgrow.growth.operators import RECIPES
from nasgrow.growth.operators.grown_weights import weights_of
from nasgrow.model import Transformer
from nasgrow.operators import (
    ALL,
    OPERATORS,
    AnyOperator,
    Bert2Bert,
    Net2Net,
    Preserve,
    Stack,
    WidthAndDepth,
)
from nasgrow.params import table
from nasgrow.shape import Shape, Variant
from nasgrow.training.loop import InterruptedRunError
from nasgrow.training.records import read_metrics
from nasgrow.training.run import Run
from nasgrow.verify import KEY_FIXED, LIMITS, PAPER, VARIANTS
from tests.growth.operators.cases import SHORT, batches, ids
from tests.growth.snapshots import copied, everything_of, same
from tests.steps import tokens_for, train
from tests.training.runs import equal, make_run, run_in, stop_after, weights

SHAPE = Shape.uniform(hidden=8, layers=2, mlp=12, heads=2, key=4, value=6)
DOUBLED: Mapping[str, Expansion] = {
    "hidden": GrowHidden(16),
    "layers": InsertLayers((2, 2)),
    "mlp": GrowMlp(24),
    "key": GrowKeys(8),
    "value": GrowValues(12),
    "heads": AddHeads(4),
}
"""Whole factors of everything, which every operator that grows it can do."""
OPTIONS: Sequence[AnyOperator] = [
    Preserve(init="matched"),
    Preserve(new="paired"),
    Preserve(new="split"),
    Net2Net(noise=0),
    Bert2Bert(init="fpi"),
    WidthAndDepth(width=Net2Net(), depth=Stack()),
]
"""Options that are worth a turn of their own, such as one that makes an operator exact; and a pair."""
CASES = [*(SHORT.get(name) or cls() for name, cls in OPERATORS.items()), *OPTIONS]  # type: ignore[call-arg]
NEARLY = 0.03
"""The largest relative change of a logit that counts as nearly preserved. Who claims it adds noise of 0.01 of
the values, and was measured at 0.001 to 0.016."""


def grown_by(operator: AnyOperator) -> list[str]:
    """The expansions that it can do in some variant."""
    return [
        kind
        for kind in EXPANSION_TYPES
        if all(kind in one.grows for one, k in operator.split(frozenset({kind})) if k)
    ]


def event_for(operator: AnyOperator, variant: Variant) -> list[Expansion]:
    """All that an operator can grow at once."""
    found = []
    for kind in grown_by(operator):
        try:
            operator.check_kinds(frozenset({kind}), variant)
        except ValueError:
            continue
        found.append(DOUBLED[kind])
    return found


def trained(variant: Variant = PAPER, dtype: torch.dtype = torch.float64) -> tuple[Transformer, AdamW]:
    return copied(*_trained(variant, dtype))


@cache
def _trained(variant: Variant, dtype: torch.dtype) -> tuple[Transformer, AdamW]:
    model = Transformer(SHAPE, variant, dtype=dtype)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, steps=3)
    return model, optimizer


def grown(
    operator: AnyOperator, variant: Variant = PAPER, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[Transformer, AdamW]:
    model, optimizer = trained(variant, dtype)
    event = event_for(operator, model.variant)
    grow(model, optimizer, event, seed=seed, operator=operator, batches=batches)
    return model, optimizer


def test_what_is_declared_is_implemented() -> None:
    assert set(RECIPES) == set(OPERATORS)


@pytest.mark.parametrize("operator", CASES, ids=ids)
class TestContract:
    def test_the_declaration_is_complete(self, operator: AnyOperator) -> None:
        assert grown_by(operator)
        for single, _ in operator.split(ALL):
            assert single.grows <= set(EXPANSION_TYPES)
            assert single.source
            assert type(single).__doc__

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    def test_shapes_dtype_and_state(self, operator: AnyOperator, dtype: torch.dtype) -> None:
        model, optimizer = grown(operator, dtype=dtype)
        assert model.shape == expand(SHAPE, event_for(operator, model.variant))[0]
        stored = {name: tuple(p.shape) for name, p in model.named_parameters()}
        assert stored == {name: entry.stored for name, entry in table(model.shape, model.variant).items()}
        assert {p.dtype for p in model.parameters()} == {dtype}
        held = [p for group in optimizer.param_groups for p in group["params"]]
        assert [id(p) for p in held] == [id(p) for p in model.parameters()]
        for parameter, state in optimizer.state.items():
            for key in ("exp_avg", "exp_avg_sq"):
                assert state[key].shape == parameter.shape
                assert state[key].dtype == dtype
            assert (state["exp_avg_sq"] >= 0).all()
        pointers = [p.data_ptr() for p in model.parameters()]
        assert len(set(pointers)) == len(pointers), "no two tensors share their memory"
        if dtype == torch.float32:
            losses = train(model, optimizer, steps=24, first=3)
            assert sum(losses[-3:]) < sum(losses[:3])

    def test_the_device_is_kept(self, operator: AnyOperator) -> None:
        """The device of tests is the CPU; under another default it must stay the model's own."""
        model, optimizer = trained()
        with torch.device("meta"):
            event = event_for(operator, model.variant)
            grow(model, optimizer, event, operator=operator, batches=batches)
        tensors = [t for state in optimizer.state.values() for t in state.values() if isinstance(t, Tensor)]
        assert {t.device.type for t in [*model.parameters(), *tensors]} == {"cpu"}

    def test_the_same_event_gives_the_same_bits(self, operator: AnyOperator) -> None:
        before = torch.random.get_rng_state()
        one, other = (everything(*grown(operator, seed=4)) for _ in range(2))
        assert same(one, other)
        assert torch.equal(torch.random.get_rng_state(), before)

    def test_what_it_cannot_grow_is_refused_and_changes_nothing(self, operator: AnyOperator) -> None:
        for kind in set(EXPANSION_TYPES) - set(grown_by(operator)):
            model, optimizer = trained()
            before = everything_of(model, optimizer)
            with pytest.raises(ValueError, match=f"operator {operator.kind} cannot grow {kind}"):
                grow(model, optimizer, [DOUBLED[kind]], operator=operator)
            assert same(everything_of(model, optimizer), before)

    def test_an_error_in_the_middle_changes_nothing(
        self, operator: AnyOperator, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model, optimizer = trained()
        before = everything_of(model, optimizer)
        done = []

        def failing(*args: Any, **options: Any) -> Tensor:
            done.append(args)
            if len(done) == 20:
                raise MemoryError("no room")
            return weights_of(*args, **options)

        monkeypatch.setattr("nasgrow.growth.engine.weights_of", failing)
        with pytest.raises(MemoryError):
            grow(
                model,
                optimizer,
                event_for(operator, model.variant),
                operator=operator,
                batches=batches,
            )
        assert same(everything_of(model, optimizer), before)

    @pytest.mark.parametrize("variant", [*VARIANTS, "qk norm"])
    def test_preservation_is_what_it_claims(self, operator: AnyOperator, variant: str) -> None:
        model, _ = trained({**VARIANTS, **KEY_FIXED}[variant])
        tokens_bs = tokens_for(PAPER)
        with torch.no_grad():
            before = model(tokens_bs)
            event = event_for(operator, model.variant)
            growth = grow(model, None, event, operator=operator, batches=batches)
            with masked(model, growth.masks, spent=0):
                change = float((model(tokens_bs) - before).abs().max() / before.abs().max())
        if operator.preserves == "exact":
            assert change <= LIMITS["float64"]
        elif operator.preserves == "nearly":
            assert LIMITS["float64"] < change <= NEARLY
        else:
            assert change > LIMITS["float64"]

    def test_a_run_that_is_interrupted_after_its_event_ends_with_the_same_bits(
        self, operator: AnyOperator, place: Path
    ) -> None:
        """Interrupted before the event, right after it, and a little later."""
        run, corpus = run_with(operator, place)
        whole, parted = place / f"{ids(operator)} whole", place / f"{ids(operator)} parted"
        run_in(whole, run, corpus)
        for steps in (run.stages[1].first - 1, 2, 1):
            with pytest.raises(InterruptedRunError):
                run_in(parted, run, corpus, stop=stop_after(steps))
        run_in(parted, run, corpus)
        assert equal(weights(whole, run), weights(parted, run))
        event = next(record for record in read_metrics(whole) if record["kind"] == "event")
        assert event["charged"] == run.stages[1].spent
        assert event["new_gradient"] > 0


def everything(model: Transformer, optimizer: AdamW) -> list[Any]:
    """All values, without identities."""
    return [(name, p.detach(), optimizer.state.get(p, {})) for name, p in model.named_parameters()]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("operators")


START = {"hidden": 8, "layers": 1, "mlp": 8, "heads": 2, "key": 4, "value": 4}
GROW: Mapping[str, dict[str, Any]] = {
    "hidden": {"expand": "hidden", "to": 16},
    "layers": {"expand": "layers", "at": [1]},
    "mlp": {"expand": "mlp", "to": 16},
    "key": {"expand": "key", "to": 8},
    "value": {"expand": "value", "to": 8},
    "heads": {"expand": "heads", "to": 4},
}


def run_with(operator: AnyOperator, folder: Path) -> tuple[Run, Corpus]:
    """A short run with one event that grows all that the operator can."""
    grow = [item for kind, item in GROW.items() if kind in grown_by(operator)]
    schedule = {"start": START, "events": [{"at": 0.1, "grow": grow}]}
    training = {"operator": operator.model_dump(), "evaluations": 2}
    return make_run(folder, schedule=schedule, training=training, budget={"flops": 4e7})
