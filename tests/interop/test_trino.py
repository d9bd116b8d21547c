"""Trino changes a table whose staged changes wait, through a catalog that both open."""

from __future__ import annotations

import pytest

import tableformat as tf
from resolver import resolve
from tableformat.commit.evolution import update_schema
from tests.support.interop_java_tables import rows_of
from tests.support.rest_catalog import rest_server
from tests.support.trino import CATALOG, Trino, TrinoError, trino
from tests.support.trino_histories import run

pytestmark = [pytest.mark.interop, pytest.mark.slow]

BASE = [(n, ("EU", "US", None)[n % 3], f"v{n}") for n in range(20)]


@pytest.fixture
def server() -> Trino:
    return trino()


@pytest.fixture
def catalog(server, tmp_path) -> tf.TableCatalog:
    rest = rest_server()
    locks = f"sqlite:///{tmp_path}/locks.db"
    properties = {"allowed-locations": rest.warehouse, "lock-url": locks}
    return tf.open_catalog("rest", uri=rest.uri, **properties)


@pytest.mark.parametrize("partition_by", [[], ["region"], ["bucket(2, id)"]])
def test_statements_of_trino_under_a_backlog(server, catalog, partition_by) -> None:
    name = "shop.changed"
    schema = rows_of().schema
    table = catalog.create_table(name, schema, primary_key=["id"], partition_by=partition_by)
    table.append(rows_of(*BASE[:10]))
    table.append(rows_of(*BASE[10:]))
    table.stage(upserts=rows_of((1, "US", "first")), deletes=rows_of((2, None, None)))
    resolve(table)
    model = {row[0]: row for row in BASE if row[0] != 2} | {1: (1, "US", "first")}
    table.stage(
        upserts=rows_of((3, "US", "staged"), (30, "EU", "staged")),
        deletes=rows_of((4, None, None), (11, None, None)),
    )

    server.query(f"DELETE FROM {CATALOG}.{name} WHERE id IN (5, 11, 12)")
    server.query(f"UPDATE {CATALOG}.{name} SET v = 'trino' WHERE id IN (1, 3, 13)")
    server.query(
        f"MERGE INTO {CATALOG}.{name} t USING (VALUES (BIGINT '4', 'EU', 'merged'), "
        "(BIGINT '14', 'EU', 'merged'), (BIGINT '40', 'EU', 'merged')) s(id, region, v) "
        "ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = s.v "
        "WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.region, s.v)"
    )
    for key in (5, 11, 12):
        del model[key]
    model |= {key: (key, model[key][1], "trino") for key in (1, 3, 13)}
    model |= {key: (key, model[key][1], "merged") for key in (4, 14)}
    model |= {40: (40, "EU", "merged")}
    assert _both(server, table, name) == sorted(model.values())
    kinds = server.query(f'SELECT file_format FROM {CATALOG}.shop."changed$files" WHERE content=1')
    assert set(kinds) == {("PUFFIN",)}

    assert resolve(table).staged_snapshots == 1
    del model[4]
    model |= {3: (3, "US", "staged"), 30: (30, "EU", "staged")}
    assert _both(server, table, name) == sorted(model.values())
    rows = table.scan(columns=["id", "_row_id"]).to_arrow().to_pylist()
    assert len({row["_row_id"] for row in rows}) == len(model)

    server.query(f"DELETE FROM {CATALOG}.{name} WHERE id IN (3, 6, 40)")  # takes our vectors over
    for key in (3, 6, 40):
        del model[key]
    assert _both(server, table, name) == sorted(model.values())


def test_files_that_trino_compacts_under_a_backlog(server, catalog) -> None:
    name = "shop.compacted"
    table = catalog.create_table(name, rows_of().schema, primary_key=["id"])
    table.append(rows_of(*BASE[:10]))
    table.append(rows_of(*BASE[10:]))
    table.stage(deletes=rows_of((2, None, None)))
    resolve(table)
    table.stage(upserts=rows_of((3, "US", "staged")), deletes=rows_of((4, None, None)))
    server.query(f"ALTER TABLE {CATALOG}.{name} EXECUTE optimize")
    model = {row[0]: row for row in BASE if row[0] != 2}
    assert _both(server, table, name) == sorted(model.values())
    resolve(table)
    del model[4]
    model[3] = (3, "US", "staged")
    assert _both(server, table, name) == sorted(model.values())


@pytest.mark.parametrize("partition_by", [[], ["bucket(2, id)"]])
def test_row_ids_that_upserts_keep_as_trino_reads_them(server, catalog, partition_by) -> None:
    """Through cycles that write staged rows once more, and an UPDATE of Trino's."""
    name = f"shop.lineage{len(partition_by)}"
    table = catalog.create_table(
        name, rows_of().schema, primary_key=["id"], partition_by=partition_by
    )
    table.set_properties({"icefold.publish": "rewrite"})
    table.append(rows_of(*BASE))

    def lineage() -> dict[int, tuple[int, int]]:
        found = server.query(
            f'SELECT id, "$row_id", "$last_updated_sequence_number" FROM {CATALOG}.{name}'
        )
        ours = table.refresh().scan(columns=["id", "_row_id", "_last_updated_sequence_number"])
        rows = [tuple(row.values()) for row in ours.to_arrow().to_pylist()]
        assert sorted(found) == sorted(rows)
        return {row[0]: row[1:] for row in found}

    before = lineage()
    for version in range(3):
        table.stage(upserts=rows_of((1, "EU", f"u{version}"), (40 + version, "US", "new")))
    table.stage(deletes=rows_of((2, None, None)))
    table.stage(upserts=rows_of((2, "EU", "again")))
    resolve(table)
    after = lineage()
    head = table.refresh().state.head("main")
    assert {key for key, (_, number) in after.items() if number == head.sequence_number} == {
        1, 2, 40, 41, 42
    }  # fmt: skip
    assert after[1][0] == before[1][0]
    assert after[2][0] not in {row_id for row_id, _ in before.values()}

    server.query(f"UPDATE {CATALOG}.{name} SET v = 'trino' WHERE id IN (1, 40)")
    table.refresh()
    table.stage(upserts=rows_of((1, "EU", "last"), (40, "EU", "last")))
    resolve(table)
    assert {key: row_id for key, (row_id, _) in lineage().items()} == {
        key: row_id for key, (row_id, _) in after.items()
    }


def test_a_column_renamed_after_vectors(server, catalog) -> None:
    name = "shop.evolved"
    table = catalog.create_table(name, rows_of().schema, primary_key=["id"])
    table.append(rows_of(*BASE))
    table.stage(deletes=rows_of((2, None, None)))
    resolve(table)
    update_schema(
        table.environment, table.identifier, lambda change: change.rename_column("v", "note")
    )
    found = server.query(f"SELECT id, region, note FROM {CATALOG}.{name}")
    assert sorted(found) == [row for row in BASE if row[0] != 2]
    with pytest.raises(TrinoError, match="v"):
        server.query(f"SELECT v FROM {CATALOG}.{name}")


@pytest.mark.parametrize("seed", range(2))
def test_history_with_trino_equals_the_model(server, catalog, seed) -> None:
    run(server, catalog, seed, steps=15)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 1030))
def test_long_history_with_trino_equals_the_model(server, catalog, seed) -> None:
    run(server, catalog, seed, steps=30)


def _both(server: Trino, table: tf.Table, name: str) -> list[tuple]:
    """Rows as both read them; they must agree."""
    ours = table.refresh().scan(columns=["id", "region", "v"]).to_arrow().to_pylist()
    found = sorted(tuple(row.values()) for row in ours)
    assert sorted(server.query(f"SELECT id, region, v FROM {CATALOG}.{name}")) == found
    return found
