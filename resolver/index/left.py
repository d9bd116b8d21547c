"""What tasks leave in shared storage for later tasks of the same cycle.

So the driver passes on where something is, and never the rows themselves. The objects lie beside
the files of the index and no version names them: the cycle removes what it was told of, and the
garbage collection what else was left (by a task that ran twice, or a driver that died).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from resolver.index.depot import IndexDepot
from resolver.index.entry import (
    KeyedRows,
    TouchedKeys,
    concat_rows,
    file_id_of,
    pack_rows,
    position_of,
    touched_keys,
)
from resolver.index.spill import keyed_from_bytes
from resolver.keys import concat_keys
from tableformat.array_types import Int64s
from tableformat.errors import CorruptDataError, InternalError
from tableformat.runtime import Runtime
from tableformat.store.base import ObjectStore


@dataclass(frozen=True, slots=True)
class LeftBytes:
    """Some bytes of an object, and their checksum."""

    location: str
    offset: int
    length: int
    crc32: int

    def read(self, store: ObjectStore) -> bytes:
        """The bytes.

        Raises:
            CorruptDataError: They are not those that were left.
            NotFoundError: The object is gone.
        """
        if not self.length:
            return b""
        data = store.get(self.location, offset=self.offset, length=self.length)
        if zlib.crc32(data) != self.crc32:
            raise CorruptDataError(
                "what a task left for the next one has changed",
                location=self.location,
                action="run it again",
            )
        return data


def leave(depot: IndexDepot, sections: Sequence[bytes]) -> list[LeftBytes]:
    """Store sections in one object with a fresh name.

    Effects: the object; see `IndexDepot.leave`.
    """
    name = f"{Runtime().ids.uuid().hex}.left"
    location = depot.leave(b"".join(sections), name)
    offsets = accumulate((len(each) for each in sections), initial=0)
    return [
        LeftBytes(location, offset, len(each), zlib.crc32(each))
        for offset, each in zip(offsets, sections, strict=False)
    ]


def bitmaps_to_bytes(bitmaps: Sequence[tuple[int, BitMap64]]) -> bytes:
    """Positions by the number of their file; none: nothing."""
    if not bitmaps:
        return b""
    numbers, found = zip(*bitmaps, strict=True)
    batch = pa.record_batch(
        [
            pa.array(numbers, pa.int64()),
            pa.array([each.serialize() for each in found], pa.large_binary()),
        ],
        names=["file", "positions"],
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def bitmaps_from_bytes(data: bytes) -> Iterator[tuple[int, BitMap64]]:
    """The inverse of `bitmaps_to_bytes`."""
    if data:
        for batch in pa.ipc.open_stream(pa.BufferReader(data)):
            for number, stored in zip(*map(pa.Array.to_pylist, batch.columns), strict=True):
                yield number, BitMap64.deserialize(stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftChange:
    """The change of some keys of one shard.

    Attributes:
        shard: The shard.
        cleared: Keys all of whose rows go, as keyed rows.
        removed: Rows that go.
        put: Rows that come; in place of a file's id the ordinal of an added file.
    """

    shard: int
    cleared: LeftBytes
    removed: LeftBytes
    put: LeftBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftChanges:
    """The changes of all shards, made for one build of an index and one map of its shards.

    Attributes:
        generation, starts: Of the index that the keys were looked up in.
        changes: In any order; several of one shard are of different keys.
        ordinals: Shape `(added files,)`: the ordinals that stand for them in the changes.
    """

    generation: str
    starts: tuple[int, ...]
    changes: tuple[LeftChange, ...]
    ordinals: Int64s

    def by_shard(self) -> dict[int, list[LeftChange]]:
        """The changes of each touched shard, ascending."""
        found: dict[int, list[LeftChange]] = {}
        for each in sorted(self.changes, key=lambda change: change.shard):
            if each.cleared.length or each.removed.length or each.put.length:
                found.setdefault(each.shard, []).append(each)
        return found

    def ids_by_ordinal(self, file_ids: Int64s) -> Int64s:
        """The ids of added files by their ordinals; -1: the file is not added."""
        found = np.full(self.ordinals.max(initial=-1) + 1, -1, dtype=np.int64)
        found[self.ordinals] = file_ids
        return found


@dataclass(frozen=True, slots=True)
class LoadLeft:
    """Loads the change of one shard where it is applied.

    Attributes:
        store: Where it was left.
        changes: Of the shard.
        id_of: See `LeftChanges.ids_by_ordinal`.
    """

    store: ObjectStore
    changes: Sequence[LeftChange]
    id_of: Int64s

    def __call__(self) -> TouchedKeys:
        """The change.

        Raises:
            CorruptDataError, NotFoundError: It is not there any more.
        """
        cleared = [part.keys for each in self.changes for part in self._read(each.cleared)]
        removed = [part for each in self.changes for part in self._read(each.removed)]
        put = [self._added(part) for each in self.changes for part in self._read(each.put)]
        return touched_keys(concat_keys(cleared), concat_rows(removed), concat_rows(put))

    def _read(self, left: LeftBytes) -> Iterator[KeyedRows]:
        return keyed_from_bytes(left.read(self.store))

    def _added(self, keyed: KeyedRows) -> KeyedRows:
        ids = self.id_of[file_id_of(keyed.rows)]
        if (ids < 0).any():
            raise InternalError("a row lives in a staged file that is not published")
        return KeyedRows(keys=keyed.keys, rows=pack_rows(ids, position_of(keyed.rows)))
