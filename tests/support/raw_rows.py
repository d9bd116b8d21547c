"""The rows of a branch from the bytes of its files alone: JSON, Avro, Parquet, deletion vectors.

Shares no code with the product, so a bug that the writer and the reader have in common shows.
Columns are matched by field id. Readers of a published branch see no equality or position deletes,
so a live one there is an error here; on a v2 table position deletes are what they read.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from tableformat import Table
from tests.support.table_checker import CheckedSnapshot, LiveFile, Read, check_table, read_metadata

ROW_ID_FIELD = 2147483540
LAST_UPDATED_FIELD = 2147483539
DELETE_FIELDS = [2147483546, 2147483545]  # file_path, pos


@dataclass(frozen=True)
class RawRow:
    """One live row; `values` in the order asked for."""

    values: tuple[Any, ...]
    row_id: int | None  # v2 has none
    last_updated: int


def raw_rows(
    table: Table, columns: Sequence[str] | None = None, *, branch: str = "main"
) -> Counter[tuple[Any, ...]]:
    """Live rows with their counts; all columns of the current schema in its order, or `columns`."""
    return Counter(row.values for row in raw_identities(table, columns, branch=branch))


def raw_identities(
    table: Table, columns: Sequence[str] | None = None, *, branch: str = "main"
) -> list[RawRow]:
    """Live rows with their lineage. Checks the table's structure on the way."""
    read = table.environment.store.get
    location = table.refresh().metadata_location
    metadata = read_metadata(read, location)
    ids = _field_ids(metadata, columns)
    if branch not in metadata["refs"]:
        return []
    checked = check_table(read, location)[metadata["refs"][branch]["snapshot-id"]]
    rows = [
        row for file in checked.live if file.content == 0 for row in _rows(read, checked, file, ids)
    ]
    row_ids = Counter(row.row_id for row in rows if row.row_id is not None)
    assert max(row_ids.values(), default=1) == 1, f"row ids twice: {row_ids.most_common(3)}"
    return rows


def _field_ids(metadata: dict[str, Any], columns: Sequence[str] | None) -> list[int]:
    [schema] = [s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"]]
    by_name = {field["name"]: field["id"] for field in schema["fields"]}
    return [by_name[name] for name in (by_name if columns is None else columns)]


def _rows(read: Read, checked: CheckedSnapshot, file: LiveFile, ids: list[int]) -> list[RawRow]:
    dead = _dead_positions(read, checked, file)
    stored = pq.read_table(io.BytesIO(read(file.path)))
    assert stored.num_rows == file.record_count, file
    columns = {
        int((field.metadata or {}).get(b"PARQUET:field_id", -1)): column
        for field, column in zip(stored.schema, stored.columns, strict=True)
    }
    missing = pa.nulls(stored.num_rows)
    wanted = [columns.get(i, missing).to_pylist() for i in (*ids, ROW_ID_FIELD, LAST_UPDATED_FIELD)]
    first = file.first_row_id
    assert (first is None) == ("first-row-id" not in checked.snapshot)
    return [
        RawRow(
            values=tuple(values),
            row_id=row_id if row_id is not None or first is None else first + at,
            last_updated=file.sequence_number if updated is None else updated,
        )
        for at, (*values, row_id, updated) in enumerate(zip(*wanted, strict=True))
        if at not in dead
    ]


def _dead_positions(read: Read, checked: CheckedSnapshot, file: LiveFile) -> BitMap64:
    if "first-row-id" not in checked.snapshot:
        return _dead_by_files(read, checked, file)
    foreign = [each.path for each in checked.live if each.content != 0 and each.offset is None]
    assert not foreign, f"equality or position deletes on a published branch: {foreign}"
    vectors = [each for each in checked.live if each.referenced == file.path]
    if not vectors:
        return BitMap64()
    [vector] = vectors
    assert vector.offset is not None
    blob = read(vector.path)[vector.offset : vector.offset + vector.size]
    assert blob[4:8] == bytes([0xD1, 0xD3, 0x39, 0x64]), "not a deletion vector"
    dead = BitMap64.deserialize(blob[8:-4])
    assert len(dead) == vector.record_count
    return dead


def _dead_by_files(read: Read, checked: CheckedSnapshot, file: LiveFile) -> BitMap64:
    """By position delete files of v2 (spec: Scan Planning). Checks that they are sorted."""
    dead = BitMap64()
    for delete in (each for each in checked.live if each.content != 0):
        assert delete.content == 1, f"equality deletes on a published branch: {delete.path}"
        stored = pq.read_table(io.BytesIO(read(delete.path)))
        assert [
            int(field.metadata[b"PARQUET:field_id"]) for field in stored.schema
        ] == DELETE_FIELDS
        pairs = list(zip(*(column.to_pylist() for column in stored.columns), strict=True))
        assert len(pairs) == delete.record_count
        assert pairs == sorted(set(pairs)), f"not sorted: {delete.path}"
        assert delete.referenced is None or {path for path, _ in pairs} == {delete.referenced}
        place, own = (delete.spec_id, delete.partition), (file.spec_id, file.partition)
        if repr(place) == repr(own) and delete.sequence_number >= file.sequence_number:
            dead |= BitMap64(at for path, at in pairs if path == file.path)
    return dead
