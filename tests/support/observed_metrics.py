"""The metrics of a process that has maintained a table, and of one that has ingested into it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from prometheus_client import CollectorRegistry

import tableformat as tf
from maintenance.ingest_watch import IngestWatch
from maintenance.metrics import SchedulerMetrics
from maintenance.scheduler import Scheduler
from maintenance.scheduler_options import SchedulerOptions
from tableformat.cdc.ingest import IngestResult

TABLE = "shop.orders"
EVENT = (
    '{"before":null,"after":{"id":1},"op":"c","source":{"lsn":1,"ts_ms":1700000000000},"ts_ms":1}'
)


def observed_registries(folder: Path) -> dict[str, CollectorRegistry]:
    """By the name of the job in Prometheus; every metric has a sample."""
    catalog = tf.open_catalog("local", warehouse=str(folder / "warehouse"))
    table = catalog.create_table(TABLE, pa.schema([("id", pa.int64())]), primary_key=["id"])
    table.append(pa.table({"id": list(range(100))}))
    clock = catalog.environment.runtime.clock
    watch = IngestWatch(TABLE, clock)
    watch.batch(table.write_changes(pa.table({"value": [EVENT]}), format_name="debezium-json"))
    watch.batch(IngestResult(events=2, bad_records=1, skipped={"tombstone": 1}))
    watch.progress({("orders", 0): 7})
    metrics = SchedulerMetrics(clock)
    options = SchedulerOptions(overrides={"resolve.min-interval-ms": 3_600_000})
    scheduler = Scheduler(catalog, ["shop.*"], options, observers=(metrics,))
    metrics.watch(scheduler)
    scheduler.run_once()
    return {"icefold-maintain": metrics.registry, "icefold-ingest": watch.registry}
