"""A change too large for memory goes through scratch files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from resolver.index import change
from resolver.index.base import Entries, IndexChanges
from resolver.index.build import SourceFile
from resolver.index.runs import LOOKUP_CHUNK_KEYS
from resolver.index.spill import ShardSpill, read_spill
from resolver.keys import EncodedKeys, encode_keys
from tableformat.errors import StoreUnavailableError
from tests.support.index_builder import (
    KEY,
    binding_at,
    build_local,
    content_of,
    entries_of,
    file_of,
    keys_of,
    source_of,
)


def test_lookup_of_more_keys_than_one_chunk_keeps_their_order(tmp_path: Path) -> None:
    count = 3 * LOOKUP_CHUNK_KEYS
    generator = np.random.default_rng(5)
    values = generator.permutation(count)

    def read() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"id": values, "_pos": np.arange(count)})

    with build_local(tmp_path, [SourceFile(file_of("a"), count, read)], shards=2) as index:
        asked = generator.permutation(count + 100)
        matches = index.lookup(encode_keys([pa.array(asked)], KEY))
        assert (matches.key_ordinal == np.flatnonzero(asked < count)).all()
        assert (values[matches.position] == asked[asked < count]).all()


class Lazy:
    """Entries of many files, made when iterated."""

    def __init__(self, files: int, rows: int) -> None:
        self.files = files
        self.rows = rows
        self.iterated = 0

    def __iter__(self) -> Iterator[Entries]:
        self.iterated += 1
        for ordinal in range(self.files):
            keys = [None if row == 7 else ordinal + row for row in range(self.rows)]
            yield entries_of([(key, ordinal, row) for row, key in enumerate(keys)])


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("held", [1, 25, 10_000])
def test_spilled_change_equals_a_change_in_memory(
    shards: int, held: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change, "HELD_ROWS_MAX", held)
    paths = [f"f{i}" for i in range(12)]
    rows = Lazy(len(paths), 10)
    with build_local(tmp_path, [source_of("a", list(range(15)))], shards=shards) as index:
        changes = IndexChanges(
            dropped_files=("a",),
            added_files=tuple(map(file_of, paths)),
            removed_keys=(keys_of([3]),),
            put=rows,
        )
        index.apply(index.prepare(changes), binding_at(2))
        expected: dict[bytes, set[tuple[str, int]]] = {}
        for ordinal, path in enumerate(paths):
            for row in range(10):
                (key,) = keys_of([None if row == 7 else ordinal + row]).to_list()
                expected.setdefault(key, set()).add((path, row))
        assert content_of(index) == expected
        assert rows.iterated == 1
        assert all(path.suffix == ".run" for path in index.generation.runs_path.iterdir())


def test_scratch_file_that_lost_rows_stops_the_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change, "HELD_ROWS_MAX", 20)

    class Cutting(Lazy):
        def __iter__(self) -> Iterator[Entries]:
            yield from super().__iter__()
            for stream in tmp_path.rglob("*.arrows"):
                stream.write_bytes(stream.read_bytes()[:400])

    with build_local(tmp_path) as index:
        files = tuple(file_of(f"f{i}") for i in range(12))
        with pytest.raises(StoreUnavailableError, match="lost rows"):
            index.prepare(IndexChanges(added_files=files, put=Cutting(12, 10)))
        assert content_of(index) == {}


def test_keys_of_many_lengths_are_spilled_in_two_files(tmp_path: Path) -> None:
    """A batch of texts of one length is a matrix of that width; each form is a file."""
    spill = ShardSpill(tmp_path, 0, "put")
    keys = [[b"x" * width] * 3 for width in (2, 3, 4)] + [[b"a", b"bc"]]
    for number, each in enumerate(keys):
        rows = np.full(len(each), number, dtype=np.uint64)
        spill.append(EncodedKeys.of(pa.array(each, pa.large_binary())), rows)
    spill.close()
    assert len(list(tmp_path.iterdir())) == 2
    found = [
        pair
        for part in read_spill(tmp_path, 0)
        for pair in zip(part.keys.to_list(), part.rows.tolist(), strict=True)
    ]
    assert sorted(found) == sorted(
        (key, number) for number, each in enumerate(keys) for key in each
    )
