"""One worker: it claims trials of a study and trains them until nothing is left."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from optuna.exceptions import UpdateFinishedTrialError

from nasgrow.data import prepare
from nasgrow.engines.standing import Board, Standing
from nasgrow.search.ledger import Claim, Kind, Ledger
from nasgrow.search.objective import Attach, pursue
from nasgrow.search.outcome import Setting
from nasgrow.search.storage import beating
from nasgrow.search.trunks import open_prices, open_trunks
from nasgrow.training.loop import Interrupted, Progress

IDLE = 0.5
"""Seconds between two looks for something to do."""


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
    corpus = prepare(ledger.study.config.data)
    ledger.check_data(corpus.fingerprint)
    trunks = open_trunks(ledger.study, folder)
    prices = open_prices(ledger.study, folder, corpus, device, trunks)
    board = Board(folder, index)
    try:
        while not stop():
            claim = ledger.claim(kinds, prices)
            if claim is None:
                board.clear()
                if ledger.ended(kinds):
                    return True
                time.sleep(IDLE)
                continue
            setting = Setting(folder, corpus, device, _watch(board, claim), warn, stop, trunks)
            try:
                with beating(ledger.storage, claim.trial._trial_id):
                    pursue(claim, ledger, setting, attach)
            except UpdateFinishedTrialError:
                continue  # it was silent for too long and taken for dead: the trial is offered again
            except BaseException as error:
                ledger.give_back(claim)
                if isinstance(error, Interrupted) or stop():
                    return False
                raise
        return False
    finally:
        board.clear()


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
