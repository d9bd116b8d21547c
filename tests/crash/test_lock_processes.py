"""Locks under processes that are killed, stopped and disconnected. Servers are real."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Self
from uuid import uuid4

import psycopg
import pytest

from lock import LeaseLostError, LockManager, open_lock
from lock.heartbeat import HeldLease
from lock.open import _open_store
from resolver.maintenance_lock import bucket_client
from tests.support.bucket_servers import CLOUDS
from tests.support.fenced_log import FencedLog
from tests.support.goals import goal
from tests.support.lock_seams import RandomIds, RealClock, asked_often
from tests.support.lock_servers import libpq_url, lock_server, postgres_url
from tests.support.lock_stores import SHARED_BACKENDS, lock_properties, lock_url

ROOT = Path(__file__).resolve().parents[2]
LEASE_MS = 1_000
RENEWED_LEASE_MS = 2_000  # a busy machine may be late by a second


class Setting:
    """One lock, shared by processes, and the fenced log they write to."""

    def __init__(self, backend: str, folder: Path) -> None:
        self.url = lock_url(backend, folder)
        self.properties = lock_properties(backend)
        self.name = f"shop.orders/{uuid4().hex}"
        self.log = FencedLog(folder / "fenced.log")
        self.log_path = folder / "fenced.log"

    def manager(self, lease_ms: int = LEASE_MS) -> LockManager:
        return open_lock(
            self.url,
            clock=RealClock(),
            ids=RandomIds(),
            connect=partial(bucket_client, properties=self.properties),
            lease_ms=lease_ms,
        )

    @contextmanager
    def worker(
        self, mode: str, *counts: int, lease_ms: int = LEASE_MS
    ) -> Iterator[subprocess.Popen[str]]:
        command = [sys.executable, "-m", "tests.support.lock_worker", mode, self.url, self.name]
        command += [str(self.log_path), str(lease_ms), *map(str, counts)]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "LOCK_PROPERTIES": json.dumps(self.properties)},
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


@pytest.fixture(params=SHARED_BACKENDS)
def setting(request: pytest.FixtureRequest, tmp_path: Path) -> Setting:
    return Setting(request.param, tmp_path)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)


def test_killed_holder_is_replaced_when_its_lease_is_over(setting: Setting) -> None:
    manager = setting.manager()
    with setting.worker("hold", lease_ms=RENEWED_LEASE_MS) as holder:
        assert line(holder) == "held 1"
        got: list[tuple[int, float]] = []

        def wait() -> None:
            lease = manager.acquire(setting.name, task="wait", timeout_ms=30_000)
            got.append((lease.token, time.monotonic()))

        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(1.5 * RENEWED_LEASE_MS / 1e3)  # renewals keep the waiter out
        assert not got
        holder.send_signal(signal.SIGKILL)
        killed = time.monotonic()
        waiter.join()
    token, taken = got[0]
    assert token == 2
    # How soon after its end is held to on a clock of its own: unit/lock/test_waiting.py.
    assert taken - killed <= RENEWED_LEASE_MS / 1e3 + 10
    setting.log.check()


def test_stopped_holder_does_nothing_after_it_was_replaced(setting: Setting) -> None:
    manager = setting.manager(lease_ms=30_000)  # a busy machine must not take it from the successor
    with setting.worker("hold") as zombie:
        assert line(zombie) == "held 1"
        wait_for(setting.log.steps)
        with setting.log_path.open("a+") as log:  # stopped while it writes, it would keep the log
            fcntl.flock(log, fcntl.LOCK_EX)
            zombie.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, zombie.pid, os.WSTOPPED | os.WNOWAIT)  # before the log is free
        with manager.hold(setting.name, task="take over", timeout_ms=30_000) as lease:
            assert lease.token == 2
            assert setting.log.step(lease.token, "successor")
            zombie.send_signal(signal.SIGCONT)
            assert line(zombie) == "lost"
            assert zombie.wait(timeout=60) == 0
            lease.confirm()
    tokens = [token for token, _ in setting.log.steps()]
    assert tokens.count(1) >= 1
    assert tokens[-1] == 2
    setting.log.check()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "each"), [(8, 64), pytest.param(32, 50, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_processes_get_each_token_once_and_in_order(
    backend: str, processes: int, each: int, tmp_path: Path
) -> None:
    """What more of them cost is their looks at a lock that they wait for."""
    setting = Setting(backend, tmp_path)
    with setting.worker("contend", processes, each, lease_ms=30_000) as workers:
        output, errors = workers.communicate(timeout=550)
    assert (workers.returncode, output, errors) == (0, "", "")
    assert [token for token, _ in setting.log.steps()] == list(range(1, processes * each + 1))
    rounds: dict[str, int] = {}
    for _, owner in setting.log.steps():
        rounds[owner] = rounds.get(owner, 0) + 1
    assert sorted(rounds.values()) == [each] * processes
    if backend == "postgresql":
        goal("G7", postgresql=processes * each)


@pytest.mark.parametrize("backend", ["file", "s3"])
def test_processes_share_object_store_lock(backend: str, tmp_path: Path) -> None:
    setting = Setting(backend, tmp_path)
    with setting.worker("contend", 4, 17, lease_ms=30_000) as workers:
        output, errors = workers.communicate(timeout=550)
    assert (workers.returncode, output, errors) == (0, "", "")
    assert [token for token, _ in setting.log.steps()] == list(range(1, 69))
    if backend == "s3":
        goal("G7", s3=68)


def test_terminated_database_backends_never_make_two_holders(tmp_path: Path) -> None:
    """A connection that dies under the holder is no loss: the lease is a row, not a session."""
    setting = Setting("postgresql", tmp_path)
    with (
        terminating_backends(every_ms=200) as terminated,
        setting.worker("contend", 6, 8, lease_ms=20_000) as workers,
    ):
        output, errors = workers.communicate(timeout=300)
    assert (workers.returncode, output) == (0, ""), errors
    assert terminated[0] >= 5
    setting.log.check()
    assert [token for token, _ in setting.log.steps()] == list(range(1, 49))
    goal("G7", postgresql=48)


def test_holder_whose_backends_are_terminated_keeps_its_lease(tmp_path: Path) -> None:
    setting = Setting("postgresql", tmp_path)
    manager = setting.manager(lease_ms=3_000)
    with manager.hold(setting.name, task="resolve") as lease, terminating_backends(every_ms=100):
        for _ in range(30):
            time.sleep(0.1)
            lease.check()
        _confirm(lease)
        assert lease.token == 1


def _confirm(lease: HeldLease) -> None:
    """As the error says: again, while the lease lasts. A request may end with its backend."""
    for _ in range(20):
        lease.check()
        with suppress(LeaseLostError):
            lease.confirm()
            return
    raise AssertionError("never confirmed")


def test_lease_in_unreachable_database_is_lost_locally(tmp_path: Path) -> None:
    """Nobody can renew: the holder must stop by its own clock before anyone else may start."""
    setting = Setting("postgresql", tmp_path)
    manager = setting.manager()
    with manager.hold(setting.name, task="resolve") as lease:
        with psycopg.connect(libpq_url(postgres_url()), autocommit=True) as connection:
            connection.execute("ALTER TABLE icefold_lock RENAME TO icefold_lock_away")
            try:
                deadline = time.monotonic() + 2 * LEASE_MS / 1e3
                while lease.still_held():
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
            finally:
                connection.execute("ALTER TABLE icefold_lock_away RENAME TO icefold_lock")
        with pytest.raises(LeaseLostError, match="not confirmed for"):
            lease.confirm()


def test_holder_behind_silent_connection_stops_in_time_and_hangs_nowhere(tmp_path: Path) -> None:
    """Connected, and no answer: no error tells the holder, only its own clock."""
    setting = Setting("postgresql", tmp_path)
    successor = setting.manager()
    with SilentProxy(postgres_url()) as proxy:
        setting.url = proxy.url
        manager = setting.manager()
        with manager.hold(setting.name, task="resolve", lease_ms=2_000) as lease:
            lease.confirm()
            proxy.fall_silent()
            other = successor.acquire(setting.name, task="take over", timeout_ms=30_000)
            assert not lease.still_held()
            assert other.token == 2
            released = time.monotonic()
        assert time.monotonic() - released < 30
    assert successor.inspect(setting.name).owner_id == other.owner_id


@pytest.mark.parametrize(
    ("cloud", "rounds"),
    [
        *((each, 36 if each == "s3" else 12) for each in CLOUDS),
        *(pytest.param(each, 42, marks=pytest.mark.long) for each in CLOUDS),
    ],
)
@pytest.mark.parametrize("fault", ["error_before", "error_after", "conflict", "resent"])
def test_faults_of_object_stores_never_make_two_holders(
    cloud: str, rounds: int, fault: str, tmp_path: Path
) -> None:
    """R71, R72, R74: 503, a reply lost after the effect, 409, and 412 to one's own resent write."""
    setting = Setting(cloud, tmp_path)
    setting.manager().close()
    faults = lock_server(cloud).faults
    faults.hits.clear()
    faults.rates[fault] = 0.25
    try:
        threads = [threading.Thread(target=_contend, args=(setting, rounds)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        faults.rates.clear()
    assert faults.hits[fault] >= 3
    setting.log.check()
    assert [token for token, _ in setting.log.steps()] == list(range(1, 3 * rounds + 1))
    goal("G7", **{cloud: 3 * rounds})


def _contend(setting: Setting, rounds: int) -> None:
    owner = uuid4().hex
    manager = _unprobed(setting)
    for _ in range(rounds):
        with manager.hold(setting.name, task="work", timeout_ms=60_000, lease_ms=20_000) as lease:
            lease.check()
            assert setting.log.step(lease.token, owner)


def _unprobed(setting: Setting) -> LockManager:
    """As `open_lock`, without the probe that would run into the injected faults."""
    store = _open_store(
        setting.url, RandomIds(), partial(bucket_client, properties=setting.properties)
    )
    return LockManager(asked_often(store), clock=RealClock(), ids=RandomIds())


class SilentProxy:
    """Forwards connections to a database until told to swallow everything."""

    def __init__(self, url: str) -> None:
        host_and_port = url.rpartition("@")[2].partition("/")[0]
        host, _, port = host_and_port.partition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self._silent = threading.Event()
        self.url = url.replace(host_and_port, f"127.0.0.1:{self._listener.getsockname()[1]}")
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            each.close()

    def fall_silent(self) -> None:
        self._silent.set()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                for pair in [(client, server), (server, client)]:
                    threading.Thread(target=self._pump, args=pair, daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                if not self._silent.is_set():
                    sink.sendall(data)


@contextmanager
def terminating_backends(*, every_ms: int) -> Iterator[list[int]]:
    """Kills every other session of the database, again and again; yields the count."""
    stop = threading.Event()
    count = [0]

    def run() -> None:
        with psycopg.connect(libpq_url(postgres_url()), autocommit=True) as connection:
            while not stop.wait(every_ms / 1e3):
                killed = connection.execute(
                    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                    "WHERE pid <> pg_backend_pid() AND datname = current_database()"
                ).fetchone()
                assert killed is not None
                count[0] += killed[0]

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield count
    finally:
        stop.set()
        thread.join()
