"""Tables that Apache Iceberg's own runtime wrote: read, changed by icefold, read by it again.

Both tools share a catalog (the Apache REST server), so each works on what the other committed.
"""

from __future__ import annotations

import pytest

from resolver import resolve
from tableformat.commit.evolution import upgrade_format_version
from tests.support.interop_java_tables import rows_of

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.slow]

ROWS = [(n, ("EU", "US", None)[n % 3], f"v{n}") for n in range(1, 31)]


@pytest.mark.parametrize("partitioned_by", ["", "region", "bucket(3, id), truncate(1, v)"])
def test_v3_table_with_dvs_of_delete_update_and_merge(shared, partitioned_by) -> None:
    shared.create(version=3, partitioned_by=partitioned_by)
    shared.insert(*ROWS[:20])
    shared.insert(*ROWS[20:])
    shared.sql("DELETE FROM T WHERE id IN (2, 3, 21)")
    shared.sql("UPDATE T SET v = 'updated' WHERE id IN (4, 22)")
    shared.sql(
        "MERGE INTO T USING (SELECT * FROM VALUES (5L, 'EU', 'merged'), (99L, 'US', 'merged') "
        "AS s(id, region, v)) s ON T.id = s.id "
        "WHEN MATCHED THEN UPDATE SET v = s.v WHEN NOT MATCHED THEN INSERT *".replace(
            "T.id", f"{shared.java_name}.id"
        )
    )
    assert {kind for _, kind, _ in shared.live_deletes()} == {"PUFFIN"}
    model = {row[0]: row for row in ROWS if row[0] not in (2, 3, 21)}
    model |= {n: (n, model[n][1], "updated") for n in (4, 22)}
    model |= {5: (5, model[5][1], "merged"), 99: (99, "US", "merged")}
    assert shared.rows() == sorted(model.values())
    before = {row[0]: row[1] for row in shared.lineage()}

    table = shared.load()
    table.append(rows_of((200, "EU", "ours")))
    table.stage(
        upserts=rows_of((6, "US", "ours"), (22, "EU", "ours")), deletes=rows_of((7, "", ""))
    )
    report = resolve(table)
    assert report.equality_deletes == 3

    model |= {200: (200, "EU", "ours"), 6: (6, "US", "ours"), 22: (22, "EU", "ours")}
    del model[7]
    assert shared.rows() == sorted(model.values())
    assert {kind for _, kind, _ in shared.live_deletes()} == {"PUFFIN"}
    after = {row[0]: row[1] for row in shared.lineage()}
    kept = model.keys() - {200, 6, 22}
    assert {key: after[key] for key in kept} == {key: before[key] for key in kept}

    shared.sql("DELETE FROM T WHERE id IN (8, 200)")  # its DVs take ours over
    shared.sql("UPDATE T SET v = 'java' WHERE id = 6")
    del model[8], model[200]
    model[6] = (6, "US", "java")
    assert shared.rows() == sorted(model.values())
    ids = {row[0]: row[1] for row in shared.lineage()}
    assert ids[6] == after[6]  # an update keeps the row's id


@pytest.mark.parametrize("partitioned_by", ["", "bucket(3, id)"])
def test_upserted_rows_keep_their_ids_as_java_reads_them(shared, partitioned_by) -> None:
    """Through upserts, MERGE and rewrites of either tool."""
    shared.create(version=3, partitioned_by=partitioned_by)
    shared.insert(*ROWS)
    shared.sql("UPDATE T SET v = 'updated' WHERE id IN (4, 22)")
    before = {row[0]: row[1] for row in shared.lineage()}
    table = shared.load()
    table.set_properties({"icefold.publish": "rewrite"})
    for version in range(3):
        table.stage(upserts=rows_of(*((n, "EU", f"u{version}") for n in (4, 6, 40 + version))))
    table.stage(deletes=rows_of((7, "", "")))
    table.stage(upserts=rows_of((7, "EU", "again")))
    resolve(table)
    after = {row[0]: row[1] for row in shared.lineage()}
    assert {key: after[key] for key in before if key != 7} == {
        key: row_id for key, row_id in before.items() if key != 7
    }
    assert after[7] not in before.values()
    assert len(set(after.values())) == len(after)
    newest = max(row[2] for row in shared.lineage())
    assert {row[0] for row in shared.lineage() if row[2] == newest} == {4, 6, 7, 40, 41, 42}

    shared.sql("UPDATE T SET v = 'java' WHERE id IN (6, 40)")
    shared.call("rewrite_data_files", options="map('rewrite-all', 'true')")
    table.refresh()
    table.stage(upserts=rows_of(*((n, "EU", "last") for n in (4, 6, 7, 40))))
    resolve(table)
    assert {row[0]: row[1] for row in shared.lineage()} == after
    assert {row for row in shared.rows() if row[0] in (4, 6, 7, 40)} == {
        (n, "EU", "last") for n in (4, 6, 7, 40)
    }


def test_rows_updated_since_a_snapshot_are_the_changes_since_then(shared) -> None:
    """By Java's own row lineage; an upsert of equal values is an update to it, and no change."""
    shared.create(version=3, partitioned_by="bucket(3, id)")
    shared.insert(*ROWS[:20])
    table = shared.load()
    table.set_properties({"icefold.publish": "rewrite"})
    versions = []
    for cycle in range(4):
        head = table.refresh().state.head("main")
        versions.append((head.snapshot_id, head.sequence_number))
        for commit in range(3):
            keys = (1 + cycle, 5, 10 + commit, 100 * (cycle + 1) + commit)
            table.stage(upserts=rows_of(*((key, "EU", f"{cycle}.{commit}") for key in keys)))
        table.stage(deletes=rows_of((10 + cycle, "", ""), (15 + cycle, "", "")))
        resolve(table)
        if cycle == 1:  # neither an update, nor a change
            shared.call("rewrite_data_files", options="map('rewrite-all', 'true')")
    for snapshot_id, number in versions:
        found = table.changes(snapshot_id, net=True, columns=["id", "v"]).to_arrow().to_pylist()
        came = {row["id"] for row in found if row["_change_type"] in ("+I", "+U")}
        assert {row[0] for row in shared.lineage() if row[2] > number} == came


def test_java_reads_inserts_of_a_publish_as_an_append(shared) -> None:
    """Several staged versions of a new key: `link` would need a vector for the older ones."""
    shared.create(version=3)
    shared.insert(*ROWS)
    table = shared.load()
    table.set_properties({"icefold.publish": "rewrite"})
    before = table.refresh().state.head("main").snapshot_id
    table.stage(upserts=rows_of((50, "EU", "a"), (51, "EU", "a"), (52, "US", "a")))
    table.stage(upserts=rows_of((50, "EU", "b")), deletes=rows_of((52, "", "")))
    resolve(table)
    new = [(50, "EU", "b"), (51, "EU", "a")]
    location, head = table.metadata_location, table.refresh().state.head("main").snapshot_id
    found = shared.java.read(
        location, start_snapshot_id=str(before), end_snapshot_id=str(head)
    ).to_pylist()
    assert sorted((row["id"], row["region"], row["v"]) for row in found) == new
    options = f"map('start-snapshot-id', '{before}', 'end-snapshot-id', '{head}')"
    shared.call("create_changelog_view", changelog_view="'came'", options=options)
    rows = shared.java.query("SELECT id, region, v, _change_type FROM came").to_pylist()
    assert sorted(tuple(row.values()) for row in rows) == [(*row, "INSERT") for row in new]


def test_v2_table_with_position_deletes_is_upgraded_and_resolved(shared) -> None:
    shared.create(version=2, partitioned_by="region")
    shared.insert(*ROWS[:20])
    shared.sql("DELETE FROM T WHERE id IN (2, 3, 4)")
    shared.sql("DELETE FROM T WHERE id = 5")
    assert {kind for _, kind, _ in shared.live_deletes()} == {"PARQUET"}
    model = {row[0]: row for row in ROWS[:20] if row[0] not in (2, 3, 4, 5)}
    assert shared.rows() == sorted(model.values())

    table = shared.load()
    table.stage(deletes=rows_of((1, None, None)))
    assert resolve(table).deleted_rows == 1
    del model[1]
    assert shared.rows() == sorted(model.values())
    assert {kind for _, kind, _ in shared.live_deletes()} == {"PARQUET"}
    upgrade_format_version(table.environment, table.identifier)
    assert shared.rows() == sorted(model.values())
    table.refresh()
    table.append(rows_of((300, "EU", "ours")))
    table.stage(
        upserts=rows_of((6, "US", "ours"), (2, "EU", "back")), deletes=rows_of((7, None, None))
    )
    resolve(table)

    model |= {6: (6, "US", "ours"), 2: (2, "EU", "back"), 300: (300, "EU", "ours")}
    del model[7]
    assert shared.rows() == sorted(model.values())
    row_ids = [row[1] for row in shared.lineage()]
    assert None not in row_ids
    assert len(set(row_ids)) == len(model)
    shared.sql("DELETE FROM T WHERE id IN (9, 6)")
    del model[9], model[6]
    assert shared.rows() == sorted(model.values())


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("partitioned_by", ["", "bucket(2, id)"])
def test_equality_deletes_are_converted_in_place(shared, version, partitioned_by) -> None:
    """What a Flink writer leaves on main: rows and equality deletes in one commit, repeatedly."""
    shared.create(version=version, partitioned_by=partitioned_by)
    shared.insert(*ROWS[:20])
    model = {row[0]: row for row in ROWS[:20]}
    for round_number, ids in enumerate(((1, 2, 3), (3, 4, 40), (2, 40))):
        rows = [(n, "EU", f"r{round_number}") for n in ids]
        gone = 10 + round_number
        shared.java.row_delta(
            shared.java_name,
            rows=[dict(enumerate(row, 1)) for row in rows],
            deleted=[{1: n} for n in (*ids, gone)],
            equality_ids=[1],
        )
        model |= {row[0]: row for row in rows}
        del model[gone]
    assert shared.rows() == sorted(model.values())
    assert {content for content, _, _ in shared.live_deletes()} == {2}

    table = shared.load()
    report = resolve(table, staging="main", target="main")

    assert report.equality_deletes > 0
    assert shared.rows() == sorted(model.values())
    form = "PARQUET" if version == 2 else "PUFFIN"
    assert {(content, kind) for content, kind, _ in shared.live_deletes()} == {(1, form)}
    if version == 3:
        assert len({row[1] for row in shared.lineage()}) == len(model)
    shared.sql("DELETE FROM T WHERE id IN (1, 20)")
    del model[1], model[20]
    assert shared.rows() == sorted(model.values())


def test_equality_deletes_of_java_on_a_staging_branch_are_resolved(shared) -> None:
    shared.create(version=3)
    shared.insert(*ROWS[:10])
    shared.sql("ALTER TABLE T CREATE BRANCH staging")
    shared.java.row_delta(
        shared.java_name,
        rows=[{1: 1, 2: "EU", 3: "staged"}],
        deleted=[{1: 1}, {1: 2}],
        equality_ids=[1],
        branch="staging",
    )
    model = {row[0]: row for row in ROWS[:10]}
    assert shared.rows() == sorted(model.values())
    del model[2]
    model[1] = (1, "EU", "staged")
    assert shared.rows(branch="staging") == sorted(model.values())
    assert resolve(shared.load()).staged_snapshots == 1
    assert shared.rows() == sorted(model.values())
    shared.lineage()


def test_table_of_ours_is_changed_by_java(shared) -> None:
    table = shared.catalog.create_table(
        shared.name,
        rows_of().schema,
        primary_key=["id"],
        partition_by=["bucket(2, id)"],
        properties={"write.delete.mode": "merge-on-read", "write.update.mode": "merge-on-read"},
    )
    table.append(rows_of(*ROWS[:20]))
    table.stage(upserts=rows_of((1, "US", "ours")), deletes=rows_of((2, None, None)))
    resolve(table)
    shared.sql("DELETE FROM T WHERE id IN (3, 4)")
    shared.sql("UPDATE T SET v = 'java' WHERE id = 5")
    shared.insert((50, "EU", "java"))
    table.refresh()
    table.stage(upserts=rows_of((5, "US", "again"), (50, "US", "again")))
    resolve(table)
    shared.sql("ALTER TABLE T ADD COLUMN extra int")
    shared.sql("CALL rest.system.rewrite_data_files(table => '" + shared.name + "')")
    model = {row[0]: row for row in ROWS[:20] if row[0] not in (2, 3, 4)}
    model |= {1: (1, "US", "ours"), 5: (5, "US", "again"), 50: (50, "US", "again")}
    assert shared.rows() == sorted(model.values())
    shared.lineage()
    table.refresh()
    table.stage(deletes=rows_of((6, None, None)))
    resolve(table)
    del model[6]
    assert shared.rows() == sorted(model.values())
    shared.lineage()
