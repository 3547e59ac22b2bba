"""Share prefixes: a run continues from the latest cached state, and caches states that others may need.

Between two forks a run holds the lock of the state that it trains towards, and no other lock. Another run
that needs the same state waits for it, and continues from it. If the holder dies, the system releases the
lock, and the next run trains that part. If the holder sends no heartbeat, other runs train that part without
sharing it.
"""

from __future__ import annotations

import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from filelock import BaseFileLock
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from nasgrow.errors import UserError
from nasgrow.training.atomic_files import write_plainly
from nasgrow.training.budget_steps import evaluation_steps
from nasgrow.training.checkpoint import pack, unpack
from nasgrow.training.machine import numerics
from nasgrow.training.prefixes.keys import Fork, forks
from nasgrow.training.prefixes.store import StateStore
from nasgrow.training.records import METRICS, append_record, is_record
from nasgrow.training.run import Run
from nasgrow.training.state import TrainState

LOCK_POLL_SECONDS = 0.05
"""The time between two attempts to get a lock that another process holds."""

STALE_SECONDS = 120.0
"""Seconds without a heartbeat after which the holder of a lock is considered suspended."""

PULSE = 1.0
"""Seconds between two heartbeats of a holder."""

TENSORS, REST = "state.safetensors", "state.json"
"""The files of a stored state. A third one, ``METRICS``, holds the records of its prefix."""


_DAMAGED = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    SafetensorError,
)
"""The errors that reading a damaged state may raise; lack of device memory raises others."""


class PrefixCache:
    """The store of states, and the policy that decides which states are worth storing.

    A state is worth storing if writing it is fast compared with training it. Both times are measured.

    Attributes:
        store: The store.
        times: The fractions of the budget at which events may happen, so that runs may differ from there on.
        share: Writing a state may take at most this share of the time to train it from the state before.
    """

    def __init__(self, store: StateStore, times: tuple[float, ...], share: float) -> None:
        self.store, self.times, self.share = store, times, share
        self._writing: deque[float] = deque(maxlen=5)
        self._pace: float | None = None

    def worth(self, seconds: float, flops: int = 0) -> bool:
        """Return whether storing a state is cheap compared with training it.

        It is assumed to be cheap until both times have been measured.

        Args:
            seconds: The seconds of training since the state before.
            flops: The FLOPs of training that are still needed to reach the state.
        """
        if not self._writing or (flops and self._pace is None):
            return True  # unknown yet, and soon to be measured
        return median(self._writing) <= self.share * (seconds + flops * (self._pace or 0.0))

    def saw(self, *, seconds: float, flops: int) -> None:
        """Record how many seconds some FLOPs of training took."""
        if flops > 0:
            self._pace = seconds / flops

    def wrote(self, seconds: float) -> None:
        """Record how many seconds writing a state took."""
        self._writing.append(seconds)


class SharedPrefix:
    """Leads one run from fork to fork: loads cached states, and stores new ones.

    Args:
        cache: The prefix cache.
        run: The run.
        folder: The run's folder.
        device: The device of loaded states.
        warn: Called with each warning: damaged states, and a store that cannot be used.
        stop: Called while waiting for another process; returns whether to stop waiting.
    """

    def __init__(
        self,
        cache: PrefixCache,
        run: Run,
        folder: Path,
        device: torch.device,
        warn: Callable[[str], None],
        stop: Callable[[], bool],
    ) -> None:
        self._cache, self._store = cache, cache.store
        self._run, self._stages, self._folder, self._device = run, run.stages, folder, device
        self._warn, self._stop = warn, stop
        self._forks = forks(run, cache.times, numerics(device))
        self._target: Fork | None = None
        self._lock: BaseFileLock | None = None
        self._asleep: set[str] = set()
        self._trained = 0.0
        self._since: tuple[float, int] | None = None
        self._beat = time.monotonic()

    def due(self, state: TrainState) -> bool:
        """Return whether the run has reached the fork that it trains towards; False without one.

        The training loop calls this at every step. It also sends a heartbeat to the runs that wait.
        """
        if self._target is not None and time.monotonic() - self._beat > PULSE:
            self._store.beat(self._target.key)
            self._beat = time.monotonic()
        return self._target is not None and state.step == self._target.step

    def advance(
        self,
        state: TrainState,
        seconds: Callable[[], float],
        evaluated: Callable[[float, float], None],
    ) -> TrainState | None:
        """Store the state if it is due, and load the latest stored state that is ahead of the run.

        The records of the loaded state are added to those of the run, and ``evaluated`` is called
        with their evaluations. On return, the run holds the lock of the next state to store, if
        there is one. If another process trains towards that state, wait for it. If the store cannot
        be used, warn and return ``state``.

        Args:
            state: The run's state.
            seconds: Returns the wall time of the run so far.
            evaluated: Called with each evaluation, as in the training loop; it may raise the same errors.

        Returns:
            The state from which to continue: the loaded one, or ``state`` if none is ahead; None if
            the process was asked to stop while it waited.
        """
        self._pause(state)
        try:
            if self._target is not None and self.due(state) and self._cache.worth(self._trained):
                self._put(self._target, state)
            self.release()
            going_on = self._follow(state, seconds, evaluated)
        except OSError as error:
            self.release()
            self._warn(f"{self._store.root}: cannot be used: {(error.strerror or str(error)).lower()}")
            going_on = state
        if going_on is not None:
            self._since = time.perf_counter(), self._charged(going_on)
        return going_on

    def keep(self, state: TrainState) -> bool:
        """Cache the state of a run that pauses, so that it can resume; return whether it is cached.

        It is not if the run is not at a fork, if another process holds the lock and has not stored
        the state yet, or if the store cannot be written.
        """
        fork = next((fork for fork in self._forks if fork.step == state.step), None)
        if fork is None or self._store.holds(fork.key):
            return fork is not None
        try:
            if self._lock is None or fork != self._target:
                self.release()
                self._lock = self._store.try_lock(fork.key)
            if self._lock is not None:
                self._put(fork, state)
        except OSError:
            return False
        return self._store.holds(fork.key)

    def release(self) -> None:
        """Release the lock of the target state, so that other runs may train towards it."""
        if self._lock is not None:
            self._lock.release()
        self._lock = self._target = None

    def _pause(self, state: TrainState) -> None:
        """Add up the time of training since the last call of :meth:`advance`, and record its pace."""
        if self._since is not None:
            seconds, flops = time.perf_counter() - self._since[0], self._charged(state) - self._since[1]
            self._trained += seconds
            self._cache.saw(seconds=seconds, flops=flops)
            self._since = None

    def _follow(
        self,
        state: TrainState,
        seconds: Callable[[], float],
        evaluated: Callable[[float, float], None],
    ) -> TrainState | None:
        sign, heard = 0.0, time.monotonic()
        while True:
            ahead = [fork for fork in self._forks if fork.step > state.step]
            latest = self._store.latest([fork.key for fork in ahead])
            target = self._next(state, ahead, latest)
            if target is not None:
                self._lock = self._store.try_lock(target.key)
                if self._lock is None:
                    if self._stop():
                        return None
                    if (last := self._store.last_beat(target.key)) != sign:
                        sign, heard = last, time.monotonic()
                    elif time.monotonic() - heard > STALE_SECONDS:
                        self._asleep.add(target.key)
                    time.sleep(LOCK_POLL_SECONDS)
                    continue
                if self._store.holds(target.key):
                    self.release()
                    continue
            self._target = target
            if latest is None:
                return state
            found = self._take(ahead[latest], state, seconds, evaluated)
            if found is not None:
                self._trained = 0.0
                return found
            if self._store.holds(ahead[latest].key):
                raise OSError("a damaged state cannot be removed")
            self.release()

    def _next(self, state: TrainState, ahead: list[Fork], latest: int | None) -> Fork | None:
        """Return the first fork after the latest stored one that is worth storing; None if there is none.

        Forks whose locks suspended processes hold are skipped. The caller takes the fork's lock.

        Args:
            state: The run's state.
            ahead: The forks after the state's step.
            latest: The index in ``ahead`` of the latest stored fork; None if none is stored.
        """
        trained, charged = self._trained, self._charged(state)
        if latest is not None:
            trained, charged, ahead = 0.0, ahead[latest].charged, ahead[latest + 1 :]
        for fork in ahead:
            worthy = fork.kept and self._cache.worth(trained, fork.charged - charged)
            if worthy and fork.key not in self._asleep:
                return fork
        return None

    def _take(
        self,
        fork: Fork,
        state: TrainState,
        seconds: Callable[[], float],
        evaluated: Callable[[float, float], None],
    ) -> TrainState | None:
        """Load a stored state and add its records to the run; None if it is damaged or no longer there."""
        folder = self._store.take(fork.key, self._warn)
        if folder is None:
            return None
        try:
            found, records = self._read(fork, folder)
        except FileNotFoundError:
            self._store.drop(fork.key)  # evicted while it was read
            return None
        except _DAMAGED as error:
            reason = str(error).split("\n")[0][:200] if isinstance(error, UserError) else "it is damaged"
            self._warn(f"{folder}: passed over and dropped: {reason}")
            self._store.drop(fork.key)
            return None
        charged = self._charged(state)
        path, known = self._folder / METRICS, state.records
        pending: list[dict[str, Any]] = []
        for record in records[_lines(path, known) :]:
            spent = {"executed": state.executed(charged), "seconds": seconds()}
            pending.append({**record, **spent})
            if pending[-1]["kind"] == "evaluation":
                known, told = append_record(path, known, *pending), pending[-1]
                pending = []
                loss = told["validation"]
                evaluated(told["aligned"], math.nan if loss is None else loss)
        found.records = append_record(path, known, *pending)
        found.lost, found.reused = state.lost, state.reused + fork.charged - charged
        return found

    def _read(self, fork: Fork, folder: Path) -> tuple[TrainState, list[dict[str, Any]]]:
        """Read and check the state of a fork in a folder, and the records of its prefix.

        Raises:
            Exception: One of ``_DAMAGED``, if this is not the state of this run at this fork.
        """
        lines = (folder / METRICS).read_text(encoding="utf-8").splitlines()
        meta = json.loads((folder / REST).read_text(encoding="utf-8"))
        tensors = load_file(folder / TENSORS, device=str(self._device))
        found = unpack(fork.key, tensors, meta, self._run, self._device)
        due = evaluation_steps(self._run)
        # The state of a run that was stopped right at the fork may lack the evaluation there.
        last = {max((step for step in due if step < end), default=-1) for end in (fork.step, fork.step + 1)}
        stage = next(place for place, stage in enumerate(self._stages) if fork.step <= stage.end)
        if (found.step, found.stage) != (fork.step, stage) or found.evaluated not in last:
            raise UserError(f"it is not of step {fork.step}")
        if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            raise UserError("it holds numbers that are not finite")
        records = [json.loads(line) for line in lines]
        if not all(map(is_record, records)):
            raise UserError(f"{METRICS} holds what is no record")
        told = {record["step"]: record["aligned"] for record in records if record["kind"] == "evaluation"}
        if told != {step: share for step, share in due.items() if step <= found.evaluated}:
            raise UserError(f"{METRICS} does not hold the evaluations of the run")
        return found, records

    def _put(self, fork: Fork, state: TrainState) -> None:
        began = time.perf_counter()
        before = [[other.key, other.charged] for other in self._forks if other.step < fork.step]
        about = {
            "shape": str(state.model.shape),
            "events": state.stage,
            "step": state.step,
            "charged": fork.charged,
            "fraction": fork.spent / self._run.budget,
            "seed": self._run.config.seed,
            "run": self._run.identity,
            "before": before,
        }

        def write(folder: Path) -> None:
            tensors, meta = pack(fork.key, state)
            write_plainly(folder / TENSORS, partial(save_file, tensors))
            (folder / REST).write_text(json.dumps(meta), encoding="utf-8")
            with (self._folder / METRICS).open("rb") as file:
                (folder / METRICS).write_bytes(file.read(state.records))

        try:
            self._store.put(fork.key, write, about)
        except SafetensorError as error:
            raise OSError(str(error)) from None
        self._cache.wrote(time.perf_counter() - began)
        self._trained = 0.0

    def _charged(self, state: TrainState) -> int:
        return self._stages[state.stage].charged(state.step)


def _lines(path: Path, known: int) -> int:
    """Return the number of complete lines in the first ``known`` bytes of a file."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        return file.read(known).count(b"\n")


def open_prefix_cache(folder: str, gigabytes: float, share: float, times: Sequence[float]) -> PrefixCache:
    """Open the prefix cache in a folder, after removing the remains of processes that died.

    Args:
        folder: The folder.
        gigabytes: The size of the cache beyond which the least valuable states are removed.
        share: Writing a state may take at most this share of the time to train it from the state before.
        times: The fractions of the budget at which states are cached.
    """
    store = StateStore(Path(folder), gigabytes * 1e9)
    store.sweep()
    return PrefixCache(store, tuple(times), share)


@contextmanager
def following(
    cache: PrefixCache | None,
    run: Run,
    folder: Path,
    device: torch.device,
    warn: Callable[[str], None],
    stop: Callable[[], bool],
) -> Iterator[SharedPrefix | None]:
    """Yield the :class:`SharedPrefix` of a run that trains in ``folder``; None without a cache.

    On leaving, the lock that it holds is released.
    """
    prefix = None if cache is None else SharedPrefix(cache, run, folder, device, warn, stop)
    try:
        yield prefix
    finally:
        if prefix is not None:
            prefix.release()
