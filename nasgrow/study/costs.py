"""Costs: where a study caches prefixes, and how many FLOPs a trial would still execute."""

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
"""The most points whose prefix keys are cached: computing them takes a millisecond, and schedulers compare
hundreds of points."""


def prefix_times(space: Space) -> tuple[float, ...]:
    """Return the fractions of the budget at which states of a space's runs are worth caching.

    They are the times of events, because runs may begin to differ there. The result is empty if a
    continuous setting acts from the first step: then hardly two runs have the same beginning.
    """
    unique = any(space.settings[name].count == inf for name in FROM_THE_START if name in space.settings)
    return () if unique else space.times


def cache_folder(folder: Path, config: PrefixCacheConfig) -> Path:
    """Return the folder of the prefix cache of the study or experiment in ``folder``.

    By default it lies beside that folder.
    """
    return Path(config.folder or folder.parent / PREFIXES)


def open_cache(folder: Path, config: PrefixCacheConfig, times: Sequence[float]) -> PrefixCache:
    """Open the prefix cache of the study or experiment in ``folder``.

    Args:
        folder: The folder of the study or experiment.
        config: The settings of the cache.
        times: The fractions of the budget at which states are cached.
    """
    return open_prefix_cache(str(cache_folder(folder, config)), config.gigabytes, config.share, times)


def prefix_setup(study: ResolvedStudy, folder: Path) -> dict[str, Any] | None:
    """Return the arguments with which workers open the prefix cache of the study in ``folder``.

    None if the study has no cache.
    """
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
    """The results on disk: the ended runs of the study in a folder, and its cached prefixes."""

    def __init__(self, study: ResolvedStudy, folder: Path) -> None:
        config = study.config.prefix_cache
        self.cache = (
            None if config is None else StateStore(cache_folder(folder, config), config.gigabytes * 1e9)
        )
        self._runs = folder / RUNS

    def holds(self, key: str) -> bool:
        """Return whether a prefix is cached."""
        return self.cache is not None and self.cache.holds(key)

    def ended(self, identity: str) -> bool:
        """Return whether a run has ended, so that its result is known."""
        return os.path.exists(f"{self._runs}/{identity}/{RESULT}")


@dataclass(frozen=True)
class _Run:
    """The costs of a run.

    Attributes:
        identity: The run's identity.
        charged: FLOPs charged for the whole run.
        prefixes: Key and charged FLOPs of each prefix that may be cached, the shortest first.
    """

    identity: str
    charged: int
    prefixes: Sequence[tuple[str, int]]


class LiveCosts:
    """Predicts what the points of a study would cost now, given its folder and prefix cache.

    Args:
        study: The study.
        folder: Its folder.
        corpus: Its data.
        environment: The hardware and software that the exact bits of a result depend on, as a worker has
            them.
    """

    def __init__(
        self, study: ResolvedStudy, folder: Path, corpus: Corpus, environment: Mapping[str, Any]
    ) -> None:
        self._study, self._corpus, self._environment = study, corpus, environment
        self._times = () if study.config.prefix_cache is None else prefix_times(study.space)
        self._trained = Trained(study, folder)
        self._runs = lru_cache(CACHED_POINTS)(self._runs_of)

    def flops(self, parameters: Mapping[str, Any]) -> float:
        """Return the FLOPs that a trial with these parameters would execute for all seeds together.

        Runs that have ended count 0.
        """
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
