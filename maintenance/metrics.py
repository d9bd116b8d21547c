"""Prometheus metrics of a scheduler, over HTTP.

Gauges are computed when they are asked for, from what the scheduler knows, so that a scrape reads
no table. Where Iceberg has a metric (ScanReport, CommitReport, summary totals) the meaning is its
own: `data_files` is total-data-files, `delete_files` total-delete-files with each deletion vector
counted once, `size_bytes` total-files-size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from maintenance.run_history import Ledger, Outcome, Run
from maintenance.scheduler import Scheduler
from maintenance.settings import TaskName
from maintenance.table_figures import Figures
from maintenance.triggers import next_publish_ms
from maintenance.watched import WatchedTable
from tableformat.errors import InvalidInputError
from tableformat.runtime import Clock

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60, 300, 1800)


@dataclass(frozen=True, slots=True)
class _Gauge:
    name: str
    text: str
    value: Callable[[Figures, int], float | None]


_GAUGES = (
    _Gauge("icefold_staging_commits", "Staged commits that are not published.",
           lambda f, _: f.backlog.commits),
    _Gauge("icefold_staging_rows", "Rows in staged commits that are not published.",
           lambda f, _: f.backlog.rows),
    _Gauge("icefold_staging_equality_deletes", "Equality deletes that are not published.",
           lambda f, _: f.backlog.deletes),
    _Gauge("icefold_staging_lag_seconds", "Age of the oldest staged commit not published.",
           lambda f, now_ms: f.backlog.lag_ms(now_ms) / 1e3),
    _Gauge("icefold_source_lag_seconds",
           "Age of the newest published change by the source's clock.",
           lambda f, now_ms: None if (lag := f.source_lag_ms(now_ms)) is None else lag / 1e3),
    _Gauge("icefold_cut_batch",
           "Batch of the newest cut that the table was published with.",
           lambda f, _: None if (cut := f.backlog.stream.cut) is None else cut.batch),
    _Gauge("icefold_table_records", "Iceberg total-records: rows, deleted ones included.",
           lambda f, _: f.totals["records"]),
    _Gauge("icefold_table_data_files", "Iceberg total-data-files.",
           lambda f, _: f.totals["data_files"]),
    _Gauge("icefold_table_delete_files", "Iceberg total-delete-files; each DV counts.",
           lambda f, _: f.totals["delete_files"]),
    _Gauge("icefold_table_position_deletes", "Iceberg total-position-deletes: rows hidden by DVs.",
           lambda f, _: f.totals["position_deletes"]),
    _Gauge("icefold_table_equality_deletes", "Iceberg total-equality-deletes on the target.",
           lambda f, _: f.totals["equality_deletes"]),
    _Gauge("icefold_table_size_bytes", "Iceberg total-files-size.",
           lambda f, _: f.totals["size_bytes"]),
    _Gauge("icefold_table_dv_share", "Share of rows that deletion vectors hide.",
           lambda f, _: f.dv_share),
    _Gauge("icefold_table_snapshots", "Snapshots in the metadata.", lambda f, _: f.snapshots),
    _Gauge("icefold_table_snapshot_timestamp_seconds", "Time of the published snapshot.",
           lambda f, _: None if f.target_ms is None else f.target_ms / 1e3),
)  # fmt: skip


class SchedulerMetrics:
    """The metrics of one scheduler; an observer of its runs.

    Args:
        clock: For ages.
        registry: Where they go; None: a registry of their own.
    """

    def __init__(self, clock: Clock, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        labels = ("table", "task", "outcome")
        self._runs = Counter("icefold_task_runs", "Runs of tasks.", labels, registry=self.registry)
        self._seconds = Histogram(
            "icefold_task_duration_seconds",
            "Time of runs that did something.",
            ("task",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._phases = Counter(
            "icefold_cycle_phase_seconds",
            "Time in the phases of resolve cycles.",
            ("phase",),
            registry=self.registry,
        )
        self._freshness = Histogram(
            "icefold_publish_freshness_seconds",
            "Age of the oldest staged commit at its publish, counted from the source.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._clock = clock

    def watch(self, scheduler: Scheduler) -> None:
        """Show what `scheduler` knows of its tables."""
        self.registry.register(_TableCollector(scheduler, self._clock))

    def __call__(self, run: Run) -> None:
        """A task has ended."""
        self._runs.labels(run.table, run.task.value, run.outcome.value).inc()
        if run.outcome != Outcome.DONE:
            return
        self._seconds.labels(run.task.value).observe(run.duration_ms / 1e3)
        phases = run.facts.get("phases_ms")
        for phase, spent_ms in phases.items() if isinstance(phases, Mapping) else ():
            self._phases.labels(phase).inc(spent_ms / 1e3)
        freshness_ms = run.facts.get("freshness_ms")
        if run.task == TaskName.RESOLVE and isinstance(freshness_ms, int | float):
            self._freshness.observe(freshness_ms / 1e3)

    def serving(self, port: int, *, host: str) -> AbstractContextManager[None]:
        """See `serving_metrics`."""
        return serving_metrics(self.registry, port, host=host)


@contextmanager
def serving_metrics(registry: CollectorRegistry, port: int, *, host: str) -> Iterator[None]:
    """Answer scrapes at `http://host:port/metrics` while the block runs.

    Raises:
        InvalidInputError: The port cannot be had.
    """
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise InvalidInputError(
            f"metrics cannot be served: {error.strerror or error}",
            host=host,
            port=port,
            action="choose another --metrics-port",
        ) from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _TableCollector(Collector):
    def __init__(self, scheduler: Scheduler, clock: Clock) -> None:
        self._scheduler = scheduler
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        tables = self._scheduler.tables()
        now_ms = self._clock.now_ms()
        for gauge in _GAUGES:
            family = GaugeMetricFamily(gauge.name, gauge.text, labels=("table",))
            for each in tables:
                value = None if each.figures is None else gauge.value(each.figures, now_ms)
                if value is not None:
                    family.add_metric((each.name,), value)
            yield family
        yield self._up(tables)
        yield self._next_publish(tables)
        yield self._failures(tables)

    def _up(self, tables: list[WatchedTable]) -> GaugeMetricFamily:
        family = GaugeMetricFamily(
            "icefold_table_up", "Whether the table's metadata can be read.", labels=("table",)
        )
        for each in tables:
            family.add_metric((each.name,), float(each.figures is not None))
        return family

    def _next_publish(self, tables: list[WatchedTable]) -> GaugeMetricFamily:
        family = GaugeMetricFamily(
            "icefold_next_publish_timestamp_seconds",
            "No cycle starts before this time; only with a pause after publishes.",
            labels=("table",),
        )
        now_ms = self._clock.now_ms()
        for each in tables:
            if each.look is None or each.figures is None:
                continue
            ledger = each.ledger or Ledger()
            at_ms = next_publish_ms(each.figures, ledger, each.look.config, now_ms=now_ms)
            if at_ms is not None:
                family.add_metric((each.name,), at_ms / 1e3)
        return family

    def _failures(self, tables: list[WatchedTable]) -> GaugeMetricFamily:
        family = GaugeMetricFamily(
            "icefold_task_failures_in_a_row",
            "Failures since the last success.",
            labels=("table", "task"),
        )
        for each in tables:
            records = {} if each.ledger is None else each.ledger.records
            for task, record in records.items():
                family.add_metric((each.name, task.value), record.failures)
        return family
