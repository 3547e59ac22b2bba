"""``nasgrow init``: write a first study file for a text and a model size."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import click
import yaml

from nasgrow.cli.durations import duration
from nasgrow.cli.plan import tell
from nasgrow.data import Corpus, check_data, in_words
from nasgrow.errors import UserError
from nasgrow.experiments.init_study import Device, Proposal, Wanted, propose
from nasgrow.flops import parameter_count
from nasgrow.schema import schema_of
from nasgrow.strict import plain_name, with_prefix
from nasgrow.training.atomic_files import to_json, write_text
from nasgrow.training.device import gpu_count

SCHEMA = "nasgrow.schema.json"
"""The file name of the JSON schema that is written beside a study file, for editors."""

LONG_HOURS = 24.0
"""Hours from which on ``init`` suggests ways to shorten the study."""

PASSES = 4
"""The most useful passes over a text; further ones teach little (Muennighoff et al. 2023)."""


def run(
    name: str | None, text: str | None, params: str | None, device: Device | None, hours: float | None
) -> int:
    """Write a study file and its JSON schema, and print what to do next; return 0.

    Training steps are timed, and the text is prepared unless it must be downloaded first.

    Args:
        name: The study's name, or the path of its file; by default ``my-study``.
        text: A file, a folder, a pattern or a dataset's name; asked for if None.
        params: The approximate number of parameters, such as ``10M``; asked for if None.
        device: The device; by default a GPU if there is one.
        hours: The hours that baselines and search may take; None for no limit. It is asked for if
            ``text`` or ``params`` is.
    """
    if text is None or params is None:
        name, text, params, hours = _ask(name, text, params, hours)
    file = Path(name or "my-study")
    file = file if file.suffix in (".yaml", ".yml") else file.with_name(f"{file.name}.yaml")
    with_prefix("NAME", lambda: plain_name(file.stem))
    if file.exists():
        raise UserError(f"{file}: exists already: choose another name")
    if not file.parent.is_dir():
        raise UserError(f"{file}: there is no folder {str(file.parent)!r}")
    wanted = Wanted(text, number(params), device or ("cuda" if gpu_count() else "cpu"), hours)
    made = propose(wanted, file)
    config = made.study.config
    corpus = with_prefix("--text", lambda: check_data(config.data, config.training.context, tell))
    write_text(file, as_text(file, made))
    write_text(file.parent / SCHEMA, to_json(schema_of("study"), indent=2) + "\n")
    _show(file, made, wanted, corpus)
    return 0


def _ask(
    name: str | None, text: str | None, params: str | None, hours: float | None
) -> tuple[str, str, str, float | None]:
    """Prompt for the options that were not given; return name, text, params and hours, all set.

    :func:`run` calls it if ``--text`` or ``--params`` is missing.

    Raises:
        UserError: Standard input is no terminal.
    """
    if not sys.stdin.isatty():
        missing = "--text" if text is None else "--params"
        raise UserError(f"{missing}: is missing: nasgrow init my-study --text PATH_OR_HUB_NAME --params 1M")
    name = name or click.prompt("Name of the study", default="my-study")
    text = text or click.prompt("Text: a file, a folder, or a dataset of the hub (owner/name)")
    params = params or click.prompt("Parameters of the final model", default="1M")
    hours = hours or click.prompt(
        "Hours that it may take", default=1.0, type=click.FloatRange(0, min_open=True)
    )
    return str(name), str(text), str(params), hours


def number(given: str) -> float:
    """Parse a number of parameters: 45504, 45_504, 45,504, 45k, 10M, 1.5e6, 1B.

    A comma separates thousands. Upper and lower case are the same.

    Raises:
        UserError: It is no such number.
    """
    digits = r"[1-9]\d{0,2}(?:,\d{3})+|[\d.]+(?:e\d+)?"
    found = re.fullmatch(rf"({digits})([kmb]?)", given.strip().lower().replace("_", ""))
    try:
        if found is None:
            raise ValueError
        return float(found[1].replace(",", "")) * {"": 1, "k": 1e3, "m": 1e6, "b": 1e9}[found[2]]
    except ValueError:
        raise UserError(f"--params: must be a number such as 500k, 10M or 1e6, not {given!r}") from None


def as_text(file: Path, made: Proposal) -> str:
    """Return the study file as text, with a comment for each choice.

    Its first comments name the commands to run on ``file``.
    """
    study, fields = made.study, made.fields
    count = parameter_count(study.final, study.variant)
    took = "its time was not measured here"
    if made.hours is not None:
        took = f"about {duration(3600 * made.hours)} on this machine, confirming left out"
    lines = [
        f"# yaml-language-server: $schema={SCHEMA}",
        f"# Written by nasgrow init. With {SCHEMA} an editor completes and checks it.",
        "# nasgrow schema lists every field, nasgrow spaces the search spaces.",
        f"#   nasgrow search {file}",
        f"#   nasgrow confirm {file}",
        f"#   nasgrow report {file}",
        f"# Cost: {study.budget:.3g} FLOPs a run; baselines and search take {took}.",
        "",
        f"# {count:,} parameters; every schedule ends here",
        _line("final", fields["final"]),
        _line("variant", fields["variant"]),
        f"# {made.tokens_per_parameter:g} tokens for each parameter; every run may spend as much",
        _line("budget", fields["budget"]),
        _line("data", fields["data"]),
        "# batch and learning rate by the compute of a run, after Bi et al. (2024)",
        _line("training", fields["training"]),
        "# sizes above 1 of hidden, layers, MLP and heads may start at half, and grow at a time of their own",
        _line("space", fields["space"]),
        "# for schedules and fixed shapes alike: the law's learning rate, half and twice that",
        _line("tune", fields["tune"]),
        _line("trials", fields["trials"]),
    ]
    if "resources" in fields:
        lines += ["# on the processor", _line("resources", fields["resources"])]
    return "\n".join(lines) + "\n"


def _line(name: str, value: Any) -> str:
    """Return a field as one line of YAML."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)
    return f"{name}: {text.splitlines()[0]}"


def _show(file: Path, made: Proposal, wanted: Wanted, corpus: Corpus | None) -> None:
    study = made.study
    count = parameter_count(study.final, study.variant)
    tokens = made.tokens_per_parameter * count
    print(f"{file}: {count:,} parameters, {made.tokens_per_parameter:g} tokens for each, {study.final}")
    print(in_words(corpus, tokens))
    if corpus is not None and tokens > PASSES * len(corpus.train):
        most = int(PASSES * len(corpus.train) / made.tokens_per_parameter)
        print(
            f"warning: that is more than {PASSES} times, so this text suits about {most:,} parameters; "
            "larger models learn it by heart"
        )
    if made.hours is not None:
        print(f"Baselines and search take about {duration(3600 * made.hours)} on this machine.")
        if made.hours > LONG_HOURS and wanted.hours is None:
            print("--hours fits the budget to the time that you have, and fewer --params need less.")
    print("\nNext:")
    for command in ("search", "confirm", "report"):
        print(f"  nasgrow {command} {file}")
