"""A run: everything that determines one training, resolved and complete."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from nasgrow.config import RunConfig
from nasgrow.operators import PRESERVE, AnyOperator, Masked, opening_within
from nasgrow.schedule import Schedule, Stage, check_operator, schedule_from, schedule_to, stages
from nasgrow.shape import Variant
from nasgrow.strict import parse


@dataclass(frozen=True)
class Run:
    """One schedule with one seed under one budget, on data known by its fingerprint."""

    config: RunConfig
    schedule: Schedule
    budget: int
    """FLOPs."""
    fingerprint: str
    """The data's."""

    @staticmethod
    def resolve(config: RunConfig, *, vocab: int, fingerprint: str, schedule: Schedule | None = None) -> Run:
        """Complete a configuration with what the data says; the budget must cover every stage.

        Args:
            config: The configuration.
            vocab: The data's number of tokens.
            fingerprint: The data's.
            schedule: The configuration's, if it is at hand: to read it takes longer than all else here.
        """
        if schedule is None or schedule.start.vocab != vocab:
            schedule = _schedule(config, vocab)
        budget = config.budget.resolve(schedule.final, config.variant, config.training)
        run = Run(config, schedule, budget, fingerprint)
        run._check_masks()
        return run

    @property
    def variant(self) -> Variant:
        """The kind of transformer."""
        return self.config.variant

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The steps of each stage."""
        training = self.config.training
        return stages(
            self.schedule,
            self.variant,
            self.budget,
            sequences=training.sequences,
            length=training.context,
            muon=training.optimizer == "muon",
            operator=training.operator,
        )

    @property
    def operators(self) -> tuple[AnyOperator, ...]:
        """The operator of each event: its own, or the training's."""
        return self.schedule.operators(self.config.training.operator)

    def _check_masks(self) -> None:
        """Raise ``ValueError`` if an operator would look at the model while earlier masks still open."""
        opening: list[tuple[int, float, float]] = []
        for index, (before, after) in enumerate(pairwise(self.stages)):
            parts = self.operators[index].parts(before.shape, self.schedule.events[index].expansions)
            spent, begun = before.charged(before.end) / self.budget, after.spent / self.budget
            for single, _ in parts:
                for event, since, takes in opening if single.learns else ():
                    if (spent - since) / takes < 1:
                        raise ValueError(
                            f"events[{index}].operator: {single.kind} looks at the model, and cannot see the "
                            f"masks of events[{event}], which open until {since + takes:.3g} of the budget"
                        )
            opening += [
                (index, begun, opening_within(single.opening, begun))
                for single, _ in parts
                if isinstance(single, Masked)
            ]

    def describe(self) -> dict[str, Any]:
        """The run as plain data: equal descriptions give equal results."""
        return {
            **self.config.model_dump(mode="json", exclude={"schedule", "variant", "budget"}),
            "variant": asdict(self.variant),
            "schedule": schedule_to(self.schedule),
            "vocab": self.schedule.start.vocab,
            "budget": self.budget,
            "fingerprint": self.fingerprint,
        }

    def document(self) -> dict[str, Any]:
        """The run as a run file holds it."""
        described = self.describe()
        named = ("schedule", "seed", "data", "variant", "training")
        return {name: described[name] for name in named} | {"budget": {"flops": float(self.budget)}}

    @staticmethod
    def from_description(data: Mapping[str, Any], where: str) -> Run:
        """The run that :meth:`describe` described."""
        fields = {**data, "budget": {"flops": float(data["budget"])}}
        vocab, fingerprint = fields.pop("vocab"), fields.pop("fingerprint")
        config = parse(RunConfig, fields, where)
        return Run(config, _schedule(config, vocab), data["budget"], fingerprint)

    @property
    def identity(self) -> str:
        """A short hash of the description; the fingerprint stands for the data, wherever its files lie.

        Of operators those count that act, wherever they are named. The default one is left out where no other
        acts: runs described before there were others keep their identity.
        """
        described = {name: value for name, value in self.describe().items() if name != "data"}
        for event in described["schedule"]["events"]:
            event.pop("operator", None)
        del described["training"]["operator"]
        if {*self.operators} - {PRESERVE}:
            described["training"]["operator"] = acting(self.operators)
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:12]

    def growth_seed(self, event: int) -> int:
        """The seed for new parameters at an event: from the run's seed and the path of events up to it."""
        path = schedule_to(self.schedule)
        grown = [item["grow"] for item in path["events"][: event + 1]]
        text = json.dumps([self.config.seed, path["start"], grown], sort_keys=True)
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6])


def acting(operators: Sequence[AnyOperator]) -> Any:
    """The operators of some events as plain data: one if it is that of all, else each in its order."""
    plain = [operator.model_dump(mode="json") for operator in operators]
    return plain[0] if len({*operators}) == 1 else plain


def _schedule(config: RunConfig, vocab: int) -> Schedule:
    schedule = schedule_from(config.schedule, context=config.training.context, vocab=vocab)
    for shape in schedule.shapes:
        config.variant.check(shape)
    check_operator(schedule, config.training.operator, config.variant)
    return schedule
