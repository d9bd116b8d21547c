"""Which blocks of a manifest may name a file: eight bytes a name, and nothing is decoded.

Of each `.parquet` and `.puffin` in the records the bytes before it are hashed, back to the last
slash: where a location is that ends so, that is its file's name. So whatever wrote the manifest,
"no" is a proof, and "yes" is to be looked up. Other locations may be anywhere. The folder does not
count, so two spellings of it (`s3a://`) are one. The hash is a CRC, as it is kept on disk
(`manifest_notes`); names that collide cost a look.
"""

from __future__ import annotations

from collections.abc import Collection
from zlib import crc32

import numpy as np
import numpy.typing as npt

from tableformat.cached import cached_property

SUFFIXES = (b".parquet", b".puffin")

Hashes = npt.NDArray[np.uint32]


class Wanted(frozenset[str]):
    """Locations to look for, in many manifests."""

    @cached_property
    def hashes(self) -> Hashes:
        """Of those that can be told by their names; sorted."""
        return hashes_of(self)

    @cached_property
    def others(self) -> tuple[bytes, ...]:
        """The rest: files of other formats."""
        return tuple(location.encode() for location in self if _name_of(location) is None)


def hashes_of(locations: Collection[str]) -> Hashes:
    """Of those of some locations that can be told by their names; sorted."""
    names = [name for name in map(_name_of, locations) if name is not None]
    return np.sort(np.array([crc32(name) for name in names], dtype=np.uint32))


def hash_of(location: str) -> int | None:
    """As in `Hashes`; None: it cannot be told by its name."""
    name = _name_of(location)
    return None if name is None else crc32(name)


def wanted(locations: Collection[str]) -> Wanted:
    """`locations` as they are looked for; their hashes are made once."""
    return locations if isinstance(locations, Wanted) else Wanted(locations)


class NamedFiles:
    """The names in the blocks of one manifest; `add` the blocks in their order, then ask."""

    def __init__(self) -> None:
        self._found: list[Hashes] = []
        self._sorted: tuple[Hashes, npt.NDArray[np.int32]] | None = None

    def add(self, block: bytes) -> None:
        """Note the names in one more block."""
        names = [
            crc32(part[part.rfind(b"/") + 1 :])
            for suffix in SUFFIXES
            for part in block.split(suffix)[:-1]
        ]
        self._found.append(np.array(names, dtype=np.uint32))

    def blocks(self, locations: Wanted) -> set[int]:
        """Ordinals of the blocks that may name one of `locations`, but for its `others`."""
        hashes, block = self._by_hash()
        low = np.searchsorted(hashes, locations.hashes, side="left")
        high = np.searchsorted(hashes, locations.hashes, side="right")
        found = np.flatnonzero(high > low)
        return {
            int(ordinal) for at in found.tolist() for ordinal in block[int(low[at]) : int(high[at])]
        }

    @property
    def hashes(self) -> Hashes:
        """Of all names; sorted."""
        return self._by_hash()[0]

    @property
    def size_bytes(self) -> int:
        """What it takes in memory."""
        hashes, block = self._by_hash()
        return hashes.nbytes + block.nbytes

    def _by_hash(self) -> tuple[Hashes, npt.NDArray[np.int32]]:
        if self._sorted is None:
            counts = [len(each) for each in self._found]
            hashes = np.concatenate([*self._found, np.empty(0, dtype=np.uint32)])
            block = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
            order = np.argsort(hashes)
            self._sorted = hashes[order], block[order]
            self._found = []
        return self._sorted


def _name_of(location: str) -> bytes | None:
    """What is hashed of a location; None: it cannot be told by that."""
    _, slash, name = location.encode().rpartition(b"/")
    for suffix in SUFFIXES:
        at = name.find(suffix)
        if at >= 0:
            return name[:at] if slash and at + len(suffix) == len(name) else None
    return None
