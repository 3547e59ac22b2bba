"""An operator for tests of what operators declare."""

from __future__ import annotations

from collections.abc import Sequence

from nasgrow.expansions import Expansion
from nasgrow.flops import step_flops
from nasgrow.operators import ALL, Operator
from nasgrow.shape import Shape, Variant


class Doubling(Operator):
    """Whole factors only, at the price of a step."""

    kind: str = "doubling"
    grows = ALL
    multiples = ALL
    source = "tests"

    def flops(self, old: Shape, expansions: Sequence[Expansion], variant: Variant, sequences: int) -> int:
        return step_flops(old, variant, sequences)
