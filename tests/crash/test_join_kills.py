"""SIGKILL at the fail points of a join's round: run again, its changes are there once."""

from __future__ import annotations

import pyarrow as pa
import pytest

import tableformat as tf
from resolver import resolve
from tests.support.crash_child import KILLED, run_until_killed

POINTS = [
    "join.before_commit", "commit.before_swap", "catalog.before_swap", "catalog.after_swap",
    "commit.after_swap", "join.after_commit",
]  # fmt: skip
DEFINITION = {
    "into": "t.result",
    "from": {"table": "t.orders", "as": "o"},
    "join": [{"table": "t.lines", "as": "l", "how": "full", "on": {"o.id": "l.order_id"}}],
    "select": {"id": "o.id", "line": "l.line"},
    "key-column": "row_key",
}


def run_round(table: tf.Table) -> None:
    with tf.TableCatalog(table.environment).delta_join(DEFINITION) as join:
        join.run()


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_round_that_is_killed_is_there_once(tmp_path, point) -> None:
    warehouse = str(tmp_path / "warehouse")
    catalog = tf.open_catalog("local", warehouse=warehouse)
    orders = catalog.create_table("t.orders", pa.schema([("id", pa.int64())]), primary_key=["id"])
    schema = pa.schema([("order_id", pa.int64()), ("line", pa.int64())])
    lines = catalog.create_table("t.lines", schema, primary_key=["order_id", "line"])
    lines.add_index("by_order", ["order_id"])
    orders.append(pa.table({"id": [1, 2]}))
    run_round(orders)
    lines.append(pa.table({"order_id": [2, 2, 3], "line": [1, 2, 1]}))
    assert run_until_killed(run_round, warehouse, "t.orders", point=point) == KILLED
    orders.append(pa.table({"id": [3]}))  # what the next round sees in addition
    run_round(orders)
    result = catalog.load_table("t.result")
    resolve(result)
    found = result.scan(columns=["id", "line"]).to_arrow().to_pylist()
    rows = sorted(((row["id"], row["line"]) for row in found), key=str)
    assert rows == [(1, None), (2, 1), (2, 2), (3, 1)]
    batches = [s.summary.get("icefold.batch-id") for s in result.snapshots() if s.summary]
    assert {"0", "1"} <= {*batches}
