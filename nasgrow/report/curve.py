"""The loss of one run over its compute, with its events marked."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from nasgrow.training.records import read_metrics


def draw_curve(folder: Path, to: Path) -> None:
    """Draw the curve of the run in ``folder`` into the file ``to``."""
    records = list(read_metrics(folder))
    train = [(r["charged"], r["loss"]) for r in records if r["kind"] == "train" and r["loss"] is not None]
    looked = [
        (r["charged"], r["validation"])
        for r in records
        if r["kind"] in ("evaluation", "final") and r["validation"] is not None
    ]
    figure = Figure(figsize=(6.4, 4.0), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    if train:
        axes.plot(*zip(*train, strict=True), color="#9ecae1", linewidth=1, label="training")
    if looked:
        axes.plot(*zip(*looked, strict=True), color="#08519c", marker="o", markersize=3, label="validation")
        # The first losses are several times the last ones: show what happens after them.
        values = sorted(value for _, value in looked)
        axes.set_ylim(values[0] - 0.05 * values[0], min(values[-1], 2 * values[0]) * 1.03)
    for index, record in enumerate(r for r in records if r["kind"] == "event"):
        label = "growth" if index == 0 else None
        axes.axvline(record["charged"], color="#d94801", linestyle="--", linewidth=1, label=label)
    axes.set_xlabel("compute (training FLOPs)")
    axes.set_ylabel("loss (nats per token)")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False)
    figure.savefig(to)
