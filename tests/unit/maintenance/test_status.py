"""What `status` says of an index, wherever it is kept."""

import pyarrow as pa
import pytest

import tableformat as tf
from maintenance import read_status
from maintenance.cli.status import _lines
from resolver import resolve

SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string())])


def rows(*ids):
    return pa.table({"id": list(ids), "note": ["x"] * len(ids)}, schema=SCHEMA)


@pytest.fixture(params=["local", "shared"])
def table(request, tmp_path):
    properties = {"index-cache-directory": str(tmp_path / "cache")}
    if request.param == "shared":
        properties["index-location"] = f"file://{tmp_path}/warehouse/indexes"
    catalog = tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"), **properties)
    table = catalog.create_table("t.rows", SCHEMA, primary_key=["id"])
    table.append(rows(1, 2))
    return table


def test_status_says_where_the_index_stands(table):
    assert read_status(table).index.state == "missing"
    table.stage(upserts=rows(2, 3))
    resolve(table)
    index = read_status(table).index
    assert (index.state, index.behind_commits) == ("current", 0)
    assert index.snapshot_id == table.state.head("main").snapshot_id
    assert index.size_bytes > 0
    table.append(rows(4))
    index = read_status(table).index
    assert (index.state, index.behind_commits) == ("behind", 1)


def test_damaged_version_of_a_shared_index_is_said(table, tmp_path):
    table.stage(upserts=rows(2, 3))
    resolve(table)
    versions = list(tmp_path.rglob("versions/*.json"))
    for version in versions:
        version.write_text("nonsense")
    assert read_status(table).index.state == ("unreadable" if versions else "current")


def test_status_says_before_when_nothing_is_published(table):
    """The pause after a publish is a time for other engines' row-level statements."""
    table.stage(upserts=rows(2, 3))
    resolve(table)
    assert read_status(table).next_publish_ms is None
    table.set_properties({"icefold.maintain.resolve.min-interval-ms": "60000"})
    published = table.refresh().state.head("main").timestamp_ms
    assert read_status(table).next_publish_ms == published + 60_000
    assert "next publish" in dict(_lines(read_status(table)))
    table.set_properties({"icefold.maintain.resolve.min-interval-ms": "1"})
    assert read_status(table).next_publish_ms is None
    assert "next publish" not in dict(_lines(read_status(table)))
