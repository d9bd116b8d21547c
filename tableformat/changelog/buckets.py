"""Rows that left and rows that came, collected until both are complete; in bounded memory.

Up to `BUFFER_BYTES` everything stays in memory and is one bucket. Beyond, rows go to temporary
files by a hash of their key, so that what belongs together is in one bucket, and one bucket after
the other is read back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

from tableformat.cdc.sharding import shards_of
from tableformat.changelog.pairing import KeyPath, key_columns
from tableformat.integer_order import stable_order
from tableformat.temporary_disk import temporary_disk_errors, temporary_folder

BUFFER_BYTES = 256 << 20
BUCKETS = 64  # buckets of 32 MiB for 2 GiB of changes; one file of each side per bucket

REMOVED, ADDED = 0, 1


class ChangeBuckets:
    """A context manager: temporary files end with it.

    Its methods raise `StoreUnavailableError` where there is no room for them.

    Args:
        schema: Of every batch.
        key: Columns that decide about the bucket.
        buffer_bytes: When to go to disk.
    """

    def __init__(
        self, schema: pa.Schema, key: Sequence[KeyPath], *, buffer_bytes: int = BUFFER_BYTES
    ) -> None:
        self._schema = schema
        self._key = key
        self._buffer_bytes = buffer_bytes
        self._batches: tuple[list[pa.RecordBatch], list[pa.RecordBatch]] = ([], [])
        self._bytes = 0
        self._folder: Path | None = None
        self._writers: dict[tuple[int, int], pa.RecordBatchFileWriter] = {}
        self._files = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close()

    def add(self, side: int, batch: pa.RecordBatch) -> None:
        """Collect rows of one side."""
        self._batches[side].append(batch)
        self._bytes += batch.nbytes
        if self._bytes > self._buffer_bytes:
            self._spill()

    def pairs(self) -> Iterator[tuple[pa.Table, pa.Table]]:
        """Removed and added rows, bucket by bucket; nothing can be added afterwards."""
        if self._folder is None:
            yield self._table(self._batches[REMOVED]), self._table(self._batches[ADDED])
            return
        self._spill()
        with temporary_disk_errors():
            for writer in self._writers.values():
                writer.close()
        for bucket in range(BUCKETS):
            yield self._read(REMOVED, bucket), self._read(ADDED, bucket)

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = Path(self._files.enter_context(temporary_folder("icefold-changes-")))
        for side in (REMOVED, ADDED):
            for batch in self._batches[side]:
                with temporary_disk_errors():
                    self._write(side, batch)
            self._batches[side].clear()
        self._bytes = 0

    def _write(self, side: int, batch: pa.RecordBatch) -> None:
        buckets = shards_of(key_columns(batch, self._key), BUCKETS)
        order = stable_order(buckets)
        starts = np.searchsorted(buckets[order], np.arange(BUCKETS + 1))
        ordered = batch.take(pa.array(order))
        for bucket in range(BUCKETS):
            first, end = int(starts[bucket]), int(starts[bucket + 1])
            if first < end:
                self._writer(side, bucket).write_batch(ordered.slice(first, end - first))

    def _writer(self, side: int, bucket: int) -> pa.RecordBatchFileWriter:
        writer = self._writers.get((side, bucket))
        if writer is None:
            sink = self._files.enter_context(pa.OSFile(str(self._path(side, bucket)), "wb"))
            writer = pa.ipc.new_file(sink, self._schema)
            self._writers[side, bucket] = writer
        return writer

    def _read(self, side: int, bucket: int) -> pa.Table:
        if (side, bucket) not in self._writers:
            return self._table([])
        with pa.OSFile(str(self._path(side, bucket)), "rb") as source:
            return pa.ipc.open_file(source).read_all()

    def _table(self, batches: Sequence[pa.RecordBatch]) -> pa.Table:
        return pa.Table.from_batches(batches, schema=self._schema)

    def _path(self, side: int, bucket: int) -> Path:
        assert self._folder is not None, "rows are on disk"
        return self._folder / f"{side}-{bucket}.arrow"
