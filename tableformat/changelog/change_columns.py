"""Columns of a changelog: what is read of each row, what is compared, and what comes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from tableformat.cdc.rowkind import SHORT_NAMES, RowKind
from tableformat.changelog.pairing import KeyPath
from tableformat.changelog.steps import ChangeStep
from tableformat.errors import InvalidInputError
from tableformat.scan.key_fields import key_path
from tableformat.scan.plan import ScanPlan
from tableformat.scan.projection import Projection, project
from tableformat.spec.types import ROW_ID_FIELD

CHANGE_TYPE = "_change_type"
CHANGE_ORDINAL = "_change_ordinal"
COMMIT_SNAPSHOT_ID = "_commit_snapshot_id"
CHANGE_FIELDS = (
    pa.field(CHANGE_TYPE, pa.string(), nullable=False),
    pa.field(CHANGE_ORDINAL, pa.int32(), nullable=False),
    pa.field(COMMIT_SNAPSHOT_ID, pa.int64()),
)
_KIND_NAMES = [SHORT_NAMES[kind] for kind in RowKind]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeColumns:
    """See the module's text.

    Attributes:
        read: What is read: the columns asked for, and those of the key.
        key: Which row is which: the primary key; `_row_id` in a table without one.
        compared: Columns in which an update must differ. Metadata columns are none of them: a row
            that only moved did not change.
        rows: Columns of the result that come from the row.
        output: The result's schema.
    """

    read: Projection
    key: tuple[KeyPath, ...]
    compared: tuple[str, ...]
    rows: tuple[str, ...]
    output: pa.Schema

    def finish(self, batch: pa.RecordBatch, kinds: pa.Array, step: ChangeStep) -> pa.RecordBatch:
        """Result columns of rows with the int8 kinds `kinds`."""
        arrays = self._arrays(batch, kinds, step)
        return pa.RecordBatch.from_arrays(arrays, schema=self.output)

    def finish_travelling(
        self, batch: pa.RecordBatch, kinds: pa.Array, step: ChangeStep
    ) -> pa.RecordBatch:
        """As `finish`, for a batch whose columns have other types on their way to an engine."""
        return pa.RecordBatch.from_arrays(self._arrays(batch, kinds, step), names=self.output.names)

    @property
    def row_schema(self) -> Schema:
        """The result's columns that come from the row."""
        return Schema(*(self.read.schema.find_field(name) for name in self.rows))

    def _arrays(self, batch: pa.RecordBatch, kinds: pa.Array, step: ChangeStep) -> list[pa.Array]:
        count = batch.num_rows
        ordinals: NDArray[np.int32] = np.full(count, step.ordinal, np.int32)
        arrays = [batch.column(name) for name in self.rows]
        arrays.append(pa.array(_KIND_NAMES, pa.string()).take(kinds))
        arrays.append(pa.array(ordinals))
        arrays.append(pa.repeat(pa.scalar(step.commit_snapshot_id, pa.int64()), count))
        return arrays


def plan_columns(
    schema: Schema,
    columns: Sequence[str] | None,
    *,
    specs: Mapping[int, PartitionSpec],
    schemas: tuple[Schema, ...],
) -> ChangeColumns:
    """Decide what a changelog reads.

    Raises:
        InvalidInputError: An unknown or repeated column, or one named like a changelog column.
    """
    plan = ScanPlan(
        snapshot=None,
        schema=schema,
        row_filter=AlwaysTrue(),
        tasks=(),
        specs=specs,
        schemas=schemas,
    )
    asked = project(plan, columns)
    rows = tuple(field.name for field in asked.schema.fields)
    taken = [field.name for field in CHANGE_FIELDS if field.name in rows]
    if taken:
        raise InvalidInputError(
            f"the table's column {taken[0]!r} has the name of a changelog column",
            action="name the other columns with columns=[...]",
        )
    key: tuple[KeyPath, ...] = tuple(
        key_path(schema, field_id) for field_id in sorted(schema.identifier_field_ids)
    )
    key = key or ((ROW_ID_FIELD.name,),)
    missing = dict.fromkeys(path[0] for path in key if path[0] not in rows)
    read = project(plan, [*rows, *missing])
    names = [field.name for field in read.schema.fields]
    compared = tuple(name for name in names if name not in read.metadata_names)
    return ChangeColumns(
        read=read,
        key=key,
        compared=compared or tuple(path[0] for path in key),
        rows=rows,
        output=pa.schema([*asked.arrow_schema, *CHANGE_FIELDS]),
    )
