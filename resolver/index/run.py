"""A run: a file of sorted (key, row) pairs, written once and never changed. On disk.

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

A block is read with one `pread` and held against its checksum before it is believed, the footer
when the run is opened; a changed byte of either is an error and never a wrong row.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from bisect import bisect_left
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self
from weakref import finalize

import numpy as np
import numpy.typing as npt

from resolver.index.damage import damaged
from resolver.index.entry import POSITION_BITS, Rows
from resolver.index.folder import disk_errors

# On disk: never change the value for the same meaning of sections and footer.
RUN_FORMAT = 2
TOMBSTONE = np.uint64(0xFFFFFFFFFFFFFFFF)
ROW_BYTES = 8
BLOCK_BYTES = 1024
BLOCK_ENTRIES_MAX = 128
SECTION_ENTRIES = 1 << 19  # packing one takes four times its memory
_WORD_BYTES = 8  # blocks have whole words: their entries are a multiple of eight
_MAGIC = b"icefrun2"
_TAIL = struct.Struct("<Q32s8s")
_FOOTER_BYTES_MAX = 1 << 34
# Reading what lies between costs less than a call per block, up to this part of it.
_SPAN_READ_MAX = 3
_POSITION_MASK = np.uint64((1 << POSITION_BITS) - 1)

Bytes2d = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]
Uint64s = npt.NDArray[np.uint64]


def _odd_words(count: int) -> Uint64s:
    """Fixed odd numbers (splitmix64): a changed byte times one of them is never 0 modulo 2**64."""
    state = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (state ^ (state >> np.uint64(31))) | np.uint64(1)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Section:
    """Where entries of one key length are, and how they are packed.

    Attributes:
        width: Bytes of a key.
        count: Entries.
        block_entries: Entries of a block; the last one may have fewer.
        position_bits: Low bits of a packed row that are the position.
        base: Key and packed row of the first entry.
        columns: Bytes of key and packed row that an entry has; all others are those of `base`.
        offset: Where the first block begins.
        last: The greatest key.
        directory: Shape `(blocks, key columns)`: the key that each block begins with.
        checksums: Shape `(blocks,)`.
        order: `directory`, to be searched in.
    """

    width: int
    count: int
    block_entries: int
    position_bits: int
    base: bytes
    columns: tuple[int, ...]
    offset: int
    last: bytes
    directory: Bytes2d
    checksums: Uint64s
    order: npt.NDArray[Any] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", comparable(self.directory))

    @property
    def key_columns(self) -> list[int]:
        """Bytes of the key that differ between entries."""
        return [column for column in self.columns if column < self.width]

    @property
    def block_bytes(self) -> int:
        """Bytes of a whole block."""
        return self.block_entries * len(self.columns)

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
        for place, column in enumerate(self.key_columns):
            keys[:, column] = entries[:, place]
        return keys

    def rows_of(self, entries: Bytes2d) -> Rows:
        """Rows of entries."""
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
        return ((packed >> bits) << np.uint64(POSITION_BITS)) | position


class Run:
    """An open run. Reads may come from several threads; it closes with its last user."""

    __slots__ = ("__weakref__", "_close", "_descriptor", "count", "name", "path", "sections")

    def __init__(self, path: Path, name: str) -> None:
        """Open the run called `name`.

        Raises:
            IndexDamagedError: It is missing, cut, changed or another run.
            StoreUnavailableError: The disk cannot be read.
        """
        self.path = path
        self.name = name
        with disk_errors(path):
            try:
                self._descriptor = os.open(path, os.O_RDONLY)
            except FileNotFoundError as error:
                raise damaged("a run of the index is missing", path) from error
            self._close = finalize(self, os.close, self._descriptor)
            footer_at, footer = self._footer()
        self.sections = parse_footer(footer, name, footer_at, path)
        self.count = sum(section.count for section in self.sections)

    def close(self) -> None:
        """Release the file; twice is no error."""
        self._close()

    def find(self, keys: Bytes2d) -> tuple[Int64s, Rows]:
        """Rows of keys.

        Args:
            keys: Shape `(n, width)`, in bytewise order.

        Returns:
            The ordinals of the keys that the run knows, in no given order, and their rows, several
            of one key ascending; or `TOMBSTONE`.
        """
        ordinals, rows = [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
        for section in self.sections:
            if section.width == keys.shape[1]:
                begin = first_at_or_after(keys, section.first_key(0))
                end = first_at_or_after(keys, section.last + b"\0")
                if begin < end:
                    ordinal, found = self._find_in(section, keys[begin:end])
                    ordinals.append(ordinal + begin)
                    rows.append(found)
        return np.concatenate(ordinals), np.concatenate(rows)

    def between(self, section: Section, low: bytes, high: bytes | None) -> tuple[Bytes2d, Rows]:
        """Keys and rows from `low` to before `high`; None: to the end."""
        blocks = range(len(section.checksums))
        begin = max(bisect_left(blocks, low, key=section.first_key) - 1, 0)
        end = len(blocks)
        if high is not None:
            end = bisect_left(blocks, high, key=section.first_key)
        entries = self._entries(section, np.arange(begin, end))
        keys = section.keys_of(entries)
        first = first_at_or_after(keys, low)
        stop = len(keys) if high is None else first_at_or_after(keys, high)
        return keys[first:stop], section.rows_of(entries[first:stop])

    # -- help ------------------------------------------------------------------------------------

    def _find_in(self, section: Section, keys: Bytes2d) -> tuple[Int64s, Rows]:
        """Rows of keys between the first and the last key of a section."""
        columns = section.key_columns
        ordinals = np.arange(len(keys), dtype=np.int64)
        # Left of the first byte that differs, everything between first and last is the same.
        same = [each for each in range(section.width) if columns and columns[0] < each]
        same = [each for each in same if each not in columns]
        if same:
            base = np.frombuffer(section.base, dtype=np.uint8)
            ordinals = np.flatnonzero((keys[:, same] == base[same]).all(axis=1))
        wanted = comparable(keys[ordinals][:, columns] if same else keys[:, columns])
        if not len(wanted):
            return ordinals, np.empty(0, dtype=np.uint64)
        first = np.maximum(np.searchsorted(section.order, wanted, "left") - 1, 0)
        last = np.searchsorted(section.order, wanted, "right") - 1
        touched = np.zeros(len(section.order), dtype=np.bool_)
        touched[first] = touched[last] = True
        for each in np.flatnonzero(last - first > 1).tolist():  # a key of several blocks
            touched[first[each] : last[each]] = True
        entries = self._entries(section, np.flatnonzero(touched))
        found = comparable(entries[:, : len(columns)])
        begin = np.searchsorted(found, wanted, "left")
        counts = np.searchsorted(found, wanted, "right") - begin
        ordinal = np.repeat(np.arange(len(wanted)), counts)
        within = np.arange(len(ordinal)) - np.repeat(np.cumsum(counts) - counts, counts)
        return ordinals[ordinal], section.rows_of(entries[begin[ordinal] + within])

    def _entries(self, section: Section, blocks: Int64s) -> Bytes2d:
        """Entries of ascending blocks, shape `(entries, columns)`, after their checksums."""
        size, columns = section.block_bytes, len(section.columns)
        whole = len(section.checksums)
        if not len(blocks) or not size:
            count = min(section.count, len(blocks) * section.block_entries)
            return np.empty((count, columns), dtype=np.uint8)
        end = section.offset + section.count * columns
        first, span = int(blocks[0]), int(blocks[-1] - blocks[0]) + 1
        with disk_errors(self.path):
            if span <= _SPAN_READ_MAX * len(blocks):
                data = self._read(section.offset + first * size, span * size, end)
            else:
                starts = (section.offset + blocks * size).tolist()
                data = b"".join([self._read(start, size, end) for start in starts])
                first, span = 0, len(blocks)
        missing = span * size - len(data)
        matrix = np.frombuffer(data + bytes(missing) if missing else data, dtype=np.uint8)
        matrix = matrix.reshape(span, size)
        if span > len(blocks):
            matrix = matrix[blocks - first]
        expected = section.checksums
        if len(blocks) < whole:
            expected = expected[blocks]
        if (_checksums(matrix) != expected).any():
            raise damaged("a block of the index does not match its checksum", self.path)
        unused = whole * section.block_entries - section.count if blocks[-1] == whole - 1 else 0
        entries = matrix.reshape(-1, columns)
        return entries[: len(entries) - unused]

    def _read(self, start: int, size: int, end: int) -> bytes:
        size = min(size, end - start)
        data = os.pread(self._descriptor, size, start)
        while len(data) < size:  # one call reads 2 GiB at most
            more = os.pread(self._descriptor, size - len(data), start + len(data))
            if not more:
                raise damaged("a run of the index ended early", self.path)
            data += more
        return data

    def _footer(self) -> tuple[int, bytes]:
        size = os.fstat(self._descriptor).st_size
        if size < _TAIL.size:
            raise damaged("a run of the index is cut", self.path)
        tail_at = size - _TAIL.size
        length, digest, magic = _TAIL.unpack(self._read(tail_at, _TAIL.size, size))
        if magic != _MAGIC or length > min(tail_at, _FOOTER_BYTES_MAX):
            raise damaged("a run of the index is cut or changed", self.path)
        footer = self._read(tail_at - length, length, size)
        if hashlib.sha256(footer).digest() != digest:
            raise damaged("the footer of a run does not match its checksum", self.path)
        return tail_at - length, footer


class RunWriter:
    """Writes a run. Use as a context: what fails leaves no file."""

    def __init__(self, path: Path, name: str) -> None:
        """`path` must not exist; `name` is what the run is opened by."""
        self.count = 0
        self._path = path
        self._name = name
        self._file: BinaryIO | None = None
        self._offset = 0
        self._sections: list[dict[str, Any]] = []
        self._arrays: list[bytes] = []

    def __enter__(self) -> Self:
        with disk_errors(self._path):
            self._file = self._path.open("xb")
        return self

    def add(self, keys: Bytes2d, rows: Rows) -> None:
        """Add entries, all with other keys than those before, of one length.

        Args:
            keys: Shape `(n, width)`, in bytewise order.
            rows: Shape `(n,)`, ascending within a key.
        """
        gone = rows == TOMBSTONE
        if gone.any():  # apart: their rows take no space
            self._section(keys[gone], rows[gone])
            keys, rows = keys[~gone], rows[~gone]
        start = 0
        while start < len(rows):
            stop = min(start + SECTION_ENTRIES, len(rows))
            if stop < len(rows):  # not within a key
                stop = start + first_at_or_after(keys[start:], keys[stop].tobytes())
                if stop == start:
                    stop = first_at_or_after(keys, keys[start].tobytes() + b"\0")
            self._section(keys[start:stop], rows[start:stop])
            start = stop

    def __exit__(self, failed: object, *_: object) -> None:
        assert self._file is not None
        try:
            if failed is None:
                with disk_errors(self._path):
                    self._finish(self._file)
        except BaseException:
            failed = True
            raise
        finally:
            self._file.close()
            if failed is not None:
                self._path.unlink(missing_ok=True)

    def _section(self, keys: Bytes2d, rows: Rows) -> None:
        count, width = keys.shape
        if not count:
            return
        assert self._file is not None
        bits = int((rows & _POSITION_MASK).max()).bit_length()
        packed = _packed_rows(rows, bits)
        matrix = np.concatenate([keys, packed], axis=1)
        columns = np.flatnonzero((matrix != matrix[0]).any(axis=0))
        entries = np.ascontiguousarray(matrix[:, columns])
        block_entries = _block_entries(len(columns))
        blocks = -(-count // block_entries)
        size = block_entries * len(columns)
        padded = np.zeros(blocks * size, dtype=np.uint8)
        padded[: entries.size] = entries.ravel()
        starts = keys[::block_entries][:, columns[columns < width]]
        self._arrays += [
            np.ascontiguousarray(starts).tobytes(),
            _checksums(padded.reshape(blocks, size)).astype("<u8").tobytes(),
        ]
        self._sections.append(
            {
                "width": width,
                "count": count,
                "block_entries": block_entries,
                "position_bits": bits,
                "base": matrix[0].tobytes().hex(),
                "columns": columns.tolist(),
                "offset": self._offset,
                "last": keys[-1].tobytes().hex(),
            }
        )
        with disk_errors(self._path):
            self._file.write(entries.data)
        self._offset += entries.size
        self.count += count

    def _finish(self, file: BinaryIO) -> None:
        meta = {"format": RUN_FORMAT, "name": self._name, "sections": self._sections}
        footer = json.dumps(meta, sort_keys=True).encode() + b"\n" + b"".join(self._arrays)
        file.write(footer)
        file.write(_TAIL.pack(len(footer), hashlib.sha256(footer).digest(), _MAGIC))
        file.flush()
        os.fsync(file.fileno())


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
    return tuple(sections)


def _section_of(meta: dict[str, Any], arrays: bytes, at: int) -> tuple[Section, int]:
    integers = [meta[name] for name in ("width", "count", "block_entries", "position_bits")]
    columns = tuple(meta["columns"])
    if any(type(each) is not int for each in (*integers, *columns, meta["offset"])):
        raise TypeError("a number is no integer")
    width, count, block_entries, position_bits = integers
    if width < 0 or count < 1 or block_entries < 1 or not 0 <= position_bits <= POSITION_BITS:
        raise ValueError("a number outside its range")
    blocks = -(-count // block_entries)
    key_columns = sum(column < width for column in columns)
    middle = at + blocks * key_columns
    end = middle + blocks * _WORD_BYTES
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
        offset=meta["offset"],
        last=bytes.fromhex(meta["last"]),
        directory=directory,
        checksums=np.frombuffer(arrays[middle:end], dtype="<u8").astype(np.uint64, copy=False),
    )
    return section, end


def _check_section(section: Section, footer_at: int) -> None:
    size = section.width + ROW_BYTES
    columns = section.columns
    if (
        len(section.base) != size
        or len(section.last) != section.width
        or list(columns) != sorted(set(columns))
        or any(not 0 <= column < size for column in columns)
        or section.block_entries != _block_entries(len(columns))
        or section.offset < 0
        or section.offset + section.count * len(columns) > footer_at
    ):
        raise ValueError("a section that cannot be")


def comparable(columns: Bytes2d) -> npt.NDArray[Any]:
    """Bytes as values whose order is the bytewise order: integers up to eight bytes."""
    count, width = columns.shape
    if width > _WORD_BYTES:  # 'S' ignores trailing NULs, which do not matter at one length
        return np.ascontiguousarray(columns).view(f"S{width}").ravel()
    if width == _WORD_BYTES:
        return np.ascontiguousarray(columns).view(">u8").ravel().astype(np.uint64)
    words = np.zeros(count, dtype=np.uint64)
    for column in range(width):
        words <<= np.uint64(8)
        words |= columns[:, column]
    return words


def first_at_or_after(keys: Bytes2d, key: bytes) -> int:
    """Of keys in bytewise order: the first row whose key is `key` or greater."""
    return bisect_left(range(len(keys)), key, key=lambda row: keys[row].tobytes())


def _packed_rows(rows: Rows, position_bits: int) -> Bytes2d:
    position = rows & _POSITION_MASK
    packed = ((rows >> np.uint64(POSITION_BITS)) << np.uint64(position_bits)) | position
    return packed.astype(">u8").view(np.uint8).reshape(-1, ROW_BYTES)


def _block_entries(columns: int) -> int:
    fitting = BLOCK_BYTES // max(columns, 1) // _WORD_BYTES * _WORD_BYTES
    return max(min(fitting, BLOCK_ENTRIES_MAX), _WORD_BYTES)


def _checksums(blocks: Bytes2d) -> Uint64s:
    """Shape `(blocks,)`. Every changed byte changes it; other damage does but for 2**-64."""
    words = np.ascontiguousarray(blocks).view("<u8").astype(np.uint64, copy=False)
    count = words.shape[1]
    return words @ _odd_words(count) + np.uint64(count)
