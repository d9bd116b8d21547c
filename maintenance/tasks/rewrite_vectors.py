"""`rewrite_vectors`: few full Puffin files instead of many small or mostly dead ones.

A cycle writes one Puffin file, and each of its vectors is replaced when its data file loses another
row. What is left is files of which few bytes are live; readers open each, and expiry cannot drop
one while a vector in it is needed. The vectors are written again as they are, and position delete
files (left from format version 2) become vectors on the way.

On a v2 table position delete files stay such, and each cycle adds one per partition or replaces
those of the data files that it touches. Here they become fewer: see `position_files`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pyiceberg.table.snapshots import Snapshot

from maintenance.tasks.base import TaskRun, check_branch, maintenance_task
from maintenance.tasks.commits import commit_until_landed, same_rows
from maintenance.tasks.options import RewriteVectorsOptions
from maintenance.tasks.position_files import plan_merge
from maintenance.tasks.reports import RewriteVectorsReport
from resolver.target import live_files
from resolver.vector_writer import VectorWriter
from tableformat.catalog.base import TableState
from tableformat.codec.puffin.deletion_vector import Positions
from tableformat.codec.puffin.dv_file import DeletionVector, read_deletion_vectors
from tableformat.commit.changeset import Changeset
from tableformat.errors import TableError
from tableformat.scan.file_source import FileSource
from tableformat.scan.plan import FileScanTask, ScanPlan, plan_scan
from tableformat.scan.position_deletes import PositionDeletes
from tableformat.spec.data_file import DataFile, ManifestEntry
from tableformat.spec.properties import dv_placement
from tableformat.write.row_deletes import has_vectors


@maintenance_task("rewrite-vectors", RewriteVectorsOptions())
def rewrite_vectors(run: TaskRun, options: RewriteVectorsOptions) -> RewriteVectorsReport:
    """Pack the live deletion vectors of a branch, and fold position delete files into vectors.

    Raises:
        NotFoundError, InvalidInputError, UnsupportedError: See `base.check_branch`.
        CorruptDataError: A vector or position delete file is damaged; nothing was changed.
        CommitConflictError, CommitUnknownError: See `commits.commit_until_landed`.

    Effects: Puffin files, then one commit. A crash before it leaves unreferenced files.
    """
    check_branch(run.table.state, options.branch, task=run.task)
    return _Rewrite(run, options).run()


@dataclass(slots=True)
class _Rewrite:
    task: TaskRun
    options: RewriteVectorsOptions
    tasks: list[FileScanTask] = field(default_factory=list)
    removed: dict[tuple[object, ...], ManifestEntry] = field(default_factory=dict)
    added: list[DataFile] = field(default_factory=list)
    writer: VectorWriter = field(init=False)

    def __post_init__(self) -> None:
        self.writer = VectorWriter(self.task.environment)

    def run(self) -> RewriteVectorsReport:
        run = self.task
        commits: tuple[int, ...] = ()
        if run.lease is None:
            state = run.table.state
            head = state.head(self.options.branch)
            if head is not None:
                self._select(state, head)
        else:
            commits = self._commit()
        return self._report(commits)

    def _commit(self) -> tuple[int, ...]:
        try:
            result = commit_until_landed(self.task, self.options.branch, self._plan)
        except TableError as error:
            if error.files_safe_to_delete:
                self._tidy(())
            raise
        self._tidy(self.added)
        return () if result is None else (result.snapshot.snapshot_id,)

    def _tidy(self, used: Sequence[DataFile]) -> None:
        """Best effort: what lost attempts wrote."""
        try:
            self.writer.delete_unused(used)
        except TableError:
            return

    def _select(self, state: TableState, head: Snapshot) -> ScanPlan:
        """Data files whose vectors are written again, and the delete files that go for it."""
        plan = plan_scan(self.task.environment, state, snapshot_id=head.snapshot_id)
        if not has_vectors(state.metadata):
            live = live_files(self.task.environment, head).position_deletes
            merge = plan_merge(state.metadata, plan.tasks, live, self.options)
            self.tasks, removed = list(merge.tasks), merge.removed
            self.removed = {entry.data_file.identity: entry for entry in removed}
            return plan
        chosen = _puffins_to_rewrite(plan, self.options, state)
        self.tasks = [
            task
            for task in plan.tasks
            if task.position_deletes
            or (task.dv is not None and task.dv.data_file.file_path in chosen)
        ]
        entries = [entry for task in self.tasks for entry in task.position_deletes]
        entries += [task.dv for task in self.tasks if task.dv is not None]
        self.removed = {entry.data_file.identity: entry for entry in entries}
        return plan

    def _plan(self, state: TableState, head: Snapshot) -> Changeset | None:
        plan = self._select(state, head)
        if not self.removed:
            self.added = []
            return None
        positions = _load(self.task, plan, self.tasks)
        vectors = [
            DeletionVector(task.entry.data_file, found)
            for task, found in zip(self.tasks, positions, strict=True)
            if found
        ]
        self.added = self.writer.write(state.metadata, vectors)
        return same_rows(
            self.task,
            self.options.branch,
            head,
            removed=tuple(self.removed.values()),
            added_deletes=tuple(self.added),
        )

    def _report(self, commits: tuple[int, ...]) -> RewriteVectorsReport:
        run = self.task
        files = [entry.data_file for entry in self.removed.values()]
        puffins = {file.file_path: file.file_size_in_bytes for file in files if file.is_dv}
        if not has_vectors(run.table.state.metadata):
            return run.report(
                RewriteVectorsReport,
                changed=bool(self.removed),
                removed_position_delete_files=len(files),
                added_position_delete_files=len(self.added),
                removed_bytes=sum(file.file_size_in_bytes for file in files),
                added_bytes=sum(file.file_size_in_bytes for file in self.added),
                commits=commits,
            )
        new = {file.file_path: file.file_size_in_bytes for file in self.added}
        return run.report(
            RewriteVectorsReport,
            changed=bool(self.removed),
            removed_puffin_files=len(puffins),
            added_puffin_files=len(new),
            vectors=len(self.added) if run.lease is not None else len(self.tasks),
            folded_files=sum(not file.is_dv for file in files),
            removed_bytes=sum(puffins.values()),
            added_bytes=sum(new.values()),
            commits=commits,
        )


def _puffins_to_rewrite(
    plan: ScanPlan, options: RewriteVectorsOptions, state: TableState
) -> set[str]:
    """Puffin files that are mostly dead, or small and many."""
    live_bytes: dict[str, int] = {}
    size_bytes: dict[str, int] = {}
    for task in plan.tasks:
        if task.dv is not None:
            file = task.dv.data_file
            live_bytes.setdefault(file.file_path, 0)
            live_bytes[file.file_path] += file.content_size_in_bytes or 0
            size_bytes[file.file_path] = file.file_size_in_bytes
    if options.rewrite_all:
        return set(size_bytes)
    if dv_placement(state.metadata.properties) != "packed":
        return set()  # one file per vector is wanted: nothing to pack, and no dead bytes
    dead = {
        path
        for path, size in size_bytes.items()
        if live_bytes[path] <= options.live_share_max * _vector_bytes(size)
    }
    small = {path for path, size in size_bytes.items() if size < options.small_bytes_max}
    return dead | small if len(dead | small) >= options.small_files_min else set()


def _vector_bytes(size_bytes: int) -> int:
    """About what of a Puffin file is vectors: the footer takes some 300 bytes for each."""
    return size_bytes - min(size_bytes // 2, 512)


def _load(run: TaskRun, plan: ScanPlan, tasks: Sequence[FileScanTask]) -> list[Positions]:
    """Deleted positions by vector or position deletes, per task."""
    store = run.environment.store
    with_vector = [task for task in tasks if task.dv is not None]
    pairs = [
        (task.dv.data_file, task.entry.data_file.record_count)
        for task in with_vector
        if task.dv is not None
    ]
    known = {
        task.entry.data_file.file_path: positions
        for task, positions in zip(with_vector, read_deletion_vectors(store, pairs), strict=True)
    }
    others = [task for task in tasks if task.dv is None]
    reader = PositionDeletes(FileSource(store, plan.specs, plan.properties), others)
    for task in others:
        known[task.entry.data_file.file_path] = reader.load(task) or Positions()
    return [known[task.entry.data_file.file_path] for task in tasks]
