"""Rank studies whose losses are comparable, in numbers and in plain sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from nasgrow.report import words
from nasgrow.report.compare.studies import ComparedStudy, clashes, groups
from nasgrow.report.page import Tone
from nasgrow.report.ranking import Contender
from nasgrow.report.statistics import Estimate, difference


@dataclass(frozen=True)
class Standing:
    """The best schedule of one study.

    Attributes:
        entry: The study.
        ours: Its best schedule.
        behind: The leader's loss minus this one's, without an interval if not confirmed; None for
            the leader.
    """

    entry: ComparedStudy
    ours: Contender
    behind: Estimate | None

    @property
    def outcome(self) -> Tone:
        """``won`` if the leader is ahead of this study beyond the noise of seeds and text, else ``open``."""
        if self.behind is None or self.behind.low is None or self.behind.high is None:
            return "open"
        return "won" if self.behind.high < 0 else "open"


@dataclass(frozen=True)
class Contest:
    """Studies whose losses are comparable.

    Attributes:
        entries: The studies.
        confirmed: Whether they are compared by test losses of fresh seeds. That is so if every
            study with a schedule has confirmed one.
        standings: The studies that have a schedule, the lowest loss first.
    """

    entries: tuple[ComparedStudy, ...]
    confirmed: bool
    standings: tuple[Standing, ...]

    @property
    def split(self) -> str:
        """The split on which its losses were measured."""
        return "test" if self.confirmed else "validation"

    @property
    def unequal(self) -> list[str]:
        """The settings that differ between the studies and qualify a lead: budget, final shape, variant."""
        studies = [entry.found.records.study for entry in self.entries]
        found: dict[str, set[object]] = {
            "budget": {study.budget for study in studies},
            "final shape": {study.final for study in studies},
            "variant": {study.config.variant for study in studies},
        }
        return [name for name, values in found.items() if len(values) > 1]

    @property
    def decided(self) -> bool:
        """Whether the leader is ahead of all others, at least one, beyond the noise."""
        return len(self.standings) > 1 and all(one.outcome == "won" for one in self.standings[1:])

    @property
    def headline(self) -> str:
        """Which study is ahead, in a line."""
        if len(self.standings) < 2:
            having = [one.entry.title for one in self.standings]
            only = f"only {having[0]} has" if having else "none has"
            return f"No answer yet: {only} a schedule that grows and finished."
        leader, others = self.standings[0].entry.title, self.standings[1:]
        titles = words.listed([one.entry.title for one in others])
        if not self.confirmed:
            text = f"Candidates, not a verdict: the best schedule of {leader} leads {titles} on validation"
        elif self.decided:
            text = f"{leader} is ahead: its best schedule has a lower test loss than {titles}"
        else:
            close = words.listed([one.entry.title for one in others if one.outcome != "won"])
            why = (
                "an interval needs at least two seeds in common"
                if any(one.behind and one.behind.low is None for one in others)
                else f"the difference from {close} is within the noise of seeds and text"
            )
            text = f"Not decided: {leader} has the lowest test loss, but {why}"
        unequal = self.unequal
        if "budget" in unequal:
            text += ", not at equal compute"
        if "final shape" in unequal:
            text += (
                ", for different final shapes"
                if "budget" not in unequal
                else " and for different final shapes"
            )
        return f"{text}."

    @property
    def sentences(self) -> list[str]:
        """A sentence for each study's best schedule: its loss and its distance from the leader.

        A last sentence names the studies without a schedule, if there are any.
        """
        found = []
        for one in self.standings:
            seeds = "one seed" if len(one.ours.losses) == 1 else f"mean of {len(one.ours.losses)} seeds"
            loss = f"{self.split} loss {words.loss(one.ours.mean)} ({seeds})"
            text = f"{one.entry.title}: {one.ours.title} has {loss}"
            if one.behind is not None:
                sure = f", 95% interval {words.interval(one.behind)}" if one.behind.low is not None else ""
                lead = f"{self.standings[0].entry.title}'s is {words.apart(one.behind.value)}{sure}"
                text = f"{text}; {lead}"
            found.append(f"{text}.")
        missing = [
            entry.title for entry in self.entries if entry not in [one.entry for one in self.standings]
        ]
        if missing:
            found.append(f"Without a schedule to compare: {words.listed(missing)}.")
        return found


@dataclass(frozen=True)
class StudyComparison:
    """Several studies, compared as far as their losses are comparable.

    Attributes:
        name: The name of the comparison.
        entries: The studies, in the order given.
        contests: The groups of studies whose losses are comparable; a group may have one study.
        apart: The names of the properties that make losses incomparable, such as the tokenizer;
            empty if all are comparable.
    """

    name: str
    entries: tuple[ComparedStudy, ...]
    contests: tuple[Contest, ...]
    apart: tuple[str, ...]

    @property
    def headline(self) -> str:
        """The answer in a line."""
        if not self.apart:
            return self.contests[0].headline
        ranked = " ".join(contest.headline for contest in self.contests if len(contest.entries) > 1)
        text = (
            f"Not ranked: the studies differ in {words.listed(self.apart)}, so their losses are not "
            "comparable. Each is compared with its baselines only."
        )
        return f"{text} Among the comparable ones: {ranked}" if ranked else text

    @property
    def tone(self) -> Tone:
        """``won`` if all studies are comparable and confirmed, and one leads beyond noise; else ``open``."""
        return "won" if not self.apart and self.contests[0].confirmed and self.contests[0].decided else "open"


def compare(name: str, entries: Sequence[ComparedStudy]) -> StudyComparison:
    """Compare studies as far as their losses are comparable."""
    apart = clashes([entry.measured_by for entry in entries])
    return StudyComparison(
        name, tuple(entries), tuple(_contest(group) for group in groups(entries)), tuple(apart)
    )


def _contest(entries: Sequence[ComparedStudy]) -> Contest:
    """Rank studies on one split: the test split if each study with a schedule has confirmed it."""
    having = [entry for entry in entries if entry.best(confirmed=False) or entry.best(confirmed=True)]
    confirmed = bool(having) and all(entry.best(confirmed=True) for entry in having)
    ranked = [(entry, entry.best(confirmed=confirmed)) for entry in having]
    known = sorted(((entry, one) for entry, one in ranked if one), key=lambda pair: fmean(pair[1].losses))
    standings: list[Standing] = []
    for entry, one in known:
        behind = None
        if standings:
            behind = difference(standings[0].ours.by_seed, one.by_seed)
            if not confirmed:
                behind = Estimate(
                    behind.value, None, None
                )  # trials chosen by their losses have no valid interval
        standings.append(Standing(entry, one, behind))
    return Contest(tuple(entries), confirmed, tuple(standings))
