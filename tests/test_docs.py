"""What the documents point to is there, and the commands that they show are commands."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, get_args

import click
import pytest
import yaml

from docs.scripts import figures, reference
from nasgrow import __version__
from nasgrow.cli.main import cli
from nasgrow.config import LearningRate, RunConfig, TrainingConfig
from nasgrow.errors import UserError
from nasgrow.expansions import EXPANSION_TYPES as EXPANSIONS
from nasgrow.spaces.builtin import built_in
from nasgrow.spaces.load import SPACE_TYPES as SPACES
from nasgrow.strict import Strict, parse, read_mapping
from nasgrow.study.config import Sampler, StudyConfig

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "reports/*.md", "search_spaces/*.md", "studies/**/*.md")
    for path in ROOT.glob(pattern)
)
FILES = [
    *PAGES,
    *sorted((ROOT / "studies").rglob("*.yaml")),
    *sorted((ROOT / "search_spaces").glob("*.yaml")),
]


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def is_log(page: Path) -> bool:
    """Whether a page describes its day, and may name what is gone."""
    return page.parent.name == "log"


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, those that the site generates too."""
    text = reference.on_page_markdown(page.read_text(encoding="utf-8"))
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", [page for page in PAGES if not is_log(page)], ids=name)
def test_files_named_in_the_text_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = re.findall(r"`((?:nasgrow|tests|docs|studies|search_spaces)/[\w/.-]*)", text)
    assert [path for path in named if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", [page for page in PAGES if not is_log(page)], ids=name)
def test_wheels_named_in_the_text_are_of_this_version(page: Path) -> None:
    named = re.findall(r"nasgrow-(\d[\w.]*?)-py3", page.read_text(encoding="utf-8"))
    assert {*named} <= {__version__}


def test_modules_that_contributing_names_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    packages = re.findall(r"^\| `(nasgrow/\w+)/` \| (.+) \|$", text, flags=re.MULTILINE)
    assert {package for package, _ in packages} == {
        name(one.parent) for one in ROOT.glob("nasgrow/*/__init__.py")
    }
    for package, job in packages:
        for module in re.findall(r"`(\w+/?)`", job):
            folder = ROOT if module == "search_spaces/" else ROOT / package
            assert (folder / (module if module.endswith("/") else f"{module}.py")).exists(), (package, module)


def pages_of(nav: object) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for entry in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
            yield from pages_of(entry)


def test_every_page_is_on_the_site() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert {*pages_of(config["nav"])} == pages


def test_the_site_loads_nothing_from_elsewhere() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    assert config["theme"]["font"] is False
    assert "offline" in config["plugins"]
    assert all((ROOT / "docs" / file).exists() for file in config["extra"]["polyfills"])


@pytest.mark.parametrize(
    ("file", "model"), [("study", StudyConfig), ("study", TrainingConfig), ("run", RunConfig)]
)
def test_the_reference_lists_every_field(file: str, model: type[Strict]) -> None:
    listed = "\n".join(reference.file_fields(file))
    assert [field for field in model.model_fields if f"\n| `{field}` |" not in listed] == []


def study_fields(changes: dict[str, Any]) -> dict[str, object]:
    """The fields of the reference's smallest study with these changes, by their dotted names."""
    return dict(dotted(reference.resolved("study", changes).model_dump(mode="json")))


def dotted(document: object, path: str = "") -> Iterator[tuple[str, object]]:
    if not isinstance(document, dict):
        yield path, document
        return
    for field, value in document.items():
        yield from dotted(value, f"{path}.{field}" if path else field)


def test_the_reference_says_what_a_study_chooses_where_the_file_does_not() -> None:
    listed = "\n".join(reference.file_fields("study"))
    for field, default in {
        "sampler.kind": "`tree`; `tpe` if the file names a pruner, with two objectives, with a Python space, "
        "or if `training.evaluations` is no multiple of 5",
        "sampler.startup": "`3`; `10` with any other `kind`",
        "pruner.kind": "`none`; `asha` with one objective and any sampler but `tree`",
        "tune": "`{learning_rate.peak: [x0.25, x0.5, x1, x2, x4], batch_tokens: [x1]}`",
        "budget.flops": "`1e12`; `null` if another unit is given",
    }.items():
        section, _, last = field.rpartition(".")
        (table,) = re.findall(rf"^### `{section}`$(.*?)(?=^###|\Z)", listed, re.MULTILINE | re.DOTALL) or [
            listed
        ]
        assert re.search(rf"^\| `{last}` \|.* \| {re.escape(default)} \|$", table, re.MULTILINE), field

    smallest = study_fields({})
    for field, cases in reference.DEPENDS.items():
        assert [
            words for words, changes in cases.items() if study_fields(changes)[field] == smallest[field]
        ] == []


def test_what_a_study_chooses_is_what_the_reference_says() -> None:
    smallest, seen = study_fields({}), 0
    compound = reference.resolved("study", {}).model_dump(mode="json")["space"]
    kinds = [None, *get_args(Sampler.model_fields["kind"].annotation)]
    for objectives, python, evaluations, kind, pruner in product(
        (["loss"], ["loss", "parameters"]), (False, True), (20, 7), kinds, (None, "none", "asha")
    ):
        changes: dict[str, Any] = {"objectives": objectives, "training": {"evaluations": evaluations}}
        changes["space"] = {"python": "module:function"} if python else compound
        changes |= {"sampler": {"kind": kind}} if kind else {}
        changes |= {"pruner": {"kind": pruner}} if pruner else {}
        try:
            fields = study_fields(changes)
        except UserError:
            continue  # such a study is refused, whatever is its default
        seen += 1
        tpe = pruner or len(objectives) == 2 or python or evaluations % 5
        assert fields["sampler.kind"] == (kind or ("tpe" if tpe else "tree")), changes
        assert fields["sampler.startup"] == (3 if fields["sampler.kind"] == "tree" else 10), changes
        asha = len(objectives) == 1 and fields["sampler.kind"] != "tree"
        assert fields["pruner.kind"] == (pruner or ("asha" if asha else "none")), changes
        changed = {field for field, value in fields.items() if smallest.get(field) != value}
        given = {field for field in changed if field.split(".")[0] in changes}
        assert changed - given <= reference.DEPENDS.keys(), changes
    assert seen == 4 * 17 + 4 * 12  # with one objective and with two


def test_the_reference_lists_every_kind_of_space_expansion_and_operator_option() -> None:
    spaces = "\n".join(reference.file_fields("space"))
    assert [kind for kind in SPACES if f"### `kind: {kind}`" not in spaces] == []
    expansions = "\n".join(reference.expansion_fields())
    assert [kind for kind in EXPANSIONS if f"| `expand: {kind}` |" not in expansions] == []
    options = "\n".join(reference.operator_options())
    assert re.search(
        r"^\| `net2net`: `noise` \| .+ \| a number from 0 to\s1 \| `0.01` \|$", options, re.MULTILINE
    )


def test_the_reference_lists_every_command_and_option() -> None:
    listed = "\n".join(reference.commands())
    headings = re.findall(r"^### `nasgrow (?:\w+ )?(\w+)`$", listed, flags=re.MULTILINE)
    assert {*headings} == {command.name for command in leaves(cli) if command is not cli}
    for command in leaves(cli):
        flags = [flag for one in command.params if isinstance(one, click.Option) for flag in one.opts]
        unlisted = [flag for flag in flags if not re.search(rf"`{flag}[ `]", listed)]
        assert command is cli or not unlisted, command.name
    assert not re.search(r"^\| `--[^|]+\|\s*(Default[^|]*)?\|$", listed, flags=re.MULTILINE), (
        "an option without help"
    )


def test_figures_are_those_that_the_script_draws() -> None:
    drawn = {**figures.expansions(), "architecture": figures.architecture(), "house": figures.house()}
    for figure, text in drawn.items():
        assert (ROOT / "docs" / "assets" / f"{figure}.svg").read_text(encoding="utf-8") == text, figure


def commands(file: Path) -> Iterator[tuple[list[str], bool]]:
    """The arguments of each ``nasgrow`` of a document, and whether all are there: text may leave some out."""
    text = file.read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    if file.suffix == ".yaml":
        lines += [line.lstrip("# ") for line in text.splitlines() if re.match(r"#\s+nasgrow ", line)]
    mentioned = [line.replace("[URL]", "URL") for line in re.findall(r"`(nasgrow [^`]+)`", text)]
    for line in (*lines, *mentioned):
        for part in line.split(" && "):
            words = shlex.split(re.sub(r"\$\w+", "0", part), comments=True)
            called = [place for place, word in enumerate(words) if re.fullmatch(r"(\S*/)?nasgrow", word)]
            if called and called[0] + 1 < len(words):
                yield words[called[0] + 1 :], line in lines


def leaves(command: click.Command) -> Iterator[click.Command]:
    yield command
    if isinstance(command, click.Group):
        for one in command.commands.values():
            yield from leaves(one)


@pytest.mark.parametrize("file", FILES, ids=name)
def test_commands_can_be_called_as_they_are_written(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NASGROW_STORAGE", "")  # the option of that name sets it
    for command in leaves(cli):
        monkeypatch.setattr(command, "callback", lambda **_: None)
    for words, whole in commands(file):
        for word in words:
            if word.startswith(("studies/", "search_spaces/")):
                assert (ROOT / word).exists(), words
        try:
            cli.main(words, standalone_mode=False)
        except click.MissingParameter:
            assert not whole, words
        except click.ClickException as error:
            pytest.fail(f"{' '.join(words)}: {error.format_message()}")


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_what_python_examples_import_is_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for example in re.findall(r"^```python\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE):
        imports = [line for line in example.splitlines() if re.match(r"(from|import) ", line)]
        exec("\n".join(imports), {})


STUB = """#!/bin/bash
echo "$(basename "$0") $*" >> "$CALLS"
"""


def test_the_slurm_job_starts_a_cluster_and_the_driver_on_it(tmp_path: Path) -> None:
    """The commands that it calls are stubs, which write down how they were called."""
    text = (ROOT / "docs" / "how-to" / "slurm.md").read_text(encoding="utf-8")
    (job,) = re.findall(r"^```sh\n(#!/bin/bash\n.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    (tmp_path / "job").write_text(job, encoding="utf-8")
    for command in ("ray", "srun", "nasgrow", "openssl"):
        (tmp_path / command).write_text(STUB, encoding="utf-8")
        (tmp_path / command).chmod(0o755)
    calls = tmp_path / "calls"
    settings = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "CALLS": str(calls),
        "STUDY": "my.yaml",
        "SLURMD_NODENAME": "first",
        "SLURM_CPUS_PER_TASK": "16",
    }
    for nodes in ("3", "1"):
        calls.unlink(missing_ok=True)
        # Captured output ends when the last of the processes does, those in the background among them.
        given = settings | {"SLURM_NNODES": nodes}
        subprocess.run(["bash", str(tmp_path / "job")], env=given, check=True, capture_output=True)
        called = calls.read_text(encoding="utf-8").splitlines()
        assert any(line.startswith("ray start --head ") and "--port=6379" in line for line in called)
        assert "nasgrow search my.yaml --engine ray --address auto" in called
        others = [line for line in called if line.startswith("srun ")]
        assert len(others) == (nodes == "3")
        for line in others:
            assert "--nodes=2 --ntasks=2 --exclude=first" in line
            assert re.search(r"ray start --address=\S+:6379 .*--block$", line)


def block(page: str, beginning: str, folder: Path) -> dict[str, Any]:
    """The YAML block of a page that begins so."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    (found,) = re.findall(rf"^```yaml\n({beginning}.*?)^```", text, flags=re.DOTALL | re.MULTILINE)
    (folder / "block.yaml").write_text(found, encoding="utf-8")
    return read_mapping(folder / "block.yaml")


def test_defaults_are_as_documented(tmp_path: Path) -> None:
    run = block("reference/run-file.md", "schedule: two-events.yaml", tmp_path)
    assert TrainingConfig.model_validate(run["training"]) == TrainingConfig()
    assert run["training"].keys() == TrainingConfig.model_fields.keys()
    assert run["training"]["learning_rate"].keys() == LearningRate.model_fields.keys()
    assert run.keys() == RunConfig.model_fields.keys()
    study = block("reference/study-file.md", "name: quickstart", tmp_path)
    study["space"] = read_mapping(built_in()[study["space"]])  # what searches it depends on what it is
    given = {name: study[name] for name in ("name", "final", "space", "trials")}
    documented = parse(StudyConfig, study)
    assert documented == parse(StudyConfig, {**given, "budget": study["budget"]})
    assert study.keys() == StudyConfig.model_fields.keys()
