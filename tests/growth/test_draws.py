"""The random values that growing draws: never the same twice, and the same whatever the circumstances."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

import pytest
import torch
from torch import Tensor
from torch.optim import AdamW

from nasgrow.expansions import AddHeads, Expansion, GrowHidden, GrowMlp, InsertLayers
from nasgrow.growth import grow
from nasgrow.model import Transformer
from nasgrow.params import table
from nasgrow.shape import Shape
from nasgrow.verify import PAPER
from tests.growth.snapshots import same
from tests.steps import train

SHAPE = Shape.uniform(hidden=6, layers=2, mlp=6, heads=2, key=3, value=3)


def values_of(model: Transformer) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def random_names(model: Transformer) -> list[str]:
    """The tensors that start at random."""
    return [name for name, e in table(model.shape, model.variant).items() if e.row.start is None]


def slices(tensor: Tensor, axis: int) -> set[tuple[float, ...]]:
    """The rows (axis 0) or columns (axis 1) of a matrix."""
    return {tuple(part.tolist()) for part in tensor.unbind(axis)}


# Each of these doubles one side of a matrix twice, so that the box of every draw has the sizes of the one
# before it: a stream that is used again shows in every row and column.
DOUBLED: dict[str, tuple[str, int, list[Expansion]]] = {
    "MLP columns": ("layers.0.up", 1, [GrowMlp(12), GrowMlp(18)]),
    "output rows": ("output", 0, [GrowHidden(12), GrowHidden(18)]),
    "rows of the MLP": ("layers.1.up", 0, [GrowHidden(12), GrowHidden(18)]),
    "keys of heads": ("layers.1.heads.0.key", 1, [AddHeads(4), AddHeads(6)]),
}


@pytest.mark.parametrize("case", DOUBLED)
def test_two_events_and_the_model_they_grow_share_no_row_or_column(case: str) -> None:
    name, axis, events = DOUBLED[case]
    model = Transformer(SHAPE, PAPER)
    drawn = [slices(model.get_parameter(name).detach(), axis)]
    for event in events:
        grow(model, None, [event])
        drawn.append(slices(model.get_parameter(name).detach().narrow(axis, 6 * len(drawn), 6), axis))
    assert [len(of_event) for of_event in drawn] == [6, 6, 6]
    assert not any(a & b for a, b in combinations(drawn, 2))


def test_inserted_layers_are_neither_the_first_of_their_name_nor_one_another() -> None:
    model = Transformer(SHAPE, PAPER)
    drawn = [values_of(model)]
    for _ in range(2):
        grow(model, None, [InsertLayers((0, 0))])
        drawn.append(values_of(model))
    for name in random_names(Transformer(SHAPE, PAPER)):
        if name.startswith("layers.") and drawn[1][name].any():
            assert not any(torch.equal(a[name], b[name]) for a, b in combinations(drawn, 2)), name


def drawn_by(expansions: Sequence[Expansion], *, steps: int = 0, seed: int = 0) -> list[tuple[str, Tensor]]:
    """The new parts of a model that was trained for some steps and then grown."""
    model = Transformer(SHAPE, PAPER, dtype=torch.float64)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    train(model, optimizer, steps)
    growth = grow(model, optimizer, expansions, seed=seed)
    return [(name, part.clone()) for name, part in growth.new_parts(values_of(model))]


EVENT: list[Expansion] = [GrowHidden(9), GrowMlp(9), AddHeads(3), InsertLayers((1,))]


def test_the_draw_does_not_depend_on_the_training_before() -> None:
    assert same(drawn_by(EVENT), drawn_by(EVENT, steps=4))


def test_the_draw_depends_on_the_shape_that_is_grown_to() -> None:
    alone = dict(drawn_by([GrowMlp(9)]))["layers.0.up"]
    together = dict(drawn_by([GrowMlp(9), AddHeads(3)]))["layers.0.up"]
    assert alone.shape == together.shape
    assert not (alone == together).any()


@pytest.fixture
def double_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("double_by_default")
def test_the_draw_does_not_depend_on_the_default_dtype() -> None:
    fresh, grown = values_of(Transformer(SHAPE, PAPER, dtype=torch.float64)), drawn_by(EVENT)
    assert {p.dtype for p in Transformer(SHAPE, PAPER).parameters()} == {torch.float32}
    torch.set_default_dtype(torch.float32)
    assert same(fresh, values_of(Transformer(SHAPE, PAPER, dtype=torch.float64)))
    assert same(grown, drawn_by(EVENT))


def test_the_draw_does_not_depend_on_the_default_device() -> None:
    plain = Transformer(SHAPE, PAPER)
    grow(plain, None, EVENT)
    with torch.device("meta"):
        model = Transformer(SHAPE, PAPER)
        grow(model, None, EVENT)
    assert same(values_of(model), values_of(plain))


def meta_step(model: Transformer, optimizer: AdamW) -> None:
    """A step of a model that has sizes but no values."""
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()


def test_a_model_without_values_grows_and_stays_without() -> None:
    model = Transformer(SHAPE, PAPER, device="meta")
    optimizer = AdamW(model.parameters())
    meta_step(model, optimizer)
    grow(model, optimizer, EVENT)
    assert {p.device.type for p in model.parameters()} == {"meta"}
    moments = [state[key] for state in optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]
    assert moments
    assert {moment.device.type for moment in moments} == {"meta"}
    stored = {name: tuple(p.shape) for name, p in model.named_parameters()}
    assert stored == {name: entry.stored for name, entry in table(model.shape, model.variant).items()}
    meta_step(model, optimizer)
