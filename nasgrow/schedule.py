"""Schedules: a start shape and the events that enlarge it, at fractions of the budget.

A schedule is kept in a canonical form, so that schedules that do the same compare equal: an event's
expansions are those between the shapes before and after it, in a fixed order. The file format is YAML:

    start: {hidden: 32, layers: 1, mlp: 128, heads: 2, key: 16, value: 16}
    events:
      - at: 0.15
        grow:
          - {expand: hidden, to: 64}
          - {expand: layers, at: [1]}
      - at: 0.4
        operator: stack
        grow:
          - {expand: layers, at: [2, 2]}

An operator says how the new parameters of an event get their values. An event that names none uses
the operator of the training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from fractions import Fraction
from functools import partial
from itertools import groupby
from typing import Any

from nasgrow.errors import UserError
from nasgrow.expansions import EXPANSION_TYPES, Expansion, InsertLayers, between, expand, kind_of
from nasgrow.flops import step_flops
from nasgrow.operators import PRESERVE, AnyOperator, operator_from
from nasgrow.shape import MOST_HEADS, MOST_LAYERS, HeadGroup, Layer, Shape, Variant, positive
from nasgrow.strict import with_prefix

MOST_EVENTS = 1_000
"""The most events of a schedule in a file."""


@dataclass(frozen=True)
class Event:
    """Expansions applied together when the fraction ``at`` of the budget is spent."""

    at: float
    expansions: tuple[Expansion, ...]
    operator: AnyOperator | None = None
    """How the new parameters get their values; None stands for the operator of the training."""


@dataclass(frozen=True)
class Schedule:
    """A start shape and its events, in order; without events it is a from-scratch baseline.

    The constructor replaces the expansions of each event by those of the canonical form.

    Raises:
        UserError: The fractions of the events do not ascend between 0 and 1, or an event has no
            expansions or some that do not fit its shape.
    """

    start: Shape
    events: tuple[Event, ...] = ()
    shapes: tuple[Shape, ...] = field(init=False, repr=False, compare=False)
    """The shape of each stage, computed once by the constructor."""

    def __post_init__(self) -> None:
        shape, before, events, shapes = self.start, 0.0, [], [self.start]
        for index, event in enumerate(self.events):
            where = f"events[{index}]"
            if isinstance(event.at, bool) or not isinstance(event.at, int | float) or not 0 < event.at < 1:
                raise UserError(f"{where}.at: must be a fraction between 0 and 1, not {event.at!r}")
            if event.at <= before:
                raise UserError(
                    f"{where}.at: must come after the event before it at {before}, not {event.at!r}"
                )
            if not event.expansions:
                raise UserError(f"{where}.grow: must name at least one expansion")
            try:
                grown, lineage = expand(shape, event.expansions)
            except UserError as error:
                raise UserError(f"{where}.grow: {error}") from None
            places = [place for place, origin in enumerate(lineage) if origin is not None]
            events.append(Event(float(event.at), between(shape, grown, places), event.operator))
            shape, before = grown, event.at
            shapes.append(grown)
        object.__setattr__(self, "events", tuple(events))
        object.__setattr__(self, "shapes", tuple(shapes))

    @staticmethod
    def through(shapes: Sequence[Shape], events: Sequence[Event]) -> Schedule:
        """Return a schedule whose shapes are known, without checks, in half the constructor's time.

        Args:
            shapes: The shape of each stage.
            events: The events between these shapes, in order of time. Their expansions must be those that
                :func:`~nasgrow.expansions.between` returns.
        """
        made = object.__new__(Schedule)
        for name, value in (("start", shapes[0]), ("events", tuple(events)), ("shapes", tuple(shapes))):
            object.__setattr__(made, name, value)
        return made

    @property
    def final(self) -> Shape:
        """The shape of the last stage."""
        return self.shapes[-1]

    @property
    def names_operators(self) -> bool:
        """Whether no event uses the operator of the training; true also without events."""
        return all(event.operator for event in self.events)

    def operators(self, default: AnyOperator) -> tuple[AnyOperator, ...]:
        """Return the operator of each event; ``default`` for events that name none."""
        return tuple(event.operator or default for event in self.events)


def check_operator(schedule: Schedule, default: AnyOperator, variant: Variant) -> None:
    """Raise ``UserError`` if an operator cannot apply its event; events that name none use ``default``."""
    operators = schedule.operators(default)
    for index, (shape, event) in enumerate(zip(schedule.shapes, schedule.events, strict=False)):
        where = f"events[{index}].grow"
        with_prefix(where, partial(operators[index].check, shape, event.expansions, variant))


@dataclass(frozen=True)
class Stage:
    """The training between two events: ``steps`` steps of one shape, from step ``first`` on.

    Steps are numbered from 0 over the whole run. Costs and spent amounts are in units of the
    budget: FLOPs, or nanoseconds.
    """

    shape: Shape
    first: int
    steps: int
    step_flops: int
    """FLOPs of a step after the ramp."""
    flops_before: int
    """FLOPs charged before the first step of this stage, including those of the event before it."""
    event_flops: int
    """FLOPs of the operator at the event before this stage; 0 in the first stage."""
    step_cost: int
    """The cost of a step after the ramp."""
    spent: int
    """The amount spent before the first step of this stage, including the event before it."""
    event_cost: int
    """The cost of the event before this stage."""
    ramp_steps: int = 0
    """The number of steps in the ramp, which are the first steps of the stage."""
    ramp_flops: int = 0
    """FLOPs of a step in the ramp."""
    ramp_cost: int = 0
    """The cost of a step in the ramp."""

    @property
    def flops(self) -> int:
        """FLOPs charged for the steps of this stage, without the event before it."""
        return self.charged(self.end) - self.flops_before

    @property
    def end(self) -> int:
        """The step after the last step of this stage."""
        return self.first + self.steps

    def charged(self, step: int) -> int:
        """Return the FLOPs charged before step ``step``, one from ``first`` to ``end``."""
        small = min(step - self.first, self.ramp_steps)
        return self.flops_before + small * self.ramp_flops + (step - self.first - small) * self.step_flops

    def spent_at(self, step: int) -> int:
        """Return the amount spent before step ``step``, one from ``first`` to ``end``."""
        small = min(step - self.first, self.ramp_steps)
        return self.spent + small * self.ramp_cost + (step - self.first - small) * self.step_cost

    def spent_in_middle(self, step: int) -> float:
        """Return the amount spent at the middle of step ``step`` of this stage."""
        small = step - self.first < self.ramp_steps
        return self.spent_at(step) + (self.ramp_cost if small else self.step_cost) / 2

    def steps_until(self, target: int) -> int:
        """Return the number of steps from the start of this stage until ``target`` is spent in all.

        It is 0 if ``target`` was spent before, and may exceed the number of steps of the stage.
        """
        small = 0
        if self.ramp_steps:
            small = min(self.ramp_steps, _steps(target - self.spent, self.ramp_cost))
        return small + _steps(target - self.spent - small * self.ramp_cost, self.step_cost)


@dataclass(frozen=True)
class RampSteps:
    """The ramp of a run: its first steps, which are smaller than the others.

    Attributes:
        until: The fraction of the budget until which steps are small.
        context: The number of tokens in a sequence of a small step.
        sequences: The number of sequences in a small step.
        nanoseconds: The nanoseconds of a small step in each stage; None if the budget is in FLOPs.
    """

    until: float
    context: int
    sequences: int
    nanoseconds: Sequence[int] | None = None


def _steps(amount: int | Fraction, cost: int) -> int:
    """Return the least number of steps at ``cost`` each that spend ``amount``; 0 if it is not positive."""
    return max(0, int(-(-amount // cost)))


def stages(
    schedule: Schedule,
    variant: Variant,
    budget: int,
    *,
    sequences: int,
    muon: bool,
    operator: AnyOperator = PRESERVE,
    step_nanoseconds: Sequence[int] | None = None,
    ramp: RampSteps | None = None,
) -> tuple[Stage, ...]:
    """Divide a budget into the steps of each stage and the costs of operators at events.

    An event happens before the first step at whose beginning its fraction of the budget is spent. No step
    begins that the rest of the budget does not cover, so less than one step of the final shape is left over.

    Args:
        schedule: The schedule.
        variant: The kind of transformer.
        budget: The budget in FLOPs, or in nanoseconds if ``step_nanoseconds`` is given.
        sequences: The number of sequences in a step after the ramp.
        muon: Whether Muon trains the matrices.
        operator: The operator of events that name none.
        step_nanoseconds: The nanoseconds of a step after the ramp in each stage; None if the budget
            is in FLOPs. A FLOP of an operator is assumed to take as long as a FLOP of a step after
            the event.
        ramp: The small steps that the run begins with; None without a ramp. The ramp ends before
            the first step at whose beginning ``ramp.until`` of the budget is spent.

    Raises:
        UserError: The budget leaves no step for a stage, or no step after the ramp for the last
            stage.
    """
    found: list[Stage] = []
    charged = spent = first = 0
    shapes, operators = schedule.shapes, schedule.operators(operator)
    ends = [Fraction(str(event.at)) * budget for event in schedule.events] + [None]
    for index, (shape, end) in enumerate(zip(shapes, ends, strict=True)):
        flops = step_flops(shape, variant, sequences, muon=muon)
        cost = flops if step_nanoseconds is None else step_nanoseconds[index]
        grown = growing = 0
        if index:
            grow = schedule.events[index - 1].expansions
            grown = operators[index - 1].flops(shapes[index - 1], grow, variant, sequences)
            growing = -(-grown * cost // flops)
            charged, spent = charged + grown, spent + growing
        small = small_flops = small_cost = 0
        if ramp is not None:
            small_variant = variant.with_context(ramp.context)
            small_flops = step_flops(shape, small_variant, ramp.sequences, muon=muon)
            small_cost = small_flops if ramp.nanoseconds is None else ramp.nanoseconds[index]
            ramp_end = Fraction(str(ramp.until)) * budget
            wanted = _steps((ramp_end if end is None else min(end, ramp_end)) - spent, small_cost)
            small = min(wanted, (budget - spent) // small_cost)
        left = budget - spent - small * small_cost
        steps = left // cost
        if end is not None:
            steps = min(steps, _steps(end - (budget - left), cost))
        if steps + (small if end is not None else 0) < 1:
            where = f"events[{index - 1}].at: " if index else ""
            size, unit = (1, "FLOPs") if step_nanoseconds is None else (1e9, "seconds")
            raise UserError(
                f"{where}the budget of {budget / size:.3g} {unit} leaves no step for stage {index + 1} of "
                f"{len(shapes)}, which costs {cost / size:.3g} {unit} a step"
                + (
                    f" after {growing / size:.3g} for the operator {operators[index - 1].kind}"
                    if grown
                    else ""
                )
            )
        ramped = small, small_flops, small_cost
        stage = Stage(shape, first, small + steps, flops, charged, grown, cost, spent, growing, *ramped)
        found.append(stage)
        first, charged, spent = stage.end, stage.charged(stage.end), stage.spent_at(stage.end)
    return tuple(found)


def schedule_from(data: object) -> Schedule:
    """Read a schedule from plain data, as a file holds it.

    Raises:
        UserError: The data is no valid schedule; the message begins with the field.
    """
    if not isinstance(data, dict):
        raise UserError(f"must be a mapping of fields, not {data!r}")
    _only(data, {"start", "events"}, "schedule")
    if "start" not in data:
        raise UserError("start: is missing")
    start = shape_from(data["start"], "start")
    events = data.get("events", [])
    if not isinstance(events, list):
        raise UserError(f"events: must be a list, not {events!r}")
    if len(events) > MOST_EVENTS:
        raise UserError(f"events: must be at most {MOST_EVENTS:,}, not {len(events):,}")
    return Schedule(start, tuple(_event_from(event, f"events[{i}]") for i, event in enumerate(events)))


def shape_from(data: object, where: str) -> Shape:
    """Read a shape from plain data.

    The field ``layers`` is either the number of layers, or a list of layers. With a number, all layers have
    the sizes that stand beside it. In a list, each item has the sizes of one layer, or of ``count``
    equal layers.

    Args:
        data: The data, as a file holds it.
        where: The name of the field that holds the data; errors begin with it.

    Raises:
        UserError: The data is no valid shape.
    """
    sizes = _mapping(data, where)
    listed = isinstance(sizes.get("layers"), list)
    _only(sizes, {"hidden", "layers"} | (set() if listed else {"mlp", "heads", "key", "value"}), where)
    with _at(where):
        if listed:
            layers: list[Layer] = []
            for index, item in enumerate(sizes["layers"]):
                layers += _layers_from(item, f"layers[{index}]")
                positive(len(layers), "layers: their number", MOST_LAYERS)
            positive(len(layers), "layers: their number")
        else:
            number = positive(sizes.get("layers"), "layers", MOST_LAYERS)
            layers = [_layer_from({k: v for k, v in sizes.items() if k not in ("hidden", "layers")})] * number
        return Shape(positive(sizes.get("hidden"), "hidden"), tuple(layers))


def shape_to(shape: Shape) -> dict[str, Any]:
    """Return a shape as plain data, in the shortest form that :func:`shape_from` reads."""
    runs = [(layer, len(list(run))) for layer, run in groupby(shape.layers)]
    if len(runs) == 1:
        return {"hidden": shape.hidden, "layers": runs[0][1], **_layer_to(runs[0][0])}
    layers = [{**_layer_to(layer), **({"count": count} if count > 1 else {})} for layer, count in runs]
    return {"hidden": shape.hidden, "layers": layers}


def schedule_to(schedule: Schedule) -> dict[str, Any]:
    """Return a schedule as plain data, as :func:`schedule_from` reads it."""
    return {
        "start": shape_to(schedule.start),
        "events": [
            {
                "at": event.at,
                **({} if event.operator is None else {"operator": str(event.operator)}),
                "grow": [_expansion_to(expansion) for expansion in event.expansions],
            }
            for event in schedule.events
        ],
    }


def _event_from(data: object, where: str) -> Event:
    event = _mapping(data, where)
    if "slope" in event:
        raise UserError(f"{where}.slope: is a rule for the time of an event; nasgrow slope finds the time")
    _only(event, {"at", "grow", "operator"}, where)
    for name in ("at", "grow"):
        if name not in event:
            raise UserError(f"{where}.{name}: is missing")
    if not isinstance(event["grow"], list):
        raise UserError(f"{where}.grow: must be a list of expansions, not {event['grow']!r}")
    grow = [_expansion_from(item, f"{where}.grow[{i}]") for i, item in enumerate(event["grow"])]
    with _at(where):
        operator = operator_from(event["operator"]) if "operator" in event else None
    return Event(event["at"], tuple(grow), operator)


def _expansion_from(data: object, where: str) -> Expansion:
    given = dict(_mapping(data, where))
    kind = given.pop("expand", None)
    if not isinstance(kind, str) or kind not in EXPANSION_TYPES:
        raise UserError(f"{where}.expand: must be one of {', '.join(EXPANSION_TYPES)}, not {kind!r}")
    cls = EXPANSION_TYPES[kind]
    names = [field.name for field in fields(cls)]
    _only(given, set(names), where)
    if names[0] not in given:
        raise UserError(f"{where}.{names[0]}: is missing")
    with _at(where):
        if given.get("layer") is not None:
            given["layer"] = _layer_from(_mapping(given["layer"], "layer"))
        return cls(**given)


def _expansion_to(expansion: Expansion) -> dict[str, Any]:
    data: dict[str, Any] = {"expand": kind_of(expansion)}
    for one in fields(expansion):
        value = getattr(expansion, one.name)
        if isinstance(value, Layer):
            data[one.name] = _layer_to(value)
        elif value is not None:
            data[one.name] = list(value) if isinstance(value, tuple) else value
    return data


def _layers_from(data: object, where: str) -> list[Layer]:
    item = dict(_mapping(data, where))
    count = positive(item.pop("count", 1), f"{where}.count", MOST_LAYERS)
    with _at(where):
        return [_layer_from(item)] * count


def _layer_from(item: Mapping[str, Any]) -> Layer:
    """Read a layer. ``heads`` is the number of heads, with ``key`` and ``value``, or a list of groups."""
    heads = item.get("heads")
    if isinstance(heads, list):
        _only(item, {"mlp", "heads"}, "layer")
        groups = []
        for index, group in enumerate(heads):
            where = f"heads[{index}]"
            _only(_mapping(group, where), {"count", "key", "value"}, where)
            with _at(where):
                groups.append(_group_from(group))
        positive(len(groups), "heads: the number of groups", MOST_HEADS)
    else:
        _only(item, {"mlp", "heads", "key", "value"}, "layer")
        groups = [_group_from({**item, "count": positive(heads, "heads", MOST_HEADS)})]
    return Layer(positive(item.get("mlp"), "mlp"), tuple(groups))


def _group_from(item: Mapping[str, Any]) -> HeadGroup:
    count = positive(item.get("count"), "count", MOST_HEADS)
    return HeadGroup(count, *(positive(item.get(name), name) for name in ("key", "value")))


def _layer_to(layer: Layer) -> dict[str, Any]:
    if len(layer.groups) == 1:
        group = layer.groups[0]
        return {"mlp": layer.mlp, "heads": group.count, "key": group.key, "value": group.value}
    groups = [{"count": g.count, "key": g.key, "value": g.value} for g in layer.groups]
    return {"mlp": layer.mlp, "heads": groups}


def _mapping(data: object, where: str) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise UserError(f"{where}: must be a mapping of fields, not {data!r}")
    return data


def _only(data: Mapping[str, Any], allowed: set[str], where: str) -> None:
    for name in data:
        if name not in allowed:
            raise UserError(f"{where}.{name}: there is no such field; there are {', '.join(sorted(allowed))}")


@contextmanager
def _at(where: str) -> Iterator[None]:
    """Put ``where`` before the message of any ``UserError``."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{where}.{error}") from None


def in_words(schedule: Schedule) -> str:
    """Describe a schedule in one line: the start shape, then what grows at which fraction of the budget."""
    return "; ".join(in_lines(schedule))


def in_lines(schedule: Schedule) -> list[str]:
    """Describe a schedule in lines: one for the start shape, and one for each event.

    Without events, the second line is ``no growth``.
    """
    lines = [f"start {schedule.start}"]
    for event in schedule.events:
        grown = ", ".join(_expansion_in_words(expansion) for expansion in event.expansions)
        by = "" if event.operator is None else f", by {event.operator}"
        lines.append(f"at {event.at:.3g}: {grown}{by}")
    return lines if schedule.events else [*lines, "no growth"]


def _expansion_in_words(expansion: Expansion) -> str:
    if isinstance(expansion, InsertLayers):
        many = len(expansion.at)
        return f"{many} more layer{'s' if many > 1 else ''} ({_places_in_words(expansion.at)})"
    chosen = [
        f"{name} {_indices_in_words(indices)}"
        for name in ("layers", "heads")
        if (indices := getattr(expansion, name, None)) is not None
    ]
    return f"{kind_of(expansion)} {expansion.to}" + (f" ({'; '.join(chosen)})" if chosen else "")


MAX_LISTED_INDICES = 6
"""Up to this many indices are listed one by one; more are written as ranges."""


def _places_in_words(at: Sequence[int]) -> str:
    """Describe where layers are inserted.

    A few places are listed one by one, many as ranges with equal numbers of new layers. If there
    are many ranges too, only the lowest and the highest place are named.
    """
    if len(at) <= MAX_LISTED_INDICES:
        return f"at {', '.join(str(index) for index in at)}"
    counts = sorted(Counter(at).items())
    told = []
    for count, group in groupby(counts, key=lambda pair: pair[1]):
        where = _indices_in_words([index for index, _ in group])
        several = not where.isdecimal()
        told.append(f"at {where}" if count == 1 else f"{count}{' each' if several else ''} at {where}")
    return (
        ", ".join(told) if len(told) <= MAX_LISTED_INDICES else f"between {counts[0][0]} and {counts[-1][0]}"
    )


def _indices_in_words(indices: Sequence[int]) -> str:
    """List a few indices one by one, and many as ranges."""
    if len(indices) <= MAX_LISTED_INDICES:
        return ", ".join(str(index) for index in indices)
    runs = [
        [index for _, index in run]
        for _, run in groupby(enumerate(indices), key=lambda pair: pair[1] - pair[0])
    ]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs)
