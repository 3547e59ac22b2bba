"""Trial records: the names that people read."""

from __future__ import annotations

from nasgrow.names import short_name
from nasgrow.schedule import schedule_from
from tests.study.records import GROWN, make_record


def test_a_trial_without_a_name_is_named_by_its_schedule_and_searched_settings() -> None:
    short = short_name(schedule_from(GROWN))
    parameters = {"schedule": "late", "operator": "net2net", "learning_rate.rewarm": 0, "start": 0.5}
    tuned = {"learning_rate.peak": 0.01, "batch_tokens": 512, "ramp.until": 0.3}
    found = make_record("search", 1, 2.0, parameters={**parameters, **tuned})
    assert found.title == f"{short}, operator net2net, learning_rate.rewarm 0"
    assert make_record("search", 1, 2.0, parameters=parameters, name="late, net2net").title == "late, net2net"
    tuning = make_record("search", 2, 2.0, parameters=parameters, name="tuning of search 1")
    assert tuning.title == found.title
