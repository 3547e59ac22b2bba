"""The verdict: how growth compares with fixed shapes, in numbers and in plain sentences.

It answers two questions. *Same final shape*: does growth beat training the final shape from scratch, and how
much compute does it save? *Same compute, any shape*: does it beat the best fixed shape? With confirmations
the answers are about test losses of fresh seeds. Without, there is only a candidate: the best of many trials
on the split that chose it.

Every run of a study has the same budget. Where that is FLOPs, a schedule may still see more tokens or take
more seconds than its rival, so the verdict also compares it with the rival at as many tokens and seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from nasgrow.report import words
from nasgrow.report.budgets import EqualLoss, Rung, apart_at, equal_loss, share
from nasgrow.report.load import Records
from nasgrow.report.ranking import Contender, Ranking, contender
from nasgrow.report.statistics import Estimate, difference

Outcome = Literal["won", "lost", "open"]

COST_NAMES = {"charged": "FLOPs", "tokens": "tokens", "schedule_seconds": "seconds"}
"""The fields of records that hold what training costs, and their names."""

ALIKE = 0.02
"""Costs that differ by less are equal: steps are whole."""


@dataclass(frozen=True)
class Currency:
    """The best schedule against a rival that spends as much of one currency.

    Attributes:
        name: Tokens, seconds or FLOPs.
        ratio: What the schedule spends of it, as a multiple of the rival's at the study's budget.
        difference: Loss of the schedule less that of the rival; None outside the budgets it was trained with.
        outcome: Like that of a comparison; None where it is unknown.
    """

    name: str
    ratio: float
    difference: Estimate | None
    outcome: Outcome | None


@dataclass(frozen=True)
class Comparison:
    """The best schedule against one fixed shape at an equal budget.

    Attributes:
        rival: What it is compared with, in words.
        is_final: Whether that is the final shape, the rival of the first question.
        theirs: The rival.
        difference: Loss of the schedule less that of the rival.
        equal: The budget at which the rival has the same loss; None where it has one budget only.
        outcome: ``won`` or ``lost`` where an interval excludes zero; without intervals, who leads.
        currencies: The same at equal tokens, seconds or FLOPs, where these differ at the study's budget.
    """

    rival: str
    is_final: bool
    theirs: Contender
    difference: Estimate
    equal: EqualLoss | None
    outcome: Outcome
    currencies: tuple[Currency, ...] = ()


@dataclass(frozen=True)
class Verdict:
    """What a study says.

    Attributes:
        confirmed: Whether it stands on fresh seeds and the test split.
        ours: The best schedule that grows; None if there is none yet.
        comparisons: With the final shape, and with the best fixed shape if that is another one.
        headline: The answer in one line.
        sentences: The answer with its numbers.
        diverged: Whether every confirmed schedule diverged with a fresh seed.
        currency: What the runs compared have as much of: compute, or time.
    """

    confirmed: bool
    ours: Contender | None
    comparisons: tuple[Comparison, ...]
    headline: str
    sentences: tuple[str, ...]
    diverged: bool = False
    currency: str = "compute"

    @property
    def split(self) -> str:
        """The split that its losses were measured on."""
        return "test" if self.confirmed else "validation"

    @property
    def outcome(self) -> Outcome:
        """The outcome of all comparisons: only what is confirmed with an interval is won or lost."""
        if self.diverged:
            return "lost"
        if not self.confirmed or not self.comparisons:
            return "open"
        found = {"open" if one.difference.low is None else one.outcome for one in self.comparisons}
        return "lost" if "lost" in found else "won" if found == {"won"} else "open"


def judge(records: Records, ranking: Ranking) -> Verdict:
    """Make a verdict, or name a candidate."""
    return _on_test(ranking) or _on_validation(records, ranking)


def _on_test(ranking: Ranking) -> Verdict | None:
    """The verdict of confirmations, if there is a schedule and a fixed shape among them."""
    # Whatever has fewer seeds than others has not ended yet, or diverged: its mean is not to be trusted.
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
    rivals = _rivals(same, fixed[0], ranking)
    return _verdict(True, ours, rivals, ranking, ranking.confirmed_others, [])


def _all_diverged(tried: list[Contender]) -> Verdict:
    """The verdict where no confirmed schedule can be trained with every fresh seed."""
    lines = [
        f"{one.title}: {one.failed} of {words.many(len(one.trials), 'training')} diverged"
        + (f", the others have a mean test loss of {words.loss(one.mean)}" if one.losses else "")
        for one in tried
    ]
    headline = "Growth did not win: every confirmed schedule diverged with a fresh seed."
    return Verdict(True, None, (), headline, tuple(f"{line}." for line in lines), diverged=True)


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
    return _verdict(False, ours, _rivals(final, best, ranking), ranking, others, [curse])


def _rivals(
    final: Contender | None, best: Contender | None, ranking: Ranking
) -> list[tuple[str, bool, Contender]]:
    """The final shape, and the best fixed shape if that is another one."""
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
    split = "test" if confirmed else "validation"
    sentences = [f"The best schedule, {ours.title}, has {_measured(ours, split)}: {ours.trial.record.words}."]
    currency = ranking.currency
    sentences += [_sentence(comparison, split, currency) for comparison in comparisons]
    if not any(comparison.is_final for comparison in comparisons):
        sentences.append(f"The final shape {ranking.begun} has no result to compare with.")
    headline = _headline(confirmed, comparisons, currency)
    return Verdict(confirmed, ours, comparisons, headline, (*sentences, *more), currency=currency)


def _curve(is_final: bool, theirs: Contender, others: list[Contender]) -> list[Rung]:
    """The baseline curve of a rival: the final shape's own, or the best fixed shape under each budget."""
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
    if not confirmed:  # an interval over chosen trials would promise too much
        apart = Estimate(apart.value, None, None)
        equal = None if equal is None else replace(equal, low=None, high=None, sure=False)
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


def _headline(confirmed: bool, comparisons: tuple[Comparison, ...], currency: str) -> str:
    lost = [one.rival for one in comparisons if one.outcome == "lost"]
    undecided = [one.rival for one in comparisons if one.outcome == "open"]
    beaten = [one.rival for one in comparisons if one.outcome == "won"]
    but = f", though it beat {words.listed(beaten)}" if beaten else ""
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
    if undecided:
        rivals = words.listed(undecided)
        return f"Not decided: the difference from {rivals} is within what seeds and text vary{but}."
    turned = _not_won(comparisons)
    if turned:
        return f"Growth won at an equal budget against {words.listed(beaten)}, but not {turned}."
    return f"Growth won: a lower test loss than {words.listed(beaten)} at equal {currency}."


def _not_won(comparisons: tuple[Comparison, ...]) -> str:
    """The currencies in which a schedule that won at an equal budget did not win."""
    names = dict.fromkeys(
        one.name for comparison in comparisons for one in comparison.currencies if one.outcome != "won"
    )
    return f"at equal {words.listed(list(names))}" if names else ""


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
        f"the schedule's is {words.apart(estimate.value)}{sure}. "
        f"{_saved(comparison, split, currency)}{currencies}"
    )


def _interval(estimate: Estimate, split: str) -> str:
    if estimate.low is not None:
        return f" (95% interval {words.interval(estimate)})"
    return " (no interval: it takes two seeds of each)" if split == "test" else ""


def _currency(one: Currency, split: str) -> str:
    spent = f"The schedule spent {one.ratio:.2f} times its {one.name}"
    if one.difference is None:
        return f"{spent}; no budget of it that costs as much was trained."
    won = {"won": "wins", "lost": "loses", "open": "is not decided", None: ""}[one.outcome]
    return (
        f"{spent}; at equal {one.name} growth {won}: the schedule's {split} loss is "
        f"{words.apart(one.difference.value)}{_interval(one.difference, split)}."
    )


def _saved(comparison: Comparison, split: str, currency: str) -> str:
    """Compute or time saved, where the rival was trained under several budgets."""
    equal = comparison.equal
    if equal is None:
        return f"How much {currency} that saves is not known: it was trained under one budget only."
    trained = words.listed([f"{rung.times:.4g}" for rung in equal.rungs])
    of = "its own" if comparison.is_final else "the best fixed shapes'"
    source = f"read off {of} tuned, fully decayed results with {trained} times the budget"
    least, most = equal.rungs[0].times, equal.rungs[-1].times
    sure = words.saved_interval(equal)
    saved = f"{currency.capitalize()} saved at equal {split} loss"
    if equal.times is None and equal.above:
        return (
            f"{saved}: more than {share(most):.0%}{sure}: with {most:.4g} times the budget, the most it was "
            "trained with, its mean loss is still higher."
        )
    none = f"No {currency} saved at equal {split} loss"
    if equal.times is None:
        return (
            f"{none}{sure}: it gets there with less than {least:.4g} times the budget, the least it was "
            "trained with."
        )
    needs = f"it needs {equal.times:.2f} times the budget for the schedule's loss, {source}"
    saved = none if equal.times <= 1 else f"{saved}: {share(equal.times):.0%}"
    return f"{saved}{sure}: {needs}."
