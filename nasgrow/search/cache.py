"""Optuna's cache of the trials that were read, asked several times for each trial of a study with many."""

from __future__ import annotations

import copy
from collections.abc import Container

from optuna.storages._cached_storage import _CachedStorage
from optuna.trial import FrozenTrial, TrialState

from nasgrow.search.database import Database


class Cache(_CachedStorage):
    """Optuna's, which keeps the trials of a study in their order in place of sorting them when it is asked.

    Args:
        backend: The database.
    """

    def __init__(self, backend: Database) -> None:
        super().__init__(backend)
        self._ordered: dict[int, list[FrozenTrial]] = {}

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """The trials of a study, in their order; a list that is never changed."""
        self._read_trials_from_remote_storage(study_id)
        with self._lock:
            if study_id not in self._ordered:
                known = self._studies[study_id].trials
                self._ordered[study_id] = [known[number] for number in sorted(known)]
            found = self._ordered[study_id]
        if states is not None:
            found = [trial for trial in found if trial.state in states]
        return copy.deepcopy(found) if deepcopy else found

    def _add_trials_to_cache(self, study_id: int, trials: list[FrozenTrial]) -> None:
        super()._add_trials_to_cache(study_id, trials)
        ordered = self._ordered.pop(study_id, [])
        # A trial's number is its place, unless one before it was not read yet: then they are sorted anew.
        if not ordered or ordered[-1].number != len(ordered) - 1:
            return
        changed = ordered.copy()
        for trial in trials:
            if trial.number > len(changed):
                return
            changed[trial.number : trial.number + 1] = [trial]
        self._ordered[study_id] = changed
