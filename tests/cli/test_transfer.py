"""``transfer``, as a user calls it."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import yaml

from nasgrow.cli import report
from nasgrow.cli.files import load_run
from nasgrow.cli.transfer import aimed
from nasgrow.experiments.transfer import Target, same_ratio, scaled
from nasgrow.flops import parameter_count, step_flops
from nasgrow.operators import Stack
from nasgrow.report.findings import find
from nasgrow.report.summary import summarise
from nasgrow.spaces.training import PEAK
from nasgrow.study.config import dump_study, load_study
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import read_trials
from tests.cli.calling import call
from tests.executors.inline import InlineExecutor
from tests.report.studies import FINAL_ALONE, GROWN, usual
from tests.study.studies import study_data

NAME = "small-to-h24-N2-1.2e08"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a run file, and the summary of the report that it would come from."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path.parent / "transfer-cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    study = study_data(tmp_path)
    run = {name: study[name] for name in ("budget", "data", "training")}
    (tmp_path / "best-schedule.yaml").write_text(yaml.safe_dump({"schedule": GROWN, **run}))
    return tmp_path


def report_beside(place: Path) -> None:
    """Put the summary of a recorded study beside the run file; growth is 0.1 ahead there."""
    recorded = usual(place / "study")
    recorded.confirm("search 1", GROWN, [1.8, 1.81, 1.82])
    recorded.confirm("baseline 1", FINAL_ALONE, [1.9, 1.91, 1.92], first=10)
    summary = summarise(find(recorded.study, recorded.folder))
    (place / "summary.json").write_text(json.dumps(summary))


def test_a_schedule_is_judged_at_its_new_shape(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    report_beside(place)
    options = [
        "--final",
        "hidden=24,mlp=48",
        "--budget",
        "1.2e8",
        "--learning-rates",
        "0.006",
        "--seeds",
        "2",
    ]
    capfd.readouterr()
    assert call(monkeypatch, "transfer", "best-schedule.yaml", *options, "--plan") == 0
    planned = capfd.readouterr().out
    assert "start h=12, N=1: 1×[p=24, heads 1×(k=4, v=4)]\nat 0.2: hidden 24, mlp 48\n" in planned
    assert "learning rates 0.006 for its final shape from scratch; then this schedule, and fixed" in planned
    assert "test loss 0.1000 lower (95% interval −0.1" in planned
    assert not (place / "runs").exists()

    monkeypatch.setattr("nasgrow.experiments.search.LocalExecutor", InlineExecutor)
    assert call(monkeypatch, "transfer", "best-schedule.yaml", *options, "--workers", "1") == 0
    assert capfd.readouterr().out.rstrip().endswith(f"reports/{NAME}/index.html")
    records = read_trials(place / "runs" / NAME)
    found = Counter((record.kind, record.name) for record in records)
    assert found["baseline", "final"] == found["search", "transferred"] == found["search", "no growth"] == 1
    assert found["confirmation", "search 0"] == found["confirmation", "baseline 0"] == 2
    assert found["fixed", None] >= 2, "as much compute for fixed shapes"
    assert {record.learning_rate for record in records} == {0.006}
    assert all(record.test for record in records if record.kind == "confirmation")
    summary = json.loads((place / "reports" / NAME / "summary.json").read_text())
    assert summary["verdict"]["confirmed"]
    assert summary["verdict"]["comparisons"][0]["rival"] == "the final shape from scratch"
    assert "Transferred from small" in (place / "reports" / NAME / "index.html").read_text()

    monkeypatch.setattr(report, "run", lambda path, to, quiet: 0)
    before = {path: path.stat().st_mtime_ns for path in (place / "runs").rglob("result.json")}
    assert call(monkeypatch, "transfer", "best-schedule.yaml", *options, "--workers", "1") == 0
    assert {path: path.stat().st_mtime_ns for path in (place / "runs").rglob("result.json")} == before


def test_operators_come_along() -> None:
    file = Path(__file__).parents[2] / "studies" / "schedules" / "gradual-stacking.yaml"
    config, moved = aimed(file, Target(None, 2.0, 1e13, None, (), None))
    assert [event.operator for event in moved.events] == [Stack(), Stack()]
    bound = ResolvedStudy.resolve(config, "it").space
    assert moved in [bound.at(point).schedule for point in bound.known.values()]


def test_the_budget_follows_the_shape(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight times the layers' parameters, as many tokens for each."""
    assert call(monkeypatch, "transfer", "best-schedule.yaml", "--scale", "2", "--plan") == 0
    config = load_run(place / "best-schedule.yaml")
    old, variant = config.schedule.final, config.variant.resolve(vocab=256, context=16)
    per_token = step_flops(old, variant, 4) / 64
    expected = 8e7 / per_token / parameter_count(old, variant)
    assert same_ratio(config, variant).tokens_per_parameter == pytest.approx(expected, rel=1e-3)
    new = scaled(old, 2)
    flops = same_ratio(config, variant).resolve(new, variant, config.training)
    tokens = flops / (step_flops(new, variant, 4) / 64)
    assert tokens / parameter_count(new, variant) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "it has that final shape already: give another one, or another budget"),
        (["--final", "hidden=24", "--scale", "2"], "give --final or --scale, not both"),
        (["--final", "width=24"], "--final: must be sizes of hidden, layers, mlp, heads, key, value"),
        (["--scale", "inf"], "--scale: must be a finite number above 0, not inf"),
        (["--scale", "nan"], "--scale: must be a finite number above 0, not nan"),
        (["--scale", "1e308"], "--scale: 1e+308 would take more than 1e+12 parameters"),
        (["--scale", "1e4"], "--scale: heads must be at most 1000, not 20000"),
        (
            ["--final", "hidden=1,mlp=1,layers=999999999"],
            "--final: layers must be at most 1000, not 999999999",
        ),
        (["--final", f"hidden={'9' * 5000}"], "--final: must be sizes of hidden, layers, mlp, heads"),
        (["--final", "hidden=999999999,mlp=999999999"], "--final: the shape would have more than 1e+12"),
        (["--final", "hidden=0"], "--final: hidden must be a positive integer, not 0"),
        (["--final", "hidden=9,hidden=8"], "--final: hidden stands twice"),
        (["--final", "none.yaml"], "none.yaml: cannot be read: no such file or directory"),
        (
            ["--budget", "1e8", "--tokens-per-parameter", "3"],
            "exactly one of flops, tokens, tokens_per_parameter",
        ),
        (["--budget", "-1"], "--budget, --tokens-per-parameter: flops: input should be greater than 0"),
        (["--budget", "1e6"], "best-schedule.yaml: budget: 1e+06 FLOPs are too few"),
        (["--scale", "2", "--name", "a b"], "must consist of letters"),
        (["--scale", "2", "--learning-rates", "0"], "must be numbers above 0, separated by commas, not '0'"),
        (["--final", "hidden=1,layers=1,mlp=1,heads=1"], "nothing of its growth is left at h=1, N=1"),
    ],
)
@pytest.mark.usefixtures("place")
def test_what_cannot_be_is_refused(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert call(monkeypatch, "transfer", "best-schedule.yaml", *options) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert message in line
    assert not Path("runs").exists()


@pytest.mark.usefixtures("place")
def test_another_study_is_not_written_over(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for start, message in (
        ({**study_data(place)}, "it.yaml: is another study (name: 'it' became"),
        ({"schedule": GROWN}, "it.yaml: is not a study"),
    ):
        (place / "it.yaml").write_text(yaml.safe_dump(start))
        assert call(monkeypatch, "transfer", "best-schedule.yaml", "--scale", "2", "--out", "it.yaml") == 2
        assert message in capfd.readouterr().err
        assert yaml.safe_load((place / "it.yaml").read_text()) == start


def test_a_schedule_that_does_not_grow_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (place / "still.yaml").write_text(yaml.safe_dump({"start": GROWN["start"]}))
    assert call(monkeypatch, "transfer", "still.yaml", "--scale", "2") == 2
    assert "still.yaml: the schedule has no event: there is no growth to transfer" in capfd.readouterr().err


def test_its_study_file_is_a_study_file(place: Path) -> None:
    config, schedule = aimed(place / "best-schedule.yaml", Target(None, 2.0, None, None, (), None))
    (place / "written.yaml").write_text(dump_study(config))
    assert load_study(place / "written.yaml") == config
    assert config.tune[PEAK] == [0.003, 0.006, 0.012]
    assert config.trials == 2
    assert schedule.final.hidden == 32


def test_other_budgets_measure_what_growth_saves(place: Path) -> None:
    config, _ = aimed(place / "best-schedule.yaml", Target(None, 2.0, None, None, (), None, (3.0, 2.0, 3.0)))
    assert config.baselines.budgets == [2.0, 3.0]


def test_rates_lie_around_the_best_of_both(place: Path) -> None:
    """The schedule's file says 0.006; make it 0.024, where the report's final shape was best at 0.006."""
    run = yaml.safe_load((place / "best-schedule.yaml").read_text())
    run["training"]["learning_rate"] = {"peak": 0.024}
    (place / "best-schedule.yaml").write_text(yaml.safe_dump(run))
    report_beside(place)
    config, _ = aimed(place / "best-schedule.yaml", Target(None, 2.0, None, None, (), None))
    assert config.tune[PEAK] == [0.003, 0.006, 0.012, 0.024, 0.048]
