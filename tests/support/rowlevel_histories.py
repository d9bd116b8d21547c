"""Concurrent statements on one table of (id, region, amount), and what they mean on plain dicts.

The checker of a history knows which snapshot each statement read and the order of commits. It takes
the rows of every snapshot from the files with code of its own, and holds them against dicts:

* always: what a snapshot changed is what its operation writes on the snapshot it *read*, and no two
  operations, neither of which saw the other, wrote one row (snapshot isolation, I14);
* under `serializable`: it is also what the operation writes on the snapshot *before* it (a serial
  history in commit order, so without phantoms and write skew);
* every snapshot belongs to one operation that said it had committed, so none that said it had
  failed is there; and an operation saw all that had ended before it began.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64

from tableformat import Table, TableCatalog
from tableformat.codec.puffin.deletion_vector import Positions
from tableformat.commit.engine import commit
from tableformat.environment import Environment
from tableformat.rowlevel.engine import row_writer
from tableformat.rowlevel.planning import plan_statement
from tableformat.rowlevel.rewrite import FileRewrite, surviving_rows
from tableformat.sql.statement import parse_statement
from tests.support.changesets import rewrite_changeset
from tests.support.table_checker import check_snapshot, read_metadata

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("amount", pa.int64())])
NAME = "t.rows"
Row = tuple[str | None, int]
Rows = dict[int, Row]


@dataclass(frozen=True)
class Change:
    """A statement, and its meaning: the row that a row becomes, None when it goes.

    The function is asked for rows that `matches`; SQL text and functions are written side by side.
    """

    kind: str  # delete | update
    where: str
    assignments: Mapping[str, str]
    matches: Callable[[int, Row], bool]
    becomes: Callable[[int, Row], Row | None]

    def delta(self, rows: Rows) -> dict[int, Row | None]:
        """What it writes, on these rows."""
        return {key: self.becomes(key, row) for key, row in rows.items() if self.matches(key, row)}

    def run(self, table: Table, **options):
        if self.kind == "delete":
            return table.delete(self.where, **options)
        return table.update(self.assignments, self.where, **options)


def applied(rows: Rows, delta: Mapping[int, Row | None]) -> Rows:
    after = dict(rows)
    for key, row in delta.items():
        if row is None:
            after.pop(key, None)
        else:
            after[key] = row
    return after


def delete_ids(low: int, high: int) -> Change:
    return Change(
        "delete", f"id >= {low} AND id < {high}", {},
        lambda key, row: low <= key < high, lambda key, row: None,
    )  # fmt: skip


def add_to_ids(low: int, high: int, more: int) -> Change:
    return Change(
        "update", f"id >= {low} AND id < {high}", {"amount": f"amount + {more}"},
        lambda key, row: low <= key < high, lambda key, row: (row[0], row[1] + more),
    )  # fmt: skip


def delete_rich(limit: int) -> Change:
    return Change(
        "delete", f"amount > {limit}", {},
        lambda key, row: row[1] > limit, lambda key, row: None,
    )  # fmt: skip


def tax_region(region: str, more: int) -> Change:
    return Change(
        "update", f"region = '{region}' AND NOT (amount < 3)", {"amount": f"amount - {more}"},
        lambda key, row: row[0] == region and not row[1] < 3,
        lambda key, row: (row[0], row[1] - more),
    )  # fmt: skip


def move_poor(limit: int, region: str) -> Change:
    return Change(
        "update", f"amount <= {limit}", {"region": f"'{region}'"},
        lambda key, row: row[1] <= limit, lambda key, row: (region, row[1]),
    )  # fmt: skip


def as_table(rows: Rows) -> pa.Table:
    records = [{"id": key, "region": row[0], "amount": row[1]} for key, row in rows.items()]
    return pa.Table.from_pylist(records, schema=SCHEMA)


def stored_rows(environment: Environment, table: Table, snapshot_id: int) -> Rows:
    """Rows of a snapshot, without the product's readers: fastavro, pyarrow, pyroaring."""
    read = environment.store.get
    metadata = read_metadata(read, table.metadata_location)
    snapshot = next(s for s in metadata["snapshots"] if s["snapshot-id"] == snapshot_id)
    live = check_snapshot(read, metadata, snapshot).live
    dead = {
        file.referenced: BitMap64.deserialize(
            read(file.path)[file.offset : file.offset + file.size][8:-4]
        )
        for file in live
        if file.offset is not None
    }
    rows: Rows = {}
    for file in live:
        if file.content == 0:
            gone = dead.get(file.path, ())
            for at, row in enumerate(pq.read_table(io.BytesIO(read(file.path))).to_pylist()):
                if at not in gone:
                    assert row["id"] not in rows, f"id {row['id']} twice"
                    rows[row["id"]] = (row["region"], row["amount"])
    return rows


def compact(environment: Environment, wanted: Callable[[str], bool] = lambda path: True) -> int:
    """Rewrite the live rows of some files into one; the snapshot's id."""
    plan = plan_statement(environment, parse_statement(f"DELETE FROM {NAME} WHERE id > -999999"))
    tasks = [
        task for task in (*plan.scan.tasks, *plan.covered) if wanted(task.entry.data_file.file_path)
    ]
    rewrites = [FileRewrite(task, Positions()) for task in tasks]
    rows = surviving_rows(environment.store, replace(plan.scan, tasks=()), rewrites)
    added = row_writer(environment, plan).write(rows, environment.runtime.ids)
    assert plan.scan.snapshot is not None
    changeset = rewrite_changeset(
        removed=[task.entry for task in tasks], added=added, starting_snapshot=plan.scan.snapshot
    )
    return commit(environment, plan.state.identifier, changeset).snapshot.snapshot_id


def load(environment: Environment) -> Table:
    return TableCatalog(environment).load_table(NAME)


@dataclass
class Landed:
    """One commit on main. `read` None: it read its parent (blind writes); times of one clock."""

    what: str
    read: int | None
    change: Change | None = None
    writes: Mapping[int, Row | None] = field(default_factory=dict)
    began: float = 0.0
    ended: float = math.inf


def main_snapshots(environment: Environment) -> list[int]:
    """Main from its head to its first snapshot."""
    state = load(environment).state
    found, current = [], state.head("main")
    while current is not None:
        found.append(current.snapshot_id)
        parent = current.parent_snapshot_id
        current = None if parent is None else state.metadata.snapshot_by_id(parent)
    return found


def check_history(
    environment: Environment, landed: Mapping[int, Landed], *, isolation: str
) -> None:
    """AssertionError names the operation whose place in the history cannot be."""
    table = load(environment)
    order = main_snapshots(environment)[::-1]
    assert landed.keys() <= set(order), "acknowledged and missing"
    rows = {each: stored_rows(environment, table, each) for each in order}
    written: dict[int, Mapping[int, Row | None]] = {}
    for at, snapshot_id in enumerate(order[1:], start=1):
        commit_, parent = landed[snapshot_id], order[at - 1]
        writes, seen = commit_.writes, at - 1
        if commit_.change is not None:
            assert commit_.read is not None
            seen = order.index(commit_.read)
            writes = commit_.change.delta(rows[commit_.read])
            for other in order[seen + 1 : at]:
                clash = {k for k in written[other] if k in rows[commit_.read]} & writes.keys()
                assert not clash, f"both wrote {clash}: {commit_} and {landed[other]}"
            if isolation == "serializable":
                assert writes == commit_.change.delta(rows[parent]), commit_
        for other in order[seen + 1 :]:
            assert landed[other].ended >= commit_.began, f"{commit_} has not seen {landed[other]}"
        written[snapshot_id] = writes
        assert rows[snapshot_id] == applied(rows[parent], writes), commit_
