"""The thrifty sampler and the order of work: what is trained already is used."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
import pytest
from optuna.trial import TrialState

from nasgrow.search.agenda import asked
from nasgrow.search.config import Pruner, Sampler
from nasgrow.search.prices import Prices, Way
from nasgrow.search.replay import replay
from nasgrow.search.samplers import distributions, draw, make_sampler
from nasgrow.search.spaces import Point
from tests.search.asking import space
from tests.search.made import made_table
from tests.search.studies import SPACE, begin_study, write_study

THRIFTY = Sampler(kind="thrifty", startup=5)
SIDES = {
    "kind": "per-dimension",
    "dims": {"hidden": {"start": [1, 0.5]}, "layers": {"start": [1, 0.5]}},
    "times": {"low": 0.1, "high": 0.7, "step": 0.1},
}


def drawn(cost: Any, count: int = 30) -> list[dict[str, Any]]:
    """Points that the sampler draws after 20 trials in which early growth of the hidden size was good."""
    of = distributions(space(SIDES))
    study = optuna.create_study()
    for number in range(20):
        parameters = draw(study, make_sampler(Sampler(kind="random"), number), of)
        loss = parameters["at.hidden"] + 0.01 * number
        study.add_trial(
            optuna.create_trial(state=TrialState.COMPLETE, params=parameters, distributions=of, value=loss)
        )
    return [draw(study, make_sampler(THRIFTY, seed, cost), of) for seed in range(count)]


def test_of_points_that_promise_about_the_same_the_cheaper_is_drawn() -> None:
    def counts(points: list[dict[str, Any]]) -> int:
        return sum(point["start.layers"] == 0.5 for point in points)

    def cost(point: Mapping[str, Any]) -> float:
        return 1.0 if point["start.layers"] == 0.5 else 10.0

    assert counts(drawn(cost)) == 30
    assert counts(drawn(lambda point: 10.0)) < 15


def test_good_points_are_drawn_whatever_they_cost_within_reason() -> None:
    plain = drawn(lambda point: 1.0)
    priced = drawn(lambda point: 1.1 - point["at.hidden"])
    assert all(point["at.hidden"] < 0.45 for point in plain + priced)


def test_equal_costs_change_nothing_and_what_is_known_is_not_drawn() -> None:
    same = drawn(lambda point: 3.0)
    assert same == drawn(lambda point: 7e9)
    assert same == drawn(lambda point: 0.0), "all are known: the most promising, as TPE says"
    of = distributions(space(SIDES))
    for point in drawn(lambda point: 0.0 if point["start.hidden"] == 1 else 5.0):
        assert point.keys() == of.keys()
        assert point["start.hidden"] == 0.5


def test_it_wants_fixed_parameters_and_one_objective(tmp_path: Path, place: Path) -> None:
    with pytest.raises(ValueError, match=r"sampler\.kind thrifty wants one objective"):
        begin_study(write_study(tmp_path, sampler={"kind": "thrifty"}, objectives=["loss", "parameters"]))
    (tmp_path / "own_space.py").write_text("def sample(trial, final): ...\n")
    python = {"python": "own_space:sample"}
    with pytest.raises(ValueError, match=r"sampler\.kind: thrifty wants a space whose parameters"):
        begin_study(write_study(tmp_path, sampler={"kind": "thrifty"}, space=python))


def test_on_a_table_it_executes_less_for_as_many_trials() -> None:
    table = made_table()

    def spent(kind: Any) -> float:
        found = [
            replay(table, seed, sampler=Sampler(kind=kind), pruner=Pruner(kind="none"), trials=30, share=True)
            for seed in range(4)
        ]
        trained = [sum(one.executed) / sum(done > 0 for done in one.executed) for one in found]
        return sum(trained) / table.study.budget / len(found)

    assert spent("thrifty") < 0.9 * spent("tpe"), "budgets for each point that was trained"


class Given:
    """What is trained already, as a test says."""

    def __init__(self, *keys: str) -> None:
        self.keys = set(keys)

    def holds(self, key: str) -> bool:
        return key in self.keys

    def ended(self, identity: str) -> bool:
        return identity in self.keys


def prices(*keys: str) -> Prices:
    """Runs part at half of their way by their start, at 80% by their first time."""

    def ways(point: Point) -> list[Way]:
        start, at = point.schedule.start.hidden, [event.at for event in point.schedule.events]
        return [Way(f"run {start} {at}", ((f"{start}", 50), (f"{start} {at[:1]}", 80)), 100)]

    return Prices(space({**SPACE, "known": {}}), ways, Given(*keys))


WHOLE, EARLY, LATE = ({"start": s, "at.1": at, "at.2": at} for s, at in [(1, 0.3), (0.5, 0.3), (0.5, 0.7)])


def test_a_cost_is_what_is_left_to_train() -> None:
    assert [prices().cost(point) for point in (WHOLE, EARLY, LATE)] == [100, 100, 100]
    assert [prices("32").cost(point) for point in (WHOLE, EARLY, LATE)] == [100, 50, 50]
    assert [prices("32", "32 [0.3]").cost(point) for point in (WHOLE, EARLY, LATE)] == [100, 20, 50]
    assert [prices("run 64 []").cost(point) for point in (WHOLE, EARLY, LATE)] == [0, 100, 100]


def test_the_point_comes_first_of_which_most_is_stored_and_that_need_not_wait() -> None:
    waiting = [WHOLE, EARLY, LATE]
    assert prices().first(waiting, []) == 0
    assert prices("32").first(waiting, []) == 1
    assert prices("32", "32 [0.7]").first(waiting, []) == 2
    assert prices().first(waiting, [WHOLE]) == 1, "it would wait for the one that is trained"
    assert prices("32").first([EARLY, LATE], [EARLY]) == 1, "they have parted already"
    assert prices().first([EARLY, LATE], [EARLY, LATE]) == 0, "all would wait"


@pytest.mark.usefixtures("place")
def test_known_schedules_and_grids_are_taken_in_that_order(tmp_path: Path) -> None:
    known = {"whole": WHOLE, "early": EARLY, "late": LATE}
    path = write_study(tmp_path, space={**SPACE, "known": known}, trials=3)
    _, _, ledger = begin_study(path)
    claims = [ledger.claim(("search",), prices("32", "32 [0.7]")) for _ in known]
    taken = [claim.trial.user_attrs["known"] for claim in claims if claim is not None]
    assert taken == ["late", "early", "whole"]
    path = write_study(tmp_path, "all", space={**SPACE, "known": {}}, trials=2, sampler={"kind": "grid"})
    _, _, ledger = begin_study(path)
    for expected in (LATE, {"start": 1, "at.1": 0.1, "at.2": 0.1}):
        claim = ledger.claim(("search",), prices("32 [0.7]"))
        assert claim is not None
        assert asked(ledger.trials("search")[-1]) == expected
