"""Taking trials up again: a trial that was given up goes on as a new one, and counts once.

Optuna's trials cannot change once they are pruned. So whatever goes on is a new trial with the parameters,
the reports and the notes of the old one, which says in an attribute whose place it takes. Every view of this
package leaves the old one out; if the worker of the new one dies too often, the old one counts again.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Container, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import is_

import optuna
from optuna.pruners import BasePruner
from optuna.storages import BaseStorage
from optuna.study._tell import _tell_with_warning
from optuna.trial import FrozenTrial, Trial, TrialState

from nasgrow.search.cache import Cache
from nasgrow.search.database import Database
from nasgrow.search.storage import RETRIES

NOT_ENDED = TrialState.RUNNING, TrialState.WAITING, TrialState.FAIL

ETA = 2
"""Of the trials that came to a rung, one in so many goes on."""

_TAKES_UP = "takes_up"
_RUNG = "rung:"


def taken_up(trial: FrozenTrial) -> list[int]:
    """The numbers of the trials that a trial goes on from, oldest first: they were the same point."""
    return list(trial.user_attrs.get(_TAKES_UP, ()))


def again(trial: FrozenTrial) -> FrozenTrial:
    """A trial to be queued that goes on from one that was given up."""
    return optuna.create_trial(
        state=TrialState.WAITING,
        params=trial.params,
        distributions=trial.distributions,
        user_attrs={**trial.user_attrs, _TAKES_UP: [*taken_up(trial), trial.number]},
        system_attrs=trial.system_attrs,
        intermediate_values=trial.intermediate_values,
    )


@dataclass(frozen=True)
class Parted:
    """The trials of a study, each point once, by what became of them.

    Attributes:
        ended: Those that were completed or given up, by their numbers. It is the same object as before if
            they are the same: whoever works something out for thousands of trials can do it once.
        failed: Those whose worker died.
        live: Those that are being trained, or wait to be.
    """

    ended: Sequence[FrozenTrial]
    failed: Sequence[FrozenTrial]
    live: Sequence[FrozenTrial]


class OnceStudy(optuna.Study):
    """A study that shows every point once: not what another trial goes on from.

    It is asked several times for each trial, so it looks at a trial that has ended once.
    """

    def __init__(self, study_name: str, storage: BaseStorage, pruner: BasePruner | None = None) -> None:
        cached = Cache(storage) if isinstance(storage, Database) else storage
        super().__init__(study_name, cached, pruner=pruner)
        self._settled = 0
        self._gone: set[int] = set()
        self._parted: tuple[Hashable, Parted] | None = None

    def _get_trials(
        self,
        deepcopy: bool = True,
        states: Container[TrialState] | None = None,
        use_cache: bool = False,
    ) -> list[FrozenTrial]:
        if states is not None and not any(one in states for one in NOT_ENDED):
            found = [one for one in self.parted().ended if one.state in states]
            return copy.deepcopy(found) if deepcopy else found
        every = super()._get_trials(deepcopy=False, use_cache=use_cache)
        gone = self._taken_up(every)
        # A trial's number is its place.
        found = [
            one
            for place, one in enumerate(every)
            if (states is None or one.state in states) and place not in gone
        ]
        return copy.deepcopy(found) if deepcopy else found

    def close(self, trial: Trial, values: Sequence[float] | None, state: TrialState) -> None:
        """Tell a trial's values or that it has none: Optuna's ``tell``, which would copy the whole trial."""
        _tell_with_warning(self, trial, values, state)

    def parted(self) -> Parted:
        """The trials by what became of them."""
        every = super()._get_trials(deepcopy=False)
        gone = self._taken_up(every)
        last = every[self._settled :]
        live = [one for one in last if not one.state.is_finished()]
        known = self._settled, tuple(one.number for one in last if one.state.is_finished()), len(gone)
        if self._parted is None or self._parted[0] != known:
            failed: list[FrozenTrial] = []
            ended: list[FrozenTrial] = []
            fail = TrialState.FAIL  # looking it up takes longer than comparing with it
            others = {one.number for one in live} | gone
            for place, one in enumerate(every):  # a trial's number is its place
                if place not in others:
                    (failed if one.state is fail else ended).append(one)
            before = () if self._parted is None else self._parted[1].ended
            same = len(before) == len(ended) and all(map(is_, before, ended))
            self._parted = known, Parted(before if same else tuple(ended), tuple(failed), ())
        return replace(self._parted[1], live=live)

    def _taken_up(self, every: Sequence[FrozenTrial]) -> set[int]:
        """The numbers of trials in whose place others are; of the first that all ended it is known."""
        while self._settled < len(every) and every[self._settled].state.is_finished():
            self._gone.update(_replaced(every[self._settled]))
            self._settled += 1
        live = every[self._settled :]
        return self._gone.union(*map(_replaced, live)) if live else self._gone


def _replaced(trial: FrozenTrial) -> list[int]:
    """The numbers of trials in whose place a trial is."""
    return taken_up(trial) if trial.state != TrialState.FAIL else []


def left_early(trial: FrozenTrial) -> bool:
    """Whether a trial was given up and could go on: one that diverged could not."""
    return trial.state == TrialState.PRUNED and trial.user_attrs.get("status") == "pruned"


def given_up(trials: Iterable[FrozenTrial]) -> set[int]:
    """The numbers of the trials that cannot be taken up: every attempt ended with its worker's death."""
    deaths = Counter(number for one in trials if one.state == TrialState.FAIL for number in taken_up(one))
    return {number for number, count in deaths.items() if count > RETRIES}


def left_alone(trials: Iterable[FrozenTrial]) -> list[FrozenTrial]:
    """Those of a study's trials that were given up and can be taken up."""
    trials = list(trials)
    never = given_up(trials)
    return [one for one in trials if left_early(one) and one.number not in never]


def come_to(study: optuna.Study, trial: FrozenTrial, rungs: Sequence[int]) -> dict[int, float]:
    """The rungs that a trial has come to since it was last asked, by place, and its loss; they are noted."""
    step = trial.last_step
    if step is None:
        return {}
    loss, noted = trial.intermediate_values[step], trial.system_attrs
    new = [place for place, rung in enumerate(rungs) if step >= rung and _RUNG + str(place) not in noted]
    for place in new:
        study._storage.set_trial_system_attr(trial._trial_id, _RUNG + str(place), loss)
    return dict.fromkeys(new, loss)


class Halving(BasePruner):
    """Asynchronous successive halving with promotion (Li et al. 2020, algorithm 2).

    Rungs are at the first step and at each power of ``ETA`` times it. A trial that comes to a rung goes on if
    it is in the best ``1 / ETA`` of those that did so far, or the best of all while they are fewer. One that
    was given up there is taken up once it is among them, because others came that are worse.

    Args:
        first: The step of the first rung.
        last: The step at which a trial ends.
    """

    def __init__(self, first: int, last: int) -> None:
        self._rungs = []
        while first < last:
            self._rungs.append(first)
            first *= ETA

    def prune(self, study: optuna.Study, trial: FrozenTrial) -> bool:
        """Whether a trial is to be given up at the rung that it has come to."""
        new = come_to(study, trial, self._rungs)
        if not new:
            return False
        others = [one for one in study.get_trials(deepcopy=False) if one.number != trial.number]
        return any(loss > _bar([*_losses(others, place), loss]) for place, loss in new.items())

    def promotable(self, trials: Sequence[FrozenTrial]) -> FrozenTrial | None:
        """The trial to take up: of the highest rung where there is one the best."""
        alone = left_alone(trials)
        for place in reversed(range(len(self._rungs))):
            last, beyond = (_RUNG + str(rung) for rung in (place, place + 1))
            here = [one for one in alone if last in one.system_attrs and beyond not in one.system_attrs]
            best = min(here, key=lambda one: float(one.system_attrs[last]), default=None)
            if best is not None and best.system_attrs[last] <= _bar(_losses(trials, place)):
                return best
        return None


def _losses(trials: Iterable[FrozenTrial], place: int) -> list[float]:
    """The losses of trials at a rung, each that came to it; a dead worker's trial is another's now."""
    name = _RUNG + str(place)
    alive = [one.system_attrs for one in trials if one.state != TrialState.FAIL]
    return [float(attributes[name]) for attributes in alive if name in attributes]


def _bar(losses: list[float]) -> float:
    """The largest loss that goes on."""
    return sorted(losses)[max(1, len(losses) // ETA) - 1]
