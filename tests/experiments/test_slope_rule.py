"""Policies: files with slopes, and what one refuses. Training by one is tested with its command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from nasgrow.config import load_run
from nasgrow.experiments.slope_rule import load_policy
from tests.training.runs import SCHEDULE, TRAINING

FIRST, SECOND = SCHEDULE["events"]


def write(folder: Path, first: dict[str, Any], second: dict[str, Any] | None = None, **more: Any) -> Path:
    events = [FIRST | first, SECOND | (second or {})]
    document = {
        "schedule": {**SCHEDULE, "events": events},
        "training": TRAINING,
        "budget": {"flops": 3e7},
        **more,
    }
    (folder / "run.yaml").write_text(yaml.safe_dump(document))
    return folder / "run.yaml"


def test_slopes_are_read_and_the_rest_is_the_run(tmp_path: Path) -> None:
    policy = load_policy(write(tmp_path, {"slope": -0.05}, seed=3))
    assert policy.slopes == (-0.05, None)
    assert policy.config == load_run(write(tmp_path, {}, seed=3))
    (tmp_path / "schedule.yaml").write_text(yaml.safe_dump({**SCHEDULE, "events": [{**FIRST, "slope": -1}]}))
    assert load_policy(tmp_path / "schedule.yaml").slopes == (-1.0,)


def test_an_event_that_is_due_stands_in_the_run_and_nothing_else_changes(tmp_path: Path) -> None:
    policy = load_policy(write(tmp_path, {"slope": -0.05, "at": 0.5}))
    moved = policy.earlier(0, 0.25)
    assert moved.slopes == policy.slopes
    assert moved.config == load_run(write(tmp_path, {"at": 0.25}))


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({}, {}, "run.yaml: schedule: no event has a slope: nasgrow train trains it as it is"),
        ({"slope": 0.1}, {}, "events[0].slope: must be a number below 0, as losses fall, not 0.1"),
        ({"slope": 0}, {}, "events[0].slope: must be a number below 0, as losses fall, not 0"),
        ({"slope": "flat"}, {}, "events[0].slope: must be a number below 0, as losses fall, not 'flat'"),
        ({"slope": -0.1, "at": 2}, {}, "events[0].at: must be a fraction between 0 and 1, not 2"),
        ({"slope": -0.1, "when": 2}, {}, "events[0].when: there is no such field"),
        (
            {"slope": -0.1, "at": 0.53},
            {},
            "events[0].at: the budget of 3e+07 FLOPs leaves 2.1e+06 between 0.53 and 0.6; a step there may",
        ),
        (
            {"operator": "masked"},
            {"slope": -0.1, "operator": "gradmax", "at": 0.7},
            "events[1].slope: gradmax looks at the model, and has to wait for the masks of an earlier event",
        ),
    ],
)
def test_mistakes_are_one_line(
    tmp_path: Path, first: dict[str, Any], second: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=r"^\S") as error:
        load_policy(write(tmp_path, first, second)).resolve(256, "")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_no_slope_is_read_over_a_ramp(tmp_path: Path) -> None:
    training = {**TRAINING, "ramp": {"until": 0.3, "context": 8}}
    with pytest.raises(ValueError, match=r"^training.ramp: must not be there for events with a slope"):
        load_policy(write(tmp_path, {"slope": -0.1}, training=training)).resolve(256, "")


def test_elsewhere_a_slope_is_refused_with_where_it_belongs(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"run.yaml: schedule: events\[0\].slope: is a rule .* nasgrow slope"
    ):
        load_run(write(tmp_path, {"slope": -0.05}))


def test_the_example_is_a_policy() -> None:
    policy = load_policy(Path(__file__).parents[2] / "studies" / "slope.yaml")
    assert policy.slopes == (-0.065, -0.06)
    assert [str(operator) for operator in policy.resolve(256, "").operators] == ["staged", "staged"]
