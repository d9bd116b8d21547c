"""The metadata views say what PyIceberg's inspection of the same tables says."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

from tests.support.interop_tables import CASES, InteropCase

NAMES = [build.__name__ for build in CASES]


def plain(value: Any) -> Any:
    """Maps and tuples compare as sets of pairs; NULL and empty statistics mean the same."""
    if isinstance(value, list):
        return sorted(map(repr, value)) or None
    return value


def rows(table: pa.Table, columns: list[str], key: str) -> dict[Any, tuple[Any, ...]]:
    return {
        row[key]: tuple(plain(row[name]) for name in columns)
        for row in table.select([*dict.fromkeys([*columns, key])]).to_pylist()
    }


@pytest.mark.parametrize("case", NAMES, indirect=True)
def test_views_agree_with_pyiceberg(case: InteropCase) -> None:
    theirs = StaticTable.from_metadata(case.table.metadata_location).inspect
    mine = case.table.inspect
    compare(mine.refs(), theirs.refs(), "name")
    compare(mine.history(), theirs.history(), "snapshot_id")
    compare(mine.snapshots(), theirs.snapshots(), "snapshot_id", without=("summary",))
    log = theirs.metadata_log_entries()
    assert mine.metadata_log()["file"].to_pylist() == log["file"].to_pylist()
    if case.snapshot_id is None:
        assert mine.files().num_rows == mine.entries().num_rows == mine.manifests().num_rows == 0
        return
    at = {"snapshot_id": case.snapshot_id}
    files = mine.files(**at)
    data = mine.data_files(**at)
    compare(data, theirs.data_files(case.snapshot_id), "file_path", without=("readable_metrics",))
    assert files.num_rows == data.num_rows + mine.delete_files(**at).num_rows
    assert files.num_rows == theirs.files(case.snapshot_id).num_rows
    assert mine.vectors(**at).num_rows == sum(
        row["content"] == 1 and row["file_format"] == "PUFFIN" for row in files.to_pylist()
    )
    listed = [row["data_file"] for row in mine.entries(**at).to_pylist() if row["status"] != 2]
    assert listed == files.to_pylist()
    if not mine.delete_files(**at).num_rows:  # PyIceberg's view fails at deletion vectors
        compare(
            mine.entries(**at).flatten(),
            theirs.entries(case.snapshot_id).flatten(),
            "data_file.file_path",
            without=("readable_metrics",),
        )
    mine_rows, their_rows = (
        sorted((row["record_count"], row["file_count"]) for row in view.to_pylist())
        for view in (mine.partitions(**at), theirs.partitions(case.snapshot_id))
    )
    assert mine_rows == their_rows
    if case.is_main:
        compare(mine.manifests(), theirs.manifests(), "path", without=("partition_summaries",))


def compare(mine: pa.Table, theirs: pa.Table, key: str, without: tuple[str, ...] = ()) -> None:
    """Every column that both have."""
    shared = [n for n in theirs.column_names if n in mine.column_names and n not in without]
    assert key in shared
    unknown = set(theirs.column_names) - set(mine.column_names)
    assert all(name.startswith("readable_metrics") for name in unknown)
    dates = [n for n in shared if pa.types.is_timestamp(mine.schema.field(n).type)]
    for name in dates:  # PyIceberg has them without a zone
        at = mine.column_names.index(name)
        mine = mine.set_column(at, name, mine[name].cast(theirs.schema.field(name).type))
    assert rows(mine, shared, key) == rows(theirs, shared, key)
