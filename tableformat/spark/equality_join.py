"""Equality deletes as anti-joins: for scans of staging, whose deletes nobody has resolved yet.

Per set of key columns, and per scope (global, or confined to partitions), one join:

```
rows  left anti join  deleted keys
  on  keys are equal, NULL to NULL
  and delete's sequence number > row's file's           (strictly)
  and partition of the delete = partition of the file   (unless global)
```
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField, StructType
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from tableformat.scan.delete_index import sequence_number
from tableformat.scan.key_fields import key_schema
from tableformat.scan.plan import FileScanTask, ScanPlan
from tableformat.spark.file_lookup import FileLookup, LookedUpFile, split_by_key
from tableformat.spark.filters import all_of
from tableformat.spark.native_scan import ReadFields, file_obstacle, read_files
from tableformat.spark.native_types import is_native
from tableformat.spec.data_file import DataFile, DeleteFileKey, ManifestEntry, PartitionKey
from tableformat.spec.unpartitioned import is_unpartitioned

# Deleted keys that are sent to every executor instead of shuffling all rows to meet them.
BROADCAST_KEYS_MAX = 2_000_000

ROW_KEY = "__icefold_row_key_{}"
ROW_SEQUENCE = "__icefold_row_sequence"
ROW_SCOPE = "__icefold_row_scope"
DELETED_KEY = "__icefold_deleted_key_{}"
DELETE_SEQUENCE = "__icefold_delete_sequence"
DELETE_SCOPE = "__icefold_delete_scope"


@dataclass(slots=True)
class DeleteGroup:
    """Equality delete files with the same key columns and the same kind of scope."""

    equality_ids: tuple[int, ...]
    is_global: bool
    entries: dict[DeleteFileKey, ManifestEntry] = field(default_factory=dict)


class EqualityJoin:
    """The equality deletes of a scan's tasks, ready to be joined.

    Args:
        plan: The scan.
        tasks: Tasks that equality deletes reach.
    """

    def __init__(self, plan: ScanPlan, tasks: Iterable[FileScanTask]) -> None:
        self._plan = plan
        self._scopes: dict[PartitionKey, int] = {}
        groups: dict[tuple[tuple[int, ...], bool], DeleteGroup] = {}
        for task in tasks:
            for entry in task.equality_deletes:
                delete = entry.data_file
                ids = tuple(sorted(delete.equality_ids or ()))
                is_global = is_unpartitioned(plan.specs[delete.spec_id])
                group = groups.setdefault((ids, is_global), DeleteGroup(ids, is_global))
                group.entries[delete.identity] = entry
        self.groups = tuple(groups.values())
        schemas = (*plan.schemas, plan.schema)
        self._schemas = {ids: key_schema(schemas, ids) for ids, _ in groups}

    @property
    def key_ids(self) -> tuple[int, ...]:
        """Ids of all key columns that rows need."""
        return tuple(sorted({each for group in self.groups for each in group.equality_ids}))

    def key_field(self, field_id: int) -> NestedField:
        """The top-level field that holds a key column, cut down to it."""
        return key_schema((*self._plan.schemas, self._plan.schema), [field_id]).fields[0]

    def obstacle(self) -> str | None:
        """Why Spark cannot read the delete files itself; None if it can."""
        for group in self.groups:
            for each in self._schemas[group.equality_ids].fields:
                # A key inside a struct: Spark would look for the struct by its name.
                if not is_native(each.field_type) or isinstance(each.field_type, StructType):
                    return f"key column {each.name} is {each.field_type}"
            for entry in group.entries.values():
                found = file_obstacle(entry.data_file)
                if found is not None:
                    return found
        return None

    def files(self) -> list[DataFile]:
        """The delete files."""
        return [entry.data_file for group in self.groups for entry in group.entries.values()]

    def scope_of(self, file: DataFile) -> int:
        """A number for the file's partition, the same for data and delete files."""
        return self._scopes.setdefault(file.partition_key, len(self._scopes))

    def apply(self, spark: SparkSession, rows: DataFrame) -> DataFrame:
        """Drop the rows that a delete kills.

        Args:
            spark: The session.
            rows: With `ROW_KEY` of every key column, `ROW_SEQUENCE` and `ROW_SCOPE`.
        """
        for group in self.groups:
            deletes = self._deletes(spark, group)
            if sum(e.data_file.record_count for e in group.entries.values()) <= BROADCAST_KEYS_MAX:
                deletes = sf.broadcast(deletes)
            rows = rows.join(deletes, self._condition(group), "left_anti")
        return rows

    def _condition(self, group: DeleteGroup) -> Column:
        conditions = [sf.col(DELETE_SEQUENCE) > sf.col(ROW_SEQUENCE)]
        for ordinal, field_id in enumerate(group.equality_ids):
            row_key, deleted = sf.col(ROW_KEY.format(field_id)), sf.col(DELETED_KEY.format(ordinal))
            if _may_delete_null(group.entries.values(), field_id):
                conditions.append(row_key.eqNullSafe(deleted))
            else:  # plain equality joins faster, and a null row key matches nothing, as it should
                conditions.append(row_key == deleted)
        if not group.is_global:
            conditions.append(sf.col(DELETE_SCOPE) == sf.col(ROW_SCOPE))
        return all_of(conditions)

    def _deletes(self, spark: SparkSession, group: DeleteGroup) -> DataFrame:
        schema = self._schemas[group.equality_ids]
        fields = _hidden_fields(schema)
        entries = list(group.entries.values())
        files = [_looked_up(entry.data_file) for entry in entries]
        frame: DataFrame | None = None
        for key, members in split_by_key(files, words_max=sum_of_words(files)):
            part = [entries[index] for index in members]
            values = {
                "sequences": pa.array([sequence_number(each) for each in part], pa.int64()),
                "scopes": pa.array([self.scope_of(each.data_file) for each in part], pa.int32()),
            }
            lookup = FileLookup(spark, key, [files[index] for index in members], values=values)
            read = read_files(
                spark, [each.data_file.file_path for each in part], fields, lookup.helpers
            )
            keys = [
                fields.column(field_id).alias(DELETED_KEY.format(ordinal))
                for ordinal, field_id in enumerate(group.equality_ids)
            ]
            scope = [] if group.is_global else [lookup.value("scopes").alias(DELETE_SCOPE)]
            selected = read.where(lookup.is_live()).select(
                *keys, lookup.value("sequences").alias(DELETE_SEQUENCE), *scope
            )
            frame = selected if frame is None else frame.unionAll(selected)
        assert frame is not None, "a group has at least one delete file"
        return frame


def sum_of_words(files: Sequence[LookedUpFile]) -> int:
    """A bound that never splits: delete files have no deleted rows to look up."""
    return sum(file.record_count for file in files) + len(files)


def _looked_up(file: DataFile) -> LookedUpFile:
    return LookedUpFile(file.file_path, file.file_size_in_bytes, file.record_count)


def _hidden_fields(schema: Schema) -> ReadFields:
    """Key columns under their `key_schema` names, which no file has: nothing is pushed down."""
    names: Mapping[int, str] = {each.field_id: each.name for each in schema.fields}
    return ReadFields(fields=tuple(schema.fields), names=names)


def _may_delete_null(entries: Iterable[ManifestEntry], field_id: int) -> bool:
    return any((entry.data_file.null_value_counts or {}).get(field_id) != 0 for entry in entries)
