"""The wheel and the sdist hold what a user needs, and the wheel works without the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
import yaml

import nasgrow
from nasgrow.study.config import load_study
from tests.data.corpora import sentences

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of this checkout."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(built / f"nasgrow-{nasgrow.__version__}-py3-none-any.whl")


def test_the_wheel_holds_the_package_and_its_licence(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "nasgrow").rglob("*.py")}
    about = f"nasgrow-{nasgrow.__version__}.dist-info"
    assert modules < names
    spaces = {f"nasgrow/spaces/builtin/{path.name}" for path in (ROOT / "search_spaces").glob("*.yaml")}
    assert spaces < names
    assert {
        "nasgrow/py.typed",
        "nasgrow/report/page.css",
        "nasgrow/report/page.js",
        f"{about}/licenses/LICENSE",
    } < names
    metadata = Parser().parsestr(wheel.read(f"{about}/METADATA").decode())
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Version"] == nasgrow.__version__
    assert not metadata.get_all("Project-URL")


STUDY = {
    "final": {"hidden": 16, "layers": 2, "mlp": 32, "heads": 2, "key": 8, "value": 8},
    "space": {
        "from": "compound",
        "dims": ["layers"],
        "start": [1, 0.5],
        "times": {"low": 0.2, "high": 0.6, "step": 0.2},
    },
    "budget": {"flops": 1e8},
    "tune": {"learning_rate.peak": [0.01]},
    "baselines": {"compute": 0, "budgets": []},
    "data": {"text": {"source": "files", "paths": ["book.txt"]}},
    "training": {"context": 32, "batch_tokens": 128, "evaluation_tokens": 512, "final_tokens": 2048},
    "trials": 2,
}

COMMANDS = """
import sys
from nasgrow.cli.main import cli
import nasgrow.experiments.forecast as forecast
assert "site" in forecast.__file__, forecast.__file__
forecast.DRAWS = 1  # a rough plan will do
for line in sys.argv[1:]:
    try:
        cli(line.split(), standalone_mode=False)
    except SystemExit as stop:
        assert not stop.code, line
"""


def test_the_wheel_runs_the_commands_of_the_readme_in_an_empty_folder(
    wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    site, here = tmp_path / "site", tmp_path / "here"
    wheel.extractall(site)
    here.mkdir()
    (here / "book.txt").write_text("".join(sentences(400)), encoding="utf-8")
    (here / "tiny.yaml").write_text(yaml.safe_dump(STUDY), encoding="utf-8")
    lines = [
        "spaces literature",
        "init mine --text book.txt --params 12k --hours 1",
        "plan tiny.yaml --no-time",
        "search tiny.yaml --workers 1 --quiet",
        "confirm tiny.yaml --top 1 --seeds 1 --workers 1 --quiet",
        "report tiny.yaml",
    ]
    own = {"PYTHONPATH": str(site), "NASGROW_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, *lines],
        cwd=here,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "kind: fixed" in done.stdout
    assert "  nasgrow search mine.yaml" in done.stdout
    assert done.stdout.splitlines()[-1] == "reports/tiny/index.html"
    assert (here / "reports" / "tiny" / "index.html").is_file()
    assert load_study(here / "mine.yaml").name == "mine"


def test_the_sdist_holds_what_the_wheel_is_built_from(built: Path) -> None:
    with tarfile.open(built / f"nasgrow-{nasgrow.__version__}.tar.gz") as sdist:
        top = {name.split("/")[1] for name in sdist.getnames()}
    assert {"nasgrow", "search_spaces", "studies", "docs", "tests", "pyproject.toml", "LICENSE"} < top


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == nasgrow.__version__
    assert f"## {nasgrow.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
