"""A study's trials as Optuna shows them."""

from __future__ import annotations

from pathlib import Path

import optuna

from nasgrow.study.storage import open_storage, storage_url
from nasgrow.study.store import study_name
from nasgrow.study.study import ResolvedStudy


def shown_study(study: ResolvedStudy, folder: Path) -> optuna.Study:
    """The Optuna study of the search of the study in ``folder``, to be looked at."""
    storage = open_storage(storage_url(study.config, folder))
    return optuna.load_study(study_name=study_name(study, "search"), storage=storage)
