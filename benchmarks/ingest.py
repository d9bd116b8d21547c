"""How fast change events get into `staging`: `scripts/bench ingest`.

One core's parsing, the in-process path, and the Spark path, all on the flights of 2013 as
Debezium events (about 780 bytes each), checked against the plain fold at the end.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.progress import track
from rich.table import Table as Report

from benchmarks.flights import (
    KEY,
    flights_schema,
    fold_flight_events,
    state_table,
    write_flight_events,
)
from tableformat import Table, open_catalog
from tableformat.cdc.events import EventBatch
from tableformat.cdc.formats import choose_format
from tableformat.cdc.ingest import IngestResult, ingest_files, read_events
from tableformat.cdc.reduce import reduce_changes
from tableformat.cdc.sink import plan_sink
from tableformat.spark.session import local_session
from tableformat.spark.stream_writer import file_events, write_stream

SEQUENCE = {"sequence": "source.lsn"}
PARSED_ROWS = 10_000  # what Spark hands to a Python task at once


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        paths = write_flight_events(work / "events", files=options.files, limit=options.flights)
        report = Report("step", "events", "seconds", "events/s", "per batch", title="ingest")
        events = _parse(report, paths)
        _in_process(report, work, paths, options.partition_by)
        if not options.no_spark:
            _spark(report, work, options)
        console.print(report)
        size = sum(path.stat().st_size for path in paths)
        console.print(f"{events:,} events, {size / events:.0f} bytes each, {len(paths)} files")


def _options(arguments: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--flights", type=int, default=None, help="only the first so many")
    parser.add_argument("--files", type=int, default=20)
    parser.add_argument("--files-per-batch", type=int, default=1)
    parser.add_argument("--partition-by", action="append", default=[])
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--no-spark", action="store_true")
    return parser.parse_args(arguments)


def _parse(report: Report, paths: list[Path]) -> int:
    catalog_schema = _table(Path(tempfile.mkdtemp()), "parse").schema
    change_format = choose_format("debezium-json", SEQUENCE)[0].build(catalog_schema)
    total, parse_seconds, reduce_seconds = 0, 0.0, 0.0
    for path in track(paths, "parse on one core", transient=True):
        [events] = read_events(path, 1 << 30)
        total += events.num_rows
        started = time.perf_counter()
        batches = EventBatch.split(events, PARSED_ROWS)
        parsed = [change_format.parse(batch) for batch in batches]
        parse_seconds += time.perf_counter() - started
        changes = pa.concat_tables([part.changes for part in parsed])
        started = time.perf_counter()
        reduce_changes(changes, key=KEY, order=["_sequence_0"])
        reduce_seconds += time.perf_counter() - started
    _row(report, "parse, one core", total, parse_seconds)
    _row(report, "reduce, one core", total, reduce_seconds)
    return total


def _in_process(report: Report, work: Path, paths: list[Path], partition_by: list[str]) -> None:
    table = _table(work / "in process", "flights", partition_by)
    plan = plan_sink(
        table.environment,
        table.identifier,
        format_name="debezium-json",
        options=SEQUENCE,
        branch="staging",
    )
    results: list[IngestResult] = []
    started = time.perf_counter()
    for path in track(paths, "in process", transient=True):
        results += ingest_files(plan, [path])
    seconds = time.perf_counter() - started
    _row(report, "in process", _events(results), seconds, _per_batch(results))
    _check(table, work)


def _spark(report: Report, work: Path, options: Any) -> None:
    table = _table(work / "spark", "flights", options.partition_by)
    spark = local_session("ingest benchmark", cores=options.cores)
    finished: list[float] = [time.perf_counter()]
    results: list[IngestResult] = []

    def listener(_: int, result: IngestResult) -> None:
        finished.append(time.perf_counter())
        results.append(result)

    query = write_stream(
        table.environment,
        table.identifier,
        file_events(spark, str(work / "events"), files_per_batch=options.files_per_batch),
        checkpoint=str(work / "checkpoint"),
        options=SEQUENCE,
        trigger={"availableNow": True},
        on_batch=listener,
    )
    query.awaitTermination()
    # The first batch starts Python workers and compiles; a stream pays that once.
    rest = results[1:]
    _row(report, "Spark, first batch", results[0].events, finished[1] - finished[0])
    _row(report, "Spark, others", _events(rest), finished[-1] - finished[1], _per_batch(rest))
    _check(table, work)
    spark.stop()


def _table(warehouse: Path, name: str, partition_by: Sequence[str] = ()) -> Table:
    catalog = open_catalog("local", warehouse=str(warehouse))
    return catalog.create_table(
        f"nyc.{name}", flights_schema(), primary_key=KEY, partition_by=partition_by
    )


def _check(table: Table, work: Path) -> None:
    by_key = [(name, "ascending") for name in KEY]
    expected = state_table(fold_flight_events(work / "events")).sort_by(by_key)
    rows = table.scan(branch="staging").to_arrow().select(expected.column_names)
    if not rows.cast(expected.schema).sort_by(by_key).equals(expected):
        raise SystemExit("staging differs from the fold of the events")


def _events(results: Sequence[IngestResult]) -> int:
    return sum(result.events for result in results)


def _per_batch(results: Sequence[IngestResult]) -> str:
    data = sum(result.files[0] for result in results) / max(len(results), 1)
    deletes = sum(result.files[1] for result in results) / max(len(results), 1)
    size = sum(_bytes_added(result) for result in results) / max(len(results), 1)
    return f"{data:.1f} data + {deletes:.1f} delete files, {size / 1e6:.2f} MB"


def _bytes_added(result: IngestResult) -> int:
    if result.commit is None or result.commit.snapshot.summary is None:
        return 0
    return int(result.commit.snapshot.summary.additional_properties.get("added-files-size", 0))


def _row(report: Report, step: str, events: int, seconds: float, per_batch: str = "") -> None:
    rate = f"{events / seconds:,.0f}" if seconds else ""
    report.add_row(step, f"{events:,}", f"{seconds:.2f}", rate, per_batch)


if __name__ == "__main__":
    main()
