"""Split rows by partition, whole columns at a time.

1. Every partition field's transform runs on its source column (pyiceberg-core's kernels).
2. Each result column becomes small integer codes; the codes of all fields combine into one.
3. One stable sort of the codes brings each partition's rows together, in their original order.

Floats are told apart by their bits with every NaN as one (the same rule as
`DataFile.partition_key`), so no row can land in a file whose partition value it does not have.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote_plus

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import UnknownTransform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType, NestedField, PrimitiveType, StructType, UnknownType

from tableformat.errors import InvalidInputError, UnsupportedError
from tableformat.integer_order import distinct_inverse, stable_order

PartitionValues = tuple[Any, ...]
_CODE_MAX = 1 << 62
_RADIX_CODES = 1 << 16  # numpy sorts 16-bit integers by radix, in linear time


class Partitioner:
    """A partition spec bound to the schema of the rows it splits.

    Raises:
        InvalidInputError: A source column is not among the rows' columns.
        UnsupportedError: A transform is unknown.
    """

    def __init__(self, spec: PartitionSpec, schema: Schema) -> None:
        self.spec = spec
        self._schema = schema
        self._columns = [_PartitionColumn(field, schema) for field in spec.fields]

    @property
    def is_unpartitioned(self) -> bool:
        """Whether all rows have the same partition: no fields, or only void ones."""
        return all(column.is_void for column in self._columns)

    def split(self, rows: pa.Table) -> Iterator[tuple[PartitionValues, pa.Table]]:
        """Rows by partition.

        Args:
            rows: Columns as `arrow_schema` of the schema.

        Yields:
            Partition values in spec order in internal form, and that partition's rows in their
            original order; partitions in the order of their smallest code. Nothing for no rows.
        """
        if rows.num_rows == 0:
            return
        if self.is_unpartitioned:
            yield (None,) * len(self._columns), rows
            return
        rows = rows.combine_chunks()
        coded = [column.encode(rows) for column in self._columns]
        codes = _combine([(codes, len(values)) for codes, values in coded])
        order = _stable_order(codes)
        starts = np.flatnonzero(np.diff(codes[order], prepend=codes[order[0]] - 1))
        ends = np.append(starts[1:], len(order))
        if len(starts) == 1:
            yield tuple(values[codes[0]] for codes, values in coded), rows
            return
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            first = order[start]
            partition = tuple(values[codes[first]] for codes, values in coded)
            # A copy of its own: a slice, waiting for its row group, would keep all of `rows`.
            yield partition, rows.take(pa.array(order[start:end]))

    def columns(self, rows: pa.Table) -> list[pa.Array]:
        """The partition values of rows, one array per field that has any; see `split`."""
        return [column.values(rows) for column in self._columns if not column.is_void]

    def path(self, partition: PartitionValues) -> str:
        """The folder of a partition, `a=1/b_bucket=3`, escaped; empty when there are no fields."""
        return partition_folder(self.spec, self._schema, partition)


def partition_folder(spec: PartitionSpec, schema: Schema, partition: PartitionValues) -> str:
    """`Partitioner.path` of a spec.

    Years before 1 and after 9999, of which the library makes no text, are there as they are kept.
    """
    if not spec.fields:
        return ""
    try:
        return spec.partition_to_path(Record(*partition), schema)
    except OverflowError:
        pairs = zip(spec.fields, partition, strict=True)
        return "/".join(f"{quote_plus(f.name)}={quote_plus(str(each))}" for f, each in pairs)


class _PartitionColumn:
    """One partition field: where its source is, and how it is computed."""

    def __init__(self, field: PartitionField, schema: Schema) -> None:
        self.is_void = isinstance(field.transform, VoidTransform)
        self._field = field
        if self.is_void:
            return
        found = struct_path(schema, field.source_id)
        if found is None:
            raise InvalidInputError(
                "the column that the partition is computed from is not among the rows' columns",
                partition_field=field.name,
                source_id=field.source_id,
            )
        self._path, source = found
        self._type: IcebergType = source.field_type
        if isinstance(field.transform, UnknownTransform):
            raise UnsupportedError(
                f"unknown partition transform {field.transform}", partition_field=field.name
            )
        if not isinstance(self._type, PrimitiveType) or not field.transform.can_transform(
            self._type
        ):
            raise InvalidInputError(
                f"cannot partition type {self._type} by {field.transform}",
                partition_field=field.name,
            )

    def encode(self, rows: pa.Table) -> tuple[npt.NDArray[np.int64], list[Any]]:
        """Codes, shape `(rows,)`, and the partition value each code stands for."""
        if self.is_void:
            return np.zeros(rows.num_rows, dtype=np.int64), [None]
        if isinstance(self._type, UnknownType):
            return np.zeros(rows.num_rows, dtype=np.int64), [None]
        return encode_values(self.values(rows))

    def values(self, rows: pa.Table) -> pa.Array:
        """The transformed source column."""
        source = flat_column(rows, self._path)
        if isinstance(self._type, UnknownType):
            return source
        transformed: pa.Array = self._field.transform.pyarrow_transform(self._type)(source)
        return transformed


def struct_path(schema: Schema, field_id: int) -> tuple[tuple[str, ...], NestedField] | None:
    """Names from the root to a field that is reached through structs only; None otherwise."""

    def search(
        fields: tuple[NestedField, ...], path: tuple[str, ...]
    ) -> tuple[tuple[str, ...], NestedField] | None:
        for field in fields:
            here = (*path, field.name)
            if field.field_id == field_id:
                return here, field
            if isinstance(field.field_type, StructType):
                found = search(field.field_type.fields, here)
                if found is not None:
                    return found
        return None

    return search(tuple(schema.fields), ())


def flat_column(rows: pa.Table, path: tuple[str, ...]) -> pa.Array:
    """A column or a field inside structs, as one array; null where a parent is null."""
    column = rows.column(path[0])
    for name in path[1:]:
        column = pc.struct_field(column, name)
    combined = column.combine_chunks()
    return combined if isinstance(combined, pa.Array) else pa.concat_arrays(combined.chunks)


def encode_values(values: pa.Array) -> tuple[npt.NDArray[np.int64], list[Any]]:
    """Small integers for the distinct values of a column, and those values in internal form.

    Internal form: dates, times and timestamps as int in their unit, UUIDs as `uuid.UUID`, the rest
    as Arrow's Python values. Null is a value of its own.
    """
    kind = values.type
    if isinstance(kind, pa.UuidType):
        values = values.storage
    elif pa.types.is_floating(kind):
        bits = pa.int32() if kind.bit_width == 32 else pa.int64()
        nan = pa.scalar(float("nan"), kind)
        values = pc.if_else(pc.is_nan(values), nan, values).view(bits)
    elif pa.types.is_temporal(kind):
        values = values.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    encoded = values.dictionary_encode(null_encoding="encode")
    codes = np.asarray(encoded.indices).astype(np.int64, copy=False)
    dictionary = encoded.dictionary
    if pa.types.is_floating(kind):
        dictionary = dictionary.view(kind)
    distinct = dictionary.to_pylist()
    if isinstance(kind, pa.UuidType):
        distinct = [None if raw is None else uuid.UUID(bytes=raw) for raw in distinct]
    return codes, distinct


def _combine(columns: list[tuple[npt.NDArray[np.int64], int]]) -> npt.NDArray[np.int64]:
    """One code per row out of several; equal exactly where all of them are equal."""
    combined, size = columns[0]
    for codes, count in columns[1:]:
        if size * count >= _CODE_MAX:
            distinct, combined = distinct_inverse(combined)
            size = len(distinct)
        combined = combined * count + codes
        size *= count
    if size > _RADIX_CODES:
        distinct, combined = distinct_inverse(combined)
    return combined


def _stable_order(codes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    if int(codes.max()) < _RADIX_CODES:
        return np.argsort(codes.astype(np.uint16), kind="stable")
    return stable_order(codes)
