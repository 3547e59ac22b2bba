"""Forecasts: what a study will cost, before it runs; or what is left of one that has begun.

The study is played without training: its own ledger, in memory, gives out baselines and trials until its
limits are reached; each run is charged as it would be, and executes what no run before it left in the store
of states. Nobody knows yet which points a sampler will choose, how early a pruner will give trials up and how
far learning rates of baselines are tuned. So points are drawn at random, several times, and each draw is
played twice: with the least that may be trained, and with the most, for which every trial goes on that was
given up and may yet be taken up. The most of a tree is what whole trials execute that share nothing: whatever
branches it leaves, it ends there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import log
from typing import Any

from optuna.storages import InMemoryStorage
from optuna.trial import FrozenTrial, TrialState

from nasgrow.schedule import Schedule
from nasgrow.search.baselines import PEAK, learning_rates
from nasgrow.search.config import Pruner, Sampler
from nasgrow.search.grid import Grid
from nasgrow.search.ledger import KINDS, Claim, Kind, Ledger
from nasgrow.search.passage import Paces, Passage
from nasgrow.search.prices import Trained
from nasgrow.search.replay import before_it_went_on
from nasgrow.search.spaces import Point
from nasgrow.search.storage import quiet
from nasgrow.search.study import Study
from nasgrow.search.taking_up import again, left_alone
from nasgrow.search.trunks import trunk_times
from nasgrow.strict import with_prefix
from nasgrow.training.run import Run

DRAWS = 10
"""How often points are drawn."""

TRIALS, STEPS = 2_000, 100_000_000
"""Trials and steps of runs, after which no further draw is begun: each is looked at, which takes a moment."""

MOST_TRIALS, MOST_STEPS = 5_000, 1_000_000_000
"""What no forecast looks at: it would take minutes, or for ever."""


def foreknown(study: Study) -> bool:
    """Whether the points are known before the study is run: they depend on nothing that comes out.

    Random draws do where trials are taken up again, which use up numbers; so does a grid that is not tried
    whole, because its cheapest points come first.
    """
    config = study.config
    if config.sampler.kind == "random":
        return config.pruner.kind != "halving"
    return config.sampler.kind == "grid" and (
        config.trials is None or config.trials >= len(Grid(study.space))
    )


@dataclass
class Work:
    """What the trials of a kind come to.

    Attributes:
        trials: How many.
        runs: Their runs, one for each seed.
        charged: FLOPs billed.
        executed: FLOPs that machines spend.
        seconds: The time of one worker that did all of it; None if that is not known.
    """

    trials: int = 0
    runs: int = 0
    charged: int = 0
    executed: int = 0
    seconds: float | None = None

    def __add__(self, other: Work) -> Work:
        seconds = None if self.seconds is None or other.seconds is None else self.seconds + other.seconds
        return Work(
            self.trials + other.trials,
            self.runs + other.runs,
            self.charged + other.charged,
            self.executed + other.executed,
            seconds,
        )


@dataclass
class Course:
    """One way that the rest of a study may go.

    Attributes:
        whole: Whether it trains the most that it may: no trial given up, every size tuned as far as may be.
        work: What is left to do of each kind.
        states: The bytes of each state that is stored.
    """

    whole: bool
    work: dict[Kind, Work]
    states: dict[str, int] = field(default_factory=dict)

    @property
    def total(self) -> Work:
        """All kinds together."""
        return self.work["baseline"] + self.work["search"]


@dataclass(frozen=True)
class Forecast:
    """What a study costs.

    Attributes:
        study: The study.
        done: What has ended of each kind.
        draws: How often points were drawn: once, where it is known what the sampler will choose.
        courses: Ways that the rest may go.
        recorded: The kinds whose time is that of the study's own trials.
    """

    study: Study
    done: Mapping[Kind, Work]
    draws: int
    courses: Sequence[Course]
    recorded: Sequence[Kind]

    def between(self, told: Callable[[Course], float | None]) -> tuple[float, float] | None:
        """The least and the most of something over all courses; None if one does not tell it."""
        values = [value for value in map(told, self.courses) if value is not None]
        return (min(values), max(values)) if len(values) == len(self.courses) else None


@dataclass(frozen=True)
class Assumed:
    """What a forecast goes by.

    Attributes:
        fingerprint: The data's; empty if it is not prepared, so that nothing stored can be of it.
        environment: What the bits of a result depend on besides the run, as a worker will have it.
        trained: What is trained already.
        paces: Measures how long steps take, and remembers it; None leaves times out.
    """

    fingerprint: str
    environment: Mapping[str, Any]
    trained: Trained
    paces: Callable[[], Paces] | None


def forecast(study: Study, begun: Ledger | None, assumed: Assumed) -> Forecast:
    """Say what a study will cost.

    Args:
        study: The study.
        begun: Its ledger, if it has begun.
        assumed: What to go by.

    Raises:
        ValueError: The study has no limit but time, and nobody knows how long anything takes; or it has too
            many trials or steps to be played.
    """
    config = study.config
    endless = config.trials is None and config.total_flops is None and config.sampler.kind != "grid"
    done = {kind: _done(begun, kind) for kind in KINDS}
    pace = {kind: _pace(done[kind]) for kind in KINDS}
    if endless and assumed.paces is None and pace["search"] is None:
        raise ValueError(
            f"{config.name}: hours is its only limit: how many trials that allows takes to measure a step"
        )
    known = foreknown(study)
    tree = config.sampler.kind == "tree"
    open_ends = tree or config.pruner.kind != "none" or config.baselines.extended
    left = 0 if begun is None else sum(not begun.counts(trial) for trial in begun.trials("search"))
    # A tree may end before its limits, when it has begun every point: the form that is played would go on.
    ended = begun is not None and begun.ended(("search",))
    kinds: Sequence[Kind] = ("baseline",) if ended else KINDS
    left_to_try = 0 if ended or config.trials is None else config.trials - done["search"].trials
    if left_to_try > MOST_TRIALS:
        raise ValueError(f"{config.name}: trials: a plan plays at most {MOST_TRIALS:,}, not {left_to_try:,}")
    runs = _Runs(study, assumed)
    courses: list[Course] = []
    draws = 0
    with quiet():
        while draws < (1 if known else DRAWS) and (not draws or _few(courses, runs.steps)):
            form = _form(study, None if known else draws, left)
            draws += 1
            for whole in (False, True) if open_ends else (True,):
                storage = InMemoryStorage()
                if begun is None:
                    ledger = Ledger.create(form, None, storage, assumed.fingerprint)
                else:
                    ledger = begun.copied(form, storage)
                player = _Player(ledger, runs, assumed, pace, whole, whole and tree, kinds)
                if whole and config.pruner.kind == "halving":
                    player.take_up()
                courses.append(with_prefix(config.name, player.play))
    return Forecast(study, done, draws, courses, [kind for kind in KINDS if pace[kind] is not None])


def _few(courses: Sequence[Course], steps: int) -> bool:
    """Whether so little was played that there is time for more."""
    return sum(course.total.trials for course in courses) < TRIALS and steps < STEPS


def _form(study: Study, draw: int | None, left: int) -> Study:
    """The study as it is played: points at random, no pruner that would want losses.

    Branches that a tree has left count there, so that there may be as many more.
    """
    config = study.config
    changes: dict[str, Any] = {"pruner": Pruner(kind="none")}
    if draw is not None:
        changes |= {"sampler": Sampler(kind="random"), "name": f"{config.name}-{draw}"}
        changes |= {"trials": None if config.trials is None else config.trials + left}
    return replace(study, config=config.model_copy(update=changes))


def _done(begun: Ledger | None, kind: Kind) -> Work:
    """What has ended of a kind."""
    work = Work(seconds=0.0)
    for trial in [] if begun is None else begun.trials(kind):
        if trial.state in (TrialState.COMPLETE, TrialState.PRUNED):
            one = _ended(trial)
            work += one if begun is not None and begun.counts(trial) else replace(one, trials=0)
    return work


def _ended(trial: FrozenTrial) -> Work:
    """What a trial that has ended came to."""
    told = trial.user_attrs
    return Work(1, len(told["runs"]), told["charged"], told["executed"], told["seconds"])


def _pace(done: Work) -> float | None:
    """Seconds for each executed FLOP, as trials that have ended took them."""
    return done.seconds / done.executed if done.seconds and done.executed else None


class _Runs:
    """The passages of points, each found once."""

    def __init__(self, study: Study, assumed: Assumed) -> None:
        self._study, self._assumed = study, assumed
        self._times = () if study.config.trunks is None else trunk_times(study.space)
        self._pruner = study.config.pruner
        self._known: dict[Hashable, list[Passage]] = {}
        self.steps = 0

    def of(self, point: Point, times: float = 1.0) -> list[Passage]:
        """The runs of a point, one for each seed; ``times`` is their budget as a multiple of the study's."""
        named = point.key, times
        if named not in self._known:
            self._known[named] = [self._passage(point, times, seed) for seed in self._study.config.seeds]
        return self._known[named]

    def _passage(self, point: Point, times: float, seed: int) -> Passage:
        config = self._study.run(point.schedule, point.training, seed, times)
        run = Run.resolve(config, vocab=self._study.final.vocab, fingerprint=self._assumed.fingerprint)
        self.steps += run.stages[-1].end
        if self.steps > MOST_STEPS:
            raise ValueError(
                f"budget: {self._study.budget:.3g} FLOPs a run are too many to be planned: a plan looks at "
                f"{MOST_STEPS:.0e} steps at most, of all runs"
            )
        return Passage.of(run, self._times, self._assumed.environment, self._pruner)


class _Player:
    """Plays one course.

    Args:
        ledger: A ledger of the study's form, in memory.
        runs: The passages of points.
        assumed: What to go by.
        pace: Seconds for each executed FLOP, where trials have ended.
        whole: Whether the most is trained.
        alone: Whether trials of the search share nothing.
        kinds: What is left to be trained.
    """

    def __init__(
        self,
        ledger: Ledger,
        runs: _Runs,
        assumed: Assumed,
        pace: Mapping[Kind, float | None],
        whole: bool,
        alone: bool,
        kinds: Sequence[Kind],
    ) -> None:
        self._ledger, self._runs, self._assumed, self._pace = ledger, runs, assumed, pace
        self._alone, self._kinds = alone, kinds
        self._course = Course(whole, {kind: Work(seconds=0.0) for kind in KINDS})
        self._ended: set[str] = set()
        self._rates = learning_rates(ledger.study)
        self._left: dict[int, Work] = {}

    def take_up(self) -> None:
        """Let every trial go on that was given up, as each may."""
        study = self._ledger.optuna_study("search")
        for trial in left_alone(study.get_trials(deepcopy=False)):
            self._left[trial.number] = _ended(trial)
            study.add_trial(again(trial))

    def play(self) -> Course:
        """Train, so to speak, until the study has ended."""
        while (claim := self._ledger.claim(self._kinds)) is not None:
            if self._course.work["search"].trials >= MOST_TRIALS:
                raise ValueError(f"its limits allow more than {MOST_TRIALS:,} trials, the most of a plan")
            work, values = self._baseline(claim) if claim.kind == "baseline" else self._search(claim)
            before = before_it_went_on(claim, self._ledger)
            told = {"charged": work.charged, "executed": work.executed + before.get("executed", 0)}
            told["seconds"] = (work.seconds or 0.0) + before.get("seconds", 0.0)
            for name, value in told.items():
                claim.trial.set_user_attr(name, value)
            self._ledger.tell(claim, values)
            for number in self._ledger.taken_up(claim.trial):
                counted = self._left.get(number, Work())  # it is among what is done
                work = replace(
                    work,
                    trials=work.trials - counted.trials,
                    runs=work.runs - counted.runs,
                    charged=work.charged - counted.charged,
                )
            self._course.work[claim.kind] += work
        return self._course

    def _baseline(self, claim: Claim) -> tuple[Work, list[float]]:
        size, rate = self._ledger.size_of(claim.trial)
        passages = self._runs.of(Point(Schedule(size.shape), {PEAK: rate}), size.times)
        # The most: the highest rate is always the best, so that a higher one is tried. The least: one in the
        # middle is, and none that is tried yet is better than one that has been.
        middle = self._rates[len(self._rates) // 2]
        loss = -1e9 - log(rate) if self._course.whole else 1e9 + abs(log(rate / middle))
        return self._train(claim.kind, passages), [loss]

    def _search(self, claim: Claim) -> tuple[Work, list[float] | None]:
        study = self._ledger.study
        first, *others = self._runs.of(study.space.sample(claim.trial))
        given_up = not self._course.whole and not self._ends(first.run.identity)
        if given_up and first.stop is not None:
            return self._train(claim.kind, [first], until=first.stop), None
        # Of a trial that was given up, one run was begun, and its state is kept.
        begun = before_it_went_on(claim, self._ledger).get("charged", 0)
        return self._train(claim.kind, [first, *others], begun=begun), [0.0] * len(study.config.objectives)

    def _train(
        self, kind: Kind, passages: Sequence[Passage], until: int | None = None, begun: int = 0
    ) -> Work:
        """Charge runs, to their end or until one is given up; store what they leave.

        Args:
            kind: The trial's.
            passages: Its runs.
            until: The FLOPs charged where the first is given up.
            begun: The FLOPs until which the first was trained before.
        """
        work = Work(trials=1, seconds=0.0)
        for index, passage in enumerate(passages):
            end = passage.charged if until is None else until
            spared = end if self._known(kind, passage) else min(end, self._spared(kind, passage))
            spared = max(spared, 0 if index else begun)
            work += Work(0, 1, end, end - spared, self._seconds(kind, passage, spared, end))
            for fork in passage.forks:
                if fork.charged <= end and (fork.kept or fork.charged == until) and not self._holds(fork.key):
                    self._course.states[fork.key] = passage.state_bytes(fork)
            if until is None:
                self._ended.add(passage.run.identity)
        return work

    def _known(self, kind: Kind, passage: Passage) -> bool:
        """Whether the result of a run is there."""
        identity = passage.run.identity
        if self._alone and kind == "search":
            return self._assumed.trained.ended(identity)
        return self._ends(identity)

    def _spared(self, kind: Kind, passage: Passage) -> int:
        if self._alone and kind == "search":
            return 0
        return next((fork.charged for fork in reversed(passage.forks) if self._holds(fork.key)), 0)

    def _holds(self, key: str) -> bool:
        return key in self._course.states or self._assumed.trained.holds(key)

    def _ends(self, identity: str) -> bool:
        return identity in self._ended or self._assumed.trained.ended(identity)

    def _seconds(self, kind: Kind, passage: Passage, begin: int, end: int) -> float | None:
        """The time that the study's own trials took so far, or that of steps as they were measured."""
        pace = self._pace[kind]
        if pace is not None:
            return pace * (end - begin)
        return None if self._assumed.paces is None else passage.seconds(begin, end, self._assumed.paces())
