"""Count the trials of a study, for terminal, dashboard and report alike."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import TrialRecord


@dataclass(frozen=True)
class Counts:
    """How many trials of each kind a study has.

    The study's ``trials`` field counts some search trials only: not those that tune the best schedule, that
    are paused, or that a tree pruned.

    Attributes:
        ended: Search trials that ended and that the field counts.
        planned: The study's ``trials`` field, or ``ended`` if that is larger; None if the field is not set.
        among: How many of ``ended`` were ``pruned``, ``diverged`` or ``failed``.
        besides: How many search trials the field does not count: ``pruned`` by a tree, ``paused``,
            ``tuning``.
        baselines: Baseline trials that ended, under all budgets.
        fixed: Fixed-shape trials that ended, without those that a tree pruned.
        fixed_besides: How many fixed-shape trials a tree ``pruned``, or are ``paused``.
        confirmed: Confirmation trials that ended.
        least_baselines: The least number of baseline trials in all, while they are trained; else
            None.
        confirming: The number of confirmation trials in all, during a confirmation; else None.
    """

    ended: int
    planned: int | None
    among: Mapping[str, int]
    besides: Mapping[str, int]
    baselines: int = 0
    fixed: int = 0
    fixed_besides: Mapping[str, int] = field(default_factory=dict)
    confirmed: int = 0
    least_baselines: int | None = None
    confirming: int | None = None

    @property
    def done(self) -> int:
        """How many trials of all kinds ended: ``ended``, ``baselines``, ``fixed`` and ``confirmed``."""
        return self.ended + self.baselines + self.fixed + self.confirmed

    def __str__(self) -> str:
        """All counts in one line; during a confirmation those that still change."""
        if self.confirming is not None:
            more = self.least_baselines is not None and self.least_baselines > self.baselines
            baselines = f"{self.baselines} of at least {self.least_baselines} baseline runs" if more else ""
            confirmed = f"{self.confirmed} of {self.confirming} confirmation runs"
            return ", ".join(filter(None, (baselines, confirmed)))
        parts = [
            _aside(f"{_of(self.ended, self.planned)} search trials", self.among, self.besides),
            many(self.baselines, "baseline run"),
        ]
        if self.fixed or any(self.fixed_besides.values()):
            parts.append(_aside(many(self.fixed, "fixed-shape trial"), {}, self.fixed_besides))
        if self.confirmed:
            parts.append(many(self.confirmed, "confirmation run"))
        return ", ".join(parts)


def count_trials(
    study: ResolvedStudy,
    trials: Iterable[TrialRecord],
    baselines: int | None = None,
    confirming: int | None = None,
) -> Counts:
    """Count the trials of a study.

    Args:
        study: The study.
        trials: Its trials.
        baselines: The least number of baseline trials in all, while they are trained; else None.
        confirming: The number of confirmation trials in all, during a confirmation; else None.
    """
    trials = list(trials)
    search = [trial for trial in trials if trial.kind == "search" and trial.status != "running"]
    asked = Counter(trial.status for trial in search if is_asked_for(study, trial))
    others = Counter(
        "tuning" if trial.tunes else trial.status for trial in search if not is_asked_for(study, trial)
    )
    fixed = Counter(
        trial.status
        for trial in trials
        if trial.kind == "fixed" and (trial.status == "paused" or _pruned_by_tree(study, trial))
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
        fixed_besides={status: fixed[status] for status in ("pruned", "paused")},
        confirmed=over["confirmation"],
        least_baselines=baselines,
        confirming=confirming,
    )


def is_asked_for(study: ResolvedStudy, trial: TrialRecord) -> bool:
    """Return whether a search trial that is not running counts towards the study's ``trials``.

    Trials that tune, paused trials, and trials that a tree pruned do not count.
    """
    return not (trial.tunes or trial.status == "paused" or _pruned_by_tree(study, trial))


def _pruned_by_tree(study: ResolvedStudy, trial: TrialRecord) -> bool:
    """Return whether a tree paused a trial, and the search ended before it resumed it.

    A tree starts many trials and finishes few.
    """
    return study.config.sampler.kind == "tree" and trial.status == "pruned"


def _aside(told: str, among: Mapping[str, int], besides: Mapping[str, int]) -> str:
    """Return a text with numbers of trials in brackets, if there are any."""
    others = _listed(besides)
    aside = "; ".join(filter(None, (_listed(among), f"besides {others}" if others else "")))
    return f"{told} ({aside})" if aside else told


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{number} {what}" for what, number in counts.items() if number)


def _of(ended: int, planned: int | None) -> str:
    return str(ended) if planned is None else f"{ended} of {planned}"


def many(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless the number is 1."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
