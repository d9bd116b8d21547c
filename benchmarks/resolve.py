"""Resolving staged upserts, by table size and batch size, beside peers in the same run.

Local files, SQLite, one process. Tables have an int64 key and three other columns; a batch upserts
random existing keys. For icefold, `stage` is what the writer pays and `resolve` what the resolver
pays in a warm process: until the snapshot is published, and the whole cycle with index and trim.
Peers do the whole change in one step:

- `join`: a Spark job without an index: read all keys, join, collect positions, write deletion
  vectors and the new rows (icefold's own writers, so only the search differs);
- `deltalake`: MERGE of delta-rs (rewrites the touched files);
- `pyiceberg`: `Table.upsert` on a v2 table (rewrites the touched files).

    scripts/bench resolve [--rows N ...] [--batches N ...] [--repeat N] [--peers join deltalake ...]
                          [--peer-seconds S]

A peer that needs more than `--peer-seconds` for a batch is not asked for larger ones.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table as Grid

import tableformat as tf
from benchmarks.support.counting_store import CountingStore
from benchmarks.support.peers import PEERS, Peer
from resolver import resolve
from resolver.index_keeper import index_folder

SCHEMA = pa.schema([("id", pa.int64()), ("a", pa.int64()), ("b", pa.float64()), ("s", pa.string())])
LOAD_ROWS = 1_000_000
UNTIL_PUBLISHED = ("plan", "read", "index", "match", "write", "publish")


def rows_of(ids: np.ndarray, seed: int) -> pa.Table:
    """Rows of the given keys with random values."""
    draw = np.random.default_rng(seed)
    names = pa.array([f"name-{number:04d}" for number in range(1000)])
    return pa.table(
        {
            "id": ids,
            "a": draw.integers(0, 1_000_000, len(ids)),
            "b": draw.random(len(ids)),
            "s": names.take(pa.array(draw.integers(0, 1000, len(ids)))),
        },
        schema=SCHEMA,
    )


def batch_of(table_rows: int, size: int, seed: int) -> pa.Table:
    """`size` distinct existing keys in no order, with new values."""
    draw = np.random.default_rng(seed)
    ids = np.unique(draw.integers(0, table_rows, int(size * 1.3) + 10))
    draw.shuffle(ids)
    return rows_of(ids[:size], seed)


class Icefold:
    """One table of `rows` rows, its index built."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.rows = rows
        catalog = tf.open_catalog("local", warehouse=str(folder / "warehouse"))
        store = CountingStore(catalog.environment.store)
        self.store = store
        catalog.environment = replace(catalog.environment, store=store)
        self.table = catalog.create_table("bench.rows", SCHEMA, primary_key=["id"])
        for start in range(0, rows, LOAD_ROWS):
            stop = min(start + LOAD_ROWS, rows)
            self.table.append(rows_of(np.arange(start, stop), seed=start))
        self.table.stage(upserts=rows_of(np.array([0]), seed=0))
        begin = time.perf_counter()
        self.first = resolve(self.table)
        self.build_seconds = time.perf_counter() - begin
        index = index_folder(self.table.environment, self.table.state, "main")
        self.index_bytes = sum(f.stat().st_size for f in index.rglob("*") if f.is_file())

    def run(self, size: int, seed: int) -> dict[str, float]:
        self.store.counts.clear()
        begin = time.perf_counter()
        self.table.stage(upserts=batch_of(self.rows, size, seed))
        staged = time.perf_counter()
        stage_counts = dict(self.store.counts)
        self.store.counts.clear()
        report = resolve(self.table)
        done = time.perf_counter()
        assert report.deleted_rows == size, (report.deleted_rows, size)
        requests = sum(n for name, n in self.store.counts.items() if not name.startswith("bytes"))
        return {
            "stage": staged - begin,
            "published": sum(report.phases_ms[name] for name in UNTIL_PUBLISHED) / 1e3,
            "resolve": done - staged,
            "requests": requests,
            "bytes": self.store.counts["bytes written"],
            "staged requests": sum(
                n for name, n in stage_counts.items() if not name.startswith("bytes")
            ),
            **{f"phase {name}": ms / 1e3 for name, ms in report.phases_ms.items()},
        }


def spread(values: list[float], unit: Callable[[float], str] = lambda v: f"{v:.3f}") -> str:
    """Median and range."""
    return f"{unit(statistics.median(values))} [{unit(min(values))}..{unit(max(values))}]"


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench resolve", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument(
        "--batches", type=int, nargs="+", default=[1_000, 10_000, 100_000, 1_000_000]
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--peers", nargs="*", choices=sorted(PEERS), default=sorted(PEERS))
    parser.add_argument("--peer-seconds", type=float, default=60.0)
    arguments = parser.parse_args()
    console = Console(width=140)
    for rows in arguments.rows:
        run_size(console, rows, arguments)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    console.print(f"peak memory of this process, loading and peers included: {peak_mb:,.0f} MB")
    return 0


def run_size(console: Console, rows: int, arguments: argparse.Namespace) -> None:
    folder = Path(tempfile.mkdtemp(prefix="icefold-bench-"))
    try:
        icefold = Icefold(folder, rows)
        console.print(
            f"{rows:,} rows: first resolve, with the index built: {icefold.build_seconds:.1f} s "
            f"({rows / icefold.build_seconds / 1e6:.2f} M keys/s), "
            f"{icefold.index_bytes / rows:.1f} bytes per key on disk"
        )
        peers: dict[str, Peer] = {}
        grid = Grid(
            "batch", "who", "stage s", "published s", "cycle s", "MB", "requests", "x of cycle"
        )
        for size in [size for size in arguments.batches if size <= rows]:
            runs = [icefold.run(size, seed) for seed in range(arguments.repeat + 1)][1:]
            own = statistics.median(run["resolve"] for run in runs)
            grid.add_row(
                f"{size:,}", "icefold", spread([run["stage"] for run in runs]),
                spread([run["published"] for run in runs]),
                spread([run["resolve"] for run in runs]),
                f"{statistics.median(run['bytes'] for run in runs) / 1e6:.2f}",
                f"{statistics.median(run['requests'] for run in runs):.0f}", "1",
            )  # fmt: skip
            phases = [name for name in runs[0] if name.startswith("phase ")]
            medians = {n[6:]: statistics.median(run[n] for run in runs) * 1e3 for n in phases}
            grid.add_row(
                "", "  ms per phase", "", ", ".join(f"{n} {m:.0f}" for n, m in medians.items())
            )
            for name in list(arguments.peers):
                if name not in peers:
                    peers[name] = PEERS[name](folder / name, rows, rows_of)
                seconds, written = peers[name].change(batch_of(rows, size, seed=size))
                grid.add_row(
                    "", name, "", "", f"{seconds:.2f}", f"{written / 1e6:.1f}", "",
                    f"{seconds / own:.1f}",
                )  # fmt: skip
                if seconds > arguments.peer_seconds:
                    arguments.peers.remove(name)
        console.print(grid)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
