"""The Python front door: what its docstrings and pages show is run."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest

import nasgrow
from nasgrow import api
from nasgrow.errors import UserError
from tests.data.corpora import sentences
from tests.executors.inline import InlineExecutor

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module", autouse=True)
def undrawn() -> Iterator[None]:
    """Figures of single runs take most of the time of a study as small as these."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("nasgrow.api.draw_curve", lambda folder, path: path.touch())
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("api")
    (folder / "book.txt").write_text("".join(sentences(400)), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def study(place: Path) -> nasgrow.Study:
    """The study of the docstring's example, searched and confirmed in threads of this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("NASGROW_CACHE", str(place / "cache"))
        patch.setattr("nasgrow.experiments.search.LocalExecutor", InlineExecutor)
        found = doctest.DocTestFinder(recurse=False).find(api.Study, "Study", globs={"nasgrow": nasgrow})
        names: dict[str, nasgrow.Study] = {}
        assert run_example(found[0], keep=names) > 1
        return names["study"].confirm(top=1, seeds=1, progress=False)


def run_example(test: doctest.DocTest, keep: dict[str, nasgrow.Study] | None = None) -> int:
    """Run the example of a docstring; how many lines it has."""
    said: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(test, out=said.append, clear_globs=False)
    assert not said, "".join(said)
    if keep is not None:
        keep["study"] = test.globs["study"]
    return len(test.examples)


def test_a_study_has_its_best_its_trials_and_its_curves(
    study: nasgrow.Study, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    best = study.best
    assert best is not None
    assert best.confirmed
    assert best.schedule.final.hidden == 16
    trials, curves = study.trials, study.curves()
    assert {*trials.kind} == {"baseline", "search", "fixed", "confirmation"}
    confirmed = trials[(trials.kind == "confirmation") & (trials.name == best.trial.label)]
    assert best.loss == pytest.approx(confirmed.test.mean())
    assert {*curves.run} == {run for run in curves.run if (place / "runs/example/runs" / run).is_dir()}
    last = curves[(curves.kind == best.trial.kind) & (curves.number == best.trial.number)].iloc[-1]
    assert last.charged == best.trial.charged, "the last point is that of the last step"
    shown = study.optuna_study
    assert isinstance(shown, optuna.Study)
    assert len(shown.trials) == (trials.kind == "search").sum()
    page = study.report()
    assert page == Path("reports/example/index.html")
    assert page.is_file()
    assert repr(study) == "nasgrow.Study('example', in 'runs/example')"


def test_other_docstrings_show_what_works(
    study: nasgrow.Study, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    names = {"nasgrow": nasgrow}
    (test,) = doctest.DocTestFinder(recurse=False).find(api.Study.from_file, "from_file", globs=names)
    assert run_example(test) == 1
    (test,) = doctest.DocTestFinder(recurse=False).find(api.load, "load", globs=names)
    for one in test.examples:
        one.source = one.source.replace("my-study", "example")
    assert run_example(test) == 2


def test_a_run_an_export_and_a_study_are_loaded_alike(
    study: nasgrow.Study, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nasgrow.export import export

    monkeypatch.chdir(place)
    best = study.best
    assert best is not None
    run = best.run(study.folder)
    export(run, place / "exported")
    texts = {nasgrow.load(path).generate("a", tokens=30) for path in ("runs/example", run, "exported")}
    assert len(texts) == 1
    for path in (run, "exported"):
        assert nasgrow.load(path, context=32).model.variant.context == 32
        with pytest.raises(UserError, match=r"context: is 32 in .*, and cannot be 64"):
            nasgrow.load(path, context=64)
    (place / "exported" / "tokenizer.json").unlink()
    with pytest.raises(UserError, match="without a usable tokenizer"):
        nasgrow.load("exported").generate("a")


def test_a_bar_is_shown_and_a_study_of_a_file_is_resumed(
    study: nasgrow.Study, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("NASGROW_CACHE", str(place / "cache"))
    monkeypatch.setattr("nasgrow.experiments.search.LocalExecutor", InlineExecutor)
    again = nasgrow.Study.from_file("runs/example")
    many = len(again.trials)
    again.run()
    assert len(again.trials) == many
    assert "runs/example" in capsys.readouterr().err
    with pytest.raises(UserError, match="engine: must be 'local' or 'ray'"):
        again.run(engine="dask")


def test_importing_the_package_is_cheap_and_its_names_are_there() -> None:
    code = (
        "import sys, nasgrow; print({'torch', 'optuna', 'pandas', 'pydantic', 'numpy'} & sys.modules.keys())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout == "set()\n"
    for name in nasgrow.__all__:
        assert getattr(nasgrow, name) is not None
    assert {*nasgrow.__all__} <= {*dir(nasgrow)}
    with pytest.raises(AttributeError, match="no attribute 'Studi'"):
        _ = nasgrow.Studi


def test_a_confirmation_shows_how_many_runs_there_are(
    study: nasgrow.Study,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("NASGROW_CACHE", str(place / "cache"))
    monkeypatch.setattr("nasgrow.experiments.search.LocalExecutor", InlineExecutor)
    before = len(study.trials)
    study.confirm(top=1, seeds=2)
    shown = [(int(done), int(total)) for done, total in re.findall(r" (\d+)/(\d+) ", capsys.readouterr().err)]
    assert {total for _, total in shown} == {len(study.trials)}
    assert before <= min(shown)[0] < max(shown)[0] == len(study.trials)


EXAMPLES = (
    "README.md",
    "docs/how-to/notebooks.md",
    "docs/how-to/own-loop.md",
    "docs/explanation/preservation.md",
)
"""Pages whose first example runs as it is."""


@pytest.mark.parametrize("page", EXAMPLES)
def test_the_first_example_of_a_page_runs(page: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("NASGROW_CACHE", str(place / "cache"))
    monkeypatch.setattr("nasgrow.experiments.search.LocalExecutor", InlineExecutor)
    text = (ROOT / page).read_text(encoding="utf-8")
    example, *_ = re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    exec(example, {})
