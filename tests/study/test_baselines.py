"""Fixed sizes and the learning rates they are tried at."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nasgrow.schedule import schedule_from
from nasgrow.study.baselines import (
    EXTENSIONS,
    Size,
    Tries,
    baselines,
    learning_rates,
    long_stages,
    next_rate,
    rates_to_try,
    sizes,
)
from nasgrow.study.config import load_study
from nasgrow.study.study import Study
from tests.study.studies import FINAL, SPACE, write_study

FOUR = ["hidden", "layers", "mlp", "heads"]


def study_with(folder: Path, **changes: Any) -> Study:
    return Study.resolve(load_study(write_study(folder, **changes)), "tiny.yaml")


def test_sizes_are_the_final_shape_those_between_and_the_smallest_start(tmp_path: Path) -> None:
    space = {**SPACE, "start": [1, 0.5, 0.25]}
    study = study_with(tmp_path, space=space, baselines={"shares": [0.5, 0.75]})
    found = sizes(study)
    assert [size.name for size in found] == ["final", "75% of final", "50% of final", "start"]
    assert found[0].shape == study.final
    assert found[-1].shape == study.space.smallest
    assert [size.shape.hidden for size in found] == [16, 12, 8, 4]


def test_equal_sizes_are_trained_once(tmp_path: Path) -> None:
    study = study_with(tmp_path, baselines={"shares": [0.5]})  # the smallest start is a half too
    assert [size.name for size in sizes(study)] == ["final", "50% of final"]


def test_each_dimension_that_grows_is_tried_alone_depth_first_no_shape_twice(tmp_path: Path) -> None:
    space = {**SPACE, "dims": FOUR, "start": [1, 0.5, 0.25]}
    study = study_with(tmp_path, space=space, baselines={"alone": True})
    final, found = study.final, {size.name: size.shape for size in sizes(study)}
    assert list(found) == [
        *("final", "75% of final", "50% of final", "start", "layers at 50%"),
        *("hidden at 75%", "hidden at 50%", "hidden at 25%", "mlp at 75%", "mlp at 50%", "mlp at 25%"),
        "heads at 50%",
    ]
    assert found["layers at 50%"] == final.with_layers(final.layers[:1]), "one layer at full width"
    assert found["hidden at 25%"] == replace(final, hidden=4)
    assert {layer.mlp for layer in found["mlp at 75%"].layers} == {24}
    assert len(set(found.values())) == len(found)


def test_sizes_alone_are_those_that_the_file_asks_for(tmp_path: Path) -> None:
    def alone(**asked: Any) -> list[str]:
        study = study_with(tmp_path, space={**SPACE, "dims": FOUR}, baselines={"alone": True, **asked})
        return [size.name for size in sizes(study) if " at " in size.name]

    half = [f"{dim} at 50%" for dim in ("layers", "hidden", "mlp", "heads")]
    assert alone(shares=[]) == half, "where growth starts"
    assert alone(shares=[], start=False) == []
    assert alone(shares=[0.25, 0.75], start=False) == ["hidden at 75%", "mlp at 75%"], "none below a start"


def test_only_dimensions_that_grow_are_tried_alone(tmp_path: Path) -> None:
    deeper = {
        "start": {**FINAL, "layers": 1},
        "events": [{"at": 0.5, "grow": [{"expand": "layers", "at": [1]}]}],
    }
    space = {"kind": "fixed", "schedules": {"deeper": deeper}}
    study = study_with(tmp_path, space=space, baselines={"alone": True, "start": False})
    assert [size.name for size in sizes(study)] == ["final", "50% of final"], "that is one layer already"
    dims = {"hidden": {"start": [1]}, "layers": {"start": [1, 0.5]}, "mlp": {"start": [1, 0.5]}}
    each = {"kind": "per-dimension", "dims": dims, "times": SPACE["times"]}
    study = study_with(tmp_path, space=each, baselines={"alone": True, "shares": []})
    assert [size.name for size in sizes(study)] == ["final", "start", "layers at 50%", "mlp at 50%"]


@pytest.mark.parametrize(
    ("times", "places"), [((0.2, 0.5), [1, 2, 3]), ((0.05, 0.9), [2]), ((0.5, 0.7), [1, 2, 3])]
)
def test_the_shapes_at_which_a_schedule_stays_for_a_fifth_of_the_budget_are_its_rivals(
    times: tuple[float, float], places: list[int]
) -> None:
    first, second = times
    events = [
        {"at": first, "grow": [{"expand": "hidden", "to": 16}]},
        {"at": second, "grow": [{"expand": "layers", "at": [1]}]},
    ]
    start = {**FINAL, "hidden": 8, "layers": 1}
    schedule = schedule_from({"start": start, "events": events})
    found = list(long_stages(schedule))
    assert [place for place, _, _ in found] == places
    assert [shape for _, _, shape in found] == [schedule.shapes[place - 1] for place in places]


def test_other_budgets_are_for_the_final_shape_alone_and_no_sizes_at_equal_compute(tmp_path: Path) -> None:
    study = study_with(tmp_path, baselines={"shares": [0.5], "budgets": [2, 0.5]})
    found = baselines(study)
    assert [size.name for size in found] == [
        "final",
        "50% of final",
        "final, 0.5x budget",
        "final, 2x budget",
    ]
    assert found[:2] == sizes(study)
    assert [(size.shape, size.times) for size in found[2:]] == [(study.final, 0.5), (study.final, 2.0)]


@pytest.mark.parametrize("budgets", [[1], [2, 2], [0.1], [0]])
def test_other_budgets_must_be_others(budgets: list[float], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tiny.yaml: baselines\.budgets"):
        study_with(tmp_path, baselines={"budgets": budgets})


@pytest.mark.parametrize(
    ("training", "given", "rates"),
    [
        ({"learning_rate.peak": [0.006, 0.003]}, None, [0.003, 0.006]),
        (
            {"learning_rate.peak": {"low": 0.001, "high": 0.016, "log": True}},
            None,
            [1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2],
        ),
        ({"learning_rate.peak": {"low": 0.002, "high": 0.006, "step": 0.002}}, None, [2e-3, 4e-3, 6e-3]),
        ({}, None, [3e-3, 6e-3, 1.2e-2]),
        ({"learning_rate.peak": [0.006, 0.003]}, [0.01, 0.003], [0.003, 0.006, 0.01]),
        ({}, [0.01], [0.006, 0.01]),
        ({"learning_rate.peak": [0.001]}, None, [5e-4, 1e-3, 2e-3]),
        ({"learning_rate.peak": [0.001]}, [0.01], [0.001, 0.01]),
        ({"learning_rate.peak": [6.0]}, None, [3.0, 6.0]),
    ],
)
def test_baselines_try_what_the_search_can_try(
    training: dict[str, Any], given: list[float] | None, rates: list[float], tmp_path: Path
) -> None:
    study = study_with(
        tmp_path, space={**SPACE, "training": training}, baselines={"shares": [], "learning_rates": given}
    )
    assert learning_rates(study) == pytest.approx(rates)


def test_beyond_the_edge_another_rate_is_tried_until_the_best_lies_inside() -> None:
    first = [0.003, 0.006, 0.012]
    assert next_rate({0.003: 2.0, 0.006: 1.9, 0.012: 2.1}, first) is None
    assert next_rate({0.003: 2.0, 0.006: 1.9, 0.012: 1.8}, first) == pytest.approx(0.024)
    assert next_rate({0.003: 1.7, 0.006: 1.9, 0.012: 1.8}, first) == pytest.approx(0.0015)
    assert next_rate({0.003: 2.0, 0.006: 1.9, 0.012: 1.8, 0.024: None}, first) is None, "diverged beyond it"
    assert next_rate({0.003: None, 0.006: None, 0.012: None}, first) == pytest.approx(0.0015), "all diverged"
    assert next_rate({0.006: 1.9}, [0.006]) is None, "one rate is the user's own choice"
    assert next_rate({3.0: 2.0, 6.0: 1.9}, [3.0, 6.0]) is None, "12 is no learning rate"
    assert next_rate({1e-9: 1.9, 2e-9: 2.0}, [1e-9, 2e-9]) is None


RATES = {"learning_rate.peak": [0.003, 0.006, 0.012, 0.024]}


def test_a_size_alone_is_tried_around_the_best_rate_of_the_final_shape_until_its_best_lies_inside(
    tmp_path: Path,
) -> None:
    study = study_with(tmp_path, space={**SPACE, "training": RATES}, baselines={"extended": True})
    size, nothing = Size("layers at 50%", study.final, around=True), Tries({})
    tried = {0.003: 2.1, 0.006: 2.0, 0.012: 1.9, 0.024: 1.95}
    final = Tries(tried)
    assert rates_to_try(study, size, nothing, Tries({**tried, 0.024: None}, ended=False)) == []
    assert rates_to_try(study, size, nothing, Tries({**tried, 0.024: 1.8})) == [], "the final shape's go on"
    assert rates_to_try(study, size, nothing, final) == [0.006, 0.012, 0.024]
    assert rates_to_try(study, size, Tries({0.006: 1.9, 0.012: None}, ended=False), final) == [0.024]
    inside = Tries({0.006: 1.9, 0.012: 1.8, 0.024: 1.9})
    assert rates_to_try(study, size, inside, final) == []
    low = Tries({0.006: 1.7, 0.012: 1.8, 0.024: 1.9})
    assert rates_to_try(study, size, low, final) == [0.003], "of those that schedules may have"
    high = Tries({0.006: 1.9, 0.012: 1.8, 0.024: 1.7})
    assert rates_to_try(study, size, high, final) == pytest.approx([0.048]), "and beyond"
    diverged = Tries(dict.fromkeys([*tried, 0.0015, 0.00075, 0.000375]))
    assert rates_to_try(study, size, nothing, diverged) == [0.003, 0.006, 0.012, 0.024], "no best to go by"


def test_without_extensions_a_size_alone_is_tuned_within_the_rates_of_the_study(tmp_path: Path) -> None:
    study = study_with(tmp_path, space={**SPACE, "training": RATES}, baselines={"extended": False})
    size = Size("layers at 50%", study.final, around=True)
    final = Tries({0.003: 2.1, 0.006: 2.0, 0.012: 1.9, 0.024: 1.8})
    assert rates_to_try(study, size, Tries({}), final) == [0.012, 0.024]
    assert rates_to_try(study, size, Tries({0.012: 1.8, 0.024: 1.9}), final) == [0.006]
    assert rates_to_try(study, size, Tries({0.012: 1.9, 0.024: 1.8}), final) == []


def test_extending_ends() -> None:
    losses: dict[float, float | None] = {0.003: 3.0, 0.006: 2.0}
    first = list(losses)
    for _ in range(EXTENSIONS):
        rate = next_rate(losses, first)
        assert rate is not None
        losses[rate] = min(loss for loss in losses.values() if loss is not None) - 0.1
    assert next_rate(losses, first) is None
