"""Publishing with row ids kept (`icefold.publish` = `rewrite`) beside `link`, in the same run.

Two equal tables, all of whose rows have stored row ids (a compaction has written them), one per
way to publish; local files, SQLite, one process. Sections:

- `batches`: upserts of random existing keys, staged and resolved, in turn on both tables: seconds,
  and seconds of CPU of all threads, which a busy machine changes less;
- `fill`: whole rows and rows that leave out all columns but one, in turn on both tables;
- `micro`: many small staged commits on freshly compacted tables, and one cycle; the files it
  leaves, and a scan of one column before it, after it, after a compaction by the defaults, and
  after one of everything;
- `memory`: the peak of a process of its own that resolves so many staged rows, a million a commit.

    scripts/bench lineage [--rows N] [--batches N ...] [--repeat N] [--fill N ...] [--micro N]
                          [--micro-rows N] [--memory-rows N] [--peers iceberg]

A peer changes the same batches by MERGE of Apache Iceberg's Spark runtime, which keeps row ids, too
(needs Maven).
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table as Grid

from benchmarks.resolve import spread
from benchmarks.support.java_iceberg import NoPeerError
from benchmarks.support.peers import PEERS, Peer
from benchmarks.support.resolve_bars import in_child
from benchmarks.support.resolve_tables import LOAD_ROWS, Icefold, batch_of, rows_of
from maintenance.tasks.compact import compact
from maintenance.tasks.options import CompactOptions
from resolver import resolve

WAYS = ("link", "rewrite")


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench lineage", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--batches", type=int, nargs="*", default=[100_000, 1_000_000])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--fill", type=int, nargs="*", default=[10_000])
    parser.add_argument("--micro", type=int, default=200)
    parser.add_argument("--micro-rows", type=int, default=5_000)
    parser.add_argument("--memory-rows", type=int, default=0)
    parser.add_argument("--peers", nargs="*", choices=["iceberg"], default=[])
    arguments = parser.parse_args()
    console = Console(width=150)
    console.print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    folder = Path(tempfile.mkdtemp(prefix="icefold-bench-"))
    try:
        tables = {way: _table(folder / way, arguments.rows, way) for way in WAYS}
        peers = _peers(console, folder, arguments)
        for size in arguments.batches:
            bench_batches(console, tables, peers, size, arguments.repeat)
        for size in arguments.fill:
            bench_fill(console, tables, size, arguments.repeat)
        if arguments.micro:
            bench_micro(console, tables, arguments)
        if arguments.memory_rows:
            bench_memory(console, tables, arguments.memory_rows)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    console.print(f"load after: {os.getloadavg()[0]:.1f}")
    return 0


def _table(warehouse: Path, rows: int, way: str) -> Icefold:
    found = Icefold(warehouse, rows)
    found.table.set_properties({"icefold.publish": way})
    compact(found.table, CompactOptions(rewrite_all=True))
    resolve(found.table)
    return found


def _peers(console: Console, folder: Path, arguments: argparse.Namespace) -> dict[str, Peer]:
    try:
        return {
            name: PEERS[name](folder / name, arguments.rows, rows_of) for name in arguments.peers
        }
    except NoPeerError as error:
        console.print(f"left out: {error}")
        return {}


def bench_batches(
    console: Console, tables: dict[str, Icefold], peers: dict[str, Peer], size: int, repeat: int
) -> None:
    """Upserts of one size, in turn on both tables; the first round is not counted."""
    runs: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for seed in range(repeat + 1):
        for way in WAYS if seed % 2 else WAYS[::-1]:
            before = time.process_time()
            runs[way].append(tables[way].run(size, seed))
            runs[way][-1]["cpu"] = time.process_time() - before
    runs = {way: found[1:] for way, found in runs.items()}
    link = statistics.median(run["resolve"] for run in runs["link"])
    grid = Grid("publish", "stage s", "cycle s", "x of link", "CPU s", "MB", "ms per phase")
    for way, found in runs.items():
        phases = [name for name in found[0] if name.startswith("phase ")]
        medians = {n[6:]: statistics.median(run[n] for run in found) * 1e3 for n in phases}
        grid.add_row(
            way,
            spread([run["stage"] for run in found]),
            spread([run["resolve"] for run in found]),
            f"{statistics.median(run['resolve'] for run in found) / link:.2f}",
            f"{statistics.median(run['cpu'] for run in found):.2f}",
            f"{statistics.median(run['bytes'] for run in found) / 1e6:.1f}",
            ", ".join(f"{n} {m:.0f}" for n, m in medians.items()),
        )
    for name, peer in peers.items():
        seconds, written = peer.change(batch_of(tables["link"].rows, size, seed=size))
        grid.add_row(
            name, "", f"{seconds:.3f}", f"{seconds / link:.1f}", "", f"{written / 1e6:.1f}"
        )
    console.print(f"{size:,} upserts on {tables['link'].rows:,} rows with stored row ids")
    console.print(grid)


def bench_fill(console: Console, tables: dict[str, Icefold], size: int, repeat: int) -> None:
    """Upserts of whole rows and of one column, in turn; the first round is not counted."""
    kinds: dict[str, list[str] | None] = {"whole": None, "id and a": ["id", "a"]}
    grid = Grid("publish", "rows have", "cycle s", "x of whole", "ms per phase")
    for way, each in tables.items():
        runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
        for seed in range(repeat + 1):
            for kind in kinds if seed % 2 else list(kinds)[::-1]:
                runs[kind].append(each.run(size, 5_000 + seed, kinds[kind]))
        whole = statistics.median(run["resolve"] for run in runs["whole"][1:])
        for kind, found in runs.items():
            cycles = [run["resolve"] for run in found[1:]]
            phases = [name for name in found[0] if name.startswith("phase ")]
            medians = {n[6:]: statistics.median(run[n] for run in found[1:]) for n in phases}
            grid.add_row(
                way,
                kind,
                spread(cycles),
                f"{statistics.median(cycles) / whole:.2f}",
                ", ".join(f"{n} {m * 1e3:.0f}" for n, m in medians.items()),
            )
    console.print(f"{size:,} upserts on {tables['link'].rows:,} rows with stored row ids")
    console.print(grid)


def bench_micro(
    console: Console, tables: dict[str, Icefold], arguments: argparse.Namespace
) -> None:
    """Small staged commits, and one cycle over all of them."""
    grid = Grid(
        "publish", "cycle s", "CPU s", "files", "scan before s", "after", "compacted", "all"
    )
    for way, each in tables.items():
        compact(each.table, CompactOptions(rewrite_all=True))
        before = _scan_seconds(each)
        for seed in range(arguments.micro):
            rows = batch_of(each.rows, arguments.micro_rows, 1_000 + seed)
            each.table.stage(upserts=rows)
        begin, begin_cpu = time.perf_counter(), time.process_time()
        report = resolve(each.table)
        seconds, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
        after = _scan_seconds(each)
        compact(each.table, CompactOptions())
        compacted = _scan_seconds(each)
        compact(each.table, CompactOptions(rewrite_all=True))
        grid.add_row(
            way,
            f"{seconds:.3f}",
            f"{cpu:.3f}",
            f"{report.data_files}",
            *map(spread, (before, after, compacted, _scan_seconds(each))),
        )
    console.print(
        f"{arguments.micro} staged commits of {arguments.micro_rows:,} upserts, one cycle"
    )
    console.print(grid)


def bench_memory(console: Console, tables: dict[str, Icefold], rows: int) -> None:
    """The peak of a process that resolves many staged rows."""
    for way, each in tables.items():
        resolve(each.table)
        for seed in range(rows // LOAD_ROWS):
            each.table.stage(upserts=batch_of(each.rows, LOAD_ROWS, 5_000 + seed))
        found = in_child(each.warehouse)
        peak = found["peak_bytes"] / 2**20
        console.print(
            f"{way}: {rows:,} staged rows: peak {peak:.0f} MiB, {found['cycle_ms'] / 1e3:.1f} s"
        )


def _scan_seconds(each: Icefold, repeat: int = 7) -> list[float]:
    found = []
    for _ in range(repeat + 1):
        begin = time.perf_counter()
        each.table.refresh().scan(columns=["a"]).to_arrow()
        found.append(time.perf_counter() - begin)
    return found[1:]


if __name__ == "__main__":
    sys.exit(main())
