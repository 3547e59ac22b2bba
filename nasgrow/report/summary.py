"""The content of ``summary.json``: the verdict and the state of a study as plain data for programs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from nasgrow.report.findings import Findings
from nasgrow.report.ranking import Contender
from nasgrow.report.verdict import Comparison


def summarise(found: Findings) -> dict[str, Any]:
    """Return the content of ``summary.json``."""
    records, verdict, integrity = found.records, found.verdict, found.integrity
    study = records.study
    return {
        "study": study.config.name,
        "budget": study.budget,
        "verdict": {
            "confirmed": verdict.confirmed,
            "split": verdict.split,
            "headline": verdict.headline,
            "sentences": list(verdict.sentences),
            "schedule": None if verdict.ours is None else _contender(verdict.ours),
            "comparisons": [_comparison(comparison) for comparison in verdict.comparisons],
        },
        "trials": {
            "planned": study.config.trials,
            "search": records.counts.ended,
            "paused": records.counts.besides["paused"],
            **{kind: len(records.of_kind(kind)) for kind in ("baseline", "fixed", "confirmation")},
            "unfinished_runs": records.unfinished,
        },
        "baselines": [
            {
                "name": tuned.size.name,
                "shape": str(tuned.size.shape),
                "loss": tuned.best.loss if tuned.best else None,
                "learning_rate": tuned.best.learning_rate if tuned.best else None,
                "tried": [trial.learning_rate for trial in tuned.tried],
                "edges": list(tuned.edges),
            }
            for tuned in found.ranking.sizes
        ],
        "cost": {
            name: sum(getattr(trial.record, name) for trial in records.trials)
            for name in ("charged", "executed", "seconds")
        },
        "integrity": {**asdict(integrity), **{n: dict(v) for n, v in vars(records.origins).items()}},
        "damaged": records.damaged,
    }


def _contender(one: Contender) -> dict[str, Any]:
    record = one.trial.record
    return {
        "trial": one.label,
        "title": one.title,
        "words": record.words,
        "schedule": record.schedule,
        "learning_rate": record.learning_rate,
        "loss": one.mean,
        "losses": list(one.losses),
        "seeds": list(one.seeds),
        "parameters": record.parameter_count,
        **{name: one.per_run(name) for name in ("tokens", "charged", "seconds", "schedule_seconds")},
    }


def _comparison(comparison: Comparison) -> dict[str, Any]:
    return {
        "rival": comparison.rival,
        "outcome": comparison.outcome,
        "theirs": _contender(comparison.theirs),
        "difference": asdict(comparison.difference),
        "equal_loss": None if comparison.equal is None else asdict(comparison.equal),
        "currencies": [asdict(one) for one in comparison.currencies],
    }
