"""Many workers on one PostgreSQL server: how long asking takes beside 5,000 finished trials.

A server is started on loopback and filled with finished trials of ``per-dimension.yaml``. 64 processes,
forked from one that has read them, ask for trials and tell losses; instead of training they wait, each for a
random time around the length of a trial. They begin spread over that length, and are measured only after it,
when asks come as they do in the middle of a study. Printed is the median time of such an ask (aim: below 250
ms), of a tell, and what both take of a processor in the worker and in the server.

Then all of them ask and tell without a pause. That is no study, but it tells what limits how many workers one
can have: asks come one after the other, because each knows of those before it. ``--sampler`` chooses one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

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

Done = TypeVar("Done")

WORKERS, FINISHED = 64, 5000
TRIAL, STEADY, HAMMERED = 30.0, 60.0, 20.0
"""Seconds that a trial lasts, that are measured while trials last so long, and without a pause."""


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


@dataclass(frozen=True)
class Step:
    """An ask or a tell: seconds after the beginning, and those that it took, by the clock and a processor."""

    kind: str
    at: float
    wall: float
    processor: float


def ask_and_tell(ledger: Ledger, index: int, first: float, out: Path) -> None:
    """What a worker does, waiting instead of training; first as in a study, then without a pause."""
    chance, found = random.Random(index), []
    pausing = first + TRIAL + STEADY
    time.sleep(max(0.0, first + chance.uniform(0, TRIAL) - time.monotonic()))
    while time.monotonic() < pausing + HAMMERED:
        claim, step = timed("ask", ledger.claim, first)
        assert claim is not None
        found.append(step)
        ends = time.monotonic() + chance.uniform(0.5, 1.5) * TRIAL
        time.sleep(max(0.0, min(ends, pausing) - time.monotonic()))
        found.append(timed("tell", partial(ledger.tell, claim, [chance.uniform(2.0, 2.5)]), first)[1])
    out.write_text(json.dumps([asdict(step) for step in found]), encoding="utf-8")


def timed(kind: str, do: Callable[[], Done], first: float) -> tuple[Done, Step]:
    """What a step gives, and what it took."""
    at, wall, cpu = time.monotonic() - first, time.perf_counter(), time.process_time()
    done = do()
    return done, Step(kind, at, time.perf_counter() - wall, time.process_time() - cpu)


def show(what: str, steps: Sequence[Step], seconds: float, server: float) -> None:
    """Print what asks and tells took."""
    asks, tells = ([step for step in steps if step.kind == kind] for kind in ("ask", "tell"))
    wall, used = (
        [
            1e3 * statistics.median(one)
            for one in ([getattr(step, name) for step in asks], [getattr(step, name) for step in tells])
        ]
        for name in ("wall", "processor")
    )
    high = 1e3 * sorted(step.wall for step in asks)[len(asks) * 9 // 10]
    print(
        f"{what}: {len(asks)} asks in {seconds:.0f} s, {len(asks) / seconds:.1f} a second; median ask "
        f"{wall[0]:.0f} ms, 90% below {high:.0f} ms, median tell {wall[1]:.0f} ms; of a processor "
        f"{used[0]:.0f} ms for an ask and {used[1]:.0f} ms for a tell in the worker, "
        f"{1e3 * server / len(asks):.0f} ms for both in the server; load {os.getloadavg()[0]:.1f}"
    )


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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sampler", default="tpe", help="as a study file names it")
    sampler = {"kind": parser.parse_args().sampler}
    alone = {"shares": [], "start": False, "extended": False}
    study = endless_study("load", baselines=alone, sampler=sampler)
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
        claim, step = timed("ask", ledger.claim, 0.0)
        assert claim is not None
        print(f"a worker that begins reads them in {step.processor:.1f} s of processor")
        ledger.tell(claim, [2.0])
        ledger.storage.engine.dispose()
        first = time.monotonic() + 1.0
        for index in range(WORKERS):
            if not os.fork():
                try:
                    ask_and_tell(ledger, index, first, Path(scratch) / f"{index}.json")
                finally:
                    os._exit(0)
        spent = []
        for moment in (TRIAL, TRIAL + STEADY, TRIAL + STEADY + HAMMERED):
            time.sleep(max(0.0, first + moment - time.monotonic()))
            spent.append(server_seconds(server))
        for _ in range(WORKERS):
            os.wait()
        paths = Path(scratch).glob("*.json")
        steps = [Step(**one) for path in paths for one in json.loads(path.read_text(encoding="utf-8"))]
    until = TRIAL + STEADY
    steady = [step for step in steps if TRIAL <= step.at < until]
    hammered = [step for step in steps if until <= step.at < until + HAMMERED]
    show(f"{WORKERS} workers, trials of {TRIAL:.0f} s", steady, STEADY, spent[1] - spent[0])
    show(f"saturation, {WORKERS} workers without a pause", hammered, HAMMERED, spent[2] - spent[1])


if __name__ == "__main__":
    main()
