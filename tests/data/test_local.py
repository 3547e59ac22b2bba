from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as parquet  # type: ignore[import-untyped]
import pytest

from nasgrow.config import Files
from nasgrow.data.local import open_files, open_stdlib
from tests.data.corpora import files, sentences, write_texts


def read(config: Files, scratch: Path) -> list[str]:
    return [text.decode() for text in open_files(config).documents(scratch)]


def content(*paths: Path | str, column: str = "text") -> object:
    return open_files(files(*paths, column=column)).description


def jsonl(rows: Sequence[object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


# Formats


def test_each_text_file_is_a_document_whatever_its_suffix(tmp_path: Path) -> None:
    expected = []
    for name in ("a.txt", "b.md", "c.py", "d.rst", "e", "README.md", "__init__.py", "dataset_info.json.txt"):
        expected.append(f"line of {name}\n\nafter a gap né\n  ")
        (tmp_path / name).write_bytes(expected[-1].encode())
    (tmp_path / "f.txt.gz").write_bytes(gzip.compress(b"packed"))
    assert sorted(read(files(tmp_path / "*"), tmp_path / "s")) == sorted([*expected, "packed"])


def test_each_row_of_json_is_a_document(tmp_path: Path) -> None:
    rows = [{"text": "one\ntwo", "id": 1}, {"text": None}, {"id": 3}, {"text": "three é"}]
    texts = ["one\ntwo", "", "", "three é"]
    for name in ("a.jsonl", "b.json", "c.ndjson", "d.JSONL"):
        (tmp_path / name).write_text(jsonl(rows), encoding="utf-8")
    (tmp_path / "e.jsonl.gz").write_bytes(gzip.compress(jsonl(rows).encode()))
    (tmp_path / "f.json").write_text(json.dumps(rows, indent=2), encoding="utf-8")
    (tmp_path / "g.json.gz").write_bytes(gzip.compress(json.dumps(rows).encode()))
    assert read(files(tmp_path / "*"), tmp_path / "s") == texts * 7


def test_each_row_of_parquet_is_a_document(tmp_path: Path) -> None:
    table = pa.table({"id": range(2500), "body": [f"text {number}" for number in range(2499)] + [None]})
    parquet.write_table(table, tmp_path / "a.parquet", row_group_size=700)
    expected = [f"text {number}" for number in range(2499)] + [""]
    assert read(files(tmp_path / "a.parquet", column="body"), tmp_path / "s") == expected


def test_large_strings_are_text_too(tmp_path: Path) -> None:
    table = pa.table({"text": pa.array(["one", "two"], type=pa.large_string())})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert read(files(tmp_path / "a.parquet"), tmp_path / "s") == ["one", "two"]


def test_tables_need_not_have_the_same_columns(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(jsonl([{"text": "one", "id": 1}]))
    (tmp_path / "b.jsonl").write_text(jsonl([{"url": {"x": []}, "text": "two", "id": "x"}]))
    assert read(files(tmp_path / "*"), tmp_path / "s") == ["one", "two"]


def test_many_text_files_are_read_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nasgrow.data.local._FILES_AT_ONCE", 7)
    texts = sentences(20)
    write_texts(tmp_path / "texts", texts)
    assert read(files(tmp_path / "texts" / "*"), tmp_path / "s") == texts


def test_empty_files_are_ignored(tmp_path: Path) -> None:
    for name in ("a.txt", "b.jsonl", "c.parquet"):
        (tmp_path / name).touch()
    (tmp_path / "d.txt").write_text("text")
    assert read(files(tmp_path / "*"), tmp_path / "s") == ["text"]


# Patterns


def test_patterns_descend_and_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_texts(tmp_path / "in" / "deep" / "er", ["one"])
    write_texts(tmp_path / "in", ["two"])
    monkeypatch.chdir(tmp_path)
    assert sorted(read(files("in/**/*.txt", "in/*.txt", "./in/0000.txt"), tmp_path / "s")) == ["one", "two"]


def test_names_with_signs_of_patterns_are_read(tmp_path: Path) -> None:
    for number, name in enumerate(("a [1].txt", "b*.txt", "c?.txt", "d{x}.txt", "é ü.txt", "[ab].jsonl")):
        text = jsonl([{"text": f"{number}"}]) if name.endswith("jsonl") else f"{number}"
        (tmp_path / name).write_text(text)
    assert sorted(read(files(tmp_path / "*"), tmp_path / "s")) == list("012345")
    assert read(files(tmp_path / "a [1].txt"), tmp_path / "s") == ["0"]


def test_the_home_folder_is_understood(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_texts(tmp_path, ["one"])
    assert read(files("~/*.txt"), tmp_path / "s") == ["one"]


def test_a_pattern_that_matches_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_texts(tmp_path / "in", ["one"])
    with pytest.raises(ValueError, match=r"^data\.text\.paths: 'on/\*' matches no file$"):
        open_files(files("in/*", "on/*"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"^data\.text\.paths: 'empty' holds no file$"):
        open_files(files("empty"))


def test_a_folder_is_all_files_in_it_but_hidden_ones(tmp_path: Path) -> None:
    write_texts(tmp_path / "in", ["one", "two"])
    write_texts(tmp_path / "in" / "below" / "it", ["three"])
    write_texts(tmp_path / "in" / ".git", ["not me"])
    write_texts(tmp_path / "in", ["nor me"], name=".hidden{}")
    assert sorted(read(files(tmp_path / "in"), tmp_path / "s")) == ["one", "three", "two"]


# Errors


@pytest.mark.parametrize("name", ["a.zip", "a.txt.zst", "a.tar.gz", "a.jsonl.bz2", "a.parquet.gz"])
def test_packed_files_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text("x")
    with pytest.raises(ValueError, match=rf"^data\.text\.paths: .*{name}' is packed"):
        open_files(files(tmp_path / name))


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def deny(path: Path, mode: str) -> None:  # the tests may run as root, whom no file denies itself
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "a.txt").write_text("x")
    monkeypatch.setattr(Path, "open", deny)
    with pytest.raises(ValueError, match=r"^data\.text\.paths: cannot read '.*a\.txt': Permission denied$"):
        open_files(files(tmp_path / "a.txt"))


def test_the_file_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    write_texts(tmp_path, sentences(10))
    (tmp_path / "0006.txt").write_bytes(b"caf\xe9")
    with pytest.raises(
        ValueError, match=r"^data\.text\.paths: '.*0006\.txt' is not UTF-8 text \(byte 3\)$"
    ) as caught:
        read(files(tmp_path / "*.txt"), tmp_path / "s")
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", '{"text": "a"}\n{"te'),
        ("a.parquet", "PAR1 no"),
        ("a.json", "[1, 2"),
        ("a.jsonl", "words\n"),
    ],
)
def test_a_broken_file_is_named_in_one_line(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=rf"^data\.text\.paths: cannot read '.*{name}': .+") as caught:
        read(files(tmp_path / name), tmp_path / "s")
    assert "\n" not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_missing_column_is_named_with_those_there_are(name: str, tmp_path: Path) -> None:
    if name.endswith("jsonl"):
        (tmp_path / name).write_text(jsonl([{"body": "one", "id": 1}]))
    else:
        parquet.write_table(pa.table({"body": ["one"], "id": [1]}), tmp_path / name)
    with pytest.raises(
        ValueError, match=rf"^data\.text\.column: '.*{name}' has no column 'text'; it has body, id$"
    ):
        read(files(tmp_path / name), tmp_path / "s")


@pytest.mark.parametrize(
    ("rows", "kind"), [([1, 2], "int64"), ([["a"]], "list.*"), ([{"a": 1}], "struct.*"), (["a", 3], ".*")]
)
def test_a_column_that_is_not_text_is_refused(rows: list[object], kind: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(jsonl([{"text": row} for row in rows]))
    with pytest.raises(
        ValueError, match=rf"^data\.text\.column: 'text' of '.*a\.jsonl' holds {kind}, not text$"
    ):
        read(files(tmp_path / "a.jsonl"), tmp_path / "s")


# What text is


def test_text_is_known_by_content_alone(tmp_path: Path) -> None:
    texts = sentences(5)
    write_texts(tmp_path / "one", texts)
    write_texts(tmp_path / "two", reversed(texts), name="other-{}.md")
    write_texts(tmp_path / "two" / "copies", texts[:3])
    for path in (tmp_path / "one").iterdir():
        os.utime(path, (0, 0))
    assert content(tmp_path / "one" / "*") == content(tmp_path / "two" / "**" / "*")


def test_every_change_of_content_shows(tmp_path: Path) -> None:
    write_texts(tmp_path, sentences(5))
    seen = [content(tmp_path / "*")]
    (tmp_path / "0002.txt").write_text("other")
    seen.append(content(tmp_path / "*"))
    (tmp_path / "0002.txt").unlink()
    seen.append(content(tmp_path / "*"))
    (tmp_path / "0003.txt").rename(tmp_path / "0003.jsonl")  # another loader, so another text
    seen.append(content(tmp_path / "*"))
    seen.append(content(tmp_path / "*", column="body"))
    assert all(one not in seen[:index] for index, one in enumerate(seen))


def test_the_library_keeps_no_copy(tmp_path: Path) -> None:
    import datasets  # type: ignore[import-untyped]

    cache = Path(datasets.config.HF_DATASETS_CACHE)
    before = sorted(cache.rglob("*"))
    write_texts(tmp_path, sentences(40))
    (tmp_path / "a.jsonl").write_text(jsonl([{"text": "one"}]))
    assert len(read(files(tmp_path / "*.*"), tmp_path / "s")) == 41
    assert sorted(cache.rglob("*")) == before
    assert sum(path.stat().st_size for path in (tmp_path / "s").rglob("*") if path.is_file()) == 0


def test_the_library_is_silent(tmp_path: Path) -> None:
    write_texts(tmp_path, sentences(40))
    (tmp_path / "broken.jsonl").write_text('{"text": "a"}\n{"te')
    script = (
        "import sys, pathlib\n"
        "from nasgrow.data.local import open_files\n"
        "from tests.data.corpora import files\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "try:\n"
        "    list(open_files(files(folder / '*')).documents(folder / 's'))\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env={**os.environ, "USE_TORCH": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert len(done.stdout.splitlines()) == 1
    assert done.stderr == ""


# The standard library


def test_the_standard_library_is_its_own_sources() -> None:
    text = open_stdlib()
    root = Path(sysconfig.get_path("stdlib"))
    names = {str(path.relative_to(root)) for path in text.files}
    assert {"os.py", "json/decoder.py"} <= names
    assert set(text.files.values()) == {"text"}
    parts = {part for name in names for part in Path(name).parts[:-1]}
    assert not parts & {"site-packages", "__pycache__", "test", "tests", "encodings"}
    assert sum(path.stat().st_size for path in text.files) > 5e6


def test_library_files_that_are_not_utf8_or_not_library_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = {"a.py": "one\n", "package/b.py": "two é\n"}
    left = ["data.txt", "site-packages/c.py", "package/__pycache__/d.py", "test/e.py", "package/tests/f.py"]
    left.append("encodings/g.py")
    for name, source in {**kept, **dict.fromkeys(left, "no")}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_bytes(source.encode())
    (tmp_path / "latin.py").write_bytes(b"# caf\xe9")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    text = open_stdlib()
    assert sorted(text.documents(tmp_path / "s")) == sorted(source.encode() for source in kept.values())
    (tmp_path / "a.py").write_text("changed")
    assert open_stdlib().description != text.description


def test_a_python_without_sources_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(ValueError, match=r"^data\.text\.source: .* no library sources .*`source: files`$"):
        open_stdlib()
