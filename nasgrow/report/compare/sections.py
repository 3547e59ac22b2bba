"""Compose the report of a comparison from its sections."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean, stdev

from nasgrow.report import words
from nasgrow.report.compare.ranking import Contest, Standing, StudyComparison
from nasgrow.report.figures import compare as figures
from nasgrow.report.page import Bullets, Page, PageTable, Paragraph, Section, Tile, Tiles
from nasgrow.report.sections.common import Gallery, aside, made

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
    section = Section("Verdict")
    for contest in comparison.contests:
        tiles = _tiles(contest)
        if tiles:
            section.blocks.append(Tiles(tiles))
        if len(contest.entries) > 1:
            section.blocks += [Paragraph(sentence) for sentence in contest.sentences]
    if any(len(contest.standings) > 1 and not contest.confirmed for contest in comparison.contests):
        section.blocks.append(
            aside(
                "Not every study is confirmed, so the candidates are compared on the validation split, which "
                "chose them. nasgrow confirm retrains them with fresh seeds and measures them on the test "
                "split."
            )
        )
    figure = figures.contenders(comparison)
    if figure is None:
        section.blocks.append(aside("Nothing to show yet: no study has a schedule that grows and finished."))
    else:
        section.blocks.append(
            gallery.show(
                "contenders",
                figure,
                "The best schedule of each study (filled) and the fixed shapes that it is compared with "
                "(hollow): a mark for each seed, a stroke at the mean"
                + (
                    ", a band for its 95% interval where it is confirmed."
                    if any(contest.confirmed for contest in comparison.contests)
                    else "."
                ),
            )
        )
    return section


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
    return Section("What weakens this", [Bullets(cautions(comparison))])


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
    rows = []
    for entry in comparison.entries:
        verdict = entry.found.verdict
        ours = verdict.ours
        for comparison_ in verdict.comparisons:
            assert ours is not None
            rows.append(
                [
                    entry.title,
                    verdict.split,
                    words.loss(ours.mean),
                    comparison_.rival,
                    words.loss(comparison_.theirs.mean),
                    words.signed(comparison_.difference.value),
                    words.interval(comparison_.difference),
                ]
            )
    section = Section("Each against its own baselines")
    section.blocks += [
        Paragraph(f"{entry.title}: {entry.found.verdict.headline}") for entry in comparison.entries
    ]
    if rows:
        columns = ["study", "split", "best schedule", "against", "its loss", "difference", "95% interval"]
        section.blocks.append(
            PageTable(columns, rows, frozenset({"study", "split", "against", "95% interval"}))
        )
    best = [(entry.title, entry.found.verdict.ours) for entry in comparison.entries]
    words_of = [[title, one.title, one.trial.record.words] for title, one in best if one is not None]
    if words_of:
        columns = ["study", "trial", "best schedule in words"]
        section.blocks.append(PageTable(columns, words_of, frozenset(columns)))
    return section


def _curves(comparison: StudyComparison, gallery: Gallery) -> Section:
    section = Section("Loss over compute")
    caption = (
        "Validation loss over training compute of each study's best schedule. Diamonds are events; the "
        "mark at the end is the final loss, measured on more text than the points of the curve."
    )
    section.blocks.append(
        gallery.show_or_say(
            "loss-over-compute",
            figures.curves(comparison),
            caption,
            "No curve yet: no schedule that grows has finished.",
        )
    )
    budgets = figures.over_budget(comparison)
    if budgets is not None:
        caption = (
            "Final loss over the budget that every run of a study had: the best schedule (filled) and its "
            "final shape from scratch (hollow). Only marks at the same budget had equal compute."
        )
        section.blocks.append(gallery.show("loss-over-budget", budgets, caption))
    return section


def _search(comparison: StudyComparison, gallery: Gallery) -> Section:
    section = Section("The searches")
    caption = (
        "The best validation loss so far over the compute that each search had executed, in the order in "
        "which trials ended. Marks are trials; those with a high loss may lie above the figure."
    )
    section.blocks.append(
        gallery.show_or_say(
            "progress",
            figures.progress(comparison),
            caption,
            "No progress to show: no trial of a search has finished.",
        )
    )
    rows = []
    for entry in comparison.entries:
        trials = entry.found.records.trials
        rows.append(
            [
                entry.title,
                str(entry.found.records.counts),
                words.compute(entry.found.records.study.budget),
                words.compute(sum(trial.record.charged for trial in trials)),
                words.compute(sum(trial.record.executed for trial in trials)),
                f"{sum(trial.record.seconds for trial in trials) / 3600:.2f}",
            ]
        )
    columns = ["study", "recorded", "budget of a run", "charged", "executed", "hours of training"]
    section.blocks.append(PageTable(columns, rows, frozenset({"study", "recorded"})))
    return section


def _settings(comparison: StudyComparison, gallery: Gallery) -> Section:
    section = Section("What differs")
    of = [entry.fields for entry in comparison.entries]
    names = sorted({name for one in of for name in one})
    names = [name for name in names if len({one.get(name) for one in of}) > 1]
    if not names:
        section.blocks.append(aside("The study files differ in their names only."))
        return section
    rows = [[name, *(_cut(one.get(name, "")) for one in of)] for name in names]
    columns = ["field", *(entry.title for entry in comparison.entries)]
    section.blocks.append(aside("Fields of the resolved study files that differ between studies."))
    section.blocks.append(PageTable(columns, rows, frozenset(columns)))
    return section


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SETTING_LETTERS else f"{text[: MAX_SETTING_LETTERS - 1]}…"


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
