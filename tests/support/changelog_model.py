"""A table with a long random life, and every version of its rows as plain Python values.

Rows are dicts by field id, so that renames and dropped columns do not matter. `expected` says with
dicts alone what a changelog must hold; `applied` replays one.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, StringType

from resolver import resolve
from tableformat.codec.puffin.deletion_vector import build_positions
from tableformat.codec.puffin.dv_file import DeletionVector, write_deletion_vectors
from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.commit.engine import commit
from tableformat.commit.operations import select_files
from tableformat.paths import data_file_locations, puffin_locations
from tableformat.scan.plan import plan_scan
from tableformat.scan.row_filter import parse_filter
from tableformat.write.data_files import write_data_files
from tests.support.changesets import rewrite_changeset
from tests.support.memory_tables import memory_catalog

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("region", pa.string()),
        ("amount", pa.int32()),
        ("tags", pa.list_(pa.string())),
    ]
)
KEYS = range(40)
Row = dict[int, Any]
Rows = dict[int, Row]  # by key


@dataclass(frozen=True)
class Version:
    """One snapshot."""

    snapshot_id: int | None
    parent: int | None
    rows: Rows
    schema: Schema
    is_rewrite: bool = False


@dataclass
class RandomHistory:
    """See the module's text. `versions` is every snapshot ever made, on any branch."""

    seed: int
    folder: str
    partition_by: tuple[str, ...] = ()
    versions: dict[int | None, Version] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.table = memory_catalog(self.folder).create_table(
            "t.rows", SCHEMA, primary_key=["id"], partition_by=self.partition_by
        )
        self.amount = 0
        self.main: Rows = {}
        self.staged: list[tuple[set[int], Rows]] = []  # keys and rows not resolved yet
        self.versions[None] = Version(None, None, {}, self.table.schema())

    def grow(self, operations: int) -> None:
        """Do random things."""
        acts = [
            self.append, self.append, self.stage, self.stage, self.stage_and_resolve,
            self.stage_and_resolve, self.delete_vectors, self.copy_on_write, self.compact,
            self.roll_back, self.evolve,
        ]  # fmt: skip
        for _ in range(operations):
            self.random.choice(acts)()

    def append(self) -> None:
        free = [key for key in KEYS if key not in self.main]
        if self.staged or not free:
            return  # rows appended to `main` would have to be merged into the model of `staging`
        rows = self.fresh(self.random.sample(free, min(len(free), self.random.randint(1, 8))))
        self.main = {**self.main, **rows}
        self.record(self.table.append(self.arrow(rows)).snapshot, self.main)

    def stage(self) -> None:
        head = self.table.refresh().state.head("staging")
        base = self.main if head is None else self.versions[head.snapshot_id].rows
        upserts = self.fresh(self.random.sample(KEYS, self.random.randint(1, 6)))
        gone = self.random.sample(KEYS, self.random.randint(0, 4))
        deletes = pa.table({"id": pa.array(gone, pa.int64())})
        result = self.table.stage(self.arrow(upserts), deletes)
        self.staged.append((set(gone), upserts))
        self.record(result.snapshot, changed(base, gone, upserts))

    def stage_and_resolve(self) -> None:
        self.stage()
        resolve(self.table)
        for gone, upserts in self.staged:
            self.main = changed(self.main, gone, upserts)
        self.staged = []
        self.record_head(self.main)

    def delete_vectors(self) -> None:
        """Delete some rows by position, as an SQL DELETE does."""
        if self.staged:
            return
        found = self.table.scan(columns=["id", "_file", "_pos"]).to_arrow().to_pylist()
        gone = [row for row in found if self.random.random() < 0.3]
        if not gone:
            return
        state = self.table.refresh().state
        environment = self.table.environment
        files = {
            task.entry.data_file.file_path: task for task in plan_scan(environment, state).tasks
        }
        vectors, removed = [], []
        for path in {row["_file"] for row in gone}:
            task = files[path]
            old = set(range(task.entry.data_file.record_count)) - {
                row["_pos"] for row in found if row["_file"] == path
            }
            dead = sorted(old | {row["_pos"] for row in gone if row["_file"] == path})
            vectors.append(
                DeletionVector(
                    task.entry.data_file, build_positions(pa.array(dead, pa.int64()).to_numpy())
                )
            )
            removed += [task.dv] if task.dv is not None else []
        written = write_deletion_vectors(
            environment.store,
            vectors,
            location_for=puffin_locations(state.metadata, environment.runtime.ids),
            placement="packed",
        )
        head = state.head("main")
        changeset = Changeset(
            kind=CommitKind.ROW_DELTA,
            added_delete_files=tuple(written),
            removed_entries=tuple(removed),
            validation=Validation(starting_snapshot_id=head.snapshot_id if head else None),
        )
        dead_keys = {row["id"] for row in gone}
        self.main = {key: row for key, row in self.main.items() if key not in dead_keys}
        self.record(commit(environment, self.table.identifier, changeset).snapshot, self.main)

    def copy_on_write(self) -> None:
        """Replace everything by nearly the same rows in new files."""
        if self.staged or not self.main:
            return
        changed = self.fresh(
            self.random.sample(sorted(self.main), self.random.randint(0, min(4, len(self.main))))
        )
        keep = [key for key in self.main if self.random.random() < 0.95 or key in changed]
        self.main = {key: changed.get(key, self.main[key]) for key in keep}
        result = self.table.overwrite(self.arrow(self.main), filter="id >= 0")
        self.record(result.snapshot, self.main)

    def compact(self) -> None:
        if self.staged or not self.main:
            return
        state = self.table.refresh().state
        environment = self.table.environment
        head = state.head("main")
        selection = select_files(environment, state, parse_filter(None))
        metadata = state.metadata
        added = write_data_files(
            environment.store,
            self.table.scan().to_arrow(),
            schema=metadata.schema(),
            spec=metadata.spec(),
            properties=metadata.properties,
            location_for=data_file_locations(metadata, environment.runtime.ids),
        )
        if head is None or not selection.all_match:
            return
        changeset = rewrite_changeset(
            removed=selection.all_match, added=added, starting_snapshot=head
        )
        result = commit(environment, self.table.identifier, changeset)
        self.record(result.snapshot, self.main, is_rewrite=True)

    def roll_back(self) -> None:
        if self.staged:
            return
        head = self.table.refresh().state.head("main")
        current = None if head is None else head.snapshot_id
        ancestors = []
        while current is not None:
            ancestors.append(current)
            current = self.versions[current].parent
        if len(ancestors) > 2:
            target = self.random.choice(ancestors[1:4])
            self.table.refs.rollback(snapshot_id=target)
            if self.table.state.ref("staging") is not None:
                self.table.refs.drop("staging")
            self.main = self.versions[target].rows

    def evolve(self) -> None:
        if self.staged:
            return
        names = [each.name for each in self.table.schema().fields]
        act = self.random.choice(["add", "add", "rename", "drop", "widen"])
        number = len(self.table.state.metadata.schemas)
        extra = [name for name in names if name.startswith("x")]
        if act == "add":
            self.table.update_schema(
                lambda s: s.add_column(f"x{number}", StringType(), default_value="old")
            )
        elif act == "rename" and extra:
            self.table.update_schema(lambda s: s.rename_column(extra[0], f"xr{number}"))
        elif act == "drop" and len(extra) > 1:
            self.table.update_schema(lambda s: s.delete_column(extra[-1]))
        elif act == "widen" and isinstance(
            self.table.schema().find_field("amount").field_type, IntegerType
        ):
            self.table.update_schema(lambda s: s.update_column("amount", LongType()))

    def record_head(self, rows: Rows) -> None:
        head = self.table.refresh().state.head("main")
        assert head is not None
        if head.snapshot_id not in self.versions:
            self.record(head, rows)

    def record(self, snapshot: Any, rows: Rows, *, is_rewrite: bool = False) -> None:
        state = self.table.refresh().state
        schema = next(s for s in state.metadata.schemas if s.schema_id == snapshot.schema_id)
        parent = snapshot.parent_snapshot_id
        self.versions[snapshot.snapshot_id] = Version(
            snapshot.snapshot_id, parent, dict(rows), schema, is_rewrite
        )

    def fresh(self, keys: list[int]) -> Rows:
        """New values for some keys; now and then the value they had."""
        rows: Rows = {}
        for key in keys:
            self.amount += 1
            values = {
                "id": key,
                "region": self.random.choice(["eu", "us", None]),
                "amount": self.random.choice([self.amount, 1, None]),
                "tags": self.random.choice([None, [], ["a"], ["a", None]]),
            }
            rows[key] = {
                each.field_id: values.get(each.name, self.random.choice(["new", None]))
                for each in self.table.schema().fields
            }
        return rows

    def arrow(self, rows: Rows) -> pa.Table:
        schema = self.table.scan().arrow_schema()
        records = [self.visible(row, self.table.schema()) for row in rows.values()]
        return pa.Table.from_pylist(
            [dict(zip(schema.names, record, strict=True)) for record in map(list, records)],
            schema=schema,
        )

    @staticmethod
    def visible(row: Row, schema: Schema) -> tuple[Any, ...]:
        """The row as a reader of `schema` sees it."""
        return tuple(row.get(each.field_id, each.initial_default) for each in schema.fields)


def changed(rows: Rows, gone: Iterable[int], upserts: Rows) -> Rows:
    """Rows after a staged commit."""
    return {key: row for key, row in rows.items() if key not in gone} | upserts


def expected(old: Rows, new: Rows, schema: Schema) -> Counter:
    """Every change between two versions as (kind, row)."""
    changes: Counter = Counter()
    for key in old.keys() | new.keys():
        before = hashable(RandomHistory.visible(old[key], schema)) if key in old else None
        after = hashable(RandomHistory.visible(new[key], schema)) if key in new else None
        if before == after:
            continue
        if before is not None:
            changes["-D" if after is None else "-U", before] += 1
        if after is not None:
            changes["+I" if before is None else "+U", after] += 1
    return changes


def applied(old: Counter, changes: pa.Table) -> Counter:
    """The rows after a changelog was replayed in its order; no row may leave that is not there."""
    rows = Counter(old)
    for *values, kind, _, _ in zip(*(c.to_pylist() for c in changes.columns), strict=True):
        row = hashable(values)
        if kind in ("+I", "+U"):
            rows[row] += 1
        else:
            assert rows[row] > 0, f"{kind} of a row that is not there: {row}"
            rows[row] -= 1
    return +rows


def hashable(values: Any) -> tuple[Any, ...]:
    """Lists as tuples."""
    return tuple(tuple(v) if isinstance(v, list) else v for v in values)
