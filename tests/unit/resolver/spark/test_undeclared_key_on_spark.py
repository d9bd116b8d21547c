"""A key that only icefold knows, on Spark: executors see it as the driver does."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

import tableformat as tf
from resolver import resolve
from tableformat.errors import UnsupportedError
from tableformat.spark.enrich import enrich
from tests.support.adopted_tables import NAME, ROWS, Theirs
from tests.support.change_events import envelope

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("version", [2, 3])
def test_stream_merge_and_join_on_spark_know_the_undeclared_key(spark, tmp_path, version):
    theirs = Theirs(tmp_path, version=version)
    theirs.table = theirs.open(**{f"key.{NAME}": "id"})
    facts = theirs.facts()
    gone = envelope("d", before={"id": 1, "status": "new", "n": 1, "x": None})
    paid = envelope("u", after={"id": 2, "status": "paid", "n": 2, "x": None})
    frame = spark.createDataFrame([(gone,), (paid,)], "value string")
    theirs.table.write_changes(frame, format_name="debezium-json")
    assert resolve(theirs.table, engine="spark", spark=spark).deleted_rows == 2
    source = pa.table({"id": [3, 40], "status": ["merged"] * 2, "n": [3, 40]})
    spark.createDataFrame(source.to_pylist()).createOrReplaceTempView("undeclared_source")
    merge = (
        f"MERGE INTO {NAME} t USING undeclared_source s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET status = s.status, n = s.n "
        "WHEN NOT MATCHED THEN INSERT (id, status, n) VALUES (s.id, s.status, s.n)"
    )
    if version == 2:
        with pytest.raises(UnsupportedError, match="need v3"):
            tf.TableCatalog(theirs.table.environment).sql(merge, spark=spark)
        theirs.write([(3, "merged", 3), (40, "merged", 40)], pa.table({"id": [3, 40]}))
        report = resolve(theirs.table, staging="main", target="main", engine="spark", spark=spark)
        assert (report.engine, report.deleted_rows) == ("spark", 1)
    else:
        tf.TableCatalog(theirs.table.environment).sql(merge, spark=spark)
    kept = [row for row in ROWS if row[0] not in (1, 2, 3)]
    rows = Counter([*kept, (2, "paid", 2), (3, "merged", 3), (40, "merged", 40)])
    assert theirs.rows() == rows
    asked = spark.createDataFrame([(1,), (2,), (40,)], "id long")
    joined = enrich(asked, theirs.table, on="id", columns=["status"])
    assert sorted(map(tuple, joined.collect())) == [(1, None), (2, "paid"), (40, "merged")]
    assert theirs.facts() == facts
