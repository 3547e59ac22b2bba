"""The studies of a comparison, and which of their losses mean the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nasgrow.errors import UserError
from nasgrow.report.findings import Findings
from nasgrow.report.ranking import Contender, contender
from nasgrow.study.config import fields_of

UNIMPORTANT = ("name", "note", "workers", "storage")
"""Fields of a study file that change no result."""


@dataclass(frozen=True)
class ComparedStudy:
    """One study of a comparison.

    Attributes:
        title: Its name; with its folder where names are equal.
        found: What its records say.
    """

    title: str
    found: Findings

    def best(self, *, confirmed: bool) -> Contender | None:
        """Its best schedule that grows: by fresh seeds on the test split, or as the search's candidate."""
        if confirmed:
            return self.found.verdict.ours if self.found.verdict.confirmed else None
        schedules = self.found.ranking.schedules
        return contender(self.found.records, schedules[0]) if schedules else None

    def fixed(self, *, confirmed: bool) -> list[tuple[str, Contender]]:
        """The final shape and the best fixed shape tried, by name, on the same split as :meth:`best`."""
        ranking, final = self.found.ranking, self.found.records.study.final
        if confirmed:
            rivals = [comparison.theirs for comparison in self.found.verdict.comparisons]
        else:
            tuned = [ranking.final, ranking.best_size]
            best = dict.fromkeys(one.best.label for one in tuned if one and one.best)
            trials = [trial for trial in self.found.records.trials if trial.label in best]
            rivals = [contender(self.found.records, trial) for trial in trials]
        return [
            ("final shape" if one.trial.schedule.start == final else ranking.size_of(one.trial), one)
            for one in rivals
        ]

    @property
    def measured_by(self) -> Mapping[str, str]:
        """What a loss of this study is measured with: only where all of it is equal do losses compare.

        A study without a run has no data yet that could differ.
        """
        records = self.found.records
        known = records.origins.fingerprints
        training, data = records.study.config.training, records.study.config.data
        return {
            **({"data fingerprint": " and ".join(sorted(known))} if known else {}),
            "tokenizer": data.tokens.kind,
            "vocabulary": f"{records.study.variant.vocab:,}",
            "context": f"{training.context:,} tokens",
            "final evaluation": f"{training.final_tokens:,} tokens",
        }

    @property
    def fields(self) -> Mapping[str, str]:
        """All of its study file that may change a result, by dotted name."""
        found = fields_of(self.found.records.study.config)
        return {name: str(value) for name, value in found.items() if name not in UNIMPORTANT}


def check_distinct(folders: Sequence[Path]) -> None:
    """Raise ``UserError`` unless these are the folders of several studies, none twice."""
    if len(folders) < 2:
        raise UserError("a comparison takes at least two studies")
    seen: set[Path] = set()
    for folder in folders:
        if folder.resolve() in seen:
            raise UserError(f"{folder}: stands twice; a study cannot be compared with itself")
        seen.add(folder.resolve())


def entries(found: Sequence[Findings]) -> list[ComparedStudy]:
    """The studies with titles that tell them apart."""
    names = [one.records.study.config.name for one in found]
    return [
        ComparedStudy(name if names.count(name) == 1 else f"{name} ({one.records.folder})", one)
        for name, one in zip(names, found, strict=True)
    ]


def groups(entries: Sequence[ComparedStudy]) -> list[list[ComparedStudy]]:
    """The studies whose losses mean the same, together."""
    found: list[list[ComparedStudy]] = []
    for entry in entries:
        fits = (group for group in found if not clashes([one.measured_by for one in (*group, entry)]))
        group = next(fits, None)
        if group is None:
            found.append([entry])
        else:
            group.append(entry)
    return found


def clashes(of: Sequence[Mapping[str, str]]) -> list[str]:
    """The names that have several values."""
    names = dict.fromkeys(name for one in of for name in one)
    return [name for name in names if len({one[name] for one in of if name in one}) > 1]
