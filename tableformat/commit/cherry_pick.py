"""Cherry-pick: apply the change of one snapshot to another branch, as a new snapshot.

```
snapshot's parent == head          the branch is moved: same snapshot, ids kept      (fast-forward)
append                             its data files are added again; new row ids
overwrite, delete, row delta       its removals too, validated from its own parent
replace                            the same; what it rewrote must still be live
```

The new snapshot names its source in `source-snapshot-id`; picking one snapshot twice is refused,
also when the branch has it already (write-audit-publish). A snapshot with a `wap.id` publishes it
as `published-wap-id`, and the same id is published once.

Deletion vectors are added as they are, with what they repeat of deletes that are not picked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from tableformat.catalog.base import Identifier, TableState
from tableformat.commit.branch_history import (
    SnapshotChanges,
    check_rows_are_whole,
    load_changes,
    operation_of,
    snapshots_by_id,
    summary_of,
    walk_back,
)
from tableformat.commit.carried_properties import load_carried
from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.commit.engine import CommitResult, commit
from tableformat.commit.refs import fast_forward
from tableformat.environment import Environment
from tableformat.errors import (
    AlreadyExistsError,
    CommitConflictError,
    InvalidInputError,
    NotFoundError,
)
from tableformat.scan.former_schema import check_readable
from tableformat.spec.data_file import ManifestEntry
from tableformat.spec.decimal_text import parse_decimal
from tableformat.spec.names import MAIN_BRANCH, SOURCE_SNAPSHOT_ID, STAGING_MARKER

PickCheck = Callable[[TableState, SnapshotChanges], None]
WAP_ID = "wap.id"
PUBLISHED_WAP_ID = "published-wap-id"

_KINDS = {
    Operation.APPEND: CommitKind.APPEND,
    Operation.REPLACE: CommitKind.REWRITE,
    Operation.OVERWRITE: CommitKind.ROW_DELTA,
    Operation.DELETE: CommitKind.ROW_DELTA,
}


def cherry_pick(
    environment: Environment,
    identifier: Identifier,
    *,
    snapshot_id: int,
    branch: str = MAIN_BRANCH,
    check: PickCheck | None = None,
) -> CommitResult:
    """Apply the change of `snapshot_id` to the head of `branch`.

    Args:
        environment: Catalog and store.
        identifier: The table.
        snapshot_id: What to apply.
        branch: Where to.
        check: Called with each head that it is tried on, and the change; may refuse by raising.

    Raises:
        AlreadyExistsError: The branch has the snapshot, or one picked from it, or its `wap.id`, or
            a publish that covers it; or its files, when the history that would tell has expired.
        CommitConflictError: What it removes is not live on the branch, or something there excludes
            its deletes.
        InvalidInputError: The parent of a snapshot that removes files or deletes rows has expired,
            so it cannot be validated.
        NotFoundError: No such snapshot.
        UnsupportedError: Columns of its rows are missing, or it changed a table that was replaced.
    """
    state = environment.catalog.load_table(identifier)
    while True:
        head = state.head_id(branch)
        try:
            return _pick_onto(environment, state, snapshot_id, branch, check)
        except CommitConflictError:
            # The engine tries lost swaps again, but "not picked yet" is checked here, per head.
            state = environment.catalog.load_table(identifier)
            if state.head_id(branch) == head:
                raise


def _pick_onto(
    environment: Environment,
    state: TableState,
    snapshot_id: int,
    branch: str,
    check: PickCheck | None,
) -> CommitResult:
    picked = state.metadata.snapshot_by_id(snapshot_id)
    if picked is None:
        raise NotFoundError("no such snapshot", table=state.name, snapshot_id=snapshot_id)
    _check_not_picked(state, picked, branch)
    check_rows_are_whole(state, [picked], action="run resolve")
    changes = load_changes(environment.store, picked)
    check_readable(
        state,
        state.metadata.schema(),
        [each.snapshot_id for each in changes.added_data],
        action="read it by its id, and append its rows as the table has them now",
    )
    if check is not None:
        check(state, changes)
    head = state.head(branch)
    if head is not None and picked.parent_snapshot_id == head.snapshot_id:
        moved = fast_forward(
            environment, state.identifier, branch, to=snapshot_id, expected_head=head.snapshot_id
        )
        return CommitResult(state=moved, snapshot=picked, attempts=1)
    if state.ref(branch) is None:
        head = state.head(MAIN_BRANCH)  # which it is forked from
    changeset = _changeset(state.metadata, changes, head, branch)
    return commit(environment, state.identifier, changeset, state=state)


def _changeset(
    metadata: TableMetadata, changes: SnapshotChanges, head: Snapshot | None, branch: str
) -> Changeset:
    picked = changes.snapshot
    kind = _KINDS[operation_of(picked)]
    summary = {SOURCE_SNAPSHOT_ID: str(picked.snapshot_id)}
    wap_id = summary_of(picked).get(WAP_ID)
    if wap_id is not None:
        summary[PUBLISHED_WAP_ID] = wap_id
    data, deletes = changes.added_data, changes.added_deletes
    removed = tuple(changes.removed)
    return Changeset(
        kind=kind,
        branch=branch,
        operation=operation_of(picked),
        added_data_files=tuple(entry.data_file for entry in data),
        added_delete_files=tuple(entry.data_file for entry in deletes),
        removed_entries=removed,
        validation=_validation(metadata, picked, head, removed, deletes),
        expected_head=None if head is None else head.snapshot_id,
        strict_head=True,
        staged=frozenset({picked.snapshot_id}),  # its files go with it
        refuse_live_files=True,
        summary=summary,
    )


def _validation(
    metadata: TableMetadata,
    picked: Snapshot,
    head: Snapshot | None,
    removed: tuple[ManifestEntry, ...],
    deletes: tuple[ManifestEntry, ...],
) -> Validation:
    """Validate from where both histories meet: that is what the picked change was made on."""
    if not removed and not deletes:
        return Validation()
    by_id = snapshots_by_id(metadata)
    ours = {each.snapshot_id for each in walk_back(by_id, picked.parent_snapshot_id)}
    head_id = None if head is None else head.snapshot_id
    for snapshot in walk_back(by_id, head_id):
        if snapshot.snapshot_id in ours:
            return Validation(starting_snapshot_id=snapshot.snapshot_id)
    raise InvalidInputError(
        "cannot pick a snapshot that removes files or deletes rows: its history and the branch's "
        "have no snapshot in common",
        snapshot_id=picked.snapshot_id,
        head=head_id,
    )


def _check_not_picked(state: TableState, picked: Snapshot, branch: str) -> None:
    wap_id = summary_of(picked).get(WAP_ID)
    by_id, head_id = snapshots_by_id(state.metadata), state.head_id(branch)
    for snapshot in walk_back(by_id, head_id):
        same_source = summary_of(snapshot).get(SOURCE_SNAPSHOT_ID) == str(picked.snapshot_id)
        same_wap_id = wap_id is not None and wap_id in {
            summary_of(snapshot).get(WAP_ID),
            summary_of(snapshot).get(PUBLISHED_WAP_ID),
        }
        if snapshot.snapshot_id == picked.snapshot_id or same_source or same_wap_id:
            raise AlreadyExistsError(
                "the change is on the branch already",
                table=state.name,
                branch=branch,
                snapshot_id=picked.snapshot_id,
                found_in=snapshot.snapshot_id,
            )
    if any(each.snapshot_id == picked.snapshot_id for each in _published(by_id, head_id)):
        raise AlreadyExistsError(
            "the staged snapshot was published to the branch already",
            table=state.name,
            branch=branch,
            snapshot_id=picked.snapshot_id,
        )


def _published(by_id: Mapping[int, Snapshot], head_id: int | None) -> Iterator[Snapshot]:
    """Staged snapshots that a marker in a branch's history covers; each publish has left one."""
    history = list(walk_back(by_id, head_id))
    own = {each.snapshot_id for each in history}
    markers = [load_carried(by_id, head_id).marker]
    markers += [summary_of(each).get(STAGING_MARKER) for each in history]
    for marker in dict.fromkeys(markers):
        for snapshot in walk_back(by_id, parse_decimal(marker or "")):
            if snapshot.snapshot_id in own or summary_of(snapshot).get(STAGING_MARKER) is not None:
                break
            yield snapshot
