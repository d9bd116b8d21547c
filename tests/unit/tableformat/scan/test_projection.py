from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import DateType, DecimalType, LongType, NestedField, StringType, UUIDType

from tableformat.codec.parquet.reader import rows_of_batch
from tableformat.errors import InvalidInputError
from tableformat.scan.metadata_columns import METADATA_COLUMNS
from tableformat.scan.plan import plan_scan
from tableformat.scan.reader import read_scan, scan_schema, to_table
from tests.support.random_tables import KEYED, SPECS, random_table, rows
from tests.support.scan_cases import parquet_file, with_ids
from tests.support.scan_tables import HandMadeTable, write_parquet

ROW_ID, LAST_UPDATED = "_row_id", "_last_updated_sequence_number"


def read(table: HandMadeTable, *columns: str, row_filter: str | None = None) -> list[tuple]:
    plan = plan_scan(table.environment(), table.state(), row_filter=row_filter)
    result = to_table(table.environment(), plan, columns=columns)
    assert result.schema.names == list(columns)
    return [tuple(row.values()) for row in result.to_pylist()]


@pytest.fixture
def table() -> HandMadeTable:
    made = HandMadeTable(KEYED, list(SPECS))
    made.commit()
    made.add(rows((1, "a", 10), (2, "b", 20), (3, None, 30)))
    return made


def test_columns_come_in_the_order_asked_for(table) -> None:
    assert read(table, "amount", "_pos", "id") == [(10, 0, 1), (20, 1, 2), (30, 2, 3)]


def test_column_of_the_filter_need_not_be_asked_for(table) -> None:
    assert read(table, "region", row_filter="amount >= 20 and id < 3") == [("b",)]


@pytest.mark.parametrize("columns", [["nope"], ["id", "id"], []])
def test_impossible_projection_is_refused_before_reading(table, columns) -> None:
    plan = plan_scan(table.environment(), table.state())
    with pytest.raises(InvalidInputError):
        read_scan(table.environment(), plan, columns=columns)


def test_every_metadata_column_is_offered(table) -> None:
    plan = plan_scan(table.environment(), table.state())
    assert scan_schema(plan, columns=sorted(METADATA_COLUMNS)).names == sorted(METADATA_COLUMNS)


def test_positions_are_those_of_the_file_whatever_is_left_out(table) -> None:
    [entry] = table.data
    table.commit()
    table.delete_vector(entry, [0])
    path = entry.data_file.file_path
    assert read(table, "_file", "_pos", row_filter="id != 2") == [(path, 2)]


def test_positions_and_deletes_are_right_behind_skipped_row_groups() -> None:
    table = HandMadeTable(KEYED)
    table.commit()
    location = f"{table.location}/data/groups.parquet"
    stored = rows(*((number, "a", number % 7) for number in range(30)))
    ids = {"id": 1, "region": 2, "amount": 3}
    size = write_parquet(table.store, location, with_ids(stored, ids), row_group_size=3)
    entry = table.register(parquet_file(location, size, 30))
    table.commit()
    table.delete_vector(entry, [0, 9, 13, 29])
    table.delete_keys(rows((10, "a", 0)), [1])
    wanted = [9, 10, 11, 12, 13, 14, 27, 28, 29]
    text = f"id in ({', '.join(map(str, wanted))})"
    live = [number for number in wanted if number not in (9, 10, 13, 29)]
    assert read(table, "id", "_pos", "_row_id", row_filter=text) == [(n, n, n) for n in live]


def test_stored_lineage_wins_over_inherited(table) -> None:
    """Rows moved by a rewrite keep their ids; an updated row keeps its id only."""
    table.commit()
    moved = rows((1, "a", 10), (2, "b", 21), (9, None, 90))
    moved = moved.append_column(ROW_ID, pa.array([0, 1, None]))
    moved = moved.append_column(LAST_UPDATED, pa.array([1, None, None]))
    table.data.clear()
    [entry] = table.add(moved)
    first = entry.data_file.first_row_id
    assert read(table, "id", ROW_ID, LAST_UPDATED) == [(1, 0, 1), (2, 1, 2), (9, first + 2, 2)]


def test_file_from_before_lineage_has_none() -> None:
    table = HandMadeTable(KEYED)
    table.commit()
    [entry] = table.add(rows((1, "a", 1)))
    plan = plan_scan(table.environment(), table.state())
    old = entry.data_file.with_(first_row_id=None)
    task = replace(plan.tasks[0], entry=replace(entry, data_file=old))
    plan = replace(plan, tasks=(task,))
    result = to_table(table.environment(), plan, columns=[ROW_ID, LAST_UPDATED])
    assert result.to_pylist() == [{ROW_ID: None, LAST_UPDATED: None}]


def test_partition_has_the_fields_of_every_spec() -> None:
    schema = Schema(
        NestedField(1, "id", LongType(), required=False),
        NestedField(2, "u", UUIDType(), required=False),
        NestedField(3, "d", DecimalType(9, 2), required=False),
        NestedField(4, "day", DateType(), required=False),
    )
    specs = [
        PartitionSpec(spec_id=0),
        PartitionSpec(
            PartitionField(1, 1000, BucketTransform(4), "b"),
            PartitionField(2, 1001, IdentityTransform(), "u"),
            spec_id=1,
        ),
        PartitionSpec(
            PartitionField(1, 1000, BucketTransform(4), "b"),
            PartitionField(3, 1002, IdentityTransform(), "d"),
            PartitionField(4, 1003, DayTransform(), "day"),
            spec_id=2,
        ),
    ]
    table = HandMadeTable(schema, specs)
    stored = pa.table(
        {
            "id": pa.array([34]),
            "u": pa.array([UUID(int=5).bytes], pa.uuid()),
            "d": pa.array([Decimal("1.50")], pa.decimal128(9, 2)),
            "day": pa.array([date(2020, 1, 2)]),
        }
    )
    for spec_id in (0, 1, 2):
        table.commit()
        table.add(stored, spec_id)
    nothing = {"b": None, "u": None, "d": None, "day": None}
    assert read(table, "_spec_id", "_partition") == [
        (0, nothing),
        (1, {**nothing, "b": 3, "u": UUID(int=5)}),
        (2, {**nothing, "b": 3, "d": Decimal("1.50"), "day": date(2020, 1, 2)}),
    ]


def test_partition_of_a_table_without_partitions_is_an_empty_struct() -> None:
    table = HandMadeTable(KEYED)
    table.commit()
    table.add(rows((1, "a", 1), (2, "b", 2)))
    assert read(table, "_partition") == [({},), ({},)]


def test_column_of_the_table_hides_a_metadata_column() -> None:
    schema = Schema(
        NestedField(1, "_pos", StringType(), required=False),
        NestedField(2, "_row_id", StringType(), required=False),
    )
    table = HandMadeTable(schema)
    table.commit()
    [entry] = table.add(pa.table({"_pos": ["x", "y"], "_row_id": ["p", "q"]}))
    table.commit()
    table.delete_vector(entry, [0])
    assert read(table, "_row_id", "_pos", "_spec_id", row_filter="_pos > 'a'") == [("q", "y", 0)]


def test_batches_are_bounded_in_rows_and_bytes(table) -> None:
    plan = plan_scan(table.environment(), table.state())
    sizes = [b.num_rows for b in read_scan(table.environment(), plan, batch_rows=2)]
    assert sizes == [2, 1]
    file = table.data[0].data_file
    assert rows_of_batch(file.with_(file_size_in_bytes=10**6, record_count=10**6)) == 1 << 16
    assert rows_of_batch(file.with_(file_size_in_bytes=10**9, record_count=1000)) == 16
    assert rows_of_batch(file.with_(file_size_in_bytes=10**12, record_count=10)) == 1
    assert rows_of_batch(file.with_(record_count=0)) > 0


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_order_does_not_depend_on_threads(threads: int) -> None:
    made = random_table(11)
    plan = plan_scan(made.environment(), made.state())
    columns = ["_file", "_pos"]
    batches = read_scan(made.environment(), plan, columns=columns, batch_rows=3, threads=threads)
    found = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    in_order = [task.entry.data_file.file_path for task in plan.tasks]
    assert found == sorted(found, key=lambda row: (in_order.index(row[0]), row[1]))
    assert len(found) == len(made.live_rows())
