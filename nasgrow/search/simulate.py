"""A search of recorded runs by many workers at once, in simulated time.

What decides is the live search's own, as in a replay: the ledger, the sampler, the pruner, the prices.
Workers hold locks and wait for each other as live ones do: for a run that another trains, and for the state
that another trains towards. Every part of a run takes the seconds that it took when it was recorded. Of a
table that does not tell, time is compute: a worker executes the budget of one run in a time of 1.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from statistics import fmean

from nasgrow.search.asking import Asking
from nasgrow.search.config import Pruner, Sampler
from nasgrow.search.ledger import Claim, Ledger
from nasgrow.search.prices import Prices
from nasgrow.search.replay import Simulated, before_it_went_on, close, in_memory
from nasgrow.search.storage import quiet
from nasgrow.search.table import Row, Table
from nasgrow.training.loop import Stopped

Doing = Generator[float | str | None, None, None]
"""A worker: it trains for a time, waits for a lock of a name, or (None) for any trial to end."""


@dataclass(frozen=True)
class Simulation:
    """What a cluster did.

    Attributes:
        workers: How many it had.
        time: From the first claim to the end of the last trial: seconds, if the table tells them.
        trained: The time that workers trained, added up.
        waited: The time that they waited for what others trained, added up.
        executed: FLOPs.
        ended: When each trial ended, in order, and its loss; None where it was given up or diverged.
    """

    workers: int
    time: float
    trained: float
    waited: float
    executed: int
    ended: tuple[tuple[float, float | None], ...]

    @property
    def utilisation(self) -> float:
        """The share of all workers' time in which they trained."""
        return self.trained / (self.workers * self.time)

    def time_to(self, loss: float) -> float | None:
        """When a trial with a loss as low as this ended; None if none did."""
        return next((when for when, found in self.ended if found is not None and found <= loss), None)


def simulate(
    table: Table,
    workers: int,
    seed: int,
    *,
    sampler: Sampler,
    pruner: Pruner,
    trials: int,
    total_flops: float | None = None,
    share: bool = True,
    noise: float = 0.0,
) -> Simulation:
    """Search a table with so many workers.

    Args:
        table: The recorded runs.
        workers: Of equal speed.
        seed: Searches differ in it.
        sampler: How the next point is chosen.
        pruner: When a trial is given up.
        trials: How many to try.
        total_flops: No further trial is begun once this much was executed.
        share: Whether runs share trunks.
        noise: The standard deviation of the logarithm of what each run's duration is multiplied by.
    """
    with quiet():
        ledger = in_memory(
            table, seed, sampler=sampler, pruner=pruner, trials=trials, total_flops=total_flops
        )
        return _Cluster(table, ledger, Simulated(share), random.Random(seed), noise).run(workers)


@dataclass
class _Cluster:
    table: Table
    ledger: Ledger
    states: Simulated
    random: random.Random
    noise: float
    now: float = 0.0
    trained: float = 0.0
    waited: float = 0.0
    executed: int = 0
    held: set[str] = field(default_factory=set)
    ready: deque[Doing] = field(default_factory=deque)
    idle: list[Doing] = field(default_factory=list)
    waiting: dict[str, list[tuple[float, Doing]]] = field(default_factory=dict)
    ended: list[tuple[float, float | None]] = field(default_factory=list)

    def run(self, workers: int) -> Simulation:
        """Let so many workers search."""
        seeds = self.ledger.study.config.seeds
        prices = Prices(self.ledger.study.space, lambda point: self.table.ways(point, seeds), self.states)
        self.ready.extend(self._worker(prices) for _ in range(workers))
        training: list[tuple[float, int, Doing]] = []
        begun = 0
        while self.ready or training:
            if not self.ready:
                self.now, _, worker = heapq.heappop(training)
                self.ready.append(worker)
            worker = self.ready.popleft()
            try:
                doing = next(worker)
            except StopIteration:
                continue
            if doing is None:
                self.idle.append(worker)
            elif isinstance(doing, str):
                self.waiting.setdefault(doing, []).append((self.now, worker))
            else:
                begun += 1  # decides between those that end at once
                self.trained += doing
                heapq.heappush(training, (self.now + doing, begun, worker))
        assert self.ledger.ended(("search",))
        return Simulation(workers, self.now, self.trained, self.waited, self.executed, tuple(self.ended))

    def _worker(self, prices: Prices) -> Doing:
        while not self.ledger.ended(("search",)):
            claim = self.ledger.claim(("search",), prices)
            if claim is None:
                yield None
                continue
            yield from self._trial(claim)
            if self.ledger.offers(("search",)) or self.ledger.ended(("search",)):
                self.ready.extend(self.idle)
                self.idle.clear()

    def _trial(self, claim: Claim) -> Doing:
        """What a worker does with a trial."""
        point, seeds = self.ledger.study.space.sample(claim.trial), self.ledger.study.config.seeds
        events = [event.at for event in point.schedule.events]
        losses: list[float] = []
        spent, status = 0, "finished"
        runs = zip(self.table.runs(point, seeds), self.table.ways(point, seeds), strict=True)
        for index, (row, way) in enumerate(runs):
            run = _Run(row, way.identity, Asking(claim, self.ledger, events, first=index == 0))
            yield from self._held(f"run {way.identity}", run)
            spent += run.executed
            if not run.whole or row.loss is None:
                status = "diverged" if run.whole else "pruned"
                break
            losses.append(row.loss)
        self.executed += spent
        loss = fmean(losses) if status == "finished" else None
        spent += before_it_went_on(claim, self.ledger).get("executed", 0)
        close(claim, self.ledger, loss, {"status": status, "executed": spent})
        self.ended.append((self.now, loss))

    def _held(self, name: str, run: _Run) -> Doing:
        """Train a run, which one worker does at a time."""
        while name in self.held:
            yield name
        self.held.add(name)
        try:
            if self.states.ended(run.identity):
                run.report()
            else:
                yield from self._train(run)
                self.states.whole.add(run.identity)
        except Stopped:
            run.whole = False
            self.states.begun[run.identity] = run.at
            if self.states.share and run.key is not None:
                self.states.states.add(run.key)
        finally:
            self._release(name)

    def _train(self, run: _Run) -> Doing:
        """Go from kept state to kept state, as a run follows its trunk."""
        slowness = self.random.lognormvariate(0.0, self.noise)
        run.go_to(self.states.begun.get(run.identity, 0))
        while True:
            stored = [place.flops for place in run.row.places if place.key in self.states.states]
            run.go_to(max(stored, default=0))
            ahead = [place for place in run.row.places if place.flops > run.at]
            kept = (place for place in ahead if place.kept and place.key and self.states.share)
            target = next(kept, None)
            if target is None:
                for flops in [place.flops for place in ahead] + [run.row.charged]:
                    yield slowness * self._time(run, flops)
                    run.go_to(flops)
                return
            assert target.key is not None
            if target.key in self.held:
                yield target.key
                continue
            self.held.add(target.key)
            try:
                for place in ahead[: ahead.index(target) + 1]:
                    yield slowness * self._time(run, place.flops)
                    run.go_to(place.flops)
                self.states.states.add(target.key)
            finally:
                self._release(target.key)

    def _time(self, run: _Run, flops: int) -> float:
        """Execute what is left of a run until there, and tell how long it takes."""
        more = run.train(flops)
        if not self.table.timed:
            return more / self.ledger.study.budget
        return run.row.time(run.at, flops) if more else 0.0

    def _release(self, name: str) -> None:
        self.held.discard(name)
        for since, worker in self.waiting.pop(name, ()):
            self.waited += self.now - since
            self.ready.append(worker)


@dataclass
class _Run:
    """A run on its way: where it is, and what it executed."""

    row: Row
    identity: str
    ask: Asking
    at: int = 0
    executed: int = 0
    told: int = 0
    key: str | None = None
    whole: bool = True

    def train(self, flops: int) -> int:
        """Execute what is left until there."""
        more = max(0, flops - self.at)
        self.executed += more
        return more

    def go_to(self, flops: int) -> None:
        """Be there, and have the evaluations on the way judged: the pruner may end it."""
        self.at = max(self.at, flops)
        for place in self.row.places[self.told :]:
            if place.flops > self.at:
                break
            self.told += 1
            self.key = place.key
            if place.fraction is not None and place.validation is not None:
                self.ask.judge(place.fraction, place.validation)

    def report(self) -> None:
        """Tell the evaluations of a run that ended before."""
        for place in self.row.places:
            if place.fraction is not None and place.validation is not None:
                self.ask.report(place.fraction, place.validation)
