"""Compose the report of a family from its sections."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from nasgrow.report import words
from nasgrow.report.family.read import FamilyRecords, FamilySize
from nasgrow.report.figures import family as figures
from nasgrow.report.integrity import few_seeds
from nasgrow.report.page import Bullets, Page, PageTable, Section, Tile, Tiles, Tone
from nasgrow.report.sections.common import Gallery, aside, made, weakening
from nasgrow.schedule import in_lines


def compose(found: FamilyRecords) -> tuple[Page, Gallery]:
    """Return the page of a family and its figures."""
    gallery = Gallery()
    page = Page(
        title=found.name,
        facts=(
            f"{len(found.sizes)} sizes of {words.count(found.sizes[0].parameters)} to "
            f"{words.count(found.sizes[-1].parameters)} parameters that share a prefix; every model is "
            f"charged {words.compute(found.family.budget)}."
        ),
        headline=headline(found),
        tone=_tone(found),
        sections=[section(found, gallery) for section in FAMILY_SECTIONS],
        made=made(),
        kind="Family of models",
    )
    return page, gallery


def headline(found: FamilyRecords) -> str:
    """Return the answer in a line."""
    by = {name: [size for size in found.sizes if size.outcome == name] for name in OUTCOMES}
    cheaper = (
        f"Training one model of each of {len(found.sizes)} sizes takes {found.saved:.0%} less compute with a "
        "shared prefix than from scratch"
    )
    if by["missing"]:
        return f"No answer yet: {words.many(len(by['missing']), 'size')} without test losses. {cheaper}."
    told = [f"{text} at {_named(by[name])}" for name, text in OUTCOMES.items() if by[name] and text]
    return f"{cheaper}; compared with training from scratch, the test loss is {words.listed(told)}."


OUTCOMES = {
    "lower": "lower",
    "higher": "higher",
    "open": "within the noise of seeds and text",
    "diverged": "not judged (a seed diverged)",
    "same": "",
    "missing": "",
}
"""The outcome of a size in words; empty for outcomes that the headline leaves out."""


UNJUDGED = {"same": "same run", "diverged": "diverged", "missing": "not run yet"}
"""Text of a table's cell for a difference that is not judged."""


def _named(sizes: list[FamilySize]) -> str:
    plural = "s" if len(sizes) > 1 else ""
    return f"size{plural} {words.listed([str(size.index + 1) for size in sizes])}"


def _tone(found: FamilyRecords) -> Tone:
    outcomes = {size.outcome for size in found.sizes}
    if "missing" in outcomes:
        return "open"
    return "lost" if "higher" in outcomes else "won" if outcomes <= {"lower", "same"} else "open"


def _losses(found: FamilyRecords) -> PageTable:
    columns = ["size", "parameters", "inference FLOP", "family", "from scratch", "difference"]
    columns += ["95% interval", "saved at equal loss"]
    rows = []
    for size in found.sizes:
        member, scratch, apart = size.member, size.scratch, size.difference
        rows.append(
            [
                str(size.index + 1),
                words.count(size.parameters),
                words.count(size.inference_flops),
                _mean(member.test if member else ()),
                _mean(scratch.test if scratch else ()),
                UNJUDGED.get(size.outcome, "") if apart is None else words.signed(apart.value),
                "" if apart is None else words.interval(apart),
                _saved(size),
            ]
        )
    return PageTable(columns, rows)


def _saved(size: FamilySize) -> str:
    """Return the compute saved at equal loss; empty if the difference is within the noise."""
    apart, saved = size.difference, size.saved
    if (
        saved is None
        or apart is None
        or apart.low is None
        or apart.high is None
        or apart.low < 0 < apart.high
    ):
        return ""
    return f"≈ {saved.share:.0%}" if saved.share > 0 else "none"


def _models(found: FamilyRecords) -> PageTable:
    columns = ["size", "own compute", "rate of the family", "rate from scratch", "shape"]
    rows = [
        [
            str(size.index + 1),
            words.compute(found.family.own_flops(size.index)),
            f"{size.member.rate:.3g}" if size.member else "",
            f"{size.scratch.rate:.3g}" if size.scratch else "",
            str(size.shape),
        ]
        for size in found.sizes
    ]
    return PageTable(columns, rows, frozenset({"shape"}))


def _mean(losses: tuple[float, ...]) -> str:
    return words.loss(sum(losses) / len(losses)) if losses else ""


def _verdict(found: FamilyRecords, gallery: Gallery) -> Section:
    tiles = [
        Tile(
            f"{found.saved:.0%}",
            "compute saved over training each size from scratch",
            f"{words.compute(found.together)} against {words.compute(found.scratch)}, one model of each",
        )
    ]
    for size in found.sizes:
        if size.difference is not None:
            few = size.difference.low is None
            sure = "an interval needs two seeds" if few else f"95% interval {words.interval(size.difference)}"
            label = f"test loss of size {size.index + 1} against training from scratch"
            tiles.append(Tile(words.signed(size.difference.value), label, sure))
    picture = gallery.show_or_say(
        "loss-by-size",
        figures.loss_by_size(found),
        "Test loss against size: the family, all sizes sharing a prefix, and each size from scratch at its "
        "own best learning rate, every model with the same budget. Bands are 95% intervals over fresh "
        "seeds.",
        "No test loss yet: run the same command again to continue.",
    )
    note = aside(
        "The compute saved at equal loss is read off curves, each charged all its training from the "
        "start. The first model to reach a loss had decayed its learning rate less, so its lead is "
        "understated. Savings are shown if the difference is beyond the noise of seeds and text. "
        "Inference FLOP are per token. Own compute is what a size adds to the shared prefix."
    )
    return Section("Verdict", [Tiles(tiles), picture, _losses(found), _models(found), note])


def _weaknesses(found: FamilyRecords, gallery: Gallery) -> Section:
    return weakening(list(weaknesses(found)))


def weaknesses(found: FamilyRecords) -> Iterator[str]:
    """Yield the weaknesses of the result, a sentence each."""
    models = [model for size in found.sizes for model in (size.member, size.scratch) if model is not None]
    yield from few_seeds([len(model.test) for model in models])
    planned = found.family.config.seeds
    for model in models:
        if len(model.test) < planned:
            yield f"{model.part}: {planned - len(model.test)} of {planned} fresh seeds have no test loss."
    for size in found.sizes:
        if size.diverged:
            yield (
                f"Size {size.index + 1} is not judged: {words.many(size.diverged, 'run')} with fresh seeds "
                "diverged, and the other runs alone would be biased."
            )
    rates = found.family.config.learning_rates
    if len(rates) == 1:
        yield f"One learning rate was tried, {rates[0]:.3g}: nothing is tuned."
    else:
        edge = sorted({str(model.part) for model in models if model.at_edge})
        if edge:
            yield (
                f"The best learning rate is the lowest or the highest of the {len(rates)} tried for "
                f"{words.listed(edge)}: a better one may lie beyond."
            )
    yield (
        "A shared prefix has one learning rate, so all members of the family have the same one; each size "
        "from scratch has the best one for that size."
    )
    if found.damaged:
        yield f"The report leaves out unreadable records: {'; '.join(found.damaged)}."


def _branches(found: FamilyRecords, gallery: Gallery) -> Section:
    caption = (
        "Validation loss over compute of each member, means over fresh seeds. Two members share their "
        "training until the first event (diamonds) that only one of them has."
    )
    picture = gallery.show_or_say("branches", figures.branches(found), caption, "No curve yet.")
    lines = [f"Largest member: {line}" for line in in_lines(found.family.schedules[-1])]
    return Section("Where members branch off", [Bullets(lines), picture])


def _cost(found: FamilyRecords, gallery: Gallery) -> Section:
    caption = (
        "Compute for one model of each size. With a shared prefix, a size adds only the training at its own "
        "shape; the rest is shared."
    )
    executed = f"executed here: {words.many(found.done, 'run')}, tuning and seeds included"
    rows = [
        ["every size from scratch", words.compute(found.scratch)],
        ["the family, each member trained by itself", words.compute(found.apart)],
        ["the family, its shared prefix trained once", words.compute(found.together)],
        [executed, words.compute(found.executed)],
        ["hours of training here", f"{found.seconds / 3600:.2f}"],
    ]
    picture = gallery.show("cost", figures.cost(found), caption)
    return Section("Cost", [picture, PageTable(["", "compute"], rows, frozenset({""}))])


def _files(found: FamilyRecords, gallery: Gallery) -> Section:
    listed = ["table.csv: a row for each size", "summary.json: the same for programs"]
    return Section("Files", [Bullets([*listed, "figures: each figure as SVG and PNG"])])


FAMILY_SECTIONS: tuple[Callable[[FamilyRecords, Gallery], Section], ...] = (
    _verdict,
    _weaknesses,
    _branches,
    _cost,
    _files,
)
