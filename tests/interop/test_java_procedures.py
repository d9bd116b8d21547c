"""Java's procedures on a table whose staged changes wait: `resolve` afterwards equals the model."""

from __future__ import annotations

import pytest

import tableformat as tf
from resolver import resolve
from tests.support.backlog_tables import Backlog
from tests.support.interop_java_tables import SharedTable
from tests.support.java_iceberg import JavaIcebergError

pytestmark = [pytest.mark.interop, pytest.mark.spark, pytest.mark.slow]

STATEMENTS = ("delete", "update", "merge")
REWRITE_ALL = "map('rewrite-all', 'true')"
PARTITIONED = pytest.mark.parametrize("partition_by", [[], ["bucket(2, id)"]])


@pytest.fixture
def backlog(shared: SharedTable) -> Backlog:
    return Backlog.create(shared)


def compact(shared: SharedTable) -> None:
    """All files of main; Java says how many it rewrote."""
    [(rewritten, *_)] = shared.call("rewrite_data_files", options=REWRITE_ALL)
    assert rewritten


@PARTITIONED
def test_files_that_java_compacts_under_a_backlog(shared, partition_by) -> None:
    made = Backlog.create(shared, partition_by)
    compact(shared)
    made.check()
    made.stage(upserts=[(5, "EU", "fourth")], deletes=[13])
    made.resolve()
    compact(shared)
    made.check()


@PARTITIONED
def test_staged_vectors_of_java_whose_files_java_compacts(shared, partition_by) -> None:
    made = Backlog.create(shared, partition_by)
    made.staged_by_java("DELETE FROM T.branch_staging WHERE id IN (5, 14)", deletes=[5, 14])
    made.staged_by_java(
        "UPDATE T.branch_staging SET v = 'updated' WHERE id IN (6, 15)",
        upserts=[(6, "EU", "updated"), (15, "EU", "updated")],
    )
    compact(shared)
    made.check()
    made.stage(upserts=[(6, "US", "last")], deletes=[7])
    made.resolve()


def test_a_staged_vector_whose_row_java_has_updated_on_main(backlog, shared) -> None:
    """The row has the same id in another file: the staged delete comes after the update."""
    backlog.staged_by_java("DELETE FROM T.branch_staging WHERE id IN (5, 14)", deletes=[5, 14])
    shared.sql("UPDATE T SET v = 'moved' WHERE id IN (5, 16)")
    backlog.main |= {5: (5, None, "moved"), 16: (16, "US", "moved")}
    backlog.check()
    backlog.resolve()


def test_rows_that_java_deletes_by_copy_on_write_under_staged_vectors(backlog, shared) -> None:
    backlog.staged_by_java("DELETE FROM T.branch_staging WHERE id IN (5, 14)", deletes=[5, 14])
    shared.sql("ALTER TABLE T SET TBLPROPERTIES ('write.delete.mode'='copy-on-write')")
    shared.sql("DELETE FROM T WHERE id IN (8, 17)")
    del backlog.main[8], backlog.main[17]
    backlog.check()
    backlog.resolve()


@PARTITIONED
@pytest.mark.parametrize("publish", ["link", "rewrite"])
def test_statements_of_java_that_write_files_of_staging_anew(shared, partition_by, publish) -> None:
    """Copy-on-write: files of main, and files that are staged themselves."""
    made = Backlog.create(shared, partition_by)
    made.table.set_properties({"icefold.publish": publish})
    copies = ", ".join(f"'write.{each}.mode'='copy-on-write'" for each in STATEMENTS)
    shared.sql(f"ALTER TABLE T SET TBLPROPERTIES ({copies})")
    ids = {key: row_id for key, row_id, _ in shared.lineage()}
    made.staged_by_java("DELETE FROM T.branch_staging WHERE id IN (5, 14)", deletes=[5, 14])
    made.staged_by_java(
        "UPDATE T.branch_staging SET v = 'updated' WHERE id IN (3, 6, 15)",
        upserts=[(3, "EU", "updated"), (6, "EU", "updated"), (15, "EU", "updated")],
    )
    made.staged_by_java(
        "MERGE INTO T.branch_staging t USING (SELECT 4 AS id UNION ALL SELECT 50) s ON t.id = s.id "
        "WHEN MATCHED THEN DELETE WHEN NOT MATCHED THEN INSERT (id, region, v) "
        "VALUES (s.id, 'US', 'merged')",
        upserts=[(50, "US", "merged")],
        deletes=[4],
    )
    made.stage(upserts=[(6, "US", "last")], deletes=[7])
    resolve(made.table, limit=3)
    made.resolve()
    kept = {key: row_id for key, row_id, _ in shared.lineage() if key in (15, 16, 17)}
    assert kept == {key: ids[key] for key in kept}


def test_partitions_that_java_overwrites_on_staging(shared) -> None:
    made = Backlog.create(shared, ["region"])
    shared.sql("SET spark.sql.sources.partitionOverwriteMode=dynamic")
    made.staged_by_java(
        "INSERT OVERWRITE T.branch_staging VALUES (60, 'US', 'new'), (61, 'US', 'new')",
        upserts=[(60, "US", "new"), (61, "US", "new")],
        deletes=[row[0] for row in made.published if row[1] == "US"],
    )
    made.staged_by_java(
        "DELETE FROM T.branch_staging WHERE region = 'EU'",
        deletes=[row[0] for row in made.published if row[1] == "EU"],
    )
    shared.sql("UPDATE T SET v = 'moved' WHERE id = 1")  # of a row that goes
    made.resolve()


def test_staged_changes_that_java_expires_are_kept(backlog, shared) -> None:
    """The branch's own retention, which `stage` sets, is what Java goes by."""
    backlog.stage(deletes=[13])
    waiting = _staged_ids(shared)
    assert len(waiting) >= 3
    shared.call("expire_snapshots", older_than="TIMESTAMP '2999-01-01'", retain_last="1")
    assert _staged_ids(shared) >= waiting
    assert backlog.resolve().staged_snapshots == 3
    shared.call("expire_snapshots", older_than="TIMESTAMP '2999-01-01'", retain_last="1")
    backlog.stage(upserts=[(13, "EU", "again")])
    backlog.resolve()


def test_a_log_that_java_expired_is_left_by_the_state_of_staging(backlog, shared) -> None:
    """The branch has no retention of its own, as one that another tool made."""
    backlog.stage(upserts=[(13, "EU", "fourth")], deletes=[3])
    staged = backlog.head("staging")
    shared.sql("ALTER TABLE T DROP BRANCH staging")
    shared.sql(f"ALTER TABLE T CREATE BRANCH staging AS OF VERSION {staged}")
    shared.call("expire_snapshots", older_than="TIMESTAMP '2999-01-01'", retain_last="1")
    backlog.table.refresh()
    with pytest.raises(tf.TableError, match="--from-staging-state"):
        backlog.resolve()
    backlog.resolve(from_staging_state=True)
    backlog.stage(upserts=[(3, "EU", "fifth")])
    backlog.resolve()


def test_java_refuses_to_cherry_pick_a_row_delta(backlog, shared) -> None:
    staged = backlog.head("staging")
    with pytest.raises(JavaIcebergError, match="not append, dynamic overwrite, or fast-forward"):
        shared.call("cherrypick_snapshot", snapshot_id=str(staged))
    backlog.resolve()


def test_a_row_delta_that_java_cherry_picks_by_fast_forward(shared) -> None:
    """It may, while `main` is the parent of the staged snapshot."""
    made = Backlog.create(shared)
    made.resolve()
    shared.sql("ALTER TABLE T DROP BRANCH staging")
    made.table.refresh()
    picked = made.stage(upserts=[(3, "EU", "picked")], deletes=[5])
    made.stage(upserts=[(5, "EU", "later")], deletes=[6])
    shared.call("cherrypick_snapshot", snapshot_id=str(picked))
    assert made.head("main") == picked
    made.main[3] = (3, "EU", "picked")
    del made.main[5]
    made.check()
    made.resolve()


def test_rows_that_java_cherry_picked_from_staging_come_once(backlog, shared) -> None:
    row = (40, "EU", "picked")
    backlog.staged_by_java(
        "INSERT INTO T.branch_staging VALUES (40, 'EU', 'picked')", upserts=[row]
    )
    picked = backlog.head("staging")
    backlog.stage(upserts=[(41, "EU", "later")], deletes=[5])
    shared.call("cherrypick_snapshot", snapshot_id=str(picked))
    backlog.main[40] = row
    backlog.check()
    backlog.resolve()


def test_a_cherry_picked_row_that_a_later_staged_change_replaces(backlog, shared) -> None:
    backlog.staged_by_java(
        "INSERT INTO T.branch_staging VALUES (40, 'EU', 'picked'), (42, 'EU', 'picked')",
        upserts=[(40, "EU", "picked"), (42, "EU", "picked")],
    )
    picked = backlog.head("staging")
    backlog.stage(upserts=[(40, "US", "later")], deletes=[42])
    shared.call("cherrypick_snapshot", snapshot_id=str(picked))
    backlog.main |= {key: (key, "EU", "picked") for key in (40, 42)}
    backlog.check()
    backlog.resolve()


def test_a_cherry_picked_file_that_java_compacts(backlog, shared) -> None:
    row = (40, "EU", "picked")
    backlog.staged_by_java(
        "INSERT INTO T.branch_staging VALUES (40, 'EU', 'picked')", upserts=[row]
    )
    shared.call("cherrypick_snapshot", snapshot_id=str(backlog.head("staging")))
    backlog.main[40] = row
    compact(shared)
    backlog.check()
    backlog.resolve()


def test_main_that_java_fast_forwards_to_staging(backlog, shared) -> None:
    shared_heads = backlog.head("main"), backlog.head("staging")
    assert shared.call("fast_forward", branch="'main'", to="'staging'")
    backlog.main = {row[0]: row for row in backlog.published}
    backlog.waiting = []
    backlog.check()
    assert backlog.head("main") == shared_heads[1]
    backlog.resolve()
    backlog.stage(upserts=[(3, "EU", "fourth")], deletes=[5])
    backlog.resolve()


def test_a_fast_forward_that_java_rolls_back(backlog, shared) -> None:
    before = backlog.head("main")
    waiting, rows = list(backlog.waiting), dict(backlog.main)
    shared.call("fast_forward", branch="'main'", to="'staging'")
    shared.call("rollback_to_snapshot", snapshot_id=str(before))
    backlog.table.refresh()
    assert (backlog.main, backlog.waiting) == (rows, waiting)
    backlog.check()
    backlog.resolve()


def test_a_publish_that_java_rolls_back(backlog, shared) -> None:
    before = backlog.head("main")
    rows, waiting = dict(backlog.main), list(backlog.waiting)
    backlog.resolve()
    shared.call("rollback_to_snapshot", snapshot_id=str(before))
    backlog.table.refresh()
    backlog.main, backlog.waiting = rows, waiting
    backlog.check()
    backlog.stage(upserts=[(3, "EU", "fourth")], deletes=[5])
    backlog.resolve()


def test_nothing_of_a_table_that_java_replaces_comes_back(backlog, shared) -> None:
    shared.sql("REPLACE TABLE T USING iceberg AS SELECT * FROM T WHERE id > 9")
    shared.sql("ALTER TABLE T SET TBLPROPERTIES ('icefold.primary-key'='id')")
    backlog.main = {key: row for key, row in backlog.main.items() if key > 9}
    with pytest.raises(tf.TableError, match=r"was replaced.*--from-snapshot") as refused:
        resolve(backlog.table)
    backlog.check()
    backlog.resolve(from_snapshot=int(refused.value.context["stopped_at"]), skip_unpublished=True)
    backlog.stage(upserts=[(3, "EU", "fourth")], deletes=[13])
    backlog.resolve()


def test_changes_that_java_publishes_by_write_audit_publish(backlog, shared) -> None:
    """`publish_changes` brings an append; the staged changes come after it."""
    shared.sql("ALTER TABLE T SET TBLPROPERTIES ('write.wap.enabled'='true')")
    shared.java.configure({"spark.wap.id": "audited"})
    try:
        shared.sql("INSERT INTO T VALUES (50, 'EU', 'audited'), (51, 'EU', 'audited')")
    finally:
        shared.java.configure({"spark.wap.id": None})
    backlog.check()
    backlog.stage(deletes=[51])
    shared.call("publish_changes", wap_id="'audited'")
    backlog.main |= {key: (key, "EU", "audited") for key in (50, 51)}
    backlog.table.refresh()
    backlog.check()
    backlog.resolve()


def test_java_refuses_to_publish_an_audited_delete_over_a_publish(backlog, shared) -> None:
    shared.sql("ALTER TABLE T SET TBLPROPERTIES ('write.wap.enabled'='true')")
    shared.java.configure({"spark.wap.id": "audited"})
    try:
        shared.sql("DELETE FROM T WHERE id = 5")
    finally:
        shared.java.configure({"spark.wap.id": None})
    backlog.resolve()
    with pytest.raises(JavaIcebergError, match="not append, dynamic overwrite, or fast-forward"):
        shared.call("publish_changes", wap_id="'audited'")
    backlog.check()


def test_staging_as_the_branch_that_java_audits(backlog, shared) -> None:
    """With `spark.wap.branch` Spark writes to the branch: staged changes as any other."""
    shared.sql("ALTER TABLE T SET TBLPROPERTIES ('write.wap.enabled'='true')")
    shared.java.configure({"spark.wap.branch": "staging"})
    try:
        shared.sql("UPDATE T SET v = 'audited' WHERE id IN (3, 16)")
        shared.sql("INSERT INTO T VALUES (50, 'EU', 'audited')")
        shared.sql("DELETE FROM T WHERE id = 17")
    finally:
        shared.java.configure({"spark.wap.branch": None})
    backlog.waiting.append(
        ([(3, "EU", "audited"), (16, "US", "audited"), (50, "EU", "audited")], [17])
    )
    backlog.check()
    backlog.resolve()


def _staged_ids(shared: SharedTable) -> set[int]:
    """Snapshots of `staging` that are not on `main`, as Java lists them."""
    [[head]] = shared.query("SELECT snapshot_id FROM T.refs WHERE name = 'staging'")
    parents = dict(shared.query("SELECT snapshot_id, coalesce(parent_id, -1) FROM T.snapshots"))
    on_main = {row[0] for row in shared.query("SELECT snapshot_id FROM T.history")}
    found = set()
    while head in parents and head not in on_main:
        found.add(head)
        head = parents[head]
    return found
