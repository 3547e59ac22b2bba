"""Write runs for Weights & Biases in its offline mode: files that ``wandb sync`` uploads.

This needs no API key and no network.
"""

from __future__ import annotations

import os
from pathlib import Path

from nasgrow.trackers import RunWriter, TaggedValue


class OfflineRun:
    """Writes one run into a folder."""

    def __init__(self, to: Path, name: str) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # else it asks a name server even offline
        import wandb

        to.mkdir(parents=True)  # if it did not exist, wandb would write to the folder of temporary files
        settings = wandb.Settings(
            console="off",
            silent=True,
            disable_code=True,
            disable_git=True,
            x_disable_meta=True,  # the machine, its user, and the command
            x_disable_stats=True,
            x_save_requirements=False,
        )
        self._run = wandb.init(mode="offline", dir=to, name=name, reinit="create_new", settings=settings)

    def write(self, scalars: list[TaggedValue]) -> None:
        """Log scalars; wandb writes those of a step together."""
        for tag, value, step in scalars:
            self._run.log({tag: value}, step=step)

    def close(self) -> None:
        """Let wandb write the remaining scalars, and end the run."""
        self._run.finish()


def open_run(to: Path, name: str) -> RunWriter:
    """Begin an offline run in the new folder ``to``."""
    return OfflineRun(to, name)


def next_step(out: Path) -> str:
    """Return the command that uploads the runs in ``out``."""
    return f"wandb sync --project {out.name} {out}/*/wandb/offline-run-*"
