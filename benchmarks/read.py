"""Reading on Spark with deletes applied, staging merged on read, and changelogs.

    scripts/bench read [--rows 10000000] [--repeat 5] [--sections scan staging changes]
                       [--staged 1000000] [--no-peer]

One table with an int64 key and three other columns, local files, two threads. Sections:

- `scan`: all columns, and a sum of one, with 5 % of the rows deleted by vectors, and of
  the same files before that; then Apache Iceberg's Spark runtime on the same table (needs Maven).
  Bars: at most 1.15 times the scan without deletes, at most 1.2 times the runtime;
- `staging`: the same queries with a million staged deletes unresolved, beside the runtime's
  merge-on-read. Bar: no slower;
- `changes`: the changelog of a commit that changes 1 % of the rows (four fifths updates, the rest
  deletes, random keys), as Arrow batches and in Spark. Bar: 2 s for 10 M rows.

Lookups: `scripts/bench lookup`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from rich.console import Console
from rich.table import Table as Grid

import tableformat as tf
from benchmarks.support.java_iceberg import NoPeerError, fast_java_iceberg
from benchmarks.support.resolve_tables import TABLE, batch_of, create_table, rows_of
from resolver import resolve
from tableformat.spark.session import local_session
from tests.support.java_iceberg import JavaIceberg

SECTIONS = ("scan", "staging", "changes")
QUERIES = {
    "all columns": 'frame.write.format("noop").mode("overwrite").save()',
    "sum of one": 'frame.selectExpr("sum(a)").collect()',
}
PEER = """
import time
from pyspark.sql import SparkSession
spark = SparkSession.getActiveSession()
def read():
    frame = spark.read.format("iceberg").options(**{options!r}).load({location!r})
    {query}
read()
rows = []
for _ in range({repeat}):
    begin = time.perf_counter()
    read()
    rows.append(time.perf_counter() - begin)
"""
DELETED_SHARE, CHANGED_SHARE, UPDATED_SHARE = 0.05, 0.01, 0.8
SCAN_RATIO_MAX, PEER_RATIO_MAX, STAGING_RATIO_MAX, CHANGES_SECONDS_MAX = 1.15, 1.2, 1.0, 2.0

Read = Callable[[], DataFrame]


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench read", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--staged", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--no-peer", action="store_true")
    arguments = parser.parse_args()
    console = Console(width=120)
    with tempfile.TemporaryDirectory(prefix="icefold-bench-") as temporary:
        Bench(console, Path(temporary), arguments).run()
    return 0


class Bench:
    """One table that the sections change, one after the other."""

    def __init__(self, console: Console, folder: Path, arguments: argparse.Namespace) -> None:
        self.console = console
        self.rows: int = arguments.rows
        self.staged: int = arguments.staged
        self.repeat: int = arguments.repeat
        self.sections: list[str] = list(arguments.sections)
        create_table(folder, self.rows)
        self.table = tf.open_catalog("local", warehouse=str(folder)).load_table(TABLE)
        resolve(self.table)
        self.spark = local_session("icefold-bench", cores=2, memory="6g")
        self.peer: JavaIceberg | str = "left out"
        if not arguments.no_peer:
            try:
                self.peer = fast_java_iceberg(folder)
            except NoPeerError as error:
                self.peer = str(error)

    def run(self) -> None:
        """The sections in their order."""
        for name in SECTIONS:
            if name in self.sections:
                getattr(self, name)()
        if isinstance(self.peer, str):
            self.console.print(f"without Apache Iceberg's runtime: {self.peer}")
        else:
            self.peer.close()

    def scan(self) -> None:
        """5 % deleted against nothing deleted, in turns."""
        before = self.head()
        gone = np.random.default_rng(1).choice(
            self.rows, int(self.rows * DELETED_SHARE), replace=False
        )
        self.table.stage(deletes=pa.table({"id": gone}))
        resolve(self.table)
        after = self.head()
        grid = Grid(
            "query", "no deletes s", "5 % deleted s", "ratio", "bar", "runtime s", "ratio", "bar",
            title=f"scan, {self.rows:,} rows, {self.repeat} repeats",
        )  # fmt: skip
        for name, query in QUERIES.items():
            reads = {each: self.reader(snapshot_id=each) for each in (before, after)}
            seconds = self.measure(query, reads)
            peer = self.measure_peer(query, {})
            ratio = seconds[after] / seconds[before]
            grid.add_row(
                name, f"{seconds[before]:.3f}", f"{seconds[after]:.3f}",
                f"{ratio:.2f}", bar(ratio, SCAN_RATIO_MAX),
                *peer_cells(seconds[after], peer, PEER_RATIO_MAX),
            )  # fmt: skip
        self.console.print(grid)

    def staging(self) -> None:
        """Staged deletes that are not resolved, merged on read."""
        self.table.stage(upserts=batch_of(self.rows, self.staged, seed=2))
        grid = Grid(
            "query", "icefold s", "runtime s", "ratio", "bar",
            title=f"staging, {self.rows:,} rows, {self.staged:,} upserts unresolved",
        )  # fmt: skip
        for name, query in QUERIES.items():
            seconds = self.measure(query, {0: self.reader(branch="staging")})[0]
            peer = self.measure_peer(query, {"branch": "staging"})
            cells = peer_cells(seconds, peer, STAGING_RATIO_MAX)
            grid.add_row(name, f"{seconds:.3f}", *cells)
        self.console.print(grid)
        resolve(self.table)

    def changes(self) -> None:
        """1 % of the rows changed in one commit."""
        before = self.head()
        count = int(self.rows * CHANGED_SHARE)
        ids = np.random.default_rng(3).choice(self.rows, count, replace=False)
        updated = int(count * UPDATED_SHARE)
        self.table.stage(
            upserts=rows_of(ids[:updated], seed=4), deletes=pa.table({"id": ids[updated:]})
        )
        resolve(self.table)
        grid = Grid(
            "reader", "seconds", "changes", "bar",
            title=f"changelog, {self.rows:,} rows, {count:,} changed",
        )  # fmt: skip
        for net in (False, True):
            name = "Arrow batches, " + ("net" if net else "per snapshot")
            seconds, found = self.timed(
                lambda net=net: sum(  # type: ignore[misc]
                    batch.num_rows for batch in self.table.changes(before, net=net).to_batches()
                )
            )
            grid.add_row(name, f"{seconds:.3f}", f"{found:,}", bar(seconds, CHANGES_SECONDS_MAX))
        seconds, found = self.timed(lambda: self.table.changes(before).to_spark(self.spark).count())
        grid.add_row("Spark", f"{seconds:.3f}", f"{found:,}", bar(seconds, CHANGES_SECONDS_MAX))
        self.console.print(grid)

    def head(self) -> int:
        """The newest snapshot of `main`."""
        snapshot = self.table.refresh().state.head("main")
        assert snapshot is not None
        return snapshot.snapshot_id

    def reader(self, *, snapshot_id: int | None = None, branch: str | None = None) -> Read:
        """Plans and makes the frame anew each time, as a user's query does."""
        return lambda: self.table.scan(snapshot_id=snapshot_id, branch=branch).to_spark(self.spark)

    def measure(self, query: str, reads: Mapping[int, Read]) -> dict[int, float]:
        """Median seconds of a query per reader; readers take turns."""
        seconds: dict[int, list[float]] = {key: [] for key in reads}
        for turn in range(self.repeat + 1):
            for key, read in reads.items():
                begin = time.perf_counter()
                exec(query, {"frame": read()})
                if turn:  # the first one compiles
                    seconds[key].append(time.perf_counter() - begin)
        return {key: statistics.median(values) for key, values in seconds.items()}

    def measure_peer(self, query: str, options: Mapping[str, str]) -> float | None:
        """Median seconds of the runtime on the table's current metadata."""
        if isinstance(self.peer, str):
            return None
        code = PEER.format(
            options=dict(options),
            location=self.table.refresh().metadata_location,
            query=query,
            repeat=self.repeat,
        )
        seconds = self.peer.request("run", code=code)
        return statistics.median(seconds)

    def timed(self, read: Callable[[], int]) -> tuple[float, int]:
        """Median seconds, and what it gave; the first run warms up."""
        found = read()
        seconds = []
        for _ in range(self.repeat):
            begin = time.perf_counter()
            found = read()
            seconds.append(time.perf_counter() - begin)
        return statistics.median(seconds), found


def bar(value: float, most: float) -> str:
    """Whether a bar is met."""
    return f"{'met' if value <= most else 'MISSED'} (<= {most:g})"


def peer_cells(seconds: float, peer: float | None, most: float) -> tuple[str, str, str]:
    """Seconds of the peer, the ratio to it, and the bar."""
    if peer is None:
        return "-", "-", "-"
    return f"{peer:.3f}", f"{seconds / peer:.2f}", bar(seconds / peer, most)


if __name__ == "__main__":
    raise SystemExit(main())
