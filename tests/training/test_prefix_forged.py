"""States that nobody of ours wrote, with right hashes: each is dropped with a warning, and none is used."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from nasgrow.cli import prefixes as command
from nasgrow.training.prefixes import PrefixCache, SharedPrefix, StateStore
from nasgrow.training.prefixes.reuse import REST, TENSORS
from nasgrow.training.prefixes.store import ABOUT, SUMS, USED
from nasgrow.training.records import METRICS
from nasgrow.training.run import Run
from nasgrow.training.state import TrainState
from tests.training.prefixes import FIRST, SECOND, cache_in, make_run, outcome, run_in, schedule
from tests.training.runs import CPU

Meta = dict[str, Any]
Tensors = dict[str, torch.Tensor]
AT = (0.5,)


@pytest.fixture(scope="module", params=["adamw", "muon"])
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    """A run, and the folder of a store with its state at half of the budget, after an event."""
    folder = tmp_path_factory.mktemp("stored")
    masked = {**FIRST, "operator": {"kind": "masked", "opening": 0.4}}
    given = {"optimizer": request.param, "learning_rate": {"rewarm": 0.4, "rewarm_scope": "new"}}
    run, corpus = make_run(folder, schedule=schedule(masked, {**SECOND, "at": 0.8}), training=given)
    run_in(folder / "run", run, corpus, cache_in(folder, AT))
    return run, folder / "prefixes"


@pytest.fixture
def cache(stored: tuple[Run, Path], tmp_path: Path) -> PrefixCache:
    shutil.copytree(stored[1], tmp_path / "prefixes")
    return cache_in(tmp_path, AT)


def state_in(cache: PrefixCache) -> Path:
    (key,) = cache.store
    return cache.store.path(key)


def sign(folder: Path) -> None:
    """Write the right hashes of whatever is there."""
    names = sorted(path.name for path in folder.iterdir() if path.name not in (SUMS, USED))
    lines = [f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in names]
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def advance(run: Run, cache: PrefixCache, place: Path) -> tuple[TrainState | None, list[str], list[float]]:
    """What a run goes on from, what it warns of, and the evaluations that it is told."""
    warnings: list[str] = []
    told: list[float] = []
    place.mkdir(exist_ok=True)
    prefix = SharedPrefix(cache, run, place, CPU, warnings.append, lambda: False)
    found = prefix.advance(TrainState.fresh(run), lambda: 0.0, lambda aligned, loss: told.append(aligned))
    return found, warnings, told


def test_a_state_that_is_right_is_used(stored: tuple[Run, Path], cache: PrefixCache, tmp_path: Path) -> None:
    sign(state_in(cache))
    found, warnings, told = advance(stored[0], cache, tmp_path / "run")
    assert found is not None
    assert found.step > 0
    assert found.masks, "what is forged below is there"
    assert found.warming
    assert not warnings
    assert told


def fields(meta: Meta) -> Iterator[tuple[Meta, str]]:
    yield from ((meta, name) for name in meta)
    yield from ((meta["state"], name) for name in meta["state"])


WRONG: list[Any] = [None, True, -1, 2**70, 1.5, float("nan"), float("inf"), "1", [], {}, [[1]], 10**400]
RIGHT: dict[str, list[Any]] = {
    "seconds": [2**70, 1.5],
    "step_seconds": [2**70, 1.5],
    "first_loss": [None, -1, 2**70, 1.5],
    "step_flops": [2**70],
    "records": [2**70],
    "lost": [2**70],
    "reused": [2**70],
    "optimizers": [{}],
    "masks": [[]],
    "warming": [[]],
}
"""What does not have to be refused: training goes on, whatever these are."""


def test_every_field_that_is_wrong_or_missing_drops_a_state(
    stored: tuple[Run, Path], cache: PrefixCache, tmp_path: Path
) -> None:
    folder = state_in(cache)
    whole = (folder / REST).read_text(encoding="utf-8")
    count = len(list(fields(json.loads(whole))))
    tried = 0
    for place in range(count):
        for value in ["missing", *WRONG]:
            meta = json.loads(whole)
            holder, name = list(fields(meta))[place]
            if value in RIGHT.get(name, []) and not isinstance(value, bool):
                continue
            if value == "missing":
                del holder[name]
            else:
                holder[name] = value
            if name in ("masks", "warming") and value == "missing":
                continue  # checkpoints from before there were such have none
            _refused(stored[0], cache, folder, tmp_path, {REST: json.dumps(meta).encode()}, (name, value))
            tried += 1
    assert tried > 150


def _refused(
    run: Run, cache: PrefixCache, folder: Path, tmp_path: Path, files: dict[str, bytes], what: object
) -> None:
    """See that a state with other files is dropped, and put it back."""
    aside = tmp_path / "aside"
    shutil.copytree(folder, aside)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    sign(folder)
    found, warnings, told = advance(run, cache, tmp_path / "run")
    assert found is not None, what
    assert (found.step, told) == (0, []), what
    assert not (tmp_path / "run" / METRICS).exists(), what
    (warning,) = warnings
    assert warning.startswith(f"{folder}: passed over and dropped: "), what
    assert warning.isprintable()
    assert len(warning) < 400 + len(str(folder))
    assert not folder.exists(), what
    aside.rename(folder)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"[]", b"1", b"\xff", 100_000 * b"[", b'{"state": ' * 50_000, b'{"state": {}}'],
    ids=lambda content: ascii(content[:12]),
)
def test_a_description_that_is_none_drops_a_state(
    content: bytes, stored: tuple[Run, Path], cache: PrefixCache, tmp_path: Path
) -> None:
    _refused(stored[0], cache, state_in(cache), tmp_path, {REST: content}, content)


def broadcast(tensors: Tensors, name: str) -> None:
    tensors[name] = torch.zeros(1, dtype=tensors[name].dtype)


def transposed(tensors: Tensors, name: str) -> None:
    tensors[name] = tensors[name].reshape(-1, 1).contiguous()


def half(tensors: Tensors, name: str) -> None:
    tensors[name] = tensors[name].half()


def whole(tensors: Tensors, name: str) -> None:
    tensors[name] = tensors[name].long()


def missing(tensors: Tensors, name: str) -> None:
    del tensors[name]


def renamed(tensors: Tensors, name: str) -> None:
    tensors[f"{name}/x"] = tensors.pop(name)


def not_a_number(tensors: Tensors, name: str) -> None:
    tensors[name] = tensors[name].clone()
    tensors[name].view(-1)[0] = torch.nan


FORGERIES: list[Callable[[Tensors, str], None]] = [
    broadcast,
    transposed,
    half,
    whole,
    missing,
    renamed,
    not_a_number,
]


@pytest.mark.parametrize("change", FORGERIES)
def test_tensors_that_are_not_the_runs_drop_a_state(
    change: Callable[[Tensors, str], None], stored: tuple[Run, Path], cache: PrefixCache, tmp_path: Path
) -> None:
    folder = state_in(cache)
    names = sorted(load_file(folder / TENSORS))
    kinds = {
        name.rpartition("/")[2] if name.startswith("optimizer") else name.partition("/")[0] for name in names
    }
    for kind in kinds:
        name = next(name for name in names if kind in name.split("/"))
        tensors = load_file(folder / TENSORS)
        change(tensors, name)
        save_file(tensors, tmp_path / "forged")
        forged = {TENSORS: (tmp_path / "forged").read_bytes()}
        _refused(stored[0], cache, folder, tmp_path, forged, (change, name))
    for content in (b"", b"\xff" * 100, (2**60).to_bytes(8, "little") + b"{}"):
        _refused(stored[0], cache, folder, tmp_path, {TENSORS: content}, content)


def test_masks_and_ages_that_cannot_be_drop_a_state(
    stored: tuple[Run, Path], cache: PrefixCache, tmp_path: Path
) -> None:
    folder = state_in(cache)
    whole = (folder / REST).read_text(encoding="utf-8")
    name, box, begun, opening = json.loads(whole)["masks"][0]
    masks: list[Any] = [
        ["nothing", box, begun, opening],
        [name, box[1:], begun, opening],
        [name, [[0, 10**9]] * len(box), begun, opening],
        [name, [[1, 0]] * len(box), begun, opening],
        [name, [["0", "1"]] * len(box), begun, opening],
        [name, box, begun, 0],
        [name, box, begun, 5.0],
        [name, box, "0", opening],
        [name, box, begun],
        [name],
        name,
    ]
    forged: list[Meta] = [{kind: [mask]} for mask in masks for kind in ("masks", "warming")]
    places = [f"optimizer/0/{name}/ages", "optimizer/9/x/ages", "x", "optimizer/0/embedding/other"]
    for ages in (
        {},
        None,
        {"sizes": [], "step": 1, "boxes": []},
        {"sizes": [1], "step": 0, "boxes": [[[[0, 1]], 0]]},
    ):
        forged += [{"optimizers": {place: ages}} for place in places]
    for change in forged:
        meta = json.dumps({**json.loads(whole), **change})
        _refused(stored[0], cache, folder, tmp_path, {REST: meta.encode()}, change)


def test_records_that_are_none_drop_a_state(
    stored: tuple[Run, Path], cache: PrefixCache, tmp_path: Path
) -> None:
    folder = state_in(cache)
    lines = (folder / METRICS).read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    assert {record["kind"] for record in records} == {"train", "evaluation", "event"}
    forged = ["{", "null", "[]", "1", 100_000 * "[", '{"kind": []}', '{"kind": "final"}']
    for record in {record["kind"]: record for record in records}.values():
        for name in record:
            forged.append(
                json.dumps({key: value for key, value in record.items() if key != name or key == "operator"})
            )
            values: list[Any] = ["x", [], float("nan"), 10**400]
            forged += [json.dumps({**record, name: value}) for value in values]
    unchanged = {json.dumps(record) for record in records}
    for line in forged:
        if line not in unchanged and '"operator": "x"' not in line:
            content = "\n".join([*lines, line]).encode()
            _refused(stored[0], cache, folder, tmp_path, {METRICS: content}, line)
    for kept in (lines[1:], lines[:1], []):
        _refused(stored[0], cache, folder, tmp_path, {METRICS: "\n".join(kept).encode()}, kept)


def test_a_run_that_meets_a_forged_state_comes_to_the_same(
    stored: tuple[Run, Path], cache: PrefixCache, tmp_path: Path
) -> None:
    run, corpus = stored[0], make_run(tmp_path)[1]
    folder = state_in(cache)
    tensors = load_file(folder / TENSORS)
    name = next(name for name in tensors if name.startswith("model/"))
    tensors[name] = torch.zeros(1)
    save_file(tensors, folder / TENSORS)
    sign(folder)
    warnings: list[str] = []
    alone = run_in(tmp_path / "alone", run, corpus)
    result = run_in(tmp_path / "run", run, corpus, cache, warn=warnings.append)
    assert len(warnings) == 1
    assert outcome(tmp_path / "run", result) == outcome(tmp_path / "alone", alone)
    assert cache.store.fault(folder.name) is None, "it was stored anew"


# Files and folders that are none of a state's.


def test_a_hash_of_a_file_elsewhere_is_never_worked_out(cache: PrefixCache, tmp_path: Path) -> None:
    """It could be one that never ends."""
    folder = state_in(cache)
    for name in ("/dev/zero", "../../x", "", "\0", "x" * 10_000, "\x1b[31m"):
        sign(folder)
        with (folder / SUMS).open("a", encoding="utf-8") as file:
            file.write(f"{64 * '0'}  {name}\n")
        fault = cache.store.fault(folder.name)
        assert fault is not None
        assert fault.isprintable()
        assert len(fault) < 100


def test_links_and_pipes_are_no_files_of_a_state(cache: PrefixCache, tmp_path: Path) -> None:
    folder, victim = state_in(cache), tmp_path / "victim"
    victim.write_bytes(b"")
    for name in (USED, REST, "more"):
        content = (folder / name).read_bytes() if (folder / name).exists() else None
        for make in (lambda path: path.symlink_to(victim), os.mkfifo, Path.mkdir):
            (folder / name).unlink(missing_ok=True)
            make(folder / name)
            assert cache.store.fault(folder.name) == f"{name} is no file"
            (folder / name).rmdir() if (folder / name).is_dir() else (folder / name).unlink()
        if content is not None:
            (folder / name).write_bytes(content)
    sign(folder)
    assert cache.store.fault(folder.name) is None
    assert victim.read_bytes() == b""


def test_a_link_in_place_of_a_state_is_removed_and_what_it_leads_to_stays(
    cache: PrefixCache, tmp_path: Path
) -> None:
    folder, elsewhere = state_in(cache), tmp_path / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    warnings: list[str] = []
    assert cache.store.take(folder.name, warnings.append) is None
    assert warnings == [f"{folder}: passed over and dropped: it is a link"]
    assert not folder.is_symlink()
    assert (elsewhere / TENSORS).exists()


@pytest.mark.parametrize(
    "about",
    [
        "null",
        "[]",
        "{",
        100_000 * "[",
        "{}",
        '{"charged": 1}',
        '{"charged": "1", "before": []}',
        '{"charged": NaN, "before": []}',
        '{"charged": true, "before": []}',
        '{"charged": 1, "before": 1}',
        '{"charged": 1, "before": [1]}',
        '{"charged": 1, "before": [["a"]]}',
        '{"charged": 1, "before": [[["a"], 1]]}',
        '{"charged": 1, "before": [["a", "b"]]}',
    ],
    ids=lambda about: about[:40],
)
def test_what_is_said_of_a_state_ends_no_eviction_and_no_listing(
    about: str, stored: tuple[Run, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(stored[1], tmp_path / "prefixes")
    store = StateStore(tmp_path / "prefixes", 1e9)
    (key,) = store
    (store.path(key) / ABOUT).write_text(about, encoding="utf-8")
    sign(store.path(key))
    assert not list(store.entries())
    assert command.show(store.root, as_json=False) == 0
    assert "0 states" in capsys.readouterr().out
    assert store.prune(0.0) == 1, "it has a size"
    assert not list(store)


@pytest.mark.parametrize("said", [{}, dict.fromkeys(("fraction", "events", "seed", "shape"), "\x1b[31m\n")])
def test_what_else_is_said_of_a_state_is_listed_as_it_can_be(
    said: dict[str, str], cache: PrefixCache, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = state_in(cache)
    (folder / ABOUT).write_text(json.dumps({"charged": 1, "before": [], **said}), encoding="utf-8")
    assert command.show(cache.store.root, as_json=False) == 0
    shown = capsys.readouterr().out
    assert "1 state," in shown
    assert "\x1b" not in shown


def test_tidying_touches_no_folder_that_is_no_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong path given to ``prefixes prune`` removed whatever lay in folders with names of two letters."""
    (tmp_path / "store" / "ml" / "thesis").mkdir(parents=True)
    (tmp_path / "home" / (64 * "a")).mkdir(parents=True)
    (tmp_path / "store" / "aa").symlink_to(tmp_path / "home")
    (tmp_path / "store" / "bb" / (64 * "a")).mkdir(parents=True)
    assert command.prune(tmp_path / "store", 0.0) == 0
    assert "removed 0 damaged and 0 other states" in capsys.readouterr().out
    assert (tmp_path / "store" / "ml" / "thesis").is_dir()
    assert (tmp_path / "home" / (64 * "a")).is_dir()
    assert (tmp_path / "store" / "bb" / (64 * "a")).is_dir()
