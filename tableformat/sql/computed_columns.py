"""Virtual columns: declared, and computed while rows are read.

```
declaration: expression ─ parse ─ field ids ─ can `sql.values` compute it? ─> table properties
read:        columns asked ─> columns to read ─> batches ─ compute ─> batches with the columns
Spark:       the frame of the columns to read ─ the same expression, ANSI ─> frame with the columns
```

What is taken is what every reader computes alike: what a row-level statement without Spark may
assign. A version of the table that lacks an input does not have the column.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import NestedField
from sqlglot import exp

from tableformat.catalog.base import Identifier, TableState
from tableformat.commit.evolution import update_declarations
from tableformat.environment import Environment
from tableformat.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
    error_context,
)
from tableformat.spec.computed_columns import TYPES, ComputedColumn, computed_columns
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
    usable = {name: each for name, each in computed_columns(metadata).items() if each.is_in(schema)}
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


def add_computed_column(
    environment: Environment, identifier: Identifier, name: str, expression: str, kind: str
) -> TableState:
    """Declare a virtual column; declaring the same one again changes nothing. A metadata commit.

    Raises:
        AlreadyExistsError: There is one of that name with another expression or type, or a column.
        InvalidInputError: Not a name or type; an unknown column; an expression of something else
            than what every reader computes alike.
    """

    def plan(metadata: TableMetadata) -> tuple[Mapping[str, str], Sequence[str]]:
        wanted = _define(metadata.schema(), name, expression, kind)
        present = computed_columns(metadata).get(name)
        if present is not None and present != wanted:
            raise AlreadyExistsError(
                f"there is another computed column {name!r}",
                table=".".join(identifier),
                expression=present.expression,
                type=present.type,
                action="drop it first",
            )
        return wanted.properties, ()

    return update_declarations(environment, identifier, plan)


def drop_computed_column(environment: Environment, identifier: Identifier, name: str) -> TableState:
    """Drop the declaration. A metadata commit.

    Raises:
        NotFoundError: There is none of that name.
    """

    def plan(metadata: TableMetadata) -> tuple[Mapping[str, str], Sequence[str]]:
        present = computed_columns(metadata).get(name)
        if present is None:
            raise NotFoundError(f"there is no computed column {name!r}", table=".".join(identifier))
        return {}, tuple(present.properties)

    return update_declarations(environment, identifier, plan)


def _define(schema: Schema, name: str, expression: str, kind: str) -> ComputedColumn:
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
    target = TargetColumns(Schema(*schema.fields, _field(column, -1)), "", ())
    with error_context(column=column.name, expression=column.expression):
        found = local_value(Assignment((column.name,), _bound(column, schema)), target)
    if found is None:
        raise InvalidInputError(
            "not every reader can compute this column alike",
            column=column.name,
            expression=column.expression,
            type=column.type,
            action=f"use {_TAKEN}; or drop it, and compute it when rows are written",
        )
    return found


def _bound(column: ComputedColumn, schema: Schema) -> exp.Expr:
    """The expression with the present names of its columns."""
    tree = parse_expression(column.expression, what="expression")
    for each in list(tree.find_all(exp.Column)):
        field_id = column.inputs.get(each.name)
        if field_id is None:
            raise InvalidInputError(
                "the field ids of a computed column are not those of its expression",
                column=column.name,
                missing=each.name,
                action="drop it, and declare it again",
            )
        each.set("this", exp.to_identifier(schema.find_field(field_id).name, quoted=True))
    return tree


def _field(column: ComputedColumn, field_id: int) -> NestedField:
    return NestedField(field_id, column.name, TYPES[column.type], required=False)
