"""What older versions of the metadata say of main's history where the newest one does not.

REPLACE TABLE begins main's history and its log anew. Where other tools alone have written the table
nothing else of its newest version says that the root of staging was main's: it looks like that of a
branch that was begun on an empty table. And where a main had become empty, PyIceberg's expiry
leaves a snapshot of another tool that looks like main's first one: what was published before is not
told by it.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.table.snapshots import Snapshot

from resolver.cursor import cursor_of, replaced_target
from resolver.former_versions import former_versions
from tableformat.catalog.base import TableState
from tableformat.commit.branch_history import (
    ancestors,
    branch_history,
    committed_to,
    is_first,
    snapshots_by_id,
)
from tableformat.environment import Environment
from tableformat.spec.names import MAIN_BRANCH


def lost_its_parent(environment: Environment, state: TableState, target: str) -> bool:
    """Whether the oldest snapshot of the target only looks like its first.

    Older metadata files are read, newest first, where another tool has made it, no commit above it
    says what was published, and some from before it have expired: their numbers are missing.
    """
    if cursor_of(state, target) is not None:
        return False
    *_, first = [None, *branch_history(state, target)]
    if first is None or not is_first(first) or committed_to(first) is not None:
        return False
    number = first.sequence_number or 0
    numbers = {each.sequence_number or 0 for each in state.metadata.snapshots}
    if sum(0 < each < number for each in numbers) >= number - 1:
        return False
    for before in former_versions(environment, state, since_ms=first.timestamp_ms):
        same = snapshots_by_id(before).get(first.snapshot_id)
        if same is not None and same.parent_snapshot_id is not None:
            return True
    return False


def check_was_not_main(
    environment: Environment,
    state: TableState,
    waiting: Sequence[Snapshot],
    *,
    staging: str,
    target: str,
) -> None:
    """Refuse to publish what once was main to the table that has replaced it.

    Args:
        environment: Where older metadata files are read, newest first, those since `waiting` began;
            none where icefold has staged the oldest, or has published. One that is gone ends it.
        state: The table version.
        waiting: The staged snapshots that wait, oldest first.
        staging: Their branch.
        target: Where they would be published.

    Raises:
        LostCursorError: Some of them were main's.
    """
    root = next(iter(waiting), None)
    is_begun = target == MAIN_BRANCH and state.head(target) is not None
    if root is None or not is_begun or not is_first(root) or committed_to(root) is not None:
        return
    if cursor_of(state, target) is not None:
        return
    ids = {each.snapshot_id for each in waiting}
    for before in former_versions(environment, state, since_ms=root.timestamp_ms):
        main = before.refs.get(MAIN_BRANCH)
        for snapshot in ancestors(before, None if main is None else main.snapshot_id):
            if snapshot.snapshot_id in ids:
                raise replaced_target(state, staging, target, snapshot)
