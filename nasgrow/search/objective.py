"""What a trial is worth: its schedule is trained under the budget, and the ledger is told the loss."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import nsmallest
from pathlib import Path
from statistics import fmean

from optuna.trial import FrozenTrial, Trial, TrialState

from nasgrow.flops import forward_flops, parameter_count
from nasgrow.schedule import Schedule, in_words, schedule_to
from nasgrow.search.asking import Asking
from nasgrow.search.baselines import PEAK
from nasgrow.search.confirm import candidate_config
from nasgrow.search.ledger import CANDIDATE, SEED, SIZE, Claim, Ledger
from nasgrow.search.notes import note_trial, trial_note
from nasgrow.search.outcome import RUNS, Claimant, Setting, finish, resolve, test_loss
from nasgrow.search.spaces import Point
from nasgrow.search.storage import at_once
from nasgrow.search.trials import TrialRecord, write_trial
from nasgrow.training.records import CHECKPOINTS, Result
from nasgrow.training.run import Run

Attach = Callable[[Trial, Run, Path], None]
"""Puts files of a run that ended or was given up beside its trial, for those who look at it."""


@dataclass
class _Spent:
    """What the runs of one trial came to."""

    seeds: list[int] = field(default_factory=list)
    losses: list[float | None] = field(default_factory=list)
    test: list[float] = field(default_factory=list)
    runs: dict[str, int] = field(default_factory=dict)
    charged: int = 0
    seconds: float = 0.0
    tokens: int = 0

    def add(self, run: Run, result: Result, executed: int) -> None:
        """Add a run, of which so many FLOPs fall to this trial."""
        self.seeds.append(run.config.seed)
        self.losses.append(result.validation)
        self.runs[run.identity] = executed
        self.charged += result.charged
        self.seconds += result.seconds * executed / max(1, result.executed)
        self.tokens += result.tokens


def _label(claim: Claim, number: int) -> str:
    return f"{claim.kind} {number}"


def pursue(claim: Claim, ledger: Ledger, setting: Setting, attach: Attach) -> None:
    """Train a claimed trial with every seed of the study, record it, and tell the ledger.

    Raises:
        Interrupted: This process was asked to stop; the state is saved, the trial is still claimed.
    """
    trial = claim.trial
    runs = _runs(claim, ledger, setting)
    schedule = runs[0][0].schedule
    note(trial, {"schedule": in_words(schedule), **_facts(ledger, schedule)})
    text = trial_note(schedule, trial.user_attrs.get("known"))
    at_once(ledger.storage, lambda: note_trial(trial, text))
    spent, status = _Spent(), "finished"
    before = [*ledger.retried(trial), *ledger.taken_up(trial)]
    who = Claimant(_label(claim, trial.number), tuple(_label(claim, old) for old in before))
    for index, (run, folder) in enumerate(runs):
        ask = Asking(claim, ledger, [event.at for event in run.schedule.events], first=index == 0)
        result, executed = finish(run, folder, setting, ask, who)
        spent.add(run, result, executed)
        if index == 0:
            attach(trial, run, folder)
        if result.validation is None:
            status = result.status
            break
        if claim.kind == "confirmation":
            loss = test_loss(folder, setting)
            if not math.isfinite(loss):
                status = "diverged"
                break
            spent.test.append(loss)
    told = {"status": status, "losses": spent.losses, "runs": spent.runs, "charged": spent.charged}
    told |= {"executed": sum(spent.runs.values()), "seconds": spent.seconds, "tokens": spent.tokens}
    note(trial, told)
    write_trial(setting.folder, _record(claim, ledger, runs[0][0], spent, status))
    ledger.tell(claim, _values(claim, ledger, schedule, spent, status))
    _drop_checkpoints(claim, ledger, setting.folder / RUNS)


def note(trial: Trial, attributes: Mapping[str, object]) -> None:
    """Set user attributes; each is a write, so what is there already is left."""
    there = trial.user_attrs
    for name, value in attributes.items():
        if name not in there or there[name] != value:
            trial.set_user_attr(name, value)


def _facts(ledger: Ledger, schedule: Schedule) -> dict[str, object]:
    variant, context = ledger.study.config.variant, ledger.study.config.training.context
    return {
        "parameters": parameter_count(schedule.final, variant),
        "inference_flops": forward_flops(schedule.final, variant, 1, context) // context,
        "events": len(schedule.events),
    }


def _runs(claim: Claim, ledger: Ledger, setting: Setting) -> list[tuple[Run, Path]]:
    """The runs of a trial, one for each seed, and their folders."""
    study, trial = ledger.study, claim.trial
    if claim.kind == "confirmation":
        config = candidate_config(setting.folder, trial.user_attrs[CANDIDATE])
        return [resolve(config.model_copy(update={"seed": trial.user_attrs[SEED]}), setting)]
    if claim.kind == "baseline":
        size, rate = ledger.size_of(trial)
        point, times = Point(Schedule(size.shape), {PEAK: rate}), size.times
    else:
        known = ledger.parameters(trial)
        point, times = study.space.sample(trial) if known is None else study.space.at(known), 1.0
    configs = [study.run(point.schedule, point.training, seed, times) for seed in study.config.seeds]
    return [resolve(config, setting, point.schedule) for config in configs]


def _record(claim: Claim, ledger: Ledger, run: Run, spent: _Spent, status: str) -> TrialRecord:
    trial = claim.trial
    attributes = trial.user_attrs
    return TrialRecord(
        kind=claim.kind,
        number=trial.number,
        status=status,
        name=trial.params.get(SIZE) or attributes.get(CANDIDATE) or attributes.get("known"),
        parameters=trial.params,
        schedule=schedule_to(run.schedule),
        words=attributes["schedule"],
        learning_rate=run.config.training.learning_rate.peak,
        seeds=spent.seeds,
        losses=spent.losses,
        test=spent.test,
        runs=list(spent.runs),
        charged=spent.charged,
        executed=sum(spent.runs.values()),
        seconds=spent.seconds,
        tokens=spent.tokens,
        parameter_count=attributes["parameters"],
        inference_flops=attributes["inference_flops"],
        replaces=ledger.retried(trial),
        ended=time.time(),
        takes_up=ledger.taken_up(trial),
    )


def _values(
    claim: Claim, ledger: Ledger, schedule: Schedule, spent: _Spent, status: str
) -> list[float] | None:
    """What Optuna is told: the mean loss over seeds, and the second objective where one is searched."""
    losses = [loss for loss in spent.losses if loss is not None]
    extra = ledger.study.config.objectives[1:] if claim.kind == "search" else []
    second = [float(str(_facts(ledger, schedule)[name])) for name in extra]
    if status == "finished":
        return [fmean(losses), *second]
    # Pruned trials are not for two objectives: there, a loss that is not finite says the same.
    return [math.inf, *second] if second else None


def _drop_checkpoints(claim: Claim, ledger: Ledger, runs: Path) -> None:
    """Keep the weights of the best trial and of each size's best baseline: others can be trained again."""
    ours = ledger.ended_trials(claim.kind)
    this = next((one for one in reversed(ours) if one.number == claim.trial.number), None)
    if this is None or this.state != TrialState.COMPLETE:
        return
    kept, dropped = _ranked(_complete(ledger.ended_trials("search")))
    dropped.append(this)
    # A baseline is the same run as a trial that does not grow, if there is one.
    if claim.kind != "search" or not all(trial.user_attrs.get("events") for trial in dropped):
        for rivals in _by_size(_complete(ledger.ended_trials("baseline"))):
            best, outdone = _ranked(rivals)
            kept |= best
            dropped += outdone
    for trial in dropped:
        for identity in trial.user_attrs["runs"].keys() - kept:
            shutil.rmtree(runs / identity / CHECKPOINTS, ignore_errors=True)


def _ranked(rivals: Sequence[FrozenTrial]) -> tuple[set[str], list[FrozenTrial]]:
    """The runs of the best of some trials, and the trial that may have been the best before.

    All others were dropped when they ended.
    """
    losses = [trial.values[0] for trial in rivals]
    first = [rivals[place] for _, place in nsmallest(2, zip(losses, range(len(losses)), strict=True))]
    return {run for trial in first[:1] for run in trial.user_attrs["runs"]}, first[1:]


def _complete(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """Those that have a loss."""
    state = TrialState.COMPLETE  # looking it up takes longer than comparing with it
    return [trial for trial in trials if trial.state is state]


def _by_size(trials: Iterable[FrozenTrial]) -> list[list[FrozenTrial]]:
    """Baselines that compete: those of one size."""
    found: dict[object, list[FrozenTrial]] = {}
    for trial in trials:
        found.setdefault(trial.params[SIZE], []).append(trial)
    return list(found.values())
