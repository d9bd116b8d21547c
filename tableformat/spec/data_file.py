"""The v3 `data_file` and `manifest_entry` records as immutable values (spec: Manifests).

PyIceberg's own classes lose `first_row_id`, `referenced_data_file`, `content_offset` and
`content_size_in_bytes`, so a manifest rewritten through them would be damaged.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any


class FileContent(IntEnum):
    """Field 134 `content`. On disk: never change."""

    DATA = 0
    POSITION_DELETES = 1
    EQUALITY_DELETES = 2


class EntryStatus(IntEnum):
    """Field 0 `status`. On disk: never change."""

    EXISTING = 0
    ADDED = 1
    DELETED = 2


PUFFIN_FORMAT = "PUFFIN"
PARQUET_FORMAT = "PARQUET"

PartitionKey = tuple[int, tuple[object, ...]]
DeleteFileKey = tuple[str, int | None, int | None]


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class DataFile:
    """A data file, an equality delete file, a position delete file or one deletion vector.

    Field names are the spec's. `partition` holds the internal values in spec order (days as int,
    microseconds as int, ...), None for null. `spec_id` is the manifest's, it is not stored in the
    record. Mappings are by field id and must not be changed.
    """

    content: FileContent
    file_path: str
    file_format: str
    spec_id: int
    partition: tuple[Any, ...]
    record_count: int
    file_size_in_bytes: int
    column_sizes: Mapping[int, int] | None = None
    value_counts: Mapping[int, int] | None = None
    null_value_counts: Mapping[int, int] | None = None
    nan_value_counts: Mapping[int, int] | None = None
    lower_bounds: Mapping[int, bytes] | None = None
    upper_bounds: Mapping[int, bytes] | None = None
    key_metadata: bytes | None = None
    split_offsets: tuple[int, ...] | None = None
    equality_ids: tuple[int, ...] | None = None
    sort_order_id: int | None = None
    first_row_id: int | None = None
    referenced_data_file: str | None = None
    content_offset: int | None = None
    content_size_in_bytes: int | None = None

    @property
    def is_dv(self) -> bool:
        """Whether this is a deletion vector (a position delete in a Puffin file)."""
        return (
            self.content == FileContent.POSITION_DELETES
            and self.file_format.upper() == PUFFIN_FORMAT
        )

    @property
    def identity(self) -> DeleteFileKey:
        """What tells files apart: DVs share a path, so offset and size belong to it (R44)."""
        return (self.file_path, self.content_offset, self.content_size_in_bytes)

    @property
    def partition_key(self) -> PartitionKey:
        """Hashable (spec id, values); floats compare by bits, every NaN as one (R25)."""
        return (self.spec_id, canonical_partition(self.partition))

    @property
    def size_in_table_bytes(self) -> int:
        """What the file adds to the table: a DV's own bytes, not its Puffin file's."""
        if self.content_size_in_bytes is not None:
            return self.content_size_in_bytes
        return self.file_size_in_bytes

    def with_(self, **changes: Any) -> DataFile:
        """A copy with some fields replaced."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class ManifestEntry:
    """One file in one manifest.

    Entries *read* from a manifest have inheritance applied: `sequence_number`,
    `file_sequence_number` and `snapshot_id` are filled in, and so is `data_file.first_row_id` of
    data files. Entries *to be written* as ADDED carry None there (or an explicit
    `sequence_number` for a rewrite that keeps it).
    """

    status: EntryStatus
    snapshot_id: int | None
    sequence_number: int | None
    file_sequence_number: int | None
    data_file: DataFile

    @property
    def is_live(self) -> bool:
        """Whether the entry counts: ADDED or EXISTING."""
        return self.status != EntryStatus.DELETED


def canonical_partition(values: tuple[Any, ...]) -> tuple[object, ...]:
    """Partition values in a form where equal means the same partition."""
    return tuple(_float_bits(value) if isinstance(value, float) else value for value in values)


def _float_bits(value: float) -> tuple[str, bytes]:
    return ("f", struct.pack(">d", math.nan if math.isnan(value) else value))
