from __future__ import annotations

import math
import re
import struct
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, SparkSession

import tableformat as tf
from tableformat.errors import InvalidInputError, UnsupportedError
from tableformat.scan.plan import plan_scan
from tableformat.scan.projection import project
from tableformat.scan.reader import to_table
from tableformat.spark import arrow_scan
from tableformat.spark.reader import plan_to_spark
from tableformat.spark.types import to_spark_batch
from tableformat.store.arrow_store import ArrowObjectStore
from tableformat.store.locations import AllowedLocations
from tests.support.random_tables import KEYED, random_table, rows
from tests.support.s3_server import fresh_bucket, s3_properties
from tests.support.scan_cases import (
    CASES,
    comparable,
    many_types,
    name_used_again,
    nested_name_used_again,
    renamed_struct,
    swapped_names,
)
from tests.support.scan_tables import HandMadeTable

pytestmark = pytest.mark.spark

METADATA = ["_file", "_pos", "_row_id", "_last_updated_sequence_number", "_spec_id", "_partition"]


@pytest.fixture
def new_table(tmp_path: Path):
    """Builds hand-made tables in a folder that Spark's workers can read."""
    location = tmp_path.as_uri()
    store = ArrowObjectStore({}, AllowedLocations([location]))
    return partial(HandMadeTable, store=store, location=location)


def from_spark(
    table: HandMadeTable, spark: SparkSession, columns=None, row_filter=None
) -> list[str]:
    plan = plan_scan(table.environment(), table.state(), row_filter=row_filter)
    frame = plan_to_spark(table.environment(), plan, spark, columns=columns)
    return comparable([tuple(row.values()) for row in frame.toArrow().to_pylist()])


def from_arrow(table: HandMadeTable, columns=None, row_filter=None) -> list[str]:
    """What the Arrow reader gives, which its own tests hold against an oracle, in Spark's types."""
    plan = plan_scan(table.environment(), table.state(), row_filter=row_filter)
    schema = project(plan, columns).schema
    result = to_table(table.environment(), plan, columns=columns)
    batches = [to_spark_batch(batch, schema) for batch in result.to_batches()]
    return comparable([tuple(row.values()) for batch in batches for row in batch.to_pylist()])


@pytest.mark.parametrize("seed", range(6))
def test_random_deletes_leave_what_the_arrow_reader_leaves(spark, new_table, seed: int) -> None:
    table = random_table(seed, new_table)
    assert from_spark(table, spark, METADATA) == from_arrow(table, METADATA)


@pytest.mark.parametrize("build", CASES, ids=lambda build: build.__name__)
def test_evolved_table_reads_as_with_arrow(spark, new_table, build) -> None:
    case = build(new_table)
    assert from_spark(case.table, spark) == from_arrow(case.table)
    for row_filter in case.filters:
        read = from_spark(case.table, spark, row_filter=row_filter)
        assert read == from_arrow(case.table, row_filter=row_filter), row_filter


@pytest.mark.parametrize(
    "build", [swapped_names, name_used_again, nested_name_used_again, renamed_struct]
)
def test_frame_is_filtered_and_pruned_by_the_right_column(spark, new_table, build) -> None:
    """Spark does both by name; the old file knows the name as another column."""
    case = build(new_table)
    plan = plan_scan(case.table.environment(), case.table.state())
    frame = plan_to_spark(case.table.environment(), plan, spark)
    for row_filter, expected in case.filters.items():
        found = [tuple(row.values()) for row in frame.where(row_filter).toArrow().to_pylist()]
        assert comparable(found) == comparable(expected), row_filter
    for name in [f.name for f in plan.schema.fields if f.field_type.is_struct]:
        inner = [row[0] for row in frame.select(f"{name}.x").collect()]
        whole = [row[name] for row in frame.collect()]
        assert inner == [value and value.x for value in whole]
        assert any(inner)


def three_files(new_table) -> HandMadeTable:
    table = new_table(KEYED)
    for first in (0, 10, 20):
        table.commit()
        [entry] = table.add(rows(*((first + at, "a", first + at) for at in range(10))))
        bounds = {3: struct.pack("<i", first)}, {3: struct.pack("<i", first + 9)}
        bounded = entry.data_file.with_(lower_bounds=bounds[0], upper_bounds=bounds[1])
        table.data[-1] = replace(entry, data_file=bounded)
        table.delete_vector(entry, [0])
    return table


def frame_of(table: HandMadeTable, spark: SparkSession) -> DataFrame:
    return plan_to_spark(table.environment(), plan_scan(table.environment(), table.state()), spark)


def scan_in(frame: DataFrame) -> str:
    """What the physical plan says of the scan."""
    text = frame._jdf.queryExecution().executedPlan().toString()
    return next(line for line in text.splitlines() if "BatchScan" in line)


def test_query_reads_the_columns_it_needs(spark, new_table) -> None:
    frame = frame_of(three_files(new_table), spark)
    assert re.findall(r"(\w+)#", scan_in(frame)) == ["id", "region", "amount"]
    assert re.findall(r"(\w+)#", scan_in(frame.select("id"))) == ["id"]
    assert re.findall(r"(\w+)#", scan_in(frame.where("amount > 1").select("id"))) == ["id"]
    assert len(re.findall(r"(\w+)#", scan_in(frame.groupBy().count()))) == 1
    assert frame.select("id").collect()[0].asDict() == {"id": 1}
    assert frame.count() == 27


def test_column_that_no_query_asks_for_is_not_opened(spark, new_table) -> None:
    """Its bytes are damaged: whoever decodes them fails."""
    table = three_files(new_table)
    for entry in table.data:
        path = Path(entry.data_file.file_path.removeprefix("file://"))
        chunk = pq.read_metadata(path).row_group(0).column(1)
        assert chunk.path_in_schema == "region"
        data = bytearray(path.read_bytes())
        start = chunk.dictionary_page_offset or chunk.data_page_offset
        data[start : start + chunk.total_compressed_size] = b"\xff" * chunk.total_compressed_size
        path.write_bytes(bytes(data))
    frame = frame_of(table, spark)
    assert frame.selectExpr("sum(amount)").collect()[0][0] == sum(
        each for each in range(30) if each % 10
    )
    with pytest.raises(PythonException):
        frame.select("region").collect()


def test_filter_put_on_the_frame_drops_files_and_rows(spark, new_table) -> None:
    frame = frame_of(three_files(new_table), spark).where("amount > 21 and region = 'a'")
    assert "files 1]" in scan_in(frame)
    assert "GreaterThan(term=Reference(name='amount')" in scan_in(frame)  # 4.3 filters once more
    assert sorted(row.id for row in frame.collect()) == list(range(22, 30))


def test_filter_that_only_spark_understands_stays_with_spark(spark, new_table) -> None:
    frame = frame_of(three_files(new_table), spark).where("amount % 2 = 0 and amount > 21")
    assert "files 1]" in scan_in(frame)
    assert sorted(row.id for row in frame.collect()) == [22, 24, 26, 28]


def test_limit_reaches_every_task_and_holds_over_all(spark, new_table, monkeypatch) -> None:
    monkeypatch.setattr(arrow_scan, "PART_ROWS", 10)
    frame = frame_of(three_files(new_table), spark)
    assert frame.rdd.getNumPartitions() == 3
    assert "limit 4]" in scan_in(frame.limit(4))
    assert frame.limit(4).count() == 4
    assert frame.limit(12).count() == 12  # more than one task has
    assert frame.where("amount > 5").limit(2).count() == 2
    assert frame.where("amount % 2 = 0").limit(2).count() == 2


CONDITIONS = {
    "day = date '2024-01-03'": [3],
    "at < timestamp '2024-01-02 00:00:00'": [1],
    "at in (timestamp '2024-01-02 00:00:00', timestamp '2024-01-01 00:00:00')": [1, 2],
    "plain >= timestamp_ntz '2024-01-02 00:00:00.000001'": [3, 4],
    "at < timestamp '+12345-01-02 00:00:00'": [1, 2, 3, 4],
    "price = 1.50": [2],
    "not (name like 'n%')": [3],
    "name is null": [4],
    "is_new": [1, 2],
    "score <=> double('NaN')": [3],
    "score > 1": [2, 3],
    "`odd.name` = 2": [2],
}


def test_filters_by_any_type_give_what_they_mean(spark, tmp_path) -> None:
    days = [datetime(2024, 1, day, tzinfo=UTC) for day in (1, 2, 3, 4)]
    rows = pa.table(
        {
            "id": pa.array([1, 2, 3, 4]),
            "day": pa.array([each.date() for each in days]),
            "at": pa.array(days, pa.timestamp("us", "UTC")),
            "plain": pa.array([each.replace(tzinfo=None) for each in days], pa.timestamp("us")),
            "price": pa.array([Decimal("0.50"), Decimal("1.50"), None, None], pa.decimal128(9, 2)),
            "name": ["n1", "n2", "x", None],
            "is_new": [True, True, False, None],
            "score": [0.5, 1.5, math.nan, None],
            "odd.name": pa.array([1, 2, 3, 4]),
        }
    )
    catalog = tf.open_catalog("local", warehouse=str(tmp_path))
    table = catalog.create_table("a.b", rows.schema, primary_key=["id"])
    table.append(rows)
    for condition, expected in CONDITIONS.items():
        frame = table.scan().to_spark(spark).where(condition)
        assert [row.id for row in frame.collect()] == expected, condition


def test_frames_are_cached_joined_and_queried_in_sql(spark, new_table) -> None:
    table = three_files(new_table)
    frame = frame_of(table, spark)
    cached = frame.cache()
    assert (cached.count(), cached.count()) == (27, 27)
    assert "InMemory" in frame.select("id")._jdf.queryExecution().executedPlan().toString()
    cached.unpersist()
    joined = frame.join(frame_of(table, spark), "id")
    assert joined.count() == 27
    assert "BroadcastHashJoin" in joined._jdf.queryExecution().executedPlan().toString()
    frame.createOrReplaceTempView("frame_of_three")
    query = "select max(amount) from frame_of_three where id in (select id from frame_of_three)"
    assert spark.sql(query).collect()[0][0] == 29
    spark.catalog.dropTempView("frame_of_three")


@pytest.mark.parametrize("columns", [["_spec_id"], ["_file", "_partition"], ["_pos"]])
def test_metadata_columns_alone_have_every_row(spark, new_table, columns) -> None:
    table = random_table(10, new_table)
    assert len(from_spark(table, spark, columns)) == len(table.live_rows())
    assert from_spark(table, spark, columns) == from_arrow(table, columns)


@pytest.mark.parametrize("seed", [3, 5])
def test_deleted_flag_brings_every_row(spark, new_table, seed) -> None:
    table = random_table(seed, new_table)
    columns = ["_deleted", "_pos", "id", "_file"]
    assert len(from_spark(table, spark, columns)) == len(table.rows)
    assert from_spark(table, spark, columns) == from_arrow(table, columns)
    filtered = from_spark(table, spark, columns, "amount > 2")
    assert filtered == from_arrow(table, columns, "amount > 2")


def test_frame_gives_the_same_rows_twice(spark, new_table) -> None:
    table = random_table(3, new_table)
    plan = plan_scan(table.environment(), table.state())
    frame = plan_to_spark(table.environment(), plan, spark)
    assert frame.count() == frame.count() == len(table.live_rows())


def test_scan_of_an_empty_table_has_its_columns(spark, new_table) -> None:
    table = new_table(KEYED)
    table.commit()
    table.add(rows((1, "a", 1)))
    plan = plan_scan(table.environment(), table.state(), row_filter="id > 5")
    frame = plan_to_spark(table.environment(), plan, spark, columns=["amount", "_file"])
    assert frame.columns == ["amount", "_file"]
    assert frame.count() == 0


def test_file_outside_the_allowed_places_is_not_read(spark, new_table, tmp_path) -> None:
    table = new_table(KEYED)
    table.commit()
    [entry] = table.add(rows((1, "a", 1)))
    outside = tmp_path.parent / "outside.parquet"
    outside.write_bytes(table.store.get(entry.data_file.file_path))
    table.register(entry.data_file.with_(file_path=outside.as_uri(), first_row_id=None), [{}])
    with pytest.raises(PythonException, match="outside the allowed prefixes"):
        frame_of(table, spark).collect()


def test_file_with_an_odd_name_is_read(spark, new_table) -> None:
    table = new_table(KEYED)
    table.commit()
    [entry] = table.add(rows((1, "a", 1), (2, "b", 2)))
    hidden = f"{table.location}/data/_under %score.parquet"
    table.store.put(hidden, table.store.get(entry.data_file.file_path))
    table.register(entry.data_file.with_(file_path=hidden, first_row_id=None))
    assert len(from_spark(table, spark)) == 4
    assert from_spark(table, spark, METADATA) == from_arrow(table, METADATA)


def test_locations_with_odd_folders_are_read(spark, new_table) -> None:
    table = new_table(KEYED)
    table.location += "/x=1/a b%20{c}[d]/ü+#?&="
    table.commit()
    [entry] = table.add(rows((1, "a", 1), (2, "b", 2)))
    table.delete_vector(entry, [1])
    assert from_spark(table, spark, METADATA) == from_arrow(table, METADATA)


def test_error_on_a_worker_names_the_file(spark, new_table) -> None:
    case = many_types(new_table)
    plan = plan_scan(case.table.environment(), case.table.state())
    frame = plan_to_spark(case.table.environment(), plan, spark)
    location = case.table.data[0].data_file.file_path
    case.table.store.delete([location])
    with pytest.raises(PythonException, match=location.removeprefix("file://")):
        frame.collect()


def test_store_of_this_process_cannot_be_read_by_workers(spark) -> None:
    table = HandMadeTable(KEYED)
    table.commit()
    table.add(rows((1, "a", 1)))
    plan = plan_scan(table.environment(), table.state())
    with pytest.raises(UnsupportedError, match="MemoryObjectStore"):
        plan_to_spark(table.environment(), plan, spark)


def test_unknown_column_is_refused(spark, new_table) -> None:
    table = new_table(KEYED)
    table.commit()
    plan = plan_scan(table.environment(), table.state())
    with pytest.raises(InvalidInputError, match="nope"):
        plan_to_spark(table.environment(), plan, spark, columns=["nope"])


def test_table_on_s3_needs_nothing_of_hadoop(spark, tmp_path) -> None:
    warehouse = f"s3://{fresh_bucket()}/wh"
    catalog = tf.open_catalog(
        "prod", type="sql", uri=f"sqlite:///{tmp_path}/c.db", warehouse=warehouse, **s3_properties()
    )
    stored = pa.table({"id": pa.array(range(10)), "name": [f"n{at}" for at in range(10)]})
    table = catalog.create_table("shop.orders", stored.schema, primary_key=["id"])
    table.append(stored)
    table.delete("id < 3")
    frame = table.scan().to_spark(spark)
    assert [row.name for row in frame.where("id < 5").select("name").collect()] == ["n3", "n4"]
    assert frame.count() == 7
