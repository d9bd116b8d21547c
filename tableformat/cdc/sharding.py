"""Which task handles a key: a hash of the key columns, the same in every process and every run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Hashes = npt.NDArray[np.uint64]

# Odd 64-bit constants: the golden ratio, and the two multipliers of MurmurHash3's finalizer.
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)
SHIFT = np.uint64(33)


def shards_of(columns: Sequence[pa.Array], count: int) -> npt.NDArray[np.int64]:
    """The shard, 0 to `count` - 1, of each row.

    Args:
        columns: Key columns, each of shape (n,), of the table's own types.
        count: Number of shards.

    Returns:
        int64, shape (n,). Equal keys have equal shards; nulls equal nulls.
    """
    return (key_hashes(columns) % np.uint64(count)).astype(np.int64)


def key_hashes(columns: Sequence[pa.Array]) -> Hashes:
    """A 64-bit hash per row, uint64 of shape (n,); see `shards_of`."""
    hashes = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        hashes = _mixed(hashes * GOLDEN + _column_hashes(column))
    return hashes


def shards_by_partition(
    partition: Sequence[pa.Array], key: Sequence[pa.Array], count: int, per_partition: int
) -> npt.NDArray[np.int64]:
    """The shard of each row where at most `per_partition` shards share a partition.

    So a batch has at most `per_partition` files of a kind per partition, however many shards there
    are. Only for tables whose keys never leave their partition: all changes of a key must meet.

    Args:
        partition: Partition columns (transformed values), each of shape (n,).
        key: Key columns, each of shape (n,); none: the rows are dealt out.
        count: Number of shards.
        per_partition: Shards of one partition at most.
    """
    first = shards_of(partition, count)
    if not key:
        return (first + np.arange(len(first)) % min(per_partition, count)) % count
    return (first + shards_of(key, min(per_partition, count))) % count


def _column_hashes(column: pa.Array) -> Hashes:
    if isinstance(column.type, pa.BaseExtensionType):
        column = column.storage
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        numbers = column.cast(pa.int64())
    elif pa.types.is_date32(kind):
        numbers = column.cast(pa.int32()).cast(pa.int64())
    elif pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        numbers = column.cast(pa.int64())
    elif pa.types.is_floating(kind):  # never in keys, but in partitions; all NaN are one
        numbers = pc.if_else(pc.is_nan(column), np.nan, column.cast(pa.float64())).view(pa.int64())
    elif pa.types.is_decimal(kind):
        return _byte_hashes(column.cast(pa.string()))
    else:
        return _byte_hashes(column)
    return _mixed(pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False).view(np.uint64))


def _byte_hashes(column: pa.Array) -> Hashes:
    """Per value the sum of its bytes, each times a power of an odd constant, mod 2^64."""
    values = pc.fill_null(column.cast(pa.binary()).cast(pa.large_binary()), b"")
    values = pa.concat_arrays([values])  # offsets from 0, whatever was sliced
    _, offset_buffer, data = values.buffers()
    offsets = np.frombuffer(offset_buffer, np.int64)[values.offset :][: len(values) + 1]
    lengths = np.diff(offsets)
    hashes = lengths.astype(np.uint64)
    if offsets[-1] > offsets[0]:
        flat = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]].astype(np.uint64)
        filled = lengths > 0
        place = np.arange(len(flat)) - np.repeat(offsets[:-1] - offsets[0], lengths)
        powers = np.cumprod(np.full(int(lengths.max()), GOLDEN))
        starts = offsets[:-1][filled] - offsets[0]
        hashes[filled] += np.add.reduceat((flat + np.uint64(1)) * powers[place], starts)
    return _mixed(hashes)


def _mixed(values: Hashes) -> Hashes:
    """MurmurHash3's 64-bit finalizer: every input bit reaches every output bit."""
    values = values.copy()
    for multiplier in (MIX_1, MIX_2):
        values ^= values >> SHIFT
        values *= multiplier
    values ^= values >> SHIFT
    return values
