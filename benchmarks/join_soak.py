"""A kept join under random changes and kills: after every round it equals DuckDB's full join.

    scripts/bench join_soak [--rows 10000000] [--rounds 500] [--kills 30] [--changes 300] [--seed 1]

Lines, orders and customers as in TPC-H: `rows` lines, a quarter of that orders, a fortieth of it
customers. The join is a chain, lines to orders (inner) to customers (left). A round brings inserts,
updates (also of columns that are joined by) and deletes to every table, now and then a compaction.
DuckDB applies the same changes to tables of its own; count and sum of hashes of all rows are
compared. Rounds that are killed die at a random step in a process of their own. The exit code is 1
on any difference; memory is that of the process that runs the other rounds.
"""

from __future__ import annotations

import argparse
import random
import resource
import tempfile
import time

import duckdb
import numpy as np
import pyarrow as pa

import tableformat as tf
from maintenance import compact
from resolver import resolve
from tests.support.crash_child import KILLED, run_until_killed

SCHEMAS = {
    "customer": pa.schema([("id", pa.int64()), ("name", pa.string())]),
    "orders": pa.schema([("id", pa.int64()), ("customer", pa.int64()), ("status", pa.string())]),
    "lines": pa.schema([("order_id", pa.int64()), ("line", pa.int32()), ("price", pa.int64())]),
}
KEYS = {"customer": ["id"], "orders": ["id"], "lines": ["order_id", "line"]}
LINES_PER_ORDER, ORDERS_PER_CUSTOMER = 4, 10
DEFINITION = {
    "into": "soak.result",
    "from": {"table": "soak.lines", "as": "l"},
    "join": [
        {"table": "soak.orders", "as": "o", "how": "inner", "on": {"l.order_id": "o.id"}},
        {"table": "soak.customer", "as": "c", "how": "left", "on": {"o.customer": "c.id"}},
    ],
    "select": {
        "order_id": "l.order_id", "line": "l.line", "price": "l.price", "status": "o.status",
        "name": "c.name",
    },
}  # fmt: skip
HASH = "count(*), sum(hash(order_id, line, price, status, name)::HUGEINT)"
FULL_JOIN = (
    "(SELECT order_id, line, price, status, name FROM lines l JOIN orders o ON l.order_id = o.id "
    "LEFT JOIN customer c ON o.customer = c.id)"
)
POINTS = (
    "join.before_commit", "commit.before_swap", "catalog.before_swap", "catalog.after_swap",
    "commit.after_swap", "join.after_commit",
)  # fmt: skip
APPEND_ROWS = 2_000_000
STATUSES = np.array(["new", "paid", "sent", "void"])


def rows_of(name: str, ids: np.ndarray, orders: int, draw: np.random.Generator) -> pa.Table:
    """Rows for some ids; of lines, an id is an order's and a line's in one number."""
    if name == "customer":
        return pa.table([ids, [f"n{n}" for n in draw.integers(0, 10**6, len(ids))]], SCHEMAS[name])
    if name == "orders":
        customers = draw.integers(0, orders // ORDERS_PER_CUSTOMER + 2, len(ids))
        customer = pa.array(customers, mask=draw.random(len(ids)) < 0.05)
        return pa.table([ids, customer, STATUSES[draw.integers(0, 4, len(ids))]], SCHEMAS[name])
    order, line = ids // LINES_PER_ORDER, (ids % LINES_PER_ORDER).astype(np.int32)
    return pa.table([order, line, draw.integers(0, 10**5, len(ids))], SCHEMAS[name])


class Soak:
    def __init__(self, folder: str, rows: int, seed: int) -> None:
        self.folder = folder
        self.orders = rows // LINES_PER_ORDER
        self.counts = {
            "customer": self.orders // ORDERS_PER_CUSTOMER, "orders": self.orders, "lines": rows,
        }  # fmt: skip
        self.draw, self.random = np.random.default_rng(seed), random.Random(seed)
        self.catalog = tf.open_catalog("local", warehouse=folder)
        self.oracle = duckdb.connect(f"{folder}/oracle.db")
        for name, schema in SCHEMAS.items():
            table = self.catalog.create_table(f"soak.{name}", schema, primary_key=KEYS[name])
            self._ask(f"CREATE TABLE {name} AS FROM given", schema.empty_table())
            for begin in range(0, self.counts[name], APPEND_ROWS):
                ids = np.arange(begin, min(begin + APPEND_ROWS, self.counts[name]))
                some = rows_of(name, ids, self.orders, self.draw)
                table.append(some)
                self._ask(f"INSERT INTO {name} FROM given", some)
        self.catalog.load_table("soak.orders").add_index("by_customer", ["customer"])
        self.catalog.load_table("soak.lines").add_index("by_order", ["order_id"])

    def change(self, changes: int) -> None:
        """Changes of every table, published, and the same in DuckDB."""
        for name, count in self.counts.items():
            table = self.catalog.load_table(f"soak.{name}")
            ids = self.draw.choice(count * 11 // 10 + 9, min(changes, count), replace=False)
            gone, come = np.split(ids, [len(ids) // 4])
            come = rows_of(name, come, self.orders, self.draw)
            gone = rows_of(name, gone, self.orders, self.draw).select(KEYS[name])
            table.stage(come, gone)
            resolve(table)
            if self.random.random() < 0.05:
                compact(table)
            for keys in (come.select(KEYS[name]), gone):
                same = " AND ".join(f"t.{key} = given.{key}" for key in KEYS[name])
                self._ask(f"DELETE FROM {name} t USING given WHERE {same}", keys)
            self._ask(f"INSERT INTO {name} FROM given", come)

    def _ask(self, statement: str, given: pa.Table | pa.RecordBatchReader) -> None:
        self.oracle.register("given", given)
        self.oracle.execute(statement)

    def differs(self) -> bool:
        """Whether the published result is another than DuckDB's join; prints some rows of both."""
        table = self.catalog.load_table("soak.result")
        resolve(table)
        self._ask(
            "CREATE OR REPLACE TEMP TABLE found AS "
            "SELECT order_id, line, price, status, name FROM given",
            table.scan().to_reader(),
        )
        if self.oracle.sql(f"SELECT {HASH} FROM found").fetchone() == (
            self.oracle.sql(f"SELECT {HASH} FROM {FULL_JOIN}").fetchone()
        ):
            return False
        for one, other in (("found", FULL_JOIN), (FULL_JOIN, "found")):
            print(self.oracle.sql(f"FROM {one} EXCEPT ALL FROM {other} LIMIT 5").fetchall())
        return True


def run_round(table: tf.Table) -> None:
    with tf.TableCatalog(table.environment).delta_join(DEFINITION) as join:
        join.run()


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench join_soak", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--changes", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    spent, killed = [], 0
    with tempfile.TemporaryDirectory(prefix="icefold-bench-") as folder:
        soak = Soak(folder, options.rows, options.seed)
        begin = time.perf_counter()
        with soak.catalog.delta_join(DEFINITION) as join:
            done = join.run()
            print(
                f"first round: {done.upserts:,} rows in {done.duration_ms / 1e3:.1f} s", flush=True
            )
            deadly = set(soak.random.sample(range(1, options.rounds + 1), options.kills))
            for number in range(1, options.rounds + 1):
                soak.change(options.changes)
                if number in deadly:
                    point = soak.random.choice(POINTS)
                    killed += (
                        run_until_killed(run_round, folder, "soak.lines", point=point) == KILLED
                    )
                done = join.run()
                spent.append(done.duration_ms / 1e3)
                if soak.differs():
                    raise SystemExit(f"round {number}: the result differs from the full join")
                if number % 25 == 0 or number == options.rounds:
                    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
                    seconds = time.perf_counter() - begin
                    print(
                        f"{number} rounds and {killed} kills in {seconds:.0f} s, no difference; "
                        f"median round {np.median(spent):.2f} s; peak memory {peak:,} MiB",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
