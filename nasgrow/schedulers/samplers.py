"""Optuna's samplers as schedulers.

For every suggestion the scheduler creates an Optuna study in memory, adds the trials so far and asks it. So a
suggestion depends on the trial records alone, and a trial that is paused and resumed needs no special case.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler, GPSampler, NSGAIISampler, RandomSampler, TPESampler
from optuna.study import StudyDirection
from optuna.trial import FixedTrial, FrozenTrial, TrialState, create_trial

from nasgrow.schedulers.base import SearchScheduler, Start, Trials, trial_seed
from nasgrow.schedulers.untried import UntriedPoints
from nasgrow.spaces.shapes import SHAPE_PARAMETER
from nasgrow.spaces.training import PEAK
from nasgrow.study.config import Sampler
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import Status, TrialRecord

IDLE = 50
"""A search without a limit on trials ends after this many trials in a row that executed nothing.

Optuna's samplers repeat points that were trained before. A repeated point costs nothing, so a search with
only a limit on compute or time might never end.
"""

FEW_POINTS = 1_000
"""A search without a limit on trials also ends once every point of a space of at most this size is tried."""

SEEN = 250
"""The most trials that a sampler sees, besides running ones: more would only slow it down."""

BEST = 50
"""How many of these are the best trials; TPE counts at most 25 as good."""

STATES: dict[Status, TrialState] = {
    "running": TrialState.RUNNING,
    "finished": TrialState.COMPLETE,
    "paused": TrialState.PRUNED,
    "pruned": TrialState.PRUNED,
    "diverged": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}
"""Optuna's state for each status. A diverged trial is a pruned one without reports: Optuna ranks it last."""

optuna.logging.set_verbosity(optuna.logging.ERROR)


class OptunaScheduler(SearchScheduler):
    """Starts the trials that one of Optuna's samplers suggests."""

    def __init__(self, study: ResolvedStudy, trials: Trials) -> None:
        super().__init__(study, trials)
        self._converted: dict[tuple[int, Status, int], FrozenTrial] = {}
        limited, size = study.config.trials is not None, study.space.size
        self._untried = None if limited or not 1 < size <= FEW_POINTS else UntriedPoints(study, trials)

    def choose(self) -> Start | None:
        """Ask the sampler for a point.

        Return None if a search without a limit on trials is idle (see ``IDLE`` and ``FEW_POINTS``).
        """
        if self._is_idle():
            return None
        config = self.study.config
        sampler = make_sampler(config.sampler, trial_seed(self.study, len(self.trials)))
        directions = [StudyDirection.MINIMIZE] * len(config.objectives)
        in_memory = optuna.create_study(sampler=sampler, directions=directions)
        notes = _notes_of_first_trial(config.sampler) if config.sampler.kind == "nsga-ii" else {}
        in_memory.add_trials([self._to_optuna(trial, notes) for trial in self._seen()])
        asked = in_memory.ask()
        self.study.space.sample(asked)
        return Start(asked.params)

    def _is_idle(self) -> bool:
        """Return whether the latest trials only repeat known points, and no number of trials limits them."""
        if self.study.config.trials is not None:
            return False
        if self._untried is not None and not self._untried.left():
            return True
        latest = [trial for trial in self.trials.values() if trial.is_ended][-IDLE:]
        return len(latest) == IDLE and not any(trial.executed for trial in latest)

    def _seen(self) -> list[TrialRecord]:
        """Return the trials that the sampler learns from.

        If there are more than ``SEEN``, these are the best ones and an even sample of the others.
        """
        if self.study.config.sampler.kind == "random":
            return []
        drawn = [trial for trial in self.trials.values() if self._is_drawn(trial)]
        running = [trial for trial in drawn if trial.status == "running"]
        stopped = [trial for trial in drawn if trial.status != "running"]
        if len(stopped) > SEEN:
            best = {trial.number for trial in self._best(stopped)}
            others = [trial.number for trial in stopped if trial.number not in best]
            kept = best.union(others[:: math.ceil(len(others) / (SEEN - len(best)))])
            stopped = [trial for trial in stopped if trial.number in kept]
        return sorted(stopped + running, key=lambda trial: trial.number)

    def _is_drawn(self, trial: TrialRecord) -> bool:
        """Return whether the sampler could have suggested a trial.

        It could not if a parameter is a complete shape, or a learning rate that is not declared.
        """
        settings = self.study.space.settings
        rates = settings[PEAK].values if PEAK in settings else ()
        return SHAPE_PARAMETER not in trial.parameters and (not rates or trial.parameters[PEAK] in rates)

    def _best(self, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
        """Return the ``BEST`` best finished trials; with two objectives, by Pareto fronts."""
        rest = sorted((self._values(trial), trial.number) for trial in trials if trial.status == "finished")
        best: list[int] = []
        if len(self.study.config.objectives) == 1:
            best = [number for _, number in rest]
        while rest and len(best) < BEST:
            least, dominated = math.inf, []
            for values, number in rest:
                if values[-1] < least:
                    least = values[-1]
                    best.append(number)
                else:
                    dominated.append((values, number))
            rest = dominated
        return [self.trials[number] for number in best[:BEST]]

    def _values(self, trial: TrialRecord) -> list[float]:
        """Return the objective values of a finished trial."""
        return [trial.objective(name) for name in self.study.config.objectives]

    def _to_optuna(self, trial: TrialRecord, notes: dict[str, Any]) -> FrozenTrial:
        """Convert a trial to Optuna's form, with the distributions of the search space."""
        form = trial.number, trial.status, len(trial.evaluations)
        if form not in self._converted:
            decoded = FixedTrial(trial.parameters)
            self.study.space.sample(decoded)
            reports = {round(100 * at): loss for at, loss in trial.evaluations}
            self._converted[form] = create_trial(
                state=STATES[trial.status],
                values=self._values(trial) if trial.status == "finished" else None,
                params=decoded.params,
                distributions=decoded.distributions,
                intermediate_values=reports if trial.status in ("paused", "pruned") else {},
                system_attrs=notes,
            )
        return self._converted[form]


def make_sampler(config: Sampler, seed: int) -> BaseSampler:
    """Return the Optuna sampler that a study file names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        if config.kind == "tpe":
            return TPESampler(seed=seed, n_startup_trials=config.startup)
        if config.kind == "gp":
            return GPSampler(seed=seed, n_startup_trials=config.startup)
        if config.kind == "nsga-ii":
            return NSGAIISampler(seed=seed, population_size=max(2, config.startup))
        assert config.kind == "random", config.kind
        return RandomSampler(seed=seed)


def _notes_of_first_trial(config: Sampler) -> dict[str, Any]:
    """Return the system attributes with which NSGA-II marks a trial of its first generation.

    With these attributes all trials are one generation, and the parents of the next are the best of all.
    """
    study = optuna.create_study(sampler=make_sampler(config, 0), directions=[StudyDirection.MINIMIZE] * 2)
    study.ask().suggest_float("any", 0, 1)
    return study.get_trials(deepcopy=False)[0].system_attrs
