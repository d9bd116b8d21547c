"""UUIDs in files of Apache Iceberg's own library, which orders them as signed numbers."""

from __future__ import annotations

import pyarrow as pa
import pytest

from resolver import resolve

pytestmark = [pytest.mark.interop, pytest.mark.spark]

KEYS = [f"{first:02x}000000-0000-4000-8000-000000000000" for first in range(0, 256, 4)]


def test_uuids_in_sorted_row_groups_of_java_are_found_and_deleted(shared) -> None:
    """Its bounds over several row groups are signed ones of unsigned ones: they hide rows."""
    shared.sql(
        "CREATE TABLE T (v string) USING iceberg TBLPROPERTIES ('format-version'='3', "
        "'write.parquet.row-group-size-bytes'='1', "
        "'write.parquet.row-group-check-min-record-count'='16')"
    )
    shared.java.request(
        "core",
        table=shared.java_name,
        commits=[
            [
                ["updateSchema"],
                ["allowIncompatibleChanges"],
                ["addRequiredColumn", "u", {"type": "uuid"}],
                ["setIdentifierFields", {"names": ["u"]}],
                ["commit"],
            ]
        ],
        in_transaction=False,
    )
    field = shared.load().schema().find_field("u")
    values = ", ".join(f"('old', '{key}')" for key in KEYS)
    shared.sql(f"INSERT INTO T SELECT /*+ COALESCE(1) */ * FROM VALUES {values}")
    table = shared.load()
    [file] = table.inspect.files().to_pylist()
    assert len(file["split_offsets"]) > 1
    found = [table.scan(filter=f"u = '{key}'").to_arrow().num_rows for key in KEYS]
    assert found == [1] * len(KEYS)
    # Read with equality deletes, and resolved in place.
    rows = [{str(field.field_id): key} for key in KEYS[:4] + KEYS[-4:]]
    deletes = {"equality": {"rows": rows, "format": "parquet", "ids": [field.field_id]}}
    shared.java.request(
        "core",
        table=shared.java_name,
        commits=[[["newRowDelta"], ["addDeletes", deletes], ["commit"]]],
        in_transaction=False,
    )
    assert keys(table.refresh()) == KEYS[4:-4]
    table.stage(deletes=pa.table({"u": KEYS[::2]}))
    resolve(table)
    assert keys(table.refresh()) == KEYS[4:-4][1::2]


def keys(table) -> list[str]:
    return sorted(map(str, table.scan(columns=["u"]).to_arrow()["u"].to_pylist()))
