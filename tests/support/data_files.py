"""Data files in a memory store: written, read back, and damaged on purpose."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema

from tableformat.codec.parquet.chunk_checksums import CHUNK_CHECKSUMS_KEY
from tableformat.codec.parquet.footer_checksum import FOOTER_CHECKSUM_KEY
from tableformat.codec.parquet.reader import read_data_file
from tableformat.spec.data_file import PARQUET_FORMAT, DataFile, FileContent
from tableformat.spec.types import arrow_schema
from tableformat.write.data_files import write_data_files
from tableformat.write.equality_deletes import write_equality_deletes
from tests.support.memory_store import MemoryObjectStore

PREFIX = "memory://warehouse/t/data/"


@dataclass
class DataFiles:
    """A schema, a spec, properties, and a store to write them to."""

    schema: Schema
    spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC
    properties: Mapping[str, str] = field(default_factory=dict)
    store: Any = field(default_factory=MemoryObjectStore)
    numbers: Any = field(default_factory=itertools.count)

    def location(self, path: str) -> str:
        return f"{PREFIX}{path}{'/' if path else ''}{next(self.numbers)}.parquet"

    def write(self, rows: Any) -> list[DataFile]:
        return write_data_files(
            self.store,
            rows,
            schema=self.schema,
            spec=self.spec,
            properties=self.properties,
            location_for=self.location,
        )

    def write_one(self, rows: Any) -> DataFile:
        (file,) = self.write(rows)
        return file

    def write_deletes(self, keys: pa.Table, ids: Sequence[int]) -> list[DataFile]:
        return write_equality_deletes(
            self.store,
            keys,
            schema=self.schema,
            equality_ids=ids,
            spec=self.spec,
            properties=self.properties,
            location_for=self.location,
        )

    def read(self, *files: DataFile, schema: Schema | None = None, **options: Any) -> pa.Table:
        """Rows of files, projected to `schema` (else the one they were written with)."""
        wanted = schema or self.schema
        options.setdefault("properties", self.properties)
        batches = [
            batch
            for file in files
            for batch in read_data_file(self.store, file, schema=wanted, spec=self.spec, **options)
        ]
        empty = arrow_schema(wanted)
        return pa.Table.from_batches(batches, schema=batches[0].schema if batches else empty)

    def parquet(self, file: DataFile) -> pq.ParquetFile:
        return pq.ParquetFile(self.store.open_input(file.file_path))

    def replace(self, file: DataFile, data: bytes) -> DataFile:
        """The file with other bytes under its name; the entry tells their size."""
        self.store.delete([file.file_path])
        self.store.put(file.file_path, data)
        return file.with_(file_size_in_bytes=len(data))

    def foreign(self, table: pa.Table, **entry: Any) -> DataFile:
        """A file some other writer made: as pyarrow writes it, without statistics."""
        sink = pa.BufferOutputStream()
        options = entry.pop("options", {})
        pq.write_table(table, sink, **options)
        data = sink.getvalue().to_pybytes()
        location = self.location("")
        self.store.put(location, data)
        values: dict[str, Any] = {
            "content": FileContent.DATA,
            "file_path": location,
            "file_format": PARQUET_FORMAT,
            "spec_id": self.spec.spec_id,
            "partition": (),
            "record_count": table.num_rows,
            "file_size_in_bytes": len(data),
        }
        return DataFile(**(values | entry))


def without_checksums(data: bytes) -> bytes:
    """The file as it was written before chunks and footers had checksums: they have other names."""
    for key in (CHUNK_CHECKSUMS_KEY.encode(), FOOTER_CHECKSUM_KEY.encode()):
        assert data.count(key) == 1
        data = data.replace(key, key.upper())
    return data
