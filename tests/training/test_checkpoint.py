"""Checkpoints: which are kept, and what is passed over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nasgrow.training import checkpoint
from nasgrow.training.records import CHECKPOINTS, checkpoint_steps
from nasgrow.training.start import first_state
from tests.training.runs import CPU, make_run, run_in


@pytest.mark.parametrize("damage", ["{}", "[]", '{"optimizers": []}', "half"])
def test_a_run_that_starts_again_after_damage_keeps_its_new_checkpoints(damage: str, tmp_path: Path) -> None:
    run, corpus = make_run(tmp_path)
    folder = tmp_path / "run"
    run_in(folder, run, corpus)
    saved = folder / CHECKPOINTS
    last, *_ = checkpoint_steps(saved)
    for step in checkpoint_steps(saved):
        path = saved / f"step-{step}.json"
        text = path.read_text()
        merged = {**json.loads(text), **json.loads(damage)} if damage.startswith('{"') else None
        path.write_text(
            text[: len(text) // 2] if damage == "half" else json.dumps(merged) if merged else damage
        )
    warnings: list[str] = []
    assert checkpoint.load(saved, run, warnings.append) is None
    assert all("passed over" in line for line in warnings)
    state = first_state(run, CPU)
    for step in (1, 2, 3):
        state.step = step
        checkpoint.save(saved, run, state)
        assert checkpoint_steps(saved)[0] == step, "later steps are those that could not be used"
    assert checkpoint_steps(saved) == [3, 2]
    assert last > 3
