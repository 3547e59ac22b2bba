"""Print what a token of the best fixed shape is worth in tokens of the final shape.

Both have fully decayed, confirmed runs with several budgets in a report. A token of the fixed shape is worth
the tokens that the final shape needs for the same loss, divided by those that the fixed shape needs.
``python docs/scripts/token_worth.py`` prints the numbers of docs/results.md.
"""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

REPORTS = Path(__file__).parents[2] / "reports"

Curve = list[tuple[float, float]]
"""Tokens and mean test loss for each budget, the smallest first."""


def curve(comparison: dict[str, Any]) -> Curve:
    """The baseline curve of a rival; its tokens are proportional to the budget."""
    rungs = comparison["equal_loss"]["rungs"]
    tokens = comparison["theirs"]["tokens"]
    return [
        (rung["times"] * tokens, fmean(fmean(seed) for seed in rung["losses"].values())) for rung in rungs
    ]


def tokens_for(loss: float, of: Curve) -> float:
    """The tokens for a loss, log-linear between two budgets; beyond all budgets, from the nearest two."""
    pairs = list(pairwise(of))
    nearest = pairs[0] if loss > of[0][1] else pairs[-1]
    (t, high), (u, low) = next(((a, b) for a, b in pairs if a[1] >= loss >= b[1]), nearest)
    return t * math.exp(math.log(u / t) * (high - loss) / (high - low))


def main() -> None:
    """Print a line for each budget of the best fixed shape."""
    for name in ("reference", "reference-speeches"):
        summary = json.loads((REPORTS / name / "summary.json").read_text(encoding="utf-8"))
        final, fixed = map(curve, summary["verdict"]["comparisons"])
        cost = final[0][0] / fixed[0][0]
        print(f"{name}: a token of the best fixed shape costs {cost:.2f} of one of the final shape")
        before = 0.0, 0.0
        for tokens, loss in fixed:
            equal = tokens_for(loss, final)
            sure = "" if final[0][1] >= loss >= final[-1][1] else " (extrapolated)"
            next_ones = (equal - before[1]) / (tokens - before[0])
            print(
                f"  {tokens / 1e6:.2f}M tokens: loss {loss:.3f}, as {equal / 1e6:.2f}M of the final{sure}: "
                f"worth {equal / tokens:.2f} each, the last {(tokens - before[0]) / 1e6:.2f}M {next_ones:.2f}"
            )
            before = tokens, equal


if __name__ == "__main__":
    main()
