"""Staged snapshots as other writers make them: scoped deletes, other columns, DVs, NULL keys."""

from collections import Counter

import pyarrow as pa
import pytest
from pyiceberg.types import LongType

from resolver import resolve
from tableformat.codec.avro.manifest_store import load_manifest, load_manifest_list
from tableformat.commit import request
from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.commit.engine import commit
from tableformat.commit.evolution import update_schema, update_spec
from tableformat.errors import UnsupportedError
from tests.support.staged_tables import StagedTable


@pytest.fixture
def plain(tmp_path):
    return StagedTable(tmp_path)


@pytest.fixture
def by_region(tmp_path):
    return StagedTable(tmp_path, partition_by=["region"])


def keys(*ids):
    return pa.table({"id": pa.array(ids, pa.int64())})


def assert_clean(staged):
    plan = staged.table.scan().plan
    assert not any(task.equality_deletes or task.position_deletes for task in plan.tasks)


def test_partition_scoped_delete_reaches_its_own_partition_only(by_region):
    """R15: the same key lives in two partitions; a delete scoped to one leaves the other."""
    by_region.table.append(by_region.rows((1, "eu", "a"), (1, "us", "a"), (2, "us", "a")))
    spec = by_region.table.spec()
    gone = pa.table({"id": [1], "region": ["us"]}, schema=by_region.schema.remove(2))
    by_region.commit(deletes=by_region.equality_deletes(gone, spec=spec))
    assert resolve(by_region.table).deleted_rows == 1
    assert by_region.published() == Counter([(1, "eu", "a"), (2, "us", "a")])
    by_region.table.stage(deletes=keys(1))  # the index still knows the row that stayed
    resolve(by_region.table)
    assert by_region.published() == Counter([(2, "us", "a")])


def test_scoped_delete_reaches_staged_rows_of_its_partition_only(by_region):
    by_region.commit(data=by_region.data_files((1, "eu", "a"), (1, "us", "a")))
    spec = by_region.table.refresh().spec()
    gone = pa.table({"id": [1], "region": ["us"]}, schema=by_region.schema.remove(2))
    by_region.commit(deletes=by_region.equality_deletes(gone, spec=spec))
    resolve(by_region.table)
    assert by_region.published() == Counter([(1, "eu", "a")])


def test_global_delete_reaches_files_of_every_spec_after_partition_evolution(plain):
    """R03."""
    plain.table.append(plain.rows((1, "eu", "old spec"), (2, "eu", "old spec")))
    update_spec(plain.environment, plain.table.identifier, lambda s: s.add_identity("region"))
    plain.table.refresh()
    plain.table.append(plain.rows((1, "us", "new spec"), (3, "us", "new spec")))
    plain.commit(deletes=plain.equality_deletes(keys(1)))
    assert resolve(plain.table).deleted_rows == 2
    assert plain.published() == Counter([(2, "eu", "old spec"), (3, "us", "new spec")])


def test_update_that_moves_a_row_between_partitions_leaves_no_copy(by_region):
    """R09."""
    by_region.table.append(by_region.rows((1, "eu", "a")))
    by_region.table.stage(upserts=by_region.rows((1, "us", "b")))
    resolve(by_region.table)
    assert by_region.published() == Counter([(1, "us", "b")])


def test_duplicates_of_a_key_on_the_target_all_die(plain):
    plain.table.append(plain.rows((1, "eu", "a"), (1, "eu", "b"), (2, "eu", "a")))
    plain.table.append(plain.rows((1, "us", "c")))
    plain.table.stage(deletes=keys(1, 99))
    assert resolve(plain.table).deleted_rows == 3
    assert plain.published() == Counter([(2, "eu", "a")])


def test_deletes_on_other_columns_than_the_key_are_resolved(plain):
    plain.table.append(plain.rows((1, "eu", "a"), (2, None, "a"), (3, "us", "a")))
    plain.commit(data=plain.data_files((4, None, "b"), (5, "eu", "b")))
    gone = pa.table({"region": pa.array([None, "us"], pa.string())})
    plain.commit(
        data=plain.data_files((6, "us", "c")),
        deletes=plain.equality_deletes(gone, columns=["region"]),
    )
    report = resolve(plain.table)
    assert (report.deleted_rows, report.staged_snapshots) == (3, 2)
    assert plain.published() == Counter([(1, "eu", "a"), (5, "eu", "b"), (6, "us", "c")])
    plain.table.stage(deletes=keys(2, 5))  # the index may still know the rows that region deleted
    resolve(plain.table)
    assert plain.published() == Counter([(1, "eu", "a"), (6, "us", "c")])


def test_key_sets_of_several_writers_in_one_cycle_are_all_resolved(plain):
    plain.table.append(plain.rows((1, "eu", "a"), (2, "us", "b"), (3, "us", "c")))
    both = pa.table({"id": [2, 3], "note": ["b", "other"]})
    plain.commit(
        deletes=[*plain.equality_deletes(keys(1)), *plain.equality_deletes(both, ["id", "note"])]
    )
    resolve(plain.table)
    assert plain.published() == Counter([(3, "us", "c")])


def test_null_key_deletes_null_rows_and_nothing_else(plain):
    """R24: NULL is not the empty string, nor the text null."""
    gone = pa.table({"region": pa.array([None], pa.string())})
    plain.table.append(plain.rows((1, None, "a"), (2, "", "a"), (3, "null", "a")))
    plain.commit(deletes=plain.equality_deletes(gone, columns=["region"]))
    resolve(plain.table)
    assert plain.published() == Counter([(2, "", "a"), (3, "null", "a")])


def test_flink_shaped_commit_with_a_dv_on_its_own_file_is_folded(plain):
    """Flink deletes a row inserted since its last checkpoint by a DV of the same commit."""
    plain.table.append(plain.rows((1, "eu", "old"), (2, "eu", "old")))
    files = plain.data_files((1, "eu", "first"), (1, "eu", "second"), (3, "eu", "new"))
    vectors = plain.vectors({files[0].file_path: [0]}, files)
    flink = {
        "flink.job-id": "j",
        "flink.operator-id": "o",
        "flink.max-committed-checkpoint-id": "7",
    }
    plain.commit(data=files, deletes=[*plain.equality_deletes(keys(1, 3)), *vectors], summary=flink)
    report = resolve(plain.table)
    assert plain.published() == Counter([(1, "eu", "second"), (2, "eu", "old"), (3, "eu", "new")])
    assert report.trimmed
    summary = plain.table.state.head("main").summary.additional_properties
    assert {key: summary[key] for key in flink} == flink
    plain.table.stage(deletes=keys(1))
    resolve(plain.table)
    assert plain.published() == Counter([(2, "eu", "old"), (3, "eu", "new")])
    assert_clean(plain)


def test_staged_dv_on_a_target_file_merges_with_the_one_that_is_there(plain):
    """P7: never two vectors for one file."""
    plain.table.append(plain.rows(*[(key, "eu", "a") for key in range(6)]))
    plain.table.stage(deletes=keys(0))
    resolve(plain.table)  # staging is trimmed to main, and the file has a DV
    task = plain.table.scan(branch="staging").plan.tasks[0]
    file = task.entry.data_file
    vectors = plain.vectors({file.file_path: [0, 3]}, [file])
    plain.commit(deletes=[*vectors, *plain.equality_deletes(keys(5))], removed=[task.dv])
    plain.table.refresh()
    resolve(plain.table)
    assert plain.published() == Counter([(key, "eu", "a") for key in (1, 2, 4)])
    assert [t.dv.data_file.record_count for t in plain.table.scan().plan.tasks] == [3]


def test_second_delete_in_a_file_keeps_the_first(plain):
    """I6: the vector only grows."""
    plain.table.append(plain.rows(*[(key, "eu", "a") for key in range(4)]))
    for key in (0, 2):
        plain.table.stage(deletes=keys(key))
        resolve(plain.table)
    assert plain.published() == Counter([(1, "eu", "a"), (3, "eu", "a")])
    assert [t.dv.data_file.record_count for t in plain.table.scan().plan.tasks] == [2]


@pytest.mark.parametrize("point", [None, "resolve.after_read", "resolve.after_dv_write"])
def test_position_deletes_on_the_target_are_folded_by_a_cycle(plain, point, monkeypatch):
    """P7: those there before the cycle, and those that land in the middle of it."""
    monkeypatch.setattr(
        request, "_check_form", lambda *_, **__: None
    )  # from before an upgrade to v3
    plain.table.append(plain.rows(*[(key, "eu", "a") for key in range(4)]))
    plain.table.stage(deletes=keys(2))
    points = plain.environment.runtime.fail_points

    def land(_name):
        points.armed.clear()
        file = plain.table.scan().plan.tasks[0].entry.data_file
        deletes = plain.position_deletes({file.file_path: [0]}, [file])
        plain.commit(branch="main", deletes=[deletes])

    if point is None:
        land(point)
    else:
        points.armed[point] = land
    resolve(plain.table)
    assert plain.published() == Counter([(1, "eu", "a"), (3, "eu", "a")])
    assert_clean(plain)


def test_two_flink_writers_on_one_branch_keep_their_markers_reachable(plain):
    for job in ("a", "b"):
        plain.commit(
            data=plain.data_files((ord(job), "eu", job)),
            summary={"flink.job-id": job, "flink.operator-id": "o"},
        )
    plain.table.refresh()
    report = resolve(plain.table)
    assert not report.trimmed
    assert resolve(plain.table).staged_snapshots == 0


def test_staging_that_was_rewritten_stops_the_cycle_and_publishes_nothing(plain):
    plain.table.append(plain.rows((1, "eu", "a")))
    first = plain.table.stage(upserts=plain.rows((2, "eu", "b")))
    head = first.snapshot
    entries = [
        entry
        for manifest in load_manifest_list(plain.environment.store, head)
        for entry in load_manifest(plain.environment.store, manifest)
        if entry.snapshot_id == head.snapshot_id and entry.data_file.content == 0
    ]
    changeset = Changeset(
        kind=CommitKind.REWRITE,
        branch="staging",
        added_data_files=tuple(plain.data_files((2, "eu", "compacted"))),
        removed_entries=tuple(entries),
        data_sequence_number=head.sequence_number,
        validation=Validation(starting_snapshot_id=head.snapshot_id),
    )
    commit(plain.environment, plain.table.identifier, changeset)
    plain.table.refresh()
    with pytest.raises(UnsupportedError, match="under the sequence number of older ones"):
        resolve(plain.table)
    assert plain.published() == Counter([(1, "eu", "a")])


def test_staged_file_whose_rows_all_die_in_the_batch_is_not_published(plain):
    plain.table.stage(upserts=plain.rows((1, "eu", "a"), (2, "eu", "a")))
    plain.table.stage(upserts=plain.rows((1, "eu", "b")), deletes=keys(2))
    report = resolve(plain.table)
    assert (report.data_files, report.dropped_data_files, report.dvs) == (1, 1, 0)
    assert plain.published() == Counter([(1, "eu", "b")])


def test_deleted_and_inserted_again_in_one_cycle_survives(plain):
    """P3, R08."""
    plain.table.append(plain.rows((1, "eu", "a")))
    for step in range(3):
        plain.table.stage(deletes=keys(1))
        plain.table.stage(upserts=plain.rows((1, "eu", f"again {step}")))
    resolve(plain.table)
    assert plain.published() == Counter([(1, "eu", "again 2")])


def test_key_promotion_between_staging_and_target_finds_the_rows(tmp_path):
    """R20: int became long; the index is followed, and 2**32 does not wrap to 0."""
    schema = pa.schema([("id", pa.int32()), ("region", pa.string()), ("note", pa.string())])
    staged = StagedTable(tmp_path, schema=schema)
    staged.table.append(staged.rows((0, "eu", "a"), (1, "eu", "a")))
    staged.table.stage(deletes=pa.table({"id": pa.array([1], pa.int32())}))
    resolve(staged.table)
    update_schema(
        staged.environment,
        staged.table.identifier,
        lambda s: s.update_column("id", field_type=LongType()),
    )
    staged.table.refresh()
    staged.table.stage(deletes=keys(2**32, 2**32 + 1))
    resolve(staged.table)
    assert staged.published() == Counter([(0, "eu", "a")])
    staged.table.stage(deletes=keys(0))
    assert resolve(staged.table).index in {"current", "followed"}
    assert staged.published() == Counter()


def test_in_place_conversion_follows_the_strict_sequence_rule(plain):
    plain.table.append(plain.rows((1, "eu", "a"), (2, "eu", "a"), (3, "eu", "a")))
    plain.commit(
        branch="main",
        data=plain.data_files((1, "eu", "b")),
        deletes=plain.equality_deletes(keys(1, 3)),
    )
    plain.table.refresh()
    plain.table.append(plain.rows((3, "eu", "c")))
    before = plain.published()
    report = resolve(plain.table, staging="main", target="main")
    assert plain.published() == before == Counter([(1, "eu", "b"), (2, "eu", "a"), (3, "eu", "c")])
    assert report.deleted_rows == 2
    assert_clean(plain)
    assert resolve(plain.table, staging="main", target="main").staged_snapshots == 0


def test_equality_deletes_that_others_left_on_the_target_are_converted_first(plain):
    plain.table.append(plain.rows((1, "eu", "a"), (2, "eu", "a")))
    plain.commit(branch="main", deletes=plain.equality_deletes(keys(1)))
    plain.table.refresh()
    plain.table.stage(upserts=plain.rows((1, "eu", "b")), deletes=keys(2))
    resolve(plain.table)
    assert plain.published() == Counter([(1, "eu", "b")])
    assert_clean(plain)


def test_dropped_key_column_of_a_delete_still_counts(plain):
    """R22: the delete names a column that was dropped after it was staged."""
    plain.table.append(plain.rows((1, "eu", "a"), (2, "us", "a")))
    gone = pa.table({"region": pa.array(["us"], pa.string())})
    plain.commit(deletes=plain.equality_deletes(gone, columns=["region"]))
    update_schema(
        plain.environment,
        plain.table.identifier,
        lambda s: s.delete_column("region"),
        allow_incompatible_changes=True,
    )
    plain.table.refresh()
    resolve(plain.table)
    assert plain.published() == Counter([(1, "a")])
