"""Format numbers in one way for sentences, tables and figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nasgrow.report.budgets import EqualLoss, share
from nasgrow.report.statistics import Estimate
from nasgrow.study import counts

UNITS = ((1e21, "ZFLOP"), (1e18, "EFLOP"), (1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP"), (1e6, "MFLOP"))


def loss(value: float | None) -> str:
    """Return a loss with four decimals; empty for None."""
    return "" if value is None else f"{value:.4f}"


def signed(value: float) -> str:
    """Return a difference of losses with its sign."""
    return f"{value:+.4f}".replace("-", "−")


def interval(estimate: Estimate) -> str:
    """Return the 95% interval of a difference, or ``no interval``."""
    if estimate.low is None or estimate.high is None:
        return "no interval"
    return f"{signed(estimate.low)} to {signed(estimate.high)}"


def saved(equal: EqualLoss) -> str:
    """Return the compute saved, such as ``23%``.

    If the budget of equal loss lies outside the budgets trained, it is a bound: ``> 50%`` or ``< 0%``.
    """
    least, most = equal.rungs[0].times, equal.rungs[-1].times
    bound = "" if equal.times else "> " if equal.above else "< "
    return f"{bound}{share(equal.times or (most if equal.above else least)):.0%}".replace("-", "−")


def multiple(times: float) -> str:
    """Return a predicted multiple of the compute, as a bound below 0.1 and above 100."""
    if times < 0.1:
        return "less than 0.1"
    return "more than 100" if times > 100 else f"{times:.0f}" if times >= 9.95 else f"{times:.1f}"


def predicted_share(times: float) -> str:
    """Return the compute saved at a predicted multiple of the compute, as a bound below 0.1 and above 100."""
    if times < 0.1:
        return "less than −900%"
    if times > 100:
        return "more than 99%"
    percent = round(100 * share(times))
    return f"{percent}%".replace("-", "−")


def saved_interval(equal: EqualLoss) -> str:
    """Return the 95% interval of the compute saved, to append: a space, and the text in brackets.

    If ``equal.apart``, there is no interval and the text is ``at the 95% level``. Unless
    ``equal.sure``, as with too few seeds, the result is empty.
    """
    if not equal.sure:
        return ""
    if equal.apart:
        return " (at the 95% level)"
    return f" (95% interval {saved_between(equal, 'less than ', 'more than ')})"


def saved_between(equal: EqualLoss, less: str, more: str) -> str:
    """Return the 95% interval of the compute saved in percent, as ``low to high``.

    There must be an interval: ``equal.sure`` and not ``equal.apart``. If an end lies outside the
    budgets trained, the text has the saving at the nearest trained budget instead, with the word
    ``less`` before a low end and ``more`` before a high end.
    """
    least, most = equal.rungs[0].times, equal.rungs[-1].times
    low = f"{less}{share(least):.0%}" if equal.low is None else f"{share(equal.low):.0%}"
    high = f"{more}{share(most):.0%}" if equal.high is None else f"{share(equal.high):.0%}"
    return f"{low} to {high}".replace("-", "−")


def apart(value: float) -> str:
    """Return a difference of losses as ``0.0123 lower`` or ``0.0123 higher``."""
    return f"{abs(value):.4f} {'lower' if value < 0 else 'higher'}"


def unit(flops: float) -> tuple[float, str]:
    """Return the size and name of the largest unit that is not above ``flops``."""
    return next(((size, name) for size, name in UNITS if flops >= size), (1.0, "FLOP"))


def compute(flops: float) -> str:
    """Return FLOPs in a readable unit, such as ``1.2 TFLOP``."""
    size, name = unit(_rounded(flops))
    return f"{flops / size:.3g} {name}"


def _rounded(number: float) -> float:
    """Round to three digits, so that the unit fits what is shown: 999,600 is 1M, not 1e+03k."""
    return float(f"{number:.3g}")


def count(number: float) -> str:
    """Return a number rounded to a whole one, with thousands separators."""
    return f"{number:,.0f}"


def short_count(number: float) -> str:
    """Return a number with a suffix (k, M, B, T), for axes."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if _rounded(number) >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.0f}"


def duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


many = counts.many
"""Return a number with its noun, such as ``1 run`` or ``2 runs``."""


def besides(trials: Mapping[str, int]) -> str:
    """Return numbers of trials in words, such as ``2 pruned trials and 1 paused trial``.

    Statuses without a trial are left out; the text is empty if all are.
    """
    return listed([many(number, f"{status} trial") for status, number in trials.items() if number])


def listed(items: Sequence[str]) -> str:
    """Join items as ``a, b and c``."""
    return ", ".join(items) if len(items) < 2 else f"{', '.join(items[:-1])} and {items[-1]}"
