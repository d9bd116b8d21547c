"""Compaction: megabytes of Parquet per second and core, in this process or on Spark.

Writes a table of small files (an int64 key, two numbers, a timestamp, two texts) with deletion
vectors on a share of the rows, and compacts all of it. Megabytes are the Parquet bytes read; cores
are CPU seconds used, so that waiting for the disk does not count and threads do, and Spark's JVM
and its workers, which have compacted a small table before.

With `--groups N` the table has N partitions, and every file a few rows of each of them: what a
group costs, however little is in it. 399 groups of 2.5 MB in all:

    scripts/bench compact --groups 399 --rows 8000 --files 2

    scripts/bench compact [--rows N] [--files N] [--groups N] [--dead SHARE] [--strategy S]
                          [--partial-progress] [--spark] [--profile]
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import resource
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import tableformat as tf
from benchmarks.support.process_tree import cpu_seconds
from maintenance.tasks.compact import compact
from maintenance.tasks.options import CompactOptions
from resolver import resolve

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("amount", pa.float64()),
        ("quantity", pa.int32()),
        ("at", pa.timestamp("us", "UTC")),
        ("name", pa.string()),
        ("note", pa.string()),
    ]
)


GROUPED = SCHEMA.append(pa.field("part", pa.int32()))


def rows_of(first: int, count: int) -> pa.Table:
    draw = np.random.default_rng(first)
    names = pa.array([f"name-{number:05d}" for number in range(20_000)])
    words = pa.array([f"{number:x}" for number in draw.integers(0, 1 << 60, 4096)])
    note = pa.compute.binary_join_element_wise(
        words.take(pa.array(draw.integers(0, 4096, count))),
        words.take(pa.array(draw.integers(0, 4096, count))),
        " ",
    )
    return pa.table(
        {
            "id": np.arange(first, first + count),
            "amount": draw.random(count) * 1000,
            "quantity": draw.integers(0, 1000, count, dtype=np.int32),
            "at": pa.array(draw.integers(1 << 50, 1 << 51, count)).cast(SCHEMA.field("at").type),
            "name": names.take(pa.array(draw.integers(0, 20_000, count))),
            "note": note,
        },
        schema=SCHEMA,
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench compact")
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--files", type=int, default=50)
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--dead", type=float, default=0.05)
    parser.add_argument("--strategy", default="bin-pack", choices=["bin-pack", "sort", "z-order"])
    parser.add_argument("--partial-progress", action="store_true")
    parser.add_argument("--spark", action="store_true")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="icefold-bench-") as folder:
        table = _table(Path(folder), options)
        spark = None
        if options.spark:
            from tableformat.spark.session import local_session

            spark = local_session("icefold bench", cores=2)
            few = argparse.Namespace(rows=8000, files=4, groups=8, dead=0)  # workers start
            compact(
                _table(Path(folder) / "few", few), CompactOptions(rewrite_all=True), spark=spark
            )
        columns = () if options.strategy == "bin-pack" else ("name", "amount")
        wanted = CompactOptions(
            rewrite_all=True,
            strategy=options.strategy,
            sort_by=columns,
            group_bytes_max=128 << 20 if options.spark else 2 << 30,
            partial_progress=options.partial_progress,
        )
        profile = cProfile.Profile()
        begin, cpu = time.perf_counter(), cpu_seconds(os.getpid())
        if options.profile:
            profile.enable()
        report = compact(table, wanted, spark=spark)
        profile.disable()
        wall, used = time.perf_counter() - begin, cpu_seconds(os.getpid()) - cpu
        megabytes = report.removed_bytes / 1e6
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"{report.describe()}\n{report.rows:,} rows, {report.engine}, {options.strategy}, "
            f"{len(report.commits)} commits, {1e3 * wall / max(report.groups, 1):.1f} ms and "
            f"{1e3 * used / max(report.groups, 1):.1f} CPU ms a group"
        )
        core_s, rows = max(used, 1e-9), report.rows / 1e6
        print(f"{megabytes:.0f} MB of Parquet in {wall:.2f} s, {used:.2f} CPU s: "
              f"{megabytes / wall:.1f} MB/s, {megabytes / core_s:.1f} MB/s per core, "
              f"{rows / wall:.2f} M rows/s, {rows / core_s:.2f} per core, "
              f"peak {peak:.0f} MiB")  # fmt: skip
        if options.profile:
            pstats.Stats(profile).sort_stats("tottime").print_stats(20)
        if spark is not None:
            spark.stop()
    return 0


def _table(folder: Path, options: argparse.Namespace) -> tf.Table:
    catalog = tf.open_catalog("local", warehouse=str(folder / "warehouse"))
    rows, files, groups = options.rows, options.files, options.groups
    table = (
        catalog.create_table("bench.rows", SCHEMA, primary_key=["id"])
        if groups == 1
        else catalog.create_table(
            "bench.rows", GROUPED, primary_key=["id", "part"], partition_by=["part"]
        )
    )
    each = rows // files
    for number in range(files):
        table.append(_with_part(rows_of(number * each, each), groups))
    if options.dead:
        keys = np.random.default_rng(1).choice(rows, int(rows * options.dead), replace=False)
        table.stage(deletes=_with_part(pa.table({"id": pa.array(keys, pa.int64())}), groups))
        resolve(table)
    return table


def _with_part(rows: pa.Table, groups: int) -> pa.Table:
    if groups == 1:
        return rows
    part = rows["id"].to_numpy() % groups
    return rows.append_column("part", pa.array(part, pa.int32()))


if __name__ == "__main__":
    sys.exit(main())
