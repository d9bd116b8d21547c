"""On a v2 table equality deletes become position delete files; nothing else is different."""

from collections import Counter

import pyarrow as pa
import pytest

from maintenance.tasks.compact import compact
from maintenance.tasks.drop_dead_deletes import drop_dead_deletes
from maintenance.tasks.expire import expire
from maintenance.tasks.options import CompactOptions, RewriteVectorsOptions
from maintenance.tasks.rewrite_vectors import rewrite_vectors
from resolver import resolve
from resolver.index_check import verify
from resolver.target import live_files
from tableformat import InvalidInputError, UnsupportedError
from tableformat.commit.refs import rollback
from tests.support.another_tool import set_unchecked
from tests.support.row_model import assert_holds
from tests.support.staged_tables import BASE, EVERYTHING, StagedTable, keys

V2 = {"format-version": "2"}
PER_FILE = {**V2, "write.delete.granularity": "file"}


@pytest.fixture(params=[V2, PER_FILE], ids=["partition", "file"])
def staged(request, tmp_path):
    table = StagedTable(tmp_path, properties=request.param)
    table.table.append(table.rows(*BASE[:10]))
    table.table.append(table.rows(*BASE[10:]))
    return table


def deletes(staged):
    """Live position delete entries of main."""
    return live_files(
        staged.environment, staged.table.refresh().state.head("main")
    ).position_deletes


def base_without(*gone):
    return Counter(row for row in BASE if row[0] not in gone)


def test_cycle_of_a_v2_table_writes_position_delete_files_that_readers_apply(staged):
    staged.table.stage(staged.rows((3, "eu", "new")), deletes=keys(12, 13))
    report = resolve(staged.table)
    by_file = "write.delete.granularity" in staged.table.state.metadata.properties
    assert (report.dvs, report.position_delete_files) == (0, 2 if by_file else 1)
    assert "position delete file" in report.describe()
    assert_holds(staged.table, base_without(3, 12, 13) + Counter([(3, "eu", "new")]))
    assert staged.table.state.metadata.format_version == 2
    bounds = [(e.data_file.lower_bounds, e.data_file.upper_bounds) for e in deletes(staged)]
    assert all(low[2147483546].endswith(b".parquet") for low, _ in bounds)  # never cut
    assert verify(staged.table).report.is_sound


def test_later_cycles_add_to_a_partition_and_replace_what_is_for_one_file(staged):
    for key in (1, 2, 11):
        staged.table.stage(deletes=keys(key))
        resolve(staged.table)
    by_file = "write.delete.granularity" in staged.table.state.metadata.properties
    assert sorted(e.data_file.record_count for e in deletes(staged)) == (
        [1, 2] if by_file else [1, 1, 1]
    )
    assert_holds(staged.table, base_without(1, 2, 11))


def test_delete_that_hits_dead_rows_only_writes_no_file(staged):
    for _ in range(2):
        staged.table.stage(deletes=keys(1))
        assert resolve(staged.table).staged_snapshots == 1
    assert [e.data_file.record_count for e in deletes(staged)] == [1]


def test_position_deletes_of_others_stay_and_hold(staged):
    """A writer's own: rows of a key that it wrote twice in one commit, as Flink does."""
    files = [task.entry.data_file for task in staged.tasks()]
    [first, second] = sorted(files, key=lambda file: file.lower_bounds[1])  # by key
    theirs = staged.position_deletes(
        {first.file_path: [0], second.file_path: [0, 1]}, [first, second]
    )
    staged.commit(branch="main", deletes=[theirs])
    gone = [BASE[0][0], BASE[10][0], BASE[11][0]]
    assert staged.published() == base_without(*gone)
    new = staged.data_files((15, "eu", "flink"), (15, "eu", "flink again"))
    own = staged.position_deletes({new[0].file_path: [0]}, new)
    staged.commit(
        branch="main", data=new, deletes=[own, *staged.equality_deletes(keys(15, gone[0]))]
    )
    report = resolve(staged.table, staging="main", target="main")
    assert report.deleted_rows == 1  # 15; the other key's row was dead
    expected = base_without(*gone, 15) + Counter([(15, "eu", "flink again")])
    assert_holds(staged.table, expected)
    assert {theirs.file_path, own.file_path} <= {e.data_file.file_path for e in deletes(staged)}
    assert verify(staged.table).report.is_sound


def test_position_deletes_older_than_their_data_file_say_nothing(staged):
    """It left with a rollback, and is there again, younger than they are."""
    table = staged.table
    before = table.refresh().state.head("main").snapshot_id
    file = staged.data_files((30, "eu", "came"), (31, "eu", "came"))
    staged.commit(branch="main", data=file)
    [other] = {e.file_path: e for e in [staged.tasks()[0].entry.data_file]}.values()
    shared = staged.position_deletes({file[0].file_path: [0], other.file_path: [0]}, file)
    staged.commit(branch="main", deletes=[shared])
    held = staged.position_deletes({file[0].file_path: [0], other.file_path: [0]}, file)
    rollback(staged.environment, table.identifier, snapshot_id=before)
    staged.commit(branch="main", deletes=[held])
    staged.commit(branch="main", data=file)
    assert (30, "eu", "came") in staged.published()
    table.stage(deletes=keys(30))
    assert resolve(table).deleted_rows == 1
    assert_holds(table, staged.published())
    assert (30, "eu", "came") not in staged.published()


def test_change_that_was_picked_is_resolved_on_main(staged):
    staged.table.stage(staged.rows((3, "eu", "new")), deletes=keys(12))
    staged.pick()
    resolve(staged.table)
    expected = base_without(3, 12) + Counter([(3, "eu", "new"), (7, "eu", "main")])
    assert_holds(staged.table, expected)


@pytest.mark.parametrize("point", ["resolve.after_match", "resolve.after_dv_write"])
def test_race_that_is_lost_is_matched_again(staged, point):
    armed = staged.environment.runtime.fail_points.armed

    def beside(_):
        armed.clear()
        staged.table.append(staged.rows((3, "eu", "beside"), (40, "eu", "beside")))

    armed[point] = beside
    staged.table.stage(deletes=keys(3, 12))
    assert resolve(staged.table).attempts == 2
    assert_holds(staged.table, base_without(3, 12) + Counter([(40, "eu", "beside")]))


@pytest.mark.parametrize("moves", [True, False])
def test_table_that_is_upgraded_beside_a_cycle_gets_vectors(staged, moves):
    armed = staged.environment.runtime.fail_points.armed
    staged.table.stage(deletes=keys(1))
    resolve(staged.table)

    def beside(_):
        armed.clear()
        staged.table.upgrade()
        if moves:
            staged.table.append(staged.rows((40, "eu", "beside")))

    armed["resolve.after_dv_write"] = beside
    staged.table.stage(deletes=keys(3, 12))
    assert resolve(staged.table).dvs == 2
    assert deletes(staged) == ()
    beside_it = Counter([(40, "eu", "beside")] if moves else [])
    assert_holds(staged.table, base_without(1, 3, 12) + beside_it)


def test_upgraded_table_folds_its_position_deletes_into_vectors_and_rewrites_no_data(staged):
    staged.table.stage(deletes=keys(1, 12))
    resolve(staged.table)
    paths = {task.entry.data_file.file_path for task in staged.tasks()}
    staged.table.upgrade()
    assert staged.published() == base_without(1, 12)
    assert rewrite_vectors(staged.table).folded_files == len(paths) or not deletes(staged)
    assert_holds(staged.table, base_without(1, 12))
    assert {task.entry.data_file.file_path for task in staged.tasks()} == paths


def test_merge_keeps_the_number_of_delete_files_bounded(staged):
    gone = []
    for key in range(20):
        staged.table.stage(deletes=keys(key))
        resolve(staged.table)
        gone.append(key)
        rewrite_vectors(staged.table, RewriteVectorsOptions(small_files_min=4))
        assert len(deletes(staged)) <= 5
    assert staged.published() == base_without(*gone)
    staged.table.append(staged.rows((99, "eu", "new")))
    assert_holds(staged.table, Counter([(99, "eu", "new")]))


def test_compaction_applies_position_deletes_and_what_died_beside_it(staged):
    table = staged.table
    table.stage(deletes=keys(1, 12))
    resolve(table)
    armed = staged.environment.runtime.fail_points.armed

    def delete_beside(_):
        armed.clear()
        [file, _] = [task.entry.data_file for task in staged.tasks()]
        staged.commit(
            branch="main", deletes=[staged.position_deletes({file.file_path: [5]}, [file])]
        )

    before = staged.published()
    armed["compact.before_commit"] = delete_beside
    report = compact(table, CompactOptions(rewrite_all=True))
    assert (report.rebased_rows, report.errors) == (1, ())
    assert len(before - staged.published()) == 1
    assert_holds(table, staged.published())
    drop_dead_deletes(table)
    [file] = [task.entry.data_file for task in staged.tasks()]
    names = pa.parquet.read_schema(
        pa.BufferReader(staged.environment.store.get(file.file_path))
    ).names
    assert names == ["id", "region", "note"]  # no row ids are stored
    assert len(deletes(staged)) == 1
    expire(table, EVERYTHING)
    assert_holds(table, staged.published())


def test_file_with_few_deletes_is_not_compacted(staged):
    staged.table.stage(deletes=keys(1))
    resolve(staged.table)
    options = CompactOptions(dv_share_min=0.3, input_files_min=100)
    assert not compact(staged.table, options).commits
    staged.table.stage(deletes=keys(*range(2, 10), *range(11, 15)))
    resolve(staged.table)
    assert compact(staged.table, options).commits
    assert_holds(staged.table, staged.published())


def test_what_needs_v3_is_refused_in_one_line_before_anything_is_written(staged):
    table = staged.table
    refused = [
        lambda: table.delete("id = 1"),
        lambda: table.update({"note": "'x'"}, "id = 1"),
        lambda: table.stage(staged.rows((1, "eu", "x")).select(["id"]), columns="partial"),
    ]
    for call in refused:
        before = table.refresh().metadata_location
        with pytest.raises(UnsupportedError, match=r"v2 table: .* need v3.*icefold table upgrade"):
            call()
        assert table.refresh().metadata_location == before


def test_table_that_is_made_to_publish_by_rewrite_is_refused(tmp_path):
    with pytest.raises(UnsupportedError, match=r"icefold\.publish=rewrite"):
        StagedTable(tmp_path, properties={**V2, "icefold.publish": "rewrite"})


def test_publish_by_rewrite_is_refused_where_it_is_set_and_where_rows_are_staged(staged):
    table = staged.table
    with pytest.raises(UnsupportedError, match=r"icefold\.publish=rewrite"):
        table.set_properties({"icefold.publish": "rewrite"})
    table.stage(deletes=keys(1))
    set_unchecked(table, {"icefold.publish": "rewrite"})  # by another tool
    before = table.refresh().metadata_location
    for call in (
        lambda: table.stage(deletes=keys(2)),
        lambda: table.write_changes(staged.rows((2, "eu", "x"))),
        lambda: resolve(table),
    ):
        with pytest.raises(UnsupportedError, match=r"icefold\.publish=rewrite"):
            call()
        assert table.refresh().metadata_location == before
    table.set_properties({"icefold.publish": "link"})
    assert resolve(table).deleted_rows == 1


def test_vector_is_refused_on_a_v2_table(staged):
    [file, _] = [task.entry.data_file for task in staged.tasks()]
    with pytest.raises(InvalidInputError, match="not deletion vectors"):
        staged.stage_vector(file, 1)
