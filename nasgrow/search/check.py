"""Testing a database before a study relies on it: what a search will ask of it, on a table of its own."""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import sqlalchemy
from optuna import version as optuna_version
from optuna.storages._rdb import models
from sqlalchemy import Column, Engine, Integer, MetaData, Table
from sqlalchemy.exc import NoSuchModuleError, SQLAlchemyError

from nasgrow.search.database import said
from nasgrow.search.storage import checked_url, engine_options, no_driver
from nasgrow.strict import redact

WRITERS, WRITES = 4, 10
"""Connections that write at once, and how often each does."""

ROUNDS = 20
"""Questions whose median time is the latency."""


def check_storage(url: str) -> Iterator[str]:
    """Test a database, a line for each thing that works; nothing is left there.

    Raises:
        ValueError: Something does not.
    """
    driven, doing = checked_url(url), "be used"
    try:
        engine = sqlalchemy.create_engine(driven, **engine_options(driven) | _pool(url))
        try:
            doing = "be reached"
            yield _reach(engine)
            doing = "be read"
            yield _tables(engine)
            table = Table(
                f"nasgrow_check_{secrets.token_hex(4)}",
                MetaData(),
                Column("id", Integer, primary_key=True, autoincrement=False),
                Column("count", Integer, nullable=False),
            )
            doing = "hold a new table"
            table.create(engine)
            try:
                yield "tables can be made"
                doing = "be written and read"
                yield _write(engine, table)
                doing = "be written by several at once"
                yield _crowd(engine, table)
                doing = "pass over what another has locked"
                yield from _skip(engine, table)
            finally:
                table.drop(engine)
        finally:
            engine.dispose()
    except (ImportError, NoSuchModuleError):
        raise no_driver(url) from None
    except SQLAlchemyError as error:
        raise ValueError(f"storage: {redact(url)} cannot {doing}: {said(error)}") from None


def _pool(url: str) -> dict[str, int]:
    return {"pool_size": WRITERS, "max_overflow": 0} if not url.startswith("sqlite") else {}


def _reach(engine: Engine) -> str:
    began = time.perf_counter()
    with engine.connect() as connection:
        first = time.perf_counter() - began
        seconds = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            connection.execute(sqlalchemy.text("SELECT 1")).all()
            seconds.append(time.perf_counter() - began)
        version = ".".join(map(str, engine.dialect.server_version_info or ()))
    return (
        f"reached {redact(str(engine.url))}: {engine.dialect.name} {version}, connecting took "
        f"{first * 1e3:.0f} ms, a question {statistics.median(seconds) * 1e3:.2f} ms"
    )


def _tables(engine: Engine) -> str:
    there = {*sqlalchemy.inspect(engine).get_table_names()} & {*models.BaseModel.metadata.tables}
    if not there:
        return "no study is there yet: the first search makes the tables"
    with engine.connect() as connection:
        count = connection.execute(
            sqlalchemy.select(sqlalchemy.func.count(models.StudyModel.study_id))
        ).scalar()
        by = connection.execute(sqlalchemy.select(models.VersionInfoModel.library_version)).scalar()
    return f"{count} Optuna studies are there, begun with Optuna {by}; this is {optuna_version.__version__}"


def _write(engine: Engine, table: Table) -> str:
    with engine.begin() as connection:
        connection.execute(table.insert().values(id=1, count=0))
    with engine.connect() as connection:
        if connection.execute(sqlalchemy.select(table.c.count)).scalar() != 0:
            raise ValueError(f"storage: {redact(str(engine.url))} does not give back what was written")
        connection.execute(table.update().values(count=7))
        connection.rollback()
        if connection.execute(sqlalchemy.select(table.c.count)).scalar() != 0:
            raise ValueError(
                f"storage: {redact(str(engine.url))} keeps what was taken back: it has no transactions"
            )
    return "what is written can be read, and taken back"


def _crowd(engine: Engine, table: Table) -> str:
    """Count up from several connections, each reading under a lock what it writes one more than."""
    row = sqlalchemy.select(table.c.count).where(table.c.id == 1).with_for_update()

    def count_up(_: int) -> None:
        for _ in range(WRITES):
            with engine.begin() as connection:
                if engine.dialect.name == "sqlite":  # one file: a writer has it all
                    connection.execute(table.update().values(count=table.c.count + 1))
                else:
                    now = connection.execute(row).scalar_one()
                    connection.execute(table.update().values(count=now + 1))

    began = time.perf_counter()
    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(count_up, range(WRITERS)))
    took = (time.perf_counter() - began) / (WRITERS * WRITES)
    with engine.connect() as connection:
        counted = connection.execute(sqlalchemy.select(table.c.count)).scalar()
    if counted != WRITERS * WRITES:
        raise ValueError(
            f"storage: {redact(str(engine.url))} counted {counted} where {WRITERS} connections wrote "
            f"{WRITERS * WRITES} times at once: its locks do not hold"
        )
    return f"{WRITERS} connections at once lose no write: {took * 1e3:.1f} ms for each"


def _skip(engine: Engine, table: Table) -> Iterator[str]:
    """See that whoever asks for a row that another one holds is told so at once: old MySQLs cannot."""
    if engine.dialect.name == "sqlite":
        return
    row = sqlalchemy.select(table.c.id)
    with engine.connect() as holder, engine.connect() as other:
        holder.execute(row.with_for_update()).all()
        if other.execute(row.with_for_update(skip_locked=True)).all():
            raise ValueError(f"storage: {redact(str(engine.url))} gives a row to two: its locks do not hold")
    yield "what another has locked is passed over"
