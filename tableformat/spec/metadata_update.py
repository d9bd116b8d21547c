"""Apply a commit's updates to table metadata: pure, old metadata in, new metadata out.

Cost: the parts that change, plus one shallow copy of each list that grows. Snapshots are shared
with the base by identity, so their JSON text is made once (`list_texts`), and a commit to a table
with thousands of snapshots costs what it costs on a young one.

| rule                                                                | source          |
|---------------------------------------------------------------------|-----------------|
| sequence numbers rise strictly, on every branch, in every version    | spec; R-lineage |
| v3: a snapshot has first-row-id >= next-row-id and added-rows >= 0   | spec            |
| next-row-id is never null and never goes back                        | spec            |
| last-updated-ms never goes back                                      | R78             |
| snapshot-log: an entry each time main moves; cut at an expired entry | spec            |
| metadata-log: at most write.metadata.previous-versions-max entries   | spec            |
| expiry takes along refs and statistics of what it removes            | Java            |

Differs from PyIceberg: sequence numbers are checked on version 3 too, the snapshot log is cut where
an expired snapshot was, `parent-snapshot-id` of the survivors is kept (as in Java), and nothing is
copied deeply.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.exceptions import ValidationError
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import MetadataLogEntry, SnapshotLogEntry
from pyiceberg.table.update import TableUpdate

from tableformat.errors import InvalidInputError
from tableformat.spec.metadata_changes import MetadataChanges
from tableformat.spec.packed_summary import share_fields_set
from tableformat.spec.snapshot_updates import SNAPSHOT_UPDATES
from tableformat.spec.structure_updates import STRUCTURE_UPDATES

PREVIOUS_VERSIONS_MAX = "write.metadata.previous-versions-max"
PREVIOUS_VERSIONS_MAX_DEFAULT = 100

_UPDATES = {**SNAPSHOT_UPDATES, **STRUCTURE_UPDATES}


def apply_updates(
    metadata: TableMetadata,
    updates: Sequence[TableUpdate],
    *,
    base_location: str | None,
    now_ms: int,
) -> TableMetadata:
    """The metadata after `updates`, in order.

    Args:
        metadata: The base; unchanged.
        updates: PyIceberg's update values.
        base_location: The base's metadata file, for the metadata log; None for a new table.
        now_ms: Wall-clock time of the commit.

    Returns:
        New metadata; the base itself when the updates change nothing.

    Raises:
        CommitConflictError: A snapshot was planned on another base: its sequence number or row ids
            are taken.
        AlreadyExistsError: A snapshot id is in use, perhaps by this very commit, landed before.
        NotFoundError: A snapshot, schema, spec or sort order that an update names is not there.
        InvalidInputError: An update that is wrong on any base.
        UnsupportedError: An update, or a format version, that is not known here.
    """
    changes = MetadataChanges(metadata)
    for update in updates:
        handler = _UPDATES.get(type(update))
        if handler is None:
            raise InvalidInputError("not a table update", value=type(update).__name__)
        handler(changes, update)
    if not changes.any:
        return metadata
    _log_previous(changes, base_location)
    last_updated_ms = max(
        metadata.last_updated_ms, now_ms if changes.time_ms is None else changes.time_ms
    )
    # Only the last head counts: those before it were never visible.
    moved_to = changes.main_moves[-1] if changes.main_moves else None
    there = None if moved_to is None else metadata.snapshot_by_id(moved_to)
    if there is not None:  # an entry with the snapshot's own time would say that it was made there
        last_updated_ms = max(last_updated_ms, there.timestamp_ms + 1)
    changes.set("last_updated_ms", last_updated_ms)
    if moved_to is not None:
        entry = SnapshotLogEntry(snapshot_id=moved_to, timestamp_ms=last_updated_ms)
        share_fields_set(entry)
        changes.set("snapshot_log", [*changes.get("snapshot_log"), entry])
    result = changes.build()
    if changes.structure:
        _check_structure(result)
    return result


def previous_versions_max(metadata: TableMetadata) -> int:
    """How many earlier metadata files the log keeps; at least 1."""
    value = metadata.properties.get(PREVIOUS_VERSIONS_MAX, str(PREVIOUS_VERSIONS_MAX_DEFAULT))
    try:
        return max(int(value), 1)
    except ValueError:
        raise InvalidInputError(
            "not a number", key=PREVIOUS_VERSIONS_MAX, value=repr(value)[:80]
        ) from None


def _log_previous(changes: MetadataChanges, base_location: str | None) -> None:
    if base_location is None:
        return
    base = changes.base
    limit = previous_versions_max(changes.view())
    entry = MetadataLogEntry(metadata_file=base_location, timestamp_ms=base.last_updated_ms)
    changes.set("metadata_log", [*base.metadata_log, entry][-limit:])


def _check_structure(metadata: TableMetadata) -> None:
    try:
        schema = metadata.schema()
        schema.check_format_version_compatibility(metadata.format_version)
        metadata.spec().check_compatible(schema)
        metadata.sort_order().check_compatible(schema)
    except (ValidationError, ValueError) as error:
        raise InvalidInputError(
            f"schema, partition spec and sort order disagree: {error}"
        ) from error
