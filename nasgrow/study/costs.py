"""Costs: where a study caches prefixes, and what training would still execute given what is cached."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from pathlib import Path
from typing import Any

from nasgrow.data import Corpus
from nasgrow.spaces import Space
from nasgrow.spaces.training import FROM_THE_START
from nasgrow.study.config import PREFIXES, PrefixCacheConfig
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import RUNS
from nasgrow.training.prefixes import PrefixCache, StateStore, forks, open_prefix_cache
from nasgrow.training.records import RESULT
from nasgrow.training.run import Run

CACHED_POINTS = 20_000
"""Points whose prefixes are remembered: their keys take a millisecond, and schedulers compare hundreds."""


def prefix_times(space: Space) -> tuple[float, ...]:
    """The times at which runs of a space may part; none where hardly two of them ever begin alike.

    After the last time no runs part, so nothing needs to be cached there.
    """
    unique = any(space.settings[name].count == inf for name in FROM_THE_START if name in space.settings)
    return () if unique else space.times


def cache_folder(folder: Path, config: PrefixCacheConfig) -> Path:
    """The folder of the prefix cache of a folder of runs: beside it, unless another is given."""
    return Path(config.folder or folder.parent / PREFIXES)


def open_cache(folder: Path, config: PrefixCacheConfig, times: Sequence[float]) -> PrefixCache:
    """The prefix cache of a folder of runs that may part at these times."""
    return open_prefix_cache(str(cache_folder(folder, config)), config.gigabytes, config.share, times)


def prefix_setup(study: ResolvedStudy, folder: Path) -> dict[str, Any] | None:
    """What workers of the study in ``folder`` need to know of its prefix cache; None if it has none."""
    config = study.config.prefix_cache
    if config is None:
        return None
    return {
        "folder": str(cache_folder(folder, config).absolute()),
        "gigabytes": config.gigabytes,
        "share": config.share,
        "times": prefix_times(study.space),
    }


class Trained:
    """What is on disk: the runs of the study in a folder that have ended, and its cached prefixes."""

    def __init__(self, study: ResolvedStudy, folder: Path) -> None:
        config = study.config.prefix_cache
        self.cache = (
            None if config is None else StateStore(cache_folder(folder, config), config.gigabytes * 1e9)
        )
        self._runs = folder / RUNS

    def holds(self, key: str) -> bool:
        """Whether a prefix is cached."""
        return self.cache is not None and self.cache.holds(key)

    def ended(self, identity: str) -> bool:
        """Whether a run has ended, so that its result is known."""
        return os.path.exists(f"{self._runs}/{identity}/{RESULT}")


@dataclass(frozen=True)
class _Run:
    """A run as its cost goes: FLOPs in all, and at the end of each prefix that may be cached."""

    identity: str
    charged: int
    prefixes: Sequence[tuple[str, int]]


class LiveCosts:
    """What the points of a study would cost now.

    Args:
        study: The study.
        folder: Its folder.
        corpus: Its data.
        environment: What the bits of a result depend on besides the run, as a worker has it.
    """

    def __init__(
        self, study: ResolvedStudy, folder: Path, corpus: Corpus, environment: Mapping[str, Any]
    ) -> None:
        self._study, self._corpus, self._environment = study, corpus, environment
        self._times = () if study.config.prefix_cache is None else prefix_times(study.space)
        self._trained = Trained(study, folder)
        self._runs = lru_cache(CACHED_POINTS)(self._runs_of)

    def flops(self, parameters: Mapping[str, Any]) -> float:
        """FLOPs that a trial with these parameters would execute; 0 if its result is known."""
        return sum(run.charged - self._done(run) for run in self._runs(tuple(parameters.items())))

    def _done(self, run: _Run) -> int:
        if self._trained.ended(run.identity):
            return run.charged
        return next((flops for key, flops in reversed(run.prefixes) if self._trained.holds(key)), 0)

    def _runs_of(self, parameters: tuple[tuple[str, Hashable], ...]) -> list[_Run]:
        point, found = self._study.space.at(dict(parameters)), []
        for seed in self._study.config.seeds:
            run = Run.resolve(
                self._study.run(point.schedule, point.training, seed),
                vocab=self._corpus.vocab,
                fingerprint=self._corpus.fingerprint,
            )
            last = run.stages[-1]
            prefixes = [(fork.key, fork.charged) for fork in forks(run, self._times, self._environment)]
            found.append(_Run(run.identity, last.charged(last.end), prefixes))
        return found
