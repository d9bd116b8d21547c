"""Other ways to apply a batch of upserts, for comparison."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

Rows = Callable[[np.ndarray, int], pa.Table]
LOAD_ROWS = 1_000_000


class Peer(Protocol):
    """A table of its own that batches of upserts are applied to."""

    def __init__(self, folder: Path, rows: int, rows_of: Rows) -> None: ...

    def change(self, batch: pa.Table) -> tuple[float, int]:
        """Apply a batch; seconds, and bytes written."""


def folder_bytes(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


class DeltaLake:
    """MERGE of delta-rs."""

    def __init__(self, folder: Path, rows: int, rows_of: Rows) -> None:
        from deltalake import DeltaTable, write_deltalake

        self.folder = folder
        for start in range(0, rows, LOAD_ROWS):
            part = rows_of(np.arange(start, min(start + LOAD_ROWS, rows)), start)
            write_deltalake(str(folder), part, mode="append")
        self.table = DeltaTable(str(folder))

    def change(self, batch: pa.Table) -> tuple[float, int]:
        before = folder_bytes(self.folder)
        begin = time.perf_counter()
        (
            self.table.merge(batch, "t.id = s.id", source_alias="s", target_alias="t")
            .when_matched_update_all()
            .when_not_matched_insert_all()
            .execute()
        )
        return time.perf_counter() - begin, folder_bytes(self.folder) - before


class PyIceberg:
    """`Table.upsert` of PyIceberg on a v2 table."""

    def __init__(self, folder: Path, rows: int, rows_of: Rows) -> None:
        from pyiceberg.catalog.sql import SqlCatalog

        folder.mkdir(parents=True)
        self.folder = folder
        catalog = SqlCatalog(
            "peer", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}"
        )
        catalog.create_namespace("bench")
        self.table = catalog.create_table("bench.rows", rows_of(np.array([0]), 0).schema)
        for start in range(0, rows, LOAD_ROWS):
            self.table.append(rows_of(np.arange(start, min(start + LOAD_ROWS, rows)), start))

    def change(self, batch: pa.Table) -> tuple[float, int]:
        before = folder_bytes(self.folder)
        begin = time.perf_counter()
        self.table.upsert(batch, join_cols=["id"])
        return time.perf_counter() - begin, folder_bytes(self.folder) - before


class SparkJoin:
    """The same publish without an index: Spark reads all keys and joins."""

    def __init__(self, folder: Path, rows: int, rows_of: Rows) -> None:
        import tableformat as tf
        from tableformat.spark.session import local_session

        self.spark = local_session("icefold-bench", memory="6g")
        self.folder = folder
        catalog = tf.open_catalog("local", warehouse=str(folder))
        schema = rows_of(np.array([0]), 0).schema
        self.table = catalog.create_table("bench.rows", schema, primary_key=["id"])
        for start in range(0, rows, LOAD_ROWS):
            self.table.append(rows_of(np.arange(start, min(start + LOAD_ROWS, rows)), start))
        self.change(rows_of(np.array([0]), 0))  # the JVM warms up

    def change(self, batch: pa.Table) -> tuple[float, int]:
        before = folder_bytes(self.folder)
        begin = time.perf_counter()
        found = (
            self.table.scan(columns=["id", "_file", "_pos"])
            .to_spark(self.spark)
            .join(self.spark.createDataFrame(batch.select(["id"])), "id", "left_semi")
            .select("_file", "_pos")
            .toArrow()
        )
        self._publish(batch, found)
        return time.perf_counter() - begin, folder_bytes(self.folder) - before

    def _publish(self, batch: pa.Table, found: pa.Table) -> None:
        from benchmarks.support.position_commit import commit_positions

        commit_positions(self.table, batch, found)


class JavaIceberg:
    """MERGE of Apache Iceberg's Spark runtime on a v3 table, merge-on-read."""

    def __init__(self, folder: Path, rows: int, rows_of: Rows) -> None:
        import pyarrow.parquet as pq

        from benchmarks.support.java_iceberg import fast_java_iceberg

        folder.mkdir(parents=True)
        self.folder = folder / "warehouse"
        self.batch = folder / "batch.parquet"
        self.java = fast_java_iceberg(self.folder)
        properties = {
            "format-version": "3",
            "write.merge.mode": "merge-on-read",
            "write.merge.distribution-mode": "none",
        }
        listed = ", ".join(f"'{key}' = '{text}'" for key, text in properties.items())
        self.java.sql(
            "CREATE TABLE peer.bench.rows (id BIGINT, a BIGINT, b DOUBLE, s STRING) USING iceberg "
            f"TBLPROPERTIES ({listed})"
        )
        for start in range(0, rows, LOAD_ROWS):
            ids = np.arange(start, min(start + LOAD_ROWS, rows))
            pq.write_table(rows_of(ids, start), self.batch)
            self.java.sql(f"INSERT INTO peer.bench.rows SELECT * FROM parquet.`{self.batch}`")
        self.change(rows_of(np.array([0]), 0))  # the JVM warms up

    def change(self, batch: pa.Table) -> tuple[float, int]:
        import pyarrow.parquet as pq

        pq.write_table(batch, self.batch)
        before = folder_bytes(self.folder)
        begin = time.perf_counter()
        self.java.sql(
            f"MERGE INTO peer.bench.rows t USING parquet.`{self.batch}` s ON t.id = s.id "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )
        return time.perf_counter() - begin, folder_bytes(self.folder) - before


PEERS: Mapping[str, Any] = {
    "deltalake": DeltaLake,
    "iceberg": JavaIceberg,
    "join": SparkJoin,
    "pyiceberg": PyIceberg,
}
