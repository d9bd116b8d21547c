"""The open files of one write: rows of many partitions in, finished `DataFile`s out.

Rows wait in memory until they fill a row group; a file is closed when it has reached its target
size. Memory is bounded by `_BUFFERED_BYTES_MAX` of waiting rows plus one row group being encoded,
and the number of open objects by `_OPEN_FILES_MAX`: the largest heap of waiting rows is written
first, the file that was written to longest ago is closed first. Of the last files of a write up to
`READERS_MAX` are put into a bucket at a time.

Nothing here is a commit. Files of a failed write are removed again, as far as the store answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Protocol, Self

import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from tableformat.codec.parquet.options import ParquetOptions
from tableformat.codec.parquet.writer import ParquetFileWriter, describe_file
from tableformat.errors import TableError
from tableformat.side_by_side import run_ahead
from tableformat.spec.data_file import DataFile, FileContent, canonical_partition
from tableformat.store.base import ObjectStore
from tableformat.store.locations import requests_of
from tableformat.write.partitioning import PartitionValues

_BUFFERED_BYTES_MAX = 256 << 20
_OPEN_FILES_MAX = 64
# A file this close to its target is closed: another row group would be a sliver.
_FULL_ENOUGH = 0.95


class PartitionFolders(Protocol):
    """Where the files of a partition go."""

    @property
    def spec(self) -> PartitionSpec:
        """The partition spec."""

    def path(self, partition: PartitionValues) -> str:
        """The folder of a partition; empty when there are no fields."""


class _Partition:
    """What waits for one partition, and its open file."""

    def __init__(self, values: PartitionValues) -> None:
        self.values = values
        self.waiting: list[pa.Table] = []
        self.waiting_rows = 0
        self.waiting_bytes = 0
        self.file: ParquetFileWriter | None = None

    def add(self, rows: pa.Table, size_bytes: int) -> None:
        self.waiting.append(rows)
        self.waiting_rows += rows.num_rows
        self.waiting_bytes += size_bytes

    def take(self, count: int) -> pa.Table:
        """The first `count` waiting rows."""
        rows = pa.concat_tables(self.waiting)
        rest = rows.slice(count)
        before = self.waiting_bytes
        self.waiting = [rest] if rest.num_rows else []
        self.waiting_bytes = before * rest.num_rows // max(self.waiting_rows, 1)
        self.waiting_rows = rest.num_rows
        return rows.slice(0, count)


class FileSet:
    """Collects rows by partition into files of the target size.

    As a context manager it gives everything up when the block raises: open files never appear and
    finished ones are deleted, since no commit can know them yet.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        schema: Schema,
        partitioner: PartitionFolders,
        options: ParquetOptions,
        properties: Mapping[str, str],
        location_for: Callable[[str], str],
        content: FileContent = FileContent.DATA,
        equality_ids: tuple[int, ...] | None = None,
    ) -> None:
        self._store = store
        self._schema = schema
        self._partitioner = partitioner
        self._options = options
        self._properties = properties
        self._location_for = location_for
        self._content = content
        self._equality_ids = equality_ids
        self._partitions: dict[tuple[object, ...], _Partition] = {}
        self._finished: list[DataFile] = []
        self._last: set[ParquetFileWriter] = set()
        self._waiting_bytes = 0
        self._arrow_bytes = 0
        self._encoded_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: object, _trace: object) -> None:
        if error is not None:
            self.abort()

    def add(self, partition: PartitionValues, rows: pa.Table) -> None:
        """Take rows of one partition; columns as `arrow_schema` of the schema."""
        key = canonical_partition(partition)
        # Re-inserted, so that the dict's order is the order of last use.
        heap = self._partitions.pop(key, None) or _Partition(partition)
        self._partitions[key] = heap
        size_bytes = rows.nbytes
        heap.add(rows, size_bytes)
        self._waiting_bytes += size_bytes
        while heap.waiting_rows >= self._row_group_rows(heap):
            self._write_group(heap, self._row_group_rows(heap))
        while self._waiting_bytes > _BUFFERED_BYTES_MAX:
            largest = max(self._partitions.values(), key=lambda each: each.waiting_bytes)
            self._write_group(largest, largest.waiting_rows)

    def finish(self) -> list[DataFile]:
        """Write what waits and close every file.

        Returns:
            The files, those of one partition in the order of their rows; all objects exist.
        """
        last = self._last_files()
        first = next(last, None)
        if first is None:
            return self._finished
        at_once = requests_of(first[0].location)
        ended = list(run_ahead(self._finish_file, chain((first,), last), at_once=at_once))
        paths = {each.file_path for each in ended}
        return [*(each for each in self._finished if each.file_path not in paths), *ended]

    def _last_files(self) -> Iterator[tuple[ParquetFileWriter, PartitionValues]]:
        for heap in list(self._partitions.values()):
            while heap.waiting_rows:
                self._write_group(heap, min(heap.waiting_rows, self._row_group_rows(heap)))
            file, heap.file = heap.file, None
            if file is not None:
                self._last.add(file)
                yield file, heap.values

    def abort(self) -> None:
        """Drop open files and delete finished ones. Never raises; leftovers are orphans."""
        for heap in self._partitions.values():
            if heap.file is not None:
                heap.file.abort()
                heap.file = None
        for file in self._last:
            file.abort()
        finished, self._finished = self._finished, []
        try:
            self._store.delete([file.file_path for file in finished])
        except TableError:
            return

    def _row_group_rows(self, heap: _Partition) -> int:
        """How many rows fill the next row group: by rows, by encoded bytes, by the file's rest."""
        options = self._options
        row_bytes = max(heap.waiting_bytes / max(heap.waiting_rows, 1), 0.125)
        if self._arrow_bytes:
            row_bytes *= self._encoded_bytes / self._arrow_bytes
        written = heap.file.written_bytes if heap.file else 0
        room = max(options.target_file_size_bytes - written, 1)
        rows = min(options.row_group_size_bytes, room) / row_bytes
        return max(1, min(int(rows) + 1, options.row_group_rows_max))

    def _write_group(self, heap: _Partition, count: int) -> None:
        before = heap.waiting_bytes
        rows = heap.take(count)
        self._waiting_bytes -= before - heap.waiting_bytes
        file = heap.file or self._open(heap)
        start = file.written_bytes
        file.write(rows)
        self._arrow_bytes += before - heap.waiting_bytes
        self._encoded_bytes += file.written_bytes - start
        if file.written_bytes >= self._options.target_file_size_bytes * _FULL_ENOUGH:
            self._close(heap)

    def _open(self, heap: _Partition) -> ParquetFileWriter:
        opened = [each for each in self._partitions.values() if each.file is not None]
        if len(opened) >= _OPEN_FILES_MAX:
            self._close(opened[0])
        heap.file = ParquetFileWriter(
            self._store,
            self._location_for(self._partitioner.path(heap.values)),
            schema=self._schema,
            options=self._options,
            properties=self._properties,
        )
        return heap.file

    def _close(self, heap: _Partition) -> None:
        file, heap.file = heap.file, None
        if file is not None:
            self._finish_file((file, heap.values))

    def _finish_file(self, last: tuple[ParquetFileWriter, PartitionValues]) -> DataFile:
        file, partition = last
        size_bytes, metrics = file.close()
        self._last.discard(file)
        found = describe_file(
            location=file.location,
            content=self._content,
            spec_id=self._partitioner.spec.spec_id,
            partition=partition,
            record_count=file.record_count,
            size_bytes=size_bytes,
            metrics=metrics,
            equality_ids=self._equality_ids,
        )
        self._finished.append(found)  # at once, so that `abort` knows it
        return found
