"""The ledger of a study: which runs are to be done, which are taken, what came out.

It is up to three Optuna studies in one storage: the search's trials, and beside them the baselines' and the
confirmations', so that no sampler, no importance and no view mixes them. A worker claims a trial, which no
other can then; a worker that dies is noticed by its missing heartbeat, and its trial is offered again with
the same parameters. A trial that was given up early may be taken up again (:mod:`nasgrow.search.taking_up`).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import wraps
from itertools import product
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import optuna
from filelock import FileLock
from optuna.exceptions import ExperimentalWarning, UpdateFinishedTrialError
from optuna.pruners import BasePruner
from optuna.storages import BaseStorage, RetryHeartbeatStaleTrialCallback
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, Trial, TrialState

from nasgrow.search import storage as storages
from nasgrow.search.agenda import ENDED, Agenda, Begin, GoOn, alive, asked, waiting
from nasgrow.search.baselines import PEAK, Size, baselines, learning_rates, next_rate
from nasgrow.search.config import Sampler, differences, dump_study, parse_study
from nasgrow.search.database import Busy, Lost
from nasgrow.search.prices import Prices
from nasgrow.search.samplers import make_pruner, make_sampler, trial_seed
from nasgrow.search.spaces.training import HIGHEST, LOWEST
from nasgrow.search.study import Study
from nasgrow.search.taking_up import OnceStudy, again, come_to, taken_up
from nasgrow.search.tree.leaves import RUNGS

Kind = Literal["baseline", "search", "confirmation"]
KINDS: tuple[Kind, ...] = ("baseline", "search")
"""What a search trains; confirmations are asked for by themselves."""

CANDIDATE, SEED = "candidate", "seed"
"""What a confirmation trains: attributes, not parameters, because nothing is sampled."""

SIZE = "size"
"""The parameter of a baseline that names its size; the other is its learning rate."""

ATTEMPTS = 1000
"""How often a change is repeated: more often than an outage that is waited for would need."""


@dataclass(frozen=True)
class Claim:
    """A trial that this process is to train."""

    kind: Kind
    trial: Trial


Given = ParamSpec("Given")
Got = TypeVar("Got")


def _repeated(change: Callable[Concatenate[Ledger, Given], Got]) -> Callable[Concatenate[Ledger, Given], Got]:
    """Repeat a change of a ledger that was lost with the connection to its database.

    An outage has an end of its own; what is lost again and again without one is no outage.
    """

    @wraps(change)
    def repeat(self: Ledger, *given: Given.args, **named: Given.kwargs) -> Got:
        for _ in range(ATTEMPTS):
            try:
                return change(self, *given, **named)
            except Lost:
                self._forget()
        raise RuntimeError(f"{change.__name__} was lost {ATTEMPTS} times")

    return repeat  # type: ignore[return-value]  # mypy takes self for a name that callers may use


class Ledger:
    """The trials of one study."""

    def __init__(self, study: Study, folder: Path | None, storage: BaseStorage) -> None:
        """Open the ledger of a study that was created.

        Args:
            study: The study.
            folder: Its folder; None if only this process knows the storage.
            storage: Its database.

        Raises:
            ValueError: It was not.
        """
        self.study = study
        self.storage = storage
        self._studies: dict[Kind, OnceStudy] = {}
        self._idle: set[Kind] = set()
        try:
            self._studies = {
                kind: OnceStudy(study_name=_name(study, kind), storage=storage) for kind in KINDS
            }
        except KeyError:
            raise ValueError(
                f"{study.config.name}: no such study in {storages.where(storage)}; start it with search"
            ) from None
        self._lock = storages.LedgerLock(storage, folder, self._studies["search"]._study_id)
        self._check_unchanged()
        self._agenda = Agenda(study, self._studies["search"])
        tree = study.config.sampler.kind == "tree"
        self._studies["search"].pruner = _Rungs(self) if tree else make_pruner(study.config.pruner)
        with suppress(KeyError):
            self._studies["confirmation"] = OnceStudy(_name(study, "confirmation"), storage)

    @staticmethod
    def create(study: Study, folder: Path | None, storage: BaseStorage, fingerprint: str) -> Ledger:
        """Open the ledger, creating what is missing: the studies, the baselines, the known schedules.

        Args:
            study: The study.
            folder: Its folder; None if only this process knows the storage.
            storage: Its database.
            fingerprint: The data's, which must stay the same.
        """
        with nullcontext() if folder is None else FileLock(folder / ".ledger.lock"):
            if folder is not None:
                _check_ours(study, storage)
            for kind in KINDS:
                name, count = _name(study, kind), len(study.config.objectives) if kind == "search" else 1
                optuna.create_study(
                    storage=storage, study_name=name, directions=["minimize"] * count, load_if_exists=True
                )
        ledger = Ledger(study, folder, storage)
        ledger._begin(fingerprint)
        return ledger

    @_repeated
    def _begin(self, fingerprint: str) -> None:
        with self._lock:
            search = self._studies["search"]
            if "data" not in search.user_attrs:
                search.set_user_attr("study", dump_study(self.study.config))
                search.set_user_attr("data", fingerprint)
            self.check_data(fingerprint)
            self._queue_first()

    def _forget(self) -> None:
        """Read anew what was read in a transaction that was lost: it may never have been."""
        for kind, study in self._studies.items():
            self._studies[kind] = OnceStudy(study.study_name, self.storage, pruner=study.pruner)
        self._agenda = Agenda(self.study, self._studies["search"], self._agenda.prices)

    def copied(self, study: Study, storage: BaseStorage) -> Ledger:
        """A ledger of the same trials for another form of the study; those being trained wait there.

        Args:
            study: The form, of another name or with other limits.
            storage: A database that only this process knows.
        """
        for kind in KINDS:
            directions = self._studies[kind].directions
            copy = optuna.create_study(
                storage=storage, study_name=_name(study, kind), directions=directions, load_if_exists=True
            )
            for trial in self.storage.get_all_trials(self._studies[kind]._study_id):
                if trial.state == TrialState.RUNNING:
                    trial.state = TrialState.WAITING
                copy.add_trial(trial)
        return Ledger.create(study, None, storage, self.fingerprint)

    @property
    def fingerprint(self) -> str:
        """The data's that the study began with."""
        return str(self._studies["search"].user_attrs["data"])

    def check_data(self, fingerprint: str) -> None:
        """Hold the study to the data that it began with.

        Raises:
            ValueError: The text or the tokenizer has changed since.
        """
        before = self.fingerprint
        if before != fingerprint:
            raise ValueError(
                f"{self.study.config.name}: its data has changed since it began (fingerprint {before} became "
                f"{fingerprint}): give the study another name"
            )

    def _check_unchanged(self) -> None:
        """Hold the study to the file that it began with, wherever its folder is."""
        name = self.study.config.name
        begun = self._studies["search"].user_attrs.get("study")
        changed = differences(parse_study(begun, name), self.study.config) if begun is not None else []
        if changed:
            raise ValueError(
                f"{name}: a study of this name was begun with other settings ({'; '.join(changed)}): "
                "give this one another name"
            )

    @_repeated
    def remember(self, name: str, value: Any) -> None:
        """Note something about the whole study, unless it was noted before."""
        with self._lock:
            if self.recall(name) is None:
                self.storage.set_study_system_attr(
                    self._studies["search"]._study_id, f"nasgrow:{name}", value
                )

    def recall(self, name: str) -> Any:
        """What was noted about the whole study; None if nothing was."""
        noted = self.storage.get_study_system_attrs(self._studies["search"]._study_id)
        return noted.get(f"nasgrow:{name}")

    def optuna_study(self, kind: Kind) -> optuna.Study:
        """The Optuna study behind one kind of trial."""
        return self._studies[kind]

    def ended_trials(self, kind: Kind) -> Sequence[FrozenTrial]:
        """All trials of a kind that were completed or given up, but those that others stand for."""
        return self._studies[kind].parted().ended

    def trials(self, kind: Kind) -> list[FrozenTrial]:
        """All trials of a kind but those that others stand for: their worker died, or they were taken up."""
        return alive(self._studies[kind].get_trials(deepcopy=False) if kind in self._studies else [])

    @property
    def planned(self) -> int | None:
        """How many trials of the search there will be, where that can be told."""
        return self._agenda.planned

    def counts(self, trial: FrozenTrial) -> bool:
        """Whether a trial is one of so many that a study asks for: branches that a tree left are not."""
        return self._agenda.counts(trial)

    @_repeated
    def claim(self, kinds: Sequence[Kind] = KINDS, prices: Prices | None = None) -> Claim | None:
        """Take the next trial of these kinds, in their order; None if there is nothing to take now.

        Args:
            kinds: The kinds.
            prices: What points would cost: of several that wait, the one comes first of which the most is
                trained already.
        """
        self._agenda.prices = prices
        for kind in kinds:
            # Who found nothing does not keep others out to look again. Under the lock all is read anew.
            if kind not in self._studies or (kind in self._idle and not self._anything(kind)):
                continue
            with self._lock:
                # A dead worker's trial is counted out and offered again under one lock: nobody sees half.
                storages.release_stale(self._studies[kind])
                trial_id = self._next(prices) if kind == "search" else self._take(kind)
            if trial_id is not None:
                self._idle.discard(kind)
                return Claim(kind, self._trial(kind, trial_id))
            self._idle.add(kind)
        return None

    def release_stale(self) -> None:
        """Offer the trials of workers that died or sleep again, unless the ledger is being changed just now.

        Claiming does so too; but a worker that waits for another's run claims nothing.
        """
        try:
            with self._lock.if_free():
                for study in self._studies.values():
                    storages.release_stale(study)
        except Busy:
            pass
        except Lost:
            self._forget()

    def ended(self, kinds: Sequence[Kind] = KINDS) -> bool:
        """Whether nothing of these kinds is left to do, now or later."""
        return not any(self._anything(kind) and not self._at_a_loss(kind) for kind in kinds)

    def offers(self, kinds: Sequence[Kind] = KINDS) -> bool:
        """Whether something of these kinds can be claimed now."""
        return any(self._offered(kind) and not self._at_a_loss(kind) for kind in kinds)

    def _anything(self, kind: Kind) -> bool:
        """Whether something of a kind is to be done or being done."""
        if kind not in self._studies:
            return False
        live = self._studies[kind].parted().live
        return any(trial.state == TrialState.RUNNING for trial in live) or self._offered(kind)

    def _at_a_loss(self, kind: Kind) -> bool:
        """Whether nothing of a kind will ever be found to do, although nobody knows that there is nothing."""
        return kind == "search" and self._agenda.at_a_loss()

    def _offered(self, kind: Kind) -> bool:
        if kind == "search":
            return self._agenda.offers()
        return kind in self._studies and bool(waiting(self._studies[kind].parted().live))

    @_repeated
    def queue_confirmations(self, candidates: Iterable[str], seeds: Sequence[int]) -> None:
        """Ask for each candidate to be trained with each seed, unless that was asked for before."""
        # Before the transaction: finding out that the study is there would break it.
        name = _name(self.study, "confirmation")
        optuna.create_study(storage=self.storage, study_name=name, load_if_exists=True)
        self._studies["confirmation"] = OnceStudy(name, self.storage)
        with self._lock:
            there = {
                (trial.user_attrs[CANDIDATE], trial.user_attrs[SEED]) for trial in self.trials("confirmation")
            }
            for candidate, seed in product(candidates, seeds):
                if (candidate, seed) not in there:
                    asked_for = {CANDIDATE: candidate, SEED: seed}
                    self._studies["confirmation"].enqueue_trial({}, user_attrs=asked_for)

    def give_back(self, claim: Claim) -> None:
        """Offer a trial again that could not be finished; it keeps its parameters."""
        with suppress(UpdateFinishedTrialError):  # it was taken for dead, and is offered already
            self.storage.set_trial_state_values(claim.trial._trial_id, TrialState.WAITING)

    @_repeated
    def count_out(self, claim: Claim) -> bool:
        """Take a trial that could not be trained for one whose worker died; whether it is offered again."""
        with suppress(UpdateFinishedTrialError), self._lock:  # it was taken for dead, and is offered already
            storages.count_out(self._studies[claim.kind], claim.trial._trial_id)
        return len(self.retried(claim.trial)) < storages.RETRIES

    def tell(self, claim: Claim, values: Sequence[float] | None) -> None:
        """Close a trial: with its values, or without where it was given up early."""
        state = TrialState.COMPLETE if values is not None else TrialState.PRUNED
        try:
            self._studies[claim.kind].close(claim.trial, values, state)
        except (UpdateFinishedTrialError, ValueError):
            if not self.storage.get_trial(claim.trial._trial_id).state.is_finished():
                raise
            return  # it was taken for dead; whoever has it now finds the run finished
        if claim.kind == "baseline":
            self._follow(str(claim.trial.params[SIZE]))

    @_repeated
    def _follow(self, size: str) -> None:
        """Queue what follows from a baseline's result."""
        with self._lock:
            self._extend(size)

    def size_of(self, trial: Trial) -> tuple[Size, float]:
        """The fixed size and the learning rate of a baseline."""
        offered = {size.name: size for size in baselines(self.study)}
        name = trial.suggest_categorical(SIZE, list(offered))
        return offered[name], trial.suggest_float(PEAK, LOWEST, HIGHEST, log=True)

    def retried(self, trial: Trial) -> list[int]:
        """The numbers that a trial had before, whose workers died."""
        frozen = self.storage.get_trial(trial._trial_id)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            return RetryHeartbeatStaleTrialCallback.retry_history(frozen)

    def taken_up(self, trial: Trial) -> list[int]:
        """The numbers that a trial had before, when it was given up early."""
        return taken_up(self.storage.get_trial(trial._trial_id))

    def _trial(self, kind: Kind, trial_id: int) -> Trial:
        study = self._studies[kind]
        storages.own(self.storage, trial_id)
        number = self.storage.get_trial(trial_id).number
        chosen = self.study.config.sampler if kind == "search" else Sampler(kind="random")
        study.sampler = make_sampler(chosen, trial_seed(study.study_name, number))
        return Trial(study, trial_id)

    def _take(self, kind: Kind, prices: Prices | None = None) -> int | None:
        waits = waiting(self._studies[kind].parted().live)
        waits = [trial for trial in waits if taken_up(trial)] or waits
        if prices is not None and len(waits) > 1 and all(map(self._agenda.complete, waits)):
            first = prices.first([asked(trial) for trial in waits], self._agenda.running())
            waits.insert(0, waits.pop(first))
        for trial in waits:
            # First the sign of life: a worker that dies right after taking the trial is noticed too.
            storages.record_heartbeat(self.storage, trial._trial_id)
            try:
                if self.storage.set_trial_state_values(trial._trial_id, TrialState.RUNNING):
                    return trial._trial_id
            except UpdateFinishedTrialError:
                continue
        return None

    def _next(self, prices: Prices | None) -> int | None:
        """Take what the agenda says."""
        study = self._studies["search"]
        match self._agenda.next():
            case None:
                return None
            case Begin(parameters) if parameters is not None:
                return self._train(parameters)
            case Begin():
                study.enqueue_trial({})
            case GoOn(trial):
                study.add_trial(again(trial))
        return self._take("search", prices)

    def parameters(self, trial: Trial) -> dict[str, Any] | None:
        """The parameters of a trial of the search, if all are there; asked one by one they take longer."""
        params = trial.params
        return (
            params
            if self.study.space.declared and self.study.space.settings.keys() <= params.keys()
            else None
        )

    def goes_on(self, trial: FrozenTrial) -> bool:
        """Whether a tree search trains a branch on that has come to a rung."""
        return self._agenda.goes_on(trial)

    def _train(self, parameters: dict[str, Any]) -> int:
        """Take a point of the space that no trial has."""
        study = self._studies["search"]
        new = optuna.create_trial(
            state=TrialState.RUNNING, params=parameters, distributions=self._agenda.distributions
        )
        trial_id = study._storage.create_new_trial(study._study_id, new)
        storages.record_heartbeat(self.storage, trial_id)
        return trial_id

    def _queue_first(self) -> None:
        for size in baselines(self.study):
            for rate in learning_rates(self.study):
                self._queue_baseline(size.name, rate)
            self._extend(size.name)  # a worker may have died between a result and what follows from it
        there = [asked(trial) for trial in self.trials("search")]
        for name, parameters in self.study.space.known.items():
            limit = self.study.config.trials
            if dict(parameters) not in there and (limit is None or len(self.trials("search")) < limit):
                self._studies["search"].enqueue_trial(dict(parameters), user_attrs={"known": name})

    def _queue_baseline(self, size: str, rate: float) -> None:
        """Ask for a baseline, unless it is there; one that was given up with its worker is not."""
        there = [asked(trial) for trial in self.trials("baseline")]
        if not any(one[SIZE] == size and math.isclose(one[PEAK], rate) for one in there):
            self._studies["baseline"].enqueue_trial({SIZE: size, PEAK: rate})

    def _extend(self, size: str) -> None:
        """Once all learning rates of a size were tried: one more, if the best is the first or the last."""
        trials = [trial for trial in self.trials("baseline") if asked(trial)[SIZE] == size]
        if self.study.config.baselines.extended and all(trial.state in ENDED for trial in trials):
            losses = {
                asked(trial)[PEAK]: trial.value if trial.state == TrialState.COMPLETE else None
                for trial in trials
            }
            rate = next_rate(losses, learning_rates(self.study))
            if rate is not None:
                self._queue_baseline(size, rate)


class _Rungs(BasePruner):
    """Gives a branch up at a rung where a tree search would rather train another."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Whether a trial is to be given up."""
        return bool(come_to(study, trial, RUNGS)) and not self._ledger.goes_on(trial)


def _check_ours(study: Study, storage: BaseStorage) -> None:
    """Raise ``ValueError`` if the storage has an Optuna study of the same name that is somebody else's."""
    try:
        study_id = storage.get_study_id_from_name(study.config.name)
    except KeyError:
        return
    count = len(study.config.objectives)
    begun = "study" in storage.get_study_user_attrs(study_id)
    alike = storage.get_study_directions(study_id) == [StudyDirection.MINIMIZE] * count
    if not begun and (not alike or storage.get_n_trials(study_id)):
        raise ValueError(
            f"{study.config.name}: {storages.where(storage)} has a study of this name that nasgrow did not "
            "begin: give this one another name"
        )


def _name(study: Study, kind: Kind) -> str:
    """The name of the Optuna study of a kind."""
    return study.config.name if kind == "search" else f"{study.config.name} ({kind}s)"
