"""DELETE, UPDATE and MERGE for engines of their own: begin, rows per split, finish or abandon.

```
begin ─> plan ── context: pinned snapshots, required columns ──> the engine's own planning
          │
          ├── splits ─> worker.read ─> the engine ─> worker.write ─> fragments      anywhere
          │
          └── finish(fragments): one commit, held to the pinned snapshots; or abandon(fragments)
```

icefold knows nothing of the engine's condition beyond `row_filter`; the engine knows nothing of
vectors, files, row ids and conflicts. After Flink's row-level modification scan context (FLIP-282)
and Trino's merge sink.

What `write` takes, one row per changed row:

| column | of | |
|---|---|---|
| `_action` | all | int: a `RowAction` |
| `_file`, `_pos` | all but INSERT | as they were read |
| `_row_id` | UPDATE, COPY | as it was read: the row keeps its identity |
| `_last_updated_sequence_number` | COPY | as it was read |
| every column of the table | UPDATE, INSERT, COPY | the whole row |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.schema import Schema

from tableformat.catalog.base import TableState
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError, TableError
from tableformat.rowlevel.changes import (
    ACTION,
    FILE,
    LAST_UPDATED,
    POSITION,
    ROW_ID,
    ActionRows,
    PositionSet,
    RowAction,
    RowChanges,
    refuse_ambiguous,
)
from tableformat.rowlevel.committing import commit_changes, delete_written
from tableformat.rowlevel.context import ScanContext, TableVersion
from tableformat.rowlevel.engine import InProcessEngine, row_writer
from tableformat.rowlevel.execute import RowLevelResult, result_of
from tableformat.rowlevel.planning import (
    OperationPlan,
    check_mutable,
    check_not_computed,
    check_target,
    covered_tasks,
    scan_of,
    target_version,
    without_tasks,
)
from tableformat.rowlevel.requests import ChangeableTable
from tableformat.rowlevel.rewrite import RowWriter
from tableformat.runtime import IdSource
from tableformat.scan.file_source import FileSource
from tableformat.scan.plan import FileScanTask, ScanPlan
from tableformat.scan.projection import project
from tableformat.scan.reader import TaskReader
from tableformat.spec.constraints import check_deletes_allowed
from tableformat.spec.data_file import DataFile
from tableformat.spec.names import MAIN_BRANCH
from tableformat.spec.properties import isolation_of, mode_of
from tableformat.sql.statement import RowLevelOperation
from tableformat.table_definition import parse_table_name


@dataclass(frozen=True, slots=True)
class Fragment:
    """What became of some rows. Picklable; nothing of it is visible before `finish`.

    Attributes:
        deleted: Rows that go for good.
        replaced: Rows that are written again: updated, or copied.
        files: Data files with the rows that come.
        counts: Rows by action.
    """

    deleted: PositionSet = field(default_factory=PositionSet)
    replaced: PositionSet = field(default_factory=PositionSet)
    files: tuple[DataFile, ...] = ()
    counts: Mapping[RowAction, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SplitWorker:
    """Reads splits and writes rows, on any machine that reaches the table's store. Picklable.

    Attributes:
        writer: Writes rows of the target.
        scan: The pinned scan, without its files.
        ids: For file names.
    """

    writer: RowWriter
    scan: ScanPlan
    ids: IdSource

    def read(
        self, split: FileScanTask, columns: Sequence[str], *, all_rows: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """The live rows of a split.

        Args:
            split: One of the plan's.
            columns: Columns of the table and metadata columns (`_file`, `_pos`, `_row_id`, ...).
            all_rows: Also rows that the plan's `row_filter` leaves out, to copy them.
        """
        scan, task = self.scan, split
        if all_rows:
            scan = replace(scan, row_filter=AlwaysTrue())
            task = replace(split, residual=AlwaysTrue())
        source = FileSource(self.writer.store, scan.specs, scan.properties)
        yield from TaskReader(source, scan, project(scan, columns), [task]).read(task)

    def write(self, rows: Iterable[pa.RecordBatch]) -> Fragment:
        """Note rows that go, write rows that come; see the module's table.

        Raises:
            InvalidInputError: A column is missing, or a value does not fit.

        Effects: data files, which nothing names before `finish`. If it raises, they are deleted; a
            crash leaves them to orphan removal.
        """
        folded = ActionRows()
        files = self.writer.write(self._written(rows, folded), self.ids)
        replaced = PositionSet()
        for action in (RowAction.UPDATE, RowAction.COPY):
            replaced.add_set(folded.rows[action])
        return Fragment(folded.rows[RowAction.DELETE], replaced, tuple(files), folded.counts)

    def _written(
        self, rows: Iterable[pa.RecordBatch], folded: ActionRows
    ) -> Iterator[pa.RecordBatch]:
        names = [column.name for column in self.writer.schema.fields]
        for batch in rows:
            _check_columns(batch, names)
            written = folded.fold(batch)
            if written.num_rows:
                lineage = [each for each in (ROW_ID, LAST_UPDATED) if each in batch.schema.names]
                yield written.select([*names, *lineage])


@dataclass(frozen=True, slots=True)
class RowLevelPlan:
    """An operation that has begun. It holds nothing open: forgetting it leaves no trace.

    Attributes:
        environment: Catalog, store, clock.
        plan: What the commit is held to.
    """

    environment: Environment
    plan: OperationPlan

    @property
    def context(self) -> ScanContext:
        """The operation, the pinned snapshot of every table, and the columns to read."""
        return self.plan.context

    @property
    def schema(self) -> Schema:
        """The target's schema."""
        return self.plan.state.metadata.schema()

    @property
    def splits(self) -> tuple[FileScanTask, ...]:
        """What has to be read, each once: a data file with its deletes. Picklable."""
        return self.plan.scan.tasks

    def worker(self) -> SplitWorker:
        """What reads and writes for this operation."""
        return SplitWorker(
            row_writer(self.environment, self.plan),
            replace(self.plan.scan, tasks=()),
            self.environment.runtime.ids,
        )

    def finish(self, fragments: Iterable[Fragment]) -> RowLevelResult:
        """Commit what all workers did, once.

        Raises:
            CommitConflictError: Something landed since `begin` that excludes it: begin again. The
                files are deleted.
            CommitUnknownError: It may have landed.
            InvalidInputError: A row was replaced twice or is none of the plan's, an INSERT or a
                change that was not announced, or a primary key would have two rows. The files are
                deleted.

        Effects: deletion vectors, or in copy-on-write the surviving rows of files once more; then
            one commit. Nothing is visible before.
        """
        done = list(fragments)
        try:
            changes = self._changes(done)
        except TableError:
            self.abandon(done)
            raise
        committed = commit_changes(
            self.environment,
            self.plan,
            changes,
            partial(InProcessEngine(self.environment).rewrite, self.plan),
        )
        return result_of(self.plan, changes, committed)

    def abandon(self, fragments: Iterable[Fragment]) -> None:
        """Delete the files of an operation that will not be finished. Never raises."""
        delete_written(self.environment, [file for each in fragments for file in each.files])

    def _changes(self, fragments: Sequence[Fragment]) -> RowChanges:
        deleted, replaced = PositionSet(), PositionSet()
        counts = dict.fromkeys(RowAction, 0)
        for fragment in fragments:
            deleted.add_set(fragment.deleted)
            replaced.add_set(fragment.replaced)
            for action, count in fragment.counts.items():
                counts[action] += count
        self._check_announced(counts)
        _check_planned(deleted, self.splits)
        _check_planned(replaced, self.splits)
        gone = PositionSet()
        gone.add_set(_once(deleted))  # deleting twice is deleting
        gone.add_set(replaced)
        refuse_ambiguous(gone)
        return RowChanges(
            positions=gone.by_path,
            files=tuple(file for fragment in fragments for file in fragment.files),
            deleted_rows=deleted.distinct,
            updated_rows=counts[RowAction.UPDATE],
            inserted_rows=counts[RowAction.INSERT],
        )

    def _check_announced(self, counts: Mapping[RowAction, int]) -> None:
        """What `begin` was not told of was not validated either."""
        allowed = {RowAction.KEEP, RowAction.COPY}
        if self.context.operation != RowLevelOperation.UPDATE:
            allowed.add(RowAction.DELETE)
        if self.context.updated_columns:
            allowed.add(RowAction.UPDATE)
        if self.context.inserts_rows:
            allowed.add(RowAction.INSERT)
        for action, count in counts.items():
            if count and action not in allowed:
                raise InvalidInputError(
                    f"{action.name} was not announced when the operation began",
                    operation=self.context.operation.upper(),
                    action="name updated_columns or inserts_rows in begin",
                )


def begin(
    table: ChangeableTable,
    operation: RowLevelOperation | str,
    *,
    row_filter: str | BooleanExpression | None = None,
    is_whole_condition: bool = False,
    required_columns: Sequence[str] | None = None,
    updated_columns: Sequence[str] = (),
    inserts_rows: bool = False,
    reads: Sequence[str] = (),
    branch: str = MAIN_BRANCH,
    mode: str | None = None,
) -> RowLevelPlan:
    """Pin the tables of a row-level operation, and say what has to be read.

    Args:
        table: The table that changes, in its newest version.
        operation: `delete`, `update` or `merge`.
        row_filter: Rows that the operation can touch or depends on, as far as the engine knows:
            what other commits change outside of it is no conflict. None: any row.
        is_whole_condition: The filter is all of a DELETE's condition: files that match as a whole
            go unread, and are in no split.
        required_columns: What the engine is going to read; None: all. For `context` only.
        updated_columns: Columns that an UPDATE or MERGE assigns to.
        inserts_rows: A MERGE may insert.
        reads: Other tables that the operation reads, each pinned to its current snapshot; the
            target's own name if a sub-query reads it as well, so that every change is a conflict.
        branch: The branch to change.
        mode: `merge-on-read` or `copy-on-write`; None: the table's `write.<operation>.mode`.

    Raises:
        NotFoundError: No such table or branch.
        InvalidInputError: Unknown or IMMUTABLE columns, a tag, the staging branch, wrong
            properties, announcements that do not fit the operation.
        UnsupportedError: A table that is not v3, or with a column that hides a metadata column.
    """
    environment = table.environment
    kind = _operation(operation)
    _check_announcement(kind, bool(updated_columns), inserts_rows, is_whole_condition)
    state = environment.catalog.load_table(table.state.identifier)
    check_target(state, branch)
    if kind == RowLevelOperation.DELETE:
        check_deletes_allowed(state.metadata)
    schema, properties = state.metadata.schema(), state.metadata.properties
    updated = _known(schema, updated_columns)
    for column in schema.fields:
        if column.name in updated:
            check_not_computed(state.metadata, column.name)
            check_mutable(state.metadata, column, column.name)
    names = {parse_table_name(name) for name in reads}
    rereads = state.identifier in names
    others = map(environment.catalog.load_table, sorted(names - {state.identifier}))
    scan = scan_of(environment, state, branch, row_filter)
    covered = covered_tasks(scan, state, scan.row_filter) if is_whole_condition else ()
    context = ScanContext(
        operation=kind,
        branch=branch,
        tables=(target_version(state, scan.snapshot), *map(_current_version, others)),
        isolation=isolation_of(properties, kind),
        mode=mode_of(properties, kind, mode),
        conflict_filter=AlwaysTrue() if rereads else scan.row_filter,
        required_columns=_known(schema, required_columns),
        updated_columns=updated,
        rereads_target=rereads,
        inserts_rows=inserts_rows,
    )
    plan = OperationPlan(
        state=state, context=context, scan=without_tasks(scan, covered), covered=covered
    )
    return RowLevelPlan(environment, plan)


def _operation(given: RowLevelOperation | str) -> RowLevelOperation:
    try:
        return RowLevelOperation(given.lower())
    except ValueError:
        raise InvalidInputError(
            "not a row-level operation", action="use delete, update or merge", value=repr(given)
        ) from None


def _check_announcement(
    operation: RowLevelOperation, updates: bool, inserts: bool, is_whole_condition: bool
) -> None:
    wrong = {
        "a DELETE updates nothing": operation == RowLevelOperation.DELETE and updates,
        "an UPDATE names updated_columns": operation == RowLevelOperation.UPDATE and not updates,
        "only a MERGE inserts": operation != RowLevelOperation.MERGE and inserts,
        "only a DELETE can have its whole condition in the filter": (
            operation != RowLevelOperation.DELETE and is_whole_condition
        ),
    }
    for reason, is_wrong in wrong.items():
        if is_wrong:
            raise InvalidInputError(reason, operation=operation.upper())


def _known(schema: Schema, names: Sequence[str] | None) -> tuple[str, ...]:
    """The columns in table order; None: all."""
    known = [column.name for column in schema.fields]
    if ACTION in known:
        raise InvalidInputError("a column has the name of the action", column=ACTION)
    unknown = set(names or ()) - set(known)
    if unknown:
        raise InvalidInputError("unknown column", column=min(unknown), known=",".join(known))
    return tuple(name for name in known if names is None or name in names)


def _current_version(state: TableState) -> TableVersion:
    return target_version(state, state.head(MAIN_BRANCH))


def _check_columns(batch: pa.RecordBatch, names: Sequence[str]) -> None:
    """Before anything of the batch is noted: whatever is missing would be lost silently."""
    found = set(batch.schema.names)
    actions = set(pc.unique(batch.column(ACTION)).to_pylist()) if ACTION in found else set()
    unknown = actions - set(RowAction)
    if (not actions and batch.num_rows) or unknown:
        raise InvalidInputError(
            f"the column {ACTION} must say what becomes of each row",
            values=", ".join(f"{each.value} {each.name}" for each in RowAction),
        )
    needed: list[str] = []
    for action in map(RowAction, actions):
        needed += [] if action == RowAction.INSERT else [FILE, POSITION]
        needed += names if action.comes else []
        needed += [ROW_ID] if action in (RowAction.UPDATE, RowAction.COPY) else []
        needed += [LAST_UPDATED] if action == RowAction.COPY else []
    for name in needed:
        if name not in found:
            raise InvalidInputError("rows to write lack a column", column=name)
    kept = pc.is_in(batch.column(ACTION), pa.array([RowAction.UPDATE, RowAction.COPY], pa.int8()))
    if pc.any(kept).as_py() and batch.column(ROW_ID).filter(kept).null_count:
        raise InvalidInputError("a row that is written again lost its id", column=ROW_ID)


def _check_planned(rows: PositionSet, splits: Sequence[FileScanTask]) -> None:
    counts = {s.entry.data_file.file_path: s.entry.data_file.record_count for s in splits}
    for path, positions in rows.by_path.items():
        if path not in counts or positions.max() >= counts[path]:
            raise InvalidInputError("a row is in none of the plan's splits", location=path)


def _once(rows: PositionSet) -> PositionSet:
    return PositionSet(rows.by_path, {path: len(each) for path, each in rows.by_path.items()})
