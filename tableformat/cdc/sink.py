"""Where changes go: the options of a sink, and its plan, checked against the table.

A `SinkPlan` is made on the driver. Its `ChangeWriter` is shipped to the tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.metadata import TableMetadata

from tableformat.catalog.base import Identifier, TableState
from tableformat.cdc.change_writer import ChangeWriter
from tableformat.cdc.dead_letter import dead_letter_table, load_dead_letter_table
from tableformat.cdc.events import Decoder
from tableformat.cdc.formats import FormatChoice, choose_format
from tableformat.cdc.row_policy import PolicyOptions, RowPolicy
from tableformat.cdc.rowkind import check_sink_takes
from tableformat.cdc.schema_changes import SchemaChanges
from tableformat.cdc.schema_evolution import evolve_table
from tableformat.commit.changeset import CommitKind
from tableformat.commit.declarations import declare_sequence_column
from tableformat.commit.request import check_publishing, check_writable
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError
from tableformat.spec.constraints import define_sequence, immutable_columns
from tableformat.spec.names import MAIN_BRANCH
from tableformat.spec.options import GivenOptions
from tableformat.spec.unpartitioned import is_unpartitioned
from tableformat.table_definition import parse_table_name
from tableformat.write.delete_scope import check_delete_scope, delete_spec


class SinkOptions(PolicyOptions):
    """Of the sink, whatever the format."""

    owner = "the sink"
    on_bad_record: Literal["fail", "dead-letter"] = Field(
        "fail",
        description="fail the batch, or put the record into the dead-letter table and go on",
    )
    dead_letter_table: str | None = Field(
        None,
        description="NAMESPACE.TABLE for bad records; created when needed. Default: the table's "
        "property `icefold.dead-letter-table`, else its name with `_dead_letter`",
    )
    assume_new_keys: bool = Field(
        False,
        description="inserts (+I; Debezium: `c`, and `r` of a snapshot that is not incremental) "
        "have keys that the table does not have: write no delete for them",
    )
    shards: int | None = Field(
        None,
        ge=1,
        description="tasks that write a batch on Spark, and so files per partition and batch. "
        "Default: Spark's default parallelism",
    )
    shards_per_partition: int | None = Field(
        None,
        ge=1,
        description="how many of the shards may write to one partition: bounds the files of a "
        "batch to this many per partition. For tables whose keys never leave their partition. "
        "Default: all shards",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPlan:
    """A sink whose options, format and table fit together."""

    environment: Environment
    identifier: Identifier
    branch: str
    writer: ChangeWriter
    values: SinkOptions
    dead_letter: Identifier | None  # None: a bad record fails the batch
    shards: int | None

    @property
    def kind(self) -> CommitKind:
        """How batches are committed."""
        appends = self.writer.delete_spec is None
        return CommitKind.APPEND if appends else CommitKind.ROW_DELTA

    def check_delete_scope(self, state: TableState) -> None:
        """Refuse to commit deletes whose scope the table has outgrown; see `delete_scope`."""
        if self.writer.delete_spec is not None:
            known = self.writer.choice.deletes_carry_rows
            check_delete_scope(state, self.writer.delete_spec, values_of_deletes_known=known)

    def evolved(self, schema_changes: SchemaChanges) -> SinkPlan:
        """The same sink after adding and widening the columns that events have; see `evolve_table`.

        Raises:
            InvalidInputError: The table has all that already, and the events still do not fit.
            CommitConflictError: Others kept changing the schema.
        """
        evolve_table(self.environment, self.identifier, schema_changes)
        plan = self.refreshed()
        if plan is self:
            raise InvalidInputError(
                "the events do not fit the table, and no evolution of it helps",
                table=self.writer.table,
                columns=schema_changes.names,
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
    decoder: Decoder | None = None,
) -> SinkPlan:
    """Check everything that can be checked before a stream starts.

    Args:
        environment: Catalog, store, clock.
        identifier: The table.
        format_name: The change format.
        options: Options of the format and of the sink together.
        branch: Where changes go.
        decoder: Makes JSON of messages that are none; see `registry.decoder`.

    Raises:
        InvalidInputError: An option, the format or the branch cannot be right for this table.
        NotFoundError: There is no such table.
        UnsupportedError: The table is v1, or has columns that the format cannot read.

    Effects: may declare the sequence column and add an unpartitioned partition spec to the table
    (see `delete_scope`), and create the dead-letter table.
    """
    choice = choose_format(format_name, options, SinkOptions)
    values = SinkOptions.parse(options, choice.factory.options)
    state = environment.catalog.load_table(identifier)
    _check_table(state, choice, branch)
    choice.build(state.metadata.schema())
    dead_letter = None
    if values.on_bad_record == "dead-letter":
        named = values.dead_letter_table
        dead_letter = dead_letter_table(state) if named is None else parse_table_name(named)
    elif values.dead_letter_table is not None:
        raise InvalidInputError("dead-letter-table has no effect without on-bad-record=dead-letter")
    if choice.truncates and values.soft_delete is not None:
        raise InvalidInputError(
            "on-truncate=apply removes rows, and soft-delete keeps deleted ones",
            action="leave one of them out",
            table=state.name,
        )
    state = _declare_sequence(environment, state, choice, values)
    policy = RowPolicy.of(state.metadata, choice, values)
    spec, state = _delete_spec(environment, state, choice)
    if values.shards_per_partition is not None:
        _check_keys_stay(state, choice, spec)
    letters = None if dead_letter is None else load_dead_letter_table(environment, dead_letter)
    writer = ChangeWriter(
        store=environment.store,
        metadata=without_history(state.metadata),
        delete_spec=spec,
        choice=choice,
        assume_new_keys=values.assume_new_keys,
        policy=policy,
        per_partition=values.shards_per_partition,
        table=state.name,
        dead_letter=None if letters is None else without_history(letters.metadata),
        decoder=decoder,
    )
    return SinkPlan(
        environment=environment,
        identifier=identifier,
        branch=branch,
        writer=writer,
        values=values,
        dead_letter=dead_letter,
        shards=values.shards,
    )


def _check_table(state: TableState, choice: FormatChoice, branch: str) -> None:
    check_writable(state.metadata, table=state.name)
    check_publishing(state.metadata.properties, state.metadata.format_version, table=state.name)
    check_sink_takes(
        choice.factory.mode,
        format_name=choice.identifier,
        has_primary_key=bool(state.key_ids),
    )
    if branch == MAIN_BRANCH and choice.deletes_rows:
        raise InvalidInputError(
            "cannot stage on the published branch: its readers never see equality deletes",
            table=state.name,
            branch=branch,
            action="write to 'staging' and run resolve",
        )
    constraint = immutable_columns(state.metadata)
    if branch == MAIN_BRANCH and constraint is not None and constraint.enforced:
        raise InvalidInputError(
            "changes on the published branch are not compared with older rows of their keys, and "
            "the IMMUTABLE constraint is enforced",
            table=state.name,
            constraint=constraint.name,
            action="write to 'staging' and run resolve",
        )


def _declare_sequence(
    environment: Environment, state: TableState, choice: FormatChoice, values: SinkOptions
) -> TableState:
    """The table with the sequence column of the options declared.

    The choice is checked before it is declared: a wrong one leaves no trace on the table.
    """
    column = values.sequence_column
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
    if is_unpartitioned(default):
        raise InvalidInputError(
            "shards-per-partition has no effect: the table has no partitions", table=state.name
        )
    if choice.deletes_rows and spec != default:
        raise InvalidInputError(
            "shards-per-partition needs keys that never leave their partition",
            table=state.name,
            action="partition by columns of the key, or by IMMUTABLE columns with deletes=row",
        )


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
