"""The wheel and the sdist hold what a user needs, and the wheel works without the checkout."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
import yaml

import nasgrow

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
    assert {"nasgrow/py.typed", "nasgrow/report/page.css", f"{about}/licenses/LICENSE"} < names
    metadata = Parser().parsestr(wheel.read(f"{about}/METADATA").decode())
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Version"] == nasgrow.__version__
    assert not metadata.get_all("Project-URL")


def test_the_sdist_holds_what_the_wheel_is_built_from(built: Path) -> None:
    with tarfile.open(built / f"nasgrow-{nasgrow.__version__}.tar.gz") as sdist:
        top = {name.split("/")[1] for name in sdist.getnames()}
    assert {"nasgrow", "search_spaces", "studies", "docs", "tests", "pyproject.toml", "LICENSE"} < top


def test_the_citation_names_this_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == nasgrow.__version__
    assert f"## {nasgrow.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
