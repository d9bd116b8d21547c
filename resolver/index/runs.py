"""The runs of one shard, the newest first: what they say together, and how they are kept few.

A run that knows a key says all that is true of it; older runs are not asked. So a change writes
one run with all rows of each key that it touches. Older runs that are not much larger than what
came since are merged into it, so a shard has few runs and a row is written anew only now and then.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from resolver.index.entry import KeyedRows, Rows, TouchedKeys, new_rows
from resolver.index.run import Run, RunWriter
from resolver.index.run_format import (
    TOMBSTONE,
    WORD_BYTES,
    Bytes2d,
    Section,
    columns_of,
    comparable,
)
from resolver.index.shard_map import ShardRange, part_of
from resolver.keys import EncodedKeys, take_rows, varying_columns
from tableformat.array_types import Int64s
from tableformat.integer_order import stable_order

# An older run that is at most so many times as large as all newer ones is merged with them: a
# third of the runs of halves for a half more writing.
MERGED_SIZE_RATIO = 2
# Bounds the memory of a lookup, per thread: each key may be in another block.
LOOKUP_CHUNK_KEYS = 32_768
# Entries of a merge in memory at a time.
MERGE_ENTRIES = 1 << 19

Stays = Callable[[Rows], npt.NDArray[np.bool_]]


def rows_of_keys(runs: Sequence[Run], keys: EncodedKeys) -> tuple[Int64s, Rows]:
    """Rows of keys in one shard.

    Args:
        runs: The newest first.
        keys: In any order.

    Returns:
        Ordinals of keys, ascending, and rows, ascending within a key.
    """
    ordinals, rows = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.uint64)]
    for places, matrix in keys.by_width():
        order = EncodedKeys(fixed=matrix).argsort()
        for start in range(0, len(order), LOOKUP_CHUNK_KEYS):
            chunk = order[start : start + LOOKUP_CHUNK_KEYS]
            ordinal, found = _rows_of_sorted(runs, take_rows(matrix, chunk))
            ordinals.append(places[chunk[ordinal]])
            rows.append(found)
    ordinal, row = np.concatenate(ordinals), np.concatenate(rows)
    in_order = stable_order(ordinal)
    return ordinal[in_order], row[in_order]


def _rows_of_sorted(runs: Sequence[Run], keys: Bytes2d) -> tuple[Int64s, Rows]:
    ordinals, rows = [np.empty(0, dtype=np.int64)], [np.empty(0, dtype=np.uint64)]
    waiting = np.arange(len(keys), dtype=np.int64)
    for run in runs:
        if not len(waiting):
            break
        ordinal, found = run.find(keys if len(waiting) == len(keys) else take_rows(keys, waiting))
        alive = found != TOMBSTONE
        ordinals.append(waiting[ordinal[alive]])
        rows.append(found[alive])
        known = np.zeros(len(waiting), dtype=np.bool_)
        known[ordinal] = True
        waiting = waiting[~known]
    return np.concatenate(ordinals), np.concatenate(rows)


@dataclass(frozen=True, slots=True)
class Written:
    """What a change of one shard has written.

    Attributes:
        merged: How many of the older runs the new one stands for.
        parts: Where each part of the shard begins, and the name of its run; None: it has no
            entries, and so no file. More than one: the shard is split, and no older run is left.
    """

    merged: int
    parts: tuple[tuple[int, str | None], ...]


def write_change(
    folder: Path,
    name: str,
    runs: Sequence[Run],
    change: TouchedKeys,
    stays: Stays,
    hashes: ShardRange,
) -> Written:
    """Write the run of a change, merged with the newest of the older ones.

    Where all older ones are merged, all of the shard is written anyway: that is when a shard that
    has grown is split, one run for each part.

    Args:
        folder: Where; the runs are called by their names.
        name: The run's name, and what the names of the others begin with.
        runs: The shard's runs, the newest first.
        change: What changes.
        stays: Which of some rows are in files that the table has after the change.
        hashes: The shard.

    Effects: files, complete and synced. What fails may leave some of them.
    """
    wanted = np.flatnonzero(~change.is_cleared)
    ordinal, present = rows_of_keys(runs, change.keys.take(wanted))
    kept = stays(present)
    key, rows = new_rows(change, wanted[ordinal[kept]], present[kept])
    sizes = [run.count for run in runs]
    merged = merged_count(len(change.keys), sizes)
    is_last = merged == len(runs)
    starts = [hashes.start]
    if is_last:
        starts = hashes.part_starts(sum(sizes) + len(rows))
    fresh = fresh_entries(change.keys, key, rows, keep_gone=bool(merged) or not is_last)
    if not merged:
        return Written(merged, _write_parts(folder, name, (each.all() for each in fresh), starts))
    entries = merged_entries(runs[:merged], keep_gone=not is_last, newer=list(fresh))
    return Written(merged, _write_parts(folder, name, entries, starts))


def merged_count(fresh: int, sizes: Sequence[int]) -> int:
    """How many of the older runs, whose sizes are given, a new run of `fresh` entries takes in."""
    merged = 0
    while merged < len(sizes) and sizes[merged] <= fresh * MERGED_SIZE_RATIO:
        fresh += sizes[merged]
        merged += 1
    return merged


@dataclass(frozen=True, slots=True)
class Held:
    """Entries in memory, whose keys have one length.

    Attributes:
        keys: Shape `(n, width)`, in bytewise order.
        key: Shape `(entries,)`: rows of `keys`, ascending.
        rows: Shape `(entries,)`, ascending within a key.
    """

    keys: Bytes2d
    key: Int64s
    rows: Rows

    @property
    def width(self) -> int:
        """Bytes of a key."""
        return int(self.keys.shape[1])

    def all(self) -> tuple[Bytes2d, Rows]:
        """Keys and rows of all entries."""
        return take_rows(self.keys, self.key), self.rows

    def samples(self, step: int) -> Iterator[tuple[bytes, int]]:
        """Some keys, ascending, and how many entries there are from each to the next, about."""
        return ((self._key_at(entry), step) for entry in range(0, len(self.rows), step))

    def between(self, low: bytes, high: bytes | None) -> tuple[Bytes2d, Rows]:
        """Keys and rows from `low` to before `high`; None: to the end."""
        entries = range(len(self.rows))
        begin = bisect_left(entries, low, key=self._key_at)
        end = len(entries) if high is None else bisect_left(entries, high, key=self._key_at)
        return take_rows(self.keys, self.key[begin:end]), self.rows[begin:end]

    def _key_at(self, entry: int) -> bytes:
        key: bytes = self.keys[self.key[entry]].tobytes()
        return key


@dataclass(frozen=True, slots=True)
class _Stored:
    """Entries of a section of a run."""

    run: Run
    section: Section

    @property
    def width(self) -> int:
        return self.section.width

    def samples(self, step: int) -> Iterator[tuple[bytes, int]]:
        blocks = max(step // self.section.block_entries, 1)
        entries = blocks * self.section.block_entries
        for block in range(0, len(self.section.checksums), blocks):
            yield self.section.first_key(block), entries

    def between(self, low: bytes, high: bytes | None) -> tuple[Bytes2d, Rows]:
        return self.run.between(self.section, low, high)


def fresh_entries(keys: EncodedKeys, key: Int64s, rows: Rows, *, keep_gone: bool) -> Iterator[Held]:
    """What a change says of keys.

    Args:
        keys: Distinct, in bytewise order.
        key: Shape `(rows,)`: ordinals of keys, ascending.
        rows: Shape `(rows,)`, ascending within a key.
        keep_gone: Whether keys without a row get a `TOMBSTONE`.
    """
    if keep_gone:
        has_rows = np.zeros(len(keys), dtype=np.bool_)
        has_rows[key] = True
        gone = np.flatnonzero(~has_rows)
        key = np.concatenate([key, gone])
        rows = np.concatenate([rows, np.full(len(gone), TOMBSTONE)])
        order = stable_order(key)
        key, rows = key[order], rows[order]
    first = np.searchsorted(key, np.arange(len(keys) + 1))  # of each key's entries
    for places, matrix in keys.by_width():
        counts = first[places + 1] - first[places]
        before = np.cumsum(counts) - counts
        entries = np.repeat(first[places] - before, counts) + np.arange(counts.sum())
        yield Held(matrix, np.repeat(np.arange(len(places)), counts), rows[entries])


def sorted_entries(keyed: KeyedRows) -> Iterator[tuple[Bytes2d, Rows]]:
    """Entries of a run, from keyed rows in any order; none occurs twice."""
    for places, matrix in keyed.keys.by_width():
        rows = keyed.rows[places]
        order = EncodedKeys(fixed=matrix).argsort()
        matrix, rows = take_rows(matrix, order), rows[order]
        starts = EncodedKeys(fixed=matrix).differs_from_previous()
        if not starts.all():
            within = np.lexsort((rows, np.cumsum(starts)))
            matrix, rows = matrix[within], rows[within]
        yield matrix, rows


def write_run(path: Path, name: str, parts: Iterator[KeyedRows]) -> int:
    """Write a run of keyed rows; returns their number: none, no file.

    Args:
        path: Must not exist.
        name: The run's name.
        parts: In any order within a part; every key in one part only, parts in key order.
    """
    return _write(path, name, (each for part in parts for each in sorted_entries(part)))


def _write(path: Path, name: str, entries: Iterator[tuple[Bytes2d, Rows]]) -> int:
    with RunWriter(path, name) as writer:
        for keys, rows in entries:
            writer.add(keys, rows)
    if not writer.count:
        path.unlink()
    return writer.count


def _write_parts(
    folder: Path, name: str, entries: Iterator[tuple[Bytes2d, Rows]], starts: Sequence[int]
) -> tuple[tuple[int, str | None], ...]:
    """Write entries to the runs of their parts, which begin at ascending hashes."""
    names = [name, *(f"{name}-{part}" for part in range(1, len(starts)))]
    paths = [folder / f"{each}.run" for each in names]
    if len(starts) == 1:
        counts = [_write(paths[0], name, entries)]
        return ((starts[0], name if counts[0] else None),)
    bounds = np.array(starts, dtype=np.uint64)
    with ExitStack() as stack:
        writers = [
            stack.enter_context(RunWriter(path, each))
            for path, each in zip(paths, names, strict=True)
        ]
        for keys, rows in entries:
            part_of_key = part_of(bounds, EncodedKeys(fixed=keys))
            for part, writer in enumerate(writers):
                mine = part_of_key == part
                writer.add(keys[mine], rows[mine])
    for path, writer in zip(paths, writers, strict=True):
        if not writer.count:
            path.unlink()
    return tuple(
        (start, each if writer.count else None)
        for start, each, writer in zip(starts, names, writers, strict=True)
    )


def merged_entries(
    runs: Sequence[Run], *, keep_gone: bool, newer: Sequence[Held] = ()
) -> Iterator[tuple[Bytes2d, Rows]]:
    """What runs say together, in batches: keys of one length in bytewise order, and rows.

    Args:
        runs: The newest first.
        keep_gone: Keep tombstones, for older runs that are not merged.
        newer: What says more than they do, no key of it twice.
    """
    sources: list[tuple[int, Held | _Stored]] = [(-1, each) for each in newer if len(each.rows)]
    for age, run in enumerate(runs):
        sources += [(age, _Stored(run, section)) for section in run.sections]
    of_width: dict[int, list[tuple[int, Held | _Stored]]] = {}
    for age, each in sources:
        of_width.setdefault(each.width, []).append((age, each))
    for _, mine in sorted(of_width.items()):
        cuts = _cuts([each for _, each in mine])
        for low, high in zip([b"", *cuts], [*cuts, None], strict=True):
            keys, rows = _merged_range(mine, low, high)
            if not keep_gone:
                alive = rows != TOMBSTONE
                keys, rows = keys[alive], rows[alive]
            if len(rows):
                yield keys, rows


def _cuts(sources: Sequence[Held | _Stored]) -> list[bytes]:
    """Keys that cut what sources hold into ranges of about `MERGE_ENTRIES`."""
    step = max(MERGE_ENTRIES // 16, 1)
    cuts: list[bytes] = []
    waiting = 0
    for key, entries in sorted(sample for each in sources for sample in each.samples(step)):
        if waiting >= MERGE_ENTRIES and (not cuts or key > cuts[-1]):
            cuts.append(key)
            waiting = 0
        waiting += entries
    return cuts


def _merged_range(
    sources: Sequence[tuple[int, Held | _Stored]], low: bytes, high: bytes | None
) -> tuple[Bytes2d, Rows]:
    found = [each.between(low, high) for _, each in sources]
    if len(found) == 1:
        return found[0]
    ages = np.array([age for age, _ in sources], dtype=np.int32)
    keys = np.concatenate([part for part, _ in found])
    row = np.concatenate([rows for _, rows in found])
    age = np.repeat(ages, [len(rows) for _, rows in found])
    order, starts = _merged_order(columns_of(keys, np.flatnonzero(varying_columns(keys))))
    age = age[order]
    newest = age[starts][np.cumsum(starts) - 1]  # sources come newest first
    kept = order[age == newest]
    return take_rows(keys, kept), row[kept]


def _merged_order(keys: Bytes2d) -> tuple[Int64s, npt.NDArray[np.bool_]]:
    """Keys in bytewise order, equal ones in theirs, and where in it another key begins.

    Mostly the first bytes tell, which are compared as integers.
    """
    width = keys.shape[1]
    words = comparable(keys, min(width, WORD_BYTES))
    order = np.argsort(words, kind="stable")  # of parts in order: little more than a merge
    words = words.take(order)
    starts = np.ones(len(order), dtype=np.bool_)
    starts[1:] = words[1:] != words[:-1]
    alike = np.flatnonzero(~starts)
    differ = _differ(keys, order[alike], order[alike - 1])
    if differ.any():
        run = np.cumsum(starts)
        tied = np.flatnonzero(np.isin(run, run[alike[differ]]))
        # Tied runs keep their places: the first bytes are those of the second sort, too.
        rows = order[tied]
        order[tied] = rows[np.argsort(comparable(keys[rows], width), kind="stable")]
        tied = tied[~starts[tied]]
        starts[tied] = _differ(keys, order[tied], order[tied - 1])
    return order, starts


def _differ(keys: Bytes2d, rows: Int64s, others: Int64s) -> npt.NDArray[np.bool_]:
    """Which pairs of rows, alike in their first word, have different keys."""
    differ = np.zeros(len(rows), dtype=np.bool_)
    for column in range(WORD_BYTES, keys.shape[1] if len(rows) else 0, WORD_BYTES):
        words = comparable(keys[:, column:], min(keys.shape[1] - column, WORD_BYTES))
        differ |= words[rows] != words[others]
    return differ
