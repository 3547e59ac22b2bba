"""What tests of all operators share."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from nasgrow.operators import AnyOperator, Ligo, Operator
from nasgrow.verify import PAPER
from tests.steps import tokens_for

SHORT: Mapping[str, Operator] = {"ligo": Ligo(steps=2)}
"""In place of defaults that cost more than a test's budget."""


def batches(number: int) -> Tensor:
    """The tokens that operators may look at."""
    with torch.device("cpu"):
        return torch.cat([tokens_for(PAPER, 100 + number)] * 2, 1)[:, : PAPER.context + 1]


def ids(operator: AnyOperator) -> str:
    """Its name, and the options that are not its defaults."""
    options = operator.model_dump(exclude={"kind", "width", "depth"}, exclude_defaults=True)
    return " ".join([operator.kind, *(f"{name}={value}" for name, value in options.items())])
