"""Trials are called by what tells them apart."""

from __future__ import annotations

from typing import Any

from nasgrow.report.load import Trial
from nasgrow.report.naming import settings, side_by_side
from nasgrow.schedule import schedule_from
from tests.report.studies import LATER
from tests.study.records import make_record


def named(number: int, name: str | None, rate: float = 0.01, schedule: dict[str, Any] = LATER) -> Trial:
    record = make_record("search", number, 2.0, name=name, learning_rate=rate, schedule=schedule)
    return Trial(record, schedule_from(schedule))


def test_what_all_names_share_is_left_out() -> None:
    trials = [
        named(4, "doubling, operator net2net, learning_rate.peak 0.012"),
        named(5, "doubling, operator x(a=1, b=2) + preserve, learning_rate.peak 0.006"),
        named(1, None),
    ]
    assert side_by_side(trials) == [
        "net2net, rate 0.012",
        "x(a=1, b=2) + preserve, rate 0.006",
        "x2 layers at 60%",
    ]
    assert side_by_side(trials[:1]) == ["doubling, net2net, rate 0.012"]


def test_equal_names_are_told_apart_by_rate_and_then_by_label() -> None:
    trials = [named(1, None, 0.01), named(2, None, 0.02), named(3, None, 0.02), named(4, "other")]
    assert side_by_side(trials) == [
        "x2 layers at 60%, rate 0.01",
        "x2 layers at 60%, rate 0.02 (search 2)",
        "x2 layers at 60%, rate 0.02 (search 3)",
        "other",
    ]


def test_settings_in_words() -> None:
    found = {"learning_rate.peak": 0.1, "operator": "lemon", "learning_rate.rewarm": 0.0512, "at.1": 3}
    names = ["learning_rate.peak", "operator", "learning_rate.rewarm", "moments"]
    assert settings(found, names) == "lemon, rewarm 0.0512"
