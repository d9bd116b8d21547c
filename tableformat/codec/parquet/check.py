"""Checks that what is read of a Parquet file is what was written.

Page checksums cover the data of pages and nothing else: a flipped bit in a page header or in the
footer can turn rows into other rows without an error from Arrow. So the file is held against
everything that says the same thing twice:

- row count of the footer, of its row groups, and of the manifest entry;
- physical type and path of every column chunk that is read, and the footer's schema;
- the columns that the manifest entry has sizes of, and the ones found under the wanted ids;
- for our own files: the checksums of the footer (`footer_checksum`) and of every column
  chunk (`chunk_checksums`).
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow.parquet as pq
from pyiceberg.schema import Schema

from tableformat.codec.parquet.columns import FileColumn
from tableformat.errors import CorruptDataError
from tableformat.spec.data_file import DataFile


def check_row_count(footer: pq.FileMetaData, data_file: DataFile) -> None:
    """Hold the footer's row counts against each other and the manifest entry.

    Raises:
        CorruptDataError: They differ.
    """
    groups = sum(footer.row_group(index).num_rows for index in range(footer.num_row_groups))
    if not data_file.record_count == footer.num_rows == groups:
        raise CorruptDataError(
            "row count differs from the manifest entry",
            expected=data_file.record_count,
            found=footer.num_rows,
            in_row_groups=groups,
        )


def check_chunks(footer: pq.FileMetaData, leaves: Sequence[int], row_groups: Sequence[int]) -> None:
    """Hold column chunks against the footer's schema.

    Only for row groups that have been read: Arrow aborts the process when a chunk's metadata is
    first looked at here and contradicts the schema, but reports it when it is read.

    Raises:
        CorruptDataError: A chunk is of another type or column.
    """
    for row_group in row_groups:
        group = footer.row_group(row_group)
        for leaf in leaves:
            chunk, column = group.column(leaf), footer.schema.column(leaf)
            stored = (chunk.path_in_schema, chunk.physical_type)
            if stored != (column.path, column.physical_type):
                raise CorruptDataError(
                    "a column chunk is not of the type or name that the footer's schema says",
                    column=column.path,
                    row_group=row_group,
                )


def check_stored_ids(data_file: DataFile, found: Sequence[FileColumn], schema: Schema) -> None:
    """A column that the manifest entry has the size of must be found where the schema has it.

    Without this a file with wrong ids would read as nulls. Not for files without ids: the mapping
    that the statistics were made with may have been another one.

    Raises:
        CorruptDataError: It is missing.
    """
    stored = {field_id for column in found for field_id in column.ids()}
    for field_id in data_file.column_sizes or ():
        if field_id not in stored and field_id in schema.field_ids:
            raise CorruptDataError(
                "the manifest entry describes a column that the file does not have",
                column=schema.find_column_name(field_id),
                field_id=field_id,
            )
