"""Staging is moved back behind what was published, and the stream goes on with inserts of new keys.

What is staged twice is two rows then: nothing deletes the first.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import pytest

from resolver import resolve, resolve_group
from tableformat import Table, TableCatalog, open_catalog
from tableformat.errors import InvalidInputError, TableError
from tests.support.fake_kafka import FakeCluster
from tests.support.foreign_tool import ForeignTool
from tests.support.memory_tables import memory_catalog
from tests.support.stream_worlds import engine_of, message

NEW_KEYS = {"assume-new-keys": "true"}


class World:
    def __init__(
        self, options: Mapping[str, str] = NEW_KEYS, catalog: TableCatalog | None = None
    ) -> None:
        self.catalog = memory_catalog() if catalog is None else catalog
        self.cluster, self.sent = FakeCluster(), 0
        self.options = options
        self.heads: list[int] = []

    @property
    def table(self):
        return self.catalog.load_table("shop.a")

    def batch(self) -> None:
        keys = range(self.sent, self.sent + 2)
        self.sent = keys.stop
        new = [message("c", {"id": key, "note": "new"}) for key in keys]
        gone = [message("d", {"id": key - 2, "note": "new"}) for key in keys[:1] if key > 1]
        self.cluster.send("pg.public.a", *new, *gone)
        self.run()
        self.heads.append(self.table.state.head("staging").snapshot_id)

    def run(self) -> None:
        engine_of(self.catalog, self.cluster, defaults=self.options).run(follow=False)

    def check(self) -> None:
        shown = self.table.scan().to_arrow()["id"].to_pylist()
        last = self.sent - 2
        assert sorted(shown) == [k for k in range(self.sent) if k % 2 or k == last]


@pytest.mark.parametrize(
    ("back", "published"), [*itertools.product([1, 2, 3, "main", None], [0, 1, 2, 3])]
)
@pytest.mark.parametrize("is_by_state", [True, False])
def test_no_insert_is_doubled_and_no_delete_lost(back, published, is_by_state):
    world = World()
    for number in range(4):
        world.batch()
        if number in (0, published):
            resolve(world.table)
    main = world.table.state.head("main").snapshot_id
    world.table.refs.drop("staging")
    if back is not None:
        to = main if back == "main" else world.heads[back]
        world.table.refs.create_branch("staging", snapshot_id=to)
    world.batch()
    try:
        resolve(world.table)
    except TableError:
        if is_by_state:
            resolve(world.table, from_staging_state=True)
        else:
            world.table.refs.drop("staging")
            world.run()
            resolve(world.table)
    world.check()


@pytest.mark.parametrize("more", [0, 1])
@pytest.mark.parametrize("is_forwarded", [False, True])
def test_batch_on_what_main_has_lost_since_is_not_published_before_that_is_staged_again(
    more, is_forwarded
):
    """Staging is moved back behind its cursor, more is staged, and main is rolled back, too."""
    world = World({} if is_forwarded else NEW_KEYS)
    heads = []
    for _ in range(4):
        world.batch()
        resolve(world.table)
        heads.append(world.table.state.head("main").snapshot_id)
    world.table.refs.drop("staging")
    world.table.refs.create_branch("staging", snapshot_id=heads[1])
    for _ in range(1 + more):
        world.batch()
    world.table.refs.create_branch("copy", snapshot_id=heads[3])  # readers see nothing of these
    world.table.refs.create_tag("before", snapshot_id=heads[3])
    world.table.refs.rollback(snapshot_id=heads[1])
    with pytest.raises(InvalidInputError, match=r"^shop\.a has lost batch kafka:shop/3, ") as told:
        resolve(world.table)
    assert "\n" not in str(told.value)
    if is_forwarded:
        world.table.refs.fast_forward("main", to=world.heads[-1])
    world.run()
    resolve(world.table)
    world.check()
    world.batch()  # and it goes on
    resolve(world.table)
    world.check()


@pytest.mark.parametrize("later", [["b"], ["ab"], ["ab", "a"]])
@pytest.mark.parametrize("limit", [None, 1])
def test_no_cut_has_a_batch_on_what_a_table_has_lost(later, limit):
    """The other table has nothing new, has the newest batch, too, or has gone on."""
    catalog, cluster = memory_catalog(), FakeCluster()
    heads = []

    def batch(*names: str) -> None:
        for name in names:
            rows = [{"id": key, "note": str(len(heads))} for key in (1, 10 + len(heads))]
            cluster.send(f"pg.public.{name}", *(message("c", row) for row in rows))
        engine_of(catalog, cluster).run(follow=False)

    def tables() -> list[Table]:
        return [catalog.load_table(name) for name in ("shop.a", "shop.b")]

    for _ in range(4):
        batch("a", "b")
        resolve_group(tables())
        heads.append(tables()[1].state.head("main").snapshot_id)
    tables()[1].refs.drop("staging")
    tables()[1].refs.create_branch("staging", snapshot_id=heads[1])
    for names in later:
        batch(*names)
    tables()[1].refs.rollback(snapshot_id=heads[1])
    report = resolve_group(tables())
    assert report.waits_for.startswith("shop.b has lost batch kafka:shop/3, ")
    assert report.cut is None
    assert str(catalog.cuts("shop")[0].name) == "kafka:shop/1"
    engine_of(catalog, cluster).run(follow=False)
    batch("a", "b")
    while resolve_group(tables(), limit=limit).cut is not None:  # the one that was begun first
        pass
    newest = catalog.cuts("shop")[0]
    for table in tables():
        shown = table.scan(snapshot_id=newest.snapshots[table.name]).to_arrow()["id"]
        assert sorted(shown.to_pylist()) == [1, *range(10, 15)]


def test_what_only_a_copy_of_main_has_is_staged_again(tmp_path):
    """Main is replaced: it says nothing of the stream any more, and the copy says what it had."""
    world = World({}, open_catalog("local", warehouse=str(tmp_path)))
    for _ in range(3):
        world.batch()
        resolve(world.table)
    tool = ForeignTool(tmp_path, "shop", "a")
    world.table.refs.create_branch("copy", snapshot_id=tool.head())
    world.table.refs.drop("staging")
    tool.replace_table([tool.rows()[0].values])
    world.batch()
    resolve(world.table)
    world.check()
