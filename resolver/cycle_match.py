"""Dead rows of a cycle on one version of the table, and again on the next one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeVar

import numpy as np
from pyiceberg.table.snapshots import Snapshot

from resolver.batch_parts import BatchPart, batch_parts, is_divided, part_count, whole
from resolver.batch_row_ids import BatchRowIds, ToldIds, batch_row_ids, told_row_ids
from resolver.cursor import (
    LostCursorError,
    cursor_of,
    plan_backlog,
    staged_above,
)
from resolver.cycle_input import CycleInput, OrderedFile, UnreadInput, dead_positions
from resolver.cycle_options import CycleOptions, IndexKeeper, Phases
from resolver.engine import Engine
from resolver.filled_columns import Fill, lacks_columns, plan_fill
from resolver.immutable_check import check_immutable, check_nothing_is_deleted, is_enforced
from resolver.index.base import IndexDamagedError, Matches, PrimaryKeyIndex
from resolver.index.shared import SharedIndex
from resolver.index_keeper import snapshot_difference
from resolver.keys import EncodedKeys
from resolver.located_positions import PositionKills
from resolver.match import TARGET_ORDER, Int64s, group_by_file
from resolver.merge_deletes import DeadPositions
from resolver.moved_rows import add_target_positions
from resolver.moved_staging import check_still_staged
from resolver.position_files import read_position_file
from resolver.resolution import (
    DeadRows,
    MatchedBatch,
    Resolution,
    judge_by_arrival,
    number_keys,
    resolve_batch,
)
from resolver.row_identity import NO_ROW_ID
from resolver.row_versions import compares_versions, guarded_dead_rows
from resolver.runner import ShufflingRunner
from resolver.scan_join import add_joined_positions
from resolver.shared_keeper import SharedIndexKeeper
from resolver.spread_match import SpreadMatch, match_by_tasks
from resolver.staged_copies import check_copies
from resolver.staged_on_target import (
    StagedOnTarget,
    brought_by_others,
    judge_moved_rows,
    staged_on_target,
    without_staged_rows,
)
from resolver.staged_view import without_dead_before
from resolver.target import LiveFiles, live_files
from resolver.target_deletes import folded_deletes
from resolver.target_view import TargetView
from tableformat.catalog.base import Identifier, TableState
from tableformat.commit.branch_history import branch_history, branch_ids, is_first
from tableformat.commit.swap import check_same_table
from tableformat.environment import Environment
from tableformat.errors import CommitConflictError, CorruptDataError
from tableformat.side_by_side import run_ahead
from tableformat.spec.data_file import ManifestEntry
from tableformat.write.row_deletes import has_vectors

# A batch of more parts needs the memory for its own rows: ids are not remembered, and one part is
# in memory at a time.
FEW_PARTS = 4

logger = logging.getLogger("icefold.resolver")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What the cycle resolves; read once, whatever happens on the target.

    Attributes:
        covered: The staged snapshots.
        batch: What they hold; without keys if `unread` is set.
        converted: In place: the equality deletes that go.
        unread: Tasks read the keys, and the driver does not: see `spread_match`.
        rewrites: Live staged rows are written once more ...
        keeps_ids: ... with the ids of the rows that they replace.
    """

    covered: tuple[Snapshot, ...]
    batch: CycleInput
    converted: tuple[ManifestEntry, ...]
    unread: UnreadInput | None = None
    rewrites: bool = False
    keeps_ids: bool = False


def plan_waiting(state: TableState, options: CycleOptions) -> list[Snapshot] | None:
    """The staged snapshots that wait, oldest first; None: the state of staging has to tell.

    Raises:
        LostCursorError: The branches do not tell, and the state of staging is not asked for.
    """
    try:
        return plan_backlog(
            state,
            staging=options.staging,
            target=options.target,
            from_snapshot=options.from_snapshot,
        )
    except LostCursorError:
        if not options.from_staging_state:
            raise
        return None


class BroughtMeanwhileError(CommitConflictError):
    """The target has staged changes that were not planned; a new plan covers them."""


@dataclass(slots=True, kw_only=True)
class Match:
    """Dead rows on one version of the table.

    Attributes:
        state: The version.
        live: The live files of its target.
        work: What is resolved there: the cycle's work, but for staged files that were published.
        known: Staged files that the target has, or had.
        resolution: The dead rows; none of those that tasks have found.
        spread: Those, where tasks have matched.
        index: How the index got there.
        row_id: Shape `(staged rows,)`: their row ids, where they are written once more; let go when
            they are published.
        fill: Where their missing columns come from; None: none is missing.
        unfilled: Staged rows that no older row fills, which are not published.
    """

    state: TableState
    live: LiveFiles
    work: Work
    known: StagedOnTarget
    resolution: Resolution
    index: str
    spread: SpreadMatch | None = None
    row_id: Int64s | None = None
    fill: Fill | None = None
    unfilled: Int64s = field(default_factory=lambda: np.empty(0, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Matcher:
    """Finds the dead rows of one cycle.

    Attributes:
        environment, identifier: The table.
        options: The cycle's.
        keeper: Brings the index to a head.
        engine: Where keys are read.
        phases: Grows.
    """

    environment: Environment
    identifier: Identifier
    options: CycleOptions
    keeper: IndexKeeper
    engine: Engine
    phases: Phases

    def match(self, state: TableState, live: LiveFiles, work: Work) -> Match:
        """Dead rows, from the index at the head of `state`."""
        view = self._view(state, live)
        known = staged_on_target(view, work.batch)
        if known.repeated:
            logger.warning(
                "%s: %d staged files were published before and bring nothing again, such as %s",
                state.name,
                len(known.repeated),
                min(known.repeated),
            )
        batch = known.placed(work.batch)
        own = tuple(without_dead_before(self.environment, state, batch.own_positions))
        batch = replace(batch, own_positions=own, positions=dead_positions(own))
        work = replace(work, batch=batch)
        self._check_none_came(view, work)
        if work.unread is not None:
            return self._match_by_tasks(view, work, work.unread, known)
        count = len(batch.rows.keys)
        match = Match(
            state=state,
            live=live,
            work=work,
            known=known,
            resolution=Resolution(dead=DeadPositions(), live_rows=np.ones(count, dtype=np.bool_)),
            index="",
            row_id=np.full(count, NO_ROW_ID, dtype=np.int64) if work.rewrites else None,
        )
        with self.phases.timed("match"):
            told = told_row_ids(view, known, batch) if work.rewrites else ()
            matched = self._match_keys(view, match, told)
            kills = self._add_deletes_without_key(view, match)
            ids = None
            if matched is not None:
                check_nothing_is_deleted(view, matched, match.resolution.dead)
                if work.rewrites:
                    ids = self._row_ids(view, match, matched, kills, told)
                    match.row_id = ids.row_id
            self._fold_position_deletes(view, folded_deletes(state.metadata, live), match)
            if matched is not None and ids is not None:
                dead = match.resolution.dead
                match.fill, match.unfilled = plan_fill(view, known, matched, ids, dead)
        self.environment.runtime.fail_point("resolve.after_match")
        return match

    def _view(self, state: TableState, live: LiveFiles) -> TargetView:
        return TargetView(
            environment=self.environment,
            state=state,
            staging=self.options.staging,
            target=self.options.target,
            live=live,
            runner=self.engine.runner,
        )

    def _match_keys(self, view: TargetView, match: Match, told: ToldIds) -> MatchedBatch | None:
        """Add the rows that die by their keys to `match`, and row ids where keys decide them.

        Returns:
            The batch, if more than its keys decides.
        """
        batch = match.work.batch
        if not self._may_split(view, batch, match.known):
            all_keys = whole(batch)
            matched = self._look_up_part(view, match, all_keys)
            self._judge_part(view, match, all_keys, matched)
            return matched
        count = part_count(batch)
        remembers = count <= FEW_PARTS

        def look_up() -> Iterator[tuple[BatchPart, MatchedBatch]]:
            for part in batch_parts(batch, count):
                matched = self._look_up_part(view, match, part)
                yield part, matched
                self._judge_part(view, match, part, matched)
                del part, matched  # before the next one is made

        def put_row_ids(looked_up: tuple[BatchPart, MatchedBatch]) -> None:
            part, matched = looked_up
            if match.row_id is not None:
                kills = PositionKills(DeadPositions())
                ids = self._row_ids(view, match, matched, kills, told, remembers=remembers)
                match.row_id[part.rows] = ids.row_id

        is_beside = remembers and match.row_id is not None and self.environment.runtime.side_by_side
        for _ in run_ahead(put_row_ids, look_up(), at_once=2 if is_beside else 1):
            pass
        return None

    def _add_deletes_without_key(self, view: TargetView, match: Match) -> PositionKills:
        """Add the rows that die by deletes of other columns, and by position on the target."""
        batch, known, dead = match.work.batch, match.known, match.resolution.dead
        dead.drop(known.not_added)
        on_target = self._ordered(lambda: view.live.data.values(), batch.paths)
        files = chain(on_target, batch.files)
        add_joined_positions(view, batch.other_deletes, batch.scopes, files, dead)
        dead.drop(known.not_added)
        kills = PositionKills(dead)
        check_copies(view, batch, known)

        def look_up(keys: EncodedKeys) -> Matches:
            return self._look_up(view, keys)[0]

        add_target_positions(view, batch, known.moved, look_up, kills)
        return kills

    def may_spread(self, state: TableState, live: LiveFiles, work: Work) -> bool:
        """Whether tasks match a batch that is not read: a large one, of which keys decide all."""
        unread, metadata, view = work.unread, state.metadata, self._view(state, live)
        return (
            unread is not None
            and is_divided(unread.key_count)
            and isinstance(self.engine.runner, ShufflingRunner)
            and isinstance(self.keeper, SharedIndexKeeper)
            and not (self.options.is_in_place or work.rewrites or unread.other_deletes)
            and has_vectors(metadata)
            and not folded_deletes(metadata, live)
            and self._may_split(view, unread.batch, staged_on_target(view, work.batch))
        )

    def _match_by_tasks(
        self, view: TargetView, work: Work, unread: UnreadInput, known: StagedOnTarget
    ) -> Match:
        state, live = view.state, view.live
        if not self.may_spread(state, live, work):  # as it did when the cycle began
            raise BroughtMeanwhileError(
                "others have changed on the target what decides how a batch is matched",
                table=state.name,
                branch=self.options.target,
                action="run resolve again",
            )
        runner, environment = self.engine.runner, self.environment
        assert isinstance(runner, ShufflingRunner)

        def match(index: PrimaryKeyIndex) -> SpreadMatch:
            assert isinstance(index, SharedIndex)
            found = match_by_tasks(environment.store, state.metadata, index, runner, unread)
            try:
                _check_files_are_live(view, set(found.paths.values()))
            except IndexDamagedError:
                found.remove_left(environment.store)
                raise
            return found

        with self.phases.timed("match"):
            spread, how = self._ask(view, match, IndexDamagedError)
        environment.runtime.fail_point("resolve.after_match")
        return Match(
            state=state,
            live=live,
            work=work,
            known=known,
            resolution=Resolution(dead=DeadPositions(), live_rows=np.empty(0, dtype=np.bool_)),
            spread=spread,
            index=how,
        )

    def _may_split(self, view: TargetView, batch: CycleInput, known: StagedOnTarget) -> bool:
        """Whether nothing but keys decides which rows die, and what they hold."""
        return not (
            compares_versions(view.metadata)
            or is_enforced(view.metadata)
            or lacks_columns(batch)
            or batch.own_positions
            or batch.target_positions
            or any(each.again for each in batch.files)
            or known.moved
            or known.published
            or known.repeated
            or view.live.find(batch.paths)
        )

    def _look_up_part(self, view: TargetView, match: Match, part: BatchPart) -> MatchedBatch:
        """A part, with the rows of the target that have its keys."""
        numbered = number_keys(part.batch, look_up_rows=is_enforced(view.metadata))
        found, how = self._look_up(view, numbered.lookup)
        match.index = match.index or how
        matches = without_staged_rows(found, part.batch)
        return MatchedBatch(batch=part.batch, numbered=numbered, matches=matches)

    def _judge_part(
        self, view: TargetView, match: Match, part: BatchPart, matched: MatchedBatch
    ) -> None:
        """Add the dead rows of a part to `match`."""
        judged = judge_moved_rows(view, match.known, matched, self._judge(view, matched))
        dead = resolve_batch(matched, judged, is_in_place=self.options.is_in_place)
        match.resolution.add(dead, part.rows)

    def _row_ids(
        self,
        view: TargetView,
        match: Match,
        matched: MatchedBatch,
        kills: PositionKills,
        told: ToldIds,
        *,
        remembers: bool = True,
    ) -> BatchRowIds:
        batch, known, keeps_ids = matched.batch, match.known, match.work.keeps_ids
        found = batch_row_ids(
            view, known, matched, kills, told, keeps_ids=keeps_ids, remembers=remembers
        )
        rows = batch.rows
        for group in group_by_file(rows.file[found.killed], rows.position[found.killed]):
            kills.dead.add(batch.files[group.file].file.file_path, group.positions)
        kills.dead.drop(known.not_added)
        return found

    def brought(self, state: TableState, live: LiveFiles, later: Sequence[Snapshot]) -> int:
        """How many of some staged snapshots end with one that others have brought to the target."""
        return brought_by_others(self._view(state, live), later)

    def _check_none_came(self, view: TargetView, work: Work) -> None:
        """Refuse where others have brought what was staged after the covered snapshots."""
        if not work.covered:
            return
        later = staged_above(
            view.state,
            staging=view.staging,
            target=view.target,
            snapshot_id=work.covered[-1].snapshot_id,
        )
        if brought_by_others(view, later):
            raise BroughtMeanwhileError(
                "others have brought changes to the target that were staged meanwhile",
                table=view.state.name,
                branch=view.target,
                action="run resolve again",
            )

    def _judge(self, view: TargetView, matched: MatchedBatch) -> DeadRows:
        """Which rows die: by the table's sequence column if it has one, else by arrival."""
        check_immutable(view, matched)
        in_place = self.options.is_in_place
        by_version = None if in_place else guarded_dead_rows(view, matched)
        return by_version or judge_by_arrival(
            matched, order_of_path=_sequence_numbers(view.live) if in_place else None
        )

    def _look_up(self, view: TargetView, keys: EncodedKeys) -> tuple[Matches, str]:
        """The rows that have the keys, and how the index got there."""

        def look_up(index: PrimaryKeyIndex) -> Matches:
            matches = index.lookup(keys)
            _check_files_are_live(view, {each.file_path for each in matches.files.values()})
            return matches

        return self._ask(view, look_up)

    def _ask(
        self,
        view: TargetView,
        ask: Callable[[PrimaryKeyIndex], T],
        damage: type[CorruptDataError] = CorruptDataError,
    ) -> tuple[T, str]:
        """What the index says; one that turns out damaged is built afresh, and asked again."""
        with self.phases.timed("index"):
            index, how = self.keeper.at_head(view.state, view.target, view.live)
        try:
            return ask(index), how
        except damage as error:
            logger.warning("%s: the index is damaged: %s", view.state.name, error)
        with self.phases.timed("index"):
            index, how = self.keeper.at_head(view.state, view.target, view.live, rebuild=True)
        return ask(index), how

    def rebase(self, match: Match, work: Work) -> Match:
        """The same dead rows on the head that got there first; only what it touched is read.

        Rows that equality deletes reach: files that left take them along, files that came are read
        and compared. Everything is matched again where that is not enough: on a head that is no
        continuation (rollback, replaced branch) and may have brought rows back that the index had
        dropped, where row versions are compared, where rows are written once more, where staged
        snapshots delete by position in files that others may have rewritten, where others brought
        or took staged files, where staged files repeat published ones, and where tasks have matched
        (the keys that the others' files would be compared with are not here).
        """
        target = self.options.target
        state = self.environment.catalog.load_table(self.identifier)
        check_same_table(state, match.state.metadata.table_uuid)
        self._check_not_published(state, match.state, work)
        self.check_still_waits(state, planned=match.state, work=work)
        planned = match.state.head(target)
        head = state.head(target)
        live = live_files(self.environment, head)
        is_continued = _is_continued(state, planned, target)
        if not is_continued:
            self._check_same_waits(state, work)
        compares_rows = work.rewrites or compares_versions(state.metadata)
        is_unread = work.unread is not None
        if not is_continued or compares_rows or is_unread or work.batch.target_positions:
            return self.match(state, live, work)
        staged, view = work.batch.paths, self._view(state, live)
        on_target = staged_on_target(view, work.batch)
        is_there = match.live.find(staged) or live.find(staged)
        if is_there or on_target.left or on_target.repeated:
            return self.match(state, live, work)
        self._check_none_came(view, work)
        came = snapshot_difference(self.environment, state, planned, head)
        match.resolution.dead.drop(came.dropped)
        add_joined_positions(
            view,
            (whole(work.batch).batch.deletes, *work.batch.other_deletes),
            work.batch.scopes,
            self._ordered(lambda: came.added),
            match.resolution.dead,
        )
        before = folded_deletes(match.state.metadata, match.live)
        folded = {entry.data_file.identity for entry in before}
        now = folded_deletes(state.metadata, live)
        new = [entry for entry in now if entry.data_file.identity not in folded]
        self._fold_position_deletes(view, new, match)
        return replace(match, state=state, live=live)

    def _check_not_published(self, state: TableState, planned: TableState, work: Work) -> None:
        """Refuse where others have published the backlog since it was planned."""
        target = self.options.target
        if cursor_of(state, target) != cursor_of(planned, target):
            raise CommitConflictError(
                "another resolver has published staged changes meanwhile",
                table=state.name,
                branch=target,
                action="run resolve again",
            )
        on_chain = branch_ids(state, target)
        if any(each.snapshot_id in on_chain for each in work.covered):
            raise CommitConflictError(
                "the target was moved to a staged snapshot meanwhile",
                table=state.name,
                branch=target,
                action="run resolve again",
            )

    def check_unmoved(self, state: TableState, *, planned: TableState, work: Work) -> None:
        """As `check_still_waits`, in each attempt of a publish; its commit looks at the target."""
        if state.head_id(self.options.target) == planned.head_id(self.options.target):
            self.check_still_waits(state, planned=planned, work=work)

    def check_still_waits(self, state: TableState, *, planned: TableState, work: Work) -> None:
        """Refuse to publish on a version what staging does not have any more.

        Raises:
            StagingMovedError, NotFoundError: See `check_still_staged`.
        """
        if self.options.is_in_place or not work.covered:
            return
        check_still_staged(
            state,
            planned=planned,
            covered=work.covered,
            staging=self.options.staging,
            target=self.options.target,
            plan=lambda version: plan_waiting(version, self.options),
        )

    def _check_same_waits(self, state: TableState, work: Work) -> None:
        """Refuse a head that does not descend from the planned one if the backlog is another.

        Where others have expired what lay between, its history may have lost a publish.
        """
        if not work.covered:
            return
        backlog = plan_waiting(state, self.options) or []
        covered = [each.snapshot_id for each in work.covered]
        if covered != [each.snapshot_id for each in backlog[: len(covered)]]:
            raise CommitConflictError(
                "the target was moved meanwhile, and other staged changes wait now",
                table=state.name,
                branch=self.options.target,
                action="run resolve again",
            )

    def _fold_position_deletes(
        self, view: TargetView, entries: Iterable[ManifestEntry], match: Match
    ) -> None:
        """v2 position deletes of the target become part of the DVs, and go (I3, P7).

        They may name files that have left: those say nothing any more.
        """
        for entry in entries:
            found = read_position_file(view.environment.store, view.metadata, entry.data_file)
            for path, positions in found.items():
                if path in view.live.data:
                    match.resolution.dead.add(path, positions)

    def _ordered(
        self, entries: Callable[[], Iterable[ManifestEntry]], staged: frozenset[str] = frozenset()
    ) -> Iterator[OrderedFile]:
        """Data files of the target with their orders, but those that are `staged` too."""
        in_place = self.options.is_in_place
        for entry in entries():
            if entry.data_file.file_path not in staged:
                yield OrderedFile(
                    entry.data_file, sequence_number_of(entry) if in_place else TARGET_ORDER
                )


def _check_files_are_live(view: TargetView, paths: Collection[str]) -> None:
    """Refuse an index at the head that names files which the head does not have.

    What an index is bound to does not tell: a copy of a table whose paths were rewritten keeps its
    uuid and its snapshot ids, and an index that was copied along keeps the paths.

    Raises:
        IndexDamagedError: It is not this table's. A delete of what it names would be lost.

    Cost: per file. Of those that rows die in, the entries are asked for later anyway.
    """
    foreign = set(paths) - view.live.find(paths).keys()
    if foreign:
        raise IndexDamagedError(
            "the index names a data file that the target does not have",
            data_file=min(foreign),
            files=len(foreign),
            action="rebuild the index",
        )


def _is_continued(state: TableState, planned: Snapshot | None, target: str) -> bool:
    """Whether the target's head is seen to descend from what it was: from nothing, too."""
    history = list(branch_history(state, target))
    if planned is None:
        return not history or is_first(history[-1])
    return any(each.snapshot_id == planned.snapshot_id for each in history)


def _sequence_numbers(live: LiveFiles) -> Callable[[str], int]:
    return lambda path: sequence_number_of(live.data[path])


def sequence_number_of(entry: ManifestEntry) -> int:
    """The data sequence number of a live entry."""
    assert entry.sequence_number is not None, "entries read from a manifest have inherited it"
    return entry.sequence_number
