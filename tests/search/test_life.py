"""A study is begun whole or not at all, and taken up again by the same file only."""

from __future__ import annotations

from pathlib import Path

import optuna
import pytest
from optuna.study import StudyDirection

from nasgrow.search.config import STUDY
from nasgrow.search.life import begin, reopen
from nasgrow.search.storage import DATABASE, open_storage, storage_url
from nasgrow.search.study import open_study
from nasgrow.search.trials import TRIALS
from nasgrow.strict import has_password, redact
from tests.search.studies import begin_study, write_study
from tests.training.runs import TRAINING

pytestmark = pytest.mark.usefixtures("place")

UP, DOWN = StudyDirection.MAXIMIZE, StudyDirection.MINIMIZE


def test_a_study_is_begun_and_taken_up_again(tmp_path: Path) -> None:
    path = write_study(tmp_path)
    _, folder, ledger = begin_study(path)
    assert (folder / STUDY).exists()
    assert (folder / DATABASE).exists()
    before = [trial.number for trial in ledger.trials("baseline")]
    _, _, again = begin_study(path)
    assert [trial.number for trial in again.trials("baseline")] == before
    study, folder = open_study(folder)
    assert len(reopen(study, folder).trials("baseline")) == len(before)


def test_a_changed_study_file_is_refused_with_what_changed(tmp_path: Path) -> None:
    begin_study(write_study(tmp_path))
    changed = write_study(
        tmp_path, budget={"flops": 9e7}, training={**TRAINING, "evaluations": 20, "clip": 0.5}
    )
    with pytest.raises(ValueError, match="a study of this name was begun with other settings") as refusal:
        begin_study(changed)
    message = str(refusal.value)
    assert "budget.flops: 80000000.0 became 90000000.0" in message
    assert "training.clip: 1.0 became 0.5" in message
    assert "give this one another name" in message
    assert "\n" not in message
    begin_study(write_study(tmp_path, name="another", budget={"flops": 9e7}))


def test_a_study_of_another_folder_is_not_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One storage, two folders, one name: the storage knows what the name stands for."""
    monkeypatch.setenv("NASGROW_STORAGE", f"sqlite:///{tmp_path}/shared.db")
    begin_study(write_study(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="was begun with other settings"):
        begin_study(write_study(tmp_path, budget={"flops": 9e7}))
    assert not (tmp_path / "elsewhere" / "runs" / "tiny").exists()


@pytest.mark.parametrize("directions", [[UP], [DOWN], [DOWN, DOWN]])
def test_an_optuna_study_of_this_name_that_is_not_ours_is_left_alone(
    directions: list[StudyDirection], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/shared.db"
    theirs = optuna.create_study(storage=url, study_name="tiny", directions=directions)
    if directions == [DOWN]:
        theirs.add_trial(optuna.create_trial(value=1.0))
    monkeypatch.setenv("NASGROW_STORAGE", url)
    with pytest.raises(
        ValueError, match=r"tiny: sqlite:.* has a study of this name that nasgrow did not begin: g"
    ):
        begin_study(write_study(tmp_path))
    assert not Path("runs").exists()
    assert [one.study_name for one in optuna.get_all_study_summaries(url)] == ["tiny"]


def test_a_study_whose_database_is_gone_does_not_begin_anew_beside_its_records(tmp_path: Path) -> None:
    _, folder, _ = begin_study(write_study(tmp_path))
    (folder / DATABASE).unlink()
    begin_study(write_study(tmp_path))  # nothing was trained yet
    (folder / DATABASE).unlink()
    (folder / TRIALS).mkdir()
    (folder / TRIALS / "search-00000.json").write_text("{}")
    with pytest.raises(
        ValueError, match=r"study\.db: is gone, and records of its trials are still there: put it b"
    ):
        begin_study(write_study(tmp_path))
    assert not (folder / DATABASE).exists()


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ("Schedule(final), {'learning_rate.peak': 0.01}", "baselines.learning_rates must list"),
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
    with pytest.raises(ValueError, match=f"^tiny: space: .*{told}"):
        begin_study(write_study(tmp_path, space={"python": f"{name}:sample"}, budget={"flops": 1.2e8}))
    assert not Path("runs").exists()


def test_a_file_that_holds_no_url_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("\n")
    monkeypatch.setenv("NASGROW_STORAGE_FILE", str(tmp_path / "secret"))
    with pytest.raises(
        ValueError, match=r"NASGROW_STORAGE_FILE: .*secret: is empty: it must hold a database URL"
    ):
        begin_study(write_study(tmp_path))


def test_a_changed_file_is_refused_wherever_the_study_is_opened(tmp_path: Path) -> None:
    path = write_study(tmp_path)
    begin_study(path)
    study, folder = open_study(write_study(tmp_path, budget={"flops": 9e7}))
    with pytest.raises(ValueError, match="was begun with other settings"):
        reopen(study, folder)


def test_changed_data_is_refused(tmp_path: Path) -> None:
    study, folder, _ = begin_study(write_study(tmp_path))
    with pytest.raises(ValueError, match="its data has changed since it began"):
        begin(study, folder, "0123")


def test_a_study_that_was_not_begun_is_one_line() -> None:
    study, folder = open_study(write_study(Path.cwd()))
    with pytest.raises(ValueError, match="runs/tiny: no such study yet; start it with nasgrow search"):
        reopen(study, folder)
    assert not folder.exists()


@pytest.mark.parametrize("content", [b"", b"not a database at all, but long enough to be taken for one" * 50])
def test_a_damaged_database_is_one_line(content: bytes, tmp_path: Path) -> None:
    path = write_study(tmp_path)
    _, folder, _ = begin_study(path)
    for file in folder.glob(DATABASE + "*"):
        file.unlink()
    (folder / DATABASE).write_bytes(content)
    if not content:  # an empty file is an empty database: the study is gone, and begun anew
        assert not begin_study(path)[2].trials("search")[0].params
        return
    with pytest.raises(ValueError, match="cannot be used: file is not a database") as refusal:
        begin_study(path)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "oracle://me:secret@127.0.0.1:1/none",
            "no driver is installed for oracle://***@127.0.0.1",
        ),
        ("nonsense://x", "no driver is installed for nonsense://x"),
        ("nonsense", "storage: is not a database URL"),
        ("sqlite:////no/such/folder/study.db", "unable to open database file"),
        *(
            (url, f"storage: {url} names no file, and workers cannot share a database in memory")
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
    _, folder, _ = begin_study(path)
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
