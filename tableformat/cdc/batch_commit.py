"""Exactly once: a batch is in the table when its query id and batch id are in a branch's history.

1. Walk back from the branch's head to the newest commit of the same query. Staged commits say it
   themselves; a publish repeats it for the staged commits it covers, so a trim hides nothing. Where
   the branch says nothing, ask those that it was published to: published commits expire also below
   a tail that still waits, and then nothing is trimmed. A batch on top of what only those have (the
   branch was moved back) says so: once they have lost that as well, it counts no longer, and the
   query goes on from what is there.
2. If that batch is ours or a later one, there is nothing to do.
3. Commit on exactly the head that was walked (compare-and-swap). If the head has moved, or the
   answer was lost, walk again: a late landing of the lost request makes the head move too.

So neither a restart, nor a lost answer, nor a second driver that believes it is the only one can
apply a batch twice.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Snapshot

from tableformat.catalog.base import Identifier, TableState
from tableformat.cdc.truncation import Truncation, VectorsAtHead, vectors_of_all_rows
from tableformat.commit.branch_history import (
    committed_to,
    head_of,
    snapshots_by_id,
    summary_of,
    walk_back,
)
from tableformat.commit.carried_properties import (
    OF_SOURCE,
    OTHER_QUERIES_MAX,
    Carried,
    load_carried,
)
from tableformat.commit.changeset import Changeset, CommitKind
from tableformat.commit.engine import CommitResult, commit
from tableformat.commit.retry import RetryPolicy
from tableformat.environment import Environment
from tableformat.errors import (
    CommitConflictError,
    CommitUnknownError,
    CorruptDataError,
    FencedError,
    InvalidInputError,
    TableError,
)
from tableformat.spec.data_file import DataFile
from tableformat.spec.decimal_text import parse_decimal
from tableformat.spec.names import (
    BATCH_ID,
    BATCH_STANDS_ON,
    MAIN_BRANCH,
    OTHER_QUERY_BATCH,
    OTHER_QUERY_SOURCE,
    QUERY_ID,
    STAGING_MARKER,
)

# A head moves when somebody commits; each loss means that someone else has got ahead. Forty losses
# in a row take minutes of another writer committing without a pause.
HEAD_LOSSES = RetryPolicy(
    retries_max=40, min_wait_ms=50, max_wait_ms=5_000, total_timeout_ms=1_800_000
)
TELL_AFTER_MS = 10_000  # without a commit, and again each time
QUERY_ID_CHARS_MAX = 256
logger = logging.getLogger("icefold.ingest")


@dataclass(frozen=True, slots=True)
class BatchId:
    """Which batch of which query. The query id is as unique as the checkpoint it belongs to.

    Raises:
        InvalidInputError: The query id is empty or very long (snapshots repeat it), or the number
            is negative.
    """

    query_id: str
    number: int

    def __post_init__(self) -> None:
        if not self.query_id or self.number < 0:
            raise InvalidInputError(
                "a batch needs the name of its query and a number from 0 on",
                query_id=repr(self.query_id),
                batch_id=self.number,
            )
        if len(self.query_id) > QUERY_ID_CHARS_MAX:
            raise InvalidInputError(
                "the query id is too long; every snapshot repeats it",
                query_id=f"{self.query_id[:20]}...",
                chars=len(self.query_id),
                chars_max=QUERY_ID_CHARS_MAX,
            )

    @property
    def summary(self) -> dict[str, str]:
        """Its summary properties."""
        return {QUERY_ID: self.query_id, BATCH_ID: str(self.number)}


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """A batch that is in a branch: its number, and what its commit says of the source.

    `source` has the summary's keys (`icefold.source-offsets`, ...). It is empty where another query
    came after it, unless it is a batch of a stream into many tables, or of files.
    """

    number: int
    source: Mapping[str, str] = field(default_factory=dict)

    @property
    def stands_on(self) -> int:
        """The batch below it that its branch lacks, and others have; -1: there is none."""
        found = parse_decimal(self.source.get(BATCH_STANDS_ON, ""))
        return -1 if found is None else found


def committed_batch(state: TableState, branch: str, query_id: str) -> int | None:
    """The newest batch of a query in a branch, or in what was published from it; None if neither.

    Raises:
        CorruptDataError: A summary holds a batch id that is no number.
    """
    found = committed(state, branch, query_id)
    return None if found is None else found.number


def committed(state: TableState, branch: str, query_id: str) -> CommittedBatch | None:
    """As `committed_batch`, with what its commit says of the source."""
    said = _said(state, branch, query_id)
    walked: set[str] = set()
    own = None
    for snapshot_id, own in said:
        if own is not None:
            break
        walked.add(str(snapshot_id))
    published = _published_batch(state, branch, walked, query_id, is_known=own is not None)
    reached = -1 if published is None else published.number
    while own is not None and own.stands_on > reached:
        own = next((batch for _, batch in said if batch is not None), None)
    if published is None or (own is not None and own.number >= reached):
        return own
    return replace(published, source={**published.source, BATCH_STANDS_ON: str(reached)})


def is_committed(
    state: TableState, branch: str, batch: BatchId, *, by_this_driver: bool = False
) -> bool:
    """Whether a batch or a later one of its query is in a branch, or was published from it.

    Raises:
        FencedError: With `by_this_driver`, there is a later one.
        CorruptDataError: See `committed_batch`.
    """
    done = committed_batch(state, branch, batch.query_id)
    if done is None or done < batch.number:
        return False
    if by_this_driver and done > batch.number:
        raise FencedError(
            "a later batch of this query has been committed: another driver runs it, or its "
            "checkpoint is older than the table",
            action="stop the other driver, or start with a new checkpoint and query id",
            table=state.name,
            query_id=batch.query_id,
            batch_id=batch.number,
            committed=done,
        )
    return True


def check_not_lost(
    state: TableState, branch: str, committed_before: BatchId | None, *, action: str
) -> None:
    """Refuse to go on where a branch lacks a batch that its query knows to be committed.

    The catalog was restored from a backup, or the branch was moved back. Batches on top of that
    would hide for ever that those in between are missing. `action` says what brings them again.

    Raises:
        FencedError: Neither that batch nor a later one is in the branch, or was published from it.
        CorruptDataError: See `committed_batch`.
    """
    if committed_before is None:
        return
    done = committed_batch(state, branch, committed_before.query_id)
    if done is not None and done >= committed_before.number:
        return
    if done is None and _forgets_queries(state, branch):
        return
    raise FencedError(
        f"branch {branch!r} no longer has batch {committed_before.number} of this query, which had "
        "been committed: the catalog was restored from a backup, or the branch was moved back",
        action=action,
        table=state.name,
        query_id=committed_before.query_id,
        committed=done,
    )


def _forgets_queries(state: TableState, branch: str) -> bool:
    """Whether a query may have written the branch unseen: others have overtaken it, or expiry."""
    head = head_of(state, branch)
    head_id = None if head is None else head.snapshot_id
    carried = load_carried(snapshots_by_id(state.metadata), head_id)
    repeated = sum(key.startswith(OTHER_QUERY_BATCH) for key in carried.writers)
    return not carried.is_whole or repeated >= OTHER_QUERIES_MAX


def commit_batch(
    environment: Environment,
    identifier: Identifier,
    *,
    branch: str,
    kind: CommitKind,
    batch: BatchId | None,
    data_files: Sequence[DataFile],
    delete_files: Sequence[DataFile] = (),
    truncation: Truncation | None = None,
    summary: Mapping[str, str] | None = None,
    check: Callable[[TableState], None] | None = None,
    is_mark: bool = False,
) -> CommitResult | None:
    """Commit the files of a batch, unless the batch is in the branch already.

    Args:
        environment: Catalog, store, clock.
        identifier: The table.
        branch: Where to; forked from `main` if it does not exist.
        kind: `APPEND` or `ROW_DELTA`.
        batch: Whose files these are; None: commit without looking whether they are there.
        data_files: New data files.
        delete_files: New equality delete files.
        truncation: Deletes the rows that the branch has, too, whatever its head is by then.
        summary: More summary properties.
        check: Called with the table before every attempt; may refuse by raising.
        is_mark: Commit also without a file: the summary says how far the query is.

    Returns:
        The commit; None if this batch or a later one of the query had been committed (its files
        are then not in the table and are left to orphan removal), or there is nothing to commit.

    Raises:
        CommitConflictError: The head kept moving.
        CommitUnknownError: The last attempt may have landed. Calling again settles it.
        TableError: Something else failed; if an attempt before may have landed, it says so.

    Effects: one commit, at most once, whatever is retried.
    """
    runtime = environment.runtime
    started_ms = told_ms = runtime.clock.monotonic_ms()
    attempt = 0
    lost: CommitUnknownError | None = None
    while True:
        attempt += 1
        with _told(lost):
            state = environment.catalog.load_table(identifier)
            done = None if batch is None else committed(state, branch, batch.query_id)
            if batch is not None and done is not None and done.number >= batch.number:
                return None
            if check is not None:
                check(state)  # here, not below: what it refuses does not get right by trying again
            head = head_of(state, branch)
            vectors = VectorsAtHead()
            if truncation is not None:
                vectors = vectors_of_all_rows(environment, state, head, truncation)
            if not (data_files or delete_files or vectors.added or is_mark):
                return None
            changeset = Changeset(
                kind=kind,
                branch=branch,
                added_data_files=tuple(data_files),
                added_delete_files=(*delete_files, *vectors.added),
                removed_entries=vectors.removed,
                expected_head=None if head is None else head.snapshot_id,
                strict_head=True,
                summary=_summary(batch, done) | dict(summary or {}),
                carry_marker=branch == MAIN_BRANCH,
            )
            try:
                return commit(environment, identifier, changeset, state=state, check=check)
            except (CommitConflictError, CommitUnknownError) as error:
                if batch is None and isinstance(error, CommitUnknownError):
                    raise  # nothing tells whether it has landed
                if isinstance(error, CommitUnknownError):
                    lost = error
                now_ms = runtime.clock.monotonic_ms()
                if not HEAD_LOSSES.allows(attempt, elapsed_ms=now_ms - started_ms):
                    raise
                if now_ms - told_ms >= TELL_AFTER_MS:
                    told_ms = now_ms
                    logger.warning(
                        "%s: attempt %d to commit a batch has failed, the next one follows: %s",
                        ".".join(identifier), attempt, error,
                    )  # fmt: skip
        runtime.clock.sleep_ms(HEAD_LOSSES.wait_ms(attempt, runtime))


def _summary(batch: BatchId | None, below: CommittedBatch | None) -> dict[str, str]:
    """What a batch says of itself, and of what its branch lacks below it."""
    said = {} if batch is None else batch.summary
    stands_on = -1 if below is None else below.stands_on
    return said if stands_on < 0 else said | {BATCH_STANDS_ON: str(stands_on)}


@contextmanager
def _told(lost: CommitUnknownError | None) -> Iterator[None]:
    """What ends a batch after an attempt whose outcome is unknown says so."""
    try:
        yield
    except TableError as error:
        if lost is not None and not isinstance(error, CommitUnknownError):
            error.message = f"an attempt before may have landed, but then: {error.message}"
            error.files_safe_to_delete = False
        raise


def _said(
    state: TableState, branch: str, query_id: str
) -> Iterator[tuple[int, CommittedBatch | None]]:
    """What each snapshot of a branch's history, newest first, says of a query.

    Below a publish that stands on what the branch lacks are the staged snapshots that it covered.
    """
    by_id, visited = snapshots_by_id(state.metadata), set[int]()
    head = head_of(state, branch)
    current = None if head is None else head.snapshot_id
    while current is not None and current in by_id and current not in visited:
        visited.add(current)
        snapshot, summary = by_id[current], summary_of(by_id[current])
        found = batch_in(summary, query_id, current)
        yield current, found
        covered = parse_decimal(summary.get(STAGING_MARKER, ""))
        is_above = found is not None and found.stands_on >= 0
        current = covered if is_above and covered else snapshot.parent_snapshot_id


def _published_batch(
    state: TableState, branch: str, staged: Collection[str], query_id: str, *, is_known: bool
) -> CommittedBatch | None:
    """The newest batch of a query that branches know of which `branch` was published to.

    Their marker is among `staged`, or was staged to the branch before that was moved back; or main
    was fast-forwarded to it. Where the branch says something (`is_known`), what waits on other ones
    is not walked. Copies of a target, which it may have been rolled back behind, do not count.
    """
    by_id = snapshots_by_id(state.metadata)
    found: dict[str, CommittedBatch | None] = {}
    for name, ref in state.metadata.refs.items():
        if name == branch or ref.snapshot_ref_type != SnapshotRefType.BRANCH:
            continue
        carried = load_carried(by_id, ref.snapshot_id, is_staged=is_known)
        marked = by_id.get(parse_decimal(carried.marker or "") or 0)
        is_of_branch = marked is not None and committed_to(marked) == branch
        if name != MAIN_BRANCH and _is_copy(by_id, ref.snapshot_id, name):
            continue
        if name == MAIN_BRANCH and carried.forwarded_to is not None:
            is_of_branch = is_of_branch or carried.forwarded_to[1] == branch
        if carried.marker in staged or is_of_branch:
            found[name] = _shown(by_id, carried, query_id, ref.snapshot_id)
    return found[MAIN_BRANCH] if MAIN_BRANCH in found else _latest(*found.values())


def _is_copy(by_id: Mapping[int, Snapshot], head_id: int, name: str) -> bool:
    """Whether what a branch says of its cursor was committed to another one."""
    history = walk_back(by_id, head_id)
    said = next((each for each in history if STAGING_MARKER in summary_of(each)), None)
    return said is not None and committed_to(said) not in (None, name)


def shown_batch(state: TableState, branch: str, query_id: str) -> CommittedBatch | None:
    """The newest batch of a query that a branch shows whole, as its own history says."""
    by_id, head_id = snapshots_by_id(state.metadata), state.head_id(branch)
    return _shown(by_id, load_carried(by_id, head_id), query_id, head_id)


def _shown(
    by_id: Mapping[int, Snapshot], carried: Carried, query_id: str, head_id: int | None
) -> CommittedBatch | None:
    found = batch_in(carried.writers, query_id, head_id or 0)
    if found is None or found.stands_on < 0 or carried.forwarded_to is None:
        return found
    # No publish has looked at what it was fast-forwarded to.
    said = (
        batch_in(summary_of(each), query_id, each.snapshot_id) for each in walk_back(by_id, head_id)
    )
    batches = [each for each in said if each is not None] or [found]
    whole = batches[-1]
    for each in reversed(batches):
        if each.stands_on <= whole.number and each.number >= whole.number:
            whole = each
    return whole


def _latest(*found: CommittedBatch | None) -> CommittedBatch | None:
    """The one of the highest number; the first of several."""
    known = (each for each in found if each is not None)
    return max(known, key=lambda each: each.number, default=None)


def batch_in(
    properties: Mapping[str, str], query_id: str, snapshot_id: int
) -> CommittedBatch | None:
    """The batch of a query that a snapshot's summary says; None: it says none.

    Raises:
        CorruptDataError: The batch id is no number.
    """
    said: list[tuple[str | None, Mapping[str, str]]] = []
    if properties.get(QUERY_ID) == query_id:
        said.append((properties.get(BATCH_ID), properties))
    source = _source_aside(properties.get(OTHER_QUERY_SOURCE + query_id))
    said.append((properties.get(OTHER_QUERY_BATCH + query_id), source))
    known = [
        CommittedBatch(
            _number(text, snapshot_id), {key: each[key] for key in OF_SOURCE if key in each}
        )
        for text, each in said
        if text is not None
    ]
    return max(known, key=lambda each: each.number, default=None)


def _number(text: str, snapshot_id: int) -> int:
    found = parse_decimal(text)
    if found is None:
        raise CorruptDataError(
            "a batch id is not a number", snapshot_id=snapshot_id, value=repr(text[:80])
        )
    return found


def _source_aside(text: str | None) -> Mapping[str, str]:
    try:
        source = json.loads(text or "{}")
    except ValueError:
        return {}
    return source if isinstance(source, dict) else {}
