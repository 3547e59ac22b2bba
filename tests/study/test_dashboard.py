"""The dashboard of a real study, as its server, its files and a browser show it."""

from __future__ import annotations

import json
import re
import shutil
import socket
import sqlite3
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml
from matplotlib.image import imread
from optuna.exceptions import StorageInternalError
from optuna_dashboard import get_note, save_note  # type: ignore[import-untyped]

from nasgrow.cli import dashboard as command
from nasgrow.data.tokenizers import ByteTokenizer
from nasgrow.errors import UserError
from nasgrow.report.curve import draw_curve
from nasgrow.schedule import in_words, schedule_from
from nasgrow.study import dashboard
from nasgrow.study.counts import Counts
from nasgrow.study.dashboard import OWN, make_dashboard, noting, write_notes
from nasgrow.study.notes import study_note, trial_note
from nasgrow.study.storage import DATABASE, open_storage
from nasgrow.study.study import ResolvedStudy, open_study
from nasgrow.study.study_folder import read_study
from nasgrow.study.summary import Baseline, Candidate, Summary
from nasgrow.study.trials import RUNS
from nasgrow.training.records import read_run
from tests.cli.calling import call
from tests.study.records import make_record
from tests.study.studies import Quiet, begin_study, run_study, write_study
from tests.training.runs import SCHEDULE, TRAINING

CONTEXT, VOCAB = TRAINING["context"], ByteTokenizer.vocab
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
PATIENCE = 60.0


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a study that has ended: trial 1 grows, 2 was sampled."""
    folder = tmp_path_factory.mktemp("dashboard")
    training = {name: value for name, value in TRAINING.items() if name != "evaluations"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("NASGROW_CACHE", str(folder.parent / "study-cache"))
        path = write_study(folder, trials=3, training=training, budget={"flops": 2e8})
        run_study(path, quiet=Quiet(draw=draw_curve))
    return folder / "runs" / "tiny"


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of the dashboard of a study, on a free port."""
    study, _ = open_study(folder)
    storage = open_storage(f"sqlite:///{folder / DATABASE}")
    with make_dashboard(storage, folder, "127.0.0.1", 0) as server, noting(study, folder, storage):
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def address(study: Path) -> Iterator[str]:
    with serving(study) as address:
        yield address


def fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        body = answer.read()
    assert isinstance(body, bytes)
    return body


def study_in(address: str, name: str) -> dict[str, Any]:
    """What the dashboard's page is told of a study."""
    listed = json.loads(fetch(f"{address}/api/studies"))["study_summaries"]
    number = next(entry["study_id"] for entry in listed if entry["study_name"] == name)
    return {"id": number, **json.loads(fetch(f"{address}/api/studies/{number}"))}


def until(found: Callable[[], str], wanted: str) -> str:
    """What ``found`` gives, once it holds ``wanted``: pages and notes fill after a moment."""
    end = time.monotonic() + PATIENCE
    while wanted not in (text := found()):
        assert time.monotonic() < end, f"no {wanted!r} in: {text}"
        time.sleep(0.2)
    return text


def attributes(trial: dict[str, Any]) -> dict[str, str]:
    return {entry["key"]: entry["value"] for entry in trial["user_attrs"]}


@pytest.fixture
def rendered(tmp_path: Path) -> Callable[[str, str], str]:
    """What a real browser makes of a page, once it shows some text."""
    if CHROMIUM is None:
        pytest.skip("no chromium is installed: the dashboard was not looked at in a browser")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    options += ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    options += ["--disable-quic", f"--user-data-dir={tmp_path}", "--virtual-time-budget=10000", "--dump-dom"]

    def look(url: str) -> str:
        shown = subprocess.run(
            [CHROMIUM, *options, url], capture_output=True, text=True, check=True, timeout=120
        )
        return shown.stdout

    return lambda url, wanted: until(lambda: look(url), wanted)


def test_a_browser_shows_study_note_schedule_and_curve(
    address: str, rendered: Callable[[str, str], str]
) -> None:
    until(lambda: str(study_in(address, "tiny")["note"]["body"]), "3 of 3 search trials")
    told = study_in(address, "tiny")
    page = f"{address}/dashboard"
    assert "tiny (baselines)" in rendered(page, "tiny (baselines)")

    note = rendered(f"{page}/studies/{told['id']}/note", "3 of 3 search trials")
    assert "<h1>tiny</h1>" in note
    assert f'href="/dashboard/studies/{told["id"]}/trials?numbers=' in note
    assert note.count("<th>") == 5, "the fixed sizes are a table"

    trial = told["trials"][1]
    words = attributes(trial)["schedule"]
    shown = rendered(f"{page}/studies/{told['id']}/trials?numbers=1", "curve.png")
    for part in words.split("; "):
        assert f"<li>{part}</li>" in shown, "the note says the schedule, line by line"
    (image,) = re.findall(r'<img[^>]* src="([^"]+)"', shown)
    assert fetch(address + image).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("host", "open_to_others"),
    [
        (None, False),
        ("localhost", False),
        ("::1", False),
        ("0.0.0.0", True),
        ("::", True),
        ("192.0.2.7", True),
    ],
)
def test_a_dashboard_that_others_reach_warns(
    host: str | None,
    open_to_others: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    class Server(nullcontext["Server"]):
        server_port = 8080

        def serve_forever(self) -> None:
            raise KeyboardInterrupt

    bound: list[str] = []

    def make(storage: object, folder: Path, host: str, port: int) -> Server:
        bound.append(host)
        server = Server()
        server.enter_result = server
        return server

    monkeypatch.setattr(command, "make_dashboard", make)
    monkeypatch.setattr(command, "noting", lambda *given: nullcontext())
    begin_study(write_study(tmp_path))
    assert call(monkeypatch, "dashboard", "tiny.yaml", *([] if host is None else ["--host", host])) == 0
    assert bound == [host or "127.0.0.1"], "loopback by default"
    warning = f"warning: anyone who reaches {host} can read and change this study\n"
    shown = capfd.readouterr().err
    assert shown.startswith(warning if open_to_others else "http://")
    assert shown.endswith("\nclosed\n"), "by Ctrl-C"


def test_objectives_have_names(address: str) -> None:
    for name in ("tiny", "tiny (baselines)"):
        assert study_in(address, name)["objective_names"] == ["loss"]


def test_a_trial_carries_curve_and_schedule_and_names_its_run(
    address: str, study: Path, tmp_path: Path
) -> None:
    told = study_in(address, "tiny")
    assert [trial["state"] for trial in told["trials"]] == ["Complete"] * 3
    for trial in told["trials"]:
        files = {entry["filename"]: entry["artifact_id"] for entry in trial["artifacts"]}
        assert sorted(files) == ["curve.png", "schedule.yaml"]
        for name, identity in files.items():
            body = fetch(f"{address}/artifacts/{told['id']}/{trial['trial_id']}/{identity}")
            (tmp_path / name).write_bytes(body)
        height, width, _ = imread(tmp_path / "curve.png").shape
        assert (width, height) == (840, 720)
        file = yaml.safe_load((tmp_path / "schedule.yaml").read_text())
        schedule = schedule_from(file)
        assert in_words(schedule) == attributes(trial)["schedule"]
        (identity,) = read_study(study).trials["search"][trial["number"]].runs
        run = study / RUNS / identity
        assert schedule == read_run(run).schedule
        assert attributes(trial)["runs"] == str([identity]).replace("'", '"')


def test_a_trial_reports_at_percents_of_the_budget(address: str) -> None:
    for name in ("tiny", "tiny (baselines)"):
        for trial in study_in(address, name)["trials"]:
            steps = [entry["step"] for entry in trial["intermediate_values"]]
            assert 20 <= len(steps) <= 50
            assert steps == sorted(set(steps))
            assert steps[0] == 0
            assert 90 <= steps[-1] <= 100


def test_a_locked_database_holds_up_neither_pages_nor_the_note_for_good(study: Path) -> None:
    mark = "UPDATE study_system_attributes SET value_json = '\"\"' WHERE key LIKE 'dashboard:note_str:%'"
    with closing(sqlite3.connect(study / DATABASE, isolation_level=None)) as connection:
        connection.execute(mark)
        connection.execute("BEGIN IMMEDIATE")
        with serving(study) as address:
            assert study_in(address, "tiny")["note"]["body"] == ""
            assert b"<html" in fetch(f"{address}/dashboard")
            connection.execute("ROLLBACK")
            until(lambda: str(study_in(address, "tiny")["note"]["body"]), "3 of 3 search trials")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--port", "{taken}"], "nasgrow: cannot listen on 127.0.0.1, port {taken}: address already in use"),
        (["--host", "203.0.113.7"], "nasgrow: cannot listen on 203.0.113.7, port 8080: cannot assign"),
    ],
)
def test_an_address_that_cannot_be_used_is_one_line(
    study: Path,
    options: list[str],
    error: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        given = [option.format(taken=port) for option in options]
        assert call(monkeypatch, "dashboard", str(study), *given) == 2
    said = capsys.readouterr().err
    assert said.splitlines()[-1].startswith(error.format(taken=port))
    assert "Traceback" not in said


def begun(folder: Path) -> tuple[ResolvedStudy, Path, optuna.storages.RDBStorage]:
    study, where = begin_study(write_study(folder))
    return study, where, open_storage(f"sqlite:///{where / DATABASE}")


def test_what_people_add_to_a_note_stays(tmp_path: Path) -> None:
    study, folder, storage = begun(tmp_path)
    write_notes(study, folder, storage, "")
    for name in ("tiny", "tiny (baselines)"):
        shown = optuna.load_study(study_name=name, storage=storage)
        before = get_note(shown)
        save_note(shown, before + "Ours: look again at trial 7.")
        write_notes(study, folder, storage, "")
        assert get_note(shown) == before + "Ours: look again at trial 7."
        assert before.count(OWN) == 1


@pytest.mark.parametrize(
    "error", [StorageInternalError("database is locked"), UserError("is damaged"), KeyError("deleted")]
)
def test_a_note_that_could_not_be_written_is_tried_again(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries, written = [], threading.Event()
    study, folder, storage = begun(tmp_path)

    def write(noted: ResolvedStudy, _: Path, __: object, last: str) -> str:
        if noted is not study:  # of a dashboard that an earlier test has not quite ended
            return last
        tries.append(last)
        if len(tries) == 1:
            raise error
        written.set()
        return "text"

    monkeypatch.setattr(dashboard, "write_notes", write)
    monkeypatch.setattr(dashboard, "REFRESH", 0.01)
    with noting(study, folder, storage):
        assert written.wait(PATIENCE)
    assert tries[:2] == ["", ""]


def summary(**changes: Any) -> Summary:
    fields: dict[str, Any] = {
        "name": "tiny",
        "seeds": 1,
        "counts": Counts(12, 20, {"pruned": 2, "diverged": 1}, {"tuning": 1}, baselines=3),
        "failed": (),
        "running": 2,
        "best": None,
        "best_grown": Candidate(
            7, 1.62345, "x2 hidden at 30%", "start h=8; at 0.3: hidden 16", 0.012, 1, (1.62345,)
        ),
        "baselines": (
            Baseline("final", "h=16", 1.75, 0.006, 3, False),
            Baseline("start", "h=8", None, None, 0, False),
        ),
        "charged": 12345678,
        "executed": 2345678,
        "seconds": 9.0,
        "left": None,
        "best_scratch": None,
        "exhausted": False,
    }
    return Summary(**{**fields, **changes})


def test_a_studys_note_says_where_it_stands_what_it_says_and_where_to_look() -> None:
    text = study_note(summary(), search=5, baselines=4)
    lines = text.splitlines()
    assert lines[0] == "# tiny"
    assert (
        "12 of 20 search trials (2 pruned, 1 diverged; besides 1 tuning), 3 baseline runs; "
        "1.23e+07 FLOPs charged, 2.35e+06 executed (81% reused)." in lines
    )
    first = lines.index("- Best schedule (trial 7), x2 hidden at 30%: loss 1.6235 at learning rate 0.012.  ")
    assert lines[first + 1] == "  start h=8; at 0.3: hidden 16  ", "it goes on in the same item"
    assert "[the best schedule](/dashboard/studies/5/trials?numbers=7)" in text
    assert "[baselines](/dashboard/studies/4/trials)" in text
    table = [[cell.replace("&emsp;", "").strip() for cell in line.split("|")[1:-1]] for line in lines[-2:]]
    assert table == [["final", "1.7500", "0.006", "3", "h=16"], ["start", "", "", "0", "h=8"]]


def test_a_note_without_a_best_schedule_links_none() -> None:
    text = study_note(summary(best_grown=None, counts=Counts(12, None, {}, {})), search=5, baselines=4)
    assert "No schedule that grows has finished yet." in text
    assert "numbers=" not in text
    assert "12 search trials, 0 baseline runs; " in text


def test_a_trials_note_shows_the_name_of_a_known_schedule_as_it_is() -> None:
    note = trial_note(make_record("search", 0, 2.0, name="[a](javascript:b) **c**\n# <script>"))
    assert note.splitlines()[0] == r"**\[a\](javascript:b) \*\*c\*\* \# &lt;script&gt;**"


def test_a_trials_note_says_its_schedule_line_by_line() -> None:
    words = in_words(schedule_from(SCHEDULE))
    lines = trial_note(make_record("search", 0, 2.0, words=words)).splitlines()
    assert lines[0].startswith("**x2 ")
    assert [line.split(":")[0] for line in lines[2:]] == ["- start h=8, N=1", "- at 0.3", "- at 0.6"]
    assert trial_note(make_record("search", 0, 2.0, name="staged doubling", words=words)).startswith(
        "**staged doubling**\n\n- start"
    )
