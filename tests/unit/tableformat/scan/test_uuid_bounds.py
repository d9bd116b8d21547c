"""Bounds of UUID columns, which Iceberg's Java library orders as signed numbers."""

from __future__ import annotations

from uuid import UUID

import pytest
from pyiceberg.expressions import EqualTo
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import NestedField, UUIDType

from tableformat.scan.bounds import key_range, ranges_overlap
from tableformat.scan.pruning import Pruner
from tableformat.spec.data_file import DataFile, FileContent
from tableformat.spec.manifest_file import ManifestContent, ManifestFile, PartitionFieldSummary

FIELD = NestedField(1, "u", UUIDType(), required=True)
SCHEMA = Schema(FIELD)
FIRST, MIDDLE, LAST = UUID(int=0), UUID(int=(1 << 127) - 1), UUID(int=(1 << 128) - 1)


def data_file(lower: UUID, upper: UUID, split_offsets: tuple[int, ...] | None) -> DataFile:
    return DataFile(
        content=FileContent.DATA,
        file_path="a",
        file_format="PARQUET",
        spec_id=0,
        partition=(),
        record_count=10,
        file_size_in_bytes=1,
        value_counts={1: 10},
        null_value_counts={1: 0},
        lower_bounds={1: lower.bytes},
        upper_bounds={1: upper.bytes},
        split_offsets=split_offsets,
    )


@pytest.mark.parametrize("offsets", [(4, 900), None])
def test_bounds_of_several_row_groups_hide_no_row(offsets) -> None:
    """Of FIRST..MIDDLE and MIDDLE..LAST Java makes FIRST..MIDDLE: MIDDLE is its largest."""
    file, other = data_file(FIRST, MIDDLE, offsets), data_file(LAST, LAST, (4,))
    pruner = Pruner(EqualTo("u", LAST), SCHEMA, {0: PartitionSpec()})
    assert pruner.residual(file) == EqualTo("u", LAST)
    assert ranges_overlap(key_range(file, FIELD), key_range(other, FIELD))


def test_bounds_of_one_row_group_are_those_of_parquet() -> None:
    file, other = data_file(FIRST, MIDDLE, (4,)), data_file(LAST, LAST, (4,))
    pruner = Pruner(EqualTo("u", LAST), SCHEMA, {0: PartitionSpec()})
    assert pruner.residual(file) != EqualTo("u", LAST)
    assert not ranges_overlap(key_range(file, FIELD), key_range(other, FIELD))


def test_bounds_of_manifests_hide_no_partition() -> None:
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "u"))
    summary = PartitionFieldSummary(
        contains_null=False,
        contains_nan=None,
        lower_bound=LAST.bytes,  # -1, the least of all three
        upper_bound=MIDDLE.bytes,
    )
    manifest = ManifestFile(
        manifest_path="m",
        manifest_length=1,
        partition_spec_id=0,
        content=ManifestContent.DATA,
        sequence_number=1,
        min_sequence_number=1,
        added_snapshot_id=1,
        added_files_count=1,
        existing_files_count=0,
        deleted_files_count=0,
        added_rows_count=1,
        existing_rows_count=0,
        deleted_rows_count=0,
        partitions=(summary,),
    )
    for value in (FIRST, MIDDLE, LAST):
        assert Pruner(EqualTo("u", value), SCHEMA, {0: spec}).manifest_may_match(manifest)
