"""``nasgrow plan``: what a run will cost, stage by stage, or a study, before it is started."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from nasgrow.cli.durations import duration
from nasgrow.cli.files import is_study, load_run
from nasgrow.data import vocabulary
from nasgrow.flops import parameter_count
from nasgrow.strict import with_prefix
from nasgrow.training.run import Run


def run(file: Path, flops: float | None, as_json: bool, timed: bool) -> int:
    """Print what the run or the study of ``file`` will cost; return the exit code."""
    if is_study(file):
        from nasgrow.cli import plan_study

        return plan_study.run(file, flops, as_json, timed)
    config = load_run(file).with_options(flops=flops)
    vocab = vocabulary(config.data.tokens)
    planned = with_prefix(str(file), lambda: Run.resolve(config, vocab=vocab, fingerprint=""))
    rows = _rows(planned, timed)
    if as_json:
        print(json.dumps({"budget": planned.budget, "stages": rows}, indent=2))
    else:
        _show(planned, rows)
    return 0


def show(planned: Run, *, timed: bool) -> None:
    """Print the stages of a run."""
    _show(planned, _rows(planned, timed))


def _rows(planned: Run, timed: bool) -> list[dict[str, Any]]:
    paces = _paces(planned) if timed else [None] * len(planned.stages)
    return [
        {
            "stage": index + 1,
            "from": (stage.spent - stage.event_flops) / planned.budget,
            "shape": str(stage.shape),
            "parameters": parameter_count(stage.shape, planned.variant),
            "steps": stage.steps,
            "tokens": stage.steps * planned.config.training.batch_tokens,
            "operator": str(planned.operators[index - 1]) if index else None,
            "operator_flops": stage.event_flops,
            "flops": stage.flops,
            "seconds": None if pace is None else pace * stage.steps,
        }
        for index, (stage, pace) in enumerate(zip(planned.stages, paces, strict=True))
    ]


def _paces(planned: Run) -> list[float | None]:
    from nasgrow.training.machine import pick_device
    from nasgrow.training.pace import measure_pace

    device = pick_device()
    return [measure_pace(planned, index, device).step for index in range(len(planned.stages))]


def _show(planned: Run, rows: Sequence[dict[str, Any]]) -> None:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("stage", "from", "parameters", "operator", "steps", "tokens", "FLOPs", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
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
    spent = sum(row["operator_flops"] + row["flops"] for row in rows)
    seconds = None if rows[0]["seconds"] is None else sum(row["seconds"] for row in rows)
    tokens = sum(row["tokens"] for row in rows)
    console.print(
        f"{spent:.4g} of {planned.budget:.4g} FLOPs, {tokens:,} tokens"
        + ("" if seconds is None else f", about {duration(seconds)} on this machine"),
        soft_wrap=True,
    )
