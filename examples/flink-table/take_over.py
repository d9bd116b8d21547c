"""Takes over a table with equality deletes on `main`: upgrade, key, deletion vectors."""

import sys

import tableformat as tf
from resolver import resolve


def files(table: tf.Table) -> str:
    content = table.inspect.files().column("content").to_pylist()
    names = {0: "data files", 1: "deletion vectors", 2: "equality delete files"}
    return ", ".join(f"{content.count(kind)} {name}" for kind, name in names.items())


catalog = tf.open_catalog("local", warehouse=sys.argv[1])
orders = catalog.load_table("shop.orders")
before = orders.scan().to_arrow()
print(f"as it was:  {before.num_rows:,} rows; {files(orders)}")

orders = orders.upgrade()  # one metadata commit; data files stay
if not orders.primary_key:
    orders = orders.update_schema(lambda change: change.set_identifier_fields("id"))
print(resolve(orders, staging="main", target="main").describe())

orders.refresh()
after = orders.scan().to_arrow()
print(f"taken over: {after.num_rows:,} rows; {files(orders)}")
assert after.sort_by("id") == before.sort_by("id")
