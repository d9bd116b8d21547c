"""Row-level statements as data, and parsing them from Spark SQL.

Expressions stay syntax trees: what is simple is evaluated in this process (`predicates`, `values`),
everything else is handed back to Spark as text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError

from tableformat.errors import InvalidInputError, UnsupportedError, refusing_deep_nesting
from tableformat.spec.unicode import check_unicode

# What a call looks like between its brackets, where that is no list of values.
_OWN_SYNTAX = frozenset(
    ["CAST", "EXTRACT", "OVERLAY", "POSITION", "SUBSTR", "SUBSTRING", "TRIM", "TRY_CAST"]
)


class VerbatimSpark(Spark):
    """Spark's dialect in which calls of functions stay as they are written.

    The parser's own functions are meant for translation between dialects: `to_char(d, '9.9')` comes
    back as `CAST(d AS STRING)`, an exact percentile as an approximate one.
    """

    class Tokenizer(Spark.Tokenizer):  # noqa: D106
        # A quote that comes twice is one (Spark 4); the parser's Spark has two texts there.
        STRING_ESCAPES: ClassVar = ["\\", "'", '"']

    class Parser(Spark.Parser):  # type: ignore[misc, valid-type]  # noqa: D106
        # Left out, the parser would take `array(1, 2)[0]` for `array(0)`.
        FUNCTIONS: ClassVar = {"ARRAY": exp.Array.from_arg_list}
        FUNCTION_PARSERS: ClassVar = {
            name: parse
            for name, parse in Spark.Parser.FUNCTION_PARSERS.items()
            if name in _OWN_SYNTAX
        }

    class Generator(Spark.Generator):  # type: ignore[misc, valid-type]  # noqa: D106
        TYPE_MAPPING: ClassVar = {
            kind: name
            for kind, name in Spark.Generator.TYPE_MAPPING.items()
            if kind != exp.DType.TIME  # Spark has the type; the parser's Spark has moments for it
        }


DIALECT = VerbatimSpark
_WITH = ("with_", "with")  # its name differs by version


class RowLevelOperation(StrEnum):
    """What a statement does; also the middle of Iceberg's property names."""

    DELETE = "delete"
    UPDATE = "update"
    MERGE = "merge"


class MatchKind(StrEnum):
    """Which rows a clause of MERGE is about."""

    MATCHED = "matched"
    NOT_MATCHED = "not matched"
    NOT_MATCHED_BY_SOURCE = "not matched by source"


class MergeAction(StrEnum):
    """What a clause of MERGE does with them."""

    DELETE = "delete"
    UPDATE = "update"
    INSERT = "insert"


@dataclass(frozen=True, slots=True)
class Assignment:
    """`path = value`; the path as written, a qualifier perhaps in front."""

    path: tuple[str, ...]
    value: exp.Expr

    @property
    def is_default(self) -> bool:
        """`SET a = DEFAULT`."""
        parts = column_parts(self.value)
        return parts is not None and len(parts) == 1 and parts[0].upper() == "DEFAULT"


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeClause:
    """One WHEN. `star`: `UPDATE SET *` or `INSERT *`, columns by name."""

    kind: MatchKind
    action: MergeAction
    condition: exp.Expr | None = None
    assignments: tuple[Assignment, ...] = ()
    star: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """One parsed statement.

    Attributes:
        operation: DELETE, UPDATE or MERGE.
        target: Parts of the target's name, as written.
        alias: What expressions call the target.
        where: The condition of DELETE and UPDATE.
        assignments: Of UPDATE.
        source: Of MERGE: a table or a sub-query; None when it is a frame of the caller's.
        source_alias: What expressions call the source.
        on: The condition of MERGE.
        clauses: Of MERGE, in order.
        ctes: Named queries before the statement.
    """

    operation: RowLevelOperation
    target: tuple[str, ...]
    alias: str
    where: exp.Expr | None = None
    assignments: tuple[Assignment, ...] = ()
    source: exp.Expr | None = None
    source_alias: str | None = None
    on: exp.Expr | None = None
    clauses: tuple[MergeClause, ...] = ()
    ctes: tuple[exp.CTE, ...] = ()

    def expressions(self) -> Iterator[exp.Expr]:
        """Every tree of the statement, in the order they are written."""
        yield from self.ctes
        for tree in (self.source, self.on):
            if tree is not None:
                yield tree
        yield from (each.value for each in self.assignments)
        if self.where is not None:
            yield self.where
        for clause in self.clauses:
            if clause.condition is not None:
                yield clause.condition
            yield from (each.value for each in clause.assignments)

    def scalar_expressions(self) -> Iterator[exp.Expr]:
        """Those that are evaluated per row: without the source and the named queries."""
        mine = {id(tree) for tree in (*self.ctes, self.source) if tree is not None}
        return (tree for tree in self.expressions() if id(tree) not in mine)


@refusing_deep_nesting("statement")
def parse_statement(sql: str) -> Statement:
    """Parse DELETE, UPDATE or MERGE INTO.

    Raises:
        InvalidInputError: The text is no such statement, or several.
        UnsupportedError: The target is a version of a table, or a clause is not known.
    """
    trees = [tree for tree in _parse(sql) if tree is not None]
    if len(trees) != 1:
        raise InvalidInputError("one statement at a time", count=len(trees))
    tree = trees[0]
    match tree:
        case exp.Delete():
            return _delete(tree)
        case exp.Update():
            return _update(tree)
        case exp.Merge():
            return _merge(tree)
    raise InvalidInputError(
        f"not a row-level statement: {_opening(sql)}",
        action="sql() runs DELETE FROM, UPDATE and MERGE INTO; read with scan()",
    )


@refusing_deep_nesting("expression")
def parse_expression(text: str, *, what: str) -> exp.Expr:
    """Parse one SQL expression.

    Raises:
        InvalidInputError: The text is none; `what` says what it was meant for.
    """
    check_unicode(text, what=what)
    try:
        tree = sqlglot.parse_one(f"SELECT 1 WHERE {text}\n", dialect=DIALECT)
    except SqlglotError as error:
        raise InvalidInputError(f"cannot read the {what} {text!r}: {_reason(error)}") from error
    where = tree.args.get("where") if isinstance(tree, exp.Select) else None
    extra = [key for key, value in tree.args.items() if value and key not in ("where", "kind")]
    if where is None or set(extra) - {"expressions"}:
        raise InvalidInputError(f"cannot read the {what} {text!r}: it is no expression")
    expression: exp.Expr = where.this
    return expression


def column_parts(tree: exp.Expr) -> tuple[str, ...] | None:
    """The names of a column or of a field inside it, as written; None for anything else."""
    if isinstance(tree, exp.Column) and isinstance(tree.this, exp.Identifier):
        return tuple(part.name for part in tree.parts)
    if isinstance(tree, exp.Dot) and isinstance(tree.expression, exp.Identifier):
        before = column_parts(tree.this)
        return None if before is None else (*before, tree.expression.name)
    return None


def table_parts(table: exp.Table) -> tuple[str, ...]:
    """The names of a table, as written."""
    return tuple(part.name for part in table.parts)


def has_subquery(tree: exp.Expr) -> bool:
    """Whether the tree reads any table."""
    return tree.find(exp.Table) is not None


def to_sql(tree: exp.Expr) -> str:
    """The tree as Spark reads it."""
    return tree.sql(dialect=DIALECT, comments=False)


def _parse(sql: str) -> list[exp.Expr | None]:
    check_unicode(sql, what="statement")
    try:
        return list(sqlglot.parse(sql, dialect=DIALECT))
    except SqlglotError as error:
        raise InvalidInputError(f"cannot read the statement: {_reason(error)}") from error


def _delete(tree: exp.Delete) -> Statement:
    if tree.args.get("tables"):
        raise InvalidInputError("cannot read the statement: write DELETE FROM table WHERE …")
    _refuse_others(tree, "DELETE", "this", "where", *_WITH)
    where = tree.args.get("where")
    target, alias = _target(tree.this)
    return Statement(
        operation=RowLevelOperation.DELETE,
        target=target,
        alias=alias,
        where=None if where is None else where.this,
        ctes=_ctes(tree),
    )


def _update(tree: exp.Update) -> Statement:
    _refuse_others(tree, "UPDATE", "this", "expressions", "where", *_WITH)
    where = tree.args.get("where")
    target, alias = _target(tree.this)
    return Statement(
        operation=RowLevelOperation.UPDATE,
        target=target,
        alias=alias,
        where=None if where is None else where.this,
        assignments=_assignments(tree.expressions),
        ctes=_ctes(tree),
    )


def _merge(tree: exp.Merge) -> Statement:
    _refuse_others(tree, "MERGE", "this", "using", "on", "using_cond", "whens", *_WITH)
    target, alias = _target(tree.this)
    source = tree.args["using"]
    on = tree.args.get("on")
    if on is None or tree.args.get("using_cond"):
        raise InvalidInputError("MERGE needs ON and a condition")
    if not isinstance(source, exp.Table | exp.Subquery | exp.Values):
        raise InvalidInputError("the source of MERGE is a table, a sub-query or VALUES")
    source_alias = source.alias or (source.name if isinstance(source, exp.Table) else None)
    return Statement(
        operation=RowLevelOperation.MERGE,
        target=target,
        alias=alias,
        source=source,
        source_alias=source_alias or "source",
        on=on,
        clauses=tuple(_clause(when) for when in tree.args["whens"].expressions),
        ctes=_ctes(tree),
    )


def _clause(when: exp.When) -> MergeClause:
    _refuse_others(when, "MERGE", "matched", "source", "condition", "then")
    by_source = bool(when.args.get("source"))
    if when.args.get("matched"):
        kind = MatchKind.MATCHED
    else:
        kind = MatchKind.NOT_MATCHED_BY_SOURCE if by_source else MatchKind.NOT_MATCHED
    then = when.args["then"]
    star, assignments = False, tuple[Assignment, ...]()
    condition = when.args.get("condition")
    if isinstance(then, exp.Var) and then.name.upper() == "DELETE":
        action = MergeAction.DELETE
    elif isinstance(then, exp.Update):
        action = MergeAction.UPDATE
        if not isinstance(then.expressions, list):  # the parser takes UPDATE * for something
            raise InvalidInputError("UPDATE of a MERGE needs SET, and assignments or *")
        _refuse_others(then, "UPDATE of a MERGE", "expressions")
        star = then.expressions == [exp.Star()]
        assignments = () if star else _assignments(then.expressions)
    elif isinstance(then, exp.Insert):
        action = MergeAction.INSERT
        _refuse_others(then, "INSERT of a MERGE", "this", "expression")
        star = then.this == exp.Star()
        assignments = () if star else _insertions(then)
    else:
        raise UnsupportedError(f"MERGE does not know WHEN … THEN {to_sql(then)}")
    if (action == MergeAction.INSERT) != (kind == MatchKind.NOT_MATCHED):
        raise InvalidInputError(f"WHEN {kind.upper()} cannot {action.upper()}")
    if star and kind == MatchKind.NOT_MATCHED_BY_SOURCE:
        raise InvalidInputError("WHEN NOT MATCHED BY SOURCE has no source row for UPDATE SET *")
    return MergeClause(
        kind=kind, action=action, condition=condition, assignments=assignments, star=star
    )


def _insertions(then: exp.Insert) -> tuple[Assignment, ...]:
    columns = then.this.expressions if isinstance(then.this, exp.Tuple) else []
    values = then.expression.expressions if isinstance(then.expression, exp.Tuple) else []
    if not columns or len(columns) != len(values):
        raise InvalidInputError("INSERT of a MERGE needs as many values as columns")
    return tuple(
        Assignment(_path(column), value) for column, value in zip(columns, values, strict=True)
    )


def _assignments(trees: list[exp.Expr]) -> tuple[Assignment, ...]:
    found = []
    for tree in trees:
        if not isinstance(tree, exp.EQ):
            raise InvalidInputError(f"not an assignment: {to_sql(tree)}")
        found.append(Assignment(_path(tree.this), tree.expression))
    return tuple(found)


def _path(tree: exp.Expr) -> tuple[str, ...]:
    parts = column_parts(tree)
    if parts is None:
        if isinstance(tree, exp.Identifier):
            return (tree.name,)
        raise InvalidInputError(f"cannot assign to {to_sql(tree)}")
    return parts


def _target(tree: exp.Expr) -> tuple[tuple[str, ...], str]:
    if not isinstance(tree, exp.Table):
        raise InvalidInputError(f"not a table: {to_sql(tree)}")
    version = tree.args.get("version") or tree.args.get("when")
    if version is not None:
        raise UnsupportedError(
            f"Cannot set time travel options {to_sql(version)} for row-level command scans"
        )
    if tree.args.get("sample") is not None or not tree.name:
        raise InvalidInputError(f"not a table: {to_sql(tree)}")
    _refuse_others(tree, "the target", "this", "db", "catalog", "alias")
    alias = tree.args.get("alias")
    if alias is not None and (
        tree.alias_column_names or not isinstance(alias.this, exp.Identifier)
    ):
        raise UnsupportedError(f"the target can have another name, and no more: {to_sql(tree)}")
    parts = table_parts(tree)
    return parts, tree.alias or parts[-1]


def _ctes(tree: exp.Expr) -> tuple[exp.CTE, ...]:
    named = next((tree.args[name] for name in _WITH if tree.args.get(name)), None)
    if named is None:
        return ()
    if named.args.get("recursive"):
        raise UnsupportedError("WITH RECURSIVE is not supported in row-level statements")
    return tuple(named.expressions)


def _refuse_others(tree: exp.Expr, what: str, *known: str) -> None:
    """Refuse what the parser takes and nobody here reads, as a join or another dialect's WHERE."""
    for name, value in tree.args.items():
        if value and name not in known:
            raise UnsupportedError(
                f"{what} has no {name.strip('_').upper()} clause here",
                action="say which rows in WHERE or ON; MERGE INTO takes values of other tables",
            )


def _opening(sql: str) -> str:
    words = sql.split()
    return " ".join(words[:4])[:60] or "it is empty"


def _reason(error: SqlglotError) -> str:
    """The first line of a parser's complaint, without terminal colours."""
    details = getattr(error, "errors", None)
    if details:
        first = details[0]
        what = str(first["description"]).split(" but got <Token")[0].rstrip(".")
        return f"{what}, line {first['line']}, column {first['col']}"
    return str(error).splitlines()[0][:200]
