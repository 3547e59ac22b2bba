"""Optuna's samplers as schedulers.

Every suggestion asks a new study in memory, to which the trials so far are added. So a suggestion depends
on the records alone, and a trial that was paused and goes on needs no special case.
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
from nasgrow.spaces.shapes import SHAPE_PARAMETER
from nasgrow.spaces.training import PEAK
from nasgrow.study.config import Sampler
from nasgrow.study.study import ResolvedStudy
from nasgrow.study.trials import Status, TrialRecord

IDLE = 50
"""Without a number of trials, a search ends when so many in a row executed nothing.

Optuna's samplers suggest points again that were trained before. They cost nothing, so that a limit of compute
or time might never be reached.
"""

SEEN = 250
"""Trials that a sampler sees at most, beside those that are running: more would only slow it down."""

BEST = 50
"""How many of them are the best ones; TPE takes at most 25 for good."""

STATES: dict[Status, TrialState] = {
    "running": TrialState.RUNNING,
    "finished": TrialState.COMPLETE,
    "paused": TrialState.PRUNED,
    "pruned": TrialState.PRUNED,
    "diverged": TrialState.PRUNED,
    "failed": TrialState.FAIL,
}
"""What a trial is to Optuna. Without its reports a diverged one counts as the worst of all."""

optuna.logging.set_verbosity(optuna.logging.ERROR)


class OptunaScheduler(SearchScheduler):
    """Starts the trials that one of Optuna's samplers asks for."""

    def __init__(self, study: ResolvedStudy, trials: Trials) -> None:
        super().__init__(study, trials)
        self._converted: dict[tuple[int, Status, int], FrozenTrial] = {}

    def choose(self) -> Start | None:
        """Ask the sampler for a point."""
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
        """Whether trials only repeat what is known, and no number of them is given."""
        if self.study.config.trials is not None:
            return False
        latest = [trial for trial in self.trials.values() if trial.is_ended][-IDLE:]
        return len(latest) == IDLE and not any(trial.executed for trial in latest)

    def _seen(self) -> list[TrialRecord]:
        """The trials to learn from: of very many the best, and an even sample of the others."""
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
        """Whether the sampler might have suggested a trial: no shape given whole, no rate beyond an edge."""
        settings = self.study.space.settings
        rates = settings[PEAK].values if PEAK in settings else ()
        return SHAPE_PARAMETER not in trial.parameters and (not rates or trial.parameters[PEAK] in rates)

    def _best(self, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
        """The best trials that have finished; of two objectives, front by front."""
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
        """The objectives of a trial that has finished."""
        return [trial.objective(name) for name in self.study.config.objectives]

    def _to_optuna(self, trial: TrialRecord, notes: dict[str, Any]) -> FrozenTrial:
        """A trial as Optuna knows it; its distributions are those that the space asks for."""
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
    """The sampler that a study file names."""
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
    """What NSGA-II notes in the first trial of a study: that it belongs to the first generation.

    With that note all trials are one generation, and the parents of the next are the best of all.
    """
    study = optuna.create_study(sampler=make_sampler(config, 0), directions=[StudyDirection.MINIMIZE] * 2)
    study.ask().suggest_float("any", 0, 1)
    return study.get_trials(deepcopy=False)[0].system_attrs
