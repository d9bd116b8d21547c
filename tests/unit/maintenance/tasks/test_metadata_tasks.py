"""Manifests, vectors and dead deletes: other metadata, the same rows."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionSpec

import tableformat as tf
from maintenance.tasks.compact import compact
from maintenance.tasks.drop_dead_deletes import drop_dead_deletes
from maintenance.tasks.options import (
    CompactOptions,
    RewriteManifestsOptions,
    RewriteVectorsOptions,
)
from maintenance.tasks.rewrite_manifests import rewrite_manifests
from maintenance.tasks.rewrite_vectors import rewrite_vectors
from resolver import resolve
from resolver.index_check import verify
from resolver.target import live_files
from tableformat.codec.avro.manifest_store import load_manifest_list
from tableformat.commit import request
from tableformat.commit.changeset import Changeset, CommitKind
from tableformat.commit.engine import commit
from tableformat.paths import data_file_locations, equality_delete_locations
from tableformat.scan.position_deletes import POSITION_DELETE_SCHEMA
from tableformat.spec.data_file import FileContent
from tableformat.write.data_files import write_data_files
from tableformat.write.equality_deletes import write_equality_deletes
from tests.support.table_checker import check_snapshot, check_table, read_metadata

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string())])
LINEAGE = ["_row_id", "_last_updated_sequence_number"]


def rows(*values):
    return pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, value, strict=True)) for value in values], SCHEMA
    )


@pytest.fixture
def catalog(tmp_path):
    return tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"))


@pytest.fixture
def table(catalog):
    return catalog.create_table("t.rows", SCHEMA, primary_key=["id"], partition_by=["region"])


def identified(table):
    found = table.scan(columns=[*SCHEMA.names, *LINEAGE]).to_arrow().to_pylist()
    return Counter(tuple(row.values()) for row in found)


def manifests(table, content):
    head = table.refresh().state.head("main")
    listed = load_manifest_list(table.environment.store, head)
    return [each for each in listed if each.content == content]


def check(table):
    check_table(table.environment.store.get, table.refresh().metadata_location)


def append_mixed(table, count=6):
    for step in range(count):
        table.append(rows((2 * step, "eu"), (2 * step + 1, "us")))


def test_manifests_are_clustered_by_partition(table):
    append_mixed(table)
    before = identified(table)
    size = sum(each.manifest_length for each in manifests(table, 0))
    report = rewrite_manifests(table, RewriteManifestsOptions(target_size_bytes=size * 3 // 5))
    assert (report.removed_manifests, report.added_manifests, report.entries) == (6, 2, 12)
    new = manifests(table, 0)
    assert [each.partitions[0].lower_bound for each in new] == [b"eu", b"us"]
    assert [each.partitions[0].upper_bound for each in new] == [b"eu", b"us"]
    assert identified(table) == before
    assert table.state.head("main").summary.operation.value == "replace"
    check(table)
    assert rewrite_manifests(table).added_manifests == 1
    assert not rewrite_manifests(table).changed


def test_manifests_dry_run_changes_nothing(table):
    append_mixed(table)
    before = table.refresh().metadata_location
    assert rewrite_manifests(table, dry_run=True).removed_manifests == 6
    assert table.refresh().metadata_location == before


def test_manifests_rewritten_beside_other_commits_lose_nothing(catalog, table):
    append_mixed(table)
    other = catalog.load_table("t.rows")
    armed = table.environment.runtime.fail_points.armed

    def beside(_name):
        armed.clear()
        other.append(rows((100, "eu")))
        other.overwrite(rows((200, "us")), filter="region = 'us'")

    armed["commit.before_swap"] = beside
    assert rewrite_manifests(table).changed
    assert {row[0] for row in identified(table)} == {0, 2, 4, 6, 8, 10, 100, 200}
    assert identified(table) == identified(other)
    check(table)


def test_file_that_is_listed_twice_is_refused_by_compaction_and_listed_once_again(table):
    """As Iceberg's cherry-pick leaves it that lands after the publish of what it picks."""
    append_mixed(table, 2)
    before = identified(table)
    entries = live_files(table.environment, table.refresh().state.head("main")).data
    file = replace(
        min(entries.values(), key=lambda e: e.sequence_number).data_file, first_row_id=None
    )
    again = Changeset(kind=CommitKind.APPEND, branch="main", added_data_files=(file,))
    commit(table.environment, table.identifier, again)
    assert table.refresh().scan().to_arrow().num_rows == 5
    for options in (CompactOptions(rewrite_all=True), CompactOptions(input_files_min=2)):
        with pytest.raises(
            tf.CorruptDataError, match=r"listed 2 times.*rewrite-manifests --rew"
        ) as told:
            compact(table, options)
        assert "\n" not in str(told.value)
    report = rewrite_manifests(table, RewriteManifestsOptions(rewrite_all=True))
    assert report.outcome() == "3 manifests -> 1, 1 repeated file left out"
    assert identified(table) == before
    assert table.state.head("main").summary["total-records"] == "4"
    read = table.environment.store.get
    metadata = read_metadata(read, table.metadata_location)
    check_snapshot(read, metadata, metadata["snapshots"][-1])
    table.stage(rows((0, "us")))
    resolve(table)
    assert verify(table.refresh()).report.is_sound
    assert compact(table, CompactOptions(rewrite_all=True)).changed
    assert table.refresh().scan().to_arrow().num_rows == 4


def test_index_follows_all_metadata_tasks(table):
    append_mixed(table)
    table.stage(deletes=pa.table({"id": pa.array([0, 3], pa.int64())}))
    resolve(table)
    rewrite_manifests(table)
    rewrite_vectors(table, RewriteVectorsOptions(rewrite_all=True))
    table.stage(deletes=pa.table({"id": pa.array([5], pa.int64())}))
    assert resolve(table).index == "followed"
    assert verify(table).report.is_sound
    check(table)


def scattered_vectors(table, cycles=5):
    table.append(rows(*[(key, "eu") for key in range(20)]))
    table.append(rows(*[(key, "us") for key in range(20, 40)]))
    for step in range(cycles):
        table.append(rows(*[(100 + 20 * step + n, "eu") for n in range(10)]))
        gone = [step, 20 + step, 100 + 20 * step]
        table.stage(deletes=pa.table({"id": pa.array(gone, pa.int64())}))
        resolve(table)


def puffins(table):
    return {t.dv.data_file.file_path for t in table.scan().plan.tasks if t.dv is not None}


def test_small_puffin_files_are_packed_into_one(table):
    scattered_vectors(table)
    before = identified(table)
    assert len(puffins(table)) == 5
    options = RewriteVectorsOptions(small_files_min=3)
    assert rewrite_vectors(table, options, dry_run=True).removed_puffin_files == 5
    report = rewrite_vectors(table, options)
    assert (report.removed_puffin_files, report.added_puffin_files, report.vectors) == (5, 1, 7)
    assert len(puffins(table)) == 1
    assert identified(table) == before
    check(table)
    assert not rewrite_vectors(table, options).changed


def test_vectors_replaced_meanwhile_are_kept_as_they_are_then(catalog, table):
    scattered_vectors(table)
    other = catalog.load_table("t.rows")
    armed = table.environment.runtime.fail_points.armed

    def delete_beside(_name):
        armed.clear()
        other.overwrite(rows((999, "us")), filter="region = 'us'")

    armed["rewrite-vectors.before_commit"] = delete_beside
    report = rewrite_vectors(table, RewriteVectorsOptions(rewrite_all=True))
    assert report.vectors == 6
    assert {row[0] for row in identified(table) if row[1] == "us"} == {999}
    check(table)


def delete_by_key(table, keys, region="eu"):
    state, environment = table.refresh().state, table.environment
    files = write_equality_deletes(
        environment.store,
        pa.table({"id": pa.array(keys, pa.int64()), "region": [region] * len(keys)}),
        schema=state.metadata.schema(),
        equality_ids=[1],
        spec=state.metadata.spec(),
        properties={},
        location_for=equality_delete_locations(state.metadata, environment.runtime.ids),
    )
    commit(environment, table.identifier,
           Changeset(kind=CommitKind.ROW_DELTA, added_delete_files=tuple(files)))  # fmt: skip


def test_equality_deletes_go_once_no_older_file_of_their_scope_is_left(table):
    append_mixed(table)
    delete_by_key(table, [0, 4])
    delete_by_key(table, [1], region="us")
    before = identified(table)
    assert not drop_dead_deletes(table).changed
    compact(table, CompactOptions(filter="region = 'eu'", rewrite_all=True))
    assert drop_dead_deletes(table, dry_run=True).equality_delete_files == 1
    report = drop_dead_deletes(table)
    assert report.equality_delete_files == 1
    assert len(report.commits) == 1
    assert identified(table) == before
    compact(table, CompactOptions(rewrite_all=True))
    assert drop_dead_deletes(table).equality_delete_files == 1
    assert manifests(table, 1) == [] or not any(m.has_live_files for m in manifests(table, 1))
    assert identified(table) == before
    check(table)


def position_file(table, gone):
    """A v2 position delete file: path to positions, in one partition."""
    state, environment = table.refresh().state, table.environment
    first = next(t.entry.data_file for t in table.scan().plan.tasks
                 if t.entry.data_file.file_path in gone)  # fmt: skip
    paths = sorted(gone)
    deleted = pa.table(
        {
            "file_path": [path for path in paths for _ in gone[path]],
            "pos": pa.array([at for path in paths for at in gone[path]], pa.int64()),
        }
    )
    [file] = write_data_files(
        environment.store,
        deleted,
        schema=POSITION_DELETE_SCHEMA,
        spec=PartitionSpec(),
        properties={},
        location_for=data_file_locations(state.metadata, environment.runtime.ids),
    )
    return file.with_(
        content=FileContent.POSITION_DELETES, spec_id=first.spec_id, partition=first.partition
    )


@pytest.mark.parametrize("task", [rewrite_vectors, compact])
def test_position_deletes_from_before_an_upgrade_are_folded(table, task, monkeypatch):
    """P7. They may not be added to a v3 table, so the check is taken out to make the state."""
    monkeypatch.setattr(request, "_check_form", lambda *_, **__: None)
    append_mixed(table)
    eu = sorted(t.entry.data_file.file_path for t in table.scan("region = 'eu'").plan.tasks)
    shared = position_file(table, {eu[0]: [0], eu[1]: [0]})
    change = Changeset(kind=CommitKind.ROW_DELTA, added_delete_files=(shared,))
    commit(table.environment, table.identifier, change)
    before = identified(table)
    assert sum(before.values()) == 10
    report = task(table)
    assert report.changed
    assert identified(table) == before
    if task is rewrite_vectors:
        assert (report.folded_files, report.vectors) == (1, 2)
    else:
        assert drop_dead_deletes(table).position_delete_files == 1
    assert not any(task.position_deletes for task in table.scan().plan.tasks)
    assert not drop_dead_deletes(table).changed
    assert identified(table) == before
    check(table)
