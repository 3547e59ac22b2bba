"""Tables: every run of a study written down, and searched again without training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from nasgrow.cli import table as command
from nasgrow.experiments.replay import replay
from nasgrow.study.config import STUDY, Pruner, Sampler, dump_study, load_study, parse_study
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.table import RunRow, RunTable, check_table, read_table, tabulate, write_table
from nasgrow.study.trials import write_trial
from nasgrow.training.records import read_metrics, read_result
from tests.experiments.live import GRID, Live, small_study
from tests.study.made import made_table
from tests.study.records import make_record


def trained(folder: Path, **changes: Any) -> Live:
    """A grid that was trained, with its records."""
    live = Live(small_study(folder, **{**GRID, "seeds": [0, 1], **changes}), folder)
    live.train()
    (live.folder / STUDY).write_text(dump_study(live.study.config), encoding="utf-8")
    for trial in live.trials["search"].values():
        write_trial(live.folder, trial)
    return live


def read_back(table: RunTable, folder: Path) -> tuple[RunRow, ...]:
    """The rows of a table as a file holds them."""
    write_table(table, folder / "other.parquet")
    return read_table(folder / "other.parquet").rows


def test_a_grid_is_trained_written_down_and_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = trained(tmp_path)
    trials = live.trials["search"].values()
    assert len({live.study.space.at(trial.parameters).key for trial in trials}) == len(trials) == 9
    path = tmp_path / "it.parquet"
    assert command.run(live.folder, path) == 0
    assert "18 runs of 9 points" in capsys.readouterr().out
    table = read_table(path)
    assert table.study.config == load_study(live.folder)
    assert table.rows == read_back(tabulate(live.study, live.folder), tmp_path)
    for trial in trials:
        rows = table.runs(table.study.space.at(trial.parameters), [0, 1])
        assert [row.loss for row in rows] == trial.losses
        assert sum(row.charged for row in rows) == trial.charged
    taken = [row for row in table.rows if row.seconds is None]
    assert 0 < len(taken) < len(table.rows), "runs that reused a prefix do not know what it took"
    assert all(place.elapsed is None for row in taken for place in row.places)

    again = replay(table, 0, sampler=Sampler(kind="grid"), pruner=Pruner(kind="none"))
    assert {end.loss for end in again.ended} == {trial.loss for trial in trials}
    assert again.charged == sum(trial.charged for trial in trials)
    fixed = sum(trial.executed for trial in live.trials["baseline"].values())
    assert again.executed == fixed + sum(trial.executed for trial in trials), "the final shape is a point"
    assert again.executed < 0.9 * again.charged


def test_a_table_tells_how_long_runs_took_that_trained_all_of_themselves(tmp_path: Path) -> None:
    live = trained(tmp_path, trials=2, prefix_cache=None)
    table = tabulate(live.study, live.folder)
    assert table.timed
    for row in table.rows:
        trial = next(t for t in live.trials["search"].values() if t.parameters == row.parameters)
        folder = live.folder / "runs" / list(trial.runs)[row.seed]
        assert row.seconds == read_result(folder).seconds
        seen = {r["aligned"]: r["seconds"] for r in read_metrics(folder) if r["kind"] == "evaluation"}
        place = next(p for p in row.places if p.fraction and p.flops)  # nothing else is recorded there
        assert place.fraction is not None
        assert place.elapsed == seen[place.fraction]
        assert row.time(0, place.flops) == place.elapsed
        assert row.time(0, place.flops) + row.time(place.flops, row.charged) == pytest.approx(row.seconds)
    assert read_back(table, tmp_path)
    older = pq.read_table(tmp_path / "other.parquet").drop_columns(["seconds", "elapsed"])
    pq.write_table(older, tmp_path / "older.parquet")
    assert not read_table(tmp_path / "older.parquet").timed


def test_a_table_is_of_whole_runs(tmp_path: Path) -> None:
    study = small_study(tmp_path, **GRID)
    folder = tmp_path / "runs" / "tiny"
    folder.mkdir(parents=True)
    (folder / STUDY).write_text(dump_study(study.config), encoding="utf-8")
    with pytest.raises(ValueError, match="no trial has ended yet"):
        tabulate(study, folder)
    for status in ("running", "failed"):  # with a run that was begun
        write_trial(folder, make_record("search", 0, None, status=status, runs={"0" * 12: 1}))
        with pytest.raises(ValueError, match="no trial has ended yet"):
            tabulate(study, folder)
    asha, tree = (
        small_study(tmp_path, **{**GRID, "trials": 3, **kind})
        for kind in ({"pruner": {"kind": "asha"}}, {"sampler": {"kind": "tree"}})
    )
    for status in ("pruned", "paused"):
        write_trial(folder, make_record("search", 1, None, status=status, runs={"0" * 12: 1}))
        whole = "tiny: trial 1 was not trained to its end, and a table needs complete runs"
        with pytest.raises(ValueError, match=f"{whole}: pruner.kind must be none, not asha$"):
            tabulate(asha, folder)
        with pytest.raises(ValueError, match=f"{whole}: sampler.kind must be another than tree, which pau"):
            tabulate(tree, folder)
    path = tmp_path / "other.parquet"
    write_table(made_table(), path)
    pq.write_table(pq.read_table(path).select(["loss"]), path)
    with pytest.raises(ValueError, match=r"other\.parquet: is not a table of runs"):
        read_table(path)
    path.write_text("no table")
    with pytest.raises(ValueError, match=r"other\.parquet: is not a Parquet file"):
        read_table(path)
    with pytest.raises(ValueError, match=r"other\.parquet: is not a Parquet file"):
        command.run(folder, path)
    assert path.read_text() == "no table"


@pytest.mark.parametrize(
    ("space", "told"),
    [
        ({"training": {"learning_rate.rewarm": {"low": 0.001, "high": 0.01}}}, "not inf"),
        ({"times": {"low": 0.1, "high": 0.8, "step": 0.001}}, "not 1,965,604"),
    ],
)
def test_a_grid_wants_a_space_that_can_be_counted(tmp_path: Path, space: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"sampler.kind: grid: needs a space of lists .* {told}"):
        small_study(tmp_path, **{**GRID, "space": {**GRID["space"], **space}})


@pytest.mark.parametrize("name", ["tabular", "compound", "slots"])
def test_the_recorded_tables_can_be_replayed(name: str) -> None:
    """They hold study files, which must stay readable when the fields of a study change."""
    path = Path(__file__).parents[1] / "benchmarks" / "recorded" / f"{name}.parquet"
    study = ResolvedStudy.resolve(parse_study(check_table(path)["study"], str(path)), str(path))
    recorded = pq.read_table(path, columns=["parameters"]).column("parameters").to_pylist()
    for parameters in recorded[:: len(recorded) // 20]:
        assert study.space.at(json.loads(parameters)).schedule.final == study.config.final
