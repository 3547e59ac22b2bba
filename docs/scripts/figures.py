"""Draw the figures of the explanation pages: ``python docs/scripts/figures.py`` writes docs/assets/*.svg.

One figure for each expansion, one of driver, schedulers and executors, one of the packages of nasgrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ASSETS = Path(__file__).parents[1] / "assets"
WIDTH = 440
"""How wide the picture of an expansion is at least."""
INK, FAINT = "#1f2430", "#6b7280"
OLD, FREE, ZERO, LINE = "#bcd4ee", "#f6b26b", "#ffffff", "#34507a"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif"


def text(x: float, y: float, words: str, *, size: float = 14, colour: str = INK, **style: str) -> str:
    """Words, centred at x unless ``anchor`` is given."""
    anchor, weight = style.get("anchor", "middle"), style.get("weight", "400")
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" fill="{colour}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{words}</text>'
    )


def box(x: float, y: float, width: float, height: float, fill: str, **style: str) -> str:
    """A rectangle."""
    dash = f' stroke-dasharray="{style["dash"]}"' if "dash" in style else ""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{style.get("round", "2")}" '
        f'fill="{fill}" stroke="{style.get("stroke", LINE)}" stroke-width="1.3"{dash}/>'
    )


def arrow(*points: tuple[float, float], dashed: bool = False) -> str:
    """A line with a head at its last point."""
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return (
        f'<polyline points="{path}" fill="none" stroke="{FAINT}" stroke-width="1.6"{dash} '
        f'marker-end="url(#head)"/>'
    )


def picture(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    """An SVG file with a white ground, readable on dark pages too."""
    marker = (
        '<marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
        f'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="{FAINT}"/></marker>'
    )
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="{FONT}" role="img">\n<title>{title}</title>\n'
        f'<defs>{marker}</defs>\n<rect width="100%" height="100%" fill="#fff"/>\n{body}\n</svg>\n'
    )


@dataclass(frozen=True)
class Grown:
    """A matrix or a vector, its old part and what an expansion adds to its right or below it."""

    name: str
    width: float
    height: float
    right: str | None = None
    """Fill of new columns: free or zero."""
    below: str | None = None
    """Fill of new rows."""
    factor: str = ""
    """What old values are multiplied by."""
    extra: float = 34

    @property
    def whole(self) -> tuple[float, float]:
        """Width and height with what is new."""
        return (
            self.width + (self.extra if self.right else 0),
            self.height + (self.extra if self.below else 0),
        )

    def draw(self, x: float, y: float) -> str:
        """The parts at a place; the name stands above."""
        parts = [box(x, y, self.width, self.height, OLD)]
        if self.right:
            parts.append(_new(x + self.width, y, self.extra, self.height, self.right))
        if self.below:
            parts.append(_new(x, y + self.height, self.width, self.extra, self.below))
        if self.factor:
            parts.append(text(x + self.width / 2, y + self.height / 2 + 5, self.factor, size=13))
        parts.append(text(x + self.whole[0] / 2, y - 9, self.name, size=13, weight="600"))
        return "\n".join(parts)


def _new(x: float, y: float, width: float, height: float, fill: str) -> str:
    dash = {"dash": "4 3"} if fill == ZERO else {}
    drawn = box(x, y, width, height, fill, **dash)
    return drawn + (text(x + width / 2, y + height / 2 + 5, "0", colour=FAINT) if fill == ZERO else "")


def legend(y: float, middle: float) -> list[str]:
    """What the colours mean, centred at a place."""
    parts = []
    for place, (fill, words) in enumerate(((OLD, "old values"), (FREE, "new, free"), (ZERO, "new, zero"))):
        x = middle - 172 + 122 * place
        dash = {"dash": "4 3"} if fill == ZERO else {}
        parts += [box(x, y - 12, 16, 16, fill, **dash), text(x + 24, y + 1, words, size=13, anchor="start")]
    return parts


def row(parts: Sequence[Grown | str], equation: Sequence[str], title: str, *, middle: float = 112) -> str:
    """Matrices side by side with words between them, and the equation that they satisfy below.

    The picture is as narrow as its parts allow, so that its letters stay large on a phone.
    """
    widths = [part.whole[0] if isinstance(part, Grown) else 22 + 7 * len(part) for part in parts]
    width = max(WIDTH, round(sum(widths)) + 64)
    x = (width - sum(widths)) / 2
    drawn = []
    for part, room in zip(parts, widths, strict=True):
        if isinstance(part, Grown):
            drawn.append(part.draw(x, middle - part.whole[1] / 2))
        else:
            drawn.append(text(x + room / 2, middle + 5, part, size=15, colour=FAINT))
        x += room
    last = 212 + 21 * (len(equation) - 1)
    drawn += [text(width / 2, 212 + 21 * line, words, size=15) for line, words in enumerate(equation)]
    return picture(width, last + 54, title, [*drawn, *legend(last + 38, width / 2)])


def expansions() -> dict[str, str]:
    """One figure for each of the six."""
    stream, output = Grown("x", 62, 22), Grown("as before", 62, 22)
    return {
        "grow-mlp": row(
            (
                stream,
                "·",
                Grown("MLP up", 84, 62, right=FREE),
                "→ f →",
                Grown("MLP down", 62, 84, below=ZERO),
                "=",
                output,
            ),
            ("f(x [W U]) [V; 0]  =  f(x W) V",),
            "Growing the MLP: new columns of MLP up are free, new rows of MLP down are zero",
        ),
        "add-heads": row(
            (
                Grown("queries, keys, values of each head", 168, 54, right=FREE, extra=56),
                "→ attention →",
                Grown("attention output", 78, 84, below=ZERO),
            ),
            ("[old heads, new head] [W; 0]  =  [old heads] W",),
            "Adding heads: the new head is free, its rows of the attention output are zero",
        ),
        "grow-values": row(
            (
                stream,
                "·",
                Grown("values of a head", 74, 62, right=FREE),
                "→ mix →",
                Grown("its rows of the output", 62, 74, below=ZERO),
                "=",
                output,
            ),
            ("A x [W U] [V; 0]  =  A x W V",),
            "Growing values: new value columns are free, new rows of the attention output zero",
        ),
        "grow-keys": row(
            (
                Grown("query", 84, 62, right=FREE),
                "·",
                Grown("key, transposed", 62, 84, below=ZERO, factor="× √(k̂/k)"),
                "/ √k̂   =",
                Grown("old scores", 62, 62),
            ),
            ("[Q U] · [√(k̂/k) K; 0] / √k̂  =  Q · K / √k",),
            "Growing keys: new query columns are free, new key columns zero, old keys are rescaled",
        ),
        "grow-hidden": row(
            (
                Grown("x", 62, 22, right=ZERO),
                "→ norm ·",
                Grown("gain", 78, 22, right=FREE, factor="× √(h/ĥ)"),
                "·",
                Grown("what reads x", 56, 62, below=FREE),
                "→",
                Grown("what writes x", 62, 56, right=ZERO),
            ),
            ("the residual stream becomes [x 0];", "the root mean square of [x 0] is √(h/ĥ) times that of x"),
            "Growing the hidden size: the residual stream has zeros in its new units",
        ),
        "insert-layers": layers(),
    }


def layers() -> str:
    """A new layer on the residual stream that adds nothing."""
    parts = [arrow((34, 130), (536, 130)), text(22, 135, "x"), text(544, 135, "x", anchor="start")]
    for place, (name, fill) in enumerate((("layer 1", OLD), ("new layer", FREE), ("layer 2", OLD))):
        x = 52 + 160 * place
        inner, last = x + 12, x + 92
        parts += [
            arrow((x, 130), (x, 56), (inner, 56)),
            box(inner, 26, 72, 60, fill),
            text(inner + 36, 61, name, size=13),
            arrow((inner + 72, 56), (last, 56)),
            box(last, 34, 34, 44, ZERO if fill == FREE else OLD, **({"dash": "4 3"} if fill == FREE else {})),
            text(last + 17, 61, "0" if fill == FREE else "W", size=13, colour=FAINT),
            text(last + 17, 22, "output", size=12, colour=FAINT),
            arrow((last + 34, 56), (last + 52, 56), (last + 52, 122)),
            f'<circle cx="{last + 52}" cy="130" r="9" fill="#fff" stroke="{LINE}" stroke-width="1.3"/>',
            text(last + 52, 135, "+", size=15),
        ]
    parts.append(text(282, 182, "x + F(x) 0  =  x", size=15))
    title = "Inserting a layer: its output projections are zero, so it adds nothing to the residual stream"
    return picture(564, 236, title, [*parts, *legend(220, 282)])


def card(x: float, y: float, width: float, height: float, title: str, lines: Sequence[str], fill: str) -> str:
    """A box with a title and a few lines, in its middle."""
    first = y + (height - 18 - 19 * len(lines)) / 2 + 11
    parts = [box(x, y, width, height, fill, round="8"), text(x + width / 2, first, title, weight="600")]
    parts += [
        text(x + width / 2, first + 22 + 19 * place, line, size=12.5, colour=INK)
        for place, line in enumerate(lines)
    ]
    return "\n".join(parts)


def architecture() -> str:
    """Who calls whom in a search."""
    schedulers = ("baselines", "tree, TPE, grid, …", "ASHA", "fixed shapes, tuning", "confirmations")
    executors = ("local: processes", "ray: actors", "table: replay of runs", "dry: plan")
    parts = [
        card(20, 96, 190, 156, "schedulers decide", schedulers, "#e8f0fb"),
        card(300, 128, 160, 92, "driver connects", ("one process,", "the only writer"), "#fdf1e0"),
        card(550, 104, 190, 140, "executors train", executors, "#e6f4ea"),
        card(290, 20, 180, 56, "study file", ("becomes StudyConfig",), "#f5f5f5"),
        card(230, 290, 150, 76, "trial records", ("JSON files:", "the truth"), "#f5f5f5"),
        card(396, 290, 150, 76, "Optuna storage", ("shows the trials", "in the dashboard"), "#f5f5f5"),
        card(590, 290, 150, 76, "run folders", ("checkpoints, records,", "prefix cache"), "#f5f5f5"),
        arrow((380, 76), (380, 126)),
        arrow((210, 158), (298, 158)),
        text(254, 150, "suggest()", size=12, colour=FAINT),
        arrow((300, 196), (212, 196)),
        text(255, 214, "evaluation", size=12, colour=FAINT),
        arrow((460, 158), (548, 158)),
        text(504, 150, "submit(job)", size=12, colour=FAINT),
        arrow((550, 196), (462, 196)),
        text(505, 214, "events", size=12, colour=FAINT),
        arrow((340, 220), (320, 288)),
        arrow((420, 220), (452, 288)),
        arrow((665, 244), (665, 288)),
        arrow((230, 328), (110, 328), (110, 254), dashed=True),
        text(168, 346, "resume", size=12, colour=FAINT),
    ]
    return picture(760, 386, "The driver connects schedulers and executors, and writes the study", parts)


FLOORS = (
    ("cli · api", "the command line and the Python front door", "#e8f0fb"),
    ("report", "records to tables, figures and pages", "#e8f0fb"),
    ("experiments · schema", "search, confirm, plan, replay, transfer, family, slope", "#e8f0fb"),
    ("driver", "connects the two below; the only writer of a study", "#fdf1e0"),
    ("executors", "train: local processes, Ray; or simulate: table, dry", "#fdf1e0"),
    ("schedulers", "decide what to train next, and whether a trial goes on", "#fdf1e0"),
    ("study", "study file, trial records, Optuna storage, folders", "#fdf1e0"),
    ("spaces", "from the parameters of a trial to a schedule", "#fdf1e0"),
    ("verify · export · trackers", "checks, model files, trackers", "#e6f4ea"),
    ("training", "one loop, learning rate, checkpoints, records, prefix cache", "#e6f4ea"),
    ("huggingface · data · generate", "checkpoints, text to batches, sampling", "#e6f4ea"),
    ("model · growth", "the transformer and how it grows (from here up: torch)", "#e6f4ea"),
    ("config · schedule · operators", "what files may say", "#f5f5f5"),
    ("shape · params · expansions · flops", "what growth is, without torch", "#f5f5f5"),
)


def house() -> str:
    """The packages of nasgrow, each of which may import those below it."""
    parts = []
    for place, (names, job, fill) in enumerate(FLOORS):
        y = 46 + 34 * place
        parts += [
            box(40, y, 660, 30, fill, round="5"),
            text(54, y + 20, names, size=13, anchor="start", weight="600"),
            text(316, y + 20, job, size=12.5, anchor="start"),
        ]
    bottom = 46 + 34 * len(FLOORS)
    parts += [
        text(40, 28, "A package may import what stands below it.", size=13, anchor="start", colour=FAINT),
        arrow((722, 48), (722, bottom - 6)),
    ]
    return picture(752, bottom + 12, "The packages of nasgrow, from the command line down to shapes", parts)


def main() -> None:
    """Write all figures."""
    figures = {**expansions(), "architecture": architecture(), "house": house()}
    for name, drawn in figures.items():
        (ASSETS / f"{name}.svg").write_text(drawn, encoding="utf-8")


if __name__ == "__main__":
    main()
