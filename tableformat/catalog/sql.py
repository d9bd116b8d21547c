"""The SQL catalog: SQLite and PostgreSQL, in PyIceberg's own tables.

PyIceberg's `SqlCatalog` opened with the same name and uri sees the same tables, and the other way
round; both swap by `UPDATE ... WHERE metadata_location = <base>`, so they may commit side by side.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import (
    IcebergNamespaceProperties,
    IcebergTables,
)
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Select,
    Table,
    Update,
    bindparam,
    create_engine,
    delete,
    event,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.pool import NullPool
from sqlalchemy.schema import CreateTable

from tableformat.catalog.base import Identifier
from tableformat.catalog.pointer import PointerCatalog
from tableformat.catalog.pointers import PointerSwap, table_exists
from tableformat.catalog.sqlite_files import connect_read_only, is_file, is_missing, is_read_only
from tableformat.errors import (
    CommitUnknownError,
    InvalidInputError,
    StoreUnavailableError,
    UnsupportedError,
)

BUSY_TIMEOUT_MS = 60_000  # a writer holds SQLite's lock for one fsync; hundreds may queue
_SETTLE_TIMEOUT_MS = 30_000
_DAMAGED = "the file is damaged: restore it from a backup; the tables' own files were not touched"
_SQLITE_WAYS_OUT = {  # by what names of its errors begin with
    "SQLITE_BUSY": "another process holds it: wait for that to end, and run this again",
    "SQLITE_CORRUPT": _DAMAGED,
    "SQLITE_NOTADB": _DAMAGED,
}
_TABLE_TYPE = "TABLE"
_TABLES: Table = IcebergTables.__table__  # type: ignore[assignment]
_NAMESPACES: Table = IcebergNamespaceProperties.__table__  # type: ignore[assignment]


def _are_tables(with_types: bool) -> list[ColumnElement[bool]]:
    """Other rows are views of other writers."""
    kind = _TABLES.c.iceberg_type
    return [(kind == _TABLE_TYPE) | kind.is_(None)] if with_types else []


def _row(with_types: bool) -> list[ColumnElement[bool]]:
    """One table's row."""
    return [
        _TABLES.c.catalog_name == bindparam("catalog"),
        *_are_tables(with_types),
        _TABLES.c.table_namespace == bindparam("namespace"),
        _TABLES.c.table_name == bindparam("name"),
    ]


# Built once: putting a statement together costs as much as running it.
@cache
def _read_one(with_types: bool) -> Select[str]:
    return select(_TABLES.c.metadata_location).where(*_row(with_types))


@cache
def _swap_one(with_types: bool) -> Update:
    return (
        update(_TABLES)
        .where(*_row(with_types), _TABLES.c.metadata_location == bindparam("expected"))
        .values(
            metadata_location=bindparam("new"),
            previous_metadata_location=bindparam("expected"),
        )
    )


class SqlPointers:
    """`MetadataPointers` in `iceberg_tables` and `iceberg_namespace_properties`.

    Args:
        uri: SQLAlchemy URL. May hold a password: never shown.
        catalog_name: Part of every key; catalogs of several names share one database.

    Raises:
        InvalidInputError: The uri is not a SQLAlchemy URL.
        UnsupportedError: Another database than SQLite and PostgreSQL.
    """

    def __init__(self, uri: str, catalog_name: str) -> None:
        self._url = _parse_url(uri)
        self._catalog_name = catalog_name
        self._engine: Engine | None = None
        self._engine_pid = 0
        self._is_there = False
        self._is_prepared = False
        self._typed: bool | None = None
        self._lock = threading.Lock()

    def read(self, identifier: Identifier) -> str | None:
        """See `MetadataPointers.read`."""
        if not self._has_tables():
            return None
        statement, key = _read_one(self._has_types()), self._key(identifier)
        with self._begin() as connection:
            found = connection.execute(statement, key).scalar_one_or_none()
        return None if found is None else str(found)

    def insert(self, identifier: Identifier, metadata_location: str) -> bool:
        """See `MetadataPointers.insert`."""
        row: dict[str, Any] = {
            "catalog_name": self._catalog_name,
            "table_namespace": ".".join(identifier[:-1]),
            "table_name": identifier[-1],
            "metadata_location": metadata_location,
            "previous_metadata_location": None,
        }
        self._prepare()
        try:
            with self._begin() as connection:
                if self._has_types():
                    row["iceberg_type"] = _TABLE_TYPE
                connection.execute(insert(_TABLES).values(row))
        except IntegrityError:
            return False
        return True

    def swap(self, identifier: Identifier, *, expected: str, new: str) -> bool:
        """See `MetadataPointers.swap`."""
        return self.swap_all([PointerSwap(identifier=identifier, expected=expected, new=new)])

    def swap_all(self, swaps: Sequence[PointerSwap]) -> bool:
        """See `MetadataPointers.swap_all`: one transaction, which takes its row locks in order."""
        self._prepare()
        commit_sent = False
        try:
            with self._connect().connect() as connection:
                # `all` stops at the first that lost; leaving without a commit rolls back.
                swapped = all(self._swap_row(connection, swap) for swap in swaps)
                if swapped:
                    commit_sent = True
                    connection.commit()
        except SQLAlchemyError as error:
            if not commit_sent:  # without its COMMIT no statement ever takes effect
                raise _translate(error, self._url) from None
            return self._settle(swaps[0], error)
        return swapped

    def _swap_row(self, connection: Connection, swap: PointerSwap) -> bool:
        values = self._key(swap.identifier) | {"expected": swap.expected, "new": swap.new}
        return connection.execute(_swap_one(self._has_types()), values).rowcount == 1

    def _settle(self, swap: PointerSwap, error: SQLAlchemyError) -> bool:
        """What became of a transaction whose COMMIT failed or got no answer, by one of its rows.

        Its row lock is held until the database has decided, so the row is read under a lock of
        one's own: PostgreSQL waits for the other transaction to end. SQLite's transaction died with
        its connection.
        """
        identifier = swap.identifier
        statement = _read_one(self._has_types())
        if self._url.get_backend_name() != "sqlite":
            statement = statement.with_for_update()
        with self._connect().begin() as connection:
            if self._url.get_backend_name() != "sqlite":
                connection.execute(text(f"SET LOCAL lock_timeout = {_SETTLE_TIMEOUT_MS}"))
            found = connection.execute(statement, self._key(identifier))
            current = found.scalar_one_or_none()
        if current == swap.expected:
            raise StoreUnavailableError(
                f"catalog database did not commit: {_reason(error, self._url)}",
                table=identifier[-1],
            )
        if current != swap.new:
            # It may have landed and been replaced; the metadata log knows.
            raise CommitUnknownError("another commit followed", table=identifier[-1])
        return True

    def remove(self, identifier: Identifier) -> bool:
        """See `MetadataPointers.remove`."""
        self._prepare()
        with self._begin() as connection:
            statement = delete(_TABLES).where(*_row(self._has_types()))
            return connection.execute(statement, self._key(identifier)).rowcount == 1

    def rename(self, identifier: Identifier, new: Identifier) -> bool:
        """See `MetadataPointers.rename`."""
        self._prepare()
        named = {"table_namespace": ".".join(new[:-1]), "table_name": new[-1]}
        statement = update(_TABLES).where(*_row(self._has_types())).values(**named)
        try:
            with self._begin() as connection:
                return connection.execute(statement, self._key(identifier)).rowcount == 1
        except IntegrityError:
            raise table_exists(new) from None

    def tables(self) -> list[Identifier]:
        """See `MetadataPointers.tables`."""
        if not self._has_tables():
            return []
        statement = select(_TABLES.c.table_namespace, _TABLES.c.table_name).where(*self._tables())
        with self._begin() as connection:
            rows = connection.execute(statement).all()
        return [(*str(namespace).split("."), str(name)) for namespace, name in rows]

    def locations(self) -> dict[Identifier, str]:
        """See `MetadataPointers.locations`."""
        if not self._has_tables():
            return {}
        columns = (_TABLES.c.table_namespace, _TABLES.c.table_name, _TABLES.c.metadata_location)
        with self._begin() as connection:
            rows = connection.execute(select(*columns).where(*self._tables())).all()
        return {(*str(space).split("."), str(name)): str(at) for space, name, at in rows}

    def add_namespace(self, namespace: Identifier) -> None:
        """See `MetadataPointers.add_namespace`."""
        row = {
            "catalog_name": self._catalog_name,
            "namespace": ".".join(namespace),
            "property_key": "exists",
            "property_value": "true",
        }
        self._prepare()
        try:
            with self._begin() as connection:
                connection.execute(insert(_NAMESPACES).values(row))
        except IntegrityError:
            return

    def remove_namespace(self, namespace: Identifier) -> None:
        """See `MetadataPointers.remove_namespace`."""
        columns = _NAMESPACES.c
        statement = delete(_NAMESPACES).where(
            columns.catalog_name == self._catalog_name, columns.namespace == ".".join(namespace)
        )
        self._prepare()
        with self._begin() as connection:
            connection.execute(statement)

    def namespaces(self) -> list[Identifier]:
        """See `MetadataPointers.namespaces`."""
        if not self._has_tables():
            return []
        own = select(_NAMESPACES.c.namespace).where(
            _NAMESPACES.c.catalog_name == self._catalog_name
        )
        used = select(_TABLES.c.table_namespace).where(*self._tables())
        with self._begin() as connection:
            rows = connection.execute(own.union(used)).scalars().all()
        return [tuple(str(one).split(".")) for one in rows]

    def _tables(self) -> list[ColumnElement[bool]]:
        return [_TABLES.c.catalog_name == self._catalog_name, *_are_tables(self._has_types())]

    def _key(self, identifier: Identifier) -> dict[str, str]:
        """What `_row` compares with."""
        return {
            "catalog": self._catalog_name,
            "namespace": ".".join(identifier[:-1]),
            "name": identifier[-1],
        }

    @contextmanager
    def _begin(self) -> Iterator[Connection]:
        """One transaction; driver errors become ours, without the statement's parameters."""
        try:
            with self._connect().begin() as connection:
                yield connection
        except IntegrityError:
            raise
        except SQLAlchemyError as error:
            raise _translate(error, self._url) from None

    def _has_tables(self) -> bool:
        """Whether there is anything to read; a reader creates no database and no table in it."""
        if self._is_there:
            return True
        if is_missing(self._url):
            return False
        try:
            present = set(inspect(self._connect()).get_table_names())
        except SQLAlchemyError as error:
            raise _translate(error, self._url) from None
        self._is_there = {_TABLES.name, _NAMESPACES.name} <= present
        return self._is_there

    def _has_types(self) -> bool:
        """Whether rows say what they are (not in old PyIceberg catalogs)."""
        if self._typed is None:
            try:
                columns = inspect(self._connect()).get_columns(_TABLES.name)
            except SQLAlchemyError as error:
                raise _translate(error, self._url) from None
            self._typed = any(column["name"] == "iceberg_type" for column in columns)
        return self._typed

    def _prepare(self) -> None:
        """Before a write: the folder and the tables are made if they are missing.

        Raises:
            StoreUnavailableError: A SQLite database that this process may only read.
        """
        if self._is_prepared:
            return
        if is_read_only(self._url):
            raise StoreUnavailableError(
                "the catalog database is read-only here", database=self._url.database
            )
        _make_folder(self._url)
        _create_tables(self._connect())
        self._is_prepared = self._is_there = True

    def _connect(self) -> Engine:
        with self._lock:
            if self._engine is None or self._engine_pid != os.getpid():
                # A forked child must not talk over its parent's connections.
                self._engine = _open_engine(self._url)
                self._engine_pid = os.getpid()
                weakref.finalize(self, _close, self._engine, self._engine_pid)
            return self._engine


class SqlCatalog(PointerCatalog):
    """`Catalog` in a SQL database: its `pointers` are `SqlPointers`."""


def _parse_url(uri: str) -> URL:
    try:
        url = make_url(uri)
    except ArgumentError:
        raise InvalidInputError("catalog uri is not a database URL", key="uri") from None
    backend = url.get_backend_name()
    if backend == "postgresql" and url.drivername == "postgresql":
        url = url.set(drivername="postgresql+psycopg")
    if backend not in ("sqlite", "postgresql"):
        raise UnsupportedError(
            "no such catalog database", action="use sqlite or postgresql", backend=backend
        )
    return url


def _open_engine(url: URL) -> Engine:
    try:
        if url.get_backend_name() == "postgresql":
            return create_engine(url, pool_pre_ping=True, hide_parameters=True)
        arguments = {"timeout": BUSY_TIMEOUT_MS / 1000}
        if is_read_only(url):
            # A new connection each time: whether there is a log to read beside it may change.
            return create_engine(
                "sqlite://", creator=lambda: connect_read_only(url, **arguments), poolclass=NullPool
            )
        engine = create_engine(url, connect_args=arguments, hide_parameters=True)
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"database driver is not installed: {error.name}",
            action="pip install 'icefold[postgres]'",
        ) from error
    event.listen(engine, "connect", _set_up_sqlite)
    return engine


def _make_folder(url: URL) -> None:
    if url.get_backend_name() != "sqlite" or not is_file(url):
        return
    try:
        Path(str(url.database)).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailableError(
            f"catalog database cannot be created: {error.strerror}", location=url.database
        ) from error


def _close(engine: Engine, pid: int) -> None:
    if pid == os.getpid():  # a forked child must not hang up for its parent
        engine.dispose()


def _set_up_sqlite(connection: Any, _record: Any) -> None:
    """Waiting instead of failing, and durable commits (FULL)."""
    cursor = connection.cursor()
    try:
        cursor.execute(f"PRAGMA busy_timeout = {BUSY_TIMEOUT_MS}")
        cursor.execute("PRAGMA synchronous = FULL")
    finally:
        cursor.close()


def _create_tables(engine: Engine) -> None:
    """Create missing tables; SQLite gets a log beside it, for readers beside a writer (WAL)."""
    try:
        if engine.dialect.name == "sqlite":
            _keep_log_beside(engine)
        present = set(inspect(engine).get_table_names())
        for table in (_TABLES, _NAMESPACES):
            if table.name not in present:
                _create_table(engine, table)
    except SQLAlchemyError as error:
        raise _translate(error, engine.url) from None


def _keep_log_beside(engine: Engine) -> None:
    """Where another process has just opened the file SQLite does not wait: that one does it."""
    with engine.connect() as connection:
        mode = connection.exec_driver_sql("PRAGMA journal_mode").scalar_one()
        if mode in ("wal", "memory"):
            return
        try:
            connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        except DBAPIError as error:
            if not getattr(error.orig, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
                raise


def _create_table(engine: Engine, table: Table) -> None:
    try:
        with engine.begin() as connection:
            connection.execute(CreateTable(table, if_not_exists=True))
    except DBAPIError:
        # PostgreSQL checks and creates in two steps: another process may be between them.
        if not inspect(engine).has_table(table.name):
            raise


def _translate(error: SQLAlchemyError, url: URL) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"catalog database did not answer: {_reason(error, url)}",
        database=url.render_as_string(hide_password=True).split("?")[0],
        action=_way_out(error),
    )


def _way_out(error: SQLAlchemyError) -> str | None:
    """What to do where SQLite says more than that it failed."""
    name = getattr(getattr(error, "orig", None), "sqlite_errorname", "")
    return next((way for prefix, way in _SQLITE_WAYS_OUT.items() if name.startswith(prefix)), None)


def _reason(error: SQLAlchemyError, url: URL) -> str:
    """The error's class: the original text may quote connection parameters; SQLite's has none."""
    origin = getattr(error, "orig", None)
    reason = type(origin or error).__name__
    if origin is None or url.get_backend_name() != "sqlite":
        return reason
    # What SQLite also says where there is no space for its files beside the database.
    is_disk = getattr(origin, "sqlite_errorname", "").startswith("SQLITE_IOERR")
    return f"{reason}: {origin}" + (" (is it full?)" if is_disk else "")
