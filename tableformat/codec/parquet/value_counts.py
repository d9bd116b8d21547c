"""How many values each column of a Parquet file holds, counted on the way in and on the way out.

Page checksums do not cover page headers; a flipped count or encoding there can drop or null values
without an error. So our files carry the number of present (non-null) values of every column in
every row group. Arrow's own statistics cannot stand in: before version 26 it counted the nulls of
columns inside lists wrong.

In the footer, as JSON: one list per row group, one number per Parquet column. On disk: never
change.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from tableformat.codec.parquet.columns import FileColumn, file_columns
from tableformat.errors import CorruptDataError
from tableformat.spec.arrow_arrays import rebased_offsets
from tableformat.spec.types import is_list

VALUE_COUNTS_KEY = "icefold.value-counts"


class WrittenCounts:
    """Counts what goes into a file.

    Args:
        stored: The Arrow schema of the file.
    """

    def __init__(self, stored: pa.Schema) -> None:
        self._columns = file_columns(stored)
        self._leaf_count = sum(1 for column in self._columns for _ in column.leaves())
        self._row_groups: list[list[int]] = []

    @property
    def totals(self) -> list[int]:
        """Present values per Parquet column."""
        return [sum(group[leaf] for group in self._row_groups) for leaf in range(self._leaf_count)]

    @property
    def chunk_count(self) -> int:
        """Row groups times Parquet columns."""
        return len(self._row_groups) * self._leaf_count

    def add(self, rows: pa.Table) -> None:
        """Count one row group."""
        counts = [0] * self._leaf_count
        for column, chunks in zip(self._columns, rows.columns, strict=True):
            for chunk in chunks.chunks:
                for leaf, present in _present(chunk, column):
                    counts[leaf] += present
        self._row_groups.append(counts)

    def metadata(self) -> dict[str, str]:
        """What to put into the footer."""
        return {VALUE_COUNTS_KEY: json.dumps(self._row_groups, separators=(",", ":"))}


class ReadCounts:
    """Counts what is read of a file and compares it with what was written.

    Costs a look at null counts per batch and column; nothing for files of other writers.

    Raises:
        CorruptDataError: The counts in the footer cannot be read.
    """

    def __init__(self, footer: pq.FileMetaData, columns: Sequence[FileColumn]) -> None:
        self._columns = columns
        self._found: dict[int, int] = {}
        self._names = footer.schema
        text = (footer.metadata or {}).get(VALUE_COUNTS_KEY.encode())
        self._written = None if text is None else _parse(text, footer)

    def add(self, columns: Sequence[pa.Array]) -> None:
        """Count one batch, as it was read."""
        if self._written is None:
            return
        for values, column in zip(columns, self._columns, strict=True):
            for leaf, present in _present(values, column):
                self._found[leaf] = self._found.get(leaf, 0) + present

    def check(self, row_groups: Sequence[int]) -> None:
        """Compare with what was written into the row groups that were read.

        Raises:
            CorruptDataError: A column held more or fewer values.
        """
        for leaf, found in self._found.items():
            assert self._written is not None
            expected = sum(self._written[index][leaf] for index in row_groups)
            if found != expected:
                raise CorruptDataError(
                    "a column holds another number of values than was written",
                    column=self._names.column(leaf).path,
                    expected=expected,
                    found=found,
                )


def _parse(text: bytes, footer: pq.FileMetaData) -> list[list[int]]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not (
        isinstance(found, list)
        and len(found) == footer.num_row_groups
        and all(isinstance(group, list) and len(group) == footer.num_columns for group in found)
        and all(isinstance(count, int) for group in found for count in group)
    ):
        raise CorruptDataError("the value counts in the footer do not fit the file")
    return found


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
