"""The Ray executor: train jobs in Ray actors, on this machine or on the nodes of a cluster.

An actor trains one job at a time and streams its events to the driver. Only the driver knows the study, its
scheduler and its storage; actors share the study's folder with it. Nodes may join and leave. A job on a lost
node counts as died, and another actor resumes its trial from the checkpoint.
"""

from __future__ import annotations

import logging
import os
import queue
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from nasgrow.errors import UserError
from nasgrow.executors.base import (
    Died,
    Event,
    Executor,
    Failed,
    Finished,
    Job,
    TrialKey,
    event_from_json,
    event_to_json,
)
from nasgrow.executors.worker import Setup, Worker, failure
from nasgrow.redact import redact
from nasgrow.schedulers.base import Decision
from nasgrow.study.config import Resources

LOCAL_RAY = "local"
"""The address that starts a Ray cluster for this process, which ends with it."""

CONNECT_SECONDS = 10.0
"""Seconds within which a cluster must accept a connection."""

HTTP2_SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HTTP2_SETTINGS
"""The first bytes that an HTTP/2 client, and so a client of Ray, sends.

Both sides of a connection begin with a settings frame, which has type 4.
"""

TOKEN = secrets.token_hex(32)
"""The authentication token of a Ray that this process starts; one per process, because Ray reads it once."""

ENVIRONMENT = "NASGROW_"
"""The prefix of the environment variables that actors get too, except those of the storage."""


def connect(address: str | None) -> None:
    """Connect to the cluster at an address, or start Ray on this machine for this process alone.

    Any client of a Ray cluster can run code. So a Ray that is started here listens on loopback
    only, serves no dashboard, and requires a random token. ``RAY_AUTH_TOKEN`` may give another
    token, and ``RAY_AUTH_MODE``, if set, decides whether there is one. Ray reads some of these
    settings from environment variables, which are set for the whole process.

    Args:
        address: ``host:port``; ``auto`` for the cluster that ``RAY_ADDRESS`` names or that runs on
            this machine; None or ``local`` to start Ray.

    Raises:
        UserError: Ray is not installed or cannot be reached, or the address is of Ray's client
            (``ray://``). Or Ray is to start, but was imported before its token could be set.
    """
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or "auto"  # as Ray does
    if address is not None and address.startswith("ray://"):
        raise UserError(
            f"--address: {address!r} is Ray's client, whose files are not the cluster's: run the command on "
            "a machine of the cluster, with --address auto"
        )
    local = address in (None, LOCAL_RAY)
    settings = {"RAY_USAGE_STATS_ENABLED": "0"}
    if local:
        # This switch makes Ray listen on loopback only, as it does on other systems. Ray reads it at import.
        settings["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
        if "RAY_AUTH_MODE" not in os.environ:
            if "ray" in sys.modules:
                raise UserError(
                    "--engine ray: Ray was imported before a token could be set, which it reads at import: "
                    "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN before Python starts"
                )
            token = os.environ.get("RAY_AUTH_TOKEN") or TOKEN
            settings |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    os.environ |= settings
    try:
        import ray
    except ImportError:
        raise UserError("--engine ray: Ray is not installed: pip install 'nasgrow[ray]'") from None
    try:
        if not local and address != "auto":
            _reach(str(address))
        ray.init(
            address or LOCAL_RAY,
            include_dashboard=False if local else None,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise UserError(f"--address: {address or LOCAL_RAY!r}: {_line(error)}") from None


def _reach(address: str) -> None:
    """Check that Ray listens at an address. Ray itself would retry a dead address for minutes.

    Raises:
        OSError: The address is not ``host:port``, nothing listens there, or the first frame of the
            server is not an HTTP/2 settings frame. With TLS the frame is not checked.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS) as there:
            if os.environ.get("RAY_USE_TLS") == "1":
                return
            there.sendall(PREFACE)
            answer = there.recv(len(HTTP2_SETTINGS))
    except ValueError:
        raise OSError(f"must be auto or host:port, not {address!r}") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OSError(f"no Ray can be reached at {host}:{port}: {reason}") from None
    if answer[3:4] != HTTP2_SETTINGS[3:4]:
        raise OSError(f"no Ray can be reached at {host}:{port}: something else listens there")


class TrainingActor:
    """A worker as a Ray actor. While :meth:`train` runs, Ray may call :meth:`reply` and :meth:`stop`.

    Args:
        setup: The settings that its jobs share, as plain data.
        home: The folder that relative paths of the study's data refer to.
        environment: Environment variables to set.
    """

    def __init__(self, setup: Mapping[str, Any], home: str, environment: Mapping[str, str]) -> None:
        os.environ |= environment
        os.chdir(home)
        self._setup = Setup(**setup)
        self._stopped = threading.Event()
        self._events: queue.Queue[Event] = queue.Queue()
        self._replies: queue.Queue[Decision | None] = queue.Queue()
        self._worker: Worker | None = None

    def train(self, job: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Train a job and yield its events, up to the one that ends it."""
        threading.Thread(target=self._train, args=(Job.from_json(job),), daemon=True).start()
        while True:
            event = self._events.get()
            yield event_to_json(event)
            if isinstance(event, Finished | Died | Failed):
                return

    def reply(self, decision: str) -> None:
        """Pass the driver's decision to the training thread."""
        self._replies.put(Decision(decision))

    def stop(self) -> None:
        """Make the worker save its job and end it."""
        self._stopped.set()
        self._replies.put(None)

    def _train(self, job: Job) -> None:
        try:
            if self._worker is None:
                self._worker = Worker(self._setup, self._events.put, self._stopped.is_set)
            self._events.put(self._worker.train(job, self._replies.get))
        except Exception as error:
            self._events.put(failure(error))


@dataclass
class _Slot:
    """An actor, the trial that it trains, and the stream of its events.

    ``begun`` is True once the actor has reported an event. Before that, it may still wait for resources of a
    node.
    """

    actor: Any
    trial: TrialKey | None = None
    stream: Any = None
    begun: bool = False


class RayExecutor(Executor):
    """Trains jobs on Ray.

    Args:
        setup: The settings of the workers.
        resources: The resources of a node that one trial needs.
        address: The cluster's address, as for :func:`connect`; None starts Ray on this machine.
        most: The most jobs at once; None for as many as fit on the nodes that are alive.
        warn: Called with a warning if no node has the resources yet.

    Raises:
        UserError: Ray cannot be used, or no node has the resources of a trial. If ``most`` is given
            for a cluster, the latter is only a warning, because a node may still join.
    """

    def __init__(
        self,
        setup: Setup,
        resources: Resources,
        address: str | None,
        most: int | None,
        warn: Callable[[str], None] = lambda message: None,
    ) -> None:
        connect(address)
        self._setup, self._resources, self._most, self._warn = setup, resources, most, warn
        self._grows = address not in (None, LOCAL_RAY)
        self._slots: list[_Slot] = []
        self._dropped: list[Event] = []
        self._check_room()

    @property
    def slots(self) -> int:
        """How many jobs can be trained at once; changes as nodes join and leave, unless limited."""
        return self._most or self._room()

    def submit(self, job: Job) -> None:
        """Send a job to an idle actor, or to a new one."""
        slot = next((slot for slot in self._slots if slot.trial is None), None) or self._start()
        slot.trial = job.trial
        slot.stream = slot.actor.train.remote(job.to_json())

    def reply(self, trial: TrialKey, decision: Decision) -> None:
        """Send a decision to the actor that trains a trial."""
        for slot in self._slots:
            if slot.trial == trial:
                slot.actor.reply.remote(decision.value)

    def events(self, timeout: float) -> Sequence[Event]:
        """Return the next event of one actor that trains a job.

        Wait up to ``timeout`` seconds if there is none, also while no job runs. An actor that died
        gives a ``Died`` event and is removed. Jobs that :meth:`stop` dropped come first, as
        interrupted ``Finished`` events. Idle actors are ended if others wait for their resources.
        """
        import ray

        dropped, self._dropped = self._dropped, []
        streams = {slot.stream: slot for slot in self._slots if slot.stream is not None}
        if dropped or not streams:
            time.sleep(0.0 if dropped else timeout)  # a node may join
            return dropped
        self._make_room()
        ready, _ = ray.wait(list(streams), timeout=timeout, fetch_local=False)
        return [event for stream in ready for event in self._next(streams[stream])]

    def _make_room(self) -> None:
        """End idle actors if others wait for resources of a node: idle actors hold theirs."""
        import ray

        if all(slot.begun for slot in self._slots):
            return
        for slot in [slot for slot in self._slots if slot.trial is None]:
            self._slots.remove(slot)
            ray.kill(slot.actor)

    def _next(self, slot: _Slot) -> list[Event]:
        """Return the next event of an actor; nothing if its stream has ended."""
        import ray
        from ray.exceptions import OutOfMemoryError, RayError

        assert slot.trial is not None
        try:
            event = event_from_json(ray.get(next(slot.stream)))
        except StopIteration:
            slot.trial = slot.stream = None
            return []
        except OutOfMemoryError:
            reason = "a node ran out of memory: set resources.gigabytes to what a trial needs"
            return self._lost(slot, reason)
        except RayError as error:
            return self._lost(slot, _line(error))
        slot.begun = True
        if isinstance(event, Finished | Failed):
            slot.trial = slot.stream = None
        elif isinstance(event, Died):
            self._lost(slot, event.reason)
        return [event]

    def _lost(self, slot: _Slot, reason: str) -> list[Event]:
        """Remove an actor that has died, and return the event of its death."""
        import ray

        self._slots.remove(slot)
        ray.kill(slot.actor)
        assert slot.trial is not None
        return [Died(slot.trial, reason)]

    def stop(self) -> None:
        """Ask all actors to save and end their jobs.

        Actors that have not reported an event yet are killed; their jobs end as ``interrupted``.
        """
        import ray

        for slot in list(self._slots):
            if slot.trial is None or slot.begun:
                slot.actor.stop.remote()
                continue
            self._slots.remove(slot)
            ray.kill(slot.actor)
            self._dropped.append(Finished(slot.trial, "interrupted", (), ()))

    def close(self) -> None:
        """Kill all actors, without waiting for them to save, and disconnect from Ray."""
        import ray

        for slot in self._slots:
            ray.kill(slot.actor)
        ray.shutdown()

    def _start(self) -> _Slot:
        import ray

        needs = self.needs
        options: dict[str, Any] = {
            "num_cpus": needs["cpus"],
            "num_gpus": needs.get("gpus", 0),
            "max_concurrency": 3,  # train, reply and stop may run at the same time
            "max_restarts": 0,  # the driver resubmits jobs of dead actors
        }
        options |= {"memory": needs["gigabytes"] * 1e9} if "gigabytes" in needs else {}
        environment = {
            name: value
            for name, value in os.environ.items()
            if name.startswith(ENVIRONMENT) and not name.startswith(f"{ENVIRONMENT}STORAGE")
        }
        setup = replace(self._setup, gpus=1 if "gpus" in needs else 0)
        actor = ray.remote(**options)(TrainingActor).remote(asdict(setup), str(Path.cwd()), environment)
        slot = _Slot(actor)
        self._slots.append(slot)
        return slot

    @cached_property
    def needs(self) -> dict[str, float]:
        """The resources that each actor asks Ray for, by their names in a study file.

        Where the study gives none, these are one CPU, and one GPU if any node has one when this is
        first read. Resources of which an actor needs 0 are left out.
        """
        wanted = self._resources
        gpus = wanted.gpus
        if gpus is None:
            gpus = 1.0 if any(_has(node)["gpus"] for node in _nodes()) else 0.0
        needs = {"cpus": wanted.cpus or 1.0, "gpus": gpus, "gigabytes": wanted.gigabytes or 0.0}
        return {name: amount for name, amount in needs.items() if amount}

    def _room(self) -> int:
        """Return how many jobs fit on the nodes that are alive."""
        return sum(_fit(_has(node), self.needs) for node in _nodes())

    def _check_room(self) -> None:
        """Raise ``UserError`` if no node has the resources of a trial: Ray would wait for them silently.

        If the cluster may grow and the number of workers is given, only warn: an autoscaler may add a node.
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
        if self._most is None or not self._grows:
            raise UserError(f"{found}: ask for less, or let a node that has it join first")
        self._warn(f"{found}: waiting for a node to join that has it")


def _nodes() -> list[dict[str, Any]]:
    """Return the nodes that are alive, as Ray describes them."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def _has(node: Mapping[str, Any]) -> dict[str, float]:
    """Return the resources of a node, by their names in a study file."""
    held = node["Resources"]
    return {
        "cpus": held.get("CPU", 0.0),
        "gpus": held.get("GPU", 0.0),
        "gigabytes": held.get("memory", 0.0) / 1e9,
    }


def _fit(has: Mapping[str, float], needs: Mapping[str, float]) -> int:
    """Return how many actors with these needs fit on a node; an actor is never split between two GPUs."""
    return min(
        int(has[name]) * int(1 / amount) if name == "gpus" else int(has[name] / amount)
        for name, amount in needs.items()
    )


def _line(error: BaseException) -> str:
    """Return the first line of Ray's error message, without passwords."""
    lines = str(error).strip().splitlines()
    return redact(lines[0]) if lines else type(error).__name__
