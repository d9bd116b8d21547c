"""DELETE and UPDATE of 1 %, 10 % and 50 % of a table, in both write modes, beside peers.

Local files, SQLite, one machine. The rows that change are spread evenly over all files, so metadata
drops nothing. Every statement starts from the same table: on a branch of its own, or on a copy.

- `icefold`: in this process, on Arrow; `icefold-spark`: the same statement on a local Spark;
- `deltalake`: delta-rs (rewrites the touched files);
- `iceberg-java`: Apache Iceberg's Spark runtime, where Java and Maven can be had.

    scripts/bench dml [--rows N] [--percent P ...] [--systems NAME ...] [--repeat N]
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table as Grid

import tableformat as tf
from benchmarks.support.peers import folder_bytes

SCHEMA = pa.schema([("id", pa.int64()), ("a", pa.int64()), ("b", pa.float64()), ("s", pa.string())])
LOAD_ROWS = 1_000_000
A_MAX = 1_000_000
MODES = ("merge-on-read", "copy-on-write")


def rows_of(start: int, stop: int) -> pa.Table:
    """Sequential ids; `a` is uniform, so `a < x` picks rows everywhere."""
    draw = np.random.default_rng(start)
    names = pa.array([f"name-{number:04d}" for number in range(1000)])
    count = stop - start
    return pa.table(
        {
            "id": np.arange(start, stop),
            "a": draw.integers(0, A_MAX, count),
            "b": draw.random(count),
            "s": names.take(pa.array(draw.integers(0, 1000, count))),
        },
        schema=SCHEMA,
    )


def parts(rows: int) -> Iterator[pa.Table]:
    for start in range(0, rows, LOAD_ROWS):
        yield rows_of(start, min(start + LOAD_ROWS, rows))


class System(Protocol):
    """One engine with its table. `modes` it knows; `run` gives seconds and bytes written."""

    modes: tuple[str, ...]

    def __init__(self, folder: Path, rows: int) -> None: ...

    def run(self, operation: str, where: str, mode: str) -> tuple[float, int]: ...


class Icefold:
    """Statements on branches of one table."""

    modes = MODES
    spark: Any = None

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder = folder
        catalog = tf.open_catalog("local", warehouse=str(folder))
        self.table = catalog.create_table("bench.rows", SCHEMA, primary_key=["id"])
        for part in parts(rows):
            self.table.append(part)
        self.runs = 0

    def run(self, operation: str, where: str, mode: str) -> tuple[float, int]:
        self.runs += 1
        branch = f"run-{self.runs}"
        self.table.refs.create_branch(branch)
        before = folder_bytes(self.folder)
        begin = time.perf_counter()
        options = {"branch": branch, "mode": mode, "spark": self.spark}
        if operation == "delete":
            result = self.table.delete(where, **options)
        else:
            result = self.table.update({"b": "b + 1"}, where, **options)
        seconds = time.perf_counter() - begin
        assert result.snapshot is not None
        return seconds, folder_bytes(self.folder) - before


class IcefoldSpark(Icefold):
    """The same on a local Spark, warmed up."""

    def __init__(self, folder: Path, rows: int) -> None:
        from tableformat.spark.session import local_session

        super().__init__(folder, rows)
        self.spark = local_session("icefold-bench", memory="4g")
        for mode in MODES:
            self.run("update", "a < 10", mode)


class DeltaLake:
    """delta-rs on a copy of its table."""

    modes = ("copy-on-write",)

    def __init__(self, folder: Path, rows: int) -> None:
        from deltalake import write_deltalake

        self.base = folder / "base"
        self.folder = folder
        for part in parts(rows):
            write_deltalake(str(self.base), part, mode="append")

    def run(self, operation: str, where: str, mode: str) -> tuple[float, int]:  # noqa: ARG002
        from deltalake import DeltaTable

        copy = self.folder / "copy"
        shutil.copytree(self.base, copy)
        try:
            table = DeltaTable(str(copy))
            before = folder_bytes(copy)
            begin = time.perf_counter()
            if operation == "delete":
                table.delete(where)
            else:
                table.update(updates={"b": "b + 1"}, predicate=where)
            return time.perf_counter() - begin, folder_bytes(copy) - before
        finally:
            shutil.rmtree(copy)


class IcebergJava:
    """Apache Iceberg's Spark runtime in a process of its own, on branches of its table."""

    modes = MODES

    def __init__(self, folder: Path, rows: int) -> None:
        from tests.support.java_iceberg import java_iceberg

        self.folder = folder
        self.java = java_iceberg()
        # What makes queries over many rows fast is off there, for tests.
        fast = {
            "spark.sql.codegen.wholeStage": "true",
            "spark.sql.adaptive.enabled": "true",
            "spark.sql.shuffle.partitions": "2",
        }
        self.java.configure(fast)
        self.java.add_catalog("bench", {"type": "hadoop", "warehouse": folder.as_uri()})
        source = folder / "source"
        source.mkdir(parents=True)
        self.java.sql("CREATE NAMESPACE IF NOT EXISTS bench.db")
        self.java.sql(
            "CREATE TABLE bench.db.rows (id bigint, a bigint, b double, s string) USING iceberg "
            "TBLPROPERTIES ('format-version' = '3', 'write.distribution-mode' = 'none')"
        )
        import pyarrow.parquet as pq

        for number, part in enumerate(parts(rows)):
            path = source / f"{number}.parquet"
            pq.write_table(part, path)
            self.java.sql(f"INSERT INTO bench.db.rows SELECT * FROM parquet.`{path}`")
            path.unlink()
        self.runs = 0
        for mode in MODES:
            self.run("update", "a < 10", mode)

    def run(self, operation: str, where: str, mode: str) -> tuple[float, int]:
        self.runs += 1
        table = "bench.db.rows"
        branch = f"run_{self.runs}"
        self.java.sql(f"ALTER TABLE {table} CREATE BRANCH {branch}")
        self.java.sql(
            f"ALTER TABLE {table} SET TBLPROPERTIES ('write.{operation}.mode' = '{mode}')"
        )
        before = folder_bytes(self.folder)
        begin = time.perf_counter()
        if operation == "delete":
            self.java.sql(f"DELETE FROM {table}.branch_{branch} WHERE {where}")
        else:
            self.java.sql(f"UPDATE {table}.branch_{branch} SET b = b + 1 WHERE {where}")
        return time.perf_counter() - begin, folder_bytes(self.folder) - before


SYSTEMS: dict[str, Callable[[Path, int], System]] = {
    "icefold": Icefold,
    "icefold-spark": IcefoldSpark,
    "deltalake": DeltaLake,
    "iceberg-java": IcebergJava,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench dml", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--percent", type=float, nargs="+", default=[1, 10, 50])
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    console = Console(width=110)
    grid = Grid("system", "statement", "mode", "%", "seconds, median [range]", "MiB written")
    for name in options.systems:
        folder = Path(tempfile.mkdtemp(prefix="icefold-dml-"))
        try:
            system = _start(name, folder, options.rows, console)
            if system is not None:
                _measure(system, name, options, grid)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    console.print(f"{options.rows:,} rows, {options.repeat} runs each")
    console.print(grid)
    return 0


def _start(name: str, folder: Path, rows: int, console: Console) -> System | None:
    try:
        return SYSTEMS[name](folder, rows)
    except BaseException as error:
        if type(error).__name__ != "Skipped":  # pytest's, from the support of the tests
            raise
        console.print(f"{name}: {error}")
        return None


def _measure(system: System, name: str, options: argparse.Namespace, grid: Grid) -> None:
    for operation in ("delete", "update"):
        for mode in system.modes:
            for percent in options.percent:
                where = f"a < {int(A_MAX * percent / 100)}"
                runs = [system.run(operation, where, mode) for _ in range(options.repeat)]
                seconds = [each for each, _ in runs]
                written = statistics.median(size for _, size in runs) / 2**20
                spread = f"{min(seconds):.2f}..{max(seconds):.2f}"
                grid.add_row(
                    name, operation, mode, f"{percent:g}",
                    f"{statistics.median(seconds):.2f} [{spread}]", f"{written:.1f}",
                )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
