"""``nasgrow doctor``: measure this machine's device, and name what would be slow on it."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from nasgrow.cli.console import plain_table
from nasgrow.training.device import pick_device
from nasgrow.training.device_report import Examination, examine


def run(as_json: bool) -> int:
    """Examine the device and print the results as text or JSON; return 0."""
    found = examine(pick_device())
    if as_json:
        print(json.dumps(asdict(found), indent=2))
        return 0
    console = Console(highlight=False)
    memory = "" if found.gigabytes is None else f", {found.gigabytes:.0f} GB"
    console.print(f"{found.device}{memory}; GPUs seen: {found.gpus}; torch {found.torch}", soft_wrap=True)
    compiled = "compiled" if found.compiles else "not compiled"
    tf32 = f"; TF32 {'on' if found.tf32 else 'off'}" if found.gpus else ""
    console.print(f"products in {found.compute}{tf32}; models are {compiled}", soft_wrap=True)
    console.print(f"peak: {found.peak:.3g} FLOP/s of a large product")
    console.print(_table(found))
    bits = "the same bits twice" if found.repeats else "[bold red]different bits the second time[/]"
    console.print(f"ten training steps gave {bits}")
    for line in found.slow:
        console.print(f"- {line}", soft_wrap=True, markup=False)
    return 0


def _table(found: Examination) -> Table:
    table = plain_table(("FLOP/s", "of peak"), first="measured")
    for pace in (*found.products, *found.steps):
        table.add_row(escape(pace.what), f"{pace.flops_per_second:.3g}", f"{pace.peak_share:.0%}")
    return table
