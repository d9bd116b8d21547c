"""A kept join: rounds of changes on two large tables, against Spark's own full join of them.

    scripts/bench join [--rows 10000000] [--changes 10000] [--rounds 5] [--no-spark]

Orders and payments have `rows` rows each; the join is a full outer one by the order: payments are
found through a secondary index. A round brings `changes` random changes, half of them per table:
updates, inserts and a tenth deletes. Spark joins the same snapshots and throws the rows away. Bars:
a round at least 20 times faster than that; its memory does not follow `rows`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import tempfile
import time

import numpy as np
import pyarrow as pa

import tableformat as tf
from resolver import resolve

ORDERS = pa.schema([("id", pa.int64()), ("customer", pa.int64()), ("status", pa.string())])
PAYMENTS = pa.schema([("id", pa.int64()), ("order_id", pa.int64()), ("cents", pa.int64())])
STATUSES = np.array(["new", "paid", "sent", "returned"])
APPEND_ROWS = 2_000_000
SPEEDUP_MIN = 20.0
DEFINITION = {
    "into": "bench.paid",
    "from": {"table": "bench.orders", "as": "o"},
    "join": [
        {"table": "bench.payments", "as": "p", "how": "full", "on": {"o.id": "p.order_id"}},
    ],
    "select": {"order_id": "o.id", "status": "o.status", "payment": "p.id", "cents": "p.cents"},
    "key-column": "row_key",
}


def orders_of(random: np.random.Generator, ids: np.ndarray) -> pa.Table:
    status = STATUSES[random.integers(0, len(STATUSES), len(ids))]
    return pa.table([ids, random.integers(0, 100_000, len(ids)), status], schema=ORDERS)


def payments_of(random: np.random.Generator, ids: np.ndarray, rows: int) -> pa.Table:
    order = random.integers(0, rows * 11 // 10, len(ids))  # some have no order
    return pa.table([ids, order, random.integers(0, 10**6, len(ids))], schema=PAYMENTS)


def open_table(folder: str, name: str) -> tf.Table:
    return tf.open_catalog("local", warehouse=folder).load_table(name)


def make(folder: str, rows: int) -> None:
    catalog = tf.open_catalog("local", warehouse=folder)
    random = np.random.default_rng(1)
    orders = catalog.create_table("bench.orders", ORDERS, primary_key=["id"])
    payments = catalog.create_table("bench.payments", PAYMENTS, primary_key=["id"])
    payments.add_index("by_order", ["order_id"])
    for first in range(0, rows, APPEND_ROWS):
        ids = np.arange(first, min(first + APPEND_ROWS, rows))
        orders.append(orders_of(random, ids))
        payments.append(payments_of(random, ids, rows))
    for table in (orders, payments):  # builds the indexes
        table.stage(deletes=pa.table({"id": [rows - 1]}))
        resolve(table)
    begin = time.perf_counter()
    with catalog.delta_join(DEFINITION) as join:
        first_round = join.run()
    resolve(catalog.load_table("bench.paid"))
    print(
        f"first round: {first_round.upserts:,} rows in {first_round.duration_ms / 1e3:.1f} s, "
        f"published after {time.perf_counter() - begin:.1f} s",
        flush=True,
    )


def change(folder: str, rows: int, changes: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    count = changes // 2
    for name in ("orders", "payments"):
        table = open_table(folder, f"bench.{name}")
        ids = random.choice(rows * 11 // 10, count, replace=False)
        gone, ids = ids[: count // 10], ids[count // 10 :]
        new = orders_of(random, ids) if name == "orders" else payments_of(random, ids, rows)
        table.stage(new, pa.table({"id": gone}))
        resolve(table)


def spark_join_s(folder: str) -> float:
    from tableformat.spark.session import local_session

    spark = local_session("join")
    spark.sparkContext.setLogLevel("ERROR")
    orders, payments = (
        open_table(folder, f"bench.{name}").scan().to_spark(spark)
        for name in ("orders", "payments")
    )
    joined = orders.join(payments, orders["id"] == payments["order_id"], "full")
    spent = []
    for _ in range(2):  # the first one also compiles
        begin = time.perf_counter()
        joined.write.format("noop").mode("overwrite").save()
        spent.append(time.perf_counter() - begin)
    spark.stop()
    return min(spent)


def in_child(task: object, *arguments: object) -> None:
    """Its memory is not this process's."""
    child = multiprocessing.get_context("spawn").Process(target=task, args=arguments)  # type: ignore[arg-type]
    child.start()
    child.join()
    assert child.exitcode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--changes", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-spark", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="icefold-bench-") as folder:
        in_child(make, folder, options.rows)
        spent = []
        with tf.open_catalog("local", warehouse=folder).delta_join(DEFINITION) as join:
            for number in range(options.rounds):
                in_child(change, folder, options.rows, options.changes, number + 2)
                done = join.run()
                spent.append(done.duration_ms / 1e3)
                print(
                    f"round {done.batch}: {sum(done.changes.values()):,} changed rows "
                    f"({done.before_images:,} before-images), {done.upserts:,} upserts, "
                    f"{done.deletes:,} deletes in {spent[-1]:.2f} s {done.scanned or ''}",
                    flush=True,
                )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"median round {np.median(spent):.2f} s; peak memory {peak:,.0f} MiB", flush=True)
        if options.no_spark:
            return
        full = spark_join_s(folder)
    speedup = full / float(np.median(spent))
    print(f"Spark's full join {full:.1f} s: {speedup:.1f} times (bar: {SPEEDUP_MIN:g})")
    raise SystemExit(0 if speedup >= SPEEDUP_MIN else 1)


if __name__ == "__main__":
    main()
