"""The studies for GPUs: sizes that suit tensor cores, few graphs to compile, rates by size, a stated cost."""

from __future__ import annotations

from pathlib import Path

import pytest

from nasgrow.experiments.init_study import batch_tokens, learning_rate
from nasgrow.flops import step_flops
from nasgrow.shape import Layer
from nasgrow.study.study import ResolvedStudy, open_study
from nasgrow.training.roofline import A100, step_bound
from tests.spaces.asking import RandomTrial

FILES = sorted((Path(__file__).parents[2] / "studies").glob("gpu-*.yaml"))
KINDS = {"gpu-small": 4, "gpu-tinystories": 8}


def layer_kinds(study: ResolvedStudy, points: int = 150) -> set[tuple[int, Layer]]:
    """The layers of random schedules, with their hidden size: what the compiler sees."""
    schedules = (study.space.sample(RandomTrial(seed)).schedule for seed in range(points))
    return {(s.hidden, layer) for one in schedules for s in one.shapes for layer in s.layers}


def misaligned(kinds: set[tuple[int, Layer]], multiple: int = 64) -> set[int]:
    """The sides of matrices that are no multiple."""
    sides = {side for hidden, layer in kinds for side in (hidden, layer.mlp)}
    groups = [group for _, layer in kinds for group in layer.groups]
    sides |= {group.count * size for group in groups for size in (group.key, group.value)}
    return {side for side in sides if side % multiple}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_sizes_are_multiples_of_64_and_few(path: Path) -> None:
    study, _ = open_study(path)
    kinds = layer_kinds(study)
    assert misaligned(kinds) == set()
    assert study.variant.vocab % 64 == study.config.training.batch_tokens % 64 == 0
    assert len(kinds) == KINDS[path.stem]
    assert f"of {len(kinds)} kinds of layer to compile" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_other_sizes_would_be_noticed(path: Path, tmp_path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    planted = tmp_path / path.name
    planted.write_text(text.replace("round: 64", "round: 1").replace("0.5", "0.55"), encoding="utf-8")
    study, _ = open_study(planted)
    assert misaligned(layer_kinds(study, 20))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_rate_and_batch_are_those_of_init_and_headers_state_flops_and_bound_of_a_run(path: Path) -> None:
    study, _ = open_study(path)
    final, training = study.config.final, study.config.training
    flops = study.config.budget.resolve(final, study.variant, training)
    assert training.learning_rate.peak == learning_rate(flops)
    assert training.batch_tokens == batch_tokens(flops, training.context)
    steps = flops / step_flops(final, study.variant, training.sequences)
    seconds = steps * step_bound(final, study.variant, training, A100)
    text = path.read_text(encoding="utf-8")
    assert f"# Cost: {flops:.1e} FLOPs a run" in text
    assert f"a run takes at least {seconds:.0f} seconds" in text
