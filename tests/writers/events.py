"""What the writers write: event n is a function of n alone, so a prefix has one right state."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Numbers = npt.NDArray[np.int64]
SCHEMA = pa.schema(
    [pa.field("id", pa.int64(), False), pa.field("region", pa.string()), pa.field("v", pa.string())]
)

_GONE_MAX = 64  # commits, or single events, whose rows have all gone again


@dataclass(frozen=True)
class Events:
    """`count` events over `keys` keys: upserts, and one delete in eight; without keys, appends.

    `FlinkWriter.java` computes the same.

    Attributes:
        id: By event.
        deletes: By event, whether it deletes.
        whole: So many events at a time are there, or none of them.
    """

    id: Numbers
    deletes: npt.NDArray[np.bool_]
    whole: int = 1

    @classmethod
    def of(cls, count: int, keys: int) -> Events:
        numbers = np.arange(count, dtype=np.uint64)
        if not keys:
            return cls(numbers.astype(np.int64), np.zeros(count, bool))
        mixed = numbers * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
        mixed = (mixed >> np.uint64(33)).astype(np.int64)
        return cls(mixed % keys, mixed // keys % 8 == 0)

    @classmethod
    def of_groups(cls, count: int, keys: int, size: int) -> Events:
        """Events in groups of `size`: all keys of one remainder, all upserts or all deletes."""
        groups = cls.of(count // size, keys // size)
        ids = groups.id[:, None] + np.arange(size) * (keys // size)
        return cls(ids.ravel(), groups.deletes.repeat(size), size)

    def __len__(self) -> int:
        return len(self.id)

    def rows(self, first: int, end: int) -> list[tuple[int, str, str, bool]]:
        """`(id, region, v, deletes)` of events [first, end)."""
        ids, deletes = self.id[first:end].tolist(), self.deletes[first:end].tolist()
        return [
            (key, region(key), f"v{first + n}", gone)
            for n, (key, gone) in enumerate(zip(ids, deletes, strict=True))
        ]

    def state(self, end: int, *, part: int = 0, parts: int = 1) -> Numbers:
        """By key, the event before `end` whose row is there; -1: none. Of keys of one part."""
        last = np.full(int(self.id.max()) + 1, -1, dtype=np.int64)
        np.maximum.at(last, self.id[:end], np.arange(end))
        last[(last >= 0) & self.deletes[last]] = -1
        last[np.arange(len(last)) % parts != part] = -1
        return last

    def prefix_of(self, found: Numbers, *, part: int = 0, parts: int = 1) -> int | None:
        """How many events lead to `found`, a state; None if no number of them does.

        Only events whose rows have gone again may have come after its newest row.
        """
        newest = int(found.max(initial=-1)) + 1
        first = newest + -newest % self.whole
        last = min(len(self), first + _GONE_MAX * self.whole)
        for end in range(first, last + 1, self.whole):
            if np.array_equal(self.state(end, part=part, parts=parts), found):
                return end
        return None

    def state_of(self, rows: pa.Table) -> Numbers | str:
        """The state that rows of a table are, or what is wrong with one of them."""
        ids = rows["id"].to_numpy()
        if len(np.unique(ids)) < len(ids):
            twice, counts = np.unique(ids, return_counts=True)
            return f"{(counts > 1).sum()} keys twice, such as {twice[counts > 1][0]}"
        written = pc.cast(pc.utf8_slice_codeunits(rows["v"], 1), pa.int64()).to_numpy()
        regions = np.array([region(key) for key in ids.tolist()])
        if (regions != rows["region"].to_numpy(zero_copy_only=False)).any():
            return "a row has another region than its key"
        state = np.full(int(self.id.max()) + 1, -1, dtype=np.int64)
        state[ids] = written
        return state


def region(key: int) -> str:
    return "EU" if key % 3 == 0 else "US"
