"""Which columns of a Parquet file hold which fields of a projection, found by field id.

A file's columns form a tree (structs, lists, maps). Selecting leaves prunes that tree the way
Arrow's reader prunes its output, so positions in a `FileColumn` are positions in what is read.
Files without any field id get ids from the table's name mapping (spec: Column Projection).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.table.name_mapping import MappedField, NameMapping
from pyiceberg.types import ListType, MapType, NestedField, StructType

from tableformat.errors import CorruptDataError
from tableformat.spec.types import field_id_of, is_list


@dataclass(frozen=True, slots=True, kw_only=True)
class FileColumn:
    """One node of a file's column tree.

    `children` are the struct's fields, a list's element, or a map's key and value. `leaf_index` is
    the Parquet column index of a leaf, -1 for the others. `is_int96`: a timestamp that does not say
    whether it is an instant or local.
    """

    name: str
    field_id: int | None
    kind: pa.DataType
    children: tuple[FileColumn, ...] = ()
    leaf_index: int = -1
    is_int96: bool = False

    def ids(self) -> Iterator[int]:
        """Field ids here and below."""
        if self.field_id is not None:
            yield self.field_id
        for child in self.children:
            yield from child.ids()

    def leaves(self) -> Iterator[int]:
        """Parquet column indices below, in file order."""
        if self.leaf_index >= 0:
            yield self.leaf_index
        for child in self.children:
            yield from child.leaves()


def file_columns(file: pq.ParquetFile) -> tuple[FileColumn, ...]:
    """The column tree of a file, from the Arrow schema that Arrow's Parquet reader derives."""
    counter = iter(range(1 << 31))
    return tuple(_column(field, counter, file.schema) for field in file.schema_arrow)


def has_field_ids(columns: Sequence[FileColumn]) -> bool:
    """Whether any column of the file carries a field id."""
    return any(True for column in columns for _ in column.ids())


def map_columns(
    columns: Sequence[FileColumn], mapping: NameMapping | None
) -> tuple[FileColumn, ...]:
    """Give the columns of a file without field ids the ids of the table's name mapping.

    Raises:
        CorruptDataError: The table has no name mapping.
    """
    if mapping is None:
        raise CorruptDataError(
            "the file has no field ids and the table has no name mapping",
            action="set the table property schema.name-mapping.default",
        )
    return tuple(_mapped(column, list(mapping)) for column in columns)


def select_columns(
    columns: Sequence[FileColumn], wanted: Sequence[NestedField]
) -> tuple[FileColumn, ...]:
    """The part of the tree that must be read for `wanted`, in file order.

    A struct, list or map of which no wanted child is stored keeps one leaf: it says where the
    parent is null and how long it is.
    """
    by_id = {field.field_id: field for field in wanted}
    return tuple(
        _pruned(column, by_id[column.field_id])
        for column in columns
        if column.field_id is not None and column.field_id in by_id
    )


def _column(field: pa.Field, counter: Iterator[int], stored: pq.ParquetSchema) -> FileColumn:
    kind = field.type
    if pa.types.is_struct(kind):
        parts = list(kind)
    elif is_list(kind):
        parts = [kind.value_field]
    elif pa.types.is_map(kind):
        parts = [kind.key_field, kind.item_field]
    else:
        leaf = next(counter)
        return FileColumn(
            name=field.name,
            field_id=field_id_of(field),
            kind=kind,
            leaf_index=leaf,
            is_int96=pa.types.is_timestamp(kind) and stored.column(leaf).physical_type == "INT96",
        )
    return FileColumn(
        name=field.name,
        field_id=field_id_of(field),
        kind=kind,
        children=tuple(_column(part, counter, stored) for part in parts),
    )


def _mapped(column: FileColumn, names: Sequence[MappedField]) -> FileColumn:
    found = next((each for each in names if column.name in each.names), None)
    # `is None`, not truth: a mapped field without children has length 0.
    below: Sequence[MappedField] = () if found is None else found.fields
    if is_list(column.kind):
        children = tuple(
            _mapped(replace(child, name="element"), below) for child in column.children
        )
    elif pa.types.is_map(column.kind):
        children = tuple(
            _mapped(replace(child, name=name), below)
            for child, name in zip(column.children, ("key", "value"), strict=True)
        )
    else:
        children = tuple(_mapped(child, below) for child in column.children)
    return replace(column, field_id=None if found is None else found.field_id, children=children)


def _pruned(column: FileColumn, wanted: NestedField) -> FileColumn:
    kind = wanted.field_type
    if isinstance(kind, StructType) and pa.types.is_struct(column.kind):
        children = select_columns(column.children, kind.fields)
    elif isinstance(kind, ListType) and is_list(column.kind):
        children = (_pruned(column.children[0], kind.element_field),)
    elif isinstance(kind, MapType) and pa.types.is_map(column.kind):
        # All of the key: without it Arrow would read a list.
        children = (column.children[0], _pruned(column.children[1], kind.value_field))
    else:
        return column
    if not children:
        children = (_first_leaf(column.children[0]),)
    return replace(column, children=children)


def _first_leaf(column: FileColumn) -> FileColumn:
    if not column.children:
        return column
    if pa.types.is_map(column.kind):
        return replace(column, children=(column.children[0], _first_leaf(column.children[1])))
    return replace(column, children=(_first_leaf(column.children[0]),))
