"""A run: everything that determines one training, resolved and complete."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from nasgrow.config import RunConfig
from nasgrow.operators import PRESERVE
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
    def resolve(config: RunConfig, *, vocab: int, fingerprint: str) -> Run:
        """Complete a configuration with what the data says; the budget must cover every stage."""
        schedule = _schedule(config, vocab)
        budget = config.budget.resolve(schedule.final, config.variant, config.training)
        run = Run(config, schedule, budget, fingerprint)
        assert run.stages
        return run

    @property
    def variant(self) -> Variant:
        """The kind of transformer."""
        return self.config.variant

    @property
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

        The default operator is left out: runs described before there were others keep their identity. So is
        any where nothing grows: it makes no difference.
        """
        described = {name: value for name, value in self.describe().items() if name != "data"}
        if self.config.training.operator == PRESERVE or not self.schedule.events:
            training = described["training"]
            described["training"] = {name: training[name] for name in training if name != "operator"}
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:12]

    def growth_seed(self, event: int) -> int:
        """The seed for new parameters at an event: from the run's seed and the path of events up to it."""
        path = schedule_to(self.schedule)
        grown = [item["grow"] for item in path["events"][: event + 1]]
        text = json.dumps([self.config.seed, path["start"], grown], sort_keys=True)
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6])


def _schedule(config: RunConfig, vocab: int) -> Schedule:
    schedule = schedule_from(config.schedule, context=config.training.context, vocab=vocab)
    for shape in schedule.shapes:
        config.variant.check(shape)
    check_operator(schedule, config.training.operator, config.variant)
    return schedule
