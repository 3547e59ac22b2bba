"""The trunks of a study: where its runs keep states for each other, and at which times."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from pathlib import Path

from nasgrow.search.baselines import PEAK
from nasgrow.search.config import TRUNKS, TrunksConfig
from nasgrow.search.spaces import Space
from nasgrow.search.study import Study
from nasgrow.training.trunks import Store, Trunks

FROM_THE_START = (PEAK, "learning_rate.width_power")
"""What a space may search that acts from the first step."""


def open_trunks(study: Study, folder: Path) -> Trunks | None:
    """The trunks of the study in ``folder``, beside which they lie; None if it wants none."""
    config = study.config.trunks
    return None if config is None else trunks_beside(folder, config, trunk_times(study.space))


def trunks_beside(folder: Path, config: TrunksConfig, times: Sequence[float]) -> Trunks:
    """The trunks that lie beside a folder of runs which may part at these times."""
    store = Store(folder.parent / TRUNKS, config.gigabytes * 1e9)
    store.sweep()
    return Trunks(store, tuple(times))


def trunk_times(space: Space) -> tuple[float, ...]:
    """The times at which runs of a space may part; none where hardly two of them ever begin alike.

    Beyond the last time nobody parts, so nothing needs to be kept.
    """
    unique = any(space.settings[name].count == inf for name in FROM_THE_START if name in space.settings)
    return () if unique else space.times
