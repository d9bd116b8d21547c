"""Memory of a resolve's driver on a Spark cluster: how much of it follows the batch.

    scripts/bench driver_memory [--upserts N ...] [--rows N] [--in-driver] [--folder FOLDER]

A cluster of a master, two workers and two executors on this machine; the driver is a process of its
own per batch, with a heap of 512 MB. Printed are the most anonymous memory of its Python, before
and while it resolves, and what its heap held at most; and what Python took more per staged upsert
than for the batch before. `--in-driver` has the driver match and write vectors, as it does for
batches that take more than keys.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

import tableformat as tf
from benchmarks.support.process_memory import PeakMemory, anonymous_bytes
from resolver import resolve
from resolver.cycle_match import Matcher
from tests.support.spark_cluster import cluster_session

TABLE = "bench.rows"
SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string())])
FILE_ROWS = 250_000
MIB = 1 << 20


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench driver_memory")
    parser.add_argument("--upserts", type=int, nargs="+", default=[1_000_000, 3_000_000])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--in-driver", action="store_true")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--stage", choices=["stage", "resolve"])
    arguments = parser.parse_args()
    if arguments.stage == "stage":
        stage(arguments.folder, arguments.rows, arguments.upserts[0])
        return 0
    if arguments.stage == "resolve":
        resolve_staged(arguments.folder, arguments.in_driver)
        return 0
    folder = Path(tempfile.mkdtemp(prefix="icefold-driver-", dir=arguments.folder))
    try:
        before = None
        for upserts in arguments.upserts:
            found = measure(folder / str(upserts), arguments.rows, upserts, arguments.in_driver)
            line = (
                f"{upserts:,} upserts onto {arguments.rows:,} rows: Python "
                f"{found['idle'] / MIB:.0f} MiB before, {found['peak'] / MIB:.0f} MiB at most; "
                f"heap {found['heap'] / MIB:.0f} MiB at most; {found['seconds']:.0f} s"
            )
            if before is not None:
                slope = (found["peak"] - before[1]) / (upserts - before[0])
                line += f"; {slope:.1f} bytes per upsert"
            print(line, flush=True)
            before = upserts, found["peak"]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def measure(folder: Path, rows: int, upserts: int, in_driver: bool) -> dict[str, float]:
    """Stage in one process, resolve in the next."""
    folder.mkdir()
    command = [sys.executable, "-m", "benchmarks.driver_memory", "--folder", str(folder)]
    words = ["--rows", str(rows), "--upserts", str(upserts)]
    subprocess.run([*command, *words, "--stage", "stage"], check=True)
    more = ["--in-driver"] if in_driver else []
    done = subprocess.run(
        [*command, *more, "--stage", "resolve"], check=True, stdout=subprocess.PIPE, text=True
    )
    shutil.rmtree(folder)
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


def stage(folder: Path, rows: int, upserts: int) -> None:
    """A table, and one staged commit per `FILE_ROWS` of other keys, over all of the table."""
    catalog = tf.open_catalog("local", warehouse=str(folder / "warehouse"))
    table = catalog.create_table(TABLE, SCHEMA, primary_key=["id"])
    for start in range(0, rows, FILE_ROWS):
        table.append(rows_of(np.arange(start, min(start + FILE_ROWS, rows))))
    keys = np.random.default_rng(1).permutation(max(rows, upserts))[:upserts]
    for start in range(0, upserts, FILE_ROWS):
        table.stage(upserts=rows_of(keys[start : start + FILE_ROWS]))


def resolve_staged(folder: Path, in_driver: bool) -> None:
    """The driver; prints its figures."""
    if in_driver:
        Matcher.may_spread = lambda *_: False  # type: ignore[method-assign]
    spark = cluster_session(folder / "cluster")
    table = tf.open_catalog("local", warehouse=str(folder / "warehouse")).load_table(TABLE)
    idle = anonymous_bytes()
    begin = time.monotonic()
    with PeakMemory() as memory:
        report = resolve(table, engine="spark", spark=spark)
    seconds = time.monotonic() - begin
    pools = spark._jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()
    heap = sum(
        pool.getPeakUsage().getUsed()
        for pool in pools
        if pool.getType().toString() == "Heap memory"
    )
    assert report.engine == "spark"
    figures = {"idle": idle, "peak": memory.peak_bytes, "heap": heap, "seconds": seconds}
    print(json.dumps(figures), flush=True)
    spark.stop()


def rows_of(ids: np.ndarray) -> pa.Table:
    """Rows of the given keys."""
    return pa.table([pa.array(ids, pa.int64()), pa.array(["x"] * len(ids))], schema=SCHEMA)


if __name__ == "__main__":
    sys.exit(main())
