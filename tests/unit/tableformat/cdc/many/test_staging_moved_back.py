"""Staging is moved back behind what was published, and the stream goes on with inserts of new keys.

What is staged twice is two rows then: nothing deletes the first.
"""

from __future__ import annotations

import itertools

import pytest

from resolver import resolve
from tableformat.errors import TableError
from tests.support.fake_kafka import FakeCluster
from tests.support.memory_tables import memory_catalog
from tests.support.stream_worlds import engine_of, message

NEW_KEYS = {"assume-new-keys": "true"}


class World:
    def __init__(self) -> None:
        self.catalog, self.cluster, self.sent = memory_catalog(), FakeCluster(), 0
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
        engine_of(self.catalog, self.cluster, defaults=NEW_KEYS).run(follow=False)
        self.heads.append(self.table.state.head("staging").snapshot_id)

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
            engine_of(world.catalog, world.cluster, defaults=NEW_KEYS).run(follow=False)
            resolve(world.table)
    world.check()
