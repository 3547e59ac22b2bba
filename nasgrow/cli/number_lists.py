"""A click parameter type for lists of numbers."""

from __future__ import annotations

import click


class Numbers(click.ParamType[tuple[float, ...]]):
    """Numbers above 0, separated by commas."""

    name = "numbers"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        """Parse the numbers."""
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(float(part) for part in str(value).split(","))
        except ValueError:
            numbers = ()
        if not numbers or not all(0 < number < 1e9 for number in numbers):
            self.fail(f"must be numbers above 0, separated by commas, not {value!r}", param, ctx)
        return numbers
