"""Batches that Iceberg's streaming writer on Spark has appended to a staging branch twice.

That writer looks on `main` for the last epoch of its query, wherever it writes. One that is killed
between a commit to a branch and the note in its checkpoint therefore appends the batch again. Here
its own rule is applied to the branch: a batch is left out if the history below it, or what was
published from the branch, has that epoch of the query or a later one. Publishes repeat what they
covered of each query, so neither trim nor expiry, nor another query on the branch, hides it.

What the target has beside that is not asked: a query that went on to `main` is ahead there of what
it has staged.

Rows of a batch that is left out never are on the target, so a delete of one by position means none
there, also one that is staged after the publish that left the batch out and says so.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pyiceberg.table.snapshots import Snapshot

from resolver.staged_snapshots import StagedSnapshot
from tableformat.catalog.base import TableState
from tableformat.commit.branch_history import (
    branch_history,
    committed_to,
    snapshots_by_id,
    summary_of,
    walk_back,
)
from tableformat.commit.carried_properties import load_carried
from tableformat.spec.decimal_text import parse_decimal
from tableformat.spec.names import LEFT_OUT, SPARK_EPOCH, SPARK_QUERY, STAGED_EPOCH

logger = logging.getLogger("icefold.resolver")


def repeated_batches(
    state: TableState, backlog: Sequence[Snapshot], *, target: str
) -> frozenset[int]:
    """Ids of the staged snapshots that repeat an earlier batch of their query.

    Args:
        state: The table version.
        backlog: Staged snapshots, oldest first, the first one that waits among them.
        target: The branch that they are published to.
    """
    staged = list(_batches(each for each in backlog if committed_to(each) is None))
    if not staged:
        return frozenset()
    by_id = snapshots_by_id(state.metadata)
    done = _published(load_carried(by_id, state.head_id(target)).writers)
    for _, query, epoch in _batches(walk_back(by_id, backlog[0].parent_snapshot_id)):
        done[query] = max(epoch, done.get(query, epoch))
    repeated: set[int] = set()
    for snapshot, query, epoch in staged:
        if epoch > done.get(query, -1):
            done[query] = epoch
            continue
        repeated.add(snapshot.snapshot_id)
        logger.warning(
            "%s: staged snapshot %d repeats epoch %d of the Spark query %s and is left out",
            state.name,
            snapshot.snapshot_id,
            epoch,
            query,
        )
    return frozenset(repeated)


def left_out(state: TableState, staged: Iterable[StagedSnapshot], *, target: str) -> frozenset[int]:
    """Ids of the staged snapshots that this cycle leaves out, or publishes of the target did."""
    told = (summary_of(each).get(LEFT_OUT, "") for each in branch_history(state, target))
    ids = (parse_decimal(each) for text in told for each in text.split(","))
    now = (each.snapshot.snapshot_id for each in staged if each.is_repeated)
    return frozenset(each for each in (*ids, *now) if each is not None)


def staged_epochs(covered: Iterable[Snapshot]) -> dict[str, str]:
    """What a publish says of the Spark queries whose staged snapshots, oldest first, it covers."""
    batches = _batches(each for each in covered if committed_to(each) is None)
    return {STAGED_EPOCH + query: str(epoch) for _, query, epoch in batches}


def _batches(snapshots: Iterable[Snapshot]) -> Iterator[tuple[Snapshot, str, int]]:
    """Snapshots that name a query, with query and epoch."""
    for each in snapshots:
        summary = summary_of(each)
        query, epoch = summary.get(SPARK_QUERY), parse_decimal(summary.get(SPARK_EPOCH, ""))
        if query is not None and epoch is not None:
            yield each, query, epoch


def _published(properties: Mapping[str, str]) -> dict[str, int]:
    """The last staged epoch of each query, as a target's history says."""
    return {
        key.removeprefix(STAGED_EPOCH): epoch
        for key, text in properties.items()
        if key.startswith(STAGED_EPOCH) and (epoch := parse_decimal(text)) is not None
    }
