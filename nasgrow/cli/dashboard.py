"""``nasgrow dashboard``: serve a study in optuna-dashboard."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from nasgrow.study.dashboard import make_dashboard, noting
from nasgrow.study.request_filter import LOOPBACK
from nasgrow.study.storage import open_storage, storage_url
from nasgrow.study.study import open_study
from nasgrow.study.study_folder import read_study


def run(path: Path, host: str, port: int) -> int:
    """Serve the dashboard until Ctrl-C, and keep the notes in it up to date; return 0."""
    study, folder = open_study(path)
    read_study(folder)  # raises UserError without a study
    storage = open_storage(storage_url(study.config, folder))
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    if host not in LOOPBACK:
        console.print(f"warning: anyone who reaches {host} can read and change this study", style="yellow")
    with make_dashboard(storage, folder, host, port) as server, noting(study, folder, storage):
        named = f"[{host}]" if ":" in host else host
        console.print(f"http://{named}:{server.server_port}/dashboard (Ctrl-C ends)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            console.print("closed")
    return 0
