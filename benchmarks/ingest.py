"""How fast change events get into `staging`: `scripts/bench ingest`.

    scripts/bench ingest [--orders N] [--batches N] [--before key|full] [--flights N] [--cores N]

1. Order events (see `benchmarks.support.order_events`), about 450 bytes each, through Spark: as
   Debezium JSON, and as typed rows from Parquet, these also as one frame. The table has a key of
   three columns and is partitioned by another, so deletes are global. Checked by DuckDB's fold.
2. The flights of 2013, about 780 bytes each: one core's parsing, the in-process path, and Spark.
   Checked by the plain fold.

`events/s` of Spark leaves out the first batches (`--warm-up`): a stream starts its workers once,
and Java compiles what is hot meanwhile.
`CPU` is of the whole process tree (JVM and Python workers too); on a busy machine it says more.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from rich.console import Console
from rich.progress import track
from rich.table import Table as Report

from benchmarks.demo import open_duckdb
from benchmarks.flights import (
    KEY,
    flights_schema,
    fold_flight_events,
    state_table,
    write_flight_events,
)
from benchmarks.support import order_events
from benchmarks.support.order_events import OrderEvents, OrderFold, orders_schema
from benchmarks.support.process_tree import cpu_seconds
from tableformat import Table, open_catalog
from tableformat.cdc.event_files import ingest_files, read_events
from tableformat.cdc.events import EventBatch
from tableformat.cdc.formats import choose_format
from tableformat.cdc.ingest import IngestResult
from tableformat.cdc.reduce import reduce_changes
from tableformat.cdc.sink import plan_sink
from tableformat.spark.session import local_session
from tableformat.spark.stream_writer import file_events, write_stream

SEQUENCE = {"sequence": "source.lsn"}
PARSED_ROWS = 10_000  # what Spark hands to a Python task at once


@dataclass
class StreamRun:
    """Results of a stream's batches; clock and CPU seconds at its start and after each batch."""

    results: list[IngestResult] = field(default_factory=list)
    finished: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lap()

    def lap(self) -> None:
        self.finished.append(time.perf_counter())
        self.cpu.append(cpu_seconds(os.getpid()))


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        report = Report("step", "events", "seconds", "events/s", "CPU", "per batch", title="ingest")
        if options.orders and not options.no_spark:
            _orders(report, work, options)
        if options.flights == 0:
            console.print(report)
            return
        paths = write_flight_events(work / "events", files=options.files, limit=options.flights)
        events = _parse(report, paths)
        _in_process(report, work, paths, options.partition_by)
        if not options.no_spark:
            _spark(report, work, options)
        console.print(report)
        size = sum(path.stat().st_size for path in paths)
        console.print(f"{events:,} events, {size / events:.0f} bytes each, {len(paths)} files")


def _options(arguments: Sequence[str] | None) -> Any:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--orders", type=int, default=4_500_000, help="order events; 0: none")
    parser.add_argument("--batches", type=int, default=15, help="of the order events")
    parser.add_argument("--warm-up", type=int, default=5, help="order batches not measured")
    parser.add_argument("--before", choices=("key", "full"), default="key")
    parser.add_argument("--flights", type=int, default=None, help="only the first so many; 0: none")
    parser.add_argument("--files", type=int, default=5)
    parser.add_argument("--files-per-batch", type=int, default=1)
    parser.add_argument("--partition-by", action="append", default=[])
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--no-spark", action="store_true")
    options = parser.parse_args(arguments)
    if options.orders and not 0 < options.warm_up < options.batches:
        parser.error("--warm-up must be positive, and below --batches")
    return options


def _parse(report: Report, paths: list[Path]) -> int:
    catalog_schema = _table(Path(tempfile.mkdtemp()), "parse").schema()
    change_format = choose_format("debezium-json", SEQUENCE).build(catalog_schema)
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
    table = _table(work / "flights, in process", "flights", partition_by)
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
    events = file_events(spark, str(work / "events"), files_per_batch=options.files_per_batch)
    run = _run_stream(table, events, work / "checkpoint", SEQUENCE)
    _row(
        report,
        "Spark, flights, first batch",
        run.results[0].events,
        run.finished[1] - run.finished[0],
    )
    _rest_row(report, "Spark, flights, others", run, 1)
    _check(table, work)
    spark.stop()


def _orders(report: Report, work: Path, options: Any) -> None:
    """Order events through Spark, as JSON and as typed rows."""
    drawn = OrderEvents.draw(options.orders, files=options.batches, seed=1)
    json_paths = drawn.write(work / "orders", before=options.before)
    typed = work / "typed"
    typed.mkdir()
    for number, events in enumerate(drawn.files):
        path = typed / f"orders-{number:04d}.parquet"
        pq.write_table(drawn.typed(events), path)
        os.utime(path, (number, number))
        os.utime(json_paths[number], (number, number))
    size = sum(path.stat().st_size for path in json_paths) / options.orders
    spark = local_session("ingest benchmark", cores=options.cores)
    sources = {
        f"Spark, order JSON of {size:.0f} bytes": (
            "debezium-json",
            file_events(spark, str(work / "orders")),
            order_events.OPTIONS,
        ),
        "Spark, typed order rows": (
            "upsert",
            _typed_stream(spark, typed),
            {"kind-column": "op", "sequence": "version"},
        ),
    }
    with open_duckdb(work / "duckdb-extensions") as duck:
        fold = OrderFold(duck)
        for path in json_paths:
            fold.add(path)
        for step, (format_name, stream, given) in sources.items():
            folder = work / format_name
            catalog = open_catalog("local", warehouse=str(folder / "warehouse"))
            table = catalog.create_table(
                "tpcc.orders",
                orders_schema(),
                primary_key=order_events.KEY,
                partition_by=order_events.PARTITION_BY,
            )
            run = _run_stream(table, stream, folder / "checkpoint", given, format_name)
            _rest_row(report, step, run, options.warm_up)
            _check_fold(table, fold, step)
        step = "Spark, typed order rows, one frame"
        _check_fold(_one_write(report, spark, work, typed, step), fold, step)


def _check_fold(table: Table, fold: OrderFold, step: str) -> None:
    fold.duck.register("staged_rows", table.scan(branch="staging").to_arrow())
    if fold.differences("staged_rows"):
        raise SystemExit(f"{step}: staging differs from the fold of the events")
    fold.duck.unregister("staged_rows")


def _one_write(report: Report, spark: SparkSession, work: Path, typed: Path, step: str) -> Table:
    """All typed rows as one frame and one commit; the second of two writes counts."""
    for attempt in ("first", "second"):
        catalog = open_catalog("local", warehouse=str(work / "one write" / attempt))
        table = catalog.create_table(
            "tpcc.orders",
            orders_schema(),
            primary_key=order_events.KEY,
            partition_by=order_events.PARTITION_BY,
        )
        frame = spark.read.parquet(str(typed))
        started, cpu = time.perf_counter(), cpu_seconds(os.getpid())
        result = table.write_changes(frame, options={"kind-column": "op", "sequence": "version"})
        seconds, cpu = time.perf_counter() - started, cpu_seconds(os.getpid()) - cpu
    _row(report, step, result.events, seconds, _per_batch([result]), cpu)
    return table


def _typed_stream(spark: SparkSession, folder: Path) -> DataFrame:
    columns = spark.read.parquet(str(folder)).schema
    reader = spark.readStream.schema(columns).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(folder))


def _run_stream(
    table: Table,
    events: DataFrame,
    checkpoint: Path,
    options: dict[str, str],
    format_name: str = "debezium-json",
) -> StreamRun:
    run = StreamRun()

    def listener(_: int, result: IngestResult) -> None:
        run.lap()
        run.results.append(result)

    query = write_stream(
        table.environment,
        table.identifier,
        events,
        checkpoint=str(checkpoint),
        format_name=format_name,
        options=options,
        trigger={"availableNow": True},
        on_batch=listener,
    )
    query.awaitTermination()
    return run


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


def _rest_row(report: Report, step: str, run: StreamRun, warm_up: int) -> None:
    """All batches but the first ones."""
    rest = run.results[warm_up:]
    seconds, cpu = run.finished[-1] - run.finished[warm_up], run.cpu[-1] - run.cpu[warm_up]
    _row(report, step, _events(rest), seconds, _per_batch(rest), cpu)


def _row(
    report: Report,
    step: str,
    events: int,
    seconds: float,
    per_batch: str = "",
    cpu_seconds: float | None = None,
) -> None:
    rate = f"{events / seconds:,.0f}" if seconds else ""
    cpu = "" if cpu_seconds is None or not events else f"{cpu_seconds / events * 1e6:.1f} µs/event"
    report.add_row(step, f"{events:,}", f"{seconds:.2f}", rate, cpu, per_batch)


if __name__ == "__main__":
    main()
