"""``nasgrow trunks``: the training states that studies share, listed, verified, pruned."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.table import Table

from nasgrow.cli.durations import duration
from nasgrow.cli.launch import study_console
from nasgrow.cli.views import one_line
from nasgrow.strict import redact, with_prefix
from nasgrow.training.files import to_json
from nasgrow.training.objects import is_url
from nasgrow.training.trunks import Remote, Store


def open_store(folder: str) -> Store | Remote:
    """The store in a folder that there is, or behind a URL."""
    if is_url(folder):
        return with_prefix("--at", lambda: Remote(folder))
    if not Path(folder).is_dir():
        raise ValueError(f"{folder}: no such store; studies make it beside their folders")
    return Store(Path(folder), float("inf"))


def show(folder: str, as_json: bool) -> int:
    """List the states of a store, the dearest first; return the exit code."""
    entries = sorted(open_store(folder).entries(), key=lambda entry: -entry.about["charged"])
    if as_json:
        print(to_json([asdict(entry) for entry in entries], indent=2))
        return 0
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("state", "budget", "FLOPs", "events", "seed", "MB", "uses", "last used"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("shape")
    for entry in entries:
        table.add_row(
            entry.key[:12],
            f"{entry.about['fraction']:.1%}",
            f"{entry.about['charged']:.3g}",
            str(entry.about["events"]),
            str(entry.about["seed"]),
            f"{entry.size / 1e6:.2f}",
            str(entry.uses),
            f"{duration(time.time() - entry.used)} ago",
            one_line(entry.about["shape"]),
        )
    console = study_console()
    console.print(table)
    console.print(f"{redact(folder)}: {_amount(len(entries), sum(entry.size for entry in entries))}")
    return 0


def verify(folder: str) -> int:
    """Check the hashes of every state; return the exit code, 1 if one is damaged."""
    store = open_store(folder)
    keys = list(store)
    damaged = 0
    for key in keys:
        fault = store.fault(key)
        if fault is not None and store.holds(key):
            damaged += 1
            print(f"{store.path(key)}: {fault}")
    print(f"{redact(folder)}: {len(keys) - damaged} of {len(keys)} states are whole")
    return 1 if damaged else 0


def prune(folder: str, gigabytes: float | None) -> int:
    """Remove what is damaged, and the least valuable states beyond a size; return the exit code."""
    store = open_store(folder)
    store.sweep()
    damaged = [key for key in store if store.fault(key) is not None]
    for key in damaged:
        store.drop(key)
    many = 0 if gigabytes is None else store.prune(gigabytes * 1e9)
    left = _amount(sum(1 for _ in store), store.size())
    print(f"{redact(folder)}: removed {len(damaged)} damaged and {many} other states; {left} left")
    return 0


def _amount(states: int, size: int) -> str:
    return f"{states} state{'' if states == 1 else 's'}, {size / 1e9:.3g} GB"
