"""Read a run from a schedule, run or study file."""

from __future__ import annotations

from pathlib import Path

from nasgrow.config import RunConfig, run_document, run_from
from nasgrow.huggingface.start import with_checkpoint
from nasgrow.strict import read_mapping
from nasgrow.study.config import STUDY, load_study


def is_study(path: Path) -> bool:
    """Return whether a path is a study file or a study's folder.

    Raises:
        UserError: The path is neither a study's folder nor a valid YAML file.
    """
    return (path / STUDY).is_file() or bool({"final", "space"} & read_mapping(path).keys())


def load_run(path: Path) -> RunConfig:
    """Read the run of a file; for a study, its final shape from scratch under its budget."""
    if is_study(path):
        return load_study(path).as_run()
    document, where = run_document(path)
    return run_from(with_checkpoint(document, str(path)), path, where)
