"""`drop_dead_deletes`: take delete files off a branch that reach no live row file any more.

An equality delete reaches strictly older files in its scope. Once all of those are rewritten or
gone it kills nothing, and never will: new files are younger. The same holds for position deletes
whose files are gone or have a deletion vector, and for vectors whose data file has left. Column
statistics are not asked: a delete is dropped by sequence number, spec and partition alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pyiceberg.table.snapshots import Snapshot

from maintenance.tasks.base import TaskRun, check_branch, maintenance_task
from maintenance.tasks.commits import commit_until_landed, same_rows
from maintenance.tasks.options import DropDeadDeletesOptions
from maintenance.tasks.reports import DropDeadDeletesReport
from resolver.target import LiveFiles, live_files
from tableformat.catalog.base import TableState
from tableformat.commit.changeset import Changeset
from tableformat.scan.delete_index import DeleteIndex
from tableformat.spec.data_file import DeleteFileKey, FileContent, ManifestEntry


@maintenance_task("drop-dead-deletes", DropDeadDeletesOptions())
def drop_dead_deletes(run: TaskRun, options: DropDeadDeletesOptions) -> DropDeadDeletesReport:
    """Remove delete files that reach nothing. Reads manifests only.

    Raises:
        NotFoundError, InvalidInputError, UnsupportedError: See `base.check_branch`.
        CommitConflictError, CommitUnknownError: See `commits.commit_until_landed`.

    Effects: one commit. The files themselves go when the snapshots that need them expire.
    """
    check_branch(run.table.state, options.branch, task=run.task)
    return _Drop(run, options.branch).run()


def dead_deletes(state: TableState, live: LiveFiles) -> list[ManifestEntry]:
    """Live delete entries that reach no live data file."""
    entries = [*live.dvs.values(), *live.position_deletes, *live.equality_deletes]
    index = DeleteIndex(entries, specs=state.metadata.specs(), key_fields={})
    used: set[DeleteFileKey] = set()
    for entry in live.data.values() if entries else ():
        found = index.for_data_file(entry)
        reaching = [*found.position_deletes, *found.equality_deletes]
        used.update(each.data_file.identity for each in reaching)
        if found.dv is not None:
            used.add(found.dv.data_file.identity)
    return [entry for entry in entries if entry.data_file.identity not in used]


@dataclass(slots=True)
class _Drop:
    task: TaskRun
    branch: str
    dead: list[ManifestEntry] = field(default_factory=list)

    def run(self) -> DropDeadDeletesReport:
        run = self.task
        commits: tuple[int, ...] = ()
        if run.lease is None:
            head = run.table.state.head(self.branch)
            if head is not None:
                self._find(run.table.state, head)
        else:
            result = commit_until_landed(run, self.branch, self._plan)
            commits = () if result is None else (result.snapshot.snapshot_id,)
        files = [entry.data_file for entry in self.dead]
        vectors = [file for file in files if file.is_dv]
        by_key = [file for file in files if file.content == FileContent.EQUALITY_DELETES]
        return run.report(
            DropDeadDeletesReport,
            changed=bool(files),
            equality_delete_files=len(by_key),
            position_delete_files=len(files) - len(by_key) - len(vectors),
            vectors=len(vectors),
            removed_bytes=sum(
                file.content_size_in_bytes or file.file_size_in_bytes for file in files
            ),
            commits=commits,
        )

    def _find(self, state: TableState, head: Snapshot) -> None:
        self.dead = dead_deletes(state, live_files(self.task.environment, head))

    def _plan(self, state: TableState, head: Snapshot) -> Changeset | None:
        self._find(state, head)
        if not self.dead:
            return None
        return same_rows(self.task, self.branch, head, removed=tuple(self.dead))
