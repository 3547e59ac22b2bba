"""Declarations of operators: the ways in which new parameters get their values. No torch here.

An operator is declared here and implemented in :mod:`nasgrow.growth.operators`. The declaration has its
options, the expansions that it supports, how far it preserves the function, and the FLOPs of an event.
With it alone nasgrow can refuse a run, or compute its cost, before any training starts.
"""

from nasgrow.operators.base import ALL, ALL_BUT_LAYERS, Operator, copied_heads
from nasgrow.operators.cost import joint_axes, widened_mlps
from nasgrow.operators.declared import (
    PRESERVE,
    Bert2Bert,
    Fusion,
    GradMax,
    HyperClone,
    Interleave,
    Lemon,
    Ligo,
    Masked,
    Net2Net,
    Preserve,
    Random,
    Shuffled,
    Stack,
    Staged,
    opening_within,
)
from nasgrow.operators.named import OPERATORS, AnyOperator, OperatorField, WidthAndDepth, operator_from

__all__ = [
    "ALL",
    "ALL_BUT_LAYERS",
    "OPERATORS",
    "PRESERVE",
    "AnyOperator",
    "Bert2Bert",
    "Fusion",
    "GradMax",
    "HyperClone",
    "Interleave",
    "Lemon",
    "Ligo",
    "Masked",
    "Net2Net",
    "Operator",
    "OperatorField",
    "Preserve",
    "Random",
    "Shuffled",
    "Stack",
    "Staged",
    "WidthAndDepth",
    "copied_heads",
    "joint_axes",
    "opening_within",
    "operator_from",
    "widened_mlps",
]
