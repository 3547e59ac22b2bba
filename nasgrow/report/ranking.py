"""Rank schedules and fixed shapes by the losses of the search and by those of confirmations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from statistics import fmean

from nasgrow.report.load import Records, Trial
from nasgrow.report.statistics import BySeed
from nasgrow.report.trajectory import Trajectory, mean
from nasgrow.shape import Shape
from nasgrow.study.baselines import TunedBaseline, describe, times_of, tuned_sizes
from nasgrow.study.trials import TrialRecord


@dataclass(frozen=True)
class Contender:
    """One schedule or fixed shape with one training setting, and the runs that judge it.

    Attributes:
        origin: The search or baseline trial that it comes from.
        trials: The trials that judge it: ``origin`` itself, or one confirmation for each seed.
        losses: The loss of each finished run: on the test split if it was confirmed, else on the
            validation split. Empty if no confirmation finished.
        validation: The loss of each finished run on the validation split.
        seeds: The seed of each finished run.
        by_seed: ``losses`` by seed, for each segment of the text where these were recorded.
        curve: The mean of its validation curves; None if none was read.
        times: Its budget as a multiple of the study's.
    """

    origin: Trial
    trials: tuple[Trial, ...]
    losses: tuple[float, ...]
    validation: tuple[float, ...]
    seeds: tuple[int, ...]
    by_seed: BySeed
    curve: Trajectory | None
    times: float = 1.0

    @property
    def label(self) -> str:
        """The label of the trial that it comes from."""
        return self.origin.label

    @property
    def title(self) -> str:
        """The label and name of the trial that it comes from."""
        return self.origin.title

    @property
    def trial(self) -> Trial:
        """The first of its trials; all have the same schedule, learning rate and parameters."""
        return self.trials[0]

    @property
    def mean(self) -> float:
        """The mean of its losses; there must be one."""
        return fmean(self.losses)

    @property
    def failed(self) -> int:
        """The number of its trials that did not finish."""
        return sum(trial.record.status != "finished" for trial in self.trials)

    @property
    def diverged(self) -> int:
        """The number of its trials that diverged."""
        return sum(trial.record.status == "diverged" for trial in self.trials)

    def per_run(self, field: str) -> float:
        """Return the mean cost of one run, by a field of trial records.

        The field is ``seconds``, ``tokens``, ``charged`` or ``schedule_seconds``.
        ``schedule_seconds`` is recorded for one run already; it is 0 if step times were not measured.
        """
        if field == "schedule_seconds":
            return self.trial.record.schedule_seconds or 0.0
        runs = sum(len(trial.record.runs) for trial in self.trials)
        return sum(float(getattr(trial.record, field)) for trial in self.trials) / max(1, runs)


@dataclass(frozen=True)
class Ranking:
    """The contenders of a study.

    Attributes:
        schedules: The finished search trials that grow, the lowest loss first. Of trials with the
            same runs it has one.
        searched: The finished search trials, growing or not, the lowest loss first.
        sizes: Fixed shapes at the study's budget: the final one, with or without trials, then the
            others, the lowest loss first.
        others: Fixed shapes under other budgets, the smallest budget first.
        confirmed: Candidates at the study's budget for which a fresh seed finished, the lowest
            validation loss first.
        confirmed_others: The same for fixed shapes under other budgets.
        diverged: Candidates at any budget for which no fresh seed has finished.
        checkpoint: The shape of the checkpoint that every run starts from; None if runs start from scratch.
        currency: The unit of the study's budget: ``compute`` or ``time``.
    """

    schedules: list[Trial]
    searched: list[Trial]
    sizes: list[TunedBaseline]
    others: list[TunedBaseline]
    confirmed: list[Contender]
    confirmed_others: list[Contender]
    diverged: list[Contender]
    checkpoint: Shape | None
    currency: str

    @property
    def begun(self) -> str:
        """How fixed shapes start training, in words."""
        return "from scratch" if self.checkpoint is None else "grown from the checkpoint at once"

    @property
    def final(self) -> TunedBaseline:
        """The final shape as a fixed shape under the study's budget, with its trials."""
        return self.sizes[0]

    @property
    def best_size(self) -> TunedBaseline | None:
        """The fixed shape at the study's budget whose best trial has the lowest validation loss.

        Confirmations do not count. None if no such shape has a finished trial.
        """
        return min(self.finished_sizes, key=_loss_of_best, default=None)

    @property
    def finished_sizes(self) -> list[TunedBaseline]:
        """The fixed shapes that have a finished trial."""
        return [tuned for tuned in self.sizes if tuned.best is not None]

    @property
    def unconfirmed_rivals(self) -> list[str]:
        """The names of fixed shapes that are not confirmed, but may be better than the best confirmed one.

        The search may have chosen a shape because its seeds were lucky. So the loss of each other
        shape in the search is compared with the loss of the best confirmed one with fresh seeds,
        both on the validation split. Empty if no fixed shape is confirmed. A shape whose
        confirmations diverged is no rival.
        """
        fixed = [one for one in self.confirmed if not one.trial.grows]
        tried = (one for one in (*self.confirmed, *self.diverged) if not one.trial.grows)
        known = {one.trial.schedule.start for one in tried}
        most = max((len(one.losses) for one in fixed), default=0)
        whole = [one for one in fixed if len(one.losses) == most]
        level = min((fmean(one.validation) for one in whole), default=-math.inf)
        others = [tuned for tuned in self.finished_sizes if tuned.size.shape not in known]
        return [tuned.size.name for tuned in others if _loss_of_best(tuned) < level]

    def size_of(self, trial: Trial) -> str:
        """Return the name of the fixed shape that a trial without growth trains."""
        return describe(trial.schedule.start, self.final.size.shape)


def rank(records: Records) -> Ranking:
    """Rank the trials and confirmations of a study."""
    searched = _ranked(records.of_kind("search"))
    every = _confirmed(records)
    confirmed = sorted((one for one in every if one.losses), key=lambda one: fmean(one.validation))
    fixed = tuned_sizes(
        records.study, [trial.record for kind in ("baseline", "fixed") for trial in records.of_kind(kind)]
    )
    return Ranking(
        schedules=[trial for trial in distinct(searched) if trial.grows],
        searched=searched,
        sizes=[tuned for tuned in fixed if tuned.size.times == 1],
        others=[tuned for tuned in fixed if tuned.size.times != 1],
        confirmed=[one for one in confirmed if one.times == 1],
        confirmed_others=[one for one in confirmed if one.times != 1],
        diverged=[one for one in every if not one.losses],
        checkpoint=None if (start := records.study.config.start) is None else start.shape,
        currency=records.study.config.budget.currency,
    )


def contender(records: Records, record: TrialRecord) -> Contender:
    """Make a contender of a finished trial that is no confirmation, judged by validation losses.

    Its ``times`` is 1: replace it for a trial under another budget.
    """
    trial = next(trial for trial in records.trials if trial.label == record.label)
    losses = tuple(loss for loss in record.losses if loss is not None)
    seeds = tuple(record.seeds)
    by_seed = {seed: (loss,) for seed, loss in zip(seeds, losses, strict=False)}
    curve = mean(_curves(records, [trial]))
    return Contender(trial, (trial,), losses, losses, seeds, by_seed, curve)


def distinct(trials: Iterable[Trial]) -> list[Trial]:
    """Return the trials without those whose runs an earlier trial already has.

    Different points of a space can give the same schedule, and so the same runs.
    """
    found: dict[tuple[str, ...], Trial] = {}
    for trial in trials:
        found.setdefault(tuple(trial.record.runs), trial)
    return list(found.values())


def _confirmed(records: Records) -> list[Contender]:
    known = {trial.label: trial for trial in records.trials}
    found: dict[str, list[Trial]] = {}
    for trial in records.of_kind("confirmation"):
        name = trial.record.name or trial.label
        if name in known:  # else its record is damaged, which the report lists
            found.setdefault(name, []).append(trial)
    contenders = []
    for name, trials in found.items():
        done = [trial for trial in trials if trial.record.status == "finished" and trial.record.test]
        contenders.append(
            Contender(
                known[name],
                tuple(trials),
                tuple(loss for trial in done for loss in trial.record.test),
                tuple(loss for trial in done for loss in trial.record.losses if loss is not None),
                tuple(seed for trial in done for seed in trial.record.seeds),
                dict(_by_seed(records, done)),
                mean(_curves(records, done)),
                times_of(known[name].record.name or "") if name.startswith("baseline") else 1.0,
            )
        )
    return contenders


def _by_seed(records: Records, trials: Iterable[Trial]) -> Iterator[tuple[int, tuple[float, ...]]]:
    """Yield each seed with its test losses on segments of the text, or its test loss if not recorded."""
    for trial in trials:
        record = trial.record
        for seed, loss, identity in zip(record.seeds, record.test, record.runs, strict=False):
            tested = records.tested.get(identity)
            yield seed, (loss,) if tested is None else tested.parts or (loss,)


def _curves(records: Records, trials: Iterable[Trial]) -> list[Trajectory]:
    identities = [identity for trial in trials for identity in trial.record.runs]
    return [records.curves[identity] for identity in identities if identity in records.curves]


def _ranked(trials: Iterable[Trial]) -> list[Trial]:
    """Return the finished trials, the lowest loss first."""
    done = [(trial.loss, trial) for trial in trials if trial.loss is not None]
    return [trial for _, trial in sorted(done, key=lambda pair: pair[0])]


def _loss_of_best(tuned: TunedBaseline) -> float:
    assert tuned.best is not None
    assert tuned.best.loss is not None
    return tuned.best.loss
