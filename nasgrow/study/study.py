"""A resolved study: final shape, space, tuning and budget, and the run of every point and baseline."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

from nasgrow.config import Budget, RunConfig, TrainingConfig
from nasgrow.data import vocabulary
from nasgrow.errors import UserError
from nasgrow.expansions import diff
from nasgrow.flops import step_flops
from nasgrow.schedule import Schedule
from nasgrow.shape import Shape, Variant
from nasgrow.spaces import FixedShapes, Setting, Space, bind, load_space, with_training
from nasgrow.spaces.grid import check_countable
from nasgrow.spaces.shapes import UNKNOWN_SHARE
from nasgrow.spaces.training import BATCH, PEAK, RAMP
from nasgrow.strict import with_prefix
from nasgrow.study.config import STUDY, Sampler, StudyConfig, differences, load_study
from nasgrow.study.step_prices import read_steps
from nasgrow.study.trials import TrialRecord
from nasgrow.study.tuning import Tuning
from nasgrow.training.run import Run, check_start
from nasgrow.training.step_seconds import StepSeconds

MAX_STEPS = 100_000_000
"""The most steps of a run; at a thousand steps per second they would take a day."""


@dataclass(frozen=True)
class ResolvedStudy:
    """A study file and all that follows from it. Resolving reads no text and writes nothing."""

    config: StudyConfig
    variant: Variant
    space: Space
    tuning: Tuning
    budget: int
    """FLOPs of every run. If the study's budget is in seconds, the FLOPs of the final shape in that time; 0
    until the seconds of its steps are measured."""
    steps: StepSeconds | None = None
    """The seconds of steps on the study's device; None until they are measured."""

    @staticmethod
    def resolve(config: StudyConfig, where: str, steps: StepSeconds | None = None) -> ResolvedStudy:
        """Resolve a study file.

        Args:
            config: The study file.
            where: Its name, the prefix of error messages.
            steps: The seconds of steps, if they were measured.

        Raises:
            UserError: A field is invalid; the message begins with ``where``.
        """
        training = config.training
        vocab = with_prefix(where, lambda: vocabulary(config.data.tokens))
        final, context, start = config.final, training.context, config.start
        variant = with_prefix(
            where, lambda: config.variant.resolve(vocab=vocab, context=context, start=start)
        )
        with_prefix(f"{where}: final", lambda: variant.check(final))
        model = load_space(config.space, f"{where}: space", Path())
        tuning = with_prefix(where, lambda: Tuning.of(config.tune, training))
        tuned: dict[str, Setting] = {PEAK: tuning.rates}
        space = with_prefix(f"{where}: space", lambda: bind(model, final, variant, training, tuned))
        study = ResolvedStudy(config, variant, space, tuning, 0)
        with_prefix(where, study._check)
        return study.measured(steps, where)

    def measured(self, steps: StepSeconds | None, where: str) -> ResolvedStudy:
        """Return the study with these measured seconds of steps, and resolve its budget.

        If ``steps`` is None, a budget in seconds stays unresolved, and is 0.

        Raises:
            UserError: The budget is too small or too large; the message begins with ``where``.
        """
        config, budget = self.config, 0
        if config.budget.seconds is None:
            budget = config.budget.resolve(self.final, self.variant, config.training)
        elif steps is not None:
            timed = config.budget.timed([steps.of(self.final, self.variant, config.training)])
            budget = timed.resolve(self.final, self.variant, config.training)
        study = replace(self, budget=budget, steps=steps)
        if budget:
            with_prefix(where, study._check_budget)
        return study

    @property
    def final(self) -> Shape:
        """The shape that every schedule ends at, unless the space searches final shapes too."""
        return self.config.final

    @cached_property
    def of_fixed_shapes(self) -> ResolvedStudy:
        """The search of fixed shapes as a study, with the same sampler, tuning and budget of a run.

        Its only objective is the loss, TPE replaces NSGA-II and grid, and it has no limits on trials, compute
        or time: the scheduler of fixed shapes stops it.
        """
        config, sampler = self.config, self.config.sampler
        if sampler.kind in ("nsga-ii", "grid"):  # NSGA-II needs two objectives, a grid needs few points
            sampler = Sampler(kind="tpe")
        changes = {
            "name": f"{config.name} (fixed shapes)",
            "objectives": ["loss"],
            "sampler": sampler,
            "trials": None,
            "total_flops": None,
            "hours": None,
        }
        return replace(
            self, config=config.model_copy(update=changes), space=FixedShapes(self.space, self.reaches)
        )

    @property
    def timed_cases(self) -> list[tuple[Shape, TrainingConfig]]:
        """The shapes whose steps are measured, with their training settings.

        They are the smallest shape, the largest shape, the final shape, the final shape at half its
        sizes, and for each dimension that grows the final shape with only this dimension at its
        smallest. The final shape is also measured with each other tuned batch size. With a ramp,
        the first three shapes are also measured in it.
        """
        space = self.space
        shapes = [space.smallest, space.largest, self.final, space.fixed(0.5)]
        shapes += [space.fixed(share or UNKNOWN_SHARE, [dim]) for dim, share in space.grown.items()]
        training = self.config.training
        batches = [with_training(training, {BATCH: batch}) for batch in self.tuning.declared[BATCH]]
        cases = [(shape, training) for shape in dict.fromkeys(shapes)]
        cases += [(self.final, other) for other in batches if other != training]
        return cases + [
            (shape, kind) for kind in self._ramped.kinds[:-1] for shape in dict.fromkeys(shapes[:3])
        ]

    @property
    def _ramped(self) -> TrainingConfig:
        """The study's training section, with the longest ramp that tuning may try.

        That ramp may be longer than all declared ones. If the study does not tune ramps, the
        section is unchanged.
        """
        training, longest = self.config.training, self.tuning.longest_ramp
        return training if longest is None else with_training(training, {RAMP: longest})

    def _check(self) -> None:
        config, training = self.config, self.config.training
        if config.sampler.kind == "tree" and not self.space.declared:
            raise UserError("sampler.kind: tree needs a space whose points all have the same parameters")
        if config.sampler.kind == "tree" and training.evaluations % 5:
            raise UserError(
                "sampler.kind: tree may pause a trial at each fifth of the budget: training.evaluations must "
                f"be a multiple of 5, not {training.evaluations}"
            )
        if config.sampler.kind == "grid":
            with_prefix("sampler.kind: grid", lambda: check_countable(self.space))
        if self.space.opened and config.budget.flops is None and config.budget.seconds is None:
            raise UserError(
                "budget: must be given in flops or seconds, because the space searches the final shape"
            )
        if config.budget.step_seconds is not None:
            raise UserError("budget.step_seconds: are measured by the study itself, and cannot be given")
        self._check_start()

    def _check_start(self) -> None:
        """Raise ``UserError`` if schedules cannot start from the study's checkpoint."""
        start, space = self.config.start, self.space
        if start is None:
            return
        if space.opened:
            raise UserError("start: the space searches the final shape, and so does not start at one shape")
        if space.declared and space.smallest != start.shape:
            raise UserError(
                f"start.from: {start.folder!r} is {start.shape}, and the smallest start of the space is "
                f"{space.smallest}; they must be the same"
            )
        with_prefix("final", lambda: diff(start.shape, self.final))
        check_start(start, self.final, self.config.training.operator, self.variant)
        for name, parameters in space.known.items():
            begin, operator = space.at(parameters).schedule.start, self.config.training.operator
            with_prefix(f"space: {name}", partial(check_start, start, begin, operator, self.variant))

    def reaches(self, shape: Shape) -> bool:
        """Return whether runs can start at this shape.

        They can if the study's operator can grow its checkpoint to it, and always without a
        checkpoint.
        """
        start = self.config.start
        if start is not None:
            try:
                check_start(start, shape, self.config.training.operator, self.variant)
            except UserError:
                return False
        return True

    def _check_budget(self) -> None:
        """Raise ``UserError`` if a run might have too many steps, or too few between two events.

        The check looks at no single run. It bounds all runs by the costs of a step of the smallest
        and the largest shape, and by the least distance between two events.
        """
        config = self.config
        training = with_training(self._ramped, {BATCH: self.tuning.declared[BATCH][-1]})
        muon = training.optimizer == "muon"
        ends = [(self.space.smallest, training.kinds[0]), (self.space.largest, training)]
        flops = [
            step_flops(shape, self.variant.with_context(kind.context), kind.sequences, muon=muon)
            for shape, kind in ends
        ]
        whole, unit, costs = float(self.budget), "FLOPs", [float(cost) for cost in flops]
        if config.budget.seconds is not None and self.steps is not None:
            whole, unit = config.budget.seconds, "seconds"
            costs = [self.steps.of(shape, self.variant, kind) for shape, kind in ends]
        cheapest, step = costs
        if whole > MAX_STEPS * cheapest:
            raise UserError(
                f"budget: must be at most {MAX_STEPS * cheapest:.3g} {unit}, which are {MAX_STEPS:,} steps "
                f"of the smallest start shape, not {whole:.3g}"
            )
        apart, what = min(self.space.grid, 1 - self.space.last), "events that are"
        if training.ramp is not None and training.ramp.until > 0:
            after = (1 - training.ramp.until) * min([1.0, *config.baselines.budgets])
            apart, what = min((apart, what), (after, "the end of a ramp and that of a run, which are"))
        small, large = self.space.longest
        grown = [
            operator.flops(small, diff(small, large), self.variant, training.sequences)
            for operator in self.space.operators
        ]
        least = 2 * step + max(grown, default=0) * step / flops[1]
        if apart * whole < least:
            raise UserError(
                f"budget: {whole:.3g} {unit} are too few for {what} {apart:.3g} of it apart, "
                f"with steps of {step:.3g}: it takes at least {least / apart:.3g}; or lower "
                "training.batch_tokens"
            )

    @property
    def search_flops(self) -> float:
        """The limit of FLOPs that a search may execute; infinity without one.

        For a tree, ``trials`` limits the compute too: to that of as many complete trials.
        """
        config = self.config
        flops = config.total_flops or math.inf
        if config.sampler.kind == "tree" and config.trials is not None:
            # A tree runs many short trials instead of complete ones.
            flops = min(flops, config.trials * len(config.seeds) * self.budget)
        return flops

    def is_spent(self, search: Collection[TrialRecord]) -> bool:
        """Return whether a search has reached its limit of executed FLOPs or summed hours.

        Args:
            search: The trials of the search.
        """
        executed, seconds = sum(trial.executed for trial in search), sum(trial.seconds for trial in search)
        return executed >= self.search_flops or seconds >= 3600 * (self.config.hours or math.inf)

    def run(
        self, schedule: Schedule, training: Mapping[str, object], seed: int, times: float = 1.0
    ) -> RunConfig:
        """Return the run of a schedule with one seed.

        Args:
            schedule: The schedule.
            training: The values of searched and tuned training fields, by dotted name.
            seed: The seed.
            times: Its budget as a multiple of the study's.

        Raises:
            UserError: A training field is invalid, or the budget is in seconds and the seconds of
                steps are not measured.
        """
        complete = with_training(self.config.training, training)
        return RunConfig(
            schedule=schedule,
            start=self.config.start,
            budget=self._budget(schedule, complete, times),
            data=self.config.data,
            variant=self.config.variant,
            training=complete,
            seed=seed,
        )

    def _budget(self, schedule: Schedule, training: TrainingConfig, times: float) -> Budget:
        """Return the budget of a run: ``times`` the study's."""
        seconds = self.config.budget.seconds
        if seconds is None:
            return Budget(flops=float(int(self.budget * times)))
        if self.steps is None:
            raise UserError(f"{self.config.name}: the seconds of its steps are not measured yet")
        kinds, shapes = training.kinds, schedule.shapes
        steps = [self.steps.of(shape, self.variant, kind) for kind in kinds for shape in shapes]
        return Budget(seconds=seconds * times).timed(steps)

    @property
    def final_seconds(self) -> float | None:
        """The seconds of training the final shape from scratch; None if not measured.

        Evaluations are not part of them.
        """
        if self.config.budget.seconds is not None:
            return self.config.budget.seconds
        scratch = Schedule(self.final)
        return self.seconds(self.run(scratch, {}, self.config.seeds[0]))

    def seconds(self, run: RunConfig) -> float | None:
        """Return the seconds of training a run on the study's device; None if not measured.

        Evaluations are not part of them.
        """
        if self.steps is None:
            return None
        return self.steps.of_run(Run.resolve(run, vocab=self.variant.vocab, fingerprint=""))


def recorded_study(path: Path) -> tuple[ResolvedStudy, Path]:
    """Return a study with the settings recorded in its folder, and the folder.

    Only the note is that of the file. If the study has not begun, all settings are.

    Args:
        path: The study file, or the study's folder.

    Raises:
        UserError: The study is invalid, or the file has changed since the study began in a field
            that can change results.
    """
    study, folder = open_study(path)
    if folder != path and (folder / STUDY).is_file():
        begun = load_study(folder)
        changed = differences(begun, study.config)
        if changed:
            raise UserError(
                f"{path}: has changed since the study was begun ({'; '.join(changed)}): "
                f"name its folder {folder} instead"
            )
        begun = begun.model_copy(update={"note": study.config.note})
        study = ResolvedStudy.resolve(begun, str(folder), study.steps)
    return study, folder


def open_study(path: Path, trials: int | None = None) -> tuple[ResolvedStudy, Path]:
    """Return the study of a file or folder, and its folder: for a file, ``runs/NAME``.

    The study need not have begun. If it has, it keeps the sampler and the pruner that it began with
    where the file names none, and has the measured seconds of its steps.

    Args:
        path: The study file, or the study's folder.
        trials: Replaces the file's number of trials, unless it is None.

    Raises:
        UserError: The file cannot be read, or the study is invalid.
    """
    config = load_study(path)
    folder = path if (path / STUDY).is_file() else Path("runs") / config.name
    if folder != path and (folder / STUDY).is_file():
        config = load_study(path, folder)
    if trials is not None:
        config = config.model_copy(update={"trials": trials})
    return ResolvedStudy.resolve(config, str(path), read_steps(folder)), folder
