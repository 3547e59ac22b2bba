"""A simulated cluster: execute jobs whose costs are known, on a simulated clock.

Nothing trains and nothing sleeps. Jobs take locks and wait for each other as real ones do: for a run that
another job trains, and for a prefix that another job trains towards. A set of keys replaces the prefix cache.

Each job is a generator (:data:`Walk`) that yields when it trains, waits or reports an evaluation. The
executor resumes the generators in the order of simulated time.
"""

from __future__ import annotations

import heapq
from abc import abstractmethod
from collections import Counter, defaultdict, deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from nasgrow.executors.base import Evaluated, Event, Executor, Finished, Job, RunOutcome, TrialKey
from nasgrow.schedulers.base import Decision
from nasgrow.study.costs import Trained
from nasgrow.study.table import ForkPoint, RunRow
from nasgrow.study.trials import Status

Walk = Generator[float | str | Evaluated, Decision | None, Finished]
"""A simulated job. It yields seconds to train, the name of a lock to wait for, or an evaluation to report.

After an evaluation the executor sends the scheduler's decision. The generator returns the job's last event.
"""


class _InterruptedError(Exception):
    """Thrown into the generator of a job to stop it."""


@dataclass
class SimulatedCache:
    """The runs and prefixes that the simulated machines have trained so far.

    Attributes:
        share: Whether prefixes are cached for other runs; if not, a state serves only the run that
            saved it.
        trained: The finished runs and cached prefixes on disk; None if there are none.
        keys: The keys of the prefixes that were cached in the simulation.
        ended: The identities of the runs that have ended.
        begun: The charged FLOPs at which the state of each unfinished run was saved, by identity.
    """

    share: bool = True
    trained: Trained | None = None
    keys: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    begun: dict[str, int] = field(default_factory=dict)

    def holds(self, key: str) -> bool:
        """Return whether a prefix is cached."""
        return key in self.keys or (self.trained is not None and self.trained.holds(key))

    def has_ended(self, identity: str) -> bool:
        """Return whether a run has ended, so that its result is known."""
        return identity in self.ended or (self.trained is not None and self.trained.ended(identity))

    def done(self, row: RunRow) -> int:
        """Return the FLOPs of a run up to its latest saved or cached state: they need no more training."""
        if self.has_ended(row.identity):
            return row.charged
        for place in reversed(row.places):
            if place.key is not None and self.holds(place.key):
                return max(self.begun.get(row.identity, 0), place.flops)
        return self.begun.get(row.identity, 0)

    def keep(self, place: ForkPoint) -> None:
        """Cache the prefix that ends at a place, if prefixes are shared."""
        if self.share and place.key is not None:
            self.keys.add(place.key)


class SimulatedExecutor(Executor):
    """Executes jobs on a simulated clock. Outcomes of runs have no test loss and 0 tokens.

    Args:
        slots: How many jobs it executes at once.
        cache: What is trained already.
        noise: Each run's time, as :meth:`duration` returns it, is multiplied by a random log-normal
            factor. This is the standard deviation of the factor's logarithm; 0 for no noise.
        seed: The random seed of that noise.

    Attributes:
        now: Simulated seconds since the start.
        trained: Seconds that slots trained, added up over slots.
        waited: Seconds that slots waited for runs or prefixes of other jobs, added up over slots.
        executed: FLOPs executed.
    """

    def __init__(self, slots: int, cache: SimulatedCache, noise: float = 0.0, seed: int = 0) -> None:
        self._slots, self.cache = slots, cache
        self._noise, self._random = noise, Random(seed)
        self.now = self.trained = self.waited = 0.0
        self.executed = 0
        self._executed: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._walks: dict[TrialKey, Walk] = {}
        self._ready: deque[tuple[TrialKey, Decision | None]] = deque()
        self._training: list[tuple[float, int, TrialKey]] = []
        self._submitted = 0
        self._held: set[str] = set()
        self._waiting: dict[str, list[tuple[float, TrialKey]]] = {}
        self._events: list[Event] = []

    @abstractmethod
    def rows(self, job: Job) -> Sequence[RunRow]:
        """Return the runs of a job, with their costs and losses."""

    @abstractmethod
    def duration(self, row: RunRow, begin: int, end: int) -> float:
        """Return the seconds that a run trains between two places, given by their charged FLOPs."""

    @property
    def slots(self) -> int:
        """How many jobs can be executed at once."""
        return self._slots

    @property
    def utilisation(self) -> float:
        """The share of their time that the slots trained; 0 before the clock has advanced."""
        return self.trained / (self._slots * self.now) if self.now else 0.0

    def submit(self, job: Job) -> None:
        """Start a job."""
        self._walks[job.trial] = self._walk(job)
        self._ready.append((job.trial, None))

    def reply(self, trial: TrialKey, decision: Decision) -> None:
        """Send the decision on an evaluation to a job."""
        if trial in self._walks:
            self._ready.append((trial, decision))

    def events(self, timeout: float) -> Sequence[Event]:
        """Return the next event, and advance the simulated clock to it; nothing sleeps.

        Return nothing if no job can continue: none is running, or all wait for replies.
        """
        while not self._events and (self._ready or self._training):
            if not self._ready:
                self.now, _, trial = heapq.heappop(self._training)
                self._ready.append((trial, None))
            self._advance(*self._ready.popleft())
        found, self._events = self._events, []
        return found

    def stop(self) -> None:
        """End all jobs as interrupted."""
        self._ready.clear()
        self._training.clear()
        self._waiting.clear()
        for trial, walk in list(self._walks.items()):
            try:
                walk.throw(_InterruptedError)
            except StopIteration as ended:
                self._events.append(ended.value)
            except _InterruptedError:  # the job had not begun
                self._events.append(Finished(trial, "interrupted", ()))
        self._ready.clear()
        self._walks.clear()

    def close(self) -> None:
        """Drop all jobs and events."""
        self.stop()
        self._events.clear()

    def _advance(self, trial: TrialKey, decision: Decision | None) -> None:
        """Resume the generator of a job, and handle what it yields or returns."""
        try:
            doing = self._walks[trial].send(decision)
        except StopIteration as ended:
            del self._walks[trial]
            self._events.append(ended.value)
            return
        if isinstance(doing, Evaluated):
            self._events.append(doing)
        elif isinstance(doing, str):
            self._waiting.setdefault(doing, []).append((self.now, trial))
        else:
            self._submitted += 1  # orders jobs that end at the same time
            heapq.heappush(self._training, (self.now + doing, self._submitted, trial))

    def _walk(self, job: Job) -> Walk:
        """Execute the runs of a job, one after the other."""
        rows, outcomes = self.rows(job), list[RunOutcome]()
        status: Status | Literal["interrupted"] = "finished"
        for index, row in enumerate(rows):
            try:
                paused = yield from self._run(job, row, decides=index == 0)
                status = "diverged" if row.loss is None else "finished"
                if paused is not None:
                    status = "paused"
            except _InterruptedError:
                paused, status = self.cache.done(row), "interrupted"
            outcomes.append(
                RunOutcome(
                    identity=row.identity,
                    seed=row.seed,
                    loss=row.loss if status == "finished" else None,
                    test=None,
                    charged=row.charged if paused is None else paused,
                    executed=self._executed[row.identity],
                    seconds=self._seconds[row.identity],
                    tokens=0,
                )
            )
            if status != "finished":
                break
        return Finished(job.trial, status, tuple(outcomes), _evaluations(rows[0], outcomes[0].charged))

    def _run(
        self, job: Job, row: RunRow, *, decides: bool
    ) -> Generator[float | str | Evaluated, Decision | None, int | None]:
        """Execute the rest of a run under its lock.

        Returns:
            The FLOPs charged until the pause; None if the run has ended.
        """
        name = f"run {row.identity}"
        while name in self._held:
            yield name
        if self.cache.has_ended(row.identity):
            return None
        self._held.add(name)
        try:
            return (yield from self._train(job, row, decides=decides))
        finally:
            self._release(name)

    def _train(
        self, job: Job, row: RunRow, *, decides: bool
    ) -> Generator[float | str | Evaluated, Decision | None, int | None]:
        """Execute a run from cached prefix to cached prefix.

        Where another job trains towards the next prefix, this one waits for it.

        Returns:
            The FLOPs charged until the pause; None if the run has ended.
        """
        slowness = self._random.lognormvariate(0.0, self._noise) if self._noise else 1.0
        ahead = deque(row.places)
        while True:
            # Skip the cached part: report its evaluations, which need no training.
            at = self.cache.done(row)
            while ahead and ahead[0].flops <= at:
                place = ahead.popleft()
                if decides and (yield from self._pauses(job, place)):
                    self.cache.begun[row.identity] = at
                    self.cache.keep(place)
                    return place.flops

            # Lock the next prefix that will be cached, unless another job trains towards it.
            kept = (place for place in ahead if place.kept and place.key is not None and self.cache.share)
            target = next(kept, None)
            lock = None if target is None else target.key
            if lock is not None and lock in self._held:
                yield lock
                continue
            if lock is not None:
                self._held.add(lock)

            # Train up to that prefix, or to the end.
            try:
                while ahead and (target is None or ahead[0].flops <= target.flops):
                    place = ahead.popleft()
                    yield from self._execute(row, at, place.flops, slowness)
                    at = place.flops
                    if decides and (yield from self._pauses(job, place)):
                        self.cache.keep(place)
                        return place.flops
                if target is not None:
                    self.cache.keep(target)
                    continue
                yield from self._execute(row, at, row.charged, slowness)
                self.cache.ended.add(row.identity)
                return None
            finally:
                if lock is not None:
                    self._release(lock)

    def _execute(self, row: RunRow, begin: int, end: int, slowness: float) -> Generator[float, None, None]:
        """Yield the seconds that a run trains between two places; then add up its cost.

        The places are given by charged FLOPs. ``slowness`` multiplies the seconds. An interruption
        before the end costs nothing.
        """
        seconds = slowness * self.duration(row, begin, end)
        yield seconds
        self.trained += seconds
        self.executed += end - begin
        self._executed[row.identity] += end - begin
        self._seconds[row.identity] += seconds
        self.cache.begun[row.identity] = end

    def _pauses(self, job: Job, place: ForkPoint) -> Generator[Evaluated, Decision | None, bool]:
        """Report the evaluation at a place, if there is one; return whether the trial pauses there."""
        if place.fraction is None or place.validation is None:
            return False
        return (yield Evaluated(job.trial, place.fraction, place.validation)) is Decision.PAUSE

    def _release(self, name: str) -> None:
        self._held.discard(name)
        for since, trial in self._waiting.pop(name, ()):
            self.waited += self.now - since
            self._ready.append((trial, None))


def _evaluations(row: RunRow, charged: int) -> tuple[tuple[float, float], ...]:
    """Return the evaluations of a run up to a number of charged FLOPs: fraction of the budget, and loss."""
    places = (place for place in row.places if place.flops <= charged)
    known = ((place.fraction, place.validation) for place in places)
    return tuple((at, loss) for at, loss in known if at is not None and loss is not None)
