"""Families: members that are one training until they part, and the rates they are trained with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from nasgrow.config import RunConfig
from nasgrow.data import prepare
from nasgrow.experiments.family import (
    Family,
    FamilyConfig,
    Part,
    choose,
    dump_family,
    load_family,
    same_family,
)
from nasgrow.strict import parse
from nasgrow.training.folder import open_folder
from nasgrow.training.loop import train
from nasgrow.training.prefixes import forks
from nasgrow.training.records import METRICS, read_metrics
from tests.training.runs import SCHEDULE, make_config, text_files

SIZES = (0, 1, 2)


def make_family(pattern: str = "none", **changes: Any) -> Family:
    defaults = {"learning_rates": [0.003, 0.006], "seeds": 2}
    more = {name: changes.pop(name, value) for name, value in defaults.items()}
    config: RunConfig = make_config(pattern, **{"budget": {"flops": 3e7}, **changes})
    return Family.resolve(parse(FamilyConfig, dict(config) | more, "it"), vocab=256)


def test_members_stop_growing_at_their_size() -> None:
    family = make_family()
    whole = family.schedules[-1]
    assert [len(schedule.events) for schedule in family.schedules] == [0, 1, 2]
    assert [schedule.final for schedule in family.schedules] == list(whole.shapes)
    for size in SIZES:
        scratch = family.schedule(Part(size, False))
        assert (scratch.start, scratch.events) == (whole.shapes[size], ())
    assert family.schedule(Part(0, True)) == family.schedule(Part(0, False))


def test_members_are_one_training_until_they_part(tmp_path: Path) -> None:
    """Every record of a member up to the event that the next one takes is the next one's, to the last bit."""
    family = make_family(text_files(tmp_path / "text"))
    corpus = prepare(family.config.data, cache=tmp_path / "cache")
    rows = []
    for size in SIZES:
        run = family.run(Part(size, True), 0.006, 0, corpus.fingerprint)
        folder = tmp_path / str(size)
        with open_folder(folder, run, corpus.tokenizer, torch.device("cpu")):
            train(run, corpus, folder, device=torch.device("cpu"))
        assert (folder / METRICS).exists()
        rows.append([record for record in read_metrics(folder) if record["kind"] in ("evaluation", "event")])
    for size, event in enumerate(SCHEDULE["events"]):
        before, after = (
            [
                (row["kind"], row["step"], row["charged"], row.get("validation"), row.get("new_gradient"))
                for row in rows[one]
                if row["fraction"] < event["at"]
            ]
            for one in (size, size + 1)
        )
        assert before == after
        assert len(before) >= 2 + size
        assert rows[size][-1]["validation"] != rows[size + 1][-1]["validation"]


def test_members_share_a_prefix_whatever_operators_come_later() -> None:
    first, second = SCHEDULE["events"]
    events = [{**first, "operator": "masked"}, {**second, "operator": "net2net"}]
    family = make_family(schedule={**SCHEDULE, "events": events})
    kept = [
        [fork.key for fork in forks(family.run(Part(size, True), 0.006, 0, ""), (0.2, 0.3, 0.5, 0.6), {})]
        for size in SIZES
    ]
    shared = [sum(a == b for a, b in zip(kept[size], kept[size + 1], strict=True)) for size in (0, 1)]
    assert shared == [2, 5], "evaluations at 0.2 to 0.8 are places too"


@pytest.mark.parametrize("growing", [0, 1_000_000])
def test_what_a_size_adds_is_what_it_trains_at_its_shape(
    monkeypatch: pytest.MonkeyPatch, growing: int
) -> None:
    monkeypatch.setattr("nasgrow.operators.Operator.flops", lambda *given: growing)
    family = make_family(budget={"flops": 3e8})
    for size in SIZES:
        member = Part(size, True)
        *shared, own = family.run(member, 0.006, 0, "").stages
        event = growing if size else 0
        assert family.own_flops(size) == own.steps * own.step_flops + event
        before = sum(stage.steps * stage.step_flops for stage in shared) + growing * max(0, size - 1)
        assert family.charged(member) == family.own_flops(size) + before
        for part in (member, Part(size, False)):
            assert 0.98 * 3e8 < family.charged(part) <= 3e8
    assert [family.own_flops(size) / 3e8 for size in SIZES] == pytest.approx([1.0, 0.7, 0.4], abs=0.03)


def test_a_family_has_one_rate_and_each_size_from_scratch_its_own() -> None:
    family = make_family()
    losses: dict[tuple[Part, float], float | None] = {}
    for rate, grown, fixed in (
        (0.003, (2.0, 1.9, 1.8), (2.0, 1.9, 1.7)),
        (0.006, (1.8, 1.9, 1.9), (1.8, 2.0, 2.0)),
    ):
        losses |= {(Part(size, True), rate): grown[size] for size in SIZES}
        losses |= {(Part(size, False), rate): fixed[size] for size in SIZES}
    chosen = choose(family, losses)
    assert [chosen[Part(size, True)] for size in SIZES] == [0.006] * 3  # 5.6 in all against 5.7
    assert [chosen[Part(size, False)] for size in SIZES] == [0.006, 0.003, 0.003]
    losses[Part(2, True), 0.006] = None
    losses[Part(1, False), 0.003] = losses[Part(1, False), 0.006] = None
    chosen = choose(family, losses)
    assert chosen[Part(0, True)] == 0.003, "a rate at which a member diverged is no family's"
    assert Part(1, False) not in chosen
    assert choose(family, {}) == {}


def test_seeds_are_fresh() -> None:
    assert make_family(seed=1, seeds=3).fresh_seeds == [0, 2, 3]
    assert make_family(seed=9, seeds=2).fresh_seeds == [0, 1]


def test_a_family_comes_back_from_its_file(tmp_path: Path) -> None:
    config = make_family().config
    (tmp_path / "family.yaml").write_text(dump_family(config))
    assert dump_family(load_family(tmp_path)) == dump_family(config)
    assert same_family(config, make_family(seeds=9, learning_rates=[0.1]).config)
    assert not same_family(config, make_family(budget={"flops": 4e7}).config)
    assert json.loads(json.dumps(config.model_dump(mode="json", exclude={"variant"})))["seeds"] == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"schedule": {"start": SCHEDULE["start"]}}, "schedule: has no event, so there is one size only"),
        (
            {"training": {"learning_rate": {"width_power": 0.5}}},
            r"width_power: must be 0 for a family, .* not 0\.5",
        ),
    ],
)
def test_what_has_no_shared_prefix_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_family(**changes)
