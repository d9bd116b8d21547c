"""Statements on Spark: what they see, keep and refuse. Their results are the corpus's business."""

from __future__ import annotations

import datetime as dt
import logging.handlers
import math
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg import types as iceberg
from pyspark.sql import functions as sf
from pyspark.sql import types as st

from tableformat import open_catalog
from tableformat.errors import InvalidInputError, UnsupportedError
from tests.support.memory_tables import memory_catalog

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.int64()), ("amount", pa.int64()), ("note", pa.string())])


@pytest.fixture
def catalog(tmp_path):
    catalog = open_catalog("local", warehouse=str(tmp_path))
    for name in ("orders", "changes"):
        table = catalog.create_table(f"shop.{name}", SCHEMA, primary_key=["id"])
        rows = [{"id": i, "amount": i * 10, "note": f"n{i}"} for i in range(6)]
        table.append(pa.Table.from_pylist(rows, schema=SCHEMA))
    return catalog


def data_files(tmp_path) -> set[str]:
    return {str(path) for path in tmp_path.rglob("data/**/*.*") if path.is_file()}


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_merge_keeps_row_ids_of_updated_rows(spark, catalog, mode) -> None:
    orders = catalog.load_table("shop.orders")
    source = pa.table({"id": [1, 9], "amount": [100, 900], "note": ["one", "nine"]})
    result = orders.merge(source, "t.id = s.id", spark=spark, mode=mode)
    assert (result.updated_rows, result.inserted_rows, result.deleted_rows) == (1, 1, 0)
    columns = ["id", "amount", "_row_id", "_last_updated_sequence_number"]
    rows = {row["id"]: tuple(row.values())[1:] for row in
            orders.scan(columns=columns).to_arrow().to_pylist()}  # fmt: skip
    assert rows[1] == (100, 1, 2)
    assert rows[2] == (20, 2, 1)
    assert rows[9][0] == 900
    assert rows[9][1] > 5
    assert len({row_id for _, row_id, _ in rows.values()}) == 7


def test_other_tables_are_read_at_their_pinned_snapshots(spark, catalog) -> None:
    points = catalog.environment.runtime.fail_points
    changes = catalog.load_table("shop.changes")

    def land(_: str) -> None:
        points.armed.clear()
        changes.delete("id < 3")

    points.armed["rowlevel.after_plan"] = land
    result = catalog.sql(
        "DELETE FROM shop.orders WHERE id IN (SELECT id FROM shop.changes WHERE id < 4)",
        spark=spark,
    )
    assert result.deleted_rows == 4
    assert changes.scan().to_arrow().num_rows == 3


def test_older_versions_can_be_read_in_sub_queries(spark, catalog) -> None:
    orders = catalog.load_table("shop.orders")
    first = orders.state.head("main").snapshot_id
    orders.delete("id < 4")
    text = (
        f"MERGE INTO shop.orders t USING (SELECT * FROM shop.orders VERSION AS OF {first}) s "
        "ON t.id = s.id WHEN NOT MATCHED THEN INSERT *"
    )
    assert catalog.sql(text, spark=spark).inserted_rows == 4


@pytest.mark.parametrize(
    "source",
    [
        "(VALUES (7, 3), (8, 4)) AS s(amount, id)",
        "VALUES (7, 3), (8, 4) AS s(amount, id)",
        "(SELECT 7 AS id, 3 AS amount) AS s(amount, id)",
        "(SELECT * FROM VALUES (7, 3) AS v(amount, id)) s",
    ],
)
def test_columns_of_a_source_have_the_names_that_it_gives_them(spark, catalog, source) -> None:
    clause = "ON t.id = s.id WHEN MATCHED THEN UPDATE SET amount = s.amount"
    catalog.sql(f"MERGE INTO shop.orders t USING {source} {clause}", spark=spark)
    found = catalog.load_table("shop.orders").scan(filter="amount = 7").to_arrow()
    assert found.column("id").to_pylist() == [3]


def test_metadata_columns_can_be_asked_for(spark, catalog) -> None:
    assert catalog.sql(
        "DELETE FROM shop.orders WHERE _pos < 2 AND _spec_id = 0 AND _row_id = 1", spark=spark
    ).deleted_rows == 1  # fmt: skip


@pytest.mark.parametrize("is_ansi", ["true", "false"])
def test_number_that_does_not_fit_is_never_stored_as_another(spark, catalog, is_ansi) -> None:
    columns = [("id", pa.int64()), ("n", pa.int32()), ("d", pa.decimal128(5, 2))]
    schema = pa.schema([*columns, ("f", pa.float32())])
    table = catalog.create_table("shop.narrow", schema, primary_key=["id"])
    table.append(pa.table({"id": [1], "n": [2], "d": [None], "f": [None]}, schema=schema))
    before = spark.conf.get("spark.sql.ansi.enabled")
    spark.conf.set("spark.sql.ansi.enabled", is_ansi)
    try:
        for wrong in (
            "n = id + 3000000000", "d = abs(id) * 1000", "n = abs(1e300 * id)",
            "f = abs(-1e39 * id)",
        ):  # fmt: skip
            with pytest.raises(InvalidInputError):
                catalog.sql(f"UPDATE shop.narrow SET {wrong}", spark=spark)
        catalog.sql(
            "UPDATE shop.narrow SET n = abs(id) + 6, d = abs(id) * 1.5, "
            "f = abs(CAST('-Infinity' AS DOUBLE))",
            spark=spark,
        )
    finally:
        spark.conf.set("spark.sql.ansi.enabled", before)
    found = table.scan().to_arrow().to_pylist()
    assert found == [{"id": 1, "n": 7, "d": Decimal("1.50"), "f": math.inf}]


def test_temporary_views_are_dropped(spark, catalog) -> None:
    before = {table.name for table in spark.catalog.listTables()}
    with pytest.raises(InvalidInputError):
        catalog.sql(
            "DELETE FROM shop.orders WHERE nope IN (SELECT id FROM shop.changes)", spark=spark
        )
    assert {table.name for table in spark.catalog.listTables()} == before


def test_streams_are_refused(spark, catalog) -> None:
    stream = spark.readStream.format("rate").load().withColumnRenamed("value", "id")
    stream.createOrReplaceTempView("events")
    for statement, operation in (
        ("DELETE FROM shop.orders WHERE id IN (SELECT id FROM events)", "DELETE"),
        ("UPDATE shop.orders SET amount = 0 WHERE id IN (SELECT id FROM events)", "UPDATE"),
        ("MERGE INTO shop.orders t USING events s ON t.id = s.id WHEN MATCHED THEN DELETE",
         "MERGE"),
    ):  # fmt: skip
        with pytest.raises(UnsupportedError) as caught:
            catalog.sql(statement, spark=spark)
        wanted = f"{operation} TABLE is not supported for streaming mode now"
        assert caught.value.message == wanted
    with pytest.raises(UnsupportedError, match="streaming mode"):
        catalog.load_table("shop.orders").merge(stream, "t.id = s.id", spark=spark)
    spark.catalog.dropTempView("events")


def test_ambiguous_merge_is_refused_and_leaves_no_files(spark, catalog, tmp_path) -> None:
    orders = catalog.load_table("shop.orders")
    source = pa.table({"id": [1, 1], "amount": [5, 6], "note": ["a", "b"]})
    before = data_files(tmp_path)
    for clause in (
        "WHEN MATCHED THEN UPDATE SET amount = s.amount",
        "WHEN MATCHED AND s.amount = 5 THEN UPDATE SET amount = s.amount",
        "WHEN MATCHED AND s.amount = 5 THEN DELETE",
    ):
        with pytest.raises(InvalidInputError, match="MERGE is ambiguous"):
            orders.merge(source, "t.id = s.id", [clause], spark=spark)
    assert data_files(tmp_path) == before
    result = orders.merge(source, "t.id = s.id", ["WHEN MATCHED THEN DELETE"], spark=spark)
    assert result.deleted_rows == 1


def test_function_that_is_not_deterministic_is_refused(spark, catalog) -> None:
    dice = sf.udf(lambda: 4, st.IntegerType()).asNondeterministic()
    spark.udf.register("dice", dice)
    with pytest.raises(InvalidInputError, match="not deterministic"):
        catalog.sql("DELETE FROM shop.orders WHERE id = dice()", spark=spark)
    with pytest.raises(InvalidInputError, match=r"rand\(\)"):
        catalog.sql("UPDATE shop.orders SET amount = rand()", spark=spark)


WRONG = [
    ("UPDATE shop.orders SET amount = note", "wrong type; column=amount, type=long, found=string"),
    ("UPDATE shop.orders SET id = NULL WHERE id = 1", "required column holds nulls"),
    ("DELETE FROM shop.orders WHERE nope = 1", "Spark refuses the statement"),
    ("UPDATE shop.orders SET amount = amount / (id - id)", "DIVIDE_BY_ZERO"),
    ("MERGE INTO shop.orders t USING (SELECT 9 AS id) s ON t.id = s.id "
     "WHEN NOT MATCHED THEN INSERT *", "which * needs; column=amount"),
    ("MERGE INTO shop.orders t USING (SELECT 9 AS id) s ON t.id = s.id "
     "WHEN NOT MATCHED AND t.id = 1 THEN INSERT (id) VALUES (s.id)", "Spark refuses"),
    ("MERGE INTO shop.orders t USING nowhere s ON t.id = s.id WHEN MATCHED THEN DELETE",
     "Spark refuses"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), WRONG, ids=[text for text, _ in WRONG])
def test_what_spark_refuses_is_one_clear_line(spark, catalog, tmp_path, text, message) -> None:
    before = data_files(tmp_path)
    with pytest.raises(InvalidInputError) as caught:
        catalog.sql(text, spark=spark)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert data_files(tmp_path) == before


def test_what_spark_refuses_is_not_logged_as_well(spark, catalog) -> None:
    logger, heard = logging.getLogger("SQLQueryContextLogger"), logging.handlers.BufferingHandler(9)
    logger.addHandler(heard)
    try:
        with pytest.raises(InvalidInputError):
            catalog.sql("DELETE FROM shop.orders WHERE nope = 1", spark=spark)
    finally:
        logger.removeHandler(heard)
    assert not heard.buffer


def test_store_in_this_process_cannot_be_reached_by_workers(spark) -> None:
    table = memory_catalog().create_table("shop.orders", SCHEMA, primary_key=["id"])
    table.append(pa.table({"id": [1], "amount": [1], "note": ["x"]}))
    with pytest.raises(UnsupportedError, match="executors cannot read"):
        table.delete("abs(id) = 1", spark=spark)


EVERY_TYPE = pa.schema(
    [
        ("id", pa.int64()),
        ("n", pa.int32()),
        ("u", pa.uuid()),
        ("fixed", pa.binary(4)),
        ("raw", pa.binary()),
        ("zoned", pa.timestamp("us", "UTC")),
        ("nanos", pa.timestamp("ns")),
        ("zoned_nanos", pa.timestamp("ns", "UTC")),
        ("clock", pa.time64("us")),
        ("day", pa.date32()),
        ("wide", pa.decimal128(38, 10)),
        ("items", pa.list_(pa.struct([("k", pa.string()), ("at", pa.timestamp("ns"))]))),
        ("names", pa.map_(pa.string(), pa.struct([("u", pa.uuid())]))),
    ]
)


def every_type_rows() -> pa.Table:
    identity = bytes(range(16))
    nanos = 1_700_000_000_123_456_789
    full = [
        1, 1, identity, b"abcd", b"\x00\xff", 1_700_000_000_123_456, nanos, nanos, 86_399_999_999,
        19_000, None, [{"k": "x", "at": nanos}, None], [("a", {"u": identity}), ("b", None)],
    ]  # fmt: skip
    columns = []
    for field, value in zip(EVERY_TYPE, full, strict=True):
        if field.name == "wide":
            storage = pa.array(["1234567890123456789012345678.0123456789", None, "-1"])
            columns.append(storage.cast(field.type))
            continue
        if field.name == "u":
            raw = pa.array([value, None, value], pa.binary(16))
            columns.append(pa.ExtensionArray.from_storage(pa.uuid(), raw))
            continue
        if field.name == "names":
            items = pa.StructArray.from_arrays(
                [
                    pa.ExtensionArray.from_storage(
                        pa.uuid(), pa.array([identity, None], pa.binary(16))
                    )
                ],
                names=["u"],
            )
            columns.append(
                pa.MapArray.from_arrays(
                    pa.array([0, 2, 2, 2], pa.int32()), pa.array(["a", "b"]), items
                )
            )
            continue
        values = [value, None, value] if field.name != "id" else [1, 2, 3]
        columns.append(pa.array(values, field.type))
    return pa.Table.from_arrays(columns, schema=EVERY_TYPE)


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_values_of_every_type_survive(spark, tmp_path, mode) -> None:
    catalog = open_catalog("local", warehouse=str(tmp_path))
    table = catalog.create_table("shop.types", EVERY_TYPE, primary_key=["id"])
    table.append(every_type_rows())
    before = table.scan().to_arrow().sort_by("id")
    table.update({"n": "abs(id) * 10"}, "abs(id) <> 9", spark=spark, mode=mode)
    table.delete("abs(id) = 3", spark=spark, mode=mode)
    source = table.scan(columns=["id", "n"]).to_arrow()
    clauses = [
        "WHEN MATCHED AND s.id = 1 THEN UPDATE SET n = s.n + 1",
        "WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)",
    ]
    table.merge(source, "t.id = s.id", clauses, spark=spark, mode=mode)
    after = table.scan().to_arrow().sort_by("id")
    assert after.column("n").to_pylist() == [11, 20]
    assert after.drop_columns("n").equals(before.drop_columns("n").slice(0, 2))


DEFAULTS = {
    "u": (iceberg.UUIDType(), UUID(int=5)),
    "first": (iceberg.DateType(), dt.date(1, 1, 1)),
    "clock": (iceberg.TimeType(), dt.time(1, 2, 3, 5)),
    "local": (iceberg.TimestampType(), "0001-01-01T00:00:00"),
    "zoned": (iceberg.TimestamptzType(), "2024-03-31T02:30:00.000001+00:00"),
    "nanos": (iceberg.TimestampNanoType(), "1969-12-31T23:59:59.999999999"),
    "fixed": (iceberg.FixedType(3), b"a\x00\xff"),
    "raw": (iceberg.BinaryType(), b"\x00\xff"),
    "f": (iceberg.FloatType(), 0.1),
    "wide": (iceberg.DecimalType(38, 10), Decimal("1234567890123456789012345678.0123456789")),
    "text": (iceberg.StringType(), "it's \\ \U0001f600"),
}


def test_defaults_of_every_type_are_inserted_and_assigned(spark, catalog) -> None:
    table = catalog.load_table("shop.orders")
    for name, (kind, value) in DEFAULTS.items():
        table.update_schema(lambda s, n=name, k=kind, v=value: s.add_column(n, k, default_value=v))
    before = table.scan(columns=list(DEFAULTS)).to_arrow().slice(0, 1)
    names = ", ".join(f"{name} = NULL" for name in DEFAULTS)
    catalog.sql(f"UPDATE shop.orders SET {names} WHERE id = 1")
    defaults = ", ".join(f"{name} = DEFAULT" for name in DEFAULTS)
    text = (
        "MERGE INTO shop.orders t USING (SELECT explode(sequence(1L, 9L)) AS id) s ON t.id = s.id "
        f"WHEN MATCHED AND t.id = 1 THEN UPDATE SET {defaults} "
        "WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)"
    )
    result = catalog.sql(text, spark=spark)
    assert (result.updated_rows, result.inserted_rows) == (1, 4)
    after = table.refresh().scan(columns=list(DEFAULTS)).to_arrow()
    assert after.num_rows == 10
    assert all(after.slice(at, 1).equals(before) for at in range(10))
