"""The words and names of the project: plain ones, each used once. `make check` runs this too."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = sorted((ROOT / "nasgrow").rglob("*.py"))
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])

WORDS = (
    "(is|are|was|be) told",
    "told of",
    "taken up",
    "given up",
    "nobody",
    "whoever",
    "(come|comes|came) to",
    "outdone",
    "at a loss",
    "(said|say|says) of",
)
"""Riddling words that no page, docstring, comment or message has: the field has usual ones for each."""
PATTERN = re.compile(rf"\b({'|'.join(WORDS)})\b", flags=re.IGNORECASE)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def found(text: str) -> list[str]:
    return [match[0] for match in PATTERN.finditer(" ".join(text.split()))]


def texts(source: str) -> Iterator[str]:
    """The docstrings, messages and comments of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def prose(page: Path) -> list[str]:
    """The lines of a page that are neither code nor table nor picture."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return [line for line in text.splitlines() if not line.lstrip().startswith(("|", "!["))]


def is_log(page: Path) -> bool:
    return page.parent.name == "log"


@pytest.mark.parametrize("text", ["It is told of\n  evaluations.", "what a run came to", "Nobody knows."])
def test_such_words_are_found(text: str) -> None:
    assert found(text)


@pytest.mark.parametrize("page", [page for page in PAGES if not is_log(page)], ids=name)
def test_pages_use_plain_words(page: Path) -> None:
    assert found(page.read_text(encoding="utf-8")) == []


def test_modules_use_plain_words() -> None:
    wrong = {
        name(path): words
        for path in MODULES
        if (words := [word for text in texts(path.read_text(encoding="utf-8")) for word in found(text)])
    }
    assert wrong == {}


@pytest.mark.parametrize("page", [page for page in PAGES if not is_log(page)], ids=name)
def test_lines_of_pages_fit_in_100_columns(page: Path) -> None:
    assert [line for line in prose(page) if len(line) > 100] == []


def defined(source: str) -> Iterator[str]:
    """The classes and constants that a module defines at its top level, but for private ones."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            named = {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
            yield from (one for one in named if re.fullmatch(r"[A-Z][A-Z0-9_]*", one))


def exceptions(source: str) -> Iterator[str]:
    """The classes of a module that are exceptions, by the names of their bases."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
            if any(re.fullmatch(r"\w*(Error|Exception|Interrupt|Exit)", base) for base in bases):
                yield node.name


def test_definitions_and_exceptions_are_found() -> None:
    source = "class A: pass\nB = 1\n_C = 2\nclass D(errors.UserError): pass\nE: int = 3\nP = TypeVar('P')\n"
    assert sorted(defined(source)) == ["A", "B", "D", "E", "P"]
    assert list(exceptions(source)) == ["D"]


def test_a_class_or_constant_has_a_name_of_its_own() -> None:
    places = defaultdict(list)
    for path in MODULES:
        for one in defined(path.read_text(encoding="utf-8")):
            if len(one) > 1:  # a type variable may be one letter
                places[one].append(name(path))
    assert {one: where for one, where in places.items() if len(where) > 1} == {}


def test_exceptions_are_called_errors() -> None:
    named = {one for path in MODULES for one in exceptions(path.read_text(encoding="utf-8"))}
    assert {one for one in named if not one.endswith("Error")} == set()
