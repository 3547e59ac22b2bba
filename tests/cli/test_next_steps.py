"""The command that follows in the life of a study."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nasgrow.cli.next_steps import next_step
from nasgrow.study.lock import NOT_PLANNED, State
from nasgrow.study.study_folder import KnownStudy, trials_by_kind
from nasgrow.study.trials import TrialRecord
from tests.study.records import make_record

FOUND = [make_record("baseline", 0, 2.5, name="final"), make_record("search", 0, 2.0)]
CONFIRMED = make_record("confirmation", 0, 2.0, name="search 0", test=[2.1])
OTHER: dict[str, Any] = {"name": "final, 2x budget"}


@pytest.mark.parametrize(
    ("more", "state", "command"),
    [
        ([], "stopped", "search"),
        ([], "ended", "confirm"),
        ([make_record("baseline", 1, None, status="running", **OTHER)], "stopped", "confirm"),
        ([make_record("baseline", 1, 2.2, **OTHER)], "stopped", "confirm"),
        ([CONFIRMED, make_record("confirmation", 1, None, status="running")], "stopped", "confirm"),
        ([make_record("baseline", 1, 2.2, **OTHER), CONFIRMED], "ended", "report"),
    ],
)
def test_a_confirmation_that_was_cut_goes_on(more: list[TrialRecord], state: State, command: str) -> None:
    known = KnownStudy(trials_by_kind([*FOUND, *more]), state, [], NOT_PLANNED)
    assert next_step(Path("a.yaml"), known).startswith(f"Next: nasgrow {command} a.yaml")
