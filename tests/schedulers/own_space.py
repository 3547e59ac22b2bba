"""A space in Python, whose second parameter depends on the first."""

from __future__ import annotations

from nasgrow.expansions import InsertLayers
from nasgrow.schedule import Event, Schedule
from nasgrow.shape import Shape
from nasgrow.spaces import Suggests


def grown(trial: Suggests, final: Shape) -> Schedule:
    """One layer for a while, or both from the start."""
    if not trial.suggest_categorical("grows", [True, False]):
        return Schedule(final)
    at = trial.suggest_float("at", 0.1, 0.7)
    return Schedule(final.with_layers(final.layers[:1]), (Event(at, (InsertLayers((1,)),)),))
