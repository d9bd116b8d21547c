"""Which row groups of a file may hold a wanted row, by their own statistics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.types import DecimalType, NestedField, PrimitiveType, StructType

from tableformat.codec.parquet.columns import FileColumn
from tableformat.codec.parquet.metrics import Leaf, MetricsMode, row_group_metrics
from tableformat.spec.data_file import DataFile
from tableformat.spec.types import arrow_type

RowGroupFilter = Callable[[DataFile], bool]

_WHOLE_BOUNDS = MetricsMode(counts=True, bounds=True)


def matching_row_groups(
    footer: pq.FileMetaData,
    data_file: DataFile,
    columns: Sequence[FileColumn],
    fields: Sequence[NestedField],
    may_match: RowGroupFilter,
) -> list[int]:
    """The row groups worth reading, ascending.

    Args:
        footer: The file's footer.
        data_file: The file; `may_match` sees copies of it that describe one row group each.
        columns: What is read of the file.
        fields: The fields wanted.
        may_match: False only if no row with such statistics can match.
    """
    leaves = list(_trusted_leaves(columns, fields, ()))
    kept = []
    for index in range(footer.num_row_groups):
        metrics = row_group_metrics(footer, index, leaves)
        described = data_file.with_(
            record_count=footer.row_group(index).num_rows,
            column_sizes=metrics.column_sizes,
            value_counts=metrics.value_counts,
            null_value_counts=metrics.null_value_counts,
            nan_value_counts=None,
            lower_bounds=metrics.lower_bounds,
            upper_bounds=metrics.upper_bounds,
            split_offsets=(0,),  # one row group
        )
        if may_match(described):
            kept.append(index)
    return kept


def _trusted_leaves(
    columns: Sequence[FileColumn], fields: Sequence[NestedField], path: tuple[str, ...]
) -> Iterator[tuple[int, Leaf]]:
    """Columns whose stored statistics mean the same in the wanted type."""
    by_id = {column.field_id: column for column in columns if column.field_id is not None}
    for field in fields:
        column = by_id.get(field.field_id)
        if column is None:
            continue
        kind = field.field_type
        here = (*path, field.name)
        if isinstance(kind, StructType):
            yield from _trusted_leaves(column.children, kind.fields, here)
        elif isinstance(kind, PrimitiveType) and _same_meaning(column, kind):
            leaf = Leaf(
                field_id=field.field_id,
                path=here,
                kind=kind,
                repeated=False,
                mode=_WHOLE_BOUNDS,
            )
            yield column.leaf_index, leaf


def _same_meaning(column: FileColumn, kind: PrimitiveType) -> bool:
    stored, wanted = column.kind, arrow_type(kind)
    if column.leaf_index < 0:
        return False
    if isinstance(kind, DecimalType):
        return bool(pa.types.is_decimal(stored) and stored.scale == kind.scale)
    widened = {(pa.int32(), pa.int64()), (pa.float32(), pa.float64())}
    return stored == wanted or (stored, wanted) in widened
