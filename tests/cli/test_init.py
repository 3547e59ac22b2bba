from __future__ import annotations

from pathlib import Path

import pytest

from nasgrow.cli.init import number
from nasgrow.errors import UserError
from nasgrow.strict import read_mapping
from nasgrow.study.config import load_study
from tests.cli.calling import call
from tests.data.corpora import sentences


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with one text file; how long a study takes is not simulated."""
    monkeypatch.setattr("nasgrow.experiments.init_study._hours", lambda study, pace: 1e10 / pace)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path / "cache"))
    (tmp_path / "book.txt").write_text("".join(sentences(400)), encoding="utf-8")
    return tmp_path


@pytest.mark.usefixtures("book")
def test_a_study_file_is_written_and_the_commands_that_follow_are_printed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "init", "mine", "--text", "book.txt", "--params", "12k") == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[-3:] == [
        "  nasgrow search mine.yaml",
        "  nasgrow confirm mine.yaml",
        "  nasgrow report mine.yaml",
    ]
    assert "Baselines and search take about" in said.out
    assert "one text cut by position into 90 pieces" in said.out
    text = Path("mine.yaml").read_text(encoding="utf-8")
    assert text.startswith("# yaml-language-server: $schema=nasgrow.schema.json\n")
    assert Path("nasgrow.schema.json").is_file()
    study = load_study(Path("mine.yaml"))
    assert (study.name, study.trials) == ("mine", 16)
    assert read_mapping(Path("mine.yaml"))["data"]["text"]["paths"] == ["book.txt"]

    assert call(monkeypatch, "init", "mine", "--text", "book.txt", "--params", "12k") == 2
    assert capsys.readouterr().err == "nasgrow: mine.yaml: exists already: choose another name\n"


@pytest.mark.usefixtures("book")
def test_it_asks_on_a_terminal_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "init") == 2
    assert capsys.readouterr().err.startswith("nasgrow: --text: is missing: nasgrow init my-study --text")
    answers = {"Name": "asked", "Text": "book.txt", "Parameters": "12k", "Hours": 1000.0}
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("click.prompt", lambda question, **_: answers[question.split()[0].rstrip(":")])
    assert call(monkeypatch, "init") == 0
    assert load_study(Path("asked.yaml")).budget.tokens_per_parameter == 20


def test_sizes_are_written_as_people_do() -> None:
    given = ("45504", "45k", "10M", "1.5e6", "1B", "1_000", "2,000", "1,000,000")
    assert [number(size) for size in given] == [45504, 45e3, 1e7, 1.5e6, 1e9, 1000, 2000, 1e6]
    for wrong in (
        "many",
        "10MB",
        "-3",
        "1..2",
        "",
        "1,5M",
        "1,50",
        "1,2345",
        "0,500M",
        "1234,567",
        "45.504,000",
    ):
        with pytest.raises(UserError, match=r"^--params: must be a number such as"):
            number(wrong)
