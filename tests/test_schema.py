"""The schemas accept every file of the checkout, and refuse what nasgrow refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from nasgrow.schema import File, schema_of
from nasgrow.strict import read_mapping

ROOT = Path(__file__).parents[1]
STUDY = read_mapping(ROOT / "studies" / "quickstart.yaml")
SCHEDULE = read_mapping(ROOT / "studies" / "schedules" / "depth-x2.yaml")


OTHERS = ("slope", "map")
"""Files of other kinds, which have no schema."""


def kind_of(path: Path) -> File:
    said = read_mapping(path)
    if path.parent.name == "search_spaces":
        return "space"
    if "final" in said:
        return "study"
    return "schedule" if "start" in said else "run"


def refused(file: File, data: object) -> bool:
    checker = jsonschema.Draft202012Validator(schema_of(file))
    checker.check_schema(checker.schema)
    return not checker.is_valid(data)


@pytest.mark.parametrize(
    "path",
    [
        *sorted((ROOT / "search_spaces").glob("*.yaml")),
        *(path for path in sorted((ROOT / "studies").rglob("*.yaml")) if path.stem not in OTHERS),
    ],
    ids=lambda path: path.stem,
)
def test_every_file_is_as_its_schema_says(path: Path) -> None:
    jsonschema.validate(read_mapping(path), schema_of(kind_of(path)), jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    ("file", "wrong"),
    [
        ("study", {**STUDY, "trails": 3}),
        ("study", {**STUDY, "trials": 0}),
        ("study", {**STUDY, "training": {"learning_rate": 3e-3}}),
        ("study", {**STUDY, "final": {**STUDY["final"], "hiden": 3}}),
        ("study", {**STUDY, "space": {"kind": "compound", "start": [1], "evnts": 1}}),
        ("study", {name: value for name, value in STUDY.items() if name != "space"}),
        ("run", {"schedule": SCHEDULE, "seed": -1}),
        ("schedule", {**SCHEDULE, "event": []}),
        ("schedule", {**SCHEDULE, "events": [{"at": 0.5, "grow": [{"expand": "hight", "to": 3}]}]}),
        ("space", {"kind": "fixed", "schedules": {"a": {"start": {}}}}),
    ],
)
def test_a_mistake_is_refused(file: File, wrong: dict[str, Any]) -> None:
    assert refused(file, wrong)


@pytest.mark.parametrize("space", ["slots", "../mine.yaml", {"from": "compound", "events": 1}])
def test_spaces_may_be_named_and_changed(space: object) -> None:
    assert not refused("study", {**STUDY, "space": space})
