"""Asking the pruner: what every evaluation of a trial goes through, just trained or recorded long ago."""

from __future__ import annotations

import math
from collections.abc import Iterable

from nasgrow.search.ledger import Claim, Ledger
from nasgrow.search.samplers import FULL, recovered
from nasgrow.training.loop import Stopped


class Asking:
    """Reports each evaluation of a trial's first run, and gives the trial up where the pruner says so.

    Args:
        claim: The trial.
        ledger: Its study's.
        events: The fractions of the budget at which its events happen.
        first: Whether this is its first run.
    """

    def __init__(self, claim: Claim, ledger: Ledger, events: Iterable[float], *, first: bool) -> None:
        self.trial = claim.trial
        self.reports = first and len(ledger.optuna_study(claim.kind).directions) == 1
        self.prunes = self.reports and claim.kind == "search"
        self.config = ledger.study.config.pruner
        self.events = list(events)
        self.done = set(ledger.storage.get_trial(claim.trial._trial_id).intermediate_values)

    def report(self, fraction: float, loss: float) -> None:
        """Take down an evaluation at an aligned fraction of the budget."""
        step = round(FULL * fraction)
        if self.reports and step not in self.done and math.isfinite(loss):
            self.trial.report(loss, step)
            self.done.add(step)

    def judge(self, fraction: float, loss: float) -> None:
        """Take it down, and give the trial up if the pruner says so.

        The pruner is asked whether or not the loss has recovered, because some compare what trials had when
        they were asked: all must be asked at the same fractions.
        """
        self.report(fraction, loss)
        after = self.config.after if self.config.kind != "none" else 0.0  # a tree has rungs of its own
        worse = self.prunes and fraction >= after and self.trial.should_prune()
        if worse and recovered(self.config, self.events, fraction):
            raise Stopped
