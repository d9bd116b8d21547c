"""Rows of which some columns are missing, as staged data files hold them (`spec.missing_columns`).

What decides where and when a row is deleted cannot be missing: the key, the sequence column, the
columns that place the row's delete, and IMMUTABLE ones that are enforced.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata

from tableformat.errors import UnsupportedError
from tableformat.spec.computed_columns import stored_columns
from tableformat.spec.constraints import immutable_columns, sequence_field_id
from tableformat.spec.data_file import DataFile
from tableformat.spec.field_paths import field_path
from tableformat.spec.missing_columns import (
    MISSING,
    RowMasks,
    has_missing_columns,
    mask_texts,
    replaced,
    zero_array,
)
from tableformat.spec.names import MISSING_COLUMNS
from tableformat.spec.unpartitioned import source_ids


def columns_to_carry(metadata: TableMetadata, spec: PartitionSpec | None) -> list[str]:
    """Top-level columns that no row may lack.

    Args:
        metadata: The table.
        spec: The one that deletes are written under; None without deletes.
    """
    schema = metadata.schema()
    ids = set(schema.identifier_field_ids) | {sequence_field_id(metadata)}
    ids |= source_ids(spec) if spec is not None else set()
    constraint = immutable_columns(metadata)
    if constraint is not None and constraint.enforced:
        ids |= set(constraint.field_ids)
    paths = (field_path(schema, i) for i in sorted(each for each in ids if each is not None))
    return list(dict.fromkeys(path[0] for path in paths if path))


def check_can_be_missing(schema: Schema) -> None:
    """Refuse a table with a column of the name that staged files use.

    Raises:
        UnsupportedError: It has one.
    """
    if any(each.name == MISSING for each in schema.fields):
        raise UnsupportedError(
            "staged rows with missing columns use this column name themselves",
            action="rename the column",
            column=MISSING,
        )


def partial_rows(rows: pa.Table, metadata: TableMetadata) -> pa.Table:
    """Rows whose columns that the table does not give are missing.

    Args:
        rows: Some of the table's columns.
        metadata: The table.

    Returns:
        All of its columns that are not computed, and `MISSING` if any was not given.
    """
    schema = metadata.schema()
    known = {*rows.column_names, *stored_columns(metadata.properties, schema)}
    absent = [each for each in schema.fields if each.name not in known]
    if not absent:
        return rows
    check_can_be_missing(schema)
    everywhere = np.ones(rows.num_rows, dtype=np.bool_)
    texts = mask_texts(
        {each.field_id: everywhere for each in absent},
        rows.num_rows,
        field_ids=[each.field_id for each in schema.fields],
        carries=everywhere,
    )
    for each in absent:
        rows = rows.append_column(each.name, zero_array(each, rows.num_rows))
    return rows.append_column(MISSING, texts)


def storable_rows(rows: pa.Table, schema: Schema) -> pa.Table:
    """Rows with `MISSING`: zeros in required columns that are missing; without it if all are whole.

    Args:
        rows: The table's columns; where one is missing its value means nothing.
        schema: The table's.
    """
    if MISSING not in rows.column_names:
        return rows
    if rows.column(MISSING).null_count == rows.num_rows:
        return rows.drop_columns([MISSING])
    masks = RowMasks.parse(rows.column(MISSING))
    for field in schema.fields:
        lacks = masks.lacks(field.field_id)
        if lacks.any() and field.name in rows.column_names:
            values = _one(rows.column(field.name))
            zeros = zero_array(field, 1)
            if zeros.type != values.type:
                zeros = zeros.cast(values.type)
            column = replaced(values, zeros, np.where(lacks, 0, -1))
            at = rows.schema.get_field_index(field.name)
            rows = rows.set_column(at, rows.schema.field(at), column)
    return rows


def rows_that_lack(rows: pa.Table, schema: Schema, names: Iterable[str]) -> dict[int, str]:
    """Rows that lack a column which they must have: the column's name by row ordinal."""
    if MISSING not in rows.column_names or rows.column(MISSING).null_count == rows.num_rows:
        return {}
    masks = RowMasks.parse(rows.column(MISSING))
    found: dict[int, str] = {}
    for name in names:
        lacking = np.flatnonzero(masks.lacks(schema.find_field(name).field_id))
        found |= dict.fromkeys(lacking.tolist(), name)
    return found


def missing_columns_summary(files: Iterable[DataFile]) -> dict[str, str]:
    """What a staged commit says of such rows, so that nobody publishes them as they are."""
    return {MISSING_COLUMNS: "true"} if any(map(has_missing_columns, files)) else {}


def _one(column: pa.ChunkedArray) -> pa.Array:
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.nulls(0, column.type)
