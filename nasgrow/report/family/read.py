"""Read the records of a family for its report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from nasgrow.experiments.family import Family, Part, choose
from nasgrow.flops import inference_flops, parameter_count
from nasgrow.report.folder import RunFolder, RunOrigin, read_folder
from nasgrow.report.statistics import BySeed, Estimate, difference
from nasgrow.report.trajectory import Saving, Trajectory, mean, saving
from nasgrow.shape import Shape
from nasgrow.study.trials import RUNS
from nasgrow.training.records import RESULT

NOTHING = RunFolder(None, RunOrigin(), None, (), ())
"""The records of a run that has not ended."""


@dataclass(frozen=True)
class Model:
    """The results of one size of a family, grown or from scratch, with fresh seeds.

    Attributes:
        part: The size, and whether it is grown.
        rate: Its learning rate.
        at_edge: Whether that is the lowest or the highest learning rate tried.
        runs: The identities of its runs with fresh seeds that have a test loss.
        by_seed: Their test losses by seed, for each segment of the text where these were recorded.
        validation: Their validation losses.
        curve: The mean of their validation curves; None if none can be read.
    """

    part: Part
    rate: float
    at_edge: bool
    runs: tuple[str, ...]
    by_seed: BySeed
    validation: tuple[float, ...]
    curve: Trajectory | None

    @property
    def test(self) -> tuple[float, ...]:
        """The test loss of each run, in the order of seeds."""
        return tuple(fmean(parts) for parts in self.by_seed.values())


@dataclass(frozen=True)
class FamilySize:
    """One size of a family.

    Attributes:
        index: Its index, with 0 for the smallest size.
        shape: Its shape.
        parameters: Its number of parameters.
        inference_flops: FLOPs of a forward pass per token.
        member: The member of the family; None if it has no test loss yet.
        scratch: The same size from scratch; None if it has no test loss yet.
        diverged: The number of runs with fresh seeds, of either model, that diverged or whose test loss is
            not finite. If there are any, the size is not judged: the other runs alone would be biased.
    """

    index: int
    shape: Shape
    parameters: int
    inference_flops: int
    member: Model | None
    scratch: Model | None
    diverged: int = 0

    @property
    def same(self) -> bool:
        """Whether the member has the same runs as the model from scratch, because it does not grow."""
        return self.member is not None and self.scratch is not None and self.member.runs == self.scratch.runs

    @property
    def difference(self) -> Estimate | None:
        """The member's test loss minus the one from scratch.

        None if one of them is missing, if both are the same runs, or if a seed diverged.
        """
        if self.member is None or self.scratch is None or self.same or self.diverged:
            return None
        return difference(self.member.by_seed, self.scratch.by_seed)

    @property
    def saved(self) -> Saving | None:
        """Compute saved at equal validation loss, read off curves.

        Each model is charged all its training, shared prefix included. None as for
        :attr:`difference`, and without a curve.
        """
        if self.member is None or self.scratch is None or self.same or self.diverged:
            return None
        if self.member.curve is None or self.scratch.curve is None:
            return None
        return saving(self.member.curve, self.scratch.curve)

    @property
    def outcome(self) -> str:
        """How the member's test loss compares with the one from scratch.

        ``lower`` or ``higher`` beyond the noise of seeds and text, else ``open``; ``same`` if both are the
        same runs, ``missing`` if one has no result, ``diverged`` if a seed of either diverged.
        """
        if self.diverged:
            return "diverged"
        if self.same:
            return "same"
        apart = self.difference
        if apart is None:
            return "missing"
        if apart.low is None or apart.high is None:
            return "open"
        return "lower" if apart.high < 0 else "higher" if apart.low > 0 else "open"


@dataclass(frozen=True)
class FamilyRecords:
    """The records of a family.

    Attributes:
        name: The family's name.
        family: Its definition.
        sizes: Its sizes, the smallest first.
        together: FLOPs of training all members with the shared prefix trained once.
        apart: FLOPs of training each member by itself.
        scratch: FLOPs of training every size from scratch.
        executed: FLOPs that all runs have executed, tuning and seeds included.
        seconds: Wall-clock seconds of all runs.
        done: The number of distinct runs that ended.
        damaged: The records that could not be read, a line each.
    """

    name: str
    family: Family
    sizes: tuple[FamilySize, ...]
    together: int
    apart: int
    scratch: int
    executed: int
    seconds: float
    done: int
    damaged: tuple[str, ...]

    @property
    def saved(self) -> float:
        """The fraction of compute that the family saves over training all sizes from scratch."""
        return 1 - self.together / self.scratch


def read_family(name: str, family: Family, folder: Path, fingerprint: str) -> FamilyRecords:
    """Read the records of a family, whose training need not have ended.

    Args:
        name: The family's name.
        family: Its definition.
        folder: Its folder.
        fingerprint: The fingerprint of its data, on which the names of its runs depend.
    """
    runs: dict[str, RunFolder] = {}

    def read(part: Part, rate: float, seed: int) -> tuple[str, RunFolder]:
        identity = family.run(part, rate, seed, fingerprint).identity
        if identity not in runs:
            place = folder / RUNS / identity
            ended = (place / RESULT).exists()
            runs[identity] = read_folder(place, finished=True) if ended else NOTHING
        return identity, runs[identity]

    losses = {}
    for part, rate in family.tuning():
        result = read(part, rate, family.config.seed)[1].result
        losses[part, rate] = None if result is None else result.validation
    rates = choose(family, losses)
    models = {part: _model(family, part, rate, read) for part, rate in rates.items()}
    diverged = [
        {
            identity
            for part, rate in rates.items()
            if part.size == index
            for identity, run in (read(part, rate, seed) for seed in family.fresh_seeds)
            if _diverged(run)
        }
        for index in range(len(family.schedules))
    ]
    variant = family.variant
    sizes = tuple(
        FamilySize(
            index,
            schedule.final,
            parameter_count(schedule.final, variant),
            inference_flops(schedule.final, variant),
            models.get(Part(index, True)),
            models.get(Part(index, False)),
            len(diverged[index]),
        )
        for index, schedule in enumerate(family.schedules)
    )
    ended = [run.result for run in runs.values() if run.result is not None]
    return FamilyRecords(
        name=name,
        family=family,
        sizes=sizes,
        together=sum(family.own_flops(index) for index in range(len(sizes))),
        apart=sum(family.charged(part) for part in family.parts if part.grown),
        scratch=sum(family.charged(part) for part in family.parts if not part.grown),
        executed=sum(result.executed for result in ended),
        seconds=sum(result.seconds for result in ended),
        done=len(ended),
        damaged=tuple(line for run in runs.values() for line in run.problems),
    )


def _model(
    family: Family,
    part: Part,
    rate: float,
    read: Callable[[Part, float, int], tuple[str, RunFolder]],
) -> Model | None:
    """Read the results of a part with fresh seeds; None if no run has a test loss.

    Args:
        family: The family.
        part: The part.
        rate: The learning rate chosen for it.
        read: Returns the identity and records of the run of a part with a rate and a seed.
    """
    found = {}
    for seed in family.fresh_seeds:
        identity, run = read(part, rate, seed)
        tested = run.tested
        if run.result is None or run.result.validation is None or tested is None:
            continue
        if tested.test is not None:
            found[seed] = identity, tested.parts, run.result.validation, run.curve
    if not found:
        return None
    rates = family.config.learning_rates
    return Model(
        part,
        rate,
        rate in (min(rates), max(rates)),
        tuple(identity for identity, _, _, _ in found.values()),
        {seed: parts for seed, (_, parts, _, _) in found.items()},
        tuple(validation for _, _, validation, _ in found.values()),
        mean([curve for _, _, _, curve in found.values() if curve is not None]),
    )


def _diverged(run: RunFolder) -> bool:
    """Return whether a run has ended with a validation loss or test loss that is not finite."""
    return run.result is not None and (
        run.result.validation is None or (run.tested is not None and run.tested.test is None)
    )
