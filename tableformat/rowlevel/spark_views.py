"""Expressions of a statement as Spark evaluates them: pinned tables as temporary views."""

from __future__ import annotations

from contextlib import suppress
from typing import Self

from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf
from sqlglot import exp

from tableformat.environment import Environment
from tableformat.errors import UnsupportedError
from tableformat.rowlevel.planning import StatementPlan
from tableformat.rowlevel.tables import PinnedTable, table_text
from tableformat.spark.reader import snapshot_to_spark
from tableformat.sql.statement import table_parts, to_sql


class Views:
    """Names that a statement uses, bound to pinned scans for as long as the block runs.

    Effects: temporary views in the session under names of our own; they are dropped at the end,
    whatever happens.
    """

    def __init__(self, environment: Environment, spark: SparkSession, plan: StatementPlan) -> None:
        self._environment = environment
        self._spark = spark
        self._plan = plan
        self._prefix = f"icefold_{environment.runtime.ids.uuid().hex}"
        self._views: dict[str, str] = {}
        self._ctes: dict[str, str] = {}
        self._made: list[str] = []

    def __enter__(self) -> Self:
        try:
            for text, pinned in self._plan.others.items():
                self._views[text] = self._create(self._frame(pinned))
            for cte in self._plan.statement.ctes:
                self._create_cte(cte)
            for tree in self._plan.statement.expressions():
                self._refuse_streams(tree)
        except BaseException:
            self._drop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._drop()

    def column(self, tree: exp.Expr) -> Column:
        """The expression as a column."""
        return sf.expr(to_sql(self._bound(tree)))

    def frame(self, tree: exp.Expr) -> DataFrame:
        """The source of a MERGE: a table, a sub-query or VALUES; its alias may name columns."""
        bound = self._bound(tree)
        return self._spark.sql(f"SELECT * FROM {to_sql(bound)}")  # noqa: S608 - parsed, not pasted

    def refuse_stream(self, frame: DataFrame) -> None:
        """Statements are for batches.

        Raises:
            UnsupportedError: The frame is a stream.
        """
        if frame.isStreaming:
            operation = self._plan.statement.operation.upper()
            raise UnsupportedError(f"{operation} TABLE is not supported for streaming mode now")

    def _frame(self, pinned: PinnedTable) -> DataFrame:
        return snapshot_to_spark(self._environment, pinned.state, pinned.selected, self._spark)

    def _create(self, frame: DataFrame) -> str:
        name = f"{self._prefix}_{len(self._made)}"
        self._made.append(name)
        frame.createOrReplaceTempView(name)
        return name

    def _create_cte(self, cte: exp.CTE) -> None:
        """A named query becomes a view; those that follow may use it."""
        frame = self._spark.sql(to_sql(self._bound(cte.this)))
        names = [column.name for column in cte.args["alias"].columns]
        view = self._create(frame.toDF(*names) if names else frame)
        self._ctes[cte.alias.casefold()] = view

    def _drop(self) -> None:
        for name in self._made:
            self._spark.catalog.dropTempView(name)

    def _bound(self, tree: exp.Expr) -> exp.Expr:
        """A copy in which every pinned table is its view, under the name it had."""
        bound = tree.copy()
        renamed: dict[tuple[str, ...], str] = {}
        for table in list(bound.find_all(exp.Table)):
            parts = table_parts(table)
            view = self._views.get(table_text(table))
            if view is None and len(parts) == 1:
                view = self._ctes.get(parts[0].casefold())
            if view is None:
                continue
            renamed[parts] = table.alias or parts[-1]
            alias = table.args.get("alias") or exp.TableAlias(this=exp.to_identifier(parts[-1]))
            bound_table = exp.Table(this=exp.to_identifier(view), alias=alias.copy())
            for key in ("joins", "laterals", "pivots", "sample"):
                if table.args.get(key):
                    bound_table.set(key, table.args[key])
            if table is bound:
                bound = bound_table
            else:
                table.replace(bound_table)
        target = (*self._plan.state.identifier,)
        renamed.setdefault(target, self._plan.statement.alias)
        for column in bound.find_all(exp.Column):
            _shorten(column, renamed)
        return bound

    def _refuse_streams(self, tree: exp.Expr) -> None:
        """Views of the session may be streams, also inside sub-queries."""
        for table in tree.find_all(exp.Table):
            parts = table_parts(table)
            if table_text(table) in self._views or parts[0].casefold() in self._ctes:
                continue
            name = ".".join(f"`{part}`" for part in parts)
            with suppress(AnalysisException):  # a nested CTE, or Spark will say it itself
                self.refuse_stream(self._spark.table(name))


def _shorten(column: exp.Column, renamed: dict[tuple[str, ...], str]) -> None:
    """`namespace.table.column` as `table.column`: views have no namespace."""
    qualifier = tuple(part.name for part in column.parts[:-1])
    for parts, name in renamed.items():
        if len(qualifier) > 1 and qualifier == parts[-len(qualifier) :] and name == parts[-1]:
            column.set("db", None)
            column.set("catalog", None)
            return
