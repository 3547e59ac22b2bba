"""What a space refuses, in one line that names the field and the value."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from nasgrow.config import LearningRate, TrainingConfig
from nasgrow.spaces import Choices, Range, load_space, with_training
from tests.spaces.asking import FINAL, PLAIN, space

COMPOUND: dict[str, Any] = {"kind": "compound", "start": [1, 0.5]}
SLOTS: dict[str, Any] = {
    "kind": "slots",
    "start": {"mlp": [1, 0.5]},
    "choices": {"none": [], "mlp": ["mlp"]},
    "factor": [2],
}
OPEN = {"hidden": [32], "mlp": [4], "heads": [2], "key": [16], "value": [16], "max_layers": 4}
SETTING = "must be a list of values, {low, high, step} or {low, high, log: true}"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, "must be a built-in space's name, a file's path or a space, not 3"),
        ({}, "kind: must be one of per-dimension, slots, compound, fixed, not None"),
        ({"kind": "random"}, "kind: must be one of per-dimension, slots, compound, fixed, not 'random'"),
        ({"kind": "compound"}, "start: is missing"),
        ({**COMPOUND, "events": 0}, "events: input should be greater than 0, not 0"),
        ({**COMPOUND, "events": 10**9}, "events: input should be less than or equal to 100, not 1000000000"),
        ({**SLOTS, "slots": 10**9}, "slots: input should be less than or equal to 100, not 1000000000"),
        (
            {**COMPOUND, "times": {"low": 0.1, "high": 0.7, "step": 1e-9}},
            "times: low to high must be at most 10,000 values",
        ),
        (
            {**COMPOUND, "times": {"low": 0.1, "high": 0.7, "step": 1e-320}},
            "times: low to high must be at most 10,000 values",
        ),
        (
            {**COMPOUND, "start": [1, *(i / 20_000 for i in range(1, 10_001))]},
            "start.list: list should have at most 10000 items",
        ),
        ({**COMPOUND, "final": {**OPEN, "max_layers": 10**9}}, "final.max_layers: input should be less than"),
        ({**COMPOUND, "steps": 2}, "steps: there is no such field"),
        ({**COMPOUND, "start": 0.5}, f"start: {SETTING}, not 0.5"),
        ({**COMPOUND, "start": []}, "start.list: list should have at least 1 item"),
        ({**COMPOUND, "start": [1, float("nan")]}, "start.list.1: must be a finite number, not nan"),
        ({**COMPOUND, "start": [1, 10**400]}, "start.list.1: must be a finite number, not 1000"),
        (
            {**COMPOUND, "start": [1, [0.5]]},
            "start.list.1: must be a number, a text, true, false or null, not",
        ),
        (
            {**COMPOUND, "start": {"low": float("-inf"), "high": 1}},
            "start.range.low: must be a finite number, not -inf",
        ),
        ({**COMPOUND, "start": {"low": "0", "high": 1}}, "start.range.low: must be a number, not '0'"),
        (
            {**COMPOUND, "known": {"it": {"start": float("inf")}}},
            "known.it.start: must be a finite number, not inf",
        ),
        ({**COMPOUND, "start": [1, 1.0]}, "start.list: 1.0 stands twice"),
        (
            {**COMPOUND, "start": [0.5]},
            "start: must hold 1, so that training without growth is in the space, not [0.5]",
        ),
        ({**COMPOUND, "start": [1, 2]}, "start: must hold shares above 0 and at most 1, not [1, 2]"),
        ({**COMPOUND, "start": [1, "half"]}, "start: must hold numbers only, not [1, 'half']"),
        ({**COMPOUND, "start": {"low": 0.5}}, "start.range.high: is missing"),
        ({**COMPOUND, "start": {"low": 0.5, "high": 0.9}}, "start: must hold 1, so that"),
        ({**COMPOUND, "start": {"low": 1, "high": 1}}, "start.range: low must be below high"),
        (
            {**COMPOUND, "start": {"low": 0.5, "high": 1, "step": 0.2}},
            "start.range: low to high must be a whole number of steps",
        ),
        ({**COMPOUND, "start": {"low": 0.5, "high": 1, "step": 0}}, "start.range: step must be above 0"),
        (
            {**COMPOUND, "start": {"low": 0.5, "high": 1, "step": 0.1, "log": True}},
            "start.range: a range with log has no step, and begins above 0",
        ),
        ({**COMPOUND, "dims": ["width"]}, "dims.0: input should be 'hidden', 'layers'"),
        ({**COMPOUND, "dims": []}, "dims: list should have at least 1 item"),
        (
            {**COMPOUND, "order": ["side"]},
            "order: must hold some of top, bottom, middle, interleave, not ['side']",
        ),
        (
            {**COMPOUND, "times": {"low": 0.1, "high": 0.5}},
            "times: must be a range with a step, between 0 and 1, not {'low': 0.1, 'high': 0.5}",
        ),
        ({**COMPOUND, "times": {"low": 0, "high": 0.5, "step": 0.5}}, "times: must be a range with a step"),
        ({**COMPOUND, "times": {"low": 0.5, "high": 1.5, "step": 0.5}}, "times: must be a range with a step"),
        ({"kind": "per-dimension", "dims": {}}, "dims: dictionary should have at least 1 item"),
        ({"kind": "per-dimension", "dims": {"mlp": {}}}, "dims.mlp.start: is missing"),
        (
            {"kind": "per-dimension", "dims": {"mlp": {"start": [1]}}, "steps": 3},
            "steps: input should be 1 or 2, not 3",
        ),
        ({**SLOTS, "choices": {"mlp": ["mlp"]}}, "choices: must hold none: [], not {'mlp': ['mlp']}"),
        (
            {**SLOTS, "choices": {"none": [], "deep": ["layers"]}},
            "choices: deep cannot grow layers, which has no start",
        ),
        ({**SLOTS, "factor": [1]}, "factor: must hold factors above 1, not [1]"),
        ({**SLOTS, "layers": ["odd"]}, "layers: must hold some of all, lower, upper, not ['odd']"),
        ({**COMPOUND, "final": {**OPEN, "hidden": [32.5]}}, "final.hidden: must hold positive whole numbers"),
        (
            {**COMPOUND, "final": {**OPEN, "hidden": {"low": 32, "high": 64}}},
            "final.hidden: must hold positive whole numbers, in a list or a range with a step",
        ),
        ({**COMPOUND, "final": {**OPEN, "mlp": [0]}}, "final.mlp: must hold numbers above 0"),
        (
            {**COMPOUND, "final": {**OPEN, "limit": {}}},
            "final.limit: a limit is exactly one of parameters, inference_flops, not {}",
        ),
        ({**COMPOUND, "round": 0}, "round.hidden: input should be greater than or equal to 1"),
        ({**COMPOUND, "round": True}, "round: "),
        ({**COMPOUND, "round": {"layers": 2}}, "round.layers"),
        ({**COMPOUND, "round": {"mlp": 2.5}}, "round.mlp: "),
        ({"python": "module"}, "python: string should match pattern"),
        ({"python": "a:b", "kind": "slots"}, "kind: there is no such field"),
    ],
)
def test_a_wrong_space_is_one_line_that_names_the_field(tmp_path: Path, data: object, message: str) -> None:
    with pytest.raises(ValueError, match=r"^study\.yaml: space: ") as error:
        load_space(data, "study.yaml: space", Path())
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    if isinstance(data, dict):
        (tmp_path / "own.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
        with pytest.raises(ValueError, match=r"^\S+/own\.yaml: "):
            load_space("own.yaml", "study.yaml: space", tmp_path)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"training": {"learning_rate.peak": [0.01]}},
            "training: learning_rate.peak: is tuned for schedules and fixed shapes alike: name its values in",
        ),
        (
            {"training": {"learning_rate.rewarm": {"low": 0.0, "high": 1.0}}},
            "training: learning_rate.rewarm: input should be less than 1, not 1.0",
        ),
        (
            {"training": {"moments": ["carry", "drop"]}},
            "training: moments: input should be 'fresh-new', 'carry' or 'reset', not 'drop'",
        ),
        ({"round": {"mlp": 512}}, "round.mlp: must be at most the final size 256, not 512"),
        ({"training": {"learning_rate.peek": [1.0]}}, "training: learning_rate.peek: cannot be searched"),
        ({"training": {"rate.peak": [1.0]}}, "training: rate.peak: cannot be searched"),
        ({"training": {"clip.norm": [1.0]}}, "training: clip.norm: cannot be searched"),
        ({"training": {"context": [64]}}, "training: context: cannot be searched"),
        (
            {"dims": ["mlp"], "order": ["top", "bottom"]},
            "order: must be one value where layers do not grow, not ['top', 'bottom']",
        ),
        (
            {"known": {"mine": {"at.3": 0.5}}},
            "known.mine.at.3: there is no such parameter; there are start, at.1, at.2",
        ),
        ({"known": {"mine": {"start": 0.3}}}, "known.mine.start: must be one of 1, 0.5, not 0.3"),
        ({"known": {"mine": {"start": True}}}, "known.mine.start: must be one of 1, 0.5, not True"),
        ({"known": {"mine": {"order": "bottom"}}}, "known.mine.order: must be one of top, not 'bottom'"),
        (
            {"known": {"mine": {"at.1": 0.33}}},
            "known.mine.at.1: must be 0.05 and a multiple of the step 0.05",
        ),
        ({"known": {"mine": {"at.1": 0.8}}}, "known.mine.at.1: must be between 0.05 and 0.7, not 0.8"),
        ({"known": {"mine": {"at.1": "late"}}}, "known.mine.at.1: must be a number, not 'late'"),
        (
            {"final": {**OPEN, "hidden": [32, 512]}},
            "final: limit: h=512, N=1: 1×[p=2048, heads 2×(k=16, v=16)] costs",
        ),
        ({"final": {**OPEN, "key": [16, 15]}}, "final: layer 0: RoPE rotates pairs"),
        (
            {"final": {**OPEN, **{name: {"low": 1, "high": 200, "step": 1} for name in ("hidden", "mlp")}}},
            "final: must be at most 10,000 shapes, not 40,000",
        ),
    ],
)
def test_what_a_study_refuses_is_one_line_that_names_it(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r"^\w+") as error:
        space({**COMPOUND, **more}, FINAL, replace(PLAIN, positions="rope"))
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"/none\.yaml: cannot be read: no such file"):
        load_space("none.yaml", "study.yaml: space", tmp_path)


def test_training_fields_are_replaced_and_validated() -> None:
    config = TrainingConfig(beta2=0.9, learning_rate=LearningRate(warmup=0.1))
    changed = with_training(config, {"learning_rate.peak": 1e-3, "moments": "carry", "clip": None})
    rate = LearningRate(warmup=0.1, peak=1e-3)
    assert changed == TrainingConfig(beta2=0.9, learning_rate=rate, moments="carry", clip=None)
    assert with_training(config, {}) == config
    with pytest.raises(
        ValueError, match=r"^training: .*batch_tokens must be a multiple of the context of 128"
    ):
        with_training(config, {"batch_tokens": 100})


def test_values_of_a_grid_have_no_rounding_errors() -> None:
    times = Range(low=0.05, high=0.7, step=0.05)
    assert times.values[2] == 0.15
    assert times.accept(0.05 + 13 * 0.05) == 0.7
    assert Range(low=16, high=64, step=16).values == [16, 32, 48, 64]
    assert all(isinstance(value, int) for value in Range(low=16, high=64, step=16).values)


@pytest.mark.parametrize(
    ("setting", "middle"),
    [
        (Choices(["a", True, 3]), None),
        (Range(low=16, high=64, step=16), 40),
        (Range(low=0.05, high=0.7, step=0.05), 0.375),
        (Range(low=0.0, high=2.0), 1.0),
        (Range(low=1e-4, high=1.0, log=True), 1e-2),
    ],
)
def test_what_is_drawn_lies_in_a_setting_and_all_over_it(
    setting: Choices | Range, middle: float | None
) -> None:
    drawn = setting.draw(1000, np.random.default_rng(0))
    assert all(setting.accept(value) == value for value in drawn)
    wanted = len(setting.values) if setting.count < inf else 1000
    assert len(set(drawn)) == wanted
    if middle is None:
        assert min(map(drawn.count, setting.values)) > 280
    else:
        assert sum(value < middle for value in drawn) == pytest.approx(500, abs=60)
