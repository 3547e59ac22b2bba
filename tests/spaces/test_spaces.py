"""Spaces: every point is a valid schedule that ends at the final shape, and says what its parameters say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from nasgrow.expansions import AddHeads, Expansion, GrowHidden, GrowMlp, InsertLayers
from nasgrow.flops import step_flops
from nasgrow.names import short_name
from nasgrow.schedule import Event, Schedule, stages
from nasgrow.shape import Shape, Variant
from nasgrow.spaces import Point, Space, SpaceModel, load_space
from nasgrow.spaces.levels import DIMS, ORDERS, Dim
from nasgrow.spaces.operators import sizes_of
from nasgrow.study.study import open_study
from tests.spaces.asking import FILES, FINAL, PLAIN, FixedTrial, RandomTrial, point, space
from tests.strategies import examples, shapes

LAYER = FINAL.layers[0]
COMPOUND: dict[str, Any] = {"kind": "compound", "start": [1, 0.5, 0.25]}
GRID = {"low": 0.05, "high": 0.7, "step": 0.05}


def check(found: Point, final: Shape, variant: Variant, grid: float) -> None:
    schedule = found.schedule
    assert schedule.final == final
    for shape in schedule.shapes:
        variant.check(shape)
    for before, after in pairwise(schedule.shapes):
        assert before != after
    for event in schedule.events:
        assert event.at == round(round(event.at / grid) * grid, 10)
    plain = Schedule(schedule.start, schedule.events)  # which checks and works out what spaces know
    assert (plain, plain.shapes) == (schedule, schedule.shapes)
    budget = 100 * step_flops(final, variant, 4)
    spent = stages(schedule, variant, budget, sequences=4, muon=False)
    assert 0 <= budget - sum(stage.flops for stage in spent) < spent[-1].step_flops


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_known_schedule_with_a_time_in_its_name_is_named_as_other_schedules_are(file: Path) -> None:
    timed = {name: schedule for name, schedule in known(space(str(file))).items() if "%" in name}
    assert timed == {short_name(schedule): schedule for schedule in timed.values()}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_point_of_a_file_ends_at_the_final_shape(file: Path) -> None:
    bound = space(str(file))
    asked: list[dict[str, Any]] = []
    for seed in range(500):
        trial = RandomTrial(seed)
        found = bound.sample(trial)
        check(found, found.schedule.final if bound.opened else FINAL, PLAIN, bound.grid)
        asked.append(trial.asked)
    assert all(list(each.items()) == list(asked[0].items()) for each in asked)
    assert list(asked[0]) == list(bound.settings)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_header_of_a_file_states_its_size(file: Path) -> None:
    stated = re.search(r"^# points: ([\d,]+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    assert stated is not None
    assert int(stated.group(1).replace(",", "")) == space(str(file)).size


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_space_is_the_same_after_json(file: Path) -> None:
    model = load_space(str(file), "study.yaml: space", Path())
    data = json.loads(json.dumps(model.model_dump(mode="json")))
    assert load_space(data, "study.yaml: space", Path()) == model
    assert TypeAdapter(SpaceModel).validate_python(data) == model


def known(bound: Space) -> dict[str, Schedule]:
    return {name: bound.sample(FixedTrial(values)).schedule for name, values in bound.known.items()}


HALF = Shape.uniform(hidden=32, layers=2, mlp=128, heads=2, key=16, value=16)
QUARTER = Shape.uniform(hidden=16, layers=1, mlp=64, heads=1, key=16, value=16)
DOUBLE: tuple[Expansion, ...] = (GrowHidden(64), GrowMlp(256), AddHeads(4), InsertLayers((2, 2), LAYER))
SHALLOW = FINAL.with_layers((LAYER, LAYER))
KNOWN = {
    "no growth": Schedule(FINAL),
    "x2 layers at 50%": Schedule(SHALLOW, (Event(0.5, (InsertLayers((2, 2)),)),)),
    "x2 layers at 80%": Schedule(SHALLOW, (Event(0.8, (InsertLayers((2, 2)),)),)),
    "one dimension at a time": Schedule(
        HALF, tuple(Event((number + 1) / 10, (grow,)) for number, grow in enumerate(DOUBLE))
    ),
    "x2 all at 15%": Schedule(HALF, (Event(0.15, DOUBLE),)),
    "x2 all at 50%": Schedule(HALF, (Event(0.5, DOUBLE),)),
    "staged doubling": Schedule(
        QUARTER,
        (
            Event(0.15, (GrowHidden(32), GrowMlp(128), AddHeads(2), InsertLayers((1,)))),
            Event(0.4, DOUBLE),
        ),
    ),
}


@pytest.mark.parametrize(
    ("file", "missing"),
    [
        ("compound", {"x2 layers at 50%", "x2 layers at 80%", "one dimension at a time"}),
        (
            "open-ended",
            {"x2 layers at 50%", "x2 layers at 80%", "one dimension at a time", "x2 all at 15%"},
        ),
        ("per-dimension", {"x2 all at 15%"}),
        ("slots", {"x2 all at 15%"}),
    ],
)
def test_known_schedules_are_what_their_names_say(file: str, missing: set[str]) -> None:
    path = next(path for path in FILES if path.stem == file)
    assert known(space(str(path))) == {name: KNOWN[name] for name in KNOWN if name not in missing}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_optuna_gives_known_points_back_and_samples_the_rest(file: Path) -> None:
    bound = space(str(file))
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    for values in bound.known.values():
        study.enqueue_trial(dict(values))
    for expected in known(bound).values():
        assert bound.sample(study.ask()).schedule == expected
    for _ in range(20):
        trial = study.ask()
        bound.sample(trial)
        assert list(trial.params) == list(bound.settings)


def test_neither_torch_nor_optuna_is_needed() -> None:
    code = "import sys, nasgrow.spaces; sys.exit(bool({'torch', 'optuna'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)


SHARES = st.lists(st.sampled_from([0.1, 0.25, 0.4, 0.5, 0.75, 0.9]), max_size=3, unique=True).map(
    lambda shares: [*shares, 1]
) | st.just({"low": 0.1, "high": 1})
DIM_LISTS = st.lists(st.sampled_from(DIMS), min_size=1, unique=True)


@st.composite
def spaces(draw: st.DrawFn) -> dict[str, Any]:
    dims = draw(DIM_LISTS)
    starts = {dim: draw(SHARES) for dim in dims}
    orders = draw(st.lists(st.sampled_from(ORDERS), min_size=1, unique=True))
    common = {"times": GRID, "order": orders if "layers" in dims else orders[:1]}
    groups = st.dictionaries(st.sampled_from("abc"), st.lists(st.sampled_from(dims), unique=True))
    kind = draw(st.sampled_from(["compound", "per-dimension", "slots"]))
    own: dict[str, dict[str, Any]] = {
        "compound": {"dims": dims, "start": starts[dims[0]], "events": draw(st.integers(1, 4))},
        "per-dimension": {
            "dims": {dim: {"start": start} for dim, start in starts.items()},
            "steps": draw(st.sampled_from([1, 2])),
        },
        "slots": {
            "start": starts,
            "slots": draw(st.integers(1, 4)),
            "choices": {"none": [], **draw(groups)},
            "factor": [1.5, 2, 7],
            "layers": ["all", "lower", "upper"],
        },
    }
    return {"kind": kind, **common, **own[kind]}


@examples(60)
@given(st.data(), st.sampled_from(["learned", "rope"]))
def test_every_point_of_any_space_ends_at_any_final_shape(data: st.DataObject, positions: Any) -> None:
    variant = replace(PLAIN, positions=positions)
    final = data.draw(shapes(even_keys=positions == "rope"))
    bound = space(data.draw(spaces()), final, variant)
    first = data.draw(st.integers(0, 10**6))
    for seed in range(first, first + 20):
        check(bound.sample(RandomTrial(seed)), final, variant, bound.grid)
    assert bound.smallest.hidden <= bound.fixed(1.0).hidden
    assert bound.fixed(1.0) == final


def test_sizes_and_names_of_parameters_are_told() -> None:
    ranges = {"kind": "compound", "start": {"low": 0.25, "high": 1, "step": 0.25}, "events": 1}
    bound = space(ranges)
    assert bound.size == 4 * 14
    bound = space({**ranges, "training": {"learning_rate.rewarm": {"low": 1e-3, "high": 1e-2, "log": True}}})
    assert bound.size == float("inf")
    assert list(bound.settings) == ["start", "at.1", "learning_rate.rewarm"]
    found = bound.sample(RandomTrial(0))
    assert list(found.training) == ["learning_rate.rewarm", "learning_rate.peak"]


def test_a_fixed_value_is_not_asked_for_but_used() -> None:
    data = {**COMPOUND, "order": ["bottom"], "training": {"moments": ["carry"]}}
    trial = RandomTrial(0)
    assert space(data).sample(trial).training == {"moments": "carry", "learning_rate.peak": 0.006}
    assert list(trial.asked) == ["start", "at.1", "at.2"]
    assert point({**data, "dims": ["layers"]}, {"start": 0.5, "order": "bottom"}).schedule.events[
        0
    ].expansions == (InsertLayers((0, 0), LAYER),)


def test_the_files_are_all_there() -> None:
    assert [file.stem for file in FILES] == [
        "compound",
        "independent",
        "literature",
        "open-ended",
        "per-dimension",
        "slots",
    ]
    for file in FILES:
        assert any(name.startswith("no growth") for name in space(str(file)).known)


ROUNDED: tuple[Dim, ...] = "hidden", "mlp", "key", "value"
STUDIES = [
    path
    for path in sorted((Path(__file__).parents[2] / "studies").glob("*.yaml"))
    if "space" in yaml.safe_load(path.read_text(encoding="utf-8"))
]


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.stem)
def test_shipped_studies_pass_through_sizes_that_suit_devices(path: Path) -> None:
    bound = open_study(path)[0].space
    for seed in range(100):
        schedule = bound.sample(RandomTrial(seed)).schedule
        final = sizes_of(schedule.final)
        for shape in schedule.shapes:
            for dim in ROUNDED:
                for size in sizes_of(shape)[dim] - final[dim]:
                    assert size % 8 == 0 or min(final[dim]) < 32, (shape, dim)
                    assert size % 64 == 0 or min(final[dim]) < 512, (shape, dim)
                    assert size % 4 == 0, (shape, dim)
