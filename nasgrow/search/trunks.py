"""The trunks of a study: where its runs keep states for each other, at which times, and what that spares."""

from __future__ import annotations

import os
from collections.abc import Sequence
from math import inf
from pathlib import Path

import torch

from nasgrow.config import RunConfig
from nasgrow.data import Corpus
from nasgrow.schedule import Schedule
from nasgrow.search.config import TRUNKS, TrunksConfig
from nasgrow.search.outcome import RUNS
from nasgrow.search.prices import Prices, Way
from nasgrow.search.spaces import Point, Space
from nasgrow.search.spaces.training import FROM_THE_START
from nasgrow.search.study import Study
from nasgrow.strict import with_prefix
from nasgrow.training.machine import numerics
from nasgrow.training.objects import is_url
from nasgrow.training.records import RESULT
from nasgrow.training.run import Run
from nasgrow.training.trunks import Mirrored, Remote, Store, Trunks, forks


def open_trunks(study: Study, folder: Path) -> Trunks | None:
    """The trunks of the study in ``folder``; None if it wants none."""
    config = study.config.trunks
    return None if config is None else trunks_beside(folder, config, trunk_times(study.space))


def trunks_beside(folder: Path, config: TrunksConfig, times: Sequence[float]) -> Trunks:
    """The trunks of a folder of runs which may part at these times; beside it, unless a place is given."""
    store = store_beside(folder, config)
    store.sweep()
    store.refresh()
    return Trunks(store, tuple(times), config.share)


def store_beside(folder: Path, config: TrunksConfig) -> Store:
    """The store of a folder of runs; nothing is created before something is stored.

    With a URL the store beside the folder is the first tier, in which its processes work.
    """
    beside, limit = folder.parent / TRUNKS, config.gigabytes * 1e9
    if config.folder is not None and is_url(config.folder):
        return with_prefix("trunks.folder", lambda: Mirrored(beside, limit, Remote(config.folder or "")))
    return Store(Path(config.folder or beside), limit)


class OnDisk:
    """What is trained already: the states of a store, and the runs of the study in a folder that ended."""

    def __init__(self, store: Store | None, folder: Path) -> None:
        self._store, self._runs = store, folder / RUNS

    def holds(self, key: str) -> bool:
        """Whether the state of a key is stored."""
        return self._store is not None and self._store.holds(key)

    def ended(self, identity: str) -> bool:
        """Whether a run has ended, so that its result is known."""
        return os.path.exists(f"{self._runs}/{identity}/{RESULT}")


def open_prices(
    study: Study, folder: Path, corpus: Corpus, device: torch.device, trunks: Trunks | None
) -> Prices:
    """What the points of the study in ``folder`` would cost a worker on this device."""
    times, environment = () if trunks is None else trunks.times, numerics(device)

    def way(config: RunConfig, schedule: Schedule) -> Way:
        vocab, fingerprint = corpus.vocab, corpus.fingerprint
        run = Run.resolve(config, vocab=vocab, fingerprint=fingerprint, schedule=schedule)
        last = run.stages[-1]
        states = tuple((fork.key, fork.charged) for fork in forks(run, times, environment))
        return Way(run.identity, states, last.charged(last.end))

    def ways(point: Point) -> list[Way]:
        schedule = point.schedule
        return [way(study.run(schedule, point.training, seed), schedule) for seed in study.config.seeds]

    return Prices(study.space, ways, OnDisk(None if trunks is None else trunks.store, folder))


def trunk_times(space: Space) -> tuple[float, ...]:
    """The times at which runs of a space may part; none where hardly two of them ever begin alike.

    Beyond the last time nobody parts, so nothing needs to be kept.
    """
    unique = any(space.settings[name].count == inf for name in FROM_THE_START if name in space.settings)
    return () if unique else space.times
