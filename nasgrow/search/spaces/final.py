"""Open-ended spaces: the final shape is searched too, and as deep as a limit allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from nasgrow.flops import forward_flops, parameter_count
from nasgrow.search.spaces.settings import Multiples, Setting, Sizes
from nasgrow.shape import Shape, Variant
from nasgrow.strict import Strict


class Limit(Strict):
    """What no final shape may exceed: one of the two."""

    parameters: Annotated[float, Field(gt=0)] | None = None
    """The number of parameters."""
    inference_flops: Annotated[float, Field(gt=0)] | None = None
    """FLOPs of a forward pass over a full context, for each of its tokens."""

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.parameters is None) == (self.inference_flops is None):
            raise ValueError("a limit is exactly one of parameters, inference_flops")
        return self

    @property
    def most(self) -> float:
        """The largest cost within the limit."""
        return self.parameters or self.inference_flops or 0

    def cost(self, shape: Shape, variant: Variant) -> int:
        """What a shape costs, in the unit of the limit."""
        if self.parameters is not None:
            return parameter_count(shape, variant)
        return forward_flops(shape, variant, 1, shape.context) // shape.context


class OpenFinal(Strict):
    """The sizes that a final shape may have. Its layers are equal, and as many as the limit allows."""

    hidden: Sizes
    mlp: Multiples
    """Multiples of the hidden size."""
    heads: Sizes
    key: Sizes
    value: Sizes
    max_layers: Annotated[int, Field(gt=0)]
    limit: Limit | None = None
    """The number of parameters of the study's final shape if left out."""

    @property
    def parameters(self) -> dict[str, Setting]:
        """The parameters of a trial that give the final shape."""
        return {f"final.{name}": getattr(self, name) for name in ("hidden", "mlp", "heads", "key", "value")}

    def bound(self, study: Shape, variant: Variant) -> Limit:
        """The limit, checked to leave room for one layer of every sampled size.

        Costs rise with every size, so the largest of each are the only ones to try.
        """
        limit = self.limit or Limit(parameters=parameter_count(study, variant))
        for key in self.key.values:
            sizes = {
                f"final.{name}": max(getattr(self, name).values)
                for name in ("hidden", "mlp", "heads", "value")
            }
            shape = _shape({**sizes, "final.key": key}, 1, study)
            variant.check(shape)
            cost = limit.cost(shape, variant)
            if cost > limit.most:
                raise ValueError(
                    f"final.limit: one layer of {shape} needs {cost}, the limit is {limit.most:.0f}"
                )
        return limit

    def shape(self, values: Mapping[str, Any], study: Shape, variant: Variant, limit: Limit) -> Shape:
        """The sampled final shape: a layer more would exceed the limit, or ``max_layers``."""
        one, two = (limit.cost(_shape(values, layers, study), variant) for layers in (1, 2))
        layers = 1 + int((limit.most - one) // (two - one))
        return _shape(values, min(layers, self.max_layers), study)


def _shape(values: Mapping[str, Any], layers: int, study: Shape) -> Shape:
    hidden = values["final.hidden"]
    return Shape.uniform(
        hidden=hidden,
        layers=layers,
        mlp=max(1, round(values["final.mlp"] * hidden)),
        heads=values["final.heads"],
        key=values["final.key"],
        value=values["final.value"],
        context=study.context,
        vocab=study.vocab,
    )
