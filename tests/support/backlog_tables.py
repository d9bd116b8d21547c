"""A table with a staged backlog, which other tools change while it waits; a dict is the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from resolver import resolve
from resolver.report import ResolveReport
from tableformat import Table
from tests.support.interop_engines import check_rows
from tests.support.interop_java_tables import MERGE_ON_READ, Rows, SharedTable, rows_of

Row = tuple[int, str | None, str | None]
BASE: list[Row] = [(n, ("EU", "US", None)[n % 3], f"v{n}") for n in range(20)]


@dataclass
class Backlog:
    """Rows of `main`, and the changes on `staging` in their order.

    A change is the rows it writes and the keys it deletes. Staged changes come after all that is
    on `main` when they are published.
    """

    shared: SharedTable
    table: Table
    main: dict[int, Row] = field(default_factory=dict)
    waiting: list[tuple[list[Row], list[int]]] = field(default_factory=list)

    @classmethod
    def create(cls, shared: SharedTable, partition_by: Sequence[str] = ()) -> Backlog:
        """Two files, a vector on one of them, and two staged changes that wait."""
        table = shared.catalog.create_table(
            shared.name,
            rows_of().schema,
            primary_key=["id"],
            partition_by=partition_by,
            properties=MERGE_ON_READ,
        )
        made = cls(shared, table)
        for rows in (BASE[:10], BASE[10:]):
            table.append(rows_of(*rows))
            made.main |= {row[0]: row for row in rows}
        made.stage(upserts=[(1, "US", "first")], deletes=[2])
        made.resolve()
        made.stage(upserts=[(3, "US", "second"), (30, "EU", "second")], deletes=[4, 11])
        made.stage(upserts=[(3, "EU", "third"), (4, "EU", "third")], deletes=[30, 12])
        return made

    @property
    def published(self) -> Rows:
        """Rows of `main` once all that waits is published."""
        rows = dict(self.main)
        for upserts, deletes in self.waiting:
            for key in deletes:
                rows.pop(key, None)
            rows |= {row[0]: row for row in upserts}
        return sorted(rows.values())

    def stage(self, upserts: Iterable[Row] = (), deletes: Iterable[int] = ()) -> int:
        """By icefold; the snapshot's id."""
        upserts, deletes = [*upserts], [*deletes]
        result = self.table.stage(
            upserts=rows_of(*upserts) if upserts else None,
            deletes=rows_of(*((key, None, None) for key in deletes)) if deletes else None,
        )
        self.waiting.append((upserts, deletes))
        return result.snapshot.snapshot_id

    def staged_by_java(
        self, *statements: str, upserts: Iterable[Row] = (), deletes: Iterable[int] = ()
    ) -> None:
        """Statements whose table is `T.branch_staging`, and what they change."""
        for statement in statements:
            self.shared.sql(statement)
        self.waiting.append(([*upserts], [*deletes]))

    def head(self, branch: str) -> int:
        """Snapshot id of a branch."""
        head = self.table.refresh().state.head(branch)
        assert head is not None
        return head.snapshot_id

    def resolve(self, **options: Any) -> ResolveReport:
        """Publish; both tools must then read the model, and no file may be there twice."""
        report = resolve(self.table, **options)
        self.main = {row[0]: row for row in self.published}
        self.waiting = []
        self.check()
        return report

    def check(self) -> None:
        """`main` is the model for both tools."""
        check_rows(Counter(self.main.values()), Counter(self.shared.rows()))
        paths = Counter(self.shared.query("SELECT file_path FROM T.data_files"))
        assert max(paths.values()) == 1, f"a file is there twice: {paths}"
        row_ids = Counter(row_id for _, row_id, _ in self.shared.lineage())
        assert max(row_ids.values()) == 1, f"a row id is there twice: {row_ids}"
