"""What a study says of itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nasgrow.cli.views import counts
from nasgrow.search.ledger import Ledger
from nasgrow.search.notes import study_note
from nasgrow.search.summary import Baseline, Candidate, Summary, answer, summarise
from tests.search.studies import SPACE, begin_study, write_study
from tests.search.test_ledger import THREE, take

FINAL = Baseline("final", "h=16", loss=2.5, rate=0.006, tried=3, planned=3, best_at_edge=False)
HALF = Baseline("50% of final", "h=8", loss=2.4, rate=0.012, tried=3, planned=3, best_at_edge=False)
GROWN = Candidate(7, loss=2.3, schedule="start h=8; at 0.3: hidden 16", events=1, losses=(2.3,))
SUMMARY = Summary(
    name="tiny",
    seeds=1,
    ended=20,
    planned=20,
    pruned=0,
    diverged=0,
    running=0,
    best=GROWN,
    best_grown=GROWN,
    best_scratch=None,
    baselines=(FINAL, HALF),
    charged=10,
    executed=9,
    seconds=100.0,
    left=0.0,
    confirmed=0,
    confirmations=0,
)


def test_a_lead_is_stated_against_each_baseline_as_a_candidate() -> None:
    text = "\n".join(answer(SUMMARY))
    assert "Best schedule (trial 7): loss 2.3000." in text
    assert "Final shape from scratch: loss 2.5000 at learning rate 0.006 (3 tried)" in text
    assert "the schedule is 0.2000 lower" in text
    assert "Best fixed size (50% of final): loss 2.4000" in text
    assert "Growth leads every fixed size at equal compute." in text
    assert (
        "best of 20 trials, one seed each, on the validation split: a candidate, not yet a verdict." in text
    )


def test_a_baseline_of_another_budget_is_no_rival_at_equal_compute() -> None:
    richer = replace(FINAL, name="final, 2x budget", loss=2.1, times=2.0)
    assert answer(replace(SUMMARY, baselines=(FINAL, HALF, richer))) == answer(SUMMARY)


def test_no_lead_is_stated_as_plainly() -> None:
    small = replace(HALF, loss=2.2)
    text = "\n".join(answer(replace(SUMMARY, baselines=(FINAL, small))))
    assert "the schedule is 0.1000 higher" in text
    assert "Growth does not lead" in text
    assert "leads every" not in text
    tie = "\n".join(answer(replace(SUMMARY, baselines=(replace(FINAL, loss=2.3),))))
    assert "Growth does not lead" in tie


def test_a_best_trial_that_does_not_grow_is_no_success_of_growth() -> None:
    scratch = Candidate(3, loss=2.1, schedule="start h=16; no growth", events=0, losses=(2.1,))
    text = "\n".join(answer(replace(SUMMARY, best=scratch, best_scratch=scratch)))
    assert "Best schedule (trial 7): loss 2.3000." in text
    assert "Best trial that does not grow (trial 3): loss 2.1000: the schedule is 0.2000 higher." in text
    assert "Growth does not lead" in text
    none = answer(replace(SUMMARY, best=scratch, best_grown=None, best_scratch=scratch))
    assert none == ["No schedule that grows has finished yet."]


def test_what_weakens_the_answer_is_said() -> None:
    edge = replace(FINAL, best_at_edge=True)
    assert answer(replace(SUMMARY, baselines=(edge, HALF)))[-1] == (
        "The best learning rate is the first or last tried for: final."
    )
    unfinished = replace(FINAL, loss=None, rate=None, tried=0)
    assert answer(replace(SUMMARY, baselines=(unfinished,)))[-1] == "No fixed size has finished yet."


def test_what_diverged_is_not_waited_for() -> None:
    none = replace(SUMMARY, best=None, best_grown=None, diverged=20)
    assert answer(none) == ["Training diverged in all 20 trials that ended."]
    assert answer(replace(none, ended=1, diverged=1)) == ["Training diverged in the one trial that ended."]
    some = replace(none, diverged=19, pruned=1)
    assert answer(some) == ["No schedule that grows has finished yet."]
    sizes = tuple(replace(size, loss=None, rate=None) for size in SUMMARY.baselines)
    lines = answer(replace(SUMMARY, baselines=sizes))
    assert lines[-1] == "Training diverged in all 6 runs of fixed sizes that ended."


def told(ledger: Ledger, loss: float | None, *, status: str = "finished", events: int = 1) -> None:
    """Take a trial and tell what came out, as a worker does."""
    claim = take(ledger)
    if claim.kind == "baseline":
        ledger.size_of(claim.trial)
    else:
        ledger.study.space.sample(claim.trial)
    known = {"status": status, "events": events, "schedule": "words", "losses": [loss], "runs": {}}
    for name, value in {**known, "charged": 100, "executed": 80, "seconds": 10.0}.items():
        claim.trial.set_user_attr(name, value)
    ledger.tell(claim, None if loss is None else [loss])


@pytest.mark.usefixtures("place")
def test_a_ledger_is_summed_up(tmp_path: Path) -> None:
    ledger = begin_study(write_study(tmp_path, trials=5, baselines=THREE))[2]
    empty = summarise(ledger)
    assert (empty.ended, empty.best, empty.left, empty.charged) == (0, None, None, 0)
    assert [(b.name, b.loss, b.tried, b.planned) for b in empty.baselines] == [
        ("final", None, 0, 3),
        ("start", None, 0, 3),
    ]
    for loss in (2.6, 2.4, 2.5, 2.9, 2.8, None):
        told(ledger, loss, status="finished" if loss else "diverged")
    told(ledger, 2.0, events=0)
    told(ledger, 2.2)
    told(ledger, None, status="pruned")
    take(ledger)
    summary = summarise(ledger)
    final, start = summary.baselines
    assert (final.loss, final.rate, final.tried, final.best_at_edge) == (2.4, 0.006, 3, False)
    assert (start.loss, start.rate, start.best_at_edge) == (2.8, 0.006, False)
    assert summary.best_fixed == final
    assert (summary.ended, summary.pruned, summary.diverged, summary.running) == (3, 1, 0, 1)
    assert summary.best is not None
    assert summary.best.loss == 2.0
    assert summary.best_grown is not None
    assert summary.best_grown.loss == 2.2
    assert (summary.charged, summary.executed, summary.seconds) == (900, 720, 90.0)
    assert summary.left == pytest.approx(2 * 10.0), "two trials at the mean of those that ended"


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize(
    ("limit", "left"),
    [
        ({"hours": 100 / 3600}, 80.0),
        ({"total_flops": 1000.0}, (1000 - 160) / 8),
        ({"hours": 100 / 3600, "trials": 5}, 30.0),
        ({"hours": 15 / 3600, "trials": 5}, 0.0),
    ],
)
def test_time_is_left_until_the_first_limit(tmp_path: Path, limit: dict[str, Any], left: float) -> None:
    fixed = {"shares": [], "start": False, "extended": False, "learning_rates": [0.006]}
    limits: dict[str, Any] = {"trials": None, **limit}
    ledger = begin_study(write_study(tmp_path, **limits, baselines=fixed))[2]
    for loss in (2.6, 2.4, 2.5):  # a baseline and two trials, of 10 seconds and 80 FLOPs each
        told(ledger, loss)
    assert summarise(ledger).left == pytest.approx(left)


@pytest.mark.usefixtures("place")
def test_no_time_is_left_of_a_search_that_ends_before_its_limits(tmp_path: Path) -> None:
    fixed = {"shares": [], "start": False, "extended": False, "learning_rates": [0.006]}
    few = {**SPACE, "start": [1], "known": {}}
    tree: dict[str, Any] = {"sampler": {"kind": "tree"}, "space": few, "trials": 9}
    ledger = begin_study(write_study(tmp_path, **tree, baselines=fixed))[2]
    told(ledger, 2.6)
    assert summarise(ledger).left == pytest.approx(9 * 10.0)
    told(ledger, 2.4)
    assert ledger.ended(), "the space has one point"
    assert (summarise(ledger).ended, summarise(ledger).left) == (1, 0.0)


@pytest.mark.parametrize(
    ("branches", "text"),
    [(0, "20 of 20 trials"), (1, "20 of 20 trials (1 branch left early)"), (7, "(7 branches left early)")],
)
def test_branches_that_a_tree_left_are_not_taken_for_work_that_remains(branches: int, text: str) -> None:
    summary = replace(SUMMARY, branches=branches)
    assert counts(summary).endswith(text)
    assert summary.left_early in study_note(summary, 0, 1)
