"""SIGKILL while a stored computed column is added to a table with rows: the same call goes on."""

from __future__ import annotations

import pyarrow as pa
import pytest

import tableformat as tf
from tests.support.crash_child import KILLED, run_until_killed

SWAP = ["commit.before_swap", "catalog.before_swap", "catalog.after_swap", "commit.after_swap"]
POINTS = [
    *((point, hits) for hits in (1, 2) for point in SWAP[1:3]),  # the declaration, the rows
    *((point, 1) for point in (SWAP[0], SWAP[3])),  # the rows: a declaration is no snapshot
    ("rowlevel.after_plan", 1),
    ("rowlevel.after_scan", 1),
    ("rowlevel.before_commit", 1),
]


def add(table: tf.Table) -> None:
    table.add_computed_column("twice", "n * 2", "long", stored=True, backfill=True)


def row_ids(table: tf.Table) -> dict[int, int]:
    rows = table.refresh().scan(columns=["id", "_row_id"]).to_arrow().to_pylist()
    return {row["id"]: row["_row_id"] for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize(("point", "hits"), POINTS)
def test_column_that_is_half_added_is_added_by_the_same_call(tmp_path, point, hits) -> None:
    warehouse = str(tmp_path / "warehouse")
    catalog = tf.open_catalog("local", warehouse=warehouse)
    schema = pa.schema([("id", pa.int64()), ("n", pa.int64())])
    table = catalog.create_table("t.rows", schema, primary_key=["id"])
    table.append(pa.table({"id": [1, 2, 3], "n": [10, None, 30]}))
    table.delete("id = 3")
    before = row_ids(table)
    assert run_until_killed(add, warehouse, "t.rows", point=point, hits=hits) == KILLED
    other = catalog.load_table("t.rows")
    other.append(pa.table({"id": [4], "n": [40]}))  # with the value, if it is declared
    add(catalog.load_table("t.rows"))
    found = other.refresh().scan().to_arrow().sort_by("id").to_pylist()
    assert found == [
        {"id": 1, "n": 10, "twice": 20},
        {"id": 2, "n": None, "twice": None},
        {"id": 4, "n": 40, "twice": 80},
    ]
    after = row_ids(table)
    assert {key: after[key] for key in before} == before
    assert other.check_computed_columns() == {"twice": 0}
