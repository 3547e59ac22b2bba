"""nasgrow: search for the best way to grow a transformer while it trains.

The names of this module are imported when they are first used, so that ``import nasgrow`` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nasgrow.api import Study, load
    from nasgrow.expansions import AddHeads, GrowHidden, GrowKeys, GrowMlp, GrowValues, InsertLayers
    from nasgrow.growth import grow
    from nasgrow.model import Transformer
    from nasgrow.schedule import Event, Schedule
    from nasgrow.shape import Shape, Variant

__version__ = "0.2.0"

_PLACES = {
    "Study": ("nasgrow.api", "Study"),
    "load": ("nasgrow.api", "load"),
    "grow": ("nasgrow.growth", "grow"),
    "Transformer": ("nasgrow.model", "Transformer"),
    "Shape": ("nasgrow.shape", "Shape"),
    "Variant": ("nasgrow.shape", "Variant"),
    "Schedule": ("nasgrow.schedule", "Schedule"),
    "Event": ("nasgrow.schedule", "Event"),
    "AddHeads": ("nasgrow.expansions", "AddHeads"),
    "GrowHidden": ("nasgrow.expansions", "GrowHidden"),
    "GrowKeys": ("nasgrow.expansions", "GrowKeys"),
    "GrowMlp": ("nasgrow.expansions", "GrowMlp"),
    "GrowValues": ("nasgrow.expansions", "GrowValues"),
    "InsertLayers": ("nasgrow.expansions", "InsertLayers"),
}
"""The module that defines each public name, and its name there."""

__all__ = [
    "AddHeads",
    "Event",
    "GrowHidden",
    "GrowKeys",
    "GrowMlp",
    "GrowValues",
    "InsertLayers",
    "Schedule",
    "Shape",
    "Study",
    "Transformer",
    "Variant",
    "__version__",
    "grow",
    "load",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'nasgrow' has no attribute {name!r}")
    module, there = _PLACES[name]
    return getattr(import_module(module), there)


def __dir__() -> list[str]:
    return __all__
