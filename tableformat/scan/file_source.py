"""Reads files of one scan: the one place that calls the Parquet reader."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from tableformat.codec.parquet.reader import read_data_file
from tableformat.codec.parquet.row_groups import RowGroupFilter
from tableformat.codec.parquet.rows import ParquetRows
from tableformat.codec.puffin.dv_file import PuffinFiles
from tableformat.spec.data_file import ManifestEntry
from tableformat.store.base import ObjectStore

# A name no table column can have: control characters are refused.
POSITIONS = "\0positions"


@dataclass(frozen=True, slots=True)
class FileSource:
    """What reading any file of a scan needs.

    Picklable if the store is, and without `puffins` and `rows`.

    `puffins`: shared with other scans of the same job; None: each scan opens its own.
    `rows`: reads wanted rows, all of a file in one batch, and remembers for those who read others;
    None: wanted rows are picked from batches as they go by.
    """

    store: ObjectStore
    specs: Mapping[int, PartitionSpec]
    properties: Mapping[str, str]
    puffins: PuffinFiles | None = None
    rows: ParquetRows | None = None

    def read(
        self,
        entry: ManifestEntry,
        schema: Schema,
        *,
        batch_rows: int,
        positions: bool = False,
        row_group_filter: RowGroupFilter | None = None,
        wanted: NDArray[np.int64] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Rows of a data or delete file, projected to `schema` by field id, lineage filled in.

        With `positions` the last column is `POSITIONS`, int64: ordinals in the file, also when
        `row_group_filter` (told the statistics of one row group) leaves row groups out. With
        `wanted` (ascending ordinals) only those rows are returned.

        Raises:
            CorruptDataError: The file is damaged or is not what its manifest entry says.
            NotFoundError: It is gone.
        """
        file = entry.data_file
        spec = self.specs[file.spec_id]
        if wanted is not None and self.rows is not None:
            batch = self.rows.read(
                entry,
                wanted,
                schema=schema,
                spec=spec,
                properties=self.properties,
                with_positions=positions,
            )
            batches = iter((batch,))
        else:
            batches = read_data_file(
                self.store,
                file,
                schema=schema,
                spec=spec,
                properties=self.properties,
                sequence_number=entry.sequence_number,
                batch_rows=batch_rows,
                positions=positions,
                row_group_filter=row_group_filter,
                wanted=wanted,
            )
        return map(_name_positions, batches) if positions else batches


def _name_positions(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A table may have a column `_pos` of its own."""
    return batch.rename_columns([*batch.schema.names[:-1], POSITIONS])
