"""How old snapshots are on a table that a clock which was ahead has committed to. Pure.

A table's time never goes back (R78), so whatever is committed after such a commit bears its time,
and would stay young until the clocks have caught up: a year, maybe. Each commit of icefold then
says what its own clock showed (`names.COMMITTED_MS`).
"""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from tableformat.commit.branch_history import snapshots_by_id, summary_of
from tableformat.spec.decimal_text import parse_decimal
from tableformat.spec.names import COMMITTED_MS

CLOCK_AHEAD_MS = 60_000  # what Java lets clocks be apart


def own_time(now_ms: int, table_ms: int) -> dict[str, str]:
    """What a commit says of its own clock; nothing where the table's time is not ahead of it."""
    return {COMMITTED_MS: str(now_ms)} if table_ms > now_ms + CLOCK_AHEAD_MS else {}


def committed_ms(snapshot: Snapshot) -> int:
    """When it was committed, by the clock of whoever did that; for figures."""
    noted = _noted_ms(snapshot)
    return snapshot.timestamp_ms if noted is None else noted


def dated_snapshots(metadata: TableMetadata, now_ms: int) -> Mapping[int, Snapshot]:
    """Snapshots by id, those from the future with the time at which they were committed.

    That is what their own clocks showed, and never before an older snapshot's. One that says
    nothing was committed before the next that does.
    """
    by_id, last_ms = snapshots_by_id(metadata), now_ms + CLOCK_AHEAD_MS
    if all(each.timestamp_ms <= last_ms for each in by_id.values()):
        return by_id
    ordered = sorted(by_id.values(), key=lambda each: each.sequence_number or 0)
    times: list[int] = []
    reached = 0
    for each in ordered:
        time = each.timestamp_ms if each.timestamp_ms <= last_ms else _noted_ms(each)
        reached = max(reached, time or 0)
        times.append(last_ms + 1 if time is None else reached)
    dated, following = dict(by_id), now_ms
    for each, time in zip(reversed(ordered), reversed(times), strict=True):
        following = time if time <= last_ms else following
        if each.timestamp_ms > last_ms:
            dated[each.snapshot_id] = each.model_copy(update={"timestamp_ms": following})
    return dated


def _noted_ms(snapshot: Snapshot) -> int | None:
    return parse_decimal(summary_of(snapshot).get(COMMITTED_MS, ""))
