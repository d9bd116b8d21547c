"""Rows as words, with their keys, and how a change of a key's rows is computed. Pure NumPy.

A row is one 64-bit word: `file_id << 30 | position`. An id is given once and never again, so ids
have the larger part: ten billion files over the life of an index, of a billion rows each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from resolver.index.base import Entries
from resolver.keys import EncodedKeys, KeySchema, concat_keys, encode_batch, sorted_distinct
from tableformat.array_types import Int64s
from tableformat.errors import UnsupportedError
from tableformat.integer_order import pair_order, stable_order

POSITION_BITS = 30
POSITION_LIMIT = 1 << POSITION_BITS  # rows per data file
FILE_ID_LIMIT = (1 << (64 - POSITION_BITS)) - 1  # files over the life of an index: 1.7e10
POSITION_COLUMN = "_pos"
SPLIT_ROWS = 262_144  # rows that are split by shard at a time

Rows = npt.NDArray[np.uint64]
_SHIFT = np.uint64(POSITION_BITS)
_POSITION_MASK = np.uint64(POSITION_LIMIT - 1)
_NO_ROWS: Rows = np.empty(0, dtype=np.uint64)


def pack_rows(file_id: Int64s | int, position: Int64s) -> Rows:
    """Rows as words.

    Raises:
        UnsupportedError: A data file with 2**30 rows or more.
    """
    if position.size and (position.max() >= POSITION_LIMIT or position.min() < 0):
        raise UnsupportedError(
            "row position is outside what the index can hold",
            position=int(position.max()),
            position_limit=POSITION_LIMIT,
            action="rewrite the file as several smaller ones",
        )
    return (np.asarray(file_id).astype(np.uint64) << _SHIFT) | position.astype(np.uint64)


def file_id_of(rows: Rows) -> Int64s:
    """The file of each row."""
    return (rows >> _SHIFT).astype(np.int64)


def position_of(rows: Rows) -> Int64s:
    """The position of each row."""
    return (rows & _POSITION_MASK).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyedRows:
    """Rows with their keys."""

    keys: EncodedKeys
    rows: Rows

    @staticmethod
    def of(entries: Entries, file_ids: Int64s | None = None) -> KeyedRows:
        """Entries as keyed rows; `file_ids` maps ordinals to ids where they are ordinals."""
        ids = entries.file_id if file_ids is None else file_ids[entries.file_id]
        return KeyedRows(keys=entries.keys, rows=pack_rows(ids, entries.position))

    def take(self, selected: npt.NDArray[np.bool_] | Int64s) -> KeyedRows:
        """Some of them."""
        return KeyedRows(keys=self.keys.take(selected), rows=self.rows[selected])

    def of_files(self, file_ids: Int64s) -> KeyedRows:
        """Those in one of the files."""
        selected = np.isin(file_id_of(self.rows), file_ids)
        return self if selected.all() else self.take(selected)

    def __len__(self) -> int:
        return len(self.rows)


def keyed_batches(
    batches: Iterable[pa.RecordBatch], key: KeySchema, file_id: int
) -> Iterator[KeyedRows]:
    """Keyed rows of one data file, in batches large enough to be split by shard.

    Args:
        batches: The key's columns and int64 `_pos`.
        key: The key.
        file_id: The file's id in the index.
    """
    waiting: list[KeyedRows] = []
    for batch in batches:
        positions = batch.column(POSITION_COLUMN).to_numpy().astype(np.int64, copy=False)
        rows = pack_rows(file_id, positions)
        waiting.append(KeyedRows(keys=encode_batch(batch, key), rows=rows))
        if sum(map(len, waiting)) >= SPLIT_ROWS:
            yield concat_rows(waiting)
            waiting = []
    if waiting:
        yield concat_rows(waiting)


def concat_rows(parts: Sequence[KeyedRows]) -> KeyedRows:
    """All of them, in order."""
    if len(parts) == 1:
        return parts[0]
    return KeyedRows(
        keys=concat_keys([part.keys for part in parts]),
        rows=np.concatenate([_NO_ROWS, *(part.rows for part in parts)]),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TouchedKeys:
    """The distinct keys of one change, in bytewise order, and what the change says about them.

    Attributes:
        keys: Distinct, ascending.
        is_cleared: Shape `(keys,)`: all present rows of the key go, so none need be read.
        removed_key, removed_rows: Single rows that go, with the ordinal of their key.
        put_key, put_rows: Rows that come, with the ordinal of their key.
    """

    keys: EncodedKeys
    is_cleared: npt.NDArray[np.bool_]
    removed_key: Int64s
    removed_rows: Rows
    put_key: Int64s
    put_rows: Rows


def touched_keys(cleared: EncodedKeys, removed: KeyedRows, put: KeyedRows) -> TouchedKeys:
    """Bring the three parts of a change onto one list of distinct sorted keys."""
    keys, place = sorted_distinct(concat_keys([cleared, removed.keys, put.keys]))
    bounds = len(cleared), len(cleared) + len(removed)
    is_cleared = np.zeros(len(keys), dtype=np.bool_)
    is_cleared[place[: bounds[0]]] = True
    return TouchedKeys(
        keys=keys,
        is_cleared=is_cleared,
        removed_key=place[bounds[0] : bounds[1]],
        removed_rows=removed.rows,
        put_key=place[bounds[1] :],
        put_rows=put.rows,
    )


def new_rows(touched: TouchedKeys, present_key: Int64s, present: Rows) -> tuple[Int64s, Rows]:
    """The rows of the touched keys after the change.

    Args:
        touched: The change.
        present_key: Key ordinals of the rows that are there now, without those of cleared keys.
        present: Those rows, in live files only.

    Returns:
        Key ordinals, ascending, and rows, ascending within a key, without repeats.
    """
    if len(present) and len(touched.removed_rows):
        gone = _pairs_in(present_key, present, touched.removed_key, touched.removed_rows)
        present_key, present = present_key[~gone], present[~gone]
    key = np.concatenate([present_key, touched.put_key])
    rows = np.concatenate([present, touched.put_rows])
    order = pair_order(key, rows) if _has_ties(key) else stable_order(key)
    key, rows = key[order], rows[order]
    repeated = np.zeros(len(key), dtype=np.bool_)
    repeated[1:] = (key[1:] == key[:-1]) & (rows[1:] == rows[:-1])
    if repeated.any():
        key, rows = key[~repeated], rows[~repeated]
    return key, rows


def _has_ties(key: Int64s) -> bool:
    return bool(key.size) and bool((np.bincount(key) > 1).any())


def _pairs_in(
    key: Int64s, rows: Rows, other_key: Int64s, other_rows: Rows
) -> npt.NDArray[np.bool_]:
    """Which of the pairs `(key, rows)` occur among the other pairs."""
    all_rows = np.concatenate([rows, other_rows])
    all_keys = np.concatenate([key, other_key])
    is_other = np.concatenate([np.zeros(len(rows), np.int8), np.ones(len(other_rows), np.int8)])
    order = np.lexsort((-is_other, all_rows, all_keys))  # within equal pairs the other one first
    sorted_keys, sorted_rows = all_keys[order], all_rows[order]
    starts = np.ones(len(order), dtype=np.bool_)
    starts[1:] = (sorted_keys[1:] != sorted_keys[:-1]) | (sorted_rows[1:] != sorted_rows[:-1])
    group = np.cumsum(starts) - 1
    found = np.empty(len(order), dtype=np.bool_)
    found[order] = (is_other[order][starts] == 1)[group]
    return found[: len(rows)]
