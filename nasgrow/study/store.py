"""The driver's trial store: trial records in the study's folder, and the same trials in Optuna's storage.

nasgrow reads the records only. The Optuna studies show the trials to the dashboard, and have no influence on
what is trained. There is one Optuna study for each kind of trial, so that no view mixes kinds. They are
written through Optuna's public interface only.
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
from nasgrow.study.storage import open_storage, quiet, retried, storage_url
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import RUNS, Kind, TrialRecord, write_trial
from nasgrow.study.tuning import HIGHEST, LOWEST
from nasgrow.training.records import CHECKPOINTS

FULL = 100
"""The step of an Optuna report at the end of a run: steps are percents of the budget."""

MOST_TOKENS = 1 << 40
"""The upper bound of the batch size's distribution, above any real batch.

Tuning may leave the declared values, and Optuna allows a parameter only one distribution per study.
"""

Got = TypeVar("Got")

Attach = Callable[[Trial, TrialRecord, Path], None]
"""Called with a trial that has ended, its record and the folder of its first run: attaches files to it."""


def study_name(study: ResolvedStudy, kind: Kind) -> str:
    """Return the name of the Optuna study of one kind of trial."""
    name = study.config.name
    return name if kind == "search" else f"{name} ({'fixed shapes' if kind == 'fixed' else f'{kind}s'})"


def shown_study(study: ResolvedStudy, folder: Path) -> OptunaStudy:
    """Return the Optuna study of the search of the study in ``folder``; the caller must only read it."""
    storage = open_storage(storage_url(study.config, folder))
    return optuna.load_study(study_name=study_name(study, "search"), storage=storage)


class StudyStore:
    """Writes the trials of one study to its folder and to Optuna's storage.

    Only the weights of the best trials are kept. A new store deletes the checkpoints of other
    trials that ended, unless they were pruned: an earlier driver may have died before it did.

    Args:
        study: The study.
        folder: Its folder.
        storage: Its database.
        attach: Attaches files to a trial that has ended.
        warn: Called with each warning.
        records: The study's trials so far.
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
        # An earlier driver may have died before it removed them. A pruned trial's run may belong to another
        # trial too.
        self._drop_checkpoints([record for record in ended if record.status != "pruned"])

    def add(self, record: TrialRecord) -> int:
        """Start a trial in Optuna, write its record, and return the number that Optuna gives it.

        The record gets that number too.
        """
        trial = self._ask(record)
        record.number = trial.number
        write_trial(self._folder, record)
        self._show(trial, record)
        return trial.number

    def restore(self, record: TrialRecord) -> None:
        """Write a trial that Optuna lost, its evaluations and its result to Optuna again.

        Restore trials of a kind by ascending number: Optuna only appends numbers. Numbers left out
        before this one become failed trials.
        """
        trial = self._ask(record)
        while trial.number < record.number:  # a driver died before it recorded the trial with this number
            self.fail(record.kind, [trial.number])
            trial = self._ask(record)
        self._show(trial, record)
        for at, loss in record.evaluations:
            self.report(record, at, loss)
        if record.is_ended:
            self.record_end(record)

    def _ask(self, record: TrialRecord) -> Trial:
        """Start a trial in Optuna with the parameters of a record."""
        of = self._distributions(record)

        def ask() -> Trial:
            study = self._optuna_study(record.kind)
            if study.metric_names is None:  # the dashboard shows these names instead of numbers
                study.set_metric_names(self._objectives(record.kind))
            study.sampler = PartialFixedSampler(record.parameters, RandomSampler())
            return study.ask(fixed_distributions=of)

        return self._repeated(ask)

    def _show(self, trial: Trial, record: TrialRecord) -> None:
        """Describe a new trial in Optuna, and remember it."""
        self._trials[record.kind, trial.number] = trial
        self._update(lambda: self._describe(trial, record))

    def report(self, record: TrialRecord, at: float, loss: float) -> None:
        """Report an evaluation to Optuna; do nothing with two objectives, where Optuna allows no reports."""
        if record.kind == "search" and len(self._study.config.objectives) > 1:
            return
        with warnings.catch_warnings():
            # An earlier driver may have reported it before it died; the loss is the same.
            warnings.filterwarnings("ignore", "The reported value is ignored")
            self._update(lambda: self._trial(record).report(loss, round(FULL * at)))

    def save(self, record: TrialRecord) -> None:
        """Write the record of a trial that has not ended."""
        write_trial(self._folder, record)

    def end(self, record: TrialRecord) -> None:
        """Record that a trial has ended, and delete the checkpoints of trials that are no longer needed.

        The trial is compared with the best of its rivals so far, and the worse one loses its
        checkpoints. Its rivals are trials of its kind, for a baseline those of the same size. A
        confirmation or a trial without a loss always loses.
        """
        self.record_end(record)
        beaten = self._beaten(record)
        self._drop_checkpoints([] if beaten is None else [beaten])

    def record_end(self, record: TrialRecord) -> None:
        """Write the record of a trial that has ended, and its result to Optuna; delete no checkpoint."""
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

        self._update(describe)  # a separate step, because it cannot be retried once the trial has ended
        self._update(tell)
        self._trials.pop((record.kind, record.number), None)

    def renew(self) -> None:
        """Renew the lease on the study, if it has one."""
        if self.lease is not None:
            self._repeated(self.lease.renew)

    def fail(self, kind: Kind, numbers: Iterable[int]) -> None:
        """Mark trials without a record as failed in Optuna.

        A driver died after it started them, or another program enqueued them.
        """
        for number in numbers:
            trial = self._id_of(kind, number)
            self._repeated(partial(self._storage.set_trial_state_values, trial, TrialState.FAIL))

    def shown(self, kind: Kind) -> dict[int, TrialState]:
        """Return the state of each trial of a kind in Optuna's storage, by number.

        Create the Optuna study if there is none.

        Raises:
            UserError: Another program has changed the study, so that it cannot be read, or has other
                directions than minimise.
        """
        study = self.optuna_study(kind)
        states = self._states(kind)
        if states is None or study.directions != [StudyDirection.MINIMIZE] * len(self._objectives(kind)):
            raise self.changed(kind)
        return states

    def _states(self, kind: Kind) -> dict[int, TrialState] | None:
        """Read the state of each trial from the database; None if Optuna cannot read them."""
        try:
            study = self._storage.get_study_id_from_name(study_name(self._study, kind))
            trials = retried(partial(self._storage.get_all_trials, study, deepcopy=False), self._warn)
        except UserError:
            raise
        except (ValueError, LookupError, TypeError):
            return None
        return {trial.number: trial.state for trial in trials}

    def changed(self, kind: Kind) -> UserError:
        """Return the error for trials that another program has changed in the storage."""
        name = study_name(self._study, kind)
        return UserError(
            f"{name}: another program has changed or deleted its trials in the storage: delete what is left "
            f"of {name!r} there, and the same command writes it again from the records in {self._folder}"
        )

    def has(self, kind: Kind) -> bool:
        """Return whether the Optuna study of one kind of trial exists."""
        return study_name(self._study, kind) in self._repeated(
            lambda: optuna.get_all_study_names(self._storage)
        )

    def optuna_study(self, kind: Kind) -> OptunaStudy:
        """Return the Optuna study of one kind of trial; create it if there is none."""
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
        """Return the objectives of a kind of trial: those of the study for search trials, else the loss."""
        return list(self._study.config.objectives[: None if kind == "search" else 1])

    def _trial(self, record: TrialRecord) -> Trial:
        """Return Optuna's trial of a record, which an earlier driver may have started."""
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
        """Return the Optuna distributions of the parameters of a search or fixed-shape trial.

        Those of learning rate and batch size are wider than the declared values, because tuning may go beyond
        them. Other trials, and trials whose parameter is a complete shape, have none: their parameters become
        user attributes.
        """
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
        """Set the attributes and the note in Optuna that describe what a trial trains."""
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
        """Return the values that Optuna minimises: the mean loss, and the second objective if there is one.

        None if the trial did not finish, except that a trial with two objectives gets an infinite loss unless
        it failed: Optuna cannot prune trials with two objectives.
        """
        extra = self._objectives(record.kind)[1:]
        second = [record.objective(name) for name in extra]
        if record.loss is not None:
            return [record.loss, *second]
        return [float("inf"), *second] if second and record.status != "failed" else None

    def _repeated(self, step: Callable[[], Got]) -> Got:
        """Run a database step, retrying while the connection is lost.

        Raises:
            UserError: The connection stays lost, or another program has deleted or changed the study.
        """
        try:
            with quiet():
                return retried(step, self._warn)
        except UserError:
            raise
        except (KeyError, ValueError):  # Optuna's errors for missing or waiting trials and studies, or a bug
            for kind in self._studies:
                states, ours = self._states(kind), {number for own, number in self._trials if own == kind}
                if states is None or any(states.get(one) in (None, TrialState.WAITING) for one in ours):
                    raise self.changed(kind) from None
            raise

    def _update(self, step: Callable[[], object]) -> None:
        """Run a step that changes a trial; only warn if another program has ended the trial in the storage.

        The trial's record, which nasgrow reads, is not affected.
        """
        try:
            self._repeated(step)
        except UpdateFinishedTrialError:
            self._warn(
                f"{self._study.config.name}: another program has ended one of its trials in the storage"
            )

    def _drop_checkpoints(self, beaten: Iterable[TrialRecord]) -> None:
        """Delete the checkpoints of beaten trials.

        Only the weights of the best schedule, the best fixed shape and the best baseline of each size stay.
        """
        kept = {run for best in self._best.values() for run in best.runs}
        for run in {run for record in beaten for run in record.runs} - kept:
            shutil.rmtree(self._folder / RUNS / run / CHECKPOINTS, ignore_errors=True)

    def _beaten(self, record: TrialRecord) -> TrialRecord | None:
        """Compare a trial with the best of its rivals so far; keep the better one as best, return the other.

        The rivals of a baseline are those of the same size; those of other trials are of the same kind. A
        confirmation, or a trial without a loss, always loses. None if the trial is the first of its rivals.
        """
        if record.kind == "confirmation" or record.loss is None:
            return record
        rivals = record.name or "" if record.kind == "baseline" else record.kind
        best = self._best.get(rivals)
        if best is not None and best.loss is not None and best.loss <= record.loss:
            return record
        self._best[rivals] = record
        return best


def _results(record: TrialRecord) -> dict[str, Any]:
    """Return the attributes with the results of a trial that has ended, for Optuna."""
    return {
        "status": record.status,
        "losses": record.losses,
        "runs": [*record.runs],
        "charged": record.charged,
        "executed": record.executed,
        "seconds": record.seconds,
        "tokens": record.tokens,
    } | ({"test": record.test} if record.test else {})
