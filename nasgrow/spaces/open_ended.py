"""Open-ended spaces: the final shape is searched too, with as many layers as a limit allows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from nasgrow.errors import UserError
from nasgrow.flops import inference_flops, parameter_count
from nasgrow.shape import MOST_LAYERS, Shape, Variant
from nasgrow.spaces.settings import MAX_RANGE, Multiples, Setting, Sizes
from nasgrow.strict import Strict


class Limit(Strict):
    """The limit on the cost of a final shape: exactly one of the two fields."""

    parameters: Annotated[float, Field(gt=0)] | None = None
    """The largest number of parameters of a final shape."""
    inference_flops: Annotated[float, Field(gt=0)] | None = None
    """The largest number of FLOPs per token of a forward pass of a final shape over a full
    context."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.parameters is None) == (self.inference_flops is None):
            raise UserError("a limit is exactly one of parameters, inference_flops")
        return self

    @property
    def most(self) -> float:
        """The limit as a number."""
        return self.parameters or self.inference_flops or 0

    def cost(self, shape: Shape, variant: Variant) -> int:
        """Return the cost of a shape, in the unit of the limit."""
        if self.parameters is not None:
            return parameter_count(shape, variant)
        return inference_flops(shape, variant)


class OpenFinal(Strict):
    """The sizes that a final shape may have. Its layers are equal, and as many as the limit allows."""

    hidden: Sizes
    """Hidden sizes to choose from."""
    mlp: Multiples
    """MLP widths to choose from, as multiples of the hidden size."""
    heads: Sizes
    """Numbers of heads to choose from."""
    key: Sizes
    """Key sizes to choose from."""
    value: Sizes
    """Value sizes to choose from."""
    max_layers: Annotated[int, Field(gt=0, le=MOST_LAYERS)]
    """The most layers, even if the limit allows more."""
    limit: Limit | None = None
    """The limit on the cost; by default the number of parameters of the study's final shape."""


@dataclass(frozen=True)
class BoundFinal:
    """The final shapes that a study searches.

    Attributes:
        model: The sizes that they may have.
        study: The final shape that the study file names. Its number of parameters is the default
            limit.
        variant: The study's variant.
    """

    model: OpenFinal
    study: Shape
    variant: Variant

    @property
    def limit(self) -> Limit:
        """The limit that no final shape exceeds."""
        return self.model.limit or Limit(parameters=parameter_count(self.study, self.variant))

    @property
    def parameters(self) -> dict[str, Setting]:
        """The settings of the parameters that decide the final shape, by name."""
        names = ("hidden", "mlp", "heads", "key", "value")
        return {f"final.{name}": getattr(self.model, name) for name in names}

    def shape(self, values: Mapping[str, Any]) -> Shape:
        """Return the final shape of these parameters, as deep as the limit and ``max_layers`` allow.

        Every layer costs the same, so the costs of one and of two layers give the cost of any number.

        Raises:
            UserError: It exceeds the limit with a single layer, or does not fit the variant.
        """
        limit = self.limit
        one, two = (limit.cost(self._shape(values, layers), self.variant) for layers in (1, 2))
        if one > limit.most:
            raise UserError(
                f"limit: {self._shape(values, 1)} costs {one} with one layer, the limit is {limit.most:.0f}"
            )
        layers = 1 + int((limit.most - one) // (two - one))
        return self._shape(values, min(layers, self.model.max_layers))

    def all(self) -> list[Shape]:
        """Return every final shape.

        Raises:
            UserError: There are too many, one exceeds the limit with a single layer, or does not fit the
                variant.
        """
        settings = self.parameters
        count = prod(setting.count for setting in settings.values())
        if count > MAX_RANGE:
            raise UserError(f"must be at most {MAX_RANGE:,} shapes, not {count:,}")
        points = product(*(setting.values for setting in settings.values()))
        return [self.shape(dict(zip(settings, point, strict=True))) for point in points]

    def _shape(self, values: Mapping[str, Any], layers: int) -> Shape:
        hidden = values["final.hidden"]
        return Shape.uniform(
            hidden=hidden,
            layers=layers,
            mlp=max(1, round(values["final.mlp"] * hidden)),
            heads=values["final.heads"],
            key=values["final.key"],
            value=values["final.value"],
        )
