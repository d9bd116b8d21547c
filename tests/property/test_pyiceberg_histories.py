"""Random histories of icefold and of PyIceberg as the other writer of a table, against a model.

PyIceberg commits to `main` and appends to `staging`, moves `main`, makes branches and tags, changes
columns, partitions, order and properties, and expires snapshots: to it a branch is nothing but its
head, and of the snapshots that are left it takes away the ids of expired parents. The model
is a multiset of rows for each snapshot: staged changes come in their order after what is on `main`
when they are published, or `resolve` says that it cannot know them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.expressions import In, LessThan
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType

import tableformat as tf
from maintenance import CompactOptions, ExpireOptions, ExpiryPolicy, compact, expire
from resolver import resolve
from resolver.cursor import LostCursorError
from resolver.index_check import verify
from tests.support.interop_engines import duckdb_connection
from tests.support.rest_catalog import RestServer, rest_server

NAME = "t.rows"
KEYS = range(12)
SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "region", StringType()),
    NestedField(3, "amount", LongType()),
    identifier_field_ids=[1],
)
ID, REGION, AMOUNT = 1, 2, 3
SPECS = [
    PartitionSpec(),
    PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region")),
    PartitionSpec(PartitionField(1, 1000, BucketTransform(2), "id_bucket")),
]
EVERYTHING = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1)
WEIGHTS = {
    "stage": 8, "resolve": 6, "resolve_some": 3, "compact": 2, "expire": 1, "look_up": 1,
    "move_main": 2, "branches_and_tags": 1, "change_columns": 2, "change_spec": 1,
    "change_order": 1, "change_properties": 1, "expire_published": 1, "expire_all": 0.3,
}  # fmt: skip
ON_V2 = {
    "append_to_staging": 1, "append": 3, "delete": 3, "overwrite": 2, "overwrite_partitions": 1,
    "upsert": 2, "transaction": 1,
}  # fmt: skip
ON_V3 = {"own_append": 3, "own_delete": 2, "own_update": 3, "own_upsert": 2}

Row = tuple[tuple[int, object], ...]  # values by field id, without NULLs


class Skipped(Exception):
    """The step does not apply here."""


class History:
    """One table, both tools, and the model; a step is a method.

    `rows` has what each snapshot holds, and how many staged changes are in it.
    """

    def __init__(self, folder, seed: int, rest: RestServer | None = None) -> None:
        self.rng = random.Random(seed)
        if rest is None:
            ours = tf.open_catalog("local", warehouse=str(folder))
            uri = f"sqlite:///{folder}/icefold.db"
            self.theirs: Catalog = SqlCatalog("local", uri=uri, warehouse=folder.as_uri())
        else:
            given = {"uri": rest.uri, "warehouse": rest.warehouse}
            own = {
                "type": "rest",
                "lock-url": f"sqlite:///{folder}/locks.db",
                "index-cache": f"{folder}/cache",
            }
            ours = tf.open_catalog("rest", **given, **own)
            self.theirs = RestCatalog("rest", **given)
        self.theirs.create_namespace("t")
        properties = {"format-version": "2"}
        self.theirs.create_table(
            NAME, SCHEMA, partition_spec=self.rng.choice(SPECS), properties=properties
        )
        self.table = ours.load_table(NAME)
        if rest is not None and seed % 2:
            self.table.upgrade()
            self.table.set_properties({"icefold.publish": self.rng.choice(["link", "rewrite"])})
        self.main = Counter[Row]()
        self.published = 0
        self.staged: list[tuple[set[int], list[Row]]] = []
        self.rows: dict[int | None, tuple[Counter[Row], int]] = {None: (Counter(), 0)}
        self.ids: dict[object, int] = {}
        self.number = 0
        self.has_lost = self.has_expired = self.has_moved = False
        self.lost_races: Counter[str] = Counter()

    def step(self) -> str:
        weights = WEIGHTS | (ON_V3 if self.is_v3 else ON_V2)
        return self.rng.choices([*weights], [*weights.values()])[0]

    # -- the model ---------------------------------------------------------------------------------

    @property
    def is_v3(self) -> bool:
        return self.table.state.metadata.format_version == 3

    @property
    def schema(self) -> Schema:
        return self.theirs.load_table(NAME).schema()

    def draw(self, least: int = 1, most: int = 4) -> set[int]:
        return set(self.rng.sample(KEYS, self.rng.randint(least, most)))

    def fresh(self, keys: Iterable[int]) -> list[Row]:
        rows = []
        for key in sorted(keys):
            self.number += 1
            more = {field.field_id: self.number for field in self.schema.fields[3:]}
            given = {REGION: self.rng.choice(["eu", "us", None])} | {
                field_id: self.rng.choice([None, value]) for field_id, value in more.items()
            }
            given |= {ID: key, AMOUNT: self.number}
            rows.append(row_of({i: v for i, v in given.items() if self.schema.find_column_name(i)}))
        return rows

    def replace(self, keys: Iterable[int], rows: Iterable[Row] = ()) -> None:
        self.main = replaced(self.main, keys, rows)

    def arrow(self, rows: Iterable[Row]) -> pa.Table:
        schema = self.schema
        named = [{schema.find_column_name(i): value for i, value in row} for row in rows]
        return pa.Table.from_pylist(
            named, schema=schema_to_pyarrow(schema, include_field_ids=False)
        )

    def head(self, branch: str = "main") -> int | None:
        ref = self.theirs.load_table(NAME).metadata.refs.get(branch)
        return None if ref is None else ref.snapshot_id

    def note(self) -> None:
        """What `main` holds now."""
        self.rows[self.head()] = (self.main, self.published)

    def note_staged(self, before: int | None, keys: set[int], rows: list[Row]) -> None:
        self.staged.append((keys, rows))
        held, _ = self.rows[before]
        self.rows[self.head("staging")] = (replaced(held, keys, rows), len(self.staged))

    # -- icefold -----------------------------------------------------------------------------------

    def stage(self) -> None:
        upserts = self.draw()
        deletes = self.draw(0, 2) - upserts
        rows, before = self.fresh(upserts), self.head("staging") or self.head()
        keys = pa.table({"id": pa.array(sorted(deletes), pa.int64())}) if deletes else None
        self.table.refresh().stage(self.arrow(rows), keys)
        self.note_staged(before, upserts | deletes, rows)

    def resolve(self, limit: int | None = None) -> None:
        if self.head("staging") is None:
            raise Skipped
        try:
            resolve(self.table.refresh(), limit=limit)
        except LostCursorError:
            assert self.has_lost or (self.has_moved and self.has_expired), "nothing was lost"
            if self.has_moved:
                raise
            resolve(self.table.refresh(), from_staging_state=True)  # the way out that is named
            limit = None
        upto = len(self.staged) if limit is None else self.published + limit
        for keys, rows in self.staged[self.published : upto]:
            self.replace(keys, rows)
        self.published = min(max(upto, self.published), len(self.staged))
        if limit is None:
            self.has_lost = self.has_moved = False

    def resolve_some(self) -> None:
        self.resolve(limit=1)

    def compact(self) -> None:
        compact(self.table.refresh(), CompactOptions(input_files_min=2, rewrite_all=True))

    def expire(self) -> None:
        expire(self.table.refresh(), ExpireOptions(policy=EVERYTHING))
        self.has_expired = True

    def look_up(self) -> None:
        key = self.rng.choice(KEYS)
        rows = Counter(map(self.by_id, self.table.refresh().lookup({"id": key}).to_pylist()))
        assert rows == self.shown(row for row in self.main.elements() if dict(row)[ID] == key)

    def own_append(self) -> None:
        rows = self.fresh(self.draw())
        self.table.refresh().append(self.arrow(rows))
        self.main = self.main + Counter(rows)

    def own_delete(self) -> None:
        keys = self.draw()
        mode = self.rng.choice(["merge-on-read", "copy-on-write"])
        self.table.refresh().delete(f"id IN ({', '.join(map(str, keys))})", mode=mode)
        self.replace(keys)

    def own_update(self) -> None:
        """Rows keep their ids, which `check` tells by their amounts."""
        keys = self.draw()
        mode = self.rng.choice(["merge-on-read", "copy-on-write"])
        where = f"id IN ({', '.join(map(str, keys))})"
        self.table.refresh().update({"region": "'us'"}, where, mode=mode)
        self.main = Counter(
            row_of(dict(row) | {REGION: "us"}) if dict(row)[ID] in keys else row
            for row in self.main.elements()
        )

    def own_upsert(self) -> None:
        keys = self.draw()
        if any(count > 1 for key, count in self.of_keys().items() if key in keys):
            raise Skipped
        rows = self.fresh(keys)
        self.table.refresh().upsert(self.arrow(rows))
        self.replace(keys, rows)

    def of_keys(self) -> Counter[object]:
        return Counter(dict(row)[ID] for row in self.main.elements())

    # -- PyIceberg ---------------------------------------------------------------------------------

    def append(self) -> None:
        rows = self.fresh(self.draw())
        self.theirs.load_table(NAME).append(self.arrow(rows))
        self.main = self.main + Counter(rows)

    def append_to_staging(self) -> None:
        before = self.head("staging")
        if self.published == len(self.staged) or before is None:
            raise Skipped
        rows = self.fresh(self.draw())
        self.theirs.load_table(NAME).append(self.arrow(rows), branch="staging")
        self.note_staged(before, set(), rows)

    def delete(self) -> None:
        if self.rng.random() < 0.7:
            keys = self.draw()
            self.their_own(lambda: self.theirs.load_table(NAME).delete(In("id", keys)))
            self.replace(keys)
            return
        limit = self.rng.randint(0, self.number)
        self.their_own(lambda: self.theirs.load_table(NAME).delete(LessThan("amount", limit)))
        self.main = Counter(row for row in self.main.elements() if dict(row)[AMOUNT] >= limit)

    def their_own(self, change) -> None:
        """PyIceberg does not read equality deletes, which `main` has where it was moved to some."""
        try:
            change()
        except ValueError as error:
            if "equality deletes" not in str(error):
                raise
            raise Skipped from error

    def overwrite(self) -> None:
        keys = self.draw()
        rows = self.fresh(keys)
        table = self.theirs.load_table(NAME)
        self.their_own(lambda: table.overwrite(self.arrow(rows), overwrite_filter=In("id", keys)))
        self.replace(keys, rows)

    def overwrite_partitions(self) -> None:
        table = self.theirs.load_table(NAME)
        if [each.source_id for each in table.spec().fields] != [REGION]:
            raise Skipped
        rows = self.fresh(self.draw())
        self.their_own(lambda: table.dynamic_partition_overwrite(self.arrow(rows)))
        regions = {dict(row).get(REGION) for row in rows}
        kept = (row for row in self.main.elements() if dict(row).get(REGION) not in regions)
        self.main = Counter([*kept, *rows])

    def upsert(self) -> None:
        keys = self.draw()
        if any(count > 1 for key, count in self.of_keys().items() if key in keys):
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
            self.their_own(lambda: transaction.delete(In("id", keys)))
            transaction.set_properties(number=str(self.number))
        self.main = self.main + Counter(rows)
        self.replace(keys)

    def move_main(self) -> None:
        """To one of its own snapshots, or to one that is staged."""
        table = self.theirs.load_table(NAME)
        known = [each.snapshot_id for each in table.metadata.snapshots]
        known = [each for each in known if each in self.rows and each != self.head()]
        if not known:
            raise Skipped
        to = self.rng.choice(known)
        table.manage_snapshots().set_current_snapshot(to).commit()
        self.main, self.published = self.rows[to]
        self.has_moved, self.ids = True, {}

    def branches_and_tags(self) -> None:
        table = self.theirs.load_table(NAME)
        made = [name for name in table.metadata.refs if name.startswith("r")]
        if not table.metadata.snapshots:
            raise Skipped
        at = self.rng.choice(table.metadata.snapshots).snapshot_id
        manage, name = table.manage_snapshots(), f"r{self.number}"
        if made and self.rng.random() < 0.5:
            is_tag = table.metadata.refs[made[0]].snapshot_ref_type == "tag"
            (manage.remove_tag if is_tag else manage.remove_branch)(made[0]).commit()
        elif name not in made:
            make = self.rng.choice([manage.create_tag, manage.create_branch])
            make(at, name).commit()

    def change_columns(self) -> None:
        name = f"c{self.number}"
        extra = [field.name for field in self.schema.fields if field.field_id > AMOUNT]
        if name in extra:
            raise Skipped
        kind = self.rng.choice(["add", "union", "rename", "move", "widen", "drop"])
        with self.theirs.load_table(NAME).update_schema() as update:
            if not extra or (kind in {"add", "union"} and len(extra) < 3):
                if kind == "union":
                    update.union_by_name(pa.schema([pa.field(name, pa.int32())]))
                else:
                    update.add_column(name, IntegerType())
            elif kind == "rename":
                update.rename_column(extra[0], name)
            elif kind == "move":
                update.move_first(extra[-1]) if self.rng.random() < 0.5 else update.move_after(
                    "region", "amount"
                )
            elif kind == "widen":
                update.update_column(extra[-1], field_type=LongType())
            else:
                update.delete_column(extra[0])

    def change_spec(self) -> None:
        table = self.theirs.load_table(NAME)
        with table.update_spec() as update:
            if table.spec().fields:
                update.remove_field(table.spec().fields[0].name)
            elif self.rng.random() < 0.5:
                update.add_field("id", BucketTransform(3), f"id_{self.number}")
            else:
                update.add_field("region", IdentityTransform(), f"region_{self.number}")

    def change_order(self) -> None:
        with self.theirs.load_table(NAME).update_sort_order() as update:
            (update.asc if self.rng.random() < 0.5 else update.desc)("amount", IdentityTransform())

    def change_properties(self) -> None:
        with self.theirs.load_table(NAME).transaction() as transaction:
            transaction.set_properties(
                {"a": str(self.number), "write.metadata.compression-codec": "gzip"}
            )
            transaction.remove_properties("a")

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
        self.has_expired = True

    # -- what is there -----------------------------------------------------------------------------

    def by_id(self, row: dict[str, object]) -> Row:
        schema = self.schema
        return row_of({schema.find_field(name).field_id: value for name, value in row.items()})

    def shown(self, rows: Iterable[Row]) -> Counter[Row]:
        """In the columns as they are now."""
        now = {field.field_id for field in self.schema.fields}
        return Counter(tuple(each for each in row if each[0] in now) for row in rows)

    def check(self) -> None:
        table = self.table.refresh()
        found = {"icefold": table.scan().to_arrow()}
        if table.current_snapshot() is not None:
            query = f"SELECT * FROM iceberg_scan('{table.metadata_location}')"
            found["DuckDB"] = duckdb_connection().execute(query).to_arrow_table()
        wanted = self.shown(self.main.elements())
        for reader, rows in found.items():
            there = Counter(map(self.by_id, rows.to_pylist()))
            more, fewer = there - wanted, wanted - there
            assert there == wanted, f"{reader}: too many {more}, missing {fewer}"
        self.check_staging(table)
        if self.is_v3:
            self.check_ids(table)

    def check_staging(self, table) -> None:
        head = self.head("staging")
        if head is not None and head in self.rows:
            rows = table.scan(branch="staging").to_arrow().to_pylist()
            wanted = self.shown(self.rows[head][0].elements())
            assert Counter(map(self.by_id, rows)) == wanted, "staging shows other rows"

    def check_ids(self, table) -> None:
        """A row that was there, and is, has its id; an amount is given once."""
        read = table.scan(columns=["amount", "_row_id"]).to_arrow()
        ids = dict(zip(*(column.to_pylist() for column in read.columns), strict=True))
        changed = {a: (self.ids[a], i) for a, i in ids.items() if self.ids.get(a, i) != i}
        assert not changed, f"other row ids: {changed}"
        assert len(set(ids.values())) == read.num_rows
        self.ids = ids


def replaced(held: Counter[Row], keys: Iterable[int], rows: Iterable[Row]) -> Counter[Row]:
    return Counter([*(row for row in held.elements() if dict(row)[ID] not in keys), *rows])


def row_of(values: dict[int, object]) -> Row:
    return tuple(sorted((i, value) for i, value in values.items() if value is not None))


def run(
    folder, seed: int, steps: int, rest: RestServer | None = None, kind: type[History] = History
) -> Counter[str]:
    """Steps that were done, and who lost a race.

    Ends where `resolve` has said that staged changes are lost.
    """
    history, done, names = kind(folder, seed, rest), Counter[str](), []
    try:
        for at in range(steps + 1):
            names.append("resolve" if at == steps else history.step())
            try:
                getattr(history, names[-1])()
                history.note()
                history.check()
            except Skipped:
                continue
            except LostCursorError:
                done["told as lost"] += 1
                break
            except Exception as error:
                raise AssertionError(f"seed {seed}: {names}: {error}") from error
            done[names[-1]] += 1
        if not done["told as lost"] and not history.has_lost:
            history.stage()
            history.resolve()
            assert verify(history.table.refresh()).report.is_sound
    finally:
        history.theirs.close()
    return done + history.lost_races


def run_all(
    folder,
    seeds: range,
    steps: int,
    rest: Callable[[], RestServer] | None = None,
    kind: type[History] = History,
) -> Counter[str]:
    """`run` with each seed, on a catalog of its own."""
    done = Counter[str]()
    for seed in seeds:
        (folder / str(seed)).mkdir()
        done += run(folder / str(seed), seed, steps, rest() if rest else None, kind)
    return done


LONG = pytest.param(1000, 200, 40, marks=pytest.mark.long)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("start", "count", "steps"), [(0, 4, 30), (4, 4, 30), LONG])
def test_history_with_pyiceberg_equals_the_model(start, count, steps, tmp_path):
    done = run_all(tmp_path, range(start, start + count), steps)
    assert done["resolve"] > count
    assert done["told as lost"] <= count / 2


@pytest.mark.services
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("start", "count", "steps"), [(1, 4, 20), LONG])
def test_history_on_a_rest_catalog_equals_the_model(start, count, steps, tmp_path):
    """Odd seeds have a v3 table, of which PyIceberg changes all but rows."""
    done = run_all(tmp_path, range(start, start + count), steps, rest_server)
    assert done["resolve"] > count
    assert done["move_main"]
    assert done["own_update"]
