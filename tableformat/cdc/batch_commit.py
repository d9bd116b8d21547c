"""Exactly once: a batch is in the table when its query id and batch id are in a branch's history.

1. Walk back from the branch's head to the newest commit of the same query. Staged commits say it
   themselves; a publish repeats it for the staged commits it covers, so a trim hides nothing. Where
   the branch says nothing, ask those that it was published to: published commits expire also below
   a tail that still waits, and then nothing is trimmed.
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
from dataclasses import dataclass, field

from pyiceberg.table.snapshots import Snapshot

from tableformat.catalog.base import Identifier, TableState
from tableformat.cdc.truncation import Truncation, VectorsAtHead, vectors_of_all_rows
from tableformat.commit.branch_history import (
    ancestors,
    committed_to,
    head_of,
    snapshots_by_id,
    summary_of,
)
from tableformat.commit.carried_properties import OF_SOURCE, OTHER_QUERIES_MAX, load_carried
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
    MAIN_BRANCH,
    OTHER_QUERY_BATCH,
    OTHER_QUERY_SOURCE,
    QUERY_ID,
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


def committed_batch(state: TableState, branch: str, query_id: str) -> int | None:
    """The newest batch of a query in a branch, or in what was published from it; None if neither.

    Raises:
        CorruptDataError: A summary holds a batch id that is no number.
    """
    found = committed(state, branch, query_id)
    return None if found is None else found.number


def committed(state: TableState, branch: str, query_id: str) -> CommittedBatch | None:
    """As `committed_batch`, with what its commit says of the source."""
    walked: set[str] = set()
    for snapshot in _history(state, branch):
        found = batch_in(summary_of(snapshot), query_id, snapshot.snapshot_id)
        if found is not None:
            break
        walked.add(str(snapshot.snapshot_id))
    else:
        found = None
    published = _published_batch(state, branch, walked, query_id, is_known=found is not None)
    return _latest(found, published)


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
            if batch is not None and is_committed(state, branch, batch):
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
                summary=(batch.summary if batch is not None else {}) | dict(summary or {}),
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


def _history(state: TableState, branch: str) -> Iterator[Snapshot]:
    head = head_of(state, branch)
    return ancestors(state.metadata, None if head is None else head.snapshot_id)


def _published_batch(
    state: TableState, branch: str, staged: Collection[str], query_id: str, *, is_known: bool
) -> CommittedBatch | None:
    """The newest batch of a query that branches know of which `branch` was published to.

    Their marker is among `staged`, or was staged to the branch before that was moved back. Where
    the branch says something (`is_known`), what waits on other ones is not walked.
    """
    by_id = snapshots_by_id(state.metadata)
    found: list[CommittedBatch | None] = []
    for name, ref in state.metadata.refs.items():
        if name == branch:
            continue
        carried = load_carried(by_id, ref.snapshot_id, is_staged=is_known)
        marked = by_id.get(parse_decimal(carried.marker or "") or 0)
        if carried.marker in staged or (marked is not None and committed_to(marked) == branch):
            found.append(batch_in(carried.writers, query_id, ref.snapshot_id))
    return _latest(*found)


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
