"""A run: everything that determines one training, resolved and complete."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from nasgrow.config import CheckpointStart, RunConfig, TrainingConfig
from nasgrow.errors import UserError
from nasgrow.expansions import Expansion, diff
from nasgrow.operators import PRESERVE, AnyOperator, Masked, opening_within
from nasgrow.schedule import RampSteps, Schedule, Stage, check_operator, schedule_to, stages
from nasgrow.shape import Shape, Variant
from nasgrow.strict import parse, with_prefix


def check_start(start: CheckpointStart, shape: Shape, operator: AnyOperator, variant: Variant) -> None:
    """Check that an operator can grow a checkpoint to the shape at which a run starts, before its first step.

    Raises:
        UserError: It cannot.
    """
    expansions = with_prefix(
        f"start.from: {start.folder!r} is {start.shape}, and the run starts at {shape}",
        lambda: diff(start.shape, shape),
    )
    if not expansions:
        return
    operator.check(start.shape, expansions, variant)
    for single, _ in operator.parts(start.shape, expansions):
        if single.learns or isinstance(single, Masked):
            raise UserError(
                f"training.operator: {single.kind} acts while a model trains, and cannot grow "
                f"{start.folder!r} to {shape} before that"
            )


@dataclass(frozen=True)
class Run:
    """One schedule with one seed under one budget, on data that a fingerprint identifies."""

    config: RunConfig
    variant: Variant
    budget: int
    """FLOPs, or nanoseconds if the configuration gives the budget in seconds."""
    fingerprint: str
    """The fingerprint of the data."""

    @staticmethod
    def resolve(config: RunConfig, *, vocab: int, fingerprint: str) -> Run:
        """Complete a configuration with the properties of the data, and check it.

        Args:
            config: The configuration.
            vocab: The number of different tokens in the data's vocabulary.
            fingerprint: The fingerprint of the data.

        Raises:
            UserError: The schedule does not fit the variant, an operator, the budget or the
                checkpoint.
        """
        schedule, training = config.schedule, config.training
        variant = config.variant.resolve(vocab=vocab, context=training.context, start=config.start)
        for shape in schedule.shapes:
            variant.check(shape)
        check_operator(schedule, training.operator, variant)
        budget = config.budget.resolve(schedule.final, variant, training)
        if config.budget.seconds is not None:
            budget = int(config.budget.seconds * 1e9)
        run = Run(config, variant, budget, fingerprint)
        if config.start is not None:
            check_start(config.start, schedule.start, training.operator, variant)
        run._check_step_seconds()
        run._check_masks()
        return run

    @property
    def schedule(self) -> Schedule:
        """The start shape and the events."""
        return self.config.schedule

    @property
    def grown_at_once(self) -> tuple[Expansion, ...]:
        """The expansions from the shape of the run's checkpoint to the schedule's start shape.

        They are applied before the first step. There are none if the run starts from no checkpoint.
        """
        start = self.config.start
        return () if start is None else diff(start.shape, self.schedule.start)

    @property
    def origin(self) -> dict[str, Any]:
        """What identifies the run's checkpoint in hashes; empty if the run starts from none.

        ``checkpoint`` is the hash of its files. ``grown_by`` is the operator that grows it before
        the first step; it is left out if nothing grows or if the operator is the default. The first
        weights depend on these, on the seed and on the start shape.
        """
        start, operator = self.config.start, self.config.training.operator
        if start is None:
            return {}
        acts = bool(self.grown_at_once) and operator != PRESERVE
        return {"checkpoint": start.hash, **({"grown_by": acting([operator])} if acts else {})}

    @property
    def is_timed(self) -> bool:
        """Whether the budget is in seconds."""
        return self.config.budget.seconds is not None

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of the run, with their steps and costs."""
        training, small, seconds = self.config.training, self.config.training.in_ramp, self._step_nanoseconds
        ramp, many = None, len(self.schedule.shapes)
        if training.ramp is not None and small is not None:
            own = None if seconds is None else seconds[:many]
            ramp = RampSteps(training.ramp.until, small.context, small.sequences, own)
        return stages(
            self.schedule,
            self.variant,
            self.budget,
            sequences=training.sequences,
            muon=training.optimizer == "muon",
            operator=training.operator,
            step_nanoseconds=None if seconds is None else seconds[-many:],
            ramp=ramp,
        )

    @cached_property
    def ramp_steps(self) -> int:
        """The number of steps in the ramp, which are the first steps of the run."""
        return sum(stage.ramp_steps for stage in self.stages)

    def training_at(self, step: int) -> TrainingConfig:
        """Return the training settings of a step: smaller ones in the ramp, the usual ones after it."""
        training = self.config.training
        return (training.in_ramp or training) if step < self.ramp_steps else training

    def tokens_at(self, step: int) -> int:
        """Return the number of tokens trained on before step ``step``."""
        small = min(step, self.ramp_steps)
        after = (step - small) * self.config.training.batch_tokens
        return after + (small * self.training_at(0).batch_tokens if small else 0)

    @property
    def _step_nanoseconds(self) -> list[int] | None:
        steps = self.config.budget.step_seconds
        return None if steps is None else [round(1e9 * seconds) for seconds in steps]

    def _check_step_seconds(self) -> None:
        steps, many = self.config.budget.step_seconds, len(self.schedule.shapes)
        kinds = len(self.config.training.kinds)
        if steps is not None and len(steps) != many * kinds:
            each = "one for each" if kinds == 1 else "for each one in the ramp first, then one after it"
            raise UserError(
                f"budget.step_seconds: must be those of {many} stage{'s' if many > 1 else ''}, {each}, "
                f"not {len(steps)}"
            )

    @property
    def operators(self) -> tuple[AnyOperator, ...]:
        """The operator of each event; that of the training settings if the event names none."""
        return self.schedule.operators(self.config.training.operator)

    def _check_masks(self) -> None:
        """Raise ``UserError`` if an operator would look at the model while earlier masks open."""
        opening: list[tuple[int, float, float]] = []
        for index, (before, after) in enumerate(pairwise(self.stages)):
            parts = self.operators[index].parts(before.shape, self.schedule.events[index].expansions)
            spent, begun = before.spent_at(before.end) / self.budget, after.spent / self.budget
            for single, _ in parts:
                for event, since, takes in opening if single.learns else ():
                    if (spent - since) / takes < 1:
                        raise UserError(
                            f"events[{index}].operator: {single.kind} looks at the model, and cannot see the "
                            f"masks of events[{event}], which open until {since + takes:.3g} of the budget"
                        )
            opening += [
                (index, begun, opening_within(single.opening, begun))
                for single, _ in parts
                if isinstance(single, Masked)
            ]

    def describe(self) -> dict[str, Any]:
        """Return the run as plain data; runs with equal descriptions have equal results."""
        without: dict[str, Any] = {"budget": True}
        if self.config.start is None:
            without["start"] = True
        if self.config.training.in_ramp is None:
            without["training"] = {"ramp"}  # a ramp without steps has no effect
        return {
            **self.config.model_dump(mode="json", exclude=without),
            "vocab": self.variant.vocab,
            "budget": self._spending if self.is_timed else self.budget,
            "fingerprint": self.fingerprint,
        }

    def document(self) -> dict[str, Any]:
        """Return the run as plain data in the form of a run file."""
        described = self.describe()
        named = ("schedule", "start", "seed", "data", "variant", "training")
        return {name: described[name] for name in named if name in described} | {"budget": self._spending}

    @property
    def _spending(self) -> dict[str, Any]:
        """The budget in the form of a run file."""
        if self.is_timed:
            return self.config.budget.model_dump(mode="json", exclude_none=True)
        return {"flops": float(self.budget)}

    @staticmethod
    def from_description(data: Mapping[str, Any], where: str) -> Run:
        """Return the run that a description from :meth:`describe` describes.

        Raises:
            UserError: The description is damaged; most messages begin with ``where``. If the budget
                is in seconds, also as for :meth:`resolve`; other runs are not checked again.
        """
        fields = dict(data)
        spending, vocab, fingerprint = (fields.pop(name, None) for name in ("budget", "vocab", "fingerprint"))
        if not (isinstance(vocab, int) and isinstance(spending, int | dict) and isinstance(fingerprint, str)):
            raise UserError(f"{where}: is damaged; remove it or choose another folder")
        fields["budget"] = spending if isinstance(spending, dict) else {"flops": float(spending)}
        config = parse(RunConfig, fields, where)
        if config.budget.seconds is not None:
            return Run.resolve(config, vocab=vocab, fingerprint=fingerprint)
        context = config.training.context
        variant = config.variant.resolve(vocab=vocab, context=context, start=config.start)
        if not isinstance(spending, int):
            raise UserError(f"{where}: is damaged; remove it or choose another folder")
        return Run(config, variant, spending, fingerprint)

    @property
    def identity(self) -> str:
        """A short hash of the description, independent of where data and checkpoint are stored.

        The hash includes the fingerprint of the data and the hash of the checkpoint, not their paths.

        It includes the operators that act at events, whether an event or the training settings name them. If
        only the default operator acts, it is left out, so that runs from before there were other operators
        keep their identity.
        """
        described = {name: value for name, value in self.describe().items() if name not in ("data", "start")}
        described |= self.origin
        described["variant"] = {
            name: value for name, value in described["variant"].items() if name in self.variant.described()
        }
        for event in described["schedule"]["events"]:
            event.pop("operator", None)
        del described["training"]["operator"]
        if {*self.operators} - {PRESERVE}:
            described["training"]["operator"] = acting(self.operators)
        return hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:12]

    def growth_seed(self, event: int) -> int:
        """Return the seed for new parameters at an event.

        It depends on the run's seed, the start shape, and the expansions of all events up to this
        one, but not on their times and operators.

        Args:
            event: The index of the event; -1 for the growth of a checkpoint before the first step.
        """
        path = schedule_to(self.schedule)
        grown = [item["grow"] for item in path["events"][: event + 1]]
        text = json.dumps([self.config.seed, path["start"], grown], sort_keys=True)
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6])


def acting(operators: Sequence[AnyOperator]) -> Any:
    """Return the operators of some events as plain data: a single one if all are equal, else a list."""
    plain = [operator.model_dump(mode="json") for operator in operators]
    return plain[0] if len({*operators}) == 1 else plain
