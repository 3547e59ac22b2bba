"""Reading files that people write: strict YAML, strict models, and one-line errors.

An error names the file, the field and the value, and says what would be right.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

Model = TypeVar("Model", bound=BaseModel)
Made = TypeVar("Made")


class Strict(BaseModel):
    """Base of all models: no unknown fields, no conversions, no changes."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class _Loader(yaml.SafeLoader):
    """YAML where 1e12 is a number, and where no key may stand twice in a mapping."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Before merge keys (<<) bring in those of other mappings, which a mapping's own may replace.
        node = super().compose_mapping_node(anchor)
        keys: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in keys:
                    raise ValueError(f"line {key.start_mark.line + 1}: {key.value!r} stands twice")
                keys.add((key.tag, key.value))
        return node


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds a mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path}: is not UTF-8 text") from None
    try:
        data = yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ValueError(f"{path}: {line}{error.problem or 'is not YAML'}") from None
    except (yaml.YAMLError, ValueError, TypeError) as error:
        raise ValueError(f"{path}: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise ValueError(f"{path}: is nested too deeply") from None
    if data is None:
        raise ValueError(f"{path}: is empty; it must be a mapping of fields")
    if not isinstance(data, dict):
        raise ValueError(f"{path}: must be a mapping of fields, not {_quote(data)}")
    return data


def parse(model: type[Model], data: object, where: str = "") -> Model:
    """Validate ``data`` as ``model``; the first error becomes one line, which begins with ``where``."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ValueError(f"{where}: {_first(error)}" if where else _first(error)) from None


def plain_name(name: str) -> str:
    """The name, if it can be that of a folder on any machine.

    Raises:
        ValueError: It cannot.
    """
    if len(name) > 100:
        raise ValueError(f"must have at most 100 characters, not {len(name)}")
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        raise ValueError(f"must consist of letters, digits, '.', '_' and '-', not {name!r}")
    if name[0] in "._-":
        raise ValueError(f"must begin with a letter or a digit, not {name!r}")
    return name


def with_prefix(where: str, make: Callable[[], Made]) -> Made:
    """What ``make`` gives; the message of its ``ValueError`` then begins with ``where``."""
    try:
        return make()
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _first(error: ValidationError) -> str:
    details = error.errors(include_url=False)
    first = details[0]
    place = ".".join(str(part) for part in first["loc"])
    message = first["msg"][0].lower() + first["msg"][1:]
    if first["type"] == "extra_forbidden":
        return f"{place}: there is no such field"
    if first["type"] == "missing":
        return f"{place}: is missing"
    message = message.removeprefix("value error, ")
    if not first["loc"]:
        return message  # it is about several fields; the whole file would not say which
    if ", not " in message:
        return f"{place}: {message}"  # it quotes the value itself
    return f"{place}: {message}, not {_quote(first['input'])}"


def redact(text: str) -> str:
    """A text without the user and password of a URL in it, nor what its query names as a secret."""
    # Passwords may hold quotes, slashes, and signs like @; a URL that was taken for a path has one slash. So
    # everything up to a line's last @ may be one, but for what stands before another URL.
    text = re.sub(r"(:/+)(?:(?!\s['\"]?[a-z][a-z0-9+.-]*:/).)*@", r"\1***@", text, flags=re.IGNORECASE)
    return re.sub(
        r"([?&;][^=&;]*(?:pass|pwd|secret|token|key|sig|credential|auth)[^=&;]*=)[^&\s]*",
        r"\1***",
        text,
        flags=re.IGNORECASE,
    )


def has_password(url: str) -> bool:
    """Whether a URL holds a password, and not only a user's name."""
    return redact(url) not in (url, re.sub(r"://[^:@/]*@", "://***@", url))


def _quote(value: object) -> str:
    """A value as a message shows it: shortened, and without the password of a URL."""
    text = redact(repr(value))
    return text if len(text) <= 80 else text[:77] + "..."
