"""Who reads the published tables of the pipeline."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from tableformat import Table
from tableformat.spark.session import local_session
from tests.support.interop_engines import duckdb_connection
from tests.support.java_iceberg import java_iceberg


def with_icefold(table: Table, names: Sequence[str]) -> pa.Table:
    return table.scan(columns=names).to_arrow()


def with_duckdb(table: Table, names: Sequence[str]) -> pa.Table:
    columns = ", ".join(f'"{name}"' for name in names)
    location = table.state.metadata_location
    query = f"SELECT {columns} FROM iceberg_scan('{location}')"
    return duckdb_connection().execute(query).to_arrow_table()


def with_spark(table: Table, names: Sequence[str]) -> pa.Table:
    """Apache Iceberg's own runtime. It refuses tables with a `time`; icefold's reads those."""
    if {"tod", "times"} & set(names):
        frame = table.scan(columns=names).to_spark(local_session("pipeline", cores=1))
        return pa.table(frame.toArrow())
    return java_iceberg().read(table.state.metadata_location, names)


READERS = {"icefold": with_icefold, "duckdb": with_duckdb, "spark": with_spark}
