"""Changes between two snapshots as Arrow batches: what a reader of a changelog holds.

```
snapshots ─ steps ─> files that differ (file_changes) ─> rows that left, rows that came (step_rows)
                                                                  │
              +I only, -D only: streamed as they are read ────────┤
              both: collected by key (buckets), paired (pairing) ─┴─> batches with a kind
```

Applying the changes to the rows of the old snapshot, in order, gives the rows of the new one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import pyarrow as pa
from pyiceberg.expressions import BooleanExpression
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from tableformat.cached import cached_property
from tableformat.catalog.base import TableState
from tableformat.changelog.change_columns import ChangeColumns, plan_columns
from tableformat.changelog.file_changes import FileChange, diff_files
from tableformat.changelog.step_rows import StepReader, StepRows, plan_step_rows
from tableformat.changelog.steps import ChangeStep, plan_steps
from tableformat.commit.branch_history import is_ancestor
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError
from tableformat.scan.expired_snapshot import rows_telling_expiry
from tableformat.scan.plan import ScanPlan, plan_without_files
from tableformat.scan.row_filter import (
    bind_filter,
    filter_field_ids,
    normalize_filter,
    parse_filter,
)
from tableformat.scan.snapshot_selection import SelectedSnapshot, select_snapshot
from tableformat.spec.names import MAIN_BRANCH


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The changelog between two fixed snapshots; reading it twice gives the same.

    Attributes:
        old: The version to start from; None: the empty table.
        new: The version to arrive at.
        schema: Rows of every version are read with it: that of `new`, as a scan of it would; the
            table's current one if `old` is not in the history of `new`.
    """

    environment: Environment
    state: TableState
    old: Snapshot | None
    new: Snapshot | None
    schema: Schema
    row_filter: BooleanExpression
    columns: ChangeColumns
    net: bool

    @cached_property
    def steps(self) -> list[ChangeStep]:
        """The pairs of snapshots that are compared, in order."""
        return plan_steps(self.state.metadata, self.old, self.new, net=self.net)

    def arrow_schema(self) -> pa.Schema:
        """Row columns, then `_change_type`, `_change_ordinal`, `_commit_snapshot_id`."""
        return self.columns.output

    def to_batches(self, *, threads: int | None = None) -> Iterator[pa.RecordBatch]:
        """The changes, in the order in which they are to be applied; memory is bounded.

        Args:
            threads: Files read at the same time; None: one per core, at most eight.

        Raises:
            CorruptDataError: A file is damaged.
            NotFoundError: A file is gone, or a snapshot between the two has expired.
        """
        return chain.from_iterable(
            rows_telling_expiry(
                self.environment, self.state, (step.old, step.new), self._rows(step, threads)
            )
            for step in self.steps  # what cannot be told is said before anything is read
        )

    def _rows(self, step: ChangeStep, threads: int | None) -> Iterator[pa.RecordBatch]:
        yield from self.reader.changes(step, self.step_rows(step), threads=threads)

    def to_arrow(self) -> pa.Table:
        """The changes as one Arrow table."""
        return pa.Table.from_batches(self.to_batches(), schema=self.arrow_schema())

    def file_changes(self, step: ChangeStep) -> list[FileChange]:
        """The data files in which a step's versions may differ."""
        return diff_files(
            self.environment.store,
            self.state,
            step.old,
            step.new,
            schema=self.schema,
            row_filter=self.row_filter,
            read=self._read,
        )

    @cached_property
    def _read(self) -> Schema:
        """What is read of files: columns that come out, the key, those of the filter."""
        wanted = filter_field_ids(bind_filter(self.row_filter, self.schema)) | {
            each.field_id for each in self.columns.read.schema.fields
        }
        fields = [
            each for each in self.schema.fields if not wanted.isdisjoint(Schema(each).field_ids)
        ]
        return Schema(*fields, schema_id=self.schema.schema_id)

    def step_rows(self, step: ChangeStep) -> StepRows:
        """What to read for a step. Reads manifests and deletes."""
        return plan_step_rows(
            self.environment.store, self.plan, self.columns.read, self.file_changes(step)
        )

    @cached_property
    def plan(self) -> ScanPlan:
        """What reading any file of the changelog needs; no tasks."""
        bare = plan_without_files(self.state.metadata, self.schema, self.row_filter)
        return replace(bare, snapshot=self.new)

    @cached_property
    def reader(self) -> StepReader:
        """Reads the rows of any step."""
        return StepReader(self.environment.store, self.plan, self.columns)


def new_changes(
    environment: Environment,
    state: TableState,
    *,
    from_snapshot: int | str | None,
    to_snapshot: int | str | None = None,
    branch: str | None = None,
    net: bool = False,
    columns: Sequence[str] | None = None,
    row_filter: str | BooleanExpression | None = None,
    schema: Schema | None = None,
) -> Changes:
    """Check what can be checked without reading a file, and fix both snapshots.

    Args:
        environment: Catalog and store.
        state: The loaded table.
        from_snapshot: A snapshot id, or a branch or tag; None: the empty table.
        to_snapshot: Likewise; None: the head of `branch`.
        branch: Where to end without `to_snapshot`; `main` by default.
        net: One set of changes between the two versions, not one per snapshot.
        columns: Row columns wanted; metadata columns may be among them.
        row_filter: The changes of the rows that pass it: an update of a row that passed before and
            does not pass after it is a delete.
        schema: What rows are read with; None: see `Changes.schema`.

    Raises:
        InvalidInputError: A wrong column or filter, or both `to_snapshot` and `branch` are given.
        NotFoundError: There is no such snapshot, branch or tag; it may have expired.
    """
    if to_snapshot is not None and branch is not None:
        raise InvalidInputError(
            "changes lead to a snapshot or to the head of a branch, not both", table=state.name
        )
    _ = state.key_ids  # refused where what names the key does not fit the table
    old = None if from_snapshot is None else _select(state, from_snapshot).snapshot
    head = MAIN_BRANCH if branch is None else branch
    new = _select(state, head if to_snapshot is None else to_snapshot)
    metadata = state.metadata
    schema = schema or _reading_schema(metadata, old, new)
    expression = normalize_filter(parse_filter(row_filter), schema)
    bind_filter(expression, schema)
    return Changes(
        environment=environment,
        state=state,
        old=old,
        new=new.snapshot,
        schema=schema,
        row_filter=expression,
        columns=plan_columns(
            schema, columns, specs=metadata.specs(), schemas=tuple(metadata.schemas)
        ),
        net=net,
    )


def _reading_schema(metadata: TableMetadata, old: Snapshot | None, new: SelectedSnapshot) -> Schema:
    """The newer version's schema; going back or sideways, the table's, which reads every file."""
    if old is None or new.snapshot is None:
        return new.schema
    is_forward = is_ancestor(metadata, old.snapshot_id, of=new.snapshot.snapshot_id)
    return new.schema if is_forward else metadata.schema()


def _select(state: TableState, given: int | str) -> SelectedSnapshot:
    if isinstance(given, int):
        return select_snapshot(state, snapshot_id=given)
    return select_snapshot(state, ref=given)
