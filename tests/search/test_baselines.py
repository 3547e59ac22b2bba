"""Fixed sizes and the learning rates they are tried at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nasgrow.search.baselines import EXTENSIONS, baselines, learning_rates, next_rate, sizes
from nasgrow.search.config import load_study
from nasgrow.search.study import Study
from tests.search.studies import SPACE, write_study


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


def test_extending_ends() -> None:
    losses: dict[float, float | None] = {0.003: 3.0, 0.006: 2.0}
    first = list(losses)
    for _ in range(EXTENSIONS):
        rate = next_rate(losses, first)
        assert rate is not None
        losses[rate] = min(loss for loss in losses.values() if loss is not None) - 0.1
    assert next_rate(losses, first) is None
