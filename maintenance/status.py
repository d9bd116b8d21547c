"""What a table is made of and how far its published branch is behind. Read from metadata only."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from pyiceberg.table.snapshots import Snapshot

from resolver.staging import plan_backlog
from tableformat import InvalidInputError, Table

TOTALS = {
    "rows_before_deletes": "total-records",
    "data_files": "total-data-files",
    "delete_files": "total-delete-files",
    "deleted_positions": "total-position-deletes",
    "equality_deletes": "total-equality-deletes",
    "size_bytes": "total-files-size",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """One table at one moment.

    Attributes:
        backlog_snapshots: Staged snapshots that are not published; None: cannot be told.
        backlog_rows, backlog_deletes: Rows and equality deletes in them.
        lag_ms: Age of the oldest unpublished staged snapshot; 0 without a backlog.
        problem: Why the next resolve would stop, if it would.
        totals: Of the target head, by the summary's counters.
    """

    table: str
    target_snapshot_id: int | None
    target_age_ms: int | None
    staging_snapshot_id: int | None
    backlog_snapshots: int | None
    backlog_rows: int
    backlog_deletes: int
    lag_ms: int
    problem: str | None
    totals: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)

    def describe(self) -> list[tuple[str, str]]:
        """Label and value, for people."""
        totals = self.totals
        waiting = (
            "unknown"
            if self.backlog_snapshots is None
            else f"{self.backlog_snapshots} snapshots, {self.backlog_rows:,} rows, "
            f"{self.backlog_deletes:,} equality deletes"
        )
        live = totals["rows_before_deletes"] - totals["deleted_positions"]
        share = totals["deleted_positions"] / max(totals["rows_before_deletes"], 1)
        lines = [
            ("published", _snapshot_text(self.target_snapshot_id, self.target_age_ms)),
            ("staged, waiting", waiting),
            ("lag", f"{self.lag_ms / 1000:.1f} s"),
            ("live rows", f"{live:,}"),
            ("data files", f"{totals['data_files']:,} ({totals['size_bytes'] / 1e6:,.1f} MB)"),
            ("deleted by DVs", f"{totals['deleted_positions']:,} rows ({share:.1%})"),
            ("equality deletes", f"{totals['equality_deletes']:,} on the target"),
        ]
        return lines + ([("problem", self.problem)] if self.problem else [])


def read_status(table: Table, *, staging: str, target: str) -> TableStatus:
    """Read the status of `table`.

    Args:
        table: Refreshed first.
        staging: Branch with staged changes; may not exist.
        target: The published branch; may be empty.
    """
    state = table.refresh().state
    now_ms = table.environment.runtime.clock.now_ms()
    head, staged = state.head(target), state.head(staging)
    backlog: list[Snapshot] | None = []
    problem = None
    if staged is not None and staging != target:
        try:
            backlog = plan_backlog(state, staging=staging, target=target)
        except InvalidInputError as error:
            backlog, problem = None, str(error)
    waiting = backlog or []
    return TableStatus(
        table=state.name,
        target_snapshot_id=None if head is None else head.snapshot_id,
        target_age_ms=None if head is None else now_ms - head.timestamp_ms,
        staging_snapshot_id=None if staged is None else staged.snapshot_id,
        backlog_snapshots=None if backlog is None else len(backlog),
        backlog_rows=sum(_counter(snapshot, "added-records") for snapshot in waiting),
        backlog_deletes=sum(_counter(snapshot, "added-equality-deletes") for snapshot in waiting),
        lag_ms=max((now_ms - snapshot.timestamp_ms for snapshot in waiting), default=0),
        problem=problem,
        totals={name: _counter(head, key) for name, key in TOTALS.items()},
    )


def _counter(snapshot: Snapshot | None, key: str) -> int:
    if snapshot is None or snapshot.summary is None:
        return 0
    return int(snapshot.summary.additional_properties.get(key, "0"))


def _snapshot_text(snapshot_id: int | None, age_ms: int | None) -> str:
    if snapshot_id is None or age_ms is None:
        return "nothing yet"
    return f"snapshot {snapshot_id}, {age_ms / 1000:.1f} s ago"
