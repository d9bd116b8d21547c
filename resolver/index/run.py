"""A run: a file of sorted (key, row) pairs, written once and never changed; see `run_format`.

A block is read with one `pread` and held against its checksum before it is believed, the footer
when the run is opened; a changed byte of either is an error and never a wrong row.
"""

from __future__ import annotations

import hashlib
import itertools
import os
from bisect import bisect_left
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Self
from weakref import finalize

import numpy as np

from resolver.index.damage import damaged
from resolver.index.entry import Rows
from resolver.index.folder import disk_errors
from resolver.index.run_format import (
    MAGIC,
    TAIL,
    TOMBSTONE,
    Bytes2d,
    PackedSection,
    Section,
    checksums,
    columns_of,
    comparable,
    first_at_or_after,
    footer_and_tail,
    pack_section,
    parse_footer,
    places_of,
)
from resolver.keys import take_rows
from tableformat.array_types import Int64s
from tableformat.sized_cache import SizedCache

SECTION_ENTRIES = 1 << 20  # packing one takes four times its memory
# In one process; one that is closed for another is opened again when it is read.
OPEN_FILES_MAX = 512
_FOOTER_BYTES_MAX = 1 << 34
# Blocks that are no further apart are read in one call: it costs more than what lies between.
_APART_MAX = 3


class _OpenFile:
    """Closes with its last user."""

    __slots__ = ("__weakref__", "descriptor")

    def __init__(self, path: Path) -> None:
        try:
            self.descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError as error:
            raise damaged("a run of the index is missing", path) from error
        finalize(self, os.close, self.descriptor)


_open_files: SizedCache[_OpenFile] = SizedCache(OPEN_FILES_MAX, lambda _: 1)
_run_numbers = itertools.count()


class Run:
    """An open run. Reads may come from several threads; it closes with its last user."""

    __slots__ = (
        "__weakref__", "_close", "_kept", "_number", "_of_width", "count", "name", "path",
        "sections",
    )  # fmt: skip

    def __init__(self, path: Path, name: str, *, keep_open: bool = False) -> None:
        """Open the run called `name`.

        Args:
            path: Its file.
            name: What it must call itself.
            keep_open: Whether its file may be removed by others while it is read.

        Raises:
            IndexDamagedError: It is missing, cut, changed or another run.
            StoreUnavailableError: The disk cannot be read.
        """
        self.path = path
        self.name = name
        with disk_errors(path):
            self._number = next(_run_numbers)
            self._close = finalize(self, _open_files.drop, self._number)
            self._kept: _OpenFile | None = None
            self._kept = self._opened() if keep_open else None
            footer_at, footer = self._footer()
        self.sections = parse_footer(footer, name, footer_at, path)
        self._of_width: dict[int, list[Section]] = {}
        for section in self.sections:
            self._of_width.setdefault(section.width, []).append(section)
        self.count = sum(section.count for section in self.sections)

    def close(self) -> None:
        """Release the file; twice is no error."""
        self._kept = None
        self._close()

    @property
    def memory_bytes(self) -> int:
        """What an open run takes: first keys and checksums of its blocks."""
        return sum(
            section.directory.nbytes + section.checksums.nbytes + section.order.nbytes
            for section in self.sections
        )

    def find(self, keys: Bytes2d) -> tuple[Int64s, Rows]:
        """Rows of keys.

        Args:
            keys: Shape `(n, width)`, in bytewise order.

        Returns:
            The ordinals of the keys that the run knows, in no given order, and their rows, several
            of one key ascending; or `TOMBSTONE`.
        """
        ordinals, rows = [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
        for section in self._of_width.get(keys.shape[1], ()):
            begin = first_at_or_after(keys, section.first_key(0))
            end = first_at_or_after(keys, section.last + b"\0")
            if begin < end:
                ordinal, found = self._find_in(section, keys[begin:end])
                ordinals.append(ordinal + begin)
                rows.append(found)
        return np.concatenate(ordinals), np.concatenate(rows)

    def between(self, section: Section, low: bytes, high: bytes | None) -> tuple[Bytes2d, Rows]:
        """Keys and rows from `low` to before `high`; None: to the end."""
        if section.last < low or (high is not None and high <= section.first_key(0)):
            return np.empty((0, section.width), np.uint8), np.empty(0, np.uint64)
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
        same = np.ones(section.width, dtype=np.bool_)
        same[: columns[0] if columns else None] = False
        same[list(columns)] = False
        if same.any():
            base = np.frombuffer(section.base, dtype=np.uint8, count=section.width)
            ordinals = np.flatnonzero((keys[:, same] == base[same]).all(axis=1))
            keys = take_rows(keys, ordinals)
        wanted = columns_of(keys, columns)
        if not len(wanted):
            return ordinals, np.empty(0, dtype=np.uint64)
        order, lead = section.order, comparable(wanted, section.order_columns)
        after = np.searchsorted(order, lead, "left")
        first = np.maximum(after - 1, 0)
        if section.is_distinct:
            last = after - (order.take(after, mode="clip") != lead)
        else:
            last = np.searchsorted(order, lead, "right") - 1
        touched = np.zeros(len(order), dtype=np.bool_)
        touched[first] = touched[last] = True
        for each in np.flatnonzero(last - first > 1).tolist():  # a key of several blocks
            touched[first[each] : last[each]] = True
        entries = self._entries(section, np.flatnonzero(touched))
        ordinal, place = places_of(wanted, entries)
        return ordinals[ordinal], section.rows_of(entries.take(place, axis=0))

    def _entries(self, section: Section, blocks: Int64s) -> Bytes2d:
        """Entries of ascending blocks, shape `(entries, columns)`, after their checksums."""
        size, columns = section.block_bytes, len(section.columns)
        if not len(blocks) or not size:
            count = min(section.count, len(blocks) * section.block_entries)
            return np.empty((count, columns), dtype=np.uint8)
        starts, ends, piece = section.locate(blocks)
        is_apart = (np.diff(blocks) > _APART_MAX) | (np.diff(piece) > 0)
        first = np.flatnonzero(np.concatenate([[True], is_apart]))
        last = np.append(first[1:], len(blocks)) - 1
        spans = blocks[last] - blocks[first] + 1
        unused = spans * size - (ends[last] - starts[first])  # of the last block of a piece
        with disk_errors(self.path):
            file = self._opened()
            reads = zip(starts[first].tolist(), ends[last].tolist(), strict=True)
            data = [self._read(file, start, end) for start, end in reads]
        for each in np.flatnonzero(unused).tolist():
            data[each] += bytes(int(unused[each]))
        matrix = np.frombuffer(data[0] if len(data) == 1 else b"".join(data), dtype=np.uint8)
        matrix = matrix.reshape(-1, size)
        if len(matrix) > len(blocks):
            begin = np.cumsum(spans) - spans
            matrix = matrix[blocks + np.repeat(begin - blocks[first], last - first + 1)]
        expected = section.checksums
        if len(blocks) < len(expected):
            expected = expected[blocks]
        if (checksums(matrix) != expected).any():
            raise damaged("a block of the index does not match its checksum", self.path)
        entries = matrix.reshape(-1, columns)
        if not unused.any():
            return entries
        is_there = np.arange(section.block_entries) < ((ends - starts) // columns)[:, None]
        return entries[is_there.ravel()]

    def _opened(self) -> _OpenFile:
        file = self._kept or _open_files.get(self._number)
        if file is None:
            file = _OpenFile(self.path)
            _open_files.put(self._number, file)
        return file

    def _read(self, file: _OpenFile, start: int, end: int) -> bytes:
        data = os.pread(file.descriptor, end - start, start)
        while len(data) < end - start:  # one call reads 2 GiB at most
            at = start + len(data)
            more = os.pread(file.descriptor, end - at, at)
            if not more:
                raise damaged("a run of the index ended early", self.path)
            data += more
        return data

    def _footer(self) -> tuple[int, bytes]:
        file = self._opened()
        size = os.fstat(file.descriptor).st_size
        if size < TAIL.size:
            raise damaged("a run of the index is cut", self.path)
        tail_at = size - TAIL.size
        length, digest, magic = TAIL.unpack(self._read(file, tail_at, size))
        if magic != MAGIC or length > min(tail_at, _FOOTER_BYTES_MAX):
            raise damaged("a run of the index is cut or changed", self.path)
        footer = self._read(file, tail_at - length, tail_at)
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
        self._sections: list[PackedSection] = []

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
        is_whole = False
        try:
            if failed is None:
                with disk_errors(self._path):
                    self._finish(self._file)
                    self._file.close()
                is_whole = True
        finally:
            if not is_whole:
                with suppress(OSError):  # on a full disk closing fails, too
                    self._file.close()
                with suppress(OSError):
                    self._path.unlink()

    def _section(self, keys: Bytes2d, rows: Rows) -> None:
        if not len(rows):
            return
        assert self._file is not None
        section = pack_section(keys, rows, self._offset)
        with disk_errors(self._path):
            self._file.write(section.entries.data)
        self._offset += section.entries.size
        self.count += len(rows)
        self._sections.append(replace(section, entries=np.empty((0, 0), dtype=np.uint8)))

    def _finish(self, file: BinaryIO) -> None:
        file.write(footer_and_tail(self._name, self._sections))
        file.flush()
        os.fsync(file.fileno())
