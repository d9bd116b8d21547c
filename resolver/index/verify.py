"""Does the index say what the table says? Both sides are read completely, in bounded memory.

Per data file, the rows of both sides are counted and hashed into one order-independent sum; only
files whose sums differ are compared row by row. The hash does not defend against an adversary, it
finds accidents.

Rows that the table's deletes have removed may still be in the index (see `follow`); they are
counted apart and are no fault. A fault is a live row that the index does not have (its delete would
be lost), or an entry that is neither a live row nor a deleted one of that key (a delete of another
row).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from resolver.index.base import PrimaryKeyIndex
from resolver.keys import EncodedKeys
from tableformat.array_types import Int64s

EXAMPLES_MAX = 10
# Files are compared row by row until this many rows; a hopeless index needs no full list.
COMPARED_ROWS_MAX = 4_000_000
_MIX = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)

Pair = tuple[bytes, int]


@dataclass(frozen=True, slots=True)
class FileRows:
    """Live rows of one data file, or a part of them.

    Attributes:
        file_path: The data file.
        keys: Their keys.
        positions: Shape `(len(keys),)`, int64: 0-based row ordinals in the file.
    """

    file_path: str
    keys: EncodedKeys
    positions: Int64s


@dataclass(frozen=True, slots=True)
class Fault:
    """One difference. `key` is the canonical key bytes in hex."""

    file_path: str
    position: int
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What `verify_index` found.

    Attributes:
        live_rows: Rows of the table.
        index_rows: Entries of the index, without `deleted_rows`.
        deleted_rows: Entries of rows that the table's own deletes have removed: harmless.
        differing_files: Data files for which both sides differ.
        missing: Live rows that the index does not have, in the files compared row by row.
        extra: Entries that are no rows of the table, in the files compared row by row.
        missing_examples, extra_examples: Some of them.
    """

    live_rows: int
    index_rows: int
    deleted_rows: int
    differing_files: int
    missing: int
    extra: int
    missing_examples: tuple[Fault, ...]
    extra_examples: tuple[Fault, ...]

    @property
    def is_sound(self) -> bool:
        """Whether the index may be used."""
        return self.differing_files == 0


def verify_index(
    index: PrimaryKeyIndex,
    scan: Callable[[frozenset[str] | None], Iterator[FileRows]],
    deleted_positions: Callable[[str], Int64s | None],
) -> VerifyReport:
    """Compare an index with the snapshot it is bound to.

    Args:
        index: The index.
        scan: Reads the live rows of the snapshot, of all files (None) or of some; called a second
            time, for some, when there is a fault.
        deleted_positions: Positions that the snapshot's deletes have removed from a file,
            ascending; None or empty when there are none. Called at most once per file.

    Raises:
        CorruptDataError: The index is damaged; rebuild it.
    """
    table, content, deleted_rows = _Sums(), _Sums(), 0
    for rows in scan(None):
        table.add(rows)
    deleted = _Deleted(deleted_positions)
    for rows in _index_rows(index, None):
        alive = deleted.alive(rows)
        deleted_rows += int((~alive).sum())
        content.add(_select(rows, alive))
    differing = [
        path
        for path in sorted(table.by_file.keys() | content.by_file.keys())
        if table.by_file.get(path) != content.by_file.get(path)
    ]
    compared = frozenset(_until(differing, table, content))
    in_table = _by_file(scan(compared)) if compared else {}
    in_index = _by_file(_select(rows, deleted.alive(rows)) for rows in _index_rows(index, compared))
    missing, extra = _Faults(), _Faults()
    for path in sorted(compared):
        missing.add(path, in_table.get(path, set()) - in_index.get(path, set()))
        extra.add(path, in_index.get(path, set()) - in_table.get(path, set()))
    return VerifyReport(
        live_rows=table.rows,
        index_rows=content.rows,
        deleted_rows=deleted_rows,
        differing_files=len(differing),
        missing=missing.count,
        extra=extra.count,
        missing_examples=tuple(missing.examples),
        extra_examples=tuple(extra.examples),
    )


def _until(differing: list[str], table: _Sums, content: _Sums) -> Iterator[str]:
    """Files whose rows together stay below the limit; at least one."""
    rows = 0
    for path in differing:
        yield path
        rows += max(table.count(path), content.count(path))
        if rows > COMPARED_ROWS_MAX:
            return


def _index_rows(index: PrimaryKeyIndex, paths: frozenset[str] | None) -> Iterator[FileRows]:
    """The entries of the index by file; of all files, or of some."""
    if paths is not None and not paths:
        return
    files = index.files()
    for entries in index.entries():
        for file_id in np.unique(entries.file_id).tolist():
            path = files[file_id].file_path
            if paths is None or path in paths:
                in_file = entries.file_id == file_id
                yield FileRows(path, entries.keys.take(in_file), entries.position[in_file])


def _select(rows: FileRows, selected: npt.NDArray[np.bool_]) -> FileRows:
    if selected.all():
        return rows
    return FileRows(rows.file_path, rows.keys.take(selected), rows.positions[selected])


@dataclass(slots=True)
class _Sums:
    """Count and hash sum of rows, by file."""

    by_file: dict[str, tuple[int, int]] = field(default_factory=dict)
    rows: int = 0

    def add(self, rows: FileRows) -> None:
        if not len(rows.keys):
            return
        mixed = rows.keys.hash64() * _MIX + rows.positions.astype(np.uint64)
        mixed = (mixed ^ (mixed >> _SHIFT)) * _MIX
        count, total = self.by_file.get(rows.file_path, (0, 0))
        total = (total + int(mixed.sum(dtype=np.uint64))) & 0xFFFFFFFFFFFFFFFF
        self.by_file[rows.file_path] = (count + len(rows.keys), total)
        self.rows += len(rows.keys)

    def count(self, path: str) -> int:
        """Rows of one file."""
        return self.by_file.get(path, (0, 0))[0]


@dataclass(slots=True)
class _Deleted:
    """Deleted positions of the files met so far."""

    load: Callable[[str], Int64s | None]
    known: dict[str, Int64s] = field(default_factory=dict)

    def alive(self, rows: FileRows) -> npt.NDArray[np.bool_]:
        positions = self.known.get(rows.file_path)
        if positions is None:
            loaded = self.load(rows.file_path)
            positions = np.empty(0, dtype=np.int64) if loaded is None else loaded
            self.known[rows.file_path] = positions
        if not len(positions):
            return np.ones(len(rows.positions), dtype=np.bool_)
        slot = np.searchsorted(positions, rows.positions)
        slot[slot == len(positions)] = 0
        return positions[slot] != rows.positions  # type: ignore[no-any-return]


@dataclass(slots=True)
class _Faults:
    count: int = 0
    examples: list[Fault] = field(default_factory=list)

    def add(self, file_path: str, pairs: set[Pair]) -> None:
        self.count += len(pairs)
        for key, position in sorted(pairs)[: EXAMPLES_MAX - len(self.examples)]:
            self.examples.append(Fault(file_path, position, key.hex()))


def _by_file(batches: Iterable[FileRows]) -> dict[str, set[Pair]]:
    pairs: dict[str, set[Pair]] = {}
    for rows in batches:
        of_file = pairs.setdefault(rows.file_path, set())
        of_file.update(zip(rows.keys.to_list(), rows.positions.tolist(), strict=True))
    return pairs
