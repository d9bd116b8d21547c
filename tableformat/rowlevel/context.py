"""What a statement knows once it is planned, and hands from its scan to its commit.

The idea is Flink's row-level modification scan context: the scan is told what it reads for, and
what it answers reaches the sink. Here the answer is the exact version of every table read, so that
the commit is validated from the snapshot the scan saw, never from the head at commit time (I13).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.table.snapshots import IsolationLevel

from tableformat.commit.changeset import Validation
from tableformat.spec.properties import WriteMode
from tableformat.sql.statement import RowLevelOperation


@dataclass(frozen=True, slots=True, kw_only=True)
class TableVersion:
    """One table of a statement as it was at planning; `snapshot_id` None: it was empty."""

    name: str
    table_uuid: UUID
    snapshot_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanContext:
    """Created at planning; every later scan reads these versions, and the commit is held to them.

    Attributes:
        operation: What the target is read for.
        branch: The branch of the target.
        tables: The target first, then every other table in the order it is written.
        isolation: From `write.<operation>.isolation-level`.
        mode: From `write.<operation>.mode`.
        conflict_filter: Rows of the target that the statement read; what is committed elsewhere
            and cannot match is no conflict.
        required_columns: Columns of the target that have to be read, in table order.
        updated_columns: Columns that are assigned to, in table order.
        rereads_target: A sub-query reads the target too, so every change of it counts.
        inserts_rows: Rows may come anew.
    """

    operation: RowLevelOperation
    branch: str
    tables: tuple[TableVersion, ...]
    isolation: IsolationLevel
    mode: WriteMode
    conflict_filter: BooleanExpression = field(default_factory=AlwaysTrue)
    required_columns: tuple[str, ...] = ()
    updated_columns: tuple[str, ...] = ()
    rereads_target: bool = False
    inserts_rows: bool = False

    @property
    def target(self) -> TableVersion:
        """The table that changes."""
        return self.tables[0]

    def validation(self, referenced_data_files: frozenset[str]) -> Validation:
        """What must not have happened since planning (`commit.conflicts` has the matrix).

        A DELETE does not mind what others delete: its own rows are protected by their files. It
        does when a sub-query read the target.
        """
        tolerant = self.operation == RowLevelOperation.DELETE and not self.rereads_target
        return Validation(
            starting_snapshot_id=self.target.snapshot_id,
            isolation=self.isolation,
            conflict_filter=self.conflict_filter,
            referenced_data_files=referenced_data_files,
            allow_new_deletes=tolerant,
        )
