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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from pyiceberg.schema import Schema

from maintenance.tasks.compaction.rewrite import RewrittenGroup, RewrittenSource
from resolver.target import live_files
from tableformat.array_types import Int64s
from tableformat.catalog.base import TableState
from tableformat.codec.parquet.reader import read_data_file
from tableformat.codec.puffin.deletion_vector import Positions, build_positions, position_array
from tableformat.codec.puffin.dv_file import DeletionVector
from tableformat.environment import Environment
from tableformat.errors import (
    CommitConflictError,
    CorruptDataError,
    InternalError,
    NotFoundError,
    TableError,
)
from tableformat.scan.file_source import FileSource
from tableformat.scan.plan import FileScanTask, ScanPlan, plan_files
from tableformat.scan.projection import project
from tableformat.scan.reader import TaskReader
from tableformat.spec.data_file import DataFile, EntryStatus, ManifestEntry
from tableformat.spec.types import ROW_ID_FIELD

NO_ROW_ID = -(1 << 62)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebased:
    """A rewritten group, made to fit one head.

    Attributes:
        removed: The old files as live entries of it.
        deletes: Per old file, the delete files that reach it there.
        vectors: Deletes for new files: rows that died after they were read.
        dead_files: New files in which every row has died; they are not committed.
        rows: Rows that the vectors kill.
    """

    removed: tuple[ManifestEntry, ...]
    deletes: tuple[frozenset[object], ...]
    vectors: tuple[DeletionVector, ...]
    dead_files: frozenset[str]
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebase:
    """All groups of a commit held against one head; keys are the caller's.

    Attributes:
        head_id: That head.
        fitting: Groups that can be committed to it.
        left_out: Why the others cannot; they must be planned again.
    """

    head_id: int | None
    fitting: Mapping[int, Rebased]
    left_out: Mapping[int, TableError]


def rebase_groups(
    environment: Environment,
    state: TableState,
    branch: str,
    groups: Mapping[int, RewrittenGroup],
    before: Mapping[int, Rebased],
) -> Rebase:
    """Hold rewritten groups against the head of the branch, each by itself.

    A group does not fit when an old file has left the branch (also if it is back, with other row
    ids), when the first commit after an upgrade has given its rows row ids, when rows that were
    dead when it was read live again (the branch was rolled back), or when a delete file is gone or
    damaged.

    Args:
        environment: Where manifests and deletes are read, each once for all groups.
        state: The table version.
        branch: The branch.
        groups: What was rewritten.
        before: What an earlier call found; a group whose deletes are the same is not read again.
    """
    head = state.head(branch)
    if head is None:
        gone = _changed("the branch is gone", state, branch)
        return Rebase(head_id=None, fitting={}, left_out=dict.fromkeys(groups, gone))
    paths = {each.task.entry.data_file.file_path for g in groups.values() for each in g.sources}
    entries = live_files(environment, head).find_whole(paths)
    plan = plan_files(environment, state, head, list(entries.values()))
    live = {task.entry.data_file.file_path: task for task in plan.tasks}
    left_out: dict[int, TableError] = {}
    tasks: dict[int, list[FileScanTask]] = {}
    for number, group in groups.items():
        try:
            tasks[number] = _live_tasks(group, live, state, branch)
        except CommitConflictError as error:
            left_out[number] = error
    deletes = {number: tuple(map(_deletes_of, found)) for number, found in tasks.items()}
    anew = [number for number in tasks if _is_other(before.get(number), deletes[number])]
    changed = {number: _changed_tasks(groups[number].sources, tasks[number]) for number in anew}
    reader = TaskReader(
        FileSource(environment.store, plan.specs, plan.properties),
        plan,
        project(plan, [plan.schema.fields[0].name]),  # no row is read, only what is deleted
        [task for pairs in changed.values() for _, task in pairs],
    )
    fitting: dict[int, Rebased] = {}
    for number, found in tasks.items():
        removed = tuple(task.entry for task in found)
        if number not in changed:
            fitting[number] = replace(before[number], removed=removed)
            continue
        group = groups[number]
        try:
            died = _died_since(reader, group.sources, changed[number], state, branch)
            positions = _map_positions(environment, plan, group, died)
        except (CommitConflictError, NotFoundError, CorruptDataError) as error:
            left_out[number] = error
        else:
            fitting[number] = _rebased(group, removed, deletes[number], positions)
    return Rebase(head_id=head.snapshot_id, fitting=fitting, left_out=left_out)


def _live_tasks(
    group: RewrittenGroup, live: Mapping[str, FileScanTask], state: TableState, branch: str
) -> list[FileScanTask]:
    """The old files of a group as the head has them."""
    tasks: list[FileScanTask] = []
    for source in group.sources:
        planned = source.task.entry
        path = planned.data_file.file_path
        if path not in live:
            raise _changed(f"{path} has left it", state, branch)
        if live[path].entry.sequence_number != planned.sequence_number:
            # Rolled back and published again: its rows have other ids than those written.
            raise _changed(f"{path} has left it and come back", state, branch)
        if live[path].entry.data_file.first_row_id != planned.data_file.first_row_id:
            # An upgrade: the rows had none to be stored with them.
            raise _changed(f"the rows of {path} have got row ids", state, branch)
        tasks.append(live[path])
    return tasks


def _is_other(before: Rebased | None, deletes: tuple[frozenset[object], ...]) -> bool:
    return before is None or before.deletes != deletes


def _changed_tasks(
    sources: Sequence[RewrittenSource], tasks: Sequence[FileScanTask]
) -> list[tuple[RewrittenSource, FileScanTask]]:
    """Old files that other deletes reach now than when they were read."""
    return [
        (source, task)
        for source, task in zip(sources, tasks, strict=True)
        if _deletes_of(source.task) != _deletes_of(task)
    ]


def _rebased(
    group: RewrittenGroup,
    removed: tuple[ManifestEntry, ...],
    deletes: tuple[frozenset[object], ...],
    positions: Mapping[str, Positions],
) -> Rebased:
    dead_files = frozenset(
        file.file_path
        for file in group.files
        if len(positions.get(file.file_path, ())) == file.record_count
    )
    return Rebased(
        removed=removed,
        deletes=deletes,
        vectors=tuple(
            DeletionVector(file, positions[file.file_path])
            for file in group.files
            if file.file_path in positions and file.file_path not in dead_files
        ),
        dead_files=dead_files,
        rows=sum(map(len, positions.values())),
    )


def _died_since(
    reader: TaskReader,
    sources: Sequence[RewrittenSource],
    changed: Sequence[tuple[RewrittenSource, FileScanTask]],
    state: TableState,
    branch: str,
) -> list[Int64s]:
    """Per source, positions that are dead now and were alive when it was read."""
    found: dict[str, Positions] = {}
    for source, task in changed:
        path = task.entry.data_file.file_path
        dead = reader.deleted_positions(task) or Positions()
        if source.deleted - dead:
            raise _changed(f"deleted rows of {path} are back", state, branch)
        found[path] = dead - source.deleted
    return [
        position_array(found.get(source.task.entry.data_file.file_path, Positions()))
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
        dead_before = np.searchsorted(position_array(source.deleted), positions)
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


def _changed(what: str, state: TableState, branch: str) -> CommitConflictError:
    return CommitConflictError(
        f"cannot compact: the branch has changed under the rewrite: {what}",
        action="plan again on the current head",
        table=state.name,
        branch=branch,
    )
