"""No command writes into a folder that is something else, whatever names it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.cli.calling import call
from tests.study.studies import study_data
from tests.training.runs import SCHEDULE

FOLDERS = {
    "run": ["description.json", "tokenizer.json", "metrics.jsonl"],
    "study": ["study.yaml", "study.db"],
    "family": ["family.yaml", "runs/ab/description.json"],
    "sloped": ["policy.yaml", "schedule.yaml"],
    "prefixes": [".locks/abc", "ab/abcd/about.json"],
    "other": ["thesis.tex"],
    "export": ["model.safetensors", "shape.json", "tokenizer.json"],
}
"""Folders in runs, by what is in them."""


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def place(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with files that describe a run, a policy and studies, and a folder of each kind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NASGROW_CACHE", str(cache))
    study = study_data(tmp_path)
    run = {name: study[name] for name in ("budget", "data", "training")} | {"schedule": SCHEDULE}
    first, second = SCHEDULE["events"]
    policy = {**run, "schedule": {**SCHEDULE, "events": [{**first, "slope": -1}, second]}}
    for name, document in (("run", run), ("policy", policy)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(document))
    for name in FOLDERS:
        if name != "prefixes":
            (tmp_path / f"{name}-study.yaml").write_text(yaml.safe_dump({"name": name, **study}))
    for folder, files in FOLDERS.items():
        for file in files:
            path = tmp_path / "runs" / folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{folder}'s")
    (tmp_path / "runs" / "study" / "study.yaml").write_text((tmp_path / "other-study.yaml").read_text())
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("a site's")
    return tmp_path


def named(command: str, *names: str) -> list[list[str]]:
    return [[*command.split(), "--name", name] for name in names]


@pytest.mark.parametrize(
    "arguments",
    [
        *named("slope policy.yaml", "prefixes", "run", "study", "family", "other"),
        *named("family run.yaml --seeds 1", "prefixes", "run", "study", "sloped", "other"),
        *named("transfer run.yaml --scale 2", "prefixes", "run", "study", "family", "sloped", "other"),
        ["transfer", "run.yaml", "--scale", "2", "--to", "site"],
        *[
            ["train", "run.yaml", "--out", f"runs/{name}"]
            for name in ("prefixes", "study", "family", "sloped", "other", "export")
        ],
        *[["search", f"{name}-study.yaml"] for name in ("run", "family", "sloped")],
    ],
    ids=" ".join,
)
def test_it_is_refused_in_one_line_and_nothing_is_touched(
    place: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    def files() -> dict[Path, bytes | None]:
        kept = [path for path in place.rglob("*") if "search-text" not in path.parts]
        return {path: path.read_bytes() if path.is_file() else None for path in kept}

    before = files()
    assert call(monkeypatch, *arguments) == 2
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("nasgrow: ")]
    assert arguments[-1].removesuffix("-study.yaml") in line
    assert "another" in line, "it says what to do"
    assert files() == before
