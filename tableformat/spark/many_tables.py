"""Many topics into many tables by one Spark query, exactly once on each table.

The tables say where the query begins (`tableformat.cdc.many.stream_tables`), so Spark's own
checkpoint is a folder for one run, thrown away with it: either engine goes on where the other
stopped. Each micro-batch is staged on every table that it touches, as in this process, with the
files written by the executors.

A table that stands aside is not staged; its topics are read and dropped until the query is started
again, which begins at the table's own offsets. One that was resumed has caught up when Spark says
that all is read that its topics held when that was first asked, or when a query that does not
follow is done.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from tableformat.cdc.ingest import PreparedBatch
from tableformat.cdc.many.positions import Place, decode_offsets, encode_offsets
from tableformat.cdc.many.source import EARLIEST
from tableformat.cdc.many.staging import StreamBatch, StreamTable, planned, within_topics
from tableformat.cdc.many.stream_tables import (
    StreamListener,
    StreamSettings,
    StreamTables,
    open_tables,
)
from tableformat.cdc.many.table_making import EVENTS_LOOKED_AT_MAX
from tableformat.environment import Environment
from tableformat.errors import StoreUnavailableError
from tableformat.spark.change_frame import shard_labels
from tableformat.spark.kafka_source import (
    PREFIX,
    KafkaSource,
    partition_bounds,
    topic_ids,
    topic_partitions,
)
from tableformat.spark.stream_errors import (
    await_query,
    own_error,
    stream_error,
    telling_java_is_gone,
)
from tableformat.spark.stream_writer import OFFSETS, prepare_frame, with_order
from tableformat.temporary_disk import temporary_folder

LATEST = -1  # as an offset to begin at: of topics that are dropped


@dataclass(slots=True, kw_only=True)
class SparkEngine:
    """One run of a stream. Made, then `run` once.

    Args:
        environment: Catalog, store, clock. The store must pickle.
        spark: The session, with Kafka's connector.
        source: The brokers; its topic is not looked at.
        settings: The stream. `threads` tables are written at once.
        interval_ms: From the start of one batch to that of the next, if it follows.
        listener: Is told what happens.
        resume_tables: Tables that need no longer stand aside.
        on_progress: Called every second with Spark's `lastProgress`.
    """

    environment: Environment
    spark: SparkSession
    source: KafkaSource
    settings: StreamSettings
    interval_ms: float = 1_000
    listener: StreamListener = field(default_factory=StreamListener)
    resume_tables: Collection[str] = ()
    on_progress: Callable[[Mapping[str, Any] | None], None] = lambda _: None
    _read: dict[Place, int] = field(default_factory=dict)
    _dropped: set[str] = field(default_factory=set)
    _goal: dict[Place, int] | None = None

    def run(self, *, follow: bool, stop: Callable[[], bool] = lambda: False) -> None:
        """Stage what there is, or go on until `stop` says so.

        Raises:
            TableError: See `open_tables`, `topic_partitions`, `stream_error` and
                `telling_java_is_gone`.

        Effects: as `LocalEngine.run`; a checkpoint in a temporary folder of this machine.
        """
        with telling_java_is_gone(stop):
            self._run(follow, stop)

    def _run(self, follow: bool, stop: Callable[[], bool]) -> None:
        topics = topic_partitions(self.spark, self.source)
        tables = open_tables(
            self.environment,
            self.settings,
            topics,
            self.listener,
            ids_of=partial(topic_ids, self.spark, self.source),
            resume_tables=self.resume_tables,
        )
        tables.leave_out()
        self._finish(tables)
        tables.tell_unread(
            tables.tables.values(), lambda came: partition_bounds(self.spark, self.source, came)[0]
        )
        with temporary_folder("icefold-") as checkpoint:
            begin = self._begin(tables, topics)
            self._read = {place: at for place, at in begin.items() if at >= 0}
            trigger: dict[str, Any] = {"availableNow": True}
            if follow:
                trigger = {"processingTime": f"{round(self.interval_ms)} milliseconds"}
            frame = self._reader(self.spark.readStream, {
                "subscribePattern": _java_pattern(self.settings),
                "startingOffsets": encode_offsets(begin),
            }).load()  # fmt: skip
            query = (
                frame.writeStream.foreachBatch(
                    lambda events, number: self._batch(tables, checkpoint, events, number)
                )
                .option("checkpointLocation", checkpoint)
                .trigger(**trigger)
                .start()
            )

            def on_progress(progress: Mapping[str, Any] | None) -> None:
                self._check_caught_up(tables, progress)
                self.on_progress(progress)

            if await_query(query, stop, on_progress):
                for name in list(tables.resumed):
                    if tables.tables[name].made_anew is None:
                        tables.caught_up(name)

    def _check_caught_up(self, tables: StreamTables, progress: Mapping[str, Any] | None) -> None:
        source = next(iter((progress or {}).get("sources", ())), None)
        if not tables.resumed or source is None or not source["endOffset"]:
            return
        if self._goal is None:
            self._goal = decode_offsets(source["latestOffset"])
        staged = decode_offsets(source["endOffset"])
        behind = {
            topic for (topic, n), end in self._goal.items() if staged.get((topic, n), 0) < end
        }
        for name in list(tables.resumed):
            table = tables.tables.get(name)
            if table is None or table.made_anew is not None:
                continue
            if not behind & set(table.topics):
                tables.caught_up(name)

    def _reader(self, reader: Any, options: Mapping[str, str]) -> Any:
        named = {PREFIX + name: text for name, text in self.source.client_settings.items()}
        reader = reader.format("kafka").options(**named).options(**options)
        if self.source.batch_events is not None and "subscribePattern" in options:
            reader = reader.option("maxOffsetsPerTrigger", self.source.batch_events)
        return reader

    def _begin(self, tables: StreamTables, topics: Mapping[str, int]) -> dict[Place, int]:
        """Where the query begins in every partition that its pattern fits; Spark wants them all."""
        pattern = re.compile(_java_pattern(self.settings))
        table_of = tables.table_of
        begin: dict[Place, int] = {}
        for topic, count in topics.items():
            if pattern.fullmatch(topic) is None:
                continue
            table = tables.tables.get(table_of.get(topic, ""))
            if table is None:
                self._dropped.add(topic)
            for place in ((topic, number) for number in range(count)):
                begin[place] = LATEST if table is None else table.own.get(place, EARLIEST)
        return begin

    def _finish(self, tables: StreamTables) -> None:
        """Do a batch again for those of its tables that lack it."""
        found = tables.unfinished()
        if found is None:
            return
        lacking = {name: tables.tables[name] for name in found.lacking}
        places = [each for t in lacking.values() for each in t.places(tables.partitions)]
        found = within_topics(found, lacking, *partition_bounds(self.spark, self.source, places))
        frames = {}
        for name, table in lacking.items():
            there = table.places(tables.partitions)
            ends = {place: found.ends[place] for place in there if place in found.ends}
            begin = {place: table.own.get(place, EARLIEST) for place in ends}
            of_topics: dict[str, list[int]] = {}
            for topic, number in sorted(ends):
                of_topics.setdefault(topic, []).append(number)
            between = {
                "assign": json.dumps(of_topics),
                "startingOffsets": encode_offsets(begin),
                "endingOffsets": encode_offsets(ends),
            }
            frames[name] = with_order(self._reader(self.spark.read, between).load())
        try:
            tables.stage_again(found, frames, self._prepare)
        except (Py4JJavaError, PySparkException) as error:  # Kafka may have deleted its messages
            raise stream_error(error) from error

    def _batch(self, tables: StreamTables, checkpoint: str, events: DataFrame, number: int) -> None:
        """One micro-batch."""
        ends = _ends(checkpoint, number)
        moved = {place: end for place, end in ends.items() if end > self._read.get(place, 0)}
        self._join(tables, {topic for topic, _ in moved}, Counter(topic for topic, _ in ends))
        table_of = tables.table_of
        ours = {place: end for place, end in moved.items() if place[0] in table_of}
        self._read |= ends
        names = sorted({table_of[topic] for topic, _ in ours})
        for name in names:
            ours |= tables.tables[name].silent(tables.partitions, ends)
        if not names:
            return
        if len(names) > 1:
            # Every table looks into every part: of one topic each, they would be tables squared.
            events = events.coalesce(self.spark.sparkContext.defaultParallelism).persist()
        frames = {}
        for name in names:
            topics = tables.tables[name].topics
            frames[name] = with_order(events.where(sf.col("topic").isin(*topics)))
        try:
            tables.stage(
                StreamBatch(batch=tables.batch_id(), events=frames, ends=ours), self._prepare
            )
        finally:
            if len(names) > 1:
                events.unpersist()
        self._dropped |= {topic for t in tables.standing.values() for topic in t.topics}

    def _join(
        self, tables: StreamTables, topics: Collection[str], partitions: Mapping[str, int]
    ) -> None:
        """Take up topics that have come since, but none whose events were dropped.

        `partitions`: how many each topic has, by what Spark reads.

        Raises:
            StoreUnavailableError: One is staged in part: Spark reads it from its beginning.
        """
        tables.partitions |= partitions
        new = set(topics) - set(tables.table_of) - self._dropped
        if not new:
            return
        known = {*tables.table_of, *new}
        tables.join({topic: partitions.get(topic, 1) for topic in known}, with_resumed=False)
        begun = {topic for table in tables.tables.values() for topic in table.begun & new}
        if begun:
            raise StoreUnavailableError(
                "Kafka did not list the topic when the stream began, so that Spark reads what is "
                "staged again",
                action="start the stream again: it goes on where the table stands",
                topic=min(begun),
            )
        self._dropped |= new - set(tables.table_of)

    def _prepare(self, table: StreamTable, events: DataFrame) -> tuple[StreamTable, PreparedBatch]:
        def first() -> pa.Table:
            return events.select("value", "key").limit(EVENTS_LOOKED_AT_MAX).toArrow()

        table = planned(
            self.environment,
            table,
            first,
            branch=self.settings.branch,
            decoder=self.settings.decoder,
        )
        assert table.plan is not None
        plan = table.plan.refreshed()
        labels = shard_labels(self.spark, plan.shards or self.spark.sparkContext.defaultParallelism)
        try:
            return replace(table, plan=plan), prepare_frame(plan, events, labels)
        except PySparkException as error:
            own = own_error(str(error))
            if own is None:
                raise
            raise own from error


def _ends(checkpoint: str, number: int) -> dict[Place, int]:
    """Where a batch ends: Spark notes it before it runs the batch."""
    log = Path(checkpoint, OFFSETS, str(number)).read_text(encoding="utf-8")
    return decode_offsets(log.splitlines()[-1])


def _java_pattern(settings: StreamSettings) -> str:
    """The topics that are read as one pattern of Java's, which Python reads as well."""
    routing = settings.routing
    include = "|".join(f"(?:{one.regex.pattern})" for one in routing.include)
    exclude = "|".join(["__.*", *(f"(?:{one.regex.pattern})" for one in routing.exclude)])
    return f"(?!(?:{exclude})$)(?:{include})"
