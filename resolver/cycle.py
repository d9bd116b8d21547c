"""One resolve cycle: compute → publish → apply → trim.

1. plan: the backlog on one version of the table; nothing is written.
2. index: brought to the planned head of the target (current, followed, or built).
3. read and match: staged keys against the batch and the index.
4. write: deletion vectors; a crash leaves Puffin files that nothing names.
5. prepare: the index change, durable beside the index, invisible.
6. publish: one compare-and-swap on the planned head, carrying the cursor. On a lost race the
   cycle goes back to 2 with the new head: the index follows what the others did, so what was read
   from staging is not read again.
7. apply: the prepared index change becomes visible, bound to the published snapshot. A crash
   before it leaves an index that is behind; the next cycle follows.
8. trim: staging moves to the published snapshot if nobody staged meanwhile. A crash before it
   leaves a longer staging branch; the next cycle trims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from pyiceberg.table.snapshots import Snapshot

from resolver.convert import Conversion, DeadPositions, convert
from resolver.cycle_input import CycleInput, OrderedFile, read_cycle_input, staged_files
from resolver.index.base import IndexChanges, Prepared, PrimaryKeyIndex
from resolver.position_files import read_position_file
from resolver.publish import hides_a_writer, publish, publish_summary
from resolver.report import ResolveReport
from resolver.resolution import NumberedKeys, index_changes, number_keys, resolve_batch
from resolver.scan_join import add_joined_positions
from resolver.staging import StagedSnapshot, cursor_of, load_staged, plan_backlog
from resolver.target import LiveFiles, live_files
from resolver.trim import trim_staging
from tableformat.catalog.base import Identifier, TableState
from tableformat.commit.changeset import Fence
from tableformat.commit.engine import CommitResult
from tableformat.environment import Environment
from tableformat.errors import CommitConflictError, TableError
from tableformat.files.dv_file import write_deletion_vectors
from tableformat.paths import puffin_locations
from tableformat.spec.data_file import DataFile, ManifestEntry
from tableformat.spec.properties import dv_placement


class IndexKeeper(Protocol):
    """Brings the primary-key index of a target branch to its head."""

    def at_head(
        self, state: TableState, target: str, live: LiveFiles
    ) -> tuple[PrimaryKeyIndex, str]:
        """The index bound to the head of `target`, and how it got there (see `ResolveReport`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CycleOptions:
    """What a cycle works on.

    Attributes:
        staging, target: The branches; equal for an in-place conversion.
        limit: Staged snapshots at most.
        from_snapshot: Operator's override of the cursor.
        fence: Gives the lock's token; raises when the lease is lost. None: without a lock.
        attempts_max: Publish attempts before the conflict is raised.
    """

    staging: str
    target: str
    limit: int | None = None
    from_snapshot: int | None = None
    fence: Callable[[], Fence] | None = None
    attempts_max: int = 20

    @property
    def is_in_place(self) -> bool:
        """Whether equality deletes are converted on their own branch."""
        return self.staging == self.target


@dataclass(slots=True)
class Phases:
    """Milliseconds per phase, in order of their first use."""

    environment: Environment
    spent_ms: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Add the time of a block to `name`."""
        clock = self.environment.runtime.clock
        begin = clock.monotonic_ms()
        try:
            yield
        finally:
            self.spent_ms[name] = self.spent_ms.get(name, 0.0) + clock.monotonic_ms() - begin


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """What the cycle resolves; read once, matched again in every attempt."""

    covered: tuple[Snapshot, ...]
    batch: CycleInput
    numbered: NumberedKeys
    equality_deletes: tuple[ManifestEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Published:
    result: CommitResult
    conversion: Conversion
    attempts: int
    index: str


class Cycle:
    """One cycle. `run` it once."""

    def __init__(
        self,
        environment: Environment,
        identifier: Identifier,
        options: CycleOptions,
        keeper: IndexKeeper,
    ) -> None:
        self._environment = environment
        self._identifier = identifier
        self._options = options
        self._keeper = keeper
        self._phases = Phases(environment)

    def run(self) -> ResolveReport:
        """Resolve what waits.

        Raises:
            CommitConflictError: Others committed faster than this could, `attempts_max` times.
            CommitUnknownError: The publish may have landed; nothing was deleted, run again.
            FencedError: Another holder of the lock has published.
            InvalidInputError, UnsupportedError, CorruptDataError: The backlog cannot be resolved;
                nothing was published.
        """
        with self._phases.timed("plan"):
            state = self._environment.catalog.load_table(self._identifier)
            staged = self._plan(state)
        if staged is None:
            return self._report_idle(state)
        with self._phases.timed("read"):
            work = self._read(state, staged)
        published = self._publish_until_landed(state, work)
        with self._phases.timed("trim"):
            trimmed = self._trim(published.result, work)
        return self._report(work, published, trimmed=trimmed)

    def _plan(self, state: TableState) -> list[StagedSnapshot] | None:
        """The staged snapshots to resolve; None when nothing waits. Empty in place."""
        options = self._options
        if options.is_in_place:
            live = live_files(self._environment, state.head(options.target))
            return [] if live.equality_deletes else None
        snapshots = plan_backlog(
            state,
            staging=options.staging,
            target=options.target,
            limit=options.limit,
            from_snapshot=options.from_snapshot,
        )
        self._environment.runtime.fail_point("resolve.after_plan")
        return load_staged(self._environment, state, snapshots) if snapshots else None

    def _read(self, state: TableState, staged: list[StagedSnapshot]) -> _Work:
        if self._options.is_in_place:
            live = live_files(self._environment, state.head(self._options.target))
            deletes = [
                OrderedFile(entry.data_file, _sequence_number(entry))
                for entry in live.equality_deletes
            ]
            equality_deletes = live.equality_deletes
        else:
            deletes = staged_files(staged, "equality_deletes")
            equality_deletes = ()
        batch = read_cycle_input(
            self._environment,
            state.metadata,
            state.metadata.schema().identifier_field_ids,
            equality_deletes=deletes,
            data_files=staged_files(staged, "data_files"),
            position_deletes=[e.data_file for each in staged for e in each.position_deletes],
            dvs=[e.data_file for each in staged for e in each.dvs],
        )
        self._environment.runtime.fail_point("resolve.after_read")
        return _Work(
            covered=tuple(each.snapshot for each in staged),
            batch=batch,
            numbered=number_keys(batch),
            equality_deletes=equality_deletes,
        )

    def _publish_until_landed(self, state: TableState, work: _Work) -> _Published:
        attempt = 0
        how = "unused"
        while True:
            attempt += 1
            with self._phases.timed("index"):
                live = live_files(self._environment, state.head(self._options.target))
                index, action = self._keeper.at_head(state, self._options.target, live)
                how = action if attempt == 1 else how
            try:
                result, conversion = self._attempt(state, work, live, index)
            except CommitConflictError:
                if attempt >= self._options.attempts_max or self._cursor_moved(state):
                    raise
                state = self._environment.catalog.load_table(self._identifier)
                continue
            return _Published(result=result, conversion=conversion, attempts=attempt, index=how)

    def _cursor_moved(self, planned: TableState) -> bool:
        """Whether somebody else published (part of) our backlog: then the plan is void."""
        fresh = self._environment.catalog.load_table(self._identifier)
        return cursor_of(fresh, self._options.target) != cursor_of(planned, self._options.target)

    def _attempt(
        self, state: TableState, work: _Work, live: LiveFiles, index: PrimaryKeyIndex
    ) -> tuple[CommitResult, Conversion]:
        runtime = self._environment.runtime
        with self._phases.timed("match"):
            resolution = resolve_batch(
                work.batch,
                work.numbered,
                index,
                order_of_path=self._order_of_path(live),
            )
            add_joined_positions(
                self._environment,
                state.metadata,
                work.batch,
                live,
                resolution.dead,
                in_place=self._options.is_in_place,
            )
            self._fold_position_deletes(state, live, resolution.dead)
            runtime.fail_point("resolve.after_match")
            conversion = convert(
                self._environment.store,
                dead=resolution.dead,
                staged_files=[each.file for each in work.batch.files],
                target_files=live.data,
                target_dvs=live.dvs,
            )
        with self._phases.timed("write"):
            dv_files = self._write_dvs(state, conversion)
            published = {file.file_path for file in conversion.published}
            prepared = self._prepare(
                index, index_changes(work.batch, work.numbered, resolution, published)
            )
        try:
            with self._phases.timed("publish"):
                removed = (*work.equality_deletes, *live.position_deletes)
                result = self._publish(state, work, conversion, dv_files, removed)
        except BaseException as error:
            index.discard(prepared)
            if isinstance(error, TableError) and error.files_safe_to_delete:
                # A definite failure: what this attempt wrote is nobody's.
                self._environment.store.delete(sorted({file.file_path for file in dv_files}))
            raise
        with self._phases.timed("apply"):
            runtime.fail_point("resolve.before_apply")
            self._apply(index, prepared, result)
        return result, conversion

    def _fold_position_deletes(
        self, state: TableState, live: LiveFiles, dead: DeadPositions
    ) -> None:
        """v2 position deletes of the target become part of the DVs, and go (I3, P7)."""
        for entry in live.position_deletes:
            found = read_position_file(self._environment.store, state.metadata, entry.data_file)
            for path, positions in found.items():
                dead.add(path, positions)

    def _order_of_path(self, live: LiveFiles) -> Callable[[str], int] | None:
        if not self._options.is_in_place:
            return None
        return lambda path: _sequence_number(live.data[path])

    def _write_dvs(self, state: TableState, conversion: Conversion) -> list[DataFile]:
        runtime = self._environment.runtime
        runtime.fail_point("resolve.before_dv_write")
        files = write_deletion_vectors(
            self._environment.store,
            conversion.vectors,
            location_for=puffin_locations(state.metadata, runtime.ids),
            placement=dv_placement(state.metadata.properties),
        )
        runtime.fail_point("resolve.after_dv_write")
        return files

    def _prepare(self, index: PrimaryKeyIndex, changes: IndexChanges) -> Prepared:
        prepared = index.prepare(changes)
        self._environment.runtime.fail_point("resolve.after_prepare")
        return prepared

    def _publish(
        self,
        state: TableState,
        work: _Work,
        conversion: Conversion,
        dv_files: list[DataFile],
        removed: tuple[ManifestEntry, ...],
    ) -> CommitResult:
        fence = None if self._options.fence is None else self._options.fence()
        result = publish(
            self._environment,
            state,
            target=self._options.target,
            conversion=conversion,
            dv_files=dv_files,
            removed=removed,
            summary=publish_summary(state.head(self._options.target), work.covered),
            fence=fence,
        )
        self._environment.runtime.fail_point("resolve.after_publish")
        return result

    def _apply(self, index: PrimaryKeyIndex, prepared: Prepared, result: CommitResult) -> None:
        snapshot = result.snapshot
        index.apply(
            prepared,
            index.binding.at(
                snapshot_id=snapshot.snapshot_id, sequence_number=snapshot.sequence_number or 0
            ),
        )
        self._environment.runtime.fail_point("resolve.after_apply")

    def _trim(self, result: CommitResult, work: _Work) -> bool:
        if self._options.is_in_place or hides_a_writer(work.covered):
            return False
        return trim_staging(
            self._environment,
            self._identifier,
            staging=self._options.staging,
            covered_head=work.covered[-1].snapshot_id,
            published=result.snapshot.snapshot_id,
        )

    def _report_idle(self, state: TableState) -> ResolveReport:
        head = state.head(self._options.target)
        return ResolveReport(
            table=state.name,
            target_snapshot_id=None if head is None else head.snapshot_id,
            staging_snapshot_id=None,
            phases_ms=self._phases.spent_ms,
        )

    def _report(self, work: _Work, published: _Published, *, trimmed: bool) -> ResolveReport:
        conversion = published.conversion
        batch = work.batch
        deletes = [batch.deletes, *batch.other_deletes]
        return ResolveReport(
            table=published.result.state.name,
            target_snapshot_id=published.result.snapshot.snapshot_id,
            staging_snapshot_id=work.covered[-1].snapshot_id if work.covered else None,
            staged_snapshots=len(work.covered) or 1,
            equality_delete_files=batch.equality_delete_files,
            equality_deletes=sum(len(each.keys) for each in deletes),
            staged_rows=len(batch.rows.keys),
            deleted_rows=conversion.new_positions,
            data_files=len(conversion.published),
            dropped_data_files=len(conversion.dropped),
            dvs=len(conversion.vectors),
            attempts=published.attempts,
            index=published.index,
            trimmed=trimmed,
            phases_ms=self._phases.spent_ms,
        )


def _sequence_number(entry: ManifestEntry) -> int:
    assert entry.sequence_number is not None, "entries read from a manifest have inherited it"
    return entry.sequence_number
