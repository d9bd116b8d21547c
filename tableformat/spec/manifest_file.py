"""The v3 `manifest_file` record: one line of a manifest list (spec: Manifest Lists)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

# A count that a v1 manifest list leaves out. Never written.
UNKNOWN_COUNT = -1


class ManifestContent(IntEnum):
    """Field 517 `content`. On disk: never change."""

    DATA = 0
    DELETES = 1


# The `content` key of a manifest's header. On disk: never change.
MANIFEST_CONTENT_NAMES = {ManifestContent.DATA: "data", ManifestContent.DELETES: "deletes"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFieldSummary:
    """Field 508: what the partition values of one field span in a manifest."""

    contains_null: bool
    contains_nan: bool | None = None
    lower_bound: bytes | None = None
    upper_bound: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class ManifestFile:
    """One manifest as its manifest list describes it. Field names are the spec's.

    `sequence_number` is None only for a manifest written by a commit that has not got its number
    yet; the same for `first_row_id` of data manifests, and it stays None for delete manifests.
    Counts are `UNKNOWN_COUNT` only when decoded from a v1 list that leaves them out.
    """

    manifest_path: str
    manifest_length: int
    partition_spec_id: int
    content: ManifestContent
    sequence_number: int | None
    min_sequence_number: int | None
    added_snapshot_id: int
    added_files_count: int
    existing_files_count: int
    deleted_files_count: int
    added_rows_count: int
    existing_rows_count: int
    deleted_rows_count: int
    partitions: tuple[PartitionFieldSummary, ...] | None = None
    key_metadata: bytes | None = None
    first_row_id: int | None = None

    @property
    def counts(self) -> tuple[int, int, int, int, int, int]:
        """Added, existing and deleted files, then their rows."""
        return (
            self.added_files_count,
            self.existing_files_count,
            self.deleted_files_count,
            self.added_rows_count,
            self.existing_rows_count,
            self.deleted_rows_count,
        )

    @property
    def live_files_count(self) -> int:
        """Entries that are ADDED or EXISTING; both counts must be known."""
        return self.added_files_count + self.existing_files_count

    @property
    def has_live_files(self) -> bool:
        """Whether any entry is ADDED or EXISTING; True when that is unknown."""
        return self.added_files_count != 0 or self.existing_files_count != 0
