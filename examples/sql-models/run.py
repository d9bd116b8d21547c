"""Runs the models in the order of their names on one cut: all read the same snapshot of a table.

python run.py WAREHOUSE DATABASE.duckdb [TAG]
"""

from __future__ import annotations

import sys
from pathlib import Path

import duckdb

import tableformat as tf

MODELS = sorted((Path(__file__).parent / "models").glob("*.sql"))
SOURCES = ("shop.orders",)


def main(warehouse: str, database: str, tag: str | None = None) -> None:
    catalog = tf.open_catalog("local", warehouse=warehouse)
    with duckdb.connect(database) as connection:
        connection.execute("BEGIN")
        connection.execute("CREATE OR REPLACE TABLE cut (source TEXT, snapshot_id BIGINT)")
        for source in SOURCES:
            table = catalog.load_table(source)
            scan = table.scan(tag=tag) if tag else table.scan()
            if scan.snapshot is None:
                sys.exit(f"{source}: nothing is published yet")
            scan.to_duckdb(connection, view=source.replace(".", "_"))
            connection.execute("INSERT INTO cut VALUES (?, ?)", [source, scan.snapshot.snapshot_id])
        for model in MODELS:
            name = model.stem.partition("_")[2]
            connection.execute(f"CREATE OR REPLACE TABLE {name} AS {model.read_text()}")
            [(rows,)] = connection.execute(f"SELECT count(*) FROM {name}").fetchall()
            print(f"{name}: {rows} rows")
        for source in SOURCES:  # the view is of this process
            connection.execute(f"DROP VIEW {source.replace('.', '_')}")
        connection.execute("COMMIT")


if __name__ == "__main__":
    main(*sys.argv[1:])
