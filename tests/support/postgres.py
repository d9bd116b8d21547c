"""A PostgreSQL server for tests: started on loopback at first use, stopped with the run."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.guard import check_servers_allowed, stop_with_this_process
from tests.support.ports import free_port

PASSWORD = "s3cret-of-the-test"
USER = "icefold"


@dataclass(frozen=True)
class PostgresServer:
    """Where it listens. It holds a fresh, empty cluster."""

    port: int

    def url(self, database: str = "postgres") -> str:
        return f"postgresql+psycopg://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{database}"


@functools.cache
def postgres_server() -> PostgresServer:
    """The server of this test run; skips the test where its programs or driver are missing."""
    check_servers_allowed()
    pytest.importorskip("psycopg", reason="the PostgreSQL driver is not installed")
    binaries = _binaries()
    folder = Path(tempfile.mkdtemp(prefix="icefold-pg-"))
    # The server refuses to run as root; Debian's package brings this user.
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    if as_user:
        if shutil.which("runuser") is None:
            pytest.skip("PostgreSQL does not run as root, and runuser is missing")
        shutil.chown(folder, "postgres", "postgres")
    secret = folder / "password"
    secret.write_text(PASSWORD)
    secret.chmod(0o644)
    data = str(folder / "data")
    server = PostgresServer(free_port())
    options = f"-h 127.0.0.1 -p {server.port} -k {folder} -c fsync=off -c max_connections=100"
    options += " -c wal_level=logical"
    setup = [f"{binaries}/initdb", "-D", data, "-U", USER, "-A", "scram-sha-256", "--no-sync"]
    setup += ["--pwfile", str(secret), "-E", "UTF8", "--locale=C.UTF-8"]
    control = [f"{binaries}/pg_ctl", "-D", data]
    _run(as_user + setup, folder)
    _run([*as_user, *control, "-o", options, "-l", f"{folder}/log", "-w", "start"], folder)
    stop_with_this_process([*as_user, *control, "-m", "immediate", "-w", "stop"], folder)
    return server


def _binaries() -> Path:
    packaged = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    found = shutil.which("initdb") or (str(packaged[-1]) if packaged else None)
    if found is None:
        pytest.skip("PostgreSQL's server programs are not installed")
    return Path(found).resolve().parent


def _run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr[-2000:]}")
