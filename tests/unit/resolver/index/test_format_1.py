"""An index of format 1 is converted when it is opened, whole, or is damaged as it was before."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from resolver.index import format_1
from resolver.index.base import IndexDamagedError
from resolver.index.dictionary import file_changes
from resolver.index.folder import Generation, make_current
from resolver.index.header import ShardHeader
from resolver.index.open import Refusal, open_index
from resolver.index.position import read_position
from resolver.index.reader import open_reader
from resolver.index.shard import Shard, open_cache, write_sst
from resolver.keys import EncodedKeys
from tableformat.runtime import Runtime
from tests.support.index_builder import (
    BINDING,
    binding_at,
    build_local,
    content_of,
    file_of,
    keys_of,
    rows_of,
    source_of,
)

KEYS = [None, *range(-5, 50)]
SHARDS = 3
EXPECTED = [[("a", row)] + [("b", row)] * (row % 7 == 0) for row in range(len(KEYS))]


def write_shard(path: Path, pairs: list[tuple[bytes, bytes]], header: dict) -> None:
    sst = path.with_suffix(".sst")
    keys, values = zip(*sorted(pairs), strict=True) if pairs else ((), ())
    write_sst(sst, [(keys, values)], header)
    shard = Shard.create(path, open_cache(0))
    shard.ingest(sst)
    shard.close()


def write_format_1(
    folder: Path, states: tuple[str, ...] = ("s1", "s2", "s2"), first_position: int = 0
) -> Generation:
    generation = Generation(folder / "gen-old", SHARDS)
    generation.path.mkdir(parents=True)
    (generation.pending_path / "x").mkdir(parents=True)
    (folder / "LOCK").touch()
    keys = keys_of(KEYS)
    shard_of = keys.shard_of(SHARDS).tolist()
    pairs: list[list[tuple[bytes, bytes]]] = [[] for _ in range(SHARDS)]
    for row, (key, shard) in enumerate(zip(keys.to_list(), shard_of, strict=True)):
        files = np.array([0, 1] if row % 7 == 0 else [0], dtype=np.int32)
        words = files.astype(np.uint64) << np.uint64(36) | np.uint64(first_position + row)
        pairs[shard].append((key, words.astype("<u8").tobytes()))
    for shard, state in enumerate(states):
        header = ShardHeader(generation.name, shard, SHARDS, state).to_json()
        write_shard(generation.shard_path(shard), pairs[shard], header)
    files = file_changes((), [(0, file_of("a")), (1, file_of("b"))])
    header = {
        "format": 1,
        "generation": generation.name,
        "state": "s2",
        "previous": "s1",
        "shards": ["s1", "s2", "s2"],
        "next_file_id": 2,
        "binding": asdict(binding_at(4)),
    }
    write_shard(generation.files_path, list(zip(files.keys, files.values, strict=True)), header)
    make_current(folder, generation)
    return generation


def check(folder: Path) -> None:
    opened = open_index(folder, BINDING, runtime=Runtime())
    assert opened.index is not None, opened
    with opened.index as index:
        assert index.binding == binding_at(4)
        assert rows_of(index, KEYS) == EXPECTED
        assert sum(map(len, content_of(index).values())) == sum(map(len, EXPECTED))
        names = {path.name for path in index.generation.path.iterdir()}
        assert names == {"files", "runs"}


def test_index_of_format_1_is_converted_when_it_is_opened(tmp_path: Path) -> None:
    write_format_1(tmp_path)
    assert read_position(tmp_path).binding == binding_at(4)
    with pytest.raises(IndexDamagedError, match="next resolve converts"):
        open_reader(tmp_path, Runtime())
    check(tmp_path)
    check(tmp_path)
    with open_reader(tmp_path, Runtime()) as reader:
        assert reader.lookup(EncodedKeys.empty()).files == {}


@pytest.mark.parametrize("at", range(5))
def test_conversion_that_was_cut_begins_again(
    tmp_path: Path, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_format_1(tmp_path)
    calls = 0

    def cut(original):
        def work(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls > at:
                raise KeyboardInterrupt
            return original(*arguments, **options)

        return work

    with monkeypatch.context() as patch:
        for name in ("write_run", "write_sst", "remove_shards"):
            patch.setattr(format_1, name, cut(getattr(format_1, name)))
        with pytest.raises(KeyboardInterrupt):
            open_index(tmp_path, BINDING, runtime=Runtime())
    check(tmp_path)


def test_shard_of_another_state_is_damage(tmp_path: Path) -> None:
    write_format_1(tmp_path, states=("s1", "s2", "s1"))
    assert open_index(tmp_path, BINDING, runtime=Runtime()).refusal == Refusal.DAMAGED
    with build_local(tmp_path, [source_of("a", [1])]) as index:
        assert rows_of(index, [1]) == [[("a", 0)]]


@pytest.mark.parametrize("is_taken", [True, False])
def test_position_beyond_those_of_the_index_is_damage_and_is_built_again(
    tmp_path: Path, is_taken: bool
) -> None:
    first = (1 << 30) - len(KEYS) + (not is_taken)  # the last row is at 2^30 - 1, or 2^30
    write_format_1(tmp_path, first_position=first)
    opened = open_index(tmp_path, BINDING, runtime=Runtime())
    if is_taken:
        assert opened.index is not None
        with opened.index as index:
            assert rows_of(index, KEYS[-1:]) == [[("a", (1 << 30) - 1)]]
        return
    assert opened.refusal == Refusal.DAMAGED
    assert "position" in opened.detail
    with build_local(tmp_path, [source_of("a", KEYS)]) as index:
        assert rows_of(index, KEYS) == [[("a", row)] for row in range(len(KEYS))]


def test_missing_shard_is_damage(tmp_path: Path) -> None:
    generation = write_format_1(tmp_path)
    (generation.shard_path(1) / "CURRENT").unlink()
    opened = open_index(tmp_path, BINDING, runtime=Runtime())
    assert opened.refusal == Refusal.DAMAGED
    assert json.loads((tmp_path / "CURRENT").read_bytes())["generation"] == generation.name
