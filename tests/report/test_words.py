"""Numbers in words."""

from __future__ import annotations

from nasgrow.report import words


def test_a_number_that_rounds_up_to_the_next_unit_has_that_unit() -> None:
    assert [words.short_count(number) for number in (999.6, 999_400, 999_600, 999_999_999)] == [
        "1k",
        "999k",
        "1M",
        "1B",
    ]
    assert [words.compute(flops) for flops in (999.4e9, 999.8e9)] == ["999 GFLOP", "1 TFLOP"]
