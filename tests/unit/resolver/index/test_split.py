"""A shard that grows is split: in one change, beside the others, whole or not at all."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pyroaring import BitMap, BitMap64

from resolver.index import run as run_module
from resolver.index import run_format
from resolver.index.base import IndexChanges, IndexDamagedError, PrimaryKeyIndex
from resolver.index.depot import IndexDepot
from resolver.index.dictionary import FileDictionary, file_changes
from resolver.index.entry import FILE_ID_LIMIT, POSITION_BITS
from resolver.index.header import FILES_FORMAT
from resolver.index.local import LocalIndex
from resolver.index.open import Refusal, open_index
from resolver.index.reader import open_reader
from resolver.index.run import Run
from resolver.index.run_format import TOMBSTONE
from resolver.index.shard import Shard, open_cache, write_sst
from resolver.index.shared import SharedIndex
from tableformat.runtime import FailPoints, Runtime
from tests.support.index_builder import (
    BINDING,
    binding_at,
    build_local,
    build_shared_in,
    content_of,
    depot_in,
    entries_of,
    file_of,
    keys_of,
    reopen_shared,
    rows_of,
    source_of,
)

SHARD_ROWS = 20


class Killed(BaseException):
    """Not an Exception: nothing may handle it."""


def reopen(folder: Path, runtime: Runtime | None = None) -> LocalIndex:
    opened = open_index(folder, BINDING, runtime=runtime or Runtime())
    assert opened.index is not None, opened
    return opened.index


def rows_put(number: int, keys: range) -> IndexChanges:
    entries = entries_of([(key, 0, key) for key in keys])
    return IndexChanges(added_files=(file_of(f"f{number}"),), put=(entries,))


def grow(index: PrimaryKeyIndex, first: int, last: int, *, step: int = 60) -> None:
    for number in range(first, last):
        changes = rows_put(number, range(number * step, (number + 1) * step))
        index.apply(index.prepare(changes), binding_at(number + 2))


def check_grown(index: PrimaryKeyIndex, last: int, *, step: int = 60) -> None:
    wanted = [[(f"f{key // step}", key)] for key in range(last * step)]
    assert rows_of(index, [*range(last * step), -1]) == [*wanted, []]
    assert sum(map(len, content_of(index).values())) == last * step


@pytest.mark.parametrize("place", ["local", "shared"])
def test_growing_index_has_more_shards_each_time_and_says_the_same(
    place: str, tmp_path: Path
) -> None:
    def build() -> PrimaryKeyIndex:
        if place == "local":
            return build_local(tmp_path / "index", shards=1, shard_rows=SHARD_ROWS)
        return build_shared_in(tmp_path, shards=1, shard_rows=SHARD_ROWS)

    def again(machine: str) -> PrimaryKeyIndex:
        return reopen(tmp_path / "index") if place == "local" else reopen_shared(tmp_path, machine)

    index = build()
    counts = []
    for number in range(0, 12, 4):
        grow(index, number, number + 4)
        index.close()
        index = again(f"m{number}")
        assert isinstance(index, LocalIndex | SharedIndex)
        counts.append(index.shard_count)
        check_grown(index, number + 4)
    assert 1 < counts[0] < counts[1] < counts[2]
    assert counts[2] <= 12 * 60 // SHARD_ROWS * 2
    index.close()


def test_split_writes_no_other_shard(tmp_path: Path) -> None:
    with build_local(tmp_path, shards=3, shard_rows=SHARD_ROWS) as index:
        grow(index, 0, 1, step=90)
        before = index.run_names
        mine = next(rows for _, rows in index._map.split(keys_of(range(1_000, 1_200))))
        changes = IndexChanges(
            added_files=(file_of("x"),),
            put=(entries_of([(1_000 + row, 0, row) for row in mine.tolist()]),),
        )
        index.apply(index.prepare(changes), binding_at(9))
        assert index.shard_count > 3
        assert index.run_names[0] != before[0]
        assert index.run_names[1:3] == before[1:3]
        check = rows_of(index, [1_000 + row for row in mine.tolist()])
        assert check == [[("x", row)] for row in mine.tolist()]


def test_reader_beside_a_split_says_what_it_said(tmp_path: Path) -> None:
    with build_local(tmp_path, shards=1, shard_rows=SHARD_ROWS) as index:
        grow(index, 0, 1, step=30)
        reader = open_reader(tmp_path, Runtime())
        assert reader is not None
        grow(index, 1, 6, step=30)
        assert index.shard_count > 1
        assert len(reader.lookup(keys_of(range(200)))) == 30
        reader.close()
        newer = open_reader(tmp_path, Runtime())
        assert newer is not None
        assert len(newer.lookup(keys_of(range(200)))) == 180
        newer.close()


@pytest.mark.parametrize(
    ("point", "is_new"),
    [("index.prepare.written", False), ("index.apply.before", False), ("index.apply.after", True)],
)
def test_split_cut_anywhere_is_whole_or_absent_after_opening(
    point: str, is_new: bool, tmp_path: Path
) -> None:
    def kill(_: str) -> None:
        raise Killed

    build_local(tmp_path, [source_of("a", list(range(30)))], shard_rows=SHARD_ROWS).close()
    index = reopen(tmp_path, Runtime(fail_points=FailPoints(armed={point: kill})))

    with pytest.raises(Killed):
        index.apply(index.prepare(rows_put(1, range(30, 120))), binding_at(2))
    index.close()
    with reopen(tmp_path) as index:
        assert (index.shard_count > 1) == is_new
        assert index.binding == (binding_at(2) if is_new else BINDING)
        assert len(index.lookup(keys_of(range(120)))) == (120 if is_new else 30)
        named = {f"{name}.run" for shard in index.run_names for name in shard}
        assert {path.name for path in index.generation.runs_path.iterdir()} == named
        index.apply(index.prepare(rows_put(2, range(200, 300))), binding_at(3))
        assert len(index.lookup(keys_of(range(200, 300)))) == 100


# -- formats -------------------------------------------------------------------------------------


def rewrite_header(folder: Path, edit: Callable[[dict], dict]) -> None:
    (generation,) = folder.glob("gen-*")
    files = Shard.open(generation / "files", open_cache(0))
    content = edit(files.header())
    write_sst(folder / "x.sst", [], content)
    files.ingest(folder / "x.sst")
    files.close()


def as_format_2(content: dict) -> dict:
    assert content["format"] == FILES_FORMAT
    return {k: v for k, v in content.items() if k not in ("starts", "shard_rows")} | {"format": 2}


def test_index_of_format_2_is_read_as_it_is_and_split_when_it_grows(tmp_path: Path) -> None:
    build_local(tmp_path, [source_of("f0", list(range(60)))], shards=3).close()
    rewrite_header(tmp_path, as_format_2)
    with reopen(tmp_path) as index:
        assert index.shard_count == 3
        assert rows_of(index, list(range(60))) == [[("f0", key)] for key in range(60)]
        grow(index, 1, 3)
        check_grown(index, 3)
    with reopen(tmp_path) as index:
        check_grown(index, 3)


def test_index_of_a_newer_format_is_refused_and_built_again(tmp_path: Path) -> None:
    build_local(tmp_path, [source_of("a", [1])]).close()
    rewrite_header(tmp_path, lambda content: {**content, "format": FILES_FORMAT + 1})
    assert open_index(tmp_path, BINDING, runtime=Runtime()).refusal == Refusal.DAMAGED
    with build_local(tmp_path, [source_of("a", [1])]) as index:
        assert rows_of(index, [1]) == [[("a", 0)]]


def rewrite_version(depot: IndexDepot, folder: Path, edit: Callable[[dict], dict]) -> None:
    (path,) = (folder / "shared" / "versions").iterdir()
    body = edit(json.loads(path.read_bytes().partition(b"\n")[2]))
    text = json.dumps(body).encode()

    path.write_bytes(hashlib.sha256(text).hexdigest().encode() + b"\n" + text)


def test_shared_index_of_format_2_is_read_as_it_is(tmp_path: Path) -> None:
    sources = [source_of("f0", list(range(60))), source_of("b", [7])]
    build_shared_in(tmp_path, sources, shards=3).close()

    def edit(body: dict) -> dict:

        gone = base64.b64encode(BitMap([1]).serialize()).decode()
        return {**as_format_2(body), "gone_files": gone}

    rewrite_version(depot_in(tmp_path), tmp_path, edit)
    index = reopen_shared(tmp_path, "b")
    assert BitMap64.deserialize(index.version.gone_files) == BitMap64([1])
    assert rows_of(index, list(range(60))) == [[("f0", key)] for key in range(60)]
    index.apply(index.prepare(rows_put(1, range(60, 120))), binding_at(3))
    index.close()
    index = reopen_shared(tmp_path, "c")
    check_grown(index, 2)
    index.close()


@pytest.mark.parametrize("bits", [None, 36], ids=["earlier", "other-bits"])
def test_build_that_a_release_of_other_bits_began_is_not_continued(
    tmp_path: Path, bits: int | None
) -> None:
    def kill(_: str) -> None:
        raise Killed

    runtime = Runtime(fail_points=FailPoints(armed={"index.build.before_current": kill}))
    with pytest.raises(Killed):
        build_local(tmp_path, [source_of("a", [1, 2])], runtime=runtime)
    plan = tmp_path / "build" / "PLAN"
    content = json.loads(plan.read_text())
    first = content["generation"]
    content["position_bits"] = bits
    if bits is None:
        del content["position_bits"], content["shard_rows"]
    plan.write_text(json.dumps(content))
    with build_local(tmp_path, [source_of("a", [1, 2])]) as index:
        assert first not in index.generation.name
        assert rows_of(index, [1, 2]) == [[("a", 0)], [("a", 1)]]


# -- rows of other bits --------------------------------------------------------------------------


def write_as_before(
    path: Path, rows: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run as releases wrote it whose words had 36 bits of position, with one tombstone."""
    with monkeypatch.context() as patch:
        patch.setattr(run_format, "POSITION_BITS", 36)
        patch.setattr(run_format, "_POSITION_MASK", np.uint64((1 << 36) - 1))
        words = np.array([file << 36 | position for file, position in rows], dtype=np.uint64)
        keys = np.arange(len(rows) + 1, dtype=">u8").view(np.uint8).reshape(-1, 8)
        with run_module.RunWriter(path, "a") as writer:
            writer.add(keys[:1], np.array([TOMBSTONE]))
            writer.add(keys[1:], words)


def read_back(path: Path) -> list[int]:
    run = Run(path, "a")
    return [row for section in run.sections for row in run.between(section, b"", None)[1].tolist()]


def test_runs_of_the_releases_before_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(0, 0), ((1 << 27) - 1, (1 << POSITION_BITS) - 1), (5, 77)]
    write_as_before(tmp_path / "a.run", rows, monkeypatch)
    expected = [file << POSITION_BITS | position for file, position in rows]
    assert read_back(tmp_path / "a.run") == [int(TOMBSTONE), *expected]


def test_row_that_only_the_releases_before_took_is_damage_and_no_other_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_as_before(tmp_path / "a.run", [(0, 1), (3, 1 << POSITION_BITS)], monkeypatch)
    with pytest.raises(IndexDamagedError, match="position"):
        read_back(tmp_path / "a.run")


def test_ids_beyond_ten_billion_files_are_given_and_found(tmp_path: Path) -> None:
    last = FILE_ID_LIMIT - 1
    assert last > 10**10
    build_local(tmp_path, [source_of("f0", [1])]).close()
    rewrite_header(tmp_path, lambda content: {**content, "next_file_id": last})
    with reopen(tmp_path) as index:
        changes = IndexChanges(added_files=(file_of("x"),), put=(entries_of([(2, 0, 7)]),))
        index.apply(index.prepare(changes), binding_at(2))
        assert index.file_ids(["x", "f0"]) == {"x": last, "f0": 0}
    with reopen(tmp_path) as index:
        assert rows_of(index, [1, 2]) == [[("f0", 0)], [("x", 7)]]
        assert {file_id: file.file_path for file_id, file in index.files().items()} == {
            0: "f0",
            last: "x",
        }
        with pytest.raises(IndexDamagedError, match="used up its file ids"):
            index.prepare(IndexChanges(added_files=(file_of("y"),)))
        index.apply(index.prepare(IndexChanges(dropped_files=("x",))), binding_at(3))
        assert rows_of(index, [1, 2]) == [[("f0", 0)], []]
    assert open_index(tmp_path, BINDING, runtime=Runtime()).refusal == Refusal.DAMAGED


@pytest.mark.parametrize("file_id", [0, (1 << 31) - 1, 1 << 31, FILE_ID_LIMIT - 1])
def test_dictionary_finds_ids_of_both_widths(file_id: int, tmp_path: Path) -> None:
    changes = file_changes((), [(file_id, file_of("a"))])
    shard = Shard.create(tmp_path / "d", open_cache(0))
    write_sst(tmp_path / "x.sst", [(changes.keys, changes.values)], {})
    shard.ingest(tmp_path / "x.sst")
    dictionary = FileDictionary(shard)
    assert dictionary.by_paths(["a", "b"]) == {"a": file_id}
    assert dictionary.by_ids([file_id, 3]) == {file_id: file_of("a")}
    assert dictionary.all() == {file_id: file_of("a")}
    shard.close()


# -- open files ----------------------------------------------------------------------------------


def test_runs_are_read_with_fewer_open_files_than_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with build_local(tmp_path, shards=1, shard_rows=SHARD_ROWS) as index:
        grow(index, 0, 6)
    monkeypatch.setattr(run_module._open_files, "_bound", 2)
    with reopen(tmp_path) as index:
        assert index.shard_count > 4
        check_grown(index, 6)
        assert run_module._open_files.used <= 2
