"""A study is begun whole or not at all, and resumed with the same file and the same data only."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.artifacts import get_all_artifact_meta
from optuna.storages import RDBStorage
from optuna.study import StudyDirection
from optuna.trial import TrialState

from nasgrow.driver import Driver
from nasgrow.errors import UserError
from nasgrow.redact import has_password, redact
from nasgrow.study.artifacts import ARTIFACTS
from nasgrow.study.config import STUDY
from nasgrow.study.storage import DATABASE, open_storage, storage_url
from nasgrow.study.study import open_study
from nasgrow.study.study_folder import ORIGIN, STUDY_FORMAT, opened, read_study
from nasgrow.study.trials import RUNS, TRIALS_FOLDER
from nasgrow.training.records import CHECKPOINTS
from tests.study.studies import Quiet, begin_study, run_study, write_study
from tests.training.runs import TRAINING

UP, DOWN = StudyDirection.MAXIMIZE, StudyDirection.MINIMIZE


def refused(path: Path, match: str) -> None:
    """Opening a study is refused in one line."""
    with pytest.raises(ValueError, match=match) as refusal:
        begin_study(path)
    assert "\n" not in str(refusal.value)


def shown(folder: Path, name: str = "tiny") -> optuna.Study:
    """A study as Optuna has it."""
    return optuna.load_study(study_name=name, storage=f"sqlite:///{folder / DATABASE}")


def test_a_study_is_begun_and_opened_again(tmp_path: Path) -> None:
    path = write_study(tmp_path)
    _, folder = begin_study(path)
    assert (folder / STUDY).exists()
    assert (folder / DATABASE).exists()
    origin = (folder / ORIGIN).read_text()
    left = [folder / ".driver.json.1.tmp", folder / TRIALS_FOLDER / ".search-00001.json.1.tmp"]
    for file in left:
        file.parent.mkdir(exist_ok=True)
        file.write_text("{")
    begin_study(path)
    assert not any(file.exists() for file in left), "what a killed driver was writing"
    assert (folder / ORIGIN).read_text() == origin
    known = read_study(folder)
    assert not any(known.trials.values())
    assert known.state == "stopped"


def test_a_changed_study_file_is_refused_with_what_changed(tmp_path: Path) -> None:
    begin_study(write_study(tmp_path))
    changed = write_study(
        tmp_path, budget={"flops": 9e7}, training={**TRAINING, "evaluations": 10, "clip": 0.5}
    )
    with pytest.raises(ValueError, match="a study of this name was begun with other settings") as refusal:
        begin_study(changed)
    message = str(refusal.value)
    assert "budget.flops: 80000000.0 became 90000000.0" in message
    assert "training.clip: 1.0 became 0.5" in message
    assert "give this one another name" in message
    assert "\n" not in message
    begin_study(write_study(tmp_path, name="another", budget={"flops": 9e7}))


@pytest.mark.parametrize("changes", [{}, {"budget": {"flops": 9e7}}])
def test_a_study_of_another_folder_is_not_taken_over(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One storage, two folders, one name: the storage knows whose the name is."""
    monkeypatch.setenv("NASGROW_STORAGE", f"sqlite:///{tmp_path}/shared.db")
    _, folder = begin_study(write_study(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    refused(
        write_study(tmp_path, **changes),
        rf"^runs/tiny: the study of this name in the storage is kept in \S+:{tmp_path / folder}: run it t",
    )
    assert not Path("runs").exists()
    Path("runs").mkdir()
    Path("runs/tiny").symlink_to(tmp_path / folder)  # as another machine shows a shared folder
    begin_study(write_study(tmp_path))


@pytest.mark.parametrize("directions", [[UP], [DOWN], [DOWN, DOWN]])
def test_an_optuna_study_of_this_name_that_is_not_ours_is_left_alone(
    directions: list[StudyDirection], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/shared.db"
    theirs = optuna.create_study(storage=url, study_name="tiny", directions=directions)
    theirs.add_trial(optuna.create_trial(values=[1.0] * len(directions)))
    monkeypatch.setenv("NASGROW_STORAGE", url)
    refused(write_study(tmp_path), "tiny: the storage has another Optuna study of this name")
    assert not Path("runs").exists()
    (left,) = optuna.get_all_study_summaries(url)
    assert (left.study_name, left.n_trials) == ("tiny", 1)
    assert left.user_attrs == {}
    assert optuna.load_study(study_name="tiny", storage=url).metric_names is None


def trials_shown(folder: Path) -> dict[str, list[Any]]:
    """All that Optuna has of a study's trials, but identities and times."""
    storage = RDBStorage(f"sqlite:///{folder / DATABASE}")
    return {
        name: [
            (
                trial.number,
                trial.state,
                trial.values,
                trial.params,
                trial.distributions,
                trial.intermediate_values,
                trial.user_attrs,
                sorted(meta.filename for meta in get_all_artifact_meta(trial, storage=storage)),
            )
            for trial in optuna.load_study(study_name=name, storage=storage).trials
        ]
        for name in optuna.get_all_study_names(storage)
    }


def test_a_storage_that_was_lost_is_written_again_from_the_records(ended: tuple[Path, Path]) -> None:
    path, folder = ended
    before, records = trials_shown(folder), read_study(folder).trials
    assert [len(trials) for trials in before.values()] == [1, 4, 0]
    quiet = Quiet()
    (folder / DATABASE).unlink()
    shutil.rmtree(folder / RUNS / min(records["search"][3].runs))  # to save room
    run_study(path, quiet=quiet)
    assert quiet.warnings == [
        f"tiny: its storage lacks {trials}: written there again from the records"
        for trials in ("1 baseline trial", "4 search trials")
    ]
    before["tiny"][3] = (*before["tiny"][3][:-1], [])
    assert trials_shown(folder) == before
    files = [name for trials in before.values() for trial in trials for name in trial[-1]]
    assert len(list((folder / ARTIFACTS).iterdir())) == len(files), "those of the lost trials are gone"
    assert read_study(folder).trials == records


def test_trials_that_have_not_ended_or_were_never_recorded_are_restored_as_they_were(
    ended: tuple[Path, Path],
) -> None:
    path, folder = ended
    (folder / TRIALS_FOLDER / "search-00001.json").unlink()
    record = folder / TRIALS_FOLDER / "search-00002.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), "status": "paused", "ended": None}))
    (folder / DATABASE).unlink()
    begin_study(path)
    states = [trial.state.name for trial in shown(folder).trials]
    assert states == ["COMPLETE", "FAIL", "RUNNING", "COMPLETE"]
    assert len(shown(folder).trials[2].intermediate_values) == len(
        json.loads(record.read_text())["evaluations"]
    )


def test_restoring_a_pruned_trial_deletes_no_checkpoint(ended: tuple[Path, Path]) -> None:
    path, folder = ended
    record = folder / TRIALS_FOLDER / "search-00003.json"
    fields = json.loads(record.read_text())
    record.write_text(json.dumps({**fields, "status": "pruned"}))
    checkpoints = folder / RUNS / min(fields["runs"]) / CHECKPOINTS  # another trial may train the same run
    checkpoints.mkdir(exist_ok=True)
    (folder / DATABASE).unlink()
    begin_study(path)
    assert shown(folder).trials[3].state.name == "PRUNED"
    assert checkpoints.exists()


def files_of(folder: Path) -> list[Path]:
    """The files of a study, without those that SQLite has while a connection is open."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith(f"{DATABASE}-"))


@pytest.mark.parametrize(
    ("origin", "told"),
    [
        (
            {"format": STUDY_FORMAT - 1},
            "was begun by another version of nasgrow, whose studies this one cannot",
        ),
        ({"format": "new"}, "was begun by another version of nasgrow"),
        (None, "was begun by another version of nasgrow"),
        ({}, r"origin\.json: is damaged; give the study another name"),
        ([], r"origin\.json: is damaged"),
        ("{", r"origin\.json: is damaged"),
        ("[" * 100_000, r"origin\.json: is damaged"),
    ],
)
def test_a_study_of_another_version_is_refused_wherever_it_is_opened(
    origin: object, told: str, tmp_path: Path
) -> None:
    path = write_study(tmp_path)
    _, folder = begin_study(path)
    if origin is None:
        (folder / ORIGIN).unlink()
    else:
        (folder / ORIGIN).write_text(origin if isinstance(origin, str) else json.dumps(origin))
    before = files_of(folder)
    refused(path, told)
    with pytest.raises(ValueError, match=told):
        read_study(folder)
    assert files_of(folder) == before


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ("Schedule(final), {'learning_rate.peak': 0.01}", "may return learning_rate.rewarm, "),
        (
            "Schedule(start, (Event(0.9999, diff(start, final)),))",
            r"events\[0\]\.at: the budget of .* leaves no step",
        ),
    ],
)
def test_points_of_a_function_that_would_be_unfair_or_never_trained_are_refused_before_anything_starts(
    returned: str, told: str, tmp_path: Path
) -> None:
    code = "from nasgrow.expansions import diff\nfrom nasgrow.schedule import Event, Schedule\n"
    code += (
        "def sample(trial, final):\n    start = final.with_layers(final.layers[:1])\n    return " + returned
    )
    name = f"space_{abs(hash(returned))}"
    (tmp_path / f"{name}.py").write_text(code)
    own: dict[str, Any] = {"space": {"python": f"{name}:sample"}}
    with pytest.raises(ValueError, match=f"^tiny: space: .*{told}"):
        begin_study(write_study(tmp_path, **own, budget={"flops": 1.2e8}))
    assert not Path("runs").exists()


def test_a_file_that_holds_no_url_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("\n")
    monkeypatch.setenv("NASGROW_STORAGE_FILE", str(tmp_path / "secret"))
    with pytest.raises(
        ValueError, match=r"NASGROW_STORAGE_FILE: .*secret: is empty: it must hold a database URL"
    ):
        begin_study(write_study(tmp_path))


def test_changed_data_is_refused(tmp_path: Path) -> None:
    study, folder = begin_study(write_study(tmp_path))
    with (
        pytest.raises(
            ValueError, match=r"^tiny: its data has changed since it began \(fingerprint \w+ became"
        ),
        opened(study, folder, "0123", lambda trial, record, path: None, pytest.fail),
    ):
        pytest.fail("opened")


def test_a_study_that_was_not_begun_is_one_line(tmp_path: Path) -> None:
    _, folder = open_study(write_study(tmp_path))
    with pytest.raises(ValueError, match=r"^runs/tiny: no such study yet; start it with nasgrow search$"):
        read_study(folder)
    assert not folder.exists()


def test_a_damaged_database_is_one_line(tmp_path: Path) -> None:
    path = write_study(tmp_path)
    _, folder = begin_study(path)
    for file in folder.glob(DATABASE + "*"):
        file.unlink()
    (folder / DATABASE).write_bytes(b"not a database at all, but long enough to be taken for one" * 50)
    refused(path, "cannot be used: file is not a database")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("oracle://me:secret@127.0.0.1:1/none", "'oracle' is not supported: it must be one of sqlite, postg"),
        ("mysql://me:secret@127.0.0.1:1/none", "'mysql' is not supported"),
        ("nonsense://x", "'nonsense' is not supported"),
        ("nonsense", "storage: is not a database URL"),
        ("sqlite:////no/such/folder/study.db", "unable to open database file"),
        *(
            (url, f"storage: {url} names no file, and a study must outlive its process")
            for url in (
                "sqlite://",
                "sqlite://study.db",
                "sqlite:///:memory:",
                "sqlite:///file:x?mode=memory&uri=true",
            )
        ),
    ],
)
def test_a_storage_that_cannot_be_reached_leaves_nothing(
    url: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NASGROW_STORAGE", url)
    with pytest.raises(ValueError, match=".") as refusal:  # noqa: RUF043
        begin_study(write_study(tmp_path))
    assert message in str(refusal.value)
    assert "secret" not in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not (tmp_path / "runs" / "tiny").exists()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file", encoding="utf-8")
    with pytest.raises(ValueError, match=r"runs/tiny: cannot be used"):
        begin_study(write_study(tmp_path))


def test_the_storage_of_the_environment_comes_first_and_no_password_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_study(tmp_path, storage=f"sqlite:///{tmp_path}/from-file.db")
    study, folder = open_study(path)
    assert storage_url(study.config, folder).endswith("from-file.db")
    monkeypatch.setenv("NASGROW_STORAGE", f"sqlite:///{tmp_path}/from-environment.db")
    _, folder = begin_study(path)
    assert (tmp_path / "from-environment.db").exists()
    assert "environment" not in (folder / STUDY).read_text(encoding="utf-8")
    for url in (
        "mysql://me:secret@host/db",
        "mysql://me:se/cret@host/db",
        "mysql://me:se@cret@host/db",
        "mysql://me:sec ret@host/db",
        "mysql://me@host/db?password=secret&x=1",
        "mysql://me@host/db?password=x;secret",
        "az://host/db?sv=2026&sig=secret%3D",
        "https://host/db?X-Amz-Credential=secret&X-Amz-Signature=secret",
        "could not reach gs://host/db?x=1;auth=secret at all",
        "gs://host/db: wrong key for 'gs://me:secret@other'",
    ):
        assert "cret" not in redact(url).replace("%", "")
        assert "host/db" in redact(url)


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("postgresql://user:Quo'kka@127.0.0.1:1/name", "cannot be used"),
        ('postgresql://user:Quo"kka@127.0.0.1:1/name', "cannot be used"),
        ("postgresql://user:x@Quokka@127.0.0.1:1/name", "more than one @"),
        ("postgresql://user:Quokka", "is not a database URL"),  # taken for a port
        ("postgresql://user@127.0.0.1:1/name?password=Quo'kka", "cannot be used"),
    ],
)
def test_a_password_is_not_shown_whatever_it_is_made_of(url: str, told: str) -> None:
    with pytest.raises(ValueError, match=f"^storage: .*{told}") as error:
        open_storage(url)
    assert "kka" not in str(error.value)
    assert has_password(url) == ("@127" in url)


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("sqlite:////home/jane@corp.example/study.db", False),
        ("sqlite:////home/jane@corp.example/study.db?password=x", True),
        ("postgresql://jane@host/db?passfile=/home/jane/.pgpass", False),
        ("postgresql://jane@host/db?sslkey=/home/jane/key.pem&sslpassword=x", True),
        ("postgresql://jane:x@host/db", True),
        ("postgresql://jane:x/y@host/db", True),
    ],
)
def test_a_path_is_no_password(url: str, secret: bool) -> None:
    assert has_password(url) == secret


def test_a_study_that_can_only_be_read_can_be_looked_at(ended: tuple[Path, Path]) -> None:
    _, folder = ended
    command = [sys.executable, "-m", "nasgrow", "status", str(folder)]
    if os.getuid() == 0:  # may write anything, unless it gives that up
        if shutil.which("setpriv") is None:
            pytest.skip("no setpriv to take the rights of root away")
        command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *command]
    for path, mode in ((folder / DATABASE, 0o444), (folder, 0o555)):
        path.chmod(mode)
    before = {path.name: path.read_bytes() for path in files_of(folder) if path.is_file()}
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    try:
        looked = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    finally:
        folder.chmod(0o755)
    assert looked.returncode == 0, looked.stderr
    assert looked.stdout.startswith("tiny: 4 of 4 search trials")
    assert {path.name: path.read_bytes() for path in files_of(folder) if path.is_file()} == before


def test_a_trial_that_a_driver_started_when_it_died_is_failed_and_not_missed(
    ended: tuple[Path, Path],
) -> None:
    path, folder = ended
    orphan = shown(folder).ask()
    assert orphan.number == 4
    quiet = Quiet()
    _, _, known = run_study(path, trials=6, quiet=quiet)
    assert sorted(known.trials["search"]) == [0, 1, 2, 3, 5, 6]
    assert shown(folder).trials[4].state == TrialState.FAIL
    assert quiet.warnings == []


@pytest.mark.parametrize("state", [TrialState.COMPLETE, TrialState.PRUNED])
def test_trials_of_others_are_ignored_with_a_warning(state: TrialState, ended: tuple[Path, Path]) -> None:
    path, folder = ended
    value = 0.001 if state == TrialState.COMPLETE else None
    shown(folder).add_trial(optuna.create_trial(state=state, value=value))
    quiet = Quiet()
    _, _, known = run_study(path, trials=5, quiet=quiet)
    assert quiet.warnings == ["tiny: search 4 in its storage is not nasgrow's, and is ignored"]
    assert sorted(known.trials["search"]) == [0, 1, 2, 3, 5]


def test_whatever_others_write_into_the_storage_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Decisions are made from records alone."""
    path = write_study(tmp_path, sampler={"kind": "tpe", "startup": 2})
    _, folder, _ = run_study(path)
    shutil.copytree("runs", "spoiled/runs")
    _, _, clean = run_study(path, trials=6)
    monkeypatch.chdir("spoiled")
    with closing(sqlite3.connect(folder / DATABASE)) as connection, connection:
        for table in ("trial_user_attributes", "trial_system_attributes", "study_user_attributes"):
            connection.execute(f"UPDATE {table} SET value_json = ?", ('{"../..": [null, -1e300, "nan"]}',))
        connection.execute("UPDATE trial_values SET value = -1e300")
        connection.execute("UPDATE trial_intermediate_values SET intermediate_value = -1e300")
        connection.execute("UPDATE trials SET state = 'PRUNED' WHERE number = 1")
    _, _, spoiled = run_study(path, trials=6)
    for kind in ("baseline", "search"):
        losses = [(trial.number, trial.parameters, trial.losses) for trial in spoiled.trials[kind].values()]
        assert losses == [(one.number, one.parameters, one.losses) for one in clean.trials[kind].values()]


def during(step: Callable[[], object]) -> Quiet:
    """Observes a study, and does something once a trial is being trained."""
    done: list[bool] = []

    def watch(driver: Driver) -> None:
        if driver.running and not done:
            done.append(True)
            step()

    return Quiet(watch=watch)


def test_a_trial_that_another_program_ends_is_a_warning_and_the_search_goes_on(tmp_path: Path) -> None:
    path, folder = write_study(tmp_path, trials=1), Path("runs/tiny")
    quiet = during(lambda: shown(folder, "tiny (baselines)").tell(0, state=TrialState.FAIL))
    _, _, known = run_study(path, quiet=quiet)
    assert set(quiet.warnings) == {"tiny: another program has ended one of its trials in the storage"}
    assert [trial.status for trial in known.trials["baseline"].values()] == ["finished"]
    assert known.state == "ended"


EDITS = {
    "a trial is removed": "DELETE FROM trials WHERE number = 0",
    "a trial is reset": "UPDATE trials SET state = 'WAITING'",
    "losses are maximised": "UPDATE study_directions SET direction = 'MAXIMIZE'",
    "attributes are cut": "UPDATE trial_system_attributes SET value_json = '{'",
}


def edit(folder: Path, statement: str) -> None:
    with closing(sqlite3.connect(folder / DATABASE)) as connection, connection:
        connection.execute(statement)


@pytest.mark.parametrize("what", EDITS)
def test_a_study_that_others_edited_is_one_line_and_written_again_once_it_is_deleted(
    what: str, ended: tuple[Path, Path]
) -> None:
    path, folder = ended
    before = trials_shown(folder)
    edit(folder, EDITS[what])
    refused(path, rf"another program has changed or deleted .* of 'tiny.*records in {folder}$")
    for name in before:
        optuna.delete_study(study_name=name, storage=f"sqlite:///{folder / DATABASE}")
    run_study(path)
    assert trials_shown(folder) == before


@pytest.mark.parametrize("what", ["a trial is removed", "a trial is reset", "it is deleted"])
def test_a_study_that_others_edit_while_it_runs_is_one_line(what: str, tmp_path: Path) -> None:
    path, folder, name = write_study(tmp_path), Path("runs/tiny"), "tiny (baselines)"

    def change() -> None:
        if what in EDITS:
            edit(folder, EDITS[what])
        else:
            optuna.delete_study(study_name=name, storage=f"sqlite:///{folder / DATABASE}")

    told = rf"^tiny \(baselines\): another program has changed or deleted its trials .*records in {folder}$"
    with pytest.raises(UserError, match=told):
        run_study(path, quiet=during(change))
    assert read_study(folder).trials["baseline"]


def test_a_folder_that_is_removed_while_the_study_runs_is_one_line_that_says_so(tmp_path: Path) -> None:
    path, folder = write_study(tmp_path), Path("runs/tiny")
    with pytest.raises(UserError, match=rf"^{folder}/\S+: cannot be written: no such file or directory$"):
        run_study(path, quiet=during(lambda: folder.rename(tmp_path / "gone")))


def test_an_error_of_another_file_does_not_blame_the_folder(tmp_path: Path) -> None:
    def fail() -> None:
        raise FileNotFoundError(2, "No such file", "elsewhere.txt")

    with pytest.raises(FileNotFoundError, match=r"elsewhere\.txt"):
        run_study(write_study(tmp_path), quiet=during(fail))


def test_a_bug_that_is_a_key_error_is_no_edit_of_others(tmp_path: Path) -> None:
    def draw(folder: Path, to: Path) -> None:
        raise KeyError("a bug")

    with pytest.raises(KeyError, match="a bug"):
        run_study(write_study(tmp_path), quiet=Quiet(draw=draw))


def test_a_trial_that_others_enqueue_is_ignored_with_a_warning(ended: tuple[Path, Path]) -> None:
    path, folder = ended
    shown(folder).enqueue_trial({"start": 1})
    quiet = Quiet()
    _, _, known = run_study(path, trials=5, quiet=quiet)
    assert quiet.warnings == ["tiny: search 4 in its storage is not nasgrow's, and is ignored"]
    assert sorted(known.trials["search"]) == [0, 1, 2, 3, 5]


@pytest.mark.parametrize("forged", ['{"kind": "search"}', "\0" * 8, "[" * 100_000, "runs"])
def test_a_record_that_is_damaged_or_names_another_folder_is_one_line(
    forged: str, ended: tuple[Path, Path]
) -> None:
    path, folder = ended
    record = folder / TRIALS_FOLDER / "search-00002.json"
    whole = json.loads(record.read_text())
    record.write_text(json.dumps({**whole, "runs": {"../../../victim": 1}}) if forged == "runs" else forged)
    refused(path, rf"^{record}: is damaged: remove it, and the study goes on without this trial$")
    record.unlink()
    begin_study(path)
