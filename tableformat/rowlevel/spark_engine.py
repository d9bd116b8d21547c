"""Evaluates statements on Spark: any condition and value it knows, over the pinned snapshots.

```
target  ── our scan at its snapshot, with row ids ─┐
source  ── table, query or frame ──────────────────┼─> one query ─> tasks ─> bitmaps, written files
others  ── our scans as temporary views ───────────┘
```

The query runs once and its tasks both collect row ids and write rows, so the two cannot disagree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException, PythonException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sf

from tableformat.environment import Environment
from tableformat.errors import InvalidInputError, TableError
from tableformat.rowlevel.changes import (
    ACTION,
    FILE,
    POSITION,
    ROW_COLUMNS,
    ROW_ID,
    PositionSet,
    RowAction,
    RowChanges,
    refuse_ambiguous,
)
from tableformat.rowlevel.engine import row_writer
from tableformat.rowlevel.planning import StatementPlan, mentioned_names
from tableformat.rowlevel.rewrite import FileRewrite
from tableformat.rowlevel.spark_tasks import (
    ANSWERS,
    VALUE,
    Answers,
    collect_row_ids,
    file_rewriter,
    row_changer,
)
from tableformat.rowlevel.spark_values import NewValues, deterministic, null_of
from tableformat.rowlevel.spark_views import Views
from tableformat.spark.reader import plan_to_spark
from tableformat.spark.types import spark_type
from tableformat.spec.computed_columns import stored_columns
from tableformat.spec.data_file import DataFile
from tableformat.sql.statement import (
    MatchKind,
    MergeAction,
    MergeClause,
    RowLevelOperation,
)

_HAS_SOURCE = "__icefold_has_source"
_CLAUSE = "__icefold_clause"
_ACTIONS = {
    MergeAction.DELETE: RowAction.DELETE,
    MergeAction.UPDATE: RowAction.UPDATE,
    MergeAction.INSERT: RowAction.INSERT,
}
_REWRITE_GROUPS_PER_CORE = 4
_NO_CLAUSE = -1


@dataclass(frozen=True, slots=True)
class SparkEngine:
    """One session, for one statement. `source`: the frame of a MERGE that names no table."""

    environment: Environment
    spark: SparkSession
    source: DataFrame | pa.Table | None = None

    def evaluate(self, plan: StatementPlan) -> RowChanges:
        """See `Engine.evaluate`.

        Raises:
            InvalidInputError: Spark refuses the statement, a value has the wrong type or does not
                fit, or a MERGE is ambiguous.
            UnsupportedError: A streaming frame, or a store that workers cannot reach.

        Effects: temporary views, dropped at the end; data files of rows that come.
        """
        statement = plan.statement
        with _spark_errors(), Views(self.environment, self.spark, plan) as views:
            match statement.operation:
                case RowLevelOperation.DELETE:
                    return self._delete(plan, views)
                case RowLevelOperation.UPDATE:
                    frame = self._update_frame(plan, views)
                case RowLevelOperation.MERGE:
                    frame = self._merge_frame(plan, views)
            writer = row_writer(self.environment, plan)
            deterministic(frame, statement.operation)
            answers = Answers.of(frame.mapInArrow(row_changer(writer), ANSWERS).collect())
        return self._changes(plan, answers)

    def rewrite(self, plan: StatementPlan, rewrites: Sequence[FileRewrite]) -> list[DataFile]:
        """See `Engine.rewrite`: groups of files of about equal size, one task each."""
        writer = row_writer(self.environment, plan)
        groups = _group(rewrites, self.spark.sparkContext.defaultParallelism)
        ordinals = self.spark.range(0, len(groups), 1, len(groups))
        task = file_rewriter(writer, replace(plan.scan, tasks=()), groups)
        with _spark_errors():
            answers = Answers.of(ordinals.mapInArrow(task, ANSWERS).collect())
        if answers.error is not None:
            self._discard(answers)
            raise answers.error
        return answers.files

    def _delete(self, plan: StatementPlan, views: Views) -> RowChanges:
        frame = self._target(plan)
        if plan.statement.where is not None:
            frame = frame.where(views.column(plan.statement.where))
        frame = frame.select(FILE, POSITION)
        deterministic(frame, plan.statement.operation)
        if not plan.scan.tasks:
            return RowChanges()  # the names are right; there is nothing to read
        answers = Answers.of(frame.mapInArrow(collect_row_ids, ANSWERS).collect())
        gone = answers.gone
        return RowChanges(positions=gone.by_path, deleted_rows=gone.distinct)

    def _update_frame(self, plan: StatementPlan, views: Views) -> DataFrame:
        frame = self._target(plan)
        if plan.statement.where is not None:
            frame = frame.where(views.column(plan.statement.where))
        values = NewValues(plan.columns, views, frame)
        made = values.updated(plan.statement.assignments)
        columns = [made.get(field.name, values.old(field)) for field in plan.schema.fields]
        return frame.select(
            FILE,
            POSITION,
            ROW_ID,
            sf.lit(RowAction.UPDATE.value).alias(ACTION),
            *(column.alias(VALUE.format(at)) for at, column in enumerate(columns)),
        )

    def _merge_frame(self, plan: StatementPlan, views: Views) -> DataFrame:
        """Join, pick the clause of every pair, then its values; pairs without a clause are kept.

        A matched pair without a clause is sent along, so that a target row with two partners is
        found whatever the clauses' conditions say.
        """
        statement = plan.statement
        target, source = self._target(plan), self._source(plan, views)
        assert statement.on is not None
        assert statement.source_alias is not None
        marked = source.withColumn(_HAS_SOURCE, sf.lit(True)).alias(statement.source_alias)
        joined = target.join(marked, views.column(statement.on), _join_type(statement.clauses))
        in_target = sf.col(_qualified(statement.alias, FILE)).isNotNull()
        in_source = sf.col(_qualified(statement.source_alias, _HAS_SOURCE)).isNotNull()
        scopes = {
            MatchKind.MATCHED: (in_target & in_source, joined),
            MatchKind.NOT_MATCHED: (~in_target, marked),
            MatchKind.NOT_MATCHED_BY_SOURCE: (~in_source, target),
        }
        clause_of = sf.lit(_NO_CLAUSE)
        for ordinal, clause in reversed(list(enumerate(statement.clauses))):
            condition, scope = scopes[clause.kind]
            if clause.condition is not None:
                scope.where(views.column(clause.condition))  # names of this side only
                condition = condition & sf.coalesce(views.column(clause.condition), sf.lit(False))
            clause_of = sf.when(condition, sf.lit(ordinal)).otherwise(clause_of)
        chosen = joined.withColumn(_CLAUSE, clause_of)
        chosen = chosen.where((sf.col(_CLAUSE) != _NO_CLAUSE) | (in_target & in_source))
        columns = self._merge_values(plan, views, {k: s for k, (_, s) in scopes.items()}, source)
        return chosen.select(
            sf.col(_qualified(statement.alias, FILE)).alias(FILE),
            sf.col(_qualified(statement.alias, POSITION)).alias(POSITION),
            sf.col(_qualified(statement.alias, ROW_ID)).alias(ROW_ID),
            _action(statement.clauses).alias(ACTION),
            *(column.alias(VALUE.format(at)) for at, column in enumerate(columns)),
        )

    def _merge_values(
        self,
        plan: StatementPlan,
        views: Views,
        scopes: dict[MatchKind, DataFrame],
        source: DataFrame,
    ) -> list[Column]:
        """Per column the value its row's clause gives it, else the value in the target.

        The latter is null on rows that are inserted, and not looked at on rows that go.
        """
        statement = plan.statement
        assert statement.source_alias is not None
        computed = stored_columns(plan.state.metadata.properties, plan.schema)
        by_clause: list[tuple[int, dict[str, Column]]] = []
        for ordinal, clause in enumerate(statement.clauses):
            if clause.action == MergeAction.DELETE:
                continue
            values = NewValues(plan.columns, views, scopes[clause.kind])
            assignments = clause.assignments
            if clause.star:
                assignments = values.from_source(source, statement.source_alias, without=computed)
            if clause.action == MergeAction.UPDATE:
                by_clause.append((ordinal, values.updated(assignments)))
            else:
                by_clause.append((ordinal, values.inserted(assignments)))
        target = NewValues(plan.columns, views, source)
        columns = []
        for field in plan.schema.fields:
            is_read = field.name in plan.context.required_columns
            column = target.old(field) if is_read else null_of(spark_type(field.field_type))
            for ordinal, made in by_clause:
                if field.name in made:
                    is_chosen = sf.col(_CLAUSE) == ordinal
                    column = sf.when(is_chosen, made[field.name]).otherwise(column)
            columns.append(column)
        return columns

    def _target(self, plan: StatementPlan) -> DataFrame:
        """The target at its pinned snapshot, with row ids and the metadata columns in use."""
        used = mentioned_names(plan.statement)
        metadata = [FILE, POSITION]
        metadata += [
            name
            for name in sorted(ROW_COLUMNS - {FILE, POSITION})
            if name in used
            or (name == ROW_ID and plan.statement.operation != RowLevelOperation.DELETE)
        ]
        columns = [*plan.context.required_columns, *metadata]
        frame = plan_to_spark(self.environment, plan.scan, self.spark, columns=columns)
        return frame.alias(plan.statement.alias)

    def _source(self, plan: StatementPlan, views: Views) -> DataFrame:
        if plan.statement.source is not None:
            source = views.frame(plan.statement.source)
        elif isinstance(self.source, pa.Table):
            source = self.spark.createDataFrame(self.source)
        elif self.source is not None:
            source = self.source
        else:
            raise InvalidInputError("MERGE has no source")
        views.refuse_stream(source)
        return source

    def _changes(self, plan: StatementPlan, answers: Answers) -> RowChanges:
        """Check what the tasks answered as a whole; files of a refused statement are deleted."""
        gone = answers.gone
        try:
            if answers.error is not None:
                raise answers.error
            if _must_be_unique(plan.statement.clauses):
                pairs = PositionSet()
                pairs.add_set(gone)
                pairs.add_set(answers.matched)
                refuse_ambiguous(pairs)
        except TableError:
            self._discard(answers)
            raise
        updated = answers.counts["updated"]
        return RowChanges(
            positions=gone.by_path,
            files=tuple(answers.files),
            deleted_rows=gone.distinct - updated,
            updated_rows=updated,
            inserted_rows=answers.counts["inserted"],
        )

    def _discard(self, answers: Answers) -> None:
        try:
            self.environment.store.delete([file.file_path for file in answers.files])
        except TableError:
            return


def _must_be_unique(clauses: Sequence[MergeClause]) -> bool:
    """Deleting a row twice is deleting it; every other action needs one source row."""
    matched = [clause for clause in clauses if clause.kind == MatchKind.MATCHED]
    return not (
        len(matched) == 1
        and matched[0].action == MergeAction.DELETE
        and matched[0].condition is None
    )


def _join_type(clauses: Sequence[MergeClause]) -> str:
    kinds = {clause.kind for clause in clauses}
    by_source = MatchKind.NOT_MATCHED_BY_SOURCE in kinds
    not_matched = MatchKind.NOT_MATCHED in kinds
    if by_source:
        return "full_outer" if not_matched else "left_outer"
    return "right_outer" if not_matched else "inner"


def _action(clauses: Sequence[MergeClause]) -> Column:
    column = sf.lit(RowAction.KEEP.value)
    for ordinal, clause in enumerate(clauses):
        code = sf.lit(_ACTIONS[clause.action].value)
        column = sf.when(sf.col(_CLAUSE) == ordinal, code).otherwise(column)
    return column


def _qualified(alias: str, name: str) -> str:
    return f"`{alias.replace('`', '``')}`.`{name}`"


def _group(rewrites: Sequence[FileRewrite], cores: int) -> list[list[FileRewrite]]:
    """Files in at most a few groups per core, the largest first to the emptiest group."""
    count = min(len(rewrites), cores * _REWRITE_GROUPS_PER_CORE)
    groups: list[list[FileRewrite]] = [[] for _ in range(count)]
    sizes = [0] * count
    by_size = sorted(rewrites, key=lambda each: -each.task.entry.data_file.file_size_in_bytes)
    for rewrite in by_size:
        emptiest = sizes.index(min(sizes))
        groups[emptiest].append(rewrite)
        sizes[emptiest] += rewrite.task.entry.data_file.file_size_in_bytes
    return groups


@contextmanager
def _spark_errors() -> Iterator[None]:
    """What Spark says about a statement, as one line; failures of its own pass."""
    try:
        yield
    except PythonException:
        raise
    except PySparkException as error:
        text = first_line(error)
        if isinstance(error, AnalysisException):
            raise InvalidInputError(f"Spark refuses the statement: {text}") from error
        if error.getCondition() is None:
            raise
        raise InvalidInputError(f"the statement failed: {text}") from error


def first_line(error: PySparkException) -> str:
    """Spark's message without the plan and the stack below it."""
    text = str(error.getMessage() or error).strip()
    return text.splitlines()[0][:500] if text else type(error).__name__
