"""The agenda of a search: what it trains next, and when it is over.

It decides and changes nothing; the ledger does what it says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from nasgrow.search import storage as storages
from nasgrow.search.grid import Grid
from nasgrow.search.prices import Prices
from nasgrow.search.samplers import NEED_TRIAL, distributions, draw, make_sampler, trial_seed
from nasgrow.search.study import Study
from nasgrow.search.taking_up import Halving, OnceStudy, Parted, given_up, left_early, taken_up
from nasgrow.search.tree import Tree
from nasgrow.search.tree.search import Grown

IDLE = 50
"""Without a number of trials, a search ends when so many in a row found only what was trained before."""

ENDED = (TrialState.COMPLETE, TrialState.PRUNED)


@dataclass(frozen=True)
class Take:
    """One of the trials that wait is to be trained."""


@dataclass(frozen=True)
class GoOn:
    """A trial that was given up early is to be taken up again."""

    trial: FrozenTrial


@dataclass(frozen=True)
class Begin:
    """A further point is to be tried; without parameters the sampler is asked for them one by one."""

    parameters: dict[str, Any] | None


class Agenda:
    """The agenda of a study's search.

    Args:
        study: The study.
        known: Its trials of the search.
        prices: What points would cost, as far as that is known.

    Attributes:
        prices: The same.
        distributions: Those of all parameters; none where they are not known before.
    """

    def __init__(self, study: Study, known: OnceStudy, prices: Prices | None = None) -> None:
        self._study, self._known, self.prices = study, known, prices
        self.distributions = distributions(study.space) if study.space.settings else {}
        kind = study.config.sampler.kind
        self._grid = Grid(study.space) if kind == "grid" else None
        self._tree = Tree(study, self._point) if kind == "tree" else None
        self._totals: dict[str, tuple[Sequence[FrozenTrial], float]] = {}

    @property
    def planned(self) -> int | None:
        """How many trials there will be, where that can be told."""
        limits = [self._study.config.trials, None if self._grid is None else len(self._grid)]
        return min((limit for limit in limits if limit is not None), default=None)

    def counts(self, trial: FrozenTrial) -> bool:
        """Whether a trial is one of so many that a study asks for: branches that a tree left are not."""
        return self._tree is None or not left_early(trial)

    def offers(self) -> bool:
        """Whether there is something to train, beside what is being trained."""
        parted = self._known.parted()
        return not self._spent(parted) and (not self._full(parted) or self._again(parted) is not None)

    def at_a_loss(self) -> bool:
        """Whether a tree search finds nothing to train, and nothing is trained that could change that.

        Of a large space nobody knows whether it is exhausted: every point that was drawn may be one that
        killed its workers. Without such points there is always something, and nothing to work out.
        """
        if self._tree is None or self._tree.finite:
            return False
        parted = self._known.parted()
        if parted.live or not self._dead(parted.failed):
            return False
        return self._branch(self._tree, parted) is None

    def next(self) -> Take | GoOn | Begin | None:
        """What to train next: what is to go on or waits, or else one more point, unless there are enough."""
        parted = self._known.parted()
        if self._spent(parted):
            return None
        going_on = self._again(parted)
        if going_on is not None:
            return Take() if going_on.state == TrialState.WAITING else GoOn(going_on)
        if self._full(parted):
            return None
        if waiting(parted.live):
            return Take()
        if self._grid is not None:
            left = self._left(self._grid)
            return Begin(left[0 if self.prices is None else self.prices.first(left, self.running())])
        if self._tree is not None:
            found = self._branch(self._tree, parted)
            if found is None:  # what is being trained may yet show what else is worth it
                return None
            return GoOn(found) if isinstance(found, FrozenTrial) else Begin(dict(found))
        config, known = self._study.config, self._known
        live = config.sampler.kind in NEED_TRIAL or config.pruner.kind == "hyperband"
        if live or not self.distributions:
            return Begin(None)
        cost = None if self.prices is None else self.prices.cost
        sampler = make_sampler(config.sampler, trial_seed(known.study_name, self._number), cost)
        return Begin(draw(known, sampler, self.distributions))

    def goes_on(self, trial: FrozenTrial) -> bool:
        """Whether a tree search trains a branch on that has come to a rung."""
        assert self._tree is not None
        return self._tree.goes_on(self._grown(self._known.parted(), trial), trial)

    def complete(self, trial: FrozenTrial) -> bool:
        """Whether all parameters of a trial are known, as they are not before some samplers are asked."""
        return self._study.space.declared and self.distributions.keys() <= asked(trial).keys()

    def running(self) -> list[dict[str, Any]]:
        """The parameters of the trials that are being trained."""
        running = self._known.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        return [asked(trial) for trial in running if self.complete(trial)]

    @property
    def _number(self) -> int:
        """How many trials there are in all, as far as they are cached."""
        return self._known._storage.get_n_trials(self._known._study_id)

    def _spent(self, parted: Parted) -> bool:
        """Whether nothing more is to be trained, whatever is left."""
        config = self._study.config
        limits = [config.total_flops] if config.total_flops is not None else []
        if self._tree is not None and config.trials is not None:
            # Branches that were left do not count, but with them no more is executed than by whole trials.
            limits.append(float(config.trials * len(config.seeds) * self._study.budget))
        # What a trial has spent stays with it when it is taken up.
        if limits and self._total("executed", parted) >= min(limits):
            return True
        if config.hours is not None and self._total("seconds", parted) >= 3600 * config.hours:
            return True
        if self.planned is not None or len(parted.ended) < IDLE:
            return False
        # Points that were trained before cost nothing: a limit of compute or time would never be reached.
        return not any(trial.user_attrs.get("executed", 0) for trial in parted.ended[-IDLE:])

    def _total(self, what: str, parted: Parted) -> float:
        """What was noted of all trials, added up; of those that ended once."""
        known = self._totals.get(what)
        if known is None or known[0] is not parted.ended:
            known = parted.ended, sum([trial.user_attrs.get(what, 0) for trial in parted.ended])
            self._totals[what] = known
        return known[1] + float(sum(trial.user_attrs.get(what, 0) for trial in parted.live))

    def _full(self, parted: Parted, but: FrozenTrial | None = None) -> bool:
        """Whether no further point of the space is to be tried, or would be if one live trial were not."""
        if but is not None:
            parted = replace(parted, live=[one for one in parted.live if one.number != but.number])
        return self._at_limit(parted) or self._exhausted(parted)

    def _at_limit(self, parted: Parted) -> bool:
        """Whether there are as many trials as the study asks for."""
        limit = self._study.config.trials
        if limit is None or len(parted.ended) + len(parted.live) < limit:
            return False
        begun = [one for one in parted.live if one.state != TrialState.WAITING or taken_up(one)]
        return sum(map(self.counts, [*parted.ended, *begun])) >= limit

    def _exhausted(self, parted: Parted) -> bool:
        """Whether there is a trial of every point."""
        if not all(map(taken_up, waiting(parted.live))):
            return False
        if self._grid is not None and not self._left(self._grid):
            return True
        tree = self._tree
        return tree is not None and tree.finite and tree.exhausted(parted, self._dead(parted.failed))

    def _again(self, parted: Parted) -> FrozenTrial | None:
        """A trial that was given up and is to be taken up before any other is begun, or waits to be."""
        waits = next(filter(taken_up, waiting(parted.live)), None)
        if waits is not None:
            return waits
        if self._tree is not None:
            over = self._at_limit(parted) or not self._exhausted(parted)
            found = None if over else self._branch(self._tree, parted)
            return found if isinstance(found, FrozenTrial) else None
        if isinstance(self._known.pruner, Halving):
            return self._known.pruner.promotable(self._known.get_trials(deepcopy=False))
        return None

    def _left(self, grid: Grid) -> list[dict[str, Any]]:
        """The points of the grid that no trial has, not even one whose workers died too often."""
        return grid.left({trial.number: asked(trial) for trial in self._known.get_trials(deepcopy=False)})

    def _branch(self, tree: Tree, parted: Parted) -> FrozenTrial | Mapping[str, Any] | None:
        """What a tree search trains next."""
        return tree.next(self._grown(parted))

    def _grown(self, parted: Parted, at_rung: FrozenTrial | None = None) -> Grown:
        """The tree so far; in place of a branch that has come to a rung, another may be begun."""
        return Grown(
            ended=parted.ended,
            live=parted.live,
            given_up=given_up(parted.failed),
            dead=self._dead(parted.failed),
            # At its rungs a branch is compared with what it was chosen from.
            number=self._number if at_rung is None else at_rung.number,
            price=None if self.prices is None else self.prices.cost,
            full=self._full(parted, at_rung),
        )

    def _dead(self, failed: Sequence[FrozenTrial]) -> list[dict[str, Any]]:
        """The parameters of points whose every attempt ended with the death of its worker."""
        deaths = Counter(tuple(sorted(asked(one).items())) for one in failed if self.complete(one))
        return [dict(point) for point, count in deaths.items() if count > storages.RETRIES]

    def _point(self, trial: FrozenTrial) -> dict[str, Any] | None:
        """The parameters of a trial, if all are known."""
        return asked(trial) if self.complete(trial) else None


def alive(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Trials but those whose worker died: others stand for them."""
    state = TrialState.FAIL  # looking it up takes longer than comparing with it
    return [trial for trial in trials if trial.state is not state]


def waiting(trials: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """Those of some trials that nobody trains yet."""
    state = TrialState.WAITING
    return [trial for trial in trials if trial.state is state]


def asked(trial: FrozenTrial) -> dict[str, Any]:
    """The parameters of a trial, or those it was queued with if it has not begun."""
    return {**trial.system_attrs.get("fixed_params", {}), **trial.params}
