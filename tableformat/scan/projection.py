"""Which columns a scan returns, which it has to read for that, and how one becomes the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from tableformat.cached import cached_property
from tableformat.codec.parquet.row_groups import RowGroupFilter
from tableformat.errors import InvalidInputError
from tableformat.scan.metadata_columns import (
    METADATA_COLUMNS,
    STORED_FIELDS,
    metadata_column,
    metadata_field,
)
from tableformat.scan.plan import ScanPlan
from tableformat.scan.pruning import StatisticsFilter
from tableformat.scan.row_filter import arrow_filter, bind_filter, filter_field_ids
from tableformat.spec.data_file import ManifestEntry
from tableformat.spec.types import arrow_schema


@dataclass(frozen=True, kw_only=True)
class Projection:
    """The columns of a scan's result, in order.

    Attributes:
        schema: Result columns as Iceberg fields.
        metadata_names: Those of them that are metadata columns.
    """

    schema: Schema
    metadata_names: frozenset[str]

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The result's Arrow schema, field ids included."""
        return arrow_schema(self.schema)

    @property
    def needs_positions(self) -> bool:
        """Whether a metadata column is computed from row ordinals."""
        return "_pos" in self.metadata_names

    @property
    def keeps_deleted(self) -> bool:
        """Whether deleted rows are returned, too, and told by `_deleted`."""
        return "_deleted" in self.metadata_names


def project(plan: ScanPlan, columns: Sequence[str] | None) -> Projection:
    """Resolve column names; None is every table column and no metadata column.

    Raises:
        InvalidInputError: An unknown or repeated name, or no name at all.
    """
    table_fields = {field.name: field for field in plan.schema.fields}
    names = list(table_fields) if columns is None else list(columns)
    if not names:
        raise InvalidInputError("a scan needs at least one column")
    fields: list[NestedField] = []
    metadata_names: set[str] = set()
    for name in names:
        if name in table_fields:
            fields.append(table_fields[name])
        elif name in METADATA_COLUMNS:
            fields.append(metadata_field(name, plan.specs, (*plan.schemas, plan.schema)))
            metadata_names.add(name)
        else:
            raise InvalidInputError(f"there is no column {name!r}", columns=", ".join(table_fields))
    if len(set(names)) != len(names):
        raise InvalidInputError("a column is asked for twice", columns=", ".join(names))
    return Projection(schema=Schema(*fields), metadata_names=frozenset(metadata_names))


@dataclass(frozen=True, slots=True)
class FileProjection:
    """What to read from one file, and how its batches become result batches."""

    projection: Projection
    read_schema: Schema
    row_filter: pc.Expression | None
    row_group_filter: RowGroupFilter | None

    def finish(self, batch: pa.RecordBatch, entry: ManifestEntry, plan: ScanPlan) -> pa.RecordBatch:
        """Filter the batch, compute metadata columns, and put columns into result order."""
        if self.row_filter is not None:
            batch = batch.filter(self.row_filter)
        arrays = [
            metadata_column(field, batch, entry, plan.specs)
            if field.name in self.projection.metadata_names
            else batch.column(field.name)
            for field in self.projection.schema.fields
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.projection.arrow_schema)


def project_file(
    plan: ScanPlan, projection: Projection, residual: BooleanExpression
) -> FileProjection:
    """Add the columns that the residual filter and stored lineage need."""
    fields = [
        field for field in projection.schema.fields if field.name not in projection.metadata_names
    ]
    fields += [STORED_FIELDS[name] for name in STORED_FIELDS if name in projection.metadata_names]
    row_filter = row_group_filter = None
    if not isinstance(residual, AlwaysTrue):
        bound = bind_filter(residual, plan.schema)
        wanted = filter_field_ids(bound)
        known = {field.field_id for field in fields}
        for field in plan.schema.fields:
            if field.field_id not in known and wanted & _ids_below(field):
                fields.append(field)
        row_filter = arrow_filter(bound, plan.schema)
        row_group_filter = StatisticsFilter(residual, plan.schema).may_match
    return FileProjection(projection, Schema(*fields), row_filter, row_group_filter)


def _ids_below(field: NestedField) -> frozenset[int]:
    return frozenset(Schema(field).field_ids)
