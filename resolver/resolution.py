"""The dead rows of a cycle, and what they change in the index. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from resolver.cycle_input import CycleInput
from resolver.index.base import Entries, IndexChanges, IndexedFile, Matches
from resolver.keys import EncodedKeys, concat_keys, factorize
from resolver.match import (
    GLOBAL_SCOPE,
    TARGET_ORDER,
    Bools,
    Int64s,
    NewestDeletes,
    dead_rows,
    group_by_file,
    newest_deletes,
)
from resolver.merge_deletes import DeadPositions
from tableformat.codec.puffin.deletion_vector import position_array

PUT_ROWS = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberedKeys:
    """The keys of a cycle as dense numbers, and D(k) over them.

    Attributes:
        newest: D(k).
        delete_number: Shape `(deletes,)`: the number of each delete's key.
        lookup: The distinct keys that are looked up: those of deletes, or all.
        lookup_number: Shape `(len(lookup),)`: their numbers.
        row_number: Shape `(staged rows,)`: the number of each staged row's key.
    """

    newest: NewestDeletes
    delete_number: Int64s
    lookup: EncodedKeys
    lookup_number: Int64s
    row_number: Int64s


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchedBatch:
    """A batch, or a part of one, and what the target has of its keys.

    Attributes:
        batch: The cycle's input.
        numbered: Its keys.
        matches: The index's answer for `numbered.lookup`.
    """

    batch: CycleInput
    numbered: NumberedKeys
    matches: Matches


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadRows:
    """Which rows die.

    Attributes:
        matches: Shape `(matches,)`: rows of the target.
        staged: Shape `(staged rows,)`: rows of the batch.
        outdated: How many of those die only because the target has a later version.
    """

    matches: Bools
    staged: Bools
    outdated: int = 0


@dataclass(slots=True, kw_only=True)
class Resolution:
    """Dead rows of the target and of the batch.

    Attributes:
        dead: Positions by data file.
        removed_keys: Keys all of whose rows on the target die.
        removed: Other rows of the target that die, as the index knows them.
        live_rows: Shape `(staged rows,)`: which of them live.
        outdated: Staged rows that die because the target has a later version of the row.
    """

    dead: DeadPositions
    removed_keys: list[EncodedKeys] = field(default_factory=list)
    removed: tuple[Entries, ...] = ()
    live_rows: Bools
    outdated: int = 0

    def add(self, part: Resolution, rows: Int64s | slice) -> None:
        """Take in what was found of a part of the batch: of these rows."""
        for path, positions in part.dead.by_path.items():
            self.dead.add(path, positions)
        self.removed_keys += part.removed_keys
        self.removed += part.removed
        self.live_rows[rows] = part.live_rows
        self.outdated += part.outdated


def number_keys(batch: CycleInput, *, look_up_rows: bool = False) -> NumberedKeys:
    """Number the keys of a cycle and fold its deletes into D(k).

    Args:
        batch: The cycle's input.
        look_up_rows: The target's rows of staged rows are wanted, too, not only those of deletes.
    """
    numbers = factorize(batch.deletes.keys, batch.rows.keys)
    delete_number, row_number = numbers.numbers
    wanted, wanted_number = batch.deletes.keys, delete_number
    if look_up_rows:
        wanted = concat_keys([wanted, batch.rows.keys])
        wanted_number = np.concatenate([delete_number, row_number])
    first = np.full(numbers.count, -1, dtype=np.int64)
    first[wanted_number[::-1]] = np.arange(len(wanted_number))[::-1]
    lookup_number = np.flatnonzero(first >= 0)
    return NumberedKeys(
        newest=newest_deletes(
            key=delete_number,
            order=batch.deletes.order,
            scope=batch.deletes.scope,
            key_count=numbers.count,
            scope_count=len(batch.scopes),
        ),
        delete_number=delete_number,
        lookup=wanted.take(first[lookup_number]),
        lookup_number=lookup_number,
        row_number=row_number,
    )


def judge_by_arrival(
    matched: MatchedBatch, *, order_of_path: Callable[[str], int] | None = None
) -> DeadRows:
    """Which rows die: those that a later delete reaches.

    Args:
        matched: The batch, and its matches as of the planned head of the target.
        order_of_path: In place: the data sequence number of a data file; None: every row of the
            target is older than the batch.
    """
    return DeadRows(
        matches=_dead_matches(matched, order_of_path),
        staged=_dead_staged_rows(matched.batch, matched.numbered),
    )


def _dead_staged_rows(batch: CycleInput, numbered: NumberedKeys) -> Bools:
    file = batch.rows.file
    order, scope = batch.file_order[file], batch.file_scope[file]
    dead = dead_rows(numbered.newest, key=numbered.row_number, order=order, scope=scope)
    for at, each in enumerate(batch.files):
        if each.again:
            rows = np.flatnonzero(file == at)
            newest = _newest_without(batch, numbered, each.again)
            dead[rows] = dead_rows(
                newest, key=numbered.row_number[rows], order=order[rows], scope=scope[rows]
            )
    return dead


def _newest_without(
    batch: CycleInput, numbered: NumberedKeys, spared: tuple[int, ...]
) -> NewestDeletes:
    """D(k) without the deletes of some orders."""
    counted = ~np.isin(batch.deletes.order, spared)
    return newest_deletes(
        key=numbered.delete_number[counted],
        order=batch.deletes.order[counted],
        scope=batch.deletes.scope[counted],
        key_count=len(numbered.newest.global_order),
        scope_count=len(batch.scopes),
    )


def resolve_batch(
    matched: MatchedBatch, judged: DeadRows, *, is_in_place: bool = False
) -> Resolution:
    """The dead positions of rows of the target and of the batch.

    Args:
        matched: The batch, and rows of the target with a deleted key.
        judged: Which of them, and of the staged rows, die.
        is_in_place: The deletes reach rows by sequence number: a row that came to the target after
            the match may live under a key whose known rows all die.
    """
    batch, matches = matched.batch, matched.matches
    dead = DeadPositions(dict(batch.positions.by_path))
    dead_matches, dead_in_batch = judged.matches, judged.staged
    for group in group_by_file(
        matches.file_id[dead_matches].astype(np.int64), matches.position[dead_matches]
    ):
        dead.add(matches.files[group.file].file_path, group.positions)
    rows = batch.rows
    for group in group_by_file(rows.file[dead_in_batch], rows.position[dead_in_batch]):
        dead.add(batch.files[group.file].file.file_path, group.positions)
    removed_keys, removed = _removed(matched, dead_matches, is_in_place)
    return Resolution(
        dead=dead,
        removed_keys=[*removed_keys],
        removed=removed,
        live_rows=~dead_in_batch,
        outdated=judged.outdated,
    )


def _dead_matches(matched: MatchedBatch, order_of_path: Callable[[str], int] | None) -> Bools:
    matches, numbered = matched.matches, matched.numbered
    ids = np.array(sorted(matches.files), dtype=np.int64)
    paths = [matches.files[int(file_id)].file_path for file_id in ids]
    order = np.array(
        [TARGET_ORDER if order_of_path is None else order_of_path(path) for path in paths],
        dtype=np.int64,
    )
    return dead_rows(
        numbered.newest,
        key=numbered.lookup_number[matches.key_ordinal],
        order=order[np.searchsorted(ids, matches.file_id)],
        scope=match_scopes(matched.batch, matches),
    )


def match_scopes(batch: CycleInput, matches: Matches) -> Int64s:
    """Per row of the target, shape `(matches,)`: the scope that deletes must have to reach it."""
    ids = np.array(sorted(matches.files), dtype=np.int64)
    files = [matches.files[int(file_id)] for file_id in ids]
    scope = np.array([batch.scopes.of_rows(f.spec_id, f.partition) for f in files], np.int64)
    return scope[np.searchsorted(ids, matches.file_id)]


def index_changes(batch: CycleInput, resolution: Resolution, published: set[str]) -> IndexChanges:
    """What the publish changes in the index: dead rows go, live staged rows come.

    The resolution's `removed_keys` are gone once the changes are prepared.

    Args:
        batch: The cycle's input.
        resolution: Its dead rows.
        published: Paths of the staged data files that are published.
    """
    is_added = np.array([each.file.file_path in published for each in batch.files], dtype=np.bool_)
    added = np.flatnonzero(is_added)
    ordinal = np.cumsum(is_added) - 1
    live = resolution.live_rows & ~dead_by_position(batch)
    live &= is_added[batch.rows.file]
    return IndexChanges(
        added_files=tuple(
            IndexedFile(
                file_path=batch.files[i].file.file_path,
                spec_id=batch.files[i].file.spec_id,
                partition=batch.files[i].file.partition,
            )
            for i in added
        ),
        removed_keys=_let_go(resolution.removed_keys),
        removed=resolution.removed,
        put=(
            Entries(
                keys=batch.rows.keys.take(some),
                file_id=ordinal[batch.rows.file[some]],
                position=batch.rows.position[some].astype(np.int64, copy=False),
            )
            for some in (each.start + np.flatnonzero(live[each]) for each in chunks(len(live)))
            if len(some)
        ),
    )


def _let_go(keys: list[EncodedKeys]) -> Iterator[EncodedKeys]:
    while keys:
        yield keys.pop()


def chunks(count: int) -> Iterator[slice]:
    """Some rows at a time: what is put into the index is not held twice."""
    for start in range(0, count, PUT_ROWS):
        yield slice(start, min(start + PUT_ROWS, count))


def _removed(
    matched: MatchedBatch, gone: Bools, is_in_place: bool
) -> tuple[tuple[EncodedKeys, ...], tuple[Entries, ...]]:
    if not gone.any():
        return (), ()
    matches, lookup = matched.matches, matched.numbered.lookup
    reach_all = not is_in_place and bool((matched.batch.deletes.scope == GLOBAL_SCOPE).all())
    if gone.all() and reach_all:
        ordinal = matches.key_ordinal  # ascending
        present = ordinal[np.r_[True, ordinal[1:] != ordinal[:-1]]]
        return (lookup.take(present),), ()
    return (), (
        Entries(
            keys=lookup.take(matches.key_ordinal[gone]),
            file_id=matches.file_id[gone],
            position=matches.position[gone],
        ),
    )


def dead_by_position(batch: CycleInput) -> Bools:
    """Staged rows that staged DVs or position deletes kill."""
    dead = np.zeros(len(batch.rows.file), dtype=np.bool_)
    for ordinal, each in enumerate(batch.files):
        positions = batch.positions.by_path.get(each.file.file_path)
        if positions is not None:
            rows = np.flatnonzero(batch.rows.file == ordinal)
            dead[rows[position_array(positions)]] = True
    return dead
