"""Staging does not grow: when all of it is published, it moves to a snapshot of the target.

So `staging` is the target plus the unresolved tail: readable fresh by merge-on-read, and cheap to
commit to (docs/design/0012). A publish moves it along in its own commit. While nothing
is staged the target goes on (appends, compaction), and staging follows it, else it would keep old
snapshots and their files from expiry.

It moves only from the covered head; when a writer has staged more meanwhile, it stays and a later
cycle trims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, takewhile

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from resolver.cursor import (
    marker_of,
    newest_marker,
    plan_backlog,
    repeats_cursor,
)
from tableformat.catalog.base import Identifier, TableState
from tableformat.commit.branch_history import ancestors, branch_history, is_ancestor, summary_of
from tableformat.commit.changeset import Follower
from tableformat.commit.refs import replace_branch
from tableformat.commit.retention import STAGING_RETENTION
from tableformat.environment import Environment
from tableformat.errors import (
    CommitConflictError,
    CommitUnknownError,
    CorruptDataError,
    InvalidInputError,
)
from tableformat.spec.names import FLINK_JOB, FLINK_OPERATOR, SPARK_EPOCH, SPARK_QUERY

# Summary keys that tell a writer, and the one that says how far it has got.
FOREIGN_WRITERS = (
    ((FLINK_JOB, FLINK_OPERATOR), "flink.max-committed-checkpoint-id"),
    ((SPARK_QUERY,), SPARK_EPOCH),
)
CONNECT_OFFSETS = "kafka.connect.offsets."  # + topic and group: of that sink


def follower_of(
    state: TableState,
    *,
    staging: str,
    target: str,
    covered_head: int,
    summary: Mapping[str, str],
) -> Follower | None:
    """Staging, if it can move onto a publish on the target's head in `state`. Pure.

    Args:
        state: The table.
        staging: The branch with staged changes.
        target: The branch that is published on.
        covered_head: The last staged snapshot that is published.
        summary: What the publish says of writers.
    """
    if staging == target or state.head_id(staging) != covered_head:
        return None
    visible = list(ancestors(state.metadata, state.head_id(target)))
    if _hides_a_writer(state.metadata, covered_head, visible, [summary]):
        return None
    return Follower(staging, covered_head)


def _move(
    environment: Environment,
    identifier: Identifier,
    *,
    staging: str,
    covered_head: int,
    published: int,
) -> bool:
    """Move `staging` from `covered_head` to the `published` snapshot, if it still is there.

    A branch without any retention of its own gets that of staging branches in the same commit.

    Returns:
        Whether it moved. False also when the answer was lost: either way both positions are
        right ones, the next cycle sees which it is.
    """
    environment.runtime.fail_point("resolve.before_trim")
    try:
        replace_branch(
            environment,
            identifier,
            staging,
            to=published,
            expected_head=covered_head,
            default_retention=STAGING_RETENTION,
        )
    except (CommitConflictError, CommitUnknownError):
        return False
    environment.runtime.fail_point("resolve.after_trim")
    return True


def trim_idle(
    environment: Environment,
    state: TableState,
    *,
    staging: str,
    target: str,
    fence: Callable[[], object] | None,
) -> bool:
    """Move an idle `staging` to its `idle_position` in `state`; True if it moved.

    Raises:
        LeaseLostError: `fence`, called before the move, says that the lock is someone else's.
    """
    head, goal = state.head(staging), idle_position(state, staging=staging, target=target)
    if head is None or goal is None:
        return False
    if fence is not None:
        fence()
    return _move(
        environment,
        state.identifier,
        staging=staging,
        covered_head=head.snapshot_id,
        published=goal,
    )


def idle_position(state: TableState, *, staging: str, target: str) -> int | None:
    """The target's snapshot that `staging` belongs at when all of it is published. Pure.

    It is the newest one that repeats the cursor and what is known of writers. Above it there are
    commits of other tools only; they repeat nothing, and once what is below them has expired,
    nobody would find it any more.

    Returns:
        None where staging stays: it is there already, something waits, it cannot be told whether
        something does, or a writer would not find its last commit.
    """
    head, metadata = state.head(staging), state.metadata
    if staging == target or head is None:
        return None
    history = list(branch_history(state, target))
    goal = next((each for each in history if repeats_cursor(each)), None)
    if goal is None or marker_of(goal) != newest_marker(history):
        return None
    if is_ancestor(metadata, goal.snapshot_id, of=head.snapshot_id):
        return None
    try:
        waiting = plan_backlog(state, staging=staging, target=target)
    except (InvalidInputError, CorruptDataError):
        return None
    visible = list(ancestors(metadata, goal.snapshot_id))
    if waiting or _hides_a_writer(metadata, head.snapshot_id, visible):
        return None
    return goal.snapshot_id


def _hides_a_writer(
    metadata: TableMetadata,
    head_id: int,
    visible: Sequence[Snapshot],
    newer: Sequence[Mapping[str, str]] = (),
) -> bool:
    """Whether moving a branch would hide a foreign writer's last commit from it.

    Args:
        metadata: Of the table.
        head_id: Where the branch is.
        visible: The history that it would get, the newest first ...
        newer: ... and summaries of snapshots above that.

    A sink that comes back looks for its newest snapshot, and commits again what it does not find.
    A publish can repeat only one Flink job and one query of Spark, so with several on one staging
    branch some would not find theirs.
    """
    ids = {snapshot.snapshot_id for snapshot in visible}
    hidden = takewhile(lambda each: each.snapshot_id not in ids, ancestors(metadata, head_id))
    before = _last_positions(map(summary_of, hidden))
    if not before:
        return False
    found = _last_positions(chain(newer, map(summary_of, visible)))
    return any(found.get(writer) != last for writer, last in before.items())


def _last_positions(
    summaries: Iterable[Mapping[str, str]],
) -> dict[tuple[str | None, ...], tuple[str | None]]:
    """How far each foreign writer has got, by the summaries of a history, newest first."""
    last: dict[tuple[str | None, ...], tuple[str | None]] = {}
    for summary in summaries:
        for keys, position in FOREIGN_WRITERS:
            writer = tuple(summary.get(key) for key in keys)
            if any(writer):
                last.setdefault(writer, (summary.get(position),))
        for key, text in summary.items():
            if key.startswith(CONNECT_OFFSETS):
                last.setdefault((key,), (text,))
    return last
