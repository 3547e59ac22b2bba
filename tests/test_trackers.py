"""Records in TensorBoard: its event files are read back by its own reader."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from nasgrow.data import prepare
from nasgrow.errors import UserError
from nasgrow.executors.base import Job, TrialKey
from nasgrow.executors.worker import Setup, Worker
from nasgrow.schedulers.base import Decision
from nasgrow.study.config import dump_study, load_study
from nasgrow.trackers import TENSORBOARD, Live, to_tensorboard
from nasgrow.training.atomic_files import to_json
from nasgrow.training.records import DESCRIPTION, METRICS, read_metrics
from nasgrow.training.run import Run
from tests.cli.calling import call
from tests.study.studies import write_study
from tests.training.runs import make_config, text_files

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


def losses(folder: Path) -> list[tuple[int, float]]:
    """The validation losses of event files, by TensorBoard's own reader."""
    from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
        EventAccumulator,
    )

    read = EventAccumulator(str(folder))
    read.Reload()
    found = read.Tensors("evaluation/validation")
    return [(event.step, float(event.tensor_proto.float_val[0])) for event in found]


@pytest.mark.filterwarnings("ignore")  # of the reader, about its own dependencies
def test_a_run_is_shown_while_it_trains_and_anew_when_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nasgrow.trackers.UPDATE_SECONDS", -1.0)
    run = write_run(tmp_path / "run")
    whole = (run / METRICS).read_bytes()
    first = whole.splitlines(keepends=True)
    (run / METRICS).write_bytes(first[0] + first[1] + first[2][:9])
    live = Live(run)
    live.update()
    assert losses(run / TENSORBOARD) == [(2, 3.25)], "what is cut short is not there yet"
    (run / METRICS).write_bytes(whole)
    live.close()
    assert losses(run / TENSORBOARD) == [(2, 3.25), (4, 3.0)]
    (run / METRICS).write_bytes(first[0])
    live = Live(run)
    (run / METRICS).write_bytes(first[0] + first[1])
    live.close()
    assert losses(run / TENSORBOARD) == [(2, 3.25)]


@pytest.mark.filterwarnings("ignore")
def test_workers_show_runs_without_changing_what_they_are(tmp_path: Path) -> None:
    config = make_config(text_files(tmp_path / "text"), training={"trackers": ["tensorboard"]})
    plain = make_config(text_files(tmp_path / "text"))
    corpus = prepare(config.data, cache=tmp_path / "cache")
    run, same = (
        Run.resolve(one, vocab=corpus.vocab, fingerprint=corpus.fingerprint) for one in (config, plain)
    )
    assert run.identity == same.identity
    setup = Setup(str(tmp_path / "runs"), config.data.model_dump(mode="json"), corpus.fingerprint, None, 0, 1)
    setup = replace(setup, trackers=config.training.trackers)
    worker = Worker(setup, lambda event: None, lambda: False)
    worker.train(Job(TrialKey("search", 0), (config,), {}, False), lambda: Decision.CONTINUE)
    folder = tmp_path / "runs" / run.identity
    recorded = [one for one in read_metrics(folder) if one["kind"] == "evaluation"]
    steps, shown = zip(*losses(folder / TENSORBOARD), strict=True)
    assert list(steps) == [one["step"] for one in recorded]
    assert shown == pytest.approx([one["validation"] for one in recorded])


def test_a_study_keeps_its_trackers_in_its_folder(tmp_path: Path) -> None:
    path = write_study(tmp_path, training={"context": 16, "batch_tokens": 64, "trackers": ["tensorboard"]})
    study = load_study(path)
    assert study.training.trackers == ("tensorboard",)
    assert yaml.safe_load(dump_study(study))["training"]["trackers"] == ["tensorboard"]


@pytest.mark.filterwarnings("ignore")  # of the reader, about its own dependencies
def test_event_files_hold_what_the_records_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

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
    assert losses(tmp_path / "tensorboard" / "run" / run.name) == [(2, 3.25), (4, 3.0)]
    assert "train/tokens_per_second" not in tags["tensors"]


def test_what_is_no_run_and_what_is_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run's folder"):
        to_tensorboard({"a": tmp_path}, tmp_path / "out")
    with pytest.raises(UserError, match="is there already"):
        to_tensorboard({"a": write_run(tmp_path / "run")}, tmp_path)
