"""`compact`: fewer, larger files without dead rows; the same rows, their identity kept.

1. plan: the files of the branch's head in groups
2. per group: read with deletes applied, write new files (this process, or Spark's workers)
3. rebase each group onto what others committed meanwhile, and commit all that fit, once

Rewriting does not need the maintenance lock, and does not hold it: a resolver beside a compaction
of hours waits for the commit at most. A lock of its own keeps two compactions from doing the same.
The index is told nothing; it follows by the difference of the snapshots.

Groups that wait for the commit hold metadata and dead positions in memory, no rows. Their files are
named by nothing, so a run commits what waits before orphan removal could take it for left behind,
and a crash costs the rewriting since then.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyiceberg.table.snapshots import Snapshot

from lock import LockError
from maintenance.tasks.base import TaskRun, check_branch, maintenance_task
from maintenance.tasks.compaction.candidates import candidates
from maintenance.tasks.compaction.ordering import parse_ordering
from maintenance.tasks.compaction.plan import FileGroup, plan_groups
from maintenance.tasks.compaction.publish import delete_new_files, new_files, publish_groups
from maintenance.tasks.compaction.rewrite import RewriteJob, RewrittenGroup, rewrite_job
from maintenance.tasks.compaction.workers import Rewritten, rewrite_here, rewrite_on_spark
from maintenance.tasks.options import CompactOptions
from maintenance.tasks.reports import CompactReport
from resolver.index_keeper import MANIFEST_NOTES
from resolver.number_text import plural
from resolver.shared_keeper import notes_folder
from resolver.target import live_files
from tableformat.catalog.base import TableState
from tableformat.codec.avro.manifest_store import recall_manifests
from tableformat.errors import CommitConflictError, NotFoundError, TableError
from tableformat.scan.plan import ScanPlan, plan_files, plan_scan

if TYPE_CHECKING:  # Spark is an optional dependency
    from pyspark.sql import SparkSession

# Far below the least age at which orphan removal deletes a file that no snapshot names (an hour).
COMMIT_INTERVAL_MAX_MS = 10 * 60_000


@maintenance_task("compact", CompactOptions(), pauses=True)
def compact(
    run: TaskRun, options: CompactOptions, *, spark: SparkSession | None = None
) -> CompactReport:
    """Rewrite small files, files with many dead rows, or all, in another order if wanted.

    On the workers of the session `spark`. None: in this process, unless a session is active and
    there are at least `options.spark_bytes_min` bytes to rewrite.

    Returns:
        What was done. A group that could not be rewritten, or whose files others have replaced
        meanwhile, is left as it was and counted in `failed_groups`, with its reason in `errors`.

    Raises:
        InvalidInputError: A staging branch, a malformed property, an unknown column.
        NotFoundError: There is no such branch.
        UnsupportedError: A v1 or v2 table, a column of a reserved name, or a store that Spark's
            workers cannot use.
        CommitUnknownError: A commit may have landed; nothing was deleted.

    Effects: new data files, then one commit, or several: `CompactOptions.partial_progress`. Killed
    anywhere, committed groups are done, the others are as they were, and some unreferenced files
    wait for orphan removal.
    """
    check_branch(run.table.state, options.branch, task=run.task)
    return _Compaction(run, options, spark).run()


@dataclass(slots=True)
class _Compaction:
    """One run; `_report` grows."""

    task: TaskRun
    options: CompactOptions
    spark: SparkSession | None
    totals: dict[str, int] = field(default_factory=dict)
    commits: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def run(self) -> CompactReport:
        state = self.task.table.state
        metadata = state.metadata
        ordering = parse_ordering(self.options, metadata)
        head = state.head(self.options.branch)
        if head is None:
            return self._report("arrow", ())
        environment = self.task.environment
        plan = self._plan(state, head)
        groups = plan_groups(plan, metadata, self.options)
        jobs = [rewrite_job(plan, metadata, group, ordering) for group in groups]
        engine = "arrow" if self._session(groups) is None else "spark"
        if self.task.lease is None:
            for group in groups:
                self._count_removed(group)
            return self._report(engine, groups)
        environment.runtime.fail_point("compact.after_plan")
        try:
            self._rewrite(groups, jobs)
            if self.errors:
                self.task.refresh()  # the table itself may be gone
        except TableError as error:
            if self.commits:
                committed = ", ".join(map(str, self.commits))
                error.message = f"compacted in part as {committed}, but then: {error.message}"
            raise
        return self._report(engine, groups)

    def _plan(self, state: TableState, head: Snapshot) -> ScanPlan:
        """Of all that may be worth a rewrite."""
        environment = self.task.environment
        notes = notes_folder(environment, state, self.options.branch)
        recall_manifests(environment.store, notes / MANIFEST_NOTES)
        live = live_files(environment, head)
        chosen = candidates(environment, state, live, self.options)
        if chosen is None:
            return plan_scan(environment, state, snapshot_id=head.snapshot_id)
        return plan_files(environment, state, head, chosen)

    def _rewrite(self, groups: Sequence[FileGroup], jobs: Sequence[RewriteJob]) -> None:
        waiting: list[tuple[FileGroup, RewrittenGroup]] = []
        part_max, clock = self._part_max(len(groups)), self.task.environment.runtime.clock
        since_ms = clock.monotonic_ms()
        self.task.pause()
        try:
            with closing(self._rewritten(groups, jobs)) as results:  # type: ignore[type-var]
                for each in results:
                    self.task.environment.runtime.fail_point("compact.after_write")
                    group = groups[each.ordinal]
                    if each.group is None:
                        self._fail(group, each.error)
                        continue
                    waiting.append((group, each.group))
                    is_old = clock.monotonic_ms() - since_ms >= COMMIT_INTERVAL_MAX_MS
                    if is_old or len(waiting) >= part_max:
                        self.task.resume()
                        part, waiting = waiting, []
                        self._publish(part)
                        self.task.pause()
                        since_ms = clock.monotonic_ms()
            if waiting:
                self.task.resume()
        except (TableError, LockError):
            # No commit was tried with what waits.
            delete_new_files(self.task, new_files(rewritten for _, rewritten in waiting))
            raise
        if waiting:
            self._publish(waiting)

    def _part_max(self, groups: int) -> int:
        """Groups per commit."""
        commits = self.options.partial_progress_commits_max
        return -(-groups // commits) if self.options.partial_progress else groups

    def _rewritten(
        self, groups: Sequence[FileGroup], jobs: Sequence[RewriteJob]
    ) -> Iterator[Rewritten]:
        environment, session = self.task.environment, self._session(groups)
        if session is None:
            return rewrite_here(
                environment,
                jobs,
                concurrent_max=self.options.concurrent_groups_max,
                between=self.task.pause,
            )
        return rewrite_on_spark(session, environment, jobs, between=self.task.pause)

    def _session(self, groups: Sequence[FileGroup]) -> SparkSession | None:
        if self.spark is not None:
            return self.spark
        if sum(group.size_bytes for group in groups) < self.options.spark_bytes_min:
            return None
        from pyspark.sql import SparkSession

        return SparkSession.getActiveSession()

    def _publish(self, groups: Sequence[tuple[FileGroup, RewrittenGroup]]) -> None:
        try:
            published = publish_groups(
                self.task, self.options.branch, [rewritten for _, rewritten in groups]
            )
        except (CommitConflictError, NotFoundError) as error:
            for group, _ in groups:
                self._fail(group, error)
            return
        for number, reason in published.left_out.items():
            self._fail(groups[number][0], reason)
        if published.result is None:
            return
        self.commits.append(published.result.snapshot.snapshot_id)
        for number in published.rebased:
            group, rewritten = groups[number]
            self._count_removed(group)
            deleted = sum(len(source.deleted) for source in rewritten.sources)
            rows = sum(source.rows for source in rewritten.sources)
            self._add(committed_groups=1, rows=rows, deleted_rows=deleted - group.deleted_rows)
        rebased_rows = sum(each.rows for each in published.rebased.values())
        self._add(
            added_data_files=len(published.added),
            added_bytes=sum(file.file_size_in_bytes for file in published.added),
            rebases=published.attempts - 1 + bool(rebased_rows),
            rebased_rows=rebased_rows,
        )

    def _count_removed(self, group: FileGroup) -> None:
        self._add(
            removed_data_files=len(group.tasks),
            removed_bytes=group.size_bytes,
            removed_dvs=sum(task.dv is not None for task in group.tasks),
            deleted_rows=group.deleted_rows,
        )

    def _fail(self, group: FileGroup, reason: TableError | None) -> None:
        self._add(failed_groups=1)
        first = group.tasks[0].entry.data_file.file_path
        self.errors.append(f"{plural(len(group.tasks), 'file')} from {first}: {reason}")

    def _add(self, **counts: int) -> None:
        for name, count in counts.items():
            self.totals[name] = self.totals.get(name, 0) + count

    def _report(self, engine: str, groups: Sequence[FileGroup]) -> CompactReport:
        run = self.task
        return run.report(
            CompactReport,
            changed=bool(self.commits) or (run.lease is None and bool(groups)),
            engine=engine,
            groups=len(groups),
            commits=tuple(self.commits),
            errors=tuple(self.errors),
            **self.totals,
        )
