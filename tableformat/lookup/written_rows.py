"""Some columns of rows that are written and not committed yet."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from pyiceberg.table.metadata import TableMetadata

from tableformat.array_types import Int64s
from tableformat.codec.parquet.reader import read_data_file
from tableformat.environment import Environment
from tableformat.lookup.keys import KeyColumns
from tableformat.scan.key_fields import key_schema
from tableformat.scan.key_set import build_key_set
from tableformat.spec.data_file import DataFile
from tableformat.spec.types import arrow_schema


def read_written(
    environment: Environment,
    metadata: TableMetadata,
    columns: KeyColumns,
    files: Iterable[DataFile],
) -> pa.Table:
    """The columns of all rows of data files, by their names in the current schema."""
    schema = key_schema([metadata.schema()], columns.field_ids)
    read = KeyColumns.of(schema, columns.field_ids, what="the columns read")
    specs = metadata.specs()
    batches = [
        batch
        for file in files
        for batch in read_data_file(
            environment.store,
            file,
            schema=schema,
            spec=specs[file.spec_id],
            properties=metadata.properties,
        )
    ]
    rows = pa.Table.from_batches(batches, arrow_schema(schema))
    leaves = [read.leaf(rows, ordinal) for ordinal in range(len(columns.names))]
    return pa.table(leaves, names=list(columns.names))


def number_keys(keys: pa.Table) -> Int64s:
    """For each row the ordinal of the last row that has its key; NULL equals NULL."""
    arrays = [column.combine_chunks() for column in keys.columns]
    ordinals = np.arange(keys.num_rows, dtype=np.int64)
    return build_key_set(arrays, ordinals).newest_delete(arrays)
