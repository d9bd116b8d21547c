"""A table's past, from the summaries of its snapshots: what every reader of the table can see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from maintenance.table_figures import TOTALS, counter, is_compaction, is_rewrite
from resolver.cycle_figures import (
    DELETED_ROWS,
    EQUALITY_DELETES,
    OLDEST_SOURCE_MS,
    OLDEST_STAGED_MS,
    PHASE_MS,
    is_publish,
)
from tableformat.commit.branch_history import ancestors, operation_of
from tableformat.commit.snapshot_ages import committed_ms
from tableformat.spec.names import STAGED_COMMITS


@dataclass(frozen=True, slots=True, kw_only=True)
class Cycle:
    """One publish of the resolver.

    Attributes:
        at_ms: Wall clock.
        staged_commits, equality_deletes: What it published.
        rows: In the published data files.
        deleted_rows: Rows that died.
        freshness_ms: Age of the oldest staged commit when it was published, by the source's clock
            where its writer told it; None: unknown.
        phases_ms: Milliseconds per phase up to the commit.
    """

    at_ms: int
    snapshot_id: int
    staged_commits: int
    equality_deletes: int
    rows: int
    deleted_rows: int
    freshness_ms: int | None
    phases_ms: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The target at one snapshot. `kind` is `publish`, `compaction`, `rewrite` or the operation."""

    at_ms: int
    snapshot_id: int
    kind: str
    totals: Mapping[str, int]
    cycle: Cycle | None = None

    @property
    def dv_share(self) -> float:
        """Share of the rows that deletion vectors hide."""
        return self.totals["position_deletes"] / max(self.totals["records"], 1)


def read_history(metadata: TableMetadata, target: str) -> list[Point]:
    """The snapshots of `target` that have not expired, the oldest first. Pure."""
    ref = metadata.refs.get(target)
    head_id = None if ref is None else ref.snapshot_id
    chain = list(ancestors(metadata, head_id))
    return [_point(snapshot) for snapshot in reversed(chain)]


def read_cycles(metadata: TableMetadata, target: str) -> list[Cycle]:
    """The publishes among them."""
    return [each.cycle for each in read_history(metadata, target) if each.cycle is not None]


def _point(snapshot: Snapshot) -> Point:
    cycle = _cycle(snapshot)
    if cycle is not None:
        kind = "publish"
    elif is_compaction(snapshot):
        kind = "compaction"
    else:
        kind = "rewrite" if is_rewrite(snapshot) else operation_of(snapshot).value
    return Point(
        at_ms=committed_ms(snapshot),
        snapshot_id=snapshot.snapshot_id,
        kind=kind,
        totals={name: counter(snapshot, key) for name, key in TOTALS.items()},
        cycle=cycle,
    )


def _cycle(snapshot: Snapshot) -> Cycle | None:
    if snapshot.summary is None or not is_publish(snapshot):
        return None
    properties = snapshot.summary.additional_properties
    oldest = counter(snapshot, OLDEST_SOURCE_MS) or counter(snapshot, OLDEST_STAGED_MS)
    return Cycle(
        at_ms=committed_ms(snapshot),
        snapshot_id=snapshot.snapshot_id,
        staged_commits=counter(snapshot, STAGED_COMMITS),
        equality_deletes=counter(snapshot, EQUALITY_DELETES),
        rows=counter(snapshot, "added-records"),
        deleted_rows=counter(snapshot, DELETED_ROWS),
        freshness_ms=max(committed_ms(snapshot) - oldest, 0) if oldest else None,
        phases_ms={
            key.removeprefix(PHASE_MS): counter(snapshot, key)
            for key in properties
            if key.startswith(PHASE_MS)
        },
    )
