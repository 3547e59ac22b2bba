from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from nasgrow.spaces import load_space
from nasgrow.spaces.builtin import built_in, description
from tests.spaces.asking import FILES, space


def load(data: object, folder: Path = Path()) -> Any:
    return load_space(data, "study.yaml: space", folder)


def test_the_files_of_the_checkout_are_the_built_in_spaces() -> None:
    assert list(built_in().values()) == FILES
    for name, path in built_in().items():
        assert load(name) == load(str(path))


def test_a_name_needs_no_file_where_the_study_is(tmp_path: Path) -> None:
    assert load("literature", tmp_path) == load("literature")


def test_a_study_overrides_fields_in_place() -> None:
    compound, changed = load("compound"), load({"from": "compound", "events": 1, "start": [1, 0.5]})
    assert (changed.events, changed.start.root) == (1, [1, 0.5])
    assert changed.times == compound.times
    assert changed.training == compound.training
    assert space(changed.model_dump(mode="json")).size == 2 * 14


def test_known_points_that_the_changed_space_does_not_have_are_left_out() -> None:
    assert list(load({"from": "compound", "events": 1}).known) == ["no growth"]
    assert "staged doubling" not in load({"from": "compound", "start": [1, 0.5]}).known
    assert list(load({"from": "compound"}).known) == list(load("compound").known)
    with pytest.raises(ValueError, match=r"known\.mine\.at\.2: there is no such parameter"):
        space({"from": "compound", "events": 1, "known": {"mine": {"at.2": 0.5}}})


def test_a_file_may_be_from_another_and_schedules_stay_with_their_file(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"from": "literature", "training": {}}))
    (tmp_path / "again.yaml").write_text(yaml.safe_dump({"from": "mine.yaml"}))
    found = load("again.yaml", tmp_path)
    assert found.schedules == load("literature").schedules
    assert found.training == {}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("compuond", "'compuond' is no file, and no built-in space: did you mean 'compound'?"),
        ("mine", "'mine' is no file, and no built-in space; there are compound, independent, literature"),
        ({"from": "slot"}, "from: 'slot' is no file, and no built-in space: did you mean 'slots'?"),
        ({"from": 3}, "from: must be a built-in space's name or a file's path, not 3"),
        ({"from": "compound", "evnts": 1}, "evnts: there is no such field"),
        ({"from": "circle.yaml"}, "'circle.yaml' is a space that inherits from itself"),
    ],
)
def test_what_is_no_space_is_refused_in_one_line(tmp_path: Path, data: object, message: str) -> None:
    (tmp_path / "circle.yaml").write_text("from: circle.yaml\n")
    with pytest.raises(ValueError, match=r"^\S+") as error:
        load(data, tmp_path)
    assert message in str(error.value)


def test_a_description_is_what_the_header_says_before_its_parameters() -> None:
    assert description(built_in()["compound"]).endswith("It cannot express growth of one dimension alone.")
    assert all(40 < len(description(path)) < 400 for path in built_in().values())
