"""Many workers on one PostgreSQL server: how long asking takes beside 5,000 finished trials.

A server is started on loopback and filled with finished trials of ``per-dimension.yaml``. 64 processes,
forked from one that has read them, ask for trials and tell losses; instead of training they wait, each for a
random time around the length of a trial. Printed is the median time of an ask (aim: below 250 ms), of a tell,
and what an ask takes of a processor in the worker and in the server: asks come one after the other, because
each knows of those before it, so that is what limits how many workers one study can have.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import optuna
import sqlalchemy
from optuna.distributions import distribution_to_json
from optuna.samplers import RandomSampler
from optuna.storages._rdb import models
from optuna.trial import TrialState

from nasgrow.search.database import Database
from nasgrow.search.ledger import Ledger
from nasgrow.search.life import begin
from nasgrow.search.samplers import distributions
from nasgrow.search.study import Study
from tests.search.studies import endless_study
from tests.servers import Server, serving

WORKERS, FINISHED = 64, 5000
TRIAL, SECONDS = 30.0, 60.0
"""Seconds that a trial lasts, and that are measured."""


def fill(storage: Database, study: Study, study_id: int, before: int) -> None:
    """Finished trials at random points, written in bulk."""
    scratch, of = optuna.create_study(sampler=RandomSampler(seed=0)), distributions(study.space)
    trials: list[dict[str, Any]] = [
        {"number": before + place, "study_id": study_id, "state": TrialState.COMPLETE}
        for place in range(FINISHED)
    ]
    with storage.engine.begin() as connection:
        made = sqlalchemy.insert(models.TrialModel).returning(
            models.TrialModel.trial_id, sort_by_parameter_order=True
        )
        ids = [row[0] for row in connection.execute(made, trials)]
        values, parameters, attributes = [], [], []
        for trial_id in ids:
            asked = scratch.ask()
            study.space.sample(asked)
            kind = models.TrialValueModel.TrialValueType.FINITE
            loss = random.uniform(2.0, 2.5)
            values.append({"trial_id": trial_id, "objective": 0, "value": loss, "value_type": kind})
            for name, one in of.items():
                number, text = one.to_internal_repr(asked.params[name]), distribution_to_json(one)
                parameters.append(
                    {
                        "trial_id": trial_id,
                        "param_name": name,
                        "param_value": number,
                        "distribution_json": text,
                    }
                )
            for name, said in (("status", "finished"), ("executed", 10**12), ("seconds", TRIAL)):
                attributes.append({"trial_id": trial_id, "key": name, "value_json": json.dumps(said)})
        connection.execute(sqlalchemy.insert(models.TrialValueModel), values)
        connection.execute(sqlalchemy.insert(models.TrialParamModel), parameters)
        connection.execute(sqlalchemy.insert(models.TrialUserAttributeModel), attributes)
        connection.execute(sqlalchemy.text("ANALYZE"))


def ask_and_tell(ledger: Ledger, index: int, until: float, out: Path) -> None:
    """What a worker does, waiting instead of training."""
    chance, found = random.Random(index), []
    time.sleep(chance.uniform(0, TRIAL))
    while time.monotonic() < until:
        wall, cpu = time.perf_counter(), time.process_time()
        claim = ledger.claim()
        asked, used = time.perf_counter() - wall, time.process_time() - cpu
        assert claim is not None
        time.sleep(chance.uniform(0.5, 1.5) * TRIAL if time.monotonic() < until - TRIAL else 0.1)
        wall = time.perf_counter()
        ledger.tell(claim, [chance.uniform(2.0, 2.5)])
        found.append({"ask": asked, "processor": used, "tell": time.perf_counter() - wall})
    out.write_text(json.dumps(found), encoding="utf-8")


def server_seconds(server: Server) -> float:
    """Processor time of all of a server's processes so far."""
    root = int((server.folder / "data" / "postmaster.pid").read_text(encoding="utf-8").split()[0])
    pids, ticks = [root], 0
    while pids:
        pid = pids.pop()
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
        pids += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split())
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure and print."""
    study = endless_study("load", baselines={"shares": [], "start": False, "extended": False})
    with serving() as server, tempfile.TemporaryDirectory() as scratch:
        os.environ["NASGROW_STORAGE"] = server.url
        ledger = begin(study, Path(scratch) / "load", "benchmark")
        while (claim := ledger.claim()) is not None:  # baselines and known schedules
            (ledger.size_of if claim.kind == "baseline" else study.space.sample)(claim.trial)
            ledger.tell(claim, [3.0])
            if claim.kind == "search" and "known" not in claim.trial.user_attrs:
                break
        assert isinstance(ledger.storage, Database)
        trials = ledger.optuna_study("search")
        fill(ledger.storage, study, trials._study_id, len(trials.get_trials(deepcopy=False)))
        before = time.process_time()
        claim = ledger.claim()
        assert claim is not None
        print(f"a worker that begins reads them in {time.process_time() - before:.1f} s of processor")
        ledger.tell(claim, [2.0])
        ledger.storage.engine.dispose()
        until, used, load = time.monotonic() + SECONDS, server_seconds(server), os.getloadavg()[0]
        for index in range(WORKERS):
            if not os.fork():
                try:
                    ask_and_tell(ledger, index, until, Path(scratch) / f"{index}.json")
                finally:
                    os._exit(0)
        time.sleep(max(0.0, until - 1 - time.monotonic()))
        used = server_seconds(server) - used
        for _ in range(WORKERS):
            os.wait()
        found = [one for path in Path(scratch).glob("*.json") for one in json.loads(path.read_text())]
    asks = sorted(one["ask"] for one in found)
    median = {name: 1e3 * statistics.median(one[name] for one in found) for name in ("processor", "tell")}
    print(
        f"{WORKERS} processes, trials of {TRIAL:.0f} s: {len(asks)} asks in {SECONDS:.0f} s; median ask "
        f"{1e3 * statistics.median(asks):.0f} ms, 90% below {1e3 * asks[len(asks) * 9 // 10]:.0f} ms; "
        f"of a processor {median['processor']:.0f} ms in the worker, {1e3 * used / len(asks):.0f} ms in the "
        f"server (with telling); median tell {median['tell']:.0f} ms; load before: {load:.1f}"
    )


if __name__ == "__main__":
    main()
