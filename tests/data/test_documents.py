from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nasgrow.data.documents import PIECES, Documents, collect, split
from tests.data.corpora import Log, sentences
from tests.strategies import examples

TEXTS = [text.encode() for text in sentences(50)]


def collected(texts: list[bytes], folder: Path) -> Documents:
    return collect(texts, folder / "documents", Log())


def order(documents: Documents) -> list[bytes]:
    return list(documents.read_all(range(len(documents))))


# Collecting


def test_documents_are_kept_once_and_whole(tmp_path: Path) -> None:
    documents = collected([*TEXTS, *TEXTS[:7]], tmp_path)
    assert len(documents) == 50
    assert sorted(order(documents)) == sorted(TEXTS)
    assert documents.sizes.tolist() == [len(text) for text in order(documents)]


def test_the_order_is_a_shuffle_that_content_alone_decides(tmp_path: Path) -> None:
    first = order(collected(TEXTS, tmp_path))
    assert first != TEXTS
    assert first != sorted(TEXTS)
    shuffled = TEXTS.copy()
    random.Random(1).shuffle(shuffled)
    assert order(collected(shuffled, tmp_path)) == first


def test_a_document_more_leaves_the_others_in_order(tmp_path: Path) -> None:
    more = order(collected([*TEXTS, b"another"], tmp_path))
    more.remove(b"another")
    assert more == order(collected(TEXTS, tmp_path))


def test_nul_bytes_and_empty_documents_are_dropped(tmp_path: Path) -> None:
    documents = collected([b"a\0b", b"", b"\0\0", b"ab", b"c", b"\0d"], tmp_path)
    assert sorted(order(documents)) == [b"ab", b"c", b"d"]


@pytest.mark.parametrize("texts", [[], [b""], [b"a", b"b"], [b"a", b"b", b"b", b"\0a"]])
def test_too_few_documents_are_refused(texts: list[bytes], tmp_path: Path) -> None:
    count = len({text.strip(b"\0") for text in texts} - {b""})
    message = f"^data.text: found {count} different documents .* give 3 or more, or at least 10,000 bytes"
    with pytest.raises(ValueError, match=message):
        collected(texts, tmp_path)


def test_one_text_is_cut_by_position_at_ends_of_lines(tmp_path: Path) -> None:
    lines = [f"line {number} né {'x' * (number % 70)}\n".encode() for number in range(2_000)]
    documents = collected([b"".join(lines)], tmp_path)
    pieces = order(documents)
    assert documents.cut_from == 1
    assert 90 <= len(pieces) <= PIECES
    assert all(piece.startswith(b"line ") and piece.endswith(b"\n") for piece in pieces)
    whole = sorted(pieces, key=lambda piece: int(piece.split()[1]))
    assert b"".join(whole) == b"".join(lines)
    assert pieces != whole, "the pieces are shuffled"


def test_a_text_without_lines_is_cut_between_characters(tmp_path: Path) -> None:
    text = "".join(chr(0x4E00 + number) for number in range(5_000)).encode()
    pieces = order(collected([text], tmp_path))
    assert 90 <= len(pieces) <= PIECES
    assert sum(len(piece.decode()) for piece in pieces) == 5_000


def test_a_text_that_only_repeats_itself_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the text repeats itself"):
        collected([b"a" * 20_000], tmp_path)


def test_long_reading_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nasgrow.data.documents._REPORT_EVERY", 1_000_000)
    log = Log()
    collect((b"%d " % number * 60_000 for number in range(10, 20)), tmp_path / "documents", log)
    assert log == ["read 1 MB of text"]


# Splitting


@examples(300)
@given(
    sizes=st.lists(st.integers(1, 1000), min_size=3, max_size=60),
    validation=st.floats(0.01, 0.49),
    test=st.floats(0.01, 0.49),
)
def test_every_document_is_in_one_split_and_no_split_is_empty(
    sizes: list[int], validation: float, test: float
) -> None:
    splits = split(np.array(sizes), validation=validation, test=test)
    assert list(splits) == ["train", "validation", "test"]
    assert all(len(indices) for indices in splits.values())
    assert sorted(np.concatenate(list(splits.values())).tolist()) == list(range(len(sizes)))


@pytest.mark.parametrize(("validation", "test"), [(0.05, 0.05), (0.01, 0.3), (0.2, 0.1)])
def test_shares_are_of_bytes(validation: float, test: float) -> None:
    sizes = np.random.default_rng(0).integers(1, 2000, size=5000)
    splits = split(sizes, validation=validation, test=test)
    shares = [sizes[indices].sum() / sizes.sum() for indices in splits.values()]
    assert shares == pytest.approx([1 - validation - test, validation, test], abs=0.0005)


def test_splits_are_ranges_of_the_order() -> None:
    splits = split(np.full(20, 10), validation=0.1, test=0.2)
    assert [indices.tolist() for indices in splits.values()] == [[*range(14)], [14, 15], [16, 17, 18, 19]]


@pytest.mark.parametrize("place", range(10))
def test_a_document_larger_than_a_share_trains_wherever_it_is(place: int) -> None:
    sizes = np.full(10, 10)
    sizes[place] = 1000
    splits = split(sizes, validation=0.05, test=0.05)
    assert place in splits["train"]


def test_three_documents_are_one_for_each_split() -> None:
    splits = split(np.array([5, 900, 5]), validation=0.05, test=0.05)
    assert {name: indices.tolist() for name, indices in splits.items()} == {
        "train": [1],
        "validation": [0],
        "test": [2],
    }
