"""The verdict, recomputed from raw records."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from scipy import stats  # type: ignore[import-untyped]

from nasgrow.config import Budget
from nasgrow.report.integrity import examine
from nasgrow.report.load import load
from nasgrow.report.ranking import rank
from nasgrow.report.statistics import loss as mean_loss
from nasgrow.report.verdict import Verdict, judge
from nasgrow.spaces.training import PEAK
from nasgrow.study.config import DATA
from nasgrow.study.trials import read_trials
from nasgrow.study.tuning import tries
from tests.report.pages import said
from tests.report.studies import (
    FINAL_ALONE,
    FIXED,
    GROWN,
    LATER,
    Recorded,
    time_trials,
    usual,
    with_budgets,
)


def verdict_of(recorded: Recorded) -> Verdict:
    records = load(recorded.study, recorded.folder)
    return judge(records, rank(records))


def raw(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in sorted((folder / "trials").glob(f"{kind}-*.json"))]


def losses_of(folder: Path, name: str) -> list[float]:
    return [
        loss for record in raw(folder, "confirmation") if record["name"] == name for loss in record["test"]
    ]


def confirmed(folder: Path, ours: list[float], final: list[float], smaller: list[float]) -> Recorded:
    """A study with confirmations of one schedule, the final shape, and a smaller size."""
    recorded = usual(folder)
    recorded.confirm("search 1", GROWN, ours)
    recorded.confirm("baseline 1", FINAL_ALONE, final, first=10)
    recorded.confirm("fixed 4", FIXED["hidden 8"], smaller, first=20)
    return recorded


def test_a_win_has_the_numbers_of_the_raw_records(tmp_path: Path) -> None:
    recorded = confirmed(
        tmp_path / "s", [1.80, 1.82, 1.81, 1.79], [1.92, 1.90, 1.95, 1.91], [1.86, 1.87, 1.85, 1.86]
    )
    verdict = verdict_of(recorded)
    assert verdict.confirmed
    assert verdict.outcome == "won"
    assert verdict.headline == (
        "Growth won: a lower test loss than the final shape from scratch and the best of "
        "3 fixed shapes searched (hidden 8) at equal compute."
    )
    ours = losses_of(recorded.folder, "search 1")
    assert verdict.ours is not None
    assert verdict.ours.mean == pytest.approx(fmean(ours))
    for comparison, name in zip(verdict.comparisons, ("baseline 1", "fixed 4"), strict=True):
        theirs = losses_of(recorded.folder, name)
        low, high = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
        assert comparison.difference.value == pytest.approx(fmean(ours) - fmean(theirs))
        assert comparison.difference.low == pytest.approx(low)
        assert comparison.difference.high == pytest.approx(high)
        told = f"{abs(fmean(ours) - fmean(theirs)):.4f} lower (95% interval −{-low:.4f} to −{-high:.4f})"
        assert any(told in sentence for sentence in verdict.sentences), verdict.sentences


def test_a_loss_is_told_as_plainly(tmp_path: Path) -> None:
    recorded = confirmed(tmp_path / "s", [2.00, 2.01, 2.02], [1.90, 1.91, 1.92], [1.86, 1.87, 1.88])
    verdict = verdict_of(recorded)
    assert verdict.outcome == "lost"
    assert verdict.headline == (
        "Growth did not win: the final shape from scratch and the best of 3 fixed shapes searched "
        "(hidden 8) had a lower test loss at equal compute."
    )
    assert "0.1000 higher" in verdict.sentences[1]
    assert "How much compute that saves is not known" in verdict.sentences[1]


def test_growth_that_a_fixed_shape_of_less_depth_beats_did_not_win(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s")
    for number, (rate, loss) in enumerate(((0.003, 1.76), (0.006, 1.7), (0.012, 1.74)), 30):
        recorded.add("fixed", number, FIXED["layers 1"], [loss], rate=rate)
    assert verdict_of(recorded).headline == (
        "Candidate, not a verdict: growth does not lead the best of 4 fixed shapes searched (layers 1) "
        "on validation."
    )
    recorded.confirm("search 1", GROWN, [1.80, 1.81, 1.82])
    recorded.confirm("baseline 1", FINAL_ALONE, [1.90, 1.91, 1.92], first=10)
    recorded.confirm("fixed 31", FIXED["layers 1"], [1.70, 1.71, 1.72], first=20)
    verdict = verdict_of(recorded)
    assert verdict.outcome == "lost"
    assert verdict.headline == (
        "Growth did not win: the best of 4 fixed shapes searched (layers 1) had a lower test loss at "
        "equal compute, though growth beat the final shape from scratch."
    )


def test_growth_whose_only_advantage_is_a_better_learning_rate_did_not_win(tmp_path: Path) -> None:
    """The schedule is better than the final shape at the rates first tried, and not at its own best rate."""
    recorded = Recorded(tmp_path / "s")
    recorded.baselines({"final": (2.0, 1.9, 1.85)})
    recorded.add("search", 1, GROWN, [1.75], rate=0.024)
    tuning, trained = recorded.study.tuning, read_trials(recorded.folder)
    ended, pending = tries(tuning, [trial for trial in trained if trial.kind == "baseline"])
    beyond = tuning.next(ended, pending)
    assert beyond is not None, "a best rate at the edge is not the end of tuning a baseline"
    assert beyond[PEAK] == pytest.approx(0.024)
    recorded.add("baseline", 3, FINAL_ALONE, [1.7], name="final", rate=beyond[PEAK])
    recorded.confirm("search 1", GROWN, [1.76, 1.77, 1.78], rate=0.024)
    recorded.confirm("baseline 3", FINAL_ALONE, [1.71, 1.72, 1.73], first=10, rate=0.024)
    verdict = verdict_of(recorded)
    assert verdict.outcome == "lost"
    assert verdict.headline.startswith(
        "Growth did not win: the final shape from scratch had a lower test loss"
    )


def test_a_schedule_that_wins_in_flops_and_loses_in_seconds_says_both(tmp_path: Path) -> None:
    losses = {0.5: [2.00, 2.02, 2.01], 1.0: [1.90, 1.91, 1.92], 2.0: [1.80, 1.79, 1.81]}
    ours = [1.86, 1.87, 1.87]
    recorded = with_budgets(tmp_path / "s", ours, losses, slower=1.7)
    verdict = verdict_of(recorded)
    assert verdict.headline == (
        "Growth won at an equal budget against the final shape from scratch, but against the final shape it "
        "lost at equal seconds."
    )
    (currency,) = verdict.comparisons[0].currencies
    assert (currency.name, currency.outcome) == ("seconds", "lost")
    assert currency.ratio == pytest.approx(1.7)
    theirs = at(losses, 1.7)
    assert currency.difference is not None
    assert currency.difference.value == pytest.approx(fmean(ours) - fmean(theirs))
    interval = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert currency.difference.low == pytest.approx(interval.low)
    assert (
        "The schedule spent 1.70 times the rival's seconds; at equal seconds growth loses"
        in verdict.sentences[1]
    )


def test_a_headline_names_each_rival_that_growth_does_not_beat_at_equal_seconds(tmp_path: Path) -> None:
    losses = {0.5: [2.00, 2.02, 2.01], 1.0: [1.90, 1.91, 1.92], 2.0: [1.80, 1.79, 1.81]}
    recorded = with_budgets(tmp_path / "s", [1.86, 1.87, 1.87], losses)
    recorded.add("fixed", 4, FIXED["hidden 8"], [1.89])
    recorded.confirm("fixed 4", FIXED["hidden 8"], [1.89, 1.90, 1.91], first=400)
    time_trials(recorded.folder, slower=1.7)
    headline = verdict_of(recorded).headline
    assert headline.startswith("Growth won at an equal budget against the final shape from scratch and ")
    assert headline.endswith("but against the final shape and the best fixed shape it lost at equal seconds.")


def test_where_no_budget_is_as_slow_the_currency_is_unknown(tmp_path: Path) -> None:
    losses = {0.5: [2.00, 2.02], 1.0: [1.90, 1.91], 2.0: [1.80, 1.79]}
    verdict = verdict_of(with_budgets(tmp_path / "s", [1.80, 1.81], losses, slower=3.0))
    assert verdict.headline.endswith("against the final shape the answer is not known at equal seconds.")
    unknown = "3.00 times the rival's seconds; the rival was not trained with a budget that costs as much"
    assert unknown in verdict.sentences[1]


def test_the_envelope_is_the_best_fixed_shape_under_each_budget(tmp_path: Path) -> None:
    losses = {0.5: [2.00, 2.02], 1.0: [1.90, 1.91], 2.0: [1.80, 1.79]}
    recorded = with_budgets(tmp_path / "s", [1.80, 1.81], losses)
    for number, (times, test) in enumerate(((0.5, [1.95, 1.96]), (2.0, [1.75, 1.76])), 30):
        name = f"fixed 4, {times:.4g}x budget"
        recorded.add("baseline", number, FIXED["hidden 8"], [test[0]], name=name, times=times)
        recorded.confirm(f"baseline {number}", FIXED["hidden 8"], test, first=10 * number, times=times)
    recorded.add("fixed", 4, FIXED["hidden 8"], [1.85])
    recorded.confirm("fixed 4", FIXED["hidden 8"], [1.85, 1.86], first=400)
    final, best = verdict_of(recorded).comparisons
    assert final.equal is not None
    assert best.equal is not None
    assert [mean_loss(rung.losses) for rung in final.equal.rungs] == pytest.approx([2.01, 1.905, 1.795])
    assert [mean_loss(rung.losses) for rung in best.equal.rungs] == pytest.approx([1.955, 1.855, 1.755])


def test_a_difference_within_the_noise_is_not_decided(tmp_path: Path) -> None:
    recorded = confirmed(tmp_path / "s", [1.85, 1.95, 1.80], [1.90, 1.85, 1.99], [1.99, 2.10, 2.05])
    verdict = verdict_of(recorded)
    assert verdict.outcome == "open"
    assert verdict.headline.startswith("Not decided: the difference from the final shape from scratch")


def test_one_seed_allows_no_interval(tmp_path: Path) -> None:
    verdict = verdict_of(confirmed(tmp_path / "s", [1.80], [1.92], [1.86]))
    assert verdict.confirmed
    assert verdict.outcome == "open"
    assert "an interval needs at least two seeds in common" in verdict.headline
    assert [comparison.difference.low for comparison in verdict.comparisons] == [None, None]


def test_the_schedule_is_chosen_on_validation_not_on_test(tmp_path: Path) -> None:
    recorded = confirmed(tmp_path / "s", [1.80, 1.81], [1.92, 1.93], [1.90, 1.91])
    for seed in (1, 2):  # better on test, worse on validation
        recorded.add("confirmation", 30 + seed, LATER, [1.85], test=[1.70], seeds=[seed], name="search 2")
    ours = verdict_of(recorded).ours
    assert ours is not None
    assert ours.label == "search 1"


def test_a_candidate_is_not_judged_by_the_seeds_that_survived(tmp_path: Path) -> None:
    recorded = confirmed(tmp_path / "s", [1.80, 1.81, 1.82], [1.92, 1.93, 1.91], [1.90, 1.91, 1.92])
    recorded.add("confirmation", 31, LATER, [1.60], test=[1.62], seeds=[1], name="search 2")
    for seed in (2, 3):
        recorded.add(
            "confirmation", 30 + seed, LATER, [None], seeds=[seed], name="search 2", status="diverged"
        )
    ours = verdict_of(recorded).ours
    assert ours is not None
    assert ours.label == "search 1"


def test_without_confirmation_there_is_a_candidate_only(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s")
    verdict = verdict_of(recorded)
    assert not verdict.confirmed
    assert verdict.outcome == "open"
    assert verdict.headline == (
        "Candidate, not a verdict: growth leads the final shape from scratch and the best of "
        "3 fixed shapes searched (hidden 8) on validation."
    )
    assert [comparison.difference.value for comparison in verdict.comparisons] == pytest.approx([-0.1, -0.05])
    assert "winner's curse" in verdict.sentences[-1]
    assert "3 finished trials" in verdict.sentences[-1]


def test_a_candidate_that_does_not_lead_is_said_to_be_behind(tmp_path: Path) -> None:
    recorded = Recorded(tmp_path / "s")
    recorded.baselines({"final": (1.7,)})
    recorded.add("search", 0, GROWN, [1.8])
    assert verdict_of(recorded).headline == (
        "Candidate, not a verdict: growth does not lead the final shape from scratch on validation."
    )


def test_confirmations_of_schedules_alone_are_no_verdict(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s")
    recorded.confirm("search 1", GROWN, [1.8, 1.81])
    assert not verdict_of(recorded).confirmed


def at(losses: dict[float, list[float]], times: float) -> list[float]:
    """The losses of the final shape between once and twice the budget, seed by seed."""
    weight = math.log2(times)
    pairs = zip(losses[1.0], losses[2.0], strict=True)
    return [(1 - weight) * once + weight * twice for once, twice in pairs]


def test_compute_saved_is_read_off_decayed_results_at_several_budgets(tmp_path: Path) -> None:
    losses = {0.5: [2.00, 2.02, 2.01], 1.0: [1.90, 1.91, 1.92], 2.0: [1.80, 1.79, 1.81]}
    ours = [1.86, 1.87, 1.87]
    verdict = verdict_of(with_budgets(tmp_path / "s", ours, losses))
    assert verdict.confirmed
    (comparison,) = verdict.comparisons
    equal = comparison.equal
    assert equal is not None
    assert equal.times is not None
    needed = 2 ** ((fmean(losses[1.0]) - fmean(ours)) / (fmean(losses[1.0]) - fmean(losses[2.0])))
    assert equal.times == pytest.approx(needed)
    assert f"Compute saved at equal test loss: {1 - 1 / needed:.0%} (95% interval" in verdict.sentences[1]
    assert "0.5, 1 and 2 times the budget" in verdict.sentences[1]
    assert equal.low is not None
    assert equal.high is not None
    assert 1 < equal.low < equal.times < equal.high < 2
    for end in (equal.low, equal.high):  # there the two differ at exactly the 5% level
        assert stats.ttest_rel(ours, at(losses, end)).pvalue == pytest.approx(0.05, abs=0.002)


def test_budgets_that_do_not_reach_are_told_as_bounds(tmp_path: Path) -> None:
    losses = {0.5: [2.00, 2.02], 1.0: [1.90, 1.91], 2.0: [1.80, 1.79]}
    far = verdict_of(with_budgets(tmp_path / "far", [1.70, 1.71], losses))
    assert "Compute saved at equal test loss: more than 50%" in far.sentences[1]
    behind = verdict_of(with_budgets(tmp_path / "behind", [2.10, 2.11], losses))
    assert "No compute saved at equal test loss (at the 95% level): the rival reaches" in behind.sentences[1]
    between = verdict_of(with_budgets(tmp_path / "between", [1.95, 1.96], losses))
    assert "No compute saved at equal test loss (95% interval" in between.sentences[1]
    assert "The rival needs 0.7" in between.sentences[1]


def test_a_richer_budget_is_no_rival_at_equal_compute(tmp_path: Path) -> None:
    losses = {0.5: [2.00, 2.02], 1.0: [1.90, 1.91], 2.0: [1.60, 1.61]}
    verdict = verdict_of(with_budgets(tmp_path / "s", [1.80, 1.81], losses))
    assert verdict.headline == (
        "Growth won: a lower test loss than the final shape from scratch at equal compute."
    )


def test_a_candidate_has_compute_saved_without_an_interval(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s")
    recorded.add("baseline", 20, FINAL_ALONE, [1.7], name="final, 2x budget", times=2.0)
    verdict = verdict_of(recorded)
    needed = 2 ** ((1.9 - 1.8) / (1.9 - 1.7))
    saved = f"Compute saved at equal validation loss: {1 - 1 / needed:.0%}. The rival needs"
    assert saved in verdict.sentences[1]


def test_a_schedule_that_diverges_with_a_fresh_seed_did_not_win(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s")
    recorded.confirm("search 1", GROWN, [1.80, 1.81])
    recorded.add("confirmation", 9, GROWN, [None], seeds=[3], name="search 1", status="diverged")
    recorded.confirm("baseline 1", FINAL_ALONE, [1.90, 1.91, 1.92], first=10)
    for seed in (1, 2, 3):
        recorded.add(
            "confirmation", 20 + seed, LATER, [None], seeds=[seed], name="search 2", status="diverged"
        )
    verdict = verdict_of(recorded)
    assert verdict.headline == "Growth did not win: every confirmed schedule diverged with a fresh seed."
    assert verdict.outcome == "lost"
    assert verdict.sentences == (
        "search 1 (x2 hidden and mlp at 20%, x2 layers and heads at 50%): 1 of 3 trainings diverged, "
        "the others have a mean test loss of 1.8050.",
        "search 2 (x2 layers at 60%): 3 of 3 trainings diverged.",
    )


def test_all_that_diverged_is_listed_and_dead_workers_decide_nothing(tmp_path: Path) -> None:
    for status, lost in (("diverged", True), ("failed", False)):
        recorded = usual(tmp_path / status)
        recorded.confirm("baseline 1", FINAL_ALONE, [1.90, 1.91, 1.92], first=10)
        for seed in (1, 2, 3):
            changes: dict[str, Any] = {"seeds": [seed], "name": "search 1", "status": status}
            recorded.add("confirmation", 20 + seed, GROWN, [None], **changes)
        html, _, summary = said(recorded)
        assert (summary["verdict"]["headline"].startswith("Growth did not win: every")) == lost
        assert ("Candidate, not a verdict" in html) != lost
        assert "There is nothing to judge yet" not in html or not lost
        assert "Nothing is confirmed yet" not in html
        for file in (recorded.folder / "trials").glob("confirmation-0001*.json"):
            file.unlink()
        assert "Nothing is confirmed yet" not in said(recorded)[0], "the diverged trials are listed"


def test_a_clear_loss_decides_though_another_rival_has_one_seed(tmp_path: Path) -> None:
    recorded = confirmed(tmp_path / "s", [2.00, 2.01, 2.02], [1.90, 1.91, 1.92], [1.86])
    verdict = verdict_of(recorded)
    assert [comparison.rival for comparison in verdict.comparisons] == ["the final shape from scratch"], (
        "who has fewer seeds is not through yet"
    )
    assert verdict.outcome == "lost"
    assert verdict.headline.startswith("Growth did not win: the final shape from scratch had")


def test_a_confirmation_whose_candidate_is_damaged_is_left_out(tmp_path: Path) -> None:
    losses = {0.5: [2.00, 2.02], 1.0: [1.90, 1.91], 2.0: [1.60, 1.61]}
    recorded = with_budgets(tmp_path / "s", [1.80, 1.81], losses)
    (recorded.folder / "trials" / "baseline-00021.json").write_text("damaged")
    assert verdict_of(recorded).headline == (
        "Growth won: a lower test loss than the final shape from scratch at equal compute."
    )


def test_beyond_the_budgets_the_interval_is_told_too(tmp_path: Path) -> None:
    losses = {0.5: [2.00, 2.02], 1.0: [1.90, 1.91], 2.0: [1.79, 1.81, 1.83]}
    near = verdict_of(with_budgets(tmp_path / "near", [1.79, 1.80], losses)).sentences[1]
    assert "more than 50% (95% interval" in near
    assert "to more than 50%)" in near
    far = verdict_of(with_budgets(tmp_path / "far", [1.50, 1.501], losses)).sentences[1]
    assert "more than 50% (at the 95% level)" in far


def test_a_schedule_that_stays_below_the_final_shape_is_named(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "small")
    recorded.add("search", 3, {"start": GROWN["start"], "events": GROWN["events"][:1]}, [1.7])
    records = load(recorded.study, recorded.folder)
    ranking = rank(records)
    (line,) = (
        line
        for line in examine(records, ranking, judge(records, ranking)).weaknesses
        if "not at the final shape" in line
    )
    assert "ends at h=16, N=1" in line


def test_a_budget_of_seconds_is_called_time(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "small")
    records = load(recorded.study, recorded.folder)
    verdict = judge(records, replace(rank(records), currency=Budget(seconds=10).currency))
    assert "How much time that saves is not known" in " ".join(verdict.sentences)
    assert "compute" not in " ".join([verdict.headline, *verdict.sentences])


@pytest.mark.parametrize("overlap", [None, 0.02, 0.001])
def test_text_that_is_repeated_or_known_is_named(overlap: float | None, tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s")
    data = {"tokens": {"train": 32_000}, "overlap": overlap}
    (recorded.folder / DATA).write_text(json.dumps(data))
    records = load(recorded.study, recorded.folder)
    ranking = rank(records)
    found = examine(records, ranking, judge(records, ranking)).weaknesses
    assert (
        "Training text is repeated: the schedule sees it 2.0 times, the final shape from scratch sees it 2.0 "
        "times and the best of 3 fixed shapes searched (hidden 8) sees it 2.0 times."
    ) in found
    assert any(line.startswith("2.0% of the test text") for line in found) == (overlap == 0.02)


def test_a_candidate_claims_no_level_where_its_loss_is_beyond_all_budgets(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s")
    two: dict[str, Any] = {"seeds": (0, 1)}
    recorded.add("search", 3, GROWN, [1.50, 1.51], **two)
    recorded.add("baseline", 20, FINAL_ALONE, [1.88, 1.89], name="final", rate=0.024, **two)
    recorded.add("baseline", 21, FINAL_ALONE, [1.80, 1.79], name="final, 2x budget", times=2.0, **two)
    equal = verdict_of(recorded).comparisons[0].equal
    assert equal is not None
    assert equal.above
    assert not equal.sure
    assert not equal.apart


def test_a_fixed_shape_that_was_lucky_in_the_search_does_not_hide_better_ones(tmp_path: Path) -> None:
    recorded = usual(tmp_path / "s")  # in the search hidden 8 has 1.85, mlp 16 has 2.0
    recorded.confirm("search 1", GROWN, [1.81, 1.82, 1.83])
    recorded.confirm("baseline 1", FINAL_ALONE, [1.95, 1.96, 1.97], first=10)
    recorded.confirm("fixed 4", FIXED["hidden 8"], [1.98, 2.0, 2.02], first=20)

    def weak() -> list[str]:
        records = load(recorded.study, recorded.folder)
        ranking = rank(records)
        found = examine(records, ranking, judge(records, ranking)).weaknesses
        return [one for one in found if "had a lower validation loss in the search" in one]

    assert not weak(), "the final shape has 1.94 with fresh seeds, lower than the 2.0 of mlp 16"
    assert verdict_of(recorded).outcome == "won"
    recorded.add("fixed", 40, FIXED["layers 1"], [1.93])
    verdict = verdict_of(recorded)
    assert (verdict.outcome, verdict.comparisons[0].outcome) == ("open", "won")
    assert verdict.headline == (
        "Not decided: growth beat the final shape from scratch, but 1 fixed shape that may be better is "
        "not confirmed."
    )
    (line,) = weak()
    assert line.startswith(
        "1 fixed shape had a lower validation loss in the search than the best confirmed one with fresh "
        "seeds. It is not confirmed, so the best rival may be missing: layers 1."
    )
    recorded.confirm("fixed 40", FIXED["layers 1"], [2.1, 2.1, 2.1], first=50)
    assert not weak(), "it is confirmed"
    assert verdict_of(recorded).outcome == "won"


def test_a_win_over_one_confirmed_shape_is_none_over_the_best_while_others_may_be_better(
    tmp_path: Path,
) -> None:
    losses = [1.80, 1.82, 1.81, 1.79], [1.92, 1.90, 1.95, 1.91], [1.86, 1.87, 1.85, 1.86]
    recorded = confirmed(tmp_path / "s", *losses)
    recorded.add("fixed", 40, FIXED["layers 1"], [1.83])
    verdict = verdict_of(recorded)
    assert (verdict.outcome, [one.outcome for one in verdict.comparisons]) == ("open", ["won", "open"])
    assert verdict.headline == (
        "Not decided: growth beat the final shape from scratch and the best of 4 fixed shapes searched "
        "(hidden 8), but 1 fixed shape that may be better is not confirmed."
    )
    lost: dict[str, Any] = {"name": "fixed 40", "status": "diverged"}
    for seed in (1, 2):
        recorded.add("confirmation", 60 + seed, FIXED["layers 1"], [None], seeds=[seed], **lost)
    assert verdict_of(recorded).outcome == "won", "it was confirmed, and diverged"


def test_no_currency_is_won_over_the_best_fixed_shape_while_another_may_be_better(tmp_path: Path) -> None:
    losses = {0.5: [2.00, 2.02, 2.01], 1.0: [1.90, 1.91, 1.92], 2.0: [1.80, 1.79, 1.81]}
    recorded = with_budgets(tmp_path / "s", [1.70, 1.71, 1.72], losses)
    recorded.add("fixed", 4, FIXED["hidden 8"], [1.89])
    recorded.confirm("fixed 4", FIXED["hidden 8"], [1.89, 1.90, 1.91], first=400)
    time_trials(recorded.folder, slower=1.5)
    assert {one.outcome for each in verdict_of(recorded).comparisons for one in each.currencies} == {"won"}
    recorded.add("fixed", 5, FIXED["layers 1"], [1.75])
    final, fixed = verdict_of(recorded).comparisons
    assert {one.outcome for one in final.currencies} == {"won"}
    assert {one.outcome for one in fixed.currencies} == {"open"}


def test_the_start_shape_of_a_confirmed_schedule_is_not_a_confirmed_rival(tmp_path: Path) -> None:
    losses = [1.80, 1.82, 1.81, 1.79], [1.92, 1.90, 1.95, 1.91], [1.86, 1.87, 1.85, 1.86]
    recorded = confirmed(tmp_path / "s", *losses)
    assert verdict_of(recorded).outcome == "won"
    recorded.add("fixed", 40, {"start": GROWN["start"]}, [1.75])
    assert verdict_of(recorded).outcome == "open"
