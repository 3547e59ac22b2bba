"""The study file: what it may say, what it resolves to, what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from nasgrow.schedule import Schedule
from nasgrow.study.config import (
    STUDY,
    Resources,
    Sampler,
    differences,
    dump_study,
    load_study,
    thread_count,
    worker_count,
)
from nasgrow.study.study import ResolvedStudy, open_study, recorded_study
from tests.study.studies import FINAL, SPACE, study_data, write_study
from tests.training.runs import TRAINING


def test_a_resolved_study_says_everything_and_is_the_same_study(tmp_path: Path) -> None:
    path = write_study(tmp_path, variant={"positions": "rope"})
    config = load_study(path)
    text = dump_study(config)
    said = yaml.safe_load(text)
    assert said["name"] == "tiny"
    assert said["training"]["learning_rate"]["decay"] == 0.3
    assert said["space"]["start"] == [1, 0.5]
    assert said["variant"]["positions"] == "rope"
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / STUDY).write_text(text, encoding="utf-8")
    again = load_study(tmp_path / "folder")
    assert differences(config, again) == []
    assert again == config


def test_a_space_in_its_own_file_is_taken_into_the_study(tmp_path: Path) -> None:
    (tmp_path / "spaces").mkdir()
    (tmp_path / "spaces" / "mine.yaml").write_text(yaml.safe_dump(SPACE), encoding="utf-8")
    inside = load_study(write_study(tmp_path))
    outside = load_study(write_study(tmp_path, space="spaces/mine.yaml"))
    assert outside.space == inside.space


def test_a_studys_folder_stands_below_the_working_folder_unless_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_study(tmp_path, stem="named-by-file")
    study, folder = open_study(path)
    assert folder == Path("runs/named-by-file")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / STUDY).write_text(dump_study(study.config), encoding="utf-8")
    assert open_study(tmp_path / "elsewhere")[1] == tmp_path / "elsewhere"
    assert open_study(path, trials=9)[0].config.trials == 9


def test_only_what_changes_results_counts_as_a_difference(tmp_path: Path) -> None:
    config = load_study(write_study(tmp_path))
    more = load_study(write_study(tmp_path, trials=40, workers=3, hours=2.0, prefix_cache={"gigabytes": 9.0}))
    assert differences(config, more) == []
    other = load_study(write_study(tmp_path, budget={"flops": 9e7}, seeds=[1]))
    assert differences(config, other) == [
        "budget.flops: 80000000.0 became 90000000.0",
        "seeds: [0] became [1]",
    ]


def test_a_study_goes_on_as_it_began_where_its_file_does_not_say_how(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    begun, folder = open_study(write_study(tmp_path, pruner={"kind": "none"}))
    folder.mkdir(parents=True)
    (folder / STUDY).write_text(dump_study(begun.config), encoding="utf-8")
    unsaid: dict[str, Any] = {"sampler": None, "pruner": None}
    study, _ = open_study(write_study(tmp_path, **unsaid))
    assert differences(begun.config, study.config) == []
    assert recorded_study(tmp_path / "tiny.yaml")[0].config.pruner.kind == "none"
    assert load_study(write_study(tmp_path, "five", **{**unsaid, "sampler": {"startup": 5}})).sampler == (
        Sampler(kind="tree", startup=5)
    )
    other, _ = open_study(write_study(tmp_path, **{**unsaid, "pruner": {"kind": "asha"}}))
    assert differences(begun.config, other.config) == ["pruner.kind: 'none' became 'asha'"]


def test_a_run_of_the_study_is_complete(tmp_path: Path) -> None:
    study = ResolvedStudy.resolve(load_study(write_study(tmp_path, seeds=[5])), "tiny.yaml")
    point = study.space.sample(First())
    run = study.run(point.schedule, {"learning_rate.peak": 0.003}, 5)
    assert run.training.learning_rate.peak == 0.003
    assert run.training.context == 16
    assert run.seed == 5
    assert run.budget.flops == 8e7
    assert run.data == study.config.data
    assert study.config.as_run().schedule == Schedule(study.final)


class First:
    """A trial that takes the first of everything."""

    def suggest_categorical(self, name: str, choices: Any, /) -> Any:
        return choices[0]

    def suggest_float(
        self, name: str, low: float, high: float, /, *, step: float | None = None, log: bool = False
    ) -> float:
        return low


REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "a rate instead of a mapping": (
        {"training": {**TRAINING, "learning_rate": 3e-3}},
        "tiny.yaml: training.learning_rate: must be a mapping such as {peak: 0.003}, not 0.003",
    ),
    "a path instead of a mapping": (
        {"data": {"text": "mine.txt"}},
        "tiny.yaml: data.text: must be a mapping such as {source: files, paths: [mine.txt]}, not 'mine.txt'",
    ),
    "a misspelt field that must be there": (
        {"space": None, "spaces": "compound"},
        "tiny.yaml: spaces: there is no such field: did you mean 'space'?",
    ),
    "an unknown field": ({"trails": 3}, "trails: there is no such field: did you mean 'trials'?"),
    "no limit": ({"trials": None}, "give at least one of trials, total_flops, hours"),
    "no shape": ({"final": None}, "tiny.yaml: is not a study: it must have the fields final"),
    "no space": ({"space": None}, "it must have the fields final (the shape) and space"),
    "an impossible shape": (
        {"final": {**FINAL, "mlp": 0}},
        "tiny.yaml: final.mlp must be a positive integer",
    ),
    "a shape the variant cannot have": (
        {"final": {**FINAL, "key": 3}, "variant": {"positions": "rope"}},
        "tiny.yaml: final: layer 0: RoPE rotates pairs, so key sizes must be even, not 3",
    ),
    "a start above the final shape": (
        {"space": {**SPACE, "start": [1, 2]}},
        "must hold shares above 0 and at most 1",
    ),
    "a space without no growth": ({"space": {**SPACE, "start": [0.5]}}, "tiny.yaml: space: start"),
    "no such kind of space": ({"space": {"kind": "grid"}}, "tiny.yaml: space: kind: must be one of"),
    "no such space file": ({"space": "none.yaml"}, "/none.yaml: cannot be read: no such file"),
    "a space that is elsewhere": ({"space": "none.yaml"}, "tiny.yaml: space: /"),
    "no storage at all": (
        {"storage": ""},
        "tiny.yaml: storage: must be a database URL such as postgresql://host/name, not empty",
    ),
    "no folder of the prefix cache": (
        {"prefix_cache": {"folder": ""}},
        "tiny.yaml: prefix_cache.folder: must be a path, not empty",
    ),
    "a rate of training that is none": (
        {"training": {**TRAINING, "learning_rate": {"peak": 100.0}}},
        "tiny.yaml: tune.learning_rate.peak: must be from 1e-09 to 10, not 100",
    ),
    "a rate of the space that is none": (
        {"space": {**SPACE, "training": {"learning_rate.peak": [0.006, 1e-12]}}},
        "tiny.yaml: space: training: learning_rate.peak: is tuned for schedules and fixed shapes alike: name",
    ),
    "a rate of baselines that is none": (
        {"tune": {"learning_rate.peak": [0.006, 11.0]}},
        "tiny.yaml: tune.learning_rate.peak: must be from 1e-09 to 10, not 11",
    ),
    "a field that training has not": (
        {"space": {**SPACE, "training": {"learning_rate.top": [1.0, 2.0]}}},
        "learning_rate.top",
    ),
    "a name with path characters": ({"name": "../up"}, "must consist of letters, digits"),
    "a hidden name": ({"name": ".."}, "tiny.yaml: name: must begin with a letter or a digit, not '..'"),
    "a long name": ({"name": "a" * 300}, "tiny.yaml: name: must have at most 100 characters, not 300"),
    "a shape of no layers": (
        {"final": {"hidden": 8, "layers": []}},
        "tiny.yaml: final.layers: their number must be a positive integer, not 0",
    ),
    "very many layers": (
        {"final": {"hidden": 8, "layers": [{"mlp": 1, "heads": 1, "key": 1, "value": 1, "count": 999}] * 2}},
        "tiny.yaml: final.layers: their number must be at most 1000, not 1998",
    ),
    "a layer without heads": (
        {"final": {"hidden": 8, "layers": [{"mlp": 2, "heads": []}]}},
        "tiny.yaml: final.layers[0].heads: the number of groups must be a positive integer, not 0",
    ),
    "a setting of a pruner that a tree leaves out": (
        {"sampler": None, "pruner": {"recovery": 0.2}},
        "tiny.yaml: pruner.recovery: 0.2 would have no effect with kind none: no trial is pruned",
    ),
    "a setting of a sampler that does not learn": (
        {"sampler": {"kind": "random", "startup": 5}},
        "tiny.yaml: sampler.startup: 5 would have no effect with kind random: it does not learn",
    ),
    "a rate that the space overrides": (
        {
            "training": {**TRAINING, "learning_rate": {"peak": 2e-3}},
            "space": {**SPACE, "training": {"learning_rate.peak": [0.006, 0.003]}},
        },
        "tiny.yaml: training.learning_rate.peak: 0.002 would have no effect, because the space searches "
        "[0.006, 0.003]: leave it out, or override the space",
    ),
    "no such tokenizer": (
        {"data": {"tokens": {"kind": "file", "path": "none.json"}}},
        "none.json: cannot be read: no such file",
    ),
    "more than can be multiplied": (
        {"space": {**SPACE, "training": {"learning_rate.width_power": [0, 1e308]}}},
        "learning_rate.width_power: input should be less than or equal to 10, not 1e+308",
    ),
    "an epsilon beyond floats": (
        {"variant": {"epsilon": 10**400}},
        "tiny.yaml: variant.epsilon: input should be a valid number, not 1000",
    ),
    "a password in the file": (
        {"storage": "postgresql://me:secret@host/db"},
        "a password does not belong in a file: set NASGROW_STORAGE",
    ),
    "a password where a list stands": ({"storage": ["postgresql://me:secret@host/db"]}, "valid string"),
    "a secret in the URL of the prefix cache": (
        {"prefix_cache": {"folder": "s3://me:secret@bucket/prefixes"}},
        "tiny.yaml: prefix_cache.folder: must be a path on a file system that all workers share, not a URL",
    ),
    "more than a GPU": ({"resources": {"gpus": 2}}, "tiny.yaml: resources.gpus"),
    "an empty name": ({"name": ""}, "must consist of letters, digits"),
    "measuring differently": (
        {"space": {**SPACE, "training": {"final_tokens": [64, 128]}}},
        "training: final_tokens: cannot be searched; what can is learning_rate.rewarm",
    ),
    "seeds that repeat": ({"seeds": [1, 1]}, "seeds must differ, not [1, 1]"),
    "an objective without the loss": ({"objectives": ["parameters"]}, "objectives are loss, alone or with"),
    "pruning with two objectives": (
        {"objectives": ["loss", "parameters"], "pruner": {"kind": "asha"}},
        "pruner.kind must be none",
    ),
    "NSGA-II with one objective": ({"sampler": {"kind": "nsga-ii"}}, "nsga-ii needs two objectives"),
    "a tree and a pruner": (
        {"sampler": {"kind": "tree"}, "pruner": {"kind": "asha"}},
        "sampler.kind tree pauses trials itself: pruner.kind must be none",
    ),
    "a budget without end": (
        {"budget": {"flops": 1e20}},
        "which are 100,000,000 steps of the smallest start shape, not 1e+20",
    ),
    "a budget beyond floats": (
        {"budget": {"tokens_per_parameter": 1e308}},
        "tiny.yaml: budget.tokens_per_parameter: input should be less than or equal to 1",
    ),
    "a budget of a few steps": (
        {"budget": {"flops": 1e6}},
        "are too few for events that are 0.1 of it apart",
    ),
    "a searched final shape under a relative budget": (
        {
            "budget": {"tokens_per_parameter": 20.0},
            "space": {
                **SPACE,
                "final": {
                    "hidden": [8, 16],
                    "mlp": [2],
                    "heads": [2],
                    "key": [4],
                    "value": [4],
                    "max_layers": 2,
                },
            },
        },
        "tiny.yaml: budget: must be given in flops",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_mistakes_are_one_line_that_names_file_and_field(name: str, tmp_path: Path) -> None:
    changes, message = REFUSED[name]
    path = write_study(tmp_path, **changes)
    with pytest.raises(ValueError, match=r".") as refusal:
        open_study(path)
    line = str(refusal.value)
    assert message in line
    assert "\n" not in line
    assert "secret" not in line
    assert line.count(", not ") <= 1, "the value is quoted once"


def test_the_default_of_workers_is_one_for_each_gpu_or_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = load_study(write_study(tmp_path))
    monkeypatch.setattr("nasgrow.study.config.core_count", lambda: 6)
    assert worker_count(config, None, 0) == 6
    assert worker_count(config, None, 2) == 2
    assert worker_count(config, 5, 2) == 5
    asked_for = config.model_copy(update={"workers": 3})
    assert worker_count(asked_for, None, 2) == 3


def test_cores_are_divided_among_workers_unless_a_trial_says_what_it_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("nasgrow.study.config.core_count", lambda: 6)
    assert [thread_count(Resources(), workers) for workers in (1, 2, 4, 12)] == [6, 3, 1, 1]
    assert thread_count(Resources(cpus=4), 2) == 4
    assert thread_count(Resources(cpus=0.5), 12) == 1


def test_what_a_trial_needs_says_how_many_there_is_room_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nasgrow.study.config.core_count", lambda: 6)
    for resources, devices, count in (
        ({"cpus": 4}, 0, 1),
        ({"cpus": 0.5}, 0, 12),
        ({"gpus": 0.25}, 2, 8),
        ({"gpus": 0.4}, 2, 4),
        ({"gpus": 0.1}, 3, 30),
        ({"gpus": 0, "cpus": 2}, 2, 3),
    ):
        config = load_study(write_study(tmp_path, resources=resources))
        assert worker_count(config, None, devices) == count


def test_defaults_are_not_shared_between_studies(tmp_path: Path) -> None:
    first, second = (ResolvedStudy.resolve(load_study(write_study(tmp_path)), "x").config for _ in range(2))
    assert first.seeds is not second.seeds
    assert study_data(tmp_path)["trials"] == first.trials
