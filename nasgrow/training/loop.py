"""The training loop, the same for schedules and baselines."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nasgrow.data import Corpus, batch, evaluation_windows
from nasgrow.flops import parameter_count
from nasgrow.growth import Growth, grow
from nasgrow.growth.masks import masked, still_closed, warming_up
from nasgrow.training import checkpoint
from nasgrow.training.budget_steps import evaluation_steps
from nasgrow.training.compiling import compile_for, eagerly
from nasgrow.training.learning_rate import step_rates
from nasgrow.training.machine import matmul_peak
from nasgrow.training.prefixes import SharedPrefix
from nasgrow.training.records import (
    CHECKPOINTS,
    METRICS,
    RESULT,
    Result,
    append_record,
    sync_records,
    write_json,
)
from nasgrow.training.resume import resume
from nasgrow.training.run import Run
from nasgrow.training.state import TrainState
from nasgrow.training.step import backward, evaluate, logits_and_loss, update

RECORDS = 200
"""The number of training records of a run, if it has as many steps.

Each holds the mean loss over its share of the budget.
"""

CHECKPOINT_SECONDS, SAVED_WITHIN = 60.0, 3.0
"""The seconds between two checkpoints, if saving one takes at most ``SAVED_WITHIN`` seconds.

If saving takes longer, the time between checkpoints grows in proportion.
"""

DIVERGED = 3.0
"""A run has diverged if the loss of a training record is this many times the first one, or is NaN."""


@dataclass(frozen=True)
class Progress:
    """The progress of a run.

    Attributes:
        step: Steps done.
        steps: Steps of the whole run.
        stage: The index of the current stage.
        stages: The number of stages.
        fraction: The fraction of the budget spent.
        loss: The training loss of the latest record; None before the first record of this process.
        validation: The latest validation loss; None until this process has evaluated the run.
        seconds: Wall time so far, without the time between interruptions and resumptions.
    """

    step: int
    steps: int
    stage: int
    stages: int
    fraction: float
    loss: float | None
    validation: float | None
    seconds: float


class InterruptedRunError(Exception):
    """The run was asked to stop; its state is saved."""


class StopTrainingError(Exception):
    """Raised by the ``evaluated`` callback to end a run early; the state is saved, and the run can resume."""


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
    prefix: SharedPrefix | None = None,
) -> Result:
    """Train a run to its end, from its last checkpoint if there is one, and record it in ``folder``.

    Return the result, which is also written to the folder. A run that diverges ends early.

    Args:
        run: The run to train.
        corpus: The data; its fingerprint must be that of the run.
        folder: The run's folder, which already has the description of the run. The caller holds its
            lock.
        device: The device to train on.
        watch: Called with the progress at the start and at each training record.
        warn: Called with a line for each problem that does not end the run.
        evaluated: Called after each evaluation is recorded, with the fraction of the budget at which it was
            due (the same for all runs with as many evaluations) and the validation loss. To stop the run it
            raises :class:`StopTrainingError`; then the state is saved, no result is written, and the
            exception is raised again. The loss may be NaN. Evaluations before the checkpoint from
            which a run resumes are left out, and so is the evaluation after the last step. Those in
            the records of a cached prefix are included.
        stop: Called after every step. If it returns True, the state is saved and
            :class:`InterruptedRunError` raised.
        prefix: The run's shared prefix; None if runs share no prefixes.

    Raises:
        InterruptedRunError: ``stop`` returned True; the state is saved.
        StopTrainingError: ``evaluated`` raised it; the state is saved.
        UserError: A file cannot be written, the validation split is shorter than one window, or
            the Hugging Face checkpoint to start from has changed.
    """
    config, stages = run.config.training, run.stages
    total = stages[-1].end
    due_at = evaluation_steps(run)
    windows = windows_of(corpus.validation, config.evaluation_tokens, config.context)
    state = resume(folder, run, warn, device)
    peak = matmul_peak(device)
    clock = _Clock(state.seconds)
    save_after = clock.seconds() + CHECKPOINT_SECONDS
    micro_tokens = config.micro_tokens or config.batch_tokens
    status = "finished"
    validation: float | None = None
    event: tuple[Growth, dict[str, Any]] | None = None

    @cache
    def rates_of(index: int) -> NDArray[np.float64]:
        stage = stages[index]
        return step_rates(config.learning_rate, stages, run.budget, index, range(stage.first, stage.end))

    def record(kind: str, **values: Any) -> None:
        charged = stages[state.stage].charged(state.step)
        place = {"step": state.step, "tokens": run.tokens_at(state.step), "charged": charged}
        place["executed"] = state.executed(charged)
        fraction = stages[state.stage].spent_at(state.step) / run.budget
        line = {"kind": kind, **place, "fraction": fraction, "seconds": clock.seconds(), **values}
        state.records = append_record(folder / METRICS, state.records, line)

    def save() -> None:
        nonlocal save_after
        state.seconds = clock.seconds()
        if state.records:
            sync_records(folder / METRICS)  # before the checkpoint that needs them
        checkpoint.save(folder / CHECKPOINTS, run, state)
        now = clock.seconds()
        save_after = now + CHECKPOINT_SECONDS * max(1.0, (now - state.seconds) / SAVED_WITHIN)

    def stopped() -> None:
        if prefix is not None and prefix.keep(state):
            shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
        else:
            save()

    def go_along(prefix: SharedPrefix) -> TrainState:
        try:
            found = prefix.advance(state, clock.seconds, evaluated)
        except StopTrainingError:
            stopped()
            raise
        if found is None:
            save()
            raise InterruptedRunError
        return found

    if prefix is not None:
        state = go_along(prefix)
    compile_for(state.model, device)
    begun = stages[state.stage].spent_at(state.step) / run.budget
    watch(Progress(state.step, total, state.stage, len(stages), begun, None, None, clock.seconds()))
    while state.step < total:
        stage = stages[state.stage]

        # If an event is due too, evaluate before it: the loss belongs to the stage that ends.
        spent = stage.spent_at(state.step) / run.budget
        if state.step in due_at and state.evaluated < state.step:
            with masked(state.model, state.masks, spent):
                validation = evaluate(state.model, windows, micro_tokens)
            state.evaluated = state.step
            record("evaluation", aligned=due_at[state.step], validation=validation)
            try:
                evaluated(due_at[state.step], validation)
            except StopTrainingError:
                stopped()
                raise

        # Store the state for other runs, or continue from a later state that another run has stored.
        if prefix is not None and prefix.due(state):
            before_it = state
            state = go_along(prefix)
            if state is not before_it:
                compile_for(state.model, device)
                continue

        # The stage is over: grow. The event is recorded once the first gradients of the new parts are known.
        if state.step == stage.end:
            with masked(state.model, state.masks, spent):
                before = logits_and_loss(state.model, windows, micro_tokens)
            operator = run.operators[state.stage]
            with eagerly(state.model):
                growth = grow(
                    state.model,
                    state.optimizers,
                    run.schedule.events[state.stage].expansions,
                    seed=run.growth_seed(state.stage),
                    moments=config.moments,
                    operator=operator,
                    batches=partial(_event_batch, run, corpus, state.stage),
                    at_once=micro_tokens // config.context,
                    masks=state.masks,
                    spent=stages[state.stage + 1].spent / run.budget,
                )
            state.masks = list(growth.masks)
            if config.learning_rate.warms_new:
                begun, takes = stages[state.stage + 1].spent / run.budget, config.learning_rate.rewarm
                state.warming = growth.warming(state.warming, begun, takes)
            with masked(state.model, state.masks, spent):
                after = logits_and_loss(state.model, windows, micro_tokens)
            change = float((after[0] - before[0]).abs().max() / before[0].abs().max())
            state.stage += 1
            flops = stages[state.stage].event_flops
            values = {"loss_before": before[1], "loss_after": after[1], "change": change}
            event = growth, {"operator": str(operator), **values, "flops": flops}
            compile_for(state.model, device)
            continue

        # One step: gradients over micro-batches, clipped, at the learning rate of the middle of the step.
        began = time.perf_counter()
        rate = float(rates_of(state.stage)[state.step - stage.first])
        kind = run.training_at(state.step)
        tokens_bs = batch(
            corpus.train, seed=run.config.seed, step=state.step, count=kind.sequences, length=kind.context
        )
        middle = stage.spent_in_middle(state.step) / run.budget
        with masked(state.model, state.masks, middle, gradients=True):
            state.loss_sum += backward(state.model, tokens_bs, kind.micro_tokens or kind.batch_tokens)
        if event is not None:
            growth, values = event
            record("event", **values, new_gradient=growth.new_gradient_norm(state.model))
            event = None
        with warming_up(state.model, state.warming, middle, config.learning_rate.rewarm_from):
            norm = update(state.optimizers, state.model, rate, config.clip)
        state.step += 1
        done = stage.spent_at(state.step) / run.budget
        state.masks, state.warming = still_closed(state.masks, done), still_closed(state.warming, done)
        state.loss_count += 1
        state.step_flops += stage.charged(state.step) - stage.charged(state.step - 1)
        shares = [RECORDS * stage.spent_at(step) // run.budget for step in (state.step - 1, state.step)]
        due = shares[0] < shares[1] or state.step == total
        loss = float(state.loss_sum) / state.loss_count if due else None  # waits for the device
        state.step_seconds += time.perf_counter() - began

        if loss is not None:
            tokens = run.tokens_at(state.step) - run.tokens_at(state.step - state.loss_count)
            record(
                "train",
                loss=loss,
                learning_rate=rate,
                gradient=float(norm),
                tokens_per_second=tokens / state.step_seconds,
                peak_fraction=state.step_flops / state.step_seconds / peak,
            )
            state.first_loss = loss if state.first_loss is None else state.first_loss
            state.loss_sum, state.loss_count = torch.zeros((), device=device), 0
            state.step_seconds, state.step_flops = 0.0, 0
            watch(
                Progress(state.step, total, state.stage, len(stages), done, loss, validation, clock.seconds())
            )
            if not loss < DIVERGED * state.first_loss:
                status = "diverged"
                break

        stopping = stop()
        if stopping or clock.seconds() > save_after:
            save()
        if stopping:
            raise InterruptedRunError

    if status == "finished":
        assert not state.masks
        save()
        last = evaluate(state.model, windows, micro_tokens)  # on the text of all evaluations before
        final = windows_of(corpus.validation, config.final_tokens, config.context)
        validation = evaluate(state.model, final, micro_tokens)
        record("final", validation=validation, evaluation=last)
        status = "finished" if math.isfinite(validation) else "diverged"
    charged = stages[state.stage].charged(state.step)
    result = Result(
        status=status,
        validation=validation if status == "finished" else None,
        steps=state.step,
        tokens=run.tokens_at(state.step),
        charged=charged,
        executed=state.executed(charged),
        seconds=clock.seconds(),
        parameters=parameter_count(state.model.shape, run.variant),
    )
    sync_records(folder / METRICS)
    write_json(folder / RESULT, asdict(result))
    return result


class _Clock:
    """Measures the wall time of a run, without the time between an interruption and its resumption.

    Args:
        before: The seconds that the run took before it was resumed.
    """

    def __init__(self, before: float) -> None:
        self._zero = time.perf_counter() - before

    def seconds(self) -> float:
        """Return the seconds that the run has taken so far, with those before interruptions."""
        return time.perf_counter() - self._zero


def _event_batch(run: Run, corpus: Corpus, event: int, number: int) -> Tensor:
    """Return batch ``number`` for an operator that learns.

    It is drawn from the training split, independently of the batches of the run's steps.
    """
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


def windows_of(split: NDArray[Any], tokens: int, context: int) -> Tensor:
    """Return fixed windows of a split, each of ``context`` + 1 tokens.

    Together they predict about ``tokens`` tokens, fewer if the split is too short.

    Raises:
        UserError: The split is shorter than one window.
    """
    return torch.from_numpy(evaluation_windows(split, count=max(1, tokens // context), length=context))
