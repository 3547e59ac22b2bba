"""Every entry of a grown model has its own history: against an AdamW that counts steps entry by entry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import AdamW

from nasgrow.adam_ages import AGES
from nasgrow.expansions import AddHeads, Expansion, GrowHidden, GrowKeys, GrowMlp, GrowValues
from nasgrow.growth import Growth, grow
from nasgrow.growth.plan import TensorPlan, overlap
from nasgrow.model import Transformer
from nasgrow.params import index, table
from nasgrow.shape import Shape
from nasgrow.verify import BASE, EXPANSIONS, PAPER
from tests.steps import train
from tests.strategies import examples, expansion_sequences, shapes, variants

RATE, DECAY, EPSILON = 1e-2, 0.1, 1e-8
Betas = tuple[float, float]


@dataclass
class Entries:
    """One tensor: the value, the moments and the age of each entry, with the table's axes."""

    values: Tensor
    first: Tensor
    second: Tensor
    age: Tensor

    @staticmethod
    def born(values: Tensor) -> Entries:
        values = values.detach().clone()
        return Entries(values, *(torch.zeros_like(values) for _ in range(3)))

    def step(self, gradient: Tensor, betas: Betas) -> None:
        """AdamW (Loshchilov & Hutter, 2019, algorithm 2), as if each entry were a tensor of its own."""
        self.age += 1
        self.first = betas[0] * self.first + (1 - betas[0]) * gradient
        self.second = betas[1] * self.second + (1 - betas[1]) * gradient**2
        first = self.first / (1 - betas[0] ** self.age)
        second = self.second / (1 - betas[1] ** self.age)
        self.values = self.values * (1 - RATE * DECAY) - RATE * first / (second.sqrt() + EPSILON)

    @staticmethod
    def grown(plan: TensorPlan, old: Mapping[str, Entries], drawn: Tensor) -> Entries:
        """Old entries are copied, and scaled if the plan says so; new ones are born with what was drawn."""
        entries = Entries.born(torch.zeros(plan.entry.sizes, dtype=torch.float64))
        for box in plan.new:
            entries.values[index(box)] = drawn.detach()[index(box)]
        for copy in plan.copies:
            source, take, put = old[copy.source.name], index(copy.take), index(copy.put)
            entries.values[put] = source.values[take] * copy.factor
            entries.first[put] = source.first[take] / copy.factor
            entries.second[put] = source.second[take] / copy.factor**2
            entries.age[put] = source.age[take]
        return entries


class Twin:
    """A model and its AdamW, and beside them the same model entry by entry."""

    def __init__(self, model: Transformer, betas: Betas, seed: int = 0, missing: float = 0.0) -> None:
        self.model, self.betas, self.missing = model, betas, missing
        self.optimizer = AdamW(model.parameters(), lr=RATE, betas=betas, weight_decay=DECAY, eps=EPSILON)
        self.generator = torch.Generator().manual_seed(seed)
        self.entries = {
            name: Entries.born(model.get_parameter(name).view(entry.sizes))
            for name, entry in table(model.shape, model.variant).items()
        }

    def step(self) -> None:
        """Step on random gradients of any size; some parameters get none."""
        for name, entries in self.entries.items():
            parameter = self.model.get_parameter(name)
            parameter.grad = None
            missing, size = torch.rand(2, generator=self.generator, dtype=torch.float64).tolist()
            if missing >= self.missing:
                gradient = torch.randn(entries.values.shape, generator=self.generator, dtype=torch.float64)
                parameter.grad = (3 * size * gradient).view(parameter.shape)
                entries.step(3 * size * gradient, self.betas)
        self.optimizer.step()

    def grown(self, growth: Growth) -> None:
        self.entries = {
            name: Entries.grown(plan, self.entries, self.model.get_parameter(name).view(plan.entry.sizes))
            for name, plan in growth.plans.items()
        }

    def assert_equal(self, rtol: float = 1e-9) -> None:
        for name, entries in self.entries.items():
            values = self.model.get_parameter(name).detach().view(entries.values.shape)
            torch.testing.assert_close(values, entries.values, rtol=rtol, atol=rtol / 100, msg=name)


@given(st.data())
@examples(30)
def test_every_entry_is_trained_as_if_it_were_a_tensor_of_its_own(data: st.DataObject) -> None:
    variant = data.draw(variants())
    even = variant.positions == "rope"
    betas = data.draw(st.sampled_from([(0.9, 0.999), (0.8, 0.95), (0.0, 0.9)]))
    missing = data.draw(st.sampled_from([0.0, 0.4]))
    model = Transformer(data.draw(shapes(even)), variant, dtype=torch.float64)
    twin = Twin(model, betas, data.draw(st.integers(0, 99)), missing)
    for _ in range(data.draw(st.integers(1, 4))):
        for _ in range(data.draw(st.integers(0, 3))):
            twin.step()
        event = data.draw(expansion_sequences(model.shape, max_size=3, even_keys=even))
        twin.grown(grow(model, twin.optimizer, event))
        twin.assert_equal()
    for _ in range(3):
        twin.step()
        twin.assert_equal()


EVENTS: dict[str, Sequence[Sequence[Expansion]]] = {
    **{name: [expansions, [GrowHidden(50)]] for name, expansions in EXPANSIONS.items()},
    "a group with young heads splits": [
        [AddHeads(5, layers=(1,))],
        [GrowValues(7, layers=(1,), heads=(0, 4))],
        [GrowKeys(7, layers=(1,), heads=(2,))],
    ],
    "a young group merges with an old one": [
        [AddHeads(5, layers=(1,), key=9, value=9)],
        [GrowMlp(40), GrowKeys(9, layers=(1,))],
        [GrowValues(9, layers=(1,))],
    ],
    "groups with young parts merge, behind one another": [
        [GrowKeys(8, layers=(0,), heads=(2,))],
        [GrowValues(7, layers=(0,), heads=(0, 1))],
        [GrowKeys(9, layers=(0,)), GrowValues(9, layers=(0,)), AddHeads(4, layers=(0,))],
        [GrowValues(10, layers=(0,), heads=(1,))],
    ],
}


@pytest.mark.parametrize("events", EVENTS.values(), ids=EVENTS)
def test_every_entry_is_trained_so_whatever_becomes_of_its_tensor(
    events: Sequence[Sequence[Expansion]],
) -> None:
    model = Transformer(BASE, PAPER, dtype=torch.float64)
    twin = Twin(model, (0.9, 0.999), missing=0.3)
    for event in events:
        for _ in range(4):
            twin.step()
        twin.grown(grow(model, twin.optimizer, event))
    for _ in range(4):
        twin.step()
    twin.assert_equal()


# The list of young boxes


def young(optimizer: AdamW, parameter: nn.Parameter) -> list[tuple[tuple[tuple[int, int], ...], int]]:
    state = optimizer.state[parameter]
    return list(state[AGES].boxes) if AGES in state else []


def test_the_number_of_young_boxes_grows_at_most_linearly_with_events() -> None:
    shape = Shape.uniform(hidden=4, layers=2, mlp=4, heads=1, key=2, value=2)
    model = Transformer(shape, PAPER)
    optimizer = AdamW(model.parameters())
    for event in range(1, 7):
        train(model, optimizer, steps=1)
        grown = (GrowHidden(4 + event), GrowMlp(4 + event), AddHeads(1 + event))
        grow(model, optimizer, [*grown, GrowKeys(2 + event), GrowValues(2 + event)])
        for name, entry in table(model.shape, model.variant).items():
            boxes = [box for box, _ in young(optimizer, model.get_parameter(name))]
            assert event <= len(boxes) <= event * len(entry.axes), name
            assert not any(overlap(a, b) for a, b in combinations(boxes, 2)), name


def test_ages_are_listed_while_they_matter_and_entries_are_right_after() -> None:
    model = Transformer(BASE, PAPER, dtype=torch.float64)
    twin = Twin(model, (0.5, 0.5))
    for _ in range(3):
        twin.step()
    twin.grown(grow(model, twin.optimizer, [GrowMlp(40)]))
    up = model.get_parameter("layers.0.up")
    assert [age for _, age in young(twin.optimizer, up)] == [0]
    for _ in range(10):
        twin.step()
    assert [age for _, age in young(twin.optimizer, up)] == [10]
    twin.assert_equal()
    for _ in range(20):
        twin.step()
    assert not any(AGES in state for state in twin.optimizer.state.values())
    twin.assert_equal(rtol=1e-6)
    for _ in range(5):
        twin.step()
    twin.assert_equal(rtol=1e-6)


def test_a_parameter_without_a_gradient_does_not_age() -> None:
    model = Transformer(BASE, PAPER)
    optimizer = AdamW(model.parameters())
    train(model, optimizer, steps=2)
    grow(model, optimizer, [GrowMlp(40)])
    still, moving = model.get_parameter("layers.0.up"), model.get_parameter("layers.1.up")
    for parameter in model.parameters():
        parameter.grad = None if parameter is still else torch.ones_like(parameter)
    optimizer.step()
    assert [age for _, age in young(optimizer, still)] == [0]
    assert [age for _, age in young(optimizer, moving)] == [1]
