"""Building: content, bounded memory, resuming, and the folder around it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StringType

from resolver.index.base import IndexBinding, IndexChanges
from resolver.index.build import (
    BuildOptions,
    BuildProgress,
    SourceFile,
    build_index,
)
from resolver.index.open import Refusal, open_index
from resolver.index.shard_map import default_shard_count
from resolver.keys import KeySchema, encode_keys
from tableformat.errors import CorruptDataError, InvalidInputError, StoreUnavailableError
from tableformat.runtime import FailPoints, Runtime
from tests.support.index_builder import (
    BINDING,
    KEY,
    binding_at,
    build_local,
    content_of,
    file_of,
    keys_of,
    rows_of,
    source_of,
)


class Killed(BaseException):
    """Not an Exception: nothing may handle it."""


def expected_content(sources: list[tuple[str, list[int | None]]]) -> dict[bytes, set]:
    content: dict[bytes, set] = {}
    for path, keys in sources:
        for position, key in enumerate(keys_of(keys).to_list()):
            content.setdefault(key, set()).add((path, position))
    return content


@pytest.mark.parametrize("shards", [1, 4])
def test_built_index_has_every_row_of_every_file(shards: int, tmp_path: Path) -> None:
    files = [
        ("a", [5, 3, None, 5, -(2**63), 2**63 - 1]),
        ("b", [3, 3, 3]),
        ("empty", []),
        ("c", [None, 7]),
    ]
    with build_local(tmp_path, [source_of(*file) for file in files], shards=shards) as index:
        assert content_of(index) == expected_content(files)
        assert rows_of(index, [3]) == [[("a", 1), ("b", 0), ("b", 1), ("b", 2)]]
        assert index.binding == BINDING
        assert index.shard_count == shards


def test_positions_come_from_the_column_not_from_the_order(tmp_path: Path) -> None:
    with build_local(tmp_path, [source_of("a", [1, 2], first=10)]) as index:
        assert rows_of(index, [1, 2]) == [[("a", 10)], [("a", 11)]]


def test_shard_larger_than_memory_is_built_in_key_ranges(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    keys = [int(key) for key in generator.integers(0, 500, 3000)]
    keys[::50] = [None] * 60
    files = [(f"f{i}", keys[i::4]) for i in range(4)]
    sources = [source_of(*file) for file in files]
    with build_local(tmp_path, sources, shards=2, memory_bytes=20_000, threads=1) as index:
        assert content_of(index) == expected_content(files)


def test_text_keys_are_built_and_found(tmp_path: Path) -> None:
    schema = Schema(NestedField(1, "k", StringType()))
    key = KeySchema.of(schema, [1])
    texts = ["", "a", None, "ab", "ä" * 300, "a\0", "ab"]

    def read() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"k": pa.array(texts), "_pos": np.arange(len(texts))})

    binding = IndexBinding(
        table_uuid="u", branch="main", key_fingerprint=key.fingerprint, snapshot_id=None,
        sequence_number=0,
    )  # fmt: skip
    source = SourceFile(file_of("a"), len(texts), read)
    with build_index(tmp_path, binding, key, [source], runtime=Runtime()) as index:
        matches = index.lookup(encode_keys([pa.array([*texts[:6], "b"])], key))
        assert matches.key_ordinal.tolist() == [0, 1, 2, 3, 3, 4, 5]
        assert matches.position.tolist() == [0, 1, 2, 3, 6, 4, 5]
    opened = open_index(tmp_path, binding, runtime=Runtime())
    assert opened.index is not None
    assert opened.index.binding.snapshot_id is None
    opened.index.close()


def test_rebuild_replaces_the_older_generation(tmp_path: Path) -> None:
    build_local(tmp_path, [source_of("a", [1, 2])]).close()
    before = sorted(path.name for path in tmp_path.iterdir())
    with build_local(tmp_path, [source_of("b", [2])], binding=binding_at(5)) as index:
        assert rows_of(index, [1, 2]) == [[], [("b", 0)]]
        assert index.binding == binding_at(5)
    after = sorted(path.name for path in tmp_path.iterdir())
    assert len(after) == len(before) == 3  # LOCK, CURRENT and one generation
    assert after != before


def test_failing_rebuild_leaves_the_older_generation_usable(tmp_path: Path) -> None:
    build_local(tmp_path, [source_of("a", [1])]).close()

    def read() -> Iterator[pa.RecordBatch]:
        raise CorruptDataError("cut data file", location="b")
        yield

    with pytest.raises(CorruptDataError, match="cut data file"):
        build_local(tmp_path, [SourceFile(file_of("b"), 1, read)], binding=binding_at(5))
    opened = open_index(tmp_path, BINDING, runtime=Runtime())
    assert opened.index is not None
    assert rows_of(opened.index, [1]) == [[("a", 0)]]
    opened.index.close()


@pytest.mark.parametrize(
    ("point", "hit", "read_again"),
    [
        ("index.build.file", 1, {"f0", "f1", "f2", "f3"}),
        ("index.build.file", 3, {"f2", "f3"}),
        ("index.build.shard", 1, set()),
        ("index.build.shard", 2, set()),
        ("index.build.before_current", 1, set()),
    ],
)
def test_interrupted_build_goes_on_where_it_stopped(
    point: str, hit: int, read_again: set[str], tmp_path: Path
) -> None:
    files = [(f"f{i}", [i, i + 1, 77]) for i in range(4)]
    read: set[str] = set()
    passed = 0

    def count(_: str) -> None:
        nonlocal passed
        passed += 1
        if passed == hit:
            raise Killed

    def tracked(path: str, keys: list[int | None]) -> SourceFile:
        source = source_of(path, keys)

        def read_file() -> Iterator[pa.RecordBatch]:
            read.add(path)
            return source.read()

        return SourceFile(source.file, source.record_count, read_file)

    sources = [tracked(*file) for file in files]
    with pytest.raises(Killed):
        build_local(
            tmp_path, sources, shards=3, threads=1,
            runtime=Runtime(fail_points=FailPoints(armed={point: count})),
        )  # fmt: skip
    assert open_index(tmp_path, BINDING, runtime=Runtime()).refusal == Refusal.MISSING
    read.clear()
    with build_local(tmp_path, sources, shards=5, threads=1) as index:
        assert index.shard_count == 3, "the plan of the first attempt holds"
        assert content_of(index) == expected_content(files)
        assert len(index.files()) == 4
        index.apply(index.prepare(IndexChanges(added_files=(file_of("g"),))), binding_at(2))
        assert len(index.files()) == 5, "a new file got an id of its own"
    assert read == read_again


def test_build_killed_after_current_was_replaced_is_complete(tmp_path: Path) -> None:
    def stop(_: str) -> None:
        raise Killed

    runtime = Runtime(fail_points=FailPoints(armed={"index.build.after_current": stop}))
    with pytest.raises(Killed):
        build_local(tmp_path, [source_of("a", [1])], runtime=runtime)
    opened = open_index(tmp_path, BINDING, runtime=Runtime())
    assert opened.index is not None
    assert rows_of(opened.index, [1]) == [[("a", 0)]]
    opened.index.close()
    with build_local(tmp_path, [source_of("a", [1])]) as index:
        assert rows_of(index, [1]) == [[("a", 0)]]


def test_build_for_another_snapshot_does_not_resume(tmp_path: Path) -> None:
    def stop(_: str) -> None:
        raise Killed

    runtime = Runtime(fail_points=FailPoints(armed={"index.build.before_current": stop}))
    with pytest.raises(Killed):
        build_local(tmp_path, [source_of("a", [1])], runtime=runtime)
    with build_local(tmp_path, [source_of("a", [2])], binding=binding_at(9)) as index:
        assert rows_of(index, [1, 2]) == [[], [("a", 0)]]


def test_scratch_files_that_lost_rows_are_found(tmp_path: Path) -> None:
    def stop(_: str) -> None:
        raise Killed

    runtime = Runtime(fail_points=FailPoints(armed={"index.build.shard": stop}))
    sources = [source_of(f"f{i}", list(range(i, i + 50))) for i in range(3)]
    with pytest.raises(Killed):
        build_local(tmp_path, sources, shards=2, threads=1, runtime=runtime)
    for path in (tmp_path / "build" / "spill").glob("shard-0001*"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(CorruptDataError, match="lost rows"):
        build_local(tmp_path, sources, shards=2)
    with build_local(tmp_path, sources, shards=2) as index:
        assert sum(map(len, content_of(index).values())) == 150


@pytest.mark.parametrize("left", ["", None], ids=["empty", "missing"])
def test_shard_whose_counter_was_lost_is_written_again(tmp_path: Path, left: str | None) -> None:
    """After a loss of power a name may be there and what was written under it not."""

    def stop(_: str) -> None:
        raise Killed

    runtime = Runtime(fail_points=FailPoints(armed={"index.build.shard": stop}))
    files: list[tuple[str, list[int | None]]] = [(f"f{i}", [i, i + 50, 9]) for i in range(3)]
    with pytest.raises(Killed):
        build_local(tmp_path, [source_of(*f) for f in files], shards=2, threads=1, runtime=runtime)
    (counter,) = (tmp_path / "build" / "index").glob("shard-*.rows")
    counter.unlink() if left is None else counter.write_text(left)
    with build_local(tmp_path, [source_of(*file) for file in files], shards=2) as index:
        assert content_of(index) == expected_content(files)


def test_log_line_cut_by_a_crash_is_read_again(tmp_path: Path) -> None:
    def stop(_: str) -> None:
        raise Killed

    runtime = Runtime(fail_points=FailPoints(armed={"index.build.before_current": stop}))
    files = [(f"f{i}", [i, 9]) for i in range(3)]
    with pytest.raises(Killed):
        build_local(tmp_path, [source_of(*file) for file in files], runtime=runtime)
    log = tmp_path / "build" / "LOG"
    log.write_text(log.read_text()[:-4])
    for shard in (tmp_path / "build" / "index").glob("shard-*"):
        shard.rename(tmp_path / "build" / "gone") if shard.is_dir() else shard.unlink()
    with build_local(tmp_path, [source_of(*file) for file in files]) as index:
        assert content_of(index) == expected_content(files)


def test_progress_reaches_its_totals(tmp_path: Path) -> None:
    seen: list[BuildProgress] = []
    sources = [source_of("a", [1, 2, 3]), source_of("b", [4])]
    build_index(
        tmp_path, BINDING, KEY, sources, runtime=Runtime(),
        options=BuildOptions(shard_count=2), progress=seen.append,
    ).close()  # fmt: skip
    assert [step.rows_done for step in seen] == sorted(step.rows_done for step in seen)
    assert seen[0] == BuildProgress("read", 0, 4, 0, 2)
    assert seen[-1] == BuildProgress("write", 4, 4, 2, 2)


def test_folder_with_foreign_content_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"precious")
    with pytest.raises(InvalidInputError, match=r"holiday\.jpg"):
        build_local(tmp_path, [source_of("a", [1])])
    assert (tmp_path / "holiday.jpg").read_bytes() == b"precious"
    assert not (tmp_path / "build").exists()


def test_build_while_the_index_is_open_is_refused(tmp_path: Path) -> None:
    with build_local(tmp_path, [source_of("a", [1])]) as index:
        with pytest.raises(StoreUnavailableError, match="in use"):
            build_local(tmp_path, [source_of("a", [1])])
        assert rows_of(index, [1]) == [[("a", 0)]]


def test_binding_of_another_key_is_refused(tmp_path: Path) -> None:
    other = KeySchema.of(Schema(NestedField(1, "k", StringType())), [1])
    with pytest.raises(InvalidInputError, match="key"):
        build_index(tmp_path, BINDING, other, [], runtime=Runtime())


def test_file_in_the_way_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "index").write_text("a file")
    with pytest.raises(StoreUnavailableError):
        build_local(tmp_path / "index", [])


def test_one_key_larger_than_memory_is_one_range(tmp_path: Path) -> None:
    sources = [source_of("a", [7] * 900), source_of("b", [6, 8])]
    with build_local(tmp_path, sources, memory_bytes=1000) as index:
        rows = rows_of(index, [6, 7, 8])
        assert rows == [[("b", 0)], [("a", i) for i in range(900)], [("b", 1)]]


@pytest.mark.parametrize(
    ("millions", "shards"),
    [
        (0, 1),
        (2, 1),
        (3, 2),
        (10, 5),
        (60, 8),
        (100, 8),
        (200, 16),
        (1_000, 80),
        (1_000_000, 80_000),
    ],
)
def test_default_shard_count_follows_the_rows(millions: int, shards: int) -> None:
    assert default_shard_count(millions * 1_000_000) == shards


def test_no_thread_is_left_behind(tmp_path: Path) -> None:
    before = threading.active_count()
    build_local(tmp_path, [source_of("a", [1])], shards=3).close()
    assert threading.active_count() == before
