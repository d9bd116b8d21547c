"""A table at one version: what it is made of, what it declares, and changes of either."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Concatenate, ParamSpec, Self

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.table.update.spec import UpdateSpec

from tableformat import table_key
from tableformat.catalog.base import Identifier, TableState
from tableformat.commit import declarations, evolution
from tableformat.commit.property_check import check_properties
from tableformat.commit.request import check_publishing
from tableformat.environment import Environment
from tableformat.html_text import rows_html
from tableformat.inspect.snapshot_list import SnapshotList, snapshot_text
from tableformat.spec.computed_columns import ComputedColumn, computed_columns
from tableformat.spec.constraints import Enforcement, ImmutableColumns, immutable_columns
from tableformat.spec.names import MAIN_BRANCH
from tableformat.spec.secondary_indexes import secondary_indexes
from tableformat.table_inspect import TableInspect
from tableformat.table_refs import TableRefs

P = ParamSpec("P")


class TableStructure:
    """All of a `Table` but its rows."""

    def __init__(self, environment: Environment, state: TableState) -> None:
        self.environment = environment
        self.state = state

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, primary_key={list(self.primary_key)})"

    def _repr_html_(self) -> str:
        head = self.current_snapshot()
        columns = (
            (field.name, field.field_type, "required" if field.required else "", field.doc or "")
            for field in self.schema().fields
        )
        published = "nothing published" if head is None else snapshot_text(head)
        title = f"{self.name}, key {', '.join(self.primary_key) or 'none'}; {published}"
        return rows_html(title, ("column", "type", "", ""), columns)

    @property
    def identifier(self) -> Identifier:
        """Namespace and name."""
        return self.state.identifier

    @property
    def name(self) -> str:
        """`namespace.table`."""
        return self.state.name

    def schema(self) -> Schema:
        """The current schema."""
        return self.state.metadata.schema()

    def spec(self) -> PartitionSpec:
        """The current partition spec."""
        return self.state.metadata.spec()

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return dict(self.state.metadata.properties)

    def location(self) -> str:
        """The folder of the table's files."""
        return self.state.metadata.location

    def snapshots(self) -> list[Snapshot]:
        """All snapshots, of all branches, in the order of their commits."""
        return SnapshotList(self.state.metadata.snapshots)

    def current_snapshot(self) -> Snapshot | None:
        """The head of `main`; None: nothing was published yet."""
        return self.state.head(MAIN_BRANCH)

    @property
    def primary_key(self) -> tuple[str, ...]:
        """Key columns in field-id order; nested ones with dots."""
        schema = self.schema()
        ids = sorted(schema.identifier_field_ids)
        return tuple(schema.find_column_name(field_id) or str(field_id) for field_id in ids)

    @property
    def metadata_location(self) -> str:
        """The metadata file of this version: what other engines open."""
        return self.state.metadata_location

    @property
    def immutable_columns(self) -> ImmutableColumns | None:
        """The IMMUTABLE constraint: columns that never change for one key."""
        return immutable_columns(self.state.metadata)

    def refresh(self) -> Self:
        """Move to the table's current version."""
        self.state = self.environment.catalog.load_table(self.identifier)
        return self

    @property
    def computed_columns(self) -> dict[str, ComputedColumn]:
        """The declared computed columns by name."""
        return computed_columns(self.state.metadata.properties)

    @property
    def indexes(self) -> dict[str, tuple[str, ...]]:
        """The declared secondary indexes: columns by name."""
        declared = secondary_indexes(self.state.metadata)
        return {name: index.columns for name, index in declared.items()}

    def add_index(self, name: str, columns: Sequence[str]) -> Self:
        """Declare a secondary index. The next `resolve`, or `icefold index build`, builds it.

        Raises:
            AlreadyExistsError: There is one of that name on other columns.
            InvalidInputError: A column that is unknown or cannot be compared (float, nested).
        """
        return self._changed(declarations.add_index, name, columns)

    def drop_index(self, name: str) -> Self:
        """Drop a secondary index; `NotFoundError` if there is none of that name."""
        return self._changed(declarations.drop_index, name)

    @property
    def inspect(self) -> TableInspect:
        """The table's metadata as Arrow tables: snapshots, files, vectors, staged work, ..."""
        return TableInspect(self.environment, self.refresh().state)

    @property
    def refs(self) -> TableRefs:
        """Branches and tags: create, move, roll back, cherry-pick, drop."""
        return TableRefs(self.environment, self.identifier, self._move_on)

    def update_schema(self, edit: Callable[[UpdateSchema], object]) -> Self:
        """Evolve the schema, e.g. `lambda s: s.add_column("note", StringType())`.

        `edit` gets PyIceberg's `UpdateSchema`: add, rename, move, widen, delete, defaults.
        """
        return self._changed(evolution.update_schema, edit)

    def update_partitioning(self, edit: Callable[[UpdateSpec], object]) -> Self:
        """Evolve the partition spec, e.g. `lambda s: s.add_field("at", DayTransform())`.

        Only new files follow it; `edit` gets PyIceberg's `UpdateSpec`.
        """
        return self._changed(evolution.update_spec, edit)

    def set_properties(
        self, updates: Mapping[str, str] | None = None, *, remove: Sequence[str] = ()
    ) -> Self:
        """Set and remove table properties.

        Raises:
            InvalidInputError: A value is wrong, a property of icefold's own does not exist, or one
                names a column that the table does not have.
        """
        check_properties(updates or {}, self.refresh().schema())
        check_publishing(updates or {}, self.state.metadata.format_version, table=self.state.name)
        return self._changed(evolution.update_properties, updates=updates, removals=remove)

    def set_immutable_columns(
        self, columns: Sequence[str], *, name: str | None = None, enforced: Enforcement = False
    ) -> Self:
        """Declare columns that never change for one key (the IMMUTABLE constraint, at most one).

        Calling it for the same columns again changes `name` and `enforced`.

        Args:
            columns: Their names.
            name: Of the constraint; default `IMMUTABLE_COLUMNS_a_b`.
            enforced: Refuse changes that break it: True also deletes of rows, which would let a
                key come back with other values; `"except-delete"` not those.
        """
        return self._changed(
            declarations.set_immutable_columns, columns, name=name, enforced=enforced
        )

    def drop_immutable_columns(self) -> Self:
        """Drop the IMMUTABLE constraint."""
        return self._changed(declarations.drop_immutable_columns)

    def set_sequence_column(self, column: str) -> Self:
        """Declare the column that orders the versions of a row: an older one never wins."""
        return self._changed(declarations.declare_sequence_column, column)

    def drop_sequence_column(self) -> Self:
        """Drop the declaration of the sequence column; the column stays."""
        return self._changed(declarations.drop_sequence_column)

    def set_primary_key(self, columns: Sequence[str], *, check: bool = True) -> Self:
        """Declare the primary key; its columns become required. See `table_key`.

        Args:
            columns: Names, dotted inside structs.
            check: Read the rows of `main` first, and refuse NULLs and keys of several rows.
        """
        return self._changed(table_key.set_primary_key, columns, check=check)

    def upgrade(self) -> Self:
        """Upgrade a v1 or v2 table to v3. There is no way back."""
        return self._changed(evolution.upgrade_format_version)

    def _changed(
        self,
        change: Callable[Concatenate[Environment, Identifier, P], TableState],
        *given: P.args,
        **named: P.kwargs,
    ) -> Self:
        """The table after a change of its metadata alone."""
        self._move_on(change(self.environment, self.identifier, *given, **named))
        return self

    def _move_on(self, state: TableState) -> None:
        self.state = state
