"""The training loop: one, flat, for schedules and baselines alike."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from nasgrow.data import Corpus, batch, evaluation_windows
from nasgrow.flops import parameter_count
from nasgrow.growth import Growth, grow
from nasgrow.growth.masks import masked, still_closed
from nasgrow.training import checkpoint
from nasgrow.training.law import learning_rate
from nasgrow.training.machine import matmul_peak
from nasgrow.training.records import CHECKPOINTS, METRICS, RESULT, Result, append_record, write_json
from nasgrow.training.resume import resume
from nasgrow.training.run import Run
from nasgrow.training.step import backward, compile_for, evaluate, logits_and_loss, update

RECORDS = 200
"""Training records of a run: each is the mean over its share of the steps."""

CHECKPOINT_SECONDS = 60.0
"""Wall time between checkpoints."""

DIVERGED = 3.0
"""A run has diverged when a train record's loss is this many times that of the first, or no number."""


@dataclass(frozen=True)
class Progress:
    """Where a run stands, for those who watch."""

    step: int
    steps: int
    stage: int
    stages: int
    fraction: float
    loss: float | None
    validation: float | None
    seconds: float


class Interrupted(Exception):  # noqa: N818
    """The run was asked to stop; its state is saved."""


class Stopped(Exception):  # noqa: N818
    """Who is told of evaluations raises it to end the run early; its state is saved, and it can go on."""


def train(
    run: Run,
    corpus: Corpus,
    folder: Path,
    *,
    device: torch.device,
    watch: Callable[[Progress], None] = lambda progress: None,
    warn: Callable[[str], None] = lambda line: None,
    evaluated: Callable[[float, float], None] = lambda aligned, validation: None,
    stop: Callable[[], bool] = lambda: False,
) -> Result:
    """Train a run to its end, from its last checkpoint if there is one, and record it in ``folder``.

    Args:
        run: What to train.
        corpus: The data, whose fingerprint is the run's.
        folder: The run's folder; its description is there already.
        device: Where to train.
        watch: Is told of progress.
        warn: Is told, in a line each, of what went wrong without ending the run.
        evaluated: Is told of each evaluation, once it is recorded: the fraction of the budget that it was due
            at, which is the same for all runs with as many evaluations, and the validation loss. It may raise
            :class:`Stopped`: then the state is saved, no result is written, and the exception goes on.
            Evaluations from before the checkpoint that a run goes on from are in its records, not told again.
        stop: Asked after every step; if it says yes, the state is saved and :class:`Interrupted` raised.
    """
    config, stages = run.config.training, run.stages
    total = stages[-1].end
    every = max(1, total // RECORDS)
    due_at = _evaluation_steps(run)
    windows = windows_of(corpus.validation, config.evaluation_tokens, config.context)
    state = resume(folder, run, warn, device)
    peak = matmul_peak(device)
    clock = _Clock(state.seconds)
    saved_at = clock.seconds()
    micro_tokens = config.micro_tokens or config.batch_tokens
    status = "finished"
    validation: float | None = None
    event: tuple[Growth, dict[str, float]] | None = None

    def record(kind: str, **values: Any) -> None:
        charged = stages[state.stage].charged(state.step)
        place = {"step": state.step, "tokens": state.step * config.batch_tokens, "charged": charged}
        line = {"kind": kind, **place, "fraction": charged / run.budget, "seconds": clock.seconds(), **values}
        state.records = append_record(folder / METRICS, state.records, line)

    def save() -> None:
        state.seconds = clock.seconds()
        checkpoint.save(folder / CHECKPOINTS, run, state)

    compile_for(state.model, device)
    while state.step < total:
        stage = stages[state.stage]

        # Before an event, if one is due too: what was measured belongs to the stage that ends.
        spent = stage.charged(state.step) / run.budget
        if state.step in due_at and state.evaluated < state.step:
            with masked(state.model, state.masks, spent):
                validation = evaluate(state.model, windows, micro_tokens)
            state.evaluated = state.step
            record("evaluation", aligned=due_at[state.step], validation=validation)
            try:
                evaluated(due_at[state.step], validation)
            except Stopped:
                save()
                raise

        # The stage is over: grow. The event is recorded once the first gradients of the new parts are known.
        if state.step == stage.end:
            with masked(state.model, state.masks, spent):
                before = logits_and_loss(state.model, windows, micro_tokens)
            growth = grow(
                state.model,
                state.optimizers,
                run.schedule.events[state.stage].expansions,
                seed=run.growth_seed(state.stage),
                moments=config.moments,
                operator=config.operator,
                batches=partial(_event_batch, run, corpus, state.stage),
                masks=state.masks,
                spent=stages[state.stage + 1].spent / run.budget,
            )
            state.masks = list(growth.masks)
            with masked(state.model, state.masks, spent):
                after = logits_and_loss(state.model, windows, micro_tokens)
            change = float((after[0] - before[0]).abs().max() / before[0].abs().max())
            state.stage += 1
            flops = stages[state.stage].event_flops
            event = (
                growth,
                {"loss_before": before[1], "loss_after": after[1], "change": change, "flops": flops},
            )
            compile_for(state.model, device)
            continue

        # One step: gradients over micro-batches, clipped, at the learning rate of the middle of the step.
        began = time.perf_counter()
        fraction = (stage.charged(state.step) + stage.step_flops / 2) / run.budget
        events = [past.spent / run.budget for past in stages[1 : state.stage + 1]]
        ratio = stages[-1].shape.hidden / stage.shape.hidden
        rate = learning_rate(config.learning_rate, fraction, events, ratio)
        tokens_bs = batch(
            corpus.train,
            seed=run.config.seed,
            step=state.step,
            count=config.sequences,
            length=config.context,
        )
        with masked(state.model, state.masks, fraction, gradients=True):
            state.loss_sum += backward(state.model, tokens_bs, micro_tokens)
        if event is not None:
            growth, values = event
            record("event", **values, new_gradient=growth.new_gradient_norm(state.model))
            event = None
        norm = update(state.optimizers, state.model, rate, config.clip)
        state.step += 1
        state.masks = still_closed(state.masks, stage.charged(state.step) / run.budget)
        state.loss_count += 1
        state.step_flops += stage.step_flops
        due = state.step % every == 0 or state.step == total
        loss = float(state.loss_sum) / state.loss_count if due else None  # waits for the device
        state.step_seconds += time.perf_counter() - began

        if loss is not None:
            speed = state.loss_count / state.step_seconds
            record(
                "train",
                loss=loss,
                learning_rate=rate,
                gradient=float(norm),
                tokens_per_second=speed * config.batch_tokens,
                peak_fraction=state.step_flops / state.step_seconds / peak,
            )
            state.first_loss = loss if state.first_loss is None else state.first_loss
            state.loss_sum, state.loss_count = torch.zeros((), device=device), 0
            state.step_seconds, state.step_flops = 0.0, 0
            done = stage.charged(state.step) / run.budget
            watch(
                Progress(state.step, total, state.stage, len(stages), done, loss, validation, clock.seconds())
            )
            if not loss < DIVERGED * state.first_loss:
                status = "diverged"
                break

        stopping = stop()
        if stopping or clock.seconds() - saved_at > CHECKPOINT_SECONDS:
            saved_at = clock.seconds()
            save()
        if stopping:
            raise Interrupted

    if status == "finished":
        assert not state.masks
        save()
        final = windows_of(corpus.validation, config.final_tokens, config.context)
        validation = evaluate(state.model, final, micro_tokens)
        record("final", validation=validation)
        status = "finished" if math.isfinite(validation) else "diverged"
    spent = stages[state.stage].charged(state.step)
    result = Result(
        status=status,
        validation=validation if status == "finished" else None,
        steps=state.step,
        tokens=state.step * config.batch_tokens,
        charged=spent,
        executed=spent + state.lost,
        seconds=clock.seconds(),
        parameters=parameter_count(state.model.shape, run.variant),
    )
    write_json(folder / RESULT, asdict(result))
    return result


class _Clock:
    """Wall time of a run over all its interruptions."""

    def __init__(self, before: float) -> None:
        self._zero = time.perf_counter() - before

    def seconds(self) -> float:
        """Seconds so far."""
        return time.perf_counter() - self._zero


def _event_batch(run: Run, corpus: Corpus, event: int, number: int) -> Tensor:
    """Batch ``number`` for an operator that learns: of the training split, and of none of the run's steps."""
    config = run.config.training
    return torch.from_numpy(
        batch(
            corpus.train,
            seed=run.growth_seed(event),
            step=2**63 + number,
            count=config.sequences,
            length=config.context,
        )
    )


def _evaluation_steps(run: Run) -> dict[int, float]:
    """The steps that begin with the next share of the budget spent, and that share.

    Where a step is larger than a share, the last of those it covers counts.
    """
    count = run.config.training.evaluations
    found = {}
    for i in range(count):
        target = run.budget * i // count
        for stage in run.stages:
            steps = -((stage.spent - target) // stage.step_flops)
            if steps < stage.steps:
                found[stage.first + max(0, steps)] = i / count
                break
    return found


def windows_of(split: NDArray[Any], tokens: int, context: int) -> Tensor:
    """Fixed windows of a split that hold about so many tokens."""
    return torch.from_numpy(evaluation_windows(split, count=max(1, tokens // context), length=context))
