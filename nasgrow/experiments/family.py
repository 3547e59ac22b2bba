"""Families: models of several sizes that share a prefix (Gesmundo & Maile, 2023, section 5).

The sizes are those of a schedule's stages. Member i of a family is the schedule without the events
after its i-th: it follows the schedule until it reaches its size, and stays at that size to the end
of the budget, decay of the learning rate included. Every member is charged the same budget. That
makes sharing exact: everything in a run depends only on the fraction of its budget, so two members
are equal to the last bit until the event that only one of them has. With budgets that grow with
size, the learning rates of their prefixes would differ, and nothing could be shared.

A shared prefix has one learning rate, so all members of a family have the same. Each size from
scratch gets the best of the same list of rates.
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

if TYPE_CHECKING:  # reports import this module, and do not need torch
    from nasgrow.experiments.sequential_runs import RunObserver

MAY_CHANGE = ("learning_rates", "seeds")
"""Fields that may change between two launches: they add runs and change none."""


class FamilyConfig(RunConfig):
    """A run file, with the learning rates and seeds of the family."""

    learning_rates: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)]
    """Peak learning rates to try, for the family as a whole and for each size from scratch."""
    seeds: Annotated[int, Field(ge=1)]
    """The number of fresh seeds that each model is confirmed with on the test split."""


@dataclass(frozen=True, order=True)
class Part:
    """One model of the experiment: a size, grown as a member of the family or from scratch.

    Attributes:
        size: The index of the stage that has this size.
        grown: Whether it is a member of the family.
    """

    size: int
    grown: bool

    def __str__(self) -> str:
        return f"size {self.size + 1} {'of the family' if self.grown else 'from scratch'}"


@dataclass(frozen=True)
class Family:
    """A resolved family.

    Attributes:
        config: Its configuration.
        variant: The kind of transformer.
        budget: FLOPs of every run.
        schedules: The schedule of each member, the smallest first.
    """

    config: FamilyConfig
    variant: Variant
    budget: int
    schedules: tuple[Schedule, ...]

    @staticmethod
    def resolve(config: FamilyConfig, vocab: int) -> Family:
        """Resolve the configuration of a family.

        Raises:
            UserError: The run starts from a checkpoint, the schedule has no event, or its members would share
                no prefix.
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
        """Return the family of a run.

        Args:
            config: The run of the largest member.
            rates: Learning rates to try; by default half, once and twice the run's.
            seeds: How many fresh seeds.

        Raises:
            UserError: The run has no family (see :meth:`resolve`), its budget does not cover every stage, or
                its text cannot be read.
        """
        tried = sorted(set(rates or rates_around(config.training.learning_rate.peak)))
        check_text(config.data.text)
        whole = parse(FamilyConfig, dict(config) | {"learning_rates": tried, "seeds": seeds})
        family = Family.resolve(whole, vocabulary(config.data.tokens))
        for part in family.parts:
            family.charged(part)  # raises if the budget does not cover every stage
        return family

    @property
    def parts(self) -> list[Part]:
        """Every size, both grown and from scratch."""
        return [Part(size, grown) for size in range(len(self.schedules)) for grown in (True, False)]

    def schedule(self, part: Part) -> Schedule:
        """Return the schedule of a part; the smallest member never grows, so its two parts are equal."""
        whole = self.schedules[part.size]
        return whole if part.grown else Schedule(whole.final)

    def run(self, part: Part, rate: float, seed: int, fingerprint: str) -> Run:
        """Return the run of a part."""
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
        """Yield each part with each learning rate."""
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
        """Return the FLOPs of a member after the shared prefix, which ends before its last event.

        The smallest member has no event, so these are all its FLOPs.
        """
        last = self._stages(Part(size, True))[-1]
        return last.event_flops + last.flops

    def charged(self, part: Part) -> int:
        """Return the FLOPs of training a part alone, without a prefix shared with other members."""
        last = self._stages(part)[-1]
        return last.charged(last.end)

    def _stages(self, part: Part) -> tuple[Stage, ...]:
        return self.run(part, self.config.training.learning_rate.peak, self.config.seed, "").stages


def choose(family: Family, losses: Mapping[tuple[Part, float], float | None]) -> dict[Part, float]:
    """Choose the learning rate of each part by validation losses.

    All members share one rate: the one with the lowest mean loss over the members, none of which
    may have diverged. Each size from scratch has the best rate of its runs that did not diverge. A
    part without such a rate is left out.

    Args:
        family: The family.
        losses: The validation loss of each part at each rate; None if training diverged.
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
    """Train the runs of a family: first tune the learning rate, then confirm with fresh seeds.

    A part is one size, either grown as a member of the family or trained from scratch. Tuning
    trains every part at every learning rate. :func:`choose` then picks one rate for all grown
    members, and one for each size from scratch. Confirmation trains each part at its rate with the
    fresh seeds and evaluates it on the test split. A part without a rate is not confirmed. Runs
    that an earlier launch finished are not trained again.

    The prefix cache lies beside ``folder``. On a GPU, torch is set to deterministic kernels for the
    whole process.

    Raises:
        InterruptedRunError: The user asked to stop; the state is saved.
        UserError: A run's folder cannot be used, or the test split is too short.
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
    """Write the configuration of a family to its folder.

    The folder may already hold the same family, with other learning rates or seeds.

    Raises:
        UserError: The folder holds another family, or something else.
    """
    check_folder(folder, FAMILY, "choose another --name")
    if (folder / FAMILY).exists() and not same_family(load_family(folder), config):
        raise UserError(f"{folder}: holds another family; choose another --name")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / FAMILY, dump_family(config))


def load_family(folder: Path) -> FamilyConfig:
    """Read the configuration of the family in a folder."""
    return parse(FamilyConfig, read_mapping(folder / FAMILY), str(folder / FAMILY))


def dump_family(config: FamilyConfig) -> str:
    """Return the text of the file that :func:`load_family` reads."""
    return yaml.safe_dump(
        config.model_dump(mode="json", exclude_none=True), sort_keys=False, allow_unicode=True
    )


def same_family(old: FamilyConfig, new: FamilyConfig) -> bool:
    """Return whether two configurations differ at most in learning rates and seeds."""
    before, after = (config.model_dump(exclude={*MAY_CHANGE}) for config in (old, new))
    return before == after
