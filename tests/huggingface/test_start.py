"""Runs and studies that start from a checkpoint of the real library."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
import yaml
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

import nasgrow
from nasgrow.cli.files import load_run
from nasgrow.config import RunConfig
from nasgrow.data import prepare
from nasgrow.data.tokenizers import ByteTokenizer
from nasgrow.errors import UserError
from nasgrow.flops import step_flops
from nasgrow.huggingface.shards import SINGLE
from nasgrow.huggingface.tokenizer import write_tokenizer
from nasgrow.report.findings import find
from nasgrow.schedule import Schedule, schedule_from
from nasgrow.spaces.grid import points
from nasgrow.study.baselines import rival_shapes
from nasgrow.study.config import load_study
from nasgrow.study.study import open_study
from nasgrow.study.summary import answer, summarise
from nasgrow.training.loop import windows_of
from nasgrow.training.prefixes.keys import forks
from nasgrow.training.run import Run
from nasgrow.training.start import first_state
from tests.cli.calling import call
from tests.huggingface.library import logits, make
from tests.study.studies import run_study, write_study
from tests.training.runs import TRAINING, text_files

_MODELS: Any = AutoModelForCausalLM

SMALL = {"vocab_size": 260, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1}
SMALL |= {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4}
START = {"hidden": 8, "layers": 1, "mlp": 16, "heads": 1, "key": 4, "value": 4}
GROWN = [{"expand": "hidden", "to": 12}, {"expand": "layers", "at": [1]}, {"expand": "heads", "to": 2}]
FINAL = {"hidden": 12, "layers": 2, "mlp": 16, "heads": 2, "key": 4, "value": 4}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder, with a checkpoint of the library in ``hf``."""
    monkeypatch.setenv("NASGROW_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    write_checkpoint(tmp_path / "hf")
    return tmp_path


def write_checkpoint(to: Path, **fields: Any) -> Any:
    """A tiny Llama whose tokens are bytes; its vocabulary has room for a few more."""
    model = make("llama", to, **{**SMALL, **fields})
    ByteTokenizer().save(to / "bytes.json")
    write_tokenizer(to, to / "bytes.json", 16)
    return model


def run_file(folder: Path, schedule: Mapping[str, Any], **changes: Any) -> Path:
    """A run that starts from the checkpoint."""
    text = {"source": "files", "paths": [text_files(folder / "text")]}
    document: dict[str, Any] = {
        "schedule": dict(schedule),
        "start": {"from": "hf"},
        "data": {"text": text, "validation": 0.1, "test": 0.1},
        "training": TRAINING,
        "budget": {"flops": 3e7},
    }
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({**document, **changes}), encoding="utf-8")
    return path


def resolved(config: RunConfig) -> Run:
    return Run.resolve(config, vocab=256, fingerprint="")


def library_loss(folder: Path, windows: Tensor) -> float:
    """The loss of a checkpoint, all by the library."""
    model = _MODELS.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits_bsv = model(windows[:, :-1].long()).logits
    return float(F.cross_entropy(logits_bsv.flatten(0, 1), windows[:, 1:].flatten().long()))


def test_a_llama_that_is_trained_grown_and_trained_on_has_its_losses_in_the_library(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedule = {"start": START, "events": [{"at": 0.5, "grow": GROWN}]}
    run = resolved(load_run(run_file(folder, schedule)))
    costs = [step_flops(shape, run.variant, run.config.training.sequences) for shape in run.schedule.shapes]
    schedule["events"] = [{"at": costs[0] / sum(costs), "grow": GROWN}]
    path = run_file(folder, schedule, budget={"flops": 50.0 * sum(costs)})
    assert [stage.steps for stage in resolved(load_run(path)).stages] == [50, 50]
    corpus = prepare(run.config.data)
    windows = windows_of(corpus.validation, TRAINING["final_tokens"], TRAINING["context"])
    untrained = library_loss(folder / "hf", windows)
    assert call(monkeypatch, "train", str(path), "--out", "run", "--quiet") == 0
    shutil.rmtree("hf")  # a run that has begun needs it no more
    assert call(monkeypatch, "export", "run", "--format", "hf", "--to", "new") == 0

    found = json.loads((folder / "run" / "result.json").read_text())["validation"]
    assert library_loss(folder / "new", windows) == pytest.approx(found, rel=1e-5)
    assert found < 0.7 * untrained
    assert "\nbase_model: hf\n" in (folder / "new" / "README.md").read_text(encoding="utf-8")
    assert nasgrow.load("new").model.shape == run.schedule.final


def test_training_begins_with_the_weights_of_the_checkpoint(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = {**TRAINING, "learning_rate": {"peak": 1e-9}}
    path = run_file(folder, {"start": FINAL}, training=training, budget={"flops": 1e7})
    assert call(monkeypatch, "train", str(path), "--out", "run", "--quiet") == 0
    corpus = prepare(load_run(path).data)
    windows = windows_of(corpus.validation, TRAINING["final_tokens"], TRAINING["context"])
    found = json.loads((folder / "run" / "result.json").read_text())["validation"]
    assert found == pytest.approx(library_loss(folder / "hf", windows), rel=1e-5)


@pytest.mark.parametrize("shape", [START, FINAL], ids=["as it is", "grown at once"])
@pytest.mark.parametrize("operator", ["preserve", "net2net(noise=0)"])
def test_a_run_starts_with_the_function_of_the_checkpoint(
    shape: dict[str, int], operator: str, folder: Path
) -> None:
    wanted = logits(write_checkpoint(folder / "hf"), tokens := torch.arange(48).view(3, 16))
    shape = {**shape, "layers": 1}  # net2net does not add layers
    config = load_run(run_file(folder, {"start": shape}, training={**TRAINING, "operator": operator}))
    state = first_state(resolved(config), torch.device("cpu"))
    assert state.model.shape == schedule_from({"start": shape}).start
    assert {parameter.dtype for parameter in state.model.parameters()} == {torch.float32}
    with torch.no_grad():
        assert (state.model(tokens) - wanted).abs().max() < 1e-5 * wanted.abs().max()


def test_a_runs_identity_is_that_of_the_checkpoint_wherever_it_lies(folder: Path) -> None:
    def identities(**changes: Any) -> tuple[str, str]:
        run = resolved(load_run(run_file(folder, {"start": FINAL}, **changes)))
        again = Run.from_description(run.describe(), "description")
        assert (again, again.identity) == (run, run.identity)
        return run.identity, forks(run, [0.5], {})[0].key

    first = identities()
    shutil.move("hf", "elsewhere")
    assert identities(start={"from": "elsewhere"}) == first
    variant = load_run(folder / "run.yaml").variant.model_dump(mode="json")
    fresh = identities(start=None, variant=variant)
    other = identities(start={"from": "elsewhere"}, training={**TRAINING, "operator": "lemon"})
    write_checkpoint(folder / "changed")
    tensors = load_file("changed/" + SINGLE)
    save_file({**tensors, "model.norm.weight": tensors["model.norm.weight"] + 1}, "changed/" + SINGLE)
    changed = identities(start={"from": "changed"})
    for index in range(2):
        assert len({pair[index] for pair in (first, fresh, other, changed)}) == 4


def test_a_checkpoint_that_changed_after_it_was_described_is_refused(folder: Path) -> None:
    run = resolved(load_run(run_file(folder, {"start": START})))
    path = folder / "hf" / "config.json"
    path.write_text(path.read_text() + "\n")
    with pytest.raises(UserError, match=r"^start.from: 'hf' has changed since the run was described \(hash "):
        first_state(run, torch.device("cpu"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": {"from": "none"}}, "start.from: none/config.json: "),
        ({"start": {"from": 3}}, "start.from: "),
        ({"start": {}}, "start.from: "),
        ({"start": {"from": "hf", "fresh": True}}, "start.fresh: "),
        (
            {"variant": {"tied": True}},
            "variant.tied: the checkpoint has False, not True: leave this field out",
        ),
        ({"data": {"tokens": {"kind": "bytes"}}}, "data.tokens: the checkpoint has {"),
        (
            {"training": {**TRAINING, "context": 32, "batch_tokens": 64}},
            "start.from: hf/config.json: max_position_embeddings: is 16, less than the context of 32",
        ),
    ],
    ids=str,
)
def test_what_contradicts_the_checkpoint_is_one_line(
    changes: dict[str, Any], message: str, folder: Path
) -> None:
    path = run_file(folder, {"start": START}, **changes)
    with pytest.raises(UserError) as told:
        load_run(path)
    assert str(told.value).startswith(f"{path}: {message}")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("shape", "operator", "message"),
    [
        ({"hidden": 6}, "preserve", "start.from: 'hf' is h=8, .*: hidden size cannot shrink from 8 to 6$"),
        ({"hidden": 12}, "stack", "^operator stack cannot grow hidden"),
        ({"mlp": 20}, "gradmax", "^training.operator: gradmax acts while a model trains, "),
        ({"mlp": 20}, "masked", "^training.operator: masked acts while a model trains, "),
    ],
)
def test_a_start_that_the_checkpoint_cannot_be_grown_to_is_refused(
    shape: dict[str, int], operator: str, message: str, folder: Path
) -> None:
    training = {**TRAINING, "operator": operator}
    config = load_run(run_file(folder, {"start": {**START, **shape}}, training=training))
    with pytest.raises(UserError, match=message):
        resolved(config)


def test_an_operator_that_acts_while_a_model_trains_can_start_at_the_checkpoint_itself(folder: Path) -> None:
    training = {**TRAINING, "operator": "gradmax"}
    events = [{"at": 0.5, "grow": [{"expand": "mlp", "to": 20}]}]
    run = resolved(load_run(run_file(folder, {"start": START, "events": events}, training=training)))
    assert run.grown_at_once == ()


@pytest.mark.parametrize("command", [("family",), ("transfer", "--scale", "2")], ids=["family", "transfer"])
def test_commands_that_compare_with_scratch_refuse_a_checkpoint(
    command: tuple[str, ...],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = run_file(folder, {"start": START, "events": [{"at": 0.5, "grow": GROWN}]})
    assert call(monkeypatch, command[0], str(path), *command[1:]) == 2
    assert capsys.readouterr().err.startswith(f"nasgrow: {path}: start: ")


SPACES: Mapping[str, dict[str, Any]] = {
    "compound": {
        "kind": "compound",
        "dims": ["hidden", "layers", "heads"],
        "start": [1, 0.5],
        "times": {"low": 0.2, "high": 0.6, "step": 0.2},
    },
    "per-dimension": {
        "kind": "per-dimension",
        "dims": {"hidden": {"start": [1, 0.5]}, "layers": {"start": [1, 0.5]}, "heads": {"start": [1, 0.5]}},
    },
    "slots": {
        "kind": "slots",
        "start": {"hidden": [1, 0.5], "layers": [1, 0.5], "heads": [1, 0.5]},
        "choices": {"none": [], "depth": ["layers"], "width": ["hidden", "heads"]},
        "slots": 1,
        "factor": [2],
        "layers": ["all"],
    },
    "fixed": {
        "kind": "fixed",
        "schedules": {
            "late": {
                "start": START,
                "events": [{"at": 0.5, "grow": [{"expand": "hidden", "to": 16}, *GROWN[1:]]}],
            }
        },
    },
    "python": {"python": "own_space:late"},
}
WHOLE = {**FINAL, "hidden": 16}
PYTHON = """
from nasgrow.expansions import diff
from nasgrow.schedule import Event, Schedule
from nasgrow.shape import Shape

def late(trial, final):
    start = Shape.uniform(hidden=8, layers=1, mlp=16, heads=1, key=4, value=4)
    if trial.suggest_categorical("schedule", ["late", "no growth"]) == "no growth":
        return Schedule(final)
    return Schedule(start, (Event(0.5, diff(start, final)),))
"""


@pytest.mark.parametrize("kind", SPACES)
def test_every_kind_of_space_can_start_at_the_checkpoint(kind: str, folder: Path) -> None:
    (folder / "own_space.py").write_text(PYTHON, encoding="utf-8")
    path = write_study(
        folder, start={"from": "hf"}, final=WHOLE, space=SPACES[kind], budget={"flops": 1e9}, sampler=None
    )
    study, _ = open_study(path)
    shape = nasgrow.load("hf").model.shape
    assert (study.variant.vocab, study.variant.queries, study.variant.gated) == (260, 2, True)
    assert rival_shapes(study, []) == [shape], "training that goes on without growth"
    late = {name: setting.values[-1] for name, setting in study.space.settings.items()}
    whole = {**late, **{name: 1 for name in late if "start" in name}}
    if kind in ("fixed", "python"):
        late, whole = {"schedule": "late"}, {"schedule": "no growth"}
    for parameters, begins in ((late, shape), (whole, study.final)):
        run = resolved(study.run(study.space.at(parameters).schedule, {}, 0))
        assert run.schedule.start == begins
        assert bool(run.grown_at_once) == (begins != shape)


def test_a_study_searches_from_a_checkpoint_beside_going_on_and_growing_at_once(folder: Path) -> None:
    space = {**SPACES["compound"], "known": {"half": {"start": 0.5, "at.1": 0.4, "at.2": 0.4}}}
    path = write_study(
        folder, start={"from": "hf"}, final=WHOLE, space=space, trials=2, baselines={"compute": 1}
    )
    study, _, known = run_study(path)
    assert all(trial.status == "finished" for trial in known.trials["search"].values())
    (at_once,) = known.trials["baseline"].values()
    going_on = known.trials["fixed"][0]
    assert schedule_from(going_on.schedule) == Schedule(nasgrow.load("hf").model.shape)
    assert schedule_from(at_once.schedule) == Schedule(study.final)
    for trial in (*known.trials["search"].values(), at_once, going_on):
        described = json.loads(
            (folder / "runs/tiny/runs" / next(iter(trial.runs)) / "description.json").read_text()
        )
        assert described["run"]["start"]["from"] == "hf"
    assert load_study(folder / "runs" / "tiny").start == study.config.start
    told = "\n".join(answer(summarise(study, known.trials, ended=True)))
    assert "\nFinal shape grown at once from hf: loss " in told
    findings = find(study, folder / "runs" / "tiny")
    assert any("starts from the checkpoint hf (hash " in line for line in findings.integrity.weaknesses)
    said = [findings.verdict.headline, *findings.verdict.sentences, *findings.integrity.weaknesses]
    assert findings.verdict.comparisons[0].rival == "the final shape grown from the checkpoint at once"
    assert "from scratch" not in " ".join(said)
    best = findings.ranking.best_size
    assert best is not None
    going_on_leads = schedule_from(going_on.schedule).start == best.size.shape
    assert ("the checkpoint, continued without growth)" in " ".join(said)) == going_on_leads
    assert findings.winner is not None
    (folder / "best.yaml").write_text(findings.winner, encoding="utf-8")
    assert load_run(folder / "best.yaml").start == study.config.start
    config = folder / "hf" / "config.json"
    config.write_text(config.read_text() + "\n")
    with pytest.raises(UserError, match=r"was begun with other settings \(start.hash: "):
        run_study(path, trials=3)


def test_fixed_shapes_are_no_smaller_than_the_checkpoint(folder: Path) -> None:
    (folder / "own_space.py").write_text(PYTHON, encoding="utf-8")
    path = write_study(
        folder, start={"from": "hf"}, final=WHOLE, space=SPACES["python"], budget={"flops": 1e9}
    )
    study, _ = open_study(path)
    shapes = study.of_fixed_shapes.space
    found = {shapes.at(parameters).schedule.start for parameters in points(shapes).values()}
    assert all(study.reaches(shape) for shape in found)
    assert nasgrow.load("hf").model.shape in found
    assert not study.reaches(study.space.fixed(0.25)), "where a function starts is not known"


@pytest.mark.parametrize(
    ("operator", "sizes"), [("hyperclone", {16, 32, 48, 64}), ("preserve", {16, 24, 32, 48, 64})]
)
def test_fixed_shapes_are_those_to_which_the_operator_can_grow_the_checkpoint(
    operator: str, sizes: set[int], folder: Path
) -> None:
    space = {"kind": "per-dimension", "dims": {"mlp": {"start": [1, 0.25]}}}
    training = {**TRAINING, "operator": operator}
    wanted: dict[str, Any] = {"final": {**START, "mlp": 64}, "space": space, "training": training}
    study, _ = open_study(write_study(folder, start={"from": "hf"}, budget={"flops": 1e9}, **wanted))
    shapes = study.of_fixed_shapes.space
    found = {shapes.at(parameters).schedule.start.layers[0].mlp for parameters in points(shapes).values()}
    assert found == sizes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"space": {**SPACES["compound"], "start": [1, 0.75]}},
            "start.from: 'hf' is h=8, .*must be the same$",
        ),
        (
            {"space": {**SPACES["compound"], "start": [1, 0.25]}},
            "start.from: 'hf' is h=8, .*must be the same$",
        ),
        (
            {
                "space": {
                    **SPACES["compound"],
                    "final": {
                        "hidden": [16],
                        "mlp": [1, 2],
                        "heads": [2],
                        "key": [4],
                        "value": [4],
                        "max_layers": 2,
                    },
                }
            },
            "start: the space searches the final shape",
        ),
    ],
)
def test_a_space_that_starts_elsewhere_is_refused(
    changes: dict[str, Any], message: str, folder: Path
) -> None:
    path = write_study(folder, start={"from": "hf"}, final=WHOLE, **changes)
    with pytest.raises(UserError, match=f"^{path}: {message}"):
        open_study(path)
