"""``nasgrow plan`` of a study: show its cost, or the cost of what is left."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from nasgrow.cli.console import plain_table, study_console
from nasgrow.cli.durations import duration
from nasgrow.cli.plan import tell
from nasgrow.config import Budget
from nasgrow.data import check_data, in_words
from nasgrow.errors import UserError
from nasgrow.experiments.forecast import (
    Course,
    Forecast,
    Room,
    Work,
    are_points_known,
    plan_study,
)
from nasgrow.spaces.training import PEAK
from nasgrow.strict import parse, with_prefix
from nasgrow.study.config import thread_count, worker_count
from nasgrow.study.study import ResolvedStudy, open_study
from nasgrow.study.trials import SEARCHED, Kind
from nasgrow.study.tuning import EXTENSIONS
from nasgrow.training.atomic_files import to_json
from nasgrow.training.device import gpu_count, pick_device

QUEUE_NAMES: dict[Kind, str] = {"baseline": "baselines", "search": "search", "fixed": "fixed shapes"}
Between = tuple[float, float] | None


def run(path: Path, flops: float | None, as_json: bool, timed: bool) -> int:
    """Print what the study of ``path`` will cost, or what is left of it; return 0.

    The data is prepared, unless it must be downloaded first.

    Args:
        path: The study file, or the study's folder.
        flops: The budget of a run in place of the study's, unless it is None.
        as_json: Whether to print one JSON document.
        timed: Whether to measure times and memory, as for :func:`plan_study`.
    """
    study, folder = open_study(path)
    data, context = study.config.data, study.config.training.context
    corpus = with_prefix(str(path), lambda: check_data(data, context, tell))
    if flops is not None:
        budget = parse(Budget, {"flops": flops}, "--budget")
        config = study.config.model_copy(update={"budget": budget})
        study = ResolvedStudy.resolve(config, str(path), study.steps)
    if folder == path and not study.space.declared:
        raise UserError(
            f"{path}: its points come from a Python function, and nasgrow runs no code that a study's folder "
            "names: plan the study's file instead"
        )
    workers, resources = worker_count(study.config, None, gpu_count()), study.config.resources
    if "OMP_NUM_THREADS" not in os.environ:  # workers inherit it from this process
        torch.set_num_threads(thread_count(resources, workers))
    device = torch.device("cpu") if resources.gpus == 0 else pick_device()
    told, room = plan_study(study, folder, workers=workers, device=device, timed=timed)
    document = _document(told, room, workers)
    if as_json:
        print(to_json({**document, "data": None if corpus is None else corpus.describe()}, indent=2))
    else:
        _show(told, document, workers, timed)
        print(in_words(corpus))
    return 0


def _document(told: Forecast, room: Room, workers: int) -> dict[str, Any]:
    """Return the forecast as plain data; a range is a list of its two ends."""
    config = told.study.config
    return {
        "name": config.name,
        "budget": told.study.budget,
        "seconds": told.study.final_seconds,
        "seeds": len(config.seeds),
        "workers": workers,
        "draws": told.draws,
        "done": {QUEUE_NAMES[kind]: vars(told.done[kind]) for kind in SEARCHED},
        "left": {
            **{name: _left(told, partial(_of_kind, kind)) for kind, name in QUEUE_NAMES.items()},
            "all": _left(told, lambda course: course.total),
        },
        "hours": _hours(told, workers),
        "memory": {"parameters": room.parameters, "state": room.state, "saved": room.saved},
        "disk": {
            "checkpoints": room.checkpoints,
            "states": told.between(lambda course: len(course.states)),
            "prefixes": told.between(lambda course: sum(course.states.values())),
            "stored": room.cached,
            "limit": None if config.prefix_cache is None else config.prefix_cache.gigabytes * 1e9,
        },
    }


def _of_kind(kind: Kind, course: Course) -> Work:
    return course.work[kind]


def _left(told: Forecast, work: Callable[[Course], Work]) -> dict[str, Between]:
    return {
        "trials": told.between(lambda course: work(course).trials),
        "runs": told.between(lambda course: work(course).runs),
        "charged": told.between(lambda course: work(course).charged),
        "executed": told.between(lambda course: work(course).executed),
        "shared": told.between(lambda course: _share(work(course))),
        "seconds": told.between(lambda course: work(course).seconds),
    }


def _share(work: Work) -> float:
    """Return executed FLOPs as a fraction of charged FLOPs."""
    return work.executed / work.charged if work.charged else 1.0


def _hours(told: Forecast, workers: int) -> Between:
    """Return the range of wall-clock hours if all workers are always busy; None if unknown."""
    seconds = told.between(lambda course: course.total.seconds)
    return None if seconds is None else (seconds[0] / workers / 3600, seconds[1] / workers / 3600)


def _show(told: Forecast, document: dict[str, Any], workers: int, timed: bool) -> None:
    study, left = told.study, document["left"]
    headings = ("trials", "runs", "FLOPs charged", "FLOPs executed", "executed / charged", "time")
    table = plain_table(headings, first="")
    done = told.done["baseline"] + told.done["search"]
    if done.trials:
        flops = f"{done.charged:.3g}", f"{done.executed:.3g}", f"{_share(done):.2f}"
        time = duration((done.seconds or 0.0) / workers)
        table.add_row("done", str(done.trials), str(done.runs), *flops, time)
    for name in (*QUEUE_NAMES.values(), "all"):
        row = left[name]
        table.add_row(
            name if name != "all" else "all that is left" if done.trials else "all",
            _between(row["trials"], "{:.0f}".format),
            _between(row["runs"], "{:.0f}".format),
            _between(row["charged"], "{:.3g}".format),
            _between(row["executed"], "{:.3g}".format),
            _between(row["shared"], "{:.2f}".format),
            _between(row["seconds"], lambda seconds: duration(seconds / workers)),
        )
    console = study_console()
    seeds = document["seeds"]
    each = "" if seeds == 1 else f", {seeds} seeds each"
    console.print(f"{study.config.name}: {_budget(study)}{each}", soft_wrap=True)
    console.print(table)
    for line in [*_assumed(told), *_time(told, document, timed), *_room(told, document)]:
        console.print(line, soft_wrap=True)


def _budget(study: ResolvedStudy) -> str:
    """Describe the budget of one run in words: its FLOPs, and its seconds if steps were timed.

    These are the seconds of the final shape trained from scratch. They come first if the study
    declares its budget in seconds.
    """
    flops, seconds = f"{study.budget:.4g} FLOPs", study.final_seconds
    if seconds is None or study.steps is None:
        return f"{flops} a run"
    if study.config.budget.seconds is not None:
        return f"{seconds:.4g} seconds a run, which are {flops} of the final shape on {study.steps.device}"
    return f"{flops} a run, which take the final shape {seconds:.3g} seconds on {study.steps.device}"


def _assumed(told: Forecast) -> list[str]:
    """Return the assumptions behind the numbers, a sentence each."""
    config, lines = told.study.config, []
    least, most = [], []
    if config.sampler.kind == "tree":
        least.append("the tree prunes no trial")
        most.append("its pruned trials cost as much as shared prefixes save")
    if len(told.study.tuning.declared[PEAK]) > 1:
        least.append("the final shape is tuned at the listed learning rates only")
        most.append(f"it is tuned at {EXTENSIONS} more")
    if least:
        lines.append(f"Lower ends: {', '.join(least)}. Upper ends: {', '.join(most)}.")
    if are_points_known(told.study):
        lines.append(f"The points are those that the {config.sampler.kind} sampler will choose.")
    else:
        line = f"Points were drawn at random, {told.draws} times"
        if config.sampler.kind != "grid":
            line += f"; {config.sampler.kind} searches near good points, and shares more"
        lines.append(f"{line}.")
    if config.pruner.kind != "none":
        lines.append(
            f"The pauses of {config.pruner.kind} were simulated {told.draws} times, with random losses."
        )
    if config.prefix_cache is not None:
        lines.append("The plan assumes a cached state at every event time of the space, and no eviction.")
    return lines


def _time(told: Forecast, document: dict[str, Any], timed: bool) -> list[str]:
    workers = document["workers"]
    by = f"{workers} busy workers" if workers > 1 else "one worker"
    sources = [f"the recorded times of {QUEUE_NAMES[kind]}" for kind in told.recorded]
    if timed and len(told.recorded) < len(SEARCHED):
        sources.append("steps and evaluations measured just now")
    return [f"Time: from {' and '.join(sources)}, for {by}, without startup."] if sources else []


def _room(told: Forecast, document: dict[str, Any]) -> list[str]:
    memory, disk = document["memory"], document["disk"]
    saved = "" if memory["saved"] is None else f" and {_bytes(memory['saved'])} for a backward pass"
    lines = [
        f"Memory: the largest run has {memory['parameters']:,} parameters; {_bytes(memory['state'])} with "
        f"gradients and moments{saved}, in each worker."
    ]
    checkpoints = f"Disk: up to {_bytes(disk['checkpoints'])} of checkpoints"
    if disk["limit"] is None:
        return [*lines, f"{checkpoints}."]
    states, size = _between(disk["states"], "{:.0f}".format), _between(disk["prefixes"], _bytes)
    lines.append(
        f"{checkpoints}, {states} cached states of {size} beside {_bytes(disk['stored'])} in the cache, "
        f"whose limit is {_bytes(disk['limit'])}."
    )
    if disk["stored"] + disk["prefixes"][1] > disk["limit"]:
        lines.append("That limit may be too low: an evicted state has to be trained again.")
    return lines


def _between(values: Between, told: Callable[[float], str]) -> str:
    if values is None:
        return ""
    low, high = map(told, values)
    return low if low == high else f"{low} to {high}"


def _bytes(size: float) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size / 1e3:.3g} kB"
