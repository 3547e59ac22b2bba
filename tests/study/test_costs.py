"""Where a study caches prefixes, and what its points would still execute."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from nasgrow.study.config import PrefixCacheConfig
from nasgrow.study.costs import prefix_setup, prefix_times
from nasgrow.study.study import ResolvedStudy
from tests.study.made import CONFIG


def study_of(**changes: Any) -> ResolvedStudy:
    return ResolvedStudy.resolve(CONFIG.model_copy(update=changes), "made")


def test_prefixes_are_cached_only_where_another_run_may_part() -> None:
    listed = study_of()
    assert prefix_times(listed.space) == (0.2, 0.4, 0.6, 0.8)

    def training(fields: dict[str, Any]) -> ResolvedStudy:
        assert isinstance(CONFIG.space, dict)
        return study_of(space={**CONFIG.space, "training": fields})

    powers = training({"learning_rate.width_power": {"low": 0.1, "high": 1.0, "log": True}})
    assert prefix_times(powers.space) == (), "hardly two runs have the same rate"
    rewarm = training({"learning_rate.rewarm": {"low": 0.01, "high": 0.1}})
    assert prefix_times(rewarm.space) == (0.2, 0.4, 0.6, 0.8), "it acts after an event only"


def test_the_cache_lies_beside_the_studies_or_where_the_file_says(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "made"
    times = (0.2, 0.4, 0.6, 0.8)
    beside = {"folder": str(tmp_path / "runs" / "prefixes"), "gigabytes": 5.0, "share": 0.01, "times": times}
    assert prefix_setup(study_of(), folder) == beside
    other = PrefixCacheConfig(folder=str(tmp_path / "other"), gigabytes=2)
    assert prefix_setup(study_of(prefix_cache=other), folder) == {
        **beside,
        "folder": str(tmp_path / "other"),
        "gigabytes": 2.0,
    }
    assert (
        prefix_setup(replace(study_of(), config=CONFIG.model_copy(update={"prefix_cache": None})), folder)
        is None
    )
