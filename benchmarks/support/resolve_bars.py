"""The bars of the resolver that are not a comparison with peers: index, scale, memory, reads."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as Grid

import tableformat as tf
from benchmarks.index import Table as KeyTable
from benchmarks.index import size_bytes
from benchmarks.support.resolve_tables import Icefold, batch_of, create_table
from resolver import resolve
from resolver.index.base import IndexBinding
from resolver.index.build import BuildOptions, build_index
from tableformat.runtime import Runtime
from tests.support.interop_engines import duckdb_connection

SCALE_BATCH = 10_000
MEMORY_BATCH = 1_000_000
KEY_KINDS = {"id": "int64, 0 to N-1", "random": "int64, random", "uuid": "16 random bytes"}


def bench_build(console: Console, rows: int) -> None:
    """Keys per second and bytes per key of an index build, by kind of key."""
    grid = Grid("keys", "s", "M keys/s", "bytes per key on disk", title=f"build, {rows:,} rows")
    for kind, name in KEY_KINDS.items():
        with tempfile.TemporaryDirectory(prefix="icefold-bench-") as temporary:
            folder = Path(temporary)
            (folder / "data").mkdir()
            table = KeyTable(folder, rows=rows, kind=kind, file_rows=1_000_000)
            begin = time.perf_counter()
            build_index(
                folder / "index",
                IndexBinding(
                    table_uuid="bench",
                    branch="main",
                    key_fingerprint=table.key.fingerprint,
                    snapshot_id=None,
                    sequence_number=0,
                ),
                table.key,
                table.sources,
                runtime=Runtime(),
                options=BuildOptions(threads=2),
            ).close()
            seconds = time.perf_counter() - begin
            per_key = size_bytes(folder / "index") / rows
        grid.add_row(name, f"{seconds:.1f}", f"{rows / seconds / 1e6:.2f}", f"{per_key:.2f}")
    console.print(grid)


def bench_scale(console: Console, sizes: list[int], repeat: int) -> None:
    """One batch size on tables of several sizes, and memory of a process that resolves more."""
    grid = Grid(
        "table rows", f"{SCALE_BATCH:,}: published s", "cycle s", "x of the smallest",
        "resolve of " + f"{MEMORY_BATCH:,}: published s", "peak MiB", "index build: s", "peak MiB",
        title="scale; the last four in processes of their own",
    )  # fmt: skip
    smallest = 0.0
    for rows in sizes:
        with tempfile.TemporaryDirectory(prefix="icefold-bench-") as temporary:
            warehouse = Path(temporary)
            create_table(warehouse, rows)
            built = in_child(warehouse)
            icefold = Icefold(warehouse, rows, create=False)
            runs = [icefold.run(SCALE_BATCH, seed) for seed in range(repeat + 1)][1:]
            cycle = statistics.median(run["resolve"] for run in runs)
            smallest = smallest or cycle
            icefold.table.stage(upserts=batch_of(rows, MEMORY_BATCH, seed=99))
            large = in_child(warehouse)
            assert large["deleted_rows"] == MEMORY_BATCH
        grid.add_row(
            f"{rows:,}",
            f"{statistics.median(run['published'] for run in runs):.3f}",
            f"{cycle:.3f} [{min(r['resolve'] for r in runs):.3f}.."
            f"{max(r['resolve'] for r in runs):.3f}]",
            f"{cycle / smallest:.2f}",
            f"{large['published_ms'] / 1e3:.2f}",
            f"{large['peak_bytes'] / 2**20:,.0f}",
            f"{built['index_ms'] / 1e3:.1f}",
            f"{built['peak_bytes'] / 2**20:,.0f}",
        )
    console.print(grid)


def in_child(warehouse: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.support.resolve_child", str(warehouse)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def bench_reads(console: Console, rows: int, changed: int, repeat: int) -> None:
    """One query in several engines: clean table, staged deletes unresolved, resolved."""
    grid = Grid(
        "engine", "before s", "staged, unresolved s", "resolved s", "resolved / before",
        title=f"reads of sum(a), sum(b): {rows:,} rows, {changed:,} upserted",
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="icefold-bench-") as temporary:
        icefold = Icefold(Path(temporary), rows)
        table = icefold.table
        engines = _engines()
        before = {name: _timed(read, table, "main", repeat) for name, read in engines.items()}
        table.stage(upserts=batch_of(rows, changed, seed=5))
        staged = {"Spark": _timed(engines["Spark"], table, "staging", repeat)}
        resolve(table)
        for name, read in engines.items():
            after = _timed(read, table, "main", repeat)
            grid.add_row(
                name, f"{before[name]:.3f}",
                f"{staged[name]:.3f}" if name in staged else "not asked",
                f"{after:.3f}", f"{after / before[name]:.2f}",
            )  # fmt: skip
    console.print(grid)


Read = Callable[[tf.Table, str], None]


def _timed(read: Read, table: tf.Table, branch: str, repeat: int) -> float:
    read(table, branch)
    seconds = []
    for _ in range(repeat):
        begin = time.perf_counter()
        read(table, branch)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


def _engines() -> Mapping[str, Read]:
    from tableformat.spark.session import local_session

    spark = local_session("icefold-bench", memory="6g")

    def in_spark(table: tf.Table, branch: str) -> None:
        frame = table.scan(columns=["a", "b"], branch=branch).to_spark(spark)
        frame.selectExpr("sum(a)", "sum(b)").collect()

    def in_duckdb(table: tf.Table, _branch: str) -> None:
        query = f"SELECT sum(a), sum(b) FROM iceberg_scan('{table.metadata_location}')"
        duckdb_connection().execute(query).fetchall()

    def in_datafusion(table: tf.Table, _branch: str) -> None:
        from datafusion import SessionContext
        from pyiceberg_core.datafusion import IcebergDataFusionTable

        context = SessionContext()
        provider = IcebergDataFusionTable(["bench", "rows"], table.metadata_location, {})
        context.register_table("t", provider)
        context.sql("SELECT sum(a), sum(b) FROM t").collect()

    return {"DuckDB": in_duckdb, "DataFusion + pyiceberg-core": in_datafusion, "Spark": in_spark}
