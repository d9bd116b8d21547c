"""Checks that what is read of a Parquet file is what was written.

Page checksums cover the data of pages and nothing else: a flipped bit in a page header or in the
footer can turn rows into other rows without an error from Arrow. So the file is held against
everything that says the same thing twice:

- row count of the footer, of its row groups, and of the manifest entry;
- physical type and path of every column chunk that is read, and the footer's schema;
- the columns that the manifest entry has sizes of, and the ones found under the wanted ids;
- values present in what was read, and in the row groups' statistics. This one only for our own
  files: of other writers it is not known whether their counts are right for nested columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema

from tableformat.errors import CorruptDataError
from tableformat.files.parquet_columns import FileColumn
from tableformat.files.parquet_schema_checksum import has_checksum
from tableformat.spec.arrow_arrays import rebased_offsets
from tableformat.spec.data_file import DataFile
from tableformat.spec.types import is_list


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


class PresentCounts:
    """Counts present (non-null) values per leaf of what is read, for the comparison at the end.

    Costs a look at cached null counts per batch and column.
    """

    def __init__(self, footer: pq.FileMetaData, columns: Sequence[FileColumn]) -> None:
        self._footer = footer
        self._columns = columns
        self._found: dict[int, int] = {}
        self._is_wanted = has_checksum(footer)

    def add(self, columns: Sequence[pa.Array]) -> None:
        """Count one batch, as it was read."""
        if not self._is_wanted:
            return
        for values, column in zip(columns, self._columns, strict=True):
            for leaf, count in _present(values, column, len(values)):
                self._found[leaf] = self._found.get(leaf, 0) + count

    def check(self, row_groups: Sequence[int]) -> None:
        """Compare with the statistics of the row groups that were read.

        Raises:
            CorruptDataError: A column held more or fewer values.
        """
        for leaf, found in self._found.items():
            chunks = [self._footer.row_group(index).column(leaf) for index in row_groups]
            statistics = [chunk.statistics for chunk in chunks]
            if any(each is None or not each.has_null_count for each in statistics):
                continue
            nulls = sum(each.null_count for each in statistics)
            expected = sum(chunk.num_values for chunk in chunks) - nulls
            if found != expected:
                raise CorruptDataError(
                    "a column holds another number of values than the footer says",
                    column=self._footer.schema.column(leaf).path,
                    expected=expected,
                    found=found,
                )


def _present(values: pa.Array, column: FileColumn, parents: int) -> Iterator[tuple[int, int]]:
    """Leaf index and number of present values, given how many parents are present.

    Below a null parent Arrow nulls what can be null, and fills in what cannot.
    """
    present = len(values) - values.null_count if column.nullable else parents
    if column.leaf_index >= 0:
        yield column.leaf_index, present
    elif pa.types.is_struct(values.type):
        for index, child in enumerate(column.children):
            yield from _present(values.field(index), child, present)
    elif is_list(values.type):
        _, first, count = rebased_offsets(values)
        yield from _present(values.values.slice(first, count), column.children[0], count)
    elif pa.types.is_map(values.type):
        _, first, count = rebased_offsets(values)
        yield from _present(values.keys.slice(first, count), column.children[0], count)
        yield from _present(values.items.slice(first, count), column.children[1], count)
