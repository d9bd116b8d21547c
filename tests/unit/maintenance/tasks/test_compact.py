"""Compaction: the same rows with the same identity in other files, whatever happens beside it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import tableformat as tf
from lock import LeaseUnavailableError
from maintenance.tasks.compact import COMMIT_INTERVAL_MAX_MS, compact
from maintenance.tasks.compaction import workers
from maintenance.tasks.options import CompactOptions, RemoveOrphansOptions
from resolver import resolve
from resolver.index_check import verify
from tableformat.commit.changeset import Changeset, CommitKind
from tableformat.commit.engine import commit
from tableformat.errors import CommitConflictError, InvalidInputError, NotFoundError
from tableformat.paths import equality_delete_locations
from tableformat.write.equality_deletes import write_equality_deletes
from tests.support.lying_lock import GrantAllLock
from tests.support.table_checker import check_table

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("amount", pa.int64())])
LINEAGE = ["_row_id", "_last_updated_sequence_number"]
ALL = CompactOptions(rewrite_all=True)
LIAR = GrantAllLock(tokens="same")  # compaction and resolver at the same time


def rows(*values):
    return pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, value, strict=True)) for value in values], SCHEMA
    )


def many(first, count, region="eu", amount=0):
    return pa.table(
        {
            "id": pa.array(range(first, first + count), pa.int64()),
            "region": pa.array([region] * count),
            "amount": pa.array([amount] * count, pa.int64()),
        }
    )


@pytest.fixture
def catalog(tmp_path):
    return tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"))


def new_table(catalog, partition_by=()):
    return catalog.create_table("t.rows", SCHEMA, primary_key=["id"], partition_by=partition_by)


@pytest.fixture(params=[(), ("region",)], ids=["unpartitioned", "by region"])
def table(catalog, request):
    return new_table(catalog, request.param)


def identified(table):
    """Rows with their lineage, with counts."""
    found = table.scan(columns=[*SCHEMA.names, *LINEAGE]).to_arrow().to_pylist()
    return Counter(tuple(row.values()) for row in found)


def data_files(table):
    return [task.entry.data_file for task in table.scan().plan.tasks]


def check(table):
    check_table(table.environment.store.get, table.refresh().metadata_location)


def fill(table):
    for step in range(6):
        region = "eu" if step % 2 else "us"
        table.append(many(step * 10, 10, region, step))
    table.stage(
        upserts=rows((3, "us", 100), (15, "eu", 101), (200, "us", 102)),
        deletes=pa.table({"id": pa.array([4, 25, 44], pa.int64())}),
    )
    resolve(table)


def test_compaction_keeps_rows_and_lineage_and_drops_vectors(table):
    fill(table)
    before = identified(table)
    report = compact(table, ALL)
    assert report.changed
    assert report.failed_groups == 0
    assert report.deleted_rows == 5
    assert report.removed_dvs > 0
    assert identified(table) == before
    assert all(not task.has_deletes for task in table.scan().plan.tasks)
    assert len(data_files(table)) == (2 if table.spec().fields else 1)
    head = table.refresh().state.head("main")
    assert head.summary.operation.value == "replace"
    check(table)


def test_index_follows_a_compaction_without_being_told(table):
    fill(table)
    compact(table, ALL)
    table.stage(upserts=rows((3, "eu", 7), (30, "us", 8)))
    report = resolve(table)
    assert report.index == "followed"
    assert report.deleted_rows == 2
    assert verify(table).report.is_sound
    assert Counter(table.scan().to_arrow()["id"].to_pylist()).most_common(1)[0][1] == 1


def test_dry_run_reports_and_changes_nothing(table):
    fill(table)
    before = table.refresh().metadata_location
    report = compact(table, ALL, dry_run=True)
    assert report.changed
    assert report.removed_data_files == len(data_files(table))
    assert report.deleted_rows == 5
    assert "compact (dry run): " in report.describe()
    assert table.refresh().metadata_location == before


def test_small_files_wait_until_there_are_enough(catalog):
    table = new_table(catalog)
    for step in range(4):
        table.append(many(step * 10, 10))
    assert not compact(table).changed
    table.append(many(40, 10))
    assert compact(table).removed_data_files == 5
    assert not compact(table).changed


def test_file_with_many_dead_rows_is_rewritten_alone(catalog):
    table = new_table(catalog)
    table.append(many(0, 100))
    table.stage(deletes=pa.table({"id": pa.array(range(20), pa.int64())}))
    resolve(table)
    assert not compact(table).changed
    assert compact(table, CompactOptions(dv_share_min=0.2)).deleted_rows == 20


def test_file_without_live_rows_goes_without_a_successor(catalog):
    table = new_table(catalog)
    table.append(many(0, 10))
    table.append(many(10, 10))
    table.stage(deletes=pa.table({"id": pa.array(range(10), pa.int64())}))
    resolve(table)
    report = compact(table)
    assert (report.removed_data_files, report.added_data_files) == (1, 0)
    assert table.scan().to_arrow().num_rows == 10
    check(table)


def test_large_file_is_split_towards_the_target_size(catalog):
    table = new_table(catalog)
    table.set_properties({"write.parquet.row-group-size-bytes": "10000"})
    keys = pa.array(range(20_000), pa.int64())
    table.append(pa.table({"id": keys, "region": pc.cast(keys, pa.string()), "amount": keys}))
    size = data_files(table)[0].file_size_in_bytes
    before = identified(table)
    compact(table, CompactOptions(target_size_bytes=size // 4))
    files = data_files(table)
    assert 3 <= len(files) <= 6
    assert max(file.file_size_in_bytes for file in files) < size // 2
    assert identified(table) == before


def test_files_that_become_one_become_one_row_group(catalog):
    table = new_table(catalog)
    for step in range(4):  # encoded, these take a small part of what they take in memory
        table.append(many(step * 5_000, 5_000))

    compact(table, ALL)

    [file] = data_files(table)
    assert len(file.split_offsets) == 1


def test_filter_restricts_to_files_that_may_match(catalog):
    table = new_table(catalog, ("region",))
    fill(table)
    us = {f.file_path for f in data_files(table) if f.partition == ("us",)}
    report = compact(table, CompactOptions(filter="region = 'eu'", rewrite_all=True))
    assert report.groups == 1
    assert us <= {f.file_path for f in data_files(table)}


def test_a_run_is_one_commit_however_many_groups(catalog):
    table = new_table(catalog, ("region",))
    table.append(pa.concat_tables([many(10 * n, 3, f"r{n:02d}") for n in range(20)]))
    before, snapshots = identified(table), len(table.state.metadata.snapshots)
    report = compact(table, ALL)
    assert (report.groups, report.committed_groups, len(report.commits)) == (20, 20, 1)
    assert len(table.refresh().state.metadata.snapshots) == snapshots + 1
    assert identified(table) == before
    check(table)


@pytest.mark.parametrize(
    ("commits_max", "commits"), [(1, 1), (2, 2), (3, 3), (5, 4), (7, 7), (10, 7)]
)
def test_partial_progress_commits_in_at_most_so_many_parts(catalog, commits_max, commits):
    """As Java has it: groups per commit are rounded up."""
    table = new_table(catalog, ("region",))
    table.append(pa.concat_tables([many(10 * n, 3, f"r{n}") for n in range(7)]))
    before = identified(table)
    options = CompactOptions(
        rewrite_all=True, partial_progress=True, partial_progress_commits_max=commits_max
    )
    report = compact(table, options)
    assert (report.groups, report.committed_groups) == (7, 7)
    assert len(report.commits) == commits
    assert identified(table) == before


def test_groups_that_wait_long_are_committed_before_orphan_removal_could_take_them(
    catalog, monkeypatch
):
    table = new_table(catalog, ("region",))
    table.append(pa.concat_tables([many(10 * n, 3, f"r{n}") for n in range(4)]))
    monkeypatch.setattr("maintenance.tasks.compact.COMMIT_INTERVAL_MAX_MS", 0)
    report = compact(table, ALL)
    assert (report.groups, len(report.commits)) == (4, 4)


def test_groups_wait_for_one_commit_far_less_than_an_orphan_must_be_old():
    assert RemoveOrphansOptions().older_than_min_ms >= 2 * COMMIT_INTERVAL_MAX_MS


def interfere(table, action, point="compact.before_commit", times=1):
    """Run `action` through another handle whenever the compaction passes `point`."""
    left = [times]

    def hook(_name):
        if left[0]:
            left[0] -= 1
            action()

    table.environment.runtime.fail_points.armed[point] = hook


@pytest.mark.parametrize(
    ("strategy", "point"),
    [
        ("bin-pack", "compact.after_plan"),
        ("bin-pack", "compact.after_write"),
        ("bin-pack", "compact.before_commit"),
        ("sort", "compact.before_commit"),
        ("z-order", "compact.after_write"),
    ],
)
def test_deletes_committed_meanwhile_hold_in_the_new_files(catalog, table, point, strategy):
    fill(table)
    other = catalog.load_table("t.rows")
    expected = {}

    def resolve_beside():
        other.stage(
            upserts=rows((7, "eu", 900)),
            deletes=pa.table({"id": pa.array([0, 1, 33, 59, 200], pa.int64())}),
        )
        resolve(other, lock=LIAR)
        expected["rows"] = identified(other)

    interfere(table, resolve_beside, point)
    columns = () if strategy == "bin-pack" else ("amount", "id")
    options = CompactOptions(rewrite_all=True, strategy=strategy, sort_by=columns)
    report = compact(table, options, lock=LIAR)
    assert report.errors == ()
    assert report.rebased_rows == 6
    assert identified(table) == expected["rows"]
    check(table)


def test_stream_that_commits_at_every_attempt_does_not_starve_it(catalog):
    table = new_table(catalog)
    fill(table)
    other = catalog.load_table("t.rows")
    keys = iter(range(1, 40, 3))

    def resolve_beside():
        other.stage(deletes=pa.table({"id": pa.array([next(keys)], pa.int64())}))
        resolve(other, lock=LIAR)

    interfere(table, resolve_beside, times=8)
    report = compact(table, ALL, lock=LIAR)
    assert report.committed_groups == 1
    assert report.rebases >= 8
    assert identified(table) == identified(other)
    check(table)


def delete_by_key_on_main(table, keys):
    """As a foreign writer does it: equality deletes on the published branch."""
    state, environment = table.refresh().state, table.environment
    files = write_equality_deletes(
        environment.store,
        pa.table({"id": pa.array(keys, pa.int64()), "region": ["eu"] * len(keys)}),
        schema=state.metadata.schema(),
        equality_ids=[1],
        spec=state.metadata.spec(),
        properties={},
        location_for=equality_delete_locations(state.metadata, environment.runtime.ids),
    )
    change = Changeset(kind=CommitKind.ROW_DELTA, branch="main", added_delete_files=tuple(files))
    commit(environment, table.identifier, change)


def test_equality_deletes_landing_meanwhile_hold_in_the_new_files(catalog, table):
    """R32: on the branch itself, by a foreign writer."""
    fill(table)
    expected = identified(table)
    gone = {row for row in expected if row[0] in (13, 14, 50)}
    gone = {row for row in gone if not table.spec().fields or row[1] == "eu"}
    assert gone
    interfere(table, lambda: delete_by_key_on_main(catalog.load_table("t.rows"), [13, 14, 50]))
    report = compact(table, ALL)
    assert report.rebased_rows == len(gone)
    assert identified(table) == expected - Counter(gone)
    check(table)


def test_file_removed_meanwhile_fails_its_group_only(catalog):
    table = new_table(catalog, ("region",))
    fill(table)
    other = catalog.load_table("t.rows")
    replacement = rows((1000, "eu", 1))
    interfere(table, lambda: other.overwrite(replacement))
    report = compact(table, ALL)
    assert report.failed_groups == 1
    assert report.committed_groups == 1
    assert "planned again" in report.errors[0] or "plan again" in report.errors[0]
    assert [r["id"] for r in table.scan("region = 'eu'").to_arrow().to_pylist()] == [1000]
    check(table)


def test_groups_that_lost_a_file_are_left_out_and_the_others_committed_together(catalog):
    table = new_table(catalog, ("region",))
    table.append(pa.concat_tables([many(10 * n, 3, f"r{n}") for n in range(6)]))
    other = catalog.load_table("t.rows")
    interfere(table, lambda: other.overwrite(rows((1000, "r1", 1), (1001, "r4", 1))))
    store, prefix = table.environment.store, f"{table.state.metadata.location}/data"
    before = {info.location for info in store.list_prefix(prefix)}
    report = compact(table, ALL)
    assert (report.groups, report.committed_groups, report.failed_groups) == (6, 4, 2)
    assert len(report.commits) == 1
    assert (report.removed_data_files, report.added_data_files, report.rows) == (4, 4, 12)
    assert all("has left it" in error for error in report.errors)
    assert sorted(row[0] for row in identified(table)) == sorted(
        [10 * n + i for n in (0, 2, 3, 5) for i in range(3)] + [1000, 1001]
    )
    new = {info.location for info in store.list_prefix(prefix)} - before
    live = {file.file_path for file in data_files(table)}
    assert new <= live  # what was written for the groups left out is deleted
    check(table)
    assert compact(table, ALL).failed_groups == 0  # the next run takes them


def test_run_whose_groups_all_lost_a_file_commits_nothing_and_fails(catalog):
    table = new_table(catalog, ("region",))
    table.append(pa.concat_tables([many(10 * n, 3, f"r{n}") for n in range(3)]))
    other = catalog.load_table("t.rows")
    interfere(table, lambda: other.overwrite(rows(*((n, f"r{n}", 1) for n in range(3)))))
    report = compact(table, ALL)
    assert (report.failed_groups, report.commits, report.changed) == (3, (), False)
    assert report.failed
    assert sorted(row[0] for row in identified(table)) == [0, 1, 2]


def test_deletes_of_several_groups_landing_at_several_attempts_hold(catalog):
    """What an earlier attempt found for a group is used again only while its deletes are same."""
    table = new_table(catalog, ("region",))
    table.append(pa.concat_tables([many(100 * n, 30, f"r{n}") for n in range(5)]))
    other = catalog.load_table("t.rows")
    steps = iter([(0, 1), (0, 5), (1, 100), (4, 407), (1, 129)])

    def resolve_beside():
        _, key = next(steps)
        deletes = pa.table({"id": pa.array([key], pa.int64())})
        if table.spec().fields:
            deletes = deletes.append_column("region", pa.array([f"r{key // 100}"]))
        other.stage(deletes=deletes)
        resolve(other, lock=LIAR)

    interfere(table, resolve_beside, times=5)
    report = compact(table, ALL, lock=LIAR)
    assert (report.committed_groups, report.rebased_rows, len(report.commits)) == (5, 5, 1)
    assert identified(table) == identified(other)
    assert not {1, 5, 100, 407, 129} & {row[0] for row in identified(table)}
    check(table)


def test_damaged_delete_of_one_group_leaves_that_group_out(catalog):
    table = new_table(catalog, ("region",))
    table.append(pa.concat_tables([many(100 * n, 30, f"r{n}") for n in range(3)]))
    other = catalog.load_table("t.rows")

    def delete_and_damage():
        other.stage(
            deletes=pa.table({"id": pa.array([101], pa.int64()), "region": pa.array(["r1"])})
        )
        resolve(other, lock=LIAR)
        [puffin] = {
            task.dv.data_file.file_path
            for task in other.refresh().scan().plan.tasks
            if task.dv is not None
        }
        path = Path(puffin.removeprefix("file://"))
        path.write_bytes(b"x" * path.stat().st_size)

    interfere(table, delete_and_damage)
    report = compact(table, ALL, lock=LIAR)
    assert (report.committed_groups, report.failed_groups) == (2, 1)
    assert "Puffin" in report.errors[0]


@pytest.mark.parametrize("upgraded_before", [False, True])
def test_rows_that_get_row_ids_while_they_are_rewritten_keep_them(catalog, upgraded_before):
    """An upgrade gives rows ids with its first commit; a rewrite of before knows none of them."""
    version = {"format-version": "2"}
    table = catalog.create_table("t.rows", SCHEMA, primary_key=["id"], properties=version)
    table.append(many(0, 10))
    table.append(many(10, 10))
    if upgraded_before:
        table.upgrade()
    other = catalog.load_table("t.rows")
    before: Counter = Counter()

    def upgrade_and_append():
        if not upgraded_before:
            other.upgrade()
        other.append(many(100, 10))
        before.update(identified(other))

    interfere(table, upgrade_and_append)
    report = compact(table, ALL, lock=LIAR)
    assert "row ids" in report.errors[0]
    assert compact(table, ALL, lock=LIAR).errors == ()
    assert identified(table) == before
    check(table)


def test_files_that_left_and_came_back_meanwhile_keep_their_new_row_ids(catalog):
    """Simulator, seed 1002041: a rewrite brought back the row ids of a branch rolled back."""
    table = new_table(catalog)
    table.append(many(100, 10))
    other = catalog.load_table("t.rows")
    start = other.refresh().state.head("main").snapshot_id
    table.append(many(0, 10))
    [added] = [
        task.entry.data_file
        for task in table.refresh().scan().plan.tasks
        if task.entry.snapshot_id != start
    ]

    def publish_again():
        other.refs.rollback(snapshot_id=start)
        other.append(many(200, 10))
        change = Changeset(kind=CommitKind.APPEND, added_data_files=(added,))
        commit(other.environment, other.identifier, change)

    interfere(table, publish_again)
    report = compact(table, ALL, lock=LIAR)
    assert "come back" in report.errors[0]
    before = identified(table)
    assert compact(table, ALL, lock=LIAR).errors == ()
    assert identified(table) == before
    check(table)


def test_rows_that_come_back_by_a_rollback_are_not_lost(catalog):
    table = new_table(catalog)
    table.append(many(0, 10))
    start = table.refresh().state.head("main").snapshot_id
    table.stage(deletes=pa.table({"id": pa.array([1, 2], pa.int64())}))
    resolve(table)
    other = catalog.load_table("t.rows")
    interfere(table, lambda: other.refs.rollback(snapshot_id=start))
    report = compact(table, ALL)
    assert report.failed_groups == 1
    assert "are back" in report.errors[0]
    assert table.scan().to_arrow().num_rows == 10
    assert len(list(table.environment.store.list_prefix(table.state.metadata.location))) > 0


@pytest.mark.slow
def test_new_files_of_a_failed_group_are_deleted(catalog):
    table = new_table(catalog)
    fill(table)
    store = table.environment.store
    prefix = f"{table.state.metadata.location}/data"
    before = {info.location for info in store.list_prefix(prefix)}

    def refuse(_name):
        raise CommitConflictError("simulated")

    table.environment.runtime.fail_points.armed["commit.before_list_put"] = refuse
    report = compact(table, ALL)
    assert report.failed_groups == 1
    assert {info.location for info in store.list_prefix(prefix)} == before


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"branch": "staging"}, InvalidInputError, "staging"),
        ({"branch": "nope"}, NotFoundError, "no such branch"),
        ({"strategy": "sort"}, InvalidInputError, "needs columns"),
        ({"strategy": "sort", "sort_by": ("x",)}, InvalidInputError, "no column"),
        ({"strategy": "sort", "sort_by": ("id up",)}, InvalidInputError, "sort column"),
        ({"strategy": "z-order", "sort_by": ("id",)}, InvalidInputError, "2 to 4"),
        ({"sort_by": ("id",)}, InvalidInputError, "bin-pack"),
        ({"dv_share_min": 0}, InvalidInputError, "share"),
        ({"group_bytes_max": 0}, InvalidInputError, "at least 1"),
        ({"partial_progress_commits_max": 0}, InvalidInputError, "at least 1"),
        ({"concurrent_groups_max": 0}, InvalidInputError, "at least 1"),
        ({"filter": "nope = 1"}, InvalidInputError, "nope"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused_in_one_line(catalog, options, error, text):
    table = new_table(catalog)
    table.append(many(0, 3))
    with pytest.raises(error, match=text) as caught:
        compact(table, CompactOptions(**options))
    assert "\n" not in str(caught.value)


def test_sort_orders_the_rows_of_each_file(catalog):
    table = new_table(catalog)
    fill(table)
    before = identified(table)
    compact(table, CompactOptions(rewrite_all=True, strategy="sort", sort_by=("region", "id desc")))
    found = [(r["region"], -r["id"]) for r in table.scan().to_arrow().to_pylist()]
    assert found == sorted(found)
    assert identified(table) == before


def test_compaction_carries_the_cursor_and_the_writers_marks(catalog):
    table = new_table(catalog)
    fill(table)
    before = table.refresh().state.head("main").summary.additional_properties
    compact(table, ALL)
    after = table.refresh().state.head("main").summary.additional_properties
    key = "equality-convert-staging-snapshot"
    assert after[key] == before[key]
    assert int(after["icefold.fence-token"]) > int(before["icefold.fence-token"])


def test_resolver_publishes_while_a_group_is_rewritten(catalog, monkeypatch):
    """With the real lock: in the middle, and its deletes hold."""
    table = new_table(catalog)
    fill(table)
    other = catalog.load_table("t.rows")
    real = workers.rewrite_group

    def slow(*arguments, **options):
        other.stage(deletes=pa.table({"id": pa.array([1, 2], pa.int64())}))
        assert resolve(other, lock_timeout_ms=0).equality_deletes == 2
        with pytest.raises(LeaseUnavailableError):
            compact(other, ALL, lock_timeout_ms=0)
        return real(*arguments, **options)

    monkeypatch.setattr(workers, "rewrite_group", slow)
    report = compact(table, ALL)
    assert report.rebased_rows == 2
    assert {1, 2}.isdisjoint(row[0] for row in identified(table))
    check(table)
