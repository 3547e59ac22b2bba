"""``nasgrow doctor`` on this machine, and what it would say of others."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from nasgrow.training.device_report import Examination, Pace, _slow
from tests.cli.calling import call


def examination(found: dict[str, Any], **changes: Any) -> Examination:
    """What was found, from its JSON, with changes."""
    paces = {name: tuple(Pace(**pace) for pace in found[name]) for name in ("products", "steps")}
    return Examination(**{**found, **paces, **changes})


def test_it_measures_this_machine_and_says_what_it_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert call(monkeypatch, "doctor", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["gpus"] == 0
    assert found["repeats"] is True
    assert found["compute"] == "float32"
    assert found["slow"] == ["no GPU is seen: runs train on the CPU"]
    assert [pace["what"] for pace in found["products"]] == [
        "2048 x 64 by 64 x 64",
        "2048 x 256 by 256 x 256",
    ]
    for pace in (*found["products"], *found["steps"]):
        assert pace["peak_share"] == pytest.approx(pace["flops_per_second"] / found["peak"])

    again = examination(found, repeats=False, slow=["[odd] names: 7% of the peak"])
    monkeypatch.setattr("nasgrow.cli.doctor.examine", lambda device: again)
    assert call(monkeypatch, "doctor") == 0
    shown = capsys.readouterr().out
    assert "ten training steps gave different bits the second time" in shown
    assert "- [odd] names: 7% of the peak" in shown
    assert all(pace.what in shown for pace in (*again.products, *again.steps))


def test_bits_that_waver_are_named() -> None:
    assert _slow(False, "float32", False, []) == [
        "no GPU is seen: runs train on the CPU",
        "ten steps did not give the same bits twice: runs share no prefixes on this device",
    ]


def test_it_names_what_would_be_slow_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    fast, slow = Pace("wide", 5e13, 0.5), Pace("narrow", 1e13, 0.1)
    lines = _slow(True, "float32", True, [fast, slow])
    assert [line.split(":")[0] for line in lines] == [
        "the GPU does not compute in bfloat16",
        "the package triton is missing, which compiling for a GPU needs",
        "no C compiler is found, which triton needs",
        "narrow",
    ]
    assert _slow(False, "float32", True, [slow]) == ["no GPU is seen: runs train on the CPU"]
