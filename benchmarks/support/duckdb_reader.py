"""DuckDB as a reader of Iceberg tables that shares no code with icefold."""

from __future__ import annotations

from pathlib import Path

import duckdb
from duckdb_extensions import import_extension


def open_duckdb(extensions: Path) -> duckdb.DuckDBPyConnection:
    """DuckDB with its Iceberg reader from PyPI; the file cache misreads packed Puffin files."""
    extensions.mkdir(parents=True, exist_ok=True)
    connection = duckdb.connect(config={"extension_directory": str(extensions)})
    for name in ("avro", "iceberg"):
        import_extension(name, con=connection)
    connection.execute("LOAD avro; LOAD iceberg")
    connection.execute("SET enable_external_file_cache=false; SET TimeZone='UTC'")
    return connection
