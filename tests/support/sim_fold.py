"""What main must be after a publish: the staged snapshots, one after the other, over its rows.

Rows have identities here, because others meddle: a staged data file may be on main already (picked,
added), its rows then are staged ones in their staged place; a position may have left main, its row
then is looked for by its row id. No code of the product.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.support.sim_files import Files, Identities, Place
from tests.support.sim_schema import Row, TableSchema, moved
from tests.support.table_checker import CheckedSnapshot, LiveFile

_NOBODY = frozenset[str]()
_NO_ROWS = frozenset[int]()


@dataclass(frozen=True, slots=True)
class DeadPlace:
    """A row that a staged snapshot deletes by its position; `row_id` as staging knew it."""

    place: Place
    key: Any
    row_id: int
    is_own: bool  # of a data file that came with the same snapshot


@dataclass(frozen=True, slots=True)
class StagedFile:
    """A data file of a staged snapshot, the rows that the same snapshot deletes, row ids."""

    path: str
    dead: frozenset[int]
    row_ids: tuple[int | None, ...]
    first_row_id: int  # on staging


@dataclass(frozen=True, slots=True)
class Staged:
    """What a staged snapshot does: keys die in what is older, places die, files come."""

    keys: frozenset[int]
    files: tuple[StagedFile, ...]
    places: tuple[DeadPlace, ...]
    next_row_id: int  # of the table, where staging left main
    is_copy: bool = False  # a file was removed, and written anew with the rows that live on
    never: frozenset[Place] = frozenset()  # rows copied of files that were left out
    is_again: bool = False  # repeats another staged snapshot, or a data file of one
    repeated: tuple[DeadPlace, ...] = ()  # in its vectors, too, but dead before

    @property
    def whole(self) -> Staged:
        """What a pick does: it brings the vectors as they are."""
        return replace(self, places=(*self.places, *self.repeated))


@dataclass(slots=True)
class Folded:
    """Rows after a fold: those of before, those that bring their row ids, and the rest.

    `placed`: where rows were staged that a publish has written into other files, with their ids.
    """

    kept: Identities
    stored: dict[int, Row]
    fresh: Counter[Row]
    placed: dict[Place, int] = field(default_factory=dict)
    revived: set[Place] = field(default_factory=set)  # copied, and not on main, or changed there

    @property
    def rows(self) -> Counter[Row]:
        found = Counter(row for row, _ in self.kept.values())
        found.update(self.stored.values())
        return found + self.fresh


@dataclass(frozen=True, slots=True)
class Base:
    """A snapshot that staged ones are folded over.

    Attributes:
        rows: Its rows by row ids, under the schema of the result.
        places: Their row ids by places.
        orders: By row id, the place in the order (from 1) of rows that are staged ones.
        ever: Staged data files that are, or were, on this history of main, or that were published
            without a row.
        left_out: Those of them that never were on it.
        renamed: Row ids that a rewrite without row ids has replaced.
        lived: Row ids that places had on this history of main.
        follows: Whether a row is looked for that has left its place.
    """

    rows: Identities
    places: Mapping[Place, int]
    orders: Mapping[int, int]
    ever: frozenset[str]
    left_out: frozenset[str]
    renamed: Mapping[int, int]
    lived: Callable[[Place], Iterable[int]]
    follows: bool = True


@dataclass(slots=True)
class _Fold:
    base: Base
    files: Files
    schema: TableSchema
    rows: Identities
    batch: frozenset[str]  # data files of all that is folded: a row of theirs is that one or none
    rewrites: bool = False  # each row that comes has a row id
    fresh: dict[Place, tuple[Row, int | None]] = field(default_factory=dict)
    came: dict[Place, int] = field(default_factory=dict)  # the place in the order of `fresh` rows
    seen: set[str] = field(default_factory=set)
    # Of the snapshot that is applied: by key, the row it replaces; row ids that die by position.
    replaced: dict[Any, tuple[int, int]] = field(default_factory=dict)
    before: dict[Any, Row] = field(default_factory=dict)  # the same rows by key
    killed: set[int] = field(default_factory=set)
    revived: set[Place] = field(default_factory=set)

    def apply(self, order: int, staged: Staged) -> None:
        known = self.base.ever | self.seen
        is_repeated = staged.is_again and any(file.path in known for file in staged.files)
        self.replaced, self.before = {}, {}
        self.killed = set()
        if staged.keys and not is_repeated:
            self._delete(order, staged)
        self.revived |= staged.never
        for dead in staged.places:
            if dead.place in self.fresh:
                del self.fresh[dead.place]
            elif not dead.is_own or dead.place[0] in self.base.ever:
                before = dict(self.rows)
                self._kill(order, staged, dead)
                if staged.is_copy and staged.files and not self._took(dead, before):
                    self.revived.add(dead.place)
        for file in () if is_repeated else staged.files:
            if file.path not in self.base.ever and file.path not in self.seen:
                self.seen.add(file.path)
                for at, given in enumerate(self.files.rows_of(file.path, self.schema)):
                    if at not in file.dead:
                        row = self._filled(file.path, at, given)
                        self.fresh[file.path, at] = (row, self._row_id(file, at, row))
                        self.came[file.path, at] = order

    def _took(self, dead: DeadPlace, before: Identities) -> bool:
        """Whether a row has died that still was as it is at a place."""
        path, at = dead.place
        wanted = self.files.rows_of(path, self.schema)[at]
        return any(before[i][0] == wanted for i in before.keys() - self.rows.keys())

    def _row_id(self, file: StagedFile, at: int, row: Row) -> int | None:
        """The id that a row brings; rewritten rows have that of the row that their own snapshot
        replaced, else the one that staging shows."""
        stored = file.row_ids[at]
        if stored is not None or not self.rewrites:
            return stored
        return self.replaced.pop(row[0], (0, file.first_row_id + at))[1]

    def _filled(self, path: str, at: int, row: Row) -> Row:
        """A row with what it leaves out taken from the one that its own snapshot replaced."""
        stored = self.files.file(path)
        before = self.before.get(row[0], (None,) * len(row))
        return tuple(
            old if stored.lacks(at, field_id) else new
            for field_id, old, new in zip(self.schema.fields, before, row, strict=True)
        )

    def _replace(self, row: Row, order: int, row_id: int) -> None:
        known = self.replaced.get(row[0], (-1, -1))
        if (order, row_id) >= known:
            self.replaced[row[0]], self.before[row[0]] = (order, row_id), row

    def _delete(self, order: int, staged: Staged) -> None:
        """Keys die in what is older. Files that a staged snapshot names again are its own, too."""
        orders, own = self.base.orders, {file.path for file in staged.files}
        spared = self._same(
            row_id
            for file in staged.files
            if file.path in self.base.ever
            for at in range(len(file.row_ids))
            for row_id in self.base.lived((file.path, at))
        )
        gone = [
            row_id
            for row_id, (row, _) in self.rows.items()
            if row[0] in staged.keys and orders.get(row_id, 0) < order and row_id not in spared
        ]
        for row_id in gone:
            self._replace(self.rows.pop(row_id)[0], orders.get(row_id, 0), row_id)
        dead = [
            p for p, (row, _) in self.fresh.items() if row[0] in staged.keys and p[0] not in own
        ]
        for place in dead:
            row, known = self.fresh.pop(place)
            self._replace(row, self.came[place], -1 if known is None else known)

    def _same(self, row_ids: Iterable[int]) -> set[int]:
        """These and what a rewrite has made of them."""
        same, renamed = set(row_ids), self.base.renamed
        while more := {renamed[i] for i in same if i in renamed} - same:
            same |= more
        return same

    def _kill(self, order: int, staged: Staged, dead: DeadPlace) -> None:
        """The row at a place of main, or, where it has left the place, wherever it is now."""
        here = self.base.places.get(dead.place)
        if here is not None:
            self.rows.pop(here, None)
            self.killed.add(here)
        if here is not None or not self.base.follows:
            return
        orders = self.base.orders
        if self.rewrites:  # a row of a publish that main has lost is a staged one again
            ids = {dead.row_id, *self.base.lived(dead.place)}
            again = [p for p, (_, i) in self.fresh.items() if i in ids and self.came[p] < order]
            for place in again:
                del self.fresh[place]
        found = {row_id for row_id, (row, _) in self.rows.items() if row[0] == dead.key}
        same = self._same((dead.row_id, *self.base.lived(dead.place)))
        hits = found & same
        is_there = bool(hits) or bool(self.rewrites and same & self.killed)  # in two places
        hits = {i for i in hits if orders.get(i, 0) < order}  # others have brought the delete, too
        if not is_there and dead.place[0] not in self.batch | self.base.left_out:
            older = {i for i in found if orders.get(i, 0) < order}
            hits = {i for i in older if i >= staged.next_row_id}
        self.killed |= hits
        for row_id in hits:
            del self.rows[row_id]


def fold(
    base: Base,
    batch: Iterable[tuple[int, Staged]],
    files: Files,
    schema: TableSchema,
    *,
    rewrites: bool = False,
) -> Folded:
    """Apply staged snapshots, each with its place in the order. `rewrites`: rows keep row ids."""
    batch = list(batch)
    paths = frozenset(file.path for _, staged in batch for file in staged.files)
    work = _Fold(base, files, schema, dict(base.rows), paths, rewrites)
    for order, staged in batch:
        work.apply(order, staged)
    stored = {i: row for row, i in work.fresh.values() if i is not None}
    fresh = Counter(row for row, i in work.fresh.values() if i is None)
    placed = {place: i for place, (_, i) in work.fresh.items() if rewrites and i is not None}
    assert not rewrites or len(placed) == len(stored), "a row id twice"
    return Folded(work.rows, stored, fresh, placed, work.revived)


def read_staged(
    files: Files,
    checked: CheckedSnapshot,
    before: Mapping[str, Any],
    keys: frozenset[int],
    schema: TableSchema,
    *,
    next_row_id: int,
    is_again: bool,
    removed: Mapping[Place, int] | None = None,
) -> Staged:
    """What a staged snapshot did, from its files.

    Args:
        files: Reads them.
        checked: The snapshot.
        before: Positions by data file that were dead in its parent already.
        keys: Keys that its equality deletes delete.
        schema: Its schema.
        next_row_id, is_again: See `Staged`.
        removed: Row ids, by their places, of live rows in files that it removed.
    """
    snapshot = checked.snapshot
    own = [f for f in checked.live if f.snapshot_id == snapshot["snapshot-id"]]
    dead: dict[str, set[int]] = {}
    repeated: dict[str, set[int]] = {}
    for file in own:
        if file.content == 1 and file.offset is not None and file.referenced is not None:
            positions, known = set(files.vector(file)), set(before.get(file.referenced, ()))
            dead.setdefault(file.referenced, set()).update(positions - known)
            repeated.setdefault(file.referenced, set()).update(positions & known)
        elif file.content == 1:
            for path, positions in files.position_file(file.path).items():
                dead.setdefault(path, set()).update(positions)
    named: dict[str, LiveFile] = {f.path: f for f in reversed(checked.live) if f.content == 0}
    new = {file.path: file for file in own if file.content == 0}

    def places(positions: dict[str, set[int]]) -> tuple[DeadPlace, ...]:
        return tuple(
            DeadPlace(
                (path, at),
                files.rows_of(path, schema)[at][0],
                files.row_id(named[path], at),
                path in new,
            )
            for path in sorted(positions)
            for at in sorted(positions[path])
        )

    return Staged(
        keys=keys,
        files=tuple(
            StagedFile(
                path,
                frozenset(dead.get(path, ())),
                tuple(files.file(path).row_ids),
                file.first_row_id or 0,
            )
            for path, file in new.items()
        ),
        places=(
            *places(dead),
            *(
                DeadPlace(place, files.rows_of(place[0], schema)[place[1]][0], row_id, is_own=False)
                for place, row_id in sorted((removed or {}).items())
            ),
        ),
        is_copy=bool(removed),
        next_row_id=next_row_id,
        is_again=is_again,
        repeated=places(repeated),
    )


def as_in_state(batch: Sequence[tuple[int, Staged]]) -> list[tuple[int, Staged]]:
    """Staged snapshots as the state of their branch shows them: of the vectors of a data
    file the last one is there, and says nothing of when each row died. A row that a later delete
    by key reaches before that may have died of either."""
    new = {file.path for _, each in batch for file in each.files}
    last = {
        dead.place[0]: order for order, each in batch for dead in (*each.places, *each.repeated)
    }
    places: dict[int, list[DeadPlace]] = {order: [] for order, _ in batch}
    for _, each in batch:
        for dead in each.places:
            places[last[dead.place[0]]].append(replace(dead, is_own=dead.place[0] in new))
    return [
        (
            order,
            replace(
                each,
                places=tuple(places[order]),
                files=tuple(
                    file if last.get(file.path, order) == order else replace(file, dead=_NO_ROWS)
                    for file in each.files
                ),
            ),
        )
        for order, each in batch
    ]


def in_other_schema(rows: Identities, old: TableSchema, new: TableSchema) -> Identities:
    """Rows by row ids under another version of the schema."""
    if old.fields == new.fields:
        return rows
    return {i: (moved(row, old, new), updated) for i, (row, updated) in rows.items()}


def picked(
    base: Base, sources: Sequence[Staged], paths: Iterable[str], files: Files, schema: TableSchema
) -> Counter[Row]:
    """Rows after a pick: as if its changes had been made now. `paths` are added as they are."""
    bare = Base(base.rows, base.places, {}, _NOBODY, _NOBODY, {}, lambda _: (), follows=False)
    changes = enumerate([each.whole for each in sources], start=1)
    rows = fold(bare, changes, files, schema).rows
    for path in paths:
        rows.update(files.rows_of(path, schema))
    return rows
