"""One resolve cycle: compute → publish → apply → trim.

1. plan: the backlog on one version of the table. Nothing is written.
2. read: the keys of the staged files.
3. index: brought to the planned head of the target (current, followed, or built).
4. match: staged keys against the batch and the index.
5. write: deletion vectors. A crash leaves Puffin files that nothing names.
6. publish: one compare-and-swap on the planned head, carrying the cursor. On a lost race only what
   the others touched is matched again (rebase), and 5 and 6 are repeated.
7. apply: the index moves to the published snapshot. A crash before it leaves an index that is
   behind; the next cycle follows. The index is never ahead of the table (I20).
8. trim: staging moves to the published snapshot if nobody staged meanwhile. A crash before it
   leaves a longer staging branch; a later cycle trims. A cycle that finds nothing to resolve does
   this only: staging follows what others have committed to the target.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Protocol

from pyiceberg.table.snapshots import Snapshot

from resolver.convert import Conversion, DeadPositions, convert
from resolver.cycle_figures import cycle_figures, freshness_ms
from resolver.cycle_input import CycleInput, OrderedFile, read_cycle_input, staged_files
from resolver.engine import Engine
from resolver.immutable_check import check_immutable
from resolver.index.base import Matches, PrimaryKeyIndex
from resolver.keys import EncodedKeys
from resolver.match import TARGET_ORDER
from resolver.moved_rows import add_target_positions
from resolver.position_files import read_position_file
from resolver.publish import publish, publish_summary
from resolver.report import ResolveReport
from resolver.resolution import (
    DeadRows,
    NumberedKeys,
    Resolution,
    index_changes,
    judge_by_arrival,
    number_keys,
    resolve_batch,
)
from resolver.scan_join import add_joined_positions
from resolver.staged_on_target import files_that_left, judge_moved_rows, without_staged_rows
from resolver.staging import StagedSnapshot, cursor_of, load_staged, plan_backlog
from resolver.target import LiveFiles, live_files
from resolver.trim import hides_a_writer, trim_idle, trim_staging
from resolver.vector_writer import VectorWriter
from resolver.versions import compares_versions, guarded_dead_rows
from tableformat.catalog.base import Identifier, TableState
from tableformat.commit.changeset import Fence
from tableformat.commit.engine import CommitResult
from tableformat.commit.history import is_ancestor
from tableformat.environment import Environment
from tableformat.errors import (
    CommitConflictError,
    CorruptDataError,
    StoreUnavailableError,
    TableError,
)
from tableformat.spec.data_file import DataFile, ManifestEntry

logger = logging.getLogger("icefold.resolver")


class IndexKeeper(Protocol):
    """Brings the primary-key index of a target branch to its head."""

    def at_head(
        self, state: TableState, target: str, live: LiveFiles, *, rebuild: bool = False
    ) -> tuple[PrimaryKeyIndex, str]:
        """The index bound to the head of `target`, and how it got there (see `ResolveReport`).

        Args:
            state: The table version.
            target: The branch.
            live: The live files of its head.
            rebuild: Do not trust what is there.
        """


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
    attempts_max: int = 100

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
    """What the cycle resolves; read once, whatever happens on the target."""

    covered: tuple[Snapshot, ...]
    batch: CycleInput
    numbered: NumberedKeys
    converted: tuple[ManifestEntry, ...]  # in place: the equality deletes that go


@dataclass(frozen=True, slots=True, kw_only=True)
class _Match:
    """Dead rows on one version of the table; `left`: see `files_that_left`."""

    state: TableState
    live: LiveFiles
    left: Mapping[str, DataFile]
    resolution: Resolution
    index: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Published:
    result: CommitResult
    match: _Match
    conversion: Conversion
    attempts: int


class Cycle:
    """One cycle. `run` it once."""

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
        self._vectors = VectorWriter(environment)

    def run(self) -> ResolveReport:
        """Resolve what waits.

        Raises:
            CommitConflictError: Others committed faster than this could, `attempts_max` times, or
                published the same backlog.
            CommitUnknownError: The publish may have landed; nothing was deleted, run again.
            FencedError: Another holder of the lock has published.
            InvalidInputError, UnsupportedError, CorruptDataError: The backlog cannot be resolved;
                nothing was published.
        """
        with self._phases.timed("plan"):
            state = self._environment.catalog.load_table(self._identifier)
            live = live_files(self._environment, state.head(self._options.target))
            staged = self._plan(state, live)
        if staged is None:
            with self._phases.timed("trim"):
                trimmed = self._trim_idle(state)
            return self._report_idle(state, trimmed=trimmed)
        with self._phases.timed("read"):
            work = self._read(state, live, staged)
        published = self._publish_until_landed(state, live, work)
        with self._phases.timed("apply"):
            self._advance_index(published, work)
        with self._phases.timed("trim"):
            trimmed = self._trim(published.result, work)
        return self._report(work, published, trimmed=trimmed)

    def _plan(self, state: TableState, live: LiveFiles) -> list[StagedSnapshot] | None:
        """The staged snapshots to resolve; None when nothing waits. Empty in place."""
        options = self._options
        if options.is_in_place:
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

    def _read(self, state: TableState, live: LiveFiles, staged: list[StagedSnapshot]) -> _Work:
        converted = live.equality_deletes if self._options.is_in_place else ()
        runner = self._engine.choose(
            state.metadata,
            changes=[
                *(entry.data_file for entry in converted),
                *(entry.data_file for each in staged for entry in each.equality_deletes),
                *(entry.data_file for each in staged for entry in each.data_files),
            ],
            target=[entry.data_file for entry in live.data.values()],
        )
        batch = read_cycle_input(
            self._environment,
            state.metadata,
            state.metadata.schema().identifier_field_ids,
            equality_deletes=[
                *(OrderedFile(entry.data_file, _sequence_number(entry)) for entry in converted),
                *staged_files(staged, "equality_deletes"),
            ],
            staged=staged,
            runner=runner,
        )
        self._environment.runtime.fail_point("resolve.after_read")
        return _Work(
            covered=tuple(each.snapshot for each in staged),
            batch=batch,
            numbered=number_keys(batch),
            converted=converted,
        )

    def _publish_until_landed(self, state: TableState, live: LiveFiles, work: _Work) -> _Published:
        match = self._match(state, live, work)
        attempts = 1
        try:
            while True:
                try:
                    return self._publish(match, work, attempts)
                except CommitConflictError:
                    if attempts >= self._options.attempts_max:
                        raise
                attempts += 1
                with self._phases.timed("rebase"):
                    match = self._rebase(match, work)
        except TableError as error:
            if error.files_safe_to_delete:
                self._vectors.delete_unused()
            raise

    def _match(self, state: TableState, live: LiveFiles, work: _Work) -> _Match:
        """Dead rows, from the index at the head of `state`."""
        options, batch = self._options, work.batch
        left = self._files_that_left(state, live, work)
        found, how = self._look_up(state, live, work.numbered.lookup)
        with self._phases.timed("match"):
            matches = without_staged_rows(found, batch)
            judged = judge_moved_rows(
                self._environment,
                state,
                live=live,
                batch=batch,
                left=left,
                numbered=work.numbered,
                matches=matches,
                judged=self._judge(state, live, work, matches),
            )
            resolution = resolve_batch(batch, matches, judged)
            resolution.dead.drop(left)
            add_joined_positions(
                self._environment,
                state.metadata,
                batch.other_deletes,
                batch.scopes,
                chain(self._ordered(live.data.values(), batch.paths), batch.files),
                resolution.dead,
                self._engine.runner,
            )
            resolution.dead.drop(left)
            add_target_positions(
                self._environment,
                state,
                staging=options.staging,
                target=options.target,
                live=live,
                batch=batch,
                left=left,
                look_up=lambda keys: without_staged_rows(
                    self._look_up(state, live, keys)[0], batch
                ),
                dead=resolution.dead,
            )
            self._fold_position_deletes(state, live, live.position_deletes, resolution.dead)
        self._environment.runtime.fail_point("resolve.after_match")
        return _Match(state=state, live=live, left=left, resolution=resolution, index=how)

    def _files_that_left(
        self, state: TableState, live: LiveFiles, work: _Work
    ) -> dict[str, DataFile]:
        return files_that_left(
            self._environment, state, target=self._options.target, live=live, batch=work.batch
        )

    def _judge(self, state: TableState, live: LiveFiles, work: _Work, matches: Matches) -> DeadRows:
        """Which rows die: by the table's sequence column if it has one, else by arrival."""
        by_version = self._judge_versions(state, live, work, matches)
        return by_version or judge_by_arrival(
            work.batch, work.numbered, matches, order_of_path=self._order_of_path(live)
        )

    def _judge_versions(
        self, state: TableState, live: LiveFiles, work: _Work, matches: Matches
    ) -> DeadRows | None:
        """What the table declares about the versions of a row: check it, or decide by it."""
        given = (live, work.batch, work.numbered, matches)
        runner = self._engine.runner
        check_immutable(self._environment, state, *given, runner=runner)
        if self._options.is_in_place:
            return None
        return guarded_dead_rows(self._environment, state.metadata, *given, runner=runner)

    def _look_up(
        self, state: TableState, live: LiveFiles, keys: EncodedKeys
    ) -> tuple[Matches, str]:
        """The rows that have the keys; an index that turns out damaged is built afresh."""
        with self._phases.timed("index"):
            index, how = self._keeper.at_head(state, self._options.target, live)
        with self._phases.timed("match"):
            try:
                return index.lookup(keys), how
            except CorruptDataError as error:
                logger.warning("%s: the index is damaged: %s", state.name, error)
        with self._phases.timed("index"):
            index, how = self._keeper.at_head(state, self._options.target, live, rebuild=True)
        with self._phases.timed("match"):
            return index.lookup(keys), how

    def _rebase(self, match: _Match, work: _Work) -> _Match:
        """The same dead rows on the head that got there first; only what it touched is read.

        Rows that equality deletes reach: files that left take them along, files that came are read
        and compared. Everything is matched again where that is not enough: on a head that is no
        continuation (rollback, replaced branch) and may have brought rows back that the index had
        dropped, where row versions are compared, where staged snapshots delete by position in files
        that others may have rewritten, and where others brought or took staged files.
        """
        options = self._options
        state = self._environment.catalog.load_table(self._identifier)
        if cursor_of(state, options.target) != cursor_of(match.state, options.target):
            raise CommitConflictError(
                "another resolver has published staged changes meanwhile",
                table=state.name,
                branch=options.target,
                action="run resolve again",
            )
        planned = match.state.head(options.target)
        head = state.head(options.target)
        live = live_files(self._environment, head)
        is_continued = planned is None or (
            head is not None
            and is_ancestor(state.metadata, planned.snapshot_id, of=head.snapshot_id)
        )
        if not is_continued or compares_versions(state.metadata) or work.batch.target_positions:
            return self._match(state, live, work)
        known = match.live.data.keys()
        staged = work.batch.paths
        if staged & known or staged & live.data.keys() or self._files_that_left(state, live, work):
            return self._match(state, live, work)
        match.resolution.dead.drop(known - live.data.keys())
        added = [entry for path, entry in live.data.items() if path not in known]
        add_joined_positions(
            self._environment,
            state.metadata,
            (work.batch.deletes, *work.batch.other_deletes),
            work.batch.scopes,
            self._ordered(added),
            match.resolution.dead,
            self._engine.runner,
        )
        folded = {entry.data_file.identity for entry in match.live.position_deletes}
        self._fold_position_deletes(
            state,
            live,
            [e for e in live.position_deletes if e.data_file.identity not in folded],
            match.resolution.dead,
        )
        return replace(match, state=state, live=live)

    def _publish(self, match: _Match, work: _Work, attempts: int) -> _Published:
        runtime = self._environment.runtime
        with self._phases.timed("write"):
            conversion = convert(
                self._environment.store,
                dead=match.resolution.dead,
                staged_files=[
                    each.file for each in work.batch.files if each.file.file_path not in match.left
                ],
                target_files=match.live.data,
                target_dvs=match.live.dvs,
            )
            dv_files = self._vectors.write(match.state.metadata, conversion.vectors)
        with self._phases.timed("publish"):
            result = publish(
                self._environment,
                match.state,
                target=self._options.target,
                conversion=conversion,
                dv_files=dv_files,
                removed=(*work.converted, *match.live.position_deletes),
                summary=self._summary(work, conversion),
                fence=None if self._options.fence is None else self._options.fence(),
            )
            runtime.fail_point("resolve.after_publish")
            self._vectors.delete_unused(dv_files)
        return _Published(result=result, match=match, conversion=conversion, attempts=attempts)

    def _summary(self, work: _Work, conversion: Conversion) -> dict[str, str]:
        figures = cycle_figures(
            work.covered,
            equality_deletes=_delete_count(work),
            deleted_rows=conversion.new_positions,
            phases_ms=self._phases.spent_ms,
        )
        return figures | publish_summary(work.covered)

    def _advance_index(self, published: _Published, work: _Work) -> None:
        """Bring the index to the published snapshot.

        The publish has landed, so trouble here costs the next cycle time and nothing else.
        """
        runtime, match = self._environment.runtime, published.match
        paths = {file.file_path for file in published.conversion.published}
        paths |= work.batch.paths & match.live.data.keys()
        changes = index_changes(
            work.batch,
            work.numbered,
            match.resolution,
            paths,
            is_in_place=self._options.is_in_place,
        )
        snapshot = published.result.snapshot
        try:
            index, _ = self._keeper.at_head(match.state, self._options.target, match.live)
            prepared = index.prepare(changes)
            runtime.fail_point("resolve.after_prepare")
            binding = index.binding.at(
                snapshot_id=snapshot.snapshot_id, sequence_number=snapshot.sequence_number or 0
            )
            index.apply(prepared, binding)
        except (StoreUnavailableError, CorruptDataError) as error:
            logger.warning(
                "%s: published %d, but the index stays behind: %s",
                match.state.name,
                snapshot.snapshot_id,
                error,
            )
        runtime.fail_point("resolve.after_apply")

    def _fold_position_deletes(
        self,
        state: TableState,
        live: LiveFiles,
        entries: Iterable[ManifestEntry],
        dead: DeadPositions,
    ) -> None:
        """v2 position deletes of the target become part of the DVs, and go (I3, P7).

        They may name files that have left: those say nothing any more.
        """
        for entry in entries:
            found = read_position_file(self._environment.store, state.metadata, entry.data_file)
            for path, positions in found.items():
                if path in live.data:
                    dead.add(path, positions)

    def _order_of_path(self, live: LiveFiles) -> Callable[[str], int] | None:
        if not self._options.is_in_place:
            return None
        return lambda path: _sequence_number(live.data[path])

    def _ordered(
        self, entries: Iterable[ManifestEntry], staged: frozenset[str] = frozenset()
    ) -> Iterator[OrderedFile]:
        """Data files of the target with their orders, but those that are `staged` too."""
        in_place = self._options.is_in_place
        for entry in entries:
            if entry.data_file.file_path not in staged:
                yield OrderedFile(
                    entry.data_file, _sequence_number(entry) if in_place else TARGET_ORDER
                )

    def _trim(self, result: CommitResult, work: _Work) -> bool:
        if self._options.is_in_place:
            return False
        covered, published = work.covered[-1].snapshot_id, result.snapshot.snapshot_id
        if hides_a_writer(result.state.metadata, covered, published):
            return False
        return trim_staging(
            self._environment,
            self._identifier,
            staging=self._options.staging,
            covered_head=covered,
            published=published,
        )

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

    def _report(self, work: _Work, published: _Published, *, trimmed: bool) -> ResolveReport:
        conversion = published.conversion
        batch = work.batch
        return ResolveReport(
            table=published.result.state.name,
            target_snapshot_id=published.result.snapshot.snapshot_id,
            staging_snapshot_id=work.covered[-1].snapshot_id if work.covered else None,
            staged_snapshots=len(work.covered) or 1,
            equality_delete_files=batch.equality_delete_files,
            equality_deletes=_delete_count(work),
            staged_rows=len(batch.rows.keys),
            deleted_rows=conversion.new_positions,
            outdated_rows=published.match.resolution.outdated,
            data_files=len(conversion.published),
            dropped_data_files=len(conversion.dropped),
            dvs=len(conversion.vectors),
            attempts=published.attempts,
            index=published.match.index,
            engine=self._engine.runner.name,
            trimmed=trimmed,
            freshness_ms=freshness_ms(published.result.snapshot, work.covered),
            phases_ms=self._phases.spent_ms,
        )


def _delete_count(work: _Work) -> int:
    return sum(len(each.keys) for each in (work.batch.deletes, *work.batch.other_deletes))


def _sequence_number(entry: ManifestEntry) -> int:
    assert entry.sequence_number is not None, "entries read from a manifest have inherited it"
    return entry.sequence_number
