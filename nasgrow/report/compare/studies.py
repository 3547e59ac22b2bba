"""The studies of a comparison, grouped by whether their losses are comparable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nasgrow.errors import UserError
from nasgrow.report.findings import Findings
from nasgrow.report.ranking import Contender, contender
from nasgrow.study.config import fields_of

UNIMPORTANT = ("name", "note", "workers", "storage")
"""Fields of a study file that do not affect results."""


@dataclass(frozen=True)
class ComparedStudy:
    """One study of a comparison.

    Attributes:
        title: Its name, followed by its folder if several studies have that name.
        found: Its records and verdict.
    """

    title: str
    found: Findings

    def best(self, *, confirmed: bool) -> Contender | None:
        """Return its best schedule that grows; None if there is none.

        Args:
            confirmed: Whether confirmations judge it, by test losses; else the search does.
        """
        if confirmed:
            return self.found.verdict.ours if self.found.verdict.confirmed else None
        schedules = self.found.ranking.schedules
        return contender(self.found.records, schedules[0].record) if schedules else None

    def fixed(self, *, confirmed: bool) -> list[tuple[str, Contender]]:
        """Return the final shape and the best fixed shape with names, as far as they have a result.

        Args:
            confirmed: Whether confirmations judge them, as in :meth:`best`.
        """
        ranking, final = self.found.ranking, self.found.records.study.final
        if confirmed:
            rivals = [comparison.theirs for comparison in self.found.verdict.comparisons]
        else:
            tuned = [ranking.final, ranking.best_size]
            best = {one.best.label: one.best for one in tuned if one and one.best}
            rivals = [contender(self.found.records, record) for record in best.values()]
        return [
            ("final shape" if one.trial.schedule.start == final else ranking.size_of(one.trial), one)
            for one in rivals
        ]

    @property
    def measured_by(self) -> Mapping[str, str]:
        """The properties that must be equal for losses to be comparable, by name.

        A study without a run has no data fingerprint yet, and so leaves it out: then only the
        other properties must be equal.
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
        """The fields of its resolved study file as text, by dotted name, without :data:`UNIMPORTANT`.

        Some of them do not affect results either, such as paths and the settings of the prefix cache.
        """
        found = fields_of(self.found.records.study.config)
        return {name: str(value) for name, value in found.items() if name not in UNIMPORTANT}


def check_distinct(folders: Sequence[Path]) -> None:
    """Raise ``UserError`` unless there are at least two folders, all different."""
    if len(folders) < 2:
        raise UserError("a comparison takes at least two studies")
    seen: set[Path] = set()
    for folder in folders:
        if folder.resolve() in seen:
            raise UserError(f"{folder}: is given twice; a study cannot be compared with itself")
        seen.add(folder.resolve())


def entries(found: Sequence[Findings]) -> list[ComparedStudy]:
    """Return the studies with distinct titles."""
    names = [one.records.study.config.name for one in found]
    return [
        ComparedStudy(name if names.count(name) == 1 else f"{name} ({one.records.folder})", one)
        for name, one in zip(names, found, strict=True)
    ]


def groups(entries: Sequence[ComparedStudy]) -> list[list[ComparedStudy]]:
    """Group the studies whose losses are comparable, in the order given.

    Each study joins the first group in which it clashes with no other.
    """
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
    """Return the names whose values differ between mappings; a mapping may lack a name."""
    names = dict.fromkeys(name for one in of for name in one)
    return [name for name in names if len({one[name] for one in of if name in one}) > 1]
