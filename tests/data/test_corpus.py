from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nasgrow.config import BpeTokens, ByteTokens, DataConfig, SavedTokens, Tokens
from nasgrow.data import Corpus, prepare, vocabulary
from nasgrow.data.corpus import prepared
from nasgrow.data.tokenizers import train_bpe
from nasgrow.errors import UserError
from tests.data.corpora import Log, all_documents, data, documents, sentences, write_texts

TEXTS = sentences(60)
BPE = BpeTokens(kind="bpe", vocab=300)
SPLITS = ("train", "validation", "test")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    write_texts(tmp_path / "texts", TEXTS)
    return tmp_path / "texts"


@pytest.fixture
def saved(tmp_path: Path) -> SavedTokens:
    train_bpe(TEXTS, 310).save(tmp_path / "saved.json")
    return SavedTokens(kind="file", path=str(tmp_path / "saved.json"))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.suffix != ".lock"}


# What a corpus is


@pytest.mark.parametrize("kind", ["bytes", "bpe", "file"])
def test_a_corpus_holds_every_document_once_in_one_split(
    kind: str, texts: Path, saved: SavedTokens, tmp_path: Path
) -> None:
    write_texts(texts, TEXTS[:20], name="copy-{}.txt")
    choices: dict[str, Tokens] = {"bytes": ByteTokens(), "bpe": BPE, "file": saved}
    corpus = prepare(
        data(texts / "*", tokens=choices[kind], validation=0.1, test=0.2), cache=tmp_path / "cache"
    )
    found = documents(corpus)
    assert sorted(all_documents(corpus)) == sorted(TEXTS)
    assert {split: len(found[split]) for split in SPLITS} == corpus.documents
    assert corpus.documents == {"train": 42, "validation": 6, "test": 12}
    assert corpus.vocab == corpus.tokenizer.vocab == vocabulary(choices[kind])
    assert corpus.vocab == {"bytes": 256, "bpe": 300, "file": 310}[kind]
    assert corpus.folder == tmp_path / "cache" / "data" / corpus.fingerprint
    assert names(corpus.folder) == {"train.bin", "validation.bin", "test.bin", "tokenizer.json", "meta.json"}
    for split in SPLITS:
        tokens = getattr(corpus, split)
        assert isinstance(tokens, np.memmap)
        assert not tokens.flags.writeable
        assert tokens.dtype == (np.uint8 if kind == "bytes" else np.uint16)
        size = sum(len(text.encode()) for text in found[split])
        assert corpus.bytes_per_token[split] == size / len(tokens)


def test_every_tokenizer_gets_the_same_splits(texts: Path, saved: SavedTokens, tmp_path: Path) -> None:
    corpora = [
        prepare(data(texts / "*", tokens=tokens), cache=tmp_path) for tokens in (ByteTokens(), BPE, saved)
    ]
    assert documents(corpora[0]) == documents(corpora[1]) == documents(corpora[2])


def test_bits_per_byte_of_a_uniform_guess_are_the_same_for_bytes_and_bits(
    texts: Path, tmp_path: Path
) -> None:
    corpus = prepare(data(texts / "*"), cache=tmp_path)
    bits = math.log(256) / math.log(2) / corpus.bytes_per_token["test"]
    text = sum(len(text.encode()) for text in documents(corpus)["test"])
    assert bits * text == pytest.approx(8 * len(corpus.test))


def test_a_tokenizer_is_trained_on_the_training_split_alone(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def spy(texts: Any, vocab: int) -> object:
        seen.extend(texts)
        return train_bpe(seen, vocab)

    monkeypatch.setattr("nasgrow.data.corpus.train_bpe", spy)
    corpus = prepare(data(texts / "*", tokens=BPE), cache=tmp_path)
    assert seen == documents(corpus)["train"]


def test_a_long_training_split_is_sampled_evenly_for_the_tokenizer(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def spy(texts: Any, vocab: int) -> object:
        seen.extend(texts)
        return train_bpe(TEXTS, vocab)

    monkeypatch.setattr("nasgrow.data.corpus.train_bpe", spy)
    monkeypatch.setattr("nasgrow.data.corpus._TRAINED_ON", sum(len(text.encode()) for text in TEXTS) // 3)
    corpus = prepare(data(texts / "*", tokens=BPE), cache=tmp_path)
    assert seen == documents(corpus)["train"][::3]


@pytest.mark.parametrize("tokens", [ByteTokens(), BPE], ids=["bytes", "bpe"])
def test_long_documents_are_encoded_in_pieces_and_stay_whole(
    tokens: Tokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nasgrow.data.encoding._PIECE", 100)
    monkeypatch.setattr("nasgrow.data.encoding._BATCH", 250)
    odd = ["中🙂é" * 100, "\n" * 300, "x" * 99 + "🙂" * 5, "x" * 100, "x" * 101, "a\n" + "b" * 500 + "\n"]
    originals = ["".join(TEXTS[start : start + 10]) for start in range(0, 60, 10)] + odd
    write_texts(tmp_path / "texts", originals)
    corpus = prepare(data(tmp_path / "texts" / "*", tokens=tokens), cache=tmp_path)
    assert sorted(all_documents(corpus)) == sorted(originals)


# Once


def test_what_is_prepared_is_opened_without_reading_the_text_again(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log()
    first = prepare(data(texts / "*", tokens=BPE), cache=tmp_path, report=log)
    assert [line.split()[0] for line in log] == ["reading", "training", "tokenising"]
    log.clear()
    monkeypatch.setattr("nasgrow.data.local.quiet_datasets", lambda: pytest.fail("read again"))
    second = prepare(data(texts / "*", tokens=BPE), cache=tmp_path, report=log)
    assert log == []
    assert np.array_equal(first.train, second.train)
    assert second.tokenizer.encode("grows") == first.tokenizer.encode("grows")


def test_the_cache_is_the_one_of_the_environment(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path / "there"))
    assert prepare(data(texts / "*")).folder.parent == tmp_path / "there" / "data"


def test_importing_the_package_imports_nothing_slow() -> None:
    script = (
        "import sys, nasgrow.data\n"
        "print([m for m in ('torch', 'datasets', 'tokenizers', 'pandas', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# Fingerprints


def test_the_fingerprint_and_tokens_stay_wherever_and_whenever_the_text_is(
    texts: Path, tmp_path: Path
) -> None:
    first = prepare(data(texts / "*", tokens=BPE), cache=tmp_path / "one")
    moved = texts.rename(tmp_path / "moved")
    for number, path in enumerate(sorted(moved.iterdir())):
        os.utime(path, (number, number))
        path.rename(moved / f"{60 - number}.txt")
    second = prepare(data(moved / "*", tokens=BPE), cache=tmp_path / "two")
    assert first.fingerprint == second.fingerprint
    for file in ("train.bin", "validation.bin", "test.bin", "tokenizer.json"):
        assert (first.folder / file).read_bytes() == (second.folder / file).read_bytes(), file


def test_the_fingerprint_changes_with_every_setting_and_content(
    texts: Path, saved: SavedTokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def name(config: DataConfig) -> str:
        return prepare(config, cache=tmp_path / "cache").fingerprint

    pattern = texts / "*"
    seen = [
        name(data(pattern)),
        name(data(pattern, validation=0.06)),
        name(data(pattern, test=0.06)),
        name(data(pattern, tokens=BPE)),
        name(data(pattern, tokens=BpeTokens(kind="bpe", vocab=301))),
        name(data(pattern, tokens=saved)),
    ]
    train_bpe(TEXTS, 311).save(Path(saved.path))
    seen.append(name(data(pattern, tokens=saved)))
    Path(saved.path).rename(tmp_path / "elsewhere.json")
    elsewhere = saved.model_copy(update={"path": str(tmp_path / "elsewhere.json")})
    assert name(data(pattern, tokens=elsewhere)) == seen[-1]
    content = json.loads((tmp_path / "elsewhere.json").read_text(encoding="utf-8"))
    other_end = {**content["added_tokens"][0], "id": 311, "content": "<other>"}
    content["added_tokens"].append(other_end)
    (tmp_path / "elsewhere.json").write_text(json.dumps(content), encoding="utf-8")
    seen.append(name(data(pattern, tokens=elsewhere)))
    seen.append(name(data(pattern, tokens=elsewhere.model_copy(update={"end": "<other>"}))))
    (texts / "0000.txt").write_text("changed")
    seen.append(name(data(pattern)))
    monkeypatch.setattr("nasgrow.data.corpus.CORPUS_FORMAT", 2)
    seen.append(name(data(pattern)))
    assert len(set(seen)) == len(seen) == 11


# Errors


def test_too_little_text_is_refused(tmp_path: Path) -> None:
    write_texts(tmp_path / "texts", ["one", "two", "two", ""])
    with pytest.raises(ValueError, match=r"^data\.text: found 2 different documents .* give 3 or more"):
        prepare(data(tmp_path / "texts" / "*"), cache=tmp_path / "cache")
    assert names(tmp_path / "cache" / "data") == set()


def test_a_vocabulary_that_cannot_be_filled_is_refused(texts: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^data\.tokens\.vocab: .* 5000 tokens, it gives \d+: use at most"):
        prepare(data(texts / "*", tokens=BpeTokens(kind="bpe", vocab=5000)), cache=tmp_path / "cache")
    assert names(tmp_path / "cache" / "data") == set()


def test_a_wrong_tokenizer_is_refused_before_the_text_is_read(texts: Path, tmp_path: Path) -> None:
    (tmp_path / "odd.json").write_text("{}")
    log = Log()
    with pytest.raises(ValueError, match=r"^data\.tokens\.path: .*odd\.json' is not a file of"):
        prepare(
            data(texts / "*", tokens=SavedTokens(kind="file", path=str(tmp_path / "odd.json"))),
            cache=tmp_path,
            report=log,
        )
    assert log == []


def test_a_full_disk_is_one_line_and_leaves_nothing(texts: Path, tmp_path: Path) -> None:
    config = data(texts / "*")
    size = sum(len(text.encode()) for text in TEXTS)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for share in (0.5, 0.9):  # while reading and, the splits being smaller than the whole, not at all
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(size * share), hard))
        try:
            with pytest.raises(
                ValueError, match=r"^cannot write the data cache in .*: File too large; "
            ) as caught:
                prepare(config, cache=tmp_path / "cache")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert "\n" not in str(caught.value)
        assert caught.value.__suppress_context__
        assert names(tmp_path / "cache" / "data") == set()
    assert prepare(config, cache=tmp_path / "cache").documents["train"] > 40


# Several processes

WORKER = """
import pathlib, sys, time
from nasgrow.data import prepare
from tests.data.corpora import data
texts, cache, log, stop, waiting = sys.argv[1:]

def report(line):
    with open(log, "a") as file:
        print(line, file=file)
    if line.startswith(stop):
        # Go on when so many others wait: at once for none, never for more than there are.
        logs = list(pathlib.Path(log).parent.iterdir())
        while sum("waiting" in path.read_text() for path in logs) < int(waiting):
            time.sleep(0.02)

corpus = prepare(data(texts), cache=pathlib.Path(cache), report=report)
print(corpus.fingerprint, len(corpus.train))
"""


def start(texts: Path, folder: Path, number: int, *, stop: str, waiting: int) -> subprocess.Popen[str]:
    (folder / "logs").mkdir(exist_ok=True)
    log = folder / "logs" / f"{number}"
    log.touch()
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(texts / "*"), str(folder / "cache"), str(log), stop, str(waiting)],
        stdout=subprocess.PIPE,
        env={**os.environ, "USE_TORCH": "0"},  # datasets would import torch, which is slow
        text=True,
    )


def logged(folder: Path) -> list[str]:
    return [line for path in (folder / "logs").iterdir() for line in path.read_text().splitlines()]


def test_of_three_that_start_at_once_one_prepares_and_two_wait(texts: Path, tmp_path: Path) -> None:
    workers = [start(texts, tmp_path, number, stop="tokenising", waiting=2) for number in range(3)]
    printed = {worker.communicate(timeout=120)[0] for worker in workers}
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    corpus: Corpus = prepare(data(texts / "*"), cache=tmp_path / "cache")
    assert printed == {f"{corpus.fingerprint} {len(corpus.train)}\n"}
    lines = logged(tmp_path)
    assert sum(line.startswith("tokenising") for line in lines) == 1
    assert sum(line.startswith("waiting") for line in lines) == 2


def test_those_who_wait_for_one_that_is_killed_take_over(texts: Path, tmp_path: Path) -> None:
    with start(texts, tmp_path, 0, stop="tokenising", waiting=9) as killed:
        while not any(line.startswith("tokenising") for line in logged(tmp_path)):
            assert killed.poll() is None
            time.sleep(0.02)
        other = start(texts, tmp_path, 1, stop="never", waiting=0)
        while not any(line.startswith("waiting") for line in logged(tmp_path)):
            assert other.poll() is None
            time.sleep(0.02)
        killed.send_signal(signal.SIGKILL)
    printed, _ = other.communicate(timeout=120)
    corpus = prepare(data(texts / "*"), cache=tmp_path / "cache")
    assert printed == f"{corpus.fingerprint} {len(corpus.train)}\n"
    assert names(tmp_path / "cache" / "data") == {corpus.fingerprint}


def test_a_tokenizer_that_is_gone_is_named(texts: Path, tmp_path: Path) -> None:
    gone = SavedTokens(kind="file", path=str(tmp_path / "none.json"))
    with pytest.raises(UserError, match=r"^data\.tokens\.path: .*none\.json cannot be read"):
        prepared(data(texts / "*", tokens=gone))
