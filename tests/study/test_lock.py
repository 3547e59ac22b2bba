"""One driver per study: the lock of its folder, and the lease of its storage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import optuna
import pytest
from filelock import FileLock

from nasgrow.study import lock
from nasgrow.study.lock import (
    DRIVER,
    LEASE,
    LEASE_SECONDS,
    LOCK,
    NOT_PLANNED,
    SILENT_SECONDS,
    Lease,
    doing,
    driving,
    show,
)

NOTHING = {"driver": "another process", "state": "stopped", "running": [], "planned": NOT_PLANNED}
TRIAL = {"kind": "search", "trial": 3}


def test_a_second_driver_is_refused_in_one_line_that_names_the_first(tmp_path: Path) -> None:
    with driving(tmp_path):
        with (
            pytest.raises(
                ValueError, match=rf"^{tmp_path}: process {os.getpid()} on \S+ is running"
            ) as error,
            driving(tmp_path),
        ):
            pytest.fail("two drivers")
        assert "\n" not in str(error.value)
    with driving(tmp_path):
        assert doing(tmp_path)["state"] == "running"


def test_a_driver_is_seen_with_its_trials_and_how_it_ended(tmp_path: Path) -> None:
    assert doing(tmp_path) == NOTHING
    with driving(tmp_path):
        show(tmp_path, "running", [TRIAL])
        assert doing(tmp_path)["running"] == [TRIAL]
        planned = {"baselines": 6, "confirming": 9}
        show(tmp_path, "running", [TRIAL], planned)
        assert doing(tmp_path)["planned"] == planned
        show(tmp_path, "ended")
        assert doing(tmp_path)["planned"] == NOT_PLANNED
    assert doing(tmp_path)["state"] == "ended"
    old = {name: value for name, value in doing(tmp_path).items() if name != "planned"}
    (tmp_path / DRIVER).write_text(json.dumps(old))
    assert doing(tmp_path)["state"] == "ended", "an earlier version wrote no plan"
    (tmp_path / DRIVER).write_text(json.dumps({**old, "planned": {"confirming": 9, "later": 1}}))
    assert doing(tmp_path)["planned"] == {"baselines": None, "confirming": 9}, "a later one may write more"


def test_nothing_is_running_after_the_death_of_a_driver(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from nasgrow.study.lock import driving, show\n"
        "with driving(Path(sys.argv[1])):\n"
        "    show(Path(sys.argv[1]), 'running', [{'kind': 'search', 'trial': 3}])\n"
        "    os._exit(1)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False, env=environment)
    assert json.loads((tmp_path / DRIVER).read_text())["running"] == [TRIAL], "as it was when it died"
    found = doing(tmp_path)
    assert (found["state"], found["running"]) == ("stopped", [])
    with driving(tmp_path):
        assert doing(tmp_path)["state"] == "running"


def test_a_driver_whose_lock_cannot_be_looked_at_has_died_if_it_shows_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*given: object, **options: object) -> None:
        raise PermissionError(13, "Permission denied")

    show(tmp_path, "running", [{"trial": 1}])
    monkeypatch.setattr(lock, "FileLock", denied)
    assert doing(tmp_path)["state"] == "running"
    long_ago = time.time() - 2 * SILENT_SECONDS
    os.utime(tmp_path / DRIVER, (long_ago, long_ago))
    assert (doing(tmp_path)["state"], doing(tmp_path)["running"]) == ("stopped", [])


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"state": "running"}', "\0\0", "[" * 100_000])
def test_a_damaged_view_shows_nothing_and_stops_no_driver(content: str, tmp_path: Path) -> None:
    (tmp_path / DRIVER).write_text(content)
    assert doing(tmp_path) == NOTHING
    with FileLock(tmp_path / LOCK), pytest.raises(ValueError, match="another process is running this study"):
        driving(tmp_path).__enter__()
    with driving(tmp_path):
        pass


@pytest.fixture
def study() -> optuna.Study:
    return optuna.create_study(study_name="tiny")


def held(study: optuna.Study) -> Any:
    return study.user_attrs[LEASE]


def elsewhere(until: float) -> dict[str, Any]:
    return {"driver": "process 1 on elsewhere", "host": "elsewhere", "until": until}


def test_a_lease_is_taken_renewed_and_released(study: optuna.Study, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = Lease(study)
    lease.take()
    taken = held(study)
    assert taken["driver"] == lock._this_process()
    assert time.time() < taken["until"] <= time.time() + LEASE_SECONDS
    lease.renew()
    assert held(study) == taken, "it holds for long enough"
    clock = time.monotonic() + LEASE_SECONDS
    monkeypatch.setattr("nasgrow.study.lock.time.monotonic", lambda: clock)
    lease.renew()
    assert held(study)["until"] > taken["until"]
    lease.release()
    assert held(study)["until"] < time.time()


def test_the_lease_of_another_driver_is_respected_until_it_expires(study: optuna.Study) -> None:
    study.set_user_attr(LEASE, elsewhere(time.time() + 60))
    with pytest.raises(
        ValueError, match=r"^tiny: process 1 on elsewhere is running .*; if it has died, try again in \d+ s$"
    ):
        Lease(study).take()
    assert held(study)["driver"] == "process 1 on elsewhere"
    study.set_user_attr(LEASE, elsewhere(time.time() - 1))
    Lease(study).take()
    assert held(study)["driver"] == lock._this_process()


@pytest.mark.parametrize(
    "written", ["text", 3, None, [1], {}, {"driver": "x", "until": "soon"}, {"until": None}, {"until": 1e300}]
)
def test_whatever_others_wrote_where_the_lease_stands_refuses_nobody(
    written: Any, study: optuna.Study
) -> None:
    study.set_user_attr(LEASE, written)
    Lease(study).take()
    assert held(study)["driver"] == lock._this_process()
