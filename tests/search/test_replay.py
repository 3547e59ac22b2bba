"""Grids, tables and replay: every point trained once, written down, and searched again without training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from nasgrow.cli import table
from nasgrow.search.config import Pruner, Sampler
from nasgrow.search.ledger import Ledger
from nasgrow.search.objective import pursue
from nasgrow.search.outcome import Setting
from nasgrow.search.prices import Prices
from nasgrow.search.replay import Replayed, replay
from nasgrow.search.summary import summarise
from nasgrow.search.table import Table, read_table, tabulate, write_table
from nasgrow.search.trunks import open_prices, open_trunks
from nasgrow.training.folder import read_result
from nasgrow.training.records import read_metrics
from tests.cli.test_run_commands import call
from tests.search.made import made_table
from tests.search.studies import begin_study, write_study
from tests.search.test_objective import nothing, setting_of

pytestmark = pytest.mark.usefixtures("place")

NONE = Pruner(kind="none")
GRID: dict[str, Any] = {
    "space": {
        "kind": "per-dimension",
        "dims": {"hidden": {"start": [1, 0.5]}, "layers": {"start": [1, 0.5]}},
        "times": {"low": 0.3, "high": 0.6, "step": 0.3},
    },
    "budget": {"flops": 4e7},
    "sampler": {"kind": "grid"},
    "pruner": {"kind": "none"},
    "trials": None,
    "seeds": [0, 1],
    "baselines": {"shares": [], "start": False, "extended": False, "learning_rates": [0.006]},
    "trunks": {"gigabytes": 1, "share": 1e9},
}


def start(folder: Path, **changes: Any) -> tuple[Ledger, Setting, Prices]:
    path = write_study(folder, **{**GRID, **changes})
    _, where, ledger = begin_study(path)
    trunks = open_trunks(ledger.study, where)
    setting = replace(setting_of(ledger, folder), trunks=trunks)
    return ledger, setting, open_prices(ledger.study, where, setting.corpus, setting.device, trunks)


def test_a_grid_is_trained_at_its_price_written_down_and_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ledger, setting, prices = start(tmp_path)
    while (claim := ledger.claim(prices=prices)) is not None:
        expected = prices.cost(claim.trial.params) if claim.kind == "search" else None
        pursue(claim, ledger, setting, nothing)
        ended = ledger.trials(claim.kind)[claim.trial.number]
        assert expected in (None, ended.user_attrs["executed"]), "what it costs is known before"
        if claim.kind == "search":
            assert prices.cost(claim.trial.params) == 0, "its result is known"
    trials = ledger.trials("search")
    assert ledger.ended()
    assert len({ledger.study.space.at(trial.params).key for trial in trials}) == len(trials) == 9
    summary = summarise(ledger)
    assert summary.planned == 9

    assert call(monkeypatch, "table", "tiny.yaml", "--to", "it.parquet") == 0
    assert "18 runs of 9 points" in capsys.readouterr().out
    table = read_table(tmp_path / "it.parquet")
    assert table.study.config == ledger.study.config
    assert table.rows == read_back(tabulate(ledger.study, setting.folder), tmp_path)
    for trial in trials:
        rows = table.runs(table.study.space.at(trial.params), [0, 1])
        assert [row.loss for row in rows] == trial.user_attrs["losses"]
        assert sum(row.charged for row in rows) == trial.user_attrs["charged"]
        told = {round(100 * p.fraction): p.validation for p in rows[0].places if p.fraction is not None}
        assert told == pytest.approx(trial.intermediate_values)
    taken = [row for row in table.rows if row.seconds is None]
    assert 0 < len(taken) < len(table.rows), "those that began with another's state do not know what it took"
    assert all(place.elapsed is None for row in taken for place in row.places)

    again = replay(table, 0, sampler=Sampler(kind="grid"), pruner=NONE)
    assert sorted(loss for loss in again.losses if loss is not None) == sorted(t.value for t in trials)  # type: ignore[type-var]
    fixed = ledger.trials("baseline")[0].user_attrs
    assert sum(again.charged) == summary.charged - fixed["charged"]
    assert sum(again.executed) == summary.executed, "the store did what a set of keys says"
    assert sum(again.executed) < 0.9 * sum(again.charged)


def read_back(table: Table, folder: Path) -> tuple[object, ...]:
    """The rows of a table as a file holds them."""
    write_table(table, folder / "other.parquet")
    return read_table(folder / "other.parquet").rows


def test_a_table_tells_how_long_runs_took_that_trained_all_of_themselves(tmp_path: Path) -> None:
    ledger, setting, prices = start(tmp_path, trials=2, trunks=None)
    for _ in range(3):
        claim = ledger.claim(prices=prices)
        assert claim is not None
        pursue(claim, ledger, setting, nothing)
    assert ledger.ended()
    table = tabulate(ledger.study, setting.folder)
    assert table.timed
    for row in table.rows:
        trial = next(t for t in ledger.trials("search") if t.params == row.parameters)
        folder = setting.folder / "runs" / list(trial.user_attrs["runs"])[row.seed]
        records = list(read_metrics(folder))
        assert row.seconds == read_result(folder).seconds
        seen = {r["aligned"]: r["seconds"] for r in records if r["kind"] == "evaluation"}
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
    ledger, setting, _ = start(tmp_path)
    with pytest.raises(ValueError, match="no trial has ended yet"):
        tabulate(ledger.study, setting.folder)
    path = tmp_path / "other.parquet"
    pq.write_table(pq.read_table(made(path)).select(["loss"]), path)
    with pytest.raises(ValueError, match=r"other\.parquet: is not a table of runs"):
        read_table(path)
    path.write_text("no table")
    with pytest.raises(ValueError, match=r"other\.parquet: is not a Parquet file"):
        read_table(path)
    with pytest.raises(ValueError, match=r"other\.parquet: is not a Parquet file"):
        table.run(setting.folder, path)
    assert path.read_text() == "no table"


def made(path: Path) -> Path:
    write_table(made_table(), path)
    return path


def test_equal_points_share_a_run_and_runs_share_trunks() -> None:
    table = made_table()
    alone, shared = (search(table, "random", share=share, trials=150) for share in (False, True))
    assert alone.losses == shared.losses
    assert alone.charged == shared.charged
    assert all(
        spent in (0, all_of_it) for spent, all_of_it in zip(alone.executed, alone.charged, strict=True)
    )
    assert 0 in alone.executed, "a point that was sampled again"
    assert sum(shared.executed) < 0.8 * sum(alone.executed)
    assert shared.executed[0] == shared.charged[0]
    whole = search(table, "grid", share=False)
    assert whole.executed == whole.charged


def search(table: Table, kind: Any, pruner: Any = "none", **options: Any) -> Replayed:
    return replay(
        table, options.pop("seed", 0), sampler=Sampler(kind=kind), pruner=Pruner(kind=pruner), **options
    )


def test_searches_differ_in_their_seed_and_in_nothing_else() -> None:
    table = made_table()
    first = search(table, "tpe", trials=20)
    assert search(table, "tpe", trials=20) == first
    assert search(table, "tpe", trials=20, seed=1).losses != first.losses


def test_a_pruned_run_pays_for_what_it_trained_and_goes_on_from_there() -> None:
    table = made_table()
    whole, pruned = search(table, "random", trials=40), search(table, "random", "median", trials=40)
    given_up = [place for place, loss in enumerate(pruned.losses) if loss is None]
    assert given_up
    for place in given_up:
        assert pruned.executed[place] <= pruned.charged[place] < 0.99 * whole.charged[place]
    assert sum(pruned.executed) < sum(whole.executed)
    limited = search(table, "random", "median", total_flops=5.0 * table.study.budget)
    assert sum(limited.executed) >= 5 * table.study.budget > sum(limited.executed[:-1])


def test_what_a_search_found_for_how_much() -> None:
    found = Replayed(losses=(None, 3.0, 2.0), charged=(10, 10, 10), executed=(4, 10, 5), trials=3)
    assert [found.best_within(spent) for spent in (13, 14, 18, 19)] == [float("inf"), 3.0, 3.0, 2.0]
    assert [found.executed_until(loss) for loss in (3.5, 3.0, 2.5, 1.0)] == [14, 14, 19, float("inf")]


def test_a_grid_ends_with_its_last_point_and_may_end_before(tmp_path: Path) -> None:
    table = made_table()
    assert len(search(table, "grid").losses) == table.points
    assert len(search(table, "grid", trials=7).losses) == 7
    _, _, ledger = begin_study(write_study(tmp_path, "few", **{**GRID, "trials": 5}))
    assert ledger.planned == 5


@pytest.mark.parametrize(
    ("space", "told"),
    [
        ({"training": {"learning_rate.peak": {"low": 0.001, "high": 0.01}}}, "not inf"),
        ({"times": {"low": 0.1, "high": 0.8, "step": 0.001}}, "not 1,965,604"),
    ],
)
def test_a_grid_wants_a_space_that_can_be_counted(tmp_path: Path, space: dict[str, Any], told: str) -> None:
    path = write_study(tmp_path, **{**GRID, "space": {**GRID["space"], **space}})
    with pytest.raises(ValueError, match=f"sampler.kind: grid: wants a space of lists .* {told}"):
        begin_study(path)
