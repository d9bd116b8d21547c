"""Batches of canonical key bytes, and what a join needs of them: equality, order, shards.

A batch holds its keys in one of two forms with the same meaning: a fixed-width byte matrix (fast)
or Arrow large binary (any length). Which form a batch has never changes a key's bytes, so batches
of both forms may be compared, concatenated and looked up together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numpy.lib.stride_tricks import sliding_window_view

from tableformat.array_types import Int64s
from tableformat.errors import InvalidInputError
from tableformat.integer_order import stable_order

Bytes2d = npt.NDArray[np.uint8]
Kind = TypeVar("Kind", bound=np.generic)

_WORD_BYTES = 8
# On disk: never change; they decide which shard holds a key (murmur3's 64-bit finalizer).
_MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)
_MIX_SHIFT = np.uint64(33)
_HASHED_ROWS = 16_384
# Of longer keys Arrow compares what it needs. To make all their words and sort by those takes as
# long at 64 random bytes, and seventy times as long at 2,000.
_WORDS_BYTES_MAX = 64


@dataclass(frozen=True, slots=True, eq=False)
class EncodedKeys:
    """Canonical bytes of `len(self)` keys; exactly one of the two forms is set.

    Attributes:
        fixed: Shape `(n, width)`, uint8, C order: every key has `width` bytes.
        binary: `pa.LargeBinaryArray` of length n, no nulls (a NULL key has bytes of its own).
    """

    fixed: Bytes2d | None = None
    binary: Any = None

    def __post_init__(self) -> None:
        assert (self.fixed is None) != (self.binary is None)

    def __len__(self) -> int:
        return len(self.fixed) if self.fixed is not None else len(self.binary)

    @staticmethod
    def empty() -> EncodedKeys:
        """No keys."""
        return EncodedKeys(binary=pa.array([], type=pa.large_binary()))

    @staticmethod
    def of(binary: pa.LargeBinaryArray) -> EncodedKeys:
        """Keys of any length, none null; as a matrix where all have one."""
        keys = EncodedKeys(binary=binary)
        starts, ends, data = keys._ragged()
        if (
            not len(keys)
            or not (ends - starts == ends[0] - starts[0]).all()
            or ends[0] == starts[0]
        ):
            return keys
        return EncodedKeys(fixed=data[starts[0] : ends[-1]].reshape(len(keys), -1))

    @property
    def size_bytes(self) -> int:
        """Bytes of all keys together."""
        if self.fixed is not None:
            return int(self.fixed.size)
        starts, ends, _ = self._ragged()
        return int((ends - starts).sum())

    def take(self, rows: npt.NDArray[Any]) -> EncodedKeys:
        """The keys at integer `rows`, or where a boolean mask of length n is true."""
        if self.fixed is not None:
            return EncodedKeys(fixed=take_rows(self.fixed, rows))
        if rows.dtype == np.bool_:
            return EncodedKeys(binary=self.binary.filter(pa.array(rows)))
        return EncodedKeys(binary=self.binary.take(pa.array(rows)))

    def slice(self, start: int, stop: int) -> EncodedKeys:
        """Keys `start` to `stop - 1`, without copying."""
        if self.fixed is not None:
            return EncodedKeys(fixed=self.fixed[start:stop])
        return EncodedKeys(binary=self.binary.slice(start, max(stop - start, 0)))

    def to_list(self) -> list[bytes]:
        """One `bytes` per key."""
        if self.fixed is not None:
            # 'V' keeps trailing NULs, 'S' would strip them.
            width = self.fixed.shape[1]
            return np.ascontiguousarray(self.fixed).view(f"V{width}").ravel().tolist()
        return self.binary.to_pylist()  # type: ignore[no-any-return]

    def to_arrow(self) -> pa.Array:
        """The keys as one Arrow column: fixed-size binary or large binary."""
        if self.fixed is None:
            return self.binary
        width = self.fixed.shape[1]
        data = pa.py_buffer(np.ascontiguousarray(self.fixed))
        return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), len(self), [None, data])

    @staticmethod
    def from_arrow(column: pa.Array) -> EncodedKeys:
        """The inverse of `to_arrow` (any binary type, no nulls)."""
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        if column.null_count:
            raise InvalidInputError("encoded keys cannot be null; a NULL key has its own bytes")
        if not pa.types.is_fixed_size_binary(column.type):
            return EncodedKeys(binary=column.cast(pa.large_binary()))
        width = column.type.byte_width
        if len(column) == 0:
            return EncodedKeys(fixed=np.empty((0, width), dtype=np.uint8))
        data = np.frombuffer(column.buffers()[1], dtype=np.uint8)
        begin = column.offset * width
        return EncodedKeys(fixed=data[begin : begin + len(column) * width].reshape(-1, width))

    def to_binary(self) -> EncodedKeys:
        """The same keys in the any-length form."""
        if self.fixed is None:
            return self
        return EncodedKeys(binary=self.to_arrow().cast(pa.large_binary()))

    def argsort(self) -> Int64s:
        """Rows in bytewise ascending key order, the order of an SST; equal keys in any order."""
        if (short := _short(self)) is not None:
            return _argsort_words(_big_endian_words(short))
        order: Int64s = pc.sort_indices(self.to_arrow()).to_numpy().astype(np.int64)
        return order

    def first_at_or_after(self, key: bytes) -> int:
        """Of keys in bytewise order: the first row whose key is `key` or greater."""
        return bisect_left(
            range(len(self)), key, key=lambda row: self.slice(row, row + 1).to_list()[0]
        )

    def differs_from_previous(self) -> npt.NDArray[np.bool_]:
        """Shape `(n,)`: where a run of equal neighbours begins; the first row always does."""
        differs = np.ones(len(self), dtype=np.bool_)
        if (short := _short(self)) is not None:
            differs[1:] = _neighbours_differ(_padded_words(short).view(np.uint64))
        elif len(self) > 1:
            keys = self.to_arrow()
            differs[1:] = pc.not_equal(keys[1:], keys[:-1]).to_numpy(zero_copy_only=False)
        return differs

    def hash64(self) -> npt.NDArray[np.uint64]:
        """Shape `(n,)`: a 64-bit hash of each key's bytes, the same for both forms. On disk."""
        if self.fixed is not None:
            return _hash_matrix(self.fixed)
        hashes = np.empty(len(self), dtype=np.uint64)
        for rows, matrix in self.by_width():
            hashes[rows] = _hash_matrix(matrix)
        return hashes

    def by_width(self) -> Iterator[tuple[Int64s, Bytes2d]]:
        """The keys of each length: their rows, ascending, and their bytes, shape `(rows, length)`.

        Keys in bytewise order stay in it within each length.
        """
        if self.fixed is not None:
            if len(self):
                yield np.arange(len(self), dtype=np.int64), self.fixed
            return
        starts, ends, data = self._ragged()
        lengths = ends - starts
        by_length = np.argsort(lengths, kind="stable")
        distinct, first = np.unique(lengths[by_length], return_index=True)
        for length, rows in zip(distinct, np.split(by_length, first[1:]), strict=False):
            keys = np.empty((len(rows), 0), dtype=np.uint8)
            yield rows, sliding_window_view(data, length)[starts[rows]] if length else keys

    def shard_of(self, shard_count: int) -> npt.NDArray[np.int32]:
        """Shape `(n,)`: the shard of each key, `0 .. shard_count - 1`."""
        if shard_count == 1:
            return np.zeros(len(self), dtype=np.int32)
        high = self.hash64() >> np.uint64(32)
        return ((high * np.uint64(shard_count)) >> np.uint64(32)).astype(np.int32)

    def _ragged(self) -> tuple[Int64s, Int64s, npt.NDArray[np.uint8]]:
        """Start and end offsets of the binary form, and its bytes."""
        array = self.binary
        _, offsets, data = array.buffers()
        if len(array) == 0:
            none = np.empty(0, dtype=np.int64)
            return none, none, np.empty(0, dtype=np.uint8)
        bounds = np.frombuffer(offsets, dtype=np.int64)[array.offset :][: len(array) + 1]
        content = np.frombuffer(data, dtype=np.uint8) if data else np.empty(0, dtype=np.uint8)
        return bounds[:-1], bounds[1:], content


def _short(keys: EncodedKeys) -> Bytes2d | None:
    """The matrix of keys that are compared by words."""
    is_short = keys.fixed is not None and keys.fixed.shape[1] <= _WORDS_BYTES_MAX
    return keys.fixed if is_short else None


def concat_keys(batches: Sequence[EncodedKeys]) -> EncodedKeys:
    """All keys, in order; fixed-width where every batch has the same width."""
    batches = [batch for batch in batches if len(batch)]
    if not batches:
        return EncodedKeys.empty()
    if len(batches) == 1:
        return batches[0]
    matrices = [batch.fixed for batch in batches if batch.fixed is not None]
    if len(matrices) == len(batches) and len({matrix.shape[1] for matrix in matrices}) == 1:
        return EncodedKeys(fixed=np.concatenate(matrices))
    return EncodedKeys(binary=pa.concat_arrays([batch.to_binary().binary for batch in batches]))


@dataclass(frozen=True, slots=True, eq=False)
class KeyNumbers:
    """Dense numbers for keys.

    Attributes:
        numbers: One array per batch, shape `(len(batch),)`, int64: equal keys, equal numbers.
        count: Distinct keys; numbers are `0 .. count - 1`, in no particular order.
    """

    numbers: tuple[Int64s, ...]
    count: int


def factorize(*batches: EncodedKeys) -> KeyNumbers:
    """Number the keys of all batches together, so that equal keys share a number.

    Cost: one sort of all keys; about 30 M keys/s for 8-byte keys, 8 M/s for strings.
    """
    keys = concat_keys(batches)
    if len(keys) == 0:
        return KeyNumbers(tuple(np.empty(0, dtype=np.int64) for _ in batches), 0)
    numbers, count = _number_rows(keys)
    bounds = np.cumsum([len(batch) for batch in batches])[:-1]
    return KeyNumbers(tuple(np.split(numbers, bounds)), count)


def sorted_distinct(keys: EncodedKeys) -> tuple[EncodedKeys, Int64s]:
    """The distinct keys in bytewise order, and the place of each key among them."""
    if (short := _short(keys)) is not None:
        order, starts = _ordered(short)
        return keys.take(order[starts]), _places(order, starts)
    encoded = keys.to_arrow().dictionary_encode()
    distinct = EncodedKeys.from_arrow(encoded.dictionary)
    order = distinct.argsort()
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return distinct.take(order), place[encoded.indices.to_numpy(zero_copy_only=False)]


def _number_rows(keys: EncodedKeys) -> tuple[Int64s, int]:
    if (short := _short(keys)) is None:
        encoded = keys.to_arrow().dictionary_encode()
        numbers = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        return numbers, len(encoded.dictionary)
    order, starts = _ordered(short)
    return _places(order, starts), int(np.count_nonzero(starts))


def _ordered(matrix: Bytes2d) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    """Rows in bytewise order, and where in it another key begins."""
    words = _big_endian_words(matrix)
    order = _argsort_words(words)
    starts = np.ones(len(order), dtype=np.bool_)
    starts[1:] = _neighbours_differ(take_rows(words, order))
    return order, starts


def _places(order: Int64s, starts: npt.NDArray[np.bool_]) -> Int64s:
    places = np.empty(len(order), dtype=np.int64)
    places[order] = np.cumsum(starts) - 1
    return places


def _big_endian_words(matrix: Bytes2d) -> npt.NDArray[np.uint64]:
    """Shape `(n, words)`: keys as big-endian words whose order is the bytewise order.

    Byte columns that are the same in every row (tags, the high bytes of small integers) order
    nothing and are left out: a composite key of small numbers often fits one word.
    """
    if len(matrix) and matrix.shape[1] > _WORD_BYTES:
        varying = varying_columns(matrix)
        matrix = matrix[:, varying] if varying.any() else matrix[:, :1]
    return _padded_words(matrix).view(">u8").astype(np.uint64)


def take_rows(matrix: npt.NDArray[Kind], rows: npt.NDArray[Any]) -> npt.NDArray[Kind]:
    """`matrix[rows]`, by ordinals or a mask, in a fifth of the time that NumPy takes for that."""
    return matrix.take(np.flatnonzero(rows) if rows.dtype == np.bool_ else rows, axis=0)


def varying_columns(matrix: Bytes2d) -> npt.NDArray[np.bool_]:
    """Shape `(width,)`: which columns have more than one value. Eight rows at a time, as words."""
    count, width = matrix.shape
    whole = count // _WORD_BYTES * _WORD_BYTES if width else 0
    varying: npt.NDArray[np.bool_] = (matrix[whole:] != matrix[:1]).any(axis=0)
    if whole:
        words = np.ascontiguousarray(matrix[:whole]).reshape(-1, _WORD_BYTES * width)
        first = np.tile(matrix[0], _WORD_BYTES).view(np.uint64)
        differing = np.bitwise_or.reduce(words.view(np.uint64) ^ first, axis=0)
        varying |= differing.view(np.uint8).reshape(_WORD_BYTES, width).any(axis=0)
    return varying


def _neighbours_differ(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    """Shape `(n - 1,)`: which rows differ from the one before."""
    differ = np.zeros(max(len(words) - 1, 0), dtype=np.bool_)
    for column in range(words.shape[1]):
        differ |= words[1:, column] != words[:-1, column]
    return differ


def _padded_words(matrix: Bytes2d) -> npt.NDArray[np.uint8]:
    """The matrix with its width rounded up to whole 8-byte words by zero bytes."""
    count, width = matrix.shape
    missing = -width % _WORD_BYTES
    if missing == 0:
        return np.ascontiguousarray(matrix)
    padded = np.zeros((count, width + missing), dtype=np.uint8)
    padded[:, :width] = matrix
    return padded


def _hash_matrix(matrix: Bytes2d) -> npt.NDArray[np.uint64]:
    """So many rows at a time as stay in the processor's cache: in two thirds of the time."""
    count, width = matrix.shape
    # The length goes in first: zero padding must not make b"a" and b"a\0" systematically equal.
    hashes = np.full(count, width, dtype=np.uint64)
    spare = np.empty(min(count, _HASHED_ROWS), dtype=np.uint64)
    for begin in range(0, count, _HASHED_ROWS):
        state = hashes[begin : begin + _HASHED_ROWS]
        shifted = spare[: len(state)]
        if width == 0:
            _mix(state, shifted)
            continue
        words = _padded_words(matrix[begin : begin + _HASHED_ROWS]).view("<u8")
        for column in range(words.shape[1]):
            state *= _MIX_2
            state ^= words[:, column]
            _mix(state, shifted)
    return hashes


def _mix(state: npt.NDArray[np.uint64], shifted: npt.NDArray[np.uint64]) -> None:
    """In place; `shifted` is overwritten."""
    for factor in (_MIX_1, _MIX_2):
        np.right_shift(state, _MIX_SHIFT, out=shifted)
        state ^= shifted
        state *= factor
    np.right_shift(state, _MIX_SHIFT, out=shifted)
    state ^= shifted


def _argsort_words(words: npt.NDArray[np.uint64]) -> Int64s:
    """Sort by the first word, which is fast, and by the others only where those it ties differ."""
    order = stable_order(words[:, 0])
    if words.shape[1] == 1:
        return order
    ordered = take_rows(words, order)
    same = ordered[1:, 0] == ordered[:-1, 0]
    is_open = same & _neighbours_differ(ordered[:, 1:])
    if is_open.any():
        run = np.concatenate([[0], np.cumsum(~same)])
        tied = np.isin(run, run[1:][is_open])
        # Tied runs keep their places: the first word is also the primary key of the second sort.
        rows = order[tied]
        order[tied] = rows[np.lexsort(words[rows].T[::-1])]
    return order
