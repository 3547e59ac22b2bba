"""``nasgrow verify``: run the checks of :mod:`nasgrow.verify` and print them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from nasgrow.verify import EXPANSIONS, KEY_EXPANSIONS, KEY_FIXED, LIMITS, VARIANTS, Check, checks


def run(as_json: bool) -> int:
    """Run and print the checks; return the exit code, 1 if one failed."""
    total = len(VARIANTS) * len(EXPANSIONS) + len(KEY_FIXED) * len(KEY_EXPANSIONS)
    progress = Console(stderr=True)
    found = list(
        track(
            checks(),
            "Verifying",
            total=total,
            console=progress,
            transient=True,
            disable=not progress.is_terminal,
        )
    )
    passed = all(check.preserved and check.alive for check in found)
    if as_json:
        rows = [{**asdict(check), "preserved": check.preserved, "alive": check.alive} for check in found]
        print(json.dumps({"passed": passed, "limits": dict(LIMITS), "checks": rows}, indent=2))
    else:
        console = Console(highlight=False)
        console.print(_table(found))
        console.print(_summary(found), soft_wrap=True)
    return 0 if passed else 1


_LEGEND = (
    "float64, float32: largest difference of a logit, relative to the largest logit. grad 1, 2: norm of "
    "the gradient that reaches the new parameters after one and two steps. ms: time to grow."
)


def _table(found: Sequence[Check]) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), caption=_LEGEND, caption_justify="left")
    table.add_column("variant", style="bold", no_wrap=True)
    table.add_column("expansion", no_wrap=True)
    for heading in ("float64", "float32", "grad 1", "grad 2", "ms"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    for index, check in enumerate(found):
        first = index == 0 or found[index - 1].variant != check.variant
        last = index + 1 == len(found) or found[index + 1].variant != check.variant
        table.add_row(
            check.variant if first else "",
            check.expansion,
            f"{check.float64:.1e}",
            f"{check.float32:.1e}",
            f"{check.gradient_after_one:.1e}",
            f"{check.gradient_after_two:.1e}",
            f"{check.milliseconds:.1f}",
            _verdict(check),
            end_section=last,
        )
    return table


def _verdict(check: Check) -> str:
    if not check.preserved:
        return "[bold red]changed[/]"
    return "[green]ok[/]" if check.alive else "[bold red]dead[/]"


def _summary(found: Sequence[Check]) -> str:
    failed = sum(not (check.preserved and check.alive) for check in found)
    worst = ", ".join(
        f"worst {kind} {max(getattr(check, kind) for check in found):.1e} (limit {limit:.0e})"
        for kind, limit in LIMITS.items()
    )
    verdict = f"{failed} of {len(found)} checks failed" if failed else f"all {len(found)} checks passed"
    return f"{verdict}: {worst}"
