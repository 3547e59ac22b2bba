"""What nobody may see and nothing may run: passwords anywhere, pickles, code that a file names."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
import yaml

from nasgrow.study.storage import open_storage
from nasgrow.study.study import open_study
from nasgrow.study.table import _SCHEMA, read_table
from tests.cli.calling import call
from tests.servers import PASSWORD, closing_storages, serving
from tests.study.studies import study_data, write_study

NEEDLE = "Quokka"
assert NEEDLE in PASSWORD

# Loaded by every Python process of the study: a pickle that names a class or a function leaves a line.
WATCH = """
import os, sys
def watch(event, arguments):
    if event == "pickle.find_class":
        with open(os.environ["PICKLES"], "a") as file:
            file.write(f"{arguments}\\n")
sys.addaudithook(watch)
"""


def command_lines() -> str:
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return "\n".join(lines)


def test_a_planted_password_is_nowhere_and_no_pickle_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "watch").mkdir()
    (tmp_path / "watch" / "sitecustomize.py").write_text(WATCH, encoding="utf-8")
    pickles = tmp_path / "pickles"
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "NASGROW_CACHE": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "1",
        "PICKLES": str(pickles),
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "watch"), os.environ.get("PYTHONPATH", "")]),
    }.items():
        monkeypatch.setenv(name, value)

    path = write_study(tmp_path, trials=1)
    seen = ""
    with serving() as server, closing_storages():
        monkeypatch.setenv("NASGROW_STORAGE", server.url)
        search = [sys.executable, "-m", "nasgrow", "search", str(path), "--workers", "1"]
        with (tmp_path / "out.log").open("wb") as out:
            launched = subprocess.Popen(search, stdout=out, stderr=out)
            while launched.poll() is None:
                seen += command_lines()
                time.sleep(0.5)
        assert launched.returncode == 0, (tmp_path / "out.log").read_text(encoding="utf-8")
        assert "nasgrow.executors.worker" in seen
        assert call(monkeypatch, "status", str(path)) == 0
        assert call(monkeypatch, "report", str(path)) == 0
        assert call(monkeypatch, "storage", "check", server.url) == 0
        monkeypatch.setenv("NASGROW_STORAGE", server.url.replace("/postgres", "/none"))
        assert call(monkeypatch, "search", str(path)) == 2
        assert call(monkeypatch, "storage", "check") == 2
        monkeypatch.setenv("NASGROW_STORAGE", server.url.replace("planted", "wrong"))
        assert call(monkeypatch, "search", str(path)) == 2
        rows: list[object] = []
        with open_storage(server.url).engine.connect() as connection:
            for table in ("study_user_attributes", "study_system_attributes", "trial_user_attributes"):
                rows += connection.exec_driver_sql(f"SELECT value_json FROM {table}").all()
    printed = capfd.readouterr()
    assert "was written, read and deleted" in printed.out
    assert printed.err.count("cannot be") == 3
    assert "warning: others on this machine" not in printed.err, "it is the environment's"
    for text in (seen, printed.out, printed.err, str(rows)):
        assert NEEDLE not in text
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert {"study.yaml", "result.json", "report.md", "out.log"} <= {file.name for file in files}
    assert not [file for file in files if NEEDLE.encode() in file.read_bytes()]
    assert not pickles.exists(), pickles.read_text(encoding="utf-8")


def test_the_watch_sees_a_pickle(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WATCH, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PICKLES": str(tmp_path / "pickles")}
    load = "import pickle, fractions; pickle.loads(pickle.dumps(fractions.Fraction(1)))"
    subprocess.run([sys.executable, "-c", load], env=environment, check=True)
    assert "Fraction" in (tmp_path / "pickles").read_text(encoding="utf-8")


def _in_yaml(folder: Path) -> None:
    path = write_study(folder)
    path.write_text(
        path.read_text(encoding="utf-8") + "note: !!python/object/apply:evil.run []\n", encoding="utf-8"
    )
    open_study(path)


def _in_a_name(folder: Path) -> None:
    open_study(write_study(folder, space="evil.py"))


def _in_a_table(folder: Path) -> None:
    data = {"name": "x", **study_data(folder, space={"python": "evil:run", "folder": str(folder)})}
    table = _SCHEMA.empty_table().replace_schema_metadata({"study": yaml.safe_dump(data)})
    pq.write_table(table, folder / "table.parquet")
    read_table(folder / "table.parquet")


@pytest.mark.parametrize("read", [_in_yaml, _in_a_name, _in_a_table])
def test_no_file_runs_code(
    read: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "evil.py").write_text("open('ran', 'w').close()\ndef run(*_): pass\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"\S+"):
        read(tmp_path)
    assert not (tmp_path / "ran").exists()
