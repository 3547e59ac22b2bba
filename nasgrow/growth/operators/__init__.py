"""The implementations of all operators, by name.

Each module has a function ``recipe(operator, situation)``. To add an operator, declare it in
:mod:`nasgrow.operators`, implement it in a module here, and register it in :data:`RECIPES`.
``tests/growth/operators/test_contract.py`` then tests it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nasgrow.growth.operators import (
    bert2bert,
    fusion,
    gradmax,
    hyperclone,
    lemon,
    ligo,
    masked,
    net2net,
    preserve,
    random,
    shuffled,
    stack,
    staged,
)
from nasgrow.growth.operators.contract import Recipe, Situation

RECIPES: Mapping[str, Callable[[Any, Situation], Recipe]] = {
    "preserve": preserve.recipe,
    "net2net": net2net.recipe,
    "bert2bert": bert2bert.recipe,
    "lemon": lemon.recipe,
    "hyperclone": hyperclone.recipe,
    "fusion": fusion.recipe,
    "staged": staged.recipe,
    "stack": stack.recipe,
    "interleave": stack.recipe,
    "gradmax": gradmax.recipe,
    "ligo": ligo.recipe,
    "masked": masked.recipe,
    "random": random.recipe,
    "shuffled": shuffled.recipe,
}
"""For each operator, the function that returns its recipe from its options and the situation."""

__all__ = ["RECIPES", "Recipe", "Situation"]
