"""Passages: a run as its cost goes, from fork to fork."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nasgrow.params import table
from nasgrow.schedule import Schedule, Stage
from nasgrow.search.baselines import sizes
from nasgrow.search.config import Pruner
from nasgrow.search.samplers import recovered
from nasgrow.search.study import Study
from nasgrow.training.grid import evaluation_steps
from nasgrow.training.pace import Pace, measure_pace
from nasgrow.training.run import Run
from nasgrow.training.trunks import Fork, forks


class Paces:
    """Seconds of a step by its FLOPs, in between shapes that were measured.

    Attributes:
        shapes: How many were.
        saved: Bytes that a forward pass of the largest keeps for the backward pass.
    """

    def __init__(self, measured: Mapping[int, Pace]) -> None:
        self._flops = sorted(measured)
        self.shapes = len(measured)
        self.saved = max(pace.saved for pace in measured.values())
        self._step = [measured[flops].step for flops in self._flops]
        self._evaluation = [measured[flops].evaluation for flops in self._flops]

    def step(self, flops: int) -> float:
        """Of a training step that costs so many FLOPs."""
        return float(np.interp(flops, self._flops, self._step))

    def evaluation(self, flops: int) -> float:
        """Of evaluating as many tokens as such a step has."""
        return float(np.interp(flops, self._flops, self._evaluation))


def measure_paces(study: Study, device: torch.device) -> Paces:
    """Take a few steps of the study's fixed sizes, from its smallest start shape to its largest shape."""
    shapes = {study.space.smallest, study.space.largest, *(size.shape for size in sizes(study))}
    measured = {}
    for shape in shapes:
        run = Run.resolve(
            study.run(Schedule(shape), {}, study.config.seeds[0]), vocab=shape.vocab, fingerprint=""
        )
        measured[run.stages[0].step_flops] = measure_pace(run, 0, device)
    return Paces(measured)


@dataclass(frozen=True)
class Passage:
    """One run.

    Attributes:
        run: The run.
        stages: Its stages.
        forks: Where it may part from others.
        stop: FLOPs charged where a pruner may give it up first; None if it never may.
    """

    run: Run
    stages: tuple[Stage, ...]
    forks: tuple[Fork, ...]
    stop: int | None

    @staticmethod
    def of(run: Run, times: Iterable[float], environment: Mapping[str, Any], pruner: Pruner) -> Passage:
        """The passage of a run whose states are kept at ``times``."""
        stages = run.stages
        return Passage(run, stages, forks(run, times, environment), _first_stop(run, stages, pruner))

    @property
    def charged(self) -> int:
        """FLOPs in all."""
        return self.stages[-1].charged(self.stages[-1].end)

    def state_bytes(self, fork: Fork) -> int:
        """The size of the state that is kept at a fork."""
        return state_bytes(self.run, next(stage for stage in self.stages if fork.step <= stage.end))

    def seconds(self, begin: int, end: int, paces: Paces) -> float:
        """The time of training from so many FLOPs charged to so many, evaluations among them."""
        training = self.run.config.training
        tokens = {stage.step_flops: 0 for stage in self.stages}
        total = 0.0
        for stage in self.stages:
            flops = min(end, stage.spent + stage.flops) - max(begin, stage.spent - stage.event_flops)
            total += max(0, flops) / stage.step_flops * paces.step(stage.step_flops)
            if stage.first and begin < stage.spent <= end:
                tokens[stage.step_flops] += 2 * training.evaluation_tokens  # before and after the event
        for step in evaluation_steps(self.run):
            stage = next(stage for stage in self.stages if step <= stage.end)
            if begin < stage.charged(step) <= end or begin == step == 0:
                tokens[stage.step_flops] += training.evaluation_tokens
        if begin < end == self.charged:
            tokens[self.stages[-1].step_flops] += training.final_tokens
        return total + sum(
            count / training.batch_tokens * paces.evaluation(flops) for flops, count in tokens.items()
        )


def state_bytes(run: Run, stage: Stage) -> int:
    """The size of a run's state on disk: weights in float32 and the optimizer's moments."""
    muon = run.config.training.optimizer == "muon"
    entries = table(stage.shape, run.variant).values()
    return sum(4 * entry.count * (2 if muon and entry.row.multiplies else 3) for entry in entries)


def _first_stop(run: Run, stages: Sequence[Stage], pruner: Pruner) -> int | None:
    """FLOPs charged at the first evaluation at which a pruner may give a run up."""
    if pruner.kind == "none":
        return None
    events = [event.at for event in run.schedule.events]
    for step, fraction in sorted(evaluation_steps(run).items()):
        if fraction >= pruner.after and recovered(pruner, events, fraction):
            return next(stage for stage in stages if step <= stage.end).charged(step)
    return None
