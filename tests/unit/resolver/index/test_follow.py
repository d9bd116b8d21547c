from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from resolver.index.base import IndexChanges
from resolver.index.follow import (
    ChangedVector,
    RowsToPut,
    changes_to_follow,
    table_difference,
)
from tableformat.errors import CorruptDataError
from tableformat.spec.data_file import DataFile, EntryStatus, FileContent, ManifestEntry
from tableformat.spec.manifest_file import ManifestContent, ManifestFile
from tests.support.index_builder import (
    KEY,
    binding_at,
    build_local,
    file_of,
    keys_of,
    rows_of,
    source_of,
)


def entry(
    path: str,
    *,
    content: FileContent = FileContent.DATA,
    file_format: str = "PARQUET",
    rows: int = 10,
    status: EntryStatus = EntryStatus.ADDED,
    refers_to: str | None = None,
    offset: int | None = None,
) -> ManifestEntry:
    file = DataFile(
        content=content,
        file_path=path,
        file_format=file_format,
        spec_id=0,
        partition=(),
        record_count=rows,
        file_size_in_bytes=1,
        referenced_data_file=refers_to,
        content_offset=offset,
        content_size_in_bytes=None if offset is None else 40,
    )
    return ManifestEntry(
        status=status, snapshot_id=1, sequence_number=1, file_sequence_number=1, data_file=file
    )


def vector(data_file: str, rows: int, path: str = "p.puffin", offset: int = 4) -> ManifestEntry:
    return entry(
        path,
        content=FileContent.POSITION_DELETES,
        file_format="puffin",
        rows=rows,
        refers_to=data_file,
        offset=offset,
    )


def manifest(path: str) -> ManifestFile:
    return ManifestFile(
        manifest_path=path,
        manifest_length=1,
        partition_spec_id=0,
        content=ManifestContent.DATA,
        sequence_number=1,
        min_sequence_number=1,
        added_snapshot_id=1,
        added_files_count=1,
        existing_files_count=0,
        deleted_files_count=0,
        added_rows_count=1,
        existing_rows_count=0,
        deleted_rows_count=0,
    )


def test_files_that_only_moved_between_manifests_are_no_difference() -> None:
    entries = [entry("a"), vector("a", 3)]
    difference = table_difference(entries, entries, is_forward=True)
    assert difference == table_difference([], [], is_forward=True)


def test_added_and_dropped_files_are_found_whatever_the_status_of_other_entries() -> None:
    old = [entry("a"), entry("b"), entry("x", status=EntryStatus.DELETED)]
    new = [entry("b", status=EntryStatus.DELETED), entry("c", rows=7), entry("a")]
    difference = table_difference(old, new, is_forward=True)
    assert [e.data_file.file_path for e in difference.added] == ["c"]
    assert difference.dropped == ("b",)
    assert difference.added_rows == 7
    assert difference.rebuild is None


def test_vector_that_grew_going_forward_is_not_read() -> None:
    old = [entry("a"), vector("a", 3)]
    new = [entry("a"), vector("a", 5, "q.puffin")]
    assert table_difference(old, new, is_forward=True).vectors == ()


def test_vectors_in_one_puffin_are_told_apart_by_offset() -> None:
    old = [vector("a", 3, offset=4), vector("b", 3, offset=44)]
    new = [vector("a", 3, offset=44), vector("b", 3, offset=44)]
    (changed,) = table_difference(old, new, is_forward=False).vectors
    assert changed.data_file_path == "a"


@pytest.mark.parametrize("rows", [2, 3])
def test_vector_that_may_have_shrunk_is_compared(rows: int) -> None:
    before, after = vector("a", 3), vector("a", rows, "q.puffin")
    difference = table_difference([entry("a"), before], [entry("a"), after], is_forward=True)
    assert difference.vectors == (ChangedVector("a", before.data_file, after.data_file),)


def test_vector_that_vanished_is_compared() -> None:
    before = vector("a", 3)
    difference = table_difference([before], [], is_forward=True)
    assert difference.vectors == (ChangedVector("a", before.data_file, None),)


def test_every_changed_vector_is_compared_when_the_history_was_not_continued() -> None:
    before, after = vector("a", 3), vector("a", 9, "q.puffin")
    difference = table_difference([before], [after], is_forward=False)
    assert difference.vectors == (ChangedVector("a", before.data_file, after.data_file),)


def test_vector_of_a_dropped_file_is_not_compared() -> None:
    difference = table_difference([entry("a"), vector("a", 3)], [], is_forward=False)
    assert (difference.dropped, difference.vectors) == (("a",), ())


@pytest.mark.parametrize("content", [FileContent.POSITION_DELETES, FileContent.EQUALITY_DELETES])
def test_lost_delete_file_needs_a_rebuild_unless_going_forward(content: FileContent) -> None:
    old = [entry("a"), entry("d.parquet", content=content)]
    new = [entry("a")]
    assert table_difference(old, new, is_forward=True).rebuild is None
    rebuild = table_difference(old, new, is_forward=False).rebuild
    assert rebuild is not None
    assert "d.parquet" in rebuild
    assert table_difference(old, old, is_forward=False).rebuild is None


def test_followed_index_has_the_rows_of_the_newer_snapshot(tmp_path: Path) -> None:
    old = [source_of("a", [1, 2, 3]), source_of("b", [4, 5])]
    with build_local(tmp_path, old, shards=2) as index:
        # b was compacted into c with a new row; row 1 of a, which an index change had removed,
        # is alive again.

        removed = IndexChanges(removed_keys=(keys_of([2]),))
        index.apply(index.prepare(removed), binding_at(2))
        rows = [
            RowsToPut(file_of("c"), source_of("c", [5, 6, 4]).read),
            RowsToPut(file_of("a"), source_of("a", [2], first=1).read),
        ]
        changes = changes_to_follow(["b"], rows, KEY)
        index.apply(index.prepare(changes), binding_at(3))
        assert rows_of(index, [1, 2, 3, 4, 5, 6]) == [
            [("a", 0)], [("a", 1)], [("a", 2)], [("c", 2)], [("c", 0)], [("c", 1)],
        ]  # fmt: skip
        assert index.binding == binding_at(3)


def test_damaged_data_file_stops_following_and_changes_nothing(tmp_path: Path) -> None:
    def read() -> Iterator[pa.RecordBatch]:
        yield from source_of("c", [1, 9]).read()
        raise CorruptDataError("cut", location="c")

    with build_local(tmp_path, [source_of("a", [1])]) as index:
        changes = changes_to_follow(["a"], [RowsToPut(file_of("c"), read)], KEY)
        with pytest.raises(CorruptDataError, match="cut"):
            index.prepare(changes)
        assert rows_of(index, [1, 9]) == [[("a", 0)], []]
