from __future__ import annotations

import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadataV3
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, SnapshotLogEntry, Summary
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import LongType, NestedField

from tableformat.catalog.base import TableState
from tableformat.errors import CorruptDataError, InvalidInputError, NotFoundError
from tableformat.scan.snapshot_selection import select_snapshot

OLD = Schema(NestedField(1, "a", LongType(), required=False), schema_id=0)
NEW = Schema(NestedField(1, "b", LongType(), required=False), schema_id=1)


def snapshot(snapshot_id: int, parent: int | None, at: int, schema_id: int | None = 0) -> Snapshot:
    return Snapshot(
        snapshot_id=snapshot_id,
        parent_snapshot_id=parent,
        sequence_number=at,
        timestamp_ms=at * 1000,
        manifest_list="x",
        summary=Summary(Operation.APPEND),
        schema_id=schema_id,
        first_row_id=0,
        added_rows=0,
    )


def ref(snapshot_id: int, kind=SnapshotRefType.BRANCH) -> SnapshotRef:
    return SnapshotRef(snapshot_id=snapshot_id, snapshot_ref_type=kind)


def state(**changes) -> TableState:
    """main: 9 <- 5, rolled back once from 7; staging: 9 <- 3. Ids carry no order (P2)."""
    parts = {
        "snapshots": [
            snapshot(9, None, 1),
            snapshot(7, 9, 2),
            snapshot(5, 9, 4, 1),
            snapshot(3, 9, 3),
        ],
        "refs": {"main": ref(5), "staging": ref(3), "release": ref(9, SnapshotRefType.TAG)},
        "snapshot_log": [
            SnapshotLogEntry(snapshot_id=i, timestamp_ms=at * 1000)
            for i, at in [(9, 1), (7, 2), (9, 3), (5, 4)]
        ],
        "current_snapshot_id": 5,
        **changes,
    }
    metadata = TableMetadataV3(
        location="memory://t",
        last_updated_ms=9000,
        last_column_id=1,
        schemas=[OLD, NEW],
        current_schema_id=1,
        partition_specs=[UNPARTITIONED_PARTITION_SPEC],
        default_spec_id=0,
        last_partition_id=999,
        sort_orders=[UNSORTED_SORT_ORDER],
        default_sort_order_id=0,
        last_sequence_number=9,
        next_row_id=0,
        **parts,
    )
    return TableState(("db", "t"), metadata, "memory://t/m.json")


@pytest.mark.parametrize(
    ("arguments", "snapshot_id", "column"),
    [
        ({}, 5, "b"),
        ({"ref": "main"}, 5, "b"),
        ({"ref": "staging"}, 3, "b"),  # a branch is read with the current schema
        ({"ref": "release"}, 9, "a"),  # a tag with its snapshot's
        ({"snapshot_id": 7}, 7, "a"),
        ({"timestamp_ms": 4000}, 5, "b"),
        ({"timestamp_ms": 3999}, 9, "a"),  # rolled back to 9 at 3000
        ({"timestamp_ms": 2500}, 7, "a"),
        ({"timestamp_ms": 1000}, 9, "a"),
        ({"ref": "staging", "timestamp_ms": 3000}, 3, "a"),
        ({"ref": "staging", "timestamp_ms": 2999}, 9, "a"),
    ],
)
def test_arguments_name_a_snapshot_and_its_schema(arguments, snapshot_id, column) -> None:
    selected = select_snapshot(state(), **arguments)
    assert selected.snapshot.snapshot_id == snapshot_id
    assert [field.name for field in selected.schema.fields] == [column]


@pytest.mark.parametrize(
    "arguments",
    [
        {"snapshot_id": 8},
        {"ref": "nope"},
        {"timestamp_ms": 999},
        {"ref": "staging", "timestamp_ms": 999},
    ],
)
def test_snapshot_that_is_not_there_is_reported(arguments) -> None:
    with pytest.raises(NotFoundError):
        select_snapshot(state(), **arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"snapshot_id": 9, "ref": "main"},
        {"snapshot_id": 9, "timestamp_ms": 1},
        {"ref": "release", "timestamp_ms": 5000},
    ],
)
def test_arguments_that_exclude_each_other_are_refused(arguments) -> None:
    with pytest.raises(InvalidInputError):
        select_snapshot(state(), **arguments)


def test_table_without_snapshots_is_empty() -> None:
    empty = state(snapshots=[], refs={}, snapshot_log=[], current_snapshot_id=None)
    assert select_snapshot(empty).snapshot is None
    assert select_snapshot(empty).schema == NEW


def test_history_that_leads_in_a_circle_ends() -> None:
    circle = state(snapshots=[snapshot(9, 3, 5), snapshot(3, 9, 6), snapshot(5, None, 1)])
    with pytest.raises(NotFoundError):
        select_snapshot(circle, ref="staging", timestamp_ms=1)


def test_snapshot_of_an_unknown_schema_is_refused() -> None:
    odd = state(snapshots=[snapshot(9, None, 1), snapshot(5, 9, 4, 42), snapshot(3, 9, 3)])
    with pytest.raises(CorruptDataError, match="schema 42"):
        select_snapshot(odd, snapshot_id=5)
