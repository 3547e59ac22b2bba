"""A study on a real Ray: the driver dies, a node dies, Ctrl-C; nothing is lost, done twice, or different."""

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
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from nasgrow.engines.ray import connect
from nasgrow.engines.worker import work
from nasgrow.search.ledger import KINDS
from tests.cli.test_run_commands import call
from tests.engines.test_survival import (
    TRIALS,
    finish,
    go,
    ledger_of,
    results,
    states,
    training_begun,
    wait_for,
)
from tests.search.studies import SPACE, begin_study, write_study
from tests.search.test_objective import nothing
from tests.servers import free_port

pytest.importorskip("ray", reason="Ray is not installed: pip install 'nasgrow[ray]'")

# As in test_survival: signs of life come quickly, and runs are slow until the file `go` is there; in the
# driver and in the tasks, to which this is shipped.
PROGRAM = """
from nasgrow.cli import worker
from nasgrow.cli.main import main
from nasgrow.search import storage
storage.HEARTBEAT, storage.GRACE = 1, 3

def task(order):
    import time
    from pathlib import Path
    from nasgrow.cli import worker
    from nasgrow.search import storage
    from nasgrow.training import loop
    storage.HEARTBEAT, storage.GRACE = 1, 3
    import json, ray
    got = {**ray.get_runtime_context().get_assigned_resources(), "gpus seen": ray.get_gpu_ids()}
    Path(order["home"], f"{order['index']}.got").write_text(json.dumps(got), encoding="utf-8")
    from nasgrow.training.step import backward
    loop.CHECKPOINT_SECONDS = 0.1
    worker.draw_curve = lambda folder, path: path.write_bytes(b"")

    def slowly(*given):
        if not Path(order["home"], "go").exists():
            time.sleep(0.05)
        return backward(*given)

    loop.backward = slowly
    return worker.task(order)

worker.task = task
main()
"""
RAY = Path(sys.executable).with_name("ray")
PATIENCE = 240.0
"""Seconds: Ray starts a dozen processes, which takes a while where much else runs."""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A study file whose runs last a few seconds each until the file `go` is there."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("NASGROW_STORAGE", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    training = {"context": 16, "batch_tokens": 64, "evaluation_tokens": 64, "final_tokens": 128}
    baselines = {"shares": [], "learning_rates": [0.006]}
    known = {f"both at {at}": {"start": 0.5, "at.1": at, "at.2": at} for at in (0.2, 0.3, 0.4, 0.5)}
    return write_study(
        tmp_path,
        budget={"flops": 1e8},
        training=training,
        space={
            **SPACE,
            "known": known,
        },  # all that is tried: nothing depends on the order in which trials end
        trials=TRIALS,
        baselines=baselines,
    )


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes to end after the test, each with all of its session."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        kill_session(process)
        process.communicate()


def start(command: list[str], started: list[subprocess.Popen[str]]) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    started.append(process)
    return process


def search(study: Path, started: list[subprocess.Popen[str]], *options: str) -> subprocess.Popen[str]:
    """Starts `nasgrow search --engine ray`."""
    return start(
        [sys.executable, "program.py", "search", study.name, "--engine", "ray", "--json", *options], started
    )


def session_of(process: subprocess.Popen[str]) -> list[int]:
    """The processes of a session: Ray's workers have groups of their own."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8").rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[3]) == process.pid and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def kill_session(process: subprocess.Popen[str]) -> None:
    """What the loss of a machine does."""
    for pid in session_of(process):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


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


def running(study: Path) -> int:
    return states(study).count("RUNNING")


def failed(study: Path) -> int:
    return states(study).count("FAIL")


def test_the_driver_and_a_node_die_and_nothing_is_lost(
    study: Path, started: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"MODE": "token", "TOKEN": secrets.token_hex(32)}.items():
        monkeypatch.setenv(f"RAY_AUTH_{name}", value)
    port = free_port()
    one = ["--num-cpus=1", "--object-store-memory=80000000", "--disable-usage-stats", "--block"]
    with tempfile.TemporaryDirectory(dir="/tmp") as sockets:  # their paths must be short
        first = ["--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={sockets}"]
        head = start([str(RAY), "start", *first, *one], started)
        wait_for(lambda: listens(port), head)
        node = start([str(RAY), "start", f"--address=127.0.0.1:{port}", *one], started)
        assert node.stdout is not None
        assert any("Ray runtime started" in line for line in node.stdout)
        options = "--address", f"127.0.0.1:{port}", "--workers", "2"
        first_driver = search(study, started, *options)
        wait_for(lambda: training_begun(study) and running(study) == 2, first_driver, PATIENCE)
        first_driver.kill()
        first_driver.wait()
        driver = search(study, started, *options)
        wait_for(lambda: failed(study) == running(study) == 2, driver, PATIENCE)
        kill_session(node)
        wait_for(lambda: failed(study) == 3, driver, PATIENCE)
        go(study)
        summary = finish(driver, PATIENCE, silent=False)
        kill_session(head)
    assert summary["ended"] == TRIALS

    (study.parent / "alone").mkdir()
    monkeypatch.chdir(study.parent / "alone")
    _, folder, alone = begin_study(study)
    device = torch.device("cpu")
    work(alone, folder, index=0, device=device, attach=nothing, warn=print, stop=lambda: False, kinds=KINDS)
    assert results(ledger_of(study.parent / "runs/tiny")) == results(alone)


def test_ray_that_is_started_here_gives_tasks_their_share_keeps_to_itself_and_saves_on_ctrl_c(
    study: Path, started: list[subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody is to be taken for dead here, however busy the machine is.
    patient = PROGRAM.replace("storage.HEARTBEAT, storage.GRACE = 1, 3", "pass")
    Path("program.py").write_text(patient, encoding="utf-8")
    needs = "resources: {cpus: 0.5, gpus: 0.5, gigabytes: 0.25}\n"
    study.write_text(study.read_text(encoding="utf-8") + needs, encoding="utf-8")
    node = {"CPU": 1, "GPU": 1, "memory": 700_000_000, "object_store_memory": 80_000_000}
    monkeypatch.setenv("RAY_OVERRIDE_RESOURCES", json.dumps(node))  # what Ray takes this machine to have
    driver = search(study, started)
    wait_for(lambda: training_begun(study), driver, PATIENCE)
    got = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(study.parent.glob("*.got"))]
    assert got == [{"CPU": 0.5, "GPU": 0.5, "memory": 2.5e8, "gpus seen": [0]}] * 2, "two share the GPU"
    assert listening(session_of(driver)) <= {"0100007F", "0000000000000000FFFF00000100007F"}, "loopback"
    driver.send_signal(signal.SIGINT)
    _, errors = driver.communicate(timeout=PATIENCE)
    assert driver.returncode == 130
    assert errors.endswith("stopped and saved; the same command goes on\n"), "Ray may warn before"
    assert "Traceback" not in errors
    assert not {"RUNNING", "FAIL"} & set(states(study)), "every task gave its trial back"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            ("--engine", "ray", "--address", "ray://there:10001"),
            "--address: 'ray://there:10001' is Ray's client",
        ),
        (("--address", "auto"), "--address: is a Ray cluster's: give --engine ray too"),
        (
            ("--engine", "ray", "--address", "127.0.0.1:1"),
            "--address: '127.0.0.1:1': no Ray can be reached at",
        ),
        (("--engine", "ray", "--address", "auto"), "--address: 'auto': no Ray can be reached at"),
        (
            ("--engine", "ray", "--address", "nowhere"),
            "--address: 'nowhere': Invalid address format: nowhere",
        ),
    ],
)
def test_addresses_that_cannot_be(
    study: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    told: str,
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # as one that was started here once, and is dead
    assert call(monkeypatch, "search", study.name, *options) == 2
    assert told in capsys.readouterr().err


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
