"""Records in TensorBoard: its event files are read back by its own reader."""

from __future__ import annotations

from pathlib import Path

import pytest

from nasgrow.errors import UserError
from nasgrow.trackers import to_tensorboard
from nasgrow.training.files import to_json
from nasgrow.training.records import DESCRIPTION, METRICS
from tests.cli.calling import call

PLACE = {"tokens": 256, "charged": 1000, "executed": 1000, "fraction": 0.5, "seconds": 1.0}


def write_run(folder: Path) -> Path:
    """The records of a run that was never trained."""
    folder.mkdir(parents=True)
    (folder / DESCRIPTION).write_text("{}", encoding="utf-8")
    rates = {"learning_rate": 0.01, "gradient": 0.5, "tokens_per_second": None, "peak_fraction": None}
    records = [
        {"kind": "train", "step": 2, **PLACE, "loss": 3.5, **rates},
        {"kind": "evaluation", "step": 2, **PLACE, "aligned": 0.5, "validation": 3.25},
        {"kind": "evaluation", "step": 4, **PLACE, "aligned": 1.0, "validation": 3.0},
    ]
    lines = "".join(to_json(record) + "\n" for record in records)
    (folder / METRICS).write_text(lines, encoding="utf-8")
    return folder


@pytest.mark.filterwarnings("ignore")  # of the reader, about its own dependencies
def test_event_files_hold_what_the_records_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
        EventAccumulator,
    )

    run = write_run(tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, "log", "run", "--to", "tensorboard") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "Next: tensorboard --logdir tensorboard/run"
    read = EventAccumulator(str(tmp_path / "tensorboard" / "run" / run.name))
    read.Reload()
    tags = read.Tags()
    assert {"train/loss", "train/learning_rate", "evaluation/validation"} <= {
        *tags["scalars"],
        *tags["tensors"],
    }
    found = [
        (event.step, float(event.tensor_proto.float_val[0]))
        for event in read.Tensors("evaluation/validation")
    ]
    assert found == [(2, 3.25), (4, 3.0)]
    assert "train/tokens_per_second" not in tags["tensors"]


def test_what_is_no_run_and_what_is_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run's folder"):
        to_tensorboard({"a": tmp_path}, tmp_path / "out")
    with pytest.raises(UserError, match="is there already"):
        to_tensorboard({"a": write_run(tmp_path / "run")}, tmp_path)
