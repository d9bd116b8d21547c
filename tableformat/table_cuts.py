"""The tables of a stream as one cut has them: what `TableCatalog.cut` gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyiceberg.expressions import BooleanExpression

from tableformat.cdc.cuts import Cut
from tableformat.environment import Environment
from tableformat.errors import NotFoundError
from tableformat.table import Table
from tableformat.table_definition import parse_table_name
from tableformat.table_scan import Scan


@dataclass(frozen=True, slots=True)
class PinnedTables:
    """Tables pinned to one state of their stream.

    Attributes:
        environment: Where they are.
        namespace: Whose tables may be named without it.
        cut: The state: its name, where it ends in the source, the snapshot of each table.
    """

    environment: Environment
    namespace: str
    cut: Cut

    @property
    def name(self) -> str:
        """The cut's name, QUERY/BATCH."""
        return str(self.cut.name)

    @property
    def tables(self) -> list[str]:
        """Names of the tables, with namespace."""
        return list(self.cut.snapshots)

    def snapshot_id(self, table: str) -> int:
        """The snapshot of a table, by which any engine reads it.

        Raises:
            NotFoundError: The stream does not feed such a table.
        """
        found = self.cut.snapshots.get(self._full(table))
        if found is None:
            raise NotFoundError("no such table is of the cut", table=table, cut=self.name)
        return found

    def scan(
        self,
        table: str,
        filter: str | BooleanExpression | None = None,
        columns: Sequence[str] | None = None,
        *,
        limit: int | None = None,
    ) -> Scan:
        """A read of a table as the cut has it; see `Table.scan`.

        Raises:
            NotFoundError: As `snapshot_id`, or the snapshot has expired since.
        """
        snapshot_id = self.snapshot_id(table)
        state = self.environment.catalog.load_table(parse_table_name(self._full(table)))
        found = Table(self.environment, state)
        return found.scan(filter, columns, snapshot_id=snapshot_id, limit=limit)

    def _full(self, table: str) -> str:
        return table if "." in table else f"{self.namespace}.{table}"
