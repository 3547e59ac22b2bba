"""What a study says of itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nasgrow.study.config import load_study
from nasgrow.study.counts import Counts, count_trials
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.summary import Baseline, Candidate, Summary, answer, missing_lines, summarise
from nasgrow.study.trials import TRIAL_KINDS, Kind, TrialRecord
from tests.study.records import make_record
from tests.study.studies import FINAL as SHAPE
from tests.study.studies import write_study

FINAL = Baseline("final", "h=16", loss=2.5, rate=0.006, tried=3, best_at_edge=False)
HALF = Baseline("50% of final", "h=8", loss=2.4, rate=0.012, tried=3, best_at_edge=False)
GROWN = Candidate(
    7,
    loss=2.3,
    name="x2 hidden at 30%",
    schedule="start h=8; at 0.3: hidden 16",
    rate=0.012,
    events=1,
    losses=(2.3,),
)
SUMMARY = Summary(
    name="tiny",
    seeds=1,
    counts=Counts(20, 20, {"pruned": 0}, {"paused": 0}, baselines=6),
    failed=(),
    exhausted=False,
    running=0,
    best=GROWN,
    best_grown=GROWN,
    best_scratch=None,
    baselines=(FINAL, HALF),
    charged=10,
    executed=9,
    seconds=100.0,
    left=(0.0, 0.0),
)


def test_a_lead_is_stated_against_each_baseline_as_a_candidate() -> None:
    text = "\n".join(answer(SUMMARY))
    assert "Best schedule (trial 7), x2 hidden at 30%: loss 2.3000 at learning rate 0.012." in text
    assert "Final shape from scratch: loss 2.5000 at learning rate 0.006 (3 settings tried)" in text
    assert "the schedule is 0.2000 lower" in text
    assert "Best of the 2 fixed shapes searched (50% of final): loss 2.4000" in text
    assert "Growth leads the 2 fixed shapes searched at equal compute." in text
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
    assert "Growth leads" not in text
    tie = "\n".join(answer(replace(SUMMARY, baselines=(replace(FINAL, loss=2.3),))))
    assert "Growth does not lead" in tie


def test_a_best_trial_that_does_not_grow_is_no_success_of_growth() -> None:
    scratch = Candidate(3, 2.1, "h=16", "start h=16; no growth", rate=0.006, events=0, losses=(2.1,))
    text = "\n".join(answer(replace(SUMMARY, best=scratch, best_scratch=scratch)))
    assert "Best schedule (trial 7), x2 hidden at 30%: loss 2.3000 at learning rate 0.012." in text
    assert "Best trial that does not grow (trial 3): loss 2.1000: the schedule is 0.2000 higher." in text
    assert "Growth does not lead" in text
    none = answer(replace(SUMMARY, best=scratch, best_grown=None, best_scratch=scratch))
    assert none == ["No schedule that grows has finished yet."]


def test_what_weakens_the_answer_is_said() -> None:
    edge = replace(FINAL, best_at_edge=True)
    assert answer(replace(SUMMARY, baselines=(edge, HALF)))[-1] == (
        "The best setting is the lowest or the highest tried for: final."
    )
    unfinished = replace(FINAL, loss=None, rate=None, tried=0)
    assert answer(replace(SUMMARY, baselines=(unfinished,)))[-1] == "No fixed shape has finished yet."


def test_what_diverged_is_not_waited_for() -> None:
    none = replace(SUMMARY, best=None, best_grown=None, counts=Counts(20, 20, {"diverged": 20}, {}))
    assert answer(none) == ["Training diverged in all 20 trials that ended."]
    one = replace(none, counts=Counts(1, 20, {"diverged": 1}, {}))
    assert answer(one) == ["Training diverged in the one trial that ended."]
    some = replace(none, counts=Counts(20, 20, {"diverged": 19, "pruned": 1}, {}))
    assert answer(some) == ["No schedule that grows has finished yet."]
    sizes = tuple(replace(size, loss=None, rate=None) for size in SUMMARY.baselines)
    lines = answer(replace(SUMMARY, baselines=sizes))
    assert lines[-1] == "Training diverged or failed in all 6 runs of fixed shapes that ended."


THREE = {"learning_rate.peak": [0.003, 0.006, 0.012]}
THIRDS = [{"learning_rate.peak": rate} for rate in THREE["learning_rate.peak"]]

Trials = dict[Kind, dict[int, TrialRecord]]


def study_with(folder: Path, **changes: Any) -> ResolvedStudy:
    return ResolvedStudy.resolve(load_study(write_study(folder, **changes)), "tiny.yaml")


def trials_of(*records: TrialRecord) -> Trials:
    return {kind: {one.number: one for one in records if one.kind == kind} for kind in TRIAL_KINDS}


def test_a_study_without_trials_is_summed_up(tmp_path: Path) -> None:
    empty = summarise(study_with(tmp_path, trials=5, tune=THREE), trials_of(), ended=False)
    assert (empty.counts.ended, empty.best, empty.left, empty.charged) == (0, None, None, 0)
    assert [(size.name, size.loss, size.tried) for size in empty.baselines] == [("final", None, 0)]


def test_records_are_summed_up(tmp_path: Path) -> None:
    losses = (2.6, 2.4, 2.5, 2.9, 2.8, None)
    rates = (0.003, 0.006, 0.012) * 2
    shapes = {"final": {"start": SHAPE, "events": []}, "fixed": {"start": {**SHAPE, "mlp": 16}, "events": []}}
    fixed = [
        make_record(
            "baseline" if number < 3 else "fixed",
            number,
            loss,
            name="final" if number < 3 else None,
            learning_rate=rate,
            parameters={"learning_rate.peak": rate},
            schedule=shapes["final" if number < 3 else "fixed"],
        )
        for number, (loss, rate) in enumerate(zip(losses, rates, strict=True))
    ]
    search = [
        make_record("search", 0, 2.0, schedule={"start": SHAPE, "events": []}),
        make_record("search", 1, 2.2),
        make_record("search", 2, None, status="pruned"),
        make_record("search", 3, None, status="running", charged=0, executed=0, seconds=0.0),
        make_record("search", 4, None, status="paused", charged=0, executed=0, seconds=0.0),
    ]
    study = study_with(tmp_path, trials=6, tune=THREE)
    summary = summarise(study, trials_of(*fixed, *search), ended=False)
    final, start = summary.baselines
    assert (final.loss, final.rate, final.tried, final.best_at_edge) == (2.4, 0.006, 3, False)
    assert (start.loss, start.rate, start.best_at_edge) == (2.8, 0.006, False)
    assert summary.best_fixed == final
    counts = summary.counts
    assert (counts.ended, counts.planned, counts.baselines, counts.fixed) == (3, 6, 3, 3)
    assert (counts.among["pruned"], counts.besides["paused"], counts.among["diverged"]) == (1, 1, 0)
    assert summary.running == 1
    assert summary.best is not None
    assert summary.best.loss == 2.0
    assert summary.best_grown is not None
    assert summary.best_grown.loss == 2.2
    assert (summary.charged, summary.executed, summary.seconds) == (900, 720, 90.0)
    assert summary.left == pytest.approx((3 * 10.0, 6 * 10.0)), "three trials, and three that may tune"


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
    limits: dict[str, Any] = {"trials": None, **limit}
    study = study_with(tmp_path, tune=THREE, **limits)
    trials = trials_of(
        *(
            make_record("baseline", number, 2.6, name="final", parameters=THIRDS[number])
            for number in range(2)
        ),
        make_record("search", 0, 2.4),
        make_record("search", 1, 2.5),
    )
    found = summarise(study, trials, ended=False).left
    runs = (
        1,
        1 + 2 * 3,
    )  # the third rate of the final shape; it and the best schedule may need three more each
    assert found == pytest.approx(tuple(left + 10.0 * run for run in runs))
    assert summarise(study, trials, ended=True).left == (0.0, 0.0), "a search may end before its limits"


def test_a_tree_that_has_executed_its_compute_leaves_no_time_for_further_trials(tmp_path: Path) -> None:
    study = study_with(tmp_path, trials=4, sampler={"kind": "tree"}, baselines={"compute": 0})
    half = study.budget // 2
    paused = [
        make_record("search", number, None, status="paused", charged=half, executed=half, seconds=5.0)
        for number in range(6)
    ]
    final = make_record("baseline", 0, 2.6, name="final")
    trials = [final, make_record("search", 6, 2.4, charged=study.budget, executed=study.budget), *paused]
    found = summarise(study, trials_of(*trials), ended=False).left
    assert found == pytest.approx((0.0, 0.0)), "of four trials' compute nothing is left"
    found = summarise(study, trials_of(*trials[:-2]), ended=False).left
    assert found == pytest.approx((10.0, 10.0)), "one trial's compute"


def test_a_trial_that_a_tree_resumes_near_its_end_says_nothing_about_the_time_of_others(
    tmp_path: Path,
) -> None:
    study = study_with(tmp_path, trials=8, sampler={"kind": "tree"})
    ended = [
        make_record(
            "search", number, 2.4, charged=study.budget, executed=study.budget // part, seconds=12 / part
        )
        for number, part in enumerate((1, 4, 6))
    ]
    final = make_record("baseline", 0, 2.6, name="final", executed=study.budget, seconds=12.0)
    left = summarise(study, trials_of(final, *ended), ended=False).left
    assert left == pytest.approx((5 * 12.0, 5 * 12.0)), "five trials at the same pace"


def test_contenders_that_are_tuned_and_fixed_shapes_that_are_paused_leave_no_time(tmp_path: Path) -> None:
    study = study_with(tmp_path, trials=3, tune=THREE, sampler={"kind": "tree"}, baselines={"compute": 1})
    smaller = {"start": {**SHAPE, "mlp": 16}, "events": []}
    kinds: list[tuple[Kind, dict[str, Any]]] = [
        ("baseline", {"name": "final"}),
        ("search", {}),
        ("fixed", {"schedule": smaller}),
    ]
    final, search, fixed = (
        [
            make_record(kind, number, loss, parameters=THIRDS[number], executed=study.budget, **more)
            for number, loss in enumerate((2.5, 2.4, 2.6))
        ]
        for kind, more in kinds
    )
    paused = make_record("fixed", 9, None, status="paused", executed=0, seconds=0.0)

    def most(*among: TrialRecord) -> float:
        left = summarise(study, trials_of(*among), ended=False).left
        assert left is not None
        return left[1] / 10.0

    assert most(*final, *search, *fixed, paused) == 0
    assert most(*final, *search, *fixed[:-1], paused) == 1 + 3, (
        "its highest rate, or what tunes another shape"
    )
    assert most(*final, *search, paused) == 3 + 3
    assert most(*final[:-1], *search, *fixed) == 1 + 3


def test_the_time_left_is_a_range_while_trials_differ(tmp_path: Path) -> None:
    study = study_with(tmp_path, trials=12)
    none = trials_of(make_record("search", 0, None, status="running", seconds=0.0))
    assert summarise(study, none, ended=False).left is None
    took = [make_record("search", number, 2.4, seconds=5.0 + 10 * (number % 2)) for number in range(4)]
    left = summarise(study, trials_of(*took), ended=False).left
    assert left is not None
    assert left[0] < 8 * 10.0 < left[1]


def test_the_time_left_of_a_confirmation_is_that_of_all_its_runs(tmp_path: Path) -> None:
    trials = trials_of(
        make_record("search", 0, 2.4, seconds=1.0),  # it shared its beginning with another
        make_record("baseline", 0, 2.6, name="final", seconds=10.0),
        make_record("baseline", 1, 2.6, name="final, 2x budget", seconds=10.0),
    )
    left = summarise(study_with(tmp_path), trials, ended=True, baselines=4, confirming=6).left
    assert left == pytest.approx((80.0, 80.0)), "two baselines and six confirmations"


def test_a_confirmation_of_a_stopped_search_does_not_say_that_its_space_ran_out(tmp_path: Path) -> None:
    trials = trials_of(make_record("search", 0, 2.4))
    study = study_with(tmp_path, trials=5)
    assert summarise(study, trials, ended=True).exhausted
    assert not summarise(study, trials, ended=True, confirming=6).exhausted


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (
            "tree",
            "2 of 6 search trials (1 diverged; besides 1 pruned, 1 paused, 1 tuning), 2 baseline runs, "
            "1 fixed-shape trial (besides 2 pruned, 1 paused)",
        ),
        (
            "tpe",
            "3 of 6 search trials (1 pruned, 1 diverged; besides 1 paused, 1 tuning), 2 baseline runs, "
            "3 fixed-shape trials (besides 1 paused)",
        ),
    ],
)
def test_what_became_of_trials_is_counted_once_for_all(tmp_path: Path, kind: str, text: str) -> None:
    records = [
        make_record("search", 0, 2.0),
        make_record("search", 1, None, status="pruned"),
        make_record("search", 2, None, status="paused"),
        make_record("search", 3, None, status="diverged"),
        make_record("search", 4, 2.1, name="tuning of search 0"),
        make_record("search", 5, None, status="running"),
        make_record("baseline", 0, 2.5, name="final"),
        make_record("baseline", 1, 2.5, name="final, 2x budget"),
        make_record("fixed", 0, 2.6),
        make_record("fixed", 1, None, status="pruned"),
        make_record("fixed", 2, None, status="pruned"),
        make_record("fixed", 3, None, status="paused"),
        make_record("fixed", 4, None, status="running"),
    ]
    study = study_with(tmp_path, trials=6, sampler={"kind": kind})
    counted = count_trials(study, records)
    assert str(counted) == text
    confirmed = make_record("confirmation", 0, 2.0, name="search 0", test=[2.2])
    assert str(count_trials(study, [*records, confirmed])) == f"{text}, 1 confirmation run"
    tuning = count_trials(study, records, baselines=6, confirming=9)
    assert str(tuning) == "2 of at least 6 baseline runs, 0 of 9 confirmation runs"
    tuned = count_trials(study, [*records, confirmed], baselines=2, confirming=9)
    assert str(tuned) == "1 of 9 confirmation runs"
    assert summarise(study, trials_of(*records), ended=False).counts == counted


def test_after_a_confirmation_the_answer_is_that_of_fresh_seeds(tmp_path: Path) -> None:
    records = [
        make_record("baseline", 0, 2.3, name="final"),
        make_record("search", 0, 2.0),
        make_record("search", 1, 2.1),
        *(make_record("confirmation", n, 2.05, name="search 0", test=[2.4]) for n in range(2)),
        *(make_record("confirmation", 2 + n, 2.15, name="search 1", test=[2.3]) for n in range(2)),
        make_record("confirmation", 4, 1.9, name="baseline 0", test=[2.35]),
    ]
    lines = answer(summarise(study_with(tmp_path, trials=2), trials_of(*records), ended=True))
    assert "candidate" not in " ".join(lines)
    (line,) = [line for line in lines if line.startswith("Confirmed")]
    assert line.startswith("Confirmed, mean test loss of 2 fresh seeds: schedule ")
    assert "(search 0) 2.4000" in line, "validation chooses, the test split judges"
    assert "baseline 0" not in line, "it has fewer seeds"


def test_trials_that_failed_are_named_unless_others_took_their_place(tmp_path: Path) -> None:
    same = {"name": "final", "parameters": {"size": "final"}}
    trials = trials_of(
        make_record("baseline", 0, None, status="failed", **same),
        make_record("baseline", 1, 2.6, **same),
        make_record("baseline", 2, None, status="failed", name="start", parameters={"size": "start"}),
        make_record("search", 0, None, status="failed", parameters={"size": "final"}),
    )
    summary = summarise(study_with(tmp_path, trials=1), trials, ended=True)
    assert summary.failed == ("search 0", "baseline 2")
    assert missing_lines(summary) == [
        "These trials failed because their workers kept dying: search 0, baseline 2."
    ]


@pytest.mark.parametrize(
    ("limits", "ended", "exhausted"),
    [
        ({"trials": 2}, True, False),
        ({"trials": 3}, True, True),
        ({"trials": 3}, False, False),
        ({"trials": 3, "hours": 20 / 3600}, True, False),
        ({"trials": None, "hours": 1}, True, False),
    ],
)
def test_a_space_without_a_further_point_is_no_limit_that_was_asked_for(
    limits: dict[str, Any], ended: bool, exhausted: bool, tmp_path: Path
) -> None:
    trials = trials_of(make_record("search", 0, 2.4), make_record("search", 1, 2.5))
    summary = summarise(study_with(tmp_path, **limits), trials, ended=ended)
    told = ["The search ended after 2 of 3 trials: the space has no further point to try."]
    assert missing_lines(summary) == (told if exhausted else [])
