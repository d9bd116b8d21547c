"""Work on Spark: results, errors, and cycles that equal those of this process."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.types import LongType

import tableformat as tf
from resolver import resolve
from resolver.index_check import verify
from resolver.spark_runner import SparkRunner, is_cluster
from tableformat.errors import (
    CorruptDataError,
    InvalidInputError,
    StoreUnavailableError,
    UnsupportedError,
)
from tests.support.memory_tables import memory_catalog

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string())])


FORMATS = {
    "v3": {},
    "v2-partition": {"format-version": "2"},
    "v2-file": {"format-version": "2", "write.delete.granularity": "file"},
}
every_format = pytest.mark.parametrize("table", FORMATS, indirect=True)


@pytest.fixture
def table(tmp_path, monkeypatch, request):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    catalog = tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"))
    properties = FORMATS[getattr(request, "param", "v3")]
    table = catalog.create_table("t.rows", SCHEMA, primary_key=["id"], properties=properties)
    for start in range(0, 300, 100):
        table.append(rows(range(start, start + 100), "old"))
    return table


@pytest.fixture
def runner(spark, table):
    return SparkRunner(spark, table.environment.store)


def rows(ids, note):
    ids = list(ids)
    return pa.table({"id": ids, "note": [note] * len(ids)}, schema=SCHEMA)


def content(table):
    found = table.refresh().scan().to_arrow().to_pydict()
    return dict(zip(found["id"], found["note"], strict=True))


def fail(error, item):
    if item == 3:
        raise error
    return item


def split(item):
    yield item % 3, item
    yield (item + 1) % 3, -item


def merge(shard, parts):
    return shard, sorted(parts)


def test_results_are_in_the_order_of_the_items(runner):
    assert runner.run(abs, range(0, -20, -1)) == list(range(20))
    assert runner.run(abs, []) == []


def test_error_of_a_task_keeps_its_class_and_context(runner):
    error = CorruptDataError("the file is cut", location="s3://b/x.parquet")
    with pytest.raises(CorruptDataError, match="the file is cut") as caught:
        runner.run(partial(fail, error), range(5))
    assert caught.value.context == {"location": "s3://b/x.parquet"}
    with pytest.raises(CorruptDataError, match="the file is cut"):
        runner.shuffle(partial(fail_split, error), range(5), merge, 3)


def fail_split(error, item):
    yield 0, fail(error, item)


def test_trouble_that_stays_is_unavailable_and_one_line(runner):
    with pytest.raises(StoreUnavailableError, match="disk is full") as caught:
        runner.run(partial(fail, StoreUnavailableError("disk is full")), range(5))
    assert "\n" not in str(caught.value)


def test_shuffle_brings_the_parts_of_a_shard_together(runner):
    found = runner.shuffle(split, range(6), merge, 4, more=[(2, 100)])
    assert found == [
        (0, [-5, -2, 0, 3]),
        (1, [-3, 0, 1, 4]),
        (2, [-4, -1, 2, 5, 100]),
        (3, []),
    ]


def test_a_local_session_is_no_cluster(spark):
    assert not is_cluster(spark)


@every_format
def test_cycle_on_spark_uses_the_local_index_of_one_machine(spark, table, tmp_path):
    table.stage(upserts=rows([5, 300], "new"), deletes=pa.table({"id": [7]}))
    report = resolve(table, engine="spark", spark=spark)
    assert (report.engine, report.deleted_rows) == ("spark", 2)
    expected = dict.fromkeys(range(300), "old") | {5: "new", 300: "new"}
    del expected[7]
    assert content(table) == expected
    assert (tmp_path / "warehouse" / ".icefold" / "index").exists()
    assert verify(table).report.is_sound


def test_auto_takes_the_active_session_from_the_threshold_on(spark, table):
    table.set_properties({"icefold.resolve.spark-rows-min": "6"})
    table.stage(upserts=rows([1, 2], "few"))
    assert resolve(table).engine == "local"
    table.stage(upserts=rows([1, 2, 3], "more"))
    assert resolve(table, spark=spark).engine == "spark"


def test_damaged_staged_file_stops_the_cycle_with_its_name(spark, table):
    table.stage(upserts=rows([5], "new"))
    deletes = next(
        Path(table.state.metadata.location.removeprefix("file://")).rglob("*eq-deletes.parquet")
    )
    deletes.write_bytes(deletes.read_bytes()[:-20])
    before = table.refresh().state.head("main").snapshot_id
    with pytest.raises(CorruptDataError, match=deletes.name):
        resolve(table, engine="spark", spark=spark)
    assert table.refresh().state.head("main").snapshot_id == before


@every_format
def test_equality_deletes_on_the_target_itself_are_converted(spark, table):
    location = f"{table.state.metadata.location}-index"
    table.stage(upserts=rows([5, 6], "new"), deletes=pa.table({"id": [7]}))
    table.stage(upserts=rows([5], "newer"))
    report = resolve(
        table, staging="staging", target="staging", engine="spark", spark=spark,
        index_location=location,
    )  # fmt: skip
    assert (report.engine, report.index, report.deleted_rows) == ("spark", "built", 4)
    found = table.refresh().scan(branch="staging").to_arrow().to_pydict()
    expected = dict.fromkeys(range(300), "old") | {5: "newer", 6: "new"}
    del expected[7]
    assert dict(zip(found["id"], found["note"], strict=True)) == expected
    assert len(found["id"]) == len(expected)
    assert verify(table, target="staging", index_location=location).report.is_sound


def test_versions_of_rows_are_compared_on_spark_too(spark, table):
    """The sequence column and enforced IMMUTABLE columns are read by the executors."""
    table.update_schema(lambda s: s.add_column("version", LongType()).add_column("a", LongType()))
    table.set_sequence_column("version").set_immutable_columns(["a"], enforced=True)
    changes = pa.table({"id": [1, 2], "version": [5, 5], "note": ["new", "new"]})
    table.write_changes(changes)
    resolve(table, engine="spark", spark=spark)
    late = pa.table({"id": [1, 2], "version": [4, 6], "note": ["late", "newer"]})
    table.write_changes(late)
    report = resolve(table, engine="spark", spark=spark)
    assert (report.engine, report.outdated_rows) == ("spark", 1)
    assert {key: content(table)[key] for key in (1, 2)} == {1: "new", 2: "newer"}
    table.write_changes(pa.table({"id": [1], "version": [7], "a": [1]}))
    with pytest.raises(InvalidInputError, match=r"column=a, old=\[None\], new=\[1\]"):
        resolve(table, engine="spark", spark=spark)


def test_auto_stays_here_for_a_store_that_executors_cannot_read(spark):
    catalog = memory_catalog()
    table = catalog.create_table("t.rows", SCHEMA, primary_key=["id"])
    table.stage(upserts=rows([1], "new"))
    assert resolve(table).engine == "local"
    with pytest.raises(UnsupportedError, match="executors cannot read"):
        resolve(table, engine="spark", spark=spark)


def test_rows_are_written_once_more_by_tasks_per_partition(spark, table):
    table.set_properties({"icefold.publish": "rewrite"})
    resolve(table)
    columns = ["id", "_row_id"]
    before = {
        r["id"]: r["_row_id"] for r in table.refresh().scan(columns=columns).to_arrow().to_pylist()
    }
    changed = table.scan(limit=3).to_arrow()
    table.stage(upserts=changed)
    table.stage(upserts=changed)
    report = resolve(table, engine="spark", spark=spark)
    assert report.engine == "spark"
    after = table.refresh().scan(columns=columns).to_arrow().to_pylist()
    assert {row["id"]: row["_row_id"] for row in after} == before
    assert len(after) == len(before)
