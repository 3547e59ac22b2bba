"""Trial records that nobody trained."""

from __future__ import annotations

from typing import Any

from nasgrow.study.trials import Kind, TrialRecord
from tests.study.studies import FINAL

GROWN: dict[str, Any] = {
    "start": FINAL | {"layers": 1},
    "events": [{"at": 0.3, "grow": [{"expand": "layers", "at": [1]}]}],
}


def make_record(kind: Kind, number: int, loss: float | None, **changes: Any) -> TrialRecord:
    """A trial that finished with a loss, or diverged without one; those of the search grow."""
    values: dict[str, Any] = {
        "name": None,
        "parameters": {},
        "schedule": GROWN if kind == "search" else {"start": FINAL, "events": []},
        "words": "words",
        "learning_rate": 0.006,
        "parameter_count": 1,
        "inference_flops": 1,
        "status": "finished" if loss is not None else "diverged",
        "seeds": [0],
        "losses": [loss],
        "runs": {f"{kind}{number}": 1},
        "charged": 100,
        "executed": 80,
        "seconds": 10.0,
        "tokens": 1,
    }
    return TrialRecord(kind=kind, number=number, **{**values, **changes})
