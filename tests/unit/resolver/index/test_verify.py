from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from resolver.index import verify
from resolver.index.base import IndexChanges, PrimaryKeyIndex
from resolver.index.verify import Fault, FileRows, VerifyReport, verify_index
from tests.support.index_builder import (
    binding_at,
    build_local,
    entries_of,
    file_of,
    keys_of,
    source_of,
)

Table = dict[str, dict[int, int | None]]  # path -> position -> key


def scan_of(table: Table) -> Callable[[frozenset[str] | None], Iterator[FileRows]]:
    def scan(paths: frozenset[str] | None) -> Iterator[FileRows]:
        for path, rows in table.items():
            if paths is not None and path not in paths:
                continue
            positions = np.array(list(rows), dtype=np.int64)
            for part in np.array_split(positions, 2):  # a file comes in several batches
                yield FileRows(path, keys_of(rows[p] for p in part.tolist()), part)

    return scan


def check(index: PrimaryKeyIndex, table: Table, deleted: dict[str, list[int]]) -> VerifyReport:
    asked: list[str] = []

    def deleted_positions(path: str) -> np.ndarray | None:
        assert path not in asked
        asked.append(path)
        return np.array(deleted[path], dtype=np.int64) if path in deleted else None

    return verify_index(index, scan_of(table), deleted_positions)


@pytest.fixture
def index(tmp_path: Path) -> Iterator[PrimaryKeyIndex]:
    sources = [source_of("a", [1, 2, None, 4, 1]), source_of("b", [10, 11, 12])]
    with build_local(tmp_path, sources, shards=2) as made:
        yield made


def table() -> Table:
    return {"a": dict(enumerate([1, 2, None, 4, 1])), "b": dict(enumerate([10, 11, 12]))}


def hex_of(key: int | None) -> str:
    return keys_of([key]).to_list()[0].hex()


def test_index_that_equals_the_table_is_sound(index: PrimaryKeyIndex) -> None:
    report = check(index, table(), {})
    assert report == VerifyReport(
        live_rows=8, index_rows=8, deleted_rows=0, differing_files=0, missing=0, extra=0,
        missing_examples=(), extra_examples=(),
    )  # fmt: skip
    assert report.is_sound


def test_entries_of_deleted_rows_are_counted_and_harmless(index: PrimaryKeyIndex) -> None:
    live = table()
    del live["a"][1], live["a"][4], live["b"][0]
    report = check(index, live, {"a": [1, 4], "b": [0]})
    assert report.is_sound
    assert (report.live_rows, report.index_rows, report.deleted_rows) == (5, 5, 3)


def test_missing_row_is_found(index: PrimaryKeyIndex) -> None:
    live = table()
    live["b"][3] = 13
    live["c"] = {0: 20}
    report = check(index, live, {})
    assert not report.is_sound
    assert (report.differing_files, report.missing, report.extra) == (2, 2, 0)
    assert report.missing_examples == (Fault("b", 3, hex_of(13)), Fault("c", 0, hex_of(20)))


def test_extra_entry_is_found(index: PrimaryKeyIndex) -> None:
    live = table()
    del live["a"][2]
    report = check(index, live, {"a": [1]})  # 1 is said to be deleted and alive: missing as well
    assert (report.missing, report.extra) == (1, 1)
    assert report.extra_examples == (Fault("a", 2, hex_of(None)),)
    assert report.missing_examples == (Fault("a", 1, hex_of(2)),)


def test_row_under_another_key_or_position_is_found(index: PrimaryKeyIndex) -> None:
    live = table()
    live["b"] = {0: 11, 1: 10, 2: 12}
    report = check(index, live, {})
    assert (report.differing_files, report.missing, report.extra) == (1, 2, 2)


def test_entries_of_a_file_that_is_not_in_the_table_are_found(index: PrimaryKeyIndex) -> None:
    changes = IndexChanges(added_files=(file_of("z"),), put=(entries_of([(99, 0, 0)]),))
    index.apply(index.prepare(changes), binding_at(2))
    report = check(index, table(), {})
    assert report.extra_examples == (Fault("z", 0, hex_of(99)),)


def test_only_some_files_of_a_hopeless_index_are_compared_row_by_row(
    index: PrimaryKeyIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify, "COMPARED_ROWS_MAX", 2)
    monkeypatch.setattr(verify, "EXAMPLES_MAX", 2)
    report = check(index, {"y": {i: i for i in range(9)}}, {})
    assert report.differing_files == 3
    assert (report.missing, report.extra) == (0, 5)
    assert len(report.extra_examples) == 2
