"""What the report of a large study costs: 10,000 recorded runs, made for the purpose (aim: 60 s and 2 GB).

A study of ``per-dimension.yaml`` gets records at random points, each with 200 records of training, 20
evaluations and its events, about as large as real ones. A process of its own then writes the report; printed
are its time, its peak memory, and the time that reading alone takes.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nasgrow.flops import parameter_count
from nasgrow.schedule import Schedule, in_words, schedule_to
from nasgrow.spaces import Point
from nasgrow.spaces.training import PEAK
from nasgrow.study.baselines import FINAL as FINAL_SHAPE
from nasgrow.study.config import STUDY, dump_study, load_study
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import TRIALS_FOLDER, Kind, TrialRecord
from nasgrow.training.records import DESCRIPTION, METRICS, RESULT, Result
from nasgrow.training.run import Run

RUNS = 10_000
SPACE = Path(__file__).parents[2] / "search_spaces" / "per-dimension.yaml"
FINAL = {"hidden": 64, "layers": 4, "mlp": 256, "heads": 4, "key": 16, "value": 16}
MACHINE: Mapping[str, Any] = {
    "device": "a processor",
    "cores": 2,
    "system": "Linux",
    "python": "3.11",
    "versions": {"nasgrow": "0.1.0", "torch": "2.9"},
    "commit": "0123456789ab",
}
CHILD = """
import resource, sys, time
from pathlib import Path
from nasgrow.report.load import load
from nasgrow.report.write import write_report
from nasgrow.study.study import open_study
study, folder = open_study(Path(sys.argv[1]))
begin = time.perf_counter()
if sys.argv[2] == "whole":
    write_report(study, folder, folder.parent / "report")
else:
    load(study, folder)
took = time.perf_counter() - begin
cpu, most = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
print(f"{took:.1f} s ({cpu:.1f} s of processor), {most:.2f} GB at most")
"""


class Drawn:
    """A trial that samples at random, and remembers."""

    def __init__(self) -> None:
        self.parameters: dict[str, Any] = {}

    def suggest_categorical(self, name: str, choices: Any) -> Any:
        return self.parameters.setdefault(name, random.choice(list(choices)))

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        steps = round((high - low) / step) if step else 0
        value = low + step * random.randint(0, steps) if step else random.uniform(low, high)
        return float(self.parameters.setdefault(name, value))

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        return int(self.parameters.setdefault(name, random.randrange(low, high + 1, step)))


def record(
    study: ResolvedStudy, folder: Path, kind: Kind, number: int, point: Point, name: str | None, drawn: Drawn
) -> None:
    """Write the record of a trial and those of its run."""
    identity, loss = f"{kind}{number:06d}", random.uniform(1.6, 2.4)
    schedule, budget = point.schedule, study.budget
    run = folder / "runs" / identity
    run.mkdir(parents=True)
    config = study.run(schedule, point.training, 0)
    described = Run.resolve(config, vocab=study.variant.vocab, fingerprint="0" * 16).describe()
    (run / DESCRIPTION).write_text(
        json.dumps({"identity": identity, "run": described, "machine": MACHINE}, indent=2)
    )
    result = Result("finished", loss, 1000, 4_096_000, budget, budget, 60.0, 100_000)
    (run / RESULT).write_text(json.dumps(asdict(result)))
    (run / METRICS).write_text("".join(json.dumps(line) + "\n" for line in metrics(schedule, budget, loss)))
    trial = TrialRecord(
        kind=kind,
        number=number,
        status="finished",
        name=name,
        parameters=drawn.parameters,
        schedule=schedule_to(schedule),
        words=in_words(schedule),
        learning_rate=float(str(point.training[PEAK])),
        seeds=[0],
        losses=[loss],
        test=[],
        runs={identity: budget},
        charged=budget,
        executed=budget,
        seconds=60.0,
        tokens=4_096_000,
        parameter_count=parameter_count(schedule.final, study.variant),
        inference_flops=100_000,
    )
    (folder / TRIALS_FOLDER / f"{kind}-{number:05d}.json").write_text(json.dumps(asdict(trial), indent=2))


def metrics(schedule: Schedule, budget: int, loss: float) -> list[dict[str, Any]]:
    """The lines of a run."""
    lines: list[dict[str, Any]] = []
    waiting = [event.at for event in schedule.events]
    for index in range(200):
        at = index / 200
        place = {
            "step": 5 * index,
            "tokens": 20480 * index,
            "charged": int(at * budget),
            "fraction": at,
            "seconds": 60 * at,
        }
        value = loss + 2 * (1 - at) ** 3
        if index % 10 == 0:
            lines.append({"kind": "evaluation", **place, "aligned": at, "validation": value})
        while waiting and waiting[0] <= at:
            waiting.pop(0)
            moved = {"loss_before": value, "loss_after": value, "change": 1e-7, "new_gradient": 0.1}
            lines.append({"kind": "event", **place, **moved})
        speed = {"learning_rate": 0.006, "gradient": 0.512345678, "tokens_per_second": 30255.177604410936}
        lines.append({"kind": "train", **place, "loss": value, **speed, "peak_fraction": 0.2985029314714401})
    return [
        *lines,
        {
            "kind": "final",
            "step": 1000,
            "tokens": 0,
            "charged": budget,
            "fraction": 1.0,
            "seconds": 60.0,
            "validation": loss,
        },
    ]


def main() -> None:
    """Make the records, report on them, and print."""
    random.seed(0)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "study"
        (folder / TRIALS_FOLDER).mkdir(parents=True)
        file = folder / STUDY
        file.write_text(json.dumps({"final": FINAL, "space": str(SPACE), "trials": RUNS}))
        file.write_text(dump_study(load_study(file)))
        study = ResolvedStudy.resolve(load_study(file), "benchmark")
        begin = time.perf_counter()
        for number, rate in enumerate(study.tuning.declared[PEAK]):
            point = Point(Schedule(study.final), {PEAK: rate})
            record(study, folder, "baseline", number, point, FINAL_SHAPE, Drawn())
        for index in range(RUNS // 2):
            drawn = Drawn()
            fixed = study.of_fixed_shapes.space.sample(drawn)
            record(study, folder, "fixed", index, fixed, None, drawn)
        for index in range(RUNS // 2):
            drawn = Drawn()
            record(study, folder, "search", index, study.space.sample(drawn), None, drawn)
        print(f"{RUNS} runs recorded in {time.perf_counter() - begin:.0f} s")
        for what in ("reading", "whole"):
            command = [sys.executable, "-c", CHILD, str(folder), what]
            ended = subprocess.run(command, capture_output=True, text=True, check=True)
            print(f"{what}: {ended.stdout.strip()}")


if __name__ == "__main__":
    main()
