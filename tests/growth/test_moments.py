"""Optimizer state of grown tensors: what old entries carry over, and what new ones start with."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, Adamax, AdamW, Muon, NAdam, Optimizer, RAdam, RMSprop

from nasgrow.adam_ages import AGES, Ages
from nasgrow.errors import UserError
from nasgrow.expansions import AddHeads, Expansion, GrowHidden, GrowKeys, GrowMlp, GrowValues
from nasgrow.growth import Growth, MomentPolicy, grow
from nasgrow.model import Transformer
from nasgrow.operators import Net2Net, Preserve
from nasgrow.params import index, table
from nasgrow.shape import Variant
from nasgrow.verify import BASE, EXPANSIONS, PAPER
from tests.growth.snapshots import same
from tests.steps import backward, train

EVERYTHING = EXPANSIONS["everything"]
OPERATORS: dict[str, Preserve | Net2Net] = {
    "preserve": Preserve(),
    "paired": Preserve(new="paired"),
    "net2net": Net2Net(noise=0.1),
}


def make(variant: Variant = PAPER, dtype: torch.dtype = torch.float64) -> Transformer:
    return Transformer(BASE, variant, seed=3, dtype=dtype)


def old_parts(growth: Growth, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The entries of the grown tensors that were there before, as one flat tensor each."""
    parts: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        plan = growth.plans[name]
        if plan.copies:
            view = tensor.detach().reshape(plan.entry.sizes)
            parts[name] = torch.cat([view[index(copy.put)].flatten() for copy in plan.copies])
    return parts


FROZEN: dict[str, Callable[[Iterable[nn.Parameter]], Optimizer]] = {
    "AdamW": lambda p: AdamW(p, lr=0.0, weight_decay=0.0),
    "AdamW, amsgrad": lambda p: AdamW(p, lr=0.0, weight_decay=0.0, amsgrad=True),
    "SGD with momentum": lambda p: SGD(p, lr=0.0, momentum=0.9),
    "RMSprop": lambda p: RMSprop(p, lr=0.0, momentum=0.9, centered=True, eps=1e-30),
    "Adagrad": lambda p: Adagrad(p, lr=0.0),
    "Adagrad that starts with a sum": lambda p: Adagrad(p, lr=0.0, initial_accumulator_value=0.1),
    "Adamax": lambda p: Adamax(p, lr=0.0, eps=1e-30),
    "NAdam": lambda p: NAdam(p, lr=0.0),
    "RAdam": lambda p: RAdam(p, lr=0.0),
    "Muon": lambda p: Muon([matrix for matrix in p if matrix.dim() == 2], lr=0.0),
}


@pytest.mark.parametrize("optimizer", FROZEN)
@pytest.mark.parametrize("expansion", EXPANSIONS)
def test_old_entries_have_the_moments_that_the_grown_tensor_would_have_collected(
    expansion: str, optimizer: str
) -> None:
    """Collect moments on fixed weights, before growing and after: where both have an entry they agree."""
    grown_late, grown_first = make(), make()
    late = FROZEN[optimizer](grown_late.parameters())
    train(grown_late, late, steps=4)
    growth = grow(grown_late, late, EXPANSIONS[expansion], moments="carry")

    grow(grown_first, None, EXPANSIONS[expansion])
    first = FROZEN[optimizer](grown_first.parameters())
    train(grown_first, first, steps=4)

    names = [
        name
        for name, plan in growth.plans.items()
        if plan.copies and (optimizer != "Muon" or len(plan.entry.stored) == 2)
    ]
    state = late.state[grown_late.get_parameter(names[0])]
    keys = [key for key, value in state.items() if torch.is_tensor(value) and value.dim()]
    assert keys
    for key in keys:
        ours = old_parts(growth, {n: late.state[grown_late.get_parameter(n)][key] for n in names})
        theirs = old_parts(growth, {n: first.state[grown_first.get_parameter(n)][key] for n in names})
        for name in names:
            torch.testing.assert_close(
                ours[name], theirs[name], rtol=1e-8, atol=1e-14, msg=f"{key} of {name}"
            )


def test_gradients_grow_as_the_grown_tensor_would_have_collected_them() -> None:
    grown_late, grown_first = make(), make()
    backward(grown_late)
    growth = grow(grown_late, None, EVERYTHING)
    grow(grown_first, None, EVERYTHING)
    backward(grown_first)
    held = {n: p.grad for n, p in grown_late.named_parameters() if p.grad is not None}
    assert set(held) == {name for name, plan in growth.plans.items() if plan.copies}
    theirs = old_parts(growth, {n: p.grad for n, p in grown_first.named_parameters() if p.grad is not None})
    for name, part in old_parts(growth, held).items():
        torch.testing.assert_close(part, theirs[name], rtol=1e-8, atol=1e-14, msg=name)
    assert growth.new_gradient_norm(grown_late) == 0.0


def first_update(policy: MomentPolicy, betas: tuple[float, float]) -> float:
    """The largest first update of a new entry late in training, in learning rates."""
    model = make()
    optimizer = AdamW(model.parameters(), lr=1e-3, betas=betas, weight_decay=0.0)
    train(model, optimizer, steps=2)
    for state in optimizer.state.values():
        state["step"].fill_(10_000)
    growth = grow(model, optimizer, EVERYTHING, moments=policy)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    train(model, optimizer, steps=1, first=2)
    moved = {name: p.detach() - before[name] for name, p in model.named_parameters()}
    return max(float(part.abs().max()) for _, part in growth.new_parts(moved)) / 1e-3


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.9, 0.95)])
def test_first_updates_of_new_entries_are_one_learning_rate_by_default(betas: tuple[float, float]) -> None:
    assert 0.99 < first_update("fresh-new", betas) <= 1.001


def test_carried_moments_start_cold() -> None:
    assert first_update("carry", (0.9, 0.999)) == pytest.approx(0.1 / 0.001**0.5, rel=0.01)


def test_reset_moments_forget_everything() -> None:
    model = make()
    optimizer = AdamW(model.parameters())
    train(model, optimizer, steps=3)
    grow(model, optimizer, [GrowMlp(40)], moments="reset")
    assert not optimizer.state


class Twin:
    """An independent Adam over one box of a parameter, started with it and fed the same gradients."""

    def __init__(self, name: str, part: tuple[slice, ...], values: Tensor, start: Start) -> None:
        self.name, self.part = name, part
        self.values = nn.Parameter(values[part].detach().clone())
        self.optimizer = start([self.values])

    def step(self, gradient: Tensor) -> None:
        self.values.grad = gradient[self.part].clone()
        self.optimizer.step()


def logical(model: Transformer, name: str, tensor: Tensor | None = None) -> Tensor:
    """A parameter (or its gradient) seen with the table's axes."""
    entry = table(model.shape, model.variant)[name]
    return (model.get_parameter(name) if tensor is None else tensor).view(entry.sizes)


def random_steps(model: Transformer, optimizer: Optimizer, twins: list[Twin], count: int) -> None:
    """Step on random gradients, whose size changes from step to step."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(count):
        for parameter in model.parameters():
            scale = torch.rand(1, generator=generator, dtype=torch.float64) * 3
            parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * scale
        for twin in twins:
            twin.step(logical(model, twin.name, model.get_parameter(twin.name).grad))
        optimizer.step()


def assert_equal_to_twins(model: Transformer, twins: list[Twin]) -> None:
    assert twins
    for twin in twins:
        ours = logical(model, twin.name)[twin.part]
        torch.testing.assert_close(ours, twin.values, rtol=1e-9, atol=1e-12, msg=twin.name)


Start = Callable[[Iterable[nn.Parameter]], Optimizer]
STARTS: dict[str, Start] = {
    "AdamW": lambda p: AdamW(p, lr=1e-2, weight_decay=0.1),
    "AdamW, amsgrad": lambda p: AdamW(p, lr=1e-2, betas=(0.8, 0.95), amsgrad=True),
    "AdamW, beta1 zero, maximize": lambda p: AdamW(p, lr=1e-2, betas=(0.0, 0.9), maximize=True),
    "AdamW, fused": lambda p: AdamW(p, lr=1e-2, fused=True),
    "Adam with L2": lambda p: Adam(p, lr=1e-2, weight_decay=0.1),
}


@pytest.mark.parametrize(
    ("expansion", "name"),
    [
        *((expansion, "AdamW") for expansion in EXPANSIONS),
        *(("everything", n) for n in STARTS if n != "AdamW"),
    ],
)
def test_new_entries_have_the_history_of_an_adam_started_with_them(expansion: str, name: str) -> None:
    model, start = make(), STARTS[name]
    optimizer = start(model.parameters())
    random_steps(model, optimizer, [], 7)
    growth = grow(model, optimizer, EXPANSIONS[expansion])
    twins = [
        Twin(name, index(box), logical(model, name), start)
        for name, plan in growth.plans.items()
        for box in plan.new
    ]
    random_steps(model, optimizer, twins, 12)
    assert_equal_to_twins(model, twins)


def test_a_closure_is_refused_while_entries_are_young() -> None:
    model = make()
    optimizer = AdamW(model.parameters())
    train(model, optimizer, steps=1)
    grow(model, optimizer, [GrowMlp(40)])
    with pytest.raises(ValueError, match="closure"):
        optimizer.step(lambda: backward(model))
    with pytest.raises(ValueError, match="closure"):
        optimizer.step(closure=lambda: backward(model))


STEPS: dict[str, Callable[[Optimizer], object]] = {
    "by place": lambda optimizer: optimizer.step(None),
    "by name": lambda optimizer: optimizer.step(closure=None),
}


def grown_adam(start: Start = AdamW) -> tuple[Transformer, Optimizer]:
    """A model with young entries, and with gradients."""
    model = make()
    optimizer = start(model.parameters())
    train(model, optimizer, steps=2)
    grow(model, optimizer, [GrowMlp(40)])
    assert AGES in optimizer.state[model.get_parameter("layers.0.up")]
    backward(model)
    return model, optimizer


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_step_without_a_closure_may_say_so(step: Callable[[Optimizer], object]) -> None:
    (usual, plain), (model, optimizer) = grown_adam(), grown_adam()
    plain.step()
    step(optimizer)
    for name, parameter in usual.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name)), name


@pytest.mark.parametrize("start", [AdamW, STARTS["AdamW, fused"]], ids=["plain", "fused"])
def test_scaled_gradients_are_refused_while_entries_are_young(start: Start) -> None:
    model, optimizer = grown_adam(start)
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()["state"]))
    optimizer.grad_scale = torch.tensor(2.0)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="scaled gradients"):
        optimizer.step()
    assert same((model.state_dict(), optimizer.state_dict()["state"]), before)
    optimizer.grad_scale = None  # type: ignore[attr-defined]
    optimizer.step()


def test_scaled_gradients_may_be_used_when_no_entry_is_young() -> None:
    model, _ = grown_adam()
    optimizer = AdamW(model.parameters(), fused=True)
    optimizer.grad_scale = torch.tensor(2.0)  # type: ignore[attr-defined]
    optimizer.found_inf = torch.tensor(0.0)  # type: ignore[attr-defined]
    optimizer.step()


def test_fresh_new_is_refused_for_a_bias_correction_it_does_not_know() -> None:
    model = make()
    optimizer = NAdam(model.parameters())
    train(model, optimizer, steps=1)
    with pytest.raises(ValueError, match=r"fresh-new.*NAdam.*carry"):
        grow(model, optimizer, [GrowMlp(40)])
    grow(model, optimizer, [GrowMlp(40)], moments="carry")


def test_an_unknown_moment_policy_is_refused() -> None:
    model = make()
    with pytest.raises(ValueError, match=r"one of fresh-new, carry, reset, not 'keep'"):
        grow(model, AdamW(model.parameters()), [GrowMlp(40)], moments="keep")  # type: ignore[arg-type]


class Smooth(Optimizer):
    """An optimizer that nasgrow does not know, whose state has the parameter's shape."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                smooth = state.setdefault("smooth", torch.zeros_like(parameter))
                smooth.lerp_(parameter.grad, 0.1)
                parameter.sub_(smooth)


def test_an_unknown_state_grows_when_told_how_it_scales() -> None:
    model = make()
    optimizer = Smooth(model.parameters())
    train(model, optimizer, steps=1)
    before = optimizer.state[model.get_parameter("layers.0.attention_norm")]["smooth"].clone()
    with pytest.raises(ValueError, match=r"'smooth'.*state_powers"):
        grow(model, optimizer, [GrowHidden(48)])
    grow(model, optimizer, [GrowHidden(48)], state_powers={"smooth": 1})
    after = optimizer.state[model.get_parameter("layers.0.attention_norm")]["smooth"]
    torch.testing.assert_close(after[:24], before * 2**0.5)
    assert not after[24:].any()


class ScheduleFree(Optimizer):
    """Keeps other weights beside the parameters, as schedule-free SGD does (Defazio et al., 2024)."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                z = self.state[parameter].setdefault("z", parameter.clone())
                z.sub_(parameter.grad, alpha=0.1)
                parameter.lerp_(z, 0.1)


@pytest.mark.parametrize("operator", OPERATORS)
def test_state_that_is_like_a_weight_has_the_new_weights_in_new_entries(operator: str) -> None:
    """With z = 2 w before, z - w is afterwards what w was: operators add the same to both."""
    model = make()
    optimizer = ScheduleFree(model.parameters())
    train(model, optimizer, steps=1)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter, state in optimizer.state.items():
        state["z"] = 2 * parameter.detach()
    growth = grow(model, optimizer, EVERYTHING, state_powers={"z": -1}, operator=OPERATORS[operator])
    for name, plan in growth.plans.items():
        parameter = model.get_parameter(name)
        if not plan.copies:
            assert parameter not in optimizer.state, name
            continue
        z, w = (t.detach().view(plan.entry.sizes) for t in (optimizer.state[parameter]["z"], parameter))
        for box in plan.new:
            assert torch.equal(z[index(box)], w[index(box)]), name
        for part in plan.copies:
            old = before[part.source.name].view(part.source.sizes)[index(part.take)]
            torch.testing.assert_close((z - w)[index(part.put)], part.factor * old, msg=name)


class Passing(Optimizer):
    """Wraps an optimizer whose state and groups it passes on, as libraries for devices do."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner = inner
        self.defaults = inner.defaults

    @property
    def state(self) -> Any:  # type: ignore[override]
        return self.inner.state

    @property
    def param_groups(self) -> Any:  # type: ignore[override]
        return self.inner.param_groups


def test_an_optimizer_that_passes_on_the_state_of_another_is_that_other() -> None:
    model, optimizer = grown_adam()
    twin, inner = grown_adam()
    grow(model, optimizer, EVERYTHING)
    grow(twin, Passing(inner), EVERYTHING)
    for name, parameter in model.named_parameters():
        assert same(inner.state.get(twin.get_parameter(name)), optimizer.state.get(parameter)), name


class Lookahead(Optimizer):
    """Wraps an optimizer, with which it shares parameter groups, but no state (Zhang et al., 2019)."""

    def __init__(self, inner: Optimizer) -> None:
        super().__init__(inner.param_groups, {})
        self.param_groups = inner.param_groups
        self.inner: object = inner
        self.advance = inner.step
        self.count = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.advance()
        self.count += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                slow = self.state[parameter].setdefault("slow_param", parameter.clone())
                if self.count % 3 == 0:
                    slow.lerp_(parameter, 0.5)
                    parameter.copy_(slow)


@pytest.mark.parametrize("held", [lambda inner: inner, lambda inner: [inner], lambda inner: {"base": inner}])
@pytest.mark.parametrize("policy", ["fresh-new", "carry"])
def test_an_optimizer_within_an_optimizer_keeps_its_moments(
    policy: MomentPolicy, held: Callable[[Optimizer], object]
) -> None:
    (alone, plain), (model, inner) = ((m, AdamW(m.parameters(), lr=1e-2)) for m in (make(), make()))
    wrapped = Lookahead(inner)
    wrapped.inner, wrapped.advance = held(inner), inner.step
    train(alone, plain, steps=2)
    train(model, wrapped, steps=2)
    grow(alone, plain, EVERYTHING, moments=policy)
    grow(model, wrapped, EVERYTHING, moments=policy, state_powers={"slow_param": -1})
    for name, parameter in model.named_parameters():
        assert same(inner.state.get(parameter), plain.state.get(alone.get_parameter(name))), name
        slow = wrapped.state.get(parameter, {}).get("slow_param")
        assert slow is None or slow.shape == parameter.shape
    having = [parameter for parameter, state in wrapped.state.items() if state]
    assert {id(p) for p in [*having, *inner.state]} <= {id(p) for p in model.parameters()}
    assert len(having) == len(inner.state)
    assert [id(p) for p in inner.param_groups[0]["params"]] == [id(p) for p in model.parameters()]
    train(model, wrapped, steps=3)


MERGE: Sequence[Expansion] = [GrowKeys(9, layers=(1,)), GrowValues(9, layers=(1,))]
APART = ("layers.1.heads.1.value", np.s_[:])
MERGED = ("layers.1.heads.0.value", np.s_[:, 3:])


def with_young_heads(kind: Callable[..., Optimizer]) -> tuple[Transformer, Optimizer]:
    """A model of 43 steps, with heads of three steps in a group of their own, which :data:`MERGE` joins."""
    model = make()
    optimizer = kind(model.parameters(), lr=1e-2)
    random_steps(model, optimizer, [], 40)
    grow(model, optimizer, [AddHeads(5, layers=(1,), key=9, value=9)], moments="carry")
    random_steps(model, optimizer, [], 3)
    return model, optimizer


@pytest.mark.parametrize("kind", [AdamW, Adam])
def test_heads_of_different_ages_keep_their_histories_under_carry_too(kind: type[Optimizer]) -> None:
    def values_after(merge: bool) -> Tensor:
        model, optimizer = with_young_heads(kind)
        if merge:
            grow(model, optimizer, MERGE, moments="carry")
        name, heads = MERGED if merge else APART
        for size in (0.5, 2.0):
            for parameter in model.parameters():
                parameter.grad = torch.full_like(parameter, size)
            optimizer.step()
        return logical(model, name)[heads].detach()

    torch.testing.assert_close(values_after(True), values_after(False), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [NAdam, RAdam, Adamax])
def test_heads_of_different_ages_are_not_merged_where_only_tensors_have_one(kind: type[Optimizer]) -> None:
    model, optimizer = with_young_heads(kind)
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    with pytest.raises(UserError, match=rf"heads\.1\.\w+ and layers\.1\.heads\.0.*{kind.__name__}.*3 and 43"):
        grow(model, optimizer, MERGE, moments="carry")
    assert same((model.state_dict(), optimizer.state_dict()), before)
    grow(model, optimizer, MERGE, moments="reset")
    assert not optimizer.state


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_heads_of_different_ages_merge_where_ages_do_not_matter(decay: float) -> None:
    model, optimizer = with_young_heads(partial(Adagrad, lr_decay=decay))
    sums = logical(model, APART[0], optimizer.state[model.get_parameter(APART[0])]["sum"])
    if decay:
        with pytest.raises(UserError, match="Adagrad has trained them for 3 and 43 steps"):
            grow(model, optimizer, MERGE, moments="carry")
    else:
        grow(model, optimizer, MERGE, moments="carry")
        merged = logical(model, MERGED[0], optimizer.state[model.get_parameter(MERGED[0])]["sum"])
        assert torch.equal(merged[MERGED[1]], sums)


def test_new_entries_of_an_accumulator_start_where_it_starts() -> None:
    model = make()
    optimizer = Adagrad(model.parameters(), initial_accumulator_value=0.1)
    train(model, optimizer, steps=2)
    growth = grow(model, optimizer, EVERYTHING)
    sums = {name: optimizer.state[p]["sum"] for name, p in model.named_parameters() if p in optimizer.state}
    parts = list(growth.new_parts({**dict(model.named_parameters()), **sums}))
    assert {float(value) for name, part in parts if name in sums for value in part.unique()} == {0.1}
    train(model, optimizer, steps=1)
    inserted = optimizer.state[model.get_parameter("layers.1.up")]["sum"]
    assert float(inserted.min()) >= 0.1


def test_ages_that_are_plain_data_are_refused_before_they_are_stepped_wrongly() -> None:
    model, optimizer = grown_adam()
    grow(model, optimizer, EVERYTHING)
    state = next(state for state in optimizer.state.values() if AGES in state)
    state[AGES] = asdict(state[AGES])
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    with pytest.raises(UserError, match=r"'ages'.*dict, not nasgrow\.adam_ages\.Ages.*Ages\(\*\*"):
        optimizer.step()
    with pytest.raises(UserError, match=r"'ages'.*dict, not nasgrow\.adam_ages\.Ages"):
        grow(model, optimizer, [GrowHidden(60)])
    assert same((model.state_dict(), optimizer.state_dict()), before)
    state[AGES] = Ages(**state[AGES])
    optimizer.step()


def test_state_of_another_shape_is_refused() -> None:
    model = make()
    optimizer = Smooth(model.parameters())
    train(model, optimizer, steps=1)
    optimizer.state[model.get_parameter("layers.0.up")]["smooth"] = torch.zeros(3)
    with pytest.raises(ValueError, match=r"'smooth' of layers\.0\.up.*\(3,\).*\(24, 20\)"):
        grow(model, optimizer, [GrowMlp(40)], state_powers={"smooth": 1})


def matrices_and_rest(model: Transformer) -> tuple[Muon, AdamW]:
    matrices = [p for p in model.parameters() if p.dim() == 2]
    rest = [p for p in model.parameters() if p.dim() == 1]
    return Muon(matrices, lr=1e-2), AdamW(rest, lr=1e-2)


@pytest.mark.parametrize("kind", ["AdamW", "AdamW, fused", "Muon and AdamW"])
def test_continuing_equals_saving_loading_and_continuing(kind: str) -> None:
    def start(model: Transformer) -> tuple[Optimizer, ...]:
        return matrices_and_rest(model) if kind == "Muon and AdamW" else (STARTS[kind](model.parameters()),)

    model = make(dtype=torch.float32)
    optimizers = start(model)
    train(model, optimizers, steps=4)
    grow(model, optimizers, EVERYTHING, seed=5)
    train(model, optimizers, steps=2, first=4)
    saved = copy.deepcopy((model.state_dict(), [optimizer.state_dict() for optimizer in optimizers]))
    train(model, optimizers, steps=5, first=6)

    loaded = Transformer(model.shape, model.variant, seed=9)
    loaded.load_state_dict(saved[0])
    loaded_optimizers = start(loaded)
    for optimizer, state in zip(loaded_optimizers, saved[1], strict=True):
        optimizer.load_state_dict(state)
    train(loaded, loaded_optimizers, steps=5, first=6)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, loaded.get_parameter(name)), name


def test_a_copy_of_a_grown_optimizer_continues_like_the_original() -> None:
    model = make()
    optimizer = AdamW(model.parameters())
    train(model, optimizer, steps=4)
    grow(model, optimizer, [GrowMlp(40)])
    twin, twin_optimizer = copy.deepcopy((model, optimizer))
    train(model, optimizer, steps=2)
    train(twin, twin_optimizer, steps=2)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, twin.get_parameter(name)), name


def test_a_step_that_a_gradient_scaler_skips_leaves_young_entries_alone() -> None:
    model = make(dtype=torch.float32)
    optimizer = AdamW(model.parameters(), fused=True)
    train(model, optimizer, steps=3)
    grow(model, optimizer, [GrowMlp(40)])
    backward(model)
    parameter = model.get_parameter("layers.0.up")
    before = copy.deepcopy(optimizer.state[parameter])
    assert parameter.grad is not None
    parameter.grad[0, 30] = torch.inf
    optimizer.grad_scale, optimizer.found_inf = None, torch.tensor(1.0)  # type: ignore[attr-defined]
    optimizer.step()
    after = optimizer.state[parameter]
    assert after[AGES] == before[AGES]
    assert torch.equal(after["exp_avg"], before["exp_avg"])
    assert int(after["step"]) == 3
