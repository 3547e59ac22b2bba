"""Frozen tensors: growing warns where new entries would stay zero, and what they belong to dead."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import pytest
from torch.optim import AdamW

from nasgrow.expansions import AddHeads, Expansion, GrowHidden, GrowKeys, GrowMlp, GrowValues, InsertLayers
from nasgrow.growth import grow
from nasgrow.model import Transformer
from nasgrow.operators import Preserve, Stack, WidthAndDepth
from nasgrow.params import ROWS
from nasgrow.verify import BASE, PAPER
from tests.growth.snapshots import everything_of, same
from tests.steps import train

WRITERS = [role for role, row in ROWS.items() if "h" in row.zero]


def freeze(model: Transformer, roles: Sequence[str], layers: Sequence[int] = (0, 1)) -> None:
    """Freeze the tensors of some roles, of some layers or of none."""
    for name, parameter in model.named_parameters():
        layer = int(name.split(".")[1]) if name.startswith("layers.") else None
        if name.split(".")[-1] in roles and (layer is None or layer in layers):
            parameter.requires_grad_(False)


DEAD: dict[str, tuple[Sequence[str], list[Expansion], str]] = {
    "heads": (["out"], [AddHeads(5)], "layers.0.heads.1.out, layers.1.heads.0.out"),
    "heads of other sizes": (["out"], [AddHeads(4, layers=(1,), key=2)], "layers.1.heads.1.out"),
    "values": (["out"], [GrowValues(9, layers=(1,)), GrowHidden(30)], "layers.1.heads.0.out"),
    "keys": (["key"], [GrowKeys(9, layers=(1,))], "layers.1.heads.0.key"),
    "MLP": (["down"], [GrowMlp(40)], "layers.0.down, layers.1.down"),
    "a layer": (["out", "down", "down_bias"], [InsertLayers((1,))], "layers.1.heads.0.out, .*layers.1.down"),
    "hidden units": (WRITERS, [GrowHidden(30)], "embedding, positions, layers.0.heads.0.out"),
}


@pytest.mark.parametrize("case", DEAD)
def test_what_stays_dead_is_named_in_a_warning(case: str) -> None:
    roles, expansions, names = DEAD[case]
    model = Transformer(BASE, PAPER)
    freeze(model, roles)
    optimizer = AdamW(p for p in model.parameters() if p.requires_grad)
    train(model, optimizer, steps=1)
    with pytest.warns(UserWarning, match=f"frozen.*: {names}"):
        grow(model, optimizer, expansions)


def test_what_grew_in_the_first_of_two_steps_is_named_too() -> None:
    model = Transformer(BASE.with_layers([BASE.layers[1]] * 2), PAPER)
    train(model, AdamW(model.parameters()), steps=1)
    freeze(model, ["down"])
    halves = WidthAndDepth(width=Preserve(), depth=Stack())
    with pytest.warns(UserWarning, match=r"frozen.*: layers\.0\.down, layers\.1\.down"):
        grow(model, None, [GrowMlp(40), GrowHidden(30), InsertLayers((2, 2))], operator=halves)


ALIVE: dict[str, tuple[Sequence[str], list[Expansion], Preserve]] = {
    "others write new hidden units": (["embedding", "down"], [GrowHidden(30)], Preserve()),
    "what is frozen does not grow": (["embedding", "key", "out"], [GrowMlp(40)], Preserve()),
    "what is frozen has values": (["value", "up", "query"], [GrowMlp(40), AddHeads(5)], Preserve()),
    "pairs have values": (["down"], [GrowMlp(40)], Preserve(new="paired")),
    "a bias may stay zero": (["down_bias"], [InsertLayers((1,))], Preserve()),
    "nothing is trained": (list(ROWS), [GrowMlp(40), InsertLayers((1,))], Preserve()),
}


@pytest.mark.parametrize("case", ALIVE)
def test_what_does_not_stay_dead_is_no_matter(case: str) -> None:
    roles, expansions, operator = ALIVE[case]
    model = Transformer(BASE, PAPER)
    freeze(model, roles)
    grow(model, None, expansions, operator=operator)


def test_a_warning_that_is_an_error_changes_nothing() -> None:
    model = Transformer(BASE, PAPER)
    freeze(model, ["down"])
    optimizer = AdamW(model.parameters())
    train(model, optimizer, steps=1)
    before = everything_of(model, optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="frozen"):
            grow(model, optimizer, [GrowMlp(40)])
    assert same(everything_of(model, optimizer), before)
