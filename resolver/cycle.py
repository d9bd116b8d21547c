"""One resolve cycle: compute → publish → apply.

1. plan: the backlog on one version of the table. Nothing is written.
2. read: the keys of the staged files.
3. index: brought to the planned head of the target (current, followed, or built).
4. match: staged keys against the batch and the index.
5. write: deletion vectors. A crash leaves Puffin files that nothing names.
6. publish: one compare-and-swap on the planned head, carrying the cursor; staging moves onto the
   published snapshot in the same step, if nobody has staged meanwhile. On a lost race only what
   the others touched is matched again (rebase), and 5 and 6 are repeated.
7. apply: the index moves to the published snapshot. A crash before it leaves an index that is
   behind; the next cycle follows. The index is never ahead of the table (I20).

A cycle that finds nothing to resolve trims: staging follows what others have committed to the
target.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from pyiceberg.table.snapshots import Snapshot

from resolver.batch_parts import is_divided
from resolver.cursor import (
    LostCursorError,
    lost_cursor,
    oldest_of,
    plan_backlog,
    skipped_snapshots,
    up_to,
)
from resolver.cycle_figures import cycle_figures, file_hashes, freshness_ms
from resolver.cycle_input import OrderedFile, plan_cycle_input, staged_files
from resolver.cycle_match import (
    BroughtMeanwhileError,
    Match,
    Matcher,
    Work,
    plan_waiting,
    sequence_number_of,
)
from resolver.cycle_options import CycleOptions, IndexKeeper, Phases
from resolver.engine import Engine
from resolver.filled_columns import check_target_is_whole, lacks_columns
from resolver.former_main import check_was_not_main, lost_its_parent
from resolver.index.base import Prepared, PrimaryKeyIndex
from resolver.index.shared import SharedIndex
from resolver.lost_batches import without_lost
from resolver.lost_snapshots import warn_of_lost_snapshots
from resolver.match import Int64s
from resolver.merge_deletes import Conversion, convert
from resolver.moved_staging import StagingMovedError
from resolver.publish import publish_changeset, publish_summary
from resolver.repeated_batches import repeated_batches
from resolver.report import ResolveReport
from resolver.resolution import index_changes
from resolver.rewrite_batch import BatchWriter, RewrittenBatch, check_rewritable
from resolver.runner import LocalRunner
from resolver.spread_match import SpreadMatch
from resolver.staged_snapshots import (
    StagedSnapshot,
    before_unseen_deletes,
    check_staged_schemas,
    load_staged,
    names_of,
    sequence_numbers_of,
)
from resolver.staging_state import load_staging_state
from resolver.target import LiveFiles, live_files
from resolver.target_deletes import folded_deletes, known_deletes
from resolver.trim import follower_of, trim_idle
from resolver.unfilled_rows import put_aside
from resolver.vector_tasks import write_groups
from resolver.vector_writer import VectorWriter
from tableformat.after_commit import after_commit
from tableformat.catalog.base import Identifier, TableState
from tableformat.commit.engine import CommitResult, TableChangeset, commit
from tableformat.environment import Environment
from tableformat.errors import (
    CommitConflictError,
    InvalidInputError,
    TableError,
    UnsupportedError,
)
from tableformat.memory import share_heaps
from tableformat.spec.data_file import DataFile
from tableformat.spec.missing_columns import has_missing_columns
from tableformat.spec.properties import publishing
from tableformat.write.row_deletes import is_cumulative

logger = logging.getLogger("icefold.resolver")


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """What a cycle resolves (`work`), and the dead rows of it on one version of the table."""

    work: Work
    match: Match


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What is ready to be published, its files written."""

    computed: Computed
    conversion: Conversion
    dv_files: list[DataFile]
    rewritten: RewrittenBatch


class Cycle:
    """One cycle. `run` it once; or take its steps, so that several are published together.

    Steps: `compute`, then `write`, commit the `changeset`, and `finish`. After a lost race `rebase`
    and `write` again. Where nothing is published in the end, `discard`.
    """

    def __init__(
        self,
        environment: Environment,
        identifier: Identifier,
        options: CycleOptions,
        keeper: IndexKeeper,
        engine: Engine | None = None,
    ) -> None:
        self._environment = environment
        self._identifier = identifier
        self._options = options
        self._keeper = keeper
        self._engine = engine or Engine()
        self._phases = Phases(environment)
        self._matcher = Matcher(
            environment, identifier, options, keeper, self._engine, self._phases
        )
        self._vectors = VectorWriter(environment)
        self._rows = BatchWriter(environment)
        self._spread: list[SpreadMatch] = []  # those whose objects are still there

    def run(self, state: TableState | None = None) -> ResolveReport:
        """Resolve what waits.

        Args:
            state: The table as it was just loaded, which saves a load.

        Raises:
            CommitConflictError: Others committed faster than this could, `attempts_max` times, or
                published the same backlog.
            CommitUnknownError: The publish may have landed; nothing was deleted, run again.
            FencedError: Another holder of the lock has published.
            InvalidInputError, UnsupportedError, CorruptDataError: The backlog cannot be resolved;
                nothing was published.
        """
        for _ in range(self._options.attempts_max - 1):
            with suppress(BroughtMeanwhileError, StagingMovedError):
                return self._run(state)
            state = None
        return self._run(state)

    def _run(self, state: TableState | None) -> ResolveReport:
        state = state or self._load()
        self._rows.forget()  # of a plan that failed, other rows may have been read ahead
        computed = self.compute(state, reads_ahead=True)
        if computed is None:
            with self._phases.timed("trim"):
                trimmed = self._trim_idle(state)
            return self._report_idle(state, trimmed=trimmed)
        return self.publish(computed)

    def _load(self) -> TableState:
        with self._phases.timed("plan"):
            return self._environment.catalog.load_table(self._identifier)

    def compute(self, state: TableState, *, reads_ahead: bool = False) -> Computed | None:
        """Steps 1 to 4 on `state`; None when nothing waits. Nothing is written but the index.

        `reads_ahead`: rows to write once more are read beside them. They stay in memory until they
        are written.
        """
        with self._phases.timed("plan"):
            check_target_is_whole(state, self._options.target)
            live = live_files(self._environment, state.head(self._options.target))
            staged = self._plan(state, live)
        if staged is None:
            return None
        with self._phases.timed("read"):
            listed = self._rewritten(state, self._listed(state, live, staged))
            work = self._read(state, live, listed)
        match = self._match(state, live, work, reads_ahead=reads_ahead)
        return self._matched(Computed(work=work, match=match))

    def rebase(self, computed: Computed) -> Computed:
        """The same on the head that got there first."""
        with self._phases.timed("rebase"):
            match = self._matcher.rebase(computed.match, computed.work)
        return self._matched(replace(computed, match=match))

    def _match(self, state: TableState, live: LiveFiles, work: Work, *, reads_ahead: bool) -> Match:
        runner = self._engine.runner
        is_read = reads_ahead and work.rewrites and not lacks_columns(work.batch)
        if not (is_read and isinstance(runner, LocalRunner)):
            return self._matcher.match(state, live, work)
        matches: list[Match] = []
        steps = [
            lambda: matches.append(self._matcher.match(state, live, work)),
            lambda: self._rows.read_ahead(state.metadata, work.batch, runner),
        ]
        self._environment.runtime.each(lambda step: step(), steps)
        return matches[0]

    def _matched(self, computed: Computed) -> Computed:
        if computed.match.spread is not None:
            self._spread.append(computed.match.spread)
        return computed

    def _rewritten(self, state: TableState, work: Work) -> Work:
        """The work, with the choice whether staged rows are written once more.

        They are if the table says so, or if columns of them are missing; in place they are on the
        target already.
        """
        keeps_ids = publishing(state.metadata.properties) == "rewrite"
        if self._options.is_in_place or not (keeps_ids or lacks_columns(work.batch)):
            return work
        check_rewritable(state.metadata, table=state.name)
        return replace(work, rewrites=True, keeps_ids=keeps_ids)

    def _plan(self, state: TableState, live: LiveFiles) -> list[StagedSnapshot] | None:
        """The staged snapshots to resolve; None when nothing waits. Empty in place."""
        options = self._options
        if options.is_in_place:
            return [] if live.equality_deletes else None
        self._check_skipped(state)
        snapshots = plan_waiting(state, options)
        if snapshots and options.from_snapshot is None:
            snapshots = self._checked(state, snapshots)
        if snapshots is None:
            return self._plan_from_state(state)
        if options.from_snapshot is None:
            warn_of_lost_snapshots(
                state, staging=options.staging, target=options.target, waiting=snapshots
            )
        self._environment.runtime.fail_point("resolve.after_plan")
        covered = self._covered(state, live, snapshots)
        if not covered:
            return None
        repeated = repeated_batches(state, covered, target=options.target)
        if options.from_snapshot is None:
            repeated |= without_lost(state, covered, target=options.target)
        staged = load_staged(self._environment, state, covered, repeated)
        check_staged_schemas(state, staged, self._options.staging)
        taken = before_unseen_deletes(staged, state.metadata.schema().identifier_field_ids)
        if len(taken) < len(staged):
            self._check_may_end(state, live, snapshots[len(taken) :])
        return taken

    def _checked(self, state: TableState, waiting: list[Snapshot]) -> list[Snapshot] | None:
        """What waits, where older metadata says nothing else; None: as `plan_waiting`."""
        staging, target = self._options.staging, self._options.target
        if lost_its_parent(self._environment, state, target):
            if not self._options.from_staging_state:
                raise lost_cursor(state, staging, target, None, waiting[0])
            return None
        check_was_not_main(self._environment, state, waiting, staging=staging, target=target)
        return waiting

    def _check_may_end(self, state: TableState, live: LiveFiles, left: Sequence[Snapshot]) -> None:
        """Refuse to end before snapshots that a cut has, or that others have brought."""
        if self._options.until is not None or self._matcher.brought(state, live, left):
            raise _unseen_deletes(
                state,
                snapshot_id=left[0].snapshot_id,
                action="resolve this table by itself; take from the target what others have "
                "brought of these changes",
            )

    def _covered(
        self, state: TableState, live: LiveFiles, waiting: Sequence[Snapshot]
    ) -> Sequence[Snapshot]:
        """The snapshots to publish: as many as the limit says, and those that others brought.

        Raises:
            InvalidInputError: Others have brought what comes after `until`.
        """
        until = self._options.until
        covered = oldest_of(waiting, self._options.limit)
        if until is not None:
            covered = up_to(waiting, until)
        more = self._matcher.brought(state, live, waiting[len(covered) :])
        if more and until is not None:
            raise InvalidInputError(
                "others have brought staged changes to the target that come after the cut",
                table=state.name,
                branch=self._options.target,
                snapshot_id=waiting[len(covered) + more - 1].snapshot_id,
                action="resolve this table by itself; the next cut has them",
            )
        return waiting[: len(covered) + more]

    def _check_skipped(self, state: TableState) -> None:
        options = self._options
        if options.from_snapshot is None or options.skip_unpublished:
            return
        skipped = skipped_snapshots(
            state,
            staging=options.staging,
            target=options.target,
            from_snapshot=options.from_snapshot,
        )
        if skipped:
            raise InvalidInputError(
                f"to start from there would take {skipped.describe()} as published without proof: "
                "what was not published is lost",
                table=state.name,
                branch=options.staging,
                snapshot_id=options.from_snapshot,
                action="check them; to go on say so: --yes, or skip_unpublished=True",
            )

    def _plan_from_state(self, state: TableState) -> list[StagedSnapshot] | None:
        options = self._options
        staged = load_staging_state(
            self._environment,
            state,
            staging=options.staging,
            target=options.target,
            staged_after=options.staged_after,
        )
        check_staged_schemas(state, staged, options.staging, from_state=True)
        taken = before_unseen_deletes(staged, state.metadata.schema().identifier_field_ids)
        if len(taken) < len(staged):  # a marker names a snapshot: none is left to end before
            raise _unseen_deletes(
                state,
                sequence_number=min(sequence_numbers_of(staged[len(taken)])),
                action="stage what waits again, on a new staging branch: the rows, then the "
                "deletes; or the rows whole",
            )
        if staged or self._is_proven(state):
            return staged or None
        # Only a marker on the target tells the next cycle that nothing of this head is staged.
        head = state.head(options.staging)
        assert head is not None, "its state was read"
        return [StagedSnapshot.of(1, head, (), frozenset(), {})]

    def _is_proven(self, state: TableState) -> bool:
        """Whether the log tells what is staged, also without a word of the operator."""
        try:
            plan_backlog(state, staging=self._options.staging, target=self._options.target)
        except LostCursorError:
            return False
        return True

    def _read(self, state: TableState, live: LiveFiles, work: Work) -> Work:
        """The work with its keys, unless tasks are to read them."""
        if work.unread is not None and is_divided(work.unread.key_count):
            share_heaps()
        if work.unread is not None and not self._matcher.may_spread(state, live, work):
            batch = work.unread.read(self._environment, state.metadata, self._engine.runner)
            work = replace(work, batch=batch, unread=None)
        self._environment.runtime.fail_point("resolve.after_read")
        return work

    def _listed(self, state: TableState, live: LiveFiles, staged: list[StagedSnapshot]) -> Work:
        converted = live.equality_deletes if self._options.is_in_place else ()
        self._engine.choose(
            state.metadata,
            changes=[
                *(entry.data_file for entry in converted),
                *(entry.data_file for each in staged for entry in each.equality_deletes),
                *(entry.data_file for each in staged for entry in each.data_files),
            ],
            target=lambda: [entry.data_file for entry in live.data.values()],
            whole_rows=publishing(state.metadata.properties) == "rewrite"
            or any(has_missing_columns(entry.data_file) for s in staged for entry in s.data_files),
        )
        unread = plan_cycle_input(
            self._environment,
            state.metadata,
            state.metadata.schema().identifier_field_ids,
            equality_deletes=[
                *(OrderedFile(entry.data_file, sequence_number_of(entry)) for entry in converted),
                *staged_files(staged, "equality_deletes"),
            ],
            staged=staged,
        )
        return Work(
            covered=tuple({each.snapshot.snapshot_id: each.snapshot for each in staged}.values()),
            batch=unread.batch,
            converted=converted,
            unread=unread,
        )

    def publish(self, computed: Computed) -> ResolveReport:
        """Steps 5 to 7, for a table that is published by itself."""
        attempts = 1
        try:
            while True:
                written = self.write(computed)
                try:
                    with self._phases.timed("publish"):
                        change = self.changeset(written)
                        result = commit(
                            self._environment,
                            change.identifier,
                            change.changeset,
                            state=change.state,
                            check=change.check,
                        )
                    break
                except StagingMovedError:
                    raise
                except CommitConflictError:
                    if attempts >= self._options.attempts_max:
                        raise
                attempts += 1
                computed = self.rebase(computed)
        except TableError as error:
            if error.files_safe_to_delete:
                self.discard()
            raise
        with after_commit(f"published as {result.snapshot.snapshot_id}"):
            return self.finish(written, result, attempts)

    def write(self, computed: Computed) -> Written:
        """Step 5. What an earlier call has written and is the same is not written again."""
        match, work = computed.match, computed.work
        if match.spread is not None:
            with self._phases.timed("write"):
                return self._write_by_tasks(computed, match.spread)
        with self._phases.timed("write"):
            touched = {*match.resolution.dead.paths(), *work.batch.paths}
            conversion = convert(
                dead=match.resolution.dead,
                staged_files=[
                    each.file
                    for each in work.batch.files
                    if each.file.file_path not in match.known.not_added
                ],
                target_files=match.live.find(touched),
                known=known_deletes(
                    self._environment.store,
                    match.state.metadata,
                    match.live,
                    match.resolution.dead.paths(),
                ),
                removed={e.data_file.file_path for s in work.batch.staged for e in s.removed},
                is_cumulative=is_cumulative(match.state.metadata),
            )
            put_aside(self._environment, match.state, match.work.batch, match.unfilled)
            rewritten = RewrittenBatch()
            if match.row_id is None:
                dv_files = self._vectors.write(match.state.metadata, conversion.vectors)
            else:
                conversion, rewritten, dv_files = self._write_rows(match, conversion, match.row_id)
        return Written(
            computed=computed, conversion=conversion, rewritten=rewritten, dv_files=dv_files
        )

    def _write_rows(
        self, match: Match, conversion: Conversion, row_id: Int64s
    ) -> tuple[Conversion, RewrittenBatch, list[DataFile]]:
        """Staged rows once more, and beside them the vectors of files that are there already."""
        metadata, runner = match.state.metadata, self._engine.runner
        rewritten, dv_files = RewrittenBatch(), list[DataFile]()
        vectors = conversion.vectors_of_target()

        def write_rows() -> None:
            nonlocal rewritten
            batch = match.work.batch
            rewritten = self._rows.write(
                metadata, batch, conversion, row_id, runner, fill=match.fill
            )

        def write_vectors() -> None:
            dv_files.extend(self._vectors.write(metadata, vectors))

        self._environment.runtime.each(lambda write: write(), [write_rows, write_vectors])
        conversion = replace(conversion, vectors=vectors, published=rewritten.files)
        return conversion, rewritten, dv_files

    def _write_by_tasks(self, computed: Computed, spread: SpreadMatch) -> Written:
        match, batch = computed.match, computed.match.work.batch
        with self._vectors.written_elsewhere() as note:
            conversion, dv_files = write_groups(
                self._environment.store,
                match.state.metadata,
                self._engine.runner,
                spread.groups(match.live, batch),
                [each.file for each in batch.files],
            )
            note(dv_files)
        return Written(
            computed=computed,
            conversion=conversion,
            rewritten=RewrittenBatch(),
            dv_files=dv_files,
        )

    def changeset(self, written: Written) -> TableChangeset:
        """The commit of step 6, for the version of the table that was matched.

        Raises:
            lock.LeaseLostError: The lease is someone else's.
        """
        match, work = written.computed.match, written.computed.work
        options, covered = self._options, work.covered
        summary = self._summary(work, written.conversion)
        changeset = publish_changeset(
            match.state,
            target=options.target,
            conversion=written.conversion,
            dv_files=written.dv_files,
            removed=(*work.converted, *folded_deletes(match.state.metadata, match.live)),
            covered=covered,
            summary=summary,
            fence=None if options.fence is None else options.fence(),
            source=None if options.is_in_place else options.staging,
            follower=None
            if options.is_in_place
            else follower_of(
                match.state,
                staging=options.staging,
                target=options.target,
                covered_head=covered[-1].snapshot_id,
                summary=summary,
            ),
        )
        return TableChangeset(
            identifier=self._identifier,
            changeset=changeset,
            state=match.state,
            check=partial(self._matcher.check_unmoved, planned=match.state, work=work),
        )

    def finish(self, written: Written, result: CommitResult, attempts: int) -> ResolveReport:
        """Step 7, after `result`; what a crash before its end leaves, the next cycle does.

        Args:
            written: What was published.
            result: Its commit.
            attempts: How often it was tried.
        """
        self._environment.runtime.fail_point("resolve.after_publish")
        self._vectors.delete_unused(written.dv_files)
        written.computed.match.row_id = None
        self._rows.forget()
        with self._phases.timed("apply"):
            self._advance_index(written, result)
            self._remove_left()
        return self._report(written, result, attempts=attempts)

    def discard(self) -> None:
        """Delete what was written. Only where it is known that nothing of it was published."""
        self._vectors.delete_unused()
        self._rows.delete_unused()
        self._remove_left()

    def _remove_left(self) -> None:
        """What tasks have left of any attempt."""
        while self._spread:
            self._spread.pop().remove_left(self._environment.store)

    def _summary(self, work: Work, conversion: Conversion) -> dict[str, str]:
        figures = cycle_figures(
            work.covered,
            equality_deletes=_delete_count(work),
            deleted_rows=conversion.new_positions,
            phases_ms=self._phases.spent_ms,
            rewrites=work.rewrites,
        )
        if work.batch.staged and not self._options.from_staging_state:
            figures |= file_hashes(names_of(work.batch.staged), rewrites=work.rewrites)
        repeated = {e.snapshot.snapshot_id for e in work.batch.staged if e.is_repeated}
        return figures | publish_summary(work.covered, repeated) | dict(self._options.summary)

    def _advance_index(self, written: Written, result: CommitResult) -> None:
        """Bring the index to the published snapshot.

        The publish has landed, so trouble here costs the next cycle time and nothing else.
        """
        runtime, match = self._environment.runtime, written.computed.match
        snapshot = result.snapshot
        try:
            if written.conversion.removed:  # rows that the batch does not know, by the difference
                live = live_files(self._environment, snapshot)
                self._keeper.at_head(result.state, self._options.target, live)
                return
            index, _ = self._keeper.at_head(match.state, self._options.target, match.live)
            prepared = self._prepared(index, written)
            runtime.fail_point("resolve.after_prepare")
            binding = index.binding.at(
                snapshot_id=snapshot.snapshot_id, sequence_number=snapshot.sequence_number or 0
            )
            index.apply(prepared, binding)
        except TableError as error:
            logger.warning(
                "%s: published %d, but the index stays behind: %s",
                match.state.name,
                snapshot.snapshot_id,
                error,
            )
        runtime.fail_point("resolve.after_apply")

    def _prepared(self, index: PrimaryKeyIndex, written: Written) -> Prepared:
        match, published = written.computed.match, written.conversion.published
        if match.spread is not None:
            assert isinstance(index, SharedIndex)
            return match.spread.prepare(index, match.work.batch, published)
        paths = {file.file_path for file in published}
        paths |= match.live.find(written.computed.work.batch.paths).keys()
        changes = index_changes(match.work.batch, match.resolution, paths)
        return index.prepare(written.rewritten.add_to(changes, match.work.batch))

    def _trim_idle(self, state: TableState) -> bool:
        """Let staging follow the target; not while an operator says where staging stands."""
        options = self._options
        if options.from_snapshot is not None:
            return False
        return trim_idle(
            self._environment,
            state,
            staging=options.staging,
            target=options.target,
            fence=options.fence,
        )

    def _report_idle(self, state: TableState, *, trimmed: bool) -> ResolveReport:
        head = state.head(self._options.target)
        return ResolveReport(
            table=state.name,
            target_snapshot_id=None if head is None else head.snapshot_id,
            staging_snapshot_id=None,
            trimmed=trimmed,
            phases_ms=self._phases.spent_ms,
        )

    def _report(self, written: Written, result: CommitResult, *, attempts: int) -> ResolveReport:
        conversion, work, match = written.conversion, written.computed.work, written.computed.match
        batch, published = work.batch, result.snapshot.snapshot_id
        return ResolveReport(
            table=result.state.name,
            target_snapshot_id=published,
            staging_snapshot_id=work.covered[-1].snapshot_id if work.covered else None,
            staged_snapshots=len(work.covered) or 1,
            equality_delete_files=batch.equality_delete_files,
            equality_deletes=_delete_count(work),
            staged_rows=sum(each.file.record_count for each in batch.files),
            deleted_rows=conversion.new_positions,
            outdated_rows=match.resolution.outdated,
            data_files=len(conversion.published),
            dropped_data_files=len(conversion.dropped),
            dvs=sum(file.is_dv for file in written.dv_files),
            position_delete_files=sum(not file.is_dv for file in written.dv_files),
            attempts=attempts,
            index=match.index,
            engine=self._engine.runner.name,
            trimmed=not self._options.is_in_place
            and result.state.head_id(self._options.staging) == published,
            freshness_ms=freshness_ms(result.snapshot, work.covered),
            phases_ms=self._phases.spent_ms,
        )


def _delete_count(work: Work) -> int:
    deletes = (work.batch.deletes, *work.batch.other_deletes)
    return sum(file.record_count for each in deletes for file in each.files)


def _unseen_deletes(state: TableState, *, action: str, **where: int) -> UnsupportedError:
    """Why a cycle would have to end before deletes, and cannot (`before_unseen_deletes`)."""
    return UnsupportedError(
        "deletes on other columns than the key were staged after rows that leave columns out, and "
        "cannot be published together with them",
        table=state.name,
        action=action,
        **where,
    )
