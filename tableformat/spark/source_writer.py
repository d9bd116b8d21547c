"""Writes of `format("icefold")`: rows straight to a branch, or change events to a staging branch.

Tasks write files and return what they wrote; the driver commits once. Spark gives each task one
partition of the frame and offers no shuffle here, so all changes of a key must be in one partition
(`events.repartition("id")`): each task says which keys it has written, and a key that two of them
know fails the write. `Table.write_changes` and `Table.write_stream` shuffle themselves.

Durable: after the tasks, files that nothing names; after the commit, the rows. A write that fails
leaves the table as it was, and its files to orphan removal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from tableformat.catalog.base import TableState
from tableformat.cdc.batch_commit import BatchId, is_committed
from tableformat.cdc.change_writer import ChangeWriter, WrittenFiles
from tableformat.cdc.events import EVENT_COLUMNS, EventBatch
from tableformat.cdc.format_options import SCHEMA_EVOLUTION, SchemaEvolution
from tableformat.cdc.formats import find_format, format_names
from tableformat.cdc.ingest import PARSE_ROWS, commit_written, with_ordinals
from tableformat.cdc.sharding import key_hashes
from tableformat.cdc.sink import SinkOptions, SinkPlan, plan_sink, without_history
from tableformat.cdc.source_time import latest_of
from tableformat.commit.changeset import Changeset, CommitKind
from tableformat.commit.operations import (
    overwrite_changeset,
    replace_partitions_changeset,
    select_files,
)
from tableformat.commit.request import check_writable
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError
from tableformat.integer_order import distinct
from tableformat.lookup.immutable_rows import commit_rows
from tableformat.paths import data_file_locations
from tableformat.runtime import SystemIds
from tableformat.scan.row_filter import parse_filter
from tableformat.spark.source_options import (
    AnySource,
    BranchOptions,
    SourceOptions,
    StreamWriteOptions,
    WriteOptions,
    own_options,
    parse_source_options,
)
from tableformat.spark.source_reader import load
from tableformat.spark.types import from_spark_batch, travelling_type
from tableformat.spec.constraints import check_deletes_allowed
from tableformat.spec.data_file import DataFile
from tableformat.spec.names import MAIN_BRANCH, STAGING_BRANCH
from tableformat.spec.options import GivenOptions
from tableformat.write.data_files import write_data_files


@dataclass
class WrittenRows(WriterCommitMessage):
    """Data files of one task."""

    files: tuple[DataFile, ...]


class RowsWriter(DataSourceArrowWriter):
    """Appends rows, or replaces the table or some partitions by them."""

    def __init__(
        self, options: SourceOptions[WriteOptions], state: TableState, *, overwrite: bool
    ) -> None:
        check_writable(state.metadata, table=state.name)
        self._options = options
        self._metadata = without_history(state.metadata)
        self._store = options.open().store
        self._overwrite = overwrite

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Runs on a worker: one partition's rows as data files."""
        metadata = self._metadata
        schema = metadata.schema()
        files = write_data_files(
            self._store,
            (from_spark_batch(batch, schema) for batch in iterator),
            schema=schema,
            spec=metadata.spec(),
            properties=metadata.properties,
            location_for=data_file_locations(metadata, SystemIds()),
        )
        return WrittenRows(tuple(files))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """One commit of all tasks' files."""
        parts = [each.files for each in messages if isinstance(each, WrittenRows)]
        files = [file for part in parts for file in part]
        environment, state = load(self._options)
        branch = self._options.values.branch or MAIN_BRANCH
        changeset = self._changeset(environment, state, files, branch)
        if changeset is not None:
            commit_rows(environment, state, changeset)

    def _changeset(
        self, environment: Environment, state: TableState, files: Sequence[DataFile], branch: str
    ) -> Changeset | None:
        if not self._overwrite:
            added = tuple(files)
            changes = Changeset(kind=CommitKind.APPEND, branch=branch, added_data_files=added)
            return changes if files else None
        check_deletes_allowed(state.metadata)
        if self._options.values.overwrite_mode == "dynamic":
            if not files:
                return None
            return replace_partitions_changeset(environment, state, files, branch=branch)
        everything = parse_filter(None)
        selection = select_files(environment, state, everything, branch=branch)
        if not files and not selection.all_match:
            return None
        return overwrite_changeset(selection, files, everything, state.metadata, branch=branch)


@dataclass
class WrittenChanges(WriterCommitMessage):
    """What one task wrote, and hashes of its keys: uint64, distinct."""

    written: WrittenFiles
    keys: NDArray[np.uint64]


class ChangeTask:
    """What tasks of both kinds of change writers do, and how the driver commits it. Picklable."""

    def __init__(
        self, options: AnySource, plan: SinkPlan, format_name: str, given: GivenOptions
    ) -> None:
        self.options = options
        self.branch = plan.branch
        self._writer: ChangeWriter = plan.writer
        self._format_name = format_name
        self._given = dict(given)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WrittenChanges:
        """Runs on a worker: parse one partition's events and write their changes."""
        writer = self._writer
        taken = list(iterator)
        if not taken:
            return WrittenChanges(WrittenFiles(), np.empty(0, np.uint64))
        events = pa.Table.from_batches(taken)
        if not writer.choice.factory.is_typed:
            known = [name for name in events.column_names if name in EVENT_COLUMNS]
            events = events.select(known)
        change_format = writer.build_format()
        parsed = [
            writer.parse(change_format, part)
            for part in EventBatch.split(with_ordinals(events), PARSE_ROWS)
        ]
        changes = pa.concat_tables([part.changes for part in parsed])
        ids = SystemIds()
        written = writer.write(changes, change_format, ids)
        letters = writer.write_dead_letters([part.bad for part in parsed], ids)
        return WrittenChanges(
            replace(
                written,
                dead_letter_files=tuple(letters),
                source_ms=latest_of(part.source_ms for part in parsed),
            ),
            _hashes(changes, writer.key),
        )

    def plan(self) -> SinkPlan:
        """The sink again, on the driver, with what the tasks were told."""
        plan = plan_sink(
            self.options.open(),
            self.options.identifier,
            format_name=self._format_name,
            options=self._given,
            branch=self.branch,
        )
        return replace(plan, writer=self._writer)

    def commit_batch(
        self, messages: Sequence[WriterCommitMessage | None], batch: BatchId | None
    ) -> None:
        """One commit of all tasks' files, at most once for a batch.

        Raises:
            InvalidInputError: A key was written by two tasks.
            FencedError: A later batch of the query is in the branch.
        """
        parts = [each for each in messages if isinstance(each, WrittenChanges)]
        if self._writer.delete_spec is not None:
            self._check_keys(parts)
        plan = self.plan()
        if batch is not None:
            state = plan.environment.catalog.load_table(plan.identifier)
            if is_committed(state, plan.branch, batch, by_this_driver=True):
                return
        commit_written(plan, WrittenFiles.together([each.written for each in parts]), batch)

    def _check_keys(self, parts: Sequence[WrittenChanges]) -> None:
        keys = np.concatenate([np.empty(0, np.uint64), *(each.keys for each in parts)])
        if distinct(keys).size < keys.size:
            names = ", ".join(repr(name) for name in self._writer.key)
            raise InvalidInputError(
                "changes of one key are in several partitions, so their order is lost",
                action=f"write events.repartition({names}), or use Table.write_changes",
                table=self._writer.table,
            )


class ChangesWriter(ChangeTask, DataSourceArrowWriter):
    """Writes a bounded frame of change events as one commit."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """One commit."""
        self.commit_batch(messages, None)


class StreamWriter(ChangeTask, DataSourceStreamArrowWriter):
    """Writes micro-batches of change events, each as one commit, exactly once."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """One commit; none if the batch is in the branch already."""
        values = self.options.values
        assert isinstance(values, StreamWriteOptions)
        self.commit_batch(messages, BatchId(values.query_id, batchId))


def rows_writer(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> RowsWriter:
    """A writer of rows.

    Raises:
        InvalidInputError: A wrong option, or a column that the table does not have.
        NotFoundError: There is no such table.
    """
    options = parse_source_options(given, WriteOptions)
    _, state = load(options)
    known = {field.name for field in state.metadata.schema().fields}
    unknown = [name for name in schema.names if name not in known]
    if unknown:
        raise InvalidInputError(
            f"there is no column {unknown[0]!r}", table=state.name, columns=", ".join(sorted(known))
        )
    return RowsWriter(options, state, overwrite=overwrite)


def change_writer(
    given: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> ChangesWriter:
    """A writer of change events.

    Raises:
        InvalidInputError: A wrong option; `overwrite`, which changes cannot do.
        NotFoundError: There is no such table.

    Effects: see `_evolved`.
    """
    if overwrite:
        raise InvalidInputError("changes are appended", action="use mode('append')")
    return ChangesWriter(*_change_task(given, schema, WriteOptions))


def stream_writer(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> StreamWriter:
    """A writer of micro-batches.

    Raises:
        InvalidInputError: A wrong or missing option; another output mode than append.
        NotFoundError: There is no such table.

    Effects: see `_evolved`.
    """
    if overwrite:
        raise InvalidInputError("changes are appended", action="use outputMode('append')")
    return StreamWriter(*_change_task(given, schema, StreamWriteOptions))


def _change_task(
    given: Mapping[str, str], schema: StructType, model: type[BranchOptions]
) -> tuple[AnySource, SinkPlan, str, GivenOptions]:
    """The arguments of a `ChangeTask`."""
    name = str(given.get("format", "")).strip().lower()
    if not name:
        raise InvalidInputError(
            "missing option 'format' of writing", action=f"use one of {', '.join(format_names())}"
        )
    beside = (find_format(name).options, SinkOptions)
    options = parse_source_options(given, model, *beside)
    others = {
        option: text
        for option, text in own_options(given).items()
        if any(option in each.names() for each in beside)
    }
    plan = plan_sink(
        options.open(),
        options.identifier,
        format_name=name,
        options=others,
        branch=options.values.branch or STAGING_BRANCH,
    )
    return options, _evolved(plan, schema), name, others


def _evolved(plan: SinkPlan, schema: StructType) -> SinkPlan:
    """The sink after the table got what a frame of typed columns has and it may get.

    Raises:
        InvalidInputError: Columns of JSON events are known only when tasks parse them, and Spark
            gives a Python source no way to write the events again.

    Effects: with `schema-evolution` a metadata commit, before any row is written.
    """
    choice, writer = plan.writer.choice, plan.writer
    mode = choice.evolution
    if mode is SchemaEvolution.STRICT:
        return plan
    if not choice.factory.is_typed:
        raise InvalidInputError(
            f"format 'icefold' cannot do {SCHEMA_EVOLUTION}={mode} with {choice.identifier}",
            action="use Table.write_changes or Table.write_stream, or add the columns yourself",
            table=writer.table,
        )
    kinds = [(each.name, travelling_type(each.dataType, path=each.name)) for each in schema.fields]
    nothing = pa.RecordBatch.from_pylist([], schema=pa.schema(kinds))
    schema_changes = writer.try_parse(writer.build_format(), EventBatch(nothing)).schema_changes
    return plan.evolved(schema_changes) if schema_changes else plan


def _hashes(changes: pa.Table, key: Sequence[str]) -> NDArray[np.uint64]:
    if not key or not changes.num_rows:
        return np.empty(0, np.uint64)
    columns = [changes.column(name).combine_chunks() for name in key]
    return distinct(key_hashes(columns))
