"""``nasgrow plan``: show the cost of a run, stage by stage, or of a study, before it starts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from nasgrow.cli.console import plain_table
from nasgrow.cli.durations import duration
from nasgrow.cli.files import is_study, load_run
from nasgrow.config import RunConfig, TrainingConfig
from nasgrow.data import check_data, in_words, vocabulary
from nasgrow.flops import parameter_count
from nasgrow.schedule import Schedule
from nasgrow.shape import Variant
from nasgrow.strict import with_prefix
from nasgrow.training.run import Run
from nasgrow.training.step_seconds import StepSeconds


def run(file: Path, flops: float | None, as_json: bool, timed: bool) -> int:
    """Print what the run or the study of ``file`` will cost; return 0.

    The data is prepared, unless it must be downloaded first.

    Args:
        file: A schedule, run or study file, or a study's folder.
        flops: The budget in place of the file's, unless it is None.
        as_json: Whether to print one JSON document.
        timed: Whether to time training steps. A run with a budget in seconds is timed in any case,
            unless its file has the seconds of steps.
    """
    if is_study(file):
        from nasgrow.cli import plan_study

        return plan_study.run(file, flops, as_json, timed)
    config = load_run(file).with_options(flops=flops)
    corpus = with_prefix(str(file), lambda: check_data(config.data, config.training.context, tell))
    vocab = vocabulary(config.data.tokens)
    if config.budget.seconds is not None and config.budget.step_seconds is None:
        config = with_prefix(str(file), lambda: _with_step_seconds(config, vocab))
    planned = with_prefix(str(file), lambda: Run.resolve(config, vocab=vocab, fingerprint=""))
    rows = _rows(planned, timed)
    if as_json:
        budget = config.budget.model_dump() if planned.is_timed else planned.budget
        data = None if corpus is None else corpus.describe()
        print(json.dumps({"budget": budget, "data": data, "stages": rows}, indent=2))
    else:
        _show(planned, rows)
        print(in_words(corpus, sum(row["tokens"] for row in rows)))
    return 0


def tell(line: str) -> None:
    """Print a line of progress on standard error."""
    click.echo(line, err=True)


def show(planned: Run, *, timed: bool) -> None:
    """Print the stages of a run, and what each costs.

    Args:
        planned: The run.
        timed: Whether to measure how long the stages take. A budget in seconds says so itself.
    """
    _show(planned, _rows(planned, timed))


def _with_step_seconds(config: RunConfig, vocab: int) -> RunConfig:
    """Return a run with a budget in seconds, completed with the measured seconds of its steps."""
    context = config.training.context
    variant = config.variant.resolve(vocab=vocab, context=context, start=config.start)
    for shape in config.schedule.shapes:
        variant.check(shape)
    steps = _measured(config.schedule, variant, config.training)
    kinds, shapes = config.training.kinds, config.schedule.shapes
    each = [steps.of(shape, variant, kind) for kind in kinds for shape in shapes]
    return config.model_copy(update={"budget": config.budget.timed(each)})


def _rows(planned: Run, timed: bool) -> list[dict[str, Any]]:
    return [
        {
            "stage": index + 1,
            "from": (stage.spent - stage.event_cost) / planned.budget,
            "shape": str(stage.shape),
            "parameters": parameter_count(stage.shape, planned.variant),
            "steps": stage.steps,
            "tokens": planned.tokens_at(stage.end) - planned.tokens_at(stage.first),
            "operator": str(planned.operators[index - 1]) if index else None,
            "operator_flops": stage.event_flops,
            "flops": stage.flops,
            "seconds": seconds,
        }
        for index, (stage, seconds) in enumerate(zip(planned.stages, _seconds(planned, timed), strict=True))
    ]


def _seconds(planned: Run, timed: bool) -> list[float | None]:
    """Return the seconds of each stage.

    They follow from a budget in seconds. For another budget they are measured now if ``timed``, else None.
    """
    if planned.is_timed:
        return [
            (stage.spent_at(stage.end) - stage.spent + stage.event_cost) / 1e9 for stage in planned.stages
        ]
    if not timed:
        return [None] * len(planned.stages)
    steps = _measured(planned.schedule, planned.variant, planned.config.training)
    return [steps.of_stage(planned, stage) for stage in planned.stages]


def _measured(schedule: Schedule, variant: Variant, training: TrainingConfig) -> StepSeconds:
    from nasgrow.training.device import pick_device
    from nasgrow.training.step_timing import measure_steps

    cases = [(shape, kind) for shape in dict.fromkeys(schedule.shapes) for kind in training.kinds]
    return measure_steps(cases, variant, pick_device())


def _show(planned: Run, rows: Sequence[dict[str, Any]]) -> None:
    table = plain_table(("stage", "from", "parameters", "operator", "steps", "tokens", "FLOPs", "time"))
    for row in rows:
        table.add_row(
            str(row["stage"]),
            f"{row['from']:.1%}",
            f"{row['parameters']:,}",
            f"{row['operator_flops']:.3g}" if row["operator_flops"] else "-",
            f"{row['steps']:,}",
            f"{row['tokens']:,}",
            f"{row['flops']:.3g}",
            duration(row["seconds"]),
        )
    console = Console(highlight=False, markup=False)
    for row in rows:
        grown = f", grown by {row['operator']}" if row["operator"] else ""
        console.print(f"stage {row['stage']}: {row['shape']}{grown}", soft_wrap=True)
    console.print(table)
    if (small := planned.config.training.in_ramp) is not None:
        console.print(
            f"ramp: the first {planned.ramp_steps:,} steps have {small.batch_tokens:,} tokens each, in "
            f"sequences of {small.context:,}",
            soft_wrap=True,
        )
    spent = sum(row["operator_flops"] + row["flops"] for row in rows)
    seconds = None if rows[0]["seconds"] is None else sum(row["seconds"] for row in rows)
    tokens = sum(row["tokens"] for row in rows)
    if planned.is_timed:
        budget = planned.config.budget.model_dump(exclude_none=True)
        last = planned.stages[-1]
        console.print(
            f"{last.spent_at(last.end) / 1e9:.4g} of {budget['seconds']:.4g} seconds, {spent:.4g} FLOPs, "
            f"{tokens:,} tokens",
            soft_wrap=True,
        )
        console.print(f"budget: {budget}", soft_wrap=True)
        return
    console.print(
        f"{spent:.4g} of {planned.budget:.4g} FLOPs, {tokens:,} tokens"
        + ("" if seconds is None else f", about {duration(seconds)} on this machine"),
        soft_wrap=True,
    )
