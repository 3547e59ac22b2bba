"""Search spaces: decode a trial's parameters into a schedule that ends at the final shape.

A trial is any object with Optuna's methods ``suggest_categorical`` and ``suggest_float``. The
package does not import torch, and imports Optuna only to decode the parameters of a user's
function.
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
