"""Compaction on Spark's workers: the same as in this process."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pytest

import tableformat as tf
from maintenance.tasks.compact import compact
from maintenance.tasks.options import CompactOptions
from resolver import resolve
from tableformat.errors import UnsupportedError
from tests.support.lying_lock import GrantAllLock
from tests.support.memory_tables import memory_catalog
from tests.support.table_checker import check_table

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("amount", pa.decimal128(9, 2))])
LINEAGE = ["_row_id", "_last_updated_sequence_number"]


def rows(first, count, region):
    return pa.table(
        {
            "id": pa.array(range(first, first + count), pa.int64()),
            "region": [region] * count,
            "amount": pa.array([str(n % 7) for n in range(count)]).cast(SCHEMA.field(2).type),
        }
    )


def fill(catalog, properties=None):
    table = catalog.create_table(
        "t.rows", SCHEMA, primary_key=["id"], partition_by=["region"], properties=properties or {}
    )
    for step in range(6):
        table.append(rows(step * 50, 50, "eu" if step % 2 else "us"))
    table.stage(deletes=pa.table({"id": pa.array([7, 60, 61, 200], pa.int64())}))
    resolve(table)
    return table


def identified(table):
    lineage = LINEAGE if table.state.metadata.format_version > 2 else []
    found = table.scan(columns=[*SCHEMA.names, *lineage]).to_arrow().to_pylist()
    return Counter(tuple(row.values()) for row in found)


@pytest.mark.parametrize(
    ("strategy", "properties"),
    [
        ("bin-pack", {}),
        ("z-order", {}),
        ("bin-pack", {"format-version": "2"}),
        ("bin-pack", {"format-version": "2", "write.delete.granularity": "file"}),
    ],
    ids=["bin-pack", "z-order", "v2-partition", "v2-file"],
)
def test_groups_on_spark_keep_rows_and_survive_deletes_beside(
    tmp_path, spark, strategy, properties
):
    catalog = tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"))
    table = fill(catalog, properties)
    other = catalog.load_table("t.rows")
    points = table.environment.runtime.fail_points.armed

    def delete_beside(_name):
        points.clear()
        other.stage(deletes=pa.table({"id": pa.array([1, 99, 299], pa.int64())}))
        resolve(other)

    points["compact.after_write"] = delete_beside
    columns = () if strategy == "bin-pack" else ("amount", "id")
    options = CompactOptions(rewrite_all=True, strategy=strategy, sort_by=columns)
    report = compact(table, options, spark=spark, lock=GrantAllLock())
    assert report.engine == "spark"
    assert report.errors == ()
    assert report.committed_groups == 2
    assert report.rebased_rows == 3
    assert identified(table) == identified(other)
    assert sum(identified(table).values()) == 293
    check_table(table.environment.store.get, table.metadata_location)


def test_spark_is_used_unasked_only_for_much_work(tmp_path, spark):
    table = fill(tf.open_catalog("local", warehouse=str(tmp_path / "warehouse")))
    assert spark is not None
    assert compact(table, CompactOptions(rewrite_all=True), dry_run=True).engine == "arrow"
    options = CompactOptions(rewrite_all=True, spark_bytes_min=1)
    assert compact(table, options, dry_run=True).engine == "spark"


def test_file_that_is_gone_fails_its_group_only(tmp_path, spark):
    table = fill(tf.open_catalog("local", warehouse=str(tmp_path / "warehouse")))
    files = [task.entry.data_file for task in table.scan("region = 'eu'").plan.tasks]
    table.environment.store.delete([files[0].file_path])
    report = compact(table, CompactOptions(rewrite_all=True), spark=spark)
    assert (report.committed_groups, report.failed_groups) == (1, 1)
    [error] = report.errors
    assert files[0].file_path.removeprefix("file://") in error
    assert "\n" not in error


def test_store_of_this_process_alone_is_refused_on_spark(tmp_path, spark):
    catalog = memory_catalog(str(tmp_path))
    table = catalog.create_table("t.rows", SCHEMA, primary_key=["id"])
    table.append(rows(0, 5, "eu"))
    with pytest.raises(UnsupportedError, match="compact without Spark"):
        compact(table, CompactOptions(rewrite_all=True), spark=spark)
