from __future__ import annotations

import gc
import logging
import sqlite3
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine, MetaData
from sqlalchemy.exc import OperationalError
from sqlalchemy.sql.compiler import SQLCompiler

from lock import InvalidLockError, LockError, LockUnavailableError, open_lock
from lock.register import SwapOutcome
from lock.sql import SqlRecordStore
from tests.support.lock_seams import RandomIds, RealClock

SECRET = "hunter2"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql+psycopg://me:{SECRET}@127.0.0.1:1/db",
        f"postgresql://me:{SECRET}@127.0.0.1:1/db",
        f"postgresql+psycopg://127.0.0.1:1/db?user=me&password={SECRET}",
        f"postgresql+psycopg://me:{SECRET}@127.0.0.1:1/db?sslpassword={SECRET}&sslmode=require",
        f"postgresql+psycopg://me:{SECRET}@[::1]:1/db",
        f"postgresql+psycopg://me:{SECRET}@127.0.0.1:port/db",
        f"postgresql+psycopg://me:{SECRET}@127.0.0.1:1/db?nonsense={SECRET}",
        f"postgresql+{SECRET}://me:{SECRET}@127.0.0.1:1/db",
        f"mysql://me:{SECRET}@127.0.0.1:1/db",
        f"{SECRET}",
        f"://{SECRET}",
        "",
    ],
)
def test_password_shows_nowhere(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), pytest.raises(LockError) as caught:
        open_lock(url, clock=RealClock(), ids=RandomIds())
    shown = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert SECRET not in repr(caught.value)
    assert SECRET not in shown


def test_driver_that_quotes_password_is_not_quoted() -> None:
    store = SqlRecordStore(f"postgresql://me:{SECRET}@127.0.0.1:1/db")
    try:
        try:
            raise OperationalError("SELECT 1", {}, OSError(f"cannot connect as me:{SECRET}"))
        except OperationalError as error:
            raise store._unavailable(error) from store._cause(error)
    except LockUnavailableError as error:
        shown = "".join(traceback.format_exception(error))
    assert SECRET not in shown
    assert "lock store failed: OSError; store=postgresql://127.0.0.1:1/db" in shown


def test_full_disk_is_suspected_where_sqlite_says_that_input_or_output_failed() -> None:
    failure = sqlite3.OperationalError("disk I/O error")
    failure.sqlite_errorname = "SQLITE_IOERR_SHMSIZE"
    error = SqlRecordStore("sqlite:///c.db")._unavailable(OperationalError("COMMIT", {}, failure))
    assert "disk I/O error (is it full?)" in str(error)


def test_store_describes_itself_without_credentials() -> None:
    store = SqlRecordStore(f"postgresql://me:{SECRET}@db.example:5432/lake?options={SECRET}")
    assert repr(store) == "SqlRecordStore('postgresql://db.example:5432/lake')"
    assert store.describe("k") == "postgresql://db.example:5432/lake#icefold_lock/k"


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://h/d", "oracle://h"])
def test_database_that_cannot_carry_leases_is_refused(url: str) -> None:
    with pytest.raises(InvalidLockError):
        SqlRecordStore(url)


def test_table_may_be_created_by_several_at_once(tmp_path: Path) -> None:
    start = threading.Barrier(8)
    failures: list[BaseException] = []

    def prepare() -> None:
        store = SqlRecordStore(f"sqlite:///{tmp_path}/locks.db")
        start.wait()
        try:
            store.prepare()
            store.load("k")
        except LockError as error:
            failures.append(error)
        finally:
            store.close()

    threads = [threading.Thread(target=prepare) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_connection_that_is_lost_while_the_table_is_created_is_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = OperationalError("CREATE TABLE", {}, Exception("gone"), connection_invalidated=True)
    create, losses = MetaData.create_all, [lost, lost]

    def create_all(metadata: MetaData, engine: Engine) -> None:
        if losses:
            raise losses.pop()
        create(metadata, engine)

    monkeypatch.setattr(MetaData, "create_all", create_all)
    store = SqlRecordStore(f"sqlite:///{tmp_path}/locks.db")
    store.prepare()
    assert store.swap("k", None, b"whole record") is SwapOutcome.DONE
    losses = [lost] * 100
    with pytest.raises(LockUnavailableError, match="gone"):
        SqlRecordStore(f"sqlite:///{tmp_path}/other.db").prepare()


def test_folder_that_is_missing_is_reported(tmp_path: Path) -> None:
    store = SqlRecordStore(f"sqlite:///{tmp_path}/none/locks.db")
    with pytest.raises(LockUnavailableError, match="unable to open database file"):
        store.prepare()


def test_file_that_is_no_database_is_reported_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "locks.db"
    path.write_bytes(b"precious" * 1000)
    store = SqlRecordStore(f"sqlite:///{path}")
    with pytest.raises(LockUnavailableError, match="not a database"):
        store.prepare()
    assert path.read_bytes() == b"precious" * 1000


def test_locked_database_is_unavailable_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lock.sql._SQLITE_BUSY_S", 0.05)
    store = SqlRecordStore(f"sqlite:///{tmp_path}/locks.db")
    store.prepare()
    other = sqlite3.connect(tmp_path / "locks.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    attempts: list[Callable[[], object]] = [
        lambda: store.swap("k", None, b"whole record"),
        lambda: store.swap("k", "1", b"whole record"),
    ]
    for attempt in attempts:
        with pytest.raises(LockUnavailableError, match="locked") as caught:
            attempt()
        assert isinstance(caught.value.__cause__, OperationalError)
        assert "whole record" not in "".join(traceback.format_exception(caught.value.__cause__))
    other.close()
    store.close()


def test_sqlite_flushes_every_write_unless_all_its_users_end_with_the_machine(
    tmp_path: Path,
) -> None:
    """A token lost in a power cut would be handed out twice, to one who may meet its holder."""
    url = f"sqlite:///{tmp_path}/locks.db"
    flushes = []
    for _ in range(2):
        store = SqlRecordStore(url)
        with store._engine().connect() as connection:
            flushes.append(connection.exec_driver_sql("PRAGMA synchronous").scalar())
        store.prepare()  # write-ahead mode
        store.close()
    assert flushes == [2, 1]


def test_readers_do_not_hold_up_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lock.sql._SQLITE_BUSY_S", 0.05)
    store = SqlRecordStore(f"sqlite:///{tmp_path}/locks.db")
    store.prepare()
    reader = sqlite3.connect(tmp_path / "locks.db", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM icefold_lock").fetchall()
    assert store.swap("k", None, b"{}") is SwapOutcome.DONE
    reader.close()
    store.close()


def test_forgotten_store_closes_its_connections(tmp_path: Path) -> None:
    store = SqlRecordStore(f"sqlite:///{tmp_path}/locks.db")
    store.prepare()
    del store
    gc.collect()  # a connection left open would be an unraisable warning, hence an error


def test_store_that_was_opened_again_puts_no_statement_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/locks.db"

    def use() -> None:
        store = SqlRecordStore(url)
        store.prepare()
        found = store.load("key")
        assert store.swap("key", found.version, b"record") is SwapOutcome.DONE
        store.close()

    use()
    compiled: list[str] = []
    compile_now = SQLCompiler.__init__

    def seen(self: SQLCompiler, *args: object, **settings: object) -> None:
        compiled.append(type(self).__name__)
        compile_now(self, *args, **settings)

    monkeypatch.setattr(SQLCompiler, "__init__", seen)
    use()
    use()
    assert compiled == []
