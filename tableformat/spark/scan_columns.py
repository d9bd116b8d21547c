"""Columns of a native scan: what is read, what is looked up per file, and what comes out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import NestedField, StructType
from pyspark.sql import Column
from pyspark.sql import functions as sf

from tableformat.files.parquet_columns import FileColumn, file_columns
from tableformat.scan.delete_index import sequence_number
from tableformat.scan.metadata_columns import (
    DELETED_FIELD,
    PARTITION_NAME,
    STORED_FIELDS,
    partition_array,
    partition_values,
)
from tableformat.scan.plan import FileScanTask, ScanPlan, map_ordered
from tableformat.scan.projection import Projection
from tableformat.scan.row_filter import filter_field_ids
from tableformat.spark.equality_join import EqualityJoin
from tableformat.spark.field_names import FieldNames
from tableformat.spark.file_lookup import ROW_INDEX, FileLookup
from tableformat.spark.filters import spark_default
from tableformat.spark.native_scan import ReadFields, has_statistics, plan_fields
from tableformat.spark.types import to_spark_batch
from tableformat.spec.data_file import DataFile
from tableformat.store.base import ObjectStore

# The per-file array behind each metadata column that is not computed from the row index alone.
_ARRAYS_OF = {
    "_file": ("locations",),
    "_spec_id": ("spec_ids",),
    "_partition": ("partitions",),
    "_row_id": ("first_row_ids",),
    "_last_updated_sequence_number": ("first_row_ids", "sequences"),
}

Resolver = Callable[[int], Column]


class ScanColumns:
    """Decides the read schema of a scan and builds its result columns."""

    def __init__(
        self,
        plan: ScanPlan,
        projection: Projection,
        bound: BooleanExpression | None,
        join: EqualityJoin,
    ) -> None:
        self._plan = plan
        self._projection = projection
        self._join = join
        self._arrays = {
            name for column in projection.metadata_names for name in _ARRAYS_OF.get(column, ())
        }
        fields = _needed_fields(plan, projection, bound, join)
        names = FieldNames((*plan.schemas, plan.schema))
        self.fields: ReadFields = plan_fields(fields, names)
        self.obstacle = next(filter(None, (names.obstacle(each) for each in fields)), None)
        self._paths = {
            field_id: path for each in fields for field_id, path in _paths(each, each.field_id)
        }

    def needs_lookup(self, *, with_keys: bool) -> bool:
        """Whether rows need to know their file."""
        return with_keys or bool(self._arrays)

    @property
    def helpers(self) -> frozenset[str]:
        """Helper columns that the outputs need themselves."""
        return frozenset(
            {ROW_INDEX} if self._projection.metadata_names & {"_pos", "_row_id"} else ()
        )

    def lookup_values(
        self, tasks: Sequence[FileScanTask], *, with_keys: bool
    ) -> dict[str, pa.Array]:
        """The per-file arrays, in task order."""
        names = self._arrays | ({"sequences", "scopes"} if with_keys else set())
        return {name: self._array(name, tasks) for name in sorted(names)}

    def resolver(self, missing: frozenset[int]) -> Resolver:
        """Columns by field id for files that do not store the `missing` top-level columns."""
        defaults = {
            each.field_id: spark_default(each.initial_default, each.field_type)
            for each in self.fields.fields
            if each.field_id in missing
        }

        def resolve(field_id: int) -> Column:
            top, names = self._paths[field_id]
            column = defaults[top] if top in defaults else self.fields.column(top)
            for name in names:
                column = column.getField(name)
            return column

        return resolve

    def outputs(
        self, resolve: Resolver, lookup: FileLookup | None, name_template: str
    ) -> list[Column]:
        """The projection's columns, aliased by ordinal."""
        columns = []
        for ordinal, each in enumerate(self._projection.schema.fields):
            if each.name in self._projection.metadata_names:
                column = self._metadata_column(each.name, resolve, lookup)
            else:
                column = resolve(each.field_id)
            columns.append(column.alias(name_template.format(ordinal)))
        return columns

    def _metadata_column(self, name: str, resolve: Resolver, lookup: FileLookup | None) -> Column:
        row_index = sf.col(ROW_INDEX)
        if name == "_pos":
            return row_index
        if name == DELETED_FIELD.name:
            return sf.lit(False) if lookup is None else ~lookup.is_live()
        assert lookup is not None, f"{name} is looked up per file"
        if name not in STORED_FIELDS:
            return lookup.value(_ARRAYS_OF[name][0])
        first_row_id = lookup.value("first_row_ids")
        inherited = first_row_id + row_index if name == "_row_id" else lookup.value("sequences")
        stored = resolve(STORED_FIELDS[name].field_id)
        return sf.when(first_row_id.isNotNull(), sf.coalesce(stored, inherited))

    def _array(self, name: str, tasks: Sequence[FileScanTask]) -> pa.Array:
        files = [task.entry.data_file for task in tasks]
        if name == "locations":
            return pa.array([file.file_path for file in files], pa.string())
        if name == "spec_ids":
            return pa.array([file.spec_id for file in files], pa.int32())
        if name == "first_row_ids":
            return pa.array([file.first_row_id for file in files], pa.int64())
        if name == "sequences":
            return pa.array([sequence_number(task.entry) for task in tasks], pa.int64())
        if name == "scopes":
            return pa.array([self._join.scope_of(file) for file in files], pa.int32())
        assert name == "partitions", name
        return self._partitions(tasks)

    def _partitions(self, tasks: Sequence[FileScanTask]) -> pa.Array:
        column = self._projection.schema.find_field(PARTITION_NAME)
        struct = column.field_type
        assert isinstance(struct, StructType)
        rows = [partition_values(task.entry, self._plan.specs) for task in tasks]
        array = partition_array(rows, struct)
        batch = pa.RecordBatch.from_arrays([array], names=[PARTITION_NAME])
        return to_spark_batch(batch, Schema(column)).column(0)


def stored_columns(store: ObjectStore, file: DataFile) -> tuple[FileColumn, ...]:
    """The columns in the file's footer."""
    with store.open_input(file.file_path) as source:
        return file_columns(pq.read_schema(source))


def absent_columns(
    store: ObjectStore,
    plan: ScanPlan,
    tasks: Sequence[FileScanTask],
    fields: Sequence[NestedField],
) -> list[frozenset[int]]:
    """Per task the columns that its file does not store although they are not just NULL then.

    Those are columns with an initial default, and sources of identity partitions. Statistics in
    the manifest show most columns that are there; where they do not, the footer is read.
    """

    def absent(task: FileScanTask) -> frozenset[int]:
        data = task.entry.data_file
        constant = identity_sources(data, plan)
        unknown = {
            each.field_id
            for each in fields
            if (each.initial_default is not None or each.field_id in constant)
            and not has_statistics(data, each)
        }
        if unknown:
            unknown -= {column.field_id for column in stored_columns(store, data)}
        return frozenset(unknown)

    return map_ordered(absent, tasks)


def identity_sources(data: DataFile, plan: ScanPlan) -> frozenset[int]:
    """Columns whose value the file's partition tells."""
    return frozenset(
        part.source_id
        for part in plan.specs[data.spec_id].fields
        if isinstance(part.transform, IdentityTransform)
    )


def _needed_fields(
    plan: ScanPlan,
    projection: Projection,
    bound: BooleanExpression | None,
    join: EqualityJoin,
) -> list[NestedField]:
    """Top-level fields that outputs, filter and equality deletes need; each id once."""
    needed: dict[int, NestedField] = {}
    for each in projection.schema.fields:
        if each.name not in projection.metadata_names:
            needed[each.field_id] = each
        elif each.name in STORED_FIELDS:
            needed[each.field_id] = STORED_FIELDS[each.name]
    wanted = set() if bound is None else set(filter_field_ids(bound))
    wanted |= set(join.key_ids)
    for each in plan.schema.fields:
        if each.field_id not in needed and wanted & {i for i, _ in _paths(each, each.field_id)}:
            needed[each.field_id] = each
    known = {field_id for each in needed.values() for field_id, _ in _paths(each, each.field_id)}
    for field_id in join.key_ids:
        if field_id not in known:  # dropped since, or below a struct that was
            key = join.key_field(field_id)
            needed.setdefault(key.field_id, key)
    return list(needed.values())


def _paths(
    column: NestedField, top: int, names: tuple[str, ...] = ()
) -> list[tuple[int, tuple[int, tuple[str, ...]]]]:
    """Field ids below structs, each with the top-level id and the names that lead to it."""
    found = [(column.field_id, (top, names))]
    if isinstance(column.field_type, StructType):
        for child in column.field_type.fields:
            found += _paths(child, top, (*names, child.name))
    return found
