"""Search spaces: a trial's parameters become a schedule that ends at the final shape.

Neither torch nor Optuna is needed: a trial is whatever has Optuna's two ``suggest_`` methods.
"""

from nasgrow.search.spaces.load import SpaceModel, bind, load_space
from nasgrow.search.spaces.settings import Choices, Range, Setting, Suggests
from nasgrow.search.spaces.space import Point, Space
from nasgrow.search.spaces.training import with_training

__all__ = [
    "Choices",
    "Point",
    "Range",
    "Setting",
    "Space",
    "SpaceModel",
    "Suggests",
    "bind",
    "load_space",
    "with_training",
]
