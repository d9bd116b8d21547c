"""Runs a statement from text to result: plan, evaluate, commit; again from the start if asked.

```
statement ─> plan (context) ─> evaluate ─> commit ─> result
               ^                              │
               └────── conflict, retries ─────┘
```
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from pyiceberg.table.snapshots import Snapshot

from tableformat.catalog.base import TableState
from tableformat.commit.engine import CommitResult
from tableformat.commit.retry import commit_retry_policy
from tableformat.environment import Environment
from tableformat.errors import (
    CommitConflictError,
    InvalidInputError,
    refusing_deep_nesting,
)
from tableformat.rowlevel.changes import RowChanges
from tableformat.rowlevel.committing import commit_changes
from tableformat.rowlevel.context import ScanContext
from tableformat.rowlevel.engine import Engine, InProcessEngine, without_spark
from tableformat.rowlevel.planning import OperationPlan, StatementPlan, plan_statement
from tableformat.scan.expired_snapshot import telling_expiry
from tableformat.spec.properties import WriteMode
from tableformat.sql.statement import RowLevelOperation, Statement

if TYPE_CHECKING:  # Spark is an optional dependency
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True, kw_only=True)
class RowLevelResult:
    """What a statement did.

    Attributes:
        operation: DELETE, UPDATE or MERGE.
        mode: How rows of files that stay were changed, when any were.
        deleted_rows: Rows that went for good; None: unknown, because files that equality deletes
            reach were dropped unread.
        updated_rows: Rows that were changed.
        inserted_rows: Rows that came anew.
        dropped_files: Data files that went by metadata alone, unread.
        dropped_rows: Their rows, which are among `deleted_rows`; None: unknown.
        snapshot: The commit; None when nothing had to change.
        context: The pinned versions and what the commit was held to.
        plans: How often the statement was planned; more than one after conflicts.
        state: The table after it.
    """

    operation: RowLevelOperation
    mode: WriteMode
    deleted_rows: int | None
    updated_rows: int
    inserted_rows: int
    dropped_files: int
    dropped_rows: int | None
    snapshot: Snapshot | None
    context: ScanContext
    plans: int
    state: TableState

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for programs."""
        return {
            "operation": self.operation.value,
            "mode": self.mode.value,
            "deleted_rows": self.deleted_rows,
            "updated_rows": self.updated_rows,
            "inserted_rows": self.inserted_rows,
            "dropped_files": self.dropped_files,
            "dropped_rows": self.dropped_rows,
            "snapshot_id": None if self.snapshot is None else self.snapshot.snapshot_id,
            "plans": self.plans,
            "isolation": self.context.isolation.value,
            "tables": {table.name: table.snapshot_id for table in self.context.tables},
        }


def run_statement(
    environment: Environment,
    statement: Statement,
    *,
    spark: SparkSession | None = None,
    branch: str | None = None,
    mode: str | None = None,
    retries: int = 0,
    source: DataFrame | None = None,
    engine: Engine | None = None,
) -> RowLevelResult:
    """Run a row-level statement.

    Args:
        environment: Catalog, store, clock.
        statement: From `parse_statement`.
        spark: Evaluates it. None: this process if it can, else the active session.
        branch: The branch to change; None: what the name says, else `main`.
        mode: `merge-on-read` or `copy-on-write`; None: the table's `write.<operation>.mode`.
        retries: How often a statement that lost against another commit is planned and run again.
        source: The frame of a MERGE without a source of its own.
        engine: Evaluates it in the place of Spark and this process's own way.

    Raises:
        CommitConflictError: Something landed since planning that excludes it, after all retries.
        CommitUnknownError: It may have landed.
        InvalidInputError: The statement cannot be right.
        UnsupportedError: Not done here, or not without Spark.
        NotFoundError: No such table, branch or version.

    Effects: writes data files and deletion vectors, then one commit. Nothing is visible before.
    """
    if retries < 0:
        raise InvalidInputError("retries cannot be negative", retries=retries)
    for plans in range(1, retries + 2):
        plan = plan_statement(environment, statement, branch=branch, mode=mode)
        try:
            used = _engine(environment, plan, spark, source) if engine is None else engine
            return _run(environment, plan, used, plans)
        except CommitConflictError:
            if plans > retries:
                raise
            wait_ms = commit_retry_policy({}).wait_ms(plans, environment.runtime)
            environment.runtime.clock.sleep_ms(wait_ms)
    raise AssertionError("the last round returns or raises")


def _run(
    environment: Environment, plan: StatementPlan, engine: Engine, plans: int
) -> RowLevelResult:
    environment.runtime.fail_point("rowlevel.after_plan")
    read = [plan.scan.snapshot]
    with refusing_deep_nesting("statement"), telling_expiry(environment, plan.state, read):
        changes = engine.evaluate(plan)
    environment.runtime.fail_point("rowlevel.after_scan")
    committed = commit_changes(environment, plan, changes, partial(engine.rewrite, plan))
    return result_of(plan, changes, committed, plans)


def _engine(
    environment: Environment,
    plan: StatementPlan,
    spark: SparkSession | None,
    source: DataFrame | None,
) -> Engine:
    if spark is None:
        local = InProcessEngine.for_plan(environment, plan)
        if local is not None:
            return local
        spark = _active_session()
    if spark is None:
        raise without_spark(plan)
    from tableformat.rowlevel.spark_engine import SparkEngine  # Spark is an optional dependency

    return SparkEngine(environment, spark, source)


def _active_session() -> SparkSession | None:
    if importlib.util.find_spec("pyspark") is None:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()


def result_of(
    plan: OperationPlan, changes: RowChanges, committed: CommitResult | None, plans: int = 1
) -> RowLevelResult:
    """What an operation did, from its plan, its changes and its commit."""
    dropped_rows: int | None = 0
    for task in plan.covered:
        if task.position_deletes or task.equality_deletes:
            dropped_rows = None
            break
        dead = 0 if task.dv is None else task.dv.data_file.record_count
        dropped_rows = (dropped_rows or 0) + task.entry.data_file.record_count - dead
    deleted = None if dropped_rows is None else changes.deleted_rows + dropped_rows
    return RowLevelResult(
        operation=plan.context.operation,
        mode=plan.context.mode,
        deleted_rows=deleted,
        updated_rows=changes.updated_rows,
        inserted_rows=changes.inserted_rows,
        dropped_files=len(plan.covered),
        dropped_rows=dropped_rows,
        snapshot=None if committed is None else committed.snapshot,
        context=plan.context,
        plans=plans,
        state=plan.state if committed is None else committed.state,
    )
