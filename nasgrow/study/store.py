"""Where the driver writes a study: trial records in its folder, and the same trials in Optuna's storage.

The records are what nasgrow reads. Optuna's studies, one for each kind of trial so that no sampler and no
view mixes them, show the trials to the dashboard; they are written through Optuna's public interface
only, and nothing in them decides what is trained.
"""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.samplers import PartialFixedSampler, RandomSampler
from optuna.storages import RDBStorage
from optuna.study import Study as OptunaStudy
from optuna.study import StudyDirection
from optuna.trial import FixedTrial, Trial, TrialState
from optuna_dashboard import save_note  # type: ignore[import-untyped]

from nasgrow.errors import UserError
from nasgrow.spaces.shapes import SHAPE_PARAMETER
from nasgrow.spaces.training import BATCH, PEAK, RAMP
from nasgrow.study.lock import Lease
from nasgrow.study.notes import trial_note
from nasgrow.study.storage import quiet, retried
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import RUNS, Kind, TrialRecord, write_trial
from nasgrow.study.tuning import HIGHEST, LOWEST
from nasgrow.training.records import CHECKPOINTS

FULL = 100
"""The step of a report at the end of a run: steps are percents of the budget."""

MOST_TOKENS = 1 << 40
"""More than any batch has: a parameter has one distribution for a study's life."""

Got = TypeVar("Got")

Attach = Callable[[Trial, TrialRecord, Path], None]
"""Attaches files to a trial that has ended; the path is the folder of its first run."""


def study_name(study: ResolvedStudy, kind: Kind) -> str:
    """The name of the Optuna study of one kind of trial."""
    name = study.config.name
    return name if kind == "search" else f"{name} ({'fixed shapes' if kind == 'fixed' else f'{kind}s'})"


class StudyStore:
    """Writes one study.

    Args:
        study: The study.
        folder: Its folder.
        storage: Its database.
        attach: Attaches files to a trial that has ended.
        warn: Called with each warning.
        records: The trials that it has already.
    """

    def __init__(
        self,
        study: ResolvedStudy,
        folder: Path,
        storage: RDBStorage,
        attach: Attach,
        warn: Callable[[str], None],
        records: Iterable[TrialRecord] = (),
    ) -> None:
        self._study, self._folder, self._storage = study, folder, storage
        self._attach, self._warn = attach, warn
        self._studies: dict[Kind, OptunaStudy] = {}
        self._trials: dict[tuple[Kind, int], Trial] = {}
        self.lease: Lease | None = None
        self._best: dict[str, TrialRecord] = {}
        ended = [record for record in records if record.is_ended]
        for record in ended:
            self._beaten(record)
        # Also those of a driver that died just before it did. A pruned trial's run may be another one's too.
        self._drop_checkpoints([record for record in ended if record.status != "pruned"])

    def add(self, record: TrialRecord) -> int:
        """Start a trial in Optuna, which numbers it, and write its record."""
        trial = self._ask(record)
        record.number = trial.number
        write_trial(self._folder, record)
        self._show(trial, record)
        return trial.number

    def restore(self, record: TrialRecord) -> None:
        """Show a trial again that the storage has lost."""
        trial = self._ask(record)
        while trial.number < record.number:  # a driver died before it recorded the trial of this number
            self.fail(record.kind, [trial.number])
            trial = self._ask(record)
        self._show(trial, record)
        for at, loss in record.evaluations:
            self.report(record, at, loss)
        if record.is_ended:
            self.end(record)

    def _ask(self, record: TrialRecord) -> Trial:
        """Start a trial in Optuna."""
        of = self._distributions(record)

        def ask() -> Trial:
            study = self._optuna_study(record.kind)
            if study.metric_names is None:  # the dashboard shows them in place of a number
                study.set_metric_names(self._objectives(record.kind))
            study.sampler = PartialFixedSampler(record.parameters, RandomSampler())
            return study.ask(fixed_distributions=of)

        return self._repeated(ask)

    def _show(self, trial: Trial, record: TrialRecord) -> None:
        """Say in Optuna what a trial trains that was started there."""
        self._trials[record.kind, trial.number] = trial
        self._update(lambda: self._describe(trial, record))

    def report(self, record: TrialRecord, at: float, loss: float) -> None:
        """Report an evaluation to Optuna, which knows no reports where there are two objectives."""
        if record.kind == "search" and len(self._study.config.objectives) > 1:
            return
        with warnings.catch_warnings():
            # One that a driver reported before it died; the loss is the same.
            warnings.filterwarnings("ignore", "The reported value is ignored")
            self._update(lambda: self._trial(record).report(loss, round(FULL * at)))

    def save(self, record: TrialRecord) -> None:
        """Write the record of a trial that goes on later."""
        write_trial(self._folder, record)

    def end(self, record: TrialRecord) -> None:
        """Write the record of a trial that has ended, and tell Optuna."""
        write_trial(self._folder, record)
        values = self._values(record)
        state = TrialState.COMPLETE if values is not None else TrialState.PRUNED
        if record.status == "failed":
            state = TrialState.FAIL

        def describe() -> None:
            trial = self._trial(record)
            for name, value in _results(record).items():
                trial.set_user_attr(name, value)
            if record.runs:
                self._attach(trial, record, self._folder / RUNS / next(iter(record.runs)))

        def tell() -> None:
            self._optuna_study(record.kind).tell(record.number, values, state, skip_if_finished=True)

        self._update(describe)  # apart, because it cannot be repeated once the trial has ended
        self._update(tell)
        self._trials.pop((record.kind, record.number), None)
        beaten = self._beaten(record)
        self._drop_checkpoints([] if beaten is None else [beaten])

    def renew(self) -> None:
        """Renew the lease of the storage, if it has one."""
        if self.lease is not None:
            self._repeated(self.lease.renew)

    def fail(self, kind: Kind, numbers: Iterable[int]) -> None:
        """End trials in Optuna that have no record.

        A driver started them when it died, or another program enqueued them.
        """
        for number in numbers:
            trial = self._id_of(kind, number)
            self._repeated(partial(self._storage.set_trial_state_values, trial, TrialState.FAIL))

    def shown(self, kind: Kind) -> dict[int, TrialState]:
        """The state of each trial that Optuna has of a kind.

        Raises:
            UserError: Another program has changed the study such that it cannot be read, or shows losses as
                if they were to be maximised.
        """
        study = self.optuna_study(kind)
        states = self._states(kind)
        if states is None or study.directions != [StudyDirection.MINIMIZE] * len(self._objectives(kind)):
            raise self.changed(kind)
        return states

    def _states(self, kind: Kind) -> dict[int, TrialState] | None:
        """The state of each trial as it stands in the database; None if Optuna cannot make sense of that."""
        try:
            study = self._storage.get_study_id_from_name(study_name(self._study, kind))
            trials = retried(partial(self._storage.get_all_trials, study, deepcopy=False), self._warn)
        except UserError:
            raise
        except (ValueError, LookupError, TypeError):
            return None
        return {trial.number: trial.state for trial in trials}

    def changed(self, kind: Kind) -> UserError:
        """The error where another program has changed what nasgrow wrote into the storage."""
        name = study_name(self._study, kind)
        return UserError(
            f"{name}: another program has changed its trials in the storage: delete {name!r} there, and the "
            f"same command writes it again from the records in {self._folder}"
        )

    def has(self, kind: Kind) -> bool:
        """Whether there is an Optuna study of one kind of trial."""
        return study_name(self._study, kind) in self._repeated(
            lambda: optuna.get_all_study_names(self._storage)
        )

    def optuna_study(self, kind: Kind) -> OptunaStudy:
        """The Optuna study of one kind of trial, which is created if there is none."""
        return self._repeated(lambda: self._optuna_study(kind))

    def _optuna_study(self, kind: Kind) -> OptunaStudy:
        if kind not in self._studies:
            with quiet():
                self._studies[kind] = optuna.create_study(
                    storage=self._storage,
                    study_name=study_name(self._study, kind),
                    directions=["minimize"] * len(self._objectives(kind)),
                    load_if_exists=True,
                )
        return self._studies[kind]

    def _objectives(self, kind: Kind) -> list[str]:
        """What trials of a kind are judged by; baselines and confirmations by their loss alone."""
        return list(self._study.config.objectives[: None if kind == "search" else 1])

    def _trial(self, record: TrialRecord) -> Trial:
        """Optuna's trial of a record, perhaps one that an earlier driver started."""
        known = self._trials.get((record.kind, record.number))
        if known is None:
            trial_id = self._id_of(record.kind, record.number)
            known = Trial(self._optuna_study(record.kind), trial_id)
            self._trials[record.kind, record.number] = known
        return known

    def _id_of(self, kind: Kind, number: int) -> int:
        study = self._storage.get_study_id_from_name(study_name(self._study, kind))
        return self._storage.get_trial_id_from_study_id_trial_number(study, number)

    def _distributions(self, record: TrialRecord) -> dict[str, BaseDistribution]:
        """What the parameters of a trial were chosen from; learning rates go beyond those declared."""
        if record.kind not in ("search", "fixed") or SHAPE_PARAMETER in record.parameters:
            return {}
        space = (self._study if record.kind == "search" else self._study.of_fixed_shapes).space
        near = dict(record.parameters)
        if PEAK in near:
            near[PEAK] = min(space.training[PEAK].values, key=lambda rate: abs(rate - near[PEAK]))
        asked = FixedTrial(near)
        space.sample(asked)
        found = asked.distributions
        if PEAK in near:
            found[PEAK] = FloatDistribution(LOWEST, HIGHEST, log=True)
        if BATCH in near:
            found[BATCH] = IntDistribution(1, MOST_TOKENS)
        if RAMP in near:
            found[RAMP] = FloatDistribution(0.0, 1.0)
        return found

    def _describe(self, trial: Trial, record: TrialRecord) -> None:
        """Say in Optuna what a trial trains."""
        what = {
            "name": record.title,
            "schedule": record.words,
            "learning_rate": record.learning_rate,
            "parameters": record.parameter_count,
            "inference_flops": record.inference_flops,
            "schedule_seconds": record.schedule_seconds,
            "events": len(record.schedule["events"]),
        }
        if record.kind in ("baseline", "confirmation") or SHAPE_PARAMETER in record.parameters:
            what |= record.parameters
        for name, value in what.items():
            trial.set_user_attr(name, value)
        save_note(trial, trial_note(record))

    def _values(self, record: TrialRecord) -> list[float] | None:
        """What Optuna minimises: the mean loss, and the second objective where one is searched."""
        extra = self._objectives(record.kind)[1:]
        second = [record.objective(name) for name in extra]
        if record.loss is not None:
            return [record.loss, *second]
        # Optuna prunes no trial of two objectives: a loss that is not finite says the same.
        return [float("inf"), *second] if second and record.status != "failed" else None

    def _repeated(self, step: Callable[[], Got]) -> Got:
        """A step in the database, repeated while the connection is lost."""
        try:
            with quiet():
                return retried(step, self._warn)
        except UserError:
            raise
        except (KeyError, ValueError):  # what is not there or has not begun, in Optuna's words, or a bug
            gone = {study.study_name for study in self._studies.values()}
            gone -= set(optuna.get_all_study_names(self._storage))
            if gone:
                raise UserError(
                    f"{min(gone)}: the study was deleted from its storage while it ran; its records are "
                    f"still in {self._folder}"
                ) from None
            for kind in self._studies:
                states, ours = self._states(kind), {number for own, number in self._trials if own == kind}
                if states is None or any(states.get(one) in (None, TrialState.WAITING) for one in ours):
                    raise self.changed(kind) from None
            raise

    def _update(self, step: Callable[[], object]) -> None:
        """A step that changes a trial of ours; if another program has ended it, the record still holds."""
        try:
            self._repeated(step)
        except UpdateFinishedTrialError:
            self._warn(
                f"{self._study.config.name}: another program has ended one of its trials in the storage"
            )

    def _drop_checkpoints(self, beaten: Iterable[TrialRecord]) -> None:
        """Keep the weights of the best schedule, the best fixed shape and each size's best baseline alone."""
        kept = {run for best in self._best.values() for run in best.runs}
        for run in {run for record in beaten for run in record.runs} - kept:
            shutil.rmtree(self._folder / RUNS / run / CHECKPOINTS, ignore_errors=True)

    def _beaten(self, record: TrialRecord) -> TrialRecord | None:
        """Who loses to whom: the trial itself, or the best of its rivals so far; None if it had none."""
        if record.kind == "confirmation" or record.loss is None:
            return record
        rivals = record.name or "" if record.kind == "baseline" else record.kind
        best = self._best.get(rivals)
        if best is not None and best.loss is not None and best.loss <= record.loss:
            return record
        self._best[rivals] = record
        return best


def _results(record: TrialRecord) -> dict[str, Any]:
    """What Optuna shows of a trial that has ended, beside its value."""
    return {
        "status": record.status,
        "losses": record.losses,
        "runs": [*record.runs],
        "charged": record.charged,
        "executed": record.executed,
        "seconds": record.seconds,
        "tokens": record.tokens,
    } | ({"test": record.test} if record.test else {})
