"""Slot spaces: a fixed number of events, each of which chooses what grows, by how much, where and when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from nasgrow.errors import UserError
from nasgrow.spaces.common import Declarative, Rise
from nasgrow.spaces.levels import Dim, Level
from nasgrow.spaces.settings import Choices, Factors, Setting, Shares, names


class Slots(Declarative):
    """Slots apply in order of time. Then a closing event grows the rest to the final shape."""

    kind: Literal["slots"]
    start: Annotated[dict[Dim, Shares], Field(min_length=1)]
    """The dimensions that grow, and the shares of their final sizes that they may start from."""
    slots: Annotated[int, Field(gt=0, le=100)] = 3
    """The number of slots."""
    choices: dict[str, list[Dim]]
    """The sets of dimensions that a slot may grow, by name; ``none: []`` must be one of them."""
    factor: Factors
    """The factors that a slot may multiply sizes by; no size grows beyond its final size."""
    layers: Annotated[Choices, names("all", "lower", "upper")] = Choices(["all"])
    """The layers whose inner sizes (``mlp``, ``heads``, ``key``, ``value``) a slot grows: ``all``,
    or the ``lower`` or ``upper`` half of the final layers; a middle layer is in both halves."""

    @field_validator("choices")
    @classmethod
    def _possible(cls, choices: dict[str, list[Dim]], info: ValidationInfo) -> dict[str, list[Dim]]:
        if choices.get("none") != []:
            raise UserError("must hold none: []")
        for name, dims in choices.items():
            for dim in dims:
                if dim not in info.data.get("start", dims):
                    raise UserError(f"{name} cannot grow {dim}, which has no start")
        return choices

    @property
    def starts(self) -> Mapping[Dim, Setting]:
        """The dimensions that may grow, and the shares of their final sizes that they may start from."""
        return self.start

    @property
    def parameters(self) -> Mapping[str, Setting]:
        """The starts, then the choices of each slot, then the time of the closing event."""
        found: dict[str, Setting] = {f"start.{dim}": start for dim, start in self.start.items()}
        for slot in self._slots:
            found[f"{slot}.grow"] = Choices(list(self.choices))
            found[f"{slot}.factor"] = self.factor
            found[f"{slot}.layers"] = self.layers
            found[f"{slot}.at"] = self.times
        return found | {"close.at": self.times}

    @property
    def grows_alike(self) -> bool:
        """Whether layers that are equal in the final shape are equal at all times.

        They are not if a slot may grow the inner sizes of only half of the layers.
        """
        return self.layers.values == ["all"]

    def shares(self, dim: Dim) -> set[float]:
        """Return 1, the starts, and the starts times the factors of any slots, capped at 1."""
        found = {1.0, *self.start[dim].values}
        for _ in range(self.slots):
            found |= {min(1.0, share * factor) for share in found for factor in self.factor.values}
        return found

    def rise(self, values: Mapping[str, Any], layers: int) -> Rise:
        """Decode parameters into the level at the start, after each slot, and after the closing event.

        A slot that grows nothing is left out. The closing event happens at ``close.at``, or
        together with the last of the other slots if that is later.
        """
        start = level = Level.of({dim: values[f"start.{dim}"] for dim in self.start}, layers)
        halves = {
            "all": range(layers),
            "lower": range((layers + 1) // 2),
            "upper": range(layers // 2, layers),
        }
        later: list[tuple[float, Level]] = []
        for slot in sorted(self._slots, key=lambda slot: values[f"{slot}.at"]):
            dims = self.choices[values[f"{slot}.grow"]]
            grown = level.times(dims, values[f"{slot}.factor"], halves[values[f"{slot}.layers"]])
            if grown != level:
                later.append((values[f"{slot}.at"], grown))
            level = grown
        last = later[-1][0] if later else 0
        return start, [*later, (max(values["close.at"], last), Level.of({}, layers))]

    @property
    def _slots(self) -> list[str]:
        return [f"slot{number}" for number in range(1, self.slots + 1)]
