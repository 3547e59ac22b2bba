"""Replay: a search over recorded runs, so that hundreds of searches take minutes.

All that decides is the live search's own: the ledger (which samples, orders and counts), the space, the
pruner and who asks it. In place of training, the losses of a table are told; in place of the store of
states, a set of keys says what would have been reused. The storage is in memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from optuna.storages import InMemoryStorage

from nasgrow.search.asking import Asking
from nasgrow.search.config import Pruner, Sampler
from nasgrow.search.ledger import Claim, Ledger
from nasgrow.search.prices import Prices
from nasgrow.search.storage import quiet
from nasgrow.search.table import Row, Table
from nasgrow.training.loop import Stopped


@dataclass
class Simulated:
    """What machines would have trained so far.

    Attributes:
        share: Whether states are kept for others; else a run goes on only from where itself was given up.
        states: The keys of what is stored.
        whole: The runs that ended.
        begun: The FLOPs until which each run was trained before it was given up.
    """

    share: bool
    states: set[str] = field(default_factory=set)
    whole: set[str] = field(default_factory=set)
    begun: dict[str, int] = field(default_factory=dict)

    def holds(self, key: str) -> bool:
        """Whether the state of a key is stored."""
        return key in self.states

    def ended(self, identity: str) -> bool:
        """Whether a run has ended, so that its result is known."""
        return identity in self.whole

    def train(self, row: Row, identity: str, ask: Asking) -> tuple[int, int, bool]:
        """Tell the evaluations of a run as training it would.

        Returns:
            FLOPs charged, FLOPs executed, and whether it came to its end.
        """
        if identity in self.whole:
            for place in row.places:
                if place.fraction is not None and place.validation is not None:
                    ask.report(place.fraction, place.validation)
            return row.charged, 0, True
        stored = [place.flops for place in row.places if place.key in self.states]
        spared = max([*stored, self.begun.get(identity, 0)])
        for place in row.places:
            try:
                if place.fraction is not None and place.validation is not None:
                    ask.judge(place.fraction, place.validation)
            except Stopped:
                self._keep(place.key, always=True)
                self.begun[identity] = max(spared, place.flops)
                return place.flops, max(0, place.flops - spared), False
            self._keep(place.key, always=place.kept)
        self.whole.add(identity)
        return row.charged, row.charged - spared, True

    def _keep(self, key: str | None, *, always: bool) -> None:
        if self.share and always and key is not None:
            self.states.add(key)


@dataclass(frozen=True)
class Replayed:
    """A search, claim by claim: a trial that was given up and taken up again is there each time.

    Attributes:
        losses: The trial's mean loss over seeds; None where it was given up or diverged.
        charged: FLOPs billed to it, beyond what it was billed when it was given up.
        executed: FLOPs that machines would have spent on it, beyond those.
        trials: How many trials there were.
    """

    losses: tuple[float | None, ...]
    charged: tuple[int, ...]
    executed: tuple[int, ...]
    trials: int

    def best_within(self, executed: float) -> float:
        """The best loss among the trials that this many executed FLOPs pay for; infinite if none."""
        best, spent = math.inf, 0
        for loss, more in zip(self.losses, self.executed, strict=True):
            spent += more
            if spent > executed:
                break
            best = best if loss is None else min(best, loss)
        return best

    def executed_until(self, loss: float) -> float:
        """The FLOPs executed until a loss as low as this was found; infinite if it never was."""
        spent = 0
        for found, more in zip(self.losses, self.executed, strict=True):
            spent += more
            if found is not None and found <= loss:
                return spent
        return math.inf


def replay(
    table: Table,
    seed: int,
    *,
    sampler: Sampler,
    pruner: Pruner,
    trials: int | None = None,
    total_flops: float | None = None,
    share: bool = True,
    seeds: Sequence[int] | None = None,
) -> Replayed:
    """Search a table.

    Args:
        table: The recorded runs; every point that is sampled must be among them.
        seed: Searches differ in it.
        sampler: How the next point is chosen.
        pruner: When a trial is given up.
        trials: How many to try.
        total_flops: No further trial is begun once this much was executed.
        share: Whether runs share trunks.
        seeds: The training seeds of each trial; those of the table's study by default.
    """
    with quiet():
        ledger = in_memory(
            table, seed, sampler=sampler, pruner=pruner, trials=trials, total_flops=total_flops, seeds=seeds
        )
        return _search(table, ledger, Simulated(share))


def in_memory(
    table: Table,
    seed: int,
    *,
    sampler: Sampler,
    pruner: Pruner,
    trials: int | None = None,
    total_flops: float | None = None,
    seeds: Sequence[int] | None = None,
) -> Ledger:
    """The ledger of a search of a table, which only this process knows; arguments as of :func:`replay`."""
    changes = {
        "name": f"replay-{seed}",
        "sampler": sampler,
        "pruner": pruner,
        "trials": trials,
        "total_flops": total_flops,
        "hours": None,
        "seeds": list(seeds or table.study.config.seeds),
    }
    study = replace(table.study, config=table.study.config.model_copy(update=changes))
    return Ledger.create(study, None, InMemoryStorage(), "")


def _search(table: Table, ledger: Ledger, trained: Simulated) -> Replayed:
    seeds = ledger.study.config.seeds
    prices = Prices(ledger.study.space, lambda point: table.ways(point, seeds), trained)
    losses, charged, executed = [], [], []
    while (claim := ledger.claim(("search",), prices)) is not None:
        loss, billed, spent = _play(claim, table, ledger, trained)
        losses.append(loss)
        charged.append(billed)
        executed.append(spent)
    return Replayed(tuple(losses), tuple(charged), tuple(executed), len(ledger.trials("search")))


def _play(claim: Claim, table: Table, ledger: Ledger, trained: Simulated) -> tuple[float | None, int, int]:
    """What a worker does with a trial, without training."""
    before = before_it_went_on(claim, ledger)
    point, seeds = ledger.study.space.sample(claim.trial), ledger.study.config.seeds
    events = [event.at for event in point.schedule.events]
    losses: list[float] = []
    charged = executed = 0
    status = "finished"
    for index, (row, way) in enumerate(zip(table.runs(point, seeds), table.ways(point, seeds), strict=True)):
        ask = Asking(claim, ledger, events, first=index == 0)
        billed, spent, whole = trained.train(row, way.identity, ask)
        charged, executed = charged + billed, executed + spent
        if not whole or row.loss is None:
            status = "diverged" if whole else "pruned"
            break
        losses.append(row.loss)
    loss = fmean(losses) if status == "finished" else None
    told = {"status": status, "charged": charged, "executed": executed + before.get("executed", 0)}
    close(claim, ledger, loss, told)
    return loss, charged - before.get("charged", 0), executed


def before_it_went_on(claim: Claim, ledger: Ledger) -> Mapping[str, Any]:
    """What was noted of a trial when it was given up; nothing if it was not taken up."""
    return claim.trial.user_attrs if ledger.taken_up(claim.trial) else {}


def close(claim: Claim, ledger: Ledger, loss: float | None, told: Mapping[str, object]) -> None:
    """Tell the ledger what a trial came to."""
    for name, value in told.items():
        claim.trial.set_user_attr(name, value)
    ledger.tell(claim, None if loss is None else [loss])
