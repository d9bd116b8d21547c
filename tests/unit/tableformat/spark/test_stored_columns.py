"""Stored computed columns written by Spark, in every way; the oracle is Spark's own SQL."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from resolver import resolve
from tableformat import InvalidInputError, open_catalog
from tableformat.spark import register

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("price", pa.float64())])
TOTAL, TWICE = "price * 2.5 + price", "n * 2 - 7"


def arrow(ids):
    ids = list(ids)
    return pa.table({"id": ids, "n": ids, "price": [i / 3 for i in ids]}, schema=SCHEMA)


@pytest.fixture
def table(spark, tmp_path):
    register(spark)
    catalog = open_catalog("local", warehouse=str(tmp_path / "warehouse"))
    made = catalog.create_table("shop.orders", SCHEMA, primary_key=["id"])
    made.add_computed_column("total", TOTAL, "double", stored=True)
    made.add_computed_column("twice", TWICE, "int", stored=True)
    made.warehouse = str(tmp_path / "warehouse")
    return made


def options(table):
    return {"table": "shop.orders", "warehouse": table.warehouse}


def check(spark, table, keys):
    """Spark reads the data files' columns, and computes them itself."""
    frame = table.refresh().scan().to_spark(spark)
    rows = frame.select(
        "id", "total", "twice", sf.expr(TOTAL).alias("a"), sf.expr(f"int({TWICE})").alias("b")
    ).collect()
    assert sorted(row.id for row in rows) == sorted(keys)
    assert [(r.total, r.twice) for r in rows] == [(r.a, r.b) for r in rows]


def test_rows_and_changes_of_frames(spark, table):
    rows = spark.createDataFrame(arrow(range(6)))
    rows.write.format("icefold").options(**options(table)).mode("append").save()
    check(spark, table, range(6))
    wrong = rows.limit(1).withColumn("twice", sf.lit(1000))
    with pytest.raises(PySparkException, match="another value than its expression"):
        wrong.write.format("icefold").options(**options(table)).mode("append").save()
    changes = spark.createDataFrame(arrow([4, 9])).withColumn("n", sf.lit(50))
    table.write_changes(changes)
    part = spark.createDataFrame(pa.table({"id": [1, 2], "n": pa.array([70, 80], pa.int32())}))
    table.write_changes(part, options={"columns": "partial"})
    resolve(table, engine="spark")
    check(spark, table, [*range(6), 9])
    assert table.scan(filter="id = 1").to_arrow()["twice"].to_pylist() == [133]
    events = rows.where("id = 5").withColumn("price", sf.lit(8.0))
    options_ = options(table) | {"format": "upsert"}
    events.write.format("icefold").options(**options_).mode("append").save()
    resolve(table)
    check(spark, table, [*range(6), 9])


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
def test_statements(spark, table, mode):
    table.append(arrow(range(6)))
    table.update({"n": "int(pow(n, 2))"}, "id % 2 = 1", spark=spark, mode=mode)
    check(spark, table, range(6))
    source = arrow([5, 6]).set_column(1, "n", pa.array([100, 200], pa.int32()))
    table.merge(source, "t.id = s.id", spark=spark, mode=mode)
    check(spark, table, range(7))
    stale = source.append_column("total", pa.array([0.0, 0.0]))
    table.merge(stale, "t.id = s.id", spark=spark, mode=mode)
    check(spark, table, range(7))
    clauses = [
        "WHEN MATCHED THEN UPDATE SET price = s.price + 1, twice = DEFAULT",
        "WHEN NOT MATCHED THEN INSERT (id, price) VALUES (s.id, s.price)",
    ]
    table.merge(arrow([0, 8]), "t.id = s.id", clauses, spark=spark, mode=mode)
    check(spark, table, [*range(7), 8])
    for clause in (
        "WHEN MATCHED THEN UPDATE SET twice = s.n",
        "WHEN NOT MATCHED THEN INSERT (id, twice) VALUES (s.id, s.n)",
    ):
        with pytest.raises(InvalidInputError, match="computed column cannot be assigned"):
            table.merge(arrow([0]), "t.id = s.id", [clause], spark=spark)
    table.delete("pow(id, 2) = 4", spark=spark, mode=mode)
    check(spark, table, [0, 1, 3, 4, 5, 6, 8])
