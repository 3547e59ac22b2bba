"""``slope``, as a user calls it: killed, taken up, and compared with the run that it comes to."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from nasgrow.config import load_run
from nasgrow.study.config import PrefixCacheConfig
from nasgrow.training.records import read_metrics
from nasgrow.training.runner import so_far
from tests.cli.calling import call
from tests.processes import Program
from tests.study.studies import study_data
from tests.training.runs import SCHEDULE, timeless

PROGRAM = """
import os, signal
from nasgrow.cli.main import main
from nasgrow.training import loop
from nasgrow.training.prefixes import SharedPrefix

def die(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

{killer}
main()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a policy: one event as soon as it can be judged, one where it is, one late."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path.parent / "slope-cache"))
    monkeypatch.setattr(
        "nasgrow.experiments.sequential_runs.PrefixCacheConfig", lambda: PrefixCacheConfig(share=1e9)
    )
    study = study_data(tmp_path)
    first, second = SCHEDULE["events"]
    third = [{"expand": "mlp", "to": 32}]
    events: list[dict[str, Any]] = [
        {**first, "at": 0.5, "slope": -50},
        {**second, "at": 0.6, "operator": "preserve + stack"},
        {"at": 0.9, "slope": -1e-9, "grow": third},
    ]
    document = {"data": study["data"], "training": {**study["training"], "evaluations": 20}}
    document |= {"schedule": {**SCHEDULE, "events": events}, "budget": {"flops": 1.2e8}}
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(document))
    return tmp_path


def executed(place: Path) -> int:
    """The FLOPs of all runs of the policy that were really spent."""
    return sum(so_far(run, "stopped").executed for run in place.glob("runs/policy-slope/runs/*"))


@pytest.mark.parametrize(
    "killer",
    [
        "",
        "SharedPrefix.keep = die  # the event is due, and its state is not stored yet",
        "loop.grow = die  # the run with the event at its new time has begun",
    ],
    ids=["never killed", "killed when it is due", "killed when it happens"],
)
def test_it_comes_to_a_run_like_any_other(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], killer: str
) -> None:
    if killer:
        killed = Program(PROGRAM.format(killer=killer), ["slope", "policy.yaml"], place)
        assert killed.wait() == -signal.SIGKILL, killed.err
        assert not (place / "runs" / "policy-slope" / "schedule.yaml").exists()
    capfd.readouterr()
    assert call(monkeypatch, "slope", "policy.yaml") == 0
    told = capfd.readouterr()
    assert "event 1 at 0.1 of the budget: the loss is flat enough" in told.err
    *_, path = told.out.split()
    assert path == "runs/policy-slope/schedule.yaml"
    run = load_run(Path(path))
    assert [event.at for event in run.schedule.events] == [0.1, 0.6, 0.9]
    named = [event.operator and str(event.operator) for event in run.schedule.events]
    assert named == [None, "preserve + stack", None]
    head = "event 1 at 0.1 (slope -50), event 2 at 0.6, event 3 at 0.9 (slope -1e-09)"
    assert head in Path(path).read_text()

    assert call(monkeypatch, "train", path, "--out", "alone") == 0
    (ended,) = place.glob("runs/policy-slope/runs/*/result.json")
    assert timeless(list(read_metrics(ended.parent))) == timeless(list(read_metrics(place / "alone")))
    assert len([*ended.parents[1].iterdir()]) == 2, "the run with the latest times was given up"
    if not killer:
        assert executed(place) == json.loads(ended.read_text())["charged"], "one budget in all"
        assert call(monkeypatch, "slope", "policy.yaml") == 0
        assert capfd.readouterr().out.split()[-1] == path
        assert call(monkeypatch, "slope", "policy.yaml", "--seed", "1") == 2
        assert "policy-slope: holds another run with slopes; choose" in capfd.readouterr().err
