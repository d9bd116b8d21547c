"""A tool commits equality deletes to the target itself while a cycle of a staging branch runs.

The rows that they reach are dead: nothing of the batch takes their ids, their values or their place
in a sequence.
"""

import pyarrow as pa
import pytest

from resolver import resolve
from tests.support.interruptions import interrupt
from tests.support.staged_tables import StagedTable

POINTS = ["resolve.after_plan", "resolve.after_match"]


@pytest.fixture(params=["id", "note"])
def columns(request):
    """Of the deletes on the target: the key, or another set of columns."""
    return [request.param]


def published_beside(staged, point, columns):
    """Resolve; at the point somebody deletes the row of key 4 on `main`, by key or by its note."""
    row = staged.rows((4, "eu", "old")).select(columns)
    interrupt(
        staged.table,
        point,
        lambda: staged.commit(branch="main", deletes=staged.equality_deletes(row, columns)),
    )
    resolve(staged.table)
    return staged.table.refresh()


@pytest.mark.parametrize("point", POINTS)
def test_row_that_was_deleted_meanwhile_does_not_give_its_id(tmp_path, point, columns):
    staged = StagedTable(tmp_path, properties={"icefold.publish": "rewrite"})
    staged.table.append(staged.rows((4, "eu", "old"), (5, "eu", "old"), (6, "eu", "kept")))
    staged.table.stage(upserts=staged.rows((4, "eu", "new"), (6, "eu", "new")))
    before = _ids(staged.table.refresh())
    after = _ids(published_beside(staged, point, columns))
    assert after[6] == before[6]
    assert after[4] not in before.values()


@pytest.mark.parametrize("point", POINTS)
def test_row_that_was_deleted_meanwhile_fills_no_column(tmp_path, point, columns):
    staged = StagedTable(tmp_path, properties={"icefold.on-missing-row": "null"})
    staged.table.append(staged.rows((4, "eu", "old"), (6, "eu", "kept")))
    given = pa.table({"id": pa.array([4, 6], pa.int64()), "region": ["us", "us"]})
    staged.table.stage(given, columns="partial")
    rows = published_beside(staged, point, columns).scan().to_arrow().sort_by("id").to_pylist()
    assert [tuple(row.values()) for row in rows] == [(4, "us", None), (6, "us", "kept")]


@pytest.mark.parametrize("point", POINTS)
def test_row_that_was_deleted_meanwhile_is_no_newer_version(tmp_path, point, columns):
    schema = pa.schema([("id", pa.int64()), ("version", pa.int64()), ("note", pa.string())])
    staged = StagedTable(tmp_path, schema=schema)
    staged.table.set_sequence_column("version")
    staged.table.append(staged.rows((4, 9, "old"), (6, 9, "kept")))
    staged.table.stage(upserts=staged.rows((4, 1, "new"), (6, 1, "new")))
    row = staged.rows((4, 9, "old")).select(columns)
    interrupt(
        staged.table,
        point,
        lambda: staged.commit(branch="main", deletes=staged.equality_deletes(row, columns)),
    )
    resolve(staged.table)
    rows = staged.table.refresh().scan().to_arrow().sort_by("id").to_pylist()
    assert [tuple(row.values()) for row in rows] == [(4, 1, "new"), (6, 9, "kept")]


def _ids(table):
    rows = table.scan(columns=["id", "_row_id"]).to_arrow()
    return dict(zip(rows["id"].to_pylist(), rows["_row_id"].to_pylist(), strict=True))
