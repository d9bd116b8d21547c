"""Staged batches that stand on one which the table has lost.

A staging branch that was moved back behind the cursor lacks batches that the target has; what is
staged then says on which one it stands (`tableformat.cdc.batch_commit`). If the target is rolled
back as well, nobody has those: what stands on them would hide for ever that they are missing. The
stream sees that it is no further than what is there, and stages all that lacks once more, as a
batch that stands on nothing else. With that the others are left out: it has what they have.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pyiceberg.table.snapshots import Snapshot

from tableformat.catalog.base import TableState
from tableformat.cdc.batch_commit import batch_in, shown_batch
from tableformat.commit.branch_history import summary_of
from tableformat.errors import InvalidInputError
from tableformat.spec.names import BATCH_STANDS_ON, QUERY_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class LostBatch:
    """A staged snapshot of a batch, and the one that it stands on, which is lost.

    `is_staged_again`: later ones of its query, which know what is there, bring what it does.
    """

    snapshot_id: int
    stands_on: str
    is_staged_again: bool = False

    def describe(self, table: str) -> str:
        """What is lost, and what brings it again."""
        return (
            f"{table} has lost batch {self.stands_on}, as its branches were moved back, and staged "
            f"snapshot {self.snapshot_id} stands on it: start the stream anew, which stages it "
            "again"
        )


def lost_batches(state: TableState, covered: Iterable[Snapshot], *, target: str) -> list[LostBatch]:
    """Which of some staged snapshots, oldest first, stand on what a target would lack. Pure."""
    by_query: dict[str, list[Snapshot]] = {}
    for each in covered:
        by_query.setdefault(summary_of(each).get(QUERY_ID, ""), []).append(each)
    found: list[LostBatch] = []
    for query, snapshots in by_query.items():
        if any(BATCH_STANDS_ON in summary_of(each) for each in snapshots):
            found += _lost_of(state, query, snapshots, target)
    return found


def _lost_of(
    state: TableState, query: str, snapshots: Iterable[Snapshot], target: str
) -> list[LostBatch]:
    found: list[LostBatch] = []
    shown = shown_batch(state, target, query)
    reached = -1 if shown is None else shown.number
    for each in snapshots:
        batch = batch_in(summary_of(each), query, each.snapshot_id)
        if batch is not None and batch.stands_on > reached:
            found.append(
                LostBatch(snapshot_id=each.snapshot_id, stands_on=f"{query}/{batch.stands_on}")
            )
        elif batch is not None:
            reached = max(reached, batch.number)
            found = [replace(each, is_staged_again=True) for each in found]
    return found


def without_lost(state: TableState, covered: Sequence[Snapshot], *, target: str) -> frozenset[int]:
    """Ids of those staged snapshots that are left out, as they stand on what is lost.

    Raises:
        InvalidInputError: What one of them brings is not staged again.
    """
    found = lost_batches(state, covered, target=target)
    lost = next((each for each in found if not each.is_staged_again), None)
    if lost is not None:
        raise InvalidInputError(
            lost.describe(state.name),
            staging_stands_on=covered[0].parent_snapshot_id,
            action="a limit must not end before that; --from-snapshot with the id that staging "
            "stands on publishes without what is lost",
        )
    return frozenset(each.snapshot_id for each in found)
