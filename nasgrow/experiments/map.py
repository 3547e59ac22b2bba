"""Maps: run the same study at several final shapes and budgets, to see where growth pays.

A cell of a map is an ordinary study in the folder ``runs/MAP/CELL``. It is searched and confirmed like any
other, and works with every command for studies. Batch size and learning rate follow from the budget by the
rules of ``nasgrow init``, unless the map file sets them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveInt

from nasgrow.data import vocabulary
from nasgrow.errors import UserError
from nasgrow.experiments.init_study import batch_tokens, learning_rate, scratch_flops
from nasgrow.experiments.search import Observer, Workplace, confirm, search
from nasgrow.schedule import shape_from
from nasgrow.shape import Shape
from nasgrow.strict import Strict, parse, plain_name, read_mapping, with_prefix
from nasgrow.study.config import STUDY, study_from
from nasgrow.study.folders import named_folder
from nasgrow.study.step_prices import read_steps
from nasgrow.study.study import ResolvedStudy

PER_CELL = ("name", "final", "budget")
"""The fields of a study that differ from cell to cell."""


class Confirmed(Strict):
    """How each cell is confirmed."""

    top: PositiveInt = 1
    """How many schedules, and how many fixed shapes, are confirmed."""
    seeds: Annotated[int, Field(ge=2)] = 3
    """The number of fresh seeds; confidence intervals need at least two."""


class MapConfig(Strict):
    """A map file."""

    final: Annotated[list[Any], Field(min_length=1)]
    """The final shapes: the rows of the map."""
    tokens_per_parameter: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)]
    """The budgets, as tokens per parameter of the final shape from scratch: the columns of the map."""
    study: dict[str, Any]
    """The fields of a study file that are the same for every cell."""
    confirm: Confirmed = Confirmed()
    """How each cell is confirmed."""


@dataclass(frozen=True)
class Cell:
    """One study of a map.

    Attributes:
        shape: Its final shape.
        tokens_per_parameter: Its budget.
        study: The study.
        folder: Its folder.
    """

    shape: Shape
    tokens_per_parameter: float
    study: ResolvedStudy
    folder: Path

    @property
    def name(self) -> str:
        """Its name, and that of its folder."""
        return self.folder.name


@dataclass(frozen=True)
class GrowthMap:
    """A map.

    Attributes:
        name: Its name, and that of its folder.
        config: The map file.
        grid: The rows of cells, one row for each final shape, in the order of the file.
    """

    name: str
    config: MapConfig
    grid: tuple[tuple[Cell, ...], ...]

    @property
    def cells(self) -> list[Cell]:
        """Every cell, the cheapest first."""
        return sorted((cell for row in self.grid for cell in row), key=lambda cell: cell.study.budget)


def load_map(file: Path) -> GrowthMap:
    """Read a map file ``NAME.yaml``; its cells' folders are in ``runs/NAME``.

    Raises:
        UserError: It is not a map file, or a cell is not a valid study.
    """
    config = parse(MapConfig, read_mapping(file), str(file))
    for name in PER_CELL:
        if name in config.study:
            raise UserError(f"{file}: study.{name}: every cell has its own: leave it out")
    with_prefix(str(file), lambda: plain_name(file.stem))
    folder = named_folder(file.stem)
    if (folder / STUDY).exists():
        raise UserError(f"{folder}: holds a study, not a map; rename {file}")
    grid = tuple(
        tuple(
            _cell(config.study, given, f"final.{row}", tokens, file, folder)
            for tokens in config.tokens_per_parameter
        )
        for row, given in enumerate(config.final)
    )
    found = GrowthMap(file.stem, config, grid)
    names = [cell.name for cell in found.cells]
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"{file}: two cells would be called {name!r}: leave one of final or tokens_per_parameter out"
            )
    return found


def train_cell(cell: Cell, config: Confirmed, place: Workplace, observer: Observer) -> bool:
    """Search and confirm a cell, or resume it; return False if the user stopped it.

    Raises:
        UserError: As for :func:`~nasgrow.experiments.search.confirm`.
        WorkerError: As for :func:`~nasgrow.experiments.search.search`.
    """
    study = cell.study
    if not search(study, cell.folder, place, observer):
        return False
    timed = ResolvedStudy.resolve(study.config, study.config.name, read_steps(cell.folder))
    whole, _ = confirm(timed, cell.folder, place, observer, top=config.top, each=None, seeds=config.seeds)
    return whole


def _cell(fields: Mapping[str, Any], final: Any, where: str, tokens: float, file: Path, folder: Path) -> Cell:
    shape = with_prefix(str(file), lambda: shape_from(final, where))
    name = f"h{shape.hidden}-n{len(shape.layers)}-t{tokens:g}"
    base = {
        **fields,
        "name": f"{file.stem}-{name}",
        "final": final,
        "budget": {"tokens_per_parameter": tokens},
    }
    config = study_from({**base, "training": _training(base, shape, tokens, file)}, file)
    study = ResolvedStudy.resolve(config, f"{file}: {name}")
    return Cell(study.final, tokens, study, folder / name)


def _training(fields: Mapping[str, Any], shape: Shape, tokens: float, file: Path) -> Mapping[str, Any]:
    """Return a cell's training section: the file's, with batch size and learning rate filled in.

    The rules of ``nasgrow init`` give them, from the cell's budget. What the file sets is kept.

    Args:
        fields: The fields of the cell's study file, without what is filled in.
        shape: The cell's final shape.
        tokens: The cell's budget, in tokens per parameter.
        file: The map file.
    """
    config = study_from(fields, file)
    context = config.training.context
    variant = config.variant.resolve(vocab=vocabulary(config.data.tokens), context=context)
    flops = scratch_flops(shape, variant, tokens)
    said: Mapping[str, Any] = fields.get("training", {})
    return {
        "batch_tokens": batch_tokens(flops, context),
        **said,
        "learning_rate": {"peak": learning_rate(flops), **said.get("learning_rate", {})},
    }
