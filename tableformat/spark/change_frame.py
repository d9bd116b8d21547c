"""Change events on Spark's executors: parse, bring each key to one task, reduce and write there.

```
events ──mapInArrow──> parsed changes, split by key hash ──shuffle──> mapInArrow ──> written files
        (each task)    (Arrow IPC, one blob per shard)     by shard    (each shard)   (JSON, driver)
```

Rows cross the shuffle as Arrow IPC blobs, so Spark moves a few binary values instead of converting
every row twice. Everything but the blobs is in `tableformat.cdc`, shared with the in-process path.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from tableformat.cdc.change_writer import ChangeWriter, WrittenFiles
from tableformat.cdc.events import EventBatch
from tableformat.cdc.formats import ChangeFormat
from tableformat.cdc.missing_values import lacks_values
from tableformat.cdc.reduce import is_truncate
from tableformat.cdc.schema_changes import SchemaChanges
from tableformat.cdc.source_time import latest_of
from tableformat.cdc.truncation import Truncation
from tableformat.errors import InternalError
from tableformat.runtime import SystemIds
from tableformat.spark.worker import freeze_imports
from tableformat.write.fragments import decode_data_files, encode_data_files

LABEL, WHAT, PAYLOAD = "label", "what", "payload"
BLOBS = f"{LABEL} int, {WHAT} string, {PAYLOAD} binary"
ANSWERS = f"{WHAT} string, {PAYLOAD} binary"
BLOB_SCHEMA = pa.schema([(LABEL, pa.int32()), (WHAT, pa.string()), (PAYLOAD, pa.binary())])
ANSWER_SCHEMA = pa.schema([(WHAT, pa.string()), (PAYLOAD, pa.binary())])
CHANGES, BAD, COUNTS, FILES, SCHEMA_CHANGES = "changes", "bad", "counts", "files", "schema-changes"
TRUNCATE = "truncate"
EVENTS, SKIPPED_PREFIX = "events", "skipped: "
SOURCE_TIME = "source_ms"

# Change rows that a task holds before it reduces and ships them: blobs of a few megabytes.
SHIPPED_ROWS = 200_000

ArrowMap = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """What the tasks of a batch did. `counts`: events, changes, and what was skipped.

    With `schema_changes` the files are not the whole batch: they are left to orphan removal, and
    the batch is written again after the table has changed.
    """

    written: WrittenFiles
    bad_records: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    schema_changes: SchemaChanges = field(default_factory=SchemaChanges)

    @property
    def skipped(self) -> dict[str, int]:
        """Events that are no changes, by what they are."""
        return {
            name.removeprefix(SKIPPED_PREFIX): count
            for name, count in self.counts.items()
            if name.startswith(SKIPPED_PREFIX)
        }


def write_frame_files(
    events: DataFrame, writer: ChangeWriter, labels: Sequence[int]
) -> BatchAnswer:
    """Parse a frame of events and write its changes; nothing is committed.

    Args:
        events: Columns as `EventBatch` has them.
        writer: What to do with them.
        labels: One per shard; see `shard_labels`.

    Raises:
        pyspark.errors.PythonException: A task failed for good; its text holds the cause.
    """
    parsed = events.mapInArrow(_parser(writer, tuple(labels)), BLOBS)
    shuffled = parsed.repartition(len(labels), LABEL)
    answers = shuffled.mapInArrow(_shard_writer(writer), ANSWERS).collect()
    parts: list[WrittenFiles] = []
    bad_records = 0
    counts: Counter[str] = Counter()
    schema_changes = SchemaChanges()
    for what, payload in answers:
        if what == SCHEMA_CHANGES:
            schema_changes.merge(SchemaChanges.decode(bytes(payload)))
            continue
        if what == TRUNCATE:
            truncate = decode_table(pa.py_buffer(bytes(payload)))
            parts.append(WrittenFiles(truncation=Truncation.of(truncate, TRUNCATE)))
            continue
        answer = json.loads(bytes(payload))
        parts.append(
            WrittenFiles(
                data_files=tuple(decode_data_files(answer["data_files"])),
                delete_files=tuple(decode_data_files(answer["delete_files"])),
                dead_letter_files=tuple(decode_data_files(answer["dead_letter_files"])),
                changes=answer["changes"],
                source_ms=answer[SOURCE_TIME],
            )
        )
        bad_records += answer["bad_records"]
        counts.update(answer["counts"])
    return BatchAnswer(WrittenFiles.together(parts), bad_records, counts, schema_changes)


_labels: dict[int, list[int]] = {}  # by their count


def shard_labels(spark: SparkSession, count: int) -> list[int]:
    """One integer per shard that Spark's hash partitioning sends to a partition of its own.

    `repartition(n, column)` puts a value into partition pmod(hash(value), n), so plain shard
    numbers would leave some partitions empty and others with several shards. Which ones they are
    follows from the count; Spark is asked once.
    """
    if count in _labels:
        return _labels[count]
    tried = spark.range(64 * count).select(
        sf.col("id").cast("int").alias(LABEL),
        sf.pmod(sf.hash(sf.col("id").cast("int")), sf.lit(count)).alias("partition"),
    )
    found: dict[int, int] = {}
    for label, partition in tried.collect():
        found.setdefault(partition, label)
    if len(found) != count:
        raise InternalError("no label hashes to some partition", shards=count)
    _labels[count] = [found[partition] for partition in range(count)]
    return _labels[count]


def _parser(writer: ChangeWriter, labels: tuple[int, ...]) -> ArrowMap:
    """The first half of a batch, as a function that Spark ships to its tasks."""

    def parse(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        change_format = writer.build_format()
        waiting: list[pa.Table] = []
        waiting_rows = 0
        counts: Counter[str] = Counter()
        schema_changes = SchemaChanges()
        source_ms: int | None = None
        for batch in batches:
            parsed = writer.try_parse(change_format, EventBatch(batch))
            if parsed.schema_changes:
                schema_changes.merge(parsed.schema_changes)
            if schema_changes:
                continue  # the batch is written anew, after the table has changed
            source_ms = latest_of([source_ms, parsed.source_ms])
            counts[EVENTS] += batch.num_rows
            counts[CHANGES] += parsed.changes.num_rows
            for what, count in parsed.skipped.items():
                counts[SKIPPED_PREFIX + what] += count
            if parsed.bad.num_rows:
                yield _blob(labels[0], BAD, encode_table(parsed.bad))
            waiting.append(parsed.changes)
            waiting_rows += parsed.changes.num_rows
            if waiting_rows >= SHIPPED_ROWS:
                yield from _ship(writer, change_format, waiting, labels)
                waiting, waiting_rows = [], 0
        if schema_changes:
            yield _blob(labels[0], SCHEMA_CHANGES, schema_changes.encode())
            return
        yield from _ship(writer, change_format, waiting, labels)
        if counts:
            told = {COUNTS: counts, SOURCE_TIME: source_ms}
            yield _blob(labels[0], COUNTS, json.dumps(told).encode())

    return parse


def _ship(
    writer: ChangeWriter,
    change_format: ChangeFormat,
    waiting: list[pa.Table],
    labels: tuple[int, ...],
) -> Iterator[pa.RecordBatch]:
    """Changes, one blob per shard. Reduced first where that cannot change the result.

    Truncates go to every shard: they are about the keys of all.
    """
    if not waiting:
        return
    changes = pa.concat_tables(waiting)
    truncates = is_truncate(changes)
    if truncates.any():
        everywhere = encode_table(changes.filter(pa.array(truncates)))
        yield from (_blob(label, CHANGES, everywhere) for label in labels)
        changes = changes.filter(pa.array(~truncates))
    is_cut = bool(truncates.any()) and lacks_values(changes)  # nothing is filled across a truncate
    if writer.delete_spec is not None and not (writer.assume_new_keys or is_cut):
        # The last of the last is the last; only the first kind of a key would be lost.
        changes = writer.reduce(changes, change_format).last
    changes = changes.combine_chunks()
    if changes.num_rows == 0:
        return
    shards = writer.shards(changes, len(labels))
    order = np.argsort(shards, kind="stable")
    bounds = np.searchsorted(shards[order], np.arange(len(labels) + 1))
    for shard, label in enumerate(labels):
        picked = order[bounds[shard] : bounds[shard + 1]]
        if len(picked):
            yield _blob(label, CHANGES, encode_table(changes.take(pa.array(picked))))


def _shard_writer(writer: ChangeWriter) -> ArrowMap:
    """The second half of a batch: all changes of some keys, written as files."""

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_imports()
        changes: list[pa.Table] = []
        bad: list[pa.Table] = []
        counts: Counter[str] = Counter()
        schema_changes = SchemaChanges()
        source_ms: int | None = None
        for batch in batches:
            for what, payload in zip(batch.column(WHAT), batch.column(PAYLOAD), strict=True):
                if what.as_py() == COUNTS:
                    told = json.loads(payload.as_py())
                    counts.update(told[COUNTS])
                    source_ms = latest_of([source_ms, told[SOURCE_TIME]])
                elif what.as_py() == SCHEMA_CHANGES:
                    schema_changes.merge(SchemaChanges.decode(payload.as_py()))
                else:
                    tables = changes if what.as_py() == CHANGES else bad
                    tables.append(decode_table(payload.as_buffer()))
        if schema_changes:
            yield _answer(SCHEMA_CHANGES, schema_changes.encode())
            return
        if not (changes or bad or counts):
            return
        ids = SystemIds()
        written = WrittenFiles()
        if changes:
            written = writer.write(pa.concat_tables(changes), writer.build_format(), ids)
        if written.truncation is not None:
            yield _answer(TRUNCATE, encode_table(written.truncation.as_table(TRUNCATE)))
        dead_letters = writer.write_dead_letters(bad, ids)
        answer = {
            "data_files": encode_data_files(written.data_files),
            "delete_files": encode_data_files(written.delete_files),
            "dead_letter_files": encode_data_files(dead_letters),
            "changes": written.changes,
            "bad_records": sum(table.num_rows for table in bad),
            "counts": counts,
            SOURCE_TIME: source_ms,
        }
        yield _answer(FILES, json.dumps(answer).encode())

    return write


def encode_table(table: pa.Table) -> bytes:
    """A table as one Arrow IPC stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def decode_table(data: pa.Buffer) -> pa.Table:
    """The table of `encode_table`."""
    with pa.ipc.open_stream(data) as stream:
        return stream.read_all()


def _answer(what: str, payload: bytes) -> pa.RecordBatch:
    columns = [pa.array([what]), pa.array([payload], pa.binary())]
    return pa.RecordBatch.from_arrays(columns, schema=ANSWER_SCHEMA)


def _blob(label: int, what: str, payload: bytes) -> pa.RecordBatch:
    columns = [
        pa.array([label], pa.int32()),
        pa.array([what]),
        pa.array([payload], pa.binary()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=BLOB_SCHEMA)
