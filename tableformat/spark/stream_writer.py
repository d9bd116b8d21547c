"""Change streams into a staging branch through Spark Structured Streaming, exactly once.

Each micro-batch is one commit of data files and equality deletes:

1. the batch's id is looked up in the branch: a batch that is there already is skipped;
2. tasks parse the events, bring each key to one task, reduce, and write files (`change_frame`);
3. the driver commits what they wrote, with query id, batch id and source offsets in the summary,
   and notes in the checkpoint that it has: a table that lacks a batch which the checkpoint has
   noted was restored from a backup, and gets no later ones.

Durable: after 2, files that nothing names (orphan removal collects them if the driver dies); after
3, the batch. Spark runs a batch again that it has not noted as done; 1 and 3 make that harmless.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.streaming.query import StreamingQuery

from tableformat.catalog.base import Identifier, TableState
from tableformat.cdc.batch_commit import BatchId, check_not_lost, is_committed
from tableformat.cdc.events import EVENT_COLUMNS, FILE, ORDINAL, POSITION, TIMESTAMP_MS, Decoder
from tableformat.cdc.ingest import IngestResult, PreparedBatch, commit_written
from tableformat.cdc.sink import SinkPlan, plan_sink
from tableformat.cdc.truncation import check_one_partition
from tableformat.environment import Environment
from tableformat.errors import InternalError
from tableformat.spark.change_frame import CHANGES, EVENTS, shard_labels, write_frame_files
from tableformat.spark.checkpoint import local_folder, note_batch, noted_batch
from tableformat.spark.stream_claim import claim_for, release_when_over
from tableformat.spec.names import SOURCE_OFFSETS, STAGING_BRANCH
from tableformat.spec.options import GivenOptions

KAFKA_COLUMNS = ("topic", "partition", "offset")
KAFKA_TIMESTAMP = "timestamp"
OFFSETS = "offsets"  # folder of a checkpoint
KAFKA_METADATA = (KAFKA_TIMESTAMP, "timestampType", "headers")
# Offsets of a source with thousands of partitions do not belong into every snapshot.
OFFSETS_CHARS_MAX = 4096
QUERY_START_SECONDS = 60.0

BatchListener = Callable[[int, IngestResult], None]


def write_stream(
    environment: Environment,
    identifier: Identifier,
    events: DataFrame,
    *,
    checkpoint: str,
    format_name: str = "debezium-json",
    options: GivenOptions | None = None,
    branch: str = STAGING_BRANCH,
    query_id: str | None = None,
    query_name: str | None = None,
    trigger: Mapping[str, Any] | None = None,
    on_batch: BatchListener | None = None,
    decoder: Decoder | None = None,
) -> StreamingQuery:
    """Start a query that writes a stream of change events to a staging branch.

    Args:
        environment: Catalog, store, clock. The store must pickle: tasks write through it.
        identifier: The table.
        events: A streaming frame: `value` (and `key`) of JSON formats, or typed columns. Kafka's
            columns are understood: without the option `sequence` changes are ordered by offset, so
            all changes of a key must be in one Kafka partition. For files use `file_events`. Rows
            without any such order are taken in the order in which Spark reads them.
        checkpoint: Spark's checkpoint location; it belongs to this query alone.
        format_name: The change format.
        options: Options of the format and of the sink.
        branch: The staging branch.
        query_id: Identity in the branch's history. Default: Spark's own id of the checkpoint,
            which is new with a new checkpoint. Never reuse one with another checkpoint.
        query_name: Spark's name of the query.
        trigger: Arguments of `DataStreamWriter.trigger`, e.g. `{"availableNow": True}`; default:
            one batch after the other.
        on_batch: Called with the batch id and its result after every batch.
        decoder: Makes JSON of messages that are none; it must pickle. See `cdc.registry.decoder`.

    Raises:
        InvalidInputError: See `plan_sink`; or the checkpoint is another stream's, or in use (see
            `checkpoint`; only if it is on local disk). Nothing was started.

    Effects: see the module's text. A bad record without a dead-letter table, an unknown column, or
    a checkpoint older or newer than the table ends the query with a `StreamingQueryException`.
    """
    plan = plan_sink(
        environment,
        identifier,
        format_name=format_name,
        options=options or {},
        branch=branch,
        decoder=decoder,
    )
    sink = _BatchSink(plan=plan, checkpoint=checkpoint, on_batch=on_batch, query_id=query_id)
    writer = (
        with_order(events)
        .writeStream.foreachBatch(sink.write)
        .option("checkpointLocation", checkpoint)
    )
    if query_name is not None:
        writer = writer.queryName(query_name)
    if trigger is not None:
        writer = writer.trigger(**trigger)
    claim = claim_for(plan, events, checkpoint)
    try:
        query = writer.start()
    except BaseException:
        claim.close()
        raise
    release_when_over(query, claim, checkpoint)
    if query_id is None:
        sink.query_id = query.id
    sink.started.set()
    return query


def write_frame(
    environment: Environment,
    identifier: Identifier,
    events: DataFrame,
    *,
    format_name: str = "debezium-json",
    options: GivenOptions | None = None,
    branch: str = STAGING_BRANCH,
    batch: BatchId | None = None,
) -> IngestResult:
    """Write a bounded frame of change events as one commit.

    The arguments are those of `write_stream`. `batch` makes the call idempotent: a batch that is
    in the branch is not written again.
    """
    plan = plan_sink(
        environment, identifier, format_name=format_name, options=options or {}, branch=branch
    )
    if batch is not None:
        state = environment.catalog.load_table(identifier)
        if is_committed(state, branch, batch):
            return IngestResult(repeated=True)
    if plan.writer.choice.truncates and set(events.columns).issuperset(KAFKA_COLUMNS):
        check_one_partition(events.select(*KAFKA_COLUMNS[:2]).distinct().count())
    return _write(plan, with_order(events), _labels(plan, events.sparkSession), batch, {})


def file_events(
    spark: SparkSession, folder: str, *, files_per_batch: int = 1, pattern: str = "*"
) -> DataFrame:
    """A stream of the lines of text files in a folder.

    Spark gives out files by their modification time, those of one millisecond (in buckets: of one
    second) in the order in which the store lists them; within a micro-batch lines are ordered by
    file name and line, or by the events' `sequence`. So files should appear in the order of their
    names, and on a local disk no two in one millisecond.

    Args:
        spark: The session.
        folder: Where files appear, whole (written elsewhere and moved here).
        files_per_batch: How many make a micro-batch at most.
        pattern: Which file names count.
    """
    lines = (
        spark.readStream.format("text")
        .option("maxFilesPerTrigger", files_per_batch)
        .option("pathGlobFilter", pattern)
        .load(folder)
    )
    return with_order(lines)


def with_order(events: DataFrame) -> DataFrame:
    """Add what orders events and says where they are, from Kafka's or a file source's columns.

    `_ordinal` is added later where it is still missing: the number of the row in its micro-batch.
    """
    names = set(events.columns)
    if ORDINAL in names or FILE in names:
        return events
    if names.issuperset(KAFKA_COLUMNS):
        place = sf.concat_ws("@", sf.concat_ws("-", "topic", "partition"), "offset")
        ordered = events.withColumns({ORDINAL: sf.col("offset").cast("long"), POSITION: place})
        if KAFKA_TIMESTAMP in names:
            ordered = ordered.withColumn(TIMESTAMP_MS, sf.unix_millis(KAFKA_TIMESTAMP))
        return ordered.drop(*KAFKA_COLUMNS, *KAFKA_METADATA)
    if not _reads_files(events):
        return events  # neither Kafka nor files, or transformed: the order Spark reads in
    # Parts of a file are read by different tasks: the part's offset orders them.
    start = sf.lpad(sf.col("_metadata.file_block_start").cast("string"), 20, "0")
    return events.withColumn(FILE, sf.concat_ws("@", sf.col("_metadata.file_path"), start))


def _reads_files(events: DataFrame) -> bool:
    """Whether Spark knows of each row the file it is from.

    Asked of the plan: asking for the column and catching the error fills the user's log.
    """
    plan = events._jdf.queryExecution().analyzed()  # noqa: SLF001 - PySpark has no public way
    return "_metadata#" in plan.metadataOutput().mkString(",")


@dataclass(slots=True, kw_only=True)
class _BatchSink:
    """What `foreachBatch` calls. Batches of one query come one after the other."""

    plan: SinkPlan
    checkpoint: str
    on_batch: BatchListener | None
    query_id: str | None
    started: threading.Event = field(default_factory=threading.Event)
    labels: list[int] = field(default_factory=list)
    done: BatchId | None = None

    def write(self, events: DataFrame, batch_id: int) -> None:
        """One micro-batch."""
        if not self.started.wait(QUERY_START_SECONDS) or self.query_id is None:
            raise InternalError("the stream's query did not start")
        batch = BatchId(self.query_id, batch_id)
        catalog = self.plan.environment.catalog
        state = catalog.load_table(self.plan.identifier)
        self.done = self.done or noted_batch(self.checkpoint, self.query_id)
        self._check(state)
        if is_committed(state, self.plan.branch, batch, by_this_driver=True):
            result = IngestResult(repeated=True)
        else:
            spark = events.sparkSession
            if not self.labels:
                self.labels = _labels(self.plan, spark)
            self.plan = self.plan.refreshed()
            summary = source_offsets(self.checkpoint, batch_id)
            if self.plan.writer.choice.truncates:
                check_one_partition(kafka_partitions(self.checkpoint, batch_id, spark))
            result = _write(self.plan, events, self.labels, batch, summary, check=self._check)
        if result.commit is not None or result.repeated:
            note_batch(self.checkpoint, batch)
            self.done = batch
        if self.on_batch is not None:
            self.on_batch(batch_id, result)

    def _check(self, state: TableState) -> None:
        anew = (
            "start a new checkpoint, from before what is missing; applied again it changes no row"
        )
        check_not_lost(state, self.plan.branch, self.done, action=anew)


def source_offsets(checkpoint: str, batch_id: int) -> dict[str, str]:
    """The source offsets of a batch as a summary property, if the checkpoint is on local disk.

    Spark writes them to `<checkpoint>/offsets/<batch id>` before it runs the batch: a version line,
    a line of its own settings, then one line of JSON per source.
    """
    offsets = _offsets(checkpoint, batch_id)
    text = json.dumps(offsets, separators=(",", ":"))
    return {SOURCE_OFFSETS: text} if offsets and len(text) <= OFFSETS_CHARS_MAX else {}


def kafka_partitions(checkpoint: str, batch_id: int, spark: SparkSession) -> int:
    """How many partitions a batch's Kafka topics have; 0 for other sources.

    Raises:
        PySparkException: The checkpoint is not on local disk, and Spark cannot read it.
    """
    offsets = _offsets(checkpoint, batch_id)
    if not offsets:
        lines = spark.read.text(f"{checkpoint}/{OFFSETS}/{batch_id}").collect()
        offsets = [json.loads(line.value) for line in lines[2:]]
    topics = [topic for source in offsets for topic in source.values() if isinstance(topic, dict)]
    return sum(len(partitions) for partitions in topics)


def _offsets(checkpoint: str, batch_id: int) -> list[dict[str, Any]]:
    """The offsets of each source; none if the checkpoint is not on local disk."""
    folder = local_folder(checkpoint)
    if folder is None:
        return []
    log = folder / OFFSETS / str(batch_id)
    try:
        return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()[2:]]
    except (OSError, ValueError):
        return []


def _write(
    plan: SinkPlan,
    events: DataFrame,
    labels: list[int],
    batch: BatchId | None,
    summary: Mapping[str, str],
    *,
    check: Callable[[TableState], None] | None = None,
) -> IngestResult:
    prepared = prepare_frame(plan, events, labels)
    commit = commit_written(prepared.plan, prepared.written, batch, summary, check=check)
    return prepared.result(commit)


def prepare_frame(plan: SinkPlan, events: DataFrame, labels: Sequence[int]) -> PreparedBatch:
    """Write the files of a frame's events on the executors, for `commit_written`.

    Args:
        plan: The sink.
        events: Columns as `EventBatch` has them; others are dropped for JSON formats.
        labels: See `shard_labels`.

    Effects: may add and widen columns of the table; writes files that nothing names.
    """
    if ORDINAL not in events.columns:
        events = events.withColumn(ORDINAL, sf.monotonically_increasing_id())
    if not plan.writer.choice.factory.is_typed:
        events = events.select([name for name in events.columns if name in EVENT_COLUMNS])
    answer = write_frame_files(events, plan.writer, labels)
    while answer.schema_changes:
        plan = plan.evolved(answer.schema_changes)
        answer = write_frame_files(events, plan.writer, labels)
    # The tasks count their changes, also those that the writer reduces.
    return PreparedBatch(
        plan=plan,
        written=replace(answer.written, changes=answer.counts[CHANGES]),
        events=answer.counts[EVENTS],
        bad_records=answer.bad_records,
        skipped=answer.skipped,
    )


def _labels(plan: SinkPlan, spark: SparkSession) -> list[int]:
    count = plan.shards or spark.sparkContext.defaultParallelism
    return shard_labels(spark, count)
