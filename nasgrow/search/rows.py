"""Trials as they are in the tables of Optuna's database, read, made and ended without an object for each row.

Optuna makes an object of every row, and parses the distribution of every parameter of every trial twice. Of
64 trials that others train, each with 20 parameters, that takes a tenth of a second, whenever somebody asks.
Here rows stay tuples, and a distribution is parsed once for all the trials that have it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from optuna.distributions import BaseDistribution, distribution_to_json, json_to_distribution
from optuna.storages._rdb import models
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import bindparam, func, insert, select, update
from sqlalchemy.orm import Session

TOGETHER = 500
"""Trials whose rows one statement asks for: databases bound how long it may be."""

_Value, _Report = models.TrialValueModel, models.TrialIntermediateValueModel
_trials, _beats = models.TrialModel.__table__, models.TrialHeartbeatModel.__table__
_parameters, _values, _reports = models.TrialParamModel.__table__, _Value.__table__, _Report.__table__
_user, _system = models.TrialUserAttributeModel.__table__, models.TrialSystemAttributeModel.__table__

_notes = models.StudySystemAttributeModel.__table__

_study: Any = bindparam("study")
_id: Any = bindparam("id")
_ids: Any = bindparam("ids", expanding=True, literal_execute=True)  # a driver would look at each on its own

_heads = select(
    _trials.c.trial_id,
    _trials.c.number,
    _trials.c.state,
    _trials.c.datetime_start,
    _trials.c.datetime_complete,
)
_ALL = _heads.where(_trials.c.study_id == _study)
_NEW = _ALL.where(_trials.c.trial_id > bindparam("beyond"))
_CHANGED = _ALL.where((_trials.c.trial_id > bindparam("beyond")) | _trials.c.trial_id.in_(_ids))
_ONE = _heads.where(_trials.c.trial_id == _id)
_STATE = select(_trials.c.state).where(_trials.c.trial_id == _id).with_for_update(key_share=True)
_BEFORE = select(func.count()).where(_trials.c.study_id == _study, _trials.c.trial_id < _id)
_NUMBERED = update(_trials).where(_trials.c.trial_id == _id).values(number=bindparam("given"))
_SIGNS_OF_LIFE = (
    select(_trials.c.trial_id, _beats.c.heartbeat, func.now())
    .join_from(_trials, _beats)
    .where(_trials.c.study_id == _study, _trials.c.state == TrialState.RUNNING)
)


def _of(table: Any, *names: str) -> Any:
    """A statement for some columns of a table's rows about some trials, after the trial's id."""
    return select(table.c.trial_id, *(table.c[name] for name in names)).where(table.c.trial_id.in_(_ids))


_PARAMETERS = _of(_parameters, "param_name", "param_value", "distribution_json").order_by(
    _parameters.c.param_id
)
_VALUES = _of(_values, "value", "value_type").order_by(_values.c.objective)
_USER, _SYSTEM = _of(_user, "key", "value_json"), _of(_system, "key", "value_json")
_REPORTS = _of(_reports, "step", "intermediate_value", "intermediate_value_type")


def read_trials(
    session: Session,
    study_id: int,
    states: Container[TrialState] | None = None,
    unfinished: Collection[int] = (),
    beyond: int = -1,
    own: Mapping[int, FrozenTrial] | None = None,
) -> list[FrozenTrial]:
    """The trials of a study by their ids.

    Args:
        session: Where to read.
        study_id: The study's id.
        states: Those of the trials; any by default.
        unfinished: The ids of trials that may have changed, and
        beyond: the id after which trials are new; all by default.
        own: Trials that this process trains, by their ids: unless they were taken away, it knows them.

    Raises:
        KeyError: There is no such study.
    """
    if beyond < 0:
        rows = session.execute(_ALL, {"study": study_id}).all()
        if not rows:
            models.StudyModel.find_or_raise_by_id(study_id, session)
    else:
        old = [trial_id for trial_id in unfinished if trial_id <= beyond]
        asked = {"study": study_id, "beyond": beyond}
        # With an empty list SQLite would look at every trial.
        rows = (
            session.execute(_CHANGED, {**asked, "ids": old}).all()
            if old
            else session.execute(_NEW, asked).all()
        )
    rows = [row for row in rows if states is None or row.state in states]
    kept = {row.trial_id for row in rows if row.state is TrialState.RUNNING} & (own or {}).keys()
    found = _whole(session, [row for row in rows if row.trial_id not in kept])
    return sorted([*found, *(own[one] for one in kept if own)], key=lambda trial: trial._trial_id)


def read_trial(session: Session, trial_id: int) -> FrozenTrial:
    """A trial.

    Raises:
        KeyError: There is none of this id.
    """
    found = _whole(session, session.execute(_ONE, {"id": trial_id}).all())
    if not found:
        raise KeyError(models.NOT_FOUND_MSG)
    return found[0]


def make_trial(session: Session, study_id: int, like: FrozenTrial) -> tuple[int, int]:
    """Make a trial like a given one; its id and its number.

    Whether its distributions are those of other trials is not asked: a study is held to its file.

    Args:
        session: Where to write; it holds the study, so that no number is given twice.
        study_id: The study's id.
        like: What the trial is to be.
    """
    times = {"datetime_start": _utc(like.datetime_start), "datetime_complete": _utc(like.datetime_complete)}
    made: Any = session.execute(insert(_trials), {"study_id": study_id, "state": like.state, **times})
    (trial_id,) = made.inserted_primary_key
    number = session.execute(_BEFORE, {"study": study_id, "id": trial_id}).scalar_one()
    session.connection().execute(_NUMBERED, {"id": trial_id, "given": number})
    parameters = [
        (name, of.to_internal_repr(like.params[name]), distribution_to_json(of))
        for name, of in like.distributions.items()
    ]
    _insert(session, trial_id, _parameters, ("param_name", "param_value", "distribution_json"), parameters)
    _insert_values(session, trial_id, like.values or ())
    add_said(session, trial_id, like.user_attrs, like.system_attrs, like.intermediate_values)
    return trial_id, number


def state_of(session: Session, trial_id: int) -> TrialState:
    """The state of a trial, which nobody else changes until the end of the transaction.

    Raises:
        KeyError: There is none of this id.
    """
    state = session.execute(_STATE, {"id": trial_id}).scalar_one_or_none()
    if state is None:
        raise KeyError(models.NOT_FOUND_MSG)
    return TrialState(state)


def change_state(
    session: Session, trial_id: int, before: TrialState, state: TrialState, values: Sequence[float] | None
) -> bool:
    """Change the state of a trial, and give it its values, which it does not have.

    SQLite holds nothing for who reads: somebody may have changed the state since. Then nothing is done.

    Returns:
        Whether it was as before.
    """
    changed: dict[str, Any] = {"state": state}
    if state is TrialState.RUNNING:
        changed["datetime_start"] = _utc(datetime.now())
    if state.is_finished():
        changed["datetime_complete"] = _utc(datetime.now())
    same = (_trials.c.trial_id == trial_id) & (_trials.c.state == before)
    done: Any = session.connection().execute(update(_trials).where(same).values(changed))
    if not done.rowcount:
        return False
    _insert_values(session, trial_id, values or ())
    return True


def _insert_values(session: Session, trial_id: int, values: Sequence[float]) -> None:
    rows = [(place, *_Value.value_to_stored_repr(value)) for place, value in enumerate(values)]
    _insert(session, trial_id, _values, ("objective", "value", "value_type"), rows)


def add_said(
    session: Session,
    trial_id: int,
    user: Mapping[str, Any],
    system: Mapping[str, Any],
    reports: Mapping[int, float],
) -> None:
    """Add what was said of a trial: attributes and reports that it does not have."""
    for table, attributes in ((_user, user), (_system, system)):
        said = [(key, json.dumps(value)) for key, value in attributes.items()]
        _insert(session, trial_id, table, ("key", "value_json"), said)
    names = "step", "intermediate_value", "intermediate_value_type"
    reported = [(step, *_Report.intermediate_value_to_stored_repr(value)) for step, value in reports.items()]
    _insert(session, trial_id, _reports, names, reported)


def _insert(
    session: Session, trial_id: int, table: Any, names: Sequence[str], rows: Sequence[tuple[Any, ...]]
) -> None:
    if rows:
        new = [{"trial_id": trial_id, **dict(zip(names, row, strict=True))} for row in rows]
        session.execute(insert(table), new)


def note_of_study(session: Session, study_id: int, key: str, value: Any) -> None:
    """Note something of a study, in place of what was noted by this name."""
    told = {"value_json": json.dumps(value)}
    there = (_notes.c.study_id == study_id) & (_notes.c.key == key)
    # Looked for first: MySQL locks the place of a row that an update does not find.
    if session.execute(select(_notes.c.study_id).where(there)).first() is None:
        session.execute(insert(_notes).values(study_id=study_id, key=key, **told))
    else:
        session.execute(update(_notes).where(there).values(told))


def silent(session: Session, study_id: int, seconds: float) -> list[int]:
    """The ids of trials that are trained and gave no sign of life for longer than so many seconds."""
    signs = session.execute(_SIGNS_OF_LIFE, {"study": study_id}).all()
    longest = timedelta(seconds=seconds)
    return [trial_id for trial_id, last, now in signs if now.replace(tzinfo=None) - last > longest]


def give_sign_of_life(session: Session, trial_id: int, now: Any) -> None:
    """Note that a trial is being trained.

    Args:
        session: Where to write.
        trial_id: The trial's id.
        now: The database's word for this moment.
    """
    mine: Any = session.connection().execute(
        update(_beats).where(_beats.c.trial_id == trial_id).values(heartbeat=now)
    )
    if not mine.rowcount:
        session.execute(insert(_beats).values(trial_id=trial_id, heartbeat=now))


def _whole(session: Session, heads: Sequence[Any]) -> list[FrozenTrial]:
    """The trials of which the rows of the first table are given."""
    if not heads:
        return []
    heads = sorted(heads, key=lambda head: int(head.trial_id))
    ids = [head.trial_id for head in heads]
    parameters, distributions, user, system, reports = (
        defaultdict[int, dict[Any, Any]](dict) for _ in range(5)
    )
    values = defaultdict[int, list[float]](list)
    for trial_id, name, number, text in _rows(session, _PARAMETERS, ids):
        distributions[trial_id][name] = distribution = _distribution(text)
        parameters[trial_id][name] = distribution.to_external_repr(number)
    for trial_id, value, kind in _rows(session, _VALUES, ids):
        values[trial_id].append(_Value.stored_repr_to_value(value, kind))
    for statement, said in ((_USER, user), (_SYSTEM, system)):
        for trial_id, key, text in _rows(session, statement, ids):
            said[trial_id][key] = json.loads(text)
    for trial_id, step, value, kind in _rows(session, _REPORTS, ids):
        reports[trial_id][step] = _Report.stored_repr_to_intermediate_value(value, kind)
    return [
        FrozenTrial(
            number=head.number,
            state=head.state,
            value=None,
            values=values.get(head.trial_id),
            datetime_start=_local(head.datetime_start),
            datetime_complete=_local(head.datetime_complete),
            params=parameters[head.trial_id],
            distributions=distributions[head.trial_id],
            user_attrs=user[head.trial_id],
            system_attrs=system[head.trial_id],
            intermediate_values=reports[head.trial_id],
            trial_id=head.trial_id,
        )
        for head in heads
    ]


def _rows(session: Session, statement: Any, ids: Sequence[int]) -> Iterator[Any]:
    for first in range(0, len(ids), TOGETHER):
        yield from session.execute(statement, {"ids": ids[first : first + TOGETHER]}).all()


@lru_cache(maxsize=10_000)
def _distribution(text: str) -> BaseDistribution:
    """A distribution, which nobody changes."""
    return json_to_distribution(text)


def _local(utc: datetime | None) -> datetime | None:
    """A time as Optuna's trials have it; the database has another."""
    return None if utc is None else utc.replace(tzinfo=UTC).astimezone().replace(tzinfo=None)


def _utc(local: datetime | None) -> datetime | None:
    return None if local is None else local.astimezone(UTC).replace(tzinfo=None)
