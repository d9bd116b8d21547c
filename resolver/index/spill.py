"""Keys and rows of one shard on their way to its SST: Arrow streams in a scratch folder.

Every attempt of a build appends to stream files of its own, so a stream that was cut by a crash is
never written to again. Fixed-width and any-length keys go to separate streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from resolver.index.entry import KeyedRows, Rows
from resolver.index.folder import disk_errors
from resolver.keys import EncodedKeys

_SUFFIX = ".arrows"


class ShardSpill:
    """Append-only store of the keyed rows of one shard. Callers serialize `append`."""

    __slots__ = ("_files", "_folder", "_prefix", "_writers", "row_count")

    def __init__(self, folder: Path, shard: int, attempt: str) -> None:
        self.row_count = 0
        self._folder = folder
        self._prefix = f"shard-{shard:04d}.{attempt}"
        self._writers: dict[pa.DataType, Any] = {}
        self._files: list[Any] = []

    def append(self, keys: EncodedKeys, rows: Rows) -> None:
        """Add keyed rows.

        Raises:
            StoreUnavailableError: The disk is full or read-only.
        """
        batch = _keyed_batch(keys, rows)
        if batch.column(0).type not in self._writers and self._writers:
            # Two streams at most, whatever lengths the keys of each batch have.
            batch = _keyed_batch(keys.to_binary(), rows)
        form = batch.column(0).type
        with disk_errors(self._folder):
            writer = self._writers.get(form)
            if writer is None:
                name = f"{self._prefix}.{len(self._writers)}{_SUFFIX}"
                sink = pa.OSFile(str(self._folder / name), "wb")
                self._files.append(sink)
                writer = self._writers[form] = pa.ipc.new_stream(sink, batch.schema)
            writer.write_batch(batch)
        self.row_count += len(rows)

    def close(self) -> None:
        """End the streams. A stream that cannot be ended is cut, which reading it expects."""
        for writer in self._writers.values():
            with suppress(OSError):
                writer.close()
        for sink in self._files:
            with suppress(OSError):
                sink.close()


def spill_size_bytes(folder: Path, shard: int) -> int:
    """Bytes that all attempts have spilled for a shard."""
    return sum(path.stat().st_size for path in _streams(folder, shard))


def read_spill(folder: Path, shard: int) -> Iterator[KeyedRows]:
    """What all attempts have spilled for a shard. A stream that a crash has cut ends early."""
    for path in _streams(folder, shard):
        with pa.OSFile(str(path), "rb") as source:
            yield from _read_stream(source)


def keyed_to_bytes(keyed: KeyedRows) -> bytes:
    """Keyed rows as one stream in memory; none: nothing."""
    if not len(keyed):
        return b""
    batch, sink = _keyed_batch(keyed.keys, keyed.rows), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def keyed_from_bytes(data: bytes) -> Iterator[KeyedRows]:
    """The inverse of `keyed_to_bytes`, of bytes that are known to be whole."""
    if data:
        yield from _read_stream(pa.BufferReader(data))


def _keyed_batch(keys: EncodedKeys, rows: Rows) -> pa.RecordBatch:
    return pa.record_batch([keys.to_arrow(), pa.array(rows)], names=["key", "row"])


def _read_stream(source: Any) -> Iterator[KeyedRows]:
    try:
        reader = pa.ipc.open_stream(source)
    except pa.ArrowInvalid:
        return
    while True:
        try:
            batch = reader.read_next_batch()
        except (StopIteration, pa.ArrowInvalid, OSError):
            return
        rows = batch.column(1).to_numpy().astype(np.uint64, copy=False)
        yield KeyedRows(keys=EncodedKeys.from_arrow(batch.column(0)), rows=rows)


def remove_spill(folder: Path, shard: int) -> None:
    """Remove what was spilled for a shard."""
    for path in _streams(folder, shard):
        path.unlink()


def _streams(folder: Path, shard: int) -> list[Path]:
    return sorted(folder.glob(f"shard-{shard:04d}.*{_SUFFIX}"))
