"""Read files that users write: strict YAML, strict pydantic models, and one-line errors.

An error names the file, the field and the value, and says what would be right.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from nasgrow.errors import UserError
from nasgrow.redact import redact

Model = TypeVar("Model", bound=BaseModel)
Made = TypeVar("Made")

MOST_BYTES = 1_000_000
"""The most bytes of a file that a user writes, and the most characters with YAML aliases expanded."""
MOST_VALUES = 50_000
"""The most values of such a file, with aliases expanded: a few lines of aliases can expand beyond memory."""
LONGEST_NUMBER = 1_000
"""The most digits of a number, so that Python can convert and print it."""


class Strict(BaseModel):
    """Base of all models: frozen, without unknown fields and without type conversions."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class _Loader(yaml.SafeLoader):
    """A YAML loader that reads 1e12 as a number, refuses duplicate keys, and limits the size of aliases."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._nodes = self._letters = 0
        self._sizes: dict[str, tuple[int, int]] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        nodes, letters = self._nodes, self._letters
        node = super().compose_node(parent, index)  # inner nodes count themselves
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._sizes:
                raise UserError(f"{_line(event)}: *{event.anchor} is used inside the value that it names")
            more = self._sizes[event.anchor]
            self._nodes, self._letters = self._nodes + more[0], self._letters + more[1]
        else:
            self._nodes += 1
            if isinstance(event, yaml.ScalarEvent):
                self._letters += len(event.value)
            if event.anchor is not None:
                self._sizes[event.anchor] = self._nodes - nodes, self._letters - letters
        for count, most, what in (
            (self._nodes, MOST_VALUES, "values"),
            (self._letters, MOST_BYTES, "characters"),
        ):
            if count > most:
                raise UserError(f"{_line(event)}: must hold at most {most:,} {what}, aliases written out")
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Check here, before merge keys (<<) add keys of other mappings: a mapping may override those.
        node = super().compose_mapping_node(anchor)
        keys: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in keys:
                    raise UserError(f"{_line(key)}: {key.value!r} stands twice")
                keys.add((key.tag, key.value))
        return node

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> str:
        # A lone surrogate is half of a character, which no file and no database can hold.
        text = str(super().construct_scalar(node))
        if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
            raise UserError(f"{_line(node)}: {_quote(text)} has a lone surrogate: write the character itself")
        return text

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            return super().construct_object(node, deep)
        kind = node.tag.rpartition(":")[2]
        if kind in ("int", "float") and len(node.value) > LONGEST_NUMBER:
            raise UserError(f"{_line(node)}: a number must have at most {LONGEST_NUMBER} digits")
        try:
            return super().construct_object(node, deep)
        except UserError:
            raise
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError):
            # The library raises these for 2026-02-31, which is no date, and for "!!int x".
            raise UserError(f"{_line(node)}: {_quote(node.value)} is no {kind}") from None


def _line(part: yaml.Node | yaml.Event) -> str:
    """Return the line of a part of a file, for messages."""
    assert part.start_mark is not None
    return f"line {part.start_mark.line + 1}"


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def read_text(path: Path, most: int) -> str:
    """Read a text file that the user names.

    Raises:
        UserError: It cannot be read, is a device or a pipe, has more than ``most`` bytes, or is not UTF-8.
    """
    try:
        # A folder passes here, because opening it raises the right error.
        regular = stat.S_IFMT(path.stat().st_mode) in (stat.S_IFREG, stat.S_IFDIR)
        if regular:
            with path.open("rb") as file:
                content = file.read(most + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from None
    except ValueError:
        raise UserError(f"{str(path)!r}: no file can have this name") from None
    if not regular:
        raise UserError(f"{path}: is not a regular file")
    if len(content) > most:
        raise UserError(f"{path}: must have at most {most:,} bytes")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path}: line {line}: is not UTF-8 text (byte {content[error.start]:#04x}): save it as UTF-8"
        ) from None


def read_json(path: Path, most: int = MOST_BYTES) -> Any:
    """Read a JSON file of at most ``most`` bytes.

    Raises:
        UserError: As for :func:`read_text`, or it is not valid JSON.
    """
    text = read_text(path, most)
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # a ValueError also if a number has more digits than Python converts
        raise UserError(f"{path}: is not JSON") from None


def read_as(path: Path, kind: TypeAdapter[Made], most: int = MOST_BYTES) -> Made:
    """Read a JSON file of at most ``most`` bytes that nasgrow wrote, as a value of a type.

    Raises:
        UserError: As for :func:`read_json`, or it holds another type.
    """
    try:
        return kind.validate_python(read_json(path, most))
    except ValidationError:
        raise UserError(f"{path}: is damaged; remove it or choose another folder") from None


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping.

    Raises:
        UserError: As for :func:`read_text` and :func:`parse_mapping`; the message begins with the
            path.
    """
    text = read_text(path, MOST_BYTES)
    return with_prefix(str(path), lambda: parse_mapping(text))


def parse_mapping(text: str) -> dict[str, Any]:
    """Parse a YAML text that holds a mapping.

    Raises:
        UserError: It is not valid YAML, holds something else, repeats a key, or exceeds the limits
            of this module.
    """
    try:
        data = yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        problem = error.problem or "is not YAML"
        if "'\\t'" in problem:
            problem = "a tab: YAML is indented by spaces"
        raise UserError(f"{line}{problem}") from None
    except yaml.YAMLError as error:
        raise UserError(str(error).splitlines()[0]) from None
    except RecursionError:
        raise UserError("is nested too deeply") from None
    if data is None:
        raise UserError("is empty; it must be a mapping of fields")
    if not isinstance(data, dict):
        raise UserError(f"must be a mapping of fields, not {_quote(data)}")
    return data


def parse(model: type[Model], data: object, where: str = "") -> Model:
    """Validate ``data`` as ``model``.

    Raises:
        UserError: The data is invalid. The message is one line about the most helpful error, and
            begins with ``where``, if given. Any other exception of a validator is a bug in the
            validator, and is raised unchanged.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_input=False):
            bug = detail.get("ctx", {}).get("error")
            if isinstance(bug, Exception) and not isinstance(bug, UserError):
                raise bug  # noqa: B904
        message = _first(error, model)
        raise UserError(f"{where}: {message}" if where else message) from None


def plain_name(name: str) -> str:
    """Return the name if it may name a folder.

    Such a name has at most 100 ASCII letters, digits, '.', '_' and '-', and begins with a letter or
    a digit. Names that Windows reserves, such as ``con``, are not refused.

    Raises:
        UserError: It is not; the message does not name the field.
    """
    if len(name) > 100:
        raise UserError(f"must have at most 100 characters, not {len(name)}")
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        raise UserError(f"must consist of letters, digits, '.', '_' and '-', not {name!r}")
    if name[0] in "._-":
        raise UserError(f"must begin with a letter or a digit, not {name!r}")
    return name


def with_prefix(where: str, make: Callable[[], Made]) -> Made:
    """Return ``make()``; if that raises ``UserError``, prefix the message with ``where``."""
    try:
        return make()
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _first(error: ValidationError, model: type[BaseModel]) -> str:
    """Return one line about the most helpful error of a validation."""
    details = error.errors(include_url=False)
    # A missing field may be misspelt: then the error about the unknown field is more helpful.
    first = next((detail for detail in details if _is_misspelt(detail, model)), details[0])
    place = ".".join(str(part) for part in first["loc"])
    message = first["msg"][0].lower() + first["msg"][1:]
    if first["type"] == "extra_forbidden":
        known = {name for one in _models_at(model, first["loc"][:-1]) for name in one.model_fields}
        return f"{place}: there is no such field{did_you_mean(str(first['loc'][-1]), known)}"
    if first["type"] == "missing":
        return f"{place}: is missing"
    message = message.removeprefix("value error, ")
    if first["type"] in ("model_type", "model_attributes_type") and (form := _mapping_of(model, first)):
        return f"{place}: must be a mapping such as {form}, not {_quote(first['input'])}"
    if not first["loc"]:
        return message  # the error is about several fields: quoting the whole file would not help
    if ", not " in message:
        return f"{place}: {message}"  # the message quotes the value already
    return f"{place}: {message}, not {_quote(first['input'])}"


def _is_misspelt(detail: ErrorDetails, model: type[BaseModel]) -> bool:
    """Return whether an error is about a field that no model at its place has."""
    if detail["type"] != "extra_forbidden":
        return False
    *place, name = detail["loc"]
    return not any(name in one.model_fields for one in _models_at(model, place))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the closest known name, or all of them."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1)
    return f": did you mean {near[0]!r}?" if near else f"; there are {', '.join(names)}"


def _models_at(model: type[BaseModel], place: Sequence[int | str]) -> list[type[BaseModel]]:
    """Return the models that may stand at a place in a model's data.

    Parts of the place that are tags of unions or indices of lists are not fields, and are skipped.
    """
    models: list[type[BaseModel]] = [model]
    for part in place:
        fields = [one.model_fields[part] for one in models if part in one.model_fields]
        if fields:
            models = [one for field in fields for one in _models_in(field.annotation)]
        elif tagged := [one for one in models if part in _tags(one)]:
            models = tagged
    return models


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)


def _tags(model: type[BaseModel]) -> set[Any]:
    """Return the values of a model's literal fields, which discriminate the members of a union."""
    return {
        value
        for field in model.model_fields.values()
        if get_origin(field.annotation) is Literal
        for value in get_args(field.annotation)
    }


def _mapping_of(model: type[BaseModel], detail: Any) -> str | None:
    """Return an example of a mapping for a place where a file has a plain value by mistake.

    The example is text such as ``{kind: tpe}``. It gives the value to the first field with which a
    mapping of this field alone is valid.

    Args:
        model: The model of the whole file.
        detail: pydantic's error about the place.

    Returns:
        The example. None if no field fits, or if the value is not a number or text.
    """
    value = detail["input"]
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    for one in _models_at(model, detail["loc"]):
        for name in one.model_fields:
            with suppress(ValidationError):
                one.model_validate({name: value})
                return f"{{{name}: {value}}}"
    return None


def _quote(value: object) -> str:
    """Return a value for a message: shortened, and without passwords of URLs."""
    text = redact(repr(value))
    return text if len(text) <= 80 else text[:77] + "..."
