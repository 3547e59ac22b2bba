"""The figure of a run's loss over compute, by what matplotlib holds."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import imread

from nasgrow.report.curve import curve_figure, draw_curve

FINISHED: list[dict[str, Any]] = [
    {"kind": "evaluation", "charged": 0, "validation": 5.5},
    {"kind": "train", "charged": 5, "loss": 5.0},
    {"kind": "train", "charged": 20, "loss": 3.0},
    {"kind": "evaluation", "charged": 20, "validation": 3.1},
    {"kind": "event", "charged": 30},
    {"kind": "train", "charged": 50, "loss": 2.5},
    {"kind": "event", "charged": 60},
    {"kind": "evaluation", "charged": 60, "validation": 2.6},
    {"kind": "train", "charged": 100, "loss": 2.2},
    {"kind": "final", "charged": 100, "validation": 2.34567, "evaluation": 2.4},
]


def axes_of(records: list[dict[str, Any]]) -> Axes:
    (axes,) = curve_figure(records).axes
    return axes


def legend_of(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]


def test_a_run_with_events_shows_losses_over_compute_and_each_event() -> None:
    axes = axes_of(FINISHED)
    train, validation, *events = axes.get_lines()
    np.testing.assert_array_equal(train.get_xydata(), [(5, 5.0), (20, 3.0), (50, 2.5), (100, 2.2)])
    np.testing.assert_array_equal(validation.get_xydata(), [(0, 5.5), (20, 3.1), (60, 2.6), (100, 2.4)])
    assert [list(np.asarray(line.get_xdata())) for line in events] == [[30, 30], [60, 60]]
    assert legend_of(axes) == ["training", "validation", "growth"]
    assert axes.get_title() == "final validation loss 2.3457"
    assert "FLOPs" in axes.get_xlabel()
    assert "nats" in axes.get_ylabel()


def test_only_the_first_fall_may_leave_the_figure() -> None:
    low, high = axes_of(FINISHED).get_ylim()
    assert low < 2.2
    assert 3.1 < high < 5.0


def test_lines_are_told_apart_without_colour() -> None:
    train, validation, event, _ = axes_of(FINISHED).get_lines()
    assert train.get_marker() != validation.get_marker()
    assert event.get_linestyle() not in (train.get_linestyle(), validation.get_linestyle())


def test_a_diverged_run_shows_its_losses_as_far_as_they_are_numbers() -> None:
    records = [*FINISHED[:4], {"kind": "train", "charged": 40, "loss": 9.0}]
    axes = axes_of([*records, {"kind": "train", "charged": 60, "loss": None}])
    train, validation = axes.get_lines()
    np.testing.assert_array_equal(train.get_xydata(), [(5, 5.0), (20, 3.0), (40, 9.0)])
    np.testing.assert_array_equal(validation.get_xydata(), [(0, 5.5), (20, 3.1)])
    assert axes.get_ylim()[1] > 9.0, "what went wrong is seen"
    assert axes.get_title() == "no final loss"


def test_a_final_loss_that_is_no_number_is_none() -> None:
    axes = axes_of([*FINISHED[:-1], {"kind": "final", "charged": 100, "validation": None}])
    assert axes.get_title() == "no final loss"


def test_a_run_of_one_record_has_a_range_to_show_it_in() -> None:
    low, high = axes_of(FINISHED[:1]).get_ylim()
    assert low < 5.5 < high
    assert math.isfinite(high - low)


def test_an_empty_run_is_an_empty_figure(tmp_path: Path) -> None:
    axes = axes_of([])
    assert not axes.get_lines()
    assert axes.get_legend() is None
    draw_curve(tmp_path, tmp_path / "curve.png")
    height, width, _ = imread(tmp_path / "curve.png").shape
    assert (width, height) == (840, 540)
