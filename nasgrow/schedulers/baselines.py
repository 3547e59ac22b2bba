"""The scheduler of baselines: each fixed size on the list from scratch, at learning rates tuned for it."""

from __future__ import annotations

from collections.abc import Sequence

from nasgrow.schedulers.base import CompleteScheduler, Start, Trials
from nasgrow.study.baselines import FINAL, PEAK, Size, Tries, rates_to_try
from nasgrow.study.plans import SIZE
from nasgrow.study.study import Study


class BaselineScheduler(CompleteScheduler):
    """Starts every size at its first learning rates, and at more as long as the best is at an edge.

    The limits of a search do not apply: a verdict needs all baselines.

    Args:
        study: The study.
        trials: Its baselines so far.
        sizes: The sizes to tune.
    """

    def __init__(self, study: Study, trials: Trials, sizes: Sequence[Size]) -> None:
        super().__init__(study, trials)
        self._sizes = sizes

    def suggest(self) -> Start | None:
        """The next size and learning rate, in the order of the sizes."""
        final = self._tries(FINAL)
        for size in self._sizes:
            rates = rates_to_try(self.study, size, self._tries(size.name), final)
            if rates:
                return Start({SIZE: size.name, PEAK: rates[0]}, size.name)
        return None

    def _tries(self, size: str) -> Tries:
        """What became of the learning rates tried for a size."""
        own = [trial for trial in self.counted() if trial.parameters[SIZE] == size]
        losses = {trial.parameters[PEAK]: trial.loss for trial in own}
        return Tries(losses, all(trial.is_ended for trial in own))
