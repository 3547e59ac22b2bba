"""Schedules: canonical form, files, and the division of a budget into steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nasgrow.config import load_run
from nasgrow.expansions import AddHeads, Expansion, GrowHidden, GrowKeys, GrowMlp, GrowValues, InsertLayers
from nasgrow.flops import step_flops
from nasgrow.operators import Ligo, Masked, Net2Net, Stack, WidthAndDepth
from nasgrow.schedule import Event, Schedule, check_operator, in_words, schedule_from, schedule_to, stages
from nasgrow.shape import Layer, Shape
from nasgrow.verify import PAPER
from tests.strategies import examples, expansion_sequences, shapes

START = Shape.uniform(hidden=8, layers=2, mlp=16, heads=2, key=4, value=4)
TEXT = """
start: {hidden: 8, layers: 2, mlp: 16, heads: 2, key: 4, value: 4}
events:
  - at: 0.25
    grow:
      - {expand: mlp, to: 24, layers: [1]}
      - {expand: key, to: 6, heads: [0]}
  - at: 5e-1
    grow:
      - {expand: hidden, to: 12}
      - {expand: layers, at: [0, 2]}
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "schedule.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def one(*expansions: Expansion, at: float = 0.5) -> Schedule:
    return Schedule(START, (Event(at, expansions),))


def test_a_file_is_read(tmp_path: Path) -> None:
    schedule = load_run(write(tmp_path, TEXT)).schedule
    assert schedule.start == START
    assert [event.at for event in schedule.events] == [0.25, 0.5]
    assert schedule.shapes[1] == GrowKeys(6, heads=(0,))(GrowMlp(24, layers=(1,))(START))
    assert schedule.final == InsertLayers((0, 2))(GrowHidden(12)(schedule.shapes[1]))


def test_unequal_layers_can_be_written_out() -> None:
    data = {
        "hidden": 8,
        "layers": [
            {"mlp": 16, "heads": [{"count": 1, "key": 4, "value": 2}, {"count": 2, "key": 2, "value": 2}]},
            {"count": 2, "mlp": 4, "heads": 1, "key": 4, "value": 4},
        ],
    }
    schedule = schedule_from({"start": data})
    small = Layer.of_heads(4, [(4, 4)])
    assert schedule.start.layers == (Layer.of_heads(16, [(4, 2), (2, 2), (2, 2)]), small, small)
    assert schedule_to(schedule)["start"] == data


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (one(GrowMlp(20), GrowHidden(9)), one(GrowHidden(9), GrowMlp(20))),
        (one(GrowMlp(20, layers=(0, 1))), one(GrowMlp(20))),
        (one(GrowMlp(20, layers=(0,)), GrowMlp(20, layers=(1,))), one(GrowMlp(20))),
        (one(GrowMlp(18), GrowMlp(20)), one(GrowMlp(20))),
        (one(GrowKeys(6, heads=(0,)), GrowKeys(6, heads=(1,))), one(GrowKeys(6))),
        (one(InsertLayers((2,))), one(InsertLayers((2,), START.layers[0]))),
        (one(AddHeads(3)), one(AddHeads(3, key=4, value=4))),
    ],
)
def test_schedules_that_do_the_same_are_equal(a: Schedule, b: Schedule) -> None:
    assert a == b
    assert hash(a) == hash(b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (one(GrowMlp(20)), one(GrowMlp(20), at=0.4)),
        (one(GrowMlp(20)), one(GrowMlp(20, layers=(0,)))),
        (one(InsertLayers((0,))), one(InsertLayers((2,)))),
        (one(GrowMlp(20)), Schedule(START)),
        (one(GrowMlp(20)), Schedule(START, (Event(0.5, (GrowMlp(20),), Net2Net()),))),
    ],
)
def test_schedules_that_differ_are_not_equal(a: Schedule, b: Schedule) -> None:
    assert a != b


@examples(60)
@given(st.data())
def test_what_is_written_is_read_back(data: st.DataObject) -> None:
    start = data.draw(shapes())
    first = data.draw(expansion_sequences(start, max_size=3))
    events = [Event(0.25, tuple(first))] if first else []
    schedule = Schedule(start, tuple(events))
    second = data.draw(expansion_sequences(schedule.final, max_size=3))
    schedule = Schedule(start, (*schedule.events, *([Event(0.75, tuple(second))] if second else [])))
    text = yaml.safe_dump(schedule_to(schedule))
    assert schedule_from(yaml.safe_load(text)) == schedule


def test_an_event_may_name_its_operator() -> None:
    events = [
        {"at": 0.2, "operator": "stack", "grow": [{"expand": "layers", "at": [2]}]},
        {"at": 0.4, "operator": {"kind": "masked", "opening": 0.2}, "grow": [{"expand": "mlp", "to": 20}]},
        {"at": 0.6, "operator": "net2net + stack", "grow": [{"expand": "mlp", "to": 24}]},
        {"at": 0.8, "grow": [{"expand": "mlp", "to": 28}]},
    ]
    read = schedule_from({**yaml.safe_load(TEXT), "events": events})
    own = [Stack(), Masked(opening=0.2), WidthAndDepth(width=Net2Net(), depth=Stack()), None]
    assert [event.operator for event in read.events] == own
    assert read.operators(Ligo()) == (*own[:3], Ligo())
    written = schedule_to(read)
    assert [event.get("operator") for event in written["events"]] == [
        "stack",
        "masked(opening=0.2)",
        "net2net + stack",
        None,
    ]
    assert schedule_from(yaml.safe_load(yaml.safe_dump(written))) == read
    assert in_words(read).endswith(
        "at 0.2: 1 more layer (at 2), by stack; at 0.4: mlp 20, by masked(opening=0.2); "
        "at 0.6: mlp 24, by net2net + stack; at 0.8: mlp 28"
    )


def test_each_event_is_checked_and_charged_with_its_own_operator() -> None:
    schedule = Schedule(
        START, (Event(0.3, (InsertLayers((2,)),), Stack()), Event(0.6, (GrowMlp(20),), Ligo(steps=2)))
    )
    check_operator(schedule, Stack(), PAPER)
    with pytest.raises(ValueError, match=r"events\[1\]\.grow: operator stack cannot grow mlp"):
        check_operator(Schedule(START, (*schedule.events[:1], Event(0.6, (GrowMlp(20),)))), Stack(), PAPER)
    found = divide(schedule, 10**9)
    cost = Ligo(steps=2).flops(schedule.shapes[1], schedule.events[1].expansions, PAPER, 4)
    assert [stage.event_flops for stage in found] == [0, 0, cost]
    dear = Schedule(START, (Event(0.5, (GrowMlp(20),), Ligo(steps=10**6)),))
    with pytest.raises(ValueError, match=r"leaves no step for stage 2 .* for the operator ligo"):
        divide(dear, 10**9)


HEAD = "start: {hidden: 8, layers: 2, mlp: 16, heads: 2, key: 4, value: 4}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty; it must be a mapping of fields"),
        ("- 1", "must be a mapping of fields, not [1]"),
        ("start: [", "line 1: "),
        (HEAD + "events: []\nevents: []", "line 3: 'events' stands twice"),
        ("events: []", "must hold a schedule (start, events) or a run (schedule, budget, ...)"),
        ("schedule: {events: []}", "schedule: start: is missing"),
        ("{[1]: 2}", "unhashable"),
        ("[" * 3000, "nested too deeply"),
        (HEAD + "events: {}", "events: must be a list, not {}"),
        (HEAD + "events: [{at: 0.5, grow: [{expand: [mlp]}]}]", "expand: must be one of hidden, layers"),
        (
            HEAD + "events: [{at: .nan, grow: [{expand: mlp, to: 24}]}]",
            "at: must be a fraction between 0 and 1",
        ),
        ("start: 3", "start: must be a mapping of fields, not 3"),
        (
            HEAD.replace("layers: 2", "layers: 1000000000"),
            "start.layers must be at most 1000, not 1000000000",
        ),
        (HEAD + "stages: []", "schedule.stages: there is no such field; there are events, start"),
        ("start: {hidden: 8, layers: 2}", "start.heads"),
        (HEAD.replace("hidden: 8", "hidden: 8.5"), "start.hidden must be a positive integer, not 8.5"),
        (HEAD.replace("mlp: 16", "mlp: -1"), "start.mlp must be a positive integer, not -1"),
        (HEAD.replace("mlp: 16", "width: 16"), "start.width: there is no such field"),
        (HEAD + "events: 3", "events: must be a list, not 3"),
        (HEAD + "events: [{grow: []}]", "events[0].at: is missing"),
        (HEAD + "events: [{at: 0.5}]", "events[0].grow: is missing"),
        (HEAD + "events: [{at: 0.5, grow: []}]", "events[0].grow: must name at least one expansion"),
        (HEAD + "events: [{at: 0.5, grow: [{expand: depth}]}]", "events[0].grow[0].expand: must be one of"),
        (HEAD + "events: [{at: 0.5, grow: [{expand: mlp}]}]", "events[0].grow[0].to: is missing"),
        (
            HEAD + "events: [{at: 0.5, grow: [{expand: mlp, to: 24, heads: [0]}]}]",
            "events[0].grow[0].heads: there is no such field; there are layers, to",
        ),
        (
            HEAD + "events: [{at: 0.5, grow: [{expand: mlp, to: x}]}]",
            "events[0].grow[0].MLP width must be a positive integer, not 'x'",
        ),
        (
            HEAD + "events: [{at: 0.5, grow: [{expand: mlp, to: 8}]}]",
            "events[0].grow: layer 0: MLP width cannot shrink from 16 to 8",
        ),
        (
            HEAD + "events: [{at: 1.5, grow: [{expand: mlp, to: 24}]}]",
            "events[0].at: must be a fraction between 0 and 1, not 1.5",
        ),
        (
            HEAD + "events: [{at: half, grow: [{expand: mlp, to: 24}]}]",
            "events[0].at: must be a fraction between 0 and 1, not 'half'",
        ),
        (
            HEAD + "events: [{at: 0.5, operator: grow, grow: [{expand: mlp, to: 24}]}]",
            "events[0].operator: must be one of preserve, net2net,",
        ),
        (
            HEAD + "events: [{at: 0.5, operator: null, grow: [{expand: mlp, to: 24}]}]",
            "events[0].operator: must be one of preserve, net2net,",
        ),
        (
            HEAD + "events: [{at: 0.5, operator: {kind: masked, opening: 2}, grow: [{expand: mlp, to: 24}]}]",
            "events[0].operator.masked.opening: input should be less than or equal to 1, not 2",
        ),
        (
            HEAD
            + "events: [{at: 0.5, grow: [{expand: mlp, to: 24}]}, {at: 0.4, grow: [{expand: mlp, to: 9}]}]",
            "events[1].at: must come after the event before it at 0.5, not 0.4",
        ),
    ],
)
def test_a_wrong_file_is_one_line_that_names_file_and_field(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ValueError, match=r"^\S+schedule\.yaml: ") as error:
        load_run(path)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_missing_or_binary_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such file"):
        load_run(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="UTF-8"):
        load_run(tmp_path / "binary.yaml")


def divide(schedule: Schedule, budget: int, **options: Any) -> Any:
    return stages(schedule, PAPER, budget, **{"sequences": 4, "muon": False, **options})


@examples(150)
@given(st.data())
def test_a_budget_is_spent_to_less_than_a_step_and_never_exceeded(data: st.DataObject) -> None:
    start = data.draw(shapes())
    count = data.draw(st.integers(0, 3))
    ats = sorted(data.draw(st.sets(st.integers(1, 19), min_size=count, max_size=count)))
    events: list[Event] = []
    for at in ats:
        grown = Schedule(start, tuple(events)).final
        sequence = data.draw(expansion_sequences(grown, max_size=2))
        if sequence:
            events.append(Event(at / 20, tuple(sequence)))
    schedule = Schedule(start, tuple(events))
    variant = PAPER
    cost = step_flops(schedule.final, variant, 2)
    budget = data.draw(st.integers(400 * cost, 2000 * cost))
    found = stages(schedule, variant, budget, sequences=2, muon=False)
    spent = 0
    for index, stage in enumerate(found):
        assert stage.spent == spent
        assert stage.step_flops == step_flops(stage.shape, variant, 2)
        if index:
            due = schedule.events[index - 1].at * budget
            assert due <= spent * (1 + 1e-12)
            assert spent - found[index - 1].step_flops < due
        spent += stage.flops
    assert budget - cost < spent <= budget


def test_a_budget_too_small_for_a_stage_is_refused() -> None:
    cost = step_flops(START, PAPER, 4)
    with pytest.raises(ValueError, match=r"leaves no step for stage 1 of 1"):
        divide(Schedule(START), cost - 1)
    assert divide(Schedule(START), cost)[0].steps == 1
    with pytest.raises(ValueError, match=r"leaves no step for stage 2 of 2"):
        divide(one(GrowHidden(800), at=0.9), 10 * cost)


def test_values_of_an_event_are_checked_in_python_too() -> None:
    with pytest.raises(ValueError, match=r"events\[0\]\.at.*True"):
        one(GrowMlp(20), at=True)
    with pytest.raises(ValueError, match=r"events\[0\]\.grow: layer 0, head 0: value size cannot shrink"):
        one(GrowValues(2))


@pytest.mark.parametrize(
    ("at", "told"),
    [
        ((1, 1), "2 more layers (at 1, 1)"),
        (tuple(range(10)) * 9, "90 more layers (9 each at 0 to 9)"),
        ((3,) * 8, "8 more layers (8 at 3)"),
        (tuple(range(7)), "7 more layers (at 0 to 6)"),
        ((0, 0, 0, 1, 1, 1, 9), "7 more layers (3 each at 0, 1, at 9)"),
        ((0, 1, 1, 2, 3, 3, 4, 5, 5, 6), "10 more layers (between 0 and 6)"),
    ],
)
def test_many_new_layers_are_told_shortly(at: tuple[int, ...], told: str) -> None:
    start = Shape(8, (Layer.of_heads(8, [(4, 4)]),) * 10)
    assert in_words(Schedule(start, (Event(0.5, (InsertLayers(at),)),))).endswith(f"at 0.5: {told}")
