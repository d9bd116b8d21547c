"""What an ingestion that follows its source tells while it runs: metrics, and a line now and then.

It is the only one who knows how much waits in Kafka: the table cannot tell a source without changes
from an ingester that is dead.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge

from resolver.number_text import plural, span_text
from tableformat.cdc.ingest import IngestResult
from tableformat.cdc.many.positions import decode_offsets
from tableformat.runtime import Clock

LINE_EVERY_MS = 10_000
PLACES_SHOWN_MAX = 5
logger = logging.getLogger("icefold.ingest")
Backlog = Mapping[tuple[str, int], int]  # topic and partition: messages that are not staged


class IngestWatch:
    """Counts the batches of a stream. Threads may share it: batches come in one of Spark's own.

    Args:
        name: The stream's, for people: its table, or the namespace of its tables.
        clock: For ages, and to space the lines.
        is_many: The stream has many tables, which are told with what happens to them; else `name`
            is a label of every metric, there before anything happens.
        registry: Where the metrics go; None: a registry of their own.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        *,
        is_many: bool = False,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self.registry = registry or CollectorRegistry()
        self._clock = clock
        self._name = name
        self._tables = () if is_many else (name,)
        self._lock = threading.RLock()
        self._sums: dict[str, int] = {}
        # The first batch is worth a line at once.
        self._since_ms = clock.monotonic_ms() - LINE_EVERY_MS
        self._source_ms: int | None = None
        self._backlog: dict[str, Backlog] = {}
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
        self._aside = self._gauge(
            "set_aside", "1: the table's events cannot be taken, and it stands aside."
        )

    def batch(self, result: IngestResult) -> None:
        """A batch of the one table is done."""
        self.staged({self._name: result})

    def staged(self, results: Mapping[str, IngestResult]) -> None:
        """A batch is done on all its tables."""
        with self._lock:
            self._add("batches", 1)
            for table, result in results.items():
                self._count(table, result)
            bad = any(result.bad_records for result in results.values())
            if bad or self._clock.monotonic_ms() - self._since_ms >= LINE_EVERY_MS:
                self.line()

    def _count(self, table: str, result: IngestResult) -> None:
        self._batches.labels(table).inc()
        self._events.labels(table).inc(result.events)
        self._changes.labels(table).inc(result.changes)
        self._dead_letters.labels(table).inc(result.bad_records)
        self._last.labels(table).set(self._clock.now_ms() / 1e3)
        for what, count in result.skipped.items():
            self._skipped.labels(table, what).inc(count)
        if result.source_ms is not None:
            self._source_ms = max(self._source_ms or 0, result.source_ms)
            self._source.labels(table).set(result.source_ms / 1e3)
        self._add("events", result.events)
        self._add("changes", result.changes)
        self._add("dead letters", result.bad_records)

    def _add(self, name: str, count: int) -> None:
        self._sums[name] = self._sums.get(name, 0) + count

    def progress(self, backlog: Backlog) -> None:
        """What waits in Kafka for the one table, as the stream has last seen it."""
        self.waiting({self._name: backlog})

    def waiting(self, backlogs: Mapping[str, Backlog]) -> None:
        """The same for every table."""
        with self._lock:
            self._backlog = dict(backlogs)
            for table, backlog in backlogs.items():
                for (topic, partition), count in backlog.items():
                    self._waiting.labels(table, topic, str(partition)).set(count)
            if self._clock.monotonic_ms() - self._since_ms >= LINE_EVERY_MS:
                self.line()

    def set_aside(self, table: str, *, stands: bool) -> None:
        """A table, or a topic that makes none, stands aside, or does no longer."""
        self._aside.labels(table).set(int(stands))

    def line(self) -> None:
        """Say what has been done since the last line, if anything."""
        with self._lock:
            if self._sums:
                self._line()

    def _line(self) -> None:
        sums, self._sums, self._since_ms = self._sums, {}, self._clock.monotonic_ms()
        parts = [plural(sums["batches"], "batch", "batches"), plural(sums["events"], "event")]
        parts += [plural(sums[name], name[:-1]) for name in ("changes", "dead letters")]
        text = ", ".join(parts)
        if self._source_ms is not None:
            age_ms = max(self._clock.now_ms() - self._source_ms, 0)
            text += f"; newest change {span_text(age_ms)} old"
        backlog = {place: n for each in self._backlog.values() for place, n in each.items()}
        if backlog:
            text += f"; Kafka backlog {sum(backlog.values()):,} ({self._places(backlog)})"
        level = logging.WARNING if sums["dead letters"] else logging.INFO
        logger.log(level, "%s: %s", self._name, text)

    def _places(self, backlog: Backlog) -> str:
        """Every partition of one table; of many the fullest."""
        shown = sorted(backlog.items())
        if not self._tables:
            shown = sorted(shown, key=lambda each: -each[1])[:PLACES_SHOWN_MAX]
        return ", ".join(f"{topic}-{partition}: {n:,}" for (topic, partition), n in shown)

    def _counter(self, name: str, text: str) -> Counter:
        counter = Counter(f"icefold_ingest_{name}", text, ("table",), registry=self.registry)
        for table in self._tables:
            counter.labels(table)  # it is there, at 0, before anything has happened
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
    try:
        return decode_offsets(given)
    except (ValueError, AttributeError, TypeError):
        return {}  # another source's form
