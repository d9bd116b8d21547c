"""What Java's readers and icefold cannot do with each other's tables, as docs/engines.md says."""

from __future__ import annotations

from datetime import datetime

import pyarrow as pa
import pytest

import tableformat as tf
from tests.support.backlog_tables import Backlog
from tests.support.interop_java_tables import SharedTable
from tests.support.java_iceberg import JavaIcebergError

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.slow]

VALIDATION = """
from pyspark.sql import SparkSession

session = SparkSession.getActiveSession()
iceberg = session._jvm.org.apache.iceberg
table = iceberg.spark.Spark3Util.loadIcebergTable(session._jsparkSession, "{table}")
delta = table.newRowDelta().validateFromSnapshot({snapshot_id})
delta = delta.conflictDetectionFilter(iceberg.expressions.Expressions.equal("id", {key}))
delta.validateNoConflictingDeleteFiles().commit()
rows = []
"""

STREAM = """
import tempfile
from pyspark.sql import SparkSession

session = SparkSession.getActiveSession()
source = session.readStream.format("iceberg").options(**{options}).load("{table}")
sink = source.writeStream.format("memory").queryName("{query}")
sink = sink.option("checkpointLocation", tempfile.mkdtemp()).trigger(availableNow=True)
sink.start().awaitTermination(120)
rows = sorted(row.id for row in session.sql("SELECT id FROM {query}").collect())
"""


def streamed(shared: SharedTable, query: str, **options: str) -> list[int]:
    """Keys of the rows that Java's streaming reader gives."""
    named = {key.replace("_", "-"): text for key, text in options.items()}
    code = STREAM.format(options=named, table=shared.java_name, query=query)
    found: list[int] = shared.java.request("run", code=code)
    return found


def test_java_sees_by_bounds_of_the_key_that_a_publish_does_not_concern_it(shared) -> None:
    """What an UPDATE checks that read before the publish and commits after it."""
    made = Backlog.create(shared)
    made.resolve()
    made.stage(deletes=[5])  # in the file of the keys 0 to 9
    before = made.head("main")
    made.resolve()

    def commit_beside(key: int) -> None:
        code = VALIDATION.format(table=shared.java_name, snapshot_id=f"{before}", key=key)
        shared.java.request("run", code=code)

    with pytest.raises(JavaIcebergError, match="Found new conflicting delete files"):
        commit_beside(7)
    commit_beside(15)


def test_java_refuses_a_changelog_over_vectors(shared) -> None:
    Backlog.create(shared)
    with pytest.raises(JavaIcebergError, match="Delete files are currently not supported"):
        shared.query("SELECT id FROM T.changes")
    shared.call("create_changelog_view", changelog_view="'changes_of_t'")
    with pytest.raises(JavaIcebergError, match="Delete files are currently not supported"):
        shared.java.query("SELECT id FROM changes_of_t")


def test_an_incremental_append_read_over_a_publish_is_empty(shared) -> None:
    made = Backlog.create(shared)
    before = made.head("main")
    made.resolve()
    found = shared.java.read(
        made.table.metadata_location,
        start_snapshot_id=str(before),
        end_snapshot_id=str(made.head("main")),
    )
    assert found.num_rows == 0


def test_a_stream_that_skips_overwrites_misses_every_upsert(shared) -> None:
    made = Backlog.create(shared)
    made.resolve()
    with pytest.raises(JavaIcebergError, match="Cannot process overwrite snapshot"):
        streamed(shared, "plain")
    found = streamed(shared, "skipping", streaming_skip_overwrite_snapshots="true")
    assert found == list(range(20))  # the two appends; not the rows that were published since


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.time64("us"), 1),
        (pa.timestamp("ns"), datetime(2024, 1, 1)),
        (pa.timestamp("ns", tz="UTC"), datetime(2024, 1, 1)),
    ],
)
def test_java_on_spark_opens_no_table_with_such_a_column(shared, kind, value) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), False), pa.field("c", kind)])
    table = shared.catalog.create_table(shared.name, schema, primary_key=["id"])
    table.append(pa.table([[1], pa.array([value], kind)], schema=schema))
    with pytest.raises(JavaIcebergError, match=r"(?i)support"):
        shared.query("SELECT id FROM T")


def test_a_variant_column_is_refused_by_name_until_its_schema_is_gone(shared) -> None:
    shared.sql(
        "CREATE TABLE T (id bigint NOT NULL, body variant) USING iceberg "
        "TBLPROPERTIES ('format-version'='3')"
    )
    shared.sql("""INSERT INTO T SELECT 1, parse_json('{"a": 1}')""")
    with pytest.raises(tf.UnsupportedError, match=r"has a column of type variant.*column=body"):
        shared.load()
    shared.sql("ALTER TABLE T DROP COLUMN body")
    shared.sql("DELETE FROM T")  # a snapshot of the new schema
    with pytest.raises(tf.UnsupportedError, match="clean_expired_metadata"):
        shared.load()
    shared.call(
        "expire_snapshots",
        older_than="TIMESTAMP '2999-01-01'",
        retain_last="1",
        clean_expired_metadata="true",
    )
    assert shared.load().schema().column_names == ["id"]
