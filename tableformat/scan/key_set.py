"""A set of deleted keys with, per key, the newest sequence number that deletes it. Vectorized.

Each key column is mapped to a code, its index among the distinct values of the set (NULL is a
value like others: NULL equals NULL in an equality delete). Codes of several columns are folded
two by two into one code through a sorted array of the pairs that occur, so composite keys are
compared exactly, column by column, without building strings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tableformat.integer_order import distinct_inverse

Int64s = NDArray[np.int64]
Column: TypeAlias = "pa.Array | pa.ChunkedArray"

ABSENT = np.int64(-1)


@dataclass(frozen=True, slots=True)
class KeySet:
    """Keys and the sequence numbers that delete them; see the module's text.

    Attributes:
        values: Per key column its distinct values.
        pairs: Per key column after the first the sorted pairs `code * len(values) + column code`;
            a key's new code is the index of its pair.
        sequence_numbers: By final code: the highest sequence number of a delete of that key.
    """

    values: tuple[pa.Array, ...]
    pairs: tuple[Int64s, ...]
    sequence_numbers: Int64s

    def newest_delete(self, columns: Sequence[Column]) -> Int64s:
        """Per row the newest sequence number that deletes its key, -1 where none does.

        Args:
            columns: The key columns of `n` rows, in the order of the set.

        Returns:
            int64 of shape (n,).
        """
        found = np.full(len(columns[0]), ABSENT, dtype=np.int64)
        if len(self) == 0:
            return found
        codes = _codes(columns[0], self.values[0])
        rows = np.flatnonzero(codes >= 0)
        codes = codes[rows]
        for column, values, pairs in zip(columns[1:], self.values[1:], self.pairs, strict=True):
            if rows.size == 0:
                return found
            right = _codes(plain(column).take(pa.array(rows)), values)
            pair = codes * len(values) + right
            place = np.minimum(np.searchsorted(pairs, pair), pairs.size - 1)
            hit = (right >= 0) & (pairs[place] == pair)
            rows, codes = rows[hit], place[hit]
        found[rows] = self.sequence_numbers[codes]
        return found

    def __len__(self) -> int:
        return len(self.sequence_numbers)


def build_key_set(columns: Sequence[Column], sequence_numbers: Int64s) -> KeySet:
    """Build the set.

    Args:
        columns: One Arrow column per key column, `n` rows; keys may repeat.
        sequence_numbers: int64 of shape (n,), the data sequence number of each row's delete file.
    """
    values: list[pa.Array] = []
    pairs: list[Int64s] = []
    codes = np.zeros(len(sequence_numbers), dtype=np.int64)
    for ordinal, column in enumerate(columns):
        distinct = plain(column).unique()
        right = _codes(column, distinct)
        values.append(distinct)
        if ordinal == 0:
            codes = right
        else:
            sorted_pairs, codes = distinct_inverse(codes * len(distinct) + right)
            pairs.append(sorted_pairs)
    size = int(codes.max()) + 1 if codes.size else 0
    newest = np.full(size, ABSENT, dtype=np.int64)
    np.maximum.at(newest, codes, sequence_numbers)
    return KeySet(tuple(values), tuple(pairs), newest)


def plain(column: Column) -> pa.Array:
    """The column as one array of a type that Arrow's kernels know (UUID as its 16 bytes)."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def _codes(column: Column, values: pa.Array) -> Int64s:
    indices = pc.index_in(plain(column), value_set=values)
    codes: Int64s = pc.fill_null(indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return codes
