"""What becomes of a compaction's new files when nobody knows whether its commit has landed."""

from __future__ import annotations

import pyarrow as pa
import pytest

import tableformat as tf
from maintenance.tasks.compact import compact
from maintenance.tasks.options import CompactOptions
from tableformat.errors import CommitUnknownError

SCHEMA = pa.schema([("id", pa.int64())])


def rows(*keys):
    return pa.table({"id": pa.array(keys, pa.int64())})


@pytest.mark.parametrize("partial", [True, False], ids=["group by group", "together"])
def test_unknown_outcome_deletes_no_new_file(tmp_path, partial):
    """I10, R56: the request may still land, and its snapshot needs them."""
    catalog = tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"))
    table = catalog.create_table("t.rows", SCHEMA, primary_key=["id"])
    table.set_properties({"commit.status-check.num-retries": "0"})
    table.append(rows(1, 2))
    table.append(rows(3))
    points, store = table.environment.runtime.fail_points, table.environment.store

    def data():
        return {
            each.location for each in store.list_prefix(f"{table.state.metadata.location}/data")
        }

    before = data()

    def lose(_name):
        raise CommitUnknownError("the answer was lost")

    points.armed["catalog.before_swap"] = lose
    with pytest.raises(CommitUnknownError):
        compact(table, CompactOptions(rewrite_all=True, partial_progress=partial))
    assert len(data() - before) == 1
    points.armed.clear()
    compact(table, CompactOptions(rewrite_all=True))
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [1, 2, 3]
