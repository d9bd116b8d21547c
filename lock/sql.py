"""Lock records in a SQL database: one table, one row for each lock, swapped by version.

Every access is one statement in its own transaction, so nothing is held between two calls: no
session lock that a pooling proxy could hand to another client, and nothing that dies with a
database connection. On PostgreSQL the server's clock comes with each read. SQLite has none of its
own; its waiters watch (`lock.waiting`).
"""

from __future__ import annotations

import os
import re
import socket
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import (
    BigInteger,
    Column,
    Compiled,
    Connection,
    CursorResult,
    Engine,
    MetaData,
    Select,
    String,
    Table,
    Text,
    bindparam,
    cast,
    create_engine,
    event,
    func,
    inspect,
    literal,
    null,
    select,
    true,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from lock.errors import InvalidLockError, LockUnavailableError
from lock.lock_names import KEY_LENGTH_MAX
from lock.register import Stored, SwapOutcome

TABLE_NAME = "icefold_lock"  # in the user's database: never change

_TABLE = Table(
    TABLE_NAME,
    MetaData(),
    Column("lock_key", String(max(KEY_LENGTH_MAX, 128)), primary_key=True),
    Column("version", BigInteger, nullable=False),
    Column("record", Text, nullable=False),
)
_INSERT = _TABLE.insert().values(lock_key=bindparam("key"), version=1, record=bindparam("record"))
_UPDATE = (
    _TABLE.update()
    .where(_TABLE.c.lock_key == bindparam("key"), _TABLE.c.version == bindparam("old"))
    .values(version=bindparam("new"), record=bindparam("record"))
)
_SQLITE_BUSY_S = 2.0
_ANSWER_TIMEOUT_S = 5.0
_CREATE_ATTEMPTS = 5
_POSTGRESQL_ARGS: dict[str, Any] = {
    # A server that is gone must be noticed within a few heartbeats, not after the kernel's hours.
    "connect_timeout": 5,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
    # Transaction pools (pgbouncer) do not keep prepared statements with their client.
    "prepare_threshold": None,
}


class SqlRecordStore:
    """`RecordStore` on SQLite (a file) or PostgreSQL.

    Args:
        url: SQLAlchemy URL. Its credentials appear in no error, log or `repr`.
        read_only: Only loads; a SQLite file, or a table, that is not there holds no record.

    Raises:
        InvalidLockError: Not a URL, another database, or SQLite without a file.
    """

    poll_min_ms = 5.0
    poll_max_ms = 500.0

    def __init__(self, url: str, *, read_only: bool = False) -> None:
        self._url = _parse(url)
        self._read_only = read_only
        self._is_postgresql = self._url.get_backend_name() == "postgresql"
        self._written = _written(is_postgresql=self._is_postgresql)
        self._mutex = threading.Lock()
        self._engines: dict[int, Engine] = {}  # by process: connections do not survive a fork

    def __repr__(self) -> str:
        return f"SqlRecordStore({self.describe()!r})"

    def load(self, key: str) -> Stored:
        """See `RecordStore`. One round trip, with the server's clock if it has one."""
        if self._read_only and not self._is_there():
            return Stored(None, None, None)
        try:
            with self._connection() as connection:
                row = tuple(_execute(connection, self._written.load, {"key": key}).one())
        except SQLAlchemyError as error:
            raise self._unavailable(error) from self._cause(error)
        now_ms, version, record = row
        data = None if record is None else str(record).encode()
        return Stored(data, None if version is None else str(version), now_ms)

    def swap(self, key: str, version: str | None, data: bytes) -> SwapOutcome:
        """See `RecordStore`."""
        values: dict[str, Any] = {"key": key, "record": data.decode()}
        try:
            with self._connection() as connection:
                if version is None:
                    _execute(connection, self._written.insert, values)
                    return SwapOutcome.DONE
                values |= {"old": int(version), "new": int(version) + 1}
                changed = _execute(connection, self._written.update, values).rowcount
                return SwapOutcome.DONE if changed == 1 else SwapOutcome.LOST
        except IntegrityError:  # the row was inserted by someone, perhaps by our unanswered write
            return SwapOutcome.LOST
        except SQLAlchemyError as error:
            raise self._unavailable(error) from self._cause(error)

    def describe(self, key: str | None = None) -> str:
        """See `RecordStore`: driver, host and database; no user, password or options."""
        url = self._url
        host = f"{url.host or ''}:{url.port}" if url.port else url.host or ""
        where = f"{url.get_backend_name()}://{host}/{url.database or ''}"
        return where if key is None else f"{where}#{TABLE_NAME}/{key}"

    def prepare(self) -> None:
        """See `RecordStore`: creates the table unless it is there.

        Effects: a SQLite file is put into write-ahead mode for good, so that waiters who read do
        not hold up the holder who renews (measured with 16 processes: waiting in SQLite falls to a
        seventh). Where the file system cannot do it, or someone has the file open, it stays as is.
        """
        if not self._is_postgresql:
            with suppress(SQLAlchemyError), self._engine().connect() as connection:
                connection.exec_driver_sql("PRAGMA journal_mode=WAL")
        for attempt in range(_CREATE_ATTEMPTS):
            try:
                _TABLE.metadata.create_all(self._engine())
                return
            except SQLAlchemyError as error:
                # Two processes may create it at once, and one of them is told so in many ways.
                with suppress(LockUnavailableError):
                    self.load("-")
                    return
                lost = isinstance(error, DBAPIError) and error.connection_invalidated
                if not lost or attempt == _CREATE_ATTEMPTS - 1:  # a lost connection is no answer
                    raise self._unavailable(error) from self._cause(error)

    def _is_there(self) -> bool:
        """Whether there is a table to look into; a connection would create a SQLite file."""
        if not self._is_postgresql and not Path(self._url.database or "").exists():
            return False
        try:
            return inspect(self._engine()).has_table(TABLE_NAME)
        except SQLAlchemyError as error:
            raise self._unavailable(error) from self._cause(error)

    def close(self) -> None:
        """See `RecordStore`."""
        with self._mutex:
            engine = self._engines.pop(os.getpid(), None)
        if engine is not None:
            engine.dispose()

    @contextmanager
    def _connection(self) -> Iterator[Connection]:
        with self._engine().connect() as connection:
            if not self._is_postgresql:
                yield connection
                return
            driver_connection = connection.connection.driver_connection
            watchdog = threading.Timer(_ANSWER_TIMEOUT_S, _cut_off, [driver_connection])
            watchdog.daemon = True
            watchdog.start()
            try:
                yield connection
            finally:
                watchdog.cancel()

    def _engine(self) -> Engine:
        with self._mutex:
            engine = self._engines.get(os.getpid())
            if engine is None:
                for inherited in self._engines.values():
                    inherited.dispose(close=False)  # the parent still uses those sockets
                engine = _create_engine(self._url, read_only=self._read_only)
                self._engines = {os.getpid(): engine}
                weakref.finalize(self, _dispose, engine, os.getpid())
            return engine

    def _unavailable(self, error: SQLAlchemyError) -> LockUnavailableError:
        original = getattr(error, "orig", None) or error
        what = type(original).__name__
        if self._cause(error) is not None:
            what += ": " + (str(original).strip().splitlines() or [""])[0][:300]
        if getattr(original, "sqlite_errorname", "").startswith("SQLITE_IOERR"):
            what += " (is it full?)"  # SQLite's words also where there is no space for its files
        return LockUnavailableError(
            f"lock store failed: {what}",
            store=self.describe(),
            action="check the database; a lease that was held runs out by itself",
        )

    def _cause(self, error: SQLAlchemyError) -> SQLAlchemyError | None:
        """The error, unless its text quotes a secret of ours: then no traceback may show it."""
        secrets = [str(self._url.password or ""), *_query_secrets(self._url)]
        text = str(error)
        return None if any(secret and secret in text for secret in secrets) else error


@dataclass(frozen=True, slots=True)
class _Written:
    """The statements in a database's own words."""

    load: Compiled
    insert: Compiled
    update: Compiled


@cache
def _written(*, is_postgresql: bool) -> _Written:
    """Once a process: it costs more than running them, and SQLAlchemy does it for each engine.

    A store is opened for each cycle.
    """
    url, style = ("postgresql+psycopg", "pyformat") if is_postgresql else ("sqlite", "named")
    dialect: Any = make_url(f"{url}://").get_dialect()
    load = _load_statement(with_clock=is_postgresql)
    return _Written(
        *(each.compile(dialect=dialect(paramstyle=style)) for each in (load, _INSERT, _UPDATE))
    )


def _execute(
    connection: Connection, statement: Compiled, values: dict[str, Any]
) -> CursorResult[Any]:
    return connection.exec_driver_sql(str(statement), {**statement.params, **values})


def _load_statement(*, with_clock: bool) -> Select[tuple[Any, ...]]:
    """One row, always: (server clock in ms or NULL, version or NULL, record or NULL)."""
    clock = cast(func.floor(func.date_part("epoch", func.clock_timestamp()) * 1000), BigInteger)
    one = select((clock if with_clock else null()).label("now_ms"), literal(1)).subquery()
    mine = select(_TABLE).where(_TABLE.c.lock_key == bindparam("key")).subquery()
    return select(one.c.now_ms, mine.c.version, mine.c.record).select_from(
        one.outerjoin(mine, true())
    )


def _parse(text: str) -> URL:
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):  # their text may quote the URL, password included
        raise InvalidLockError(
            "lock URL refused: not a database URL",
            action="use sqlite:///file.db or postgresql+psycopg://host/database",
        ) from None
    backend = url.drivername.partition("+")[0]
    if backend in {"postgresql", "postgres"}:  # a catalog's URL may name another driver
        backend, url = "postgresql", url.set(drivername="postgresql+psycopg")
    if backend not in {"sqlite", "postgresql"}:
        raise InvalidLockError(
            "lock URL refused: not a database that leases are tested on",
            database=re.sub(r"[^a-z0-9]", "", backend)[:20],
            action="use sqlite or postgresql",
        )
    if backend == "sqlite" and (url.database or "") in {"", ":memory:"}:
        raise InvalidLockError(
            "lock URL refused: SQLite in memory cannot be shared",
            action="name a file, or use memory: within one process",
        )
    return url


def _create_engine(url: URL, *, read_only: bool) -> Engine:
    if read_only and url.get_backend_name() == "sqlite":
        return create_engine("sqlite://", creator=lambda: _read_only(url), poolclass=NullPool)
    args: dict[str, Any] = {"timeout": _SQLITE_BUSY_S, "check_same_thread": False}
    if url.get_backend_name() == "postgresql":
        args = _POSTGRESQL_ARGS
    try:
        engine = create_engine(
            url,
            isolation_level="AUTOCOMMIT",
            connect_args=args,
            pool_size=2,
            max_overflow=8,
            pool_timeout=5,
            hide_parameters=True,
        )
    except ModuleNotFoundError as error:
        raise InvalidLockError(
            f"lock URL refused: driver {error.name} is not installed",
            action="pip install 'icefold[postgres]'",
        ) from error
    if url.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _durable)
    return engine


def _read_only(url: URL) -> sqlite3.Connection:
    """A connection that writes nothing, not even SQLite's log beside the file.

    Without a log nobody has the file open, so it may be taken for immutable; SQLite would otherwise
    need to write beside a file in write-ahead mode in order to read it.
    """
    path = Path(url.database or "").absolute()
    has_log = path.with_name(f"{path.name}-wal").exists()
    mode = "mode=ro" if has_log else "mode=ro&immutable=1"
    return sqlite3.connect(f"file:{quote(str(path))}?{mode}", uri=True, timeout=_SQLITE_BUSY_S)


def _dispose(engine: Engine, pid: int) -> None:
    """Close the connections of a store nobody has any more; a forked child must not."""
    if os.getpid() == pid:
        engine.dispose()


def _cut_off(connection: Any) -> None:
    """End the wait for a server that is connected and does not answer: libpq has no such limit.

    The statement fails as if the network had; it may have taken effect, as after any lost reply.
    """
    # Any error means that the connection ended by itself meanwhile; the driver's class is optional.
    with suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as wire:
        wire.shutdown(socket.SHUT_RDWR)


def _durable(connection: Any, _record: object) -> None:
    """A token that was handed out must survive a power cut, or it would be handed out again.

    To somebody who could meet its holder: in write-ahead mode all that have the file open are
    processes of one kernel, and a power cut ends them as well. A cycle writes three times for each
    table.
    """
    cursor = connection.cursor()
    mode = cursor.execute("PRAGMA journal_mode").fetchone()[0]
    cursor.execute(f"PRAGMA synchronous={'NORMAL' if mode == 'wal' else 'FULL'}")
    cursor.close()


def _query_secrets(url: URL) -> list[str]:
    values = (url.query.get(name) for name in url.query if "pass" in name.lower())
    return [
        part for value in values for part in ([value] if isinstance(value, str) else value or ())
    ]
