"""What partition specs partition by, and which by nothing (spec: Partitioning, Scan Planning)."""

from __future__ import annotations

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.transforms import VoidTransform


def is_unpartitioned(spec: PartitionSpec) -> bool:
    """Whether equality deletes written under `spec` are global.

    A spec whose fields are all void partitions nothing either: it is what a v1 table is left with
    when its last partition field is dropped. The reference implementation counts it as
    unpartitioned; PyIceberg's method of this name does not.
    """
    return not source_ids(spec)


def source_ids(spec: PartitionSpec) -> set[int]:
    """Field ids of the columns that decide which partition a row is in: of a void field, none."""
    return {
        field.source_id for field in spec.fields if not isinstance(field.transform, VoidTransform)
    }
