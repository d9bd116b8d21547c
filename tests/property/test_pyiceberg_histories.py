"""Random histories of icefold and of PyIceberg as the other writer of a v2 table, against a model.

PyIceberg commits to `main` and appends to `staging`, changes columns and partitions, and expires
snapshots: to it a branch is nothing but its head, and of the snapshots that are left it takes away
the ids of expired parents. The model is a multiset of rows: staged changes come in their order
after what is on `main` when they are published, or `resolve` says that it cannot know them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import In, LessThan
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

import tableformat as tf
from maintenance import CompactOptions, ExpireOptions, ExpiryPolicy, compact, expire
from resolver import resolve
from resolver.cursor import LostCursorError
from tests.support.interop_engines import duckdb_connection

NAME = "t.rows"
KEYS = range(12)
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "region", StringType()),
    NestedField(3, "amount", LongType()),
    identifier_field_ids=[1],
)
SPECS = [
    PartitionSpec(),
    PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region")),
    PartitionSpec(PartitionField(1, 1000, BucketTransform(2), "id_bucket")),
]
EVERYTHING = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1)
WEIGHTS = {
    "stage": 8, "resolve": 6, "compact": 2, "expire": 1, "append_to_staging": 1, "append": 3,
    "delete": 3, "overwrite": 2, "upsert": 2, "transaction": 1, "change_columns": 1,
    "change_spec": 1, "expire_published": 2, "expire_all": 0.5,
}  # fmt: skip

Row = tuple[tuple[str, object], ...]


class Skipped(Exception):
    """The step does not apply here."""


class History:
    """One table, both tools, and the model; a step is a method."""

    def __init__(self, folder, seed: int) -> None:
        self.rng = random.Random(seed)
        self.theirs = SqlCatalog(
            "local", uri=f"sqlite:///{folder}/icefold.db", warehouse=folder.as_uri()
        )
        self.theirs.create_namespace("t")
        self.theirs.create_table(
            NAME, SCHEMA, partition_spec=self.rng.choice(SPECS), properties={"format-version": "2"}
        )
        self.table = tf.open_catalog("local", warehouse=str(folder)).load_table(NAME)
        self.columns = ["id", "region", "amount"]
        self.main: Counter[Row] = Counter()
        self.staged: list[tuple[set[int], list[Row]]] = []
        self.number = 0
        self.has_lost = False

    # -- the model ---------------------------------------------------------------------------------

    def draw(self, least: int = 1, most: int = 4) -> set[int]:
        return set(self.rng.sample(KEYS, self.rng.randint(least, most)))

    def fresh(self, keys: Iterable[int]) -> list[Row]:
        rows = []
        for key in sorted(keys):
            self.number += 1
            more = {name: self.rng.choice([None, self.number]) for name in self.columns[3:]}
            region = self.rng.choice(["eu", "us", None])
            rows.append(row_of({"id": key, "region": region, "amount": self.number, **more}))
        return rows

    def replace(self, keys: Iterable[int], rows: Iterable[Row] = ()) -> None:
        for row in [each for each in self.main if dict(each)["id"] in keys]:
            del self.main[row]
        self.main.update(rows)

    def with_columns(self, change: Callable[[dict[str, object]], dict[str, object]]) -> None:
        """Every row, staged or not, in the columns as they are now."""

        def changed(row: Row) -> Row:
            return row_of(change(dict(row)))

        rows = Counter[Row]()
        for row, count in self.main.items():
            rows[changed(row)] += count
        self.main = rows
        self.staged = [(keys, [*map(changed, rows)]) for keys, rows in self.staged]

    def arrow(self, rows: Iterable[Row]) -> pa.Table:
        schema = self.theirs.load_table(NAME).schema()
        return pa.Table.from_pylist(
            [*map(dict, rows)], schema=schema_to_pyarrow(schema, include_field_ids=False)
        )

    # -- icefold -----------------------------------------------------------------------------------

    def stage(self) -> None:
        upserts = self.draw()
        deletes = self.draw(0, 2) - upserts
        rows = self.fresh(upserts)
        keys = pa.table({"id": pa.array(sorted(deletes), pa.int64())}) if deletes else None
        self.table.refresh().stage(self.arrow(rows), keys)
        self.staged.append((upserts | deletes, rows))

    def resolve(self) -> None:
        try:
            resolve(self.table.refresh())
        except LostCursorError:
            assert self.has_lost, "nothing was lost"
            raise
        for keys, rows in self.staged:
            self.replace(keys, rows)
        self.staged, self.has_lost = [], False

    def compact(self) -> None:
        compact(self.table.refresh(), CompactOptions(input_files_min=2, rewrite_all=True))

    def expire(self) -> None:
        expire(self.table.refresh(), ExpireOptions(policy=EVERYTHING))

    # -- PyIceberg ---------------------------------------------------------------------------------

    def append(self) -> None:
        rows = self.fresh(self.draw())
        self.theirs.load_table(NAME).append(self.arrow(rows))
        self.main.update(rows)

    def append_to_staging(self) -> None:
        if not self.staged:
            raise Skipped
        rows = self.fresh(self.draw())
        self.theirs.load_table(NAME).append(self.arrow(rows), branch="staging")
        self.staged.append((set(), rows))

    def delete(self) -> None:
        if self.rng.random() < 0.7:
            keys = self.draw()
            self.theirs.load_table(NAME).delete(In("id", keys))
            self.replace(keys)
            return
        limit = self.rng.randint(0, self.number)
        self.theirs.load_table(NAME).delete(LessThan("amount", limit))
        for row in [each for each in self.main if dict(each)["amount"] < limit]:
            del self.main[row]

    def overwrite(self) -> None:
        keys = self.draw()
        rows = self.fresh(keys)
        self.theirs.load_table(NAME).overwrite(self.arrow(rows), overwrite_filter=In("id", keys))
        self.replace(keys, rows)

    def upsert(self) -> None:
        keys = self.draw()
        found = Counter(dict(row)["id"] for row in self.main.elements())
        if any(found[key] > 1 for key in keys):
            raise Skipped
        rows = self.fresh(keys)
        try:
            self.theirs.load_table(NAME).upsert(self.arrow(rows), join_cols=["id"])
        except ValueError:  # of files of older schemas
            raise Skipped from None
        self.replace(keys, rows)

    def transaction(self) -> None:
        rows, keys = self.fresh(self.draw()), self.draw()
        with self.theirs.load_table(NAME).transaction() as transaction:
            transaction.append(self.arrow(rows))
            transaction.delete(In("id", keys))
            transaction.set_properties(number=str(self.number))
        self.main.update(rows)
        self.replace(keys)

    def change_columns(self) -> None:
        name = f"c{self.number}"
        extra = self.columns[3:]
        with self.theirs.load_table(NAME).update_schema() as update:
            if not extra:
                update.add_column(name, LongType())
                self.columns.append(name)
                self.with_columns(lambda row: {**row, name: None})
            elif name != extra[0] and self.rng.random() < 0.5:
                update.rename_column(extra[0], name)
                self.columns[3] = name
                self.with_columns(lambda row: {**row, name: row[extra[0]]})
                self.with_columns(lambda row: {n: row[n] for n in self.columns})
            else:
                update.delete_column(self.columns.pop())
                self.with_columns(lambda row: {n: row[n] for n in self.columns})

    def change_spec(self) -> None:
        table = self.theirs.load_table(NAME)
        with table.update_spec() as update:
            if table.spec().fields:
                update.remove_field(table.spec().fields[0].name)
            else:
                update.add_field("id", BucketTransform(3), f"id_{self.number}")

    def expire_published(self) -> None:
        """What lies before the snapshot of `main` that `staging` stands on."""
        metadata = self.theirs.load_table(NAME).metadata
        by_id = {each.snapshot_id: each for each in metadata.snapshots}
        heads = {name: ref.snapshot_id for name, ref in metadata.refs.items()}
        on_main, at = set(), heads.get("main")
        while at in by_id:
            on_main.add(at)
            at = by_id[at].parent_snapshot_id
        at = heads.get("staging")
        while at in by_id and at not in on_main:
            at = by_id[at].parent_snapshot_id
        old = [
            each.snapshot_id
            for each in metadata.snapshots
            if at in by_id and each.sequence_number < by_id[at].sequence_number
        ]
        self._expire(set(old) - set(heads.values()))

    def expire_all(self) -> None:
        table = self.theirs.load_table(NAME)
        table.maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()
        self.has_lost = True

    def _expire(self, ids: set[int]) -> None:
        if not ids:
            raise Skipped
        table = self.theirs.load_table(NAME)
        table.maintenance.expire_snapshots().by_ids([*ids]).commit()

    # -- what is there -----------------------------------------------------------------------------

    def check(self) -> None:
        table = self.table.refresh()
        found = {"icefold": table.scan().to_arrow()}
        if table.current_snapshot() is not None:
            query = f"SELECT * FROM iceberg_scan('{table.metadata_location}')"
            found["DuckDB"] = duckdb_connection().execute(query).to_arrow_table()
        for reader, rows in found.items():
            there = Counter(map(row_of, rows.to_pylist()))
            more, fewer = there - self.main, self.main - there
            assert there == self.main, f"{reader}: too many {more}, missing {fewer}"


def row_of(values: dict[str, object]) -> Row:
    return tuple(sorted(values.items()))


def run(folder, seed: int, steps: int) -> Counter[str]:
    """Steps that were done; ends where `resolve` has said that staged changes are lost."""
    history, done = History(folder, seed), Counter[str]()
    names = [*history.rng.choices([*WEIGHTS], [*WEIGHTS.values()], k=steps), "resolve"]
    try:
        for at, name in enumerate(names):
            try:
                getattr(history, name)()
                history.check()
            except Skipped:
                continue
            except LostCursorError:
                done["told as lost"] += 1
                break
            except Exception as error:
                raise AssertionError(f"seed {seed}: {name} after {names[:at]}: {error}") from error
            done[name] += 1
    finally:
        history.theirs.close()
    return done


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("start", range(0, 24, 6))
def test_history_with_pyiceberg_equals_the_model(start, tmp_path):
    done = Counter[str]()
    for seed in range(start, start + 6):
        folder = tmp_path / str(seed)
        folder.mkdir()
        done += run(folder, seed, 30)
    assert done["resolve"] > 6
    assert done["told as lost"] <= 4
