"""A table under a change stream with all maintenance on, checked all the while.

Three processes on one machine, local files and SQLite: a writer that stages a commit of upserts and
deletes per interval, `maintain` with resolver, compaction, vector and manifest rewrites, expiry and
orphan removal at short intervals, and a checker that reads every published state with DuckDB and
compares it with a model made from the same seed. After each run that rewrites or deletes, every
file of every snapshot must be there.

    scripts/bench soak [--minutes 30] [--events-per-s 5000] [--keys 1000000] [--keep FOLDER]

Ends with exit code 1 when a state differs, a file is missing, or a bar is missed: freshness
p99 <= 5 s, a compaction commit per minute, nothing that grows without bound.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid

import tableformat as tf
from benchmarks.support.soak_checker import SAMPLE_S, Checker
from benchmarks.support.soak_maintainer import maintain, resident_mb
from benchmarks.support.soak_model import SCHEMA, Stream
from benchmarks.support.soak_writer import write

NAME = "soak.rows"
PROPERTIES = {
    "history.expire.max-snapshot-age-ms": "30000",
    "history.expire.min-snapshots-to-keep": "10",
    "write.metadata.previous-versions-max": "100",
    "write.metadata.delete-after-commit.enabled": "true",
}
FRESHNESS_P99_MS = 5_000
DRAIN_S = 30
GROWTH_MAX = 1.5  # the last third may be so much above the middle third
BOUNDED = ("data_files", "dvs", "dv_share", "manifests", "snapshots", "metadata_mb", "table_mb",
           "objects", "rss_mb")  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench soak", description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--events-per-s", type=int, default=5_000)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--interval-s", type=float, default=1.0, help="between staged commits")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="keep warehouse and logs in this new folder")
    arguments = parser.parse_args()
    if arguments.keep is not None and arguments.keep.exists():
        parser.error(f"{arguments.keep} exists; name a new folder")
    folder = (arguments.keep or Path(tempfile.mkdtemp(prefix="icefold-soak-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return Soak(folder, arguments).run()
    finally:
        if arguments.keep is None:
            shutil.rmtree(folder, ignore_errors=True)


class Soak:
    def __init__(self, folder: Path, arguments: argparse.Namespace) -> None:
        self.folder = folder
        self.minutes: float = arguments.minutes
        self.interval_s: float = arguments.interval_s
        events = round(arguments.events_per_s * arguments.interval_s)
        self.stream = Stream(arguments.seed, arguments.keys, events)
        self.console = Console(stderr=True)
        print(f"seed {arguments.seed}, folder {folder}", file=sys.stderr)
        catalog = tf.open_catalog("local", warehouse=str(folder / "warehouse"))
        table = catalog.create_table(NAME, SCHEMA, primary_key=["id"], properties=PROPERTIES)
        table.append(self.stream.first_rows())
        table.stage(upserts=self.stream.rows(np.array([0]), np.array([0])))  # the branch is there
        (folder / "staged.log").write_text(f"{table.state.head('staging').snapshot_id} 0\n")
        table_folder = Path(table.state.metadata.location.removeprefix("file://"))
        self.checker = Checker(folder, table_folder, self.pointer, self.stream)
        self.memory: list[float] = []

    def pointer(self) -> str:
        """The table's metadata location, straight from the catalog's database."""
        database = next((self.folder / "warehouse").glob("*.db"))
        with contextlib.closing(sqlite3.connect(database, timeout=30)) as connection:
            sql = "SELECT metadata_location FROM iceberg_tables WHERE table_name = 'rows'"
            return str(connection.execute(sql).fetchone()[0])

    def run(self) -> int:
        context = multiprocessing.get_context("spawn")
        keeper = context.Process(target=maintain, args=(self.folder, NAME))
        keeper.start()
        begin = time.time()
        end = begin + self.minutes * 60
        writer = context.Process(
            target=write, args=(self.folder, NAME, self.stream, self.interval_s, end)
        )
        writer.start()
        try:
            self._watch(keeper, writer, end)
            self._drain(keeper)
        finally:
            writer.terminate()
            keeper.terminate()
            writer.join()
            keeper.join(60)
        self.checker.reach()
        self._compare_end()
        return self._report(time.time() - begin, keeper.exitcode)

    def _watch(self, keeper: Any, writer: Any, end: float) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        next_sample = 0.0
        with Progress(*columns, console=self.console) as bar:
            task = bar.add_task("soaking", total=self.minutes * 60)
            while writer.is_alive():
                if not keeper.is_alive():
                    self.checker.problems.append(f"maintain ended with {keeper.exitcode}")
                    return
                is_new = self.checker.step()
                if time.time() >= next_sample:
                    next_sample = time.time() + SAMPLE_S
                    self.checker.sample()
                    self.checker.samples[-1]["rss_mb"] = resident_mb(keeper.pid)
                left = end - time.time()
                bar.update(task, completed=self.minutes * 60 - max(left, 0), description=(
                    f"{self.checker.checked} states checked, {len(self.checker.problems)} problems"
                ))  # fmt: skip
                time.sleep(0.0 if is_new else 0.1)
        if writer.exitcode:
            self.checker.problems.append(f"the writer ended with {writer.exitcode}")

    def _drain(self, keeper: Any) -> None:
        """The backlog goes to nothing once the writer has stopped."""
        deadline = time.time() + DRAIN_S
        checker = self.checker
        while time.time() < deadline and keeper.is_alive():
            checker.step()
            if checker.staged and checker.model.number == max(checker.staged.values()):
                return
            time.sleep(0.1)
        checker.problems.append(
            f"not all was published: {checker.model.number} of {max(checker.staged.values())}"
        )

    def _compare_end(self) -> None:
        self.checker.step()
        head = json.loads(Path(self.pointer().removeprefix("file://")).read_bytes())
        main = head["refs"]["main"]["snapshot-id"]
        snapshot = next(each for each in head["snapshots"] if each["snapshot-id"] == main)
        self.checker.location = self.pointer()
        scan = f"iceberg_scan('{self.checker.location}', snapshot_from_id={main})"
        self.checker.compare_rows(scan, snapshot)

    def _report(self, seconds: float, exit_code: int | None) -> int:
        checker = self.checker
        freshness = sorted(checker.freshness.values()) or [0]
        runs = checker.runs
        compactions = [r for r in runs if r["task"] == "compact" and r["outcome"] == "done"]
        commits = sum(r["facts"].get("commits", 0) for r in compactions)
        failed = [r for r in runs if r["outcome"] == "failed"]
        p99 = float(np.percentile(freshness, 99))
        per_minute = commits / max(seconds / 60, 1e-9)
        missed = []
        if p99 > FRESHNESS_P99_MS:
            missed.append(f"freshness p99 {p99:.0f} ms")
        if per_minute < 1:
            missed.append(f"{per_minute:.2f} compaction commits per minute")
        missed += self._growth()
        out = Console()
        grid = Grid("what", "value", box=None)
        batches = max(checker.staged.values(), default=0)
        facts = [
            ("seconds", f"{seconds:.0f}"),
            ("events staged", f"{batches * self.stream.events:,}"),
            ("published states equal to the model", f"{checker.checked:,} of "
             f"{checker.checked + checker.skipped:,} seen"),
            ("of them compared row by row", str(checker.checked_row_by_row)),
            ("reachability checks", str(checker.reach_checks)),
            ("freshness p50 / p99 / max, ms",
             f"{statistics.median(freshness):.0f} / {p99:.0f} / {freshness[-1]}"),
            ("compaction commits per minute", f"{per_minute:.2f}"),
            *self._runs_by_task(runs),
            ("failed runs", str(len(failed))),
            ("maintain", self._maintain_text(exit_code)),
        ]  # fmt: skip
        for name, value in facts:
            grid.add_row(name, f"[bold]{value}")
        out.print(grid)
        out.print(self._bounds())
        for run in failed[:5]:
            out.print(f"[yellow]failed[/] {run['task']}: {run['text']}", markup=True)
        for problem in checker.problems[:20]:
            out.print("[red]WRONG[/red]", problem, markup=True)
        for text in missed:
            out.print("[red]MISSED[/red]", text, markup=True)
        return 1 if checker.problems or missed else 0

    def _runs_by_task(self, runs: list[dict[str, Any]]) -> list[tuple[str, str]]:
        facts = []
        for task in sorted({run["task"] for run in runs}):
            took = [r["duration_ms"] for r in runs if r["task"] == task and r["outcome"] == "done"]
            text = f"median {statistics.median(took or [0]):.0f} ms, max {max(took or [0]):.0f} ms"
            facts.append(
                (f"runs of {task}", f"{len(took)}, {text}" if took else "none did anything")
            )
        return facts

    def _maintain_text(self, exit_code: int | None) -> str:
        path = self.folder / "maintain.json"
        if not path.exists():
            return f"ended with {exit_code}"
        facts = json.loads(path.read_text())
        return f"{facts['cpu_s']:.0f} s CPU, peak {facts['peak_mb']:.0f} MB"

    def _series(self, name: str) -> list[float]:
        return [sample.get(name, 0.0) for sample in self.checker.samples]

    def _bounds(self) -> Grid:
        grid = Grid("over time", "first third max", "second", "last", "end", box=None)
        for name in BOUNDED:
            values = self._series(name)
            grid.add_row(name, *(f"{v:,.4g}" for v in [*_thirds(values), values[-1]]))
        return grid

    def _growth(self) -> list[str]:
        """What still grows; only a run of some minutes has reached its steady state."""
        if self.minutes < 5:
            return []
        grown = []
        for name in BOUNDED:
            _, middle, end = _thirds(self._series(name))
            if end > middle * GROWTH_MAX:
                grown.append(f"{name} grows: {middle:,.4g}, then {end:,.4g}")
        return grown


def _thirds(values: list[float]) -> list[float]:
    third = max(len(values) // 3, 1)
    return [max(part) for part in (values[:third], values[third : 2 * third] or values,
                                   values[2 * third :] or values)]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
