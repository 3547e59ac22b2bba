"""Search spaces: a trial's parameters become a schedule that ends at the final shape.

Neither torch nor Optuna is needed: a trial is whatever has Optuna's two ``suggest_`` methods.
"""

from nasgrow.spaces.load import SpaceModel, bind, load_space
from nasgrow.spaces.settings import Choices, Range, Setting, Suggests
from nasgrow.spaces.shapes import FixedShapes
from nasgrow.spaces.space import Point, Space
from nasgrow.spaces.training import with_training

__all__ = [
    "Choices",
    "FixedShapes",
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
