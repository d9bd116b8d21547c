"""What a publish says about its cycle in the snapshot's summary: a bounded number of figures.

So the table's own history tells how fresh it was kept, and where the time went, to whoever reads
it. Phases that come after the commit are not in it. They are not repeated by later commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pyiceberg.table.snapshots import Snapshot

PREFIX = "icefold.cycle-"
STAGED_COMMITS = f"{PREFIX}staged-commits"
OLDEST_STAGED_MS = f"{PREFIX}oldest-staged-ms"  # wall clock; with the snapshot's: the freshness
EQUALITY_DELETES = f"{PREFIX}equality-deletes"
DELETED_ROWS = f"{PREFIX}deleted-rows"
PHASE_MS = f"{PREFIX}ms."  # + phase: whole milliseconds, up to the commit


def cycle_figures(
    covered: Iterable[Snapshot],
    *,
    equality_deletes: int,
    deleted_rows: int,
    phases_ms: Mapping[str, float],
) -> dict[str, str]:
    """The summary properties of a cycle over the staged snapshots `covered`."""
    times = [snapshot.timestamp_ms for snapshot in covered]
    figures = {
        STAGED_COMMITS: str(len(times)),
        EQUALITY_DELETES: str(equality_deletes),
        DELETED_ROWS: str(deleted_rows),
    }
    if times:
        figures[OLDEST_STAGED_MS] = str(min(times))
    figures |= {f"{PHASE_MS}{phase}": f"{spent:.0f}" for phase, spent in phases_ms.items()}
    return figures


def freshness_ms(published: Snapshot, covered: Iterable[Snapshot]) -> int:
    """Age of the oldest staged snapshot when it was published; 0 without any."""
    oldest = min((snapshot.timestamp_ms for snapshot in covered), default=published.timestamp_ms)
    return max(published.timestamp_ms - oldest, 0)
