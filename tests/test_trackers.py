"""Records in trackers, each in its offline mode; what it wrote is read back."""

from __future__ import annotations

import json
import socket
import sqlite3
import struct
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import cache
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml

from nasgrow.data import prepare
from nasgrow.errors import UserError
from nasgrow.executors.base import Job, TrialKey
from nasgrow.executors.worker import Setup, Worker
from nasgrow.schedulers.base import Decision
from nasgrow.study.config import dump_study, load_study
from nasgrow.trackers import Live, log_runs, next_step
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


def wandb_records(folder: Path) -> Iterator[Any]:
    """What ``wandb sync`` would upload.

    There is no public reader of the file. It is a log as LevelDB writes them, after a header of seven bytes:
    checksum, length and kind of each piece, then a message whose definition wandb ships.
    """
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # its process writes the rest when it ends
    (file,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    data, at = file.read_bytes(), 7
    while at < len(data):
        length, kind = struct.unpack_from("<HB", data, at + 4)
        assert kind == 1, "a whole message"
        yield Record.FromString(data[at + 7 : at + 7 + length])
        at += 7 + length


def wandb_losses(folder: Path) -> list[tuple[int, float]]:
    records = list(wandb_records(folder))
    assert [one.run.display_name for one in records if one.HasField("run")] == ["run"]
    return [
        (one.history.step.num, json.loads(item.value_json))
        for one in records
        for item in one.history.item
        if "evaluation/validation" in (item.key, *item.nested_key)
    ]


def mlflow_losses(folder: Path) -> list[tuple[int, float]]:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{folder.parent / 'mlflow.db'}")
    experiment = client.get_experiment_by_name(folder.parent.name)
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id], f"attributes.run_name = '{folder.name}'")
    (run,) = found
    assert run.info.status == "FINISHED"
    history = client.get_metric_history(run.info.run_id, "evaluation/validation")
    return [(metric.step, metric.value) for metric in history]


def trackio_losses(folder: Path) -> list[tuple[int, float]]:
    with closing(sqlite3.connect(folder.parent / f"{folder.parent.name}.db")) as database:
        rows = database.execute("SELECT step, metrics FROM metrics WHERE run_name = ? ORDER BY step", ["run"])
        found = [(step, json.loads(metrics)) for step, metrics in rows]
    return [(step, metrics["evaluation/validation"]) for step, metrics in found]


READERS: dict[str, Callable[[Path], list[tuple[int, float]]]] = {
    "tensorboard": losses,
    "wandb": wandb_losses,
    "trackio": trackio_losses,
    "mlflow": mlflow_losses,
}
"""The validation losses that a tracker has of the run in a folder."""

NEXT = {
    "tensorboard": "tensorboard --logdir tensorboard/run",
    "wandb": "wandb sync --project run wandb/run/*/wandb/offline-run-*",
    "trackio": "TRACKIO_DIR={folder}/trackio/run trackio show --project run",
    "mlflow": "mlflow ui --backend-store-uri sqlite:///mlflow/run/mlflow.db",
}


@dataclass
class Logged:
    """What ``nasgrow log`` did with a run, in a folder of its own."""

    folder: Path
    out: str
    err: str
    looked_up: list[object]


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Logged]:
    """Logs a run to a tracker, once: MLflow takes seconds to make its tables."""

    @cache
    def log(tracker: str) -> Logged:
        done = Logged(tmp_path_factory.mktemp(tracker), "", "", [])
        write_run(done.folder / "run")
        out, err = StringIO(), StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            patch.setattr(socket, "getaddrinfo", lambda *host, **kind: done.looked_up.append(host))
            for variable in ("CI", "WANDB_API_KEY", "MLFLOW_TRACKING_URI", "TRACKIO_DIR"):
                patch.delenv(variable, raising=False)
            patch.chdir(done.folder)
            assert call(patch, "log", "run", "--to", tracker) == 0
        done.out, done.err = out.getvalue(), err.getvalue()
        return done

    return log


@pytest.mark.filterwarnings("ignore")  # of the trackers, about their own dependencies
@pytest.mark.parametrize("tracker", READERS)
def test_a_tracker_has_what_the_records_say(tracker: str, logged: Callable[[str], Logged]) -> None:
    done = logged(tracker)
    assert done.out.splitlines() == [
        f"{tracker}/run: 1 run, 11 values",
        f"Next: {NEXT[tracker].format(folder=done.folder)}",
    ]
    assert done.err == ""
    assert READERS[tracker](done.folder / tracker / "run" / "run") == [(2, 3.25), (4, 3.0)]
    assert done.looked_up == []
    assert {path.name for path in done.folder.iterdir()} == {"run", tracker}


@pytest.mark.filterwarnings("ignore")
def test_wandb_reports_nothing_of_its_own(logged: Callable[[str], Logged]) -> None:
    folder = logged("wandb").folder / "wandb" / "run" / "run"
    records = b"".join(one.SerializeToString() for one in wandb_records(folder))
    for told in (str(folder), sys.executable, "numpy"):
        assert told.encode() not in records
    (core,) = folder.glob("wandb/offline-run-*/logs/debug-core.log")
    assert '"disable-analytics":true' in core.read_text(encoding="utf-8")


@pytest.mark.filterwarnings("ignore")
def test_an_mlflow_server_gets_each_run_once(
    logged: Callable[[str], Logged], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, out = logged("mlflow").folder / "mlflow" / "run", tmp_path / "run"
    runs = {"run": write_run(tmp_path / "a")}
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{known / 'mlflow.db'}")
    with pytest.raises(UserError, match="this experiment of MLflow has a run run already"):
        log_runs("mlflow", runs, out)
    log_runs("mlflow", {"b": runs["run"]}, out)
    assert not out.exists()
    assert mlflow_losses(known / "b") == [(2, 3.25), (4, 3.0)]
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:secret@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert next_step("mlflow", out) == "see the experiment run of http://***@127.0.0.1:9"
    with pytest.raises(UserError, match="MLflow: API request to http") as refused:
        log_runs("mlflow", runs, out)
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.filterwarnings("ignore")
def test_trackio_gets_each_run_once_and_its_refusals_are_lines(
    logged: Callable[[str], Logged], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = logged("trackio").folder / "trackio" / "run"
    runs = {"run": write_run(tmp_path / "a")}
    monkeypatch.setenv("TRACKIO_DIR", str(known))
    with pytest.raises(UserError, match="this project of Trackio has a run run already"):
        log_runs("trackio", runs, tmp_path / "run")
    assert trackio_losses(known / "run") == [(2, 3.25), (4, 3.0)]
    monkeypatch.setenv("TRACKIO_SERVER_URL", "nonsense")
    with pytest.raises(UserError, match="Trackio: `server_url` must be a full URL"):
        log_runs("trackio", runs, tmp_path / "other")
    monkeypatch.delenv("TRACKIO_DIR")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        log_runs("trackio", runs, tmp_path / "file" / "other")


def test_the_folder_that_one_stands_in_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_run(tmp_path / "run"))
    assert call(monkeypatch, "log", ".", "--to", "tensorboard") == 0
    assert losses(tmp_path / "run" / "tensorboard" / "run" / "run") == [(2, 3.25), (4, 3.0)]


@pytest.mark.parametrize(
    ("tracker", "module"),
    [
        ("tensorboard", "tensorboard.summary"),
        ("wandb", "wandb"),
        ("trackio", "trackio"),
        ("mlflow", "mlflow"),
    ],
)
def test_a_tracker_that_is_not_installed_is_named(
    tracker: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError) as refused:
        log_runs(tracker, {"run": write_run(tmp_path / "run")}, tmp_path / "out")
    assert str(refused.value) == f"{tracker} is not installed: pip install 'nasgrow[{tracker}]'"
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore")
def test_a_run_is_shown_while_it_trains_and_anew_when_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nasgrow.trackers.UPDATE_SECONDS", -1.0)
    run = write_run(tmp_path / "run")
    whole = (run / METRICS).read_bytes()
    first = whole.splitlines(keepends=True)
    (run / METRICS).write_bytes(first[0] + first[1] + first[2][:9])
    live = Live(["tensorboard"], run)
    live.update()
    assert losses(run / "tensorboard") == [(2, 3.25)], "what is cut short is not there yet"
    (run / METRICS).write_bytes(whole)
    live.close()
    assert losses(run / "tensorboard") == [(2, 3.25), (4, 3.0)]
    for records, shown in ((whole, [(2, 3.25), (4, 3.0)]), (first[0] + first[1], [(2, 3.25)])):
        (run / METRICS).write_bytes(first[0])
        live = Live(["tensorboard", "wandb"], run)
        (run / METRICS).write_bytes(records)
        live.close()
        assert losses(run / "tensorboard") == wandb_losses(run / "wandb") == shown


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
    steps, shown = zip(*losses(folder / "tensorboard"), strict=True)
    assert list(steps) == [one["step"] for one in recorded]
    assert shown == pytest.approx([one["validation"] for one in recorded])


def test_a_study_keeps_its_trackers_in_its_folder(tmp_path: Path) -> None:
    path = write_study(tmp_path, training={"context": 16, "batch_tokens": 64, "trackers": ["tensorboard"]})
    study = load_study(path)
    assert study.training.trackers == ("tensorboard",)
    assert yaml.safe_load(dump_study(study))["training"]["trackers"] == ["tensorboard"]


def test_what_is_no_run_and_what_is_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run's folder"):
        log_runs("tensorboard", {"a": tmp_path}, tmp_path / "out")
    with pytest.raises(UserError, match="is there already"):
        log_runs("tensorboard", {"a": write_run(tmp_path / "run")}, tmp_path)
