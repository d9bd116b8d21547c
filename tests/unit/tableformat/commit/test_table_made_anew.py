"""Another table of the name: what was written for the one before is not committed to it.

Both have columns of the same types, so that a file of one would be read as one of the other, with
the values of each column in the other's.
"""

from __future__ import annotations

import pyarrow as pa
import pytest

import tableformat as tf
from maintenance import CompactOptions, compact
from resolver import resolve
from tableformat.errors import CommitConflictError
from tests.support.interruptions import interrupt

BEFORE = pa.schema([("id", pa.int64()), ("a", pa.string()), ("b", pa.string())])
AFTER = pa.schema([("id", pa.int64()), ("b", pa.string()), ("a", pa.string())])


def rows(schema, *keys):
    return pa.Table.from_pylist([{"id": key, "a": "a", "b": "b"} for key in keys], schema)


WRITERS = {
    "stage": lambda table: table.stage(rows(BEFORE, 7), pa.table({"id": [1]})),
    "append": lambda table: table.append(rows(BEFORE, 7)),
    "upsert": lambda table: table.upsert(rows(BEFORE, 7)),
    "delete": lambda table: table.delete("id = 1"),
    "resolve": resolve,
    "compact": lambda table: compact(table, CompactOptions(rewrite_all=True, input_files_min=1)),
}


@pytest.mark.parametrize("way", ["dropped", "renamed"])
@pytest.mark.parametrize("writer", WRITERS)
def test_nothing_for_a_table_is_committed_to_the_next_one_of_its_name(tmp_path, writer, way):
    catalog = tf.open_catalog("local", warehouse=str(tmp_path))
    table = catalog.create_table("t.rows", BEFORE, primary_key=["id"])
    table.append(rows(BEFORE, 1))
    table.append(rows(BEFORE, 2))
    table.stage(rows(BEFORE, 1))

    def make_anew():
        if way == "dropped":
            catalog.drop_table("t.rows")
        else:
            catalog.rename_table("t.rows", "t.former")
        catalog.create_table("t.rows", AFTER, primary_key=["id"]).append(rows(AFTER, 1, 2))

    interrupt(table, "commit.before_swap", make_anew)
    with pytest.raises(CommitConflictError, match="another one has its name"):
        WRITERS[writer](table)

    new = catalog.load_table("t.rows")
    assert new.scan().to_arrow().to_pylist() == rows(AFTER, 1, 2).to_pylist()
    assert new.state.head("staging") is None


def test_events_for_a_table_are_not_staged_to_the_next_one_of_its_name(tmp_path):
    """Before the commit begins, too, which loads the table."""
    catalog = tf.open_catalog("local", warehouse=str(tmp_path))
    table = catalog.create_table("t.rows", BEFORE, primary_key=["id"])

    def make_anew():
        catalog.drop_table("t.rows")
        catalog.create_table("t.rows", AFTER, primary_key=["id"])

    interrupt(table, "ingest.before_commit", make_anew)
    with pytest.raises(CommitConflictError, match="another one has its name"):
        table.write_changes(rows(BEFORE, 7))
    assert catalog.load_table("t.rows").state.head("staging") is None
