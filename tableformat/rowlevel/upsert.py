"""`Table.upsert`: MERGE by the primary key with rows in memory, without Spark.

```
rows ─> keys ─> rows of these keys in the snapshot that was planned on (index, else pruned scan)
  │                             │ positions              │ row ids
  └──────────> new files <──────┼────────────────────────┘
                                └─> go, in the same commit
```

It is planned, checked and committed as the MERGE that it is: `rowlevel.committing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from sqlglot import exp

from tableformat.catalog.base import TableState
from tableformat.codec.puffin.deletion_vector import build_positions
from tableformat.environment import Environment
from tableformat.integer_order import distinct
from tableformat.lookup.keys import KeyColumns, parse_keys
from tableformat.lookup.live_rows import live_rows_of_keys
from tableformat.lookup.snapshot_rows import RowCaches, SnapshotRows
from tableformat.rowlevel.changes import ROW_ID, PositionSet, RowChanges
from tableformat.rowlevel.engine import InProcessEngine, row_writer
from tableformat.rowlevel.execute import RowLevelResult, run_statement
from tableformat.rowlevel.planning import StatementPlan
from tableformat.rowlevel.requests import SOURCE_ALIAS, TARGET_ALIAS, merge_statement
from tableformat.rowlevel.rewrite import FileRewrite
from tableformat.spec.data_file import DataFile
from tableformat.write.rows import check_columns
from tableformat.write.stage import check_unique

NO_ROW_ID = -1
_CLAUSES = ("WHEN MATCHED THEN UPDATE SET *", "WHEN NOT MATCHED THEN INSERT *")


def upsert(
    environment: Environment,
    state: TableState,
    rows: pa.Table,
    *,
    branch: str,
    mode: str | None = None,
    retries: int = 0,
) -> RowLevelResult:
    """Replace the rows of some keys, and add those whose key is new, in one commit.

    A replaced row keeps its `_row_id`; of several rows of a key the newest one's is kept.

    Args:
        environment: Catalog, store, clock.
        state: The table; its newest version is changed.
        rows: Whole rows, one per key.
        branch: The branch to change.
        mode: As for MERGE.
        retries: How often to plan again after losing against another commit.

    Raises:
        InvalidInputError: No primary key, a key twice, unknown or missing columns, wrong types.
        CommitConflictError: A row that is replaced was changed, or one of a key that is new came.

    Effects: as `rowlevel.execute.run_statement`.
    """
    key = _key(state)
    paths = [
        ".".join(exp.to_identifier(each, quoted=True).sql("spark") for each in path)
        for path in key.paths
    ]
    condition = " AND ".join(f"{TARGET_ALIAS}.{path} = {SOURCE_ALIAS}.{path}" for path in paths)
    return run_statement(
        environment,
        merge_statement(state.identifier, rows, condition, _CLAUSES),
        branch=branch,
        mode=mode,
        retries=retries,
        engine=_UpsertEngine(environment, rows),
    )


@dataclass(frozen=True, slots=True)
class _UpsertEngine:
    """`rowlevel.engine.Engine` for rows in memory that are joined by the primary key."""

    environment: Environment
    rows: pa.Table

    def evaluate(self, plan: StatementPlan) -> RowChanges:
        """See `Engine.evaluate`."""
        rows = self.rows
        if not rows.num_rows:
            return RowChanges()
        check_columns(rows.schema, plan.schema)
        check_unique(plan.state, plan.schema, rows)
        gone, updated, row_ids = self._replaced(plan)
        written = rows.append_column(ROW_ID, row_ids)
        files = row_writer(self.environment, plan).write(
            written.to_batches(), self.environment.runtime.ids, stored="checked"
        )
        return RowChanges(
            positions=gone.by_path,
            files=tuple(files),
            deleted_rows=gone.distinct - updated,
            updated_rows=updated,
            inserted_rows=rows.num_rows - updated,
        )

    def _replaced(self, plan: StatementPlan) -> tuple[PositionSet, int, pa.Array]:
        """Rows that go; how many keys have one; the row id that each of our rows gets, or null."""
        count, key = self.rows.num_rows, _key(plan.state)
        if plan.scan.snapshot is None:
            return PositionSet(), 0, pa.nulls(count, pa.int64())
        found = live_rows_of_keys(
            self.environment,
            plan.state,
            plan.scan.snapshot,
            plan.context.branch,
            key,
            parse_keys(_keys(self.rows, key), key),
        )
        caches, gone = RowCaches(self.environment, cache_bytes=1), PositionSet()
        try:
            stored = SnapshotRows(self.environment, plan.scan, caches)
            files = stored.by_file(found.paths, found.file, found.position)
            assert files is not None  # both are of one snapshot
            table, ordinal = stored.read(files, [ROW_ID])
        finally:
            caches.close()
        for each in files:
            path = each.task.entry.data_file.file_path
            gone.add(path, build_positions(each.position), len(each.position))
        ids = table.column(ROW_ID).fill_null(NO_ROW_ID).to_numpy()
        newest = np.full(count, NO_ROW_ID, dtype=np.int64)
        np.maximum.at(newest, found.key[ordinal], ids)
        row_ids = pa.array(newest, mask=newest == NO_ROW_ID)
        return gone, len(distinct(found.key)), row_ids

    def rewrite(self, plan: StatementPlan, rewrites: Sequence[FileRewrite]) -> list[DataFile]:
        """See `Engine.rewrite`."""
        return InProcessEngine(self.environment).rewrite(plan, rewrites)


def _key(state: TableState) -> KeyColumns:
    ids = state.required_key_ids("upsert into")
    return KeyColumns.of(state.metadata.schema(), ids, what="the primary key")


def _keys(rows: pa.Table, key: KeyColumns) -> pa.Table:
    leaves = [key.leaf(rows, ordinal) for ordinal in range(len(key.names))]
    return pa.table(leaves, names=list(key.names))
