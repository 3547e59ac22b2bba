"""Runs share prefixes on a GPU only where the same steps give the same bits twice."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from nasgrow.training import determinism as module
from nasgrow.training import runner as runners
from nasgrow.training.determinism import BITS_FOLDER, repeats
from nasgrow.training.prefixes import open_prefix_cache
from nasgrow.training.run import Run
from nasgrow.training.runner import Runner
from tests.training.runs import make_run

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _forget() -> None:
    module._repeats.cache_clear()


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_cpu_repeats(tmp_path: Path, optimizer: str) -> None:
    run, _ = make_run(tmp_path, training={"optimizer": optimizer})
    assert repeats(run, CPU, tmp_path)
    (kept,) = (tmp_path / BITS_FOLDER).glob("*.json")
    module._repeats.cache_clear()
    assert repeats(run, CPU, tmp_path), "another process finds the same"
    assert [*(tmp_path / BITS_FOLDER).glob("*.json")] == [kept]


def test_ramps_of_the_same_steps_are_checked_once(tmp_path: Path) -> None:
    for until in (0.2, 0.4):
        run, _ = make_run(tmp_path, training={"ramp": {"until": until, "context": 4}})
        assert repeats(run, CPU, tmp_path)
    assert len([*(tmp_path / BITS_FOLDER).glob("*.json")]) == 1
    for ramp in (None, {"until": 0.0, "context": 4}):
        run, _ = make_run(tmp_path, training={"ramp": ramp})
        assert repeats(run, CPU, tmp_path)
    assert len([*(tmp_path / BITS_FOLDER).glob("*.json")]) == 2


@pytest.mark.parametrize("place", ["before the event", "at the event", "after the event"])
def test_a_last_bit_that_wavers_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    function, wavers_at = {
        "before the event": ("backward", module.CHECK_STEPS + 3),  # once, in the second training
        "at the event": ("grow", 2),
        "after the event": ("backward", module.CHECK_STEPS + 8),
    }[place]
    calls, sound = 0, getattr(module, function)

    def wavering(model: Any, *args: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        found = sound(model, *args, **options)
        if calls == wavers_at:
            with torch.no_grad():
                first = model.embedding.view(-1)[:1]
                first.copy_(torch.nextafter(first, torch.ones(1)))
        return found

    run, _ = make_run(tmp_path)
    monkeypatch.setattr(module, function, wavering)
    assert not repeats(run, CPU, tmp_path)
    assert calls >= wavers_at
    assert not (tmp_path / BITS_FOLDER).exists(), "others do not compare with it"


def test_other_bits_than_the_first_process_found_are_noticed(tmp_path: Path) -> None:
    run, _ = make_run(tmp_path)
    assert repeats(run, CPU, tmp_path)
    (kept,) = (tmp_path / BITS_FOLDER).glob("*.json")
    kept.write_text(json.dumps({"digest": "of other kernels"}), encoding="utf-8")
    module._repeats.cache_clear()
    assert not repeats(run, CPU, tmp_path)


@pytest.mark.parametrize("repeated", [True, False])
def test_prefixes_are_shared_only_where_bits_repeat_and_the_description_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repeated: bool
) -> None:
    run, corpus = make_run(tmp_path)
    used: list[bool] = []

    def stop_here(prefixes: Any, run: Run, folder: Path, *rest: Any) -> Any:
        described = json.loads((folder / "description.json").read_text(encoding="utf-8"))
        assert described["machine"]["repeats"] is repeated
        used.append(prefixes is not None)
        raise KeyboardInterrupt

    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(runners, "repeats", lambda run, device, folder: repeated)
    monkeypatch.setattr(runners, "following", stop_here)
    monkeypatch.setattr(runners, "device_name", lambda device: "a GPU")
    monkeypatch.setattr("nasgrow.training.folder.describe_machine", lambda device: {"device": "a GPU"})
    cache = open_prefix_cache(str(tmp_path / "cache"), 1.0, 0.01, (0.5,))
    runner = Runner(tmp_path, corpus, gpu, lambda _: None, lambda _: None, lambda: False, cache)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(KeyboardInterrupt):
            runner.train(run, lambda at, loss: None)
    assert used == [repeated]
    assert [str(one.message) for one in caught] == (
        []
        if repeated
        else ["a GPU: the same ten steps did not give the same bits twice, so runs share no prefixes on it"]
    )
