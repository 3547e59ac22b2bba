"""Trials and curves of a study as pandas frames, for notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean

import pandas as pd  # type: ignore[import-untyped]

from nasgrow.study.trials import RUNS, Kind, TrialRecord
from nasgrow.training.records import read_metrics

Trials = Mapping[Kind, Mapping[int, TrialRecord]]

TRIAL_COLUMNS = [
    *("kind", "number", "name", "status", "loss", "test", "learning_rate", "parameters", "tokens", "charged"),
    *("executed", "seconds", "schedule"),
]
CURVE_COLUMNS = ["kind", "number", "seed", "run", "fraction", "step", "tokens", "charged", "seconds", "loss"]
LOSSES = {"evaluation": "validation", "final": "evaluation"}
"""The field of each kind of record that holds the validation loss on the windows of evaluations."""


def trials_frame(trials: Trials) -> pd.DataFrame:
    """Return a row for each trial of every kind: baselines, schedules, fixed shapes and confirmations."""
    rows = [
        {
            **vars(trial),
            "loss": trial.loss,
            "test": fmean(trial.test) if trial.test else None,
            "parameters": trial.parameter_count,
            "schedule": trial.words,
        }
        for kind in trials.values()
        for trial in kind.values()
    ]
    return pd.DataFrame(rows, columns=TRIAL_COLUMNS)


def curves_frame(trials: Trials, folder: Path) -> pd.DataFrame:
    """Return a row for each evaluation of each trial's runs, with its validation loss.

    The final record counts as the evaluation after the last step. A run that several trials share
    has rows for each of them.

    Args:
        trials: The trials.
        folder: The study's folder.
    """
    rows = [
        {
            "kind": trial.kind,
            "number": trial.number,
            "seed": seed,
            "run": run,
            **{name: record[name] for name in CURVE_COLUMNS[4:-1]},
            "loss": record[LOSSES[record["kind"]]],
        }
        for kind in trials.values()
        for trial in kind.values()
        for seed, run in zip(trial.seeds, trial.runs, strict=False)
        for record in read_metrics(folder / RUNS / run)
        if LOSSES.get(record["kind"]) in record
    ]
    return pd.DataFrame(rows, columns=CURVE_COLUMNS)
