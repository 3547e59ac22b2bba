from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from nasgrow.errors import UserError
from nasgrow.experiments import init_study
from nasgrow.experiments.init_study import (
    SPARE,
    Device,
    Wanted,
    batch_tokens,
    learning_rate,
    propose,
    shape_for,
    text_section,
    vocabulary_for,
)
from nasgrow.flops import parameter_count
from nasgrow.shape import Variant
from tests.data.corpora import sentences, write_texts

BYTES = Variant(vocab=256, context=128, positions="rope", final_norm=True)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("parameters", [12e3, 45e3, 1e6, 10e6, 124e6, 1e9])
def test_shapes_have_about_the_size_and_suit_the_device(parameters: float, device: Device) -> None:
    shape = shape_for(parameters, BYTES, device)
    assert abs(math.log(parameter_count(shape, BYTES) / parameters)) < math.log(1.3)
    assert shape.hidden % (64 if device == "cuda" and parameters >= 1e6 else 16) == 0
    (group,) = shape.layers[0].groups
    assert group.count * group.key == shape.hidden
    BYTES.check(shape)


def test_the_laws_are_those_that_were_published() -> None:
    assert learning_rate(1e17) == pytest.approx(0.3118 * 10**-2.125, rel=0.05)
    assert [learning_rate(flops) for flops in (2.7e11, 2e12, 8e15)] == [0.012, 0.009, 0.0032]
    assert [batch_tokens(flops, 128) for flops in (1e6, 4e11, 2e12, 1e20)] == [128, 1024, 2048, 1 << 20]


def test_subwords_need_a_large_model_and_much_text() -> None:
    assert [vocabulary_for(count, math.inf) for count in (1e6, 5e6, 1e8)] == [None, 4096, 16384]
    assert vocabulary_for(1e8, 5e6) == 4096
    assert vocabulary_for(1e8, 1e6) is None


def test_text_is_a_file_a_folder_a_pattern_or_a_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_texts(tmp_path / "texts", ["one", "three"])
    rows = [{"title": "a", "body": "a longer text", "year": 1}]
    (tmp_path / "it.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (tmp_path / "studies").mkdir()
    text = {"source": "files", "paths": ["../texts"]}
    assert text_section("texts", tmp_path / "studies") == ({"text": text}, 8)
    assert text_section("texts/*.txt", tmp_path)[0]["text"]["paths"] == ["texts/*.txt"]
    assert text_section(str(tmp_path / "texts"), tmp_path)[0]["text"]["paths"] == [str(tmp_path / "texts")]
    assert text_section("it.jsonl", tmp_path)[0]["text"]["column"] == "body"
    bracketed = tmp_path / "[a]"
    write_texts(bracketed / "data", ["one", "three"])
    monkeypatch.chdir(bracketed)
    (escaped,) = text_section("data/*.txt", tmp_path / "studies")[0]["text"]["paths"]
    assert text_section(f"{tmp_path}/[[]a]/data/*.txt", tmp_path)[1] == 8
    assert (escaped, text_section("data/*.txt", bracketed)[1]) == ("../[[]a]/data/*.txt", 8)
    monkeypatch.chdir(tmp_path)
    hub = {"text": {"source": "hub", "name": "owner/name"}}
    assert text_section("owner/name", tmp_path) == (hub, math.inf)
    assert text_section("owner/name-v1.0", tmp_path)[0]["text"]["name"] == "owner/name-v1.0"
    for wrong in ("none.txt", "texts/none.txt", "../none", "none"):
        with pytest.raises(UserError, match=r"^--text: .* is no file and no folder"):
            text_section(wrong, tmp_path)


def test_the_budget_fits_the_hours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_texts(tmp_path / "texts", sentences(50))
    monkeypatch.setattr(init_study, "_pace", lambda study, device: 1.0)
    monkeypatch.setattr(init_study, "_hours", lambda study, pace: 10.0)
    wanted = Wanted(str(tmp_path / "texts"), 30e3, "cpu")
    free = propose(wanted, tmp_path / "it.yaml")
    assert (free.tokens_per_parameter, free.hours) == (20, 10.0)
    half = propose(Wanted(wanted.text, 30e3, "cpu", 5.0), tmp_path / "it.yaml")
    assert half.tokens_per_parameter == 10 * SPARE
    assert half.hours == 5 * SPARE
    with pytest.raises(UserError, match=r"^--hours: .* are too few for 2\d,\d+ parameters"):
        propose(Wanted(wanted.text, 30e3, "cpu", 0.001), tmp_path / "it.yaml")
    with pytest.raises(UserError, match=r"'prefixes' is the folder of the prefix cache"):
        propose(Wanted(wanted.text, 30e3, "cpu"), tmp_path / "prefixes.yaml")
    with pytest.raises(UserError, match=r"^--params: must be from 10,000"):
        propose(Wanted(wanted.text, 10, "cpu"), tmp_path / "it.yaml")
