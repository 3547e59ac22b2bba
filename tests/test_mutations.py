"""Files with mistakes of all kinds: whatever is refused is refused in one short line that names the file."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from nasgrow.config import load_run
from nasgrow.errors import MAX_MESSAGE, UserError
from nasgrow.spaces import load_space
from nasgrow.strict import with_prefix
from nasgrow.study.config import load_study
from nasgrow.study.study import ResolvedStudy
from nasgrow.training.run import Run

START = {"hidden": 8, "layers": 1, "mlp": 16, "heads": 1, "key": 4, "value": 4}
LAYERS = [{"mlp": 16, "heads": [{"count": 1, "key": 4, "value": 4}]}, {"count": 2, **START}]
for name in ("hidden", "layers"):
    LAYERS[1].pop(name)  # type: ignore[attr-defined]
SCHEDULE: dict[str, Any] = {
    "start": START,
    "events": [
        {"at": 0.2, "grow": [{"expand": "hidden", "to": 16}, {"expand": "mlp", "to": 32, "layers": [0]}]},
        {"at": 0.4, "operator": "net2net", "grow": [{"expand": "layers", "at": [1, 1]}]},
        {
            "at": 0.6,
            "grow": [{"expand": "heads", "to": 2, "key": 4}, {"expand": "key", "to": 8, "heads": [0]}],
        },
    ],
}
SHARED: dict[str, Any] = {
    "budget": {"flops": 1e10},
    "data": {
        "text": {"source": "files", "paths": ["*.txt"], "column": "text"},
        "tokens": {"kind": "bpe", "vocab": 300},
        "validation": 0.1,
    },
    "variant": {"activation": "gelu", "gated": True, "positions": "rope", "queries": 2, "epsilon": 1e-5},
    "training": {
        "context": 16,
        "batch_tokens": 64,
        "micro_tokens": 32,
        "learning_rate": {"peak": 0.01, "rewarm": 0.1},
        "operator": {"width": "preserve", "depth": {"kind": "stack"}},
        "evaluations": 20,
    },
}
SPACE: dict[str, Any] = {
    "kind": "slots",
    "start": {"hidden": [1, 0.5], "layers": {"low": 0.5, "high": 1, "step": 0.5}},
    "slots": 2,
    "choices": {"none": [], "both": ["hidden", "layers"]},
    "factor": [2],
    "layers": ["all"],
    "order": ["top", "middle"],
    "times": {"low": 0.1, "high": 0.7, "step": 0.1},
    "training": {"learning_rate.rewarm": {"low": 0.001, "high": 0.1, "log": True}},
    "known": {"half": {"start.hidden": 0.5}},
}
OPEN: dict[str, Any] = {
    "kind": "per-dimension",
    "dims": {"hidden": {"start": [1, 0.5]}, "mlp": {"start": [1, 0.25]}},
    "steps": 2,
    "final": {"hidden": [8, 16], "mlp": [2], "heads": [1, 2], "key": [4], "value": [4], "max_layers": 3},
}
STUDY: dict[str, Any] = {
    "name": "small",
    "final": {**START, "hidden": 16, "layers": 2},
    **SHARED,
    "training": {**SHARED["training"], "operator": "preserve"},
    "space": SPACE,
    "objectives": ["loss"],
    "sampler": {"kind": "tpe", "startup": 5},
    "pruner": {"kind": "asha", "after": 0.2},
    "trials": 3,
    "seeds": [0, 1],
    "tune": {"learning_rate.peak": [0.01, "x2"], "batch_tokens": ["x1"]},
    "baselines": {"compute": 0.5, "budgets": [2]},
    "resources": {"cpus": 1, "gigabytes": 2},
    "prefix_cache": {"gigabytes": 1, "folder": "prefixes"},
    "storage": "sqlite:///x.db",
}
FIXED = {**STUDY, "space": {"kind": "fixed", "schedules": {"a": {"start": STUDY["final"]}, "b": "run.yaml"}}}


def as_run(path: Path) -> None:
    config = load_run(path)
    with_prefix(str(path), lambda: Run.resolve(config, vocab=256, fingerprint=""))


def as_space(path: Path) -> None:
    load_space(str(path), "study.yaml: space", Path())


def as_study(path: Path) -> None:
    ResolvedStudy.resolve(load_study(path), str(path))


DOCUMENTS: dict[str, tuple[dict[str, Any], Callable[[Path], None]]] = {
    "schedule": (SCHEDULE, as_run),
    "unequal layers": ({"start": {"hidden": 8, "layers": LAYERS}}, as_run),
    "run": ({"schedule": SCHEDULE, **SHARED, "seed": 3}, as_run),
    "slots": (SPACE, as_space),
    "open space": (OPEN, as_space),
    "study": (STUDY, as_study),
    "fixed study": (FIXED, as_study),
}
VALUES: list[Any] = [
    *(None, True, 0, -1, 1, 3, 2.5, 1e308, 1e-320, 2**63, 10**30, 10**400, float("inf"), float("nan")),
    *("", "x", "a\nb", "x" * 20_000, "?token" * 100, "\x1b[31m", "../..", "/dev/zero", "~nobody/x", "a\0b"),
    *([], [None], [1, 2], [[]], [{}], {}, {"a": 1}, {1: 2}, {None: [1]}, {"kind": "x"}, {"kind": "file"}),
    *({"kind": "file", "path": "/dev/zero"}, {"source": "files", "paths": ["\0"]}, {"python": "a:b"}),
]
PIECES = [
    "\0",
    "{",
    "[",
    "*a",
    "&a ",
    "\t",
    "'",
    ": ",
    "- ",
    "!!int ",
    "\x80",
    "%",
    "@",
    "|",
    "? ",
    "<<: ",
    "1e",
]
KEYS: list[Any] = ["x", 1, None, True, 2.5, "x" * 5_000, "kind", "<<", "?token=a"]


def places(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything in a document but of itself."""
    for key in range(len(data)) if isinstance(data, list) else data if isinstance(data, dict) else ():
        yield (*at, key)
        yield from places(data[key], (*at, key))


def mutated(document: dict[str, Any], draw: random.Random) -> str:
    """A document in YAML with one or two mistakes: left out, renamed, another value, or other signs."""
    data = copy.deepcopy(document)
    for _ in range(draw.choice([1, 1, 1, 2])):
        *way, last = draw.choice(list(places(data)) or [(None,)])
        parent: Any = data
        for key in way:
            parent = parent[key]
        how = draw.randrange(5)
        if how == 0 and last is not None:
            del parent[last]
        elif how == 1 and isinstance(parent, dict):
            parent[draw.choice(KEYS)] = parent.pop(last, 1)
        else:
            parent[last] = copy.deepcopy(draw.choice(VALUES))
    text: str = yaml.safe_dump(data)
    if draw.random() < 0.15:
        at = draw.randrange(len(text))
        text = text[:at] + draw.choice(PIECES) + text[at + draw.randrange(3) :]
    return text


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_refusal_is_one_short_line_that_names_the_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({"start": STUDY["final"]}), encoding="utf-8")
    document, read = DOCUMENTS[name]
    path = tmp_path / "given.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    read(path)  # it is right
    draw = random.Random(name)
    came = Counter[str]()
    for _ in range(60):
        text = mutated(document, draw)
        path.write_text(text, encoding="utf-8")
        try:
            read(path)
        except UserError as error:
            told = str(error)
            assert "given.yaml" in told, text
            assert len(told) <= MAX_MESSAGE, text
            assert told.splitlines() == [told], text
            came["refused"] += 1
        except BaseException as bug:
            raise AssertionError(f"not refused but failed:\n{text[:2000]}") from bug
        else:
            came["accepted"] += 1
    assert came["refused"] > 30
