"""Workers on a real database server that is restarted under them, while two of them are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from nasgrow.search.ledger import KINDS, Ledger
from nasgrow.search.outcome import RUNS
from nasgrow.search.trials import read_trials
from nasgrow.training.folder import read_result
from tests.search.studies import SPACE, begin_study, write_study
from tests.servers import MariaDB, Postgres, Server, closing_storages, serving

# Workers as the command starts them, but forked from one process that has trained the baseline, so that torch
# is imported and awake once; signs of life come quickly, and no figures are drawn.
PROGRAM = """
import gc, os, sys
from pathlib import Path
from nasgrow.cli import worker
from nasgrow.search import storage
storage.HEARTBEAT, storage.GRACE = 1, 6
worker.draw_curve = lambda folder, path: path.write_bytes(b"")
worker.KINDS = ("baseline",)
worker.run(Path(sys.argv[1]), 0, None, False)
worker.KINDS = ("baseline", "search")
gc.collect()  # closes the connection
children = []
for index in range(int(sys.argv[2])):
    child = os.fork()
    if not child:
        try:
            code = worker.run(Path(sys.argv[1]), index, None, False)
        except ValueError as error:
            print(error, file=sys.stderr, flush=True)
            code = 2
        os._exit(code)
    children.append(child)
print(*children, flush=True)
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
print(*codes, flush=True)
"""


def ended(ledger: Ledger) -> int:
    return sum(trial.state.is_finished() for trial in ledger.trials("search"))


@pytest.mark.parametrize(("software", "size", "trials"), [(Postgres, 8, 200), (MariaDB, 3, 20)])
def test_every_trial_is_finished_once_whatever_happens(
    software: type[Server], size: int, trials: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    space = {**SPACE, "times": {"low": 0.3, "high": 0.6, "step": 0.3}}  # few points: most are trained already
    path = write_study(
        tmp_path,
        trials=trials,
        space=space,
        sampler={"kind": "random"},
        baselines={"shares": [], "start": False, "learning_rates": [0.006]},
        training={
            "context": 16,
            "batch_tokens": 64,
            "evaluation_tokens": 64,
            "final_tokens": 128,
            "evaluations": 5,
        },
        pruner={"kind": "none"},
        budget={"flops": 4e7},
    )
    with serving(software) as server, closing_storages():
        monkeypatch.setenv("NASGROW_STORAGE", server.url)
        _, folder, ledger = begin_study(path)
        command = [sys.executable, "program.py", str(folder), str(size)]
        crew = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert crew.stdout is not None
            children = [int(child) for child in crew.stdout.readline().split()]
            happenings: list[tuple[int, Callable[[], None]]] = [
                (trials // 10, lambda: os.kill(children[0], signal.SIGKILL)),
                (trials * 3 // 10, lambda: server.restart("fast")),
                (trials * 5 // 10, lambda: os.kill(children[-1], signal.SIGKILL)),
                (trials * 6 // 10, lambda: server.restart("immediate")),
            ]
            for due, happen in happenings:
                while ended(ledger) < due:
                    assert crew.poll() is None, crew.communicate()
                    time.sleep(0.2)
                happen()
            out, errors = crew.communicate(timeout=240)
        finally:
            crew.kill()
            crew.communicate()
        assert errors == ""
        codes = [int(code) for code in out.split()]
        assert Counter(codes) == {0: size - 2, -signal.SIGKILL: 2}
        assert ledger.ended()
        found = ledger.trials("search")
        assert Counter(trial.state.name for trial in found) == {"COMPLETE": trials}
        given_up = [
            trial for trial in ledger.optuna_study("search").get_trials() if trial.state.name == "FAIL"
        ]
        assert len(given_up) <= 2, "only the killed workers' trials were taken for dead"
        retried = [number for trial in found for number in trial.system_attrs.get("retry_history", [])]
        assert sorted(retried) == sorted(trial.number for trial in given_up)
        recorded = read_trials(folder)
        for kind in KINDS:
            told = {trial.number: trial.values[0] for trial in ledger.trials(kind)}
            assert {record.number: record.losses[0] for record in recorded if record.kind == kind} == told
        # Whatever was executed is accounted for once: each run is trained once, but for what a death undid.
        executed = Counter[str]()
        for kind in KINDS:
            for trial in ledger.trials(kind):
                executed.update(trial.user_attrs["runs"])
        for identity, flops in executed.items():
            assert flops == read_result(folder / RUNS / identity).executed
