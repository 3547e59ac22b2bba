"""Runs of Weights & Biases in its offline mode: files that ``wandb sync`` uploads.

No key is needed, and nothing is looked up in the network.
"""

from __future__ import annotations

import os
from pathlib import Path

from nasgrow.trackers import RunWriter, TaggedValue


class OfflineRun:
    """One run, in a folder."""

    def __init__(self, to: Path, name: str) -> None:
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # else it asks a name server, offline too
        import wandb

        to.mkdir(parents=True)  # wandb would take the folder of temporary files for one that is not there
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
        """Let wandb write the rest."""
        self._run.finish()


def open_run(to: Path, name: str) -> RunWriter:
    """Begin a run in a folder."""
    return OfflineRun(to, name)


def next_step(out: Path) -> str:
    """The command that uploads the runs."""
    return f"wandb sync --project {out.name} {out}/*/wandb/offline-run-*"
