"""Reports of recorded families: what they say, in every state."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from nasgrow.experiments.family import Part
from nasgrow.report.family.read import read_family
from nasgrow.report.family.sections import compose, headline
from nasgrow.report.family.write import summarised
from nasgrow.report.figures import family as figures
from nasgrow.report.html import to_html
from tests.report.families import family_of, record, recorded_family
from tests.report.pages import section
from tests.report.studies import FINGERPRINT


def test_lower_and_higher_losses_are_told_by_size(tmp_path: Path) -> None:
    found = recorded_family(tmp_path / "a")
    saved = 1 - found.together / found.scratch
    assert headline(found) == (
        f"Training one model of each of 3 sizes takes {saved:.0%} less compute with a shared prefix than "
        "from scratch; compared with training from scratch, the test loss is lower at sizes 2 and 3."
    )
    assert compose(found)[0].tone == "won"
    worse = recorded_family(tmp_path / "b", {1: 0.0, 2: 0.1})
    assert headline(worse).endswith(
        "the test loss is higher at size 3 and within the noise of seeds and text at size 2."
    )
    assert compose(worse)[0].tone == "lost"


def test_the_smallest_is_the_same_run(tmp_path: Path) -> None:
    found = recorded_family(tmp_path)
    assert [size.outcome for size in found.sizes] == ["same", "lower", "lower"]
    assert found.sizes[0].difference is None
    assert found.done == 5 * 3 + 5 * 3


def test_compute_saved_at_equal_loss_is_that_of_the_curves(tmp_path: Path) -> None:
    saved = recorded_family(tmp_path).sizes[1].saved
    assert saved is not None
    # Recorded curves fall as 3 (0.95 - x)^2 to their ends; ours ends 0.1 lower.
    assert saved.theirs == pytest.approx(0.95)
    assert saved.ours == pytest.approx(0.95 - (0.1 / 3) ** 0.5, abs=0.01)


def test_compute_saved_is_told_where_the_difference_is_beyond_what_seeds_vary(tmp_path: Path) -> None:
    found = recorded_family(tmp_path, {1: -0.1, 2: -0.001})
    page, gallery = compose(found)
    told = section(to_html(page, dict.fromkeys(gallery.figures, b"")), "Verdict")
    rows = re.findall(r"<tr>(.*?)</tr>", told, re.DOTALL)
    assert ["≈" in row for row in rows if "<th" not in row][:3] == [False, True, False], (
        "the same run, beyond, within"
    )


def test_figures_show_what_was_measured(tmp_path: Path) -> None:
    found = recorded_family(tmp_path)
    figure = figures.loss_by_size(found)
    assert figure is not None
    first, second = figure.axes
    for axes, places in (
        (first, [size.parameters for size in found.sizes]),
        (second, [size.inference_flops for size in found.sizes]),
    ):
        lines = {line.get_label(): line for line in axes.get_lines()}
        for name, models in (
            ("family", [size.member for size in found.sizes]),
            ("from scratch", [size.scratch for size in found.sizes]),
        ):
            assert np.asarray(lines[name].get_xdata()).tolist() == places
            means = [fmean(model.test) for model in models if model]
            assert np.asarray(lines[name].get_ydata()).tolist() == pytest.approx(means)
    (axes,) = figures.cost(found).axes
    widths = [bar.get_width() for bar in axes.patches]  # type: ignore[attr-defined]
    assert sum(widths[:3]) == pytest.approx(found.scratch / 1e6)
    assert widths[3:] == pytest.approx([found.family.own_flops(size) / 1e6 for size in range(3)])


def test_one_seed_allows_no_interval(tmp_path: Path) -> None:
    found = recorded_family(tmp_path, seeds=1, tested=1)
    assert [size.outcome for size in found.sizes] == ["same", "open", "open"]
    page = to_html(compose(found)[0], dict.fromkeys(("loss-by-size", "branches", "cost"), b""))
    assert section(page, "Verdict").count("an interval needs two seeds") == 2


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    family = family_of()
    nothing = read_family("it", family, tmp_path, FINGERPRINT)
    assert headline(nothing).startswith("No answer yet: 3 sizes without test losses.")
    page = to_html(compose(nothing)[0], {"cost": b""})
    assert "No test loss yet" in section(page, "Verdict")
    assert "No curve yet" in section(page, "Where members branch off")


def test_what_weakens_it_is_listed(tmp_path: Path) -> None:
    found = recorded_family(tmp_path, seeds=3, tested=2)
    listed = summarised(found)["weaknesses"]
    assert listed[0] == "Few seeds: only 2 for each of the models compared; 5 would be better."
    assert "size 2 of the family: 1 of 3 fresh seeds have no test loss." in listed
    assert not any("lowest or the highest" in line for line in listed)
    place = tmp_path / "runs" / "it-family"
    for part in found.family.parts:
        record(place, found.family, part, 0.012, 0, 1.0, None)
    record(place, found.family, Part(1, True), 0.012, 1, 1.0, 1.0)
    moved = read_family("it-family", found.family, place, FINGERPRINT)
    assert any(
        "the lowest or the highest of the 3 tried for size 2 of the family" in line
        for line in summarised(moved)["weaknesses"]
    )


def test_damaged_records_are_named(tmp_path: Path) -> None:
    found = recorded_family(tmp_path)
    place = tmp_path / "runs" / "it-family"
    spoilt = record(place, found.family, Part(1, True), 0.006, 1, 1.9, 1.9)
    (spoilt / "metrics.jsonl").write_text("no json\n")
    (spoilt / "test.json").write_text("{")
    again = read_family("it-family", found.family, place, FINGERPRINT)
    assert again.damaged == tuple(
        f"runs/{spoilt.name}/{name}: is damaged" for name in ("test.json", "metrics.jsonl")
    )
    assert again.sizes[1].member is not None
    assert len(again.sizes[1].member.test) == 2


def test_a_size_of_which_a_seed_diverged_is_not_judged_by_the_others(tmp_path: Path) -> None:
    found = recorded_family(tmp_path)
    place = tmp_path / "runs" / "it-family"
    gone = record(place, found.family, Part(1, True), 0.006, found.family.fresh_seeds[0], 1.9, None)
    (gone / "test.json").unlink()
    result = json.loads((gone / "result.json").read_text())
    (gone / "result.json").write_text(json.dumps(result | {"status": "diverged", "validation": None}))
    again = read_family("it-family", found.family, place, FINGERPRINT)
    assert [size.outcome for size in again.sizes] == ["same", "diverged", "lower"]
    assert again.sizes[1].difference is None
    assert again.sizes[1].saved is None
    assert headline(again).endswith("is lower at size 3 and not judged (a seed diverged) at size 2.")
    assert compose(again)[0].tone == "open"
    assert any(line.startswith("Size 2 is not judged: 1 run") for line in summarised(again)["weaknesses"])


def test_a_size_of_which_a_test_loss_is_not_finite_is_not_judged_by_the_others(tmp_path: Path) -> None:
    found = recorded_family(tmp_path)
    place = tmp_path / "runs" / "it-family"
    spoilt = record(place, found.family, Part(1, True), 0.006, found.family.fresh_seeds[0], 1.9, 1.9)
    (spoilt / "test.json").write_text('{"test": null}')
    again = read_family("it-family", found.family, place, FINGERPRINT)
    assert [size.outcome for size in again.sizes] == ["same", "diverged", "lower"]
    assert again.sizes[1].member is not None
    assert len(again.sizes[1].member.test) == 2
