"""The verdict: how growth compares with fixed shapes, in numbers and in plain sentences.

It answers two questions. *Same final shape*: does growth beat training the final shape from scratch, and how
much compute does it save? *Same compute, any shape*: does it beat the best fixed shape? With confirmations
the answers compare test losses of fresh seeds. Without confirmations there is only a candidate: the best of
many trials, measured on the split that chose it.

Every run of a study has the same budget. If the budget is in FLOPs, a schedule may still see more tokens or
take more seconds than its rival, so the verdict also compares them at equal tokens and at equal seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from nasgrow.report import words
from nasgrow.report.budgets import EqualLoss, Rung, apart_at, equal_loss, share
from nasgrow.report.load import Records
from nasgrow.report.ranking import Contender, Ranking, contender
from nasgrow.report.statistics import Estimate, difference

Outcome = Literal["won", "lost", "open"]

COST_NAMES = {"charged": "FLOPs", "tokens": "tokens", "schedule_seconds": "seconds"}
"""The fields of trial records that hold a cost of training, and the name of its currency."""

ALIKE = 0.02
"""Two costs count as equal up to this relative difference: a budget is rounded to whole steps."""


@dataclass(frozen=True)
class Currency:
    """The best schedule against a rival at an equal cost in one currency.

    Attributes:
        name: ``tokens``, ``seconds`` or ``FLOPs``.
        ratio: The schedule's cost divided by the rival's, both at the study's budget.
        difference: The schedule's loss minus that on the rival's baseline curve at equal cost; None
            if the rival was not trained with budgets that reach that cost.
        outcome: Whether growth won at equal cost, by the interval. Without one, a candidate is
            judged by the means, and a confirmed schedule is ``open``. None without ``difference``.
    """

    name: str
    ratio: float
    difference: Estimate | None
    outcome: Outcome | None


@dataclass(frozen=True)
class Comparison:
    """The best schedule against one fixed shape at an equal budget.

    Attributes:
        rival: The rival's name in sentences.
        is_final: Whether the rival is the final shape, as the first question asks.
        theirs: The rival's runs.
        difference: The schedule's loss minus the rival's, both at the study's budget.
        equal: The budget at which the rival has the schedule's loss, read off its baseline curve;
            None if it has one budget only. If the rival is not the final shape, the curve has the
            best fixed shape of each budget.
        outcome: ``won`` if the schedule's loss is lower, ``lost`` if it is higher: by the interval,
            or by the means if there is none. ``open`` if the interval holds zero, or if the best
            fixed shape may be one that is not confirmed (``Ranking.unconfirmed_rivals``).
        currencies: The comparison at equal FLOPs, tokens and seconds, for each of these that is
            known and differs by more than :data:`ALIKE` at the study's budget.
    """

    rival: str
    is_final: bool
    theirs: Contender
    difference: Estimate
    equal: EqualLoss | None
    outcome: Outcome
    currencies: tuple[Currency, ...] = ()

    @property
    def seconds(self) -> Currency | None:
        """The comparison at equal seconds, as predicted for both schedules.

        None if the seconds differ by at most :data:`ALIKE`, or are unknown.
        """
        return next((one for one in self.currencies if one.name == "seconds"), None)


@dataclass(frozen=True)
class Verdict:
    """The answer of a study.

    Attributes:
        confirmed: Whether it compares test losses of fresh seeds.
        ours: The best schedule that grows; None if there is none yet, or if ``diverged``.
        comparisons: With the final shape, and with the best fixed shape if that is a different one,
            as far as they have results.
        headline: The answer in one line.
        sentences: The answer with its numbers.
        diverged: Whether every confirmed schedule diverged with a fresh seed.
        currency: The unit of the budget that all runs share: ``compute`` or ``time``.
        unconfirmed: The number of fixed shapes that are not confirmed, but may be better than the
            best confirmed one.
    """

    confirmed: bool
    ours: Contender | None
    comparisons: tuple[Comparison, ...]
    headline: str
    sentences: tuple[str, ...]
    diverged: bool = False
    currency: str = "compute"
    unconfirmed: int = 0

    @property
    def split(self) -> str:
        """The split on which its losses were measured."""
        return "test" if self.confirmed else "validation"

    @property
    def outcome(self) -> Outcome:
        """``won`` if all comparisons are won, ``lost`` if one is lost, else ``open``.

        Without confirmations it is ``open``, and a comparison without an interval counts as
        ``open``. It is not ``won`` while fixed shapes that may be better are not confirmed. If every
        confirmed schedule diverged, it is ``lost``.
        """
        if self.diverged:
            return "lost"
        if not self.confirmed or not self.comparisons:
            return "open"
        found = {"open" if one.difference.low is None else one.outcome for one in self.comparisons}
        won = found == {"won"} and not self.unconfirmed
        return "lost" if "lost" in found else "won" if won else "open"


def judge(records: Records, ranking: Ranking) -> Verdict:
    """Return the verdict of confirmations, or else the candidate of the search."""
    return _on_test(ranking) or _on_validation(records, ranking)


def _on_test(ranking: Ranking) -> Verdict | None:
    """Return the verdict of confirmations; None unless a schedule and a fixed shape are confirmed.

    The contenders with the most seeds are compared. If every confirmed schedule diverged with a
    fresh seed, growth has lost.
    """
    # A contender with fewer seeds than others has not ended yet, or diverged: its mean would mislead.
    sizes = [one for one in ranking.confirmed if not one.trial.grows]
    fixed = [one for one in sizes if len(one.losses) == max(len(other.losses) for other in sizes)]
    most = max((len(one.losses) for one in ranking.confirmed), default=0)
    grown = [one for one in ranking.confirmed if one.trial.grows and len(one.losses) == most]
    tried = [one for one in (*ranking.confirmed, *ranking.diverged) if one.trial.grows]
    if fixed and tried and all(one.diverged for one in tried):
        return _all_diverged(tried)
    if not grown or not fixed:
        return None
    ours, final = grown[0], ranking.final.size.shape
    same = next((one for one in fixed if one.trial.schedule.start == final), None)
    rivals = _rivals(same, fixed[0], ranking)
    return _verdict(True, ours, rivals, ranking, ranking.confirmed_others, [])


def _all_diverged(tried: list[Contender]) -> Verdict:
    """Return the verdict that growth has lost.

    Args:
        tried: The confirmed schedules that grow; each diverged with at least one fresh seed.
    """
    lines = [
        f"{one.title}: {one.diverged} of {words.many(len(one.trials), 'training')} diverged"
        + (f", the others have a mean test loss of {words.loss(one.mean)}" if one.losses else "")
        for one in tried
    ]
    headline = "Growth did not win: every confirmed schedule diverged with a fresh seed."
    return Verdict(True, None, (), headline, tuple(f"{line}." for line in lines), diverged=True)


def _on_validation(records: Records, ranking: Ranking) -> Verdict:
    if not ranking.schedules:
        return Verdict(False, None, (), "No answer yet: no schedule that grows has finished.", ())
    ours = contender(records, ranking.schedules[0].record)
    final, best = (
        contender(records, tuned.best) if tuned and tuned.best else None
        for tuned in (ranking.final, ranking.best_size)
    )
    curse = (
        f"This is the best of {words.many(len(ranking.searched), 'finished trial')}, measured on the split "
        "that chose it, so it looks better than it is (winner's curse). nasgrow confirm retrains it and the "
        "baselines with fresh seeds and measures them on the test split."
    )
    others = [
        replace(contender(records, tuned.best), times=tuned.size.times)
        for tuned in ranking.others
        if tuned.best is not None
    ]
    return _verdict(False, ours, _rivals(final, best, ranking), ranking, others, [curse])


def _rivals(
    final: Contender | None, best: Contender | None, ranking: Ranking
) -> list[tuple[str, bool, Contender]]:
    """Return the rivals of the best schedule: the final shape, and the best fixed shape if it is another.

    Each has its name, whether it is the final shape, and its runs.
    """
    rivals = [] if final is None else [(f"the final shape {ranking.begun}", True, final)]
    if best is not None and (final is None or best.trial.schedule != final.trial.schedule):
        tried = len(ranking.finished_sizes)
        which = f"the best of {words.many(tried, 'fixed shape')} searched"
        name = ranking.size_of(best.trial)
        if best.trial.schedule.start == ranking.checkpoint:
            name += ": the checkpoint, continued without growth"
        rivals.append((f"{which} ({name})", False, best))
    return rivals


def _verdict(
    confirmed: bool,
    ours: Contender,
    rivals: list[tuple[str, bool, Contender]],
    ranking: Ranking,
    others: list[Contender],
    more: list[str],
) -> Verdict:
    comparisons = tuple(
        _compare(confirmed, ours, rival, is_final, theirs, _curve(is_final, theirs, others))
        for rival, is_final, theirs in rivals
    )
    unconfirmed = len(ranking.unconfirmed_rivals) if confirmed else 0
    if unconfirmed:
        comparisons = tuple(one if one.is_final else _opened(one) for one in comparisons)
    split = "test" if confirmed else "validation"
    sentences = [f"The best schedule, {ours.title}, has {_measured(ours, split)}: {ours.trial.record.words}."]
    currency = ranking.currency
    sentences += [_sentence(comparison, split, currency) for comparison in comparisons]
    if not any(comparison.is_final for comparison in comparisons):
        sentences.append(f"The final shape {ranking.begun} has no result to compare with.")
    headline = _headline(confirmed, comparisons, unconfirmed, currency)
    sentences += more
    return Verdict(
        confirmed,
        ours,
        comparisons,
        headline,
        tuple(sentences),
        currency=currency,
        unconfirmed=unconfirmed,
    )


def _curve(is_final: bool, theirs: Contender, others: list[Contender]) -> list[Rung]:
    """Return the baseline curve of a rival: the losses of fixed shapes under each budget.

    If the rival is the final shape, these are its losses; else those of the best fixed shape for each budget.
    """
    found = {1.0: theirs}
    if is_final:
        shape = theirs.trial.schedule.start
        others = [one for one in others if one.trial.schedule.start == shape]
    for one in sorted(others, key=lambda one: sum(one.validation) / len(one.validation)):
        found.setdefault(one.times, one)
    return [Rung(times, one.by_seed) for times, one in found.items()]


def _compare(
    confirmed: bool, ours: Contender, rival: str, is_final: bool, theirs: Contender, curve: list[Rung]
) -> Comparison:
    apart = difference(ours.by_seed, theirs.by_seed)
    equal = equal_loss(ours.by_seed, curve)
    if not confirmed:  # trials chosen by their losses have no valid interval
        apart = Estimate(apart.value, None, None)
        equal = None if equal is None else replace(equal, low=None, high=None, sure=False, apart=False)
    currencies = []
    for field, name in COST_NAMES.items():
        spent, theirs_spent = ours.per_run(field), theirs.per_run(field)
        if not spent or not theirs_spent or abs(spent / theirs_spent - 1) <= ALIKE:
            continue
        at = apart_at(ours.by_seed, curve, spent / theirs_spent)
        if at is not None and not confirmed:
            at = Estimate(at.value, None, None)
        outcome = None if at is None else "open" if confirmed and at.low is None else _outcome(at)
        currencies.append(Currency(name, spent / theirs_spent, at, outcome))
    return Comparison(rival, is_final, theirs, apart, equal, _outcome(apart), tuple(currencies))


def _outcome(apart: Estimate) -> Outcome:
    low, high = (
        (apart.value, apart.value) if apart.low is None or apart.high is None else (apart.low, apart.high)
    )
    return "won" if high < 0 else "lost" if low > 0 else "open"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _opened(comparison: Comparison) -> Comparison:
    """Claim no win over the best fixed shape, in any currency: another one may be better."""
    currencies = tuple(
        replace(one, outcome="open") if one.outcome == "won" else one for one in comparison.currencies
    )
    outcome: Outcome = "open" if _surely_won(comparison) else comparison.outcome
    return replace(comparison, outcome=outcome, currencies=currencies)


def _surely_won(one: Comparison) -> bool:
    return one.difference.high is not None and one.difference.high < 0


def _headline(confirmed: bool, comparisons: tuple[Comparison, ...], unconfirmed: int, currency: str) -> str:
    lost = [one.rival for one in comparisons if one.outcome == "lost"]
    undecided = [one.rival for one in comparisons if one.outcome == "open"]
    beaten = [one.rival for one in comparisons if one.outcome == "won"]
    but = f", though growth beat {words.listed(beaten)}" if beaten else ""
    if not comparisons:
        return "Candidate, not a verdict: there is no fixed shape to compare with yet."
    if not confirmed:
        leads = "does not lead" if lost or undecided else "leads"
        rivals = words.listed(lost + undecided or beaten)
        return f"Candidate, not a verdict: growth {leads} {rivals} on validation."
    surely = [one.rival for one in comparisons if one.outcome == "lost" and one.difference.low is not None]
    if not surely and any(one.difference.low is None for one in comparisons):
        leads = "is not ahead of" if lost or undecided else "is ahead of"
        rivals = words.listed(lost + undecided or beaten)
        return f"Not decided: growth {leads} {rivals}, but an interval needs at least two seeds in common."
    if surely:
        return f"Growth did not win: {words.listed(surely)} had a lower test loss at equal {currency}{but}."
    if noisy := [one.rival for one in comparisons if not _surely_won(one)]:
        rivals = words.listed(noisy)
        return f"Not decided: the difference from {rivals} is within the noise of seeds and text{but}."
    if unconfirmed:
        rivals = words.listed([one.rival for one in comparisons])
        others = f"{words.many(unconfirmed, 'fixed shape')} that may be better {_are(unconfirmed)}"
        return f"Not decided: growth beat {rivals}, but {others} not confirmed."
    if turned := _not_won(comparisons):
        return f"Growth won at an equal budget against {words.listed(beaten)}, but {turned}."
    return f"Growth won: a lower test loss than {words.listed(beaten)} at equal {currency}."


_NOT_WON: Mapping[Outcome | None, str] = {
    "lost": "it lost",
    "open": "nothing is decided",
    None: "the answer is not known",
}
"""The words of a headline for a currency in which growth did not win, by the outcome there."""


def _not_won(comparisons: tuple[Comparison, ...]) -> str:
    """Return where growth did not win, and against whom; empty if it won everywhere.

    An example is ``against the final shape it lost at equal tokens and seconds``.
    """
    found: dict[tuple[str, str], list[str]] = {}
    for name in COST_NAMES.values():
        rivals: dict[Outcome | None, list[str]] = {}
        for comparison in comparisons:
            for one in comparison.currencies:
                if one.name == name and one.outcome != "won":
                    rival = "the final shape" if comparison.is_final else "the best fixed shape"
                    rivals.setdefault(one.outcome, []).append(rival)
        for outcome, those in rivals.items():
            found.setdefault((words.listed(those), _NOT_WON[outcome]), []).append(name)
    return words.listed(
        [f"against {those} {what} at equal {words.listed(names)}" for (those, what), names in found.items()]
    )


def _measured(one: Contender, split: str) -> str:
    seeds = "one seed" if len(one.losses) == 1 else f"mean of {len(one.losses)} seeds"
    return f"{split} loss {words.loss(one.mean)} ({seeds})"


def _sentence(comparison: Comparison, split: str, currency: str) -> str:
    theirs, estimate = comparison.theirs, comparison.difference
    rate = f"at learning rate {theirs.trial.record.learning_rate:.3g}"
    sure = _interval(estimate, split)
    rival = comparison.rival[0].upper() + comparison.rival[1:]
    currencies = "".join(f" {_currency(one, split)}" for one in comparison.currencies)
    return (
        f"{rival}, {rate}, has {_measured(theirs, split)}: "
        f"the schedule's loss is {words.apart(estimate.value)}{sure}. "
        f"{_saved(comparison, split, currency)}{currencies}"
    )


def _interval(estimate: Estimate, split: str) -> str:
    if estimate.low is not None:
        return f" (95% interval {words.interval(estimate)})"
    return " (no interval: that needs two seeds of each)" if split == "test" else ""


def _currency(one: Currency, split: str) -> str:
    spent = f"The schedule spent {one.ratio:.2f} times the rival's {one.name}"
    if one.difference is None:
        return f"{spent}; the rival was not trained with a budget that costs as much."
    won = {"won": "growth wins", "lost": "growth loses", "open": "it is not decided", None: ""}[one.outcome]
    return (
        f"{spent}; at equal {one.name} {won}: the schedule's {split} loss is "
        f"{words.apart(one.difference.value)}{_interval(one.difference, split)}."
    )


def _saved(comparison: Comparison, split: str, currency: str) -> str:
    """Return sentences on the compute or time saved over a rival, or on why it is not known."""
    equal = comparison.equal
    if equal is None:
        return f"How much {currency} that saves is not known: the rival was trained with one budget only."
    trained = words.listed([f"{rung.times:.4g}" for rung in equal.rungs])
    of = "its" if comparison.is_final else "the best fixed shapes'"
    source = f"read off {of} tuned, fully decayed results at {trained} times the budget"
    least, most = equal.rungs[0].times, equal.rungs[-1].times
    sure = words.saved_interval(equal)
    saved = f"{currency.capitalize()} saved at equal {split} loss"
    if equal.times is None and equal.above:
        return (
            f"{saved}: more than {share(most):.0%}{sure}. With {most:.4g} times the budget, the largest it "
            "was trained with, the rival's mean loss is still higher."
        )
    none = f"No {currency} saved at equal {split} loss"
    if equal.times is None:
        return (
            f"{none}{sure}: the rival reaches it with less than {least:.4g} times the budget, the smallest "
            "it was trained with."
        )
    needs = f"The rival needs {equal.times:.2f} times the budget to reach the schedule's loss, {source}"
    saved = none if equal.times <= 1 else f"{saved}: {share(equal.times):.0%}"
    return f"{saved}{sure}. {needs}."
