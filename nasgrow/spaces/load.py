"""Reading a space, and binding it to a study."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import Discriminator, Tag

from nasgrow.config import TrainingConfig
from nasgrow.errors import UserError
from nasgrow.shape import Shape, Variant
from nasgrow.spaces.compound import Compound
from nasgrow.spaces.fixed import Fixed, FixedSpace, with_files
from nasgrow.spaces.per_dimension import PerDimension
from nasgrow.spaces.python import Python, PythonSpace
from nasgrow.spaces.settings import Setting
from nasgrow.spaces.slots import Slots
from nasgrow.spaces.space import DeclaredSpace, Space
from nasgrow.strict import parse, read_mapping, with_prefix

KINDS: Mapping[str, type[PerDimension | Slots | Compound | Fixed]] = {
    "per-dimension": PerDimension,
    "slots": Slots,
    "compound": Compound,
    "fixed": Fixed,
}


def _kind(data: object) -> object:
    """The tag of a space: its kind, or ``python``, which has none."""
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
    """Read a space: the path of its file, relative to ``folder``, or the space itself.

    Errors begin with ``where``, or with the name of the space's own file if that can be read.
    """
    if isinstance(data, str):
        path = folder / data
        return load_space(with_prefix(where, partial(read_mapping, path)), str(path), path.parent)
    if not isinstance(data, dict):
        raise UserError(f"{where}: must be the path of a space's file, or a space, not {data!r}")
    if "python" in data:
        here = folder / str(data.get("folder", "."))
        return parse(Python, {**data, "folder": str(here.resolve())}, where)
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise UserError(f"{where}: kind: must be one of {', '.join(KINDS)}, not {kind!r}")
    if kind == "fixed":
        data = with_files(data, where, folder)
    return parse(KINDS[kind], data, where)


def bind(
    model: SpaceModel, final: Shape, variant: Variant, training: TrainingConfig, tuned: Mapping[str, Setting]
) -> Space:
    """Bind a space to the final shape, the variant and the training of a study.

    Args:
        model: The space.
        final: The study's final shape.
        variant: Its variant.
        training: Its training.
        tuned: The training fields that it tunes, which every point has as well.

    Raises:
        UserError: The study refuses a value that the space may sample, or a known point is not in the space.
    """
    if isinstance(model, Python):
        return PythonSpace(model, final, variant, tuned)
    if isinstance(model, Fixed):
        return FixedSpace(model, final, variant, training, tuned)
    return DeclaredSpace(model, final, variant, training, tuned)
