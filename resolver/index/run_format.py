"""How a run lies in its file: sections, their packing, the footer. On disk.

```
sections   entries of a fixed width each, in blocks of up to 128
footer     JSON: name, format, sections; a line break; per section the keys that blocks begin
           with, and a checksum per block
tail       footer length (uint64, little-endian), SHA-256 of the footer, magic
```

A section holds keys of one length in bytewise order, and the rows of a key in ascending order. An
entry is the key and the row, big-endian, without the bytes that are the same in the whole section:
a row is `file id << position_bits | position`, so it takes as few bytes as the section needs. All
of a key's rows are in one section. A key that is gone has the one row `TOMBSTONE`.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import struct
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from resolver.index.damage import damaged
from resolver.index.entry import POSITION_BITS, Rows
from resolver.keys import varying_columns
from tableformat.array_types import Int64s

# On disk: never change the value for the same meaning of sections and footer.
RUN_FORMAT = 2
TOMBSTONE = np.uint64(0xFFFFFFFFFFFFFFFF)
ROW_BYTES = 8
BLOCK_BYTES = 1024
BLOCK_ENTRIES_MAX = 128
TAIL = struct.Struct("<Q32s8s")
MAGIC = b"icefrun2"
# Of keys with more bytes than a word, one in so many may begin like another: that is cheaper than
# to compare all bytes of all.
FEW_ALIKE = 8
WORD_BYTES = 8  # blocks have whole words: their entries are a multiple of eight
_POSITION_MASK = np.uint64((1 << POSITION_BITS) - 1)
# Of a row that was written when positions had more bits; a section has what it needs.
_WRITTEN_POSITION_BITS_MAX = 36

Bytes2d = npt.NDArray[np.uint8]
Uint64s = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Section:
    """Where entries of one key length are, and how they are packed.

    It is one section of the file, or several that are packed alike and follow each other in key
    order: few keys in a large run would take as long per section as for all.

    Attributes:
        width: Bytes of a key.
        count: Entries.
        block_entries: Entries of a block; the last one may have fewer.
        position_bits: Low bits of a packed row that are the position.
        base: Key and packed row of the first entry.
        columns: Bytes of key and packed row that an entry has; all others are those of `base`.
        pieces: Of each section of the file: the number of its first block, where that begins, and
            its entries.
        last: The greatest key.
        directory: Shape `(blocks, key columns)`: the key that each block begins with.
        checksums: Shape `(blocks,)`.
        order: The leading `order_columns` of `directory`, to be searched in: what tells most blocks
            apart.
        is_distinct: Whether no two of `order` are alike.
    """

    width: int
    count: int
    block_entries: int
    position_bits: int
    base: bytes
    columns: tuple[int, ...]
    pieces: tuple[tuple[int, int, int], ...]
    last: bytes
    directory: Bytes2d
    checksums: Uint64s
    order: npt.NDArray[Any] = field(init=False)
    order_columns: int = field(init=False)
    is_distinct: bool = field(init=False)

    def __post_init__(self) -> None:
        key_columns = self.directory.shape[1]
        columns = min(key_columns, WORD_BYTES)
        order = comparable(self.directory, columns)
        alike = np.count_nonzero(order[1:] == order[:-1])
        is_distinct = not alike
        if columns < key_columns and alike * FEW_ALIKE > len(order):
            columns, order = key_columns, comparable(self.directory, key_columns)
        object.__setattr__(self, "order", order)
        object.__setattr__(self, "order_columns", columns)
        object.__setattr__(self, "is_distinct", is_distinct)

    @property
    def key_columns(self) -> tuple[int, ...]:
        """Bytes of the key that differ between entries."""
        return self.columns[: bisect_left(self.columns, self.width)]

    @property
    def block_bytes(self) -> int:
        """Bytes of a whole block."""
        return self.block_entries * len(self.columns)

    @property
    def packing(self) -> tuple[object, ...]:
        """Equal for sections whose entries say the same with the same bytes."""
        fixed = bytearray(self.base)
        for column in self.columns:
            fixed[column] = 0
        return self.width, self.columns, self.position_bits, bytes(fixed)

    def locate(self, blocks: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Where blocks begin and end in the file, and which piece each belongs to."""
        firsts, offsets, counts = np.array(self.pieces, dtype=np.int64).T
        piece = np.searchsorted(firsts, blocks, "right") - 1
        starts = offsets[piece] + (blocks - firsts[piece]) * self.block_bytes
        ends = offsets + counts * len(self.columns)
        return starts, np.minimum(starts + self.block_bytes, ends[piece]), piece

    def first_key(self, block: int) -> bytes:
        """The whole key that a block begins with."""
        key = bytearray(self.base[: self.width])
        for column, byte in zip(self.key_columns, self.directory[block].tolist(), strict=True):
            key[column] = byte
        return bytes(key)

    def keys_of(self, entries: Bytes2d) -> Bytes2d:
        """Whole keys of entries, shape `(entries, width)`."""
        keys = np.empty((len(entries), self.width), dtype=np.uint8)
        keys[:] = np.frombuffer(self.base[: self.width], dtype=np.uint8)
        for place, column, length in _stretches(self.key_columns):
            keys[:, column : column + length] = entries[:, place : place + length]
        return keys

    def rows_of(self, entries: Bytes2d) -> Rows:
        """Rows of entries.

        Raises:
            IndexDamagedError: A position that only earlier releases took.
        """
        base = bytearray(self.base[self.width :])
        columns = [column - self.width for column in self.columns if column >= self.width]
        for column in columns:
            base[column] = 0
        packed = np.full(len(entries), int.from_bytes(base), dtype=np.uint64)
        for place, column in enumerate(columns, start=len(self.key_columns)):
            shift = np.uint64(8 * (ROW_BYTES - 1 - column))
            packed |= entries[:, place].astype(np.uint64) << shift
        bits = np.uint64(self.position_bits)
        position = packed & np.uint64((1 << self.position_bits) - 1)
        rows = ((packed >> bits) << np.uint64(POSITION_BITS)) | position
        if self.position_bits > POSITION_BITS:
            gone = packed == TOMBSTONE
            if (position[~gone] > _POSITION_MASK).any():
                raise damaged("the index has a row position that is not taken any more", "runs")
            rows[gone] = TOMBSTONE
        return rows


@dataclass(frozen=True, slots=True)
class PackedSection:
    """A section on its way to a file: what the footer says of it, and its bytes."""

    meta: dict[str, Any]
    arrays: bytes
    entries: Bytes2d


def pack_section(keys: Bytes2d, rows: Rows, offset: int) -> PackedSection:
    """Pack entries, at least one; see `RunWriter.add` for their order.

    Args:
        keys: Shape `(n, width)`.
        rows: Shape `(n,)`.
        offset: Where the entries will begin.
    """
    count, width = keys.shape
    bits = int((rows & _POSITION_MASK).max()).bit_length()
    packed = _packed_rows(rows, bits)
    of_keys = np.flatnonzero(varying_columns(keys))
    of_rows = np.flatnonzero(varying_columns(packed))
    columns = np.concatenate([of_keys, of_rows + width])
    entries = np.concatenate([columns_of(keys, of_keys), columns_of(packed, of_rows)], axis=1)
    block_entries = block_entries_of(len(columns))
    blocks = -(-count // block_entries)
    size = block_entries * len(columns)
    padded = np.zeros(blocks * size, dtype=np.uint8)
    padded[: entries.size] = entries.ravel()
    starts = entries[::block_entries, : len(of_keys)]
    sums = checksums(padded.reshape(blocks, size)).astype("<u8")
    meta = {
        "width": width,
        "count": count,
        "block_entries": block_entries,
        "position_bits": bits,
        "base": (keys[0].tobytes() + packed[0].tobytes()).hex(),
        "columns": columns.tolist(),
        "offset": offset,
        "last": keys[-1].tobytes().hex(),
    }
    return PackedSection(meta, np.ascontiguousarray(starts).tobytes() + sums.tobytes(), entries)


def footer_and_tail(name: str, sections: Sequence[PackedSection]) -> bytes:
    """What stands behind the entries of a run."""
    meta = {"format": RUN_FORMAT, "name": name, "sections": [each.meta for each in sections]}
    text = json.dumps(meta, sort_keys=True).encode()
    footer = text + b"\n" + b"".join(each.arrays for each in sections)
    return footer + TAIL.pack(len(footer), hashlib.sha256(footer).digest(), MAGIC)


def parse_footer(footer: bytes, name: str, footer_at: int, location: Path) -> tuple[Section, ...]:
    """The sections of a run.

    Args:
        footer: As it stands in the file.
        name: The run's name.
        footer_at: Where the footer begins, and entries end.
        location: The file, for errors.

    Raises:
        IndexDamagedError: Another run, another format, or nothing that a writer wrote.
    """
    text, _, arrays = footer.partition(b"\n")
    try:
        meta = json.loads(text)
        if meta["format"] != RUN_FORMAT:
            raise damaged("a run of the index has another format", location, found=meta["format"])
        if meta["name"] != name:
            raise damaged("a run of the index has another name", location)
        sections, at = [], 0
        for each in meta["sections"]:
            section, at = _section_of(each, arrays, at)
            _check_section(section, footer_at)
            sections.append(section)
        if at != len(arrays):
            raise damaged("the footer of a run goes on behind its sections", location)
    except (KeyError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
        raise damaged("the footer of a run is unreadable", location) from error
    return _joined(sections)


def _joined(sections: Sequence[Section]) -> tuple[Section, ...]:
    """The same entries in fewer sections; see `Section`."""
    rows: dict[object, list[list[Section]]] = {}
    for section in sections:
        alike = rows.setdefault(section.packing, [])
        if alike and alike[-1][-1].last < section.first_key(0):
            alike[-1].append(section)
        else:
            alike.append([section])
    return tuple(_one(row) for alike in rows.values() for row in alike)


def _one(row: Sequence[Section]) -> Section:
    if len(row) == 1:
        return row[0]
    firsts = itertools.accumulate((len(each.checksums) for each in row), initial=0)
    return replace(
        row[0],
        count=sum(each.count for each in row),
        pieces=tuple(
            (first, offset, count)
            for first, each in zip(firsts, row, strict=False)
            for _, offset, count in each.pieces
        ),
        last=row[-1].last,
        directory=np.concatenate([each.directory for each in row]),
        checksums=np.concatenate([each.checksums for each in row]),
    )


def _section_of(meta: dict[str, Any], arrays: bytes, at: int) -> tuple[Section, int]:
    integers = [meta[name] for name in ("width", "count", "block_entries", "position_bits")]
    columns = tuple(meta["columns"])
    if {*map(type, (*integers, *columns, meta["offset"]))} != {int}:
        raise TypeError("a number is no integer")
    width, count, block_entries, position_bits = integers
    if (
        width < 0
        or count < 1
        or block_entries < 1
        or not 0 <= position_bits <= _WRITTEN_POSITION_BITS_MAX
    ):
        raise ValueError("a number outside its range")
    blocks = -(-count // block_entries)
    key_columns = bisect_left(columns, width)
    middle = at + blocks * key_columns
    end = middle + blocks * WORD_BYTES
    if end > len(arrays):
        raise ValueError("the directory is cut")
    directory = np.frombuffer(arrays[at:middle], dtype=np.uint8).reshape(blocks, key_columns)
    section = Section(
        width=width,
        count=count,
        block_entries=block_entries,
        position_bits=position_bits,
        base=bytes.fromhex(meta["base"]),
        columns=columns,
        pieces=((0, meta["offset"], count),),
        last=bytes.fromhex(meta["last"]),
        directory=directory,
        checksums=np.frombuffer(arrays[middle:end], dtype="<u8").astype(np.uint64, copy=False),
    )
    return section, end


def _check_section(section: Section, footer_at: int) -> None:
    size = section.width + ROW_BYTES
    columns = section.columns
    ((_, offset, _),) = section.pieces
    if (
        len(section.base) != size
        or len(section.last) != section.width
        or list(columns) != sorted(set(columns))
        or (columns and not 0 <= columns[0] <= columns[-1] < size)
        or section.block_entries != block_entries_of(len(columns))
        or offset < 0
        or offset + section.count * len(columns) > footer_at
    ):
        raise ValueError("a section that cannot be")


def columns_of(matrix: Bytes2d, columns: Sequence[int] | Int64s) -> Bytes2d:
    """Some columns of a matrix, ascending; without copying where they stand side by side."""
    stretches = list(_stretches(columns))
    if len(stretches) < 2:
        return matrix[:, columns[0] : columns[-1] + 1] if stretches else matrix[:, :0]
    found = np.empty((len(matrix), len(columns)), dtype=np.uint8)
    for place, column, length in stretches:
        found[:, place : place + length] = matrix[:, column : column + length]
    return found


def _stretches(columns: Sequence[int] | Int64s) -> Iterator[tuple[int, int, int]]:
    """Ascending columns that stand side by side: place of the first, the first, how many."""
    begins = np.flatnonzero(np.diff(columns, prepend=-2) != 1).tolist()
    for begin, end in itertools.pairwise([*begins, len(columns)]):
        yield begin, int(columns[begin]), end - begin


def comparable(matrix: Bytes2d, width: int) -> npt.NDArray[Any]:
    """The leading bytes of rows as values of their order: integers up to eight bytes."""
    count, row = matrix.shape
    if width > WORD_BYTES:  # 'S' ignores trailing NULs, which do not matter at one length
        return np.ascontiguousarray(matrix[:, :width]).view(f"S{width}").ravel()
    if not width:
        return np.zeros(count, dtype=np.uint64)
    if row >= WORD_BYTES:
        words = matrix[:, :WORD_BYTES].view(">u8").ravel().astype(np.uint64)
        words >>= np.uint64(8 * (WORD_BYTES - width))
        return words
    # A whole word is read of each row, also what is no part of it, but for rows near the end.
    matrix = np.ascontiguousarray(matrix)
    words = np.zeros(count, dtype=np.uint64)
    whole = max((matrix.size - WORD_BYTES) // row + 1, 0)
    if whole:
        words[:whole] = np.ndarray((whole,), dtype=">u8", buffer=matrix, strides=(row,))
        words >>= np.uint64(8 * (WORD_BYTES - width))
    words[whole:] = [int.from_bytes(each[:width].tobytes()) for each in matrix[whole:]]
    return words


def places_of(wanted: Bytes2d, entries: Bytes2d) -> tuple[Int64s, Int64s]:
    """Where keys are among entries.

    Args:
        wanted: Shape `(n, width)`, in bytewise order.
        entries: Shape `(m, width or more)`: by what they begin with, in bytewise order.

    Returns:
        Ordinals of keys, ascending, and of entries, ascending within a key.
    """
    width = wanted.shape[1]
    columns = min(width, WORD_BYTES)
    words, wanted_words = comparable(entries, columns), comparable(wanted, columns)
    if len(words) and (words[1:] != words[:-1]).all():  # one search, and it compares integers
        place = np.searchsorted(words, wanted_words)
        place[place == len(words)] = 0
        ordinal = np.flatnonzero(words.take(place) == wanted_words)
        place = place[ordinal]
        if width > columns:
            same = (entries[place, columns:width] == wanted[ordinal, columns:]).all(axis=1)
            ordinal, place = ordinal[same], place[same]
        return ordinal, place
    begin, counts = _ranges(words, wanted_words)
    if width > columns and counts.sum() > len(wanted) + len(wanted) // FEW_ALIKE:
        begin, counts = _ranges(comparable(entries, width), comparable(wanted, width))
    ordinal = np.repeat(np.arange(len(wanted)), counts)
    within = np.arange(len(ordinal)) - np.repeat(np.cumsum(counts) - counts, counts)
    place = begin[ordinal] + within
    if width > columns:
        same = (entries[place, columns:width] == wanted[ordinal, columns:]).all(axis=1)
        ordinal, place = ordinal[same], place[same]
    return ordinal, place


def _ranges(words: npt.NDArray[Any], wanted: npt.NDArray[Any]) -> tuple[Int64s, Int64s]:
    """Where values begin among ascending ones, and how often each is there."""
    begin = np.searchsorted(words, wanted, "left")
    return begin, np.searchsorted(words, wanted, "right") - begin


def first_at_or_after(keys: Bytes2d, key: bytes) -> int:
    """Of keys in bytewise order: the first row whose key is `key` or greater."""
    return bisect_left(range(len(keys)), key, key=lambda row: keys[row].tobytes())


def _packed_rows(rows: Rows, position_bits: int) -> Bytes2d:
    position = rows & _POSITION_MASK
    packed = ((rows >> np.uint64(POSITION_BITS)) << np.uint64(position_bits)) | position
    return packed.astype(">u8").view(np.uint8).reshape(-1, ROW_BYTES)


def block_entries_of(columns: int) -> int:
    """Entries of a block, each of so many bytes."""
    fitting = BLOCK_BYTES // max(columns, 1) // WORD_BYTES * WORD_BYTES
    return max(min(fitting, BLOCK_ENTRIES_MAX), WORD_BYTES)


def checksums(blocks: Bytes2d) -> Uint64s:
    """Shape `(blocks,)`. Every changed byte changes it; other damage does but for 2**-64."""
    words = np.ascontiguousarray(blocks).view("<u8").astype(np.uint64, copy=False)
    count = words.shape[1]
    return words @ _odd_words(count) + np.uint64(count)


@cache
def _odd_words(count: int) -> Uint64s:
    """Fixed odd numbers (splitmix64): a changed byte times one of them is never 0 modulo 2**64."""
    state = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (state ^ (state >> np.uint64(31))) | np.uint64(1)
