"""Families made of records alone, for tests of reports: nothing is trained."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from nasgrow.experiments.family import Family, FamilyConfig, Part
from nasgrow.report.family.read import FamilyRecords, read_family
from tests.report.studies import FINGERPRINT, GROWN, VOCAB, Recorded


def family_of(rates: Sequence[float] = (0.003, 0.006, 0.012), seeds: int = 3) -> Family:
    """A family of the three sizes of the schedule that recorded studies grow by."""
    config = FamilyConfig.model_validate(
        {
            "schedule": GROWN,
            "budget": {"flops": 8e7},
            "training": {"context": 16, "batch_tokens": 64},
            "learning_rates": list(rates),
            "seeds": seeds,
        }
    )
    return Family.resolve(config, VOCAB)


def record(
    folder: Path, family: Family, part: Part, rate: float, seed: int, loss: float | None, test: float | None
) -> Path:
    """Record a run of a part, and its test loss; returns its folder."""
    run = family.run(part, rate, seed, FINGERPRINT)
    Recorded.record_run(folder, run, loss)
    place = folder / "runs" / run.identity
    if test is not None:
        (place / "test.json").write_text(json.dumps({"test": test}))
    return place


def recorded_family(
    folder: Path, apart: Mapping[int, float] = {1: -0.1, 2: -0.05}, *, seeds: int = 3, tested: int = 3
) -> FamilyRecords:
    """A family whose members are so far from their sizes from scratch, at the second of three rates."""
    family, place = family_of(seeds=seeds), folder / "runs" / "it-family"
    for part, rate in family.tuning():
        worse = 0.0 if rate == 0.006 else 0.2
        record(place, family, part, rate, 0, 2.0 - 0.1 * part.size + worse, None)
    for part in family.parts:
        for seed in family.fresh_seeds[:tested]:
            own = apart.get(part.size, 0.0) + 0.004 * (seed % 2) if part.grown and part.size else 0.0
            loss = 2.0 - 0.1 * part.size + 0.01 * seed + own
            record(place, family, part, 0.006, seed, loss, loss + 0.02)
    return read_family("it-family", family, place, FINGERPRINT)
