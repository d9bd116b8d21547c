"""Views of the metadata file alone: `snapshots`, `history`, `refs`, `metadata_log`, `staged`."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from tableformat.catalog.base import TableState
from tableformat.commit.branch_history import snapshots_by_id, summary_of, walk_back
from tableformat.commit.carried_properties import load_carried
from tableformat.errors import NotFoundError
from tableformat.spec.names import MAIN_BRANCH

_INSTANT = pa.timestamp("ms", tz="UTC")

SNAPSHOT_SCHEMA = pa.schema(
    [
        ("committed_at", _INSTANT),
        ("snapshot_id", pa.int64()),
        ("parent_id", pa.int64()),
        ("operation", pa.string()),
        ("manifest_list", pa.string()),
        ("summary", pa.map_(pa.string(), pa.string())),
        ("sequence_number", pa.int64()),
        ("schema_id", pa.int32()),
        ("first_row_id", pa.int64()),
        ("added_rows", pa.int64()),
    ]
)
HISTORY_SCHEMA = pa.schema(
    [
        ("made_current_at", _INSTANT),
        ("snapshot_id", pa.int64()),
        ("parent_id", pa.int64()),
        ("is_current_ancestor", pa.bool_()),
    ]
)
REF_SCHEMA = pa.schema(
    [
        ("name", pa.string()),
        ("type", pa.string()),
        ("snapshot_id", pa.int64()),
        ("max_reference_age_in_ms", pa.int64()),
        ("min_snapshots_to_keep", pa.int32()),
        ("max_snapshot_age_in_ms", pa.int64()),
    ]
)
METADATA_LOG_SCHEMA = pa.schema(
    [
        ("timestamp", _INSTANT),
        ("file", pa.string()),
        ("latest_snapshot_id", pa.int64()),
        ("latest_schema_id", pa.int32()),
        ("latest_sequence_number", pa.int64()),
    ]
)
STAGED_SCHEMA = pa.schema(
    [
        ("ordinal", pa.int64()),  # 1: the next one to be resolved
        ("committed_at", _INSTANT),
        ("snapshot_id", pa.int64()),
        ("parent_id", pa.int64()),
        ("operation", pa.string()),
        ("added_data_files", pa.int64()),
        ("added_records", pa.int64()),
        ("added_equality_delete_files", pa.int64()),
        ("added_equality_deletes", pa.int64()),
        ("added_files_size", pa.int64()),
        ("summary", pa.map_(pa.string(), pa.string())),
    ]
)


def snapshots_table(metadata: TableMetadata) -> pa.Table:
    """The `snapshots` view: all snapshots of the table, of every branch, oldest first."""
    rows = [
        {
            **_snapshot_row(snapshot),
            "manifest_list": snapshot.manifest_list,
            "sequence_number": snapshot.sequence_number,
            "schema_id": snapshot.schema_id,
            "first_row_id": getattr(snapshot, "first_row_id", None),
            "added_rows": getattr(snapshot, "added_rows", None),
        }
        for snapshot in metadata.snapshots
    ]
    return pa.Table.from_pylist(rows, SNAPSHOT_SCHEMA)


def history_table(metadata: TableMetadata) -> pa.Table:
    """The `history` view: what `main` pointed at, and whether that is still in its past."""
    by_id = snapshots_by_id(metadata)
    past = {each.snapshot_id for each in walk_back(by_id, metadata.current_snapshot_id)}
    rows = []
    for entry in metadata.snapshot_log:
        snapshot = by_id.get(entry.snapshot_id)
        rows.append(
            {
                "made_current_at": entry.timestamp_ms,
                "snapshot_id": entry.snapshot_id,
                "parent_id": None if snapshot is None else snapshot.parent_snapshot_id,
                "is_current_ancestor": entry.snapshot_id in past,
            }
        )
    return pa.Table.from_pylist(rows, HISTORY_SCHEMA)


def refs_table(metadata: TableMetadata) -> pa.Table:
    """The `refs` view: branches and tags."""
    rows = [
        {
            "name": name,
            "type": ref.snapshot_ref_type.value.upper(),
            "snapshot_id": ref.snapshot_id,
            "max_reference_age_in_ms": ref.max_ref_age_ms,
            "min_snapshots_to_keep": ref.min_snapshots_to_keep,
            "max_snapshot_age_in_ms": ref.max_snapshot_age_ms,
        }
        for name, ref in sorted(metadata.refs.items())
    ]
    return pa.Table.from_pylist(rows, REF_SCHEMA)


def metadata_log_table(state: TableState) -> pa.Table:
    """The `metadata_log` view: metadata files, the newest last; `latest_*` is what `main` was."""
    metadata = state.metadata
    files = [(entry.timestamp_ms, entry.metadata_file) for entry in metadata.metadata_log]
    files.append((metadata.last_updated_ms, state.metadata_location))
    rows = []
    for timestamp_ms, file in files:
        snapshot = _snapshot_at(metadata, timestamp_ms)
        rows.append(
            {
                "timestamp": timestamp_ms,
                "file": file,
                "latest_snapshot_id": None if snapshot is None else snapshot.snapshot_id,
                "latest_schema_id": None if snapshot is None else snapshot.schema_id,
                "latest_sequence_number": None if snapshot is None else snapshot.sequence_number,
            }
        )
    return pa.Table.from_pylist(rows, METADATA_LOG_SCHEMA)


def staged_table(state: TableState, staging: str, target: str = MAIN_BRANCH) -> pa.Table:
    """The `staged` view: snapshots of a staging branch that are not published, oldest first.

    Raises:
        NotFoundError: There is no such target branch.
    """
    metadata = state.metadata
    if target != MAIN_BRANCH and state.ref(target) is None:
        raise NotFoundError(f"there is no branch {target!r}", table=state.name)
    by_id = snapshots_by_id(metadata)
    target_id, staging_id = state.head_id(target), state.head_id(staging)
    published = {snapshot.snapshot_id for snapshot in walk_back(by_id, target_id)}
    covered = load_carried(by_id, target_id).marker
    waiting: list[Snapshot] = []
    for snapshot in walk_back(by_id, staging_id):
        if snapshot.snapshot_id in published or str(snapshot.snapshot_id) == covered:
            break
        waiting.append(snapshot)
    rows = [
        {
            "ordinal": ordinal,
            **_snapshot_row(snapshot),
            **{
                column: _number(summary_of(snapshot).get(column.replace("_", "-")))
                for column in STAGED_SCHEMA.names
                if column.startswith("added_")
            },
        }
        for ordinal, snapshot in enumerate(reversed(waiting), start=1)
    ]
    return pa.Table.from_pylist(rows, STAGED_SCHEMA)


def _snapshot_row(snapshot: Snapshot) -> dict[str, Any]:
    summary = dict(summary_of(snapshot))
    return {
        "committed_at": snapshot.timestamp_ms,
        "snapshot_id": snapshot.snapshot_id,
        "parent_id": snapshot.parent_snapshot_id,
        "operation": None if snapshot.summary is None else snapshot.summary.operation.value,
        "summary": list(summary.items()),
    }


def _number(text: str | None) -> int | None:
    """A count of a summary; null when it is missing or, from a foreign writer, no number."""
    try:
        value = int(text or "")
    except ValueError:
        return None
    return value if abs(value) < 1 << 63 else None


def _snapshot_at(metadata: TableMetadata, timestamp_ms: int) -> Snapshot | None:
    found = None
    for entry in metadata.snapshot_log:
        if entry.timestamp_ms <= timestamp_ms:
            found = metadata.snapshot_by_id(entry.snapshot_id)
    return found
