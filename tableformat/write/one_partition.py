"""Rows that go into new files of the partition that they are in already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata

from tableformat.codec.avro.partition_values import schema_for_spec
from tableformat.codec.parquet.options import ParquetOptions, parquet_options
from tableformat.paths import data_directory, data_file_location
from tableformat.runtime import IdSource
from tableformat.spec.data_file import DataFile
from tableformat.store.base import ObjectStore
from tableformat.write.file_set import FileSet
from tableformat.write.partitioning import PartitionValues, partition_folder


@dataclass(frozen=True, slots=True, kw_only=True)
class OnePartition:
    """A partition of one spec, with what a writer of its files has to know. Picklable.

    Attributes:
        spec: The spec.
        values: The partition's values, in internal form.
        folder: Partition folder below `directory`; empty without partition fields.
        directory: The table's data directory.
        options: Encoding and target size.
        properties: The table's.
    """

    spec: PartitionSpec
    values: PartitionValues
    folder: str
    directory: str
    options: ParquetOptions
    properties: Mapping[str, str]

    @staticmethod
    def of(metadata: TableMetadata, file: DataFile) -> OnePartition:
        """The partition of a file."""
        spec = metadata.specs()[file.spec_id]
        schema = schema_for_spec(spec, metadata.schema(), metadata.schemas)
        return OnePartition(
            spec=spec,
            values=file.partition,
            folder=partition_folder(spec, schema, file.partition),
            directory=data_directory(metadata),
            options=parquet_options(metadata.properties),
            properties=metadata.properties,
        )

    def path(self, _: PartitionValues) -> str:
        """The one folder (`PartitionFolders`): no row is asked for it."""
        return self.folder

    def write(
        self, store: ObjectStore, ids: IdSource, schema: Schema, batches: Iterable[pa.RecordBatch]
    ) -> list[DataFile]:
        """Write rows into new files, in their order.

        Args:
            store: Where the files go.
            ids: Their names.
            schema: Of the rows; may have the row lineage fields.
            batches: Columns as `arrow_schema(schema)`.

        Returns:
            The files; the rows of one follow those of the one before it.

        Effects: creates the files. If it raises they are deleted again; a crash leaves them
        unreferenced, for orphan removal.
        """
        with FileSet(
            store,
            schema=schema,
            partitioner=self,
            options=self.options,
            properties=self.properties,
            location_for=lambda folder: data_file_location(self.directory, folder, ids),
        ) as files:
            for batch in batches:
                files.add(self.values, pa.Table.from_batches([batch]))
            return files.finish()
