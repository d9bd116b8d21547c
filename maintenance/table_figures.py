"""What the triggers look at: counts of one table, from its metadata alone. No file is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import partial
from typing import NamedTuple

from pyiceberg.table.snapshots import Operation, Snapshot

from maintenance.run_history import Ledger
from maintenance.settings import TaskName
from resolver.cursor import plan_backlog
from resolver.cut_plan import StreamShare, stream_share
from resolver.cycle_figures import is_publish
from tableformat.catalog.base import TableState
from tableformat.commit.branch_history import (
    ancestors,
    operation_of,
    snapshots_by_id,
    summary_of,
)
from tableformat.commit.carried_properties import load_carried
from tableformat.commit.snapshot_ages import committed_ms
from tableformat.errors import TableError
from tableformat.object_memory import ObjectMemory
from tableformat.spec.decimal_text import parse_decimal
from tableformat.spec.names import SOURCE_MS
from tableformat.write.row_deletes import has_vectors

TOTALS = {
    "records": "total-records",
    "data_files": "total-data-files",
    "delete_files": "total-delete-files",
    "position_deletes": "total-position-deletes",
    "equality_deletes": "total-equality-deletes",
    "size_bytes": "total-files-size",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Staged commits that are not published.

    Attributes:
        commits: None: cannot be told, see `problem`.
        oldest_ms: Wall-clock time of the oldest one.
        problem: Why the next resolve would stop.
        stream: What is of streams into several tables.
    """

    commits: int | None = 0
    rows: int = 0
    deletes: int = 0
    size_bytes: int = 0
    oldest_ms: int | None = None
    problem: str | None = None
    stream: StreamShare = field(default_factory=StreamShare)

    def lag_ms(self, now_ms: int) -> int:
        """Age of the oldest one; 0 without any."""
        return 0 if self.oldest_ms is None else max(now_ms - self.oldest_ms, 0)


@dataclass(frozen=True, slots=True)
class Since:
    """What was committed to the target since a task's last run; rewrites are not changes."""

    commits: int = 0
    files: int = 0
    size_bytes: int = 0
    dvs: int = 0
    position_delete_files: int = 0
    position_deletes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """One table at one version.

    Attributes:
        born_ms: The oldest time known of the table: what a first run is counted from.
        published_ms: Time of the newest publish on the target, whoever made it.
        totals: Counters of the target head, by the keys of `TOTALS`.
        source_ms: When the source made the newest published change; None: no writer says it.
        snapshots: In the metadata, of all refs.
        counts_dead: Whether `position_deletes` count rows whose data files have left: position
            delete files (v2) outlive them, deletion vectors do not.
        since: Per task.
    """

    table: str
    table_uuid: str
    metadata_location: str
    target_snapshot_id: int | None
    target_ms: int | None
    staging_snapshot_id: int | None
    born_ms: int
    backlog: Backlog
    totals: Mapping[str, int]
    snapshots: int
    counts_dead: bool = False
    source_ms: int | None = None
    since: Mapping[TaskName, Since] = field(default_factory=dict)
    published_ms: int | None = None

    def source_lag_ms(self, now_ms: int) -> int | None:
        """Age of the newest published change; None without a source's time.

        It grows when the ingester is dead, and when the source has no changes: only the source and
        the ingester know which.
        """
        return None if self.source_ms is None else max(now_ms - self.source_ms, 0)

    def lag_ms(self, now_ms: int) -> int:
        """How far readers are behind the source, as far as the table can tell."""
        return max(self.source_lag_ms(now_ms) or 0, self.backlog.lag_ms(now_ms))

    @property
    def dv_share(self) -> float:
        """Share of the rows in data files that deletes by position hide, at most."""
        return min(self.totals["position_deletes"] / max(self.totals["records"], 1), 1.0)

    def dv_share_since(self, task: TaskName) -> float:
        """The same, of what the last run of a task may have left.

        Where dead ones count, it is what came since: that run has looked at the others.
        """
        since = self.since[task].position_deletes / max(self.totals["records"], 1)
        return min(self.dv_share, max(since, 0.0)) if self.counts_dead else self.dv_share


def figures_of(state: TableState, ledger: Ledger, *, staging: str, target: str) -> Figures:
    """Count. Cost: a microsecond for each snapshot since the runs that are counted from."""
    head, staged = state.head(target), state.head(staging)
    known = state.metadata.snapshots
    ends = known[:1] + known[-1:]  # sorted one way or the other
    return Figures(
        table=state.name,
        table_uuid=str(state.metadata.table_uuid),
        metadata_location=state.metadata_location,
        target_snapshot_id=None if head is None else head.snapshot_id,
        target_ms=None if head is None else committed_ms(head),
        staging_snapshot_id=None if staged is None else staged.snapshot_id,
        born_ms=min((committed_ms(each) for each in ends), default=state.metadata.last_updated_ms),
        backlog=backlog_of(state, staging=staging, target=target),
        totals={name: counter(head, key) for name, key in TOTALS.items()},
        snapshots=len(state.metadata.snapshots),
        counts_dead=not has_vectors(state.metadata),
        source_ms=_source_ms(state, head),
        since=_since(state, head, ledger),
        published_ms=_published_ms(state, head),
    )


def _source_ms(state: TableState, head: Snapshot | None) -> int | None:
    head_id = None if head is None else head.snapshot_id
    carried = load_carried(snapshots_by_id(state.metadata), head_id)
    return parse_decimal(carried.writers.get(SOURCE_MS, ""))


def backlog_of(state: TableState, *, staging: str, target: str) -> Backlog:
    """What waits on staging; in place (`staging` is `target`) the equality deletes there."""
    if staging == target:
        return _in_place(state, target)
    try:
        has_staging = state.head(staging) is not None
        waiting = plan_backlog(state, staging=staging, target=target) if has_staging else []
        stream = stream_share(state, waiting, target)
    except TableError as error:
        return Backlog(commits=None, problem=str(error))
    return Backlog(
        commits=len(waiting),
        rows=sum(counter(each, "added-records") for each in waiting),
        deletes=sum(counter(each, "added-equality-deletes") for each in waiting),
        size_bytes=sum(counter(each, "added-files-size") for each in waiting),
        oldest_ms=min((committed_ms(each) for each in waiting), default=None),
        stream=stream,
    )


def _in_place(state: TableState, target: str) -> Backlog:
    """Equality deletes that are live on a branch, and the newest commits that brought so many."""
    head = state.head(target)
    deletes = left = counter(head, "total-equality-deletes")
    brought: list[Snapshot] = []
    for snapshot in ancestors(state.metadata, None if head is None else head.snapshot_id):
        if left <= 0:
            break
        count = counter(snapshot, "added-equality-deletes")
        left -= count
        brought += [snapshot] if count else []
    return Backlog(
        commits=len(brought) or int(deletes > 0),
        deletes=deletes,
        size_bytes=sum(counter(each, "added-files-size") for each in brought),
        oldest_ms=min((committed_ms(each) for each in brought), default=None),
    )


def counter(snapshot: Snapshot | None, key: str) -> int:
    """A count of a summary; 0 where it is missing or foreign nonsense."""
    return _counted(summary_of(snapshot), key)


def _counted(summary: Mapping[str, str], key: str) -> int:
    text = summary.get(key)
    return 0 if text is None else parse_decimal(text) or 0


def is_rewrite(snapshot: Snapshot) -> bool:
    """Whether a snapshot changed files but no rows."""
    return operation_of(snapshot) == Operation.REPLACE


def is_compaction(snapshot: Snapshot) -> bool:
    """Whether a snapshot replaced data files by others with the same rows."""
    return is_rewrite(snapshot) and counter(snapshot, "deleted-data-files") > 0


def _published_ms(state: TableState, head: Snapshot | None) -> int | None:
    history = ancestors(state.metadata, None if head is None else head.snapshot_id)
    return next((committed_ms(each) for each in history if is_publish(each)), None)


class _Own(NamedTuple):
    """What one snapshot adds to the counts since a run; a rewrite nothing."""

    is_compaction: bool
    counts: tuple[int, ...]


def _own_of(snapshot: Snapshot) -> _Own:
    if is_rewrite(snapshot):
        return _Own(is_compaction(snapshot), _NOTHING)
    count = partial(_counted, summary_of(snapshot))
    counts = (
        1,
        count("added-data-files"),
        count("added-files-size"),
        count("added-dvs"),
        count("added-position-delete-files"),
        count("added-position-deletes") - count("removed-position-deletes"),
    )
    return _Own(is_compaction=False, counts=counts)


class _Total(NamedTuple):
    """What a snapshot and its ancestors add to the counts since a run whose head was `end_id`."""

    end_id: int | None
    counts: tuple[int, ...]


_NOTHING = (0,) * len(fields(Since))
_totals: ObjectMemory[Snapshot, Mapping[TaskName, _Total]] = ObjectMemory()  # of the newest heads


def _since(state: TableState, head: Snapshot | None, ledger: Ledger) -> dict[TaskName, Since]:
    """One walk back; each task's ends at the head of its last run, or at a head counted before.

    What has expired between two counts of a process goes on to count.
    """
    ends = {task: ledger.record(task).snapshot_id for task in TaskName}
    passed: list[tuple[int, ...]] = []
    below: dict[TaskName, tuple[int, tuple[int, ...]]] = {}  # where a walk ended, and what is there
    for snapshot in ancestors(state.metadata, None if head is None else head.snapshot_id):
        own, known = _own_of(snapshot), _totals.get(snapshot) or {}
        for task in ends.keys() - below.keys():
            total = known.get(task)
            is_end = own.is_compaction and task == TaskName.COMPACT
            if snapshot.snapshot_id == ends[task] or is_end:
                below[task] = len(passed), _NOTHING
            elif total is not None and total.end_id == ends[task]:
                below[task] = len(passed), total.counts
        _totals.forget(snapshot)
        if len(below) == len(ends):
            break
        passed.append(own.counts)
    found: dict[TaskName, _Total] = {}
    for task, end_id in ends.items():
        length, rest = below.get(task, (len(passed), _NOTHING))
        counts = map(sum, zip(rest, *passed[:length], strict=True))
        found[task] = _Total(end_id, tuple(counts))
    if head is not None:
        _totals.put(head, found)
    return {task: Since(*total.counts) for task, total in found.items()}
