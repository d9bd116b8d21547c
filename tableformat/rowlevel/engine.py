"""Who evaluates a statement: this process for what is simple, Spark for everything else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
from sqlglot import exp

from tableformat.cdc.sink import without_history
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError, TableError, UnsupportedError
from tableformat.rowlevel.changes import FILE, POSITION, ROW_ID, PositionSet, RowChanges
from tableformat.rowlevel.planning import OperationPlan, StatementPlan
from tableformat.rowlevel.rewrite import FileRewrite, RowWriter, surviving_rows
from tableformat.scan.reader import read_scan
from tableformat.spec.data_file import DataFile
from tableformat.sql.statement import RowLevelOperation, has_subquery
from tableformat.sql.values import LocalValue, local_value


class Engine(Protocol):
    """Reads what a plan says and writes files; commits nothing."""

    def evaluate(self, plan: StatementPlan) -> RowChanges:
        """Run the statement's query over the pinned snapshots.

        Effects: data files of rows that come. They mean nothing until a commit names them.
        """

    def rewrite(self, plan: StatementPlan, rewrites: Sequence[FileRewrite]) -> list[DataFile]:
        """Write the surviving rows of data files again."""


@dataclass(frozen=True, slots=True)
class InProcessEngine:
    """Arrow in this process. Conditions are plain filters, values are `sql.values`."""

    environment: Environment
    values: tuple[LocalValue, ...] = ()

    @classmethod
    def for_plan(cls, environment: Environment, plan: StatementPlan) -> InProcessEngine | None:
        """The engine, if it can do the statement.

        Raises:
            InvalidInputError: An assigned value has the wrong type.
        """
        statement = plan.statement
        found = [local_value(each, plan.columns) for each in statement.assignments]
        values = tuple(value for value in found if value is not None)
        if (
            statement.operation == RowLevelOperation.MERGE
            or statement.ctes
            or not plan.pushed.is_exact
            or len(values) != len(found)
        ):
            return None
        return cls(environment, values)

    def evaluate(self, plan: StatementPlan) -> RowChanges:
        """See `Engine.evaluate`."""
        found = PositionSet()
        if plan.statement.operation == RowLevelOperation.DELETE:
            hits = read_scan(self.environment, plan.scan, columns=[FILE, POSITION])
            with closing(hits) as batches:
                for batch in batches:
                    found.add_rows(batch.column(0), batch.column(1))
            return RowChanges(positions=found.by_path, deleted_rows=found.distinct)
        writer = row_writer(self.environment, plan)
        files = writer.write(self._updated(plan, found), self.environment.runtime.ids)
        return RowChanges(positions=found.by_path, files=tuple(files), updated_rows=found.distinct)

    def rewrite(self, plan: OperationPlan, rewrites: Sequence[FileRewrite]) -> list[DataFile]:
        """See `Engine.rewrite`."""
        rows = surviving_rows(self.environment.store, plan.scan, rewrites)
        ids = self.environment.runtime.ids
        return row_writer(self.environment, plan).write(rows, ids, stored="kept")

    def _updated(self, plan: StatementPlan, found: PositionSet) -> Iterator[pa.RecordBatch]:
        """The new versions of matching rows; collects which rows they replace."""
        names = [field.name for field in plan.schema.fields]
        columns = [*names, ROW_ID, FILE, POSITION]
        by_name = {value.field.name: value for value in self.values}
        with closing(read_scan(self.environment, plan.scan, columns=columns)) as batches:
            for batch in batches:
                found.add_rows(batch.column(FILE), batch.column(POSITION))
                arrays = [
                    by_name[name].compute(batch) if name in by_name else batch.column(name)
                    for name in names
                ]
                yield pa.RecordBatch.from_arrays(
                    [*arrays, batch.column(ROW_ID)], names=[*names, ROW_ID]
                )


def row_writer(environment: Environment, plan: OperationPlan) -> RowWriter:
    """What writes rows of the plan's target."""
    return RowWriter(environment.store, without_history(plan.state.metadata))


def without_spark(plan: StatementPlan) -> TableError:
    """The error for a statement that this process cannot do itself."""
    unknown = _unknown_columns(plan)
    if unknown:
        return InvalidInputError(
            "unknown column",
            table=plan.state.name,
            column=unknown[0],
            known=",".join(field.name for field in plan.schema.fields),
        )
    return UnsupportedError(
        f"this {plan.statement.operation.upper()} needs Spark: without it, conditions compare "
        "columns with literals and values are literals, columns, + - and *",
        action="pass spark=..., e.g. tableformat.spark.session.local_session('sql')",
        table=plan.state.name,
        needs="spark",
    )


def _unknown_columns(plan: StatementPlan) -> list[str]:
    """Columns that the target does not have, where no other table can be meant."""
    statement = plan.statement
    trees = list(statement.scalar_expressions())
    if statement.operation == RowLevelOperation.MERGE or any(map(has_subquery, trees)):
        return []
    return [
        column.sql()
        for tree in trees
        for column in tree.find_all(exp.Column)
        if column.find_ancestor(exp.Lambda) is None and plan.columns.find_tree(column) is None
    ]
