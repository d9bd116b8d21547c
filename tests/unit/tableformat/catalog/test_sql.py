from __future__ import annotations

import multiprocessing
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog as PyIcebergSqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table as PyIcebergTable
from pyiceberg.table.update import AddPartitionSpecUpdate, SetPropertiesUpdate
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType
from sqlalchemy import create_engine, event, make_url, text
from sqlalchemy.exc import OperationalError

import tableformat as tf
from tableformat.backend import open_backend
from tableformat.catalog import sql
from tableformat.catalog.keyed import real_catalog
from tableformat.catalog.sql import SqlCatalog, SqlPointers, _translate
from tableformat.environment import Environment
from tableformat.errors import (
    CommitConflictError,
    CommitUnknownError,
    InvalidInputError,
    NotFoundError,
    StoreUnavailableError,
    UnsupportedError,
)
from tests.support.postgres import PASSWORD, postgres_server
from tests.support.table_metadata import append_updates, create

TABLE = ("shop", "orders")


def local(folder: Path) -> Environment:
    return open_backend("local", {"warehouse": str(folder)})


def theirs(folder: Path) -> PyIcebergSqlCatalog:
    catalog = load_catalog(
        "local", type="sql", uri=f"sqlite:///{folder}/icefold.db", warehouse=f"file://{folder}"
    )
    assert isinstance(catalog, PyIcebergSqlCatalog)
    return catalog


# -- beside PyIceberg


def test_pyiceberg_sees_our_tables_and_reads_them(tmp_path: Path) -> None:
    environment = local(tmp_path)
    base = create(environment.catalog, TABLE)
    environment.catalog.commit(base, append_updates(base.metadata))
    catalog = theirs(tmp_path)
    try:
        assert catalog.list_tables("shop") == [TABLE]
        assert catalog.namespace_exists("shop")
        table = catalog.load_table(TABLE)
        assert table.metadata.format_version == 3
        assert table.metadata.snapshots[0].added_rows == 10
    finally:
        catalog.close()


def test_tables_of_pyiceberg_are_ours_too(tmp_path: Path) -> None:
    catalog = theirs(tmp_path)
    try:
        catalog.create_namespace("shop")
        made = catalog.create_table(TABLE, pa.schema([("a", pa.int64())]))
        made.append(pa.table({"a": [1, 2, 3]}))
    finally:
        catalog.close()
    environment = local(tmp_path)
    assert environment.catalog.list_namespaces() == [("shop",)]
    state = environment.catalog.load_table(TABLE)
    assert state.metadata.format_version == 2
    assert state.metadata.snapshots[0].summary["added-records"] == "3"
    environment.catalog.commit(state, [SetPropertiesUpdate(updates={"a": "b"})])
    assert made.refresh().properties["a"] == "b"


def test_commit_of_pyiceberg_in_between_is_a_conflict(tmp_path: Path) -> None:
    catalog = theirs(tmp_path)
    try:
        catalog.create_namespace("shop")
        made = catalog.create_table(TABLE, pa.schema([("a", pa.int64())]))
        ours = local(tmp_path).catalog
        base = ours.load_table(TABLE)
        made.append(pa.table({"a": [1]}))
        with pytest.raises(CommitConflictError):
            ours.commit(base, [SetPropertiesUpdate(updates={"a": "b"})])
    finally:
        catalog.close()


def partitioned(catalog: PyIcebergSqlCatalog, folder: Path) -> tuple[PyIcebergTable, tf.Table]:
    """A table of PyIceberg's, as both have it."""
    key = NestedField(1, "id", LongType(), required=True)
    schema = Schema(key, NestedField(2, "region", StringType()), identifier_field_ids=[1])
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"))
    catalog.create_namespace("shop")
    table = catalog.create_table(TABLE, schema, partition_spec=spec)
    return table, tf.open_catalog("local", warehouse=str(folder)).load_table("shop.orders")


def test_first_stage_in_the_middle_of_a_spec_of_pyiceberg_writes_no_id_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = theirs(tmp_path)
    table, ours = partitioned(catalog, tmp_path)
    commit = catalog.commit_table

    def commit_later(*arguments: Any) -> Any:
        ours.stage(deletes=pa.table({"id": [1]}))
        return commit(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(catalog, "commit_table", commit_later)
        with pytest.raises(ValueError, match="no partition spec"), table.update_spec() as update:
            update.remove_field("region")
    with table.refresh().update_spec() as update:
        update.remove_field("region")
    catalog.close()
    metadata = ours.refresh().state.metadata
    assert [spec.spec_id for spec in metadata.partition_specs] == [0, metadata.default_spec_id]


def test_table_with_one_spec_twice_is_mended_by_the_next_commit(tmp_path: Path) -> None:
    catalog = theirs(tmp_path)
    table, ours = partitioned(catalog, tmp_path)
    catalog.commit_table(table, (), (AddPartitionSpecUpdate(spec=table.spec()),))
    assert len(table.refresh().metadata.partition_specs) == 2
    ours.refresh().set_properties({"a": "b"})
    assert len(table.refresh().metadata.partition_specs) == 1
    catalog.close()


def test_catalogs_of_two_names_share_a_database_and_nothing_else(tmp_path: Path) -> None:
    given = {"uri": f"sqlite:///{tmp_path}/c.db", "warehouse": str(tmp_path)}
    one, two = (open_backend(name, given).catalog for name in ("one", "two"))
    create(one, TABLE)
    assert two.list_tables() == two.list_namespaces() == []


def test_catalog_without_type_column_works(tmp_path: Path) -> None:
    create(local(tmp_path).catalog, ("old", "t"))
    with sqlite3.connect(tmp_path / "icefold.db") as database:
        database.execute("ALTER TABLE iceberg_tables DROP COLUMN iceberg_type")
    database.close()
    catalog = local(tmp_path).catalog
    base = create(catalog, TABLE)
    catalog.commit(base, append_updates(base.metadata))
    assert catalog.list_tables() == [("old", "t"), TABLE]


def test_views_of_others_are_no_tables(tmp_path: Path) -> None:
    catalog = local(tmp_path).catalog
    create(catalog, TABLE)
    with sqlite3.connect(tmp_path / "icefold.db") as database:
        database.execute("UPDATE iceberg_tables SET iceberg_type = 'VIEW'")
    database.close()
    assert catalog.list_tables() == []
    with pytest.raises(NotFoundError):
        catalog.load_table(TABLE)


# -- many at once


def _write(folder: str, count: int, queue: multiprocessing.Queue[object]) -> None:
    try:
        catalog = local(Path(folder)).catalog
        done: list[int] = []
        while len(done) < count:
            base = catalog.load_table(TABLE)
            updates = append_updates(base.metadata, snapshot_id=os.getpid() * 1000 + len(done))
            try:
                catalog.commit(base, updates)
            except CommitConflictError:
                continue
            done.append(updates[0].snapshot.snapshot_id)
        queue.put(done)
    except BaseException as error:
        queue.put(repr(error))
        raise


@pytest.mark.slow
def test_processes_on_one_sqlite_file_lose_nothing_and_never_meet_a_lock(tmp_path: Path) -> None:
    create(local(tmp_path).catalog, TABLE)
    context = multiprocessing.get_context("spawn")
    queue: multiprocessing.Queue[object] = context.Queue()
    workers = [context.Process(target=_write, args=(str(tmp_path), 15, queue)) for _ in range(4)]
    for worker in workers:
        worker.start()
    answers = [queue.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
    acknowledged = sorted(number for answer in answers for number in answer)
    state = local(tmp_path).catalog.load_table(TABLE)
    assert sorted(one.snapshot_id for one in state.metadata.snapshots) == acknowledged
    assert [one.sequence_number for one in state.metadata.snapshots] == list(range(1, 61))
    assert state.metadata.next_row_id == 600
    metadata_files = list((tmp_path / "shop" / "orders" / "metadata").iterdir())
    assert len(metadata_files) == 61, "losers leave no metadata file behind"


def test_catalogs_opened_at_once_create_their_tables_once(tmp_path: Path) -> None:
    failures: list[BaseException] = []

    def open_and_list() -> None:
        try:
            assert local(tmp_path).catalog.list_tables() == []
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=open_and_list) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_writer_waits_for_a_lock_of_another(tmp_path: Path) -> None:
    environment = local(tmp_path)
    base = create(environment.catalog, TABLE)
    holder = sqlite3.connect(tmp_path / "icefold.db", check_same_thread=False, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    timer = threading.Timer(0.5, lambda: holder.execute("ROLLBACK"))
    timer.start()
    environment.catalog.commit(base, append_updates(base.metadata))
    timer.join()
    holder.close()


def test_forked_child_opens_its_own_connections(tmp_path: Path) -> None:
    pointers = SqlPointers(f"sqlite:///{tmp_path}/c.db", "c")
    pointers.add_namespace(("n",))
    engine = pointers._engine
    pointers._engine_pid = -1  # as if this were the child
    assert pointers.tables() == []
    assert pointers._engine is not engine
    engine.dispose()


# -- a COMMIT whose answer is lost


class _LostCommit:
    """Makes one COMMIT of an engine fail, before or after it takes effect."""

    def __init__(self, pointers: SqlPointers, *, landed: bool) -> None:
        pointers.tables()
        self.landed = landed
        self.armed = True
        event.listen(pointers._engine, "commit", self.strike)

    def strike(self, connection: object) -> None:
        if self.armed:
            self.armed = False
            raw = connection.connection.dbapi_connection
            raw.commit() if self.landed else raw.rollback()
            raise OperationalError("COMMIT", {}, Exception("server closed the connection"))


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.services)])
@pytest.mark.parametrize("landed", [True, False])
def test_commit_without_an_answer_is_settled(tmp_path: Path, kind: str, landed: bool) -> None:
    uri = f"sqlite:///{tmp_path}/c.db" if kind == "sqlite" else postgres_server().url()
    given = {"uri": uri, "warehouse": str(tmp_path)}
    catalog = real_catalog(open_backend(tmp_path.name, given).catalog)
    assert isinstance(catalog, SqlCatalog)
    base = create(catalog, TABLE)
    _LostCommit(catalog._pointers, landed=landed)
    if landed:
        state = catalog.commit(base, append_updates(base.metadata))
        assert catalog.load_table(TABLE).metadata_location == state.metadata_location
    else:
        with pytest.raises(StoreUnavailableError, match="did not commit: Exception"):
            catalog.commit(base, append_updates(base.metadata))
        assert catalog.load_table(TABLE).metadata_location == base.metadata_location
        catalog.commit(base, append_updates(base.metadata))


def test_full_disk_is_suspected_where_sqlite_says_that_input_or_output_failed() -> None:
    failure = sqlite3.OperationalError("disk I/O error")
    failure.sqlite_errorname = "SQLITE_IOERR_SHMSIZE"  # as on a full tmpfs, before any write
    error = OperationalError("COMMIT", {}, failure)
    assert "disk I/O error (is it full?)" in str(_translate(error, make_url("sqlite:///c.db")))


@pytest.mark.parametrize("damage", [lambda data: data[:100], lambda data: b"XXXX" + data[4:]])
def test_damaged_database_says_what_to_do(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    given = {"uri": f"sqlite:///{tmp_path}/c.db", "warehouse": str(tmp_path)}
    create(open_backend("c", given).catalog, TABLE)
    path = tmp_path / "c.db"
    path.write_bytes(damage(path.read_bytes()))
    for each in ("-wal", "-shm"):
        (tmp_path / f"c.db{each}").unlink(missing_ok=True)
    with pytest.raises(
        StoreUnavailableError, match="the file is damaged: restore it from a backup"
    ):
        open_backend("c", given).catalog.load_table(TABLE)


def test_database_that_another_process_holds_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tableformat.catalog.sql.BUSY_TIMEOUT_MS", 10)
    given = {"uri": f"sqlite:///{tmp_path}/c.db", "warehouse": str(tmp_path)}
    catalog = open_backend("c", given).catalog
    base = create(catalog, TABLE)
    with closing(sqlite3.connect(tmp_path / "c.db", isolation_level=None)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreUnavailableError, match=r"locked.*another process holds it"):
            open_backend("c", given).catalog.commit(base, append_updates(base.metadata))


def test_commit_that_another_followed_is_looked_up_in_the_log(tmp_path: Path) -> None:
    given = {"uri": f"sqlite:///{tmp_path}/c.db", "warehouse": str(tmp_path)}
    catalog, other = (open_backend("c", given).catalog for _ in range(2))
    base = create(catalog, TABLE)
    lost = _LostCommit(catalog._pointers, landed=True)
    strike = lost.strike

    def strike_and_follow(connection: object) -> None:
        try:
            strike(connection)
        finally:
            state = other.load_table(TABLE)
            other.commit(state, append_updates(state.metadata))

    event.remove(catalog._pointers._engine, "commit", strike)
    once = iter([strike_and_follow])
    event.listen(catalog._pointers._engine, "commit", lambda c: next(once, lambda _: None)(c))
    updates = append_updates(base.metadata)
    catalog.commit(base, updates)
    snapshots = catalog.load_table(TABLE).metadata.snapshots
    assert len(snapshots) == 2
    assert snapshots[0].snapshot_id == updates[0].snapshot.snapshot_id


def test_database_gone_after_the_commit_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"uri": f"sqlite:///{tmp_path}/c.db", "warehouse": str(tmp_path)}
    catalog = open_backend("c", given).catalog
    base = create(catalog, TABLE)
    _LostCommit(catalog._pointers, landed=True)

    def gone(*_: object, **__: object) -> bool:
        raise StoreUnavailableError("database is gone")

    monkeypatch.setattr(catalog._pointers, "_settle", lambda *a, **k: _raise(RuntimeError()))
    monkeypatch.setattr(catalog._pointers, "read", gone)
    with pytest.raises(CommitUnknownError) as caught:
        catalog.commit(base, append_updates(base.metadata))
    assert not caught.value.files_safe_to_delete
    left = caught.value.context["metadata_location"]
    assert Path(left.removeprefix("file://")).exists(), "nothing is deleted while unknown"


def _raise(error: Exception) -> bool:
    raise error


def test_failed_statement_changed_nothing(tmp_path: Path) -> None:
    environment = local(tmp_path)
    base = create(environment.catalog, TABLE)
    with sqlite3.connect(tmp_path / "icefold.db") as database:
        database.execute("ALTER TABLE iceberg_tables RENAME TO hidden")
    with pytest.raises(StoreUnavailableError):
        environment.catalog.commit(base, append_updates(base.metadata))
    with pytest.raises(StoreUnavailableError, match="no such table"):
        environment.catalog.load_table(TABLE)
    with database:
        database.execute("ALTER TABLE hidden RENAME TO iceberg_tables")
    database.close()
    files = list((tmp_path / "shop" / "orders" / "metadata").iterdir())
    assert len(files) == 1


# -- rows and databases that are not what they should be


@pytest.mark.parametrize(
    "location", ["file:///etc/passwd", "/etc/passwd", "s3://elsewhere/x", "file:///{}/../x"]
)
def test_row_that_points_elsewhere_is_refused(tmp_path: Path, location: str) -> None:
    environment = local(tmp_path / "wh")
    create(environment.catalog, TABLE)
    with sqlite3.connect(tmp_path / "wh" / "icefold.db") as database:
        place = location.format(tmp_path / "wh")
        database.execute("UPDATE iceberg_tables SET metadata_location = ?", (place,))
    database.close()
    with pytest.raises(InvalidInputError, match="refused"):
        local(tmp_path / "wh").catalog.load_table(TABLE)


def test_missing_metadata_file_is_not_found_naming_the_table(tmp_path: Path) -> None:
    state = create(local(tmp_path).catalog, TABLE)
    Path(state.metadata_location.removeprefix("file://")).unlink()
    with pytest.raises(NotFoundError) as caught:
        local(tmp_path).catalog.load_table(TABLE)
    assert caught.value.context["table"] == "shop.orders"


def test_database_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "icefold.db").write_bytes(b"garbage" * 1000)
    with pytest.raises(StoreUnavailableError, match="not a database"):
        local(tmp_path).catalog.list_tables()


def test_unreachable_database_shows_no_password(tmp_path: Path) -> None:
    uri = f"postgresql://user:{PASSWORD}@127.0.0.1:1/db"
    environment = open_backend("far", {"uri": uri, "warehouse": str(tmp_path)})
    with pytest.raises(StoreUnavailableError) as caught:
        environment.catalog.list_tables()
    assert PASSWORD not in f"{caught.value} {caught.value!r} {environment!r}"
    assert caught.value.__cause__ is None


def test_other_database_is_unsupported_and_no_url_is_invalid(tmp_path: Path) -> None:
    for uri, error in (("mysql://h/d", UnsupportedError), (f"x{PASSWORD}", InvalidInputError)):
        with pytest.raises(error) as caught:
            open_backend("c", {"type": "sql", "uri": uri, "warehouse": str(tmp_path)})
        assert PASSWORD not in str(caught.value)


def test_sqlite_is_durable_and_lets_readers_in(tmp_path: Path) -> None:
    catalog = local(tmp_path).catalog
    catalog.create_namespace(("n",))
    with catalog._pointers._engine.connect() as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 2
        assert connection.execute(text("PRAGMA busy_timeout")).scalar() == 60_000


def test_names_cannot_inject_sql(tmp_path: Path) -> None:
    catalog = local(tmp_path).catalog
    create(catalog, TABLE)
    with pytest.raises(NotFoundError):
        catalog.load_table(("shop", "x' OR '1'='1"))
    create(catalog, ("o'hara", "t'; DROP TABLE iceberg_tables; --"))
    assert len(catalog.list_tables()) == 2


@pytest.mark.services
def test_postgres_url_without_driver_takes_the_installed_one(tmp_path: Path) -> None:
    uri = postgres_server().url().replace("postgresql+psycopg", "postgresql")
    catalog = open_backend(tmp_path.name, {"uri": uri, "warehouse": str(tmp_path)}).catalog
    create(catalog, TABLE)
    engine = create_engine(postgres_server().url())
    try:
        with engine.connect() as connection:
            query = text("SELECT table_name FROM iceberg_tables WHERE catalog_name = :name")
            assert connection.execute(query, {"name": tmp_path.name}).scalar() == "orders"
    finally:
        engine.dispose()


def test_database_whose_journal_cannot_be_switched_now_is_used_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite does not wait for other connections there as it does elsewhere."""
    monkeypatch.setattr(sql, "BUSY_TIMEOUT_MS", 50)
    theirs(tmp_path)  # makes the tables, without a log beside the file
    with closing(sqlite3.connect(tmp_path / "icefold.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM iceberg_tables").fetchall()
        engine = sql._open_engine(make_url(f"sqlite:///{tmp_path}/icefold.db"))
        sql._create_tables(engine)
        with engine.connect() as connection:
            assert connection.execute(text("PRAGMA journal_mode")).scalar() == "delete"
        reader.execute("COMMIT")
        sql._create_tables(engine)
        with engine.connect() as connection:
            assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        engine.dispose()
