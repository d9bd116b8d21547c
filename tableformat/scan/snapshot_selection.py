"""Which snapshot a scan reads, and with which schema (spec: Snapshot References; Time travel)."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from tableformat.catalog.base import TableState
from tableformat.errors import CorruptDataError, InvalidInputError, NotFoundError
from tableformat.scan.former_schema import why_unreadable
from tableformat.spec.names import MAIN_BRANCH


@dataclass(frozen=True, slots=True)
class SelectedSnapshot:
    """A snapshot and the schema to read it with; no snapshot means an empty table or branch."""

    snapshot: Snapshot | None
    schema: Schema


def select_snapshot(
    state: TableState,
    *,
    snapshot_id: int | None = None,
    ref: str | None = None,
    timestamp_ms: int | None = None,
) -> SelectedSnapshot:
    """Resolve a scan's time travel.

    A branch is read with the table's current schema; a tag, a snapshot id or a point in time with
    the schema the snapshot was written with, so that an old version looks as it did. So does a
    branch that still stands on a table which was replaced.

    Args:
        state: The loaded table.
        snapshot_id: Exactly this snapshot; excludes the other two.
        ref: A branch or tag; default `main`.
        timestamp_ms: The newest snapshot of the branch that is not younger than this, in
            milliseconds since the epoch.

    Raises:
        InvalidInputError: The arguments exclude each other.
        NotFoundError: There is no such snapshot or ref, or none that old.
    """
    metadata = state.metadata
    if snapshot_id is not None:
        if ref is not None or timestamp_ms is not None:
            raise InvalidInputError(
                "a scan takes a snapshot id, or a branch, tag or time, not both", table=state.name
            )
        return _at(metadata, _snapshot(state, snapshot_id))
    name = MAIN_BRANCH if ref is None else ref
    found = metadata.refs.get(name)
    if found is None:
        if name == MAIN_BRANCH and timestamp_ms is None:
            return SelectedSnapshot(None, metadata.schema())
        raise NotFoundError(
            f"there is no branch or tag {name!r}", table=state.name, refs=sorted(metadata.refs)
        )
    head = _snapshot(state, found.snapshot_id)
    is_tag = found.snapshot_ref_type == SnapshotRefType.TAG
    if timestamp_ms is None:
        written = _at(metadata, head)
        is_former = name != MAIN_BRANCH and why_unreadable(metadata.schema(), written.schema)
        return written if is_tag or is_former else SelectedSnapshot(head, metadata.schema())
    if is_tag:
        raise InvalidInputError(f"{name!r} is a tag, which has no history", table=state.name)
    return _at(metadata, _as_of(state, name, head, timestamp_ms))


def select_version(
    state: TableState,
    *,
    branch: str | None = None,
    tag: str | None = None,
    snapshot_id: int | None = None,
    as_of_ms: int | None = None,
) -> SelectedSnapshot:
    """`select_snapshot` by the names that users give.

    Raises:
        InvalidInputError: A branch and a tag are given, or other arguments exclude each other.
        NotFoundError: There is no such branch, tag or snapshot, or none that old.
    """
    if branch is not None and tag is not None:
        raise InvalidInputError("a scan reads a branch or a tag, not both", table=state.name)
    return select_snapshot(
        state, snapshot_id=snapshot_id, ref=tag if branch is None else branch, timestamp_ms=as_of_ms
    )


def _as_of(state: TableState, branch: str, head: Snapshot, timestamp_ms: int) -> Snapshot:
    """The branch's snapshot at a time: main by its log, which also remembers rollbacks."""
    metadata = state.metadata
    if branch == MAIN_BRANCH:
        for log_entry in reversed(metadata.snapshot_log):
            if log_entry.timestamp_ms <= timestamp_ms:
                return _snapshot(state, log_entry.snapshot_id)
    else:
        current: Snapshot | None = head
        visited: set[int] = set()
        while current is not None and current.snapshot_id not in visited:
            if current.timestamp_ms <= timestamp_ms:
                return current
            visited.add(current.snapshot_id)
            parent = current.parent_snapshot_id
            current = None if parent is None else metadata.snapshot_by_id(parent)
    raise NotFoundError(
        "no snapshot is that old", table=state.name, branch=branch, timestamp_ms=timestamp_ms
    )


def _snapshot(state: TableState, snapshot_id: int) -> Snapshot:
    snapshot = state.metadata.snapshot_by_id(snapshot_id)
    if snapshot is None:
        raise NotFoundError(
            f"there is no snapshot {snapshot_id}", table=state.name, action="it may have expired"
        )
    return snapshot


def _at(metadata: TableMetadata, snapshot: Snapshot) -> SelectedSnapshot:
    if snapshot.schema_id is None:
        return SelectedSnapshot(snapshot, metadata.schema())
    for schema in metadata.schemas:
        if schema.schema_id == snapshot.schema_id:
            return SelectedSnapshot(snapshot, schema)
    raise CorruptDataError(
        f"snapshot {snapshot.snapshot_id} names schema {snapshot.schema_id}, which is not there",
        location=metadata.location,
    )
