"""Write reference pages from the code, when the site is built.

A page holds a comment such as ``<!-- fields of study files -->`` or ``<!-- commands -->``. The build
replaces it by tables that are made from the models that read files, or from the commands.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any

import click
import griffe
import yaml

from nasgrow.cli.main import COMMAND_SECTIONS, cli
from nasgrow.config import RunConfig
from nasgrow.expansions import EXPANSION_TYPES, Expansion
from nasgrow.operators import OPERATORS
from nasgrow.schema import schema_of
from nasgrow.shape import Variant
from nasgrow.strict import Strict, parse
from nasgrow.study.config import StudyConfig, study_from

Json = Mapping[str, Any]


def _models(model: type[Strict]) -> Iterator[tuple[str, type[Strict]]]:
    yield model.__name__, model
    for one in model.__subclasses__():
        yield from _models(one)


MODELS: dict[str, type[Strict]] = {
    **dict(_models(Strict)),
    "nasgrow study": StudyConfig,
    "nasgrow run": RunConfig,
}
"""The models that files are read with, by the titles of their schemas."""
TITLES = {"nasgrow study": "study", "nasgrow run": "run"}
"""The kinds of files whose defaults are read off the smallest one, by the titles of their schemas."""
ELSEWHERE = {
    "training.operator": "an [operator](operators.md)",
    "schedule": "a [schedule](schedule-file.md), or the path of its file",
    "final": "a [shape](schedule-file.md#shapes)",
    "space": "a [space](space-file.md)",
}
"""Fields of study and run files that have a page of their own."""
TINY, HUGE = 1e-6, 1e9
"""Bounds below and above are not written: they only catch typing errors."""
SHORT = 24
"""Inline code of up to this many characters is not broken into lines."""
METAVARS = {
    "INTEGER RANGE": "N",
    "INTEGER": "N",
    "FLOAT RANGE": "NUMBER",
    "FLOAT": "NUMBER",
    "FORM": "FORMAT",
}
"""What an option's value is called here, by what click calls it."""
NOISE = ("See `CancellingNoise`.", "See [below](#how-copies-become-different).")
"""Where the page explains what the docstrings of operators refer to."""
SPACES = ("kind: compound", "kind: per-dimension", "kind: slots", "kind: fixed", "python")
"""The kinds of spaces, in the order of the page."""
FILLED_IN = {"CheckpointStart": ("hash", "vocab", "shape")}
"""Fields that follow from what a file names, and are filled in when it is read."""

SHAPE = {"hidden": 64, "layers": 2, "mlp": 256, "heads": 4, "key": 16, "value": 16}
SMALLEST: dict[str, dict[str, Any]] = {
    "study": {"final": SHAPE, "space": "compound", "trials": 1},
    "run": {"schedule": {"start": SHAPE}},
}
"""The smallest files of their kinds: what nasgrow makes of every other field is the field's default."""
DEPENDS: dict[str, dict[str, dict[str, Any]]] = {
    "budget.flops": {"if another unit is given": {"budget": {"tokens": 1e9}}},
    "sampler.kind": {
        "if the file names a pruner": {"pruner": {"kind": "asha"}},
        "with two objectives": {"objectives": ["loss", "parameters"]},
        "with a Python space": {"space": {"python": "module:function"}},
        "if `training.evaluations` is no multiple of 5": {"training": {"evaluations": 7}},
    },
    "sampler.startup": {"with any other `kind`": {"sampler": {"kind": "tpe"}}},
    "pruner.kind": {"with one objective and any sampler but `tree`": {"sampler": {"kind": "tpe"}}},
}
"""Fields whose default depends on the rest of the file: what changes it, and an example of that."""


@cache
def _variant() -> dict[str, str]:
    """What the class that a variant section configures says of its fields."""
    sections = griffe.Docstring(inspect.cleandoc(Variant.__doc__ or "")).parse("google")
    return {one.name: _line(one.description) for one in sections[-1].value}


def on_page_markdown(markdown: str, **_: object) -> str:
    """MkDocs calls this for every page (an event of its hooks)."""
    return re.sub(
        r"<!-- fields of (\w+) files -->|<!-- (commands|expansions|operators) -->", _generated, markdown
    )


def on_page_content(html: str, **_: object) -> str:
    """MkDocs calls this too: docstrings name things as Sphinx does, and defaults end with a blank."""
    html = re.sub(r":(?:attr|class|data|exc|func|meth|mod):(<code>)~?", r"\1", html)
    html = re.sub(r"(</code>)\s+\)(\s+–)", r"\1)\2", html)
    return re.sub(r"<pre\b.*?</pre>|<code>([^<\n]+)</code>", _unbroken, html, flags=re.DOTALL)


def _unbroken(code: re.Match[str]) -> str:
    """Inline code that does not break where it must not: each option in it, and short code as a whole."""
    if code[1] is None:
        return code[0]
    word = ' class="word"' if len(unescape(code[1])) <= SHORT else ""
    options = re.sub(r"(?<![\w-])--?[a-z][\w-]*", r'<span class="option">\g<0></span>', code[1])
    return f"<code{word}>{options}</code>"


def resolved(file: str, changes: Json) -> StudyConfig | RunConfig:
    """The smallest study or run file, as nasgrow reads it.

    Args:
        file: ``study`` or ``run``.
        changes: Fields that it has besides its own, or in place of them.
    """
    document = {**SMALLEST[file], **changes}
    return study_from(document, Path("NAME.yaml")) if file == "study" else parse(RunConfig, document)


@cache
def _smallest(file: str) -> dict[str, Any]:
    """Every field of the smallest file of a kind, with what nasgrow fills in."""
    return resolved(file, {}).model_dump(mode="json") if file in SMALLEST else {}


def _generated(found: re.Match[str]) -> str:
    if found[1] is not None:
        return "\n".join(file_fields(found[1]))
    made = {"commands": commands, "expansions": expansion_fields, "operators": operator_options}
    return "\n".join(made[found[2]]())


def file_fields(file: str) -> Iterator[str]:
    """The fields of study, run or space files, as tables."""
    schema = schema_of(file)  # type: ignore[arg-type]
    if file != "space":
        yield from _table(schema, schema, path="")
        return
    kinds = sorted(
        _alternatives(_alternatives(schema)[0]), key=lambda kind: SPACES.index(_discriminator(kind))
    )
    shared = set.intersection(*(set(kind["properties"]) for kind in kinds if "times" in kind["properties"]))
    yield from ("### All kinds but `fixed`", "")
    named = {name: "final" if name == "final" else "" for name in shared - {"kind"}}
    yield from _rows(kinds[0], kinds[0], "", named)
    yield from _table(next(_objects(kinds[0]["properties"]["final"], kinds[0])), kinds[0], "final.")
    for kind in kinds:
        without = shared if "times" in kind["properties"] else {"kind"}
        own = {name: "" for name in kind["properties"] if name not in without}
        yield from ("", f"### `{_discriminator(kind)}`", "", _meaning(kind), "")
        yield from _rows(kind, kind, "", own)


def expansion_fields() -> Iterator[str]:
    """How a schedule file writes each expansion."""
    yield from ('<div class="fields expansions" markdown>', "")
    yield from ("| expansion | meaning | must be given | may be left out |", "|---|---|---|---|")
    for name, expansion in EXPANSION_TYPES.items():
        given = {field.name: field.default is not MISSING for field in fields(expansion) if field.init}
        columns = [
            ", ".join(f"`{field}`" for field, optional in given.items() if optional is wanted)
            for wanted in (False, True)
        ]
        yield f"| `expand: {name}` | {_expansion_meaning(expansion)} | {' | '.join(columns)} |"
    yield from ("", "</div>")


def _expansion_meaning(expansion: type[Expansion]) -> str:
    """What an expansion does, without the numbers of its definition and theorem."""
    return re.sub(r" \(Definition and Theorem [\d.]+\)", "", _line(expansion.__doc__ or ""))


def operator_options() -> Iterator[str]:
    """The options of every operator that has one."""
    yield from (
        '<div class="fields" markdown>',
        "",
        "| option | meaning | values | default |",
        "|---|---|---|---|",
    )
    for name, operator in OPERATORS.items():
        for option, schema in operator.model_json_schema()["properties"].items():
            if option != "kind":
                meaning = _meaning(schema).replace(*NOISE)
                cells = (meaning, _values(schema, {}), _default(schema, {}, {}, option))
                yield f"| `{name}`: `{option}` | {' | '.join(cells)} |"
    yield from ("", "</div>")


def _table(schema: Json, root: Json, path: str) -> Iterator[str]:
    """The fields of an object, and then those of the objects in it, each below a heading of its own."""
    if path:
        yield from ("", f"### `{path.rstrip('.')}`", "", _meaning(schema), "")
    within = {
        name: f"{path}{name}"
        for name, field in schema["properties"].items()
        if f"{path}{name}" not in ELSEWHERE and any(_objects(field, root))
    }
    yield from _rows(schema, root, path, {name: within.get(name, "") for name in schema["properties"]})
    for name, full in within.items():
        objects = list(_objects(schema["properties"][name], root))
        if len(objects) == 1:
            yield from _table(objects[0], root, f"{full}.")
            continue
        yield from ("", f"### `{full}`", "", "One of these mappings.", "")
        for one in objects:
            yield from (f"**`{_discriminator(one)}`**: {_meaning(one)}", "")
            if own := {field: "" for field in one["properties"] if "const" not in one["properties"][field]}:
                yield from _rows(one, root, f"{full}.", own)


def _rows(schema: Json, root: Json, path: str, names: Mapping[str, str]) -> Iterator[str]:
    """A table of fields. Where a name has a dotted path, the fields in it stand below that heading."""
    yield from (
        '<div class="fields" markdown>',
        "",
        "| field | meaning | values | default |",
        "|---|---|---|---|",
    )
    for name, field in schema["properties"].items():
        if name not in names or name in FILLED_IN.get(schema.get("title", ""), ()):
            continue
        elsewhere = ELSEWHERE.get(f"{path}{name}") if root["title"] in TITLES else None
        values = elsewhere or _values(field, root)
        if names[name]:
            null = ", or `null`" if any(one.get("type") == "null" for one in _alternatives(field)) else ""
            values = f"[a mapping](#{_slug(names[name])}){null}"
        default = _default(field, schema, root, f"{path}{name}")
        if names[name] and default.startswith("`{") and len(list(_objects(field, root))) == 1:
            default = "as below"  # each field below that heading has one of its own
        meaning = _meaning(field) or _inherited(schema, name) or _first_meaning(field, root)
        yield f"| `{name}` | {meaning} | {values} | {default} |"
    yield from ("", "</div>", "")


def _inherited(schema: Json, name: str) -> str:
    """What the class of a model, or the class that it configures, says of a field."""
    title = schema.get("title", "")
    if title == "VariantConfig":
        return _variant()[name].replace("None:", "`null`:")
    return _line(MODELS[title].model_fields[name].description or "") if title in MODELS else ""


def _first_meaning(field: Json, root: Json) -> str:
    """What one of the alternatives of a field says, or the object in it."""
    objects = list(_objects(field, root))
    described = [one for one in (*objects, *_alternatives(field)) if "description" in one]
    return _meaning(described[0]) if described and len(objects) <= 1 else ""


def _objects(field: Json, root: Json) -> Iterator[Json]:
    """The objects that a field may hold, if it may hold any with fields of their own."""
    if "$ref" in field:
        field = root["$defs"][field["$ref"].rpartition("/")[2]]
    if field.get("properties") and field.get("title") != "Range":
        yield field
    for one in _alternatives(field):
        yield from _objects(one, root)


def _alternatives(schema: Json) -> list[Json]:
    return [*schema.get("anyOf", ()), *schema.get("oneOf", ())]


def _discriminator(schema: Json) -> str:
    """What tells this mapping from others: ``kind: bpe``, or the name of its first field."""
    for name, field in schema["properties"].items():
        if "const" in field:
            return f"{name}: {field['const']}"
    return str(next(iter(schema["properties"])))


def _values(field: Json, root: Json) -> str:
    """What a field may hold, in a few words."""
    if (field.get("title") == "Choices" and field.get("type") == "array") or any(
        one.get("title") == "Range" for one in _alternatives(field)
    ):
        return "a [setting](#settings)"
    if field.get("title") == "Range":
        return "a range, `{low, high, step}`"
    if alternatives := _alternatives(field):
        return ", or ".join(dict.fromkeys(_values(one, root) for one in alternatives))
    if "enum" in field:
        return ", ".join(f"`{value}`" for value in field["enum"])
    if "const" in field:
        return f"`{field['const']}`"
    kind = field.get("type")
    if kind == "array":
        return _list_of(field.get("items", {}), root)
    if kind == "object" and (keys := field.get("propertyNames", {}).get("enum")):
        return f"a mapping with any of {', '.join(f'`{key}`' for key in keys)}"
    words = {
        "integer": "a whole number",
        "number": "a number",
        "string": "text",
        "boolean": "`true`, `false`",
        "null": "`null`",
        "object": "a mapping",
    }
    return f"{words.get(str(kind), 'any')} {_bounds(field)}".strip()


def _list_of(item: Json, root: Json) -> str:
    """What a list may hold, in a few words."""
    if "enum" in item:
        return f"a list with any of {_values(item, root)}"
    plural = {"integer": "whole numbers", "number": "numbers", "string": "texts"}
    return f"a list of {plural[item['type']]} {_bounds(item)}".strip()


def _bounds(field: Json) -> str:
    """Between which numbers a number may lie. Bounds that only catch typing errors are left out."""
    low, above = field.get("minimum"), field.get("exclusiveMinimum")
    high, below = field.get("maximum"), field.get("exclusiveMaximum")
    if field.get("type") == "integer" and above is not None:
        low, above = above + 1, None
    if low is not None and 0 < low < TINY:
        low, above = None, 0
    high, below = (None if most is None or most >= HUGE else most for most in (high, below))
    if low is not None and high is not None:
        return f"from {_number(low)} to\u00a0{_number(high)}"
    bounds = ((">", above), ("≥", low), ("<", below), ("≤", high))
    return ", ".join(f"{sign}\u00a0{_number(bound)}" for sign, bound in bounds if bound is not None)


def _number(value: float) -> str:
    written = f"{int(value):,}" if value == int(value) else f"{value:g}"
    return written.replace("-", "−")


def _default(field: Json, schema: Json, root: Json, path: str) -> str:
    """What nasgrow does where a file leaves a field out: what it makes of the smallest file."""
    name = path.rpartition(".")[2]
    if name in schema.get("required", ()):
        return "must be given"
    file = TITLES.get(root.get("title", ""), "")
    if name == "name" and file:
        return "the name of the file"
    smallest = _at(_smallest(file), path) if path not in SMALLEST.get(file, ()) else MISSING
    if smallest is not MISSING:
        return "; ".join([_shown(smallest), *_dependent(file, path)])
    if "default" in field:
        return _shown(field["default"])
    model = MODELS.get(schema.get("title", ""))
    made = model.model_fields[name].get_default(call_default_factory=True) if model is not None else None
    return _shown(made) if isinstance(made, list | dict) else ""


def _dependent(file: str, path: str) -> Iterator[str]:
    """What else a default may be, and when."""
    when: dict[str, list[str]] = {}
    for words, changes in DEPENDS.get(path, {}).items():
        value = _at(resolved(file, changes).model_dump(mode="json"), path)
        when.setdefault(_shown(value), []).append(words)
    for shown, (*all_but_last, last) in when.items():
        yield f"{shown} {', '.join([*all_but_last, f'or {last}' if all_but_last else last])}"


def _at(document: Any, path: str) -> Any:
    """The value at a dotted path; MISSING if there is none."""
    for name in path.split("."):
        if not isinstance(document, dict) or name not in document:
            return MISSING
        document = document[name]
    return document


def _shown(value: object) -> str:
    """A value as a file would have it."""
    if isinstance(value, float) and value >= 1e10:
        return f"`{value:g}`".replace("e+", "e")
    if isinstance(value, int) and value >= 1e6:
        return f"`{value:_}`"
    written = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000)
    return f"`{written.strip().removesuffix('...').strip().replace('.0e-0', 'e-')}`"


def _meaning(field: Json) -> str:
    return _line(field.get("description", ""))


def _line(docstring: str) -> str:
    """A docstring as one line of Markdown."""
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?(\w+)`", r"`\1`", docstring)
    text = re.sub(r"`[^`]+`|\bnull\b", lambda found: f"`{found[0].strip('`')}`", text.replace("``", "`"))
    return " ".join(text.split()).replace("|", "\\|")


def _slug(text: str) -> str:
    return re.sub(r"[^\w\- ]", "", text.lower())


def commands() -> Iterator[str]:
    """Every command with its arguments and options, in the order of ``nasgrow --help``."""
    for section, names in COMMAND_SECTIONS.items():
        yield from ("", f"## {section}", "")
        for name in names:
            yield from _command(cli.commands[name], f"nasgrow {name}")


def _command(command: click.Command, path: str) -> Iterator[str]:
    context = click.Context(command, info_name=path)
    pieces = " ".join(command.collect_usage_pieces(context))
    yield from ("", f"### `{path}`", "", "```text", f"{path} {pieces}", "```", "")
    arguments = [
        one.make_metavar(context).strip("[].") for one in command.params if one.param_type_name == "argument"
    ]
    yield from (_markdown(command.help or "", arguments), "")
    options = [one for one in command.params if isinstance(one, click.Option)]
    shown = [one for one in options if not one.hidden]
    if shown:
        yield from ('<div class="options" markdown>', "", "| option | meaning |", "|---|---|")
        for option in shown:
            yield f"| {_option(option, context, arguments)} |"
        yield from ("", "</div>", "")
    if isinstance(command, click.Group):
        for name, one in command.commands.items():
            yield from _command(one, f"{path} {name}")


def _option(option: click.Option, context: click.Context, arguments: Sequence[str]) -> str:
    """The cells of an option: what to type, and what it means."""
    metavar = option.make_metavar(context).strip("[]")
    choices = ""
    if isinstance(option.type, click.Choice):
        metavar = (option.name or "").upper()
        choices = f" One of {', '.join(f'`{choice}`' for choice in option.type.choices)}."
    value = "" if option.is_flag else f" {METAVARS.get(metavar, metavar)}"
    names = ", ".join(f"`{flag}{value}`" for flag in (*option.opts, *option.secondary_opts))
    shown = option.to_info_dict()["default"] if option.show_default else None
    default = " Must be given." if option.required else "" if shown is None else f" Default: `{shown}`."
    return f"{names} | {_markdown(option.help or '', arguments)}{choices}{default}"


CODE = (
    r"(?<![\w-])--[a-z][a-z-]*",
    r"\bNASGROW_[A-Z_]+",
    r"\b(?:runs|reports|RUN|TRACKER)/[\w./-]*\w",
    r"\bNAME\.\w+",
    r"\b(?:best-schedule|my-study)\.yaml",
    r"\bsampler\.kind grid\b",
    r"\bnasgrow\.load\(folder\)",
    r"\bhidden=[\w,=]+",
)
"""What is code in the help of commands, as regular expressions."""


def _markdown(help_text: str, arguments: Sequence[str]) -> str:
    """Help of a command, with its arguments and options as code."""
    patterns = (*CODE, *(rf"\b{re.escape(argument)}\b" for argument in arguments))
    return re.sub("|".join(patterns), r"`\g<0>`", inspect.cleandoc(help_text.replace("\b", "")))
