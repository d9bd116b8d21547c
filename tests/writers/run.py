"""A real writer beside icefold, both killed, and every row compared with what was written.

The writer is a process of its own, as is `icefold maintain`, which resolves, compacts and expires
all the time. While they run, DuckDB reads `main` every few seconds: it must be what some number of
the events lead to, and no number below the last one. At the end DuckDB and Iceberg's Spark runtime
read every table, and the exit code is 1 on any difference.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType, NestedField, StringType

from tableformat.spec.names import CARRIED, COMMITTED_TO
from tests.pipeline.service import PROGRAM, Service
from tests.support.guard import stop_with_this_process
from tests.support.interop_engines import duckdb_connection
from tests.support.java_iceberg import java_iceberg
from tests.support.pipeline import ROOT
from tests.support.rest_catalog import rest_server
from tests.writers.connect import connect_writer, missing_connect
from tests.writers.events import SCHEMA, Events, Numbers
from tests.writers.flink import flink_writer, missing_flink
from tests.writers.job import Job
from tests.writers.statements import (
    missing_spark,
    missing_trino_server,
    spark_writer,
    trino_writer,
)

NAMESPACE = "shop"
CHECK_S, PAUSE_MAX_S, END_S = 5.0, 5.0, 1200.0
AT_COMMIT, COMMIT_MAX_S = 0.5, 20.0  # writers that are killed as soon as a commit is there
# All the time: a writer has to live with each of them.
SETTINGS = {
    "compact.commits": 6,
    "compact.files": 12,
    "compact.min-interval-ms": 4000,
    "expire.snapshots": 5,
    "expire.min-interval-ms": 3000,
    "rewrite-vectors.dvs": 20,
    "rewrite-vectors.position-delete-files": 8,
    "rewrite-vectors.min-interval-ms": 7000,
    "rewrite-manifests.commits": 25,
    "rewrite-manifests.min-interval-ms": 9000,
    "drop-dead-deletes.min-interval-ms": 6000,
}
EQUALITY_DELETES = """
    SELECT count(*) FROM iceberg_metadata('{}')
    WHERE content = 'EQUALITY_DELETES' AND status <> 'DELETED'
"""
AGE_MS = 3000  # snapshots older than that are expired
STATEMENT_MS = 60_000  # where statements read a snapshot, which has to outlive them


class Writer:
    """How a writer is had.

    Attributes:
        missing: What is missing; fetches it.
        start: The process, not started.
        appends: It cannot upsert.
        tables: How many it writes to.
        ends: Its process ends with 0 when all is committed.
        age_ms: How old snapshots become.
        events: Of how many events, keys, and events in one commit.
    """

    def __init__(
        self,
        missing: Callable[[], str | None],
        start: Callable[[Job], Service],
        *,
        appends: bool = False,
        tables: int = 1,
        ends: bool = True,
        age_ms: int = AGE_MS,
        events: Callable[[int, int, int], Events] = lambda count, keys, _: Events.of(count, keys),
    ) -> None:
        self.missing, self.start, self.appends = missing, start, appends
        self.tables, self.ends, self.age_ms, self.events = tables, ends, age_ms, events


WRITERS = {
    "flink": Writer(missing_flink, lambda job: flink_writer("flink", job)),
    "flink-old": Writer(missing_flink, lambda job: flink_writer("flink-old", job)),
    "flink-sql": Writer(missing_flink, lambda job: flink_writer("flink-sql", job)),
    "flink-sql-changelog": Writer(
        missing_flink, lambda job: flink_writer("flink-sql-changelog", job)
    ),
    "flink-dynamic": Writer(
        missing_flink, lambda job: flink_writer("flink-dynamic", job), tables=2
    ),
    "spark-append": Writer(
        missing_spark, lambda job: spark_writer("spark-append", job), appends=True
    ),
    "spark-merge": Writer(
        missing_spark, lambda job: spark_writer("spark-merge", job), age_ms=STATEMENT_MS
    ),
    "spark-statements": Writer(
        missing_spark,
        lambda job: spark_writer("spark-statements", job),
        events=Events.of_groups,
        age_ms=STATEMENT_MS,
    ),
    "trino": Writer(
        missing_trino_server, lambda job: trino_writer("trino", job), age_ms=STATEMENT_MS
    ),
    "trino-statements": Writer(
        missing_trino_server,
        lambda job: trino_writer("trino-statements", job),
        events=Events.of_groups,
        age_ms=STATEMENT_MS,
    ),
    "connect": Writer(missing_connect, connect_writer, appends=True, ends=False),
}


def main(words: Sequence[str] | None = None) -> int:
    """Run with command-line words; 1: a difference."""
    parser = argparse.ArgumentParser(prog="scripts/writers", description=__doc__)
    parser.add_argument("--writer", choices=sorted(WRITERS), default="flink")
    parser.add_argument("--format-version", type=int, choices=(2, 3), default=3)
    parser.add_argument("--place", choices=("branch", "main"), default="branch")
    parser.add_argument("--buckets", type=int, default=0, help="partitions; 0: none")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--kills", type=int, default=10, help="half of them the writer's")
    parser.add_argument("--keys", type=int, default=20_000)
    parser.add_argument("--per-second", type=float, default=400.0, help="events")
    parser.add_argument("--checkpoint-s", type=float, default=3.0, help="between two commits")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="the logs")
    given = parser.parse_args(words)
    missing = WRITERS[given.writer].missing()
    if missing is not None:
        print(f"scripts/writers: {missing}", file=sys.stderr)
        return 1
    folder = Path(tempfile.mkdtemp(prefix="icefold-writers-"))
    if not given.keep:
        stop_with_this_process(["true"], folder)
    return Run(given, folder).run()


class Run:
    def __init__(self, given: argparse.Namespace, folder: Path) -> None:
        self._given, self._folder = given, folder
        self._random = random.Random(given.seed)
        self._writer = WRITERS[given.writer]
        self._server = rest_server()
        self._branch = "staging" if given.place == "branch" else "main"
        count = int(given.minutes * 60 * given.per_second)
        keys = 0 if self._writer.appends else given.keys
        self._tables = tuple(f"{NAMESPACE}.orders{n}" for n in range(self._writer.tables))
        self._job = Job(
            uri=self._server.uri,
            tables=self._tables,
            branch=self._branch,
            events=count,
            keys=keys,
            per_second=given.per_second,
            checkpoint_s=given.checkpoint_s,
            folder=folder,
        )
        self._events = self._writer.events(count, keys, self._job.batch)
        self._reached = dict.fromkeys(self._tables, 0)
        self._counts: Counter[str] = Counter()
        self._problems: list[str] = []
        self._is_complete = True  # all events, so that the end is known

    @property
    def _options(self) -> list[str]:
        properties = {
            "type": "rest",
            "uri": self._server.uri,
            "allowed-locations": self._server.warehouse,
            "lock-url": f"sqlite:///{self._folder}/locks.db",
            "index-directory": str(self._folder / "index"),
        }
        words = [word for key, text in properties.items() for word in ("-p", f"{key}={text}")]
        return ["--catalog", "rest", *words]

    @property
    def _catalog(self) -> RestCatalog:
        return RestCatalog("rest", uri=self._server.uri)

    def run(self) -> int:
        self._create_tables()
        writer = self._writer.start(self._job)
        settings = [
            word
            for name, value in SETTINGS.items()
            for word in ("--set", f"icefold.maintain.{name}={value}")
        ]
        words = ["maintain", *self._tables, "--staging", self._branch, *settings]
        resolver = Service("resolver", [*self._options, *words], self._folder)
        try:
            self._work(writer, resolver)
        finally:
            writer.kill()
            resolver.stop()
        self._finish()
        return self._report(writer, resolver)

    def _create_tables(self) -> None:
        schema = Schema(
            NestedField(1, "id", LongType(), required=True),
            NestedField(2, "region", StringType()),
            NestedField(3, "v", StringType()),
            identifier_field_ids=[1],
        )
        buckets = self._given.buckets
        field = PartitionField(1, 1000, BucketTransform(buckets or 1), "part")
        spec = PartitionSpec(field) if buckets else UNPARTITIONED_PARTITION_SPEC
        self._catalog.create_namespace_if_not_exists(NAMESPACE)
        for name in self._tables:
            self._catalog.create_table(
                name,
                schema,
                partition_spec=spec,
                properties={
                    "format-version": str(self._given.format_version),
                    "history.expire.max-snapshot-age-ms": str(self._writer.age_ms),
                    "history.expire.min-snapshots-to-keep": "1",
                    "commit.retry.num-retries": "20",
                    "write.merge.mode": "merge-on-read",
                    "write.delete.mode": "merge-on-read",
                    # Files that are rewritten on a staging branch cannot be resolved.
                    "write.update.mode": "merge-on-read"
                    if self._branch != "main"
                    else "copy-on-write",
                },
            )

    def _work(self, writer: Service, resolver: Service) -> None:
        """Until the writer is through; who is killed when `main` has got how far is drawn."""
        kills = sorted((self._random.uniform(0.01, 0.9), n % 2) for n in range(self._given.kills))
        start, checked_s = time.monotonic(), 0.0
        while not self._is_through(writer):
            now = time.monotonic() - start
            if now > self._given.minutes * 60 + END_S:
                self._problem(f"the writer is not through after {now:.0f} s")
                self._is_complete = False
                return
            for service in (writer, resolver):
                service.keep_up()
            if now - checked_s >= CHECK_S:
                checked_s = now
                for name in self._tables:
                    self._check(name)
            reached = max(self._reached.values())
            if kills and reached >= kills[0][0] * len(self._events):
                service = (writer, resolver)[kills.pop(0)[1]]
                if service.process is not None:
                    if service is writer and self._random.random() < AT_COMMIT:
                        self._await_commit()
                    self._counts[f"kills of the {service.name}"] += 1
                    service.kill(self._random.uniform(0, PAUSE_MAX_S))
                    print(f"{now:.0f} s: killed the {service.name} at {reached:,}", flush=True)
            time.sleep(0.2)

    def _await_commit(self) -> None:
        """Until the writer has committed, which it may not have noted yet."""
        before, end_s = self._commits(), time.monotonic() + COMMIT_MAX_S
        while self._commits() <= before and time.monotonic() < end_s:
            time.sleep(0.01)

    def _commits(self) -> set[int]:
        """Snapshots of the first table that are not icefold's."""
        snapshots = self._catalog.load_table(self._tables[0]).metadata.snapshots
        told = ((each.snapshot_id, each.summary) for each in snapshots)
        return {id_ for id_, summary in told if not (summary and summary.get(COMMITTED_TO))}

    def _is_through(self, writer: Service) -> bool:
        if self._writer.ends:
            return writer.status == 0
        return all(reached == len(self._events) for reached in self._reached.values())

    def _check(self, name: str) -> None:
        """`main` is a state that the events lead to, and not one of before."""
        try:
            rows = self._read(name)
        except Exception:  # a file that has expired while it was read
            self._counts["reads that failed"] += 1
            return
        self._counts["reads while it ran"] += 1
        state = self._events.state_of(rows)
        if isinstance(state, str):
            self._problem(f"{name}: {state}")
            return
        end = self._events.prefix_of(state, **self._part(name))
        if end is None:
            newest = int(state.max(initial=-1)) + 1
            wanted = self._events.state(newest, **self._part(name))
            wrong = (wanted != state).nonzero()[0]
            self._problem(
                f"{name}: no number of events leads to this; after {newest:,}: "
                f"{_differing(wrong, state, wanted)}"
            )
        elif end < self._reached[name]:
            self._problem(f"{name}: back at {end:,} events after {self._reached[name]:,}")
        else:
            self._reached[name] = end

    def _problem(self, text: str) -> None:
        self._problems.append(text)
        print(f"WRONG {text}", flush=True)

    def _part(self, name: str) -> dict[str, int]:
        return {"part": self._tables.index(name), "parts": len(self._tables)}

    def _read(self, name: str) -> pa.Table:
        """`main`, by DuckDB."""
        table = self._catalog.load_table(name)
        if table.metadata.current_snapshot_id is None:
            return SCHEMA.empty_table()
        if self._branch != "main" and not table.current_snapshot().summary.get(CARRIED):
            self._problem(f"{name}: the writer went to main, not to its branch")
        columns = ", ".join(SCHEMA.names)
        query = f"SELECT {columns} FROM iceberg_scan('{table.metadata_location}')"
        return duckdb_connection().execute(query).to_arrow_table()

    def _finish(self) -> None:
        """Publish the rest, then compare in both readers, with no equality delete left."""
        for name in self._tables:
            words = ["resolve", name, "--staging", self._branch]
            done = subprocess.run(
                [sys.executable, "-c", PROGRAM, *self._options, *words],
                capture_output=True,
                text=True,
                check=False,
                cwd=self._folder,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
            )
            if done.returncode:
                self._problem(f"{name}: {done.stderr[-1000:]}")
                continue
            location = self._catalog.load_table(name).metadata_location
            self._compare(name, "DuckDB", self._read(name))
            in_java = java_iceberg().read(location, SCHEMA.names)
            self._compare(name, "Iceberg's Spark runtime", in_java)
            (left,) = duckdb_connection().execute(EQUALITY_DELETES.format(location)).fetchone()
            if left:
                self._problem(f"{name}: {left} equality delete files are left on main")

    def _compare(self, name: str, reader: str, rows: pa.Table) -> None:
        found = self._events.state_of(rows)
        if isinstance(found, str):
            self._problem(f"{name} in {reader}: {found}")
            return
        end: int | None = len(self._events)
        if not self._is_complete:
            end = self._events.prefix_of(found, **self._part(name))
        if end is None:
            self._problem(f"{name} in {reader}: no number of events leads to this")
            return
        wanted = self._events.state(end, **self._part(name))
        wrong = (found != wanted).nonzero()[0]
        self._counts["rows compared"] += len(rows)
        if len(wrong):
            self._problem(f"{name} in {reader}: {_differing(wrong, found, wanted)}")

    def _report(self, writer: Service, resolver: Service) -> int:
        given = self._given
        for service, words, what in (
            (resolver, "is left out", "batches left out"),
            (writer, "again: ", "statements run again"),
        ):
            text = (self._folder / f"{service.name}.log").read_text(errors="replace")
            self._counts[what] = text.count(words)
        print(
            f"{given.writer}, v{given.format_version}, {given.place}: "
            f"{len(self._events):,} events in {given.minutes:g} minutes; "
            f"{len(writer.lives)} lives of the writer ({writer.ends} ended by themselves), "
            f"{len(resolver.lives)} of icefold ({resolver.ends})"
        )
        print(", ".join(f"{count:,} {what}" for what, count in sorted(self._counts.items())))
        if self._problems:
            print(f"{len(self._problems)} problems; logs in {self._folder}")
            for service in (writer, resolver):
                log = self._folder / f"{service.name}.log"
                text = log.read_text(errors="replace") if log.exists() else ""
                print(f"--- {log.name}\n{text[-1500:]}")
        print("zero differences" if not self._problems else f"DIFFERENT: {self._problems[0]}")
        return int(bool(self._problems))


def _differing(wrong: Numbers, found: Numbers, wanted: Numbers) -> str:
    key = wrong[0]
    return f"{len(wrong):,} keys differ, such as {key}: event {found[key]} for {wanted[key]}"


if __name__ == "__main__":
    sys.exit(main())
