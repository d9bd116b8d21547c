"""Reads indexes of format 1, once: each key shard was a database with one record per key.

A record's value was the rows of its key, little-endian words (`file id << 36 | position`). An index
is converted where it lies, when it is opened for work: a run per shard, then a header that names
them. The databases stay until then, so a conversion that was cut begins again. Shards in different
states (a release of that format was killed in mid-change) are damage as ever, and the index is
built again.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from resolver.index.damage import damaged
from resolver.index.dictionary import FileChanges, noting_state
from resolver.index.entry import POSITION_LIMIT, KeyedRows, Rows, pack_rows
from resolver.index.folder import Generation, disk_errors, sync_folder
from resolver.index.header import FilesHeader, ShardHeader
from resolver.index.runs import write_run
from resolver.index.shard import Shard, open_cache, write_sst
from resolver.index.shard_map import even_starts
from resolver.keys import EncodedKeys

ROW_BYTES = 8
_POSITION_BITS = 36  # of a row in a record; the other bits are the file id
BATCH_KEYS = 1 << 18  # a section of the run each


def convert(generation: Generation, files: Shard) -> FilesHeader:
    """Convert a generation; returns its new header.

    Raises:
        IndexDamagedError: A shard cannot be read, or is not in the state that it should be in.
        StoreUnavailableError: The disk is full or read-only. It is converted another time.

    Effects: *1. a run per shard; 2. the header that names them; 3. removes the old shards.*
    """
    content = files.header()
    states, count = content.get("shards"), generation.shard_count
    if not isinstance(states, list) or len(states) != count:
        raise damaged("the index has another number of shards", files.path)
    runs: list[tuple[str, ...]] = []
    for number, state in enumerate(states):
        shard = Shard.open(generation.shard_path(number), open_cache(0))
        try:
            header = ShardHeader.parse(shard.header(), shard.path)
            if header != ShardHeader(generation.name, number, count, state):
                raise damaged("a shard is not in the state of the index", shard.path)
            name = f"converted-{number:04d}"
            path = generation.run_path(name)
            path.unlink(missing_ok=True)
            runs.append((name,) if write_run(path, name, keyed_rows(shard)) else ())
        finally:
            shard.close()
    converted = replace(
        FilesHeader.parse(content, files.path), runs=tuple(runs), starts=even_starts(count)
    )
    sst = generation.runs_path / "converted.sst"
    with disk_errors(sst):
        sst.unlink(missing_ok=True)
        sync_folder(generation.runs_path)
    noted = noting_state(FileChanges((), ()), converted.state)
    write_sst(sst, [(noted.keys, noted.values)], converted.to_json())
    files.ingest(sst)
    remove_shards(generation)
    return converted


def remove_shards(generation: Generation) -> None:
    """Remove what a converted generation does not need."""
    for path in (generation.pending_path, *generation.path.glob("shard-*")):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


def keyed_rows(shard: Shard) -> Iterator[KeyedRows]:
    """Everything in a key shard of format 1, in key order."""
    for batch in shard.scan(batch_keys=BATCH_KEYS):
        keys = pa.array([key for key, _ in batch], type=pa.large_binary())
        ordinal, rows = decode_values([value for _, value in batch])
        yield KeyedRows(keys=EncodedKeys(binary=keys).take(ordinal), rows=rows)


def decode_values(values: Sequence[bytes]) -> tuple[npt.NDArray[np.int64], Rows]:
    """Unfold stored values, one per key, into ordinals of keys and rows.

    Raises:
        IndexDamagedError: A value is not a whole number of rows.
    """
    lengths = np.fromiter(map(len, values), dtype=np.int64, count=len(values))
    counts, rest = np.divmod(lengths, ROW_BYTES)
    if rest.any():
        raise damaged("an index entry is not a whole number of rows", "shard")
    words = np.frombuffer(b"".join(values), dtype="<u8").astype(np.uint64, copy=False)
    position = words & np.uint64((1 << _POSITION_BITS) - 1)
    if position.size and position.max() >= POSITION_LIMIT:
        raise damaged("the index has a row position that is not taken any more", "shard")
    rows = pack_rows(
        (words >> np.uint64(_POSITION_BITS)).astype(np.int64), position.astype(np.int64)
    )
    return np.repeat(np.arange(len(values), dtype=np.int64), counts), rows
