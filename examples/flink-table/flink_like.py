"""A v2 table as Flink's upsert sink leaves it, written by PyIceberg: equality deletes on `main`.

Each checkpoint is one commit of a data file and of an equality delete file with its keys, which
kill the older rows of these keys. PyIceberg has no API to write equality deletes: hence the two
classes.
"""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, LongType, NestedField, StringType

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "status", StringType()),
    NestedField(3, "amount", DoubleType()),
)
CHECKPOINTS = 12
KEYS = 5_000
Orders = dict[int, tuple[str, float]]


class DeleteManifestWriter(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return super()._meta | {"content": "deletes"}


class Checkpoint(_FastAppendFiles):
    """An append with a manifest of equality deletes."""

    deletes: DataFile

    def _existing_manifests(self) -> list[ManifestFile]:
        metadata = self._transaction.table_metadata
        with DeleteManifestWriter(
            metadata.spec(),
            metadata.schema(),
            self.new_manifest_output(),
            self._snapshot_id,
            "gzip",
        ) as writer:
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=self._snapshot_id,
                data_file=self.deletes,
            )
            writer.add(entry)
        return [writer.to_manifest_file(), *super()._existing_manifests()]


def equality_deletes(table: Table, keys: list[int]) -> DataFile:
    path = f"{table.location()}/data/{uuid.uuid4()}-deletes.parquet"
    field = pa.field("id", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "1"})
    local = Path(path.removeprefix("file://"))
    pq.write_table(pa.table([pa.array(keys)], schema=pa.schema([field])), local)
    return DataFile.from_args(
        _table_format_version=2,
        content=DataFileContent.EQUALITY_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(),
        record_count=len(keys),
        file_size_in_bytes=local.stat().st_size,
        equality_ids=[1],
        spec_id=0,
    )


def checkpoint(table: Table, rows: Orders, deleted: list[int]) -> None:
    """Upserts of `rows` and deletes of other keys, in one commit."""
    columns = {
        "id": pa.array(list(rows), pa.int64()),
        "status": pa.array([status for status, _ in rows.values()]),
        "amount": pa.array([amount for _, amount in rows.values()]),
    }
    schema = table.schema().as_arrow()
    arrow = pa.table([columns[name] for name in schema.names], schema=schema)
    with table.transaction() as transaction:
        change = Checkpoint(operation=Operation.OVERWRITE, transaction=transaction, io=table.io)
        for file in _dataframe_to_data_files(transaction.table_metadata, arrow, table.io):
            change.append_data_file(file)
        change.deletes = equality_deletes(table, [*rows, *deleted])
        change.commit()


def make_table(warehouse: Path) -> Orders:
    """`shop.orders` in a new warehouse; the rows it means."""
    warehouse.mkdir(parents=True)
    catalog = SqlCatalog(
        "local", uri=f"sqlite:///{warehouse}/icefold.db", warehouse=warehouse.as_uri()
    )
    catalog.create_namespace("shop")
    table = catalog.create_table("shop.orders", SCHEMA, properties={"format-version": "2"})
    (warehouse / "shop" / "orders" / "data").mkdir(parents=True, exist_ok=True)
    meant: Orders = {}
    for number in range(CHECKPOINTS):
        rows: Orders = {
            (number * 997 + each * 31) % KEYS: (f"checkpoint {number}", float(each))
            for each in range(1_000)
        }
        deleted = [key for key in range(number, KEYS, 211) if key not in rows]
        checkpoint(table, rows, deleted)
        for key in deleted:
            meant.pop(key, None)
        meant |= rows
    catalog.engine.dispose()
    return meant


if __name__ == "__main__":
    print(f"{len(make_table(Path(sys.argv[1]).resolve())):,} orders in {CHECKPOINTS} checkpoints")
