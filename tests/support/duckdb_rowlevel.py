"""A second engine for row-level operations: DuckDB computes, the public protocol does the rest."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import duckdb
import pyarrow as pa
import sqlglot
from pyiceberg.schema import Schema
from sqlglot import exp

from tableformat import Table
from tableformat.rowlevel.execute import RowLevelResult
from tableformat.rowlevel.operation import Fragment, RowLevelPlan, begin
from tableformat.scan.reader import scan_schema
from tableformat.sql.statement import MatchKind, MergeAction, MergeClause, Statement

DELETE, UPDATE, INSERT, COPY = 1, 2, 3, 4
METADATA = ["_file", "_pos", "_row_id", "_last_updated_sequence_number"]
TARGET = "__target"


class DuckDbOperation:
    """One statement, begun; `fragments` computes over all splits, and `plan` ends it.

    Args:
        connection: Holds the other tables, and the target under its own name for sub-queries.
        table: The target.
        name: What the target is called in the text.
        statement: The statement as icefold parses it: kind, clauses of MERGE, assigned columns.
        sql: The text in DuckDB's dialect.
        all_rows: Hand every row of the splits back, not only those that change.
        begun: More arguments of `begin`.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        table: Table,
        name: str,
        statement: Statement,
        sql: str,
        *,
        all_rows: bool = False,
        **begun: Any,
    ) -> None:
        self.connection, self.name, self.all_rows = connection, name, all_rows
        self.statement = statement
        self.parsed = sqlglot.parse_one(sql, dialect="duckdb")
        if self.statement.operation == "update":
            begun["updated_columns"] = [a.path[0] for a in statement.assignments]
        if self.statement.operation == "merge":
            actions = {clause.action for clause in statement.clauses}
            begun["inserts_rows"] = MergeAction.INSERT in actions
            begun["updated_columns"] = (
                [column.name for column in table.schema().fields]
                if MergeAction.UPDATE in actions
                else []
            )
        self.plan: RowLevelPlan = begin(table, statement.operation, **begun)

    def run(self) -> RowLevelResult:
        return self.plan.finish(self.fragments())

    def fragments(self) -> list[Fragment]:
        """Rows of all splits are read, joined in DuckDB, and written in two parts.

        Everything that would travel between machines is pickled.
        """
        worker = pickle.loads(pickle.dumps(self.plan.worker()))
        names = [column.name for column in self.plan.schema.fields]
        splits = pickle.loads(pickle.dumps(self.plan.splits))
        read = [
            batch
            for split in splits
            for batch in worker.read(split, [*names, *METADATA], all_rows=self.all_rows)
        ]
        rows = pa.Table.from_batches(read, schema=self._schema(names))
        with _registered(self.connection, TARGET, rows):
            changed = self.connection.execute(self._query(names)).to_arrow_table()
        half = changed.num_rows // 2
        parts = [changed.slice(0, half), changed.slice(half)]
        return [
            pickle.loads(pickle.dumps(worker.write(part.to_batches()))) for part in parts if part
        ]

    def _schema(self, names: list[str]) -> pa.Schema:
        return scan_schema(self.plan.plan.scan, columns=[*names, *METADATA])

    def _query(self, names: list[str]) -> str:
        match self.statement.operation:
            case "delete":
                return self._delete(names)
            case "update":
                return self._update(names)
        return self._merge(names)

    def _delete(self, names: list[str]) -> str:
        condition = self._where()
        if not self.all_rows:
            return self._with(
                f"SELECT _file, _pos, {DELETE}::TINYINT AS _action FROM {TARGET} AS {self.name} "
                f"WHERE {condition}"
            )
        action = f"CASE WHEN {condition} THEN {DELETE} ELSE {COPY} END::TINYINT AS _action"
        columns = ", ".join(map(_quoted, [*names, *METADATA]))
        return self._with(f"SELECT {columns}, {action} FROM {TARGET} AS {self.name}")

    def _update(self, names: list[str]) -> str:
        assert isinstance(self.parsed, exp.Update)
        values = {e.this.name: e.expression.sql("duckdb") for e in self.parsed.expressions}
        types = self._types()
        condition = self._where()
        columns = []
        for name in names:
            value = f"{self.name}.{_quoted(name)}"
            if name in values:
                new = f"CAST({values[name]} AS {types[name]})"
                value = f"CASE WHEN {condition} THEN {new} ELSE {value} END"
            columns.append(f"{value} AS {_quoted(name)}")
        action = f"CASE WHEN {condition} THEN {UPDATE} ELSE {COPY} END::TINYINT AS _action"
        ids = ["_file", "_pos", "_row_id"]
        if self.all_rows:
            changed = f"CASE WHEN {condition} THEN NULL ELSE _last_updated_sequence_number END"
            ids.append(f"{changed} AS _last_updated_sequence_number")
        where = "TRUE" if self.all_rows else condition
        selected = ", ".join([*columns, *ids, action])
        return self._with(f"SELECT {selected} FROM {TARGET} AS {self.name} WHERE {where}")

    def _merge(self, names: list[str]) -> str:
        """A full join, the clause of every pair, and per column the value of its clause."""
        statement = self.statement
        target, source = statement.alias, statement.source_alias
        assert isinstance(self.parsed, exp.Merge)
        using = self.parsed.args["using"]
        if using.alias:
            using = using.copy()
            using.set("alias", None)
        used = using.sql("duckdb")
        used = used if used.startswith("(") else f"(SELECT * FROM {used})"
        on = self.parsed.args["on"].sql("duckdb")
        clauses = [
            (clause, f"({self._matches(clause)}) AND {_condition(clause)}")
            for clause in statement.clauses
        ]
        chain = " ".join(f"WHEN {text} THEN {i}" for i, (_, text) in enumerate(clauses))
        actions = {
            MergeAction.DELETE: DELETE,
            MergeAction.UPDATE: UPDATE,
            MergeAction.INSERT: INSERT,
        }
        action = " ".join(
            f"WHEN __clause = {i} THEN {actions[clause.action]}"
            for i, (clause, _) in enumerate(clauses)
        )
        types = self._types()
        columns = []
        for name in names:
            cases = []
            for i, (clause, _) in enumerate(clauses):
                value = _value(clause, name, source, using, self.plan.schema)
                if value is not None:
                    cases.append(f"WHEN __clause = {i} THEN CAST({value} AS {types[name]})")
            old = f"{target}.{_quoted(name)}"
            text = f"CASE {' '.join(cases)} ELSE {old} END" if cases else old
            columns.append(f"{text} AS {_quoted(name)}")
        return (
            f"SELECT {', '.join(columns)}, {target}._file, {target}._pos, {target}._row_id, "
            f"CASE {action} END::TINYINT AS _action FROM (SELECT *, TRUE AS __t FROM {TARGET}) AS "
            f"{target} FULL JOIN (SELECT *, TRUE AS __s FROM {used}) AS {source} ON {on}, "
            f"LATERAL (SELECT CASE {chain} END AS __clause) WHERE __clause IS NOT NULL"
        )

    def _matches(self, clause: MergeClause) -> str:
        target, source = self.statement.alias, self.statement.source_alias
        return {
            MatchKind.MATCHED: f"{target}.__t AND {source}.__s",
            MatchKind.NOT_MATCHED: f"{target}.__t IS NULL",
            MatchKind.NOT_MATCHED_BY_SOURCE: f"{source}.__s IS NULL",
        }[clause.kind]

    def _where(self) -> str:
        where = self.parsed.args.get("where")
        return f"coalesce({where.this.sql('duckdb')}, FALSE)" if where else "TRUE"

    def _with(self, query: str) -> str:
        found = self.parsed.args.get("with_") or self.parsed.args.get("with")
        return f"{found.sql('duckdb')} {query}" if found else query

    def _types(self) -> dict[str, str]:
        rows = self.connection.execute(f"DESCRIBE {TARGET}").fetchall()
        return {name: kind for name, kind, *_ in rows}


def _condition(clause: MergeClause) -> str:
    return "TRUE" if clause.condition is None else f"({clause.condition.sql('duckdb')})"


def _value(
    clause: MergeClause, name: str, source: str | None, using: exp.Expr, schema: Schema
) -> str | None:
    """The value a clause gives a column; None: the old one."""
    if clause.action == MergeAction.DELETE:
        return None
    if clause.star:
        return f"{source}.{_quoted(name)}"
    for assignment in clause.assignments:
        if assignment.path[0] == name:
            return assignment.value.sql("duckdb")
    if clause.action == MergeAction.INSERT:
        default = schema.find_field(name).write_default
        return "NULL" if default is None else repr(default)
    return None


def _quoted(name: str) -> str:
    return f'"{name}"'


@contextmanager
def _registered(connection: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> Iterator[None]:
    connection.register(name, rows.replace_schema_metadata(None))
    yield
    connection.unregister(name)
