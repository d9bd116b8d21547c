from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from pyspark.errors import PythonException, SparkRuntimeException
from pyspark.sql import SparkSession

from tableformat.errors import CorruptDataError, InvalidInputError, NotFoundError, UnsupportedError
from tableformat.scan.plan import plan_scan
from tableformat.scan.projection import project
from tableformat.scan.reader import to_table
from tableformat.spark import arrow_scan, file_lookup, reader
from tableformat.spark.reader import scan_to_spark
from tableformat.spark.types import to_spark_batch
from tableformat.store.arrow_store import ArrowObjectStore
from tableformat.store.locations import AllowedLocations
from tests.support.random_tables import KEYED, SPECS, random_table, rows
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
    frame = scan_to_spark(table.environment(), plan, spark, columns=columns)
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
def test_evolved_table_reads_as_with_arrow(spark, new_table, monkeypatch, build) -> None:
    case = build(new_table)
    if not case.needs_arrow:
        monkeypatch.setattr(reader, "arrow_scan", _refuse_tasks_of(case))
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
    frame = scan_to_spark(case.table.environment(), plan, spark)
    for row_filter, expected in case.filters.items():
        found = [tuple(row.values()) for row in frame.where(row_filter).toArrow().to_pylist()]
        assert comparable(found) == comparable(expected), row_filter
    for name in [f.name for f in plan.schema.fields if f.field_type.is_struct]:
        inner = [row[0] for row in frame.select(f"{name}.x").collect()]
        whole = [row[name] for row in frame.collect()]
        assert inner == [value and value.x for value in whole]
        assert any(inner)


def test_filter_put_on_the_frame_reaches_the_parquet_scan(spark, new_table) -> None:
    table = new_table(KEYED)
    table.commit()
    [entry] = table.add(rows((1, "a", 1), (2, "b", 2)))
    table.delete_vector(entry, [0])
    plan = plan_scan(table.environment(), table.state())
    frame = scan_to_spark(table.environment(), plan, spark).where("amount > 1").select("id")
    text = frame._jdf.queryExecution().executedPlan().toString()
    assert "GreaterThan(amount,1)" in text
    assert "region" not in text.split("ReadSchema")[1].split(">")[0]
    assert [row.id for row in frame.collect()] == [2]


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


def test_deleted_rows_come_from_sparks_own_scan(spark, new_table, monkeypatch) -> None:
    table = new_table(KEYED)
    table.commit()
    [entry] = table.add(rows((1, "a", 1), (2, "b", 2)))
    table.delete_vector(entry, [0])
    monkeypatch.setattr(reader, "arrow_scan", None)
    assert from_spark(table, spark, ["id", "_deleted"]) == comparable([(1, True), (2, False)])


def test_frame_gives_the_same_rows_twice(spark, new_table) -> None:
    table = random_table(3, new_table)
    plan = plan_scan(table.environment(), table.state())
    frame = scan_to_spark(table.environment(), plan, spark)
    assert frame.count() == frame.count() == len(table.live_rows())


def test_scan_of_an_empty_table_has_its_columns(spark, new_table) -> None:
    table = new_table(KEYED)
    table.commit()
    table.add(rows((1, "a", 1)))
    plan = plan_scan(table.environment(), table.state(), row_filter="id > 5")
    frame = scan_to_spark(table.environment(), plan, spark, columns=["amount", "_file"])
    assert frame.columns == ["amount", "_file"]
    assert frame.count() == 0


def test_many_files_of_one_size_and_name_are_told_apart(spark, new_table, monkeypatch) -> None:
    """Neither the size nor the name is unique, and words of deleted rows do not fit one scan."""
    monkeypatch.setattr(file_lookup, "WORDS_MAX", 2)
    table = new_table(KEYED, [SPECS[1]])
    table.specs[0] = SPECS[1].model_copy(update={"spec_id": 0})
    for at in range(4):
        table.commit()
        for region in "ab":
            table.files_made = at  # the same names in both partitions' folders
            [entry] = table.add(rows((1, region, 1), (2, region, 2), (3, region, 3)))
            table.files_made = 1000 * at + ord(region)
            table.delete_vector(entry, [at % 3])
    assert from_spark(table, spark, METADATA) == from_arrow(table, METADATA)


def test_file_of_another_size_than_its_entry_is_refused(spark, new_table, monkeypatch) -> None:
    table = new_table(KEYED)
    table.commit()
    for at in range(3):
        [entry] = table.add(rows(*((i, "a" * at, i) for i in range(5 * at + 5))))
        table.delete_vector(entry, [0])
    target = table.data[1]
    file = target.data_file.with_(file_size_in_bytes=target.data_file.file_size_in_bytes + 1)
    table.data[1] = type(target)(
        status=target.status,
        snapshot_id=target.snapshot_id,
        sequence_number=target.sequence_number,
        file_sequence_number=target.file_sequence_number,
        data_file=file,
    )
    plan = plan_scan(table.environment(), table.state())
    with pytest.raises(CorruptDataError, match="size differs"):
        scan_to_spark(table.environment(), plan, spark)
    monkeypatch.setattr(reader, "check_files", lambda *_: None)
    frame = scan_to_spark(table.environment(), plan, spark)
    with pytest.raises(SparkRuntimeException, match="not as its manifest entry says"):
        frame.collect()


def test_file_outside_the_allowed_places_is_not_handed_to_spark(spark, new_table, tmp_path) -> None:
    table = new_table(KEYED)
    table.commit()
    [entry] = table.add(rows((1, "a", 1)))
    outside = tmp_path.parent / "outside.parquet"
    outside.write_bytes(table.store.get(entry.data_file.file_path))
    table.register(entry.data_file.with_(file_path=outside.as_uri(), first_row_id=None), [{}])
    plan = plan_scan(table.environment(), table.state())
    with pytest.raises(InvalidInputError, match="outside the allowed prefixes"):
        scan_to_spark(table.environment(), plan, spark)


def test_missing_data_file_is_named(spark, new_table) -> None:
    table = new_table(KEYED)
    table.commit()
    [entry] = table.add(rows((1, "a", 1)))
    plan = plan_scan(table.environment(), table.state())
    table.store.delete([entry.data_file.file_path])
    with pytest.raises(NotFoundError, match=entry.data_file.file_path.rsplit("/", 1)[-1]):
        scan_to_spark(table.environment(), plan, spark)


def test_file_that_spark_would_hide_is_read(spark, new_table) -> None:
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
    frame = scan_to_spark(case.table.environment(), plan, spark)
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
        scan_to_spark(table.environment(), plan, spark)


def test_unknown_column_is_refused(spark, new_table) -> None:
    table = new_table(KEYED)
    table.commit()
    plan = plan_scan(table.environment(), table.state())
    with pytest.raises(InvalidInputError, match="nope"):
        scan_to_spark(table.environment(), plan, spark, columns=["nope"])


def test_too_many_deleted_rows_for_the_driver_are_left_to_the_workers(
    spark, new_table, monkeypatch
) -> None:
    table = random_table(5, new_table)
    calls = []

    def counted(*args):
        calls.append(args)
        return arrow_scan.arrow_scan(*args)

    monkeypatch.setattr(reader, "WORDS_TOTAL_MAX", 2)
    monkeypatch.setattr(reader, "arrow_scan", counted)
    assert from_spark(table, spark, METADATA) == from_arrow(table, METADATA)
    assert calls


def test_keys_that_are_not_broadcast_are_joined_the_same(spark, new_table, monkeypatch) -> None:
    monkeypatch.setattr("tableformat.spark.equality_join.BROADCAST_KEYS_MAX", 0)
    table = random_table(8, new_table)
    assert from_spark(table, spark) == from_arrow(table)


def _refuse_tasks_of(case):
    """Fail when tasks that Spark's own reader can serve are given to the workers."""

    def check(spark, store, plan, projection, tasks):
        names = [task.entry.data_file.file_path.rsplit("/", 1)[-1] for task in tasks]
        assert set(names) <= {"hive-0.parquet", "plain.parquet"}, case
        return arrow_scan.arrow_scan(spark, store, plan, projection, tasks)

    return check
