"""Real events of PostgreSQL that say less than they seem to, through a stream into its table."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from resolver import resolve
from tableformat import TableCatalog
from tests.support.debezium_events import records
from tests.support.fake_kafka import FakeCluster
from tests.support.memory_tables import memory_catalog
from tests.support.stream_worlds import engine_of

KEEP = {"on-unavailable-value": "keep", "on-bad-record": "dead-letter"}


def streamed(topic: str, **defaults: Any) -> tuple[TableCatalog, dict[str, str]]:
    """The catalog with the topic's table, published, and what stands aside."""
    catalog, cluster = memory_catalog(), FakeCluster()
    messages = [
        tuple(None if each[part] is None else json.dumps(each[part]) for part in ("key", "value"))
        for each in records(topic)
    ]
    cluster.send(topic, *messages)
    engine = engine_of(catalog, cluster, include=(topic,), defaults=defaults)
    engine.run(follow=False)
    if not engine.aside:
        resolve(catalog.load_table(f"shop.{topic.rpartition('.')[2]}"))
    return catalog, dict(engine.aside)


def test_large_value_is_kept_where_the_old_row_has_zeros_in_its_place() -> None:
    """Row 1 was updated, 2 got key 200, 3 was deleted; the identity is an index of id and u."""
    catalog, aside = streamed("pg.public.partial", **KEEP)
    assert aside == {}
    rows = catalog.load_table("shop.partial").scan().to_arrow().to_pylist()
    assert [(row["id"], row["u"]) for row in rows] == [(1, 100)]
    assert rows[0]["v"] == "y1" * 1500
    assert rows[0]["tags"] == [str(each) for each in range(1, 1001)]
    letters = catalog.load_table("shop.partial_dead_letter").scan().to_arrow()
    assert ["an update that changes the key is sent as a delete and an insert" in each for each in
            letters["reason"].to_pylist()] == [True]  # fmt: skip


@pytest.mark.parametrize("evolution", ["strict", "add-columns", "full"])
def test_column_that_is_told_by_two_names_sets_its_table_aside(evolution: str) -> None:
    catalog, aside = streamed("pg.public.odd", **{"schema-evolution": evolution})
    assert "Debezium tells column 'größe' by another name" in aside["shop.odd"]
    columns = [each.name for each in catalog.load_table("shop.odd").schema().fields]
    assert columns == ["id", "größe", "grid", "name", "a", "g"]


def test_infinity_that_overflowed_its_nanoseconds_is_a_bad_record() -> None:
    catalog, aside = streamed("ns.public.far", **{"on-bad-record": "dead-letter"})
    assert aside == {}
    rows = catalog.load_table("shop.far").scan().to_arrow().sort_by("id")
    assert rows["id"].to_pylist() == [2, 4]
    assert rows["ts"].cast(pa.int64()).to_pylist() == [1704067200 * 10**9, -(10**9)]
    letters = catalog.load_table("shop.far_dead_letter").scan().to_arrow()["reason"].to_pylist()
    assert ["infinity" in each for each in letters] == [True, True]
