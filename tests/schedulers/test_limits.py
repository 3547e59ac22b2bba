"""The limits of a search, whatever searches."""

from __future__ import annotations

from typing import Any

import pytest

from nasgrow.schedulers.make import make_scheduler
from nasgrow.study.trials import TrialRecord
from tests.schedulers.playing import finished, small_study

KINDS: dict[str, dict[str, Any]] = {
    "random": {"sampler": {"kind": "random"}},
    "tpe, asha": {"sampler": {"kind": "tpe"}, "pruner": {"kind": "asha"}},
    "grid": {"sampler": {"kind": "grid"}},
    "tree": {"sampler": {"kind": "tree"}},
}


@pytest.mark.parametrize("changes", KINDS.values(), ids=list(KINDS))
@pytest.mark.parametrize("limit", [{"total_flops": 100.0}, {"hours": 0.5}])
def test_a_search_that_has_used_up_its_compute_or_its_time_starts_no_trial(
    limit: dict[str, float], changes: dict[str, Any]
) -> None:
    study = small_study(trials=None, **limit, **changes)
    trials: dict[int, TrialRecord] = {}
    scheduler = make_scheduler(study, trials)
    assert scheduler.suggest() is not None
    trials[0] = finished(study, 0, study.space.known["half"], 2.0)
    trials[0].executed, trials[0].seconds = 99, 1799.0
    assert scheduler.suggest() is not None
    trials[0].executed, trials[0].seconds = 100, 1800.0
    assert scheduler.suggest() is None
