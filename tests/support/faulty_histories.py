"""Histories of whole `icefold` commands, each a process, while the services behind them misbehave.

A history is drawn from a seed: changes are staged from files, published, compacted, expired,
changed by statements and read, and most commands meet a fault of `fault_proxy`, some a signal.
What is right is told by a dict, by the server's own words (asked past the proxy) and by DuckDB.
"""

from __future__ import annotations

import contextlib
import functools
import gzip
import json
import os
import queue
import random
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import requests

from tests.support.database_proxy import DatabaseProxy
from tests.support.fault_proxy import Answer, Fault, FaultProxy
from tests.support.interop_engines import duckdb_connection
from tests.support.postgres import PostgresServer, postgres_server
from tests.support.rest_catalog import rest_server
from tests.support.s3_server import fresh_bucket, s3_server

ROOT = Path(__file__).resolve().parents[2]
TABLE = "s.rows"
HANGS_AFTER_S = 90.0
IMPATIENT_S = 3.0  # of a command that meets faults; the first request of a cold server takes longer
UNKNOWN = re.compile(r"may or may not|unknown|answer of the commit was lost|may have", re.I)
LINES_MAX = 6
_ANYBODY = "AWS4-HMAC-SHA256 Credential=testing/20260101/us-east-1/s3/aws4_request"
Rows = dict[int, int]


@dataclass
class Ended:
    """A command that ended."""

    argv: list[str]
    code: int
    out: str
    err: str
    seconds: float

    @property
    def is_unknown(self) -> bool:
        return bool(UNKNOWN.search(self.err))

    def __str__(self) -> str:
        return f"icefold {' '.join(self.argv)} -> {self.code} in {self.seconds:.1f} s\n{self.err}"


@dataclass
class Running:
    """A command that may still run; `ended` waits for it."""

    argv: list[str]
    out: Path
    err: Path
    started_s: float
    pid: int = 0
    code: int | None = None
    _news: threading.Event = field(default_factory=threading.Event)

    def signal(self, number: int) -> None:
        """Send it a signal, if it runs."""
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def ended(self, patience_s: float | None = None) -> Ended | None:
        """How it ended; None: it does not within `patience_s`."""
        if not self._news.wait(patience_s):
            return None
        assert self.code is not None
        seconds = time.monotonic() - self.started_s
        return Ended(self.argv, self.code, self.out.read_text(), self.err.read_text(), seconds)


class Commands:
    """Processes forked from one that has imported `icefold`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forked_commands"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        self._count = 0
        self._starting: queue.Queue[Running] = queue.Queue()
        self._up: queue.Queue[Running] = queue.Queue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()  # which ends it
        self._listener.join()
        with self._process:
            pass

    def _listen(self) -> None:
        running: dict[int, Running] = {}
        assert self._process.stdout is not None
        for line in self._process.stdout:
            what, pid, *code = line.split()
            if what == "started":
                one = running[int(pid)] = self._starting.get()
                one.pid = int(pid)
                self._up.put(one)
            else:
                one = running.pop(int(pid))
                one.code = int(code[0])
                one._news.set()

    def start(
        self,
        argv: list[str],
        *,
        read_timeout_s: float | None = IMPATIENT_S,
        lease_ms: int | None = None,
    ) -> Running:
        """Start one; others may run beside it."""
        self._count += 1
        out, err = (self.folder / f"{self._count}.{name}" for name in ("out", "err"))
        assert self._process.stdin is not None
        request = {
            "argv": argv,
            "out": str(out),
            "err": str(err),
            "read_timeout_s": read_timeout_s,
            "lease_ms": lease_ms,
        }
        out.touch()
        err.touch()  # it may be killed before it opens them
        self._starting.put(Running(argv, out, err, time.monotonic()))
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._up.get(timeout=HANGS_AFTER_S)

    def run(
        self,
        argv: list[str],
        *,
        kill: tuple[float, int] | None = None,
        read_timeout_s: float | None = IMPATIENT_S,
    ) -> Ended:
        """Run one to its end; `kill`: seconds after its start, and the signal."""
        running = self.start(argv, read_timeout_s=read_timeout_s)
        wait_s, number = kill or (HANGS_AFTER_S, signal.SIGABRT)
        ended = running.ended(wait_s)
        if ended is None:
            running.signal(number)
            ended = running.ended()
        assert ended is not None
        return ended


class RestWorld:
    """Tables of a REST catalog behind a proxy; files on the disk."""

    kind = "rest"

    def __init__(self, uri: str, warehouse: str, lock_folder: Path) -> None:
        self.upstream, self.proxy = uri, FaultProxy(uri)
        self.proxies = [self.proxy]
        self.warehouse, self.lock_folder = warehouse, lock_folder

    def options(self, *, clean: bool) -> list[str]:
        uri = self.upstream if clean else self.proxy.uri
        given = {
            "type": "rest",
            "uri": uri,
            "warehouse": self.warehouse,
            "lock-url": f"file://{self.lock_folder}",
        }
        return ["--catalog", "rest", *_properties(given)]

    def metadata(self, table: str) -> dict[str, Any]:
        """The table's metadata, and where it is, from the server itself."""
        space, name = table.split(".")
        reply = requests.get(f"{self.upstream}/v1/namespaces/{space}/tables/{name}", timeout=20)
        reply.raise_for_status()
        found = reply.json()
        return {**found["metadata"], "location-of-it": found["metadata-location"]}

    def draw(self, rng: random.Random) -> list[Fault]:
        commit, load = r"/tables/[^/]+$", r"/tables/[^/?]+(\?|$)"
        json_409 = _error(
            409, "CommitFailedException", "requirement failed: branch main has changed"
        )
        of_commit = [
            Fault("reset", "POST", commit),
            Fault("answer", "POST", commit, status=rng.choice([500, 502, 503, 504])),
            Fault(
                "answer", "POST", commit, status=500, body=_error(500, "InternalServerError", "x")
            ),
            Fault("answer", "POST", commit, status=409, body=json_409),
            Fault("answer", "POST", commit, status=200),
            Fault(
                "answer", "POST", commit, status=400, body=_error(400, "BadRequestException", "x")
            ),
            Fault(
                "answer", "POST", commit, status=403, body=_error(403, "ForbiddenException", "x")
            ),
            Fault("twice", "POST", commit),
            Fault("cut", "POST", commit),
            Fault("short", "POST", commit),
            Fault("late", "POST", commit, delay_s=rng.choice([0.1, 0.5, 2.0])),
            Fault("slow", "POST", commit, delay_s=rng.choice([0.3, 2.0])),
            Fault("refuse", "POST", commit, status=rng.choice([429, 500, 502, 503])),
            Fault("refuse", "POST", commit, status=409, body=json_409),
        ]
        of_load = [
            Fault("reset", "GET", load),
            Fault("refuse", "GET", load, status=rng.choice([500, 502, 503, 504])),
            Fault("refuse", "GET", load, status=429, headers={"Retry-After": "1"}),
            Fault("refuse", "GET", load, status=200),
            Fault(
                "refuse", "GET", load, status=401, body=_error(401, "NotAuthorizedException", "x")
            ),
            Fault("refuse", "GET", load, status=404),
            Fault("stale", "GET", load, back=rng.choice([1, 2, 5])),
            Fault("cut", "GET", load),
            Fault("short", "GET", load),
            Fault("slow", "GET", load, delay_s=2.0),
            Fault("refuse", "GET", "/config", status=rng.choice([200, 502])),
        ]
        one = rng.choice(of_commit if rng.random() < 0.6 else of_load)
        one.skip, one.times = rng.choice([0, 0, 0, 1, 2, 4]), rng.choice([1, 1, 2, 5])
        faults = [one]
        if one.method == "POST" and rng.random() < 0.5:  # and what is asked next lags, or fails
            kind = rng.choice(["stale", "stale", "refuse", "reset"])
            faults.append(
                Fault(
                    kind, "GET", load, skip=rng.choice([0, 1, 2, 3]), times=rng.choice([1, 3, 50])
                )
            )
        return faults


class BucketWorld:
    """A catalog in SQLite, files in a bucket behind a proxy."""

    kind = "s3"

    def __init__(self, endpoint: str, bucket: str, folder: Path) -> None:
        self.upstream, self.proxy = endpoint, FaultProxy(endpoint)
        self.proxies = [self.proxy]
        self.bucket, self.database, self.folder = bucket, folder / "catalog.db", folder

    def options(self, *, clean: bool) -> list[str]:
        given = {
            "type": "sql",
            "uri": f"sqlite:///{self.database}",
            "warehouse": f"s3://{self.bucket}/wh",
            "s3.access-key-id": "testing",
            "s3.secret-access-key": "testing-secret",
        }
        return ["--catalog", "bucket", *_properties(given | self.reached(clean=clean))]

    def reached(self, *, clean: bool) -> dict[str, str]:
        """Where the bucket is, for whoever has keys."""
        return {
            "s3.endpoint": self.upstream if clean else self.proxy.uri,
            "s3.region": "us-east-1",
            **({} if clean else {"s3.request-timeout": "1.5", "s3.connect-timeout": "1"}),
        }

    def metadata(self, table: str) -> dict[str, Any]:
        with sqlite3.connect(self.database, timeout=30) as connection:
            [[location]] = connection.execute(
                "SELECT metadata_location FROM iceberg_tables"
                " WHERE table_namespace = ? AND table_name = ?",
                table.split("."),
            ).fetchall()
        connection.close()
        url = f"{self.upstream}/{location.removeprefix('s3://')}"
        reply = requests.get(url, headers={"Authorization": _ANYBODY}, timeout=20)
        reply.raise_for_status()
        return {**_unzipped(reply.content), "location-of-it": location}

    def draw(self, rng: random.Random) -> list[Fault]:
        expired = _xml("ExpiredToken")
        put, get, any_ = "PUT", "GET|HEAD", ".*"
        one = rng.choice(
            [
                Fault("reset", put),
                Fault("answer", put, status=rng.choice([500, 502, 503, 504])),
                Fault("twice", put),
                Fault("late", put, delay_s=rng.choice([0.1, 1.0])),
                Fault("refuse", any_, status=403, body=expired),
                Fault("refuse", any_, status=400, body=expired),
                Fault("refuse", any_, status=401, body=b""),
                Fault("refuse", any_, status=503, body=_xml("SlowDown")),
                Fault("refuse", any_, status=429, headers={"Retry-After": "1"}),
                Fault("refuse", "GET", status=200),
                Fault("refuse", "GET", r"\.parquet", status=200),
                Fault("refuse", "GET", r"\.metadata\.json", status=200),
                Fault("refuse", "GET", r"\.avro", status=200),
                Fault("refuse", "GET", r"\.puffin", status=200),
                Fault("answer", put, status=200),
                Fault("answer", "POST|DELETE", status=rng.choice([500, 503])),
                Fault("answer", "POST|DELETE", status=200),
                Fault("cut", get),
                Fault("short", get),
                Fault("reset", get),
                Fault("slow", any_, delay_s=2.5),
                Fault(
                    "refuse", "GET", r"\.(parquet|avro|puffin)", status=404, body=_xml("NoSuchKey")
                ),
            ]
        )
        one.skip, one.times = rng.choice([0, 0, 1, 2, 4, 8, 15]), rng.choice([1, 1, 3, 5, 60])
        return [one]


class _Vending(FaultProxy):
    """Keys that a server hands out with a table end `life_s` after it did."""

    life_s = 3600.0

    def forward(self, *sent: Any) -> Answer:
        answer = super().forward(*sent)
        if b'"s3.access-key-id"' not in answer.body:
            return answer
        reply = json.loads(answer.body)
        ends_ms = str(int((time.time() + self.life_s) * 1000))
        reply["config"]["s3.session-token-expires-at-ms"] = ends_ms
        return replace(answer, body=json.dumps(reply).encode())


class RestBucketWorld(RestWorld):
    """Tables of a REST catalog that hands out the keys of their bucket, a proxy before each."""

    kind = "rest-s3"

    def __init__(self, uri: str, warehouse: str, lock_folder: Path) -> None:
        super().__init__(uri, warehouse, lock_folder)
        self.proxy.refuse_connections()
        self.proxy = self.vending = _Vending(uri)
        self.bucket = BucketWorld(s3_server().endpoint, "", lock_folder)
        self.bucket.proxy.faults = self.proxy.faults  # one list, of both
        self.proxies = [self.proxy, self.bucket.proxy]

    def options(self, *, clean: bool) -> list[str]:
        return [*super().options(clean=clean), *_properties(self.bucket.reached(clean=clean))]

    def draw(self, rng: random.Random) -> list[Fault]:
        self.vending.life_s = rng.choice([-1.0, 0.3, 3600.0, 3600.0])
        of_catalog = super().draw(rng) if rng.random() < 0.6 else []
        if of_catalog and rng.random() < 0.6:
            return of_catalog
        of_bucket = self.bucket.draw(rng)
        for one in of_bucket:
            one.path = f"^/bucket-.*{one.path}"
        return [*of_catalog, *of_bucket]


class DatabaseWorld:
    """Catalog and lock in PostgreSQL behind a proxy; files on the disk."""

    kind = "postgres"

    def __init__(self, server: PostgresServer, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.proxy = DatabaseProxy(server.port)
        self.proxies = [self.proxy]
        self.name = folder.name  # part of every key of the catalog

    def options(self, *, clean: bool) -> list[str]:
        server = self.server if clean else PostgresServer(self.proxy.port)
        given = {"type": "sql", "uri": server.url(), "warehouse": f"file://{self.folder}/wh"}
        return ["--catalog", self.name, *_properties(given)]

    def metadata(self, table: str) -> dict[str, Any]:
        import psycopg

        url = self.server.url().replace("+psycopg", "")
        with psycopg.connect(url) as connection:
            found = connection.execute(
                "SELECT metadata_location FROM iceberg_tables"
                " WHERE catalog_name = %s AND table_namespace = %s AND table_name = %s",
                [self.name, *table.split(".")],
            ).fetchone()
        assert found is not None
        content = Path(found[0].removeprefix("file://")).read_bytes()
        return {**_unzipped(content), "location-of-it": found[0]}

    def draw(self, rng: random.Random) -> list[Fault]:
        swap, commit, read = r"UPDATE iceberg_tables", r"COMMIT", r"SELECT .*iceberg_tables"
        text = rng.choice([swap, swap, commit, commit, commit, read, "", "lock"])
        kind = rng.choice(["refuse", "reset", "reset", "late", "slow"])
        one = Fault(kind, "SQL", text, delay_s=rng.choice([0.0, 0.1, 0.5, 2.0]))
        one.skip, one.times = rng.choice([0, 0, 1, 2, 4, 8]), rng.choice([1, 1, 2, 5])
        return [one]


World = RestWorld | BucketWorld | DatabaseWorld


@dataclass
class History:
    """One seed. `failures` is empty if all went as it has to."""

    world: World
    commands: Commands
    seed: int
    table: str = ""
    main: Rows = field(default_factory=dict)
    pending: list[dict[int, int | None]] = field(default_factory=list)  # by batch
    failures: list[str] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    lines: ClassVar[dict[str, int]] = {}

    def run(self, steps: int = 7) -> None:
        """All of it."""
        rng = self.rng
        self.begin()
        for _ in range(steps):
            if self.failures:
                return
            weights = {
                self._stage: 4, self._publish: 4, self._statement: 4, self._tend: 5, self._read: 4,
            }  # fmt: skip
            [step] = rng.choices(list(weights), list(weights.values()))
            step()
        if not self.failures:
            self._end()

    @functools.cached_property
    def rng(self) -> random.Random:
        return random.Random(self.seed)

    def begin(self) -> None:
        """Make the table, with rows that are published."""
        rng = self.rng
        self.table = f"s.t{self.seed}"
        made = self._icefold(
            "table", "create", self.table, "--primary-key", "id",
            "--column", "id:long!", "--column", "v:long", clean=True,
        )  # fmt: skip
        assert made.code == 0, made
        properties = {
            "commit.retry.min-wait-ms": 10,
            "commit.retry.max-wait-ms": 50,
            "commit.retry.num-retries": rng.choice([1, 4]),
            "commit.status-check.min-wait-ms": 20,
            "commit.status-check.max-wait-ms": 100,
            "commit.status-check.num-retries": rng.choice([1, 3]),
        }
        self._icefold(
            "table",
            "set-properties",
            self.table,
            *(f"{k}={v}" for k, v in properties.items()),
            clean=True,
        )
        self._stage(clean=True)
        self._publish(clean=True)

    def _icefold(self, *argv: str, clean: bool = False) -> Ended:
        """One command, past the proxy if `clean`; else most likely with a fault."""
        rng, kill = self.rng, None
        self.faults: list[Fault] = []
        if not clean:
            if rng.random() < 0.85:
                self.faults = self.world.draw(rng)
            if rng.random() < 0.12:
                kill = (rng.uniform(0.03, 0.9), rng.choice([signal.SIGTERM, signal.SIGKILL]))
        self.world.proxy.faults[:] = self.faults
        ended = self.commands.run(
            [*self.world.options(clean=clean), *argv],
            kill=kill,
            read_timeout_s=None if clean else IMPATIENT_S,
        )
        ended.argv = list(argv)
        for proxy in self.world.proxies:
            proxy.settle()
        self.world.proxy.faults.clear()
        used = [
            f"{f.kind} {f.method} {f.status} x{f.used} skip={f.skip} back={f.back}"
            for f in self.faults
            if f.used
        ]
        self.log.append(f"{'clean' if clean else used} kill={kill}\n{ended}")
        self._check_manners(ended, killed=kill is not None)
        return ended

    def _check_manners(self, ended: Ended, *, killed: bool) -> None:
        err = ended.err
        codes = {0, 1, 3} | ({143, -9} if killed else set())
        if ended.code not in codes:
            self._fail(f"exit code {ended.code}", ended)
        if "Traceback" in err or "Exception ignored" in err or "panicked" in err:
            self._fail("traceback", ended)
        if ended.code == 1 and not err.strip() and not ended.out.strip():
            self._fail("failed without a word", ended)
        if len(err.splitlines()) > LINES_MAX:
            self._fail("many lines", ended)
        for line in err.splitlines():
            shape = re.sub(r"[0-9a-f]{8}-[0-9a-f-]{27,}|s\.t\d+|/\S*|\d+", "#", line)
            self.lines[shape] = self.lines.get(shape, 0) + 1

    def _fail(self, what: str, ended: Ended | None = None) -> None:
        self.failures.append(f"seed {self.seed}: {what}: {ended or ''}")

    def rows(self, *more: str) -> Rows:
        """As DuckDB reads them where it can, else icefold past the proxy."""
        if self.world.kind == "rest" and not more:
            return self._duckdb_rows()
        ended = self._icefold("scan", self.table, "--format", "json", *more, clean=True)
        if ended.code != 0:
            self._fail("clean scan", ended)
            return {}
        return self._parse(ended.out)

    def _parse(self, text: str) -> Rows:
        rows = [json.loads(line) for line in text.splitlines()]
        found = {row["id"]: row["v"] for row in rows}
        if len(found) != len(rows):
            self._fail(f"keys twice: {rows}")
        return found

    def _heads(self) -> dict[str, int]:
        refs = self.world.metadata(self.table)["refs"]
        return {name: ref["snapshot-id"] for name, ref in refs.items()}

    def _snapshots(self) -> set[int]:
        return {each["snapshot-id"] for each in self.world.metadata(self.table)["snapshots"]}

    def _stage(self, clean: bool = False) -> None:
        rng = self.rng
        batch: dict[int, int | None] = {}
        for key in rng.sample(range(12), rng.randint(1, 6)):
            batch[key] = None if rng.random() < 0.3 else rng.randrange(1000)
        name = f"b{self.seed}-{len(self.log)}"
        path = self.commands.folder / f"{name}.jsonl"
        lines = [{"op": "-D" if v is None else "+U", "id": k, "v": v} for k, v in batch.items()]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        argv = [
            "ingest",
            self.table,
            str(path),
            "--query-id",
            name,
            "--format",
            "changelog-json",
            "-o",
            "layout=flat",
        ]
        before = at_start = self._heads().get("staging")
        tries, was_late = 0, False
        while True:
            ended = self._icefold(*argv, clean=clean or tries > 2)
            was_late |= any(fault.kind == "late" and fault.used for fault in self.faults)
            after = self._heads().get("staging")
            if ended.code == 0 or not was_late:  # what an earlier try sent may land in this one
                self._check_claim(ended, landed=after != (at_start if ended.code else before))
            at_start = after
            if ended.code == 0:
                break
            if tries > 3:
                self._fail("does not recover", ended)
                return
            tries += 1
        self.pending.append(batch)

    def _check_claim(self, ended: Ended, *, landed: bool, must_land: bool = True) -> None:
        """A command that says it failed has done nothing; one that says it is done has."""
        if ended.code == 0 and not landed and must_land:
            self._fail("said done, and is not", ended)
        told = ended.is_unknown or ended.code in (143, -9)
        used = {(f.kind, f.status) for f in self.faults if f.used}
        if ("stale", 503) in used and used & {("answer", 400), ("answer", 403)}:
            told = True  # it was told that it was refused, and shown that nothing has landed
        if ended.code == 1 and landed and not told:
            self._fail("said failed, and has landed", ended)

    def _published(self, count: int | None = None) -> Rows:
        """The rows with so many of the staged batches, or all."""
        rows = {**self.main}
        changes = [each for batch in self.pending[:count] for each in batch.items()]
        for key, value in changes:
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value
        return rows

    def _publish(self, clean: bool = False) -> None:
        argv = ["resolve", self.table]
        if not clean and self.rng.random() < 0.3:
            argv = ["maintain", self.table, "--once", "--task", "resolve"]
        self._icefold_to(self._published(), *argv, clean=clean, publishes=True)

    def _icefold_to(
        self, wanted: Rows, *argv: str, clean: bool = False, publishes: bool = False
    ) -> Ended:
        before_id = self._heads().get("main")
        ended = self._icefold(*argv, clean=clean)
        time.sleep(
            0.6 if any(f.kind == "late" and f.used and f.delay_s < 1 for f in self.faults) else 0
        )
        found, head = self.rows(), self._heads().get("main")
        if publishes and any(f.kind == "stale" and f.used for f in self.faults):
            # It publishes what it was shown.
            for count in range(len(self.pending), 0, -1):
                if found == self._published(count) != self.main:
                    self.main, self.pending = found, self.pending[count:]
                    return ended
        if wanted != self.main:
            moved = found == wanted
            if not moved and found != self.main:
                self._fail(f"rows are {found}, before {self.main}, wanted {wanted}", ended)
            self._check_claim(ended, landed=moved)
            if moved and publishes:
                self.pending.clear()
            self.main = found
        else:
            if found != wanted:
                self._fail(f"rows are {found}, wanted {wanted}", ended)
            if publishes and ended.code == 0:
                self.pending.clear()
            self._check_claim(ended, landed=head != before_id, must_land=False)
        return ended

    def _statement(self) -> None:
        rng = self.rng
        key, value = rng.randrange(12), rng.randrange(1000)
        mode = rng.choice(["merge-on-read", "copy-on-write"])
        if rng.random() < 0.4:
            wanted = {k: v for k, v in self.main.items() if k >= key}
            statement = f"DELETE FROM {self.table} WHERE id < {key}"
        else:
            wanted = {k: value if k < key else v for k, v in self.main.items()}
            statement = f"UPDATE {self.table} SET v = {value} WHERE id < {key}"
        retries = rng.choice(["0", "2"])
        self._icefold_to(wanted, "sql", statement, "--mode", mode, "--retries", retries)

    def _tend(self) -> None:
        argv = self.rng.choice(
            [
                ["compact", self.table, "--rewrite-all"],
                ["compact", self.table, "--min-files", "1", "--dv-share", "0.1"],
                ["expire", self.table, "--older-than", "1ms"],
                ["expire", self.table, "--older-than", "1ms", "--keep", "2"],
                ["rewrite-vectors", self.table],
                ["rewrite-manifests", self.table],
                ["drop-dead-deletes", self.table],
                ["orphans", self.table, "--older-than", "1h", "--delete"],
                ["maintain", self.table, "--once", "--task", "compact", "--task", "expire"],
            ]
        )
        before = self._snapshots()
        ended = self._icefold_to(self.main, *argv)
        if (
            argv[0] == "expire"
            and ended.code == 1
            and not ended.is_unknown
            and "snapshots have expired" not in ended.err
            and before - self._snapshots()
        ):
            self._fail("expiry said it failed, and has expired", ended)

    def _read(self) -> None:
        which = self.rng.randrange(5)
        if which == 0:
            ended = self._icefold("scan", self.table, "--format", "json")
            if ended.code == 0:
                found = self._parse(ended.out)
                if found != self.main and not any(
                    f.kind == "stale" and f.used for f in self.faults
                ):
                    self._fail(f"scan says {found}, not {self.main}", ended)
        elif which == 1:
            self._icefold("changes", self.table, "--format", "json")
        elif which == 2:
            self._icefold("status", self.table, "--json")
        elif which == 3:
            ended = self._icefold("scan", self.table, "--branch", "staging", "--format", "json")
            is_stale = any(f.kind == "stale" and f.used for f in self.faults)
            if ended.code == 0 and not is_stale:
                self._parse(ended.out)
        else:
            key = self.rng.randrange(12)
            ended = self._icefold("lookup", self.table, f"id={key}", "--format", "json")
            is_stale = any(f.kind == "stale" and f.used for f in self.faults)
            if ended.code == 0 and not is_stale:
                given = json.loads(ended.out)["rows"]
                found = [row["v"] for row in given]
                wanted = [self.main[key]] if key in self.main else []
                if found != wanted:
                    self._fail(f"lookup of {key} says {found}, not {wanted}", ended)

    def _end(self) -> None:
        """Clean runs make all of it right."""
        time.sleep(2.1 if any("late" in line for line in self.log) else 0)
        for argv in (
            ["resolve", self.table],
            ["expire", self.table, "--older-than", "1ms"],
            ["compact", self.table, "--rewrite-all"],
        ):
            ended = self._icefold_to(self._published(), *argv, clean=True, publishes=True)
            if ended.code != 0:
                self._fail("clean run", ended)
        ended = self._icefold("scan", self.table, "--format", "json", clean=True)
        if ended.code != 0 or self._parse(ended.out) != self.main:
            self._fail(f"scan at the end, not {self.main}", ended)

    def _duckdb_rows(self) -> Rows:
        metadata = self.world.metadata(self.table)
        if metadata.get("current-snapshot-id", -1) in (-1, None):
            return {}
        location = metadata["location-of-it"].removeprefix("file://")
        query = f"SELECT id, v FROM iceberg_scan('{location}')"
        rows = duckdb_connection().execute(query).fetchall()
        if len(dict(rows)) != len(rows):
            self._fail(f"keys twice: {sorted(rows)}")
        return dict(rows)


def _unzipped(content: bytes) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(
        gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
    )
    return read


def _properties(given: dict[str, str]) -> list[str]:
    return [part for key, value in given.items() for part in ("-p", f"{key}={value}")]


def _error(status: int, kind: str, message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": kind, "code": status}}).encode()


def _xml(code: str) -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>x</Message></Error>".encode()


def rest_world(folder: Path) -> RestWorld:
    """Of the server of this test run."""
    (folder / "lock").mkdir()
    server = rest_server()
    return RestWorld(server.uri, server.warehouse, folder / "lock")


def rest_bucket_world(folder: Path) -> RestBucketWorld:
    """Of the server of this test run."""
    (folder / "rest-lock").mkdir()
    server = rest_server(in_bucket=True)
    return RestBucketWorld(server.uri, server.warehouse, folder / "rest-lock")


def bucket_world(folder: Path) -> BucketWorld:
    """With a bucket of its own."""
    return BucketWorld(s3_server().endpoint, fresh_bucket(), folder)


def database_world(folder: Path) -> DatabaseWorld:
    """With a catalog of its own name."""
    return DatabaseWorld(postgres_server(), folder)


MAKERS = {
    "rest": rest_world,
    "s3": bucket_world,
    "rest-s3": rest_bucket_world,
    "postgres": database_world,
}


def main() -> None:
    """`python -m tests.support.faulty_histories FIRST COUNT [KIND...]`: prints what is wrong."""
    first, count = int(sys.argv[1]), int(sys.argv[2])
    kinds = sys.argv[3:] or [*MAKERS]
    with tempfile.TemporaryDirectory(prefix="icefold-faults-") as name:
        folder = Path(name)
        os.chdir(folder)
        both = [MAKERS[kind](folder) for kind in kinds]
        commands = Commands(folder)
        for done, seed in enumerate(range(first, first + count), 1):
            history = History(both[seed % len(both)], commands, seed)
            try:
                history.run()
            except Exception as error:
                history._fail(f"{type(error).__name__}: {error}")
            if history.failures:
                print(
                    "\n=====",
                    both[seed % len(both)].kind,
                    *history.failures,
                    "-- last --",
                    *history.log[-8:],
                    sep="\n",
                    flush=True,
                )
            elif done % 5 == 0:
                print("done", done, len(history.log), flush=True)
        print("lines:")
        for shape, times in sorted(History.lines.items(), key=lambda one: -one[1]):
            print(times, shape[:400])
        commands.close()


if __name__ == "__main__":
    main()
