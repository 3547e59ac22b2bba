"""The picture of a run, by what matplotlib holds."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.image import imread

from nasgrow.flops import parameter_count
from nasgrow.names import short_name
from nasgrow.report.curve import curve_figure, draw_curve
from nasgrow.training.records import DESCRIPTION
from nasgrow.training.run import Run
from tests.training.runs import make_config

FINISHED: list[dict[str, Any]] = [
    {"kind": "evaluation", "fraction": 0, "validation": 5.5},
    {"kind": "train", "fraction": 0.05, "loss": 5.0},
    {"kind": "train", "fraction": 0.2, "loss": 3.0},
    {"kind": "evaluation", "fraction": 0.2, "validation": 3.1},
    {"kind": "event", "fraction": 0.3},
    {"kind": "train", "fraction": 0.5, "loss": 2.5},
    {"kind": "event", "fraction": 0.6},
    {"kind": "evaluation", "fraction": 0.6, "validation": 2.6},
    {"kind": "train", "fraction": 1, "loss": 2.2},
    {"kind": "final", "fraction": 1, "validation": 2.34567, "evaluation": 2.4},
]


RUN = Run.resolve(make_config("*.txt"), vocab=256, fingerprint="")


def axes_of(records: list[dict[str, Any]]) -> Axes:
    axes, stairs = curve_figure(RUN, records).axes
    counts = [parameter_count(shape, RUN.variant) for shape in RUN.schedule.shapes]
    times = [0.0, *(event.at for event in RUN.schedule.events)]
    expected = [*zip(times, counts, strict=True), (1.0, counts[-1])]
    np.testing.assert_array_equal(stairs.get_lines()[0].get_xydata(), expected)
    return axes


def legend_of(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    return [] if legend is None else [text.get_text() for text in legend.get_texts()]


def test_a_run_with_events_shows_losses_over_the_budget_and_each_event() -> None:
    axes = axes_of(FINISHED)
    train, validation, *events = axes.get_lines()
    np.testing.assert_array_equal(train.get_xydata(), [(0.05, 5.0), (0.2, 3.0), (0.5, 2.5), (1, 2.2)])
    np.testing.assert_array_equal(validation.get_xydata(), [(0, 5.5), (0.2, 3.1), (0.6, 2.6), (1, 2.4)])
    assert [list(np.asarray(line.get_xdata())) for line in events] == [[0.3, 0.3], [0.6, 0.6]]
    assert legend_of(axes) == ["training", "validation", "growth"]
    assert axes.get_title().replace("\n", " ") == f"{short_name(RUN.schedule)} final validation loss 2.3457"
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
    records = [*FINISHED[:4], {"kind": "train", "fraction": 0.4, "loss": 9.0}]
    axes = axes_of([*records, {"kind": "train", "fraction": 0.6, "loss": None}])
    train, validation = axes.get_lines()
    np.testing.assert_array_equal(train.get_xydata(), [(0.05, 5.0), (0.2, 3.0), (0.4, 9.0)])
    np.testing.assert_array_equal(validation.get_xydata(), [(0, 5.5), (0.2, 3.1)])
    assert axes.get_ylim()[1] > 9.0, "what went wrong is seen"
    assert axes.get_title().endswith("\nno final loss")


def test_a_final_loss_that_is_no_number_is_none() -> None:
    axes = axes_of([*FINISHED[:-1], {"kind": "final", "fraction": 1, "validation": None}])
    assert axes.get_title().endswith("\nno final loss")


def test_a_run_of_one_record_has_a_range_to_show_it_in() -> None:
    low, high = axes_of(FINISHED[:1]).get_ylim()
    assert low < 5.5 < high
    assert math.isfinite(high - low)


def test_an_empty_run_is_an_empty_figure(tmp_path: Path) -> None:
    axes = axes_of([])
    assert not axes.get_lines()
    assert axes.get_legend() is None
    (tmp_path / DESCRIPTION).write_text(json.dumps({"run": RUN.describe(), "machine": {}}))
    draw_curve(tmp_path, tmp_path / "curve.png")
    height, width, _ = imread(tmp_path / "curve.png").shape
    assert (width, height) == (840, 720)
