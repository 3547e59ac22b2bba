"""Draw the marginal effects of search parameters: the mean loss at each value, the strongest effect first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nasgrow.report import words
from nasgrow.report.figures import style
from nasgrow.report.load import Trial
from nasgrow.report.statistics import Estimate, explained, mean_of
from nasgrow.spaces.space import Space

VALUES = 5
"""The most values of a numeric parameter for a group each.

One with more values has this many bins, with about equal numbers of trials.
"""

MAX_SHOWN_PARAMETERS = 6
"""The most parameters that the figure shows."""

MAX_NARROW_VALUES = 8
"""The most values of a parameter in a narrow panel; one with more values gets the whole width."""

MIN_GROUP = 2
"""The fewest runs of a group with a mean. Smaller ones have a label, but no part in the effect."""


@dataclass(frozen=True)
class Effect:
    """The effect of one parameter on the loss.

    Attributes:
        name: The parameter's name in the space.
        share: The share of the loss's variance that it explains alone (epsilon squared), over
            groups of at least :data:`MIN_GROUP` runs.
        groups: The losses of the runs at each value or bin, by its label. Runs in which the
            parameter has no effect are left out.
    """

    name: str
    share: float
    groups: dict[str, list[float]]

    @property
    def means(self) -> list[Estimate | None]:
        """The mean loss of each group with its interval; None for a group below ``MIN_GROUP``."""
        return [mean_of(losses) if len(losses) >= MIN_GROUP else None for losses in self.groups.values()]


def effects(trials: Sequence[Trial], space: Space) -> list[Effect]:
    """Return the effects of the parameters that can be judged, the strongest first.

    A parameter needs two groups (values or bins) of at least :data:`MIN_GROUP` runs.

    Args:
        trials: Finished search trials with distinct runs; a run of several trials would count
            several times.
        space: The study's space.
    """
    names = dict.fromkeys(name for trial in trials for name in trial.record.parameters)
    found = []
    for name in names:
        pairs = [
            (trial.record.parameters[name], trial.loss)
            for trial in trials
            if name in trial.record.parameters and trial.loss is not None and _acts(name, trial, space)
        ]
        groups = _grouped([value for value, _ in pairs], [loss for _, loss in pairs])
        told = {group: losses for group, losses in groups.items() if len(losses) >= MIN_GROUP}
        if len(told) > 1:
            found.append(Effect(name, explained(told), groups))
    return sorted(found, key=lambda effect: -effect.share)


def _acts(name: str, trial: Trial, space: Space) -> bool:
    """Return whether a parameter has an effect in a trial: whether another value would mean other runs.

    The time at which a dimension grows has none, for example, in a trial that starts at its final
    size. A parameter without a setting always counts: a user's function asks for what it needs.
    """
    setting = space.settings.get(name)
    if setting is None:
        return True
    given = trial.record.parameters
    own = space.at(given).key
    ends = setting.values[0], setting.values[-1]  # all values would take long where there is no effect
    return any(space.at({**given, name: value}).key != own for value in ends)


def _grouped(values: list[object], losses: list[float]) -> dict[str, list[float]]:
    groups: dict[str, list[float]] = {}
    numbers = [float(value) for value in values if isinstance(value, Real) and not isinstance(value, bool)]
    if len(numbers) < len(values):
        for value, loss in sorted(zip(map(str, values), losses, strict=True)):
            groups.setdefault(value, []).append(loss)
        return groups
    distinct = sorted(set(numbers))
    if len(distinct) <= VALUES:
        bins = [[value] for value in distinct]
    else:
        edges = np.quantile(numbers, np.linspace(0, 1, VALUES + 1)[1:-1])
        places = np.searchsorted(edges, distinct)
        bins = [[v for v, p in zip(distinct, places, strict=True) if p == place] for place in set(places)]
        bins.sort()
    for members in bins:
        name = f"{members[0]:.3g}" if len(members) == 1 else f"{members[0]:.3g}–{members[-1]:.3g}"
        inside = [loss for value, loss in zip(numbers, losses, strict=True) if value in members]
        groups[name] = inside
    return groups


@style.styled
def marginal(found: Sequence[Effect]) -> Figure:
    """Draw the mean loss at each value of the strongest parameters, with 95% intervals.

    Args:
        found: The effects, at least one, the strongest first. Only the first
            :data:`MAX_SHOWN_PARAMETERS` are drawn.
    """
    wide = [effect for effect in found[:MAX_SHOWN_PARAMETERS] if len(effect.groups) > MAX_NARROW_VALUES]
    others = [effect for effect in found[:MAX_SHOWN_PARAMETERS] if len(effect.groups) <= MAX_NARROW_VALUES]
    shown = [*wide, *others]
    rows = len(wide) + -(-len(others) // 3)
    figure = style.canvas(0.3 + 2.3 * rows + 0.6 * len(wide))
    grid = figure.add_gridspec(rows, 3)
    places = [grid[row, :] for row in range(len(wide))]
    places += [grid[len(wide) + index // 3, index % 3] for index in range(len(others))]
    panels: list[Axes] = []
    for spot, effect in zip(places, shown, strict=True):
        panel = figure.add_subplot(spot, sharey=panels[0] if panels else None)
        panels.append(panel)
        for place, estimate in enumerate(effect.means):
            if estimate is None:
                continue
            low, high = estimate.low, estimate.high
            if low is not None and high is not None:
                panel.plot([place, place], [low, high], color=style.SCHEDULES[0], linewidth=2.2, alpha=0.45)
            panel.plot([place], [estimate.value], "o", color=style.SCHEDULES[0], markersize=5.5)
            value, losses = list(effect.groups.items())[place]
            told = "" if low is None or high is None else f", 95% interval {low:.4f} to {high:.4f}"
            many = words.many(len(losses), "run")
            style.tip(
                panel, place, estimate.value, f"{effect.name} {value}: {estimate.value:.4f}{told}, {many}"
            )
        names = [
            style.short(name, 24 if len(effect.groups) > MAX_NARROW_VALUES else 12) for name in effect.groups
        ]
        crowded = sum(len(name) for name in names) > 20
        counted = zip(names, effect.groups.values(), strict=True)
        panel.set_xticks(
            range(len(names)),
            [f"{name}{' ' if crowded else chr(10)}(n={len(losses)})" for name, losses in counted],
            fontsize=8.5,
            rotation=35 if crowded else 0,
            ha="right" if crowded else "center",
        )
        for label in panel.get_xticklabels():
            label.set_rotation_mode("anchor")
        panel.set_xlim(-0.5, len(names) - 0.5)
        panel.set_title(style.short(effect.name, 26))
        panel.grid(visible=False, axis="x")
    every = [estimate.value for effect in shown for estimate in effect.means if estimate is not None]
    # A wide interval of two trials would squeeze the means together: it may leave the figure.
    margin = 0.6 * (max(every) - min(every)) or 0.05
    panels[0].set_ylim(min(every) - margin, max(every) + margin)
    for panel in panels:
        if panel.get_subplotspec().colspan.start == 0:  # type: ignore[union-attr]
            panel.set_ylabel("validation loss\n(nats per token)")
        else:
            panel.tick_params(axis="y", labelleft=False)
    return figure
