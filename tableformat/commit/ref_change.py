"""A branch or tag that is moved or dropped, as a `TableChange`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pyiceberg.exceptions import ValidationError
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.update import RemoveSnapshotRefUpdate, SetSnapshotRefUpdate, TableUpdate

from tableformat.catalog.base import TableState
from tableformat.commit.retention import Retention, retention_or
from tableformat.errors import InvalidInputError, NotFoundError


@dataclass(frozen=True, slots=True)
class RefChange:
    """`TableChange` that moves or drops one ref.

    `target` gives the snapshot to point at (None: drop the ref), or raises; it is asked in every
    attempt. `done` remembers the answer, to recognise the change if the catalog's reply is lost.
    `retention` replaces what the ref says, `default_retention` is for one that says nothing.
    """

    name: str
    target: Callable[[TableState], int | None]
    type: SnapshotRefType = SnapshotRefType.BRANCH
    retention: Retention | None = None
    default_retention: Retention | None = None
    done: list[int | None] = field(default_factory=list, init=False)

    def prepare(self, state: TableState) -> Sequence[TableUpdate]:
        """One update; none when the ref is there already."""
        target = self.target(state)
        self.done[:] = [target]
        before = state.ref(self.name)
        if target is None:
            return [] if before is None else [RemoveSnapshotRefUpdate(ref_name=self.name)]
        if state.metadata.snapshot_by_id(target) is None:
            raise NotFoundError("no such snapshot", table=state.name, snapshot_id=target)
        default = self.default_retention or Retention()
        retention = self.retention or retention_or(before, default)
        update = SetSnapshotRefUpdate(
            ref_name=self.name,
            type=self.type,
            snapshot_id=target,
            max_ref_age_ms=retention.max_ref_age_ms,
            max_snapshot_age_ms=retention.max_snapshot_age_ms,
            min_snapshots_to_keep=retention.min_snapshots_to_keep,
        )
        return [] if before == _ref_of(update) else [update]

    def has_landed(self, state: TableState) -> bool:
        """Whether the ref is where we wanted it; who moved it there makes no difference."""
        if not self.done:
            return False
        ref = state.ref(self.name)
        return (None if ref is None else ref.snapshot_id) == self.done[0]

    def context(self) -> dict[str, object]:
        """The ref and its target."""
        return {"ref": self.name, "target": self.done[0] if self.done else None}


def _ref_of(update: SetSnapshotRefUpdate) -> SnapshotRef:
    try:
        return SnapshotRef(
            snapshot_id=update.snapshot_id,
            snapshot_ref_type=SnapshotRefType(update.type),
            max_ref_age_ms=update.max_ref_age_ms,
            max_snapshot_age_ms=update.max_snapshot_age_ms,
            min_snapshots_to_keep=update.min_snapshots_to_keep,
        )
    except (ValueError, ValidationError) as error:
        raise InvalidInputError(
            "retention settings must be positive; a tag has max_ref_age_ms only",
            ref=update.ref_name,
        ) from error
