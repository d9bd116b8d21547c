"""Which partition specs partition nothing (spec: Partitioning, Scan Planning)."""

from __future__ import annotations

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.transforms import VoidTransform


def is_unpartitioned(spec: PartitionSpec) -> bool:
    """Whether equality deletes written under `spec` are global.

    A spec whose fields are all void partitions nothing either: it is what a v1 table is left with
    when its last partition field is dropped. The reference implementation counts it as
    unpartitioned; PyIceberg's method of this name does not.
    """
    return all(isinstance(field.transform, VoidTransform) for field in spec.fields)
