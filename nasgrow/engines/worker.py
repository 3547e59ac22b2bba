"""One worker: it claims trials of a study and trains them until nothing is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import torch
from optuna.exceptions import UpdateFinishedTrialError

from nasgrow.data import prepare
from nasgrow.engines.standing import Board, Standing, elsewhere
from nasgrow.search.config import Resources
from nasgrow.search.ledger import Claim, Kind, Ledger
from nasgrow.search.objective import Attach, pursue
from nasgrow.search.outcome import Setting
from nasgrow.search.storage import beating, where
from nasgrow.search.trunks import open_prices, open_trunks
from nasgrow.training.loop import Interrupted, Progress
from nasgrow.training.machine import pick_device

IDLE = 0.5
"""Seconds between two looks for something to do."""

FULL = "out of memory", "ALLOC_FAILED", "can't allocate memory"
"""How torch, a GPU's libraries and the CPU's allocator say that there is no memory left."""

Did = Literal["trained", "nothing", "stopped"]
"""What came of looking for a trial."""


def device_of(resources: Resources, index: int = 0) -> torch.device:
    """Where a worker trains: on the CPU where no trial needs a GPU, even if there is one."""
    return torch.device("cpu") if resources.gpus == 0 else pick_device(index)


class OutOfMemory(Exception):  # noqa: N818
    """A trial did not fit: whoever trained it should end, so that all that it holds is free."""


class Worker:
    """A process that trains trials of a study: what it needs for all of them, made ready once.

    Args:
        ledger: The study's.
        folder: The study's.
        device: Where to train.
    """

    def __init__(self, ledger: Ledger, folder: Path, device: torch.device) -> None:
        self._ledger, self._folder, self._device = ledger, folder, device
        self._corpus = prepare(ledger.study.config.data)
        ledger.check_data(self._corpus.fingerprint)
        self._trunks = open_trunks(ledger.study, folder)
        self._prices = open_prices(ledger.study, folder, self._corpus, device, self._trunks)

    def once(
        self,
        kinds: Sequence[Kind],
        *,
        board: Board,
        attach: Attach,
        warn: Callable[[str], None],
        stop: Callable[[], bool],
    ) -> Did:
        """Claim a trial of these kinds and train it.

        Raises:
            OutOfMemory: It did not fit; it is offered again, as after this worker's death.
            ValueError: Another machine is at work on the study too, and its database is a file.
        """
        if where(self._ledger.storage).startswith("sqlite") and elsewhere(self._folder):
            raise ValueError(
                f"{self._folder}: another machine is at work on this study, and SQLite serves one: give a "
                "database server's URL as its storage"
            )
        ledger = self._ledger
        claim = ledger.claim(kinds, self._prices)
        if claim is None:
            return "nothing"
        setting = Setting(
            self._folder, self._corpus, self._device, _watch(board, claim), warn, stop, self._trunks
        )
        try:
            with beating(ledger.storage, claim.trial._trial_id):
                pursue(claim, ledger, setting, attach)
        except UpdateFinishedTrialError:
            return "trained"  # it was silent for too long and taken for dead: the trial is offered again
        except BaseException as error:
            if any(words in str(error) for words in FULL) and isinstance(error, RuntimeError):
                raise OutOfMemory(_without_memory(claim, error, again=ledger.count_out(claim))) from None
            ledger.give_back(claim)
            if isinstance(error, Interrupted) or stop():
                return "stopped"
            raise
        finally:
            board.clear()
        return "trained"


def work(
    ledger: Ledger,
    folder: Path,
    *,
    index: int,
    device: torch.device,
    attach: Attach,
    warn: Callable[[str], None],
    stop: Callable[[], bool],
    kinds: Sequence[Kind],
) -> bool:
    """Train trials of these kinds until none is left; False if this process was asked to stop before."""
    worker, board = Worker(ledger, folder, device), Board(folder, index)
    while not stop():
        did = worker.once(kinds, board=board, attach=attach, warn=warn, stop=stop)
        if did == "stopped":
            return False
        if did == "nothing":
            if ledger.ended(kinds):
                return True
            time.sleep(IDLE)
    return False


def _without_memory(claim: Claim, error: BaseException, *, again: bool) -> str:
    said = ". ".join(str(error).split("\n")[0].split(". ")[:2]).rstrip(".")
    then = "it is tried again" if again else "it is given up"
    return (
        f"{claim.kind} {claim.trial.number} ran out of memory ({said}): {then}; "
        "smaller training.micro_tokens, or fewer trials on a GPU by larger resources.gpus, may fit"
    )


def _watch(board: Board, claim: Claim) -> Callable[[Progress], None]:
    def show(progress: Progress) -> None:
        board.write(
            Standing(
                worker=board.worker,
                kind=claim.kind,
                trial=claim.trial.number,
                schedule=claim.trial.user_attrs.get("schedule", ""),
                stage=progress.stage + 1,
                stages=progress.stages,
                fraction=progress.fraction,
                loss=progress.loss,
                validation=progress.validation,
            )
        )

    return show
