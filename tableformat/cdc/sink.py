"""Where changes go: the checked plan of a sink, and the step that turns changes into files.

A `SinkPlan` is made on the driver. Its `ChangeWriter` is shipped to the tasks: it parses events and
writes reduced changes, and returns `WrittenFiles`. Only the driver commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata

from tableformat.catalog.base import Identifier, TableState
from tableformat.cdc.dead_letter import FROM_FIELD, load_dead_letter_table
from tableformat.cdc.events import FILE, EventBatch, ParsedEvents
from tableformat.cdc.formats import ChangeFormat, FormatChoice, choose_format
from tableformat.cdc.options import (
    GivenOptions,
    Option,
    OptionKind,
    OptionTable,
    OptionValues,
)
from tableformat.cdc.reduce import ReducedChanges, reduce_changes
from tableformat.cdc.row_codec import key_columns
from tableformat.cdc.row_policy import POLICY_OPTIONS, RowPolicy
from tableformat.cdc.rowkind import check_sink_takes
from tableformat.cdc.schema_evolution import evolve_table
from tableformat.cdc.schema_wishes import SchemaWishes
from tableformat.cdc.sharding import shards_by_partition, shards_of
from tableformat.commit.changeset import CommitKind
from tableformat.commit.declarations import declare_sequence_column
from tableformat.environment import Environment
from tableformat.errors import CommitConflictError, InvalidInputError, UnsupportedError
from tableformat.paths import data_file_locations, equality_delete_locations
from tableformat.runtime import IdSource
from tableformat.spec.constraints import define_sequence, sequence_field_id
from tableformat.spec.data_file import DataFile
from tableformat.spec.names import MAIN_BRANCH
from tableformat.store.base import ObjectStore
from tableformat.table_definition import parse_table_name
from tableformat.write.data_files import write_data_files
from tableformat.write.delete_scope import delete_spec, key_decides_partition
from tableformat.write.equality_deletes import write_equality_deletes
from tableformat.write.partitioning import Partitioner

FAIL, DEAD_LETTER = "fail", "dead-letter"

SINK_OPTIONS = OptionTable(
    "the sink",
    (
        Option(
            name="on-bad-record",
            kind=OptionKind.CHOICE,
            choices=(FAIL, DEAD_LETTER),
            default=FAIL,
            help="fail the batch, or put the record into the dead-letter table and go on",
        ),
        Option(
            name="dead-letter-table",
            help="NAMESPACE.TABLE for bad records; created when needed. "
            "Default: the table's name with `_dead_letter`",
        ),
        Option(
            name="assume-new-keys",
            kind=OptionKind.BOOLEAN,
            default=False,
            help="inserts (+I) have keys that the table does not have: write no delete for them",
        ),
        Option(
            name="shards",
            kind=OptionKind.INTEGER,
            minimum=1,
            help="tasks that write a batch on Spark, and so files per partition and batch. "
            "Default: Spark's default parallelism",
        ),
        Option(
            name="shards-per-partition",
            kind=OptionKind.INTEGER,
            minimum=1,
            help="how many of the shards may write to one partition: bounds the files of a batch "
            "to this many per partition. For tables whose keys never leave their partition. "
            "Default: all shards",
        ),
        *POLICY_OPTIONS,
    ),
)


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """What one task wrote for a batch, and how many rows of what."""

    data_files: tuple[DataFile, ...] = ()
    delete_files: tuple[DataFile, ...] = ()
    dead_letter_files: tuple[DataFile, ...] = ()
    changes: int = 0

    @classmethod
    def together(cls, parts: Sequence[WrittenFiles]) -> Self:
        """All files of several tasks."""
        return cls(
            data_files=tuple(file for part in parts for file in part.data_files),
            delete_files=tuple(file for part in parts for file in part.delete_files),
            dead_letter_files=tuple(file for part in parts for file in part.dead_letter_files),
            changes=sum(part.changes for part in parts),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeWriter:
    """From events to files, for one version of one table. Pickles when its store does."""

    store: ObjectStore
    metadata: TableMetadata  # without history: what tasks need to know of the table
    delete_spec: PartitionSpec | None  # None: nothing is ever deleted (format `append`)
    choice: FormatChoice
    assume_new_keys: bool
    policy: RowPolicy
    per_partition: int | None
    table: str  # its name, for dead letters
    dead_letter: TableMetadata | None  # None: a bad record fails the batch

    @property
    def schema(self) -> Schema:
        """The table's schema."""
        return self.metadata.schema()

    @property
    def key(self) -> tuple[str, ...]:
        """Key columns; empty for a table without a key."""
        return key_columns(self.schema)

    def build_format(self) -> ChangeFormat:
        """The change format for the table."""
        return self.choice.build(self.schema)

    def parse(self, change_format: ChangeFormat, events: EventBatch) -> ParsedEvents:
        """Parse events; without a dead-letter table a bad record is an error.

        Raises:
            InvalidInputError: There is a bad record and no dead-letter table; names the first one.
                Or see `ChangeFormat.parse`.
        """
        parsed = change_format.parse(events)
        if parsed.wishes:
            return parsed
        parsed = self.policy.complete(parsed, events)
        if parsed.bad.num_rows and self.dead_letter is None:
            raise bad_record_error(parsed.bad)
        return parsed

    def reduce(self, changes: pa.Table, change_format: ChangeFormat) -> ReducedChanges:
        """One row per key; see `reduce_changes`."""
        order = self.policy.order(change_format)
        if FILE in changes.column_names:
            order.append(FILE)
        return reduce_changes(
            changes,
            key=self.key,
            order=order,
            assume_new_keys=self.assume_new_keys,
        )

    def shards(self, changes: pa.Table, count: int) -> npt.NDArray[np.int64]:
        """The task, 0 to `count` - 1, that writes each change; all changes of a key have one."""
        key = [_array(changes.column(name)) for name in self.key]
        if self.per_partition is not None:
            partition = Partitioner(self.metadata.spec(), self.schema).columns(changes)
            return shards_by_partition(partition, key, count, self.per_partition)
        return shards_of(key, count) if key else np.arange(changes.num_rows) % count

    def write(self, changes: pa.Table, change_format: ChangeFormat, ids: IdSource) -> WrittenFiles:
        """Write all changes of some keys: data files and equality deletes. Nothing is committed.

        Args:
            changes: Every change of the batch for each of its keys, in any order.
            change_format: The format they came from.
            ids: For file names.

        Effects: see `write_data_files`. Files of a task that fails later are left to orphan
            removal.
        """
        columns = [column.name for column in self.schema.fields]
        if changes.num_rows == 0:
            return WrittenFiles()
        if self.delete_spec is None:
            data_files = self._data_files(self.policy.sorted(changes.select(columns)), ids)
            return WrittenFiles(tuple(data_files), changes=changes.num_rows)
        reduced = self.reduce(changes, change_format)
        sources = {field.source_id for field in self.delete_spec.fields}
        sequence = sequence_field_id(self.metadata)
        carried = () if sequence is None else (sequence,)
        beside = [c.name for c in self.schema.fields if c.field_id in {*sources, *carried}]
        delete_files = write_equality_deletes(
            self.store,
            self.policy.sorted_keys(reduced.keys(list(dict.fromkeys([*self.key, *beside])))),
            schema=self.schema,
            equality_ids=sorted(self.schema.identifier_field_ids),
            spec=self.delete_spec,
            properties=self.metadata.properties,
            location_for=equality_delete_locations(self.metadata, ids),
            carried_ids=carried,
        )
        data_files = self._data_files(self.policy.rows(reduced, columns), ids)
        return WrittenFiles(tuple(data_files), tuple(delete_files), changes=changes.num_rows)

    def write_dead_letters(self, bad: Sequence[pa.Table], ids: IdSource) -> list[DataFile]:
        """Write bad records into files of the dead-letter table; none without bad records."""
        rows = [table for table in bad if table.num_rows]
        if self.dead_letter is None or not rows:
            return []
        records = pa.concat_tables(rows)
        origin = pa.array([self.table] * records.num_rows, pa.string())
        return write_data_files(
            self.store,
            records.add_column(0, FROM_FIELD, origin),
            schema=self.dead_letter.schema(),
            spec=self.dead_letter.spec(),
            properties=self.dead_letter.properties,
            location_for=data_file_locations(self.dead_letter, ids),
        )

    def _data_files(self, rows: pa.Table, ids: IdSource) -> list[DataFile]:
        if rows.num_rows == 0:
            return []
        return write_data_files(
            self.store,
            rows,
            schema=self.schema,
            spec=self.metadata.spec(),
            properties=self.metadata.properties,
            location_for=data_file_locations(self.metadata, ids),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlan:
    """A sink whose options, format and table fit together."""

    environment: Environment
    identifier: Identifier
    branch: str
    writer: ChangeWriter
    values: OptionValues
    dead_letter: Identifier | None  # None: a bad record fails the batch
    shards: int | None

    @property
    def kind(self) -> CommitKind:
        """How batches are committed."""
        appends = self.writer.delete_spec is None
        return CommitKind.APPEND if appends else CommitKind.ROW_DELTA

    def check_delete_scope(self, state: TableState) -> None:
        """Refuse to commit deletes whose partition scope the table has outgrown meanwhile.

        A delete written under a partitioned spec does not reach rows of another spec, so it is
        only right while there is no other.

        Raises:
            CommitConflictError: A partition spec was added, or the IMMUTABLE constraint that
                placed the deletes was dropped, since the batch was planned.
        """
        spec = self.writer.delete_spec
        if spec is None or spec.is_unpartitioned():
            return
        known = self.writer.choice.deletes_carry_rows
        if not key_decides_partition(state.metadata, values_of_deletes_known=known):
            raise CommitConflictError(
                "the table got a new partition spec while the batch was written, or lost its "
                "IMMUTABLE constraint",
                action="write the batch again",
                table=state.name,
                branch=self.branch,
            )

    def evolved(self, wishes: SchemaWishes) -> SinkPlan:
        """The same sink after adding and widening the columns that events have.

        Raises:
            InvalidInputError: The table has all that already, and the events still do not fit.
            CommitConflictError: Others kept changing the schema.
        """
        evolve_table(self.environment, self.identifier, wishes)
        plan = self.refreshed()
        if plan is self:
            raise InvalidInputError(
                "the events do not fit the table, and no evolution of it helps",
                table=self.writer.table,
                columns=[*wishes.added, *wishes.widened],
            )
        return plan

    def refreshed(self) -> SinkPlan:
        """The same sink for the table's current version."""
        state = self.environment.catalog.load_table(self.identifier)
        before = self.writer.metadata
        unchanged = (
            state.metadata.current_schema_id == before.current_schema_id
            and state.metadata.default_spec_id == before.default_spec_id
            and len(state.metadata.partition_specs) == len(before.partition_specs)
            and state.metadata.properties == before.properties
        )
        if unchanged:
            return self
        choice = self.writer.choice
        spec, state = _delete_spec(self.environment, state, choice)
        if self.writer.per_partition is not None:
            _check_keys_stay(state, choice, spec)
        writer = replace(
            self.writer,
            metadata=without_history(state.metadata),
            delete_spec=spec,
            policy=RowPolicy.of(state.metadata, choice, self.values),
        )
        return replace(self, writer=writer)


def plan_sink(
    environment: Environment,
    identifier: Identifier,
    *,
    format_name: str,
    options: GivenOptions,
    branch: str,
) -> SinkPlan:
    """Check everything that can be checked before a stream starts.

    Args:
        environment: Catalog, store, clock.
        identifier: The table.
        format_name: The change format.
        options: Options of the format and of the sink together.
        branch: Where changes go.

    Raises:
        InvalidInputError: An option, the format or the branch cannot be right for this table.
        NotFoundError: There is no such table.
        UnsupportedError: The table is not v3, or has columns that the format cannot read.

    Effects: may declare the sequence column and add an unpartitioned partition spec to the table
    (see `delete_scope`), and create the dead-letter table.
    """
    choice, (values,) = choose_format(format_name, options, SINK_OPTIONS)
    state = environment.catalog.load_table(identifier)
    _check_table(state, choice, branch)
    choice.build(state.metadata.schema())
    dead_letter = None
    if values.text("on-bad-record") == DEAD_LETTER:
        default = f"{state.name}_dead_letter"
        dead_letter = parse_table_name(values.optional_text("dead-letter-table") or default)
    elif values.optional_text("dead-letter-table") is not None:
        raise InvalidInputError("dead-letter-table has no effect without on-bad-record=dead-letter")
    state = _declare_sequence(environment, state, choice, values)
    policy = RowPolicy.of(state.metadata, choice, values)
    spec, state = _delete_spec(environment, state, choice)
    if values.optional_integer("shards-per-partition") is not None:
        _check_keys_stay(state, choice, spec)
    letters = None if dead_letter is None else load_dead_letter_table(environment, dead_letter)
    writer = ChangeWriter(
        store=environment.store,
        metadata=without_history(state.metadata),
        delete_spec=spec,
        choice=choice,
        assume_new_keys=values.flag("assume-new-keys"),
        policy=policy,
        per_partition=values.optional_integer("shards-per-partition"),
        table=state.name,
        dead_letter=None if letters is None else without_history(letters.metadata),
    )
    return SinkPlan(
        environment=environment,
        identifier=identifier,
        branch=branch,
        writer=writer,
        values=values,
        dead_letter=dead_letter,
        shards=values.optional_integer("shards"),
    )


def _check_table(state: TableState, choice: FormatChoice, branch: str) -> None:
    if state.metadata.format_version < 3:
        raise UnsupportedError(
            f"cannot stage on a v{state.metadata.format_version} table: deletion vectors need v3",
            table=state.name,
            action="upgrade the table to format version 3",
        )
    check_sink_takes(
        choice.factory.mode,
        format_name=choice.identifier,
        has_primary_key=bool(state.metadata.schema().identifier_field_ids),
    )
    if branch == MAIN_BRANCH and choice.deletes_rows:
        raise InvalidInputError(
            "cannot stage on the published branch: its readers never see equality deletes",
            table=state.name,
            branch=branch,
            action="write to 'staging' and run resolve",
        )


def _declare_sequence(
    environment: Environment, state: TableState, choice: FormatChoice, values: OptionValues
) -> TableState:
    """The table with the sequence column of the options declared.

    The choice is checked before it is declared: a wrong one leaves no trace on the table.
    """
    column = values.optional_text("sequence-column")
    if column is None:
        return state
    if not choice.deletes_rows:
        raise InvalidInputError(
            "sequence-column has no effect: every row is a new one", format=choice.identifier
        )
    wanted = define_sequence(state.metadata.schema(), column)
    properties = {**state.metadata.properties, **wanted}
    trial = state.metadata.model_copy(update={"properties": properties})
    RowPolicy.of(trial, choice, values)
    return declare_sequence_column(environment, state.identifier, column)


def _delete_spec(
    environment: Environment, state: TableState, choice: FormatChoice
) -> tuple[PartitionSpec | None, TableState]:
    if not choice.deletes_rows:
        return None, state
    known = choice.deletes_carry_rows
    return delete_spec(environment, state, values_of_deletes_known=known)


def _check_keys_stay(state: TableState, choice: FormatChoice, spec: PartitionSpec | None) -> None:
    default = state.metadata.spec()
    if default.is_unpartitioned():
        raise InvalidInputError(
            "shards-per-partition has no effect: the table has no partitions", table=state.name
        )
    if choice.deletes_rows and spec != default:
        raise InvalidInputError(
            "shards-per-partition needs keys that never leave their partition",
            table=state.name,
            action="partition by columns of the key, or by IMMUTABLE columns with deletes=row",
        )


def _array(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined.combine_chunks() if isinstance(combined, pa.ChunkedArray) else combined


def without_history(metadata: TableMetadata) -> TableMetadata:
    """The metadata without snapshots and logs: small enough for every task."""
    dropped: dict[str, Any] = {
        "snapshots": [],
        "snapshot_log": [],
        "metadata_log": [],
        "refs": {},
        "current_snapshot_id": None,
        "statistics": [],
        "partition_statistics": [],
    }
    return metadata.model_copy(update=dropped)


def bad_record_error(bad: pa.Table) -> InvalidInputError:
    """The error for a batch with bad records."""
    first = bad.slice(0, 1).to_pylist()[0]
    return InvalidInputError(
        f"bad record: {first['reason']}",
        action="repair the source, or set on-bad-record=dead-letter",
        position=first["position"],
        bad_records=bad.num_rows,
    )
