"""The verdict: what growth came to against fixed sizes, in numbers and in plain sentences.

With confirmations it is about test losses of fresh seeds. Without, there is only a candidate: the best of
many trials on the split that chose it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from nasgrow.report import words
from nasgrow.report.budgets import EqualLoss, Rung, equal_loss, share
from nasgrow.report.load import Records
from nasgrow.report.ranking import Contender, Ranking, contender
from nasgrow.report.statistics import Estimate, difference
from nasgrow.report.trajectory import Saving, saving

Outcome = Literal["won", "lost", "open"]

FINAL = "the final shape from scratch"
"""What the first of all rivals is called."""


@dataclass(frozen=True)
class Comparison:
    """The best schedule against one fixed size at equal compute.

    Attributes:
        rival: What it is compared with, in words.
        theirs: The rival.
        difference: Loss of the schedule less that of the rival.
        saved: Compute saved at equal loss, from curves; None where a curve is lacking.
        equal: The budget at which the rival has the same loss; None where it has one budget only.
        outcome: ``won`` or ``lost`` where an interval excludes zero; without intervals, who leads.
    """

    rival: str
    theirs: Contender
    difference: Estimate
    saved: Saving | None
    equal: EqualLoss | None
    outcome: Outcome


@dataclass(frozen=True)
class Verdict:
    """What a study says.

    Attributes:
        confirmed: Whether it stands on fresh seeds and the test split.
        ours: The best schedule that grows; None if there is none yet.
        comparisons: With the final shape from scratch, and with the best of the fixed sizes that were tried
            if that is another one.
        headline: The answer in one line.
        sentences: The answer with its numbers.
        diverged: Whether every confirmed schedule diverged with a fresh seed.
    """

    confirmed: bool
    ours: Contender | None
    comparisons: tuple[Comparison, ...]
    headline: str
    sentences: tuple[str, ...]
    diverged: bool = False

    @property
    def split(self) -> str:
        """The split that its losses were measured on."""
        return "test" if self.confirmed else "validation"

    @property
    def outcome(self) -> Outcome:
        """What all comparisons come to: only what is confirmed with an interval is won or lost."""
        if self.diverged:
            return "lost"
        if not self.confirmed or not self.comparisons:
            return "open"
        found = {"open" if one.difference.low is None else one.outcome for one in self.comparisons}
        return "lost" if "lost" in found else "won" if found == {"won"} else "open"


def judge(records: Records, ranking: Ranking) -> Verdict:
    """Come to a verdict, or to a candidate."""
    return _on_test(ranking) or _on_validation(records, ranking)


def _on_test(ranking: Ranking) -> Verdict | None:
    """The verdict of confirmations, if there is a schedule and a fixed size among them."""
    # Who has fewer seeds than others is not through yet, or diverged: its mean is not to be trusted.
    sizes = [one for one in ranking.confirmed if not one.trial.grows]
    fixed = [one for one in sizes if len(one.losses) == max(len(other.losses) for other in sizes)]
    most = max((len(one.losses) for one in ranking.confirmed), default=0)
    grown = [one for one in ranking.confirmed if one.trial.grows and len(one.losses) == most]
    tried = [one for one in (*ranking.confirmed, *ranking.diverged) if one.trial.grows]
    if fixed and tried and all(one.failed for one in tried):
        return _all_diverged(tried)
    if not grown or not fixed:
        return None
    ours, final = grown[0], ranking.final.size.shape
    same = next((one for one in fixed if one.trial.schedule.start == final), None)
    rivals = _rivals(same, fixed[0], ranking, len(fixed))
    return _verdict(True, ours, rivals, ranking.confirmed_others, [])


def _all_diverged(tried: list[Contender]) -> Verdict:
    """The verdict where no confirmed schedule can be trained with every fresh seed."""
    told = [
        f"{one.title}: {one.failed} of {words.many(len(one.trials), 'training')} diverged"
        + (f", the others have a mean test loss of {words.loss(one.mean)}" if one.losses else "")
        for one in tried
    ]
    headline = "Growth did not win: every confirmed schedule diverged with a fresh seed."
    return Verdict(True, None, (), headline, tuple(f"{line}." for line in told), diverged=True)


def _on_validation(records: Records, ranking: Ranking) -> Verdict:
    if not ranking.schedules:
        return Verdict(False, None, (), "No answer yet: no schedule that grows has finished.", ())
    ours = contender(records, ranking.schedules[0])
    final, best = (
        contender(records, tuned.best) if tuned and tuned.best else None
        for tuned in (ranking.final, ranking.best_size)
    )
    curse = (
        f"This is the best of {words.many(len(ranking.searched), 'finished trial')} on the split that chose "
        "it, and looks better than it is (winner's curse). nasgrow confirm trains it and the baselines again "
        "with fresh seeds and measures them on the test split."
    )
    others = [
        replace(contender(records, tuned.best), times=tuned.size.times)
        for tuned in ranking.others
        if tuned.best is not None
    ]
    rivals = _rivals(final, best, ranking, len(ranking.finished_sizes))
    return _verdict(False, ours, rivals, others, [curse])


def _rivals(
    final: Contender | None, best: Contender | None, ranking: Ranking, tried: int
) -> list[tuple[str, Contender]]:
    """The final shape and the best of so many fixed sizes that were tried: no list is all there are."""
    rivals = [] if final is None else [(FINAL, final)]
    if best is not None and (final is None or best.trial.schedule != final.trial.schedule):
        which = "the one fixed size tried" if tried == 1 else f"the best of the {tried} fixed sizes tried"
        rivals.append((f"{which} ({ranking.size_of(best.trial)})", best))
    return rivals


def _verdict(
    confirmed: bool,
    ours: Contender,
    rivals: list[tuple[str, Contender]],
    others: list[Contender],
    more: list[str],
) -> Verdict:
    comparisons = tuple(
        _compare(confirmed, ours, rival, theirs, others if rival == FINAL else []) for rival, theirs in rivals
    )
    split = "test" if confirmed else "validation"
    sentences = [f"The best schedule, {ours.title}, has {_measured(ours, split)}: {ours.trial.record.words}."]
    sentences += [_sentence(comparison, split) for comparison in comparisons]
    if not any(comparison.rival == FINAL for comparison in comparisons):
        sentences.append("The final shape from scratch has no result to compare with.")
    return Verdict(confirmed, ours, comparisons, _headline(confirmed, comparisons), (*sentences, *more))


def _compare(
    confirmed: bool, ours: Contender, rival: str, theirs: Contender, others: list[Contender]
) -> Comparison:
    """Compare with a rival, which ``others`` are with other budgets."""
    apart = difference(ours.losses, theirs.losses)
    if not confirmed:
        apart = Estimate(apart.value, None, None)  # an interval over chosen trials would promise too much
    saved = saving(ours.curve, theirs.curve) if ours.curve and theirs.curve else None
    low, high = (
        (apart.value, apart.value) if apart.low is None or apart.high is None else (apart.low, apart.high)
    )
    outcome: Outcome = "won" if high < 0 else "lost" if low > 0 else "open"
    rungs = [Rung(one.times, one.losses) for one in (theirs, *others)]
    equal = equal_loss(ours.losses, rungs)
    if equal is not None and not confirmed:
        equal = replace(equal, low=None, high=None, sure=False)
    return Comparison(rival, theirs, apart, saved, equal, outcome)


def _headline(confirmed: bool, comparisons: tuple[Comparison, ...]) -> str:
    lost = [one.rival for one in comparisons if one.outcome == "lost"]
    undecided = [one.rival for one in comparisons if one.outcome == "open"]
    beaten = [one.rival for one in comparisons if one.outcome == "won"]
    but = f", though it beat {words.listed(beaten)}" if beaten else ""
    if not comparisons:
        return "Candidate, not a verdict: there is no fixed size to compare with yet."
    if not confirmed:
        leads = "does not lead" if lost or undecided else "leads"
        rivals = words.listed(lost + undecided or beaten)
        return f"Candidate, not a verdict: growth {leads} {rivals} on validation."
    surely = [one.rival for one in comparisons if one.outcome == "lost" and one.difference.low is not None]
    if not surely and any(one.difference.low is None for one in comparisons):
        leads = "is not ahead of" if lost or undecided else "is ahead of"
        rivals = words.listed(lost + undecided or beaten)
        return f"Not decided: growth {leads} {rivals}, but fewer than two seeds allow no interval."
    if surely:
        return f"Growth did not win: {words.listed(surely)} had a lower test loss at equal compute{but}."
    if undecided:
        return f"Not decided: the difference from {words.listed(undecided)} is within what seeds vary{but}."
    return f"Growth won: a lower test loss than {words.listed(beaten)} at equal compute."


def _measured(one: Contender, split: str) -> str:
    seeds = "one seed" if len(one.losses) == 1 else f"mean of {len(one.losses)} seeds"
    return f"{split} loss {words.loss(one.mean)} ({seeds})"


def _sentence(comparison: Comparison, split: str) -> str:
    theirs, estimate = comparison.theirs, comparison.difference
    rate = f"at learning rate {theirs.trial.record.learning_rate:.3g}"
    if estimate.low is not None:
        sure = f" (95% interval {words.interval(estimate)})"
    else:
        sure = " (no interval: it takes two seeds of each)" if split == "test" else ""
    rival = comparison.rival[0].upper() + comparison.rival[1:]
    return (
        f"{rival}, {rate}, has {_measured(theirs, split)}: "
        f"the schedule's is {words.apart(estimate.value)}{sure}. "
        + (_saved(comparison) if comparison.equal is None else _equal(comparison.equal, split))
    )


def _equal(equal: EqualLoss, split: str) -> str:
    """Compute saved, where the rival was trained under several budgets."""
    trained = words.listed([f"{rung.times:.4g}" for rung in equal.rungs])
    source = f"read off its own tuned, fully decayed results with {trained} times the budget"
    least, most = equal.rungs[0].times, equal.rungs[-1].times
    sure = words.saved_interval(equal)
    if equal.times is None and equal.above:
        return (
            f"Compute saved at equal {split} loss: more than {share(most):.0%}{sure}: with {most:.4g} times "
            f"the budget, the most it was trained with, its mean loss is still higher."
        )
    if equal.times is None:
        return (
            f"No compute saved at equal {split} loss{sure}: it gets there with less than {least:.4g} times "
            "the budget, the least it was trained with."
        )
    needs = f"it needs {equal.times:.2f} times the budget for the schedule's loss, {source}"
    saved = f"Compute saved at equal {split} loss: {share(equal.times):.0%}"
    if equal.times <= 1:
        saved = f"No compute saved at equal {split} loss"
    return f"{saved}{sure}: {needs}."


def _saved(comparison: Comparison) -> str:
    saved = comparison.saved
    if saved is None:
        return "How much compute that saves cannot be told: a curve is lacking."
    if comparison.outcome == "open":
        return "Whether that saves compute cannot be told: the difference is within what seeds vary."
    level = f"a validation loss of {words.loss(saved.loss)}"
    caveat = (
        "read off mean curves, without an interval: the first to get there had decayed less, so its lead is "
        "understated"
    )
    if saved.share > 0:
        return (
            f"Compute saved at equal loss: about {saved.share:.0%}. The schedule reached {level} after "
            f"{saved.ours:.0%} of the budget, this baseline after {saved.theirs:.0%} ({caveat})."
        )
    return (
        f"No compute saved at equal loss: this baseline reached {level} after {saved.theirs:.0%} of the "
        f"budget, the schedule after {saved.ours:.0%} ({caveat})."
    )
