"""Write equality deletes: keys whose older rows are gone (spec: Equality Delete Files)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, prune_columns
from pyiceberg.types import DoubleType, FloatType, PrimitiveType

from tableformat.errors import InvalidInputError
from tableformat.files.parquet_options import parquet_options
from tableformat.spec.data_file import DataFile, FileContent
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
) -> list[DataFile]:
    """Write one delete per row of `keys`.

    Args:
        store: Where the files go.
        keys: The key columns by name (nested ones inside their structs), and the columns that the
            partition is computed from. Only the key columns are stored. Nulls match nulls.
        schema: The table's schema.
        equality_ids: Field ids of the key columns.
        spec: Unpartitioned: the deletes reach every partition. Else they reach the rows of the
            same spec and partition only.
        properties: Table properties (`write.delete.*`, else `write.*`).
        location_for: Gives a fresh absolute location for a partition path.

    Returns:
        Equality delete files with `equality_ids` set; none for no keys. Nothing is committed.

    Raises:
        InvalidInputError: A key column is unknown, float or double, not flat, or inside a list or
            map; a column the partition needs is missing; a value does not fit.

    Effects: as `write_data_files`.
    """
    ids = check_equality_ids(schema, equality_ids)
    sources = {field.source_id for field in spec.fields}
    given_schema = prune_columns(schema, set(ids) | sources, select_full_types=False)
    stored = prune_columns(schema, set(ids), select_full_types=False)
    full_schema, batches = conform_rows(keys, given_schema)
    if full_schema is None or keys.num_rows == 0:
        return []
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
