"""Optuna's storage on a database that may be away for a while: every step is done once, or not at all.

A connection can be lost in the middle of anything, even of a commit, when nobody knows whether it was done.
Three things make that harmless. Several of Optuna's steps can be one transaction. Every transaction that
changes a trial's state, or makes a trial, leaves a mark of its own there: if the answer to its commit is
lost, the mark tells. And whatever else is written is the same when it is written twice.
"""

from __future__ import annotations

import json
import random
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import sqlalchemy
from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from optuna.storages._rdb import models
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from nasgrow.strict import redact

PATIENCE = 120.0
"""Seconds that a database may be away before a process gives up."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
"""Seconds between two attempts, which double."""

MARK = "nasgrow:turn"
"""The system attribute of a trial that names the last transaction which changed its state."""

ROLLED_BACK = ("40001", "40P01", 1205, 1213)
"""What PostgreSQL and MySQL say of a transaction that stood in another's way and was taken back."""

Done = TypeVar("Done")


class Away(ValueError):  # noqa: N818
    """The database cannot be reached, and was waited for long enough."""


class Lost(Exception):  # noqa: N818
    """A transaction was lost with its connection; nothing of it was done."""


class Busy(Lost):
    """Somebody else holds what was asked for; nothing was done."""


class _Session(Session):
    """A session in which several of Optuna's transactions can be joined to one."""

    joined = False
    broken = False
    """Whether a part of the joined transaction was taken back, and with it all that came before."""
    turn = ""
    marked: tuple[int, int | None] | None = None
    """The trial that carries this transaction's mark, and its study if the trial is new."""

    def commit(self) -> None:
        """End one of Optuna's transactions: what it did is seen by the next one."""
        if self.joined:
            self.flush()
        else:
            super().commit()

    def close(self) -> None:
        """Forget what was read, so that the next one reads anew."""
        if self.joined:
            self.expunge_all()
        else:
            super().close()

    def rollback(self) -> None:
        """Take back what was done, all of it."""
        self.broken = True
        super().rollback()


class Database(RDBStorage):
    """Optuna's storage with transactions of several steps, each done exactly once.

    Attributes:
        served: Whether a server keeps it, perhaps elsewhere; else it is a file.
    """

    def __init__(self, url: str, **options: Any) -> None:
        try:
            super().__init__(url, **options)
        except Exception:
            if hasattr(self, "engine"):
                self.engine.dispose()
            raise
        self.scoped_session = scoped_session(sessionmaker(bind=self.engine, class_=_Session))
        self.served = self.engine.dialect.name != "sqlite"
        self._outage: tuple[float, int] | None = None
        self._back = -PATIENCE

    @contextmanager
    def together(self, alone: int | None = None, *, wait: bool = True) -> Iterator[None]:
        """Make all that the body does one transaction.

        Args:
            alone: The id of a study: the body waits until nobody else has it.
            wait: Whether it does; else it gives up.

        Raises:
            Lost: The connection was lost, or somebody else was in the way; nothing was done.
            Busy: Somebody else has the study, and the body was not to wait.
            Away: The database could not be reached for a long time.
        """
        with self._joined(alone, wait=wait) as session:
            yield
            if session.broken:
                raise Lost

    def once(self, step: Callable[[], Done]) -> Done:
        """Do one of Optuna's steps, again if its connection was lost before it was done."""
        while True:
            try:
                with self._joined():
                    return step()
            except Lost:
                continue

    @contextmanager
    def _joined(self, alone: int | None = None, *, wait: bool = True) -> Iterator[_Session]:
        session = self.scoped_session()
        assert isinstance(session, _Session)
        if session.joined:
            yield session
            return
        session.joined, session.broken, session.turn, session.marked = True, False, secrets.token_hex(8), None
        finished = False
        try:
            if alone is not None and self.served:
                _hold(session, alone, wait)
            yield session
            finished = True
            Session.commit(session)
        except (SQLAlchemyError, StorageInternalError) as error:
            session.joined = False
            Session.close(session)
            self._pause(error)
            if not (finished and session.marked is not None and self._did(*session.marked, session.turn)):
                raise Lost from None
        finally:
            session.joined = False
            Session.close(session)
        if self._outage is not None:
            self._outage, self._back = None, time.monotonic()

    def _pause(self, error: Exception) -> None:
        """Wait a little for a database that is away.

        Raises:
            Away: For too long.
            Exception: The given one, if it will not pass.
        """
        cause = error.__cause__ if isinstance(error, StorageInternalError) else error
        if not (self.served and isinstance(cause, DBAPIError) and _passes(cause)):
            raise error
        began, attempts = self._outage or (time.monotonic(), 0)
        if time.monotonic() - began > PATIENCE:
            raise Away(f"storage: {redact(self.url)} cannot be reached: {said(cause)}") from None
        self._outage = began, attempts + 1
        time.sleep(random.uniform(0.5, 1.0) * min(LONGEST_PAUSE, FIRST_PAUSE * 2.0**attempts))

    def _did(self, trial_id: int, new_in: int | None, turn: str) -> bool:
        """Whether a transaction was done whose answer was lost: locks wait until it is decided."""
        studies, trials, marks = models.StudyModel, models.TrialModel, models.TrialSystemAttributeModel
        while True:
            try:
                with self.engine.connect() as connection:
                    for column, value in ((studies.study_id, new_in), (trials.trial_id, trial_id)):
                        if value is not None:
                            locked = sqlalchemy.select(column).where(column == value).with_for_update()
                            connection.execute(locked).all()
                    mine = (
                        marks.trial_id == trial_id,
                        marks.key == MARK,
                        marks.value_json == json.dumps(turn),
                    )
                    return connection.execute(sqlalchemy.select(marks.key).where(*mine)).first() is not None
            except SQLAlchemyError as error:
                self._pause(error)

    def _mark(self, session: Session, trial_id: int, new_in: int | None = None) -> None:
        if self.served and isinstance(session, _Session):
            marks, said = models.TrialSystemAttributeModel, json.dumps(session.turn)
            there = session.query(marks).filter(marks.trial_id == trial_id, marks.key == MARK)
            if not there.update({marks.value_json: said}, synchronize_session=False):
                session.add(marks(trial_id=trial_id, key=MARK, value_json=said))
            session.marked = trial_id, new_in

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        """Change a trial's state; whether this call did."""

        def step() -> bool:
            changed = RDBStorage.set_trial_state_values(self, trial_id, state, values)
            if changed:
                self._mark(self.scoped_session(), trial_id)
            return changed

        return self.once(step)

    def _get_prepared_new_trial(
        self, study_id: int, template_trial: FrozenTrial | None, session: Session
    ) -> models.TrialModel:
        trial = super()._get_prepared_new_trial(study_id, template_trial, session)
        self._mark(session, int(trial.trial_id), study_id)
        return trial

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        """The trials without signs of life; none while such signs may not have come through."""
        assert self.heartbeat_interval is not None
        if time.monotonic() - self._back < 2 * self.heartbeat_interval:
            return []
        stale: list[int] = self.once(lambda: RDBStorage._get_stale_trial_ids(self, study_id))
        return stale


def _endured(name: str) -> Callable[..., Any]:
    """A step of Optuna's that means the same when it is done twice."""
    step = getattr(RDBStorage, name)

    def call(self: Database, *arguments: Any, **named: Any) -> Any:
        return self.once(lambda: step(self, *arguments, **named))

    return call


for _name in (
    "create_new_study",
    "delete_study",
    "set_study_user_attr",
    "set_study_system_attr",
    "get_study_id_from_name",
    "get_study_name_from_id",
    "get_study_directions",
    "get_study_user_attrs",
    "get_study_system_attrs",
    "get_all_studies",
    "_create_new_trial",
    "_set_trial_param",
    "get_trial_param",
    "set_trial_intermediate_value",
    "set_trial_user_attr",
    "set_trial_system_attr",
    "get_trial_user_attrs",
    "get_trial_system_attrs",
    "get_trial_id_from_study_id_trial_number",
    "get_trial",
    "_get_trials",
    "_get_best_trial_id",
    "record_heartbeat",
):
    setattr(Database, _name, _endured(_name))


def _hold(session: Session, study_id: int, wait: bool) -> None:
    """Hold a study's row until the end of the transaction."""
    row = models.StudyModel.study_id
    query = sqlalchemy.select(row).where(row == study_id).with_for_update(skip_locked=not wait)
    if session.execute(query).first() is None:
        raise Busy


def _passes(error: DBAPIError) -> bool:
    """Whether an error is the connection's, or another transaction's, and not that of what was asked."""
    connecting = isinstance(error, OperationalError) and error.statement is None
    number = next(iter(getattr(error.orig, "args", ())), None)
    taken_back = {getattr(error.orig, "sqlstate", None), number} & {*ROLLED_BACK}
    return error.connection_invalidated or connecting or bool(taken_back)


def said(error: BaseException) -> str:
    """What a database said, in one line, without a password."""
    lines = str(getattr(error, "orig", None) or error).strip().splitlines()
    return redact(" ".join(line.strip() for line in lines[:1]))
