"""Branches and tags: create, move, drop. Every move is a compare-and-swap on the expected head.

A move changes no snapshot, so row ids and sequence numbers stay (fast-forward preserves them, spec:
Row Lineage). A lost swap is tried again only while the ref is still what the caller planned on.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile

from pyiceberg.table.refs import SnapshotRef, SnapshotRefType

from tableformat.catalog.base import Identifier, TableState
from tableformat.commit.branch_history import ancestors, check_rows_are_whole, is_ancestor
from tableformat.commit.ref_change import RefChange
from tableformat.commit.retention import Retention
from tableformat.commit.swap import swap_until_settled
from tableformat.environment import Environment
from tableformat.errors import (
    AlreadyExistsError,
    CommitConflictError,
    InvalidInputError,
    NotFoundError,
)
from tableformat.spec.names import MAIN_BRANCH


def create_branch(
    environment: Environment,
    identifier: Identifier,
    name: str,
    *,
    snapshot_id: int | None = None,
    retention: Retention | None = None,
) -> TableState:
    """Create a branch at `snapshot_id`, or at the head of `main`.

    Raises:
        AlreadyExistsError: The ref exists and points elsewhere.
        InvalidInputError: The table has no snapshot to point at.
        NotFoundError: No such snapshot.
    """
    return _create(environment, identifier, name, SnapshotRefType.BRANCH, snapshot_id, retention)


def create_tag(
    environment: Environment,
    identifier: Identifier,
    name: str,
    *,
    snapshot_id: int | None = None,
    max_ref_age_ms: int | None = None,
) -> TableState:
    """Create a tag at `snapshot_id`, or at the head of `main`. Errors as in `create_branch`."""
    if name == MAIN_BRANCH:
        raise InvalidInputError("main cannot be a tag")
    retention = Retention(max_ref_age_ms=max_ref_age_ms)
    return _create(environment, identifier, name, SnapshotRefType.TAG, snapshot_id, retention)


def drop_ref(environment: Environment, identifier: Identifier, name: str) -> TableState:
    """Drop a branch or tag; its snapshots stay until expiry.

    Raises:
        InvalidInputError: `main`.
        NotFoundError: No such ref.
    """
    if name == MAIN_BRANCH:
        raise InvalidInputError("main cannot be dropped")

    def target(state: TableState) -> None:
        _require_ref(state, name)

    return _move(environment, identifier, name, target)


def fast_forward(
    environment: Environment,
    identifier: Identifier,
    branch: str,
    *,
    to: str | int,
    expected_head: int | None = None,
) -> TableState:
    """Move `branch` forward along its own history to a ref or snapshot; creates it if missing.

    Args:
        environment: Catalog and clock.
        identifier: The table.
        branch: The branch to move.
        to: A branch or tag name, or a snapshot id.
        expected_head: The head planned against; None: whatever it is.

    Raises:
        CommitConflictError: The head is not the expected one, or not an ancestor of the target.
        NotFoundError: No such target.
        UnsupportedError: `main` would get rows whose columns are missing.
    """

    def target(state: TableState) -> int:
        goal = _resolve(state, to)
        ref = _branch_or_none(state, branch)
        _check_rows_are_whole(state, branch, ref, goal)
        if ref is None:
            if expected_head is not None:
                _check_head(branch, None, expected_head)
            return goal
        if expected_head is not None and ref.snapshot_id != goal:
            _check_head(branch, ref.snapshot_id, expected_head)
        if not is_ancestor(state.metadata, ref.snapshot_id, of=goal):
            raise CommitConflictError(
                "cannot fast-forward: the head is not an ancestor of the target",
                conflicts=[f"snapshot {ref.snapshot_id}"],
                branch=branch,
                head=ref.snapshot_id,
                target=goal,
            )
        return goal

    return _move(environment, identifier, branch, target)


def replace_branch(
    environment: Environment,
    identifier: Identifier,
    branch: str,
    *,
    to: str | int,
    expected_head: int | None,
    default_retention: Retention | None = None,
) -> TableState:
    """Point `branch` at a ref or snapshot, related or not, if its head is still `expected_head`.

    Args:
        environment: Catalog and clock.
        identifier: The table.
        branch: The branch to move.
        to: A branch or tag name, or a snapshot id.
        expected_head: The head planned against; None: the branch must not exist.
        default_retention: For a branch that says nothing itself; what one says stays.

    Raises:
        CommitConflictError: The branch has moved.
        NotFoundError: No such target.
        UnsupportedError: `main` would get rows whose columns are missing.
    """

    def target(state: TableState) -> int:
        goal = _resolve(state, to)
        ref = _branch_or_none(state, branch)
        _check_rows_are_whole(state, branch, ref, goal)
        _check_head(branch, None if ref is None else ref.snapshot_id, expected_head)
        return goal

    return _move(environment, identifier, branch, target, default_retention=default_retention)


def rollback(
    environment: Environment,
    identifier: Identifier,
    *,
    snapshot_id: int,
    branch: str = MAIN_BRANCH,
    expected_head: int | None = None,
) -> TableState:
    """Point `branch` back at one of its own ancestors. Snapshots after it stay until expiry.

    Raises:
        CommitConflictError: The head is not the expected one (if given).
        InvalidInputError: The snapshot is not in the branch's history.
        NotFoundError: No such branch or snapshot.
    """

    def target(state: TableState) -> int:
        ref = _branch_or_none(state, branch)
        if ref is None:
            raise NotFoundError("no such branch", table=state.name, branch=branch)
        if expected_head is not None and ref.snapshot_id != snapshot_id:
            _check_head(branch, ref.snapshot_id, expected_head)
        if state.metadata.snapshot_by_id(snapshot_id) is None:
            raise NotFoundError("no such snapshot", table=state.name, snapshot_id=snapshot_id)
        if not is_ancestor(state.metadata, snapshot_id, of=ref.snapshot_id):
            raise InvalidInputError(
                "cannot roll back: the snapshot is not in the branch's history",
                branch=branch,
                snapshot_id=snapshot_id,
                head=ref.snapshot_id,
            )
        return snapshot_id

    return _move(environment, identifier, branch, target)


def _create(
    environment: Environment,
    identifier: Identifier,
    name: str,
    ref_type: SnapshotRefType,
    snapshot_id: int | None,
    retention: Retention | None,
) -> TableState:
    def target(state: TableState) -> int:
        main = state.ref(MAIN_BRANCH)
        goal = main.snapshot_id if snapshot_id is None and main is not None else snapshot_id
        if goal is None:
            raise InvalidInputError(
                f"cannot create a {ref_type.value}: the table has no snapshot",
                action="commit to the branch instead; that creates it",
                table=state.name,
                ref=name,
            )
        ref = state.ref(name)
        if ref is not None and (ref.snapshot_id, ref.snapshot_ref_type) != (goal, ref_type):
            raise AlreadyExistsError(
                "ref exists already", table=state.name, ref=name, snapshot_id=ref.snapshot_id
            )
        return goal

    return _move(environment, identifier, name, target, ref_type=ref_type, retention=retention)


def _move(
    environment: Environment,
    identifier: Identifier,
    name: str,
    target: Callable[[TableState], int | None],
    *,
    ref_type: SnapshotRefType = SnapshotRefType.BRANCH,
    retention: Retention | None = None,
    default_retention: Retention | None = None,
) -> TableState:
    change = RefChange(name, target, ref_type, retention, default_retention)
    return swap_until_settled(environment, identifier, change).state


def _check_rows_are_whole(
    state: TableState, branch: str, ref: SnapshotRef | None, goal: int
) -> None:
    """Of what `main` would get; other branches may hold rows whose columns are missing."""
    if branch == MAIN_BRANCH:
        path = ancestors(state.metadata, goal)
        new = takewhile(lambda each: ref is None or each.snapshot_id != ref.snapshot_id, path)
        check_rows_are_whole(state, new, action="run resolve")


def _resolve(state: TableState, to: str | int) -> int:
    return to if isinstance(to, int) else _require_ref(state, to).snapshot_id


def _require_ref(state: TableState, name: str) -> SnapshotRef:
    ref = state.ref(name)
    if ref is None:
        raise NotFoundError("no such branch or tag", table=state.name, ref=name)
    return ref


def _branch_or_none(state: TableState, name: str) -> SnapshotRef | None:
    ref = state.ref(name)
    if ref is not None and ref.snapshot_ref_type != SnapshotRefType.BRANCH:
        raise InvalidInputError("not a branch but a tag", table=state.name, ref=name)
    return ref


def _check_head(branch: str, head: int | None, expected: int | None) -> None:
    if head != expected:
        raise CommitConflictError(
            "the branch has moved since the change was planned",
            conflicts=[] if head is None else [f"snapshot {head}"],
            action="plan again on the current head",
            branch=branch,
            head=head,
            expected_head=expected,
        )
