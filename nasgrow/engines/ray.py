"""Ray: every trial is a task, on one machine or on a cluster.

A task claims its trial from the ledger when it begins, not when it is submitted. So whatever waits in Ray's
queue holds nothing, the sampler knows all that ended until then, and the ledger's order (baselines, known
schedules, what most is stored of) stands, however Ray orders tasks. A task that dies with its worker or its
node loses nothing but time: its trial's signs of life end, the ledger offers it again, and another task goes
on from its checkpoint. Between Ray's processes go plain values only; the state of a study is in its folder
and its storage.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from nasgrow.engines.crew import PAUSE, Deaths
from nasgrow.engines.standing import WARNING, WORKERS, log_of, logs
from nasgrow.search.config import Resources
from nasgrow.search.ledger import Kind, Ledger
from nasgrow.search.storage import where
from nasgrow.strict import redact

Task = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""What Ray calls: trains at most one trial as an order says, and tells what it did."""

LOCAL = "local"
"""The address of a Ray that is started for this process and ends with it."""

REACH = 10.0
"""Seconds within which a cluster must take a connection."""

SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS
"""How a client of HTTP/2, and so of Ray, begins. Both sides begin with settings: a frame of type 4."""


def connect(address: str | None) -> None:
    """Connect to the cluster at an address, or start Ray here, for this process alone.

    Whoever reaches Ray can run code. So one that is started here listens on loopback only, has no dashboard,
    and wants a token that is drawn for it.

    Raises:
        ValueError: Ray is not installed, or cannot be reached.
    """
    if address is not None and address.startswith("ray://"):
        raise ValueError(
            f"--address: {address!r} is Ray's client, whose files are not the cluster's: run the command on "
            "a machine of the cluster, with --address auto"
        )
    local = address in (None, LOCAL)
    settings = {"RAY_USAGE_STATS_ENABLED": "0"}
    if local:
        # The switch by which Ray keeps to loopback on other systems; it is read when Ray is imported.
        settings["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        if "RAY_AUTH_MODE" not in os.environ:
            token = os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32)
            settings |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    os.environ |= settings
    try:
        import ray
    except ImportError:
        raise ValueError("--engine ray: Ray is not installed: pip install 'nasgrow[ray]'") from None
    try:
        if not local:
            _reach(str(address))
        ray.init(
            address or LOCAL,
            include_dashboard=False if local else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise ValueError(f"--address: {address or LOCAL!r}: {_line(error)}") from None


def _reach(address: str) -> None:
    """See that Ray listens where it would be connected to: it tries a dead address for minutes itself.

    Raises:
        OSError: Nobody does, or somebody whose first frame is no settings of HTTP/2.
        ValueError: It is no address.
    """
    from ray._private.services import canonicalize_bootstrap_address

    host, _, port = str(canonicalize_bootstrap_address(address)).rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), REACH) as there:
            if os.environ.get("RAY_USE_TLS") == "1":
                return
            there.sendall(PREFACE)
            answer = there.recv(len(SETTINGS))
    except OSError as error:
        said = (error.strerror or str(error)).lower()
        raise OSError(f"no Ray can be reached at {host}:{port}: {said}") from None
    if answer[3:4] != SETTINGS[3:4]:
        raise OSError(f"no Ray can be reached at {host}:{port}: something else listens there")


@dataclass
class RayCrew:
    """The tasks of one launch.

    Attributes:
        ledger: The study's.
        folder: The study's.
        kinds: What to train.
        resources: What one trial needs.
        task: What trains one.
        order: What every task is told besides its number, its log and whether it has a GPU.
        most: Tasks at once, running or waiting for room; by default as many as there is room for now.
        grows: Whether nodes may join later.
    """

    ledger: Ledger
    folder: Path
    kinds: Sequence[Kind]
    resources: Resources
    task: Task
    order: Mapping[str, Any]
    most: int | None = None
    grows: bool = False
    _running: dict[Any, int] = field(default_factory=dict)
    _cancelled: bool = False

    @property
    def size(self) -> int:
        """How many trials are trained at once."""
        return self.most or self._room()

    def start(self) -> None:
        """Prepare to submit."""
        import ray

        (self.folder / WORKERS).mkdir(parents=True, exist_ok=True)
        self._check_room()
        needs = self.needs
        options: dict[str, Any] = {
            "name": f"nasgrow {self.ledger.study.config.name}",
            "num_cpus": needs["cpus"],
            "num_gpus": needs.get("gpus", 0),
            "max_calls": 1 if "gpus" in needs else 0,  # a process keeps the GPU that it has begun with
            "max_retries": 0,  # the dead are counted and replaced here, as by every engine
        }
        options |= {"memory": needs["gigabytes"] * 1e9} if "gigabytes" in needs else {}
        self._remote = ray.remote(**options)(self.task)

    def watch(self, ended: Callable[[], int], look: Callable[[], None], stop: Callable[[], bool]) -> bool:
        """Keep tasks running until nothing is left to do, as every crew does."""
        import ray

        asked, deaths, looked, rested = False, Deaths(ended), -PAUSE, 0.0
        try:
            while True:
                if stop() and not asked:
                    self._cancel()
                    asked = True
                if not asked and time.monotonic() >= rested:
                    self._fill()
                    deaths.expect(len(self._running))
                if time.monotonic() - looked >= PAUSE:
                    look()
                    looked = time.monotonic()
                if not self._running and (asked or self.ledger.ended(self.kinds)):
                    look()
                    for log in logs(self.folder):
                        log.unlink(missing_ok=True)
                    return not asked
                if not self._running:
                    time.sleep(PAUSE)
                    continue
                ready, _ = ray.wait(list(self._running), timeout=PAUSE)
                for reference in ready:
                    if self._settle(reference, deaths, asked) == "nothing":
                        rested = time.monotonic() + PAUSE
        finally:
            self._cancel()
            if self._running:
                ray.wait(list(self._running), num_returns=len(self._running))
            ray.shutdown()

    def _cancel(self) -> None:
        """Let every task save and stop: Ray takes it from its queue, or interrupts it as Ctrl-C does.

        Once: a second Ctrl-C would not let it save.
        """
        import ray

        if not self._cancelled:
            self._cancelled = True
            for reference in self._running:
                ray.cancel(reference, force=False)

    def _fill(self) -> None:
        """Submit as many tasks as there is room for, if the ledger has anything to claim."""
        self._check_storage()
        free = self.size - len(self._running)
        if free <= 0 or not self.ledger.offers(self.kinds):
            return
        for _ in range(free):
            index = next(i for i in range(len(self._running) + 1) if i not in self._running.values())
            own = {"index": index, "log": str(log_of(self.folder, index).absolute())}
            order = {**self.order, **own, "gpu": "gpus" in self.needs}
            self._running[self._remote.remote(order)] = index

    def _settle(self, reference: Any, deaths: Deaths, asked: bool) -> str:
        """Take down what became of a task.

        Raises:
            ValueError: It failed, or too many have died.
        """
        import ray
        from ray.exceptions import OutOfMemoryError, RayError, RayTaskError, TaskCancelledError

        index = self._running.pop(reference)
        try:
            told = ray.get(reference)
        except TaskCancelledError:
            return "stopped"
        except RayTaskError as error:
            log = log_of(self.folder, index)
            with log.open("a", encoding="utf-8") as file:
                file.write(redact(str(error)))
            raise ValueError(f"{str(error).strip().splitlines()[-1]}; see {log}") from None
        except OutOfMemoryError:
            if not asked:
                deaths.add("a node ran out of memory: let resources.gigabytes say what a trial needs")
            return "died"
        except RayError as error:
            if not asked:
                deaths.add(_line(error))
            return "died"
        if told["did"] == "failed":
            raise ValueError(told["line"])
        if told["did"] == "died" and not asked:
            deaths.add(told["line"])
        return str(told["did"])

    @cached_property
    def needs(self) -> dict[str, float]:
        """What every task asks Ray for, in the words of a study file; decided once for a launch."""
        wanted = self.resources
        gpus = wanted.gpus
        if gpus is None:
            gpus = 1.0 if any(_has(node)["gpus"] for node in _nodes()) else 0.0
        needs = {"cpus": wanted.cpus or 1.0, "gpus": gpus, "gigabytes": wanted.gigabytes or 0.0}
        return {name: amount for name, amount in needs.items() if amount}

    def _room(self) -> int:
        """Tasks for which the nodes that are alive have room."""
        return sum(_fit(_has(node), self.needs) for node in _nodes())

    def _check_room(self) -> None:
        """Refuse what no node has; but a cluster's autoscaler may look at a given number of tasks.

        Ray itself would wait without a word.
        """
        if self._room():
            return
        nodes = [_has(node) for node in _nodes()]
        largest = {name: max((node[name] for node in nodes), default=0.0) for name in self.needs}
        lacking = [
            f"resources.{name}: a trial needs {amount:g}, and the largest node has {largest[name]:g}"
            for name, amount in self.needs.items()
            if largest[name] < amount
        ]
        together = ", ".join(f"{name} {amount:g}" for name, amount in self.needs.items())
        found = [*lacking, f"resources: a trial needs {together}, and no node has all of it"][0]
        if self.most is None or not self.grows:
            raise ValueError(f"{found}: ask for less, or let a node that has it join first")
        with log_of(self.folder, 0).open("a", encoding="utf-8") as log:
            log.write(f"{WARNING}{found}: waiting for a node to join that has it\n")

    def _check_storage(self) -> None:
        """Refuse several machines where the storage serves one only."""
        hosts = {node["NodeManagerHostname"] for node in _nodes()}
        if len(hosts) > 1 and where(self.ledger.storage).startswith("sqlite"):
            raise ValueError(
                f"storage: SQLite serves one machine, and the cluster has {len(hosts)}: "
                "give a database server's URL"
            )


def _nodes() -> list[dict[str, Any]]:
    """The nodes that are alive, as Ray describes them."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def _has(node: Mapping[str, Any]) -> dict[str, float]:
    """What a node has for tasks, in the words of a study file."""
    held = node["Resources"]
    return {
        "cpus": held.get("CPU", 0.0),
        "gpus": held.get("GPU", 0.0),
        "gigabytes": held.get("memory", 0.0) / 1e9,
    }


def _fit(has: Mapping[str, float], needs: Mapping[str, float]) -> int:
    """How many tasks with these needs a node has room for; none is divided between two GPUs."""
    return min(
        int(has[name]) * int(1 / amount) if name == "gpus" else int(has[name] / amount)
        for name, amount in needs.items()
    )


def _line(error: BaseException) -> str:
    """The first line of what Ray says."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
