"""What a keyed table should hold: a dict. And that it does hold it, for every reader."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tableformat import Table
from tests.support.raw_rows import raw_rows
from tests.support.table_checker import check_table

Row = tuple[Any, ...]


class Model(dict[Any, Row]):
    """Rows by key, which is their first column."""

    def upsert(self, *rows: Row) -> Model:
        self.update((row[0], row) for row in rows)
        return self

    def drop(self, *keys: Any) -> Model:
        for key in keys:
            self.pop(key, None)
        return self

    @property
    def rows(self) -> Counter[Row]:
        return Counter(self.values())


def scanned_rows(table: Table, **options: Any) -> Counter[Row]:
    """Rows as the product reads them."""
    found = table.scan(**options).to_arrow().to_pylist()
    return Counter(tuple(row.values()) for row in found)


def assert_holds(table: Table, expected: Counter[Row] | Model, *, branch: str = "main") -> None:
    """A published branch has these rows, from its bytes and through the product alike."""
    rows = expected.rows if isinstance(expected, Model) else expected
    assert raw_rows(table, branch=branch) == rows
    name = "branch" if table.state.metadata.refs[branch].snapshot_ref_type == "branch" else "tag"
    assert scanned_rows(table, **{name: branch}) == rows


def assert_history_holds(table: Table, expected: dict[int, Counter[Row]]) -> None:
    """Time travel: each snapshot still has the rows it was committed with. Tags them."""
    for snapshot_id, rows in expected.items():
        table.refs.create_tag(f"then-{snapshot_id}", snapshot_id=snapshot_id)
        assert_holds(table, rows, branch=f"then-{snapshot_id}")


def listed(table: Table) -> set[str]:
    """Every object below the table's location."""
    store = table.environment.store
    return {each.location for each in store.list_prefix(table.state.metadata.location)}


def head_id(table: Table, branch: str = "main") -> int | None:
    """The newest snapshot of a branch."""
    head = table.refresh().state.head(branch)
    return None if head is None else head.snapshot_id


def live_files(table: Table) -> list[Any]:
    """Live files of the head of `main`, read without the product."""
    table.refresh()
    return check_table(table.environment.store.get, table.metadata_location)[head_id(table)].live
