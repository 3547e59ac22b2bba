"""Open the Optuna study of a search, to look at its trials with Optuna's own functions."""

from __future__ import annotations

from pathlib import Path

import optuna

from nasgrow.study.storage import open_storage, storage_url
from nasgrow.study.store import study_name
from nasgrow.study.study import ResolvedStudy


def shown_study(study: ResolvedStudy, folder: Path) -> optuna.Study:
    """Return the Optuna study of the search of the study in ``folder``; the caller must only read it."""
    storage = open_storage(storage_url(study.config, folder))
    return optuna.load_study(study_name=study_name(study, "search"), storage=storage)
