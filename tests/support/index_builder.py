"""Small indexes for tests: integer keys in files called `f0`, `f1`, ..."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from resolver.index.base import Entries, IndexBinding, IndexedFile, PrimaryKeyIndex
from resolver.index.build import BuildOptions, SourceFile, build_index
from resolver.index.depot import IndexDepot
from resolver.index.local import LocalIndex
from resolver.index.shared import SharedIndex, Workplace
from resolver.index.shared_build import build_shared, open_shared
from resolver.keys import EncodedKeys, KeySchema, encode_keys
from resolver.runner import LocalRunner, Runner
from tableformat.runtime import Runtime
from tableformat.store.arrow_store import ArrowObjectStore
from tableformat.store.locations import AllowedLocations

SCHEMA = Schema(NestedField(1, "id", LongType(), required=False))
KEY = KeySchema.of(SCHEMA, [1])
BINDING = IndexBinding(
    table_uuid="9c12d441-03fe-4693-9a96-a0705ddf69c1",
    branch="main",
    key_fingerprint=KEY.fingerprint,
    snapshot_id=1,
    sequence_number=1,
)

Row = tuple[str, int]


def binding_at(snapshot_id: int) -> IndexBinding:
    return BINDING.at(snapshot_id=snapshot_id, sequence_number=snapshot_id)


def keys_of(values: Iterable[int | None]) -> EncodedKeys:
    return encode_keys([pa.array(list(values), type=pa.int64())], KEY)


def file_of(path: str) -> IndexedFile:
    return IndexedFile(file_path=path, spec_id=0, partition=())


def entries_of(rows: Sequence[tuple[int | None, int, int]]) -> Entries:
    """Entries from (key, file id or ordinal, position)."""
    return Entries(
        keys_of(key for key, _, _ in rows),
        np.array([file for _, file, _ in rows], dtype=np.int32),
        np.array([position for _, _, position in rows], dtype=np.int64),
    )


def source_of(
    path: str, keys: Sequence[int | None], *, first: int = 0, batch_rows: int = 3
) -> SourceFile:
    """A data file whose row i has key `keys[i]`, read in batches of so many rows."""

    def read() -> Iterator[pa.RecordBatch]:
        for start in range(0, len(keys), batch_rows):
            part = list(keys[start : start + batch_rows])
            positions = np.arange(start, start + len(part), dtype=np.int64) + first
            columns = [pa.array(part, type=pa.int64()), pa.array(positions)]
            yield pa.record_batch(columns, names=["id", "_pos"])

    return SourceFile(file_of(path), len(keys), read)


def build_local(
    folder: Path,
    sources: Sequence[SourceFile] = (),
    *,
    shards: int | None = 1,
    binding: IndexBinding = BINDING,
    runtime: Runtime | None = None,
    **options: int | None,
) -> LocalIndex:
    return build_index(
        folder,
        binding,
        KEY,
        sources,
        runtime=runtime or Runtime(),
        options=replace(BuildOptions(shard_count=shards), **options),
    )


def depot_in(folder: Path) -> IndexDepot:
    store = ArrowObjectStore({}, AllowedLocations([str(folder)]))
    return IndexDepot(store, f"{folder}/shared")


def workplace_in(folder: Path, machine: str = "a", runner: Runner | None = None) -> Workplace:
    """A machine of its own: nothing but shared storage is common with others."""
    cache = folder / f"machine-{machine}"
    return Workplace(
        runner=runner or LocalRunner(2), cache=partial(Path, str(cache)), own_cache=cache
    )


def build_shared_in(
    folder: Path,
    sources: Sequence[SourceFile] = (),
    *,
    shards: int | None = 1,
    shard_rows: int | None = None,
    machine: str = "a",
) -> SharedIndex:
    return build_shared(
        depot_in(folder),
        BINDING,
        KEY,
        sources,
        workplace_in(folder, machine),
        runtime=Runtime(),
        options=BuildOptions(shard_count=shards, shard_rows=shard_rows),
    )


def reopen_shared(folder: Path, machine: str = "a") -> SharedIndex:
    opened = open_shared(depot_in(folder), BINDING, workplace_in(folder, machine), Runtime())
    assert opened.index is not None, opened
    return opened.index


def rows_of(index: PrimaryKeyIndex, keys: Sequence[int | None]) -> list[list[Row]]:
    """Rows of each key, through `lookup`."""
    matches = index.lookup(keys_of(keys))
    found: list[list[Row]] = [[] for _ in keys]
    assert (np.diff(matches.key_ordinal) >= 0).all()
    for ordinal, file_id, position in zip(
        matches.key_ordinal.tolist(),
        matches.file_id.tolist(),
        matches.position.tolist(),
        strict=True,
    ):
        found[ordinal].append((matches.files[file_id].file_path, position))
    return [sorted(rows) for rows in found]


def content_of(index: PrimaryKeyIndex) -> dict[bytes, set[Row]]:
    """Everything, through `entries`; fails on a repeated entry."""
    files = index.files()
    content: dict[bytes, set[Row]] = {}
    for entries in index.entries():
        for key, file_id, position in zip(
            entries.keys.to_list(),
            entries.file_id.tolist(),
            entries.position.tolist(),
            strict=True,
        ):
            row = (files[file_id].file_path, position)
            assert row not in content.setdefault(key, set())
            content[key].add(row)
    return content
