"""What others deleted in the old files since they were read, as positions in the new files.

A rewrite is never undone by a delete beside it, and never undoes one (I15, R33): at the moment of
its commit, the rows that live in the new files must be those that live in the old ones. So the
deletes that reach the old files *at the head* are compared with those that the rewrite has applied,
whatever their form (deletion vectors, position deletes, equality deletes), and the difference is
mapped to the new files and committed with them as deletion vectors. The new files are as young as
their commit, so an equality delete cannot reach them twice, and none is missed (R32).

Two mappings, both over whole arrays:

* a rewrite in order: position -> how many live rows come before it -> file and position;
* any other rewrite: position -> the row's `_row_id`, read from the old file -> found in the new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from pyiceberg.schema import Schema

from maintenance.compaction.rewrite import RewrittenGroup, RewrittenSource
from tableformat.catalog.base import TableState
from tableformat.environment import Environment
from tableformat.errors import CommitConflictError, InternalError
from tableformat.files.deletion_vector import Positions, build_positions
from tableformat.files.dv_file import DeletionVector
from tableformat.files.parquet_reader import read_data_file
from tableformat.scan.file_source import FileSource
from tableformat.scan.plan import FileScanTask, ScanPlan, plan_scan
from tableformat.scan.projection import project
from tableformat.scan.reader import TaskReader
from tableformat.spec.data_file import DataFile, EntryStatus, ManifestEntry
from tableformat.spec.types import ROW_ID_FIELD

Int64s = npt.NDArray[np.int64]
NO_ROW_ID = -(1 << 62)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebased:
    """A rewritten group, made to fit one head.

    Attributes:
        head_id: That head.
        removed: The old files as live entries of it.
        vectors: Deletes for new files: rows that died after they were read.
        dead_files: New files in which every row has died; they are not committed.
        rows: Rows that the vectors kill.
    """

    head_id: int
    removed: tuple[ManifestEntry, ...]
    vectors: tuple[DeletionVector, ...]
    dead_files: frozenset[str]
    rows: int


def rebase_group(
    environment: Environment, state: TableState, branch: str, group: RewrittenGroup
) -> Rebased:
    """Hold a rewritten group against the head of the branch.

    Args:
        environment: Where deletes are read.
        state: The table version.
        branch: The branch.
        group: What was rewritten.

    Raises:
        CommitConflictError: An old file has left the branch (also if it is back, with other row
            ids), or rows that were dead when it was read live again (the branch was rolled back):
            the group must be planned again.
        NotFoundError: A delete file is gone.
    """
    head = state.head(branch)
    if head is None:
        raise _changed("the branch is gone", state, branch)
    plan = plan_scan(environment, state, snapshot_id=head.snapshot_id)
    live = {task.entry.data_file.file_path: task for task in plan.tasks}
    tasks: list[FileScanTask] = []
    for source in group.sources:
        planned = source.task.entry
        path = planned.data_file.file_path
        if path not in live:
            raise _changed(f"{path} has left it", state, branch)
        if live[path].entry.sequence_number != planned.sequence_number:
            # Rolled back and published again: its rows have other ids than those written.
            raise _changed(f"{path} has left it and come back", state, branch)
        tasks.append(live[path])
    died = _died_since(environment, plan, group.sources, tasks, state, branch)
    by_file = _map_positions(environment, plan, group, died)
    dead_files = {
        file.file_path
        for file in group.files
        if len(by_file.get(file.file_path, ())) == file.record_count
    }
    vectors = [
        DeletionVector(file, by_file[file.file_path])
        for file in group.files
        if file.file_path in by_file and file.file_path not in dead_files
    ]
    return Rebased(
        head_id=head.snapshot_id,
        removed=tuple(task.entry for task in tasks),
        vectors=tuple(vectors),
        dead_files=frozenset(dead_files),
        rows=sum(len(positions) for positions in by_file.values()),
    )


def _died_since(
    environment: Environment,
    plan: ScanPlan,
    sources: Sequence[RewrittenSource],
    tasks: Sequence[FileScanTask],
    state: TableState,
    branch: str,
) -> list[Int64s]:
    """Per source, positions that are dead now and were alive when it was read."""
    changed = [
        (source, task)
        for source, task in zip(sources, tasks, strict=True)
        if _deletes_of(source.task) != _deletes_of(task)
    ]
    key_columns = [plan.schema.fields[0].name]  # no row is read, only what is deleted
    reader = TaskReader(
        FileSource(environment.store, plan.specs, plan.properties),
        plan,
        project(plan, key_columns),
        [task for _, task in changed],
    )
    found: dict[str, Positions] = {}
    for source, task in changed:
        path = task.entry.data_file.file_path
        dead = reader.deleted_positions(task) or Positions()
        if source.deleted - dead:
            raise _changed(f"deleted rows of {path} are back", state, branch)
        found[path] = dead - source.deleted
    return [
        _as_array(found.get(source.task.entry.data_file.file_path, Positions()))
        for source in sources
    ]


def _deletes_of(task: FileScanTask) -> frozenset[object]:
    """The delete files that reach a data file."""
    entries = [*task.position_deletes, *task.equality_deletes, *([task.dv] if task.dv else [])]
    return frozenset(entry.data_file.identity for entry in entries)


def _map_positions(
    environment: Environment, plan: ScanPlan, group: RewrittenGroup, died: Sequence[Int64s]
) -> dict[str, Positions]:
    """New file path to the positions in it that the died rows have."""
    if not any(len(positions) for positions in died):
        return {}
    if group.is_in_order:
        ordinals = _ordinals_in_order(group, died)
    else:
        ordinals = _ordinals_by_row_id(environment, plan, group, died)
    starts = np.cumsum([0, *(file.record_count for file in group.files)])
    at = np.searchsorted(starts, ordinals, side="right") - 1
    if len(ordinals) and (ordinals.min() < 0 or ordinals.max() >= starts[-1]):
        raise InternalError("a row of an old file is in no new file", rows=len(ordinals))
    return {
        group.files[number].file_path: build_positions(ordinals[at == number] - starts[number])
        for number in np.unique(at).tolist()
    }


def _ordinals_in_order(group: RewrittenGroup, died: Sequence[Int64s]) -> Int64s:
    """Ordinals over all new files: rows of earlier sources, plus live rows before the position."""
    found: list[Int64s] = []
    start = 0
    for source, positions in zip(group.sources, died, strict=True):
        dead_before = np.searchsorted(_as_array(source.deleted), positions)
        found.append(start + positions - dead_before)
        start += source.rows
    return np.concatenate(found)


def _ordinals_by_row_id(
    environment: Environment, plan: ScanPlan, group: RewrittenGroup, died: Sequence[Int64s]
) -> Int64s:
    wanted = [
        _row_ids(environment, plan, source.task.entry)[positions]
        for source, positions in zip(group.sources, died, strict=True)
        if len(positions)
    ]
    ids = np.concatenate(wanted)
    new = [_row_ids(environment, plan, _as_entry(file)) for file in group.files]
    ordinals: Int64s = np.flatnonzero(np.isin(np.concatenate(new), ids)).astype(np.int64)
    if len(ordinals) != len(ids) or len(np.unique(ids)) != len(ids):
        raise CommitConflictError(
            "rows cannot be found again in the new files: row ids are missing or not unique",
            action="compact with bin-pack, or when nobody deletes rows",
            rows=len(ids),
            found=len(ordinals),
        )
    return ordinals


def _row_ids(environment: Environment, plan: ScanPlan, entry: ManifestEntry) -> Int64s:
    """`_row_id` of every row of a file; -1 where it has none."""
    file = entry.data_file
    batches = read_data_file(
        environment.store,
        file,
        schema=Schema(ROW_ID_FIELD),
        spec=plan.specs[file.spec_id],
        properties=plan.properties,
        sequence_number=entry.sequence_number,
    )
    parts = [batch.column(0).fill_null(-1).to_numpy(zero_copy_only=False) for batch in batches]
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def _as_entry(file: DataFile) -> ManifestEntry:
    """A new file as an entry: stored row ids count, what is inherited equals no real one."""
    return ManifestEntry(
        status=EntryStatus.ADDED,
        snapshot_id=None,
        sequence_number=None,
        file_sequence_number=None,
        data_file=file.with_(first_row_id=NO_ROW_ID),
    )


def _as_array(positions: Positions) -> Int64s:
    return np.asarray(positions.to_array(), dtype=np.uint64).astype(np.int64)


def _changed(what: str, state: TableState, branch: str) -> CommitConflictError:
    return CommitConflictError(
        f"cannot compact: the branch has changed under the rewrite: {what}",
        action="plan again on the current head",
        table=state.name,
        branch=branch,
    )
