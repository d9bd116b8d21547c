"""What older metadata files still say of snapshots that have expired since."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from tableformat.catalog.base import TableState
from tableformat.environment import Environment
from tableformat.errors import CorruptDataError, NotFoundError
from tableformat.spec.metadata_json import decode_metadata

_CORRUPT = (
    "it is an older metadata file, which tells what has expired: restore it, or move it away to go "
    "on as if it and older ones had been deleted"
)


def former_versions(
    environment: Environment, state: TableState, *, since_ms: int = 0
) -> Iterator[TableMetadata]:
    """The versions that the table's metadata log lists, newest first, down to one that is gone.

    `since_ms`: no older ones, in milliseconds since the epoch.

    Raises:
        CorruptDataError: One cannot be read. It may be restored; to go on without it is for its
            owner to say, as what it alone tells is then as if it had been deleted.
    """
    for entry in reversed(state.metadata.metadata_log):
        if entry.timestamp_ms < since_ms:
            return
        try:
            text = environment.store.get(entry.metadata_file)
        except NotFoundError:
            return
        try:
            version = decode_metadata(text, location=entry.metadata_file)
        except CorruptDataError as error:
            error.action = _CORRUPT
            raise
        yield version


def with_expired_snapshots(environment: Environment, state: TableState) -> TableState:
    """The table version as if nothing had expired that its former ones list.

    For what snapshots say and stand on; the files of those that have expired may be gone. A parent
    is what the oldest says: PyIceberg's expiry takes the id away. All of the log is read.
    """
    metadata = state.metadata
    snapshots: dict[int, Snapshot] = {each.snapshot_id: each for each in metadata.snapshots}
    log = list(metadata.snapshot_log)
    for before in former_versions(environment, state):
        snapshots.update((each.snapshot_id, each) for each in before.snapshots)
        known = {(each.timestamp_ms, each.snapshot_id) for each in log}
        log[:0] = (e for e in before.snapshot_log if (e.timestamp_ms, e.snapshot_id) not in known)
    told = {
        "snapshots": sorted(snapshots.values(), key=lambda each: each.sequence_number or 0),
        "snapshot_log": log,
    }
    return replace(state, metadata=metadata.model_copy(update=told))
