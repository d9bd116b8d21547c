"""Reading on Spark with deletes applied, staging merged on read, and changelogs.

    scripts/bench read [--rows 10000000] [--repeat 5] [--sections scan staging changes]
                       [--staged 1000000] [--no-runtime]

One table with an int64 key and three other columns, local files, two threads. Sections:

- `scan`: all columns, and a sum of one, with 5 % of the rows deleted by vectors, and of the same
  files before that. Icefold's Arrow reader: at most 1.3 times its own time without deletes. Through
  Apache Iceberg's runtime (needs Maven): at most 1.05 times what the runtime takes when it is asked
  directly, with deletes and without;
- `staging`: the same queries with a million staged deletes unresolved. Through the runtime: the
  same bar; the Arrow reader beside it;
- `changes`: the changelog of a commit that changes 1 % of the rows (four fifths updates, the rest
  deletes, random keys), as Arrow batches and in Spark. Bar: 2 s for 10 M rows.

Lookups: `scripts/bench lookup`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from rich.console import Console
from rich.table import Table as Grid

import tableformat as tf
from benchmarks.support.resolve_tables import TABLE, batch_of, create_table, rows_of
from resolver import resolve
from tableformat.spark.session import local_session
from tests.support.java_iceberg import Missing, runtime_session

SECTIONS = ("scan", "staging", "changes")
QUERIES = {
    "all columns": 'frame.write.format("noop").mode("overwrite").save()',
    "sum of one": 'frame.selectExpr("sum(a)").collect()',
}
DELETED_SHARE, CHANGED_SHARE, UPDATED_SHARE = 0.05, 0.01, 0.8
ARROW_RATIO_MAX, RUNTIME_RATIO_MAX, CHANGES_SECONDS_MAX = 1.3, 1.05, 2.0

ARROW, THROUGH, RUNTIME = "Arrow reader", "through the runtime", "the runtime itself"

Read = Callable[[], DataFrame]
Name = TypeVar("Name", bound=Hashable)


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench read", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--staged", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--no-runtime", action="store_true")
    arguments = parser.parse_args()
    console = Console(width=120)
    found = Missing("left out") if arguments.no_runtime else runtime_session()
    if not isinstance(found, Missing):
        _use_its_pyspark(found[1])
    with tempfile.TemporaryDirectory(prefix="icefold-bench-") as temporary:
        Bench(console, Path(temporary), arguments, found).run()
    return 0


def _use_its_pyspark(packages: Path) -> None:
    """Start over with the PySpark that the runtime is made for, unless this is it."""
    path = os.environ.get("PYTHONPATH", "")
    if str(packages) not in path:
        given = {"PYTHONPATH": os.pathsep.join(filter(None, [str(packages), path]))}
        os.execve(
            sys.executable,
            [sys.executable, "-m", "benchmarks.read", *sys.argv[1:]],
            os.environ | given,
        )


class Bench:
    """One table that the sections change, one after the other."""

    def __init__(
        self,
        console: Console,
        folder: Path,
        arguments: argparse.Namespace,
        found: tuple[str, Path] | Missing,
    ) -> None:
        self.console = console
        self.rows: int = arguments.rows
        self.staged: int = arguments.staged
        self.repeat: int = arguments.repeat
        self.sections: list[str] = list(arguments.sections)
        create_table(folder, self.rows)
        self.table = tf.open_catalog("local", warehouse=str(folder)).load_table(TABLE)
        resolve(self.table)
        self.has_runtime = not isinstance(found, Missing)
        conf: dict[str, str] = {}
        if isinstance(found, Missing):
            console.print(f"without Apache Iceberg's runtime: {found.reason}")
        else:
            conf["spark.driver.extraClassPath"] = found[0]
        self.spark = local_session("icefold-bench", cores=2, memory="6g", conf=conf)

    def run(self) -> None:
        """The sections in their order."""
        for name in SECTIONS:
            if name in self.sections:
                getattr(self, name)()

    def scan(self) -> None:
        """5 % deleted against nothing deleted, in turns."""
        before = self.head()
        gone = np.random.default_rng(1).choice(
            self.rows, int(self.rows * DELETED_SHARE), replace=False
        )
        self.table.stage(deletes=pa.table({"id": gone}))
        resolve(self.table)
        versions = {"no deletes": before, "5 % deleted": self.head()}
        grid = Grid(
            "query", "reader", *(f"{name} s" for name in versions), "ratio", "bar",
            title=f"scan, {self.rows:,} rows, {self.repeat} repeats",
        )  # fmt: skip
        for name, query in QUERIES.items():
            reads = {
                (kind, version): reader
                for version, snapshot_id in versions.items()
                for kind, reader in self.readers(snapshot_id=snapshot_id).items()
            }
            seconds = self.measure(query, reads)
            for kind in dict.fromkeys(kind for kind, _ in reads):
                own = [seconds[kind, version] for version in versions]
                ratio, most = own[1] / own[0], ARROW_RATIO_MAX if kind == ARROW else None
                grid.add_row(name, kind, *cells(own), f"{ratio:.2f}", bar(ratio, most))
            if self.has_runtime:
                pairs = [seconds[THROUGH, each] / seconds[RUNTIME, each] for each in versions]
                grid.add_row(
                    name, "through / itself", *cells(pairs), "", bar(max(pairs), RUNTIME_RATIO_MAX)
                )
        self.console.print(grid)

    def staging(self) -> None:
        """Staged deletes that are not resolved, merged on read."""
        self.table.stage(upserts=batch_of(self.rows, self.staged, seed=2))
        grid = Grid(
            "query", "reader", "seconds", "of the runtime's", "bar",
            title=f"staging, {self.rows:,} rows, {self.staged:,} upserts unresolved",
        )  # fmt: skip
        for name, query in QUERIES.items():
            seconds = self.measure(query, self.readers(branch="staging"))
            for kind, found in seconds.items():
                ratio = found / seconds.get(RUNTIME, found)
                most = RUNTIME_RATIO_MAX if kind == THROUGH else None
                grid.add_row(name, kind, f"{found:.3f}", f"{ratio:.2f}", bar(ratio, most))
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

    def readers(
        self, *, snapshot_id: int | None = None, branch: str | None = None
    ) -> dict[str, Read]:
        """Each plans and makes the frame anew, as a user's query does."""

        def scan(*, runtime: bool) -> DataFrame:
            found = self.table.scan(snapshot_id=snapshot_id, branch=branch)
            return found.to_spark(self.spark, runtime=runtime)

        def itself() -> DataFrame:
            version = {"branch": branch} if branch else {"versionAsOf": str(snapshot_id)}
            location = self.table.refresh().metadata_location
            return self.spark.read.format("iceberg").options(**version).load(location)

        readers: dict[str, Read] = {ARROW: partial(scan, runtime=False)}
        return readers | (
            {THROUGH: partial(scan, runtime=True), RUNTIME: itself} if self.has_runtime else {}
        )

    def measure(self, query: str, reads: Mapping[Name, Read]) -> dict[Name, float]:
        """Median seconds of a query per reader; readers take turns."""
        seconds: dict[Name, list[float]] = {key: [] for key in reads}
        for turn in range(self.repeat + 1):
            for key, read in reads.items():
                begin = time.perf_counter()
                exec(query, {"frame": read()})
                if turn:  # the first one compiles
                    seconds[key].append(time.perf_counter() - begin)
        return {key: statistics.median(values) for key, values in seconds.items()}

    def timed(self, read: Callable[[], int]) -> tuple[float, int]:
        """Median seconds, and what it gave; the first run warms up."""
        found = read()
        seconds = []
        for _ in range(self.repeat):
            begin = time.perf_counter()
            found = read()
            seconds.append(time.perf_counter() - begin)
        return statistics.median(seconds), found


def bar(value: float, most: float | None) -> str:
    """Whether a bar is met; none for what is only shown."""
    return "" if most is None else f"{'met' if value <= most else 'MISSED'} (<= {most:g})"


def cells(values: Sequence[float]) -> list[str]:
    """Numbers of a row."""
    return [f"{value:.3f}" for value in values]


if __name__ == "__main__":
    raise SystemExit(main())
