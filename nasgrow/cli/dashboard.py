"""``nasgrow dashboard``: a study in optuna-dashboard."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from nasgrow.search.dashboard import make_dashboard, noting
from nasgrow.search.life import reopen
from nasgrow.search.study import open_study

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def run(path: Path, host: str, port: int) -> int:
    """Serve the dashboard until Ctrl-C; return the exit code."""
    study, folder = open_study(path)
    ledger = reopen(study, folder)
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    if host not in LOOPBACK:
        console.print(f"warning: whoever reaches {host} can read and change this study", style="yellow")
    with make_dashboard(ledger, folder, host, port) as server, noting(ledger):
        named = f"[{host}]" if ":" in host else host
        console.print(f"http://{named}:{server.server_port}/dashboard (Ctrl-C ends)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            console.print("closed")
    return 0
