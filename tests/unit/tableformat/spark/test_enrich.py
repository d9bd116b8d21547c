"""The lookup join against a plain dictionary, on frames and on a stream."""

from __future__ import annotations

import pyarrow as pa
import pytest

import tableformat as tf
from resolver import build_index, resolve
from tableformat.errors import InvalidInputError, UnsupportedError
from tableformat.spark.enrich import enrich
from tests.support.memory_tables import memory_catalog

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.int64()), ("customer", pa.string()), ("price", pa.decimal128(9, 2))])


def rows(ids, label):
    return pa.table(
        [
            pa.array(ids, pa.int64()),
            [f"{label}{i % 3}" for i in ids],
            pa.array(ids).cast(pa.decimal128(21, 2)).cast(pa.decimal128(9, 2)),
        ],
        schema=SCHEMA,
    )


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """Ids 0 to 9; 8 deleted, 9 of another customer; both indexes built."""
    warehouse = str(tmp_path_factory.mktemp("enrich"))
    table = tf.open_catalog("local", warehouse=warehouse).create_table(
        "t.prices", SCHEMA, primary_key=["id"]
    )
    table.append(rows(range(10), "c"))
    table.add_index("by_customer", ["customer"])
    table.stage(upserts=rows([9], "d"), deletes=pa.table({"id": [8]}))
    resolve(table)
    return table


def pairs(frame, *columns):
    return sorted(map(tuple, frame.select(*columns).collect()), key=repr)


def test_a_frame_gets_the_columns_of_its_keys(spark, table):
    orders = spark.createDataFrame([(1, 3), (2, 8), (3, None), (4, 3), (5, 77)], "n int, id long")
    left = enrich(orders, table, on="id", columns=["customer", "price"])
    assert left.schema["price"].dataType.simpleString() == "decimal(9,2)"
    assert [(n, c) for n, c in pairs(left, "n", "customer")] == [
        (1, "c0"), (2, None), (3, None), (4, "c0"), (5, None),
    ]  # fmt: skip
    inner = enrich(orders, table, on="id", how="inner", prefix="p_")
    assert pairs(inner, "n", "p_customer") == [(1, "c0"), (4, "c0")]
    empty = enrich(orders.where("n > 9"), table, on="id", how="inner")
    assert empty.collect() == []


def test_an_index_on_other_columns_gives_a_row_per_match(spark, table):
    clients = spark.createDataFrame([("c1",), ("d0",), ("x",)], "client string")
    joined = enrich(clients, table, on={"client": "customer"}, columns=["id"])
    assert pairs(joined, "client", "id") == [
        ("c1", 1), ("c1", 4), ("c1", 7), ("d0", 9), ("x", None),
    ]  # fmt: skip


def test_a_frame_is_joined_with_the_snapshot_of_the_call(spark, table):
    frame = enrich(spark.createDataFrame([(100,)], "id long"), table, on="id", columns=["customer"])
    table.append(rows([100], "late"))
    assert pairs(frame, "customer") == [(None,)]
    again = enrich(spark.createDataFrame([(100,)], "id long"), table, on="id", columns=["customer"])
    assert pairs(again, "customer") == [("late1",)]


def test_a_stream_sees_what_is_published_between_its_batches(spark, table, tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    stream = spark.readStream.schema("id long").json(str(source))
    (source / "1.json").write_text('{"id": 200}\n{"id": 1}\n')
    query = (
        enrich(stream, table, on="id", columns=["customer"], concurrency=2, head_age_max_ms=1)
        .writeStream.format("memory")
        .queryName("enriched")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    try:
        query.processAllAvailable()
        table.append(rows([200], "new"))
        build_index(table)
        (source / "2.json").write_text('{"id": 200}\n')
        query.processAllAvailable()
    finally:
        query.stop()
    found = pairs(spark.table("enriched"), "id", "customer")
    assert found == [(1, "c1"), (200, "new2"), (200, None)]


def test_wrong_joins_are_refused_before_anything_runs(spark, table):
    frame = spark.createDataFrame([(1, 1)], "id long, price int")
    for options, text in (
        ({"on": "nope"}, "frame has no column"),
        ({"on": {"id": "price"}}, "no index on price"),
        ({"on": "id"}, "would be called 'price'"),
        ({"on": "id", "columns": ["nope"]}, "no column 'nope'"),
        ({"on": "id", "columns": ["customer"], "how": "outer"}, "left or inner"),
        ({"on": "id", "columns": ["customer"], "concurrency": 0}, "concurrency of at least 1"),
        ({"on": "id", "columns": ["customer"], "head_age_max_ms": 1}, "no effect on a batch"),
    ):
        with pytest.raises(InvalidInputError, match=text):
            enrich(frame, table, **options)
    memory = memory_catalog().create_table("t.m", SCHEMA, primary_key=["id"])
    with pytest.raises(UnsupportedError, match="executors cannot read"):
        enrich(frame, memory, on="id", columns=["customer"])
