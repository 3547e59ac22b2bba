"""Trials as they are in the tables of Optuna's database, read without an object for each row.

Optuna makes an object of every row, and parses the distribution of every parameter of every trial twice. Of
64 trials that others train, each with 20 parameters, that takes a tenth of a second, whenever somebody asks.
Here rows stay tuples, and a distribution is parsed once for all the trials that have it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Container, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from optuna.distributions import BaseDistribution, json_to_distribution
from optuna.storages._rdb import models
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import Table, bindparam, func, select
from sqlalchemy.orm import Session

TOGETHER = 500
"""Trials whose rows one statement asks for: databases bound how many ids it may name."""


def _columns(model: Any) -> Any:
    table: Table = model.__table__
    return table.c


_trials, _beats = _columns(models.TrialModel), _columns(models.TrialHeartbeatModel)
_parameters, _values = _columns(models.TrialParamModel), _columns(models.TrialValueModel)
_user, _system = _columns(models.TrialUserAttributeModel), _columns(models.TrialSystemAttributeModel)
_reports = _columns(models.TrialIntermediateValueModel)
_value, _report = models.TrialValueModel, models.TrialIntermediateValueModel

_heads = select(
    _trials.trial_id, _trials.number, _trials.state, _trials.datetime_start, _trials.datetime_complete
)
_ALL = _heads.where(_trials.study_id == bindparam("study"))
_CHANGED = _ALL.where(
    (_trials.trial_id > bindparam("beyond")) | _trials.trial_id.in_(bindparam("ids", expanding=True))
)
_ONE = _heads.where(_trials.trial_id == bindparam("id"))
_SIGNS_OF_LIFE = (
    select(_trials.trial_id, _beats.heartbeat, func.now())
    .join_from(_trials.trial_id.table, _beats.trial_id.table)
    .where(_trials.study_id == bindparam("study"), _trials.state == TrialState.RUNNING)
)


def _of(columns: Any, *wanted: Any) -> Any:
    """A statement for what a table says of some trials: the trial's id and the wanted columns."""
    return select(columns.trial_id, *wanted).where(columns.trial_id.in_(bindparam("ids", expanding=True)))


_PARAMETERS = _of(
    _parameters, _parameters.param_name, _parameters.param_value, _parameters.distribution_json
).order_by(_parameters.param_id)
_VALUES = _of(_values, _values.value, _values.value_type).order_by(_values.objective)
_USER, _SYSTEM = _of(_user, _user.key, _user.value_json), _of(_system, _system.key, _system.value_json)
_REPORTS = _of(_reports, _reports.step, _reports.intermediate_value, _reports.intermediate_value_type)


def read_trials(
    session: Session,
    study_id: int,
    states: Container[TrialState] | None = None,
    unfinished: Collection[int] = (),
    beyond: int = -1,
) -> list[FrozenTrial]:
    """The trials of a study by their ids.

    Args:
        session: Where to read.
        study_id: The study's id.
        states: Those of the trials; any by default.
        unfinished: The ids of trials that may have changed, and
        beyond: the id after which trials are new; all by default.
    """
    if beyond < 0:
        rows = session.execute(_ALL, {"study": study_id}).all()
        if not rows:
            models.StudyModel.find_or_raise_by_id(study_id, session)
    else:
        old = [trial_id for trial_id in unfinished if trial_id <= beyond]
        rows = session.execute(_CHANGED, {"study": study_id, "beyond": beyond, "ids": old}).all()
    return _whole(session, [row for row in rows if states is None or row.state in states])


def read_trial(session: Session, trial_id: int) -> FrozenTrial:
    """A trial.

    Raises:
        KeyError: There is none of this id.
    """
    found = _whole(session, session.execute(_ONE, {"id": trial_id}).all())
    if not found:
        raise KeyError(models.NOT_FOUND_MSG)
    return found[0]


def silent(session: Session, study_id: int, seconds: float) -> list[int]:
    """The ids of trials that are trained and gave no sign of life for longer than so many seconds."""
    signs = session.execute(_SIGNS_OF_LIFE, {"study": study_id}).all()
    longest = timedelta(seconds=seconds)
    return [trial_id for trial_id, last, now in signs if now.replace(tzinfo=None) - last > longest]


def _whole(session: Session, heads: Sequence[Any]) -> list[FrozenTrial]:
    """The trials of which the rows of the first table are given."""
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
        values[trial_id].append(_value.stored_repr_to_value(value, kind))
    for statement, said in ((_USER, user), (_SYSTEM, system)):
        for trial_id, key, text in _rows(session, statement, ids):
            said[trial_id][key] = json.loads(text)
    for trial_id, step, value, kind in _rows(session, _REPORTS, ids):
        reports[trial_id][step] = _report.stored_repr_to_intermediate_value(value, kind)
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
        yield from session.execute(statement, {"ids": ids[first : first + TOGETHER]})


@lru_cache(maxsize=10_000)
def _distribution(text: str) -> BaseDistribution:
    """A distribution, which nobody changes."""
    return json_to_distribution(text)


def _local(utc: datetime | None) -> datetime | None:
    """A time as Optuna's trials have it; the database has another."""
    return None if utc is None else utc.replace(tzinfo=UTC).astimezone().replace(tzinfo=None)
