"""Resolving staged upserts: index, scale, memory, reads, and batches beside peers in the same run.

Local files, SQLite, one process. Tables have an int64 key and three other columns; a batch upserts
random existing keys. Sections:

- `build`: keys per second and bytes per key of an index build, by kind of key;
- `batches`: for icefold, `stage` is what the writer pays and the rest what the resolver pays in a
  warm process, until the snapshot is published and until index and staging have followed. MB are
  written by both. Peers do the whole change in one step:
  - `join`: a Spark job without an index: read all keys, join, collect positions, write deletion
    vectors and the new rows (icefold's own writers, so only the search differs);
  - `iceberg`: MERGE of Apache Iceberg's Spark runtime, merge-on-read, v3 (needs Maven);
  - `deltalake`: MERGE of delta-rs (rewrites the touched files);
  - `pyiceberg`: `Table.upsert` on a v2 table (rewrites the touched files);
- `scale`: 10 k upserts on tables of several sizes; peak memory of processes of their own that build
  the index and that resolve 1 M upserts;
- `reads`: a query before, with staged deletes unresolved, and after, in DuckDB, DataFusion, Spark;
- `in-place`: equality deletes on `main`, a tenth of the rows, resolved on v2 beside v3 (at most 1.5
  times the CPU).

    scripts/bench resolve [--sections NAME ...] [--rows N ...] [--batches N ...] [--repeat N]
                          [--peers NAME ...] [--peer-seconds S] [--scale-rows N ...]

A peer that needs more than `--peer-seconds` for a batch is not asked for larger ones.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table as Grid

from benchmarks.support.java_iceberg import NoPeerError
from benchmarks.support.peers import PEERS, Peer
from benchmarks.support.resolve_bars import bench_build, bench_reads, bench_scale
from benchmarks.support.resolve_in_place import bench_in_place
from benchmarks.support.resolve_tables import Icefold, batch_of, rows_of

SECTIONS = ("build", "batches", "scale", "reads", "in-place")


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
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--scale-rows", type=int, nargs="+", default=[10_000_000, 100_000_000])
    arguments = parser.parse_args()
    console = Console(width=140)
    largest = max(arguments.rows)
    if "build" in arguments.sections:
        bench_build(console, largest)
    if "batches" in arguments.sections:
        for rows in arguments.rows:
            run_size(console, rows, arguments)
    if "scale" in arguments.sections:
        bench_scale(console, arguments.scale_rows, arguments.repeat)
    if "reads" in arguments.sections:
        bench_reads(console, largest, largest // 10, arguments.repeat)
    if "in-place" in arguments.sections:
        bench_in_place(console, largest, largest // 10, arguments.repeat)
    return 0


def run_size(console: Console, rows: int, arguments: argparse.Namespace) -> None:
    folder = Path(tempfile.mkdtemp(prefix="icefold-bench-"))
    try:
        icefold = Icefold(folder / "icefold", rows)
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
                try:
                    if name not in peers:
                        peers[name] = PEERS[name](folder / name, rows, rows_of)
                except NoPeerError as error:
                    console.print(f"{name}: left out: {error}")
                    arguments.peers.remove(name)
                    continue
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
