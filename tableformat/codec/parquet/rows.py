"""Reads rows of Parquet files by position, for lookups: little is read, and it is remembered.

```
positions ─> row groups ─> per stored column: pages, or the whole column chunk ─> take ─> project
                               │
                               └── decoded values stay in a cache that is bounded in bytes
```

A column is read page by page when the file has a page index and few of its pages are wanted; else
its whole chunk in the row group is decoded. Open files with their footers are remembered, too.
The checks are those of `reader`: file size, footer, checksums of chunks or pages.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from tableformat.array_types import Int64s
from tableformat.cached import cached_property
from tableformat.codec.parquet.check import check_chunks
from tableformat.codec.parquet.chunk_reader import ChunkReader
from tableformat.codec.parquet.columns import FileColumn
from tableformat.codec.parquet.pages import ColumnPages, PageIndex
from tableformat.codec.parquet.reader import (
    RowProjector,
    as_corrupt,
    open_parquet,
    wanted_columns,
)
from tableformat.errors import CorruptDataError, UnsupportedError, error_context
from tableformat.integer_order import distinct
from tableformat.sized_cache import SizedCache
from tableformat.spec.data_file import PARQUET_FORMAT, DataFile, ManifestEntry
from tableformat.store.base import ObjectStore

CACHE_BYTES = 256 << 20
OPEN_FILES_MAX = 256
# From this share of a chunk's pages on, one pass over the chunk is cheaper than pages one by one.
WHOLE_CHUNK_SHARE = 0.25
READERS_MAX = 8
PARALLEL_ROWS_MIN = 2048  # below, handing work to threads costs more than it saves


@dataclass(slots=True)
class ReadStatistics:
    """What row reads have cost so far; for reports and tests.

    Attributes:
        pages: Pages decoded.
        chunks: Whole column chunks decoded.
        hits: Pages and chunks that the cache had.
    """

    pages: int = 0
    chunks: int = 0
    hits: int = 0


@dataclass(slots=True, eq=False)
class _Noted:
    """Rows of a file that are wanted later, and what has been decoded of them.

    Attributes:
        positions: Shape `(rows,)`, ascending and distinct: row ordinals in the file.
        values: By row group and leaves: which rows of the group they are of, and the values.
    """

    positions: Int64s
    values: dict[tuple[int, tuple[int, ...]], tuple[Int64s, pa.Array]] = field(default_factory=dict)

    def keep(self, group: int, leaves: tuple[int, ...], whole: pa.Array, start: int) -> None:
        """Take the rows' values out of a column chunk, whose first row is `start`."""
        first, end = np.searchsorted(self.positions, [start, start + len(whole)])
        rows = self.positions[first:end] - start
        self.values[group, leaves] = (rows, _values_at(whole, rows))

    def find(self, group: int, leaves: tuple[int, ...], rows: Int64s) -> pa.Array | None:
        """The values of rows, ascending ordinals in the group; None: not all are kept."""
        noted, values = self.values.get((group, leaves), (rows[:0], None))
        at = np.searchsorted(noted, rows)
        if values is None or at[-1] == len(noted) or (noted[at] != rows).any():
            return None
        return values.take(pa.array(at))


class ParquetRows:
    """Reads single rows; keep it for as long as lookups follow each other.

    Args:
        store: Where the files are.
        cache_bytes: Bound of the decoded values that are kept.
    """

    def __init__(self, store: ObjectStore, *, cache_bytes: int = CACHE_BYTES) -> None:
        self._store = store
        self._values: SizedCache[pa.Array] = SizedCache(cache_bytes, _size_bytes)
        # Files that are pushed out may still be read by another thread: the last one closes them.
        self._files: SizedCache[_OpenFile] = SizedCache(OPEN_FILES_MAX, lambda _: 1)
        self._noted: dict[str, _Noted] = {}
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self.statistics = ReadStatistics()

    def note(self, positions: Mapping[str, Int64s]) -> None:
        """Name rows that are read later: their values are kept when their chunks are decoded.

        Chunks that do not fit the cache are so decoded once for these rows and for others.

        Args:
            positions: By location of a data file: ascending, distinct row ordinals. They take the
                place of those named before; memory follows them, beside the cache.
        """
        self._noted = {location: _Noted(rows) for location, rows in positions.items()}

    def read(
        self,
        entry: ManifestEntry,
        positions: Int64s,
        *,
        schema: Schema,
        spec: PartitionSpec,
        properties: Mapping[str, str] | None = None,
        with_positions: bool = False,
    ) -> pa.RecordBatch:
        """The rows at `positions`, in this order; see `parquet_reader.read_data_file`.

        Args:
            entry: The data file. Deletes are not applied here.
            positions: Shape `(n,)`, n > 0, ascending: 0-based row ordinals.
            schema: The fields wanted.
            spec: The partition spec of the file.
            properties: Table properties.
            with_positions: Add the column `_pos` at the end.

        Raises:
            CorruptDataError: The file is damaged or is not what its entry says, or ends before a
                position.
            NotFoundError: It is gone.
        """
        location = entry.data_file.file_path
        with error_context(location=location), as_corrupt(location):
            file = self._open(entry.data_file)
            columns = wanted_columns(file.reader, entry.data_file, schema, properties)
            stored = self._stored(file, columns, positions, self._noted.get(location))
            projector = RowProjector(
                entry.data_file,
                schema,
                spec,
                columns,
                entry.sequence_number,
                positions=with_positions,
            )
            return projector.project_rows(stored, positions)

    def _stored(
        self,
        file: _OpenFile,
        columns: Sequence[FileColumn],
        positions: Int64s,
        noted: _Noted | None,
    ) -> list[pa.Array]:
        """The stored values of each column; row groups and columns side by side when many."""
        parts = file.split(positions)
        units = [(column, group, rows, noted) for column in columns for group, rows in parts]
        if len(units) > 1 and len(positions) >= PARALLEL_ROWS_MIN:
            found = list(self._threads().map(lambda unit: file.values_of(*unit), units))
        else:
            found = [file.values_of(*unit) for unit in units]
        if len(parts) == 1:
            return found
        starts = range(0, len(found), len(parts))
        return [pa.concat_arrays(found[start : start + len(parts)]) for start in starts]

    def _threads(self) -> ThreadPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(
                    min(os.cpu_count() or 1, READERS_MAX), thread_name_prefix="icefold-rows"
                )
            return self._pool

    def close(self) -> None:
        """Forget everything."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
        self._values.forget()
        self._files.forget()

    def _open(self, file: DataFile) -> _OpenFile:
        found = self._files.get(file.file_path)
        if found is not None and found.data_file.file_size_in_bytes == file.file_size_in_bytes:
            return found
        if file.file_format.upper() != PARQUET_FORMAT:
            raise UnsupportedError(f"cannot read {file.file_format} files")
        opened = _OpenFile(self._store, file, self._values, self.statistics)
        self._files.put(file.file_path, opened)
        return opened


class _OpenFile:
    """One open file: footer, page index, and the way to its values. For several threads."""

    def __init__(
        self,
        store: ObjectStore,
        file: DataFile,
        values: SizedCache[pa.Array],
        statistics: ReadStatistics,
    ) -> None:
        self.data_file = file
        self._source = store.open_input(file.file_path)
        self.reader: pq.ParquetFile = open_parquet(self._source, file)
        self._values = values
        self._statistics = statistics
        footer = self.reader.metadata
        sizes = [footer.row_group(index).num_rows for index in range(footer.num_row_groups)]
        self._group_starts = np.cumsum([0, *sizes])

    def __del__(self) -> None:
        source = getattr(self, "_source", None)
        if source is not None:
            source.close()

    @cached_property
    def _page_index(self) -> PageIndex:
        return PageIndex(self._source, self.data_file.file_size_in_bytes)

    def split(self, positions: Int64s) -> list[tuple[int, Int64s]]:
        """Ascending positions by row group, as ordinals in it."""
        starts = self._group_starts
        if positions[0] < 0 or positions[-1] >= starts[-1]:
            raise CorruptDataError("a file ends before a row that should be in it")
        groups = np.searchsorted(starts, positions, side="right") - 1
        first = np.flatnonzero(np.diff(groups, prepend=-1))
        return [
            (int(groups[at]), part - starts[groups[at]])
            for at, part in zip(first, np.split(positions, first[1:]), strict=True)
        ]

    def values_of(
        self, column: FileColumn, group: int, rows: Int64s, noted: _Noted | None
    ) -> pa.Array:
        """The stored values of a top-level column in one row group."""
        leaves = tuple(column.leaves())
        kept = None if noted is None else noted.find(group, leaves, rows)
        if kept is not None:
            self._statistics.hits += 1
            return kept
        whole = self._values.get((*self._key, group, leaves))
        if whole is not None:
            self._statistics.hits += 1
            return _values_at(whole, rows)
        pages = self._page_index.column(group, leaves[0]) if len(leaves) == 1 else None
        if pages is not None:
            of_row = pages.pages_of(rows)
            wanted = distinct(of_row)
            if len(wanted) <= max(1, WHOLE_CHUNK_SHARE * len(pages.offset)):
                return self._from_pages(pages, group, leaves[0], rows, of_row, wanted)
        whole = self._whole_chunk(group, leaves)
        if noted is not None:
            noted.keep(group, leaves, whole, int(self._group_starts[group]))
        return _values_at(whole, rows)

    def _from_pages(
        self,
        pages: ColumnPages,
        group: int,
        leaf: int,
        rows: Int64s,
        of_row: Int64s,
        wanted: Int64s,
    ) -> pa.Array:
        found: dict[int, pa.Array] = {}
        missing: list[int] = []
        for page in wanted.tolist():
            known = self._values.get((*self._key, group, leaf, page))
            if known is None:
                missing.append(page)
            else:
                found[page] = known
        self._statistics.hits += len(found)
        if missing:
            self._statistics.pages += len(missing)
            values = self._page_index.read(pages, missing)
            start = 0
            for page in missing:
                count = int(pages.first_row[page + 1] - pages.first_row[page])
                # A slice would keep the memory of all pages for as long as one of them stays.
                part = (
                    values
                    if len(missing) == 1
                    else values.take(pa.array(np.arange(start, start + count)))
                )
                self._values.put((*self._key, group, leaf, page), part)
                found[page] = part
                start += count
        parts = [
            found[page].take(pa.array(rows[of_row == page] - pages.first_row[page]))
            for page in wanted.tolist()
        ]
        return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)

    def _whole_chunk(self, group: int, leaves: Sequence[int]) -> pa.Array:
        self._statistics.chunks += 1
        footer = self.reader.metadata
        # A reader of its own: Arrow's crash when two threads read with one.
        reader = ChunkReader(self._source, footer, leaves, [group], keep_codes=True)
        chunked = reader.table().column(0)
        values = chunked.chunk(0) if chunked.num_chunks == 1 else chunked.combine_chunks()
        check_chunks(footer, leaves, [group])
        self._values.offer((*self._key, group, tuple(leaves)), values)
        return values

    @property
    def _key(self) -> tuple[str, int]:
        return (self.data_file.file_path, self.data_file.file_size_in_bytes)


def _values_at(values: pa.Array, rows: Int64s) -> pa.Array:
    """Some values; those of another row group may not be codes."""
    found = values.take(pa.array(rows))
    return found.dictionary_decode() if pa.types.is_dictionary(found.type) else found


def _size_bytes(values: pa.Array) -> int:
    return int(values.nbytes) + 200
