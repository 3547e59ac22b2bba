"""Ray: what cannot be reached, what nodes have room for, and a study on a cluster whose parts die."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from nasgrow.cli.search import run as search_command
from nasgrow.errors import UserError
from nasgrow.executors import ray as executors
from nasgrow.executors.base import Died, Event, Finished, Job, Progressed, TrialKey, event_to_json
from nasgrow.executors.ray import RayExecutor, connect
from nasgrow.executors.worker import Setup
from nasgrow.experiments.search import Workplace, _setup
from nasgrow.study.config import Resources
from nasgrow.study.study import open_study
from nasgrow.study.study_folder import read_study
from tests.processes import ROOT, Program
from tests.servers import PASSWORD, free_port, postgres_programs, serving
from tests.study.studies import write_study
from tests.surviving import (
    FOLDER,
    finish,
    go,
    losses,
    statuses,
    surviving_study,
    training_begun,
    undisturbed,
    wait_until,
)

pytest.importorskip("ray", reason="Ray is not installed: pip install 'nasgrow[ray]'")
from ray.exceptions import NodeDiedError, OutOfMemoryError

RAY = Path(sys.executable).with_name("ray")
PATIENCE = 240.0
"""Seconds: Ray starts a dozen processes, which takes a while where much else runs."""

NEEDLE = "Quokka"
assert NEEDLE in PASSWORD

# As in surviving.py: runs are slow until the file `go` is there; in the actors, to which this is shipped.
PROGRAM = """
from nasgrow.cli import live_view
from nasgrow.cli.main import main
from nasgrow.executors import ray
live_view.draw_curve = lambda folder, path: path.write_bytes(b"")

class Slow(ray.TrainingActor):
    def __init__(self, setup, home, environment):
        import json, time
        from pathlib import Path
        from ray import get_gpu_ids, get_runtime_context
        from nasgrow.training import loop
        from nasgrow.training.step import backward
        got = {**get_runtime_context().get_assigned_resources(), "gpus seen": get_gpu_ids()}
        Path(home, f"{get_runtime_context().get_actor_id()}.got").write_text(json.dumps(got))
        loop.CHECKPOINT_SECONDS = 0.1

        def slowly(*given):
            if not Path(home, "go").exists():
                time.sleep(0.3)  # an actor of another node may take seconds to start
            return backward(*given)

        loop.backward = slowly
        super().__init__(setup, home, environment)

ray.TrainingActor = Slow
main()
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("NASGROW_STORAGE", raising=False)
    return tmp_path


# Connecting.


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("ray://there:10001", "--address: 'ray://there:10001' is Ray's client"),
        ("127.0.0.1:1", "--address: '127.0.0.1:1': no Ray can be reached at 127.0.0.1:1: connection refused"),
        ("auto", "--address: '127.0.0.1:1': no Ray can be reached at 127.0.0.1:1: connection refused"),
        ("nowhere", "--address: 'nowhere': must be auto or host:port, not 'nowhere'"),
    ],
)
def test_addresses_that_cannot_be(
    home: Path, monkeypatch: pytest.MonkeyPatch, address: str, told: str
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # as one that was started here once, and is dead
    with pytest.raises(UserError) as refused:
        search_command(write_study(home), Workplace("ray", address), None, True)
    assert str(refused.value).startswith(told)


def test_ray_that_was_imported_without_a_token_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_MODE")
    with pytest.raises(UserError, match=r"^--engine ray: Ray was imported before a token could be set"):
        connect(None)


def test_an_address_is_for_ray(home: Path) -> None:
    with pytest.raises(UserError, match=r"^--address: is only for a Ray cluster: give --engine ray too$"):
        search_command(write_study(home), Workplace("local", "auto"), None, True)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-OpenSSH_9.9\r\n"])
def test_what_listens_and_is_no_ray_is_told_from_it_without_ray(said: bytes) -> None:
    with socket.create_server(("", 0)) as server:  # Ray takes loopback for the machine's own address

        def answer() -> None:
            there, _ = server.accept()
            with there:
                there.sendall(said)
                there.recv(100)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        port = server.getsockname()[1]
        with pytest.raises(ValueError, match=rf"no Ray can be reached at \S+:{port}: something else listens"):
            connect(f"127.0.0.1:{port}")
        thread.join()


# Clusters that are described but not there.


class Stream:
    """The events of an actor."""

    def __init__(self) -> None:
        self.left: list[Any] = []

    def __next__(self) -> Any:
        return self.left.pop(0)


class Cluster:
    """Nodes as Ray describes them, and what Ray was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.nodes: list[dict[str, Any]] = []
        self.asked: list[dict[str, Any]] = []
        self.setups: list[dict[str, Any]] = []
        self.streams: list[Stream] = []
        self.stopped: list[int] = []
        self.killed: list[Any] = []
        self.warnings: list[str] = []
        monkeypatch.setattr(executors, "connect", lambda address: None)
        monkeypatch.setattr(executors, "_nodes", lambda: self.nodes)
        monkeypatch.setattr("ray.remote", self._remote)
        monkeypatch.setattr("ray.kill", self.killed.append)
        monkeypatch.setattr("ray.wait", lambda streams, **_: ([one for one in streams if one.left], []))
        monkeypatch.setattr("ray.get", self._get)

    def join(self, **resources: float) -> None:
        self.nodes.append({"Resources": resources})

    def executor(
        self, most: int | None = None, address: str | None = None, needs: Mapping[str, float] | None = None
    ) -> RayExecutor:
        setup = Setup("runs", {}, "", None, 0, 1)
        return RayExecutor(setup, Resources(**(needs or {})), address, most, self.warnings.append)

    def _remote(self, **options: Any) -> Any:
        self.asked.append(options)
        return lambda actor: SimpleNamespace(remote=self._start)

    def _start(self, setup: dict[str, Any], home: str, environment: dict[str, str]) -> Any:
        self.setups.append(setup)
        index = len(self.setups) - 1
        stream = Stream()
        self.streams.append(stream)

        def stop() -> None:
            self.stopped.append(index)

        return SimpleNamespace(
            train=SimpleNamespace(remote=lambda job: stream), stop=SimpleNamespace(remote=stop)
        )

    def _get(self, event: Event | Exception) -> dict[str, Any]:
        if isinstance(event, Exception):
            raise event
        return event_to_json(event)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def job(number: int) -> Job:
    return Job(TrialKey("search", number), (), {})


@pytest.mark.parametrize(
    ("resources", "room", "asked"),
    [
        # By default one core and, as the cluster has GPUs, one of them.
        ({}, 2 + 1, {"num_cpus": 1, "num_gpus": 1}),
        ({"gpus": 0}, 4 + 8 + 2, {"num_cpus": 1, "num_gpus": 0}),
        ({"gpus": 0, "cpus": 0.1}, 40 + 80 + 20, {"num_cpus": 0.1}),
        ({"gpus": 0, "cpus": 3}, 1 + 2, {"num_cpus": 3}),
        # Once on each GPU: what is left of two is not on one.
        ({"gpus": 0.6}, 2 + 1, {"num_gpus": 0.6}),
        ({"gpus": 0.1}, 4 + 8, {"num_gpus": 0.1}),
        ({"gpus": 0.5, "gigabytes": 3}, 2 + 2, {"num_gpus": 0.5, "memory": 3e9}),
    ],
)
def test_there_is_room_for_what_nodes_have(
    cluster: Cluster, resources: dict[str, float], room: int, asked: dict[str, float]
) -> None:
    cluster.join(CPU=4.0, GPU=2.0, memory=8e9)
    cluster.join(CPU=8.0, GPU=1.0, memory=64e9)
    cluster.join(CPU=2.0, memory=2e9)
    executor = cluster.executor(needs=resources)
    assert executor.slots == room
    executor.submit(job(0))
    assert asked.items() <= cluster.asked[0].items()
    assert ("memory" in cluster.asked[0]) == ("gigabytes" in resources)
    assert [setup["gpus"] for setup in cluster.setups] == [0 if resources.get("gpus") == 0 else 1]


def test_slots_grow_with_the_cluster_and_actors_ask_for_the_same_as_before(cluster: Cluster) -> None:
    cluster.join(CPU=1.0)
    executor = cluster.executor()
    executor.submit(job(0))
    cluster.join(CPU=2.0, GPU=1.0)
    assert executor.slots == 3
    executor.submit(job(1))
    assert [asked["num_gpus"] for asked in cluster.asked] == [0, 0], "as there was none"
    cluster.nodes.clear()
    assert executor.slots == 0


@pytest.mark.parametrize("workers", [None, 4])
@pytest.mark.parametrize(
    ("resources", "line"),
    [
        ({"cpus": 16}, "resources.cpus: a trial needs 16, and the largest node has 8"),
        ({"gpus": 0.5}, "resources.gpus: a trial needs 0.5, and the largest node has 0"),
        ({"gigabytes": 6.5}, "resources.gigabytes: a trial needs 6.5, and the largest node has 4"),
        ({"cpus": 8, "gigabytes": 4}, "resources: a trial needs cpus 8, gigabytes 4, and no node has all"),
    ],
)
def test_what_no_node_has_is_refused_however_many_workers_are_asked_for(
    cluster: Cluster, workers: int | None, resources: dict[str, float], line: str
) -> None:
    cluster.join(CPU=8.0, memory=2e9)
    cluster.join(CPU=2.0, memory=4e9)
    with pytest.raises(ValueError, match=f"^{line}.*: ask for less, or let a node that has it join first$"):
        cluster.executor(workers, needs=resources)


def test_a_cluster_without_nodes_is_refused_unless_they_may_join(cluster: Cluster) -> None:
    line = "resources.cpus: a trial needs 1, and the largest node has 0: "
    for workers, address in ((4, None), (None, "there:6379")):
        with pytest.raises(ValueError, match=f"^{line}ask for less"):
            cluster.executor(workers, address)
    assert not cluster.warnings
    executor = cluster.executor(4, "there:6379")
    assert cluster.warnings == [f"{line}waiting for a node to join that has it"]
    assert executor.slots == 4, "an autoscaler sees what waits"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (
            OutOfMemoryError("killed"),
            "a node ran out of memory: set resources.gigabytes to what a trial needs",
        ),
        (NodeDiedError("the node is gone\nwith all"), "the node is gone"),
        (Died(job(0).trial, "out of memory: less"), "out of memory: less"),
    ],
)
def test_an_actor_that_is_lost_is_replaced(cluster: Cluster, fault: Any, reason: str) -> None:
    cluster.join(CPU=1.0)
    executor = cluster.executor()
    executor.submit(job(0))
    cluster.streams[0].left.append(fault)
    assert executor.events(0.0) == [Died(job(0).trial, reason)]
    assert len(cluster.killed) == 1
    executor.submit(job(0))
    assert len(cluster.setups) == 2


def test_an_idle_actor_gets_the_next_job_and_makes_room_for_those_that_wait(cluster: Cluster) -> None:
    """An actor keeps its share of a node while it has no job, and one that waits may wait for just that."""
    cluster.join(CPU=1.0)
    executor = cluster.executor(2)
    executor.submit(job(0))
    executor.submit(job(1))  # for which there is no room yet
    done = Finished(job(0).trial, "finished", ())
    cluster.streams[0].left.append(done)
    assert executor.events(0.0) == [done]
    executor.submit(job(2))
    assert len(cluster.setups) == 2
    done = Finished(job(2).trial, "finished", ())
    cluster.streams[0].left.append(done)
    assert executor.events(0.0) == [done]
    assert not cluster.killed
    assert executor.events(0.0) == []
    assert len(cluster.killed) == 1


def test_stopping_does_not_wait_for_what_has_not_begun(cluster: Cluster) -> None:
    cluster.join(CPU=1.0)
    executor = cluster.executor(2)
    executor.submit(job(0))
    executor.submit(job(1))
    cluster.streams[0].left.append(Progressed(job(0).trial, 1, 1, 0.0, None))
    assert len(executor.events(0.0)) == 1
    executor.stop()
    assert cluster.stopped == [0]
    assert executor.events(0.0) == [Finished(job(1).trial, "interrupted", ())]


@pytest.mark.parametrize(
    ("place", "resources", "threads"),
    [
        (Workplace("ray"), {}, 1),
        (Workplace("ray", workers=2), {}, 3),
        (Workplace("ray", "local", 1), {}, 6),
        (Workplace("ray", workers=2), {"cpus": 2}, 2),
        (Workplace("local", workers=2), {}, 3),
        (Workplace("ray", "10.0.0.1:6379", 2), {}, 1),
        (Workplace("ray", "10.0.0.1:6379", 2), {"cpus": 2.5}, 2),
    ],
)
def test_on_one_machine_actors_have_the_threads_of_local_workers(
    home: Path, monkeypatch: pytest.MonkeyPatch, place: Workplace, resources: dict[str, float], threads: int
) -> None:
    for module in ("nasgrow.study.config", "nasgrow.experiments.search"):
        monkeypatch.setattr(f"{module}.core_count", lambda: 6)
    study, folder = open_study(write_study(home, resources=resources))
    opened: Any = SimpleNamespace(study=study, folder=folder, fingerprint="")
    assert _setup(opened, place).threads == threads


# Clusters that are there.


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes to end after the test, each with all of its session."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        kill_session(process.pid)
        process.communicate()


def start(started: list[subprocess.Popen[str]], *command: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True
    )
    started.append(process)
    assert process.stdout is not None
    assert any("Ray runtime started" in line for line in process.stdout)
    return process


def session_of(leader: int) -> list[int]:
    """The processes of a session: Ray's workers have groups of their own."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text(encoding="utf-8").rsplit(")", 1)[1].split()
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append(int(stat.parent.name))
    return found


def kill_session(leader: int) -> None:
    """What the loss of a machine does."""
    for pid in session_of(leader):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def listening(pids: list[int]) -> set[str]:
    """The addresses, in hexadecimal, on which these processes listen."""
    held = set()
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            with suppress(OSError):
                held.add(os.readlink(link))
    lines = [line for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    sockets = [line.split() for line in lines[1:]]
    return {one[1].split(":")[0] for one in sockets if one[3] == "0A" and f"socket:[{one[9]}]" in held}


def command_lines() -> str:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
    return "\n".join(lines)


def search(study: Path, *options: str) -> Program:
    """Starts `nasgrow search --engine ray`, in a session of its own."""
    code = "import os; os.setsid()\n" + PROGRAM
    return Program(code, ["search", study.name, "--engine", "ray", "--json", *options], study.parent)


def test_the_driver_and_a_node_die_and_nothing_is_lost(
    home: Path, started: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = undisturbed()
    for name, value in {"MODE": "token", "TOKEN": secrets.token_hex(32)}.items():
        monkeypatch.setenv(f"RAY_AUTH_{name}", value)
    for name, value in {"initial_delay_ms": "1000", "period_ms": "500", "timeout_ms": "2000"}.items():
        monkeypatch.setenv(f"RAY_health_check_{name}", value)  # a dead node is noticed sooner
    study, port = surviving_study(home), free_port()
    one = ["--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats", "--block"]
    with ExitStack() as stack:
        sockets = stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp"))  # their paths must be short
        head = f"--port={port}", "--include-dashboard=false", f"--temp-dir={sockets}"
        start(started, str(RAY), "start", "--head", *head, *one)
        node = start(started, str(RAY), "start", f"--address=127.0.0.1:{port}", *one)
        first = search(study, "--address", f"127.0.0.1:{port}")
        stack.callback(first.kill)
        wait_until(training_begun, first, PATIENCE)
        first.kill()
        first.wait()
        driver = search(study, "--address", f"127.0.0.1:{port}")
        stack.callback(driver.kill)
        wait_until(lambda: len(read_study(FOLDER).running) == 2, driver, PATIENCE)
        kill_session(node.pid)
        wait_until(lambda: "it is resumed" in driver.err, driver, PATIENCE)
        go()
        finish(driver)
    assert losses(read_study(FOLDER)) == expected
    assert set(statuses()) == {"finished"}


def test_ray_that_is_started_here_keeps_to_itself_shares_saves_on_ctrl_c_and_shows_no_password(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = undisturbed()
    for name in ("MODE", "TOKEN"):
        monkeypatch.delenv(f"RAY_AUTH_{name}")  # it draws its own token
    study = surviving_study(home)
    described = yaml.safe_load(study.read_text(encoding="utf-8"))
    needs = {"resources": {"cpus": 0.5, "gpus": 0.5, "gigabytes": 0.25}}
    study.write_text(yaml.safe_dump(described | needs), encoding="utf-8")
    node = {"CPU": 1, "GPU": 1, "memory": 700_000_000, "object_store_memory": 80_000_000}
    monkeypatch.setenv("RAY_OVERRIDE_RESOURCES", json.dumps(node))  # what Ray takes this machine to have
    with ExitStack() as stack:
        short = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))  # as paths of sockets are
        monkeypatch.setenv("RAY_TMPDIR", str(short))
        if postgres_programs() is not None:
            monkeypatch.setenv("NASGROW_STORAGE", stack.enter_context(serving()).url)
        driver = search(study)
        stack.callback(kill_session, driver.pid)
        wait_until(training_begun, driver, PATIENCE)
        got = [json.loads(path.read_text(encoding="utf-8")) for path in home.glob("*.got")]
        assert got == [{"CPU": 0.5, "GPU": 0.5, "memory": 2.5e8, "gpus seen": [0]}] * 2, "two share the GPU"
        loopback = {"0100007F", "0000000000000000FFFF00000100007F"}
        assert listening(session_of(driver.pid)) <= loopback
        seen = command_lines()
        driver.send_signal(signal.SIGINT)
        _, errors = driver.communicate(PATIENCE)
        assert driver.returncode == 130
        assert errors.endswith("stopped and saved; the same command resumes\n"), "Ray may warn before"
        assert "Traceback" not in errors
        assert statuses() == ["running"] * 2
        go()
        finish(search(study))
        assert losses(read_study(FOLDER)) == expected
        files = [path for folder in (home, short) for path in folder.rglob("*") if path.is_file()]
        assert "ray::" in seen, "actors were among the processes"
        assert NEEDLE not in seen
        assert any("worker" in path.name for path in files), "Ray's logs were read"
        assert not [path for path in files if NEEDLE.encode() in path.read_bytes()]
        deadline = time.monotonic() + PATIENCE
        while session_of(driver.pid):  # Ray ends with the driver
            assert time.monotonic() < deadline
            time.sleep(0.1)
