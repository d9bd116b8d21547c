"""What is done to one shard of a shared index, on whichever machine takes it.

Each function may be repeated and run twice at the same time: it reads immutable files and writes
objects with fresh names. What it answers is small next to what it read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from resolver.index.entry import (
    KeyedRows,
    Rows,
    TouchedKeys,
    concat_rows,
    file_id_of,
    keyed_batches,
    touched_keys,
)
from resolver.index.format_1 import keyed_rows
from resolver.index.key_ranges import key_ranges
from resolver.index.run import Run
from resolver.index.run_cache import RunsPlace, publish_run, with_runs
from resolver.index.runs import rows_of_keys, write_change, write_run
from resolver.index.shard import SstChunk, write_sst
from resolver.index.shard_cache import (
    ShardPlace,
    drop_copy,
    healing,
    new_shard,
    publish_shard,
    with_shard,
    work_folder,
    writable_copy,
)
from resolver.index.shard_map import ShardMap
from resolver.index.shared_versions import ShardVersion, StoredFile
from resolver.index.spill import ShardSpill
from resolver.keys import EncodedKeys, KeySchema
from tableformat.array_types import Int64s
from tableformat.integer_order import distinct
from tableformat.runtime import Runtime

SORT_BYTES = 64 << 20

Runs = tuple[StoredFile, ...]
# Where each part of a shard begins, and its runs; more than one: it is split.
Parts = tuple[tuple[int, Runs], ...]


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

    place: RunsPlace
    load: Callable[[], TouchedKeys]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A change that travels with its task."""

    touched: TouchedKeys

    def __call__(self) -> TouchedKeys:
        """The change."""
        return self.touched


def without_gone(rows: Rows, gone: BitMap64) -> npt.NDArray[np.bool_]:
    """Which rows are in files that the table still has."""
    file_id = file_id_of(rows)
    dead = [each for each in distinct(file_id).tolist() if each in gone] if gone else []
    return ~np.isin(file_id, np.array(dead, dtype=np.int64))


def look_up(gone: bytes, item: tuple[RunsPlace, EncodedKeys]) -> tuple[Int64s, Rows]:
    """Rows of keys of one shard: key ordinals, and rows in files of the table.

    Args:
        gone: `IndexVersion.gone_files`.
        item: The shard, and keys in any order.
    """
    place, keys = item
    ordinal, rows = with_runs(place, lambda runs: rows_of_keys(runs, keys))
    live = without_gone(rows, BitMap64.deserialize(gone))
    return ordinal[live], rows[live]


def change_shard(gone: bytes, change: ShardChange) -> Parts:
    """Make the next runs of one shard, or of each part into which it is split.

    Args:
        gone: `IndexVersion.gone_files` after the change.
        change: What changes.

    Effects: objects, which are garbage until a version names them.
    """
    touched, place = change.load(), change.place
    gone_files = BitMap64.deserialize(gone)

    def work(runs: list[Run]) -> Parts:
        name = Runtime().ids.uuid().hex
        with work_folder(place.path) as folder:
            written = write_change(
                folder,
                name,
                runs,
                touched,
                lambda rows: without_gone(rows, gone_files),
                place.hashes,
            )
            older = place.runs[written.merged :]
            return tuple(
                (start, older if run is None else (_publish(place, folder, run), *older))
                for start, run in written.parts
            )

    return with_runs(place, work)


def convert_shard(item: tuple[ShardPlace, RunsPlace]) -> Runs:
    """Make the runs of a shard of format 1.

    Effects: an object, which is garbage until a version names it.
    """
    old, new = item
    return with_shard(old, lambda shard: _write_and_publish(new, keyed_rows(shard)))


def _publish(place: RunsPlace, folder: Path, name: str) -> StoredFile:
    return publish_run(place, folder / f"{name}.run", name)


def _write_and_publish(place: RunsPlace, parts: Iterator[KeyedRows]) -> Runs:
    name = Runtime().ids.uuid().hex
    with work_folder(place.path) as folder:
        path = folder / "first.run"
        return (publish_run(place, path, name),) if write_run(path, name, parts) else ()


def ingest(place: ShardPlace, state: str, pairs: Callable[[], Iterable[SstChunk]]) -> ShardVersion:
    """The next version of the file dictionary.

    Args:
        place: The dictionary.
        state: The name of the version.
        pairs: Gives what changes: sorted, an empty value deletes. Called again if it must be.
    """

    def work() -> ShardVersion:
        with writable_copy(place) as (shard, scratch):
            sst = scratch / "change.sst"
            write_sst(sst, pairs(), place.header(state).to_json())
            shard.ingest(sst)
            return publish_shard(place, shard, scratch, state)

    return healing(work, lambda: drop_copy(place))


def create(place: ShardPlace, state: str, pairs: Iterable[SstChunk]) -> ShardVersion:
    """The dictionary's first version."""
    with new_shard(place) as (make, scratch):
        sst = scratch / "first.sst"
        write_sst(sst, pairs, place.header(state).to_json())
        shard = make()
        shard.ingest(sst)
        return publish_shard(place, shard, scratch, state)


def split_rows(
    key: KeySchema, shards: ShardMap, source: RowSource
) -> Iterator[tuple[int, KeyedRows]]:
    """Read one data file and split its rows by shard."""
    for keyed in keyed_batches(source.read(), key, source.file_id):
        for shard, rows in shards.split(keyed.keys):
            yield shard, keyed.take(rows)


def put_rows(
    places: Sequence[RunsPlace], gone: bytes, shard: int, parts: Iterator[KeyedRows]
) -> Parts:
    """The next runs of a shard, or of its parts, after rows that came."""
    put = list(parts)
    if not put:
        return ((places[shard].hashes.start, places[shard].runs),)
    touched = touched_keys(EncodedKeys.empty(), concat_rows([]), concat_rows(put))
    return change_shard(gone, ShardChange(places[shard], Loaded(touched)))


def build_shard(places: Sequence[RunsPlace], shard: int, parts: Iterator[KeyedRows]) -> Runs:
    """The run of a shard of a new index: its rows are spilled, and sorted in bounded memory."""
    place = places[shard]
    with work_folder(place.path) as scratch:
        spill = ShardSpill(scratch, shard, "build")
        file_ids = BitMap64()
        try:
            for part in parts:
                spill.append(part.keys, part.rows)
                file_ids |= BitMap64(distinct(file_id_of(part.rows)).tolist())
        finally:
            spill.close()
        ids = np.array(file_ids, dtype=np.int64)
        return _write_and_publish(place, key_ranges(scratch, shard, ids, SORT_BYTES))
