"""What it costs that nothing, or little, waits: per quiet table, and per live file of a table.

    scripts/bench idle [--tables 500] [--seconds 30] [--files 1000 50000] [--runs 5]

1. Creates small tables that have been resolved, starts `icefold maintain` on them, waits until it
   has looked at all, and counts its CPU time. Bar: 5 % of a core.
2. Creates tables of so many data files, and counts the CPU time of a fresh `icefold resolve` when
   nothing waits, and when one commit of three rows does. Bar: the largest table costs at most 1.5
   times what the smallest does. The runs on the tables take turns; the median counts.

Ends with exit code 1 above a bar.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import pyarrow as pa
from rich.console import Console

import tableformat as tf
from resolver import resolve
from tableformat.commit.changeset import Changeset, CommitKind
from tableformat.commit.engine import commit
from tableformat.paths import data_file_locations
from tableformat.write.data_files import write_data_files

SCHEMA = pa.schema([("id", pa.int64()), ("value", pa.int64())])
COMMAND = [sys.executable, "-c", "from maintenance.cli.start import main; main()"]
SHARE_MAX = 0.05
RATIO_MAX = 1.5
FILES_PER_COMMIT = 1000
STAGED_ROWS = 3
PORT = 19_347
START_S = 120


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench idle", description=__doc__.split("\n")[0])
    parser.add_argument("--tables", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--files", type=int, nargs="+", default=[1_000, 50_000])
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="icefold-idle-"))
    try:
        is_quiet = measure(folder / "quiet", arguments.tables, arguments.seconds)
        is_flat = compare(folder, sorted(arguments.files), arguments.runs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0 if is_quiet and is_flat else 1


def measure(folder: Path, tables: int, seconds: float) -> bool:
    """Whether `maintain` leaves the processor alone."""
    console = Console(stderr=True)
    with console.status("creating tables"):
        create(folder, tables)
    words = ["--warehouse", str(folder), "maintain", "idle.*", "--metrics-port", str(PORT)]
    process = subprocess.Popen([*COMMAND, *words], stderr=subprocess.DEVNULL)
    try:
        with console.status("waiting for the first looks"):
            wait_until_quiet(process.pid, tables)
        begin, used = time.monotonic(), cpu_seconds(process.pid)
        time.sleep(seconds)
        share = (cpu_seconds(process.pid) - used) / (time.monotonic() - begin)
    finally:
        process.terminate()
        process.wait(30)
    Console().print(
        f"{tables} tables, idle for {seconds:.0f} s: {share:.2%} of a core (bar {SHARE_MAX:.0%})"
    )
    return share < SHARE_MAX


def compare(folder: Path, sizes: list[int], runs: int) -> bool:
    """Whether a fresh `resolve` costs the same on tables of all sizes."""
    console = Console(stderr=True)
    spent: dict[tuple[int, str], list[float]] = {}
    for size in sizes:
        with console.status(f"a table of {size:,} files, and its index"):
            resolve(table_of_files(folder / str(size), size))
    for number in range(runs):
        for size in sizes:
            table = tf.open_catalog("local", warehouse=str(folder / str(size))).load_table("idle.t")
            spent.setdefault((size, "nothing waits"), []).append(resolved_s(folder / str(size)))
            ids = [(number + row * size // STAGED_ROWS) % size for row in range(STAGED_ROWS)]
            table.stage(upserts=pa.table({"id": ids, "value": [number] * STAGED_ROWS}))
            key = size, f"a commit of {STAGED_ROWS} rows waits"
            spent.setdefault(key, []).append(resolved_s(folder / str(size)))
    ratios = []
    for what in dict.fromkeys(what for _, what in spent):
        costs = [statistics.median(spent[size, what]) for size in sizes]
        ratios.append(costs[-1] / costs[0])
        figures = ", ".join(
            f"{size:,} files {cost:.2f} s" for size, cost in zip(sizes, costs, strict=True)
        )
        Console().print(f"resolve, {what}: {figures} of CPU: {ratios[-1]:.2f} x (bar {RATIO_MAX})")
    return max(ratios) <= RATIO_MAX


def table_of_files(folder: Path, files: int) -> tf.Table:
    """A table of one-row data files, with one staged commit."""
    table = tf.open_catalog("local", warehouse=str(folder)).create_table(
        "idle.t", SCHEMA, primary_key=["id"]
    )
    environment, metadata = table.environment, table.state.metadata
    for start in range(0, files, FILES_PER_COMMIT):
        added = [
            file
            for number in range(start, min(start + FILES_PER_COMMIT, files))
            for file in write_data_files(
                environment.store,
                pa.table({"id": [number], "value": [0]}),
                schema=table.schema(),
                spec=table.spec(),
                properties=metadata.properties,
                location_for=data_file_locations(metadata, environment.runtime.ids),
            )
        ]
        changeset = Changeset(kind=CommitKind.APPEND, added_data_files=tuple(added))
        commit(environment, table.identifier, changeset)
    table.stage(upserts=pa.table({"id": [0], "value": [1]}))
    return table


def resolved_s(warehouse: Path) -> float:
    """CPU seconds of a fresh process that resolves the table."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = ["--warehouse", str(warehouse), "resolve", "idle.t"]
    subprocess.run([*COMMAND, *words], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def create(folder: Path, tables: int) -> None:
    catalog = tf.open_catalog("local", warehouse=str(folder))
    for number in range(tables):
        table = catalog.create_table(f"idle.t{number}", SCHEMA, primary_key=["id"])
        table.stage(upserts=pa.table({"id": [1, 2], "value": [number, 0]}))
        if number % 50 == 0:
            resolve(table)  # the others are published by `maintain` itself


def wait_until_quiet(pid: int, tables: int) -> None:
    """All tables are known, nothing waits, and the process has calmed down."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        time.sleep(1)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=5) as reply:
                lines = reply.read().decode().splitlines()
        except OSError:
            continue
        waiting = [line for line in lines if line.startswith("icefold_staging_commits{")]
        if len(waiting) == tables and all(line.endswith(" 0.0") for line in waiting):
            before = cpu_seconds(pid)
            time.sleep(3)
            if cpu_seconds(pid) - before < 1.5:
                return
    raise SystemExit("maintain has not come to rest; is the machine too busy?")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
