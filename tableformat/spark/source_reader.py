"""Batch reads of `format("icefold")`: the rows of one version, or the changes between two.

The driver's Python process plans and hands out partitions; each worker reads its own. What travels
to the workers is the store and the plan, never the catalog.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING

import pyarrow as pa
from pyiceberg.expressions import And, BooleanExpression
from pyiceberg.schema import Schema
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from tableformat.catalog.base import TableState
from tableformat.changelog.change_columns import CHANGE_FIELDS
from tableformat.changelog.changes import Changes, new_changes
from tableformat.changelog.step_rows import StepReader, StepRows
from tableformat.changelog.steps import ChangeStep
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError
from tableformat.scan.plan import ScanPlan, plan_scan, plan_without_files
from tableformat.scan.projection import Projection, project
from tableformat.scan.row_filter import parse_filter
from tableformat.scan.snapshot_selection import select_version
from tableformat.spark.arrow_scan import ScanPart, scan_parts
from tableformat.spark.source_filters import scan_filter
from tableformat.spark.source_options import AnySource, ReadOptions, SourceOptions
from tableformat.spark.types import to_spark_batch, to_spark_schema
from tableformat.spec.computed_columns import computed_columns
from tableformat.spec.decimal_text import parse_decimal

if TYPE_CHECKING:
    from tableformat.sql.computed_columns import ResultColumns

_NOT_FOR_ROWS = ("from", "to", "net", "max-snapshots-per-batch")
_NOT_FOR_CHANGES = ("tag", "snapshot-id", "as-of-ms", "max-snapshots-per-batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class PinnedScan:
    """A read whose version is fixed: every use of one DataFrame reads the same. Picklable.

    Attributes:
        snapshot_id: None: the table was empty.
        schema: What rows are read with.
        pushed: What Spark's planner added to the filter of the options.
        result: What is computed of the `columns` that are read; None: nothing.
    """

    options: SourceOptions[ReadOptions]
    snapshot_id: int | None
    schema: Schema
    row_filter: BooleanExpression
    columns: tuple[str, ...] | None
    pushed: tuple[BooleanExpression, ...] = ()
    result: ResultColumns | None = None

    @classmethod
    def of(cls, options: SourceOptions[ReadOptions]) -> PinnedScan:
        """Fix the version that the options mean now.

        Raises:
            InvalidInputError: Options exclude each other; a wrong column or filter.
            NotFoundError: There is no such table, branch, tag or snapshot.
        """
        values = options.values
        refuse(values, _NOT_FOR_ROWS, "they belong to option 'read=changes'")
        _, state = load(options)
        selected = select_version(
            state,
            branch=values.branch,
            tag=values.tag,
            snapshot_id=values.snapshot_id,
            as_of_ms=values.as_of_ms,
        )
        result = _computed(state, selected.schema, values.columns or None)
        return cls(
            options=options,
            snapshot_id=None if selected.snapshot is None else selected.snapshot.snapshot_id,
            schema=selected.schema,
            row_filter=parse_filter(values.filter),
            columns=(values.columns or None) if result is None else result.read,
            result=result,
        )

    def plan(self) -> ScanPlan:
        """Files to read. Opens the catalog."""
        environment, state = load(self.options)
        plan = plan_scan(
            environment,
            state,
            snapshot_id=self.snapshot_id,
            row_filter=reduce(And, self.pushed, self.row_filter),
            schema=self.schema,
        )
        return plan if self.snapshot_id is not None else replace(plan, tasks=())

    def projection(self) -> Projection:
        """Columns to read. Opens the catalog: `_partition` depends on the table's specs."""
        _, state = load(self.options)
        return project(plan_without_files(state.metadata, self.schema), self.columns)

    def result_schema(self) -> Schema:
        """Result columns. Opens the catalog."""
        read = self.projection().schema
        return read if self.result is None else self.result.schema(read)


class RowsReader(DataSourceReader):
    """Reads the rows of one version."""

    def __init__(self, pinned: PinnedScan) -> None:
        self._pinned = pinned

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:  # noqa: N802
        """Take what we can evaluate exactly as Spark would; give back the rest."""
        taken: list[BooleanExpression] = []
        for each in filters:
            found = scan_filter(each, self._pinned.schema)
            if found is None:
                yield each
            else:
                taken.append(found)
        self._pinned = replace(self._pinned, pushed=tuple(taken))

    def partitions(self) -> Sequence[InputPartition]:
        """Groups of files that hold about as many rows."""
        plan = self._pinned.plan()
        store = self._pinned.options.open().store
        return [*scan_parts(store, plan, project(plan, self._pinned.columns))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs on a worker."""
        # Spark has a stand-in when there are no partitions.
        rows = partition.rows() if isinstance(partition, ScanPart) else iter(())
        result = self._pinned.result
        return rows if result is None else result.finished(rows)


@dataclass
class ChangesPartition(InputPartition):
    """Some files of a step whose rows need no partner, or a whole step."""

    reader: StepReader
    step: ChangeStep
    rows: StepRows


class ChangesReader(DataSourceReader):
    """Reads the changes between two versions, which are fixed when Spark plans the query.

    The reader itself goes to every task, so it holds no partitions.
    """

    def __init__(self, options: SourceOptions[ReadOptions]) -> None:
        refuse(options.values, _NOT_FOR_CHANGES, "they do not fit option 'read=changes'")
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """One per step, several for a step of inserts or deletes only."""
        return change_partitions(plan_changes(self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Runs on a worker."""
        return read_changes(partition)


def plan_changes(options: SourceOptions[ReadOptions], *, from_option: bool = True) -> Changes:
    """The changes that the options of a batch read mean now.

    Args:
        options: Checked options.
        from_option: False leaves the option `from` out; columns do not depend on it, and a stream
            that goes on after a restart no longer needs the snapshot it began with.

    Raises:
        InvalidInputError: Options that exclude each other, a wrong column or filter.
        NotFoundError: There is no such table, branch, tag or snapshot.
    """
    values = options.values
    environment, state = load(options)
    return new_changes(
        environment,
        state,
        from_snapshot=version(values.from_) if from_option else None,
        to_snapshot=version(values.to),
        branch=values.branch,
        net=values.net,
        columns=values.columns or None,
        row_filter=values.filter,
    )


def change_partitions(changes: Changes) -> list[ChangesPartition]:
    """Partitions of a changelog."""
    partitions: list[ChangesPartition] = []
    for step in changes.steps:
        rows = changes.step_rows(step)
        if rows.removed and rows.added:
            partitions.append(ChangesPartition(changes.reader, step, rows))
            continue
        parts = [StepRows(removed=(source,), added=()) for source in rows.removed]
        parts += [StepRows(removed=(), added=(source,)) for source in rows.added]
        partitions += [ChangesPartition(changes.reader, step, part) for part in parts]
    return partitions


def read_changes(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Runs on a worker: the partition's changes, in the types that travel through Spark."""
    if not isinstance(partition, ChangesPartition):
        return  # Spark's stand-in when there are no partitions
    columns = partition.reader.columns
    schema = pa.schema([*to_spark_schema(columns.row_schema), *CHANGE_FIELDS])
    for batch in partition.reader.changes(partition.step, partition.rows, threads=1):
        rows = to_spark_batch(batch.select(columns.rows), columns.row_schema)
        yield pa.RecordBatch.from_arrays(
            [*rows.columns, *batch.columns[len(columns.rows) :]], schema=schema
        )


def _computed(
    state: TableState, schema: Schema, columns: Sequence[str] | None
) -> ResultColumns | None:
    if not computed_columns(state.metadata.properties):
        return None
    from tableformat.sql.computed_columns import result_columns  # loads sqlglot

    return result_columns(state.metadata, schema, columns)


def load(options: AnySource) -> tuple[Environment, TableState]:
    """Open the catalog and load the table."""
    environment = options.open()
    return environment, environment.catalog.load_table(options.identifier)


def version(text: str | None) -> int | str | None:
    """Digits are a snapshot id, anything else is a branch or tag."""
    number = None if text is None else parse_decimal(text)
    return text if number is None else number


def refuse(values: ReadOptions, names: Sequence[str], why: str) -> None:
    """Raise `InvalidInputError` if one of the options is given."""
    given = values.model_dump(by_alias=True)
    for name in names:
        if given[name]:
            raise InvalidInputError(f"option '{name}' has no effect here: {why}")


def is_changes(options: SourceOptions[ReadOptions]) -> bool:
    """Whether changes are read, not rows."""
    return options.values.read == "changes"
