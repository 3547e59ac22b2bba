"""Families: models of several sizes that share a prefix (Gesmundo & Maile, 2023, section 5).

The sizes are those of a schedule's stages. Member i of a family is the schedule without the events
after its i-th: it follows the schedule until its size is reached, and stays at that size to the end
of the budget, decay of the learning rate included. Every member is charged the same budget. That is
what makes sharing exact: all that happens in a run is a function of the fraction of its budget, so
that two members do the same until the event at which they part, to the last bit. With budgets that
grow with size, the learning rates of their prefixes would differ, and nothing would be shared.

A shared prefix has one learning rate, so a family has one. Each size from scratch gets the best of
the same list.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import yaml
from pydantic import Field

from nasgrow.config import Budget, RunConfig
from nasgrow.data import Corpus, check_text, vocabulary
from nasgrow.errors import UserError
from nasgrow.experiments.transfer import rates_around
from nasgrow.schedule import Schedule, Stage
from nasgrow.shape import Variant
from nasgrow.spaces import with_training
from nasgrow.spaces.training import PEAK
from nasgrow.strict import parse, read_mapping
from nasgrow.study.folders import FAMILY, check_folder
from nasgrow.training.atomic_files import write_text
from nasgrow.training.run import Run

if TYPE_CHECKING:  # reports read families, and do without torch
    from nasgrow.experiments.sequential_runs import RunObserver

MAY_CHANGE = ("learning_rates", "seeds")
"""Fields that may change between two launches: they add runs and change none."""


class FamilyConfig(RunConfig):
    """A run file, and how the family is tuned and confirmed."""

    learning_rates: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)]
    """Peaks tried, for the family as a whole and for each size from scratch."""
    seeds: Annotated[int, Field(ge=1)]
    """Fresh seeds that the best of each is trained with, for the test split."""


@dataclass(frozen=True, order=True)
class Part:
    """One model: the size of a stage, as a member of the family or from scratch."""

    size: int
    grown: bool

    def __str__(self) -> str:
        return f"size {self.size + 1} {'of the family' if self.grown else 'from scratch'}"


@dataclass(frozen=True)
class Family:
    """A family, understood.

    Attributes:
        config: What it is.
        variant: The kind of transformer.
        budget: FLOPs of every run.
        schedules: That of each member, the smallest first.
    """

    config: FamilyConfig
    variant: Variant
    budget: int
    schedules: tuple[Schedule, ...]

    @staticmethod
    def resolve(config: FamilyConfig, vocab: int) -> Family:
        """Understand a family.

        Raises:
            UserError: The schedule has no event, or its members would share no prefix.
        """
        whole, training = config.schedule, config.training
        if config.start is not None:
            raise UserError("start: a family is compared with training from scratch, not from a checkpoint")
        if not whole.events:
            raise UserError("schedule: has no event, so there is one size only, and no family")
        rate = training.learning_rate
        if rate.width_power != 0 and whole.start.hidden != whole.final.hidden:
            raise UserError(
                "training.learning_rate.width_power: must be 0 for a family, or learning rates would depend "
                f"on the size that a member ends at, and no two would share a prefix, not {rate.width_power}"
            )
        variant = config.variant.resolve(vocab=vocab, context=training.context)
        budget = config.budget.resolve(whole.final, variant, training)
        cut = [Schedule(whole.start, whole.events[:many]) for many in range(len(whole.events) + 1)]
        return Family(config, variant, budget, tuple(cut))

    @staticmethod
    def of_run(config: RunConfig, rates: Sequence[float] | None, seeds: int) -> Family:
        """The family of a run.

        Args:
            config: The run of the largest member.
            rates: Learning rates to try; half, once and twice the run's by default.
            seeds: How many fresh seeds.

        Raises:
            UserError: It has no family, or its text cannot be read.
        """
        tried = sorted(set(rates or rates_around(config.training.learning_rate.peak)))
        check_text(config.data.text)
        whole = parse(FamilyConfig, dict(config) | {"learning_rates": tried, "seeds": seeds})
        family = Family.resolve(whole, vocabulary(config.data.tokens))
        for part in family.parts:
            family.charged(part)  # the budget must cover every stage
        return family

    @property
    def parts(self) -> list[Part]:
        """Every size, in the family and from scratch."""
        return [Part(size, grown) for size in range(len(self.schedules)) for grown in (True, False)]

    def schedule(self, part: Part) -> Schedule:
        """What a part trains; the smallest member never grows, so it is the same from scratch."""
        whole = self.schedules[part.size]
        return whole if part.grown else Schedule(whole.final)

    def run(self, part: Part, rate: float, seed: int, fingerprint: str) -> Run:
        """The run of a part."""
        config = RunConfig(
            schedule=self.schedule(part),
            budget=Budget(flops=float(self.budget)),
            data=self.config.data,
            variant=self.config.variant,
            training=with_training(self.config.training, {PEAK: rate}),
            seed=seed,
        )
        return Run.resolve(config, vocab=self.variant.vocab, fingerprint=fingerprint)

    def tuning(self) -> Iterator[tuple[Part, float]]:
        """Each part at each learning rate."""
        for rate in self.config.learning_rates:
            for part in self.parts:
                yield part, rate

    @property
    def fresh_seeds(self) -> list[int]:
        """The smallest seeds that tuning does not use."""
        return [seed for seed in range(self.config.seeds + 1) if seed != self.config.seed][
            : self.config.seeds
        ]

    def own_flops(self, size: int) -> int:
        """What a member costs beyond the shared prefix, which ends at the event that gives it its size."""
        last = self._stages(Part(size, True))[-1]
        return last.event_flops + last.flops

    def charged(self, part: Part) -> int:
        """What a part costs by itself."""
        last = self._stages(part)[-1]
        return last.charged(last.end)

    def _stages(self, part: Part) -> tuple[Stage, ...]:
        return self.run(part, self.config.training.learning_rate.peak, self.config.seed, "").stages


def choose(family: Family, losses: Mapping[tuple[Part, float], float | None]) -> dict[Part, float]:
    """The learning rate of each part, by validation losses.

    A shared prefix has one rate: the one with the lowest mean over the members, none of which may
    have diverged. Each size from scratch has its own best. A part of which nothing finished is left
    out.
    """
    means = {}
    for rate in family.config.learning_rates:
        own = [losses.get((part, rate)) for part in family.parts if part.grown]
        known = [loss for loss in own if loss is not None]
        if len(known) == len(own):
            means[rate] = fmean(known)
    chosen = {}
    for part in family.parts:
        worked = {
            rate: loss
            for rate in family.config.learning_rates
            if (loss := losses.get((part, rate))) is not None
        }
        if part.grown and means:
            chosen[part] = min(means, key=lambda rate: means[rate])
        elif not part.grown and worked:
            chosen[part] = min(worked, key=lambda rate: worked[rate])
    return chosen


def train_family(family: Family, folder: Path, corpus: Corpus, observer: RunObserver) -> None:
    """Train each part at each learning rate, then the best of each with fresh seeds; what ended is kept.

    Raises:
        InterruptedRunError: The user wants to stop; the state is saved.
    """
    config = family.config
    from nasgrow.experiments.sequential_runs import Trainer

    trainer = Trainer(folder, corpus, [event.at for event in family.schedules[-1].events], observer)
    total = len(family.parts) * (len(config.learning_rates) + config.seeds)
    number = 0

    def train(part: Part, rate: float, seed: int, *, tested: bool) -> float | None:
        nonlocal number
        number += 1
        result, test = trainer.train(family.run(part, rate, seed, corpus.fingerprint), tested=tested)
        loss = result.validation
        outcome = "diverged" if loss is None else f"validation loss {loss:.4f}"
        if tested and loss is not None:
            outcome += ", test loss not finite" if test is None else f", test loss {test:.4f}"
        observer.say(f"{number} of {total}: {part}, rate {rate:.3g}, seed {seed}: {outcome}")
        return loss

    losses = {(part, rate): train(part, rate, config.seed, tested=False) for part, rate in family.tuning()}
    chosen = choose(family, losses)
    for fresh in family.fresh_seeds:
        for part, rate in chosen.items():
            train(part, rate, fresh, tested=True)


def claim_family(folder: Path, config: FamilyConfig) -> None:
    """Write what the family in a folder is.

    Raises:
        UserError: The folder is another's.
    """
    check_folder(folder, FAMILY, "choose another --name")
    if (folder / FAMILY).exists() and not same_family(load_family(folder), config):
        raise UserError(f"{folder}: holds another family; choose another --name")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / FAMILY, dump_family(config))


def load_family(folder: Path) -> FamilyConfig:
    """The family in a folder."""
    return parse(FamilyConfig, read_mapping(folder / FAMILY), str(folder / FAMILY))


def dump_family(config: FamilyConfig) -> str:
    """The file that :func:`load_family` reads."""
    return yaml.safe_dump(
        config.model_dump(mode="json", exclude_none=True), sort_keys=False, allow_unicode=True
    )


def same_family(old: FamilyConfig, new: FamilyConfig) -> bool:
    """Whether two describe the same models, however tuned and confirmed."""
    before, after = (config.model_dump(exclude={*MAY_CHANGE}) for config in (old, new))
    return before == after
