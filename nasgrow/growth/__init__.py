"""Grow a model during training: its weights, gradients and optimizer state."""

from nasgrow.growth.engine import Growth, grow
from nasgrow.growth.fuse_models import fuse
from nasgrow.growth.moments import MomentPolicy

__all__ = ["Growth", "MomentPolicy", "fuse", "grow"]
