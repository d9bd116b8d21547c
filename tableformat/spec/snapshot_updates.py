"""Updates that every commit makes: snapshots, refs, properties, expiry, statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Snapshot, SnapshotLogEntry
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    RemovePartitionStatisticsUpdate,
    RemovePropertiesUpdate,
    RemoveSnapshotRefUpdate,
    RemoveSnapshotsUpdate,
    RemoveStatisticsUpdate,
    SetPartitionStatisticsUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    SetStatisticsUpdate,
)

from tableformat.errors import AlreadyExistsError, CommitConflictError, InvalidInputError
from tableformat.spec.metadata_changes import MetadataChanges
from tableformat.spec.packed_summary import compact
from tableformat.spec.snapshot_json import note_in_use

_FORMAT_VERSION = "format-version"


def add_snapshot(changes: MetadataChanges, update: AddSnapshotUpdate) -> None:
    """Append a snapshot; it is on no branch yet."""
    snapshot = compact(update.snapshot)
    if changes.find_snapshot(snapshot.snapshot_id) is not None:
        # Not a conflict: it may be this very commit, landed before, and its files are live.
        raise AlreadyExistsError("snapshot id is in use", snapshot_id=snapshot.snapshot_id)
    if changes.format_version > 1:
        _take_sequence_number(changes, snapshot)
    if changes.format_version > 2:
        _take_row_ids(changes, snapshot)
    changes.added_snapshots[snapshot.snapshot_id] = snapshot
    note_in_use(snapshot)
    changes.set("snapshots", [*changes.get("snapshots"), snapshot])
    changes.time_ms = max(snapshot.timestamp_ms, changes.time_ms or 0)


def _take_sequence_number(changes: MetadataChanges, snapshot: Snapshot) -> None:
    last = changes.get("last_sequence_number")
    number = snapshot.sequence_number
    if number is None:
        raise InvalidInputError("snapshot has no sequence number", snapshot_id=snapshot.snapshot_id)
    if number <= last:
        raise CommitConflictError(
            "sequence number is taken: the snapshot was planned on an older version",
            snapshot_id=snapshot.snapshot_id,
            sequence_number=number,
            last_sequence_number=last,
        )
    changes.set("last_sequence_number", number)


def _take_row_ids(changes: MetadataChanges, snapshot: Snapshot) -> None:
    first, added = snapshot.first_row_id, snapshot.added_rows
    if first is None or added is None or added < 0:
        raise InvalidInputError(
            "a v3 snapshot needs first-row-id and added-rows", snapshot_id=snapshot.snapshot_id
        )
    next_row_id = changes.get("next_row_id") or 0
    if first < next_row_id:
        raise CommitConflictError(
            "row ids are taken: the snapshot was planned on an older version",
            snapshot_id=snapshot.snapshot_id,
            first_row_id=first,
            next_row_id=next_row_id,
        )
    # Differs from Java, which adds to the old value: equal for first == next, and where a writer
    # left a gap this cannot give out the same ids twice.
    changes.set("next_row_id", first + added)


def set_ref(changes: MetadataChanges, update: SetSnapshotRefUpdate) -> None:
    """Point a branch or tag at a snapshot; moving main appends to the snapshot log."""
    if update.ref_name == MAIN_BRANCH and update.type != SnapshotRefType.BRANCH:
        raise InvalidInputError("main cannot be a tag")
    if not update.ref_name:
        raise InvalidInputError("a branch or tag needs a name")
    ref = SnapshotRef(
        snapshot_id=update.snapshot_id,
        snapshot_ref_type=SnapshotRefType(update.type),
        min_snapshots_to_keep=update.min_snapshots_to_keep,
        max_snapshot_age_ms=update.max_snapshot_age_ms,
        max_ref_age_ms=update.max_ref_age_ms,
    )
    refs = changes.get("refs")
    previous = refs.get(update.ref_name)
    if previous == ref:
        return
    changes.snapshot(update.snapshot_id)
    changes.set("refs", {**refs, update.ref_name: ref})
    moved = previous is None or previous.snapshot_id != ref.snapshot_id
    if update.ref_name == MAIN_BRANCH and moved:
        changes.main_moves.append(update.snapshot_id)
        changes.set("current_snapshot_id", update.snapshot_id)


def remove_ref(changes: MetadataChanges, update: RemoveSnapshotRefUpdate) -> None:
    """Drop a branch or tag; nothing if there is none. Without main there is no current snapshot."""
    refs = changes.get("refs")
    if update.ref_name not in refs:
        return
    changes.set("refs", {name: ref for name, ref in refs.items() if name != update.ref_name})
    if update.ref_name == MAIN_BRANCH:
        changes.main_moves.clear()
        changes.set("current_snapshot_id", None)
        changes.set("snapshot_log", [])


def remove_snapshots(changes: MetadataChanges, update: RemoveSnapshotsUpdate) -> None:
    """Expire snapshots, with the refs and statistics that name them."""
    gone = frozenset(update.snapshot_ids)
    for snapshot_id in gone:
        changes.snapshot(snapshot_id)
    if not gone:
        return
    changes.remove_snapshots(gone)
    for name, ref in dict(changes.get("refs")).items():
        if ref.snapshot_id in gone:
            remove_ref(changes, RemoveSnapshotRefUpdate(ref_name=name))
    for field in ("statistics", "partition_statistics"):
        files = changes.get(field)
        if any(file.snapshot_id in gone for file in files):
            changes.set(field, [file for file in files if file.snapshot_id not in gone])
    changes.set("snapshot_log", _log_after_last(changes.get("snapshot_log"), gone))


def _log_after_last(log: list[SnapshotLogEntry], gone: frozenset[int]) -> list[SnapshotLogEntry]:
    """The entries after the last expired one: an earlier history would have a hole (spec)."""
    for position in range(len(log) - 1, -1, -1):
        if log[position].snapshot_id in gone:
            return log[position + 1 :]
    return log


def set_properties(changes: MetadataChanges, update: SetPropertiesUpdate) -> None:
    """Add or replace properties."""
    if _FORMAT_VERSION in update.updates:
        raise InvalidInputError(
            "the format version is not a property", action="use a format upgrade"
        )
    properties = changes.get("properties")
    if any(properties.get(key) != value for key, value in update.updates.items()):
        changes.set("properties", {**properties, **update.updates})


def remove_properties(changes: MetadataChanges, update: RemovePropertiesUpdate) -> None:
    """Drop properties; missing ones are no error."""
    gone = set(update.removals)
    properties = changes.get("properties")
    if gone & properties.keys():
        changes.set("properties", {k: v for k, v in properties.items() if k not in gone})


def _set_file(field: str, file: Any, changes: MetadataChanges) -> None:
    others = [one for one in changes.get(field) if one.snapshot_id != file.snapshot_id]
    changes.set(field, [*others, file])


def _remove_file(field: str, snapshot_id: int, changes: MetadataChanges) -> None:
    files = changes.get(field)
    kept = [one for one in files if one.snapshot_id != snapshot_id]
    if len(kept) != len(files):
        changes.set(field, kept)


SNAPSHOT_UPDATES: dict[type, Callable[[MetadataChanges, Any], None]] = {
    AddSnapshotUpdate: add_snapshot,
    SetSnapshotRefUpdate: set_ref,
    RemoveSnapshotRefUpdate: remove_ref,
    RemoveSnapshotsUpdate: remove_snapshots,
    SetPropertiesUpdate: set_properties,
    RemovePropertiesUpdate: remove_properties,
    SetStatisticsUpdate: lambda c, u: _set_file("statistics", u.statistics, c),
    RemoveStatisticsUpdate: lambda c, u: _remove_file("statistics", u.snapshot_id, c),
    SetPartitionStatisticsUpdate: lambda c, u: _set_file(
        "partition_statistics", u.partition_statistics, c
    ),
    RemovePartitionStatisticsUpdate: lambda c, u: _remove_file(
        "partition_statistics", u.snapshot_id, c
    ),
}
