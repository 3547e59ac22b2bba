"""Compose the report of a comparison from its sections."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean, stdev

from nasgrow.report import words
from nasgrow.report.compare.ranking import Contest, Standing, StudyComparison
from nasgrow.report.compare.studies import UNIMPORTANT
from nasgrow.report.figures import compare as figures
from nasgrow.report.figures.style import short
from nasgrow.report.page import Block, Bullets, Page, PageTable, Paragraph, Section, Tile, Tiles
from nasgrow.report.sections.common import Gallery, aside, made, weakening
from nasgrow.report.verdict import Comparison

MAX_SETTING_LETTERS = 60
"""The most letters of a setting that a table shows."""


def compose(comparison: StudyComparison) -> tuple[Page, Gallery]:
    """Return the page of a comparison and its figures."""
    gallery = Gallery()
    titles = [entry.title for entry in comparison.entries]
    page = Page(
        title=comparison.name,
        facts=f"{len(titles)} studies: {words.listed(titles)}.",
        headline=comparison.headline,
        tone=comparison.tone,
        sections=[section(comparison, gallery) for section in COMPARE_SECTIONS],
        made=made(),
        kind="Comparison of growth studies",
    )
    return page, gallery


def _verdict(comparison: StudyComparison, gallery: Gallery) -> Section:
    blocks: list[Block] = []
    for contest in comparison.contests:
        if tiles := _tiles(contest):
            blocks.append(Tiles(tiles))
        if len(contest.entries) > 1:
            blocks += [Paragraph(sentence) for sentence in contest.sentences]
    if any(len(contest.standings) > 1 and not contest.confirmed for contest in comparison.contests):
        blocks.append(
            aside(
                "Not every study is confirmed, so the candidates are compared on the validation split, which "
                "chose them. nasgrow confirm retrains them with fresh seeds and measures them on the test "
                "split."
            )
        )
    confirmed = any(contest.confirmed for contest in comparison.contests)
    picture = gallery.show_or_say(
        "contenders",
        figures.contenders(comparison),
        "The best schedule of each study (filled) and the fixed shapes that it is compared with (hollow): a "
        "mark for each seed, a stroke at the mean"
        + (", a band for its 95% interval where it is confirmed." if confirmed else "."),
        "Nothing to show yet: no study has a schedule that grows and finished.",
    )
    return Section("Verdict", [*blocks, picture])


def _tiles(contest: Contest) -> list[Tile]:
    leader = contest.standings[0].entry.title if contest.standings else ""
    tiles = []
    for one in contest.standings[1:]:
        assert one.behind is not None
        if not contest.confirmed:
            sure = "candidates, so without an interval"
        elif one.behind.low is None:
            sure = "no interval: that needs two seeds of each"
        else:
            sure = f"95% interval {words.interval(one.behind)}"
        label = f"{contest.split} loss of {leader} against {one.entry.title}"
        tiles.append(Tile(words.signed(one.behind.value), label, sure))
    return tiles


def _cautions(comparison: StudyComparison, gallery: Gallery) -> Section:
    return weakening(cautions(comparison))


def cautions(comparison: StudyComparison) -> list[str]:
    """Return the weaknesses of the comparison, a sentence each."""
    found = []
    for name in comparison.apart:
        values = [
            f"{one.measured_by[name]} ({one.title})" for one in comparison.entries if name in one.measured_by
        ]
        found.append(f"Losses are not comparable, and not ranked: {name} is {words.listed(values)}.")
    for contest in comparison.contests:
        found += _unequal(contest)
        found += _searches(contest)
        if len(contest.standings) > 2:
            found.append(
                f"{len(contest.standings) - 1} comparisons, each with a 95% interval: the chance that at "
                "least one of them is wrong is above 5%."
            )
    for what in ("machines", "versions", "commits"):
        of = {entry.title: set(getattr(entry.found.records.origins, what)) for entry in comparison.entries}
        if len({frozenset(values) for values in of.values() if values}) > 1:
            found.append(f"The studies have different {what}; the report of each study lists them.")
    for entry in comparison.entries:
        found += [f"{entry.title}: {weakness}" for weakness in entry.found.integrity.weaknesses]
    return found


def _searches(contest: Contest) -> list[str]:
    """Return a sentence on the spread of losses for each study that was searched several times.

    Those are studies whose files differ only in their names.
    """
    same: dict[tuple[tuple[str, str], ...], list[Standing]] = {}
    for one in contest.standings:
        same.setdefault(tuple(one.entry.fields.items()), []).append(one)
    found = []
    for searches in same.values():
        if len(searches) > 1:
            titles = words.listed([one.entry.title for one in searches])
            losses = [one.ours.mean for one in searches]
            found.append(
                f"{titles} are {len(searches)} searches of one study: the {contest.split} loss of their best "
                f"schedules is {words.loss(fmean(losses))} on average, with a standard deviation of "
                f"{stdev(losses):.4f} over searches. Which of them leads says nothing about the study."
            )
    return found


def _unequal(contest: Contest) -> list[str]:
    studies = [(entry.title, entry.found.records.study) for entry in contest.entries]
    told = {
        "budget": "Budgets differ, so a lead is not at equal compute",
        "final shape": "Final shapes differ, so models of different cost are compared",
        "variant": "Variants differ, so different architectures are compared",
    }
    values = {
        "budget": [f"{words.compute(study.budget)} ({title})" for title, study in studies],
        "final shape": [f"{study.final} ({title})" for title, study in studies],
        "variant": [title for title, _ in studies],
    }
    found = [f"{told[name]}: {words.listed(values[name])}." for name in contest.unequal]
    seeds = {one.entry.title: len(one.ours.losses) for one in contest.standings}
    if len(set(seeds.values())) > 1:
        each = words.listed([f"{number} ({title})" for title, number in seeds.items()])
        found.append(f"Numbers of seeds differ: {each}.")
    return found


def _own(comparison: StudyComparison, gallery: Gallery) -> Section:
    verdicts = [(entry.title, entry.found.verdict) for entry in comparison.entries]
    blocks: list[Block] = [Paragraph(f"{title}: {verdict.headline}") for title, verdict in verdicts]
    best = [(title, verdict, verdict.ours) for title, verdict in verdicts if verdict.ours is not None]
    rows = [
        [
            title,
            verdict.split,
            words.loss(ours.mean),
            against.rival,
            words.loss(against.theirs.mean),
            words.signed(against.difference.value),
            words.interval(against.difference),
            *_saved(against),
            *_at_equal_seconds(against),
        ]
        for title, verdict, ours in best
        for against in verdict.comparisons
    ]
    if rows:
        text = frozenset({"study", "split", "against", "95% interval", "its 95% interval"})
        columns = ["study", "split", "best schedule", "against", "its loss", "difference", "95% interval"]
        columns += ["compute saved", "its 95% interval", "times its seconds", "difference at equal seconds"]
        blocks.append(PageTable(columns, rows, text))
    if best:
        columns = ["study", "trial", "best schedule in words"]
        told = [[title, ours.title, ours.trial.record.words] for title, _, ours in best]
        blocks.append(PageTable(columns, told, frozenset(columns)))
    return Section("Each against its own baselines", blocks)


def _saved(against: Comparison) -> list[str]:
    """Return the compute saved at equal loss and its interval; empty if the rival has one budget only."""
    equal = against.equal
    if equal is None:
        return ["", ""]
    between = "95% level" if equal.apart else words.saved_between(equal, "< ", "> ") if equal.sure else ""
    return [words.saved(equal), between]


def _at_equal_seconds(against: Comparison) -> list[str]:
    """Return the ratio of the schedule's seconds to the rival's, and the loss at equal seconds.

    The loss is a difference. Both are empty if the seconds are equal or unknown.
    """
    seconds = against.seconds
    if seconds is None:
        return ["", ""]
    return [
        f"{seconds.ratio:.2f}",
        "" if seconds.difference is None else words.signed(seconds.difference.value),
    ]


def _curves(comparison: StudyComparison, gallery: Gallery) -> Section:
    blocks: list[Block] = [
        gallery.show_or_say(
            "loss-over-compute",
            figures.curves(comparison),
            "Validation loss over training compute of each study's best schedule. Diamonds are events; the "
            "mark at the end is the final loss, measured on more text than the points of the curve.",
            "No curve yet: no schedule that grows has finished.",
        )
    ]
    budgets = figures.over_budget(comparison)
    if budgets is not None:
        caption = (
            "Final loss over the budget that every run of a study had: the best schedule (filled) and its "
            "final shape from scratch (hollow). Only marks at the same budget had equal compute."
        )
        blocks.append(gallery.show("loss-over-budget", budgets, caption))
    return Section("Loss over compute", blocks)


def _search(comparison: StudyComparison, gallery: Gallery) -> Section:
    picture = gallery.show_or_say(
        "progress",
        figures.progress(comparison),
        "The best validation loss so far over the compute that each search had executed, in the order in "
        "which trials ended. Marks are trials; those with a high loss may lie above the figure.",
        "No progress to show: no trial of a search has finished.",
    )
    rows = []
    for entry in comparison.entries:
        records = entry.found.records
        trials = [trial.record for trial in records.trials]
        rows.append(
            [
                entry.title,
                str(records.counts),
                words.compute(records.study.budget),
                words.compute(sum(trial.charged for trial in trials)),
                words.compute(sum(trial.executed for trial in trials)),
                f"{sum(trial.seconds for trial in trials) / 3600:.2f}",
            ]
        )
    columns = ["study", "recorded", "budget of a run", "charged", "executed", "hours of training"]
    return Section("The searches", [picture, PageTable(columns, rows, frozenset({"study", "recorded"}))])


def _settings(comparison: StudyComparison, gallery: Gallery) -> Section:
    of = [entry.fields for entry in comparison.entries]
    names = sorted({name for one in of for name in one})
    names = [name for name in names if len({one.get(name) for one in of}) > 1]
    if not names:
        same = f"Apart from {words.listed(UNIMPORTANT)}, the study files are the same."
        return Section("What differs", [aside(same)])
    note = aside("Fields of the resolved study files that differ between studies.")
    rows = [[name, *(short(one.get(name, ""), MAX_SETTING_LETTERS) for one in of)] for name in names]
    columns = ["field", *(entry.title for entry in comparison.entries)]
    return Section("What differs", [note, PageTable(columns, rows, frozenset(columns))])


def _files(comparison: StudyComparison, gallery: Gallery) -> Section:
    listed = [
        "runs.parquet and runs.csv: a row for each run of each study, with all of its numbers",
        "summary.json: which study is ahead, and the summary of each study, for programs",
        "figures: each figure as SVG and PNG",
    ]
    return Section("Files", [Bullets(listed)])


COMPARE_SECTIONS: tuple[Callable[[StudyComparison, Gallery], Section], ...] = (
    _verdict,
    _cautions,
    _own,
    _curves,
    _search,
    _settings,
    _files,
)
