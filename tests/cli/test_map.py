"""``map``, as a user calls it: cells are studies, and the report's numbers are those of their records."""

from __future__ import annotations

import csv
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pytest
import yaml
from scipy import stats  # type: ignore[import-untyped]

from nasgrow.experiments import map as maps
from nasgrow.report import words
from nasgrow.report.budgets import Rung
from nasgrow.report.figures import map as figures
from nasgrow.report.map.fit import fit, unfitted
from nasgrow.report.map.read import read_map, read_published
from nasgrow.report.map.results import CellResult, MapRecords, Rival
from nasgrow.report.map.rows import along_rows
from nasgrow.report.map.sections import weaknesses
from nasgrow.report.map.write import summarised, write_map
from nasgrow.strict import MOST_BYTES
from nasgrow.study.config import dump_study
from nasgrow.study.study import ResolvedStudy
from nasgrow.training.atomic_files import to_json
from tests.cli.calling import call
from tests.report.studies import FINAL, FINAL_ALONE, FIXED, GROWN, Recorded, usual


def fields(**changes: Any) -> dict[str, Any]:
    """A map of one shape at two budgets."""
    study = {
        "training": {"context": 16},
        "space": {"kind": "compound", "start": [1, 0.5], "times": {"low": 0.1, "high": 0.7, "step": 0.1}},
        "tune": {"learning_rate.peak": [0.003, 0.006, 0.012]},
        "baselines": {"budgets": [2]},
        "trials": 3,
    }
    found = {"final": [FINAL], "tokens_per_parameter": [20, 10], "study": study, "confirm": {"seeds": 3}}
    return {**found, **changes}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a map file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(fields()))
    return tmp_path


def begin(place: Path, name: str = "h16-n2-t10") -> Recorded:
    """A cell whose search has ended."""
    cells = {cell.folder.name: cell for cell in maps.load_map(place / "grid.yaml").cells}
    config = yaml.safe_load(dump_study(cells[name].study.config))
    return usual(place / "runs" / "grid" / name, **config)


def test_the_map_shows_the_verdict_of_every_cell(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours, final = [1.80, 1.82, 1.81], [1.92, 1.90, 1.95]
    fixed = {"h16-n2-t10": [1.70, 1.69, 1.72], "h16-n2-t20": [1.87, 1.86, 1.88]}
    for name, losses in fixed.items():
        recorded = begin(place, name)
        recorded.confirm("search 1", GROWN, ours)
        recorded.confirm("baseline 1", FINAL_ALONE, final, first=10)
        recorded.confirm("fixed 4", FIXED["hidden 8"], losses, first=20)
    assert call(monkeypatch, "map", "grid.yaml", "--report") == 0
    assert capsys.readouterr().out.startswith(
        "Growth reaches a lower test loss than its final shape from scratch in 2 of 2 confirmed cells, and "
        "than the best fixed shape searched in 1, at equal compute."
    )
    with (place / "reports" / "grid" / "cells.csv").open() as file:
        rows = {row["cell"]: row for row in csv.DictReader(file)}
    assert list(rows) == list(fixed), "the cheapest cell comes first"
    for name, row in rows.items():
        low, high = stats.ttest_rel(ours, fixed[name]).confidence_interval(0.95)
        found = [float(row[column]) for column in ("less_fixed", "less_fixed_low", "less_fixed_high")]
        assert found == pytest.approx([fmean(ours) - fmean(fixed[name]), low, high])
    drawn = figures.differences(read_map(maps.load_map(place / "grid.yaml"), place / "reports" / "grid"))
    assert drawn is not None
    at_equal_flops = [square.get_text().split("\n")[0] for square in drawn.axes[0].texts]
    assert at_equal_flops == ["+0.060", "−0.107"], "positive where growth is ahead, in the file's order"
    assert len(drawn.axes[0].patches) == 1, "a frame where growth is ahead at the 95% level"
    assert not drawn.axes[1].texts, "seconds were not measured"
    text = (place / "reports" / "grid" / "report.md").read_text()
    assert "growth pays at 10 and 20 tokens per parameter (confirmed: 10 and 20)" in text


def test_a_cell_has_no_frame_while_a_fixed_shape_that_may_be_better_is_not_confirmed(place: Path) -> None:
    recorded = begin(place, "h16-n2-t10")
    recorded.confirm("search 1", GROWN, [1.80, 1.82, 1.81])
    recorded.confirm("baseline 1", FINAL_ALONE, [1.92, 1.90, 1.95], first=10)
    recorded.confirm("fixed 4", FIXED["hidden 8"], [1.87, 1.86, 1.88], first=20)

    def frames() -> int:
        drawn = figures.differences(read_map(maps.load_map(place / "grid.yaml"), place / "reports" / "grid"))
        assert drawn is not None
        return len(drawn.axes[0].patches)

    assert frames() == 1
    recorded.add("fixed", 40, FIXED["layers 1"], [1.75])
    assert frames() == 0


def test_a_cell_with_one_seed_decides_nothing(place: Path) -> None:
    recorded = begin(place, "h16-n2-t10")
    recorded.confirm("search 1", GROWN, [1.80])
    recorded.confirm("baseline 1", FINAL_ALONE, [1.92], first=10)
    (cell,) = read_map(maps.load_map(place / "grid.yaml"), place / "reports" / "grid").cells
    assert cell.final is not None
    assert cell.final.difference.value < 0
    assert cell.saves == "open"


def confirmed(place: Path, name: str = "h16-n2-t10") -> Recorded:
    """A cell that is confirmed with three seeds, at all of its budgets."""
    recorded = begin(place, name)
    recorded.confirm("search 1", GROWN, [1.80, 1.82, 1.81])
    recorded.confirm("baseline 1", FINAL_ALONE, [1.92, 1.90, 1.95], first=10)
    recorded.add("baseline", 20, FINAL_ALONE, [1.75], name="final, 2x budget", times=2)
    recorded.confirm("baseline 20", FINAL_ALONE, [1.71, 1.72, 1.70], first=30, times=2)
    return recorded


def test_confirmed_cells_of_a_report_outlive_their_runs(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    confirmed(place)
    begin(place, "h16-n2-t20")
    assert call(monkeypatch, "map", "grid.yaml", "--report") == 0
    report = place / "reports" / "grid"
    row = (report / "cells.csv").read_text().splitlines()[:2]
    runs = pd.read_parquet(report / "runs.parquet")
    trained: list[str] = []

    def train(cell: maps.Cell, *rest: object) -> bool:
        trained.append(cell.name)
        return True

    monkeypatch.setattr("nasgrow.cli.map.train_cell", train)
    assert call(monkeypatch, "map", "grid.yaml") == 0
    assert trained == ["h16-n2-t10", "h16-n2-t20"], "cells whose runs are at hand are resumed and extended"
    trained.clear()
    shutil.rmtree(place / "runs")
    capsys.readouterr()
    assert call(monkeypatch, "map", "grid.yaml") == 0
    assert trained == ["h16-n2-t20"], "a candidate is not enough"
    assert "cell 1 of 2: confirmed in reports/grid" in capsys.readouterr().out
    assert (report / "cells.csv").read_text().splitlines() == row
    kept = pd.read_parquet(report / "runs.parquet")
    pd.testing.assert_frame_equal(kept, runs[runs["cell"] == "h16-n2-t10"], check_dtype=False)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"confirm": {"seeds": 4}}, "confirm.seeds: the report has 3, the file asks for 4"),
        ({"confirm": {"seeds": 3, "top": 2}}, "confirm.top: 1 became 2"),
        ({"study": {**fields()["study"], "trials": 4}}, "trials: 3 became 4"),
        ({"study": {**fields()["study"], "seeds": [7]}}, "seeds: [0] became [7]"),
        ({"tokens_per_parameter": [20]}, "the file has no such cell"),
    ],
)
def test_a_report_does_not_drop_confirmed_cells_whose_runs_are_gone(
    place: Path,
    changes: dict[str, Any],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    confirmed(place)
    assert call(monkeypatch, "map", "grid.yaml", "--report") == 0
    report = Path("reports/grid")
    assert (place / "grid.yaml").write_text(yaml.safe_dump(fields(**changes)))
    found = maps.load_map(Path("grid.yaml"))
    assert not read_published(found, report), "the file asks another question now; the runs are at hand"
    shutil.rmtree(place / "runs")
    before = (report / "summary.json").read_bytes()
    capsys.readouterr()
    for options in ((), ("--report",)):
        assert call(monkeypatch, "map", "grid.yaml", *options) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "reports/grid: has the confirmed cell h16-n2-t10" in line
        assert said in line
    assert (report / "summary.json").read_bytes() == before
    assert call(monkeypatch, "map", "grid.yaml", "--report", "--to", "elsewhere") == 0


def test_a_published_cell_with_more_seeds_counts_and_one_with_a_budget_missing_does_not(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = Path("reports/grid")
    recorded = confirmed(place)
    assert call(monkeypatch, "map", "grid.yaml", "--report") == 0
    (place / "grid.yaml").write_text(yaml.safe_dump(fields(confirm={"seeds": 2})))
    found = maps.load_map(Path("grid.yaml"))
    assert read_published(found, report)["h16-n2-t10"].seeds == 3
    trials = {
        int(file.stem.partition("-")[2]): file for file in (recorded.folder / "trials").glob("confirmation-*")
    }
    for number in (3, 13):
        trials[number].unlink()
    assert read_map(found, report).cells[0].seeds == 3, "fewer are at hand"
    for number in (31, 32, 33):
        trials[number].unlink()
    alone = read_map(found, Path("elsewhere")).cells[0]
    assert alone.confirmed
    assert alone.seeds == 0, "the final shape has not been confirmed at twice the budget"


def test_a_damaged_report_is_refused_before_training(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    confirmed(place)
    assert call(monkeypatch, "map", "grid.yaml", "--report") == 0
    monkeypatch.delattr("nasgrow.cli.map.train_cell")
    capsys.readouterr()
    for name in ("runs.parquet", "summary.json"):
        file = Path("reports/grid") / name
        whole = file.read_bytes()
        file.write_text("{}")
        assert call(monkeypatch, "map", "grid.yaml") == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{name}: is damaged" in line
        assert "; remove the folder reports/grid, " in line
        file.write_bytes(whole)


def test_the_compute_saved_is_read_off_the_whole_row(place: Path) -> None:
    study = {**fields()["study"], "baselines": {"budgets": []}}
    budgets = [10, 20, 40]
    (place / "grid.yaml").write_text(yaml.safe_dump(fields(tokens_per_parameter=budgets, study=study)))
    final = {10: [2.0, 2.02, 2.01], 20: [1.8, 1.81, 1.82], 40: [1.65, 1.66, 1.64]}
    ours = {10: [1.9, 1.92, 1.91], 20: [1.7, 1.71, 1.69], 40: [1.6, 1.61, 1.6]}
    for tokens in budgets:
        recorded = begin(place, f"h16-n2-t{tokens}")
        recorded.confirm("search 1", GROWN, ours[tokens])
        recorded.confirm("baseline 1", FINAL_ALONE, final[tokens], first=10)
    found = maps.load_map(place / "grid.yaml")
    records = read_map(found, place / "reports" / "grid")
    first, second, last = (one.final.saved for one in records.cells if one.final and one.final.saved)
    mean = {tokens: fmean(losses) for tokens, losses in final.items()}
    assert [round(rung.times, 3) for rung in first.rungs] == [1, 2, 4]
    assert [round(rung.times, 3) for rung in second.rungs] == [0.5, 1, 2]
    assert first.times == pytest.approx(2 ** ((mean[10] - fmean(ours[10])) / (mean[10] - mean[20])), rel=1e-3)
    assert second.times == pytest.approx(
        2 ** ((mean[20] - fmean(ours[20])) / (mean[20] - mean[40])), rel=1e-3
    )
    assert last.above
    assert last.times is None
    said = weaknesses(records)
    assert any("h16-n2-t40: The budget at which the final shape from scratch has" in line for line in said)
    assert not any("is not known: that rival was trained with one budget only" in line for line in said)
    chord = (mean[10] + mean[40]) / 2 - mean[20]
    assert any(f"gives {words.signed(chord)} on average" in line for line in said)
    shutil.rmtree(place / "runs" / "grid" / "h16-n2-t20")
    alone, *_ = read_map(found, place / "reports" / "grid").cells
    assert alone.final is not None
    assert alone.final.saved is not None
    assert [round(rung.times, 3) for rung in alone.final.saved.rungs] == [1, 4]


def test_losses_at_equal_seconds_are_read_off_the_row_for_both_rivals(place: Path) -> None:
    one, rival = judged(place)
    level = {"final": 2.0, "fixed": 1.9}

    def result(cell: maps.Cell) -> dict[str, Any]:
        """At each doubling of the budget the rivals lose a tenth; the schedule is at 1.85 everywhere."""
        down = math.log2(cell.tokens_per_parameter / 10) / 10
        rivals = {
            name: replace(
                rival, shape=name, seconds=1.5, rungs=(Rung(1.0, dict.fromkeys((1, 2, 3), (loss - down,))),)
            )
            for name, loss in level.items()
        }
        return {**rivals, "losses": {1: (1.84,), 2: (1.85,), 3: (1.86,)}}

    study = {**fields()["study"], "baselines": {"budgets": []}}
    found = published({"tokens_per_parameter": [10, 20, 40], "study": study}, one, result)
    first, _, last = read_map(found, Path("reports/grid")).cells
    for name, loss in level.items():
        there = getattr(first, name)
        assert there.at_equal_seconds.value == pytest.approx(1.85 - (loss - 0.1 * math.log2(1.5)))
        assert there.saved.times == pytest.approx(2 ** (10 * (loss - 1.85)), rel=1e-3)
        assert getattr(last, name).at_equal_seconds is None, "no budget takes 1.5 times as long"


def published(
    changes: dict[str, Any], one: CellResult, result: Callable[[maps.Cell], dict[str, Any]]
) -> maps.GrowthMap:
    """Write a map file and a report whose cells are like one, but for what ``result`` changes."""
    Path("grid.yaml").write_text(yaml.safe_dump(fields(**changes)))
    found = maps.load_map(Path("grid.yaml"))
    cells = tuple(
        replace(one, name=cell.name, study=dump_study(cell.study.config), **result(cell))
        for cell in found.cells
    )
    report = Path("reports/grid")
    write_map(found, report)
    content = to_json(summarised(MapRecords("grid", found, cells, {})), indent=2)
    (report / "summary.json").write_text(content)
    assert read_map(found, report).cells == along_rows(found, cells)
    return found


def judged(place: Path) -> tuple[CellResult, Rival]:
    """The result of a cell, and of it the final shape; the cell's runs are removed."""
    confirmed(place)
    (one,) = read_map(maps.load_map(Path("grid.yaml")), Path("reports/grid")).cells
    shutil.rmtree("runs")
    assert one.final is not None
    return one, one.final


@pytest.mark.parametrize("seeds", [5, 15])
def test_a_whole_map_with_many_seeds_reads_back(seeds: int, place: Path) -> None:
    one, final = judged(place)
    losses = {seed: tuple(2.0 + seed / 7 + part / 13 for part in range(16)) for seed in range(1, seeds + 1)}
    rival = replace(final, rungs=tuple(Rung(times, losses) for times in (0.5, 1.0, 2.0)))
    changes = {"tokens_per_parameter": [*range(10, 35)]}
    assert len(published(changes, one, lambda cell: {"final": rival, "fixed": rival}).cells) == 25
    size = Path("reports/grid/summary.json").stat().st_size
    assert (size > MOST_BYTES) == (seeds == 15), "the usual limit of a file is not that of a summary"


def test_predictions_are_those_of_the_confirmed_cells(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one, final = judged(place)

    def result(cell: maps.Cell) -> dict[str, Any]:
        """Growth saves half at 10 tokens, and less beyond; some cells are bounds or have no curve.

        Each cell has a text of its own, and so its own curve, on which the loss falls with log budget.
        """
        hidden, tokens = cell.shape.hidden, cell.tokens_per_parameter
        times = 20 / tokens * (1.05 if hidden == 16 else 0.95) * (1.02 if tokens in (10, 40) else 1)
        if hidden == 32 and tokens == 80:
            return {"final": None, "fixed": None, "diverged": True, "schedule": None, "loss": None}
        budgets = (1.0,) if hidden == 16 and tokens == 80 else (0.45, 1.0, 3.0)
        losses = {1: (0.002 - math.log(times),), 2: (-0.002 - math.log(times),), 3: (-math.log(times),)}
        rungs = tuple(Rung(at, dict.fromkeys((1, 2, 3), (-math.log(at),))) for at in budgets)
        return {"texts": (cell.name,), "losses": losses, "final": replace(final, rungs=rungs)}

    finals = [FINAL, {**FINAL, "hidden": 32}, {**FINAL, "hidden": 64}]
    budgets = [5, 10, 12, 15, 20, 25, 50, 80]
    found = published({"final": finals, "tokens_per_parameter": budgets}, one, result)
    records = read_map(found, Path("reports/grid"))
    kinds = [cell.bound for cell in fit(records).cells]
    assert [kinds.count(kind) for kind in ("exact", "above", "below")] == [15, 3, 4]
    assert unfitted(records) == {
        "no other budget of the final shape is confirmed": ["h16-n2-t80"],
        "every schedule diverged": ["h32-n2-t80"],
    }
    assert call(monkeypatch, "map", "grid.yaml", "--predict", "32", "2", "13") == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith(
        "h=32, N=2, 13 tokens per parameter: the final shape needs 1.5 times the compute (95%"
    )
    assert "so growth saves 3" in line
    assert call(monkeypatch, "map", "grid.yaml", "--predict", "64", "2", "100000") == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert "100000 tokens per parameter (outside the map's sizes): the final" in line
    assert "so growth saves less than −900%" in line
    assert call(monkeypatch, "map", "grid.yaml", "--report") == 0
    text = Path("reports/grid/report.md").read_text()
    assert "The fit leaves out h32-n2-t80: every schedule diverged." in text
    assert "h32-n2-t80 | test | diverged" in text
    assert "The mean error is a factor of 1" in text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["64", "8", "nan"], "above 0 and at most 1,000,000, not nan"),
        (["64", "8", "inf"], "not inf"),
        (["64", "8", "0"], "not 0"),
        (["64", "1001", "5"], "1<=x<=1000"),
        (["10000000000", "8", "5"], "1<=x<=1000000000"),
        (["64", "8", "5", "--plan"], "cannot be combined"),
        (["64", "8", "5", "--report"], "cannot be combined"),
    ],
)
def test_a_prediction_of_nothing_possible_is_refused(
    place: Path,
    options: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert call(monkeypatch, "map", "grid.yaml", "--predict", *options) == 2
    assert said in capsys.readouterr().err


def test_alike_weaknesses_are_one_sentence_with_the_largest_as_an_example(place: Path) -> None:
    one, _ = judged(place)
    cells = tuple(
        replace(one, name=name, weaknesses=(f"It spent {times} times the tokens.",))
        for name, times in (("first", "1.2"), ("second", "1,100.5"), ("third", "3"))
    )
    found = MapRecords("grid", maps.load_map(Path("grid.yaml")), cells, {})
    assert weaknesses(found)[-1] == "every cell, for example second: It spent 1,100.5 times the tokens."


def test_a_prediction_needs_cells(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(place)
    assert call(monkeypatch, "map", "grid.yaml", "--predict", "64", "8", "20") == 2
    assert "too few cells to fit" in capsys.readouterr().err


def test_a_cell_whose_schedules_all_diverged_is_lost_and_a_changed_file_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begin(place)
    assert (
        figures.differences(read_map(maps.load_map(place / "grid.yaml"), place / "reports" / "grid")) is None
    ), "candidates are no map"
    recorded = begin(place, "h16-n2-t20")
    for seed in (1, 2, 3):
        recorded.add("confirmation", seed, GROWN, [None], seeds=[seed], name="search 1", status="diverged")
    recorded.confirm("baseline 1", FINAL_ALONE, [1.9, 1.91, 1.92], first=10)
    assert call(monkeypatch, "map", "grid.yaml", "--report") == 0
    assert "in 0 of 1 confirmed cell" in capsys.readouterr().out
    records = read_map(maps.load_map(place / "grid.yaml"), place / "reports" / "grid")
    for drawn in (figures.savings(records), figures.differences(records)):
        assert drawn is not None
        assert [text.get_text() for text in drawn.axes[0].texts] == ["diverged"]
        assert not drawn.axes[0].patches
    assert "h16-n2-t20 | test | diverged" in (place / "reports" / "grid" / "report.md").read_text()
    (place / "grid.yaml").write_text(yaml.safe_dump(fields(final=[{**FINAL, "mlp": 64}])))
    assert call(monkeypatch, "map", "grid.yaml", "--report") == 2
    assert (
        "h16-n2-t10: was started with other settings than the map file has: final" in capsys.readouterr().err
    )


def test_the_map_of_the_checkout_has_25_cells() -> None:
    found = maps.load_map(Path(__file__).parents[2] / "studies" / "map.yaml")
    assert [[cell.study.config.training.batch_tokens for cell in row] for row in found.grid] == [
        [256, 256, 256, 512, 512],
        [512, 512, 1024, 1024, 1024],
        [1024, 1024, 2048, 2048, 4096],
        [512, 1024, 1024, 2048, 2048],
        [1024, 1024, 2048, 2048, 4096],
    ]


def test_cells_are_searched_and_confirmed_one_after_the_other(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done: list[tuple[str, Path]] = []

    def search(study: ResolvedStudy, folder: Path, *rest: object) -> bool:
        done.append(("search", folder))
        return len(done) < 3

    def confirm(
        study: ResolvedStudy, folder: Path, *rest: object, **options: object
    ) -> tuple[bool, list[object]]:
        done.append(("confirm", folder))
        assert options == {"top": 1, "each": None, "seeds": 3}
        return True, []

    monkeypatch.setattr(maps, "search", search)
    monkeypatch.setattr(maps, "confirm", confirm)
    assert call(monkeypatch, "map", "grid.yaml") == 130, "the user stopped the second cell"
    cells = [Path("runs/grid/h16-n2-t10"), Path("runs/grid/h16-n2-t20")]
    assert done == [("search", cells[0]), ("confirm", cells[0]), ("search", cells[1])]
    assert "the same command resumes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"final": []}, "final"),
        ({"final": [FINAL, FINAL]}, "two cells would be called 'h16-n2-t10'"),
        ({"tokens_per_parameter": [-1]}, "tokens_per_parameter"),
        ({"study": {"budget": {"flops": 1e9}}}, "study.budget: every cell has its own"),
        ({"confirm": {"seeds": 1}}, "confirm.seeds"),
    ],
)
def test_a_mistake_in_a_map_is_one_line(
    place: Path,
    changes: dict[str, Any],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (place / "grid.yaml").write_text(yaml.safe_dump(fields(**changes)))
    assert call(monkeypatch, "map", "grid.yaml", "--plan") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
