from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nasgrow.data import batch, evaluation_windows
from tests.strategies import examples

TOKENS = np.arange(1000, dtype=np.uint16)  # a token is its own position


@pytest.fixture
def mapped(tmp_path: Path) -> np.ndarray[Any, Any]:
    TOKENS.tofile(tmp_path / "tokens.bin")
    return np.memmap(tmp_path / "tokens.bin", dtype=np.uint16, mode="r")


# Batches


def test_a_batch_is_windows_of_the_tokens(mapped: np.ndarray[Any, Any]) -> None:
    windows = batch(mapped, seed=1, step=2, count=5, length=7)
    assert windows.shape == (5, 8)
    assert windows.dtype == np.int64
    assert type(windows) is np.ndarray
    assert np.array_equal(windows, windows[:, :1] + np.arange(8))


def test_a_batch_depends_on_seed_and_step_alone() -> None:
    def draw(seed: int, step: int) -> object:
        return batch(TOKENS, seed=seed, step=step, count=4, length=9).tolist()

    forwards = [draw(0, step) for step in range(20)]
    np.random.seed(5)
    backwards = [draw(0, step) for step in reversed(range(20))]
    assert forwards == backwards[::-1]
    assert len({str(windows) for windows in forwards}) == 20
    assert draw(1, 2) != draw(2, 1)
    assert draw(0, 3) != draw(1, 3)


def test_a_batch_is_the_same_for_ever() -> None:
    # Numbers from the day this was written: resumed runs and old records rest on them.
    assert batch(TOKENS, seed=7, step=11, count=4, length=2)[:, 0].tolist() == [966, 718, 989, 114]


def test_every_position_is_drawn_the_last_one_too() -> None:
    starts = batch(TOKENS[:12], seed=0, step=0, count=2000, length=9)[:, 0]
    assert np.bincount(starts).tolist() == pytest.approx([2000 / 3] * 3, rel=0.1)


def test_one_window_may_fill_the_split() -> None:
    assert batch(TOKENS[:5], seed=0, step=0, count=2, length=4).tolist() == [[0, 1, 2, 3, 4]] * 2


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_out_of_range_is_refused(seed: int) -> None:
    with pytest.raises(ValueError, match=f"from 0 up to 2\\^64, not {seed}"):
        batch(TOKENS, seed=seed, step=0, count=1, length=1)


def test_large_seeds_differ() -> None:
    one, other = (batch(TOKENS, seed=seed, step=0, count=8, length=1) for seed in (2**64 - 1, 2**64 - 2))
    assert not np.array_equal(one, other)


# Evaluation


@examples(200)
@given(tokens=st.integers(2, 200), count=st.integers(1, 40), length=st.integers(1, 30))
def test_evaluation_windows_are_spread_and_apart(tokens: int, count: int, length: int) -> None:
    if tokens <= length:
        with pytest.raises(ValueError, match=f"needs {length + 1} tokens and the split has {tokens}"):
            evaluation_windows(TOKENS[:tokens], count=count, length=length)
        return
    windows = evaluation_windows(TOKENS[:tokens], count=count, length=length)
    assert len(windows) == min(count, tokens // (length + 1))
    assert windows.dtype == np.int64
    assert np.array_equal(windows, windows[:, :1] + np.arange(length + 1))
    gaps = np.diff(windows[:, 0])
    assert np.all(gaps > length)
    assert np.ptp(gaps) <= 1 if len(gaps) else True
    assert windows[0, 0] == 0
    assert len(windows) == 1 or windows[-1, -1] == tokens - 1


# Both


def any_batch(tokens: np.ndarray[Any, Any], *, count: int, length: int) -> np.ndarray[Any, Any]:
    return batch(tokens, seed=0, step=0, count=count, length=length)


@pytest.mark.parametrize("cut", [any_batch, evaluation_windows])
def test_what_cannot_be_cut_is_refused(cut: Callable[..., np.ndarray[Any, Any]]) -> None:
    with pytest.raises(ValueError, match="needs 11 tokens and the split has 10"):
        cut(TOKENS[:10], count=1, length=10)
    with pytest.raises(ValueError, match="at least 1, not 0 and 3"):
        cut(TOKENS, count=0, length=3)
    with pytest.raises(ValueError, match="at least 1, not 3 and 0"):
        cut(TOKENS, count=3, length=0)


@pytest.mark.parametrize("cut", [any_batch, evaluation_windows])
def test_windows_are_a_copy(cut: Callable[..., np.ndarray[Any, Any]], mapped: np.ndarray[Any, Any]) -> None:
    windows = cut(mapped, count=3, length=3)
    windows[:] = 0
    assert np.array_equal(mapped, TOKENS)
    assert not mapped.flags.writeable
