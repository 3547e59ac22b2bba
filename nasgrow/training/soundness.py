"""Check that training can continue from a state that was read from a file.

A hash shows that a file has not changed since it was written, but not that this package wrote it: other
users may share the folder. The checks find errors that would otherwise make a step, an event or a record
fail later.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import Muon

from nasgrow.adam_ages import AGES
from nasgrow.errors import UserError
from nasgrow.params import table
from nasgrow.training.run import Run
from nasgrow.training.state import TrainState

COUNTS = "step", "stage", "loss_count", "step_flops", "records", "lost", "reused"
"""Fields of a state that are whole numbers."""

DURATIONS = "seconds", "step_seconds"
"""Fields of a state that are times."""

_ADAMW, _MUON = {"step", "exp_avg", "exp_avg_sq"}, {"momentum_buffer"}


def check_fields(fields: Mapping[str, Any], run: Run) -> None:
    """Check the fields of a state that are not tensors.

    Raises:
        UserError: A field has an impossible value.
        LookupError: A field is missing.
    """
    right = {name: is_count(fields[name]) for name in COUNTS}
    right |= {name: is_number(fields[name]) and fields[name] >= 0 for name in DURATIONS}
    right["first_loss"] = fields["first_loss"] is None or is_number(fields["first_loss"])
    right["loss_count"] = right["loss_count"] and right["step"] and fields["loss_count"] <= fields["step"]
    right["evaluated"] = fields["evaluated"] == -1 or is_count(fields["evaluated"])
    for name, sound in right.items():
        if not sound:
            raise UserError(f"its {name} cannot be {ascii(fields[name])[:60]}")
    if fields["stage"] >= len(run.stages) or fields["step"] > run.stages[fields["stage"]].end:
        raise UserError(f"step {fields['step']} is not in stage {fields['stage']} of the run")


def check_tensors(
    state: TrainState, run: Run, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]
) -> None:
    """Check the tensors, the other optimizer state and the masks of a state.

    Args:
        state: A newly made state with the stage, step and masks that were read; its model and
            optimizers show which tensors there must be. Its masks are checked too.
        run: The run that the state belongs to.
        tensors: The tensors by name.
        plain: The optimizer state that is not tensors (ages of parts of parameters), by name.

    Raises:
        UserError: They do not fit the run.
    """
    parameters = dict(state.model.named_parameters())
    known = {"loss_sum", *(f"model/{name}" for name in parameters)}
    stepped = state.step > run.stages[state.stage].first  # else an event may have left nothing to keep
    for number, optimizer in enumerate(state.optimizers):
        keys = _MUON if isinstance(optimizer, Muon) else _ADAMW
        mine = {one for group in optimizer.param_groups for one in group["params"]}
        for name, parameter in parameters.items():
            places = {key: f"optimizer/{number}/{name}/{key}" for key in (*keys, AGES)}
            known |= {*places.values()} if parameter in mine else set()
            if parameter not in mine or not (stepped or any(one in tensors for one in places.values())):
                continue
            for key in keys:
                _check(tensors, places[key], parameter, scalar=key == "step")
            if "step" in keys and not 0 < float(tensors[places["step"]]) <= state.step:
                raise UserError(f"{places['step']} is not a step of the run")
    strange = (tensors.keys() | plain.keys()) - known
    if strange or any(not name.endswith(f"/{AGES}") for name in plain):
        raise UserError("its tensors are not those of the run's shape")
    _check(tensors, "loss_sum", next(iter(parameters.values())), scalar=True)
    for name, parameter in parameters.items():
        _check(tensors, f"model/{name}", parameter)
    sizes = {name: entry.sizes for name, entry in table(state.model.shape, state.model.variant).items()}
    for place, ages in plain.items():
        name = place.split("/")[2]
        if place.replace(AGES, "exp_avg") not in tensors or not _are_ages(ages, sizes[name]):
            raise UserError(f"{place} is damaged")
    for mask, latest in (*((mask, 1) for mask in state.masks), *((part, 2) for part in state.warming)):
        if (
            mask.name not in sizes
            or not is_box(mask.box, sizes[mask.name])
            or not _opens(mask.begun, mask.opening, latest)
        ):
            raise UserError("a mask is damaged")


def _check(tensors: Mapping[str, Tensor], name: str, like: Tensor, *, scalar: bool = False) -> None:
    if name not in tensors:
        raise UserError(f"{name} is missing")
    shape, wanted = tuple(tensors[name].shape), () if scalar else tuple(like.shape)
    if shape != wanted or tensors[name].dtype != like.dtype:
        raise UserError(f"{name} is {tensors[name].dtype} {shape}, not {like.dtype} {wanted}")


def _are_ages(ages: Any, sizes: tuple[int, ...]) -> bool:
    if not isinstance(ages, dict) or ages.get("sizes") != [*sizes] or not is_count(ages.get("step")):
        return False
    boxes = ages.get("boxes")
    return isinstance(boxes, list) and all(
        isinstance(one, list)
        and len(one) == 2
        and is_box(one[0], sizes)
        and is_count(one[1])
        and one[1] <= ages["step"]
        and ages["step"] > 0
        for one in boxes
    )


def _opens(begun: Any, opening: Any, latest: int) -> bool:
    """Return whether the times of a mask or of a warm-up are possible.

    Args:
        begun: When it begins, as a fraction of the budget.
        opening: How long it takes, as a fraction of the budget.
        latest: The latest possible end: 1 for a mask, which must open within the budget; 2 for a warm-up,
            which the end of the budget may cut short.
    """
    return is_number(begun) and is_number(opening) and 0 <= begun < begun + opening <= latest + 1e-9


def is_box(box: Any, sizes: tuple[int, ...]) -> bool:
    """Return whether a value is a box (start and end for each axis) within a tensor of these sizes."""
    if not isinstance(box, list | tuple) or len(box) != len(sizes):
        return False
    return all(
        isinstance(ends, list | tuple)
        and len(ends) == 2
        and all(map(is_count, ends))
        and ends[0] < ends[1] <= size
        for ends, size in zip(box, sizes, strict=True)
    )


def is_count(value: Any) -> bool:
    """Return whether a value is a whole number from 0 to 1e30."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1e30


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e300 and math.isfinite(value)
