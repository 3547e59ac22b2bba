"""Optuna's storage on a database that may be away for a while: every step is done once, or not at all.

A connection can be lost in the middle of anything, even of a commit, when nobody knows whether it was done.
Three things make that harmless. Several of Optuna's steps can be one transaction. Every transaction that
changes a trial's state, or makes a trial, leaves a mark of its own there: if the answer to its commit is
lost, the mark tells. And whatever else is written is the same when it is written twice.

A transaction costs milliseconds, so there are few of them. What is said of a trial that this process trains
is gathered for a moment, and written at the latest with its next sign of life or with its state. What is
known of such a trial is not read again: nobody else changes it but by taking it away, which the next write
notices. Optuna allows a storage that: all that was said of a trial is there before its state changes.
"""

from __future__ import annotations

import copy
import json
import math
import random
import secrets
import threading
import time
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

import sqlalchemy
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.storages._rdb import models
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from nasgrow.search.rows import (
    add_said,
    change_state,
    give_sign_of_life,
    make_trial,
    note_of_study,
    read_trial,
    read_trials,
    silent,
    state_of,
)
from nasgrow.strict import redact

PATIENCE = 120.0
"""Seconds that a database may be away before a process gives up."""

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 2.0
"""Seconds between two attempts, which double."""

MARK = "nasgrow:turn"
"""The system attribute of a trial that names the last transaction which changed its state."""

GATHERED = 1.0
"""Seconds within which what is said of a trial is gathered; the first thing is written at once."""

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
    then: list[Callable[[], None]]
    """What to do once the transaction is done."""
    seen: set[int] | None = None
    """The studies whose trials were read in this transaction, if it reads them once."""

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


_USER, _SYSTEM, _VALUE = "set_trial_user_attr", "set_trial_system_attr", "set_trial_intermediate_value"
_PLACES = {_USER: "user_attrs", _SYSTEM: "system_attrs", _VALUE: "intermediate_values"}
"""Optuna's ways to say something of a trial, and where a trial keeps it."""


class _Own:
    """A trial that this process trains: what is known of it, and what of that is not written yet.

    Attributes:
        known: The trial.
    """

    def __init__(self, trial_id: int, known: FrozenTrial) -> None:
        self._id, self.known = trial_id, known
        self._there = {(what, key) for what, place in _PLACES.items() for key in getattr(known, place)}
        self._unwritten: dict[tuple[str, Any], Any] = {}
        self._lock = threading.RLock()
        self._taken_away: UpdateFinishedTrialError | None = None
        self._wrote, self._tried = -GATHERED, False

    def say(self, storage: Database, what: str, key: Any, value: Any) -> None:
        """Note what is said, and write it unless something was written a moment ago.

        Raises:
            UpdateFinishedTrialError: The trial was taken away from this process.
        """
        with self._lock:
            if self._taken_away is not None:
                raise self._taken_away
            place: dict[Any, Any] = getattr(self.known, _PLACES[what])
            place[key] = value
            self._unwritten[what, key] = value
        if time.monotonic() - self._wrote >= GATHERED:
            storage.once(lambda: self.write_all(storage))

    def write_all(self, storage: Database) -> None:
        """Write what is not written yet, in the transaction that this is called in."""
        with self._lock:
            writing = dict(self._unwritten)
            if not writing:
                return
            try:
                # Rows that are new are one statement for each table. After an attempt that was lost nobody
                # knows which are new.
                new = {} if self._tried else {w: v for w, v in writing.items() if w not in self._there}
                self._tried = True
                _insert(storage, self._id, new)
                for (what, key), value in writing.items():
                    if (what, key) not in new:
                        getattr(RDBStorage, what)(storage, self._id, key, value)
            except UpdateFinishedTrialError as error:
                self._taken_away = error
                raise
            storage.when_done(lambda: self._done(writing))

    def _done(self, written: dict[tuple[str, Any], Any]) -> None:
        with self._lock:
            self._wrote, self._tried = time.monotonic(), False
            self._there |= written.keys()
            for said, value in written.items():
                if self._unwritten.get(said) is value:
                    del self._unwritten[said]


def _insert(storage: Database, trial_id: int, new: dict[tuple[str, Any], Any]) -> None:
    session = storage.scoped_session()
    storage.check_trial_is_updatable(trial_id, state_of(session, trial_id))
    user, system, reports = (
        {key: value for (what, key), value in new.items() if what == kind}
        for kind in (_USER, _SYSTEM, _VALUE)
    )
    add_said(session, trial_id, user, system, reports)


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
        # Others may have been cut off from a server just before: their signs of life need time.
        self._back = time.monotonic() if self.served else -math.inf
        self._own: dict[int, _Own] = {}
        self._ended: tuple[int, FrozenTrial] | None = None

    @contextmanager
    def together(self, alone: int | None = None, *, wait: bool = True) -> Iterator[None]:
        """Make all that the body does one transaction, which reads the trials of a study once.

        Args:
            alone: The id of a study: the body waits until nobody else has it.
            wait: Whether it does; else it gives up.

        Raises:
            Lost: The connection was lost, or somebody else was in the way; nothing was done.
            Busy: Somebody else has the study, and the body was not to wait.
            Away: The database could not be reached for a long time.
        """
        with self._joined(alone, wait=wait) as session:
            outermost = session.seen is None
            session.seen = session.seen or set()
            try:
                yield
            finally:
                session.seen = None if outermost else session.seen
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

    def when_done(self, then: Callable[[], None]) -> None:
        """Do something once the transaction is done that this is called in."""
        session = self.scoped_session()
        assert isinstance(session, _Session)
        session.then.append(then)

    @contextmanager
    def _joined(self, alone: int | None = None, *, wait: bool = True) -> Iterator[_Session]:
        session = self.scoped_session()
        assert isinstance(session, _Session)
        if session.joined:
            yield session
            return
        session.joined, session.broken, session.turn, session.marked = True, False, secrets.token_hex(8), None
        session.then = []
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
        for then in session.then:
            then()

    def _pause(self, error: Exception) -> None:
        """Wait a little for a database that is away.

        Raises:
            Away: For too long.
            Exception: The given one, if it will not pass.
        """
        cause = _passing(error) if self.served else None
        if cause is None:
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
        own = self._own.get(trial_id)

        def step() -> bool:
            if own is not None:
                own.write_all(self)
            session = self.scoped_session()
            while True:
                before = state_of(session, trial_id)
                self.check_trial_is_updatable(trial_id, before)
                if state is TrialState.RUNNING and before is not TrialState.WAITING:
                    return False
                if change_state(session, trial_id, before, state, values):
                    self._mark(session, trial_id)
                    return True

        try:
            changed = self.once(step)
        finally:
            self._own.pop(trial_id, None)
        if own is not None and changed and state.is_finished():
            own.known.state, own.known.values = state, None if values is None else list(values)
            own.known.datetime_complete = datetime.now()
            self._ended = trial_id, own.known
        return changed

    def _get_prepared_new_trial(
        self, study_id: int, template_trial: FrozenTrial | None, session: Session
    ) -> models.TrialModel:
        """Make a trial, with this transaction's mark."""
        assert isinstance(session, _Session)
        like = create_trial(state=TrialState.RUNNING) if template_trial is None else copy.copy(template_trial)
        if self.served:
            like.system_attrs = {**like.system_attrs, MARK: session.turn}
        trial_id, number = make_trial(session, study_id, like)
        if self.served:
            session.marked = trial_id, study_id
        made = models.TrialModel(trial_id=trial_id, number=number, study_id=study_id, state=like.state)
        made.datetime_start = like.datetime_start
        return made

    def _create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> FrozenTrial:
        """Make a trial; one that is made to be trained is this process's own."""

        def step() -> FrozenTrial:
            made: FrozenTrial = RDBStorage._create_new_trial(self, study_id, template_trial)
            if template_trial is not None and made.state == TrialState.RUNNING:
                own = {made._trial_id: _Own(made._trial_id, _copied(made))}
                self.when_done(lambda: self._own.update(own))
            return made

        return self.once(step)

    def own(self, trial_id: int) -> None:
        """Take a trial for this process's own: until its state changes, nobody else says anything of it."""
        if trial_id not in self._own:
            self._own[trial_id] = _Own(trial_id, self.get_trial(trial_id))

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """A trial, as far as it is known: with what was said of it and is not written yet."""
        own = self._own.get(trial_id)
        if own is not None:
            return _copied(own.known)
        if self._ended is not None and self._ended[0] == trial_id:
            return self._ended[1]
        return self.once(lambda: read_trial(self.scoped_session(), trial_id))

    def get_trial_user_attrs(self, trial_id: int) -> dict[str, Any]:
        """What was said of a trial."""
        return self.get_trial(trial_id).user_attrs

    def get_trial_system_attrs(self, trial_id: int) -> dict[str, Any]:
        """What Optuna noted of a trial."""
        return self.get_trial(trial_id).system_attrs

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        """Note something of a study."""
        self.once(lambda: note_of_study(self.scoped_session(), study_id, key, value))

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Say something of a trial."""
        self._say(trial_id, "set_trial_user_attr", key, value)

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Note something of a trial."""
        self._say(trial_id, "set_trial_system_attr", key, value)

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        """Report a value of a trial on its way."""
        self._say(trial_id, "set_trial_intermediate_value", step, intermediate_value)

    def _set_trial_param(self, trial_id: int, *given: Any) -> None:
        """Set a parameter of a trial; its own are read again."""
        self.once(lambda: RDBStorage._set_trial_param(self, trial_id, *given))
        own = self._own.pop(trial_id, None)
        if own is not None:
            self.once(lambda: own.write_all(self))
            self.own(trial_id)

    def _say(self, trial_id: int, what: str, key: Any, value: Any) -> None:
        own = self._own.get(trial_id)
        if own is None:
            self.once(lambda: getattr(RDBStorage, what)(self, trial_id, key, value))
        else:
            own.say(self, what, key, value)

    def record_heartbeat(self, trial_id: int) -> None:
        """Give a sign of life of a trial, and write what was said of it."""
        own = self._own.get(trial_id)

        def step() -> None:
            if own is not None:
                own.write_all(self)
            # PostgreSQL's now() is when the transaction began, which may have waited since.
            postgres = self.engine.dialect.name == "postgresql"
            now = sqlalchemy.func.clock_timestamp() if postgres else sqlalchemy.func.now()
            give_sign_of_life(self.scoped_session(), trial_id, now)

        self.once(step)

    def _get_trials(
        self,
        study_id: int,
        states: Container[TrialState] | None,
        included_trial_ids: set[int],
        trial_id_greater_than: int,
    ) -> list[FrozenTrial]:
        """The trials of a study, or those that may have changed since a cache was filled.

        In one transaction a cache is told once: nothing changes there but what it is told anyway.
        """
        session, filled = self.scoped_session(), trial_id_greater_than >= 0
        if filled and isinstance(session, _Session) and session.joined and session.seen is not None:
            if study_id in session.seen:
                return []
            session.seen.add(study_id)
        own = {trial_id: _copied(one.known) for trial_id, one in self._own.items()}
        asked = study_id, states, included_trial_ids, trial_id_greater_than
        return self.once(lambda: read_trials(self.scoped_session(), *asked, own))

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        """The trials without signs of life; none while such signs may not have come through."""
        grace = self.grace_period
        assert grace is not None
        if time.monotonic() - self._back < grace:
            return []
        return self.once(lambda: silent(self.scoped_session(), study_id, grace))


def _copied(trial: FrozenTrial) -> FrozenTrial:
    """A copy of a trial, of which more can be said; what was said, which nobody changes, is the same."""
    made = copy.copy(trial)
    for name in ("params", "distributions", "user_attrs", "system_attrs", "intermediate_values"):
        setattr(made, name, dict(getattr(trial, name)))
    return made


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
    "get_study_id_from_name",
    "get_study_name_from_id",
    "get_study_directions",
    "get_study_user_attrs",
    "get_study_system_attrs",
    "get_all_studies",
    "get_trial_param",
    "get_trial_id_from_study_id_trial_number",
    "_get_best_trial_id",
):
    setattr(Database, _name, _endured(_name))


def _hold(session: Session, study_id: int, wait: bool) -> None:
    """Hold a study's row until the end of the transaction."""
    row = models.StudyModel.study_id
    query = sqlalchemy.select(row).where(row == study_id).with_for_update(skip_locked=not wait)
    if session.execute(query).first() is None:
        raise Busy


def _passing(error: BaseException | None) -> DBAPIError | None:
    """What was wrong with the connection, if that is behind an error: Optuna may have tried again in vain."""
    while error is not None and not isinstance(error, Lost):  # what is behind that one is over
        if isinstance(error, DBAPIError) and _passes(error):
            return error
        error = error.__cause__ or error.__context__
    return None


def _passes(error: DBAPIError) -> bool:
    """Whether an error is the connection's, or another transaction's, and not that of what was asked."""
    connecting = isinstance(error, OperationalError) and error.statement is None
    number = next(iter(getattr(error.orig, "args", ())), None)
    taken_back = {getattr(error.orig, "sqlstate", None), number} & {*ROLLED_BACK}
    return error.connection_invalidated or connecting or bool(taken_back)


def said(error: BaseException) -> str:
    """What a database said, in one line, without a password."""
    cause = getattr(error, "orig", None) or error
    # MySQL's drivers give a number and a text, which would be shown as a tuple.
    text = next((part for part in reversed(cause.args) if isinstance(part, str)), "") or str(cause)
    return redact(next(iter(text.strip().splitlines()), type(cause).__name__))
