"""Read a search space from a file, and bind it to a study."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Discriminator, Tag

from nasgrow.config import TrainingConfig
from nasgrow.errors import UserError
from nasgrow.shape import Shape, Variant
from nasgrow.spaces.builtin import built_in
from nasgrow.spaces.compound import Compound
from nasgrow.spaces.fixed import Fixed, FixedSpace, with_files
from nasgrow.spaces.per_dimension import PerDimension
from nasgrow.spaces.python import Python, PythonSpace
from nasgrow.spaces.settings import Setting
from nasgrow.spaces.slots import Slots
from nasgrow.spaces.space import DeclaredSpace, Space
from nasgrow.strict import did_you_mean, parse, read_mapping, with_prefix

SPACE_TYPES: Mapping[str, type[PerDimension | Slots | Compound | Fixed]] = {
    "per-dimension": PerDimension,
    "slots": Slots,
    "compound": Compound,
    "fixed": Fixed,
}

FROM = "from"
"""The field that names another space, whose fields a space inherits unless it sets them itself."""


def _kind(data: object) -> object:
    """Return the union tag of a space: its kind, or ``python`` for a Python function, which has no kind."""
    if isinstance(data, Python) or (isinstance(data, dict) and "python" in data):
        return "python"
    return data.get("kind") if isinstance(data, dict) else getattr(data, "kind", None)


SpaceModel = Annotated[
    Annotated[PerDimension, Tag("per-dimension")]
    | Annotated[Slots, Tag("slots")]
    | Annotated[Compound, Tag("compound")]
    | Annotated[Fixed, Tag("fixed")]
    | Annotated[Python, Tag("python")],
    Discriminator(_kind),
]
"""A space as a file holds it."""


def load_space(data: object, where: str, folder: Path) -> SpaceModel:
    """Read a space: the name of a built-in one, the path of a file, or the space itself.

    Known points that the space inherits by ``from`` are dropped if they are not in the space.

    Args:
        data: The study's ``space`` field.
        where: The prefix of error messages; errors in the space's own file begin with that file's name.
        folder: The folder that paths are relative to.

    Raises:
        UserError: A file cannot be read, or the space is invalid.
    """
    read = _read(data, where, folder)
    if "python" in read.fields:
        return parse(Python, read.fields, read.where)
    kind = read.fields.get("kind")
    if not isinstance(kind, str) or kind not in SPACE_TYPES:
        raise UserError(f"{read.where}: kind: must be one of {', '.join(SPACE_TYPES)}, not {kind!r}")
    model = parse(SPACE_TYPES[kind], read.fields, read.where)
    if not read.inherited or isinstance(model, Fixed):
        return model
    known = {name: point for name, point in read.inherited.items() if _has(model, point)}
    return parse(SPACE_TYPES[kind], {**read.fields, "known": known}, read.where)


@dataclass(frozen=True)
class _Read:
    """The fields of a space as read, with absolute paths.

    Attributes:
        fields: Its fields, including those inherited by ``from``.
        where: The prefix of error messages about it.
        inherited: The known points inherited by ``from``. They need not be points of this space, because it
            may have changed the settings.
    """

    fields: dict[str, Any]
    where: str
    inherited: Mapping[str, Any] = field(default_factory=dict)


def _read(data: object, where: str, folder: Path, above: Sequence[Path] = ()) -> _Read:
    """Read a space and those that it inherits from; the files ``above`` inherit from it."""
    if isinstance(data, str):
        path = built_in().get(data, folder / data)
        if path in above:
            raise UserError(f"{where}: {data!r} is a space that inherits from itself")
        if re.fullmatch(r"[\w-]+", data) and not path.exists():
            raise UserError(
                f"{where}: {data!r} is no file, and no built-in space{did_you_mean(data, built_in())}"
            )
        read = with_prefix(where, partial(read_mapping, path))
        return _read(read, str(path), path.parent, (*above, path))
    if not isinstance(data, dict):
        raise UserError(f"{where}: must be a built-in space's name, a file's path or a space, not {data!r}")
    own = {name: value for name, value in data.items() if name != FROM}
    if "python" in own:
        own["folder"] = str((folder / str(own.get("folder", "."))).resolve())
    if isinstance(own.get("schedules"), dict):
        own = with_files(own, where, folder)
    if FROM not in data:
        return _Read(own, where)
    if not isinstance(data[FROM], str):
        raise UserError(
            f"{where}: from: must be a built-in space's name or a file's path, not {data[FROM]!r}"
        )
    base = _read(data[FROM], f"{where}: from", folder, above)
    known = {} if "known" in own else base.fields.pop("known", base.inherited)
    return _Read({**base.fields, **own}, where, known if isinstance(known, dict) else {})


def _has(model: PerDimension | Slots | Compound, point: object) -> bool:
    """Return whether an inherited point is in a space. An invalid point passes: the space reports it."""
    if not isinstance(point, dict):
        return True
    final = {} if model.final is None else {f"final.{name}": size for name, size in model.final}
    settings: dict[str, Any] = {**final, **model.parameters, "order": model.order, **model.training}
    try:
        for name, value in point.items():
            settings[name].accept(value)
    except (UserError, KeyError):
        return False
    return True


def bind(
    model: SpaceModel, final: Shape, variant: Variant, training: TrainingConfig, tuned: Mapping[str, Setting]
) -> Space:
    """Bind a space to the final shape, the variant and the training of a study.

    Args:
        model: The space.
        final: The study's final shape.
        variant: Its variant.
        training: Its training section.
        tuned: The settings of tuned training fields that every point has: the learning rate.

    Raises:
        UserError: The study refuses a value that the space may sample, an operator cannot do all
            growth of the space, or a known point is not in the space.
    """
    if isinstance(model, Python):
        return PythonSpace(model, final, variant, tuned)
    if isinstance(model, Fixed):
        return FixedSpace(model, final, variant, training, tuned)
    return DeclaredSpace(model, final, variant, training, tuned)
