"""The spilled rows of one shard in ascending key ranges, each small enough to be sorted in memory.

A shard that fits is one range. A larger one is distributed once over scratch files of its ranges,
at sampled keys, so every row is written and read at most twice, however large the shard is. All
rows of one key are in one range.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from resolver.index.entry import KeyedRows, concat_rows
from resolver.index.spill import ShardSpill, read_spill, remove_spill, spill_size_bytes

RANGES_MAX = 256  # scratch files open at once
_SAMPLES_PER_RANGE = 32


def key_ranges(
    folder: Path, shard: int, file_ids: npt.NDArray[np.int64], memory_bytes: int
) -> Iterator[KeyedRows]:
    """Read the rows of a shard, range by range; rows in a range are in no given order.

    Args:
        folder: Where the shard's rows are spilled. Scratch files are made in a folder below it.
        shard: The shard.
        file_ids: Rows of other files are left out.
        memory_bytes: What one range may take, about, as spilled bytes.
    """
    count = min(-(-spill_size_bytes(folder, shard) // memory_bytes), RANGES_MAX)
    if count <= 1:
        yield from _whole(folder, shard, file_ids)
        return
    scratch = folder / f"ranges-{shard:04d}"
    scratch.mkdir(exist_ok=True)
    bounds = _sampled_bounds(folder, shard, count)
    ranges = range(len(bounds) + 1)
    for number in ranges:
        remove_spill(scratch, number)  # of an interrupted attempt
    _distribute(folder, shard, bounds, scratch)
    for number in ranges:
        yield from _whole(scratch, number, file_ids)
        remove_spill(scratch, number)


def _whole(folder: Path, shard: int, file_ids: npt.NDArray[np.int64]) -> Iterator[KeyedRows]:
    parts = [part.of_files(file_ids) for part in read_spill(folder, shard)]
    if any(map(len, parts)):
        yield concat_rows(parts)


def _distribute(folder: Path, shard: int, bounds: Sequence[bytes], scratch: Path) -> None:
    spills = [ShardSpill(scratch, number, "range") for number in range(len(bounds) + 1)]
    try:
        for part in read_spill(folder, shard):
            ordered = part.take(part.keys.argsort())
            cuts = [ordered.keys.first_at_or_after(bound) for bound in bounds]
            for spill, start, stop in zip(spills, [0, *cuts], [*cuts, len(part)], strict=True):
                if stop > start:
                    spill.append(ordered.keys.slice(start, stop), ordered.rows[start:stop])
    finally:
        for spill in spills:
            spill.close()


def _sampled_bounds(folder: Path, shard: int, ranges: int) -> list[bytes]:
    """Keys that cut the shard's key space into ranges of about equal size."""
    sample: list[bytes] = []
    for part in read_spill(folder, shard):
        count = min(len(part), _SAMPLES_PER_RANGE * ranges)
        rows = np.linspace(0, len(part) - 1, num=count, dtype=np.int64)
        sample += part.keys.take(rows).to_list()
    sample.sort()
    return sorted({sample[i * len(sample) // ranges] for i in range(1, ranges)})
