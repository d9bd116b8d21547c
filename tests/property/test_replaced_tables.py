"""Tables that another tool replaces: random histories.

One tool alone has written and staged: nothing that it wrote says of which branch a snapshot is.
Whatever it did to the branches before REPLACE TABLE, no row of the old main comes to the new one.
Or icefold goes on with a table that comes back with other columns, key and partitions again and
again; the model is a dict of rows, and the list of staged changes.
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

import tableformat as tf
from maintenance import CompactOptions, compact, expire
from resolver import resolve
from resolver.cursor import LostCursorError
from resolver.index_check import verify
from tableformat.errors import UnsupportedError
from tests.support.another_tool import another_tool
from tests.support.foreign_tool import ForeignTool
from tests.support.lying_lock import GrantAllLock
from tests.support.staged_tables import EVERYTHING, SCHEMA, rows_of

NEW = [(100, "us", "new")]
KINDS = {"long": pa.int64(), "int": pa.int32(), "string": pa.string()}
KEYS = range(20)
# Columns that a table comes back with, the key first, and a partition field. Columns of a name that
# the table has keep their ids, whatever their types.
SHAPES = (
    ({"id": "long", "region": "string", "note": "string"}, None),
    ({"id": "string", "region": "string", "note": "string"}, ("region", "identity")),
    ({"id": "int", "note": "string", "region": "string"}, ("id", "bucket[3]")),
    ({"key": "long", "region": "string", "id": "string"}, ("key", "identity")),
    ({"note": "string", "id": "long", "region": "string"}, ("note", "bucket[2]")),
    ({"region": "string", "id": "int"}, None),
)
WEIGHTS = {
    "append": 1, "stage": 6, "publish": 4, "publish_some": 2, "delete": 2, "compact": 1,
    "expire": 1, "reopen": 1, "replace": 2,
}  # fmt: skip
STEPS = 25


@pytest.mark.parametrize("seed", range(20))
def test_nothing_of_the_old_main_comes_back(tmp_path, seed):
    rng = random.Random(seed)
    table = tf.open_catalog("local", warehouse=str(tmp_path / "warehouse")).create_table(
        "t.rows", SCHEMA, primary_key=["id"]
    )
    table.append(rows_of((0, "eu", "ours")))  # the other tool needs manifests to write alike
    foreign = ForeignTool(tmp_path / "warehouse", "t", "rows")
    written = iter(range(1, 100))

    def rows() -> list[tuple[int, str, str]]:
        return [(next(written), "eu", "old") for _ in range(rng.randint(1, 2))]

    staged: set[int] = set()
    foreign.replace_table(rows())
    heads = [foreign.append(rows()) for _ in range(rng.randint(1, 3))]

    def stage() -> None:
        added = rows()
        staged.update(key for key, *_ in added)
        deletes = foreign.key_deletes([rng.randint(1, 9)]) if rng.random() < 0.5 else []
        operation = "overwrite" if deletes else "append"
        foreign.commit("staging", operation, add=[*foreign.data_files(added), *deletes])

    def append() -> None:
        heads.append(foreign.append(rows()))

    def compact() -> None:
        heads.append(foreign.rewrite(keep_row_ids=rng.random() < 0.5) or heads[-1])

    def roll_back() -> None:
        foreign.set_branch("main", rng.choice(heads))

    stage()
    for step in rng.choices([stage, append, compact, roll_back], [3, 2, 1, 1], k=rng.randint(0, 6)):
        step()
    foreign.replace_table(NEW)
    for key in range(200, 200 + rng.randint(0, 2)):
        foreign.append([(key, "us", "new")])
    before = Counter(row.values for row in foreign.rows("main"))
    table.refresh()
    with pytest.raises(LostCursorError, match=r"was replaced.*--from-snapshot") as refused:
        resolve(table, lock=GrantAllLock(tokens="same"))
    assert Counter(row.values for row in foreign.rows("main")) == before
    told = int(refused.value.context["stopped_at"])
    resolve(table, from_snapshot=told, skip_unpublished=True, lock=GrantAllLock(tokens="same"))
    after = Counter(row.values for row in foreign.rows("main"))
    assert before <= after
    assert {key for key, *_ in after - before} <= staged


class History:
    """icefold on one table, which is replaced now and then."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.warehouse = folder / "warehouse"
        self.properties = {"index-cache": str(folder / "cache")}
        if seed % 2:
            self.properties["index-location"] = str(self.warehouse / "index")
        self.columns = SHAPES[0][0]
        publish = {"icefold.publish": self.rng.choice(["link", "rewrite"])}
        self.table = self.catalog().create_table(
            "t.rows", self.schema, primary_key=["id"], properties=publish
        )
        self.foreign = ForeignTool(self.warehouse, "t", "rows")
        self.written = 0
        self.rows: dict[int, tuple] = {}
        self.staged: list[tuple[dict[int, tuple], list[int]]] = []
        self.append()

    def catalog(self) -> tf.TableCatalog:
        return tf.open_catalog("local", warehouse=str(self.warehouse), **self.properties)

    @property
    def key(self) -> str:
        return next(iter(self.columns))

    @property
    def schema(self) -> pa.Schema:
        fields = [pa.field(n, KINDS[kind], n != self.key) for n, kind in self.columns.items()]
        return pa.schema(fields)

    def value(self, column: str, number: int) -> int | str:
        return str(number) if self.columns[column] == "string" else number

    def fresh(self, keys: list[int]) -> dict[int, tuple]:
        self.written += 1
        rest = tuple(self.value(each, self.written) for each in [*self.columns][1:])
        return {key: (self.value(self.key, key), *rest) for key in keys}

    def arrow(self, rows: dict[int, tuple]) -> pa.Table:
        named = [dict(zip(self.columns, row, strict=True)) for row in rows.values()]
        return pa.Table.from_pylist(named, self.schema)

    def append(self) -> None:
        added = self.fresh([1000 + 2 * self.written, 1001 + 2 * self.written])
        with another_tool(self.table.environment):
            self.table.refresh().append(self.arrow(added))
        self.rows |= added

    def stage(self) -> None:
        keys = self.rng.sample(KEYS, 5)
        upserts, gone = self.fresh(keys[:3]), keys[3:]
        named = pa.array([self.value(self.key, key) for key in gone], self.schema.types[0])
        self.table.refresh().stage(self.arrow(upserts), pa.table({self.key: named}))
        self.staged.append((upserts, gone))

    def publish(self) -> None:
        self.publish_some(len(self.staged))

    def publish_some(self, count: int | None = None) -> None:
        count = self.rng.randint(1, max(len(self.staged), 1)) if count is None else count
        resolve(self.table.refresh(), limit=count or None)
        for upserts, gone in self.staged[:count]:
            left = {k: r for k, r in self.rows.items() if k not in {*upserts, *gone}}
            self.rows = left | upserts
        self.staged = self.staged[count:]

    def delete(self) -> None:
        key = self.rng.choice([*self.rows])
        mode = self.rng.choice(["merge-on-read", "copy-on-write"])
        self.table.refresh().delete(f"{self.key} = {self.value(self.key, key)!r}", mode=mode)
        del self.rows[key]

    def compact(self) -> None:
        assert not compact(self.table.refresh(), CompactOptions(rewrite_all=True)).errors

    def expire(self) -> None:
        expire(self.table.refresh(), EVERYTHING)

    def reopen(self) -> None:
        self.table = self.catalog().load_table("t.rows")

    def replace(self) -> None:
        """What was staged on the old table is told, read as it was, and given up."""
        columns, rows = self.columns, self.rows
        is_staged = self.table.refresh().state.head("staging") is not None
        staged = self.read(branch="staging") if is_staged else Counter()
        self.table.refs.create_tag("former")
        self.columns, partition = self.rng.choice(SHAPES)
        self.foreign.replace_columns(self.columns, partition)
        self.rows, self.staged = {}, []
        self.append()
        self.table.refresh()
        assert self.read(tag="former") == counted(columns, rows)
        self.check_changes()
        if is_staged:
            found = self.read(branch="staging")
            assert found.total() == staged.total()
            if {tuple(dict(row)) for row in found} == {tuple(columns)}:
                assert found == staged
            with pytest.raises(LostCursorError):
                resolve(self.table)
            self.table.refs.drop("staging")
        self.table.refs.drop("former")

    def read(self, **version) -> Counter:
        found = self.table.scan(**version).to_arrow().to_pylist()
        return Counter(tuple(row.items()) for row in found)

    def check_changes(self) -> None:
        """Across the replacement, they are given, or it is told."""
        net, told = self.table.changes("former", net=True), "was replaced"
        try:
            kinds = Counter(net.to_arrow()["_change_type"].to_pylist())
        except UnsupportedError as error:
            kinds, told = Counter(), str(error)
        assert "was replaced" in told
        assert kinds["+I"] + kinds["+U"] <= len(self.rows)

    def check(self) -> None:
        self.table.refresh()
        assert self.read() == counted(self.columns, self.rows)
        key = self.rng.choice([*KEYS, *self.rows])
        named = self.table.lookup({self.key: self.value(self.key, key)}).to_pylist()
        wanted = [self.rows[key]] if key in self.rows else []
        assert [tuple(row.values()) for row in named] == wanted


def counted(columns: dict[str, str], rows: dict[int, tuple]) -> Counter:
    return Counter(tuple(zip(columns, row, strict=True)) for row in rows.values())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_replaced_table_goes_on_with_its_new_columns_and_key(tmp_path, seed):
    history = History(tmp_path, seed)
    steps = history.rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=STEPS)
    for step in ["stage", "publish", *steps, "replace", "stage", "publish"]:
        getattr(history, step)()
        history.check()
    assert verify(history.table).report.is_sound
