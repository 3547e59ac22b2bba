"""Figures hold what they should: asserted on what is drawn, not on pixels."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation

from nasgrow.flops import parameter_count
from nasgrow.report.budgets import EqualLoss, Rung
from nasgrow.report.figures import (
    budgets,
    compute,
    contenders,
    effects,
    grown_first,
    progress,
    recovery,
    staircase,
    style,
    timeline,
)
from nasgrow.report.figures.style import SCHEDULES
from nasgrow.report.load import Records, load
from nasgrow.report.ranking import Ranking, contender, rank
from nasgrow.spaces.training import PEAK
from nasgrow.study.trials import write_trial
from tests.report.studies import FINAL_ALONE, GROWN, LATER, Recorded, usual


@pytest.fixture
def recorded(tmp_path: Path) -> Recorded:
    return usual(tmp_path / "s")


def read(recorded: Recorded) -> tuple[Records, Ranking]:
    records = load(recorded.study, recorded.folder)
    return records, rank(records)


def only(figure: Figure | None) -> Axes:
    assert figure is not None
    (axes,) = figure.axes
    return axes


def labelled(axes: Axes, label: str) -> Line2D:
    (line,) = [line for line in axes.get_lines() if line.get_label() == label]
    return line


def xy(line: Line2D) -> list[tuple[float, float]]:
    return [tuple(point) for point in np.asarray(line.get_xydata()).tolist()]


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


NAME = "x2 hidden and mlp at 20%, x2 layers and heads"
"""How the name of the schedule that grows begins, as long as a legend has room."""


def test_loss_over_compute_has_curves_events_and_no_detached_ends(recorded: Recorded) -> None:
    records, ranking = read(recorded)
    best, final = (
        contender(records, trial) for trial in (ranking.schedules[0].record, ranking.sizes[0].best) if trial
    )
    figure = compute.loss_over_compute([best], [("final", final)], records.study)
    assert figure is not None
    axes, tokens = figure.axes
    assert tokens.get_xlabel() == "tokens"
    grown = labelled(tokens, style.short(f"{NAME} at 50%"))
    assert xy(grown)[10][0] > 0.5 * 64_000, "small stages see more tokens for their FLOPs"
    assert xy(labelled(tokens, "fixed shape: final"))[10][0] == pytest.approx(0.5 * 64_000)
    unit = records.study.budget / 1e6
    assert axes.get_xlabel() == "compute (MFLOP)"
    curve = xy(labelled(axes, style.short(f"{NAME} at 50%")))
    assert len(curve) == 21
    assert curve[-1] == pytest.approx((unit, 1.8 + 0.1)), "on the text of the others, not the final loss"
    assert curve[10] == pytest.approx((0.5 * unit, 1.8 + 0.1 + 3 * 0.45**2))
    events = [xy(line)[0] for line in axes.get_lines() if line.get_marker() == "d" and len(xy(line))]
    assert [x for x, _ in events] == pytest.approx([0.2 * unit, 0.5 * unit])
    single = [line.get_marker() for line in axes.get_lines() if len(xy(line)) == 1]
    assert set(single) == {"d"}
    assert legend(figure) == ["fixed shape: final", style.short(f"{NAME} at 50%"), "event"]
    assert isinstance(figure, style.Drawing)
    assert f"{NAME} at 50%: 2.5075 at 50% of the budget" in {tip.text for tip in figure.tips}


def test_no_curve_no_figure(recorded: Recorded) -> None:
    assert compute.loss_over_compute([], [], recorded.study) is None


def test_timeline_has_the_dimensions_that_grow_with_means_over_layers(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path / "s")
    uneven: dict[str, Any] = {
        "start": {
            "hidden": 16,
            "layers": [
                {"mlp": 8, "heads": 1, "key": 4, "value": 4},
                {"mlp": 32, "heads": 2, "key": 4, "value": 4},
            ],
        },
        "events": [{"at": 0.25, "grow": [{"expand": "mlp", "to": 32}, {"expand": "heads", "to": 2}]}],
    }
    recorded.add("search", 0, uneven, [1.8])
    _, ranking = read(recorded)
    panels = {axes.get_title(loc="left"): axes for axes in timeline.timeline(ranking.schedules).axes}
    assert list(panels) == ["MLP width", "heads"], "what stays the same is left out"
    drawn = {name: xy(axes.get_lines()[0]) for name, axes in panels.items()}
    assert drawn["MLP width"] == [(0, 20), (0.25, 32), (1, 32)]
    assert drawn["heads"] == [(0, 1.5), (0.25, 2), (1, 2)]
    assert panels["heads"].get_lines()[0].get_drawstyle() == "steps-post"


def test_schedules_with_equal_sizes_are_one_line_and_no_heat_map(recorded: Recorded) -> None:
    _, ranking = read(recorded)
    first, second = ranking.schedules
    recorded.add("search", 3, GROWN, [1.9], rate=0.003)
    _, ranking = read(recorded)
    assert len(ranking.schedules) == 3
    assert [trial.label for trial in timeline.unlike(ranking.schedules)] == [first.label, second.label]
    assert grown_first.differ(ranking.schedules)
    same = [trial for trial in ranking.schedules if trial.schedule == first.schedule]
    assert len(same) == 2
    assert not grown_first.differ(same)
    assert not grown_first.differ([])


def test_heat_map_counts_and_averages(recorded: Recorded) -> None:
    recorded.add("search", 3, GROWN, [1.9], rate=0.003)
    _, ranking = read(recorded)
    axes = grown_first.heat_map(ranking.schedules).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["hidden size", "layers", "MLP width"]
    assert [label.get_text() for label in axes.get_xticklabels()] == [
        f"{low}–{low + 10}%" for low in (20, 30, 40, 50, 60)
    ]
    texts = {text.get_position(): text.get_text() for text in axes.texts}
    both = f"{fmean([1.8, 1.9]):.3f}\nn=2"
    assert texts == {(0, 0): both, (0, 2): both, (4, 1): "1.830\nn=1"}
    opacity = np.asarray(axes.images[0].get_alpha())
    assert [opacity[0][0], opacity[2][0], opacity[1][4]] == [1, 1, grown_first.PALE], "one schedule is pale"


def test_a_first_event_on_the_edge_of_a_bin_belongs_to_the_later_one(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path / "s")
    for number, at in enumerate((0.1, 0.3, 0.1 + 0.7)):  # the last sum is a little below 0.8
        recorded.add("search", number, {**LATER, "events": [{**LATER["events"][0], "at": at}]}, [1.8])
    _, ranking = read(recorded)
    assert sorted(place for _, place in grown_first.cells(ranking.schedules)) == [1, 3, 8]


def test_effects_find_the_parameter_that_matters(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path / "s")
    for number in range(14):
        rate = (0.003, 0.006)[number % 2]
        recorded.add("search", number, LATER, [1.8 + 20 * rate + 0.0001 * number], rate=rate)
    _, ranking = read(recorded)
    found = effects.effects(ranking.searched, recorded.study.space)
    assert [effect.name for effect in found] == ["learning_rate.peak", "at.1"]
    assert found[0].share > 0.99
    assert found[1].share < 0.3
    assert [len(losses) for losses in found[0].groups.values()] == [7, 7]
    assert len(found[1].groups) == effects.VALUES, "seven values in five bins"
    assert sum(len(losses) for losses in found[1].groups.values()) == 14
    panel = effects.marginal(found).axes[0]
    means = [y for line in panel.get_lines() if line.get_marker() == "o" for _, y in xy(line)]
    assert means == pytest.approx([fmean(losses) for losses in found[0].groups.values()])


def test_a_run_counts_only_for_parameters_that_have_an_effect_in_it(tmp_path: Path) -> None:
    times = {"low": 0.1, "high": 0.7, "step": 0.1}
    dims = {dim: {"start": [1, 0.5]} for dim in ("hidden", "layers")}
    recorded = Recorded(tmp_path / "s", space={"kind": "per-dimension", "dims": dims, "times": times})
    for number in range(8):
        start, at = (1, 0.5)[number // 4], (0.3, 0.6)[number % 2]
        record = recorded.add("search", number, LATER, [1.8 + 0.01 * number], rate=0.001 * (1 + number))
        own = {"start.hidden": start, "at.hidden": at, "start.layers": 0.5, "at.layers": 0.6}
        write_trial(recorded.folder, replace(record, parameters=own | {PEAK: record.learning_rate}))
    _, ranking = read(recorded)
    found = effects.effects(ranking.searched, recorded.study.space)
    counts = {one.name: [len(losses) for losses in one.groups.values()] for one in found}
    assert counts["start.hidden"] == [4, 4]
    assert counts["at.hidden"] == [2, 2], "four of the eight start at the final hidden size"


def test_progress_is_the_best_so_far_over_what_was_executed(recorded: Recorded) -> None:
    recorded.add("search", 3, LATER, [None], status="diverged", rate=0.003)
    recorded.add("search", 4, LATER, [1.7], rate=0.012)
    records, _ = read(recorded)
    axes = only(progress.search_progress(records.of_kind("search"), [("final", 1.9)]))
    budget = records.study.budget / 1e6
    assert xy(labelled(axes, "best so far")) == [
        pytest.approx(point)
        for point in [(budget, 1.95), (2 * budget, 1.8), (3 * budget, 1.8), (5 * budget, 1.7)]
    ], "a trial that diverged cost compute too"
    assert len(xy(labelled(axes, "schedule without growth"))) == 1
    assert set(np.asarray(labelled(axes, "fixed shape: final").get_ydata())) == {1.9}


def test_legends_show_whole_names_of_fixed_shapes(recorded: Recorded) -> None:
    records, ranking = read(recorded)
    name = "hidden 24, layers 1, mlp 64, heads 1, key 8"
    figure = progress.search_progress(records.of_kind("search"), [(name, 1.9)])
    assert f"fixed shape: {name}" in legend(figure)
    size = replace(ranking.sizes[0].size, name=name)
    figure = contenders.tuning([replace(ranking.sizes[0], size=size)], [])
    assert f"fixed shape: {name}" in legend(figure)


def test_search_progress_is_in_the_order_in_which_trials_ended(recorded: Recorded) -> None:
    records, _ = read(recorded)
    trials = [
        replace(trial, record=replace(trial.record, ended=-float(trial.record.number)))
        for trial in records.of_kind("search")
    ]
    axes = only(progress.search_progress(trials, []))
    losses = [loss for _, loss in xy(labelled(axes, "best so far"))]
    assert losses == [1.83, 1.8, 1.8], "the last number ended first"


def test_events_show_jump_and_recovery(recorded: Recorded) -> None:
    recorded.add("search", 3, LATER, [1.9], change=2e-3, rate=0.003)
    records, _ = read(recorded)
    above, middle, below = recovery.recovery(records.events).axes
    assert max(y for _, y in xy(above.get_lines()[0])) == pytest.approx(2e-3)
    assert max(y for _, y in xy(middle.get_lines()[0])) == pytest.approx(2e-3)
    assert [y for _, y in xy(below.get_lines()[0])] == pytest.approx([5.0] * len(records.events))
    assert len(below.get_lines()) == 1, "all recovered at the next evaluation"


def test_the_front_is_what_nothing_beats(recorded: Recorded) -> None:
    assert progress.front([(1, 5.0), (2, 4.0), (2, 4.5), (3, 4.2), (4, 3.0)]) == [
        (1, 5.0),
        (2, 4.0),
        (4, 3.0),
    ]
    _, ranking = read(recorded)
    axes = only(progress.pareto(ranking.searched, "parameters"))
    assert len(xy(labelled(axes, "trial"))) == 3


def test_tuning_shows_every_rate_of_every_size(recorded: Recorded) -> None:
    _, ranking = read(recorded)
    figure = contenders.tuning(ranking.sizes, ranking.schedules)
    axes = only(figure)
    assert xy(labelled(axes, "fixed shape: final")) == [(0.003, 2.0), (0.006, 1.9), (0.012, 1.95)]
    assert legend(figure) == [
        "schedules that grow",
        "fixed shape: final",
        "fixed shape: hidden 8",
        "fixed shape: mlp 16",
    ]


def test_confirmations_show_each_seed(recorded: Recorded) -> None:
    recorded.confirm("search 1", GROWN, [1.8, 1.9])
    recorded.confirm("baseline 1", FINAL_ALONE, [2.0], first=10)
    _, ranking = read(recorded)
    axes = only(contenders.confirmations(ranking.confirmed))
    labels = [label.get_text().replace("\n", " ") for label in axes.get_yticklabels()]
    assert labels == ["final", f"{NAME} at 50%"]
    seeds = [xy(line) for line in axes.get_lines() if line.get_marker() == "o"]
    assert seeds == [[(2.0, 0)], [(1.8, 1), (1.9, 1)]]
    bands = [line for line in axes.get_lines() if line.get_linewidth() == 5]
    assert [line.get_color() for line in bands] == [SCHEDULES[0]], "one seed has no interval"


def test_pruned_trials_are_drawn_at_their_last_loss_or_the_upper_edge(recorded: Recorded) -> None:
    for number, last in ((3, 1.86), (4, 9.0)):
        record = recorded.add("search", number, LATER, [None], status="pruned")
        record.evaluations = [(0.0, 5.0), (0.25, last)]
        write_trial(recorded.folder, record)
    records, _ = read(recorded)
    axes = only(progress.search_progress(records.of_kind("search"), []))
    drawn = [y for _, y in xy(labelled(axes, "pruned, last evaluation"))]
    low, high = axes.get_ylim()
    assert drawn[0] == pytest.approx(1.86)
    assert max(loss for _, loss in xy(labelled(axes, "schedule that grows"))) < drawn[1] < high
    assert high - drawn[1] > 0.02 * (high - low), "the edge of the figure cuts no cross"


def test_staircases_show_parameters_over_the_budget(recorded: Recorded) -> None:
    records, ranking = read(recorded)
    panels = staircase.staircases(ranking.schedules, records.study.variant).axes
    assert [panel.get_title(loc="left").replace("\n", " ") for panel in panels] == [
        f"{NAME} at 50%",
        "x2 layers at 60%",
    ]
    counts = [parameter_count(shape, records.study.variant) for shape in ranking.schedules[0].schedule.shapes]
    assert xy(panels[0].get_lines()[0]) == [
        *zip([0, 0.2, 0.5], counts, strict=True),
        (1, counts[-1]),
    ]


def test_tips_lie_where_they_belong_and_those_outside_are_left_out(tmp_path: Path) -> None:
    figure = style.canvas(2.0)
    axes = figure.add_subplot()
    axes.plot([0, 1], [0, 1])
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1)
    style.tip(axes, 0, 0, "<corner> & \x00")
    style.tip(axes, 5, 0.5, "outside")
    style.save(figure, tmp_path / "figure")
    svg = (tmp_path / "figure.svg").read_text()
    assert "<title>&lt;corner&gt; &amp; ?</title>" in svg
    assert "outside" not in svg
    found = re.search(r'<circle cx="([\d.]+)" cy="([\d.]+)"', svg)
    assert found
    box = axes.get_position()
    width, height = 72 * figure.get_figwidth(), 72 * figure.get_figheight()
    assert float(found[1]) == pytest.approx(width * box.x0, abs=0.2)
    assert float(found[2]) == pytest.approx(height * (1 - box.y0), abs=0.2)


def test_a_name_with_a_formula_is_drawn_as_text(recorded: Recorded, tmp_path: Path) -> None:
    recorded.add("search", 3, LATER, [1.7], name="$\\frac{", rate=0.003)
    _, ranking = read(recorded)
    style.save(timeline.timeline(ranking.schedules), tmp_path / "figure")
    assert (tmp_path / "figure.svg").stat().st_size > 1000


def test_events_without_recovery_or_change_leave_out_panels(recorded: Recorded) -> None:
    events = read(recorded)[0].events.assign(recovery=None)
    below = recovery.recovery(events).axes[-1]
    assert xy(labelled(below, "back below")) == []
    left = [100 * (1 - at) for at in events["fraction"]]
    assert [y for _, y in xy(labelled(below, "not within the budget left"))] == pytest.approx(left)
    titles = [axes.get_title(loc="left") for axes in recovery.recovery(events.assign(change=None)).axes]
    assert [title.split()[0] for title in titles] == ["Budget"], "no loss jumped"
    jumped = events.assign(change=None, loss_after=events["loss_before"] + 0.1)
    titles = [axes.get_title(loc="left") for axes in recovery.recovery(jumped).axes]
    assert [title.split()[0] for title in titles] == ["Jump", "Budget"]
    assert len(recovery.recovery(events.assign(change=None, loss_after=float("nan"))).axes) == 1


def test_a_group_of_one_run_is_named_and_has_no_effect(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path / "s")
    for number, rate in enumerate((0.003, 0.003, 0.006, 0.006, 0.012)):
        recorded.add("search", number, LATER, [9.0 if rate == 0.012 else 1.8 + rate], rate=rate)
    (effect,) = effects.effects(read(recorded)[1].searched, recorded.study.space)
    assert effect.name == "learning_rate.peak"
    panel = effects.marginal([effect]).axes[0]
    drawn = [xy(line)[0] for line in panel.get_lines() if line.get_marker() == "o"]
    assert drawn == [pytest.approx((0, 1.803)), pytest.approx((1, 1.806))]
    labels = [label.get_text().split()[-1] for label in panel.get_xticklabels()]
    assert labels == ["(n=2)", "(n=2)", "(n=1)"]


def test_far_off_sizes_do_not_squeeze_the_search(recorded: Recorded) -> None:
    for number in range(3, 14):
        recorded.add("search", number, LATER, [1.80 + 0.002 * number], rate=0.001 * number)
    _, ranking = read(recorded)
    near = [trial for trial in ranking.searched if trial.loss is not None and trial.loss < 1.9]
    figure = progress.search_progress(
        near, [("final", 1.85), ("hidden 24, mlp 104, heads 1", 2.4), ("tiny", 1.2)]
    )
    low, high = only(figure).get_ylim()
    assert 1.75 < low < 1.8
    assert 1.85 < high < 1.9
    assert "fixed shape: final" in legend(figure)
    assert [text for text in legend(figure) if "off" in text] == [
        "off the scale: hidden 24, mlp 104, heads 1 2.40",
        "off the scale: tiny 1.20",
    ]
    worse = tuple(replace(trial, losses=[(trial.loss or 0.0) + 1.0]) for trial in ranking.sizes[2].tried)
    far = replace(ranking.sizes[2], tried=worse)
    figure = contenders.tuning([*ranking.sizes[:2], far], near)
    assert only(figure).get_ylim()[1] < 2.2
    assert legend(figure)[-1] == "off the scale: mlp 16 3.00"


@pytest.mark.parametrize(("times", "arrows", "told"), [(0.98, 0, "none saved"), (1.5, 1, "33% saved")])
def test_a_tiny_saving_has_no_arrow(recorded: Recorded, times: float, arrows: int, told: str) -> None:
    records, ranking = read(recorded)
    ours = contender(records, ranking.schedules[0].record)
    rungs = (Rung(0.5, {1: (2.0,)}), Rung(1.0, {1: (1.8,)}), Rung(2.0, {1: (1.6,)}))
    equal = EqualLoss(times, None, None, sure=False, rungs=rungs, above=False, apart=False)
    figure = budgets.loss_over_budget(ours, "the final shape", equal, 10**8, "test")
    axes = only(figure)
    texts = [text for text in axes.texts if isinstance(text, Annotation)]
    assert sum(text.arrow_patch is not None for text in texts) == arrows
    (label,) = [text for text in texts if text.get_text()]
    assert label.get_text() == told
    figure.draw_without_rendering()
    box = label.get_window_extent()
    marks = [axes.transData.transform(line.get_xydata()) for line in axes.get_lines()]
    assert not any(box.contains(x, y) for points in marks for x, y in points), "over a mark"


def test_a_parameter_of_many_values_takes_the_whole_width() -> None:
    many = effects.Effect("operator", 0.5, {f"op{index}": [1.8, 1.9] for index in range(15)})
    few = effects.Effect("rate", 0.6, {"0.1": [1.8, 1.9], "0.2": [1.9, 1.8]})
    figure = effects.marginal([few, many])
    figure.draw_without_rendering()
    widths = {axes.get_title(loc="left"): axes.get_position().width for axes in figure.axes}
    assert widths["operator"] > 2 * widths["rate"]
