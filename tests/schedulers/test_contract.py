"""What every scheduler promises, whatever it decides by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pytest

from nasgrow.schedulers.base import Resume, Scheduler, Start
from nasgrow.schedulers.baselines import BaselineScheduler
from nasgrow.schedulers.listed import FixedScheduler, confirmations
from nasgrow.schedulers.make import make_scheduler
from nasgrow.study.baselines import final_size
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import Kind, TrialRecord
from tests.schedulers.playing import Play, small_study

LISTED = [Start({"start": 0.5, "at.1": at, "at.2": 0.55}) for at in (0.4, 0.1, 0.25)]


@dataclass(frozen=True)
class Case:
    """A scheduler to test.

    Attributes:
        changes: What its study says that others do not.
        make: Makes it from a study and records.
        kind: The kind of trials that it decides over.
        is_search: Whether it searches: from the study's known schedules on, and up to its limit.
        repeats: Whether it may suggest a point twice.
        pauses: Whether it pauses trials.
        counts_paused: Whether paused trials count as trials of the study.
    """

    changes: Mapping[str, Any] = field(default_factory=dict)
    make: Callable[[ResolvedStudy, Mapping[int, TrialRecord]], Scheduler] = make_scheduler
    kind: Kind = "search"
    is_search: bool = True
    repeats: bool = False
    pauses: bool = False
    counts_paused: bool = True

    @cached_property
    def played(self) -> Play:
        """A whole search."""
        play = self.play()
        play.run()
        return play

    def play(self, **settings: Any) -> Play:
        """A search to be played."""
        return Play(small_study(**self.changes), self.make, self.kind, checked=True, **settings)


def sampled(kind: str, **changes: Any) -> Case:
    pauses = changes.get("pruner") == {"kind": "asha"}
    return Case({"sampler": {"kind": kind, "startup": 4}, **changes}, repeats=True, pauses=pauses)


ASHA = {"pruner": {"kind": "asha"}}
CASES = {
    "grid": Case({"sampler": {"kind": "grid"}, "trials": None}),
    "grid with a limit": Case({"sampler": {"kind": "grid"}}),
    "random": sampled("random"),
    "tpe": sampled("tpe"),
    "tpe in Python": sampled("tpe", space={"python": "tests.schedulers.own_space:grown"}),
    "tpe, two objectives": sampled("tpe", objectives=["loss", "parameters"]),
    "gp": sampled("gp", trials=8),
    "nsga-ii": sampled("nsga-ii", objectives=["loss", "inference_flops"]),
    "asha, random": sampled("random", **ASHA),
    "asha, tpe": sampled("tpe", **ASHA),
    "asha, tpe in Python": sampled("tpe", space={"python": "tests.schedulers.own_space:grown"}, **ASHA),
    "asha, grid": Case({"sampler": {"kind": "grid"}, "trials": None, **ASHA}, pauses=True),
    "tree": Case({"sampler": {"kind": "tree"}}, pauses=True, counts_paused=False),
    "listed": Case(make=lambda study, trials: FixedScheduler(study, trials, LISTED), is_search=False),
    "baselines": Case(
        make=lambda study, trials: BaselineScheduler(study, trials, [final_size(study)], {}),
        changes={"tune": {"learning_rate.peak": ["x0.25", "x0.5", "x1", "x2"]}},
        kind="baseline",
        is_search=False,
    ),
    "confirmations": Case(
        make=lambda study, trials: FixedScheduler(study, trials, confirmations(["search 0"], [5, 6, 7])),
        kind="confirmation",
        is_search=False,
    ),
}
"""A new scheduler gets a line here."""


@pytest.fixture(params=CASES.values(), ids=list(CASES))
def case(request: pytest.FixtureRequest) -> Case:
    found: Case = request.param
    return found


class TestContract:
    """The player itself checks that records are left alone, and that only paused trials are resumed."""

    def test_a_search_ends_and_suggests_points_of_the_space(self, case: Case) -> None:
        play = case.played
        assert play.trials
        assert play.suggest() is None
        settings = play.study.space.settings if case.kind == "search" else {}
        for trial in play.trials.values():
            for name, setting in settings.items():
                setting.accept(trial.parameters[name])
        assert {trial.status for trial in play.trials.values()} <= {"finished", "paused"}

    def test_no_more_trials_start_than_the_study_asks_for(self, case: Case) -> None:
        play = case.played
        limit = play.study.config.trials
        if case.is_search and limit is not None:
            counted = [one for one in play.trials.values() if case.counts_paused or one.status != "paused"]
            assert len(counted) == limit

    def test_known_schedules_start_first_with_their_names(self, case: Case) -> None:
        play = case.play(workers=1)
        if not case.is_search:
            return
        known = play.study.space.known
        play.run(starts=len(known) + 1)
        started = [(trial.name, trial.parameters) for trial in play.trials.values()]
        assert started[: len(known)] == list(known.items())
        assert started[-1][0] is None

    def test_no_point_is_tried_twice_where_every_point_is_tried(self, case: Case) -> None:
        play = case.played
        tried = [tuple(sorted(trial.parameters.items())) for trial in play.trials.values()]
        assert case.repeats or len(set(tried)) == len(tried)

    def test_it_ends_whatever_becomes_of_trials(self, case: Case) -> None:
        play = case.play(odd=True)
        play.run()
        assert play.suggest() is None

    @pytest.mark.parametrize("status", ["diverged", "failed", "pruned"])
    def test_it_goes_on_when_no_trial_comes_to_anything(self, case: Case, status: str) -> None:
        play = case.play()
        for _ in range(6):
            suggestion = play.suggest()
            if suggestion is None:
                break
            assert isinstance(suggestion, Start)
            play.act(suggestion)
            play.trials[len(play.trials) - 1].status = status  # type: ignore[assignment]
        assert len(play.trials) >= min(6, len(LISTED))

    def test_a_scheduler_rebuilt_from_records_goes_on_like_the_one_before(self, case: Case) -> None:
        play = case.play(odd=case.is_search)  # the others start failed trials again
        for starts in (1, 2, 4, 6):
            play.run(starts)
            again = play.make(play.study, dict(play.trials)).suggest()
            assert again == play.suggest()
            if isinstance(again, Start) and not case.repeats:
                assert again.parameters not in [trial.parameters for trial in play.trials.values()]

    def test_a_scheduler_may_be_rebuilt_before_every_decision(self, case: Case) -> None:
        once, always = case.play(workers=1), case.play(workers=1, rebuilt=True)
        once.run(starts=8)
        always.run(starts=8)
        assert always.trials == once.trials

    def test_trials_left_running_by_an_earlier_driver_are_not_resumed(self, case: Case) -> None:
        play = case.play(workers=4)
        for _ in range(3):
            suggestion = play.suggest()
            assert isinstance(suggestion, Start)
            play.act(suggestion)
        rebuilt = play.make(play.study, play.trials)
        assert not isinstance(rebuilt.suggest(), Resume)

    def test_suggestions_differ(self, case: Case) -> None:
        """A sampler whose seed is the same for each trial would suggest the same point again and again."""
        play = case.played
        tried = {tuple(sorted(trial.parameters.items())) for trial in play.trials.values()}
        assert len(tried) > len(play.trials) / 2

    def test_a_paused_trial_is_resumed_and_finishes(self, case: Case) -> None:
        play = case.play(loss=lambda trial: trial.number / 100)  # the first are best
        play.run()
        assert bool(play.resumed) == case.pauses
        assert any(trial.status == "paused" for trial in play.trials.values()) == case.pauses
        if case.pauses:
            assert any(play.trials[number].status == "finished" for number in play.resumed)
