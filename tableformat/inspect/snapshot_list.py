"""Snapshots as people read them."""

from __future__ import annotations

from datetime import UTC, datetime

from pyiceberg.table.snapshots import Snapshot

from tableformat.html_text import rows_html

SHOWN_MAX = 50


class SnapshotList(list[Snapshot]):
    """A list that a notebook shows as a table: the newest first, at most 50."""

    def _repr_html_(self) -> str:
        rows = [
            (each.snapshot_id, _time(each), _operation(each), _total(each, "total-records"),
             _total(each, "total-data-files"), _total(each, "total-delete-files"))
            for each in self[: -SHOWN_MAX - 1 : -1]
        ]  # fmt: skip
        title = f"{len(self)} snapshots" + (f", the last {SHOWN_MAX}" * (len(self) > SHOWN_MAX))
        heads = ("snapshot", "time", "operation", "records", "data files", "delete files")
        return rows_html(title, heads, rows)


def snapshot_text(snapshot: Snapshot) -> str:
    """One snapshot in a few words."""
    return f"snapshot {snapshot.snapshot_id} of {_time(snapshot)}"


def _time(snapshot: Snapshot) -> str:
    at = datetime.fromtimestamp(snapshot.timestamp_ms / 1e3, UTC)
    return at.strftime("%Y-%m-%d %H:%M:%S UTC")


def _operation(snapshot: Snapshot) -> str:
    return "?" if snapshot.summary is None else snapshot.summary.operation.value


def _total(snapshot: Snapshot, key: str) -> str:
    properties = {} if snapshot.summary is None else snapshot.summary.additional_properties
    return properties.get(key, "?")
