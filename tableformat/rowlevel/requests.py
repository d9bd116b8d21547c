"""Statements from the arguments of `Table.delete`, `update` and `merge`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa
from sqlglot import exp

from tableformat.catalog.base import Identifier, TableState
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError
from tableformat.rowlevel.execute import RowLevelResult, run_statement
from tableformat.sql.statement import (
    Assignment,
    RowLevelOperation,
    Statement,
    column_parts,
    parse_expression,
    parse_statement,
    to_sql,
)

if TYPE_CHECKING:  # Spark is an optional dependency
    from pyspark.sql import DataFrame, SparkSession

TARGET_ALIAS, SOURCE_ALIAS = "t", "s"


class ChangeableTable(Protocol):
    """What of a `Table` is needed here."""

    environment: Environment
    state: TableState


def delete_statement(identifier: Identifier, where: str | None) -> Statement:
    """`DELETE FROM identifier WHERE where`."""
    return Statement(
        operation=RowLevelOperation.DELETE,
        target=identifier,
        alias=identifier[-1],
        where=_condition(where),
    )


def update_statement(
    identifier: Identifier, assignments: Mapping[str, str], where: str | None
) -> Statement:
    """`UPDATE identifier SET … WHERE where`."""
    parsed = []
    for column, value in assignments.items():
        path = column_parts(parse_expression(column, what="column"))
        if path is None:
            raise InvalidInputError("not a column", column=column)
        if not isinstance(value, str):
            raise InvalidInputError(
                "an assigned value is an SQL expression, as text", column=column, value=repr(value)
            )
        parsed.append(Assignment(path, parse_expression(value, what="value")))
    return Statement(
        operation=RowLevelOperation.UPDATE,
        target=identifier,
        alias=identifier[-1],
        where=_condition(where),
        assignments=tuple(parsed),
    )


def merge_statement(
    identifier: Identifier,
    source: DataFrame | pa.Table | str,
    on: str,
    clauses: Sequence[str],
) -> Statement:
    """`MERGE INTO identifier AS t USING source AS s ON on clauses`."""
    if not clauses:
        raise InvalidInputError("MERGE needs at least one WHEN … THEN …")
    if isinstance(source, str):
        named = exp.to_table(source, dialect="spark")
        used = f"{to_sql(named)} AS {SOURCE_ALIAS}"
    else:
        used = f"given AS {SOURCE_ALIAS}"
    condition = to_sql(parse_expression(on, what="condition"))
    text = f"MERGE INTO target AS {TARGET_ALIAS} USING {used} ON {condition} {' '.join(clauses)}"
    parsed = parse_statement(text)
    return Statement(
        operation=RowLevelOperation.MERGE,
        target=identifier,
        alias=TARGET_ALIAS,
        source=parsed.source if isinstance(source, str) else None,
        source_alias=SOURCE_ALIAS,
        on=parsed.on,
        clauses=parsed.clauses,
    )


def run_on_table(
    table: ChangeableTable,
    statement: Statement,
    *,
    branch: str,
    spark: SparkSession | None,
    mode: str | None,
    retries: int,
    source: Any = None,
) -> RowLevelResult:
    """Run the statement, and move the table on to what it gave.

    Effects: see `rowlevel.execute.run_statement`.
    """
    result = run_statement(
        table.environment,
        statement,
        spark=spark,
        branch=branch,
        mode=mode,
        retries=retries,
        source=source,
    )
    table.state = result.state
    return result


def _condition(where: str | None) -> exp.Expr | None:
    return None if where is None else parse_expression(where, what="condition")
