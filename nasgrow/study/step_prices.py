"""The seconds of a training step on a study's device: measured once, and kept in the study's folder.

The times of all runs of a study follow from this one measurement. So their costs can be compared, and no run
depends on how busy a machine was while it trained.
"""

from __future__ import annotations

import json
from pathlib import Path

from nasgrow.errors import UserError
from nasgrow.training.atomic_files import to_json, write_text
from nasgrow.training.step_seconds import StepSeconds

STEPS_FILE = "steps.json"
"""The file in a study's folder that holds the measured seconds of a step."""


def read_steps(folder: Path) -> StepSeconds | None:
    """Read the model of a step's seconds by shape that was fitted for the study in ``folder``.

    Return None if nothing was measured yet.

    Raises:
        UserError: The file is damaged.
    """
    path = folder / STEPS_FILE
    try:
        return StepSeconds.from_json(json.loads(path.read_bytes()))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError):
        raise UserError(f"{path}: is damaged; give the study another name") from None


def write_steps(folder: Path, steps: StepSeconds) -> None:
    """Write the measured seconds of a step to the study's folder."""
    write_text(folder / STEPS_FILE, to_json(steps.to_json(), indent=2) + "\n")
