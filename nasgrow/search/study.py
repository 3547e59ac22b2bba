"""A study, understood: its final shape, its space, its budget, and the run of every point and baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nasgrow.config import Budget, RunConfig
from nasgrow.data import vocabulary
from nasgrow.expansions import diff
from nasgrow.flops import step_flops
from nasgrow.schedule import Schedule, schedule_to, shape_from
from nasgrow.search.config import STUDY, StudyConfig, differences, load_study
from nasgrow.search.grid import check_countable
from nasgrow.search.spaces import Space, bind, load_space, with_training
from nasgrow.shape import Shape
from nasgrow.strict import with_prefix

LONGEST = 100_000_000
"""No run of a study has more steps: a thousand of them a second would take a day."""


@dataclass(frozen=True)
class Study:
    """A study file with all that follows from it; no data is read, nothing is written."""

    config: StudyConfig
    final: Shape
    space: Space
    budget: int
    """FLOPs of every run."""

    @staticmethod
    def resolve(config: StudyConfig, where: str) -> Study:
        """Understand a study file.

        Raises:
            ValueError: Something in it cannot be; the message begins with ``where``.
        """
        training = config.training
        vocab = with_prefix(where, lambda: vocabulary(config.data.tokens))
        final = shape_from(config.final, "final", context=training.context, vocab=vocab)
        with_prefix(f"{where}: final", lambda: config.variant.check(final))
        model = load_space(config.space, f"{where}: space", Path())
        space = with_prefix(f"{where}: space", lambda: bind(model, final, config.variant, training))
        budget = config.budget.resolve(final, config.variant, training)
        study = Study(config, final, space, budget)
        with_prefix(where, study._check)
        return study

    def _check(self) -> None:
        config, training = self.config, self.config.training
        if config.sampler.kind == "cma-es" and not self.space.numeric:
            raise ValueError("sampler.kind: cma-es wants a space of ranges, and this one has lists")
        kind = config.sampler.kind
        if kind in ("thrifty", "tree") and not self.space.declared:
            raise ValueError(f"sampler.kind: {kind} wants a space whose parameters are always the same")
        if kind == "tree" and training.evaluations % 5:
            raise ValueError(
                "sampler.kind: tree asks at each fifth of the budget: training.evaluations must be a "
                f"multiple of 5, not {training.evaluations}"
            )
        if config.sampler.kind == "grid":
            with_prefix("sampler.kind: grid", lambda: check_countable(self.space))
        if self.space.opened and config.budget.flops is None:
            raise ValueError("budget: must be given in flops, because the space searches the final shape")
        muon = training.optimizer == "muon"
        cheapest, step = (
            step_flops(shape, config.variant, training.sequences, training.context, muon=muon)
            for shape in (self.space.smallest, self.space.largest)
        )
        if self.budget > LONGEST * cheapest:
            raise ValueError(
                f"budget: must be at most {LONGEST * cheapest:.3g} FLOPs, which are {LONGEST:,} steps of the "
                f"smallest start shape, not {self.budget:.3g}"
            )
        apart = min(self.space.grid, 1 - self.space.last)
        small, large = self.space.longest
        sizes = config.variant, training.sequences, training.context
        grown = [operator.flops(small, diff(small, large), *sizes) for operator in self.space.operators]
        least = 2 * step + max(grown, default=0)
        if apart * self.budget < least:
            raise ValueError(
                f"budget: {self.budget:.3g} FLOPs are too few for events that are {apart:.3g} of it apart, "
                f"with steps of {step:.3g}: it takes at least {least / apart:.3g}"
            )

    def run(
        self, schedule: Schedule, training: Mapping[str, object], seed: int, times: float = 1.0
    ) -> RunConfig:
        """The complete run of a schedule with one seed.

        Args:
            schedule: The schedule.
            training: What was searched of the training's settings.
            seed: The seed.
            times: Its budget as a multiple of the study's.
        """
        return RunConfig(
            schedule=schedule_to(schedule),
            budget=Budget(flops=float(int(self.budget * times))),
            data=self.config.data,
            variant=self.config.variant,
            training=with_training(self.config.training, training),
            seed=seed,
        )


def recorded_study(path: Path) -> tuple[Study, Path]:
    """The study of a file or of a study's folder as it was begun, and its folder.

    Raises:
        ValueError: The file has changed since in what matters to results.
    """
    study, folder = open_study(path)
    if folder != path and (folder / STUDY).is_file():
        begun = load_study(folder)
        changed = differences(begun, study.config)
        if changed:
            raise ValueError(
                f"{path}: has changed since the study was begun ({'; '.join(changed)}): "
                f"name its folder {folder} instead"
            )
        study = Study.resolve(begun.model_copy(update={"note": study.config.note}), str(folder))
    return study, folder


def open_study(path: Path, trials: int | None = None) -> tuple[Study, Path]:
    """The study of a file or of a study's folder, and its folder: ``runs/NAME`` below where one stands.

    Args:
        path: The file or the folder.
        trials: In place of the file's number of trials.
    """
    config = load_study(path)
    folder = path if (path / STUDY).is_file() else Path("runs") / config.name
    if folder != path and (folder / STUDY).is_file():
        config = load_study(path, folder)
    if trials is not None:
        config = config.model_copy(update={"trials": trials})
    return Study.resolve(config, str(path)), folder
