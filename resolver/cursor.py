"""Which staged snapshots are waiting, and what each of them brought.

The cursor is the newest marker in the target's history: the id of the last staged snapshot that
was published. Walking back from the staging head, the backlog ends

1. at the marker's snapshot: everything above it is new;
2. at a snapshot of the target's own history where the cursor was what it is now (after a trim, or
   on the fork point of a new staging branch): nothing was published since. One that carries the
   cursor is known as such even where expiry has cut the target's history above it;
3. at any other of them, if nothing above it was staged: then nothing waits, whatever was published;
4. at the root of a branch that was never published from, if the target's history is whole;
5. nowhere else. A walk that meets an older marker (staging was rolled back), that ends above a
   target snapshot with another marker, or that runs out of history cannot prove its position, so
   the cycle stops; it never converts twice and never skips (R18, P8). So does one that ends at the
   root of a target that was replaced: REPLACE TABLE begins a history of its own, without any
   marker.

A target that was rolled back is recovered from its own marker: what staging knows of publishes that
are gone is followed back to the staged snapshots that they covered. What else was committed to the
target is no staged change: the commit says so, or, where another tool made it, the table's log.
The log also lists staged snapshots that the target was fast-forwarded to; those are staged changes
again once the target is rolled back behind them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from resolver.number_text import plural
from tableformat.cached import cached_property
from tableformat.catalog.base import TableState
from tableformat.commit.branch_history import (
    ancestors,
    branch_history,
    committed_by_log,
    committed_to,
    is_first,
    operation_of,
    snapshots_by_id,
    summary_of,
    walk_back,
)
from tableformat.commit.carried_properties import load_carried
from tableformat.errors import CorruptDataError, InvalidInputError, NotFoundError
from tableformat.spec.decimal_text import parse_decimal
from tableformat.spec.names import (
    CARRIED,
    STAGED_COMMITS,
    STAGING_BASE,
    STAGING_BASE_PUBLISHED,
    STAGING_MARKER,
)


class LostCursorError(InvalidInputError):
    """The branch's history does not prove which staged snapshots were published."""


def marker_of(snapshot: Snapshot) -> int | None:
    """The staged snapshot id that `snapshot` says was published last."""
    value = summary_of(snapshot).get(STAGING_MARKER)
    if value is None:
        return None
    try:
        return int(value)
    except ValueError as error:
        raise CorruptDataError(
            "the resolver's cursor is not a snapshot id",
            property=STAGING_MARKER,
            value=value,
            snapshot_id=snapshot.snapshot_id,
        ) from error


def newest_marker(chain: Iterable[Snapshot]) -> int | None:
    """The cursor: the marker nearest to the head. Foreign commits on the target carry none."""
    for snapshot in chain:
        marker = marker_of(snapshot)
        if marker is not None:
            return marker
    return None


def cursor_of(state: TableState, target: str) -> int | None:
    """The last published staged snapshot, as `target` has it."""
    return newest_marker(branch_history(state, target))


def plan_backlog(
    state: TableState,
    *,
    staging: str,
    target: str,
    from_snapshot: int | None = None,
) -> list[Snapshot]:
    """The staged snapshots that wait, oldest first. Pure.

    Args:
        state: One version of the table; both branches are read from it.
        staging: Branch with the staged changes.
        target: Branch they are published to.
        from_snapshot: Operator's override of the cursor: the last staged snapshot that counts as
            published. Must be an ancestor of the staging head; see `skipped_snapshots`.

    Raises:
        NotFoundError: There is no staging branch.
        LostCursorError: The cursor cannot be reached from the staging head.
        InvalidInputError: `from_snapshot` is not in the branch's history.
    """
    head_id = _require_head(state, staging)
    history = _TargetHistory(state, target, staging)
    if from_snapshot is not None:
        above, _ = _split_at(state, head_id, history, from_snapshot)
        return above[::-1]
    walked: list[tuple[Snapshot, bool]] = []
    for snapshot, is_staged in _walk_staging(state.metadata, head_id, history):
        walked.append((snapshot, is_staged))
        if snapshot.snapshot_id == history.cursor or history.ends_walk(snapshot):
            break
    if not walked:
        raise lost_cursor(state, staging, target, history.cursor, None)
    last = walked[-1][0]
    backlog = [snapshot for snapshot, is_staged in walked[:-1] if is_staged][::-1]
    if last.snapshot_id == history.cursor:
        return backlog
    if not history.ends_walk(last):
        backlog = [snapshot for snapshot, is_staged in walked if is_staged][::-1]
        left, below = _left_behind(state.metadata, walked, history)
        if left is not None and (any(map(is_first, below)) or history.begins_after(left)):
            raise replaced_target(state, staging, target, left)
        if below:
            raise lost_cursor(state, staging, target, history.cursor, last)
    is_idle = not backlog and history.newest.has(last)
    if is_idle or history.proves_position(last):
        return backlog
    raise lost_cursor(state, staging, target, history.cursor, last)


def staged_above(
    state: TableState, *, staging: str, target: str, snapshot_id: int
) -> list[Snapshot]:
    """The staged snapshots after one of them, oldest first; none if staging was replaced. Pure."""
    history = _TargetHistory(state, target, staging)
    above: list[Snapshot] = []
    for snapshot, is_staged in _walk_staging(state.metadata, state.head_id(staging), history):
        if snapshot.snapshot_id == snapshot_id:
            return above[::-1]
        if is_staged:
            above.append(snapshot)
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedSnapshots:
    """Staged snapshots that an operator's `--from-snapshot` takes as published without proof.

    Attributes:
        snapshots: Those that are known, newest first.
        is_whole: Whether there are no others that have expired.
    """

    snapshots: tuple[Snapshot, ...]
    is_whole: bool

    def __bool__(self) -> bool:
        return bool(self.snapshots) or not self.is_whole

    def describe(self) -> str:
        """How many."""
        known = plural(len(self.snapshots), "staged snapshot")
        rows = sum(_added(each, "added-records") for each in self.snapshots)
        deletes = sum(_added(each, "added-equality-deletes") for each in self.snapshots)
        more = "" if self.is_whole else " and an unknown number of expired ones"
        return f"{known} ({plural(rows, 'row')}, {plural(deletes, 'equality delete')}){more}"


def skipped_snapshots(
    state: TableState, *, staging: str, target: str, from_snapshot: int
) -> SkippedSnapshots:
    """What a cycle from `from_snapshot` on leaves out, unless it was published. Pure.

    Raises:
        NotFoundError, InvalidInputError: As `plan_backlog`.
    """
    head_id = _require_head(state, staging)
    history = _TargetHistory(state, target, staging)
    _, below = _split_at(state, head_id, history, from_snapshot)
    skipped: list[Snapshot] = []
    published = _published(state, target)
    for snapshot, is_staged in below:
        if snapshot.snapshot_id in published or history.ends_walk(snapshot):
            return SkippedSnapshots(snapshots=tuple(skipped), is_whole=True)
        if is_staged:
            skipped.append(snapshot)
    return SkippedSnapshots(snapshots=tuple(skipped), is_whole=is_first(below[-1][0]))


def _split_at(
    state: TableState, head_id: int, history: _TargetHistory, snapshot_id: int
) -> tuple[list[Snapshot], list[tuple[Snapshot, bool]]]:
    """Staged snapshots above `snapshot_id`, and the walk from it on; both newest first."""
    walked = list(_walk_staging(state.metadata, head_id, history))
    ids = [snapshot.snapshot_id for snapshot, _ in walked]
    if snapshot_id not in ids:
        raise InvalidInputError(
            "the snapshot to start from is not in the staging branch's history",
            snapshot_id=snapshot_id,
            branch=history.staging,
            table=state.name,
        )
    at = ids.index(snapshot_id)
    return [each for each, is_staged in walked[:at] if is_staged], walked[at:]


def _require_head(state: TableState, staging: str) -> int:
    head = state.head(staging)
    if head is None:
        raise NotFoundError(
            "there is no staging branch",
            table=state.name,
            branch=staging,
            action="stage something first, or name the branch with --staging",
        )
    return head.snapshot_id


def staged_changes(snapshot: Snapshot) -> int:
    """Rows and equality deletes that a staged snapshot adds, as far as its summary counts them."""
    return _added(snapshot, "added-records") + _added(snapshot, "added-equality-deletes")


def _added(snapshot: Snapshot, name: str) -> int:
    summary = summary_of(snapshot)
    return parse_decimal(summary.get(name, "0")) or 0


class _NewestFirst:
    """Which snapshots a history has, and which its markers name, read from its head on.

    It is read as far down as it is asked about: below a snapshot's own sequence number everything
    is older than it, and a marker is committed after what it names. Format version 1 has no numbers
    (0 in later ones): there all is read. Metadata whose numbers go back along a history is refused
    (`check_metadata`). A cycle asks about the newest ones; of a thousand others it reads nothing.
    """

    def __init__(self, history: Iterator[Snapshot]) -> None:
        self._history = history
        self._below = next(history, None)
        self._ids: set[int] = set()
        self._named: set[int | None] = set()

    def has(self, snapshot: Snapshot) -> bool:
        """Whether it is in the history."""
        self._read_to(snapshot.sequence_number or 0)
        return snapshot.snapshot_id in self._ids

    def names(self, snapshot: Snapshot) -> bool:
        """Whether some marker of the history names it."""
        self._read_to(snapshot.sequence_number or 0)
        return snapshot.snapshot_id in self._named

    def _read_to(self, number: int) -> None:
        while self._below is not None and (self._below.sequence_number or 0) >= number:
            self._ids.add(self._below.snapshot_id)
            self._named.add(marker_of(self._below))
            self._below = next(self._history, None)


def _said_of_target(staged: Snapshot) -> range:
    """Sequence numbers that were the target's below a staged commit, if it says so."""
    summary = summary_of(staged)
    base, published = (
        parse_decimal(summary.get(name, "")) for name in (STAGING_BASE, STAGING_BASE_PUBLISHED)
    )
    return range(0) if base is None or published is None else range(published + 1, base + 1)


class _TargetHistory:
    """The target's own history, and what once was in it. What is not asked for is not read."""

    def __init__(self, state: TableState, target: str, staging: str) -> None:
        """Of `target`, for the backlog of `staging`."""
        self.state = state
        self.target = target
        self.staging = staging
        self.newest = _NewestFirst(self._known())

    def _known(self) -> Iterator[Snapshot]:
        """The chain; where expiry has cut it, on from the staged snapshot it was forwarded to."""
        oldest = None
        for oldest in branch_history(self.state, self.target):
            yield oldest
        if oldest is None or is_first(oldest):
            return
        metadata = self.state.metadata
        by_id = snapshots_by_id(metadata)
        carried = load_carried(by_id, self.state.head_id(self.target))
        number, branch = carried.forwarded_to or (0, None)
        if branch != self.staging or number >= (oldest.sequence_number or 0):
            return
        for each in metadata.snapshots:
            if each.sequence_number == number and committed_to(each) in (None, branch):
                yield from walk_back(by_id, each.snapshot_id)

    @cached_property
    def chain(self) -> tuple[Snapshot, ...]:
        """The head and its ancestors, newest first."""
        return tuple(branch_history(self.state, self.target))

    @cached_property
    def cursor(self) -> int | None:
        """The last staged snapshot that was published."""
        return newest_marker(branch_history(self.state, self.target))

    @cached_property
    def _former(self) -> frozenset[int]:
        return committed_by_log(self.state.metadata, self.target) | self._said_to_be()

    def _said_to_be(self) -> set[int]:
        """What staged commits say was the target's below them, where the log may say nothing.

        That is what is older than their base, and newer than what was published there. Java's
        CREATE OR REPLACE BRANCH of main empties the log.
        """
        found, said = set[int](), range(0)
        for snapshot in branch_history(self.state, self.staging):
            if committed_to(snapshot) == self.staging:
                said = _said_of_target(snapshot) or said
            elif snapshot.sequence_number in said:
                found.add(snapshot.snapshot_id)
        return found

    def ends_walk(self, snapshot: Snapshot) -> bool:
        """Whether nothing above `snapshot` can be older than what was published."""
        return (
            self.newest.has(snapshot)
            or self.newest.names(snapshot)
            # Nothing was published since.
            or (
                self.cursor is not None
                and self.marker_of(snapshot) == self.cursor
                and self._may_be_cut(snapshot)
            )
        )

    def _may_be_cut(self, snapshot: Snapshot) -> bool:
        """Whether expiry may have cut `snapshot` from the chain; else the target has lost it."""
        oldest = self.chain[-1] if self.chain else None
        return (
            oldest is not None
            and not is_first(oldest)
            and (oldest.sequence_number or 0) > (snapshot.sequence_number or 0)
        )

    def was_target(self, snapshot: Snapshot) -> bool:
        """Whether a snapshot that is not in the chain was committed to the target, not staged."""
        branch = committed_to(snapshot)
        return branch != self.staging and (
            branch == self.target
            or marker_of(snapshot) is not None
            or snapshot.snapshot_id in self._former
        )

    def marker_of(self, snapshot: Snapshot) -> int | None:
        """The marker of a snapshot of the target; an append to staging may repeat one."""
        return None if committed_to(snapshot) == self.staging else marker_of(snapshot)

    @property
    def is_whole(self) -> bool:
        """Whether nothing of the chain has expired."""
        return not self.chain or is_first(self.chain[-1])

    def begins_after(self, snapshot: Snapshot) -> bool:
        """Whether the chain's first commit is newer than `snapshot`, so no ancestor of it.

        Sequence numbers tell also where what lies below `snapshot` has expired; those of format
        version 1, and of a REPLACE TABLE that another commit has overtaken, may not.
        """
        first = self.chain[-1] if self.chain else None
        return (
            first is not None
            and is_first(first)
            and (first.sequence_number or 0) > (snapshot.sequence_number or 0)
        )

    def proves_position(self, last: Snapshot) -> bool:
        """Whether a walk that ended at `last` without meeting the cursor has missed nothing."""
        if self.cursor is not None and self.marker_of(last) == self.cursor:
            return True
        if not self.newest.has(last):
            # The root of a branch that was never published from. Where the target's history has
            # expired, the root may as well be a snapshot of the target.
            return self.cursor is None and is_first(last) and self.is_whole
        known = tuple(self._known())
        at = [each.snapshot_id for each in known].index(last.snapshot_id)
        if newest_marker(known[at:]) == self.cursor:
            return True
        # Below it expiry has cut the chain; the first commit above that repeats a cursor tells.
        repeating = next((each for each in reversed(known[:at]) if repeats_cursor(each)), None)
        return (
            repeating is not None
            and marker_of(repeating) == self.cursor
            and not covers_staged(repeating)
        )


def _walk_staging(
    metadata: TableMetadata, head_id: int | None, history: _TargetHistory
) -> Iterator[tuple[Snapshot, bool]]:
    """Staging's history, newest first, and which of it was staged.

    A publish that the target has lost again (rollback, replaced branch) stands for the staged
    snapshots that it covered: there the walk goes on at its marker, not at its parent. Another
    commit only repeats the marker; below it may be staged snapshots that the target was
    fast-forwarded to. Of another tool's commits, a rewrite that a commit of icefold to the target
    descends from was the target's, whatever the log still says; it changes no row. One of what such
    a publish covered was staged: its copies bring the ids of their rows.
    """
    by_id = snapshots_by_id(metadata)
    seen: set[int] = set()
    line = _NewestFirst(iter(()))  # of the target, as it was
    current = head_id
    while current is not None and current in by_id and current not in seen:
        seen.add(current)
        snapshot, branch = by_id[current], committed_to(by_id[current])
        is_rewrite = branch is None and operation_of(snapshot) == Operation.REPLACE
        was_its = history.was_target(snapshot) or (is_rewrite and line.has(snapshot))
        yield snapshot, not was_its
        if branch == history.target:
            line = _NewestFirst(walk_back(by_id, snapshot.snapshot_id))
        marker, parent_id = history.marker_of(snapshot), snapshot.parent_snapshot_id
        below = map(history.marker_of, walk_back(by_id, parent_id))
        covers = marker is not None and marker != next((m for m in below if m is not None), None)
        current = marker if covers and not history.newest.has(snapshot) else parent_id


def base_of(state: TableState, staged: Snapshot, *, staging: str, target: str) -> Snapshot | None:
    """The target's snapshot that a staged one stands on; None: there is none, or it has expired.

    Where the log of staging does not reach down to it, staged snapshots still say its number.
    """
    above, base = down_to_base(state, staged, staging=staging, target=target)
    if base is not None:
        return base
    said = (parse_decimal(summary_of(each).get(STAGING_BASE, "")) for each in above)
    number = next((each for each in said if each is not None), None)
    history = branch_history(state, target) if number else ()
    return next((each for each in history if each.sequence_number == number), None)


def down_to_base(
    state: TableState, staged: Snapshot, *, staging: str, target: str
) -> tuple[list[Snapshot], Snapshot | None]:
    """A staged snapshot and those below it, newest first; and the `base_of` them."""
    [found] = down_to_bases(state, [staged.snapshot_id], staging=staging, target=target)
    return found


def down_to_bases(
    state: TableState, staged_ids: Iterable[int | None], *, staging: str, target: str
) -> Iterator[tuple[list[Snapshot], Snapshot | None]]:
    """`down_to_base` of each; one that has expired has nothing below it."""
    history, by_id = _TargetHistory(state, target, staging), snapshots_by_id(state.metadata)
    for staged_id in staged_ids:
        above: list[Snapshot] = []
        base = None
        for snapshot in walk_back(by_id, staged_id):
            is_elsewhere = committed_to(snapshot) not in (None, staging)
            if history.newest.has(snapshot) or is_elsewhere or history.was_target(snapshot):
                base = snapshot
                break
            above.append(snapshot)
        yield above, base


def repeats_cursor(snapshot: Snapshot) -> bool:
    """Whether a commit says what its branch's history says: a missing cursor is none."""
    return CARRIED in summary_of(snapshot)


def covers_staged(snapshot: Snapshot) -> bool:
    """Whether a commit published staged snapshots; an in-place conversion covers none."""
    return _added(snapshot, STAGED_COMMITS) > 0


def oldest_of(backlog: Sequence[Snapshot], limit: int | None) -> Sequence[Snapshot]:
    """The snapshots to publish next.

    Raises:
        InvalidInputError: A limit that is not positive.
    """
    if limit is None:
        return backlog
    if limit < 1:
        raise InvalidInputError("the limit of staged snapshots must be positive", limit=limit)
    return backlog[:limit]


def up_to(backlog: Sequence[Snapshot], snapshot_id: int) -> Sequence[Snapshot]:
    """The backlog with its end at a snapshot; none of it if that one does not wait."""
    ids = [each.snapshot_id for each in backlog]
    return backlog[: ids.index(snapshot_id) + 1] if snapshot_id in ids else []


def _left_behind(
    metadata: TableMetadata, walked: Iterable[tuple[Snapshot, bool]], history: _TargetHistory
) -> tuple[Snapshot | None, Collection[Snapshot]]:
    """What the target was, if it has nothing of that now: the newest, and all that is known of it.

    After a rollback it has the oldest part. Where its own has expired, nothing is told.
    """
    by_id, bases = snapshots_by_id(metadata), set[int | None]()
    newest, below = None, dict[int, Snapshot]()
    for snapshot, is_staged in walked if history.is_whole else ():
        if not is_staged or (snapshot.sequence_number or -1) in bases:
            newest = newest or snapshot
            for each in walk_back(by_id, snapshot.snapshot_id):
                if each.snapshot_id in below:
                    break
                below[each.snapshot_id] = each
        bases.add(parse_decimal(summary_of(snapshot).get(STAGING_BASE, "")))
    return newest, () if any(map(history.newest.has, below.values())) else below.values()


def without_replaced(
    state: TableState, staged: Iterable[Snapshot], *, staging: str, target: str
) -> list[Snapshot]:
    """Staged snapshots but those that changed a table which REPLACE TABLE has replaced. Pure."""
    history = _TargetHistory(state, target, staging)
    kept: list[Snapshot] = []
    for each in staged:
        left = None
        if not history.chain or history.begins_after(each):
            walked = _walk_staging(state.metadata, each.snapshot_id, history)
            left, _ = _left_behind(state.metadata, walked, history)
        if left is None:
            kept.append(each)
    return kept


def replaced_target(
    state: TableState, staging: str, target: str, left: Snapshot
) -> LostCursorError:
    """What to say of a target that was replaced; `left`: the newest one below staging.

    What was staged for other columns than the target has now is refused (`check_staged_schemas`).
    """
    return LostCursorError(
        "cannot tell which staged snapshots were published: the target has a history of its own "
        "since it was replaced (REPLACE TABLE), and staging stands on the one before",
        table=state.name,
        staging=staging,
        target=target,
        stopped_at=left.snapshot_id,
        action="publish what was staged after the snapshot that staging stands on, with "
        f"--from-snapshot {left.snapshot_id}; or drop the staging branch, and what waits on it",
    )


def lost_cursor(
    state: TableState, staging: str, target: str, cursor: int | None, stop: Snapshot | None
) -> LostCursorError:
    """What to say where the walk has ended at `stop` and nothing proves the position."""
    action = (
        "check both branches; where staged snapshots have expired, take them from the "
        "branch's files with --from-staging-state, else name the last published one with "
        "--from-snapshot ID"
    )
    known = {snapshot.snapshot_id: snapshot for snapshot in state.metadata.snapshots}
    published = _published(state, target)
    feeds = committed_to(known[cursor]) if cursor in known else None
    if feeds not in (None, staging, target):
        why = f"it is of the branch '{feeds}'; a target is published to from one staging branch"
    elif stop is None or not (is_first(stop) or stop.parent_snapshot_id in known):
        why = "staging's history ends before it (expired?)"
    elif cursor is None:
        why = "the target's history ends before the two branches meet (expired?)"
    elif stop.snapshot_id in published:
        why = "staging was rolled back behind it"
        last = _last_published(state, staging, published, known.get(cursor))
        if last is not None:
            action = f"check both branches; --from-snapshot {last} publishes what was staged since"
    else:
        why = "staging was replaced, or the target was rolled back"
    return LostCursorError(
        f"cannot tell which staged snapshots were published: the cursor is not reachable, {why}",
        table=state.name,
        staging=staging,
        target=target,
        cursor=cursor,
        stopped_at=None if stop is None else stop.snapshot_id,
        action=action,
    )


def _published(state: TableState, target: str) -> set[int]:
    """What the target's history says was published, with all below it."""
    published: set[int] = set()
    for snapshot in branch_history(state, target):
        for below in ancestors(state.metadata, marker_of(snapshot)):
            if below.snapshot_id in published:
                break
            published.add(below.snapshot_id)
    return published


def _last_published(
    state: TableState, staging: str, published: Collection[int], cursor: Snapshot | None
) -> int | None:
    """Where staging leaves what was published, if all above it is newer than the cursor.

    What is older may have been published by a commit that has expired.
    """
    for snapshot in branch_history(state, staging):
        if snapshot.snapshot_id in published:
            return snapshot.snapshot_id
        if cursor is None or (snapshot.sequence_number or 0) <= (cursor.sequence_number or 0):
            return None
    return None
