"""Which pairs of snapshots a changelog compares.

| asked for                                    | steps                                             |
|----------------------------------------------|---------------------------------------------------|
| net                                          | one: `from` to `to`, whatever lies between        |
| per snapshot, `from` in the history of `to`  | one per snapshot after `from`                     |
| per snapshot, `from` elsewhere (rolled back) | first one back to the newest common ancestor      |

A snapshot whose operation is `replace` (compaction) changes no rows by the format's definition; it
gets an ordinal, and no step.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from tableformat.commit.branch_history import is_first, operation_of, snapshots_by_id, walk_back
from tableformat.errors import NotFoundError


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeStep:
    """Two versions of the rows; None is the empty table.

    Attributes:
        ordinal: Counts snapshots from 0: a higher one is applied later.
        commit_snapshot_id: The snapshot that made the changes; of a step back, the one it leads
            to; None when that is the empty table.
    """

    old: Snapshot | None
    new: Snapshot | None
    ordinal: int
    commit_snapshot_id: int | None


def plan_steps(
    metadata: TableMetadata, old: Snapshot | None, new: Snapshot | None, *, net: bool
) -> list[ChangeStep]:
    """See the module's text.

    Raises:
        NotFoundError: A snapshot between the two has expired, so that what it changed is unknown.
    """
    if old == new:
        return []
    if net:
        return [_step(old, new, 0)]
    forward, meeting = _forward(metadata, old, new)
    steps: list[ChangeStep] = []
    ordinal = 0
    if meeting != old:
        steps.append(_step(old, meeting, ordinal))
        ordinal += 1
    before = meeting
    for snapshot in forward:
        if operation_of(snapshot) != Operation.REPLACE:
            steps.append(_step(before, snapshot, ordinal))
        before = snapshot
        ordinal += 1
    return steps


def _step(old: Snapshot | None, new: Snapshot | None, ordinal: int) -> ChangeStep:
    return ChangeStep(
        old=old,
        new=new,
        ordinal=ordinal,
        commit_snapshot_id=None if new is None else new.snapshot_id,
    )


def _forward(
    metadata: TableMetadata, old: Snapshot | None, new: Snapshot | None
) -> tuple[list[Snapshot], Snapshot | None]:
    """Snapshots after the newest common ancestor up to `new`, oldest first; and the ancestor."""
    by_id = snapshots_by_id(metadata)
    history = list(walk_back(by_id, None if new is None else new.snapshot_id))
    places = {snapshot.snapshot_id: place for place, snapshot in enumerate(history)}
    oldest = old
    for snapshot in walk_back(by_id, None if old is None else old.snapshot_id):
        place = places.get(snapshot.snapshot_id)
        if place is not None:
            return history[:place][::-1], history[place]
        oldest = snapshot
    cut = [each for each in (*history[-1:], oldest) if each is not None and not is_first(each)]
    if not cut:
        return history[::-1], None  # both began with the empty table
    gone = cut[0].parent_snapshot_id or f"before {cut[0].snapshot_id}"
    raise NotFoundError(
        f"snapshot {gone} has expired, so its changes cannot be told one by one",
        action="ask for net changes, or start from a newer snapshot",
        from_snapshot=None if old is None else old.snapshot_id,
        to_snapshot=None if new is None else new.snapshot_id,
    )
