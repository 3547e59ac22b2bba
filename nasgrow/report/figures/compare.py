"""Draw several studies in one figure; studies whose losses are not comparable get separate axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nasgrow.report import words
from nasgrow.report.compare.ranking import Contest, StudyComparison
from nasgrow.report.compare.studies import ComparedStudy
from nasgrow.report.figures import style
from nasgrow.report.figures.compute import along, draw_curve, finish_curves
from nasgrow.report.load import in_order
from nasgrow.report.ranking import Contender
from nasgrow.report.statistics import mean_of


def _look(comparison: StudyComparison, entry: ComparedStudy) -> tuple[str, object, str]:
    """Return the colour, line style and marker of a study, equal in all figures."""
    index = comparison.entries.index(entry)
    return style.SCHEDULES[index % 5], style.DASHES[index % 5], style.MARKERS[index % 7]


def _panels(contests: Sequence[Contest], height: float) -> tuple[Figure, list[Axes]]:
    """Make a figure with axes for each contest, with titles if there are several."""
    figure = style.canvas(0.7 + height * len(contests))
    axes = [figure.add_subplot(len(contests), 1, index) for index in range(1, len(contests) + 1)]
    for one, contest in zip(axes, contests, strict=True):
        if len(contests) > 1:
            one.set_title(style.short(", ".join(entry.title for entry in contest.entries), 70))
    return figure, axes


@style.styled
def progress(comparison: StudyComparison) -> Figure | None:
    """Draw the best validation loss so far over the executed compute of each search.

    None if no search has a finished trial.
    """
    shown = [c for c in comparison.contests if any(entry.found.ranking.searched for entry in c.entries)]
    if not shown:
        return None
    searches = {
        entry.title: in_order(entry.found.records.of_kind("search"))
        for contest in shown
        for entry in contest.entries
    }
    spent = {
        title: np.cumsum([trial.record.executed for trial in trials]) for title, trials in searches.items()
    }
    size, unit = words.unit(max(float(one[-1]) for one in spent.values() if len(one)))
    figure, panels = _panels(shown, 3.6)
    for axes, contest in zip(panels, shown, strict=True):
        lows: list[float] = []
        for entry in contest.entries:
            done = [
                (x / size, t.loss)
                for x, t in zip(spent[entry.title], searches[entry.title], strict=True)
                if t.loss is not None
            ]
            if not done:
                continue
            x, y = zip(*done, strict=True)
            best = np.minimum.accumulate(y)
            color, dash, mark = _look(comparison, entry)
            ends = [*x, float(spent[entry.title][-1]) / size]
            axes.step(ends, [*best, best[-1]], where="post", color=color, linestyle=dash, zorder=3)
            style.cloud(axes, x, y, mark, color=color, alpha=0.35)
            axes.plot([], [], marker=mark, color=color, linestyle=dash, label=style.short(entry.title))
            lows += [float(np.quantile(y, 0.75)), float(best[0]), float(best[-1])]
        margin = 0.06 * (max(lows) - min(lows)) or 0.05
        axes.set_ylim(min(lows) - margin, max(lows) + margin)
        axes.set_xlim(left=0)
        axes.set_ylabel("validation loss (nats per token)")
    panels[-1].set_xlabel(f"compute executed by the search ({unit})")
    style.legend_of(figure, panels)
    return figure


@style.styled
def contenders(comparison: StudyComparison) -> Figure | None:
    """Draw the losses of each study's best schedule and of its fixed shapes; None without a schedule."""
    listed = [(contest, _rows(contest)) for contest in comparison.contests]
    listed = [(contest, rows) for contest, rows in listed if rows]
    if not listed:
        return None
    heights = [0.42 * len(rows) + 0.75 for _, rows in listed]
    figure = style.canvas(0.3 + sum(heights))
    grid = figure.add_gridspec(len(listed), 1, height_ratios=heights)
    for index, (contest, rows) in enumerate(listed):
        axes = figure.add_subplot(grid[index])
        for place, (entry, _, one) in enumerate(rows[::-1]):
            color, _, mark = _look(comparison, entry)
            estimate = mean_of(one.losses)
            if contest.confirmed and estimate.low is not None and estimate.high is not None:
                axes.plot([estimate.low, estimate.high], [place, place], color=color, linewidth=6, alpha=0.3)
            face = color if one.trial.grows else "white"
            axes.plot(
                one.losses, [place] * len(one.losses), mark, color=color, markerfacecolor=face, markersize=5.5
            )
            axes.plot([estimate.value], [place], "|", color=style.INK, markersize=17, markeredgewidth=2)
        axes.set_yticks(
            range(len(rows)),
            [f"{style.short(entry.title, 22)}: {style.short(name, 30)}" for entry, name, _ in rows[::-1]],
        )
        axes.set_ylim(-0.6, len(rows) - 0.4)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(f"{contest.split} loss (nats per token)")
    return figure


def _rows(contest: Contest) -> list[tuple[ComparedStudy, str, Contender]]:
    """For each study its best schedule, then its fixed shapes on the same split, with their names."""
    found: list[tuple[ComparedStudy, str, Contender]] = []
    for standing in contest.standings:
        found.append((standing.entry, "best schedule", standing.ours))
        found += [
            (standing.entry, name, one) for name, one in standing.entry.fixed(confirmed=contest.confirmed)
        ]
    return found


@style.styled
def curves(comparison: StudyComparison) -> Figure | None:
    """Draw the validation loss over compute of each study's best schedule; None without a curve."""
    shown = [c for c in comparison.contests if any(_has_curve(one.ours) for one in c.standings)]
    if not shown:
        return None
    size, unit = words.unit(max(entry.found.records.study.budget for entry in comparison.entries))
    figure, panels = _panels(shown, 3.8)
    for axes, contest in zip(panels, shown, strict=True):
        points: list[tuple[float, float]] = []
        for one in contest.standings:
            scale = one.entry.found.records.study.budget / size
            color, dash, _ = _look(comparison, one.entry)
            points += draw_curve(axes, one.ours.curve, along(scale), one.entry.title, color, dash)
        finish_curves(axes, points)
        axes.set_xlim(left=0)
    panels[-1].set_xlabel(f"compute ({unit})")
    style.legend_of(figure, panels)
    return figure


@style.styled
def over_budget(comparison: StudyComparison) -> Figure | None:
    """Draw the final losses of comparable studies over their budgets.

    None unless two comparable studies have a schedule and budgets differ.
    """
    shown = [c for c in comparison.contests if "budget" in c.unequal and len(c.standings) > 1]
    if not shown:
        return None
    size, unit = words.unit(max(entry.found.records.study.budget for entry in comparison.entries))
    figure, panels = _panels(shown, 3.6)
    for axes, contest in zip(panels, shown, strict=True):
        budgets = set()
        for entry, name, one in _rows(contest):
            if name not in ("best schedule", "final shape"):
                continue
            color, _, mark = _look(comparison, entry)
            budget = entry.found.records.study.budget / size
            budgets.add(budget)
            estimate = mean_of(one.losses)
            if contest.confirmed and estimate.low is not None and estimate.high is not None:
                axes.plot([budget] * 2, [estimate.low, estimate.high], color=color, linewidth=5, alpha=0.3)
            face = color if one.trial.grows else "white"
            label = style.short(f"{entry.title}: {name}")
            axes.plot(
                [budget],
                [estimate.value],
                mark,
                color=color,
                markerfacecolor=face,
                markersize=8,
                linestyle="none",
                label=label,
            )
        axes.set_xscale("log")
        style.plain_log(axes.xaxis, sorted(budgets))
        axes.margins(x=0.25)
        axes.set_ylabel(f"{contest.split} loss (nats per token)")
    panels[-1].set_xlabel(f"budget of every run ({unit})")
    style.legend_of(figure, panels)
    return figure


def _has_curve(one: Contender) -> bool:
    return one.curve is not None and len(one.curve.loss) > 0
