"""Write equality deletes: keys whose older rows are gone (spec: Equality Delete Files)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, prune_columns
from pyiceberg.types import DoubleType, FloatType, NestedField, PrimitiveType, StructType

from tableformat.codec.parquet.options import parquet_options
from tableformat.errors import InvalidInputError
from tableformat.spec.data_file import DataFile, FileContent
from tableformat.spec.unpartitioned import source_ids
from tableformat.store.base import ObjectStore
from tableformat.write.data_files import conform_rows, pieces
from tableformat.write.file_set import FileSet
from tableformat.write.partitioning import Partitioner, struct_path


def write_equality_deletes(
    store: ObjectStore,
    keys: pa.Table,
    *,
    schema: Schema,
    equality_ids: Sequence[int],
    spec: PartitionSpec,
    properties: Mapping[str, str],
    location_for: Callable[[str], str],
    carried_ids: Sequence[int] = (),
) -> list[DataFile]:
    """Write one delete per row of `keys`.

    Args:
        store: Where the files go.
        keys: The key columns by name (nested ones inside their structs), and the columns that the
            partition is computed from; other columns of the table may be there. Only the key
            columns are stored. Nulls match nulls.
        schema: The table's schema.
        equality_ids: Field ids of the key columns.
        spec: Unpartitioned: the deletes reach every partition. Else they reach the rows of the
            same spec and partition only.
        properties: Table properties (`write.delete.*`, else `write.*`).
        location_for: Gives a fresh absolute location for a partition path.
        carried_ids: Top-level columns that are stored beside the key and compare nothing (spec:
            "delete columns" are those of `equality_ids`); null where `keys` lacks them.

    Returns:
        Equality delete files with `equality_ids` set; none for no keys. Nothing is committed.

    Raises:
        InvalidInputError: A key column is unknown, float or double, not flat, or inside a list or
            map; it or a column the partition needs is missing in `keys` (filling it with nulls
            would make a delete that reaches other rows than was meant); a value does not fit.

    Effects: as `write_data_files`.
    """
    ids = check_equality_ids(schema, equality_ids)
    sources = source_ids(spec)
    carried = set(carried_ids)
    given_schema = _optional(_pruned(schema, set(ids) | sources | carried), carried)
    stored = _optional(_pruned(schema, set(ids) | carried), carried)
    keys = _with_carried(keys, given_schema, carried - sources)
    _, batches = conform_rows(_key_columns(keys, given_schema, schema), given_schema)
    partitioner = Partitioner(spec, given_schema)
    with FileSet(
        store,
        schema=stored,
        partitioner=partitioner,
        options=parquet_options(properties, for_deletes=True),
        properties=properties,
        location_for=location_for,
        content=FileContent.EQUALITY_DELETES,
        equality_ids=ids,
    ) as files:
        for piece in pieces(batches):
            for partition, part in partitioner.split(piece):
                files.add(partition, part)
        return files.finish()


def _pruned(schema: Schema, ids: set[int]) -> Schema:
    # Without identifier fields: PyIceberg refuses optional ones, which a key of ours may have.
    bare = schema.model_copy(update={"identifier_field_ids": []})
    return prune_columns(bare, ids, select_full_types=False)


def _optional(schema: Schema, ids: set[int]) -> Schema:
    fields = [
        each.model_copy(update={"required": False, "write_default": None})
        if each.field_id in ids
        else each
        for each in schema.fields
    ]
    return Schema(*fields, schema_id=schema.schema_id)


def _with_carried(keys: pa.Table, schema: Schema, ids: set[int]) -> pa.Table:
    for each in schema.fields:
        if each.field_id in ids and each.name not in keys.column_names:
            keys = keys.append_column(each.name, pa.nulls(keys.num_rows))
    return keys


def check_equality_ids(schema: Schema, equality_ids: Sequence[int]) -> tuple[int, ...]:
    """The ids, checked, in the order given.

    Raises:
        InvalidInputError: See `write_equality_deletes`.
    """
    if not equality_ids or len(set(equality_ids)) != len(equality_ids):
        raise InvalidInputError("equality ids must be distinct and at least one", ids=equality_ids)
    for field_id in equality_ids:
        found = struct_path(schema, field_id)
        if found is None:
            raise InvalidInputError(
                "key column is not in the schema, or inside a list or map", field_id=field_id
            )
        path, field = found
        name = ".".join(path)
        if isinstance(field.field_type, FloatType | DoubleType):
            raise InvalidInputError(
                f"type {field.field_type} cannot be a key: equality is not exact", column=name
            )
        if not isinstance(field.field_type, PrimitiveType):
            raise InvalidInputError(f"type {field.field_type} cannot be a key", column=name)
    return tuple(equality_ids)


def _key_columns(keys: pa.Table, wanted: Schema, schema: Schema) -> pa.Table:
    """The wanted columns and struct fields of `keys`; all must be there, none may be unknown."""
    fields = _checked(keys.schema, wanted.fields, schema.fields, "")
    columns = []
    for field in fields:
        column = keys.column(field.name)
        if isinstance(field.field_type, StructType):
            chunks = [_cut_struct(chunk, field.field_type) for chunk in column.chunks]
            column = pa.chunked_array(chunks) if chunks else column
        columns.append(column)
    return pa.Table.from_arrays(columns, names=[field.name for field in fields])


def _checked(
    given: Iterable[pa.Field],
    wanted: Sequence[NestedField],
    known: Sequence[NestedField],
    path: str,
) -> Sequence[NestedField]:
    types = {field.name: field.type for field in given}
    known_types = {field.name: field.field_type for field in known}
    for name in types:
        if name not in known_types:
            raise InvalidInputError("unknown column", column=path + name)
    for field in wanted:
        here = path + field.name
        if field.name not in types:
            raise InvalidInputError("column of the key or its partition is missing", column=here)
        kind, full = field.field_type, known_types[field.name]
        if isinstance(kind, StructType) and isinstance(full, StructType):
            if not pa.types.is_struct(types[field.name]):
                raise InvalidInputError(
                    f"Arrow type {types[field.name]} is not a struct", column=here
                )
            _checked(types[field.name], kind.fields, full.fields, f"{here}.")
    return wanted


def _cut_struct(values: pa.StructArray, kind: StructType) -> pa.StructArray:
    children = []
    for field in kind.fields:
        child = values.field(values.type.get_field_index(field.name))
        if isinstance(field.field_type, StructType):
            child = _cut_struct(child, field.field_type)
        children.append(child)
    mask = values.is_null() if values.null_count else None
    return pa.StructArray.from_arrays(
        children, names=[field.name for field in kind.fields], mask=mask
    )
