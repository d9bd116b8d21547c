"""What is done to one shard of a shared index, on whichever machine takes it.

Each function may be repeated and run twice at the same time: it reads immutable files and writes
objects with fresh names. What it answers is small next to what it read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap

from resolver.index.change import split_by_shard
from resolver.index.entry import (
    KeyedRows,
    Rows,
    TouchedKeys,
    concat_rows,
    file_id_of,
    group_by_key,
    keyed_batches,
    new_rows,
    sst_chunks,
    touched_keys,
)
from resolver.index.key_ranges import key_ranges
from resolver.index.shard import Shard, SstChunk, write_sst
from resolver.index.shard_cache import (
    ShardPlace,
    healing,
    new_shard,
    publish_shard,
    with_shard,
    writable_copy,
)
from resolver.index.shards import rows_of_keys
from resolver.index.shared_versions import ShardVersion
from resolver.index.spill import ShardSpill
from resolver.keys import EncodedKeys, KeySchema

SORT_BYTES = 64 << 20

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RowSource:
    """Rows of one data file, under the id that the index gives it.

    Attributes:
        file_id: The id.
        read: Yields the key's columns and int64 `_pos`. Pickles.
    """

    file_id: int
    read: Callable[[], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class ShardChange:
    """A change of one shard; `load` gives it where it is applied."""

    place: ShardPlace
    load: Callable[[], TouchedKeys]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A change that travels with its task."""

    touched: TouchedKeys

    def __call__(self) -> TouchedKeys:
        """The change."""
        return self.touched


def without_gone(rows: Rows, gone: BitMap) -> npt.NDArray[np.bool_]:
    """Which rows are in files that the table still has."""
    file_id = file_id_of(rows)
    dead = [each for each in np.unique(file_id).tolist() if each in gone] if gone else []
    return ~np.isin(file_id, np.array(dead, dtype=np.int32))


def look_up(gone: bytes, item: tuple[ShardPlace, EncodedKeys]) -> tuple[Int64s, Rows]:
    """Rows of keys of one shard: key ordinals, and rows in files of the table.

    Args:
        gone: `IndexVersion.gone_files`.
        item: The shard, and distinct keys in any order.
    """
    place, keys = item
    order = keys.argsort()
    ordinal, rows = with_shard(place, lambda shard: rows_of_keys(shard, keys.take(order)))
    live = without_gone(rows, BitMap.deserialize(gone))
    return order[ordinal[live]], rows[live]


def change_shard(state: str, gone: bytes, change: ShardChange) -> ShardVersion:
    """Make the next version of one shard.

    Args:
        state: Its name.
        gone: `IndexVersion.gone_files` after the change.
        change: What changes.

    Effects: objects, which are garbage until a version names them.
    """
    touched, place = change.load(), change.place
    wanted = np.flatnonzero(~touched.is_cleared)

    def present_rows(shard: Shard) -> tuple[Int64s, Rows]:
        return rows_of_keys(shard, touched.keys.take(wanted))

    ordinal, rows = with_shard(place, present_rows)
    stays = without_gone(rows, BitMap.deserialize(gone))
    key, rows = new_rows(touched, wanted[ordinal[stays]], rows[stays])
    return ingest(place, state, partial(sst_chunks, touched.keys, key, rows))


def ingest(place: ShardPlace, state: str, pairs: Callable[[], Iterable[SstChunk]]) -> ShardVersion:
    """The next version of one shard.

    Args:
        place: The shard.
        state: The name of the version.
        pairs: Gives what changes: sorted, an empty value deletes. Called again if it must be.
    """

    def work() -> ShardVersion:
        with writable_copy(place) as (shard, scratch):
            sst = scratch / "change.sst"
            write_sst(sst, pairs(), place.header(state).to_json())
            shard.ingest(sst)
            return publish_shard(place, shard, scratch, state)

    return healing(place, work)


def create(place: ShardPlace, state: str, pairs: Iterable[SstChunk]) -> ShardVersion:
    """A shard's first version."""
    with new_shard(place) as (make, scratch):
        sst = scratch / "first.sst"
        write_sst(sst, pairs, place.header(state).to_json())
        shard = make()
        shard.ingest(sst)
        return publish_shard(place, shard, scratch, state)


def split_rows(
    key: KeySchema, shard_count: int, source: RowSource
) -> Iterator[tuple[int, KeyedRows]]:
    """Read one data file and split its rows by shard."""
    for keyed in keyed_batches(source.read(), key, source.file_id):
        for shard, rows in split_by_shard(keyed.keys, shard_count):
            yield shard, keyed.take(rows)


def put_rows(
    places: Sequence[ShardPlace], state: str, gone: bytes, shard: int, parts: Iterator[KeyedRows]
) -> ShardVersion | None:
    """The next version of a shard after rows that came; None when none did."""
    put = list(parts)
    if not put:
        return None
    touched = touched_keys(EncodedKeys.empty(), concat_rows([]), concat_rows(put))
    return change_shard(state, gone, ShardChange(places[shard], Loaded(touched)))


def build_shard(
    places: Sequence[ShardPlace], state: str, shard: int, parts: Iterator[KeyedRows]
) -> ShardVersion:
    """A shard of a new index, from all its rows: spilled to disk, sorted in bounded memory."""
    place = places[shard]
    with new_shard(place) as (make, scratch):
        spill = ShardSpill(scratch, shard, "build")
        file_ids = BitMap()
        try:
            for part in parts:
                spill.append(part.keys, part.rows)
                file_ids |= BitMap(np.unique(file_id_of(part.rows)).tolist())
        finally:
            spill.close()
        ids = np.array(file_ids, dtype=np.int32)

        def pairs() -> Iterator[SstChunk]:
            for keyed in key_ranges(scratch, shard, ids, SORT_BYTES):
                yield from sst_chunks(*group_by_key(keyed.keys, keyed.rows))

        sst = scratch / "first.sst"
        write_sst(sst, pairs(), place.header(state).to_json())
        made = make()
        made.ingest(sst)
        return publish_shard(place, made, scratch, state)
