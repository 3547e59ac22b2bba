"""How many trials a study has: counted once, for terminal, dashboard and report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from nasgrow.study.study import Study
from nasgrow.study.trials import TrialRecord


@dataclass(frozen=True)
class Counts:
    """Trials of a study.

    Attributes:
        ended: Trials of the search that ended, of those that the study asks for.
        planned: How many it asks for, if it says so.
        among: How many of those that ended were pruned, diverged or failed.
        besides: Trials of the search that the study does not ask for: those that a tree pruned, that are
            paused, and that tune the best schedule.
        baselines: Runs of baselines that ended, under all budgets.
        fixed: Trials of fixed shapes that ended, without those that a tree pruned.
        confirmed: Runs with fresh seeds that ended.
        confirming: How many of these there will be, while they are trained.
    """

    ended: int
    planned: int | None
    among: Mapping[str, int]
    besides: Mapping[str, int]
    baselines: int = 0
    fixed: int = 0
    confirmed: int = 0
    confirming: int | None = None

    @property
    def done(self) -> int:
        """Trials of all kinds that ended, but those of the search that it does not ask for."""
        return self.ended + self.baselines + self.fixed + self.confirmed

    def __str__(self) -> str:
        """All of it in a line."""
        search = f"{_of(self.ended, self.planned)} search trials"
        besides = _listed(self.besides)
        aside = [_listed(self.among), f"besides {besides}" if besides else ""]
        told = "; ".join(text for text in aside if text)
        parts = [search + (f" ({told})" if told else "")]
        parts.append(many(self.baselines, "baseline run"))
        parts += [many(self.fixed, "fixed-shape trial")] * bool(self.fixed)
        if self.confirming is not None:
            parts.append(f"{_of(self.confirmed, self.confirming)} confirmation runs")
        elif self.confirmed:
            parts.append(many(self.confirmed, "confirmation run"))
        return ", ".join(parts)


def count_trials(study: Study, trials: Iterable[TrialRecord], confirming: int | None = None) -> Counts:
    """Count the trials of a study, ``confirming`` being how many confirmation runs there will be."""
    trials = list(trials)
    search = [trial for trial in trials if trial.kind == "search" and trial.status != "running"]
    asked = Counter(trial.status for trial in search if is_asked_for(study, trial))
    others = Counter(
        "tuning" if trial.tunes else trial.status for trial in search if not is_asked_for(study, trial)
    )
    over = Counter(trial.kind for trial in trials if trial.is_ended and not _pruned_by_tree(study, trial))
    ended, planned = asked.total(), study.config.trials
    return Counts(
        ended=ended,
        planned=None if planned is None else max(planned, ended),
        among={status: asked[status] for status in ("pruned", "diverged", "failed")},
        besides={status: others[status] for status in ("pruned", "paused", "tuning")},
        baselines=over["baseline"],
        fixed=over["fixed"],
        confirmed=over["confirmation"],
        confirming=confirming,
    )


def is_asked_for(study: Study, trial: TrialRecord) -> bool:
    """Whether a trial that is not running is one of those that the study asks for."""
    return not (trial.tunes or trial.status == "paused" or _pruned_by_tree(study, trial))


def _pruned_by_tree(study: Study, trial: TrialRecord) -> bool:
    """Whether a tree paused a trial and did not resume it: it starts many and finishes few."""
    return study.config.sampler.kind == "tree" and trial.status == "pruned"


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {what}" for what, number in counts.items() if number)


def _of(ended: int, planned: int | None) -> str:
    return str(ended) if planned is None else f"{ended} of {planned}"


def many(number: int, noun: str) -> str:
    """A number of things."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
