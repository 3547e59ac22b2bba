"""The share of one text that stands in another, word for word."""

from __future__ import annotations

import numpy as np
import pytest

from nasgrow.data.overlap import WINDOW, overlap


def noise(seed: int, size: int) -> bytes:
    return np.random.default_rng(seed).integers(1, 256, size, dtype=np.uint8).tobytes()


def test_windows_are_found_wherever_they_stand() -> None:
    mine, other = noise(0, 10 * WINDOW), noise(1, 200_000)
    assert overlap([mine], [other]) == 0
    assert overlap([mine], [other + mine + b"end"]) == 1
    part = mine[3 * WINDOW : 7 * WINDOW]
    assert overlap([mine], [other, b"x" + part, other]) == pytest.approx(0.4), "four of ten windows"
    assert overlap([mine], [part[1:]]) == pytest.approx(0.3), "a window of which a byte is missing is another"
    assert overlap([mine[:-1]], [mine]) == 1, "what is left at the end is no window"
    assert overlap([mine, other[:WINDOW]], [mine]) == pytest.approx(10 / 11)


def test_it_agrees_with_looking_for_each_window() -> None:
    random = np.random.default_rng(2)
    lines = [noise(seed, 40) for seed in range(60)]
    texts, training = ([b"".join(random.choice(lines, 50)) for _ in range(4)] for _ in range(2))
    found = [
        any(text[start : start + WINDOW] in other for other in training)
        for text in texts
        for start in range(0, len(text) - WINDOW + 1, WINDOW)
    ]
    assert 0 < sum(found) < len(found)
    assert overlap(texts, training) == pytest.approx(sum(found) / len(found))


def test_long_texts_are_cut_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    text = noise(3, 5_000)
    whole = overlap([text], [text[1_000:3_001]])
    monkeypatch.setattr("nasgrow.data.overlap._CHUNK", 2 * WINDOW)
    assert overlap([text], [text[1_000:3_001]]) == whole == pytest.approx(30 / 78)


def test_of_many_windows_some_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nasgrow.data.overlap.WINDOWS", 10)
    text = noise(4, 100 * WINDOW)
    assert overlap([text], [text[: 50 * WINDOW]]) == 0.5


def test_texts_that_are_too_short_tell_nothing() -> None:
    assert overlap([b"", noise(5, WINDOW - 1)], [noise(5, 1000)]) is None
    assert overlap([noise(5, WINDOW)], [b"short"]) == 0
