"""Orphan removal: what goes, and above all what never does."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.table.update import SetStatisticsUpdate

import tableformat as tf
from lock import LeaseLostError
from maintenance.tasks.expire import expire
from maintenance.tasks.options import ExpireOptions, RemoveOrphansOptions
from maintenance.tasks.remove_orphans import remove_orphans
from resolver import resolve
from tableformat.codec.avro import manifest_entries
from tableformat.codec.avro.manifest_store import clear_manifest_cache
from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.commit.engine import commit
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.errors import CorruptDataError, InvalidInputError, NotFoundError
from tests.support.lying_lock import GrantAllLock
from tests.support.table_checker import check_table

SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.int64())])
HOUR_MS = 3_600_000
OLD = RemoveOrphansOptions(older_than_ms=2 * HOUR_MS)


def rows(*keys):
    return pa.table({"id": pa.array(keys, pa.int64()), "v": pa.array(keys, pa.int64())})


@pytest.fixture
def catalog(tmp_path):
    return tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"))


@pytest.fixture
def table(catalog):
    table = catalog.create_table("t.rows", SCHEMA, primary_key=["id"])
    table.append(rows(1, 2, 3))
    table.stage(upserts=rows(2, 9), deletes=pa.table({"id": pa.array([1], pa.int64())}))
    resolve(table)
    table.stage(upserts=rows(3))
    return table


def folder(table, name="data"):
    return Path(table.state.metadata.location.removeprefix("file://")) / name


def files(table):
    root = folder(table, "")
    return {path for path in root.rglob("*") if path.is_file()}


def put(path, age_hours):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"left behind")
    age(path, age_hours)
    return path


def age(path, hours):
    seconds = path.stat().st_mtime - hours * 3600
    os.utime(path, (seconds, seconds))


def make_old(table):
    for path in files(table):
        age(path, 24 * 30)


def test_only_old_unreferenced_files_of_known_kinds_go(table):
    make_old(table)
    kept = files(table)
    orphans = {
        put(folder(table) / "a.parquet", 3),
        put(folder(table) / "deep" / "b-dvs.puffin", 3),
        put(folder(table) / ".x.parquet.7-1.tmp", 3),
        put(folder(table, "metadata") / "c-m0.avro", 3),
        put(folder(table, "metadata") / "00009-x.metadata.json", 3),
    }
    kept |= {
        put(folder(table) / "young.parquet", 1),
        put(folder(table) / "notes.txt", 99),
        put(folder(table, "metadata") / "version-hint.text", 99),
        put(folder(table, "other") / "d.parquet", 99),
        put(folder(table, "").parent / "rows2" / "data" / "e.parquet", 99),
    }
    assert remove_orphans(table, OLD, dry_run=True).orphan_files == 5
    assert orphans <= files(table)
    report = remove_orphans(table, OLD)
    assert report.removed_files == report.orphan_files == 5
    assert report.young_files == 1
    assert not any(path.exists() for path in orphans)
    assert all(path.exists() for path in kept)
    assert remove_orphans(table, OLD).changed is False
    check_table(table.environment.store.get, table.metadata_location)
    assert table.scan(branch="staging").to_arrow().num_rows == 3


def test_files_of_branches_tags_and_expired_but_kept_snapshots_stay(table):
    table.refs.create_tag("then")
    table.overwrite(rows(100))
    table.refs.create_branch("audit", snapshot_id=table.refresh().state.head("staging").snapshot_id)
    make_old(table)
    before = files(table)
    assert remove_orphans(table, OLD).removed_files == 0
    assert files(table) == before
    assert table.scan(tag="then").to_arrow().num_rows == 3


def test_leftovers_of_an_expiry_without_deletes_are_found(table):
    table.overwrite(rows(100))
    resolve(table)
    policy = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1)
    assert expire(table, ExpireOptions(policy=policy, delete_files=False)).snapshots
    make_old(table)
    assert remove_orphans(table, OLD).removed_files > 3
    check_table(table.environment.store.get, table.refresh().metadata_location)
    assert table.scan().to_arrow().num_rows > 0


def test_file_committed_after_the_listing_stays(table):
    file = table._write(table.refresh().state, rows(77))[0]
    make_old(table)

    def commit_old_file(_name):
        change = Changeset(kind=CommitKind.APPEND, added_data_files=(file,))
        commit(table.environment, table.identifier, change)
        make_old(table)

    table.environment.runtime.fail_points.armed["orphans.after_list"] = commit_old_file
    report = remove_orphans(table, OLD)
    assert report.removed_files == report.orphan_files == 0
    assert 77 in table.refresh().scan().to_arrow()["id"].to_pylist()


def test_listed_orphan_that_is_committed_before_its_batch_stays(catalog, table):
    """The refs are read again right before each delete."""
    make_old(table)
    state = table.refresh().state
    file = table._write(state, rows(55))[0]
    age(Path(file.file_path.removeprefix("file://")), 99)
    assert remove_orphans(table, OLD, dry_run=True).orphan_files == 1
    lock = GrantAllLock()

    def add_orphan(lease):
        change = Changeset(kind=CommitKind.APPEND, added_data_files=(file,))
        commit(table.environment, table.identifier, change)
        return False

    lock.lost = add_orphan
    assert remove_orphans(table, OLD, lock=lock).removed_files == 0
    assert 55 in table.scan().to_arrow()["id"].to_pylist()


@pytest.mark.parametrize("spelling", ["file:", "file://localhost", "FILE://", ""])
def test_file_that_the_table_names_by_another_spelling_stays(table, spelling):
    """R75: one file, whatever it is called."""
    file = table._write(table.refresh().state, rows(55))[0]
    alias = file.with_(file_path=file.file_path.replace("file://", spelling, 1))
    commit(
        table.environment,
        table.identifier,
        Changeset(kind=CommitKind.APPEND, added_data_files=(alias,)),
    )
    make_old(table)
    assert remove_orphans(table, OLD).orphan_files == 0
    assert 55 in table.refresh().scan().to_arrow()["id"].to_pylist()


@pytest.mark.parametrize("spelling", ["file:", "file://localhost"])
def test_statistics_that_the_table_names_by_another_spelling_stay(table, spelling):
    """R75: other engines write them, and read them again by any of their names."""
    statistics = put(folder(table, "metadata") / "ndv.stats", 10)
    head = table.refresh().state.head("main")
    named = {
        "snapshot-id": head.snapshot_id,
        "statistics-path": f"{spelling}{statistics}",
        "file-size-in-bytes": 10,
        "file-footer-size-in-bytes": 1,
        "blob-metadata": [],
    }
    update = SetStatisticsUpdate(statistics=StatisticsFile.model_validate(named))
    table.environment.catalog.commit(table.state, [update])
    make_old(table)
    assert remove_orphans(table, OLD).orphan_files == 0
    assert statistics.exists()


def test_lost_lease_deletes_nothing(table):
    orphan = put(folder(table) / "a.parquet", 99)
    with pytest.raises(LeaseLostError):
        remove_orphans(table, OLD, lock=GrantAllLock(lost=lambda _: True))
    assert orphan.exists()


def test_unreadable_snapshot_deletes_nothing(table):
    orphan = put(folder(table) / "a.parquet", 99)
    manifest = sorted(folder(table, "metadata").glob("*-m0.avro"))[0]
    manifest.unlink()
    fresh = tf.open_catalog("local", warehouse=str(folder(table, "").parent.parent))
    with pytest.raises((NotFoundError, CorruptDataError)):
        remove_orphans(fresh.load_table("t.rows"), OLD)
    assert orphan.exists()


def test_too_small_an_age_is_refused(table):
    with pytest.raises(InvalidInputError, match="write under way"):
        remove_orphans(table, RemoveOrphansOptions(older_than_ms=HOUR_MS - 1))


def test_table_inside_the_table_is_refused(table):
    put(folder(table) / "inner" / "metadata" / "00000-x.metadata.json", 99)
    with pytest.raises(InvalidInputError, match="another table"):
        remove_orphans(table, OLD)


def test_shared_files_are_refused(table):
    table.set_properties({"gc.enabled": "false"})
    with pytest.raises(InvalidInputError, match=r"gc\.enabled"):
        remove_orphans(table, OLD)
    with pytest.raises(InvalidInputError, match=r"gc\.enabled"):
        expire(table)


def test_expire_dry_run_says_what_would_go(table):
    table.append(rows(50))
    policy = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1)
    options = ExpireOptions(policy=policy)
    planned = expire(table, options, dry_run=True)
    assert planned.changed
    assert len(table.refresh().state.metadata.snapshots) > 1
    assert expire(table, options).snapshots == planned.snapshots


def test_files_that_the_head_removed_go_and_manifests_without_removals_are_not_decoded(
    table, monkeypatch
):
    pair = [file for key in (50, 51) for file in table._write(table.refresh().state, rows(key))]
    added = Changeset(kind=CommitKind.APPEND, added_data_files=tuple(pair))
    commit(table.environment, table.identifier, added)
    tasks = {t.entry.data_file.file_path: t for t in table.refresh().scan().plan.tasks}
    gone = pair[0].file_path
    head = table.state.head_id("main")
    removed = Changeset(
        kind=CommitKind.OVERWRITE,
        removed_entries=(tasks[gone].entry,),
        validation=Validation(starting_snapshot_id=head),
    )
    commit(table.environment, table.identifier, removed)
    policy = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1)
    assert expire(table, ExpireOptions(policy=policy)).snapshots
    put(Path(gone.removeprefix("file://")), 99)  # as if that had failed to delete it
    make_old(table)
    decoded = []
    real = manifest_entries.EncodedManifest.decode
    monkeypatch.setattr(
        manifest_entries.EncodedManifest,
        "decode",
        lambda self: decoded.append(self._manifest) or real(self),
    )
    clear_manifest_cache(table.environment.store)

    report = remove_orphans(table, OLD, dry_run=True)

    assert report.locations == (gone,)
    assert decoded, "one lists both"
    assert all(manifest.deleted_files_count for manifest in decoded)


def test_data_file_of_a_kind_that_has_no_hash_stays(table):
    """Manifests are decoded then, also those without removals."""
    file = table._write(table.refresh().state, rows(55))[0]
    odd = Path(file.file_path.removeprefix("file://"))
    odd = odd.rename(odd.with_suffix(".orc"))
    change = Changeset(
        kind=CommitKind.APPEND, added_data_files=(file.with_(file_path=f"file://{odd}"),)
    )
    commit(table.environment, table.identifier, change)
    make_old(table)
    left = put(folder(table) / "left.orc", 99)
    assert remove_orphans(table, OLD).removed_files == 1
    assert odd.exists()
    assert not left.exists()


@pytest.mark.parametrize("is_cheap", [True, False])
def test_files_of_a_renamed_table_are_not_those_of_its_successor(
    catalog, table, is_cheap, monkeypatch
):
    """Both are in the folder of the name."""
    if not is_cheap:
        backend = catalog.environment.catalog
        monkeypatch.setattr(backend, "metadata_locations", lambda _wanted: None)
    former = catalog.rename_table("t.rows", "t.former")
    successor = catalog.create_table("t.rows", SCHEMA, primary_key=["id"])
    successor.append(rows(7))
    assert folder(former) == folder(successor)
    stray = folder(successor) / "stray.parquet"
    stray.write_bytes(b"stray")
    make_old(successor)
    for each in (former, successor):
        remove_orphans(each, OLD)
    assert not stray.exists()
    for each in (former, successor):
        check_table(each.environment.store.get, each.metadata_location)

    catalog.drop_table("t.former")
    assert remove_orphans(successor, OLD).removed_files
    check_table(successor.environment.store.get, successor.metadata_location)


@pytest.mark.parametrize("lost", ["manifest list", "metadata file"])
def test_nothing_is_removed_where_what_another_table_needs_is_not_known(
    catalog, table, lost, tmp_path
):
    former = catalog.rename_table("t.rows", "t.former")
    successor = catalog.create_table("t.rows", SCHEMA, primary_key=["id"])
    make_old(successor)
    head = former.current_snapshot().manifest_list
    place = head if lost == "manifest list" else former.metadata_location
    Path(place.removeprefix("file://")).unlink()
    before = files(successor)
    afresh = tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"))
    with pytest.raises(NotFoundError):
        remove_orphans(afresh.load_table("t.rows"), OLD)
    assert files(successor) == before
