"""Baselines: sizes and their budgets, natural rivals of schedules, and what was tried for each shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nasgrow.schedule import Schedule, schedule_from, schedule_to
from nasgrow.shape import Shape
from nasgrow.spaces.training import PEAK
from nasgrow.study.baselines import (
    BaselineSize,
    best_values,
    describe,
    final_size,
    find_size,
    long_stages,
    other_budgets,
    rival_shapes,
    times_of,
    tuned_sizes,
)
from nasgrow.study.config import load_study
from nasgrow.study.study import ResolvedStudy
from tests.study.records import make_record
from tests.study.studies import FINAL, SPACE, write_study

FOUR = ["hidden", "layers", "mlp", "heads"]


def study_with(folder: Path, **changes: Any) -> ResolvedStudy:
    return ResolvedStudy.resolve(load_study(write_study(folder, **changes)), "tiny.yaml")


def fixed(shape: Shape) -> dict[str, Any]:
    return schedule_to(Schedule(shape))


def test_sizes_have_the_studys_other_budgets_and_are_found_by_name(tmp_path: Path) -> None:
    study = study_with(tmp_path, baselines={"budgets": [2, 0.5]})
    small = study.space.fixed(0.5)
    record = make_record("fixed", 3, 2.0, schedule=fixed(small))
    sizes = other_budgets(study, [final_size(study), BaselineSize("fixed 3", small)])
    assert [(size.name, size.shape, size.times) for size in sizes] == [
        ("final, 0.5x budget", study.final, 0.5),
        ("final, 2x budget", study.final, 2.0),
        ("fixed 3, 0.5x budget", small, 0.5),
        ("fixed 3, 2x budget", small, 2.0),
    ]
    assert [size.of for size in sizes] == ["final", "final", "fixed 3", "fixed 3"]
    known: Any = {"fixed": {3: record}}
    assert [find_size(study, size.name, known) for size in sizes] == sizes
    assert [times_of(size.name) for size in sizes] == [0.5, 2.0, 0.5, 2.0]
    assert times_of("final") == 1


@pytest.mark.parametrize("budgets", [[1], [2, 2], [0.04], [0]])
def test_other_budgets_must_be_others(budgets: list[float], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tiny.yaml: baselines\.budgets"):
        study_with(tmp_path, baselines={"budgets": budgets})


@pytest.mark.parametrize(
    ("times", "places"), [((0.2, 0.5), [0, 1, 2]), ((0.05, 0.9), [1]), ((0.5, 0.7), [0, 1, 2])]
)
def test_a_schedule_stays_for_long_at_the_shapes_of_a_fifth_of_the_budget(
    times: tuple[float, float], places: list[int]
) -> None:
    schedule = grown(*times)
    assert [shape for _, shape in long_stages(schedule)] == [schedule.shapes[place] for place in places]


def grown(first: float, second: float) -> Schedule:
    events = [
        {"at": first, "grow": [{"expand": "hidden", "to": 16}]},
        {"at": second, "grow": [{"expand": "layers", "at": [1]}]},
    ]
    start: dict[str, Any] = {**FINAL, "hidden": 8, "layers": 1}
    return schedule_from({"start": start, "events": events})


def test_rivals_are_the_long_stages_of_the_best_schedules_and_shallower_final_shapes(tmp_path: Path) -> None:
    study = study_with(tmp_path, space={**SPACE, "dims": FOUR})
    assert rival_shapes(study, []) == [], "no schedule has finished"
    best, worse = grown(0.05, 0.9), grown(0.3, 0.35)
    records = [
        make_record("search", 0, 2.0, schedule=schedule_to(worse)),
        make_record("search", 1, 1.9, schedule=schedule_to(best)),
        make_record("search", 2, 1.8, schedule=fixed(study.final)),
    ]
    found = rival_shapes(study, records)
    one_layer = study.final.with_layers(study.final.layers[:1])
    assert found == [best.shapes[1], worse.shapes[0]], "the long stage of the best is one layer already"
    assert one_layer == best.shapes[1]
    late = [make_record("search", 3, 1.7, schedule=schedule_to(grown(0.9, 0.95)))]
    assert rival_shapes(study, late) == [grown(0.9, 0.95).start, one_layer]
    assert study.final not in found
    assert len(set(found)) == len(found)


def test_fixed_shapes_are_described_by_what_differs_from_the_final_one() -> None:
    final = Shape.uniform(hidden=32, layers=2, mlp=128, heads=2, key=16, value=16)
    assert describe(final, final) == "final"
    assert describe(final.with_layers(final.layers[:1]), final) == "layers 1"
    narrow = Shape.uniform(hidden=16, layers=2, mlp=64, heads=2, key=16, value=16)
    assert describe(narrow, final) == "hidden 16, mlp 64"
    uneven = final.with_layers((final.layers[0], narrow.layers[0]))
    assert describe(uneven, final) == str(uneven)


def test_all_that_was_tried_for_a_shape_counts_whatever_kind_of_trial_it_was(tmp_path: Path) -> None:
    study = study_with(tmp_path, tune={PEAK: ["x0.5", "x1", "x2"]})
    final, small = fixed(study.final), fixed(study.space.fixed(0.5))

    def record(
        kind: Any, number: int, loss: float | None, rate: float, schedule: Any, name: Any = None
    ) -> Any:
        parameters = {PEAK: rate}
        return make_record(
            kind, number, loss, name=name, schedule=schedule, parameters=parameters, learning_rate=rate
        )

    found = tuned_sizes(
        study,
        [
            record("baseline", 0, 2.0, 0.003, final, "final"),
            record("baseline", 1, 1.9, 0.006, final, "final"),
            record("baseline", 2, 1.5, 0.006, final, "final, 2x budget"),
            record("fixed", 0, 1.95, 0.012, final),
            record("fixed", 1, 1.8, 0.006, small),
            record("fixed", 2, None, 0.012, small),
        ],
    )
    whole, half, twice = found
    assert (whole.size.name, half.size.name, twice.size.name) == (
        "final",
        describe(study.space.fixed(0.5), study.final),
        "final, 2x budget",
    )
    assert [trial.learning_rate for trial in whole.tried] == [0.003, 0.006, 0.012]
    assert [one.best.loss for one in found if one.best] == [1.9, 1.8, 1.5]
    assert [one.edges for one in found] == [(), (PEAK,), (PEAK,)]
    repeated = record("baseline", 3, 1.7, 0.006, final, "final")
    failed = record("baseline", 4, None, 0.006, final, "final")
    failed.status = "failed"
    (again, *_) = tuned_sizes(study, [failed, repeated])
    assert again.best is repeated, "a launch repeats a trial whose workers died"
    tried = [trial for one in found for trial in one.tried]
    assert best_values(study, tried)[PEAK] == 0.006
    assert tuned_sizes(study, [])[0].best is None, "the final shape is always one"
