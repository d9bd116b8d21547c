from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import LongType
from pyspark.errors import PythonException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from benchmarks.flights import (
    KEY,
    flights_schema,
    fold_flight_events,
    state_table,
    write_flight_events,
)
from tableformat import InvalidInputError, Table, open_catalog
from tableformat.cdc.batch_commit import BatchId
from tableformat.cdc.ingest import IngestResult
from tableformat.cdc.registry.client import RegistrySettings
from tableformat.cdc.registry.decoder import RegistryDecoder
from tableformat.cdc.sink import plan_sink
from tableformat.environment import Environment
from tableformat.runtime import FailPoints, Runtime
from tableformat.spark import stream_writer
from tableformat.spark.change_frame import (
    decode_table,
    encode_table,
    shard_labels,
    write_frame_files,
)
from tableformat.spark.stream_writer import (
    file_events,
    kafka_partitions,
    source_offsets,
    with_order,
    write_frame,
    write_stream,
)
from tableformat.spec.names import BATCH_ID, QUERY_ID, SOURCE_OFFSETS
from tests.support import debezium_events as real
from tests.support.change_events import ORDERS, create_orders, envelope, order
from tests.support.fake_registry import Converter, fake_registry

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class Stream:
    """A table, a folder of events, and a query between them that can be run again and again."""

    def __init__(self, spark: SparkSession, table: Table, folder: Path) -> None:
        self.spark, self.table, self.folder = spark, table, folder
        self.source = folder / "events"
        self.source.mkdir(exist_ok=True)
        self.checkpoint = str(folder / "checkpoint")
        self.results: list[tuple[int, IngestResult]] = []
        self.listener: Callable[[int], None] = lambda _: None
        self.environment: Environment = table.environment
        self.put_ns = 0

    def put(self, name: str, *events: str) -> None:
        """A file of events, one a line."""
        self.put_text(name, "".join(f"{event}\n" for event in events))

    def put_text(self, name: str, text: str) -> None:
        """A file that is newer than those before it, by the milliseconds in which Spark tells."""
        path = self.source / name
        path.write_text(text)
        self.put_ns = max(path.stat().st_mtime_ns, self.put_ns + 2_000_000)
        os.utime(path, ns=(self.put_ns, self.put_ns))

    def run(self, *, files_per_batch: int = 1, query_id: str | None = None, **options: str) -> None:
        """Until everything there is has been written."""

        def listener(batch_id: int, result: IngestResult) -> None:
            self.listener(batch_id)
            self.results.append((batch_id, result))

        events = file_events(self.spark, str(self.source), files_per_batch=files_per_batch)
        query = write_stream(
            self.environment,
            self.table.identifier,
            events,
            checkpoint=self.checkpoint,
            options={name.replace("_", "-"): text for name, text in options.items()},
            query_id=query_id,
            trigger={"availableNow": True},
            on_batch=listener,
        )
        query.awaitTermination()

    def state(self) -> dict[int, str | None]:
        rows = self.table.scan(branch="staging").to_arrow().to_pylist()
        assert len({row["id"] for row in rows}) == len(rows), "a key has two rows"
        return {row["id"]: row["note"] for row in rows}

    def summaries(self) -> list[dict[str, str]]:
        snapshots = self.table.refresh().state.metadata.snapshots
        return [s.summary.additional_properties for s in snapshots if s.summary is not None]


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> Stream:
    catalog = open_catalog("local", warehouse=str(tmp_path / "warehouse"))
    return Stream(spark, create_orders(catalog), tmp_path)


def test_stream_of_flights_equals_the_fold_after_a_restart_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    catalog = open_catalog("local", warehouse=str(tmp_path / "warehouse"))
    table = catalog.create_table(
        "nyc.flights", flights_schema(), primary_key=KEY, partition_by=["origin"]
    )
    stream = Stream(spark, table, tmp_path)
    paths = write_flight_events(tmp_path / "all", files=3, limit=1000)
    for paths_now in (paths[:2], paths[2:]):
        for path in paths_now:
            stream.put_text(path.name, path.read_text())
        stream.run(sequence="source.lsn", shards="3")
    rows = table.scan(branch="staging").to_arrow()
    expected = state_table(fold_flight_events(tmp_path / "all"))
    by_key = [(name, "ascending") for name in KEY]
    assert (
        rows.select(expected.column_names)
        .sort_by(by_key)
        .cast(expected.schema)
        .equals(expected.sort_by(by_key))
    )
    assert [batch for batch, _ in stream.results] == [0, 1, 2]
    assert sum(result.events for _, result in stream.results) == sum(
        len(path.read_text().splitlines()) for path in paths
    )


def test_summary_names_query_batch_and_source_offsets(stream: Stream) -> None:
    stream.put("0", envelope("c", after=order(1)))
    stream.put("1", envelope("c", after=order(2)))
    stream.run()
    query_id = json.loads((Path(stream.checkpoint) / "metadata").read_text())["id"]
    assert [(s[QUERY_ID], s[BATCH_ID]) for s in stream.summaries()] == [
        (query_id, "0"),
        (query_id, "1"),
    ]
    assert [json.loads(s[SOURCE_OFFSETS]) for s in stream.summaries()] == [
        [{"logOffset": 0}],
        [{"logOffset": 1}],
    ]


def test_events_of_one_batch_are_ordered_by_file_name_and_line(stream: Stream) -> None:
    padding = [envelope("c", after=order(100 + n)) for n in range(200)]
    stream.put("0", *padding, envelope("c", after=order(1, note="0")))
    stream.put(
        "1", envelope("u", after=order(1, note="1a")), envelope("u", after=order(1, note="1b"))
    )
    stream.put(
        "2", envelope("u", after=order(1, note="2")), *padding, envelope("d", before=order(2))
    )
    stream.put("3", envelope("c", after=order(2, note="3")))
    stream.run(files_per_batch=4)
    assert len(stream.results) == 1
    assert {key: note for key, note in stream.state().items() if key < 100} == {1: "2", 2: "3"}


class DriverDied(Exception):
    pass


@pytest.mark.parametrize("point", ["ingest.before_commit", "ingest.after_commit"])
def test_batch_is_written_once_when_the_driver_dies_around_its_commit(
    stream: Stream, point: str
) -> None:
    stream.put("0", envelope("c", after=order(1, note="a")))
    stream.put("1", envelope("u", after=order(1, note="b")), envelope("c", after=order(2)), "{bad")

    hits = 0

    def die(_: str) -> None:
        nonlocal hits
        hits += 1
        if hits == 2:
            raise DriverDied

    healthy = stream.environment
    runtime = Runtime(fail_points=FailPoints(armed={point: die}))
    stream.environment = Environment(healthy.catalog, healthy.store, runtime)
    with pytest.raises(StreamingQueryException, match="DriverDied"):
        stream.run(on_bad_record="dead-letter")
    stream.environment = healthy
    stream.run(on_bad_record="dead-letter")
    assert stream.state() == {1: "b", 2: None}
    assert [s[BATCH_ID] for s in stream.summaries()] == ["0", "1"]
    catalog = open_catalog("local", warehouse=str(stream.folder / "warehouse"))
    letters = catalog.load_table("shop.orders_dead_letter").scan().to_arrow()
    assert letters.column("value").to_pylist() == [b"{bad"]
    assert stream.results[-1][1].repeated == (point == "ingest.after_commit")


def test_checkpoint_older_than_the_table_stops_the_query(stream: Stream) -> None:
    stream.put("0", envelope("c", after=order(1)))
    stream.put("1", envelope("c", after=order(2)))
    stream.run(query_id="mine")
    stream.checkpoint = str(stream.folder / "new checkpoint")
    stream.put("2", envelope("c", after=order(3)))
    with pytest.raises(StreamingQueryException, match="a later batch of this query"):
        stream.run(query_id="mine")
    assert stream.state() == {1: None, 2: None}


def test_checkpoint_newer_than_the_table_stops_the_query(stream: Stream) -> None:
    """A later batch on a table that was restored would hide that those in between are missing."""
    heads = []
    for number in range(3):
        stream.put(str(number), envelope("c", after=order(number)))
        stream.run()
        heads.append(stream.table.refresh().state.ref("staging").snapshot_id)
    stream.table.refs.replace("staging", to=heads[0], expected_head=heads[-1])
    stream.put("3", envelope("c", after=order(3)))
    with pytest.raises(StreamingQueryException, match="no longer has batch 2"):
        stream.run()
    stream.table.refresh()
    assert stream.state().keys() == {0}
    stream.checkpoint = str(stream.folder / "new checkpoint")
    stream.run()
    stream.table.refresh()
    assert stream.state().keys() == set(range(4))


def test_checkpoint_of_another_stream_is_refused_before_a_query_starts(stream: Stream) -> None:
    stream.put("0", envelope("c", after=order(1)))
    stream.run()
    catalog = open_catalog("local", warehouse=str(stream.folder / "warehouse"))
    other = catalog.create_table("shop.other", ORDERS, primary_key=["id"])
    events = file_events(stream.spark, str(stream.source))
    (stream.folder / "elsewhere").mkdir()
    elsewhere = file_events(stream.spark, str(stream.folder / "elsewhere"))
    for table, frame, whose in (
        (other, events, "belongs to shop.orders"),
        (stream.table, elsewhere, f"belongs to folder {stream.source}"),
    ):
        with pytest.raises(InvalidInputError, match=whose):
            table.write_stream(frame, checkpoint=f"file://{stream.checkpoint}")
    assert not stream.spark.streams.active
    assert catalog.load_table("shop.other").state.ref("staging") is None


def test_stream_that_was_killed_as_spark_wrote_down_the_first_batch_begins(stream: Stream) -> None:
    """Spark begins no stream beside such a file."""
    for folder in ("offsets", "commits"):
        half = Path(stream.checkpoint) / folder / f".0.{uuid.uuid4()}.tmp"
        half.parent.mkdir(parents=True)
        half.write_text("v1")
    stream.put("0", envelope("c", after=order(1)))
    stream.run()
    assert stream.state() == {1: None}


def test_checkpoint_is_free_again_when_its_query_has_ended(stream: Stream) -> None:
    events = file_events(stream.spark, str(stream.source))
    query = stream.table.write_stream(events, checkpoint=stream.checkpoint)
    with pytest.raises(InvalidInputError, match="another process or query runs"):
        stream.table.write_stream(events, checkpoint=stream.checkpoint)
    query.stop()
    stream.put("0", envelope("c", after=order(1)))
    stream.run()
    assert stream.state() == {1: None}


def test_bad_record_stops_the_query_with_its_position(stream: Stream) -> None:
    stream.put("0", envelope("c", after=order(1)), "{bad")
    with pytest.raises(StreamingQueryException, match=r"bad record: not a JSON object.*events/0"):
        stream.run()
    assert stream.table.refresh().state.ref("staging") is None


def test_unknown_column_stops_the_query_by_name(stream: Stream) -> None:
    stream.put("0", envelope("c", after=order(1, extra=5)))
    with pytest.raises(StreamingQueryException, match="a column 'extra' that the table does not"):
        stream.run(on_bad_record="dead-letter")


def test_wrong_option_is_refused_before_a_query_starts(stream: Stream) -> None:
    with pytest.raises(InvalidInputError, match=r"unknown option 'sequense'.*did you mean"):
        stream.run(sequense="source.lsn")
    assert not stream.spark.streams.active


def kafka_frame(
    spark: SparkSession, rows: list[tuple[str | None, str | None, int, int]]
) -> DataFrame:
    """What Spark's Kafka source gives, from (key, value, partition, offset)."""
    frame = spark.createDataFrame(rows, "key string, value string, partition int, offset long")
    return frame.select(
        sf.col("key").cast("binary"),
        sf.col("value").cast("binary"),
        sf.lit("orders").alias("topic"),
        "partition",
        "offset",
        sf.current_timestamp().alias("timestamp"),
        sf.lit(0).alias("timestampType"),
    )


def test_kafka_rows_are_ordered_by_offset_and_found_by_position(
    spark: SparkSession, stream: Stream
) -> None:
    rows: list[tuple[str | None, str | None, int, int]] = [
        ('{"id":1}', envelope("u", after=order(1, note="new")), 0, 7),
        ('{"id":1}', envelope("c", after=order(1, note="old")), 0, 5),
        ('{"id":2}', envelope("c", after=order(2)), 1, 9),
        ('{"id":2}', envelope("d"), 1, 10),
        ('{"id":2}', None, 1, 11),
        ('{"id":3}', "{bad", 1, 12),
    ]
    result = write_frame(
        stream.environment,
        stream.table.identifier,
        kafka_frame(spark, rows).repartition(3),
        options={"on-bad-record": "dead-letter"},
        batch=BatchId("kafka", 0),
    )
    assert (result.events, result.bad_records) == (6, 1)
    # In a task without the delete before it the tombstone is one.
    skipped = result.skipped.get("tombstone", 0)
    assert result.changes + skipped == 5
    assert stream.state() == {1: "new"}
    catalog = open_catalog("local", warehouse=str(stream.folder / "warehouse"))
    letters = catalog.load_table("shop.orders_dead_letter").scan().to_arrow().to_pylist()
    assert [(row["position"], row["key"]) for row in letters] == [("orders-1@12", b'{"id":3}')]
    again = write_frame(
        stream.environment,
        stream.table.identifier,
        kafka_frame(spark, rows),
        options={"on-bad-record": "dead-letter"},
        batch=BatchId("kafka", 0),
    )
    assert again.repeated


@pytest.mark.parametrize("assume", ["false", "true"])
def test_truncate_reaches_every_shard(stream: Stream, assume: str) -> None:
    options = {"on_truncate": "apply", "assume_new_keys": assume, "shards": "4"}
    stream.put("0", *(envelope("c", after=order(n)) for n in range(20)))
    stream.run(**options)
    lost = [envelope("u", after=order(n, note="lost")) for n in range(25)]
    kept = [envelope("c", after=order(n, note="kept")) for n in range(5, 8)]
    stream.put("1", *lost, envelope("t"), *kept)
    stream.run(**options)
    assert stream.state() == dict.fromkeys((5, 6, 7), "kept")
    assert [result.truncated for _, result in stream.results] == [False, True]
    stream.put("2", envelope("t"))
    stream.run(**options)
    assert stream.state() == {}


def test_truncate_in_one_batch_with_other_files(stream: Stream) -> None:
    stream.put("0", *(envelope("c", after=order(n), lsn=100 + n) for n in range(20)))
    stream.put("1", envelope("t", lsn=110))
    stream.run(files_per_batch=2, on_truncate="apply", sequence="source.lsn")
    assert sorted(stream.state()) == list(range(11, 20))


def test_truncate_keeps_newer_rows_of_the_sequence_column(
    spark: SparkSession, stream: Stream
) -> None:
    stream.table.update_schema(lambda edit: edit.add_column("version", LongType()))
    given = {"sequence": "source.lsn", "sequence_column": "version", "on_truncate": "apply"}
    stream.put("0", *(envelope("c", after=order(n), lsn=100 + n) for n in range(20)))
    stream.run(**given)
    stream.put("1", envelope("t", lsn=110))
    stream.run(**given)
    assert sorted(stream.state()) == list(range(11, 20))


def test_truncate_in_a_topic_of_several_partitions_is_refused(
    spark: SparkSession, stream: Stream
) -> None:
    rows: list[tuple[str | None, str | None, int, int]] = [
        ('{"id":1}', envelope("c", after=order(1)), 0, 5),
        (None, envelope("t"), 0, 6),
        ('{"id":2}', envelope("c", after=order(2)), 0, 7),
    ]
    given = {"on-truncate": "apply"}
    place = stream.environment, stream.table.identifier
    write_frame(*place, kafka_frame(spark, rows), options=given)
    assert stream.state() == {2: None}
    rows.append(('{"id":3}', envelope("c", after=order(3)), 1, 1))
    with pytest.raises(InvalidInputError, match=r"needs a topic of one partition.*partitions=2"):
        write_frame(*place, kafka_frame(spark, rows), options=given)


@pytest.mark.parametrize("is_local", [True, False])
def test_kafka_partitions_are_those_of_the_checkpoint(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_local: bool
) -> None:
    """Checkpoints that are not on local disk are read by Spark."""
    if not is_local:
        monkeypatch.setattr(stream_writer, "_offsets", lambda *_: [])
    log = tmp_path / "offsets"
    log.mkdir()
    (log / "0").write_text('v1\n{"batchWatermarkMs":0}\n{"logOffset":3}')
    (log / "1").write_text('v1\n{}\n{"t":{"0":5,"1":0}}\n{"u":{"0":1}}')
    assert kafka_partitions(str(tmp_path), 0, spark) == 0
    assert kafka_partitions(str(tmp_path), 1, spark) == 3


def test_typed_frame_is_upserted_by_its_kind_column(spark: SparkSession, stream: Stream) -> None:
    rows = [(1, "EU", "a", "u"), (2, "EU", "b", "u"), (1, "EU", None, "d")]
    frame = spark.createDataFrame(rows, "id long, region string, note string, op string")
    write_frame(
        stream.environment,
        stream.table.identifier,
        frame.coalesce(1),
        format_name="upsert",
        options={"kind-column": "op"},
    )
    assert stream.state() == {2: "b"}


def test_appended_frame_has_no_deletes(spark: SparkSession, stream: Stream) -> None:
    frame = spark.createDataFrame([(n, "EU") for n in range(10)], "id long, region string")
    result = write_frame(
        stream.environment, stream.table.identifier, frame, format_name="append", branch="main"
    )
    assert result.files[1] == 0
    assert stream.table.scan().to_arrow().num_rows == 10


def test_every_shard_has_a_partition_of_its_own(spark: SparkSession) -> None:
    for count in (1, 2, 5):
        labels = shard_labels(spark, count)
        frame = spark.createDataFrame([(label,) for label in labels], "label int")
        placed = frame.repartition(count, "label").select("label", sf.spark_partition_id())
        assert sorted(map(tuple, placed.collect()), key=lambda row: row[1]) == list(
            zip(labels, range(count), strict=True)
        )


def test_shards_never_split_a_key_and_every_task_writes_one_file_per_kind(
    spark: SparkSession, stream: Stream
) -> None:
    events = [envelope("c", after=order(n % 50, note=str(n))) for n in range(1000)]
    frame = with_order(
        spark.createDataFrame([(e, n) for n, e in enumerate(events)], "value string, _ordinal long")
    )
    plan = plan_sink(
        stream.environment,
        stream.table.identifier,
        format_name="debezium-json",
        options={},
        branch="staging",
    )
    answer = write_frame_files(frame.repartition(4), plan.writer, shard_labels(spark, 4))
    assert answer.counts["events"] == answer.counts["changes"] == 1000
    files = answer.written
    assert (len(files.data_files), len(files.delete_files)) == (4, 4)
    assert sum(file.record_count for file in files.data_files) == 50


def test_frame_without_files_is_written_without_a_word(
    spark: SparkSession, stream: Stream, capfd: pytest.CaptureFixture[str]
) -> None:
    stream.table.write_changes(spark.range(3).selectExpr("id", "'EU' as region"))
    assert "UNRESOLVED_COLUMN" not in capfd.readouterr().err


def test_batch_of_a_typed_frame_is_written_once(spark: SparkSession, stream: Stream) -> None:
    frame = spark.range(100).selectExpr("id", "'EU' as region", "string(id) as note")
    first, again, later = (
        stream.table.write_changes(frame, query_id="nightly", batch_id=batch) for batch in (4, 4, 5)
    )
    assert (first.changes, again.repeated, later.repeated) == (100, True, False)
    assert len(stream.state()) == 100
    with pytest.raises(InvalidInputError, match="go together"):
        stream.table.write_changes(frame, query_id="nightly")


def test_new_columns_of_a_stream_are_added_and_the_batch_is_written_once(stream: Stream) -> None:
    stream.put("1", envelope("c", after=order(1, note="a")))
    stream.put("2", *(envelope("c", after=order(n, extra=n / 2)) for n in range(2, 40)))
    stream.put("3", envelope("u", after=order(1, note="b")))
    stream.run(schema_evolution="add-columns", new_columns="json")
    # files of one instant come in any order
    assert sorted(result.changes for _, result in stream.results) == [1, 1, 38]
    rows = stream.table.scan(branch="staging").to_arrow().to_pylist()
    assert {row["id"]: row["extra"] for row in rows} == {1: None} | {n: n / 2 for n in range(2, 40)}


def test_types_of_a_frame_widen_the_table(spark: SparkSession, tmp_path: Path) -> None:
    catalog = open_catalog("local", warehouse=str(tmp_path))
    schema = pa.schema([pa.field("id", pa.int32(), nullable=False), pa.field("x", pa.float32())])
    table = catalog.create_table("t.narrow", schema, primary_key=["id"])
    frame = spark.range(2**40, 2**40 + 5).selectExpr("id", "double(id) as x", "now() as at")
    with pytest.raises(PythonException, match="column=at"):
        table.write_changes(frame)
    table.write_changes(frame, options={"schema-evolution": "full"})
    kinds = [str(column.field_type) for column in table.refresh().schema().fields]
    assert kinds == ["long", "double", "timestamptz"]
    assert table.scan(branch="staging").to_arrow().num_rows == 5


def test_files_of_a_batch_are_bounded_per_partition(spark: SparkSession, tmp_path: Path) -> None:
    catalog = open_catalog("local", warehouse=str(tmp_path))
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("day", pa.int64())])
    frame = spark.range(400).selectExpr("id", "id % 10 as day").repartition(4)
    for shards, most in (({}, 40), ({"shards-per-partition": "2"}, 20)):
        name = f"t.days{most}"
        table = catalog.create_table(
            name, schema, primary_key=["id"], partition_by=["day"], immutable_columns=["day"]
        )
        result = table.write_changes(frame, options={"shards": "4", **shards})
        assert most / 2 < result.files[0] <= most
        assert result.files[0] == result.files[1]
        table.write_changes(frame, options={"shards": "4", **shards})
        assert table.scan(branch="staging").to_arrow().num_rows == 400


def test_files_are_cut_at_the_target_size(spark: SparkSession, stream: Stream) -> None:
    stream.table.set_properties({"write.target-file-size-bytes": str(64 << 10)})
    frame = spark.range(40_000).selectExpr("id", "'EU' as region", "sha2(string(id), 256) as note")
    result = stream.table.write_changes(frame, options={"shards": "1"})
    assert 20 <= result.files[0] <= 60
    plan = stream.table.scan(branch="staging").plan
    assert max(task.entry.data_file.file_size_in_bytes for task in plan.tasks) < 128 << 10


def test_source_offsets_are_left_out_where_they_cannot_be_read(tmp_path: Path) -> None:
    assert source_offsets(str(tmp_path), 0) == {}
    assert source_offsets("s3://bucket/checkpoint", 0) == {}
    log = tmp_path / "a b" / "offsets"
    log.mkdir(parents=True)
    (log / "0").write_text('v1\n{"batchWatermarkMs":0}\n{"logOffset":3}\n{"t":{"0":5}}')
    (log / "1").write_text("v1\n{}\n" + json.dumps({"t": "x" * 10_000}))
    expected: dict[str, Any] = {SOURCE_OFFSETS: '[{"logOffset":3},{"t":{"0":5}}]'}
    assert source_offsets(f"file://{tmp_path}/a%20b", 0) == expected
    assert source_offsets(str(tmp_path / "a b"), 1) == {}


def test_blobs_keep_tables_as_they_are() -> None:
    table = pa.Table.from_pylist([order(1)], schema=ORDERS)
    assert decode_table(pa.py_buffer(encode_table(table))).equals(table)


def test_messages_of_a_registry_are_decoded_in_the_tasks(
    spark: SparkSession, tmp_path: Path
) -> None:
    catalog = open_catalog("local", warehouse=str(tmp_path / "warehouse"))
    table = catalog.create_table("shop.line", real.LINE, primary_key=["order_id", "line_no"])
    with fake_registry() as registry:
        converter = Converter(registry)
        records = real.records("db.public.line")
        values = [converter.write(each["value"]) for each in records]
        (tmp_path / "in").mkdir()
        messages = pa.table({"value": pa.array([*values, None], pa.binary())})
        pq.write_table(messages, tmp_path / "in" / "a.parquet")
        query = write_stream(
            table.environment,
            table.identifier,
            with_order(spark.readStream.schema("value binary").parquet(str(tmp_path / "in"))),
            checkpoint=str(tmp_path / "checkpoint"),
            trigger={"availableNow": True},
            decoder=RegistryDecoder(RegistrySettings(registry.url)),
        )
        query.awaitTermination()
    plain = catalog.create_table("shop.plain", real.LINE, primary_key=["order_id", "line_no"])
    texts = pa.table({"value": [json.dumps(each["value"]) for each in records]})
    plain.write_changes(texts, format_name="debezium-json")
    found, wanted = (
        sorted(each.refresh().scan(branch="staging").to_arrow().to_pylist(), key=str)
        for each in (table, plain)
    )
    assert found == wanted
    assert len(found) > 1
