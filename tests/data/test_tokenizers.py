from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nasgrow.config import SavedTokens
from nasgrow.data import Tokenizer, load_tokenizer
from nasgrow.data.tokenizers import END, ByteTokenizer, SubwordTokenizer, open_saved, token_dtype, train_bpe
from tests.data.corpora import sentences
from tests.strategies import examples

TEXTS = sentences(200)
BPE = train_bpe(TEXTS, 320)
BOTH = pytest.mark.parametrize("tokenizer", [ByteTokenizer(), BPE], ids=["bytes", "bpe"])
PLAIN_TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


def hand_made(**changes: Any) -> dict[str, Any]:
    """A tokenizer of whole words as others save it: it adds tokens, cuts and pads."""
    words = ["<unk>", "</s>", "<s>", "a", "b"]
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0},
        "padding": {
            "strategy": {"Fixed": 9},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "<unk>",
        },
        "added_tokens": [{"id": i, "content": words[i], **special} for i in range(3)],
        "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<s>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [2], "tokens": ["<s>"]}},
        },
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: number for number, word in enumerate(words)},
            "unk_token": "<unk>",
        },
        **changes,
    }


def save_json(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def opened(path: Path, end: str = "</s>") -> SubwordTokenizer:
    return open_saved(SavedTokens(kind="file", path=str(path), end=end))


# All kinds


@BOTH
@examples(200)
@given(text=PLAIN_TEXT)
def test_decode_undoes_encode(tokenizer: Tokenizer, text: str) -> None:
    tokens = tokenizer.encode(text)
    assert tokenizer.decode(tokens) == text
    assert tokenizer.end not in tokens
    assert all(0 <= token < tokenizer.vocab for token in tokens)


@BOTH
def test_text_that_names_the_end_token_does_not_end_the_document(tokenizer: Tokenizer) -> None:
    text = f"before {END} after"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.end not in tokenizer.encode(text)


@BOTH
def test_encode_all_is_encode_for_each(tokenizer: Tokenizer) -> None:
    encoded = tokenizer.encode_all([text.encode() for text in TEXTS[:9]])
    assert [tokens.tolist() for tokens in encoded] == [tokenizer.encode(text) for text in TEXTS[:9]]


@BOTH
def test_decode_leaves_end_tokens_out(tokenizer: Tokenizer) -> None:
    end = [tokenizer.end]
    assert (
        tokenizer.decode([*end, *tokenizer.encode("one "), *end, *tokenizer.encode("two"), *end]) == "one two"
    )


@BOTH
def test_decode_replaces_what_is_not_utf8(tokenizer: Tokenizer) -> None:
    half = next(token for token in range(tokenizer.vocab) if tokenizer.decode([token]) == "\ufffd")
    assert tokenizer.decode([*tokenizer.encode("a"), half, half, *tokenizer.encode("b")]) == "a\ufffd\ufffdb"


@BOTH
def test_decode_takes_an_array(tokenizer: Tokenizer) -> None:
    tokens = np.array(tokenizer.encode("some né text"), dtype=np.int64)
    assert tokenizer.decode(tokens) == "some né text"  # type: ignore[arg-type]  # sequences of numpy too


@BOTH
def test_lone_surrogates_become_question_marks(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a?b"


@BOTH
def test_what_save_wrote_load_reads(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    json.loads(path.read_text(encoding="utf-8"))
    loaded = load_tokenizer(path)
    assert (loaded.vocab, loaded.end) == (tokenizer.vocab, tokenizer.end)
    text = f"grows while né {END}"
    assert loaded.encode(text) == tokenizer.encode(text)
    assert loaded.decode(loaded.encode(text)) == text
    loaded.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "nonsense",
        "[]",
        "{}",
        '{"tokenizer": "words"}',
        json.dumps(hand_made()),
        json.dumps({"post_processor": 1}),
    ],
)
def test_a_foreign_file_is_not_loaded(content: str, tmp_path: Path) -> None:
    path = tmp_path / "foreign.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"foreign\.json' was not written by nasgrow"):
        load_tokenizer(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.json: cannot be read: no such file"):
        load_tokenizer(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("vocab", "dtype"),
    [(256, np.uint8), (257, np.uint16), (65536, np.uint16), (65537, np.uint32), (1_000_000, np.uint32)],
)
def test_tokens_take_no_more_room_than_they_need(vocab: int, dtype: type) -> None:
    assert token_dtype(vocab) == dtype


# Bytes


def test_bytes_are_the_tokens() -> None:
    assert ByteTokenizer().encode("aé") == [97, 0xC3, 0xA9]
    assert ByteTokenizer().encode("a\0b") == [97, 98]


def test_a_token_beyond_a_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="256"):
        ByteTokenizer().decode([256])


# Byte-pair encoding


def test_bpe_has_the_vocabulary_asked_for_and_compresses() -> None:
    assert BPE.vocab == 320
    text = TEXTS[3]
    assert len(BPE.encode(text)) < 0.5 * len(text.encode())


def test_bpe_may_be_bytes_and_the_end_alone() -> None:
    tokenizer = train_bpe(TEXTS, 257)
    assert tokenizer.vocab == 257
    assert len(tokenizer.encode(TEXTS[0])) == len(TEXTS[0].encode())


def test_bpe_is_the_same_in_every_process(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib\n"
        "from nasgrow.data.tokenizers import train_bpe\n"
        "from tests.data.corpora import sentences\n"
        "train_bpe(sentences(200), 320).save(pathlib.Path(sys.argv[1]))\n"
    )
    BPE.save(tmp_path / "here.json")
    for name in ("one.json", "two.json"):
        subprocess.run([sys.executable, "-c", script, str(tmp_path / name)], check=True, timeout=120)
        assert (tmp_path / name).read_bytes() == (tmp_path / "here.json").read_bytes()


def test_bpe_that_cannot_fill_its_vocabulary_says_how_far_it_comes() -> None:
    with pytest.raises(ValueError, match=r"^data\.tokens\.vocab: .* 1000 tokens, it gives (\d+)") as caught:
        train_bpe(["some some text text"], 1000)
    reached = int(str(caught.value).split("gives ")[1].split(":")[0])
    assert train_bpe(["some some text text"], reached).vocab == reached


def test_the_tokenizers_library_reads_a_saved_file_and_ends_texts_with_it(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Library

    BPE.save(tmp_path / "tokenizer.json")
    library = Library.from_file(str(tmp_path / "tokenizer.json"))
    assert library.encode("grows while").ids == [*BPE.encode("grows while"), BPE.end]


# Saved files


def test_a_saved_tokenizer_gives_the_tokens_of_the_text_and_no_others(tmp_path: Path) -> None:
    tokenizer = opened(save_json(tmp_path / "words.json", hand_made()))
    assert (tokenizer.vocab, tokenizer.end) == (5, 1)
    assert tokenizer.encode("a b a b a") == [3, 4, 3, 4, 3]  # not cut at 3, not padded to 9, no <s>
    assert tokenizer.encode("a") == [3]
    assert tokenizer.end not in tokenizer.encode("a </s> b")


def test_a_vocabulary_with_gaps_counts_up_to_its_last_token(tmp_path: Path) -> None:
    content = hand_made()
    content["model"]["vocab"]["b"] = 70_000
    assert opened(save_json(tmp_path / "gaps.json", content)).vocab == 70_001


def test_an_end_token_that_is_an_ordinary_word_ends_no_document_within(tmp_path: Path) -> None:
    tokenizer = opened(save_json(tmp_path / "words.json", hand_made(added_tokens=[])), end="b")
    tokenizer.save(tmp_path / "saved.json")
    loaded = load_tokenizer(tmp_path / "saved.json")
    assert (tokenizer.end, loaded.end) == (4, 4)
    assert tokenizer.encode("a b a") == loaded.encode("a b a") == [3, 3]
    assert tokenizer.decode([3, 4]) == loaded.decode([3, 4]) == "a"


def test_a_tokenizer_without_the_end_token_is_refused(tmp_path: Path) -> None:
    path = save_json(tmp_path / "words.json", hand_made())
    with pytest.raises(ValueError, match=r"data\.tokens\.end: '<eos>' is not a token of .*'</s>', '<s>'"):
        opened(path, end="<eos>")


@pytest.mark.parametrize("content", [b"", b"no json", b"{}", b"[1]", b'{"model": {}}', b"\xff\xfe"])
def test_a_file_that_is_no_tokenizer_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"^data\.tokens\.path: .*odd\.json'?:?( line 1:)? is not") as caught:
        opened(path)
    assert "\n" not in str(caught.value)


def test_a_tokenizer_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^data\.tokens\.path: .*none\.json: cannot be read: no such file"):
        opened(tmp_path / "none.json")


def test_a_tokenizer_that_encodes_at_random_is_refused(tmp_path: Path) -> None:
    BPE.save(tmp_path / "bpe.json")
    content = json.loads((tmp_path / "bpe.json").read_text(encoding="utf-8"))
    content["model"]["dropout"] = 0.1
    with pytest.raises(ValueError, match="encodes at random"):
        opened(save_json(tmp_path / "bpe.json", content), end=END)
