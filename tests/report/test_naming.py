"""Trials are called by what tells them apart."""

from __future__ import annotations

from nasgrow.report.naming import apart, settings


def test_what_all_names_share_is_left_out() -> None:
    assert apart(
        [
            "search 4 (doubling, operator net2net, learning_rate.peak 0.012)",
            "search 5 (doubling, operator x(a=1, b=2) + preserve, learning_rate.peak 0.006)",
            "baseline 1 (final)",
        ]
    ) == [
        "net2net, rate 0.012 (search 4)",
        "x(a=1, b=2) + preserve, rate 0.006 (search 5)",
        "baseline 1 (final)",
    ]


def test_a_shared_rate_is_left_out_and_a_lone_name_kept() -> None:
    same = [f"search {n} (doubling, operator {name}, learning_rate.peak 0.01)" for n, name in enumerate("ab")]
    assert apart(same) == ["a (search 0)", "b (search 1)"]
    assert apart(same[:1]) == ["doubling, a, rate 0.01 (search 0)"]
    assert apart(["search 1 (wide, then deep)", "search 2"]) == ["search 1 (wide, then deep)", "search 2"]


def test_settings_in_words() -> None:
    found = {"learning_rate.peak": 0.1, "operator": "lemon", "learning_rate.rewarm": 0.0512, "at.1": 3}
    names = ["learning_rate.peak", "operator", "learning_rate.rewarm", "moments"]
    assert settings(found, names) == "lemon, rewarm 0.0512"
