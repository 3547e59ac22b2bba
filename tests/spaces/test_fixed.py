"""Fixed spaces: the schedules that they name and no others, each of them tried."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from nasgrow.expansions import GrowMlp, InsertLayers
from nasgrow.operators import Stack
from nasgrow.schedule import Event, Schedule, schedule_to
from nasgrow.spaces import load_space
from nasgrow.spaces.grid import points
from nasgrow.spaces.training import PEAK
from tests.spaces.asking import FINAL, FixedTrial, RandomTrial, space
from tests.study.studies import FINAL as SMALL
from tests.study.studies import run_study, write_study

DEEPER = Schedule(FINAL.with_layers(FINAL.layers[:2]), (Event(0.5, (InsertLayers((2, 2)),)),))
WIDER = Schedule(
    FINAL.with_layers(layer.of_heads(64, layer.heads) for layer in FINAL.layers),
    (Event(0.1, (GrowMlp(128),)), Event(0.15, (GrowMlp(256),))),
)
STACKED = Schedule(DEEPER.start, (replace(DEEPER.events[0], operator=Stack()),))
FIXED: dict[str, Any] = {
    "kind": "fixed",
    "schedules": {"deeper": schedule_to(DEEPER), "wider": schedule_to(WIDER)},
}


def test_its_points_are_its_schedules_and_no_growth() -> None:
    bound = space(FIXED)
    found = {name: bound.sample(FixedTrial(values)).schedule for name, values in bound.known.items()}
    assert found == {"deeper": DEEPER, "wider": WIDER, "no growth": Schedule(FINAL)}
    assert bound.size == 3
    assert {bound.sample(RandomTrial(seed)).schedule for seed in range(40)} == set(found.values())


def test_every_combination_with_training_is_tried_at_one_learning_rate() -> None:
    settings = {"learning_rate.rewarm": [0.1, 0.2], "moments": ["carry"]}
    bound = space({**FIXED, "training": settings}, rates=(0.003, 0.006))
    assert list(bound.settings) == ["schedule", "learning_rate.rewarm", "learning_rate.peak"]
    assert list(bound.known)[:3] == [
        "deeper, learning_rate.rewarm 0.1",
        "deeper, learning_rate.rewarm 0.2",
        "wider, learning_rate.rewarm 0.1",
    ]
    assert (len(bound.known), bound.size) == (6, 12)
    point = bound.sample(FixedTrial({**bound.known["deeper, learning_rate.rewarm 0.2"], PEAK: 0.006}))
    expected = {"learning_rate.peak": 0.006, "learning_rate.rewarm": 0.2, "moments": "carry"}
    assert (point.schedule, point.training) == (DEEPER, expected)


def test_of_very_many_points_a_sampler_chooses() -> None:
    many = {
        name: {"low": 0.001, "high": 0.5, "step": 0.001}
        for name in ("learning_rate.rewarm_from", "learning_rate.rewarm")
    }
    bound = space({**FIXED, "training": many})
    assert (bound.size, bound.known) == (3 * 500**2, {})


def test_operators_that_can_do_all_of_its_schedules_can_be_searched() -> None:
    named = ["preserve", "net2net", "preserve + stack"]
    bound = space({**FIXED, "training": {"operator": named}})
    assert [operator.kind for operator in bound.operators] == named
    with pytest.raises(
        ValueError, match=r"schedules.wider: events\[0\].grow: operator stack cannot grow mlp"
    ):
        space({**FIXED, "training": {"operator": ["preserve", "stack"]}})


def test_what_an_operator_does_not_touch_is_tried_once() -> None:
    own = {"deeper": schedule_to(STACKED), "wider": schedule_to(WIDER)}
    settings = {"operator": ["preserve", "net2net"]}
    bound = space({"kind": "fixed", "schedules": own, "training": settings})
    assert list(bound.known) == ["deeper", "wider, operator preserve", "wider, operator net2net", "no growth"]
    assert [operator.kind for operator in bound.operators] == ["preserve", "net2net", "stack"]
    assert len(points(bound)) == len(bound.known)


def test_an_event_that_its_own_operator_cannot_do_is_refused() -> None:
    wrong = Schedule(WIDER.start, (replace(WIDER.events[0], operator=Stack()), WIDER.events[1]))
    with pytest.raises(
        ValueError, match=r"schedules.wider: events\[0\].grow: operator stack cannot grow mlp"
    ):
        space({"kind": "fixed", "schedules": {"wider": schedule_to(wrong)}})


def test_the_schedules_of_the_literature_have_the_operators_of_their_papers() -> None:
    literature = Path(__file__).parents[2] / "search_spaces" / "literature.yaml"
    bound = space(str(literature))
    named = {
        name: {str(event.operator) for event in bound.at(point).schedule.events}
        for name, point in bound.known.items()
    }
    assert named == {
        "depth x2": {"stack"},
        "depth x4": {"stack"},
        "gradual stacking": {"stack"},
        "one at a time": {"masked"},
        "compound": {"None"},
        "staged doubling": {"staged"},
        "no growth": set(),
    }


def test_baselines_and_budgets_know_its_sizes_and_times() -> None:
    bound = space(FIXED)
    assert bound.smallest == DEEPER.start
    assert bound.grid == pytest.approx(0.05)
    assert bound.last == 0.5
    half = bound.fixed(0.5)
    assert (half.hidden, len(half.layers), half.layers[0].mlp) == (64, 2, 128)
    assert half.layers[0].heads == FINAL.layers[0].heads, "none of its schedules grows heads"


def test_from_scratch_may_have_a_name_of_its_own() -> None:
    scratch = schedule_to(Schedule(FINAL))
    assert list(space({"kind": "fixed", "schedules": {"scratch": scratch}}).known) == ["scratch"]
    assert space({"kind": "fixed", "schedules": {"scratch": scratch}}).smallest == FINAL


def test_schedules_may_be_files(tmp_path: Path) -> None:
    (tmp_path / "deeper.yaml").write_text(yaml.safe_dump(schedule_to(DEEPER)))
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({"schedule": schedule_to(WIDER), "seed": 3}))
    (tmp_path / "space.yaml").write_text(
        yaml.safe_dump({"kind": "fixed", "schedules": {"deeper": "deeper.yaml", "wider": "run.yaml"}})
    )
    assert load_space("space.yaml", "study.yaml: space", tmp_path) == load_space(FIXED, "it", tmp_path)


@pytest.mark.parametrize(
    ("schedules", "message"),
    [
        ({}, "schedules: dictionary should have at least 1 item"),
        ([], "schedules: input should be a valid dictionary, not []"),
        ({"a": 3}, "schedules.a: must be a mapping of fields, not 3"),
        ({"a": "none.yaml"}, "schedules.a: none.yaml: cannot be read: no such file or directory"),
    ],
)
def test_what_cannot_be_read_is_refused(schedules: object, message: str) -> None:
    with pytest.raises(ValueError, match=r"study\.yaml: space") as error:
        load_space({"kind": "fixed", "schedules": schedules}, "study.yaml: space", Path())
    assert str(error.value).removeprefix("study.yaml: space: ").startswith(message)


@pytest.mark.parametrize(
    ("schedules", "message"),
    [
        ({"a": {"start": {"hidden": 3}}}, r"schedules\.a: start\.layers must be a positive integer"),
        (
            {"a": schedule_to(Schedule(DEEPER.start))},
            r"schedules\.a: must end at the final shape h=64, N=4: .*, not at h=64, N=2",
        ),
        ({"no growth": schedule_to(DEEPER)}, r"schedules\.no growth: has events, so it needs another name"),
    ],
)
def test_what_does_not_fit_the_study_is_refused(schedules: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        space({"kind": "fixed", "schedules": schedules})


@pytest.mark.usefixtures("place")
def test_a_study_of_it_trains_each_once(tmp_path: Path) -> None:
    start = {**SMALL, "layers": 1}
    grown = {"start": start, "events": [{"at": 0.4, "grow": [{"expand": "layers", "at": [1]}]}]}
    fixed = {"kind": "fixed", "schedules": {"deeper": grown}}
    _, _, known = run_study(write_study(tmp_path, space=fixed, trials=2))
    (final,), (deeper, scratch) = (list(known.trials[kind].values()) for kind in ("baseline", "search"))
    assert [(trial.name, len(trial.schedule["events"])) for trial in (final, deeper, scratch)] == [
        ("final", 0),
        ("deeper", 1),
        ("no growth", 0),
    ]
    assert scratch.runs.keys() == final.runs.keys()
    assert scratch.executed == 0, "the baseline is the same run"
