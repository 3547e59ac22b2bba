"""Write the report of a family."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd  # type: ignore[import-untyped]

from nasgrow.report.family.read import FamilyRecords, FamilySize, Model
from nasgrow.report.family.sections import compose, headline, weaknesses
from nasgrow.report.publish import check_replaceable, put, render
from nasgrow.training.atomic_files import to_json

FAMILY_FILES = {"index.html", "report.md", "table.csv", "summary.json"}
"""The files that the report's folder holds, besides figures."""


def check_place(to: Path) -> None:
    """Raise ``UserError`` unless a family's report may be written to ``to``."""
    check_replaceable(to, FAMILY_FILES)


def write_family(found: FamilyRecords, to: Path) -> None:
    """Write the report of a family into the folder ``to``, replacing an older report.

    Raises:
        UserError: ``to`` holds something other than an older report of a family.
    """
    check_place(to)
    put(to, lambda beside: _fill(beside, found))


def _fill(beside: Path, found: FamilyRecords) -> None:
    render(beside, *compose(found))
    pd.DataFrame([row(found, size) for size in found.sizes]).to_csv(beside / "table.csv", index=False)
    (beside / "summary.json").write_text(to_json(summarised(found), indent=2) + "\n", encoding="utf-8")


def row(found: FamilyRecords, size: FamilySize) -> dict[str, Any]:
    """Return the row of ``table.csv`` for one size."""
    apart, saved = size.difference, size.saved
    return {
        "size": size.index + 1,
        "shape": str(size.shape),
        "parameters": size.parameters,
        "inference_flops": size.inference_flops,
        "own_flops": found.family.own_flops(size.index),
        **_model("family", size.member),
        **_model("scratch", size.scratch),
        "outcome": size.outcome,
        "difference": apart.value if apart else None,
        "low": apart.low if apart else None,
        "high": apart.high if apart else None,
        "saved_at_equal_loss_from_curves": saved.share if saved else None,
    }


def _model(name: str, model: Model | None) -> dict[str, Any]:
    return {
        f"{name}_loss": fmean(model.test) if model else None,
        f"{name}_learning_rate": model.rate if model else None,
        f"{name}_seeds": len(model.test) if model else 0,
    }


def summarised(found: FamilyRecords) -> dict[str, Any]:
    """Return the content of ``summary.json``."""
    return {
        "name": found.name,
        "headline": headline(found),
        "budget": found.family.budget,
        "sizes": [
            row(found, size)
            | {"family_losses": size.member.test if size.member else []}
            | {"scratch_losses": size.scratch.test if size.scratch else []}
            for size in found.sizes
        ],
        "compute": {
            "from_scratch": found.scratch,
            "members_by_themselves": found.apart,
            "prefix_shared": found.together,
            "saved": found.saved,
            "executed_here": found.executed,
        },
        "weaknesses": list(weaknesses(found)),
        "damaged": list(found.damaged),
    }
