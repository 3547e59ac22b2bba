"""The sections on the verdict: its numbers, its weaknesses, confirmations and generated samples."""

from __future__ import annotations

from nasgrow.report import words
from nasgrow.report.budgets import EqualLoss, share
from nasgrow.report.figures import contenders as figures
from nasgrow.report.findings import Findings
from nasgrow.report.naming import side_by_side
from nasgrow.report.page import Block, PageTable, Paragraph, Samples, Section, Tile, Tiles
from nasgrow.report.ranking import Contender
from nasgrow.report.sections.common import Gallery, aside, weakening
from nasgrow.report.verdict import Verdict


def verdict(found: Findings, gallery: Gallery) -> Section:
    """Return the section with the verdict, and a table of the schedule and each rival.

    The table has losses, and the costs of one run. Without a best schedule there is no table.
    """
    verdict = found.verdict
    blocks: list[Block] = [Tiles(_tiles(verdict))] if verdict.comparisons else []
    blocks += [Paragraph(sentence) for sentence in verdict.sentences]
    if verdict.ours is None:
        nothing = [] if verdict.diverged else [aside("There is nothing to judge yet.")]
        return Section("Verdict", [*blocks, *nothing])
    sides = [("the schedule", verdict.ours)]
    sides += [(comparison.rival, comparison.theirs) for comparison in verdict.comparisons]
    columns = ["", f"{verdict.split} loss", "seeds", "learning rate", "parameters", "tokens"]
    columns += ["compute", "seconds"]
    rows = [
        [
            name,
            words.loss(one.mean),
            str(len(one.losses)),
            f"{one.trial.record.learning_rate:.3g}",
            words.count(one.trial.record.parameter_count),
            words.count(one.per_run("tokens")),
            words.compute(one.per_run("charged")),
            words.duration(one.per_run("schedule_seconds") or one.per_run("seconds")),
        ]
        for name, one in sides
    ]
    note = aside("Tokens, compute and seconds are those of one run, without evaluations.")
    return Section("Verdict", [*blocks, PageTable(columns, rows, frozenset({""})), note])


def weaknesses(found: Findings, gallery: Gallery) -> Section:
    """Return the section with the weaknesses of the verdict, a bullet each."""
    return weakening(found.integrity.weaknesses)


def confirmations(found: Findings, gallery: Gallery) -> Section:
    """Return the section with the test losses of all confirmed candidates."""
    ranking = found.ranking
    confirmed = ranking.confirmed
    every = [*confirmed, *ranking.confirmed_others, *ranking.diverged]
    if not every:
        missing = (
            "Nothing is confirmed yet: nasgrow confirm retrains the candidates with fresh seeds and "
            "measures them on the test split."
        )
        return Section("Confirmation", [aside(missing)])
    blocks: list[Block] = []
    if confirmed:
        picture = gallery.show(
            "confirmations",
            figures.confirmations(confirmed),
            "Test loss of each candidate with fresh seeds: a dot for each seed, a stroke at the mean, "
            "a band for its 95% interval. Schedules that grow are blue, fixed shapes orange. Candidates "
            "are sorted by validation loss.",
        )
        blocks.append(picture)
    rows = [
        [
            one.title,
            "grows" if one.trial.grows else "fixed shape" if one.times == 1 else "other budget",
            words.loss(one.mean) if one.losses else "",
            ", ".join(f"{loss:.4f}" for loss in one.losses),
            ", ".join(str(seed) for seed in one.seeds),
            str(one.failed or ""),
        ]
        for one in every
    ]
    columns = ["candidate", "kind", "mean test loss", "test losses", "seeds", "not finished"]
    text = frozenset({"candidate", "kind", "test losses", "seeds"})
    return Section("Confirmation", [*blocks, PageTable(columns, rows, text)])


def samples(found: Findings, gallery: Gallery) -> Section:
    """Return the section with the texts that the models of the verdict generate, side by side."""
    verdict = found.verdict
    sides = [] if verdict.ours is None else [verdict.ours, *(one.theirs for one in verdict.comparisons)]
    names = side_by_side([one.origin for one in sides])
    written = [(name, _written(found, one)) for name, one in zip(names, sides, strict=True)]
    known = [(name, sample) for name, sample in written if sample is not None]
    title = "What the models write"
    if not known:
        return Section(title, [aside("No samples yet: nasgrow confirm generates one with each model.")])
    note = aside(
        "The prompt, in grey, is the beginning of the test split. Each model continues it (its first "
        "fresh seed, sampled with the same random numbers). A few lines show what such a model can do, "
        "not which one is better."
    )
    return Section(title, [Samples(known[0][1][0], [(name, text) for name, (_, text) in known]), note])


def _written(found: Findings, one: Contender) -> tuple[str, str] | None:
    """Return the prompt and the generated text of the first run that has one; None if no run has."""
    runs = (run for trial in one.trials for run in trial.record.runs)
    return next((sample for run in runs if (sample := found.records.sample(run)) is not None), None)


def _equal_tile(rival: str, equal: EqualLoss, verdict: Verdict) -> Tile:
    if equal.times is not None:
        value = f"{share(equal.times):.0%}" if equal.times > 1 else "none"
        how = words.saved_interval(equal).strip(" ()") or "without an interval"
    else:
        value = f"> {share(equal.rungs[-1].times):.0%}" if equal.above else "none"
        beyond = "outside the budgets it was trained with"
        how = words.saved_interval(equal).strip(" ()") or beyond
    return Tile(value, f"{verdict.currency} saved over {rival}", f"at equal {verdict.split} loss; {how}")


def _tiles(verdict: Verdict) -> list[Tile]:
    """Return tiles for each rival: difference of losses, compute saved, and ratio of each cost."""
    tiles = []
    for comparison in verdict.comparisons:
        estimate = comparison.difference
        if not verdict.confirmed:
            sure = "a candidate, so without an interval"
        elif estimate.low is None:
            sure = "no interval: that needs two seeds of each"
        else:
            sure = f"95% interval {words.interval(estimate)}"
        tiles.append(
            Tile(words.signed(estimate.value), f"{verdict.split} loss against {comparison.rival}", sure)
        )
        if comparison.equal is not None:
            tiles.append(_equal_tile(comparison.rival, comparison.equal, verdict))
        for one in comparison.currencies:
            at = "loss unknown" if one.difference is None else words.signed(one.difference.value)
            tiles.append(
                Tile(f"{one.ratio:.2f}x", f"{one.name} of {comparison.rival}", f"{at} at equal {one.name}")
            )
    return tiles
