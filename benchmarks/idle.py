"""How much CPU one `icefold maintain` takes while hundreds of tables are quiet.

    scripts/bench idle [--tables 500] [--seconds 30]

Creates small tables that have been resolved, starts the real command on them, waits until it has
looked at all, and counts its CPU time. Ends with exit code 1 above 5 % of a core.
"""

from __future__ import annotations

import argparse
import os
import shutil
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

SHARE_MAX = 0.05
PORT = 19_347
START_S = 120


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench idle", description=__doc__.split("\n")[0])
    parser.add_argument("--tables", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=30.0)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="icefold-idle-"))
    try:
        return measure(folder, arguments.tables, arguments.seconds)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measure(folder: Path, tables: int, seconds: float) -> int:
    console = Console(stderr=True)
    with console.status("creating tables"):
        create(folder, tables)
    words = ["--warehouse", str(folder), "maintain", "idle.*", "--metrics-port", str(PORT)]
    code = "from maintenance.cli.main import main; main()"
    process = subprocess.Popen([sys.executable, "-c", code, *words], stderr=subprocess.DEVNULL)
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
    return 0 if share < SHARE_MAX else 1


def create(folder: Path, tables: int) -> None:
    catalog = tf.open_catalog("local", warehouse=str(folder))
    schema = pa.schema([("id", pa.int64()), ("value", pa.int64())])
    for number in range(tables):
        table = catalog.create_table(f"idle.t{number}", schema, primary_key=["id"])
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
