"""The initialisers of free values, and new units without zero slices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from nasgrow.expansions import AddHeads, Expansion, GrowHidden, GrowKeys, GrowMlp
from nasgrow.growth import grow
from nasgrow.model import Transformer
from nasgrow.operators import Preserve
from nasgrow.shape import HeadGroup, Layer, Shape
from nasgrow.verify import BASE, EXPANSIONS, LIMITS, PAPER, VARIANTS
from tests.steps import perturb, tokens_for

SHAPE = Shape.uniform(hidden=24, layers=1, mlp=40, heads=2, key=4, value=4)


def test_matched_values_are_fresh_ones_with_the_spread_of_the_old() -> None:
    found = []
    for init in ("fresh", "matched"):
        model = Transformer(SHAPE, PAPER, dtype=torch.float64)
        perturb(model, scale=2.0)
        old = model.get_parameter("layers.0.up").detach().numpy().copy()
        grow(model, None, [GrowMlp(80)], operator=Preserve.model_validate({"init": init}))
        found.append(model.get_parameter("layers.0.up").detach().numpy()[:, 40:])
        assert not model.get_parameter("layers.0.up_bias")[40:].any()
    root = np.sqrt((old**2).mean())
    np.testing.assert_allclose(found[1], found[0] * root * np.sqrt(24), rtol=1e-6)
    assert 0.9 < np.sqrt((found[1] ** 2).mean()) / root < 1.1


def test_a_tensor_that_is_zero_still_gets_fresh_values() -> None:
    model = Transformer(SHAPE, PAPER)
    with torch.no_grad():
        model.output.zero_()
    grow(model, None, [GrowHidden(30)], operator=Preserve(init="matched"))
    assert model.output[24:].all()


# New units without zero slices

SMALL = Shape(5, (Layer(3, (HeadGroup(2, 4, 3),)),))
PAIRED, SPLIT = Preserve(new="paired"), Preserve(new="split")


def values(model: Transformer, name: str) -> NDArray[np.float64]:
    return np.array(model.get_parameter(name).detach().numpy())


def grown(expansion: Expansion, operator: Preserve, *names: str) -> dict[str, tuple[Any, Any]]:
    """Tensors before and after."""
    model = Transformer(SMALL, PAPER, dtype=torch.float64)
    perturb(model)
    before = {name: values(model, name) for name in names}
    grow(model, None, [expansion], operator=operator)
    return {name: (before[name], values(model, name)) for name in names}


def test_pairs_are_written_alike_and_read_with_opposite_signs() -> None:
    """f(x u) w + f(x u) (-w) = 0; of an odd number the last has a zero slice."""
    found = grown(GrowMlp(8), PAIRED, "layers.0.up", "layers.0.down")
    (up, new_up), (down, new_down) = found.values()
    assert np.array_equal(new_up[:, :3], up)
    assert np.array_equal(new_up[:, 3:5], new_up[:, 5:7])
    assert np.array_equal(new_down[:3], down)
    assert np.array_equal(new_down[3:5], -new_down[5:7])
    assert new_down[3:7].all()
    assert not new_down[7].any()

    heads = "layers.0.heads.0."
    new = "layers.0.heads.1."
    model = Transformer(SMALL, PAPER, dtype=torch.float64)
    grow(model, None, [AddHeads(3, value=4)], operator=PAIRED)
    assert np.array_equal(values(model, f"{new}value")[:, :2], values(model, f"{new}value")[:, 2:])
    assert np.array_equal(values(model, f"{new}out")[:2], -values(model, f"{new}out")[2:])
    assert values(model, f"{new}out").all()

    found = grown(GrowKeys(8), PAIRED, f"{heads}query", f"{heads}key")
    (_, query), (old, key) = ([t.reshape(5, 2, -1) for t in pair] for pair in found.values())
    assert np.array_equal(query[..., 4:6], query[..., 6:])
    assert np.array_equal(key[..., 4:6], -key[..., 6:])
    assert key.all()
    np.testing.assert_allclose(key[..., :4], old * np.sqrt(8 / 4), rtol=1e-15)


def test_copies_split_what_reads_them_unevenly() -> None:
    """w = s w + (1 - s) w with s = 2/3; three copies have 3/6, 2/6 and 1/6."""
    found = grown(GrowMlp(8), SPLIT, "layers.0.up", "layers.0.down")
    g = np.array([0, 1, 2, 0, 1, 2, 0, 1])
    shares = np.array([3 / 6, 3 / 6, 2 / 3, 2 / 6, 2 / 6, 1 / 3, 1 / 6, 1 / 6])
    (up, new_up), (down, new_down) = found.values()
    assert np.array_equal(new_up, up[:, g])
    np.testing.assert_allclose(new_down, down[g] * shares[:, None], rtol=1e-14)

    found = grown(GrowHidden(10), SPLIT, "embedding", "layers.0.up")
    g = np.tile(np.arange(5), 2)
    roots = np.sqrt(np.repeat([2 / 3, 1 / 3], 5))
    (embedding, new_embedding), (up, new_up) = found.values()
    np.testing.assert_allclose(new_embedding, embedding[:, g] * roots, rtol=1e-14)
    np.testing.assert_allclose(new_up, up[g] * roots[:, None], rtol=1e-14)


@pytest.mark.parametrize("operator", [PAIRED, SPLIT], ids=["paired", "split"])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("expansion", ["subset", "everything"])
def test_any_sizes_are_exact(operator: Preserve, variant: str, expansion: str) -> None:
    """Unequal layers and heads, sizes that are no multiples."""
    model = Transformer(BASE, VARIANTS[variant], dtype=torch.float64)
    perturb(model)
    tokens_bs = tokens_for(PAPER)
    with torch.no_grad():
        before = model(tokens_bs)
        grow(model, None, EXPANSIONS[expansion], operator=operator)
        change = float((model(tokens_bs) - before).abs().max() / before.abs().max())
    assert change <= LIMITS["float64"]
