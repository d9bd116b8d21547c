"""One table. A facade: every method hands an immutable table version to a function that does it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.expressions import BooleanExpression

from tableformat.after_commit import reload_after
from tableformat.catalog.base import TableState
from tableformat.cdc.batch_commit import BatchId
from tableformat.changelog.changes import new_changes
from tableformat.commit.changeset import Changeset, CommitKind
from tableformat.commit.engine import CommitResult
from tableformat.commit.operations import (
    overwrite_changeset,
    replace_partitions_changeset,
    select_files,
)
from tableformat.commit.request import check_v3, check_writable
from tableformat.errors import InvalidInputError
from tableformat.lookup.immutable_rows import commit_rows
from tableformat.lookup.result import LookupResult
from tableformat.lookup.session import Lookup
from tableformat.paths import data_file_locations
from tableformat.scan.row_filter import parse_filter
from tableformat.spec.computed_columns import stored_columns
from tableformat.spec.constraints import check_deletes_allowed
from tableformat.spec.data_file import DataFile
from tableformat.spec.names import MAIN_BRANCH, STAGING_BRANCH
from tableformat.table_changes import TableChanges
from tableformat.table_scan import Scan, new_scan
from tableformat.table_structure import TableStructure
from tableformat.write.data_files import write_data_files
from tableformat.write.rows import arrow_rows, arrow_table
from tableformat.write.stage import ColumnChoice, stage_rows

if TYPE_CHECKING:  # Spark is an optional dependency
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tableformat.cdc.ingest import IngestResult
    from tableformat.rowlevel.execute import RowLevelResult  # sqlglot is loaded when it is needed


class Table(TableStructure):
    """A primary-keyed Iceberg v3 table at one version; `refresh` and every write move it on."""

    _lookup: Lookup | None = None

    def append(
        self, rows: pa.Table | pa.RecordBatchReader | pa.RecordBatch, *, branch: str = MAIN_BRANCH
    ) -> CommitResult:
        """Add rows without looking for older rows of the same keys.

        Args:
            rows: Columns by name; a missing optional column gets its default or null.
            branch: Where to.

        Raises:
            InvalidInputError: Unknown or missing columns, wrong types, nulls where none may be, or
                other values of enforced IMMUTABLE columns than a row of the key has.

        Effects: data files are written first, then one commit makes them visible. A crash before
            the commit leaves unreferenced files for orphan removal.
        """
        state = self.refresh().state
        files = self._write(state, rows)
        changeset = Changeset(kind=CommitKind.APPEND, branch=branch, added_data_files=tuple(files))
        return self._commit(state, changeset)

    def upsert(
        self,
        rows: pa.Table | pa.RecordBatch,
        *,
        branch: str = MAIN_BRANCH,
        mode: str | None = None,
        retries: int = 0,
    ) -> RowLevelResult:
        """Replace the rows of some keys, and add those whose key is new; published at once.

        A replaced row keeps its `_row_id`. The keys are looked up, in the index if there is one; a
        stream of changes is cheaper to `stage`.

        Args:
            rows: Whole rows, one per key.
            branch: The branch to change.
            mode: See `delete`; the property is `write.merge.mode`.
            retries: See `delete`.

        Raises:
            See `rowlevel.upsert.upsert`.
        """
        from tableformat.rowlevel.upsert import upsert

        given = arrow_table(rows)
        result = upsert(
            self.environment, self.state, given, branch=branch, mode=mode, retries=retries
        )
        self._move_on(result.state)
        return result

    def overwrite(
        self,
        rows: pa.Table | pa.RecordBatchReader | pa.RecordBatch,
        *,
        filter: str | BooleanExpression | None = None,
        branch: str = MAIN_BRANCH,
    ) -> CommitResult:
        """Replace rows: all that match `filter`, or without one the partitions that `rows` touch.

        Args:
            rows: The new rows; with a filter, all of them must provably match it.
            filter: Decided by metadata: no data file may match it only in part.
            branch: Where to.

        Raises:
            InvalidInputError: See `commit.operations`; or wrong rows, as for `append`.
            CommitConflictError: Someone changed what is replaced since it was planned.

        Effects: as `append`.
        """
        state = self.refresh().state
        check_deletes_allowed(state.metadata)
        selection = None
        if filter is not None:
            row_filter = parse_filter(filter)
            selection = select_files(self.environment, state, row_filter, branch=branch)
        files = self._write(state, rows)
        if selection is None:
            changeset = replace_partitions_changeset(self.environment, state, files, branch=branch)
        else:
            changeset = overwrite_changeset(
                selection, files, row_filter, state.metadata, branch=branch
            )
        return self._commit(state, changeset)

    def stage(
        self,
        upserts: pa.Table | None = None,
        deletes: pa.Table | None = None,
        *,
        branch: str = STAGING_BRANCH,
        columns: ColumnChoice = "whole",
    ) -> CommitResult:
        """Commit changed rows and deleted keys to a staging branch, for `resolver.resolve`.

        Args:
            upserts: Rows; each replaces every older row of its key. One row per key.
            deletes: Keys of rows to delete: the key columns by name; others are ignored.
            branch: The staging branch; created from `main` when it does not exist.
            columns: `partial`: columns that `upserts` does not have keep the values of the row that
                is replaced; `whole`: they get the write default or null.

        Raises:
            InvalidInputError: Unknown or missing columns, wrong types, a key twice in `upserts`,
                or `branch="main"` (readers there never see equality deletes).
        """
        result = stage_rows(
            self.environment,
            self.identifier,
            upserts=None if upserts is None else arrow_table(upserts),
            deletes=None if deletes is None else arrow_table(deletes),
            branch=branch,
            columns=columns,
        )
        self._move_on(result.state)
        return result

    def write_changes(
        self,
        changes: DataFrame | pa.Table,
        *,
        format_name: str = "upsert",
        options: Mapping[str, str] | None = None,
        branch: str = STAGING_BRANCH,
        query_id: str | None = None,
        batch_id: int | None = None,
    ) -> IngestResult:
        """Stage bounded change events as one commit; see `cdc.ingest` and `spark.stream_writer`.

        Args:
            changes: A Spark frame (files are written by the executors), an Arrow table, or what has
                Arrow's stream interface (polars, pandas): typed columns for `upsert` and `append`,
                `value` (and `key`) for JSON formats.
            format_name: The change format.
            options: Options of the format and of the sink: `icefold ingest --list-options`.
            branch: The staging branch.
            query_id: Whose batch this is; with `batch_id` it makes the call idempotent.
            batch_id: Rises with every batch of `query_id`; one that is in the branch already is
                not written again.

        Raises:
            InvalidInputError: Wrong options, columns or records; nothing was committed.
        """
        if (query_id is None) != (batch_id is None):
            raise InvalidInputError("query_id and batch_id go together", table=self.name)
        batch = None if query_id is None else BatchId(query_id, batch_id or 0)
        write: Callable[..., IngestResult]
        if hasattr(changes, "sparkSession"):
            from tableformat.spark.stream_writer import write_frame as write
        else:
            from tableformat.cdc.ingest import write_changes as write

            changes = arrow_table(changes)
        result = write(
            self.environment,
            self.identifier,
            changes,
            format_name=format_name,
            options=options,
            branch=branch,
            batch=batch,
        )
        commit = result.commit
        staged = (
            "nothing to stage" if commit is None else f"staged as {commit.snapshot.snapshot_id}"
        )
        reload_after(self, staged)
        return result

    def write_stream(
        self,
        events: DataFrame,
        *,
        checkpoint: str,
        format_name: str = "debezium-json",
        options: Mapping[str, str] | None = None,
        branch: str = STAGING_BRANCH,
        query_id: str | None = None,
        trigger: Mapping[str, object] | None = None,
    ) -> StreamingQuery:
        """Stage a stream of change events on Spark, exactly once; see `spark.stream_writer`."""
        from tableformat.spark.stream_writer import write_stream

        return write_stream(
            self.environment,
            self.identifier,
            events,
            checkpoint=checkpoint,
            format_name=format_name,
            options=options,
            branch=branch,
            query_id=query_id,
            trigger=trigger,
        )

    def scan(
        self,
        filter: str | BooleanExpression | None = None,
        columns: Sequence[str] | None = None,
        *,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: int | None = None,
        as_of_ms: int | None = None,
        limit: int | None = None,
    ) -> Scan:
        """Plan a read of the newest version of a branch (default `main`) or of an older one.

        Args:
            filter: Rows wanted: SQL-like text (`amount > 10 and region = 'EU'`) or an expression.
            columns: Columns wanted; None: all.
            branch: A branch; `staging` is read merged-on-read, unresolved deletes applied.
            tag: A tag.
            snapshot_id: A snapshot.
            as_of_ms: The snapshot `main` (or `branch`) pointed at then, wall-clock milliseconds.
            limit: At most so many rows.

        Raises:
            InvalidInputError: The filter cannot be parsed, a column is unknown, or several of
                branch, tag and snapshot are given.
            NotFoundError: There is no such branch, tag or snapshot.
        """
        self.refresh()
        return new_scan(
            self.environment,
            self.state,
            row_filter=filter,
            columns=columns,
            branch=branch,
            tag=tag,
            snapshot_id=snapshot_id,
            as_of_ms=as_of_ms,
            limit=limit,
        )

    def changes(
        self,
        from_snapshot: int | str | None,
        to_snapshot: int | str | None = None,
        *,
        branch: str | None = None,
        net: bool = False,
        columns: Sequence[str] | None = None,
        filter: str | BooleanExpression | None = None,
    ) -> TableChanges:
        """Plan a read of what changed between two versions: rows with `_change_type`.

        Args:
            from_snapshot: A snapshot id, branch or tag; None: from the empty table.
            to_snapshot: Likewise; None: to the head of `branch`.
            branch: Where to end without `to_snapshot`; default `main`.
            net: One set of changes between the two, not one per snapshot.
            columns: Row columns wanted; None: all.
            filter: Changes of the rows that pass it; as for `scan`.

        Raises:
            InvalidInputError: The filter cannot be parsed, or a column is unknown.
            NotFoundError: There is no such snapshot, branch or tag; it may have expired.
        """
        self.refresh()
        changes = new_changes(
            self.environment,
            self.state,
            from_snapshot=from_snapshot,
            to_snapshot=to_snapshot,
            branch=branch,
            net=net,
            columns=columns,
            row_filter=filter,
        )
        return TableChanges.of(changes)

    def lookup(
        self,
        keys: Any,
        columns: Sequence[str] | None = None,
        *,
        index: str | None = None,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: int | None = None,
    ) -> LookupResult:
        """The rows of keys, through the primary-key index or a secondary one.

        Without an index, or when it cannot be brought to the snapshot, the rows are found by a
        scan of the files that may hold them; the result's `source` and `reason` say so.

        Args:
            keys: A table of the key's columns (Arrow, polars, pandas), a dict, or a list of
                dicts, of tuples in the order of `primary_key`, or of values when the key is one
                column; or one such value. NULL finds rows whose column is NULL.
            columns: Columns wanted, metadata columns included; None: all of the table.
            index: A secondary index, by the name it was declared with.
            branch: Read another branch than `main`.
            tag: Read a tag.
            snapshot_id: Read a snapshot.

        Raises:
            InvalidInputError: Keys without the key's columns, values that do not fit, an unknown
                column, or several of branch, tag and snapshot are given.
            NotFoundError: There is no such index, branch, tag or snapshot.

        Cost: what was read stays in memory, within bounds, for the next lookup on this object.
        """
        if self._lookup is None:
            self._lookup = Lookup(self.environment, self.identifier)
        return self._lookup.find(
            keys, columns, index=index, branch=branch, tag=tag, snapshot_id=snapshot_id
        )

    def add_computed_column(
        self, name: str, expression: str, type: str, *, stored: bool = False, backfill: bool = False
    ) -> Table:
        """Declare a column that is computed: by scans, or `stored` when rows are written.

        Args:
            name: Of no other column.
            expression: Spark SQL over columns of the table: literals, columns, `+`, `-` and `*`.
            type: `int`, `long` or `double`. What does not fit fails the read, or the write.
            stored: The column is one of the schema, which every engine sees.
            backfill: Of a stored one on a table with rows: those of `main` are written again where
                the column is NULL. Cut short, the same call goes on.

        Raises:
            AlreadyExistsError: There is a column of that name.
            InvalidInputError: An unknown column, or nothing that every reader computes alike; or a
                stored one on a table with rows, without `backfill`.

        Effects: a metadata commit; with `backfill` one of data files after it.
        """
        from tableformat.commit.computed_declarations import add_stored_column, add_virtual_column

        if not stored:
            if backfill:
                raise InvalidInputError("only a stored computed column has a backfill", column=name)
            return self._changed(add_virtual_column, name, expression, type)
        if backfill:
            check_v3(
                self.state.metadata, table=self.name, what="change rows of", why="deletion vectors"
            )
        self._changed(add_stored_column, name, expression, type, may_have_rows=backfill)
        if backfill:
            self.update({name: "DEFAULT"}, f"`{name}` IS NULL", mode="copy-on-write")
        return self

    def drop_computed_column(self, name: str) -> Table:
        """Drop the declaration; `NotFoundError` if there is none of that name.

        Of a stored one the column stays, with the values that it has.
        """
        from tableformat.commit.computed_declarations import drop_computed_column

        return self._changed(drop_computed_column, name)

    def check_computed_columns(self, *, branch: str = MAIN_BRANCH) -> dict[str, int]:
        """How many rows hold another value of a stored computed column than its expression's.

        Rows that other engines wrote may: they know nothing of expressions.
        `UPDATE ... SET column = DEFAULT` mends them.

        Raises:
            InvalidInputError: An expression has no value that fits for some row; names the column.

        Cost: reads those columns and what they are computed from, of all rows.
        """
        schema = self.refresh().schema()
        if not stored_columns(self.properties, schema):
            return {}
        from tableformat.sql.computed_columns import StoredValues

        stored = StoredValues.of(self.properties, schema)
        assert stored is not None
        columns = sorted({*stored.columns, *stored.inputs(stored.columns, schema)})
        wrong = dict.fromkeys(stored.columns, 0)
        for batch in self.scan(columns=columns, branch=branch).to_batches():
            for name in wrong:
                wrong[name] += int(stored.differing(name, batch).sum())
        return wrong

    def delete(
        self,
        where: str | None = None,
        *,
        branch: str = MAIN_BRANCH,
        spark: SparkSession | None = None,
        mode: str | None = None,
        retries: int = 0,
    ) -> RowLevelResult:
        """Delete the rows for which a condition is true; without one, all rows.

        Args:
            where: A condition in Spark SQL (`amount > 10 AND region = 'EU'`).
            branch: The branch to change.
            spark: Evaluates the condition; without it only plain comparisons can be.
            mode: `merge-on-read` or `copy-on-write`; None: the table's `write.delete.mode`.
            retries: How often to plan again after losing against another commit.

        Raises:
            See `rowlevel.execute.run_statement`.
        """
        from tableformat.rowlevel.requests import delete_statement, run_on_table

        statement = delete_statement(self.identifier, where)
        return run_on_table(self, statement, branch=branch, spark=spark, mode=mode, retries=retries)

    def update(
        self,
        assignments: Mapping[str, str],
        where: str | None = None,
        *,
        branch: str = MAIN_BRANCH,
        spark: SparkSession | None = None,
        mode: str | None = None,
        retries: int = 0,
    ) -> RowLevelResult:
        """Change columns of the rows for which a condition is true; without one, of all rows.

        Args:
            assignments: Column to value, an expression in Spark SQL: `{"amount": "amount * 2",
                "status": "'paid'"}`.
            where: As for `delete`, like the other arguments.
            branch: See `delete`.
            spark: See `delete`.
            mode: See `delete`; the property is `write.update.mode`.
            retries: See `delete`.
        """
        from tableformat.rowlevel.requests import run_on_table, update_statement

        statement = update_statement(self.identifier, assignments, where)
        return run_on_table(self, statement, branch=branch, spark=spark, mode=mode, retries=retries)

    def merge(
        self,
        source: DataFrame | pa.Table | str,
        on: str,
        clauses: Sequence[str] = (
            "WHEN MATCHED THEN UPDATE SET *",
            "WHEN NOT MATCHED THEN INSERT *",
        ),
        *,
        branch: str = MAIN_BRANCH,
        spark: SparkSession | None = None,
        mode: str | None = None,
        retries: int = 0,
    ) -> RowLevelResult:
        """MERGE INTO this table, which is `t` in the expressions; the source is `s`.

        Args:
            source: A DataFrame, an Arrow table, or the name of a table or view.
            on: The condition: `t.id = s.id`.
            clauses: WHEN … THEN …, in order, as in SQL.
            branch: See `delete`, like the others.
            spark: The session; None: the source's, else the active one.
            mode: See `delete`; the property is `write.merge.mode`.
            retries: See `delete`.
        """
        from tableformat.rowlevel.requests import merge_statement, run_on_table

        statement = merge_statement(self.identifier, source, on, clauses)
        return run_on_table(
            self,
            statement,
            branch=branch,
            spark=spark,
            mode=mode,
            retries=retries,
            source=None if isinstance(source, str) else source,
        )

    def _write(
        self, state: TableState, rows: pa.Table | pa.RecordBatchReader | pa.RecordBatch
    ) -> list[DataFile]:
        metadata = state.metadata
        check_writable(metadata, table=state.name)
        return write_data_files(
            self.environment.store,
            arrow_rows(rows),
            schema=metadata.schema(),
            spec=metadata.spec(),
            properties=metadata.properties,
            location_for=data_file_locations(metadata, self.environment.runtime.ids),
        )

    def _commit(self, state: TableState, changeset: Changeset) -> CommitResult:
        result = commit_rows(self.environment, state, changeset)
        self._move_on(result.state)
        return result
