"""`format("icefold")` in all four directions, against plain Python values."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest
from pyiceberg.types import DoubleType, IntegerType
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf
from pyspark.sql.types import LongType, StructField, StructType

from resolver import resolve
from tableformat import InvalidInputError, UnsupportedError, open_catalog
from tableformat.spark import register
from tableformat.spark.source_writer import stream_writer

pytestmark = pytest.mark.spark

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("region", pa.string()),
        ("price", pa.decimal128(9, 2)),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
    ]
)


def row(key, region="eu"):
    at = dt.datetime(2024, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=key)
    return (key, region, Decimal(key) / 4, dt.date(2024, 1, 1) + dt.timedelta(days=key), at)


def arrow(rows):
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, r, strict=True)) for r in rows], SCHEMA)


def ids(frame):
    return sorted(each.id for each in frame.collect())


@pytest.fixture
def icefold(spark):
    register(spark)
    return spark


@pytest.fixture
def table(tmp_path):
    catalog = open_catalog("local", warehouse=str(tmp_path / "warehouse"))
    made = catalog.create_table("shop.orders", SCHEMA, primary_key=["id"], partition_by=["region"])
    made.warehouse = str(tmp_path / "warehouse")
    return made


@pytest.fixture
def filled(table):
    table.append(arrow([row(key) for key in range(10)]))
    table.start = table.state.head("main").snapshot_id
    table.stage(arrow([row(3, "us"), row(50)]), pa.table({"id": pa.array([4], pa.int64())}))
    resolve(table)
    return table


def reader(spark, table, **options):
    named = {name.replace("_", "-"): value for name, value in options.items()}
    return spark.read.format("icefold").options(
        table="shop.orders", warehouse=table.warehouse, **named
    )


def test_reads_rows_with_deletes_applied_and_every_way_to_choose_a_version(icefold, filled):
    rows = {each.id: tuple(each) for each in reader(icefold, filled).load().collect()}
    assert sorted(rows) == [0, 1, 2, 3, 5, 6, 7, 8, 9, 50]
    assert rows[3][:4] == row(3, "us")[:4]
    filled.refs.create_tag("before", snapshot_id=filled.start)
    now = filled.environment.runtime.clock.now_ms()
    for options in (
        {"snapshot_id": filled.start},
        {"tag": "before"},
        {"tag": "before", "columns": "id,region"},
    ):
        assert ids(reader(icefold, filled, **options).load()) == list(range(10))
    assert ids(reader(icefold, filled, as_of_ms=now).load()) == sorted(rows)
    filled.stage(None, pa.table({"id": pa.array([0], pa.int64())}))
    assert ids(reader(icefold, filled, branch="staging").load()) == sorted(rows)[1:]


def test_frame_reads_the_version_of_when_it_was_made(icefold, filled):
    frame = reader(icefold, filled).load()
    before = frame.count()
    filled.append(arrow([row(77)]))
    assert frame.count() == before
    assert reader(icefold, filled).load().count() == before + 1


@pytest.mark.parametrize(
    "condition",
    [
        "id > 5",
        "id in (1, 3, 50)",
        "region = 'us'",
        "region is null",
        "price >= 1.25 and id <> 7",
        "day = date '2024-01-06'",
        "at < timestamp '2024-01-01 03:00:00'",
        "region like 'u%' or id = 1",
        "not (id < 6)",
    ],
)
def test_filters_give_what_spark_gives_without_push_down(icefold, filled, condition):
    native = filled.scan().to_spark(icefold).where(sf.expr(condition))
    assert ids(reader(icefold, filled).load().where(sf.expr(condition))) == ids(native)


def test_pushed_filters_prune_files(icefold, filled):
    assert reader(icefold, filled).load().rdd.getNumPartitions() == 1
    frame = reader(icefold, filled).load().where("region = 'us'")
    assert ids(frame) == [3]
    assert reader(icefold, filled).load().where("region = 'xx'").count() == 0
    assert ids(reader(icefold, filled, filter="region = 'us'").load()) == [3]


def test_metadata_columns_come_by_name(icefold, filled):
    frame = reader(icefold, filled, columns="id,_pos,_row_id,_partition").load()
    found = {each.id: each for each in frame.collect()}
    assert (found[5]._pos, found[5]._row_id, found[5]._partition.region) == (5, 5, "eu")


def test_computed_columns_are_the_same_for_every_reader(icefold, table):
    table.append(arrow([row(key) for key in range(10)]))
    table.update_schema(lambda update: update.add_column("n", IntegerType()))
    table.update_schema(lambda update: update.add_column("x", DoubleType()))
    table.append(
        arrow([row(key) for key in range(20, 25)])
        .append_column("n", pa.array([1, None, -3, 4, 2**30 - 1], pa.int32()))
        .append_column("x", pa.array([0.1, None, float("inf"), -0.0, 1e300]))
    )
    table.add_computed_column("twice", "n * 2", "int")
    table.add_computed_column("wide", "id * 1000 - N", "long")
    table.add_computed_column("scaled", "(x + 0.5) * 1.1", "double")
    wanted = {each["id"]: each for each in table.scan().to_arrow().to_pylist()}
    assert wanted[22]["wide"] == 22_003
    names = ["id", "twice", "wide", "scaled"]
    for frame in (
        reader(icefold, table).load(),
        reader(icefold, table, columns="scaled,id,wide,twice").load(),
        table.scan().to_spark(icefold),
        table.scan(columns=["twice", "scaled", "wide", "id"]).to_spark(icefold, runtime=False),
    ):
        types = {field.name: field.dataType.simpleString() for field in frame.schema}
        assert [types[name] for name in names] == ["bigint", "int", "bigint", "double"]
        found = {each.id: [each[name] for name in names] for each in frame.collect()}
        assert found == {key: [each[name] for name in names] for key, each in wanted.items()}
        assert ids(frame.where("wide > 22000 and scaled > 0").select("id")) == [22, 23]
    table.append(arrow([row(30)]).append_column("n", pa.array([2**30], pa.int32())))
    assert reader(icefold, table, columns="id,wide").load().count() == 16
    assert len(ids(table.scan().to_spark(icefold).select("id"))) == 16
    for frame in (reader(icefold, table).load(), table.scan().to_spark(icefold)):
        with pytest.raises(PySparkException, match="overflow"):
            frame.where("twice > 0").collect()
    icefold.conf.set("spark.sql.ansi.enabled", "false")
    try:
        with pytest.raises(UnsupportedError, match="need Spark's ANSI mode"):
            table.scan().to_spark(icefold)
    finally:
        icefold.conf.unset("spark.sql.ansi.enabled")


def test_reads_changes(icefold, filled):
    frame = reader(icefold, filled, read="changes", columns="id,region", **{"from": filled.start})
    found = sorted((each._change_type, each.id, each.region) for each in frame.load().collect())
    assert found == [
        ("+I", 50, "eu"),
        ("+U", 3, "us"),
        ("-D", 4, "eu"),
        ("-U", 3, "eu"),
    ]
    everything = reader(icefold, filled, read="changes", net="true").load()
    assert everything.where("_change_type = '+I'").count() == 10


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"nope": "1"}, "unknown option 'nope'"),
        ({"brunch": "main"}, "did you mean 'branch'?"),
        ({"snapshot_id": "x"}, "wrong value of option 'snapshot-id'"),
        ({"from": "main"}, "option 'from' has no effect here"),
        ({"read": "changes", "tag": "t"}, "option 'tag' has no effect here"),
        ({"branch": "nope"}, "no branch or tag 'nope'"),
        ({"columns": "nope"}, "no column 'nope'"),
        ({"filter": "id >"}, "cannot read the filter"),
    ],
)
def test_wrong_options_are_named(icefold, filled, options, text):
    with pytest.raises(PySparkException) as caught:
        reader(icefold, filled, **options).load().count()
    assert text in str(caught.value)


def test_missing_table_and_wrong_schema_are_refused(icefold, filled):
    with pytest.raises(PySparkException, match="missing option 'table'"):
        icefold.read.format("icefold").load()
    with pytest.raises(PySparkException, match="the schema of a read cannot be given"):
        reader(icefold, filled).schema("other long").load().count()
    with pytest.raises(PySparkException, match="table does not exist"):
        icefold.read.format("icefold").option("warehouse", filled.warehouse).load("a.b")


def writer(frame, table, **options):
    named = {name.replace("_", "-"): value for name, value in options.items()}
    return frame.write.format("icefold").options(
        table="shop.orders", warehouse=table.warehouse, **named
    )


def spark_rows(spark, rows):
    return spark.createDataFrame(arrow(rows))


def published(table, **where):
    table.refresh()
    return sorted(tuple(each.values()) for each in table.scan(**where).to_arrow().to_pylist())


def test_appends_and_overwrites(icefold, table):
    writer(spark_rows(icefold, [row(1), row(2, "us")]), table).mode("append").save()
    assert published(table) == [row(1), row(2, "us")]
    changed = spark_rows(icefold, [row(3, "us")])
    writer(changed, table, overwrite_mode="dynamic").mode("overwrite").save()
    assert published(table) == [row(1), row(3, "us")]
    writer(spark_rows(icefold, [row(9)]), table).mode("overwrite").save()
    assert published(table) == [row(9)]
    table.refs.create_branch("side")
    writer(spark_rows(icefold, [row(10)]), table, branch="side").mode("append").save()
    assert published(table) == [row(9)]
    assert published(table, branch="side") == [row(9), row(10)]


def test_writes_keep_enforced_immutable_columns(icefold, table):
    table.append(arrow([row(1)]))
    table.set_immutable_columns(["region"], enforced=True)
    other = spark_rows(icefold, [row(1, "us")])
    with pytest.raises(PySparkException, match="breaks the IMMUTABLE constraint"):
        writer(other, table).mode("append").save()
    with pytest.raises(PySparkException, match="rows cannot be deleted"):
        writer(other, table).mode("overwrite").save()
    assert published(table) == [row(1)]


def test_writes_changes_to_staging(icefold, table):
    table.append(arrow([row(1), row(2)]))
    events = spark_rows(icefold, [row(1, "us"), row(2), row(5)]).withColumn(
        "op", sf.expr("if(id = 2, '-D', '+U')")
    )
    options = {"format": "upsert", "kind_column": "op"}
    writer(events.repartition(3, "id"), table, **options).mode("append").save()
    assert published(table) == [row(1), row(2)]
    resolve(table)
    assert published(table) == [row(1, "us"), row(5)]


def test_changes_of_one_key_in_two_partitions_are_refused(icefold, table):
    events = spark_rows(icefold, [row(1)]).union(spark_rows(icefold, [row(1, "us")]))
    with pytest.raises(PySparkException, match=r"events.repartition\('id'\)"):
        writer(events, table, format="upsert").mode("append").save()
    assert table.refresh().state.ref("staging") is None


def test_columns_of_typed_changes_are_added_before_they_are_written(icefold, table):
    table.append(arrow([row(1), row(2)]))
    events = spark_rows(icefold, [row(2), row(3)]).withColumns(
        {
            "op": sf.lit("+U"),
            "note": sf.lit("new"),
            "price": sf.expr("cast(price as decimal(12,2))"),
        }
    )
    options = {"format": "upsert", "kind_column": "op"}
    with pytest.raises(PySparkException, match="unknown column"):
        writer(events, table, **options).mode("append").save()
    for mode, price in (("add-columns", "decimal(9, 2)"), ("full", "decimal(12, 2)")):
        write = writer(events.repartition("id"), table, schema_evolution=mode, **options)
        write.mode("append").save()
        assert str(table.refresh().schema().find_field("price").field_type) == price
    resolve(table)
    rows = table.refresh().scan().to_arrow().to_pylist()
    assert {each["id"]: each["note"] for each in rows} == {1: None, 2: "new", 3: "new"}


def test_json_changes_that_would_change_the_table_are_sent_elsewhere(icefold, table):
    events = icefold.createDataFrame(
        [('{"op": "c", "after": {"id": 1, "more": true}}',)], ["value"]
    )
    write = writer(events, table, format="debezium-json", schema_evolution="add-columns")
    with pytest.raises(PySparkException, match=r"Table\.write_changes or Table\.write_stream"):
        write.mode("append").save()
    names = [field.name for field in table.refresh().schema().fields]
    assert names == SCHEMA.names


def test_wrong_writes_are_refused_before_anything_is_written(icefold, table, tmp_path):
    rows = spark_rows(icefold, [row(1)])
    for frame, mode, options, text in (
        (rows.withColumn("more", sf.lit(1)), "append", {}, "no column 'more'"),
        (rows, "append", {"nope": 1}, "unknown option 'nope'"),
        (rows, "append", {"format": "nope"}, "unknown change format 'nope'"),
        (rows, "append", {"format": "upsert", "nope": 1}, "unknown option 'nope'"),
        (rows, "overwrite", {"format": "upsert"}, "changes are appended"),
        (rows, "append", {"format": "upsert", "branch": "main"}, "published branch"),
    ):
        with pytest.raises(PySparkException) as caught:
            writer(frame, table, **options).mode(mode).save()
        assert text in str(caught.value)
    assert not list((tmp_path / "warehouse").rglob("*.parquet"))


class Sink:
    """Replays micro-batches of a changelog into a dict of rows."""

    def __init__(self):
        self.rows = {}
        self.batches = []

    def __call__(self, frame, batch_id):
        found = [each.asDict() for each in frame.collect()]
        self.batches.append(len(found))
        for change in sorted(found, key=lambda c: (c["_change_ordinal"], c["_change_type"] > "-")):
            if change["_change_type"] in ("-D", "-U"):
                assert self.rows.pop(change["id"]) == change["region"]
        for ordinal in sorted({each["_change_ordinal"] for each in found}):
            for change in found:
                if change["_change_ordinal"] == ordinal and change["_change_type"][0] == "+":
                    self.rows[change["id"]] = change["region"]


def stream_once(spark, table, sink, checkpoint, **options):
    named = {name.replace("_", "-"): value for name, value in options.items()}
    query = (
        spark.readStream.format("icefold")
        .options(table="shop.orders", warehouse=table.warehouse, read="changes", **named)
        .load()
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def as_dict(table):
    table.refresh()
    return {each["id"]: each["region"] for each in table.scan().to_arrow().to_pylist()}


def test_streams_go_on_from_where_they_were(icefold, filled, tmp_path):
    sink = Sink()
    for step in range(4):
        stream_once(icefold, filled, sink, tmp_path / "c", columns="id,region", net="true")
        assert sink.rows == as_dict(filled)
        if step == 0:
            filled.stage(arrow([row(1, "us"), row(60)]), pa.table({"id": [50]}))
            resolve(filled)
            filled.append(arrow([row(70)]))
        if step == 1:
            filled.refs.rollback(snapshot_id=filled.start)
        if step == 2:
            filled.refs.drop("staging")
    assert sink.batches == [10, 5, 6 + 1]


def test_watermark_on_a_column_drops_late_rows_across_restarts(icefold, table, tmp_path):
    """Rows of hours 0 to 9 put the watermark at 8 h; then hour 2 is late, and hour 9 is not."""

    def counts():
        stream = icefold.readStream.format("icefold").options(
            table="shop.orders", warehouse=table.warehouse, read="changes"
        )
        query = (
            stream.load()
            .withWatermark("at", "1 hour")
            .groupBy(sf.window("at", "1 hour"))
            .count()
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .option("path", str(tmp_path / "counts"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        found = icefold.read.parquet(str(tmp_path / "counts")).collect()
        start = dt.datetime(2024, 1, 1)
        hours = [(each.window.start - start).total_seconds() / 3600 for each in found]
        return sorted(zip(hours, (each["count"] for each in found), strict=True))

    table.append(arrow([row(key) for key in range(10)]))
    assert counts() == []
    table.append(arrow([row(30)]))
    closed = [(hour, 1) for hour in range(8)]
    assert counts() == closed, "a batch closes windows by the watermark that it began with"
    late, in_time = row(2), row(9)
    table.append(arrow([(100, *late[1:]), (101, *in_time[1:])]))
    assert counts() == [*closed, (8, 1), (9, 2)]


def test_stream_must_read_changes_and_follows_a_branch(icefold, filled, tmp_path):
    for options, text in (
        ({"read": "rows"}, "a stream reads changes"),
        ({"to": "main"}, "option 'to' has no effect here"),
    ):
        stream = icefold.readStream.format("icefold").options(
            table="shop.orders", warehouse=filled.warehouse, **{"read": "changes", **options}
        )
        query = (
            stream.load()
            .writeStream.format("memory")
            .queryName("q")
            .option("checkpointLocation", str(tmp_path / text[:8].replace(" ", "")))
            .trigger(availableNow=True)
            .start()
        )
        with pytest.raises(PySparkException) as caught:
            query.awaitTermination()
        assert text in str(caught.value)


def test_stream_without_a_query_id_is_refused_before_anything_changes(table):
    options = {"table": "shop.orders", "warehouse": table.warehouse, "format": "upsert"}
    options |= {"schema-evolution": "full"}
    columns = StructType([StructField("id", LongType()), StructField("more", LongType())])
    with pytest.raises(InvalidInputError, match="missing option 'query-id'"):
        stream_writer(options, columns, overwrite=False)
    assert [field.name for field in table.refresh().schema().fields] == SCHEMA.names
    stream_writer(options | {"query-id": "q"}, columns, overwrite=False)
    assert [field.name for field in table.refresh().schema().fields] == [*SCHEMA.names, "more"]


def test_write_stream_commits_each_batch_once(icefold, table, tmp_path):
    (tmp_path / "in").mkdir()
    spark_rows(icefold, [row(1), row(2)]).write.mode("append").parquet(str(tmp_path / "in"))

    def run(checkpoint):
        frame = icefold.readStream.schema(
            "id long, region string, price decimal(9, 2), day date, at timestamp"
        ).parquet(str(tmp_path / "in"))
        query = (
            frame.repartition("id")
            .writeStream.format("icefold")
            .options(table="shop.orders", warehouse=table.warehouse, format="upsert")
            .option("query-id", "q1")
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    run("c")
    staged = table.refresh().state.head("staging")
    resolve(table)
    assert published(table) == [row(1), row(2)]
    (tmp_path / "c" / "commits" / "0").unlink()
    (tmp_path / "c" / "commits" / ".0.crc").unlink(missing_ok=True)
    run("c")
    assert table.refresh().state.head("staging").snapshot_id != staged.snapshot_id
    assert published(table) == [row(1), row(2)]
