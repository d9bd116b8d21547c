"""What an ingestion that follows its source tells while it runs: metrics, and a line now and then.

It is the only one who knows how much waits in Kafka: the table cannot tell a source without changes
from an ingester that is dead.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from resolver.number_text import plural, span_text
from tableformat.cdc.ingest import IngestResult
from tableformat.runtime import Clock

LINE_EVERY_MS = 10_000
logger = logging.getLogger("icefold.ingest")
Backlog = Mapping[tuple[str, int], int]  # topic and partition: messages that are not staged


class IngestWatch:
    """Counts the batches of one table. Threads may share it: batches come in one of Spark's own.

    Args:
        table: Its name, a label of every metric.
        clock: For ages, and to space the lines.
    """

    def __init__(self, table: str, clock: Clock) -> None:
        self.registry = CollectorRegistry()
        self._clock = clock
        self._table = table
        self._lock = threading.RLock()
        self._sums: dict[str, int] = {}
        self._since_ms = clock.now_ms() - LINE_EVERY_MS  # the first batch is worth a line at once
        self._source_ms: int | None = None
        self._backlog: Backlog = {}
        self._batches = self._counter("batches", "Batches staged.")
        self._events = self._counter("events", "Events read.")
        self._changes = self._counter("changes", "Changes staged.")
        self._dead_letters = self._counter(
            "dead_letters", "Bad records put into the dead-letter table."
        )
        self._skipped = Counter(
            "icefold_ingest_skipped",
            "Events that are no changes, by what they are.",
            ("table", "what"),
            registry=self.registry,
        )
        self._source = self._gauge(
            "source_timestamp_seconds", "Source time of the newest change staged."
        )
        self._last = self._gauge("batch_timestamp_seconds", "When the last batch was staged.")
        self._waiting = self._gauge(
            "backlog_events", "Kafka messages that are not staged.", "topic", "partition"
        )

    def batch(self, result: IngestResult) -> None:
        """A batch is done."""
        with self._lock:
            self._count(result)

    def _count(self, result: IngestResult) -> None:
        now_ms = self._clock.now_ms()
        self._batches.labels(self._table).inc()
        self._events.labels(self._table).inc(result.events)
        self._changes.labels(self._table).inc(result.changes)
        self._dead_letters.labels(self._table).inc(result.bad_records)
        self._last.labels(self._table).set(now_ms / 1e3)
        for what, count in result.skipped.items():
            self._skipped.labels(self._table, what).inc(count)
        if result.source_ms is not None:
            self._source_ms = result.source_ms
            self._source.labels(self._table).set(result.source_ms / 1e3)
        counts = {
            "batches": 1,
            "events": result.events,
            "changes": result.changes,
            "dead letters": result.bad_records,
        }
        for name, count in counts.items():
            self._sums[name] = self._sums.get(name, 0) + count
        if result.bad_records or now_ms - self._since_ms >= LINE_EVERY_MS:
            self.line()

    def progress(self, backlog: Backlog) -> None:
        """What waits in Kafka, as the stream has last seen it."""
        with self._lock:
            self._backlog = backlog
            for (topic, partition), count in backlog.items():
                self._waiting.labels(self._table, topic, str(partition)).set(count)
            if self._clock.now_ms() - self._since_ms >= LINE_EVERY_MS:
                self.line()

    def line(self) -> None:
        """Say what has been done since the last line, if anything."""
        with self._lock:
            if self._sums:
                self._line()

    def _line(self) -> None:
        now_ms = self._clock.now_ms()
        sums, self._sums, self._since_ms = self._sums, {}, now_ms
        parts = [plural(sums["batches"], "batch", "batches"), plural(sums["events"], "event")]
        parts += [plural(sums[name], name[:-1]) for name in ("changes", "dead letters")]
        text = ", ".join(parts)
        if self._source_ms is not None:
            text += f"; newest change {span_text(max(now_ms - self._source_ms, 0))} old"
        if self._backlog:
            each = ", ".join(
                f"{topic}-{partition}: {count:,}"
                for (topic, partition), count in sorted(self._backlog.items())
            )
            text += f"; Kafka backlog {sum(self._backlog.values()):,} ({each})"
        level = logging.WARNING if sums["dead letters"] else logging.INFO
        logger.log(level, "%s: %s", self._table, text)

    def _counter(self, name: str, text: str) -> Counter:
        counter = Counter(f"icefold_ingest_{name}", text, ("table",), registry=self.registry)
        counter.labels(self._table)  # it is there, at 0, before anything has happened
        return counter

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        names = ("table", *labels)
        return Gauge(f"icefold_ingest_{name}", text, names, registry=self.registry)


def kafka_backlog(progress: Mapping[str, Any] | None) -> dict[tuple[str, int], int]:
    """Messages per partition between what a stream has staged and the ends of its topics.

    `progress` is Spark's `StreamingQuery.lastProgress`; empty where it does not tell.
    """
    backlog: dict[tuple[str, int], int] = {}
    for source in (progress or {}).get("sources", ()):
        staged, ends = _offsets(source["endOffset"]), _offsets(source["latestOffset"])
        for place, end in ends.items():
            backlog[place] = max(end - staged.get(place, 0), 0)
    return backlog


def _offsets(given: Any) -> dict[tuple[str, int], int]:
    """Kafka's offsets as Spark writes them: `{"topic":{"0":42}}`."""
    try:
        topics = json.loads(given) if isinstance(given, str) else given
        return {
            (topic, int(partition)): int(offset)
            for topic, offsets in (topics or {}).items()
            for partition, offset in offsets.items()
        }
    except (ValueError, AttributeError, TypeError):
        return {}  # another source's form
