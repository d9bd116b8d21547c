"""The catalog seam: load a table's metadata, and swap it in one atomic step.

`commit` is the only way anything becomes visible. Its outcomes are three: it returns (committed),
raises `CommitConflictError` (not landed, and never will), or raises `CommitUnknownError` (a
response was lost; the caller looks for its own snapshot id). `commit_group` is the same for several
tables in one step, where the backend has one (`commits_groups`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Protocol

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRef
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import SortOrder
from pyiceberg.table.update import TableUpdate

from tableformat.errors import InvalidInputError, TableError

KEY_OF_TABLE = "key."  # and a table's name: the catalog property that names its key
Identifier = tuple[str, ...]
Locations = Mapping[Identifier, str]


@dataclass(frozen=True, slots=True)
class TableState:
    """One version of a table, as loaded. Immutable: a refresh gives a new one.

    Attributes:
        identifier: Namespace and name.
        metadata: What all code looks at: schemas whose identifier fields are the table's key.
        metadata_location: Its file.
        stored: What the file holds, where the key is one that its schema does not declare
            (`catalog.keyed`); None: that is `metadata`.
        key_problem: Why no key is known though somebody names one.
    """

    identifier: Identifier
    metadata: TableMetadata = field(repr=False)
    metadata_location: str
    stored: TableMetadata | None = field(default=None, repr=False)
    key_problem: TableError | None = None

    @property
    def name(self) -> str:
        """Dotted identifier for people."""
        return ".".join(self.identifier)

    @property
    def declared(self) -> TableState:
        """The version as it is stored, and as changes of its schema begin with."""
        if self.stored is None:
            return self
        return TableState(self.identifier, self.stored, self.metadata_location)

    @property
    def key_ids(self) -> tuple[int, ...]:
        """Field ids of the primary key, ascending; none without one.

        Raises:
            InvalidInputError: What names the key does not fit the table.
        """
        if self.key_problem is not None:
            raise copy(self.key_problem)
        return tuple(sorted(self.metadata.schema().identifier_field_ids))

    def required_key_ids(self, task: str) -> tuple[int, ...]:
        """The same, for what cannot be done without: `task` completes "cannot ... a table".

        Raises:
            InvalidInputError: There is none.
        """
        ids = self.key_ids
        if not ids:
            raise InvalidInputError(
                f"cannot {task} a table without a primary key",
                table=self.name,
                action=f"name its columns: -p {KEY_OF_TABLE}{self.name}=COLUMNS, or icefold adopt "
                "TABLE --key COLUMNS --apply key",
            )
        return ids

    def ref(self, name: str) -> SnapshotRef | None:
        """The branch or tag `name`."""
        return self.metadata.refs.get(name)

    def head_id(self, branch: str) -> int | None:
        """The id of `head`."""
        ref = self.metadata.refs.get(branch)
        return None if ref is None else ref.snapshot_id

    def head(self, branch: str) -> Snapshot | None:
        """The snapshot `branch` points at; None if the branch does not exist or is empty."""
        ref = self.metadata.refs.get(branch)
        return None if ref is None else self.metadata.snapshot_by_id(ref.snapshot_id)


@dataclass(frozen=True, slots=True)
class TableCommit:
    """What a commit does to one table: `updates`, only if `base` is still its current version."""

    base: TableState
    updates: Sequence[TableUpdate]


class Catalog(Protocol):
    """Namespaces, tables and the swap."""

    @property
    def name(self) -> str:
        """The catalog's name, for people."""

    @property
    def properties(self) -> Mapping[str, str]:
        """How it was opened; may hold secrets, never print it."""

    def create_namespace(self, namespace: Identifier) -> None:
        """Create a namespace and its parents; nothing if they exist."""

    def drop_namespace(self, namespace: Identifier) -> None:
        """Drop an empty namespace.

        Raises:
            NotFoundError: There is none.
            InvalidInputError: Tables or namespaces are in it.
        """

    def list_namespaces(self) -> list[Identifier]:
        """All namespaces."""

    def list_tables(self, namespace: Identifier | None = None) -> list[Identifier]:
        """Tables of a namespace, or of all; none where there is no such namespace."""

    def create_table(
        self,
        identifier: Identifier,
        *,
        schema: Schema,
        partition_spec: PartitionSpec,
        sort_order: SortOrder,
        location: str | None,
        properties: Mapping[str, str],
    ) -> TableState:
        """Create an empty v3 table; `AlreadyExistsError` if there is one."""

    def load_table(self, identifier: Identifier) -> TableState:
        """The current version; `NotFoundError` if there is none."""

    def metadata_locations(self, identifiers: Collection[Identifier]) -> Locations | None:
        """Where the tables' current metadata is, cheaply; tables that do not exist are left out.

        None: this backend can only tell by loading each table.
        """

    def drop_table(self, identifier: Identifier) -> None:
        """Forget the table; its files stay."""

    def rename_table(self, identifier: Identifier, new: Identifier) -> None:
        """Give a table another name, also in another namespace; its files stay where they are.

        Raises:
            AlreadyExistsError: The new name is taken.
            NotFoundError: There is no such table or namespace.
        """

    def commit(self, base: TableState, updates: Sequence[TableUpdate]) -> TableState:
        """Apply `updates` to `base` and swap, only if `base` is still the current version.

        Where the backend cannot compare whole versions (REST) the updates' own requirements bind
        the commit to `base`: table uuid, the heads of every touched ref, last column and
        partition ids; sequence number and next row id are checked by the server.

        Raises:
            CommitConflictError: Another commit landed first; refresh and try again.
            CommitUnknownError: The answer was lost.
        """

    @property
    def commits_groups(self) -> bool:
        """Whether `commit_group` can change several tables in one atomic step."""

    def commit_group(self, commits: Sequence[TableCommit]) -> list[TableState]:
        """As `commit`, for several tables: all of them are changed, or none is.

        One outcome for the whole group. A table whose base is no longer current is a conflict of
        the group; which one it was, a look at the tables tells. Locks are taken in the order of the
        identifiers, so groups cannot wait for each other in a circle.

        Args:
            commits: Each table once.

        Returns:
            The new versions, in the order of `commits`.

        Raises:
            CommitConflictError, CommitUnknownError: As `commit`.
            UnsupportedError: More than one table, and the backend has no such step.
        """
