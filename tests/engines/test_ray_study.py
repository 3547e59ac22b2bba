"""One study file, trained to its end on a Ray that is started here, and by the local engine: alike."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nasgrow.search.trials import read_trials
from nasgrow.training.records import read_metrics
from tests.engines.test_secrets import NEEDLE, command_lines
from tests.processes import ROOT, Program
from tests.search.studies import SPACE, write_study
from tests.servers import Postgres, serving

pytest.importorskip("ray", reason="Ray is not installed: pip install 'nasgrow[ray]'")

# Runs warn of something when they begin, in both ways that there are, and of something else when they end.
PLANT = """
from nasgrow.cli.main import main

def plant():
    import warnings
    from nasgrow.cli import worker
    from nasgrow.training import loop
    from nasgrow.training.resume import resume

    def warned(folder, run, warn, device):
        warn("a planted notice")
        warnings.warn("a planted warning")
        return resume(folder, run, warn, device)

    def drawn(folder, path):
        path.write_bytes(b"")
        warnings.warn(f"{folder.name} has ended")

    loop.resume, worker.draw_curve = warned, drawn
"""
LOCALLY = f"""
from nasgrow.cli.main import main
from nasgrow.engines import local
from tests.processes import forking
local.subprocess = forking({PLANT + "plant(); main()"!r}, 1)
main()
"""
ON_RAY = f"""
{PLANT}
from nasgrow.cli import worker

def task(order):
    from nasgrow.cli import worker
    plant()
    return worker.task(order)

worker.task = task
main()
"""
PATIENCE = 300.0
CLOCKED = {"seconds", "tokens_per_second", "peak_fraction"}
"""What two trainings of a run do not have in common."""


@dataclass(frozen=True)
class Trained:
    """What came of a study, and all that anybody could see of it: files, and lists of processes."""

    home: Path
    summary: Mapping[str, Any]
    told: str
    seen: str

    def runs(self) -> dict[str, Any]:
        """The records of every run, and the machine, with its threads, that it says."""
        found = {}
        for folder in (self.home / "runs/tiny/runs").iterdir():
            described = json.loads((folder / "description.json").read_text(encoding="utf-8"))
            records = [
                {name: value for name, value in record.items() if name not in CLOCKED}
                for record in read_metrics(folder)
            ]
            found[folder.name] = described["machine"], records
        return found


def train(code: str, home: Path, environment: Mapping[str, str], *options: str) -> Trained:
    """Let a program train the study in a folder of its own, which must end well."""
    home.mkdir()
    path = write_study(
        home,
        space={**SPACE, "known": {f"at {at}": {"start": 0.5, "at.1": at, "at.2": at} for at in (0.4, 0.5)}},
        trials=2,
        baselines={"shares": [], "start": False, "learning_rates": [0.006]},
        workers=1,
        trunks={"share": 1e9, "folder": f"file://{home}/far"},
    )
    common = {"NASGROW_CACHE": str(home / "cache"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.delenv("NASGROW_STORAGE", raising=False)
        arguments = ["search", path.name, "--json", *options]
        launched = Program(code, arguments, home, {**common, **environment})
    seen, deadline = "", time.monotonic() + PATIENCE
    while launched.poll() is None and time.monotonic() < deadline:
        seen += command_lines()
        time.sleep(0.5)
    launched.kill()
    assert launched.wait() == 0, launched.err
    return Trained(home, json.loads(launched.out.splitlines()[-1]), launched.err, seen + contents(home))


def contents(folder: Path) -> str:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return "\n".join(path.read_bytes().decode(errors="replace") for path in files)


@pytest.fixture(scope="module")
def on_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """By tasks, with a database that wants a password where there is a server for one."""
    home = tmp_path_factory.mktemp("ray") / "study"
    with ExitStack() as stack:
        short = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))  # as paths of sockets are
        environment = {"RAY_TMPDIR": str(short)}
        if Postgres.binaries() is not None:
            environment["NASGROW_STORAGE"] = stack.enter_context(serving()).url
        trained = train(ON_RAY, home, environment, "--engine", "ray")
        yield Trained(home, trained.summary, trained.told, trained.seen + contents(short))


@pytest.fixture(scope="module")
def locally(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """By a worker process."""
    return train(LOCALLY, tmp_path_factory.mktemp("local") / "study", {})


def test_records_are_those_of_the_local_engine(on_ray: Trained, locally: Trained) -> None:
    assert len(locally.runs()) == 3
    assert on_ray.runs() == locally.runs()


def test_a_trunk_that_tasks_share_is_trained_once(on_ray: Trained, locally: Trained) -> None:
    assert on_ray.summary["executed"] < on_ray.summary["charged"]
    for cost in ("executed", "charged"):
        assert on_ray.summary[cost] == locally.summary[cost]
    for trained in (on_ray, locally):
        states = list((trained.home / "far").glob("*.tar"))
        assert states, "others could take them from where the URL says"


def test_trials_are_trained_in_the_order_of_the_ledger(on_ray: Trained) -> None:
    records = read_trials(on_ray.home / "runs/tiny")
    ended = sorted(records, key=lambda record: record.ended or 0.0)
    assert [(one.kind, one.number) for one in ended] == [("baseline", 0), ("search", 0), ("search", 1)]


def test_warnings_are_told_once_by_either_engine(on_ray: Trained, locally: Trained) -> None:
    planted = ["a planted notice", "UserWarning: a planted warning"]
    ends = [f"UserWarning: {run} has ended" for run in locally.runs()]
    for trained in (on_ray, locally):
        told = [line for line in trained.told.splitlines() if line.startswith("warning: ")]  # not Ray's own
        assert sorted(told) == sorted(f"warning: {line}" for line in planted + ends)
        assert not list((trained.home / "runs/tiny/workers").iterdir()), "no log is left of what went well"


def test_a_planted_password_is_in_nothing_that_ray_shows_or_keeps(on_ray: Trained) -> None:
    if Postgres.binaries() is None:
        pytest.skip("PostgreSQL is not installed")
    assert not (on_ray.home / "runs/tiny/study.db").exists(), "it is in the server that wants the password"
    assert "ray::" in on_ray.seen, "tasks were among the processes"
    assert NEEDLE not in on_ray.seen
