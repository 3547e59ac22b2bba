"""Run files: strict, with errors that name file and field."""

from __future__ import annotations

from pathlib import Path

import pytest

from nasgrow.config import Budget, DataConfig, RunConfig, TrainingConfig, VariantConfig, load_run
from nasgrow.errors import UserError
from nasgrow.flops import parameter_count, step_flops
from nasgrow.schedule import Schedule
from nasgrow.shape import Shape
from nasgrow.strict import read_mapping
from nasgrow.verify import PAPER

START = "start: {hidden: 8, layers: 2, mlp: 16, heads: 2, key: 4, value: 4}\n"
FINAL = Shape.uniform(hidden=8, layers=2, mlp=16, heads=2, key=4, value=4)


def write(folder: Path, text: str, name: str = "run.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_schedule_file_is_a_run_with_defaults(tmp_path: Path) -> None:
    config = load_run(write(tmp_path, START))
    assert config.schedule == Schedule(Shape.uniform(hidden=8, layers=2, mlp=16, heads=2, key=4, value=4))
    assert config.data == DataConfig()
    assert config.training == TrainingConfig()
    assert config.variant == VariantConfig()


def test_a_run_file_may_name_its_schedule_file(tmp_path: Path) -> None:
    write(tmp_path, START, "small.yaml")
    config = load_run(write(tmp_path, "schedule: small.yaml\nbudget: {flops: 3e12}\nseed: 4"))
    assert config.schedule.start.hidden == 8
    assert config.budget == Budget(flops=3e12)
    assert config.seed == 4


def test_merge_keys_bring_in_what_a_mapping_does_not_say_itself(tmp_path: Path) -> None:
    text = """
base: &base {hidden: 16, layers: 2}
wide: &wide {<<: *base, hidden: 32}
deep: {<<: *wide, layers: 4}
"""
    assert read_mapping(write(tmp_path, text)) == {
        "base": {"hidden": 16, "layers": 2},
        "wide": {"hidden": 32, "layers": 2},
        "deep": {"hidden": 32, "layers": 4},
    }
    with pytest.raises(ValueError, match=r"line 1: 'a' stands twice"):
        read_mapping(write(tmp_path, "{<<: {a: 1}, a: 2, a: 3}"))


@pytest.mark.parametrize(
    "text", ['{a: 1, note: "\\ud800"}', '{a: 1, "\\udfff x": 2}', '{a: ["\\ud83d\\ude00"]}']
)
def test_half_of_a_character_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(UserError, match=r"line 1: '\\ud.* has a lone surrogate: write the character itself$"):
        read_mapping(write(tmp_path, text))
    assert read_mapping(write(tmp_path, '{a: "\\U0001F600"}')) == {"a": "\U0001f600"}


def test_the_whole_of_a_run_can_be_written(tmp_path: Path) -> None:
    text = f"""
schedule: {{{START.strip()}}}
budget: {{tokens_per_parameter: 20}}
variant: {{activation: gelu, positions: rope, tied: true}}
data:
  text: {{source: hub, name: some/dataset}}
  tokens: {{kind: bpe, vocab: 1024}}
training:
  optimizer: muon
  learning_rate: {{peak: 1e-2, law: cosine, rewarm: 0.05}}
"""
    config = load_run(write(tmp_path, text))
    assert config.variant == VariantConfig(activation="gelu", positions="rope", tied=True)
    assert config.training.learning_rate.peak == 0.01
    assert config.data.text.source == "hub"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("budget: {flops: 1e9}", "must hold a schedule (start, events) or a run (schedule, budget, ...)"),
        ("schedule: {}\nbudget: {flops: .inf}", "budget.flops: input should be a finite number, not inf"),
        ("schedule: {}\nseed: 9223372036854775808", "seed: input should be less than 9223372036854775808"),
        ("schedule: none.yaml", "none.yaml: cannot be read: no such file or directory"),
        ("schedule: {}\nepochs: 3", "epochs: there is no such field"),
        ("schedule: {}\nseed: -1", "seed: input should be greater than or equal to 0, not -1"),
        ("schedule: {}\nseed: '1'", "seed: input should be a valid integer, not '1'"),
        (
            "schedule: {}\nbudget: {}",
            "budget: a budget is exactly one of flops, tokens, tokens_per_parameter",
        ),
        (
            "schedule: {}\nbudget: {flops: 1, tokens: 1}",
            "budget: a budget is exactly one of flops, tokens, tokens_per_parameter",
        ),
        ("schedule: {}\nbudget: {flops: 0}", "budget.flops: input should be greater than 0, not 0"),
        (
            "schedule: {}\nvariant: {activation: tanh}",
            "variant.activation: input should be 'relu', 'gelu' or 'silu', not 'tanh'",
        ),
        ("schedule: {}\nvariant: {bias: true}", "variant.bias: there is no such field"),
        ("schedule: {}\nvariant: 3", "variant: "),
        ("schedule: {}\ntraining: {batch_tokens: 100}", "training: batch_tokens must be a multiple of"),
        ("schedule: {}\ntraining: {micro_tokens: 100}", "training: micro_tokens must be whole sequences"),
        ("schedule: {}\ntraining: {optimizer: sgd}", "training.optimizer: input should be 'adamw' or 'muon'"),
        ("schedule: {}\ndata: {text: {source: web}}", "data.text: "),
        ("schedule: {}\ndata: {text: {source: files}}", "data.text.files.paths: is missing"),
    ],
)
def test_a_wrong_file_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ValueError, match="yaml: ") as error:
        load_run(write(tmp_path, text.replace("schedule: {}", f"schedule: {{{START.strip()}}}")))
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_budgets_become_flops_of_the_final_shape() -> None:
    variant, training = PAPER, TrainingConfig()
    step = step_flops(FINAL, variant, training.sequences)
    assert Budget(flops=1.5e9).resolve(FINAL, variant, training) == 1_500_000_000
    assert Budget(tokens=10 * 4096).resolve(FINAL, variant, training) == 10 * step
    tokens = 20 * parameter_count(FINAL, variant)
    assert Budget(tokens_per_parameter=20.0).resolve(FINAL, variant, training) == tokens * step // 4096


def test_options_replace_budget_and_seed() -> None:
    config = RunConfig(schedule=Schedule(FINAL), seed=1)
    assert config.with_options() == config
    changed = config.with_options(flops=5.0, seed=3)
    assert (changed.budget, changed.seed) == (Budget(flops=5.0), 3)
    with pytest.raises(ValueError, match=r"--budget: flops: input should be greater than 0, not -1"):
        config.with_options(flops=-1.0)
