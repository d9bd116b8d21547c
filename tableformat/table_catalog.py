"""The noun a user starts from: a catalog of primary-keyed tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.schema import Schema

from tableformat.backend import open_backend
from tableformat.catalog.base import Identifier
from tableformat.cdc.cuts import Cut, load_cuts
from tableformat.commit.creation import create_table
from tableformat.environment import Environment
from tableformat.errors import NotFoundError
from tableformat.spec.constraints import Enforcement
from tableformat.table import Table
from tableformat.table_cuts import PinnedTables
from tableformat.table_definition import parse_table_name

if TYPE_CHECKING:  # Spark is an optional dependency
    from pyspark.sql import SparkSession

    from tableformat.join.definition import JoinDefinition
    from tableformat.join.delta_join import DeltaJoin
    from tableformat.rowlevel.execute import RowLevelResult


class TableCatalog:
    """Creates, loads and lists tables. Made by `open_catalog`."""

    def __init__(self, environment: Environment) -> None:
        self.environment = environment

    def __repr__(self) -> str:
        return f"TableCatalog({self.name!r})"

    @property
    def name(self) -> str:
        """The catalog's name."""
        return self.environment.catalog.name

    def create_table(
        self,
        name: str,
        schema: Schema | pa.Schema,
        *,
        primary_key: Sequence[str],
        partition_by: Sequence[str] = (),
        immutable_columns: Sequence[str] | None = None,
        enforce_immutable: Enforcement = False,
        properties: Mapping[str, str] | None = None,
        location: str | None = None,
    ) -> Table:
        """Create an empty Iceberg table, of v3 unless `format-version` is 2.

        Args:
            name: `namespace.table`; the namespace is created if it does not exist.
            schema: Columns, as an Arrow or an Iceberg schema.
            primary_key: Columns that name a row. Stored as Iceberg identifier fields, required.
            partition_by: Columns and transforms: `region`, `month(ts)`, `bucket(16, id)`.
            immutable_columns: Columns that never change for one key (the IMMUTABLE constraint):
                where they decide the partition, deletes stay within it.
            enforce_immutable: Refuse changes that break the constraint: True also deletes,
                `"except-delete"` not those.
            properties: Iceberg table properties, and icefold's own.
            location: Folder of the table's files; None: below the warehouse.

        Raises:
            InvalidInputError: The definition cannot be right (see `table_definition`).
            AlreadyExistsError: There is a table of that name.
        """
        state = create_table(
            self.environment,
            name,
            schema,
            primary_key=primary_key,
            partition_by=partition_by,
            immutable_columns=immutable_columns,
            enforce_immutable=enforce_immutable,
            properties=properties,
            location=location,
        )
        return Table(self.environment, state)

    def load_table(self, name: str) -> Table:
        """The table `namespace.table`; `NotFoundError` if there is none."""
        return Table(self.environment, self.environment.catalog.load_table(parse_table_name(name)))

    def sql(
        self,
        statement: str,
        *,
        spark: SparkSession | None = None,
        branch: str | None = None,
        mode: str | None = None,
        retries: int = 0,
    ) -> RowLevelResult:
        """Run `DELETE FROM`, `UPDATE` or `MERGE INTO` on a table of this catalog.

        Args:
            statement: In Spark's SQL. Tables of this catalog are `namespace.table`; other names
                are Spark's own tables and views.
            spark: Evaluates it; without it, this process does what is simple.
            branch: The branch to change; None: `main`, or what `namespace.table.branch_x` says.
            mode: Overrides `write.{delete,update,merge}.mode` of the table.
            retries: How often to plan again after losing against another commit.

        Raises:
            See `rowlevel.execute.run_statement`.
        """
        from tableformat.rowlevel.execute import run_statement  # sqlglot takes time to load
        from tableformat.sql.statement import parse_statement

        return run_statement(
            self.environment,
            parse_statement(statement),
            spark=spark,
            branch=branch,
            mode=mode,
            retries=retries,
        )

    def delta_join(
        self,
        definition: JoinDefinition | Mapping[str, Any] | Path | str,
        *,
        cut: str | None = None,
    ) -> DeltaJoin:
        """A join of tables that is kept as another table, round by round; see `docs/joins.md`.

        Args:
            definition: The join, a mapping of its keys, or the TOML or JSON file that holds them.
            cut: The namespace whose cuts the rounds go to, from one to the next: all tables as of
                one point of their stream; None: each table's head.

        Returns:
            Whose `run` does a round: stages on the result what its tables' changes change there.

        Raises:
            InvalidInputError: The definition is wrong, or an index is missing; names which.
            NotFoundError: There is no such table.

        Effects: creates the result's table if there is none.
        """
        from tableformat.join.definition import JoinDefinition, load_definition, parse_definition
        from tableformat.join.delta_join import DeltaJoin
        from tableformat.join.plan import check_result, plan_join

        if isinstance(definition, Path | str):
            definition = load_definition(Path(definition))
        elif not isinstance(definition, JoinDefinition):
            definition = parse_definition(definition)
        names = {definition.from_.table, *(each.table for each in definition.join)}
        plan = plan_join(definition, {name: self.load_table(name).state for name in sorted(names)})
        try:
            result = self.load_table(definition.into)
        except NotFoundError:
            result = self.create_table(definition.into, plan.schema, primary_key=plan.key)
        check_result(plan, result.state)
        cuts = None if cut is None else partial(self.cuts, cut)
        return DeltaJoin(self.environment, plan, cuts=cuts)

    def cuts(self, namespace: str) -> list[Cut]:
        """The states of a stream that all its tables in a namespace show and hold, newest first."""
        return load_cuts(
            self.environment.catalog, self.environment.catalog.list_tables(_namespace(namespace))
        )

    def cut(self, namespace: str, name: str | None = None) -> PinnedTables:
        """The tables of a namespace, pinned to one state of the stream that feeds them.

        Args:
            namespace: The namespace.
            name: Of the cut, QUERY/BATCH; None: the newest.

        Raises:
            NotFoundError: There is no such cut, or it is not whole or has expired on some table.
        """
        for each in self.cuts(namespace):
            if name in (None, str(each.name)):
                return PinnedTables(self.environment, namespace, each)
        raise NotFoundError(
            "there is no cut" if name is None else "there is no such cut",
            namespace=namespace,
            cut=name,
            action="publish the tables together (icefold resolve --cut); icefold cuts lists them",
        )

    def list_tables(self, namespace: str | None = None) -> list[str]:
        """Names of all tables, or of one namespace's, sorted."""
        wanted = None if namespace is None else _namespace(namespace)
        return sorted(".".join(i) for i in self.environment.catalog.list_tables(wanted))

    def table_exists(self, name: str) -> bool:
        """Whether there is a table `namespace.table`."""
        try:
            self.environment.catalog.load_table(parse_table_name(name))
        except NotFoundError:
            return False
        return True

    def rename_table(self, name: str, new_name: str) -> Table:
        """Give a table another name, also in another namespace; its files stay where they are.

        Who goes on under the old name (a writer, `maintain`) gets an error; what is staged stays,
        and index and locks go along, for they are kept by the table's uuid.

        Raises:
            AlreadyExistsError: The new name is taken.
            NotFoundError: There is no such table, or no such namespace for the new name.
        """
        new = parse_table_name(new_name)
        self.environment.catalog.rename_table(parse_table_name(name), new)
        return Table(self.environment, self.environment.catalog.load_table(new))

    def create_namespace(self, namespace: str) -> None:
        """Create a namespace and those above it; nothing if they exist."""
        self.environment.catalog.create_namespace(_namespace(namespace))

    def list_namespaces(self) -> list[str]:
        """All namespaces, sorted; those below others with dots."""
        return sorted(".".join(one) for one in self.environment.catalog.list_namespaces())

    def drop_namespace(self, namespace: str) -> None:
        """Drop an empty namespace.

        Raises:
            InvalidInputError: Tables or namespaces are in it.
            NotFoundError: There is none.
        """
        self.environment.catalog.drop_namespace(_namespace(namespace))

    def drop_table(self, name: str) -> None:
        """Remove the table from the catalog; its files stay."""
        self.environment.catalog.drop_table(parse_table_name(name))


def _namespace(text: str) -> Identifier:
    return tuple(text.split("."))


def open_catalog(name: str = "local", **properties: str) -> TableCatalog:
    """Open a catalog.

    Args:
        name: `local`: SQLite and local files below `warehouse`. Any other name: the catalog of
            that name in PyIceberg's configuration (`.pyiceberg.yaml`, environment).
        **properties: PyIceberg catalog properties; they win over the configuration. Names with
            dots or dashes are passed as `**{"s3.endpoint": ...}`.

    Raises:
        InvalidInputError: The configuration names no such catalog, or a property is wrong.
        UnsupportedError: A catalog type other than `sql` and `rest`.
    """
    return TableCatalog(open_backend(name, properties))
