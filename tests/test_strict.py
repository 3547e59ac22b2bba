"""Files that users or attackers give: refused in one short line, before they take time or memory."""

from __future__ import annotations

import os
import random
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field, field_validator

from nasgrow.errors import MAX_MESSAGE, UserError
from nasgrow.redact import redact
from nasgrow.strict import MOST_BYTES, MOST_VALUES, Strict, parse, parse_mapping, read_mapping, read_text

LAUGHS = "a0: &a0 [x]\n" + "".join(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]\n" for i in range(12))
MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{i + 1}: &a{i + 1} {{<<: [{', '.join([f'*a{i}'] * 9)}]}}\n" for i in range(12)
)
LONG = f"start: [&a {'x' * 300_000}, {'*a, ' * 30_000}]"
SHAPE = "hidden: 8, mlp: 8, key: 2, value: 2"
PIECES = [*":/@?&;=*.'\" \n\t", "a", "b1", "://", "Token", "key", "x:/"]


def slow_redact(text: str) -> str:
    """What :func:`redact` does, in expressions that backtrack."""
    text = re.sub(r"(:/+)(?:(?!\s['\"]?[a-z][a-z0-9+.-]*:/).)*@", r"\1***@", text, flags=re.IGNORECASE)
    names = "pass|pwd|secret|token|key|sig|credential|auth"
    return re.sub(rf"([?&;][^=&;]*(?:{names})[^=&;]*=)[^&\s]*", r"\1***", text, flags=re.IGNORECASE)


def test_secrets_are_found_as_expressions_that_backtrack_find_them() -> None:
    draw = random.Random(0)
    hidden = 0
    for _ in range(20_000):
        text = "".join(draw.choices(PIECES, k=draw.randrange(1, 16)))
        assert redact(text) == slow_redact(text), text
        hidden += redact(text) != text
    assert hidden > 1_000


@pytest.mark.parametrize("length", [10, 70, 76, 77, 78, 79, 250, 275, 300, 390, 500, 5_000])
@pytest.mark.parametrize("url", ["postgresql://user:Quokka{}@host/db", "s3://bucket/?x=1&token=Quokka{}&y=2"])
def test_no_part_of_a_secret_is_shown_where_a_message_is_shortened(url: str, length: int) -> None:
    class Model(Strict):
        number: int

    secret = url.format("Quokka" * length)
    for data in ({"number": secret}, {"number": ["x" * length, secret]}, {"x" * length + secret: 1}):
        with pytest.raises(UserError) as error:
            parse(Model, data, "file.yaml")
        told = str(error.value)
        assert "Quo" not in told
        assert told.startswith("file.yaml: ")
        assert len(told) <= MAX_MESSAGE


def test_a_message_is_one_line_that_keeps_its_beginning_and_its_end() -> None:
    told = str(UserError("file.yaml: field:\nnot " + "x" * 100_000 + ": use\nanother"))
    assert len(told) == MAX_MESSAGE
    assert told.startswith("file.yaml: field: not xxx")
    assert told.endswith("xxx: use another")


def test_what_a_validator_raises_by_mistake_is_no_mistake_of_the_user() -> None:
    class Wrong(Strict):
        number: int

        @field_validator("number")
        @classmethod
        def _check(cls, number: int) -> int:
            if number == 1:
                return int("one")
            assert number != 2, "an invariant"
            raise UserError("must be less")

    with pytest.raises(ValueError, match="invalid literal") as bug:
        parse(Wrong, {"number": 1}, "file")
    assert type(bug.value) is ValueError
    with pytest.raises(AssertionError, match="an invariant"):
        parse(Wrong, {"number": 2}, "file")
    with pytest.raises(UserError, match=r"^file: number: must be less, not 3$"):
        parse(Wrong, {"number": 3}, "file")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LAUGHS, f"must hold at most {MOST_VALUES:,} values, aliases written out"),
        (MERGES, f"must hold at most {MOST_VALUES:,} values, aliases written out"),
        (LONG, f"line 1: must hold at most {MOST_BYTES:,} characters, aliases written out"),
        ("a: &a [*a]", "line 1: *a is used inside the value that it names"),
        ("a: &a {b: {c: *a}}", "line 1: *a is used inside the value that it names"),
        ("a: *b", "line 1: found undefined alias 'b'"),
        ("a:\n  b: 1\n\tc: 2", "line 3: a tab: YAML is indented by spaces"),
        ("a:\n  b: " + "9" * 5_000, "line 2: a number must have at most 1000 digits"),
        ("a: 0x" + "f" * 5_000, "line 1: a number must have at most 1000 digits"),
        ("a: " + ":".join(["59"] * 2_000) + ".5", "line 1: a number must have at most 1000 digits"),
        ("a: 2026-02-31", "line 1: '2026-02-31' is no timestamp"),
        ("a: !!int x", "line 1: 'x' is no int"),
        ("a: !!int ''", "line 1: '' is no int"),
        ("a: !!bool x", "line 1: 'x' is no bool"),
        ("a: !!timestamp x", "line 1: 'x' is no timestamp"),
        ("a: !!float x", "line 1: 'x' is no float"),
        ("[" * 100_000, "is nested too deeply"),
        ("? [a]\n: b", "line 1: found unhashable key"),
        ("a: \0", "unacceptable character"),
        ("- a", "must be a mapping of fields, not ['a']"),
        ("", "is empty; it must be a mapping of fields"),
    ],
)
def test_yaml_that_is_wrong_or_too_much_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        parse_mapping(text)
    assert message in str(error.value)


def test_a_file_with_very_many_values_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nasgrow.strict.MOST_VALUES", 100)
    assert len(parse_mapping(f"a: [{'x,' * 97}]")["a"]) == 97
    with pytest.raises(UserError, match=r"^line 1: must hold at most 100 values, aliases written out$"):
        parse_mapping(f"a: [{'x,' * 98}]")


def test_aliases_that_stand_for_little_are_what_they_name() -> None:
    data = parse_mapping("a: &a {x: 1, y: 2}\nb: *a\nc: {<<: *a, y: 3}\nd: [*a, *a]")
    assert data["b"] == data["a"] == {"x": 1, "y": 2}
    assert (data["c"], data["d"]) == ({"x": 1, "y": 3}, [data["a"]] * 2)


def test_what_is_not_utf8_is_named_by_its_line(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes("a: 1\nb: né\n".encode("latin-1"))
    with pytest.raises(UserError, match=r"latin\.yaml: line 2: is not UTF-8 text \(byte 0xe9\)"):
        read_mapping(tmp_path / "latin.yaml")


class Inner(Strict):
    peak: float = 1.0
    kind: Literal["a"] = "a"


class Other(Strict):
    kind: Literal["b"] = "b"
    strength: int = 1


class Outer(Strict):
    inner: Inner = Inner()
    either: Annotated[Inner | Other, Field(discriminator="kind")] = Inner()
    listed: list[Inner] = Field(default_factory=list)
    needed: int


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"needed": 1, "iner": {}}, "iner: there is no such field: did you mean 'inner'?"),
        ({"neded": 1}, "neded: there is no such field: did you mean 'needed'?"),
        ({"needed": 1, "zzz": 1}, "zzz: there is no such field; there are either, inner, listed, needed"),
        ({"needed": 1, "inner": {"peek": 2.0}}, "inner.peek: there is no such field: did you mean 'peak'?"),
        (
            {"needed": 1, "either": {"kind": "b", "strenght": 2}},
            "either.b.strenght: there is no such field: did you mean 'strength'?",
        ),
        (
            {"needed": 1, "either": {"kind": "b", "peak": 2.0}},
            "either.b.peak: there is no such field; there are kind",
        ),
        (
            {"needed": 1, "listed": [{"pek": 1.0}]},
            "listed.0.pek: there is no such field: did you mean 'peak'?",
        ),
        ({"needed": 1, "inner": 0.003}, "inner: must be a mapping such as {peak: 0.003}, not 0.003"),
        ({"needed": 1, "inner": "a"}, "inner: must be a mapping such as {kind: a}, not 'a'"),
        ({}, "needed: is missing"),
    ],
)
def test_a_mistake_says_what_would_be_right(data: object, message: str) -> None:
    with pytest.raises(UserError) as error:
        parse(Outer, data)
    assert str(error.value).startswith(message)


def test_devices_pipes_and_large_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    for path in (Path("/dev/zero"), tmp_path / "pipe", tmp_path / "link"):
        with pytest.raises(UserError, match=rf"^{path}: is not a regular file$"):
            read_mapping(path)
    (tmp_path / "large").write_text(" " * (MOST_BYTES + 1), encoding="utf-8")
    with pytest.raises(UserError, match=r"large: must have at most 1,000,000 bytes$"):
        read_mapping(tmp_path / "large")
    (tmp_path / "large").write_text("x", encoding="utf-8")
    assert read_text(tmp_path / "large", 1) == "x"
    with pytest.raises(UserError, match=r"no-such: cannot be read: no such file or directory$"):
        read_text(tmp_path / "no-such", 1)
    with pytest.raises(UserError, match=r"no file can have this name$"):
        read_text(Path("a\0b"), 1)


# Each took a minute or gigabytes; the last are the largest that are allowed.
EXHAUSTING = {
    "laughs": LAUGHS,
    "merges": MERGES,
    "long": LONG,
    "query": "start: " + "?token" * 50_000,
    "slashes": "start: '" + ":/" * 100_000 + "'",
    "heads": f"start: {{{SHAPE}, layers: 1, heads: 1000000000}}",
    "grown heads": f"start: {{{SHAPE}, layers: 1, heads: 1}}\n"
    "events: [{at: 0.5, grow: [{expand: heads, to: 1000000000}]}]",
    "layers": f"start: {{{SHAPE}, layers: 10000, heads: 1}}",
    "inserted layers": f"start: {{{SHAPE}, layers: 1, heads: 1}}\n"
    f"events: [{{at: 0.5, grow: [{{expand: layers, at: [{'1,' * 5_000}]}}]}}]",
    "events": f"start: {{{SHAPE}, layers: 1, heads: 1}}\nevents: [{'x,' * 5_000}]",
}
LARGEST = {
    "a thousand": f"start: {{{SHAPE}, layers: 1000, heads: 1000}}\nevents:\n"
    + "".join(f"- {{at: 0.{i:02}, grow: [{{expand: mlp, to: {8 + i}}}]}}\n" for i in range(1, 50))
}
LIMITED = """
import resource, sys
from pathlib import Path
from nasgrow.config import load_run
from nasgrow.errors import UserError
from nasgrow.flops import step_flops
from nasgrow.schedule import check_operator
from nasgrow.shape import Variant
spent = int(resource.getrusage(resource.RUSAGE_SELF).ru_utime)
resource.setrlimit(resource.RLIMIT_AS, (2 * 10**9, 2 * 10**9))
resource.setrlimit(resource.RLIMIT_CPU, (spent + 30, spent + 30))
for path in map(Path, sys.argv[1:]):
    try:
        config = load_run(path)
    except UserError as error:
        print(error)
    else:
        variant = Variant(vocab=256, context=128)
        check_operator(config.schedule, config.training.operator, variant)
        print(path, [step_flops(shape, variant, 1) for shape in config.schedule.shapes][-1] > 10**10)
"""


def test_files_that_exhausted_the_machine_are_settled_within_limits(tmp_path: Path) -> None:
    paths = []
    for name, text in (EXHAUSTING | LARGEST).items():
        paths.append(tmp_path / f"{name.replace(' ', '-')}.yaml")
        paths[-1].write_text(text, encoding="utf-8")
    ran = subprocess.run([sys.executable, "-c", LIMITED, *paths], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    *refused, allowed = ran.stdout.splitlines()
    assert [line.split(": ")[0] for line in refused] == [str(path) for path in paths[:-1]]
    assert max(map(len, refused)) <= MAX_MESSAGE
    assert allowed == f"{paths[-1]} True"
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss < 2_000_000
