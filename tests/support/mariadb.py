"""A MariaDB server for tests: started on loopback at first use, stopped with the run.

It has the binary log of a source of changes: whole rows, GTIDs. It calls itself MySQL 5.7, so that
Debezium's MySQL connector takes it, and the log goes out in the form that MySQL's has.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.guard import check_servers_allowed, let_run, stop_with_this_process
from tests.support.ports import free_port

PASSWORD = "s3cret-of-the-test"
USER = "icefold"
START_S = 120
OPTIONS = (
    "--version=5.7.19",  # Connector/J asks a newer one for variables that MariaDB lacks
    "--server-id=1",
    "--log-bin=binlog",
    "--binlog-format=ROW",
    "--binlog-row-image=FULL",
    "--gtid-strict-mode=ON",
    "--bind-address=127.0.0.1",
    "--skip-name-resolve",
    "--sql-mode=",  # so that zero dates can be written
    "--character-set-server=utf8mb4",
    "--collation-server=utf8mb4_general_ci",
    "--default-time-zone=+05:30",  # not the zone of whoever reads
    "--innodb-flush-log-at-trx-commit=0",
    "--innodb-buffer-pool-size=32M",
    "--innodb-log-file-size=16M",
    "--performance-schema=OFF",
)
GRANTS = (
    f"CREATE USER '{USER}'@'127.0.0.1' IDENTIFIED BY '{PASSWORD}';\n"
    f"GRANT ALL ON *.* TO '{USER}'@'127.0.0.1' WITH GRANT OPTION;\n"
)


@dataclass(frozen=True)
class MariaDbServer:
    """Where it listens. It holds no databases but its own."""

    port: int

    def connect(self, database: str | None = None, **more: Any) -> Any:
        """A connection of PyMySQL's, in UTC, where every statement is a transaction of its own."""
        import pymysql

        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user=USER,
            password=PASSWORD,
            database=database,
            charset="utf8mb4",
            autocommit=True,
            init_command="SET time_zone = '+00:00'",
            **more,
        )


def missing_mariadb() -> str | None:
    """What is missing to start it."""
    return None if _program("mariadbd") else "MariaDB's server programs are not installed"


@functools.cache
def mariadb_server() -> MariaDbServer:
    """The server of this test run; skips the test where its programs or driver are missing."""
    check_servers_allowed()
    pytest.importorskip("pymysql", reason="the MySQL driver is not installed")
    missing = missing_mariadb()
    if missing is not None:
        pytest.skip(missing)
    folder = Path(tempfile.mkdtemp(prefix="icefold-mariadb-"))
    data, grants = folder / "data", folder / "grants.sql"
    as_root = ["--user=root"] if os.geteuid() == 0 else []
    install = [_program("mariadb-install-db") or "mariadb-install-db", "--no-defaults", *as_root]
    install += [f"--datadir={data}", "--skip-test-db", "--auth-root-authentication-method=normal"]
    done = subprocess.run(install, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"mariadb-install-db failed: {(done.stdout + done.stderr)[-2000:]}")
    grants.write_text(GRANTS)
    server = MariaDbServer(free_port())
    command = [_program("mariadbd") or "mariadbd", "--no-defaults", *as_root, f"--datadir={data}"]
    command += [f"--socket={folder}/socket", f"--port={server.port}", f"--init-file={grants}"]
    command += [f"--pid-file={folder}/pid", *OPTIONS]
    stop_with_this_process(["sh", "-c", f'kill -9 "$(cat {folder}/pid)"'], folder)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    _await(server, process, folder / "log")
    let_run(process)
    return server


def _await(server: MariaDbServer, process: subprocess.Popen[bytes], log: Path) -> None:
    import pymysql

    deadline = time.monotonic() + START_S
    while True:
        try:
            server.connect().close()
            return
        except pymysql.err.Error as error:
            if process.poll() is not None or time.monotonic() > deadline:
                said = log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"MariaDB does not start: {error}; {said}") from error
        time.sleep(0.1)


def _program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin")
