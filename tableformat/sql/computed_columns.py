"""Computed columns: virtual ones when rows are read, stored ones when they are written.

```
definition: expression ─ parse ─ field ids ─ can `sql.values` compute it? ─> ComputedColumn
read:       columns asked ─> columns to read ─> batches ─ compute ─> batches with the columns
Spark:      the frame of the columns to read ─ the same expression, ANSI ─> frame with the columns
write:      rows in the table's form ─ compute ─ is what was given equal? ─> rows to store
```

What is taken is what every reader computes alike: what a row-level statement without Spark may
assign. A version of the table that lacks an input does not have the column.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import NestedField
from sqlglot import exp

from tableformat.array_types import Bools
from tableformat.errors import (
    AlreadyExistsError,
    InvalidInputError,
    UnsupportedError,
    error_context,
)
from tableformat.spec.computed_columns import (
    TYPES,
    ComputedColumn,
    computed_columns,
    stored_columns,
)
from tableformat.spec.missing_columns import MISSING
from tableformat.spec.types import arrow_type
from tableformat.sql.columns import TargetColumns
from tableformat.sql.statement import Assignment, parse_expression, to_sql
from tableformat.sql.values import LocalValue, local_value

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")

_TAKEN = "columns, literals, +, - and *: integers into int and long, doubles into double"


@dataclass(frozen=True, slots=True)
class ResultColumns:
    """The columns of a read of which some are computed. Picklable.

    Attributes:
        names: Result columns in order.
        computed: Those that are computed, by name.
        table_schema: What rows are read with.
    """

    names: tuple[str, ...]
    computed: Mapping[str, ComputedColumn]
    table_schema: Schema

    @property
    def read(self) -> tuple[str, ...]:
        """The columns to read: those asked for, then what the computed ones need."""
        by_id = {field.field_id: field.name for field in self.table_schema.fields}
        plain = [name for name in self.names if name not in self.computed]
        inputs = [by_id[i] for each in self.computed.values() for i in each.inputs.values()]
        return tuple(dict.fromkeys([*plain, *inputs])) or (self.table_schema.fields[0].name,)

    def schema(self, read: Schema) -> Schema:
        """The result's schema, `read` being that of the columns that are read."""
        ids = (-2 - at for at in range(len(self.computed)))  # nothing is stored under them
        return Schema(
            *(
                _field(self.computed[name], next(ids))
                if name in self.computed
                else next(field for field in read.fields if field.name == name)
                for name in self.names
            )
        )

    def arrow_schema(self, read: pa.Schema) -> pa.Schema:
        """As `schema`, of Arrow."""
        return pa.schema(
            [
                pa.field(name, arrow_type(TYPES[self.computed[name].type]))
                if name in self.computed
                else read.field(name)
                for name in self.names
            ]
        )

    def finished(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Batches of the columns that were read, as batches of the result.

        Raises:
            InvalidInputError: A result does not fit its type; names the column.
        """
        values = {name: _compiled(each, self.table_schema) for name, each in self.computed.items()}

        def column(batch: pa.RecordBatch, name: str) -> pa.Array:
            if name not in values:
                return batch.column(name)
            with error_context(column=name, expression=self.computed[name].expression):
                return values[name].compute(batch)

        closer: Any = batches
        with closing(closer):
            for batch in batches:
                yield pa.RecordBatch.from_arrays(
                    [column(batch, name) for name in self.names],
                    schema=self.arrow_schema(batch.schema),
                )

    def on_spark(self, frame: Any) -> Any:
        """Spark's frame of the columns that are read, as one of the result.

        Raises:
            UnsupportedError: The session's arithmetic is not ANSI's, which overflows silently.
        """
        from pyspark.sql import functions as sf  # an optional dependency

        if str(frame.sparkSession.conf.get("spark.sql.ansi.enabled")).lower() != "true":
            raise UnsupportedError(
                "computed columns need Spark's ANSI mode",
                columns=", ".join(self.computed),
                action="set spark.sql.ansi.enabled to true, or choose other columns",
            )
        spark_types = {"int": "int", "long": "bigint", "double": "double"}
        columns = []
        for name in self.names:
            if name in self.computed:
                each = self.computed[name]
                tree = _bound(each, self.table_schema)
                column = sf.expr(to_sql(tree)).cast(spark_types[each.type]).alias(name)
            else:
                column = sf.col(f"`{name.replace('`', '``')}`")
            columns.append(column)
        return frame.select(*columns)


def result_columns(
    metadata: TableMetadata, schema: Schema, columns: Sequence[str] | None
) -> ResultColumns | None:
    """What a read of `columns` computes; None: nothing.

    Args:
        metadata: Declares the columns.
        schema: What rows are read with.
        columns: Names asked for; None: every column of the table, then every computed one.

    Raises:
        InvalidInputError: A computed column is asked for twice, or cannot be computed any more
            since the type of an input has changed.
    """
    declared = computed_columns(metadata.properties)
    usable = {name: each for name, each in declared.items() if each.is_in(schema)}
    names = (
        [*(field.name for field in schema.fields), *usable] if columns is None else list(columns)
    )
    computed = {name: usable[name] for name in names if name in usable}
    if not computed:
        return None
    if len(set(names)) != len(names):
        raise InvalidInputError("a column is asked for twice", columns=", ".join(names))
    for each in computed.values():
        _compiled(each, schema)
    return ResultColumns(tuple(names), computed, schema)


@dataclass(frozen=True, slots=True)
class StoredValues:
    """Computes the stored columns of rows that are written.

    Attributes:
        columns: By the name that the schema has.
        values: How each is computed, by that name.
    """

    columns: Mapping[str, ComputedColumn]
    values: Mapping[str, LocalValue]

    @classmethod
    def of(cls, properties: Mapping[str, str], schema: Schema) -> StoredValues | None:
        """Those of a table; None without any.

        Raises:
            InvalidInputError: One cannot be computed any more: an input is gone, or has a type
                that does not fit.
        """
        columns = stored_columns(properties, schema)
        if not columns:
            return None
        return cls(columns, {name: _compiled(each, schema) for name, each in columns.items()})

    def inputs(self, names: Iterable[str], schema: Schema) -> set[str]:
        """The columns that the stored ones among `names` are computed from."""
        wanted = (self.columns[name] for name in names if name in self.columns)
        return {schema.find_field(i).name for each in wanted for i in each.inputs.values()}

    def compute(self, name: str, rows: pa.RecordBatch) -> pa.Array:
        """The values of one column; `rows` has its inputs in the table's form.

        Raises:
            InvalidInputError: A result does not fit its type; names the column.
        """
        with error_context(column=name, expression=self.columns[name].expression):
            return self.values[name].compute(rows)

    def differing(self, name: str, rows: pa.RecordBatch) -> Bools:
        """Which rows hold another value than the expression's; shape `(rows,)`."""
        return _differ(rows.column(name), self.compute(name, rows))

    def written(self, rows: pa.RecordBatch, *, checks: bool) -> pa.RecordBatch:
        """Rows to store: in the table's form, with the computed values.

        Args:
            rows: What is given, the stored columns included: NULL where they were left out. Rows
                with missing columns are NULL there, until those are filled.
            checks: Whether a value that is given has to be the computed one.

        Raises:
            InvalidInputError: It is not, or a result does not fit its type.
        """
        partial = np.zeros(len(rows), np.bool_)
        if MISSING in rows.schema.names:
            partial = rows.column(MISSING).is_valid().to_numpy(zero_copy_only=False)
        bare = rows if not partial.any() else _nulled(rows, pa.array(partial))
        arrays = dict(zip(rows.schema.names, rows.columns, strict=True))
        for name in self.columns:
            value = self.compute(name, bare)
            given = rows.column(name)
            wrong = _differ(given, value) & given.is_valid().to_numpy(zero_copy_only=False)
            if checks and (wrong & ~partial).any():
                at = int(np.flatnonzero(wrong & ~partial)[0])
                raise InvalidInputError(
                    "a computed column is given another value than its expression's",
                    column=name,
                    expression=self.columns[name].expression,
                    given=given[at].as_py(),
                    computed=value[at].as_py(),
                    action="leave the column out: whoever writes the row computes it",
                )
            arrays[name] = value
        return pa.RecordBatch.from_arrays(list(arrays.values()), schema=rows.schema)


def _differ(given: pa.Array, value: pa.Array) -> Bools:
    """Where two columns of a type are not the same; NULL is NULL, and NaN is NaN."""
    same = pc.fill_null(pc.equal(given, value), False)
    same = pc.or_(same, pc.and_(given.is_null(nan_is_null=True), value.is_null(nan_is_null=True)))
    same = pc.and_(same, pc.equal(given.is_null(), value.is_null()))
    differ: Bools = pc.invert(same).to_numpy(zero_copy_only=False)
    return differ


def _nulled(rows: pa.RecordBatch, where: pa.Array) -> pa.RecordBatch:
    """The columns that can be inputs, with NULL in some rows."""
    names = [
        name
        for name, kind in zip(rows.schema.names, rows.schema.types, strict=True)
        if pa.types.is_integer(kind) or pa.types.is_floating(kind)
    ]
    arrays = [
        pc.if_else(where, pa.scalar(None, rows.column(name).type), rows.column(name))
        for name in names
    ]
    return pa.RecordBatch.from_arrays(arrays, names=names)


def define(schema: Schema, name: str, expression: str, kind: str) -> ComputedColumn:
    """A virtual column, checked against the schema.

    Raises:
        AlreadyExistsError: There is a column of that name.
        InvalidInputError: Not a name or type; an unknown column; an expression of something else
            than what every reader computes alike.
    """
    if not _NAME.fullmatch(name):
        raise InvalidInputError(
            "not a name for a computed column",
            column=repr(name),
            action="begin with a letter; use letters, digits and _",
        )
    if kind not in TYPES:
        raise InvalidInputError(
            "a computed column has one of three types", type=kind, types=", ".join(TYPES)
        )
    if any(field.name.lower() == name.lower() for field in schema.fields):
        raise AlreadyExistsError(f"the table has a column {name!r}")
    columns = TargetColumns(schema, "", ())
    inputs: dict[str, int] = {}
    for each in parse_expression(expression, what="expression").find_all(exp.Column):
        found = columns.find_tree(each)
        if found is None or len(each.parts) != 1:
            raise InvalidInputError(
                "the expression of a computed column names no column of the table",
                column=each.sql(),
                columns=", ".join(field.name for field in schema.fields),
            )
        inputs[each.name] = found[0].field_id
    wanted = ComputedColumn(name=name, expression=expression, type=kind, inputs=inputs)
    _compiled(wanted, schema)
    return wanted


def _compiled(column: ComputedColumn, schema: Schema) -> LocalValue:
    """How this process computes it.

    Raises:
        InvalidInputError: It cannot; says what can be computed.
    """
    name = None if column.field_id is None else schema.find_column_name(column.field_id)
    held = schema if name else Schema(*schema.fields, _field(column, -1))
    target, name = TargetColumns(held, "", ()), name or column.name
    with error_context(column=name, expression=column.expression):
        found = local_value(Assignment((name,), _bound(column, schema)), target)
    if found is None:
        raise InvalidInputError(
            "not every reader can compute this column alike",
            column=name,
            expression=column.expression,
            type=held.find_type(name),
            action=f"use {_TAKEN}; or drop it, and compute it when rows are written",
        )
    return found


def _bound(column: ComputedColumn, schema: Schema) -> exp.Expr:
    """The expression with the present names of its columns."""
    tree = parse_expression(column.expression, what="expression")
    for each in list(tree.find_all(exp.Column)):
        field_id = column.inputs.get(each.name)
        name = None if field_id is None else schema.find_column_name(field_id)
        if name is None:
            raise InvalidInputError(
                "a column of a computed column's expression is gone, or its field id is not noted",
                column=column.name,
                missing=each.name,
                action="drop the declaration",
            )
        each.set("this", exp.to_identifier(name, quoted=True))
    return tree


def _field(column: ComputedColumn, field_id: int) -> NestedField:
    return NestedField(field_id, column.name, TYPES[column.type], required=False)
