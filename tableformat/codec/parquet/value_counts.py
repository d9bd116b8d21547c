"""How many values each column of a Parquet file holds, counted as they are written.

Arrow's own statistics cannot stand in: before version 26 it counted the nulls of columns inside
lists wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from tableformat.codec.parquet.columns import FileColumn, file_columns
from tableformat.spec.arrow_arrays import rebased_offsets
from tableformat.spec.types import is_list


class WrittenCounts:
    """Counts what goes into a file.

    Args:
        stored: The Arrow schema of the file.

    Attributes:
        totals: Present (non-null) values per Parquet column.
        chunk_count: Row groups times Parquet columns.
    """

    def __init__(self, stored: pa.Schema) -> None:
        self._columns = file_columns(stored)
        self.totals = [0 for column in self._columns for _ in column.leaves()]
        self.chunk_count = 0

    def add(self, rows: pa.Table) -> None:
        """Count one row group."""
        for column, chunks in zip(self._columns, rows.columns, strict=True):
            for chunk in chunks.chunks:
                for leaf, present in _present(chunk, column):
                    self.totals[leaf] += present
        self.chunk_count += len(self.totals)


def _present(values: pa.Array, column: FileColumn) -> Iterator[tuple[int, int]]:
    """Parquet column index and number of present values; nothing is present below a null."""
    if column.leaf_index >= 0:
        yield column.leaf_index, len(values) - values.null_count
    elif pa.types.is_struct(values.type):
        # `flatten` nulls the fields of null structs, which a writer's arrays need not do.
        for child, below in zip(values.flatten(), column.children, strict=True):
            yield from _present(child, below)
    elif is_list(values.type):
        yield from _present(values.flatten(), column.children[0])
    else:
        _, first, count = rebased_offsets(values)
        yield from _present(values.keys.slice(first, count), column.children[0])
        yield from _present(values.items.slice(first, count), column.children[1])
