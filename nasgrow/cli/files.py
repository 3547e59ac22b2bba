"""Files that describe a run: a schedule, a run, or a study."""

from __future__ import annotations

from pathlib import Path

from nasgrow.config import RunConfig, run_document, run_from
from nasgrow.huggingface.start import with_checkpoint
from nasgrow.strict import read_mapping
from nasgrow.study.config import STUDY, load_study


def is_study(path: Path) -> bool:
    """Whether a file, or a folder, is a study's."""
    return (path / STUDY).is_file() or bool({"final", "space"} & read_mapping(path).keys())


def load_run(path: Path) -> RunConfig:
    """The run of a file: a study's is its final shape from the first step on, under its budget."""
    if is_study(path):
        return load_study(path).as_run()
    document, where = run_document(path)
    return run_from(with_checkpoint(document, str(path)), path, where)
