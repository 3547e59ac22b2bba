"""Studies made of records alone, for tests of reports: nothing is trained."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from nasgrow.flops import inference_flops, parameter_count
from nasgrow.schedule import in_words, schedule_from, schedule_to
from nasgrow.spaces.training import PEAK
from nasgrow.study.study import ResolvedStudy, open_study
from nasgrow.study.trials import Kind, Status, TrialRecord, read_trials, write_trial
from nasgrow.training.records import Result
from nasgrow.training.run import Run

CONTEXT, VOCAB = 16, 256
FINGERPRINT = "0123456789abcdef"
FINAL = {"hidden": 16, "layers": 2, "mlp": 32, "heads": 2, "key": 4, "value": 4}
GROWN: dict[str, Any] = {
    "start": {"hidden": 8, "layers": 1, "mlp": 16, "heads": 1, "key": 4, "value": 4},
    "events": [
        {"at": 0.2, "grow": [{"expand": "hidden", "to": 16}, {"expand": "mlp", "to": 32}]},
        {"at": 0.5, "grow": [{"expand": "heads", "to": 2}, {"expand": "layers", "at": [1]}]},
    ],
}
LATER: dict[str, Any] = {
    "start": FINAL | {"layers": 1},
    "events": [{"at": 0.6, "grow": [{"expand": "layers", "at": [1]}]}],
}
MACHINE = {
    "device": "a processor",
    "cores": 2,
    "threads": 1,
    "system": "Linux",
    "python": "3.11",
    "versions": {"nasgrow": "0.1.0", "torch": "2.9"},
    "commit": "abcdef012345",
}
SECONDS = 12.5


class Recorded:
    """A study's folder that records are put into."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        folder.mkdir(parents=True)
        file = {
            "name": "small",
            "final": FINAL,
            "budget": {"flops": 8e7},
            "training": {"context": CONTEXT, "batch_tokens": 64},
            "space": {
                "kind": "compound",
                "start": [1, 0.5],
                "events": 2,
                "times": {"low": 0.1, "high": 0.7, "step": 0.1},
            },
            "trials": 3,
            "tune": {PEAK: [0.003, 0.006, 0.012]},
            **changes,
        }
        (folder / "study.yaml").write_text(yaml.safe_dump(file), encoding="utf-8")
        self.folder = folder
        self.study: ResolvedStudy = open_study(folder)[0]

    def add(
        self,
        kind: Kind,
        number: int,
        schedule: dict[str, Any],
        losses: Sequence[float | None],
        *,
        test: Sequence[float] = (),
        seeds: Sequence[int] = (0,),
        name: str | None = None,
        rate: float = 0.006,
        status: Status = "finished",
        change: float = 1e-7,
        machine: dict[str, Any] = MACHINE,
        level: float = 0.1,
        times: float = 1.0,
    ) -> TrialRecord:
        """Record a trial and its runs, whose evaluations fall to ``level`` above their final loss."""
        study = self.study
        understood = schedule_from(schedule)
        runs: dict[str, int] = {}
        for seed, loss in zip(seeds, losses, strict=True):
            config = study.run(understood, {PEAK: rate}, seed, times)
            run = Run.resolve(config, vocab=VOCAB, fingerprint=FINGERPRINT)
            runs[run.identity] = int(study.budget * times)
            self.record_run(self.folder, run, loss, change, machine, level)
        record = TrialRecord(
            kind=kind,
            number=number,
            status=status,
            name=name,
            parameters={PEAK: rate}
            | ({"start": 0.5, "at.1": 0.1 * (1 + number % 7), "at.2": 0.7} if kind == "search" else {}),
            schedule=schedule_to(understood),
            words=in_words(understood),
            learning_rate=rate,
            seeds=list(seeds),
            losses=list(losses),
            test=list(test),
            runs=runs,
            charged=int(study.budget * times) * len(runs),
            executed=int(study.budget * times) * len(runs),
            seconds=SECONDS * len(runs),
            tokens=64_000 * len(runs),
            parameter_count=parameter_count(understood.final, study.variant),
            inference_flops=inference_flops(understood.final, study.variant),
        )
        write_trial(self.folder, record)
        return record

    def baselines(
        self, losses: dict[str, Sequence[float]], rates: Sequence[float] = (0.003, 0.006, 0.012)
    ) -> None:
        """Record fixed shapes: for each its loss at each rate, the final one as a baseline."""
        for place, (name, own) in enumerate(losses.items()):
            for number, (rate, loss) in enumerate(zip(rates, own, strict=False), 3 * place):
                kind: Kind = "baseline" if name == "final" else "fixed"
                self.add(
                    kind, number, FIXED[name], [loss], name=name if kind == "baseline" else None, rate=rate
                )

    def confirm(
        self,
        name: str,
        schedule: dict[str, Any],
        test: Sequence[float],
        *,
        rate: float = 0.006,
        first: int = 0,
        times: float = 1.0,
    ) -> None:
        """Record a confirmation of a candidate for each test loss; validation is 0.02 lower."""
        for seed, loss in enumerate(test, 1):
            number = first + seed
            self.add(
                "confirmation",
                number,
                schedule,
                [loss - 0.02],
                test=[loss],
                seeds=[seed],
                name=name,
                rate=rate,
                times=times,
            )

    @staticmethod
    def record_run(
        study: Path,
        run: Run,
        loss: float | None,
        change: float = 1e-7,
        machine: dict[str, Any] = MACHINE,
        level: float = 0.1,
    ) -> None:
        """Record a run of the study or family in a folder."""
        folder = study / "runs" / run.identity
        folder.mkdir(parents=True, exist_ok=True)
        description = {"identity": run.identity, "run": run.describe(), "machine": machine}
        (folder / "description.json").write_text(json.dumps(description))
        end = 5.0 if loss is None else loss
        events = [event.at for event in run.schedule.events]
        lines: list[dict[str, Any]] = []
        moved: dict[str, Any]
        for index in range(20):
            at = index / 20
            place = {
                "step": index,
                "tokens": 64 * index,
                "charged": int(at * run.budget),
                "fraction": at,
                "seconds": at,
            }
            value = end + level + 3 * (0.95 - at) ** 2
            lines.append({"kind": "evaluation", **place, "aligned": at, "validation": value})
            if at in events:
                moved = {"loss_before": value, "loss_after": value + change, "change": change}
                moved["operator"] = str(run.operators[events.index(at)])
                lines.append({"kind": "event", **place, **moved, "new_gradient": 0.1})
            lines.append({"kind": "train", **place, "loss": value, "learning_rate": 0.006})
        if loss is not None:
            place = {"step": 20, "tokens": 1280, "charged": run.budget, "fraction": 1.0, "seconds": SECONDS}
            lines.append({"kind": "final", **place, "validation": loss, "evaluation": end + level})
            result = Result("finished", loss, 20, 1280, run.budget, run.budget, SECONDS, 1000)
            (folder / "result.json").write_text(json.dumps(asdict(result)))
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def usual(folder: Path, **changes: Any) -> Recorded:
    """A study whose search has ended: growth leads on validation, all baselines are tuned."""
    recorded = Recorded(folder, **changes)
    recorded.baselines({"final": (2.0, 1.9, 1.95), "hidden 8": (1.9, 1.85, 1.88), "mlp 16": (2.1, 2.0, 2.05)})
    recorded.add("search", 0, FINAL_ALONE, [1.95], name="no growth", rate=0.012)
    recorded.add("search", 1, GROWN, [1.8])
    recorded.add("search", 2, LATER, [1.83])
    return recorded


FINAL_ALONE = {"start": FINAL}
FIXED: dict[str, dict[str, Any]] = {
    "final": FINAL_ALONE,
    "hidden 8": {"start": FINAL | {"hidden": 8}},
    "mlp 16": {"start": FINAL | {"mlp": 16}},
    "layers 1": {"start": FINAL | {"layers": 1}},
}
"""Fixed shapes by the names that reports give them."""


def with_budgets(
    folder: Path,
    ours: list[float],
    losses: dict[float, list[float]],
    slower: float | None = None,
) -> Recorded:
    """A study whose final shape has test losses under several budgets; one seed each on validation.

    Its schedule takes ``slower`` times as long as the final shape, if seconds were measured.
    """
    recorded = Recorded(folder)
    recorded.baselines({"final": (2.0, 1.9, 1.95)})
    recorded.add("search", 1, GROWN, [1.8])
    for number, (times, loss) in enumerate(zip((0.5, 2.0), (1.97, 1.7), strict=True), 20):
        name = f"final, {times:.4g}x budget"
        recorded.add("baseline", number, FINAL_ALONE, [loss], name=name, times=times)
    recorded.confirm("search 1", GROWN, ours)
    for place, (name, times) in enumerate((("baseline 1", 1.0), ("baseline 20", 0.5), ("baseline 21", 2.0))):
        recorded.confirm(name, FINAL_ALONE, losses.get(times, []), first=40 + 10 * place, times=times)
    if slower is not None:
        time_trials(folder, slower)
    return recorded


def time_trials(folder: Path, slower: float) -> None:
    """Let each fixed shape of a study take ten seconds, and each schedule ``slower`` times as long."""
    for record in read_trials(folder):
        record.schedule_seconds = 10.0 * (slower if record.schedule["events"] else 1.0)
        write_trial(folder, record)
