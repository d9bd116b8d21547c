"""The published table in DuckDB, every ten seconds."""

import time

import duckdb

import tableformat as tf

connection = duckdb.connect()
connection.execute("INSTALL iceberg; LOAD iceberg; SET enable_external_file_cache = false")
while True:
    orders = tf.open_catalog("local", warehouse="/data/warehouse").load_table("shop.orders")
    columns = "id, status, amount, at, length(note)"
    rows = f"SELECT {columns} FROM iceberg_scan('{orders.metadata_location}') ORDER BY id"
    print(connection.execute(rows).fetchall(), flush=True)
    time.sleep(10)
