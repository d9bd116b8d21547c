"""Bugs other projects had in clean-up, metadata, manifests and index: group G by its ids.

R78 is in `test_commit_regressions.py`.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table.statistics import PartitionStatisticsFile, StatisticsFile
from pyiceberg.table.update import SetPartitionStatisticsUpdate, SetStatisticsUpdate

import tableformat as tf
from maintenance import expire, remove_orphans
from maintenance.tasks.options import ExpireOptions, RemoveOrphansOptions
from resolver import resolve
from resolver.index_check import verify
from resolver.index_keeper import index_folder
from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.commit.engine import commit
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.errors import (
    CommitConflictError,
    CommitUnknownError,
    CorruptDataError,
    InvalidInputError,
    StoreUnavailableError,
    UnsupportedError,
)
from tableformat.files.manifest_store import clear_manifest_cache
from tableformat.spec.data_file import DataFile, FileContent
from tests.support.commit_tables import IDENTIFIER, CommitTable
from tests.support.interruptions import fail_with, interrupt
from tests.support.memory_tables import memory_catalog
from tests.support.raw_rows import raw_rows
from tests.support.row_model import Model, assert_holds, head_id, scanned_rows
from tests.support.staged_tables import SCHEMA, StagedTable
from tests.support.table_checker import check_table, read_metadata

HOUR_MS = 3_600_000
OLD = RemoveOrphansOptions(older_than_ms=2 * HOUR_MS)
BASE = [(key, "eu", "base") for key in range(10)]


def keys(*ids):
    return pa.table({"id": pa.array(ids, pa.int64())})


def rows_of(*rows):
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], SCHEMA)


@pytest.fixture
def catalog(tmp_path):
    return tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"))


@pytest.fixture
def table(catalog):
    """On disk: keys 0 to 9."""
    table = catalog.create_table("t.rows", SCHEMA, primary_key=["id"])
    table.append(rows_of(*BASE))
    return table


@pytest.fixture
def staged(tmp_path):
    """In memory but for the index: keys 0 to 9."""
    staged = StagedTable(tmp_path)
    staged.table.append(staged.rows(*BASE))
    return staged


def folder_of(table):
    return Path(table.state.metadata.location.removeprefix("file://"))


def make_old(folder):
    """As if nobody had written anything below it for a month."""
    for path in folder.rglob("*"):
        seconds = path.stat().st_mtime - 30 * 24 * 3600
        os.utime(path, (seconds, seconds))


# -- R75 -----------------------------------------------------------------------------------------


def staged_changes(table):
    table.stage(upserts=rows_of((1, "eu", "staged")), deletes=keys(2))


def vectors(table):
    table.delete("id = 3")


def statistics(table):
    head = table.refresh().state.head("main").snapshot_id
    folder = folder_of(table) / "metadata"
    for name in ("table.stats", "partition.stats"):
        (folder / name).write_bytes(b"statistics")
    given = {"file-size-in-bytes": 10, "snapshot-id": head}
    of_table = StatisticsFile.model_validate(
        {
            **given,
            "statistics-path": f"file://{folder}/table.stats",
            "file-footer-size-in-bytes": 1,
            "blob-metadata": [],
        }
    )
    of_partitions = PartitionStatisticsFile.model_validate(
        {**given, "statistics-path": f"file://{folder}/partition.stats"}
    )
    table.environment.catalog.commit(
        table.state,
        [
            SetStatisticsUpdate(statistics=of_table),
            SetPartitionStatisticsUpdate(partition_statistics=of_partitions),
        ],
    )


def aliases(table):
    """Another engine spells the locations in its own way."""
    files = table._write(table.refresh().state, rows_of((20, "us", "alias")))
    spelled = [file.with_(file_path=file.file_path.replace("file:///", "file:/")) for file in files]
    change = Changeset(kind=CommitKind.APPEND, added_data_files=tuple(spelled))
    commit(table.environment, table.identifier, change)
    path = Path(table.refresh().metadata_location.removeprefix("file://"))
    metadata = json.loads(path.read_text())
    for snapshot in metadata["snapshots"]:
        snapshot["manifest-list"] = snapshot["manifest-list"].replace("file:///", "file:/")
    path.write_text(json.dumps(metadata))
    return opened_again(table)


def opened_again(table):
    """The table as another process loads it."""
    warehouse = str(folder_of(table).parents[1])
    return tf.open_catalog("local", warehouse=warehouse).load_table("t.rows")


def other_versions(table):
    table.refs.create_tag("then")
    table.overwrite(rows_of((30, "us", "new")))
    table.refs.create_branch("audit")
    table.append(rows_of((31, "us", "audit")), branch="audit")


@pytest.mark.parametrize(
    "needed",
    [staged_changes, vectors, statistics, aliases, other_versions],
    ids=lambda each: each.__name__,
)
def test_r75_orphan_removal_never_takes_what_the_table_needs(catalog, table, needed):
    """Everything is old, and the handle is from before all that the table needs was written."""
    writer = catalog.load_table("t.rows")
    table = needed(writer) or table
    orphan = folder_of(table) / "data" / "orphan.parquet"
    orphan.write_bytes(b"left behind")
    before = {path for path in folder_of(table).rglob("*") if path.is_file()}
    branches = writer.refresh().state.metadata.refs
    expected = {name: _merged(writer, name) for name in branches}
    make_old(folder_of(table))
    assert remove_orphans(table, OLD).removed_files == 1
    assert {path for path in folder_of(table).rglob("*") if path.is_file()} == before - {orphan}
    fresh = opened_again(table)
    assert {name: _merged(fresh, name) for name in branches} == expected


def _merged(table, ref):
    """Rows of a branch or tag as merge-on-read shows them."""
    kind = table.refresh().state.metadata.refs[ref].snapshot_ref_type.value
    return scanned_rows(table, **{kind: ref})


@pytest.mark.parametrize("committed", ["before", "after"], ids=lambda when: f"{when} the clean-up")
def test_r75_orphan_removal_never_takes_files_of_a_write_under_way(catalog, table, committed):
    """Written and not committed when the files are listed; old where that is no excuse."""
    writer = catalog.load_table("t.rows")
    make_old(folder_of(table))
    files = writer._write(writer.state, rows_of((40, "us", "in flight")))
    change = Changeset(kind=CommitKind.APPEND, added_data_files=tuple(files))
    if committed == "before":
        make_old(folder_of(table))

        def land() -> None:
            commit(writer.environment, writer.identifier, change)

        interrupt(table, "orphans.after_list", land)
        remove_orphans(table, OLD)
    else:
        remove_orphans(table, OLD)
        commit(writer.environment, writer.identifier, change)
    assert_holds(table, Counter([*BASE, (40, "us", "in flight")]))


def test_r75_expiry_never_takes_a_file_that_is_needed_under_another_spelling(table):
    """The same file, left by one snapshot and kept by another, in two spellings."""
    [entry] = [task.entry for task in table.scan().plan.tasks]
    file = entry.data_file
    alias = file.with_(file_path=file.file_path.replace("file:///", "file:/"), first_row_id=None)
    change = Changeset(
        kind=CommitKind.OVERWRITE,
        added_data_files=(alias,),
        removed_entries=(entry,),
        validation=Validation(starting_snapshot_id=head_id(table)),
    )
    commit(table.environment, table.identifier, change)
    policy = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1)
    assert len(expire(table, ExpireOptions(policy=policy)).snapshots) == 1
    assert_holds(table, Counter(BASE))


# -- R77 -----------------------------------------------------------------------------------------


@pytest.fixture
def victim(tmp_path):
    """A file outside the warehouse that looks like an orphan."""
    victim = tmp_path / "elsewhere" / "data" / "precious.parquet"
    victim.parent.mkdir(parents=True)
    victim.write_bytes(b"precious")
    make_old(tmp_path)
    return victim


def poison(table, **properties):
    """Rewrite the current metadata file as somebody with access to the bucket might."""
    path = Path(table.refresh().metadata_location.removeprefix("file://"))
    metadata = json.loads(path.read_text())
    metadata["properties"] |= {name.replace("_", "."): value for name, value in properties.items()}
    path.write_text(json.dumps(metadata))
    return opened_again(table)


@pytest.mark.parametrize("name", ["write_data_path", "write_metadata_path"])
@pytest.mark.parametrize(
    "root",
    ["{victim}", "file://{victim}", "{warehouse}/t/rows/../../../elsewhere/data", "/", "file:///",
     "{warehouse}/t/rows/data/%2e%2e/%2e%2e/%2e%2e/%2e%2e/elsewhere/data"],
)  # fmt: skip
def test_r77_clean_up_root_outside_the_table_never_deletes_there(table, victim, name, root):
    warehouse = folder_of(table).parents[1]
    place = root.format(victim=victim.parent, warehouse=warehouse)
    with pytest.raises(InvalidInputError):
        table.set_properties({name.replace("_", "."): place})
    poisoned = poison(table, **{name: place})
    with pytest.raises(InvalidInputError):
        remove_orphans(poisoned, OLD)
    assert victim.read_bytes() == b"precious"
    assert raw_rows(table) == Counter(BASE)


def test_r77_clean_up_root_of_another_table_never_deletes_its_files(catalog, table):
    """Inside the warehouse, so that no allow-list helps."""
    other = catalog.create_table("t.other", SCHEMA, primary_key=["id"])
    other.append(rows_of(*BASE))
    for place in (f"{other.state.metadata.location}/data", other.state.metadata.location):
        for name in ("write.data.path", "write.metadata.path"):
            given = table.set_properties({name: place})
            make_old(folder_of(table).parent)
            with pytest.raises(InvalidInputError, match=r"t\.other"):
                remove_orphans(given, OLD)
            table.set_properties(remove=[name])
    assert_holds(other, Counter(BASE))
    assert_holds(table, Counter(BASE))


@pytest.mark.parametrize("through", ["symbolic link", "name with dots", "plain path"])
def test_r77_file_that_metadata_names_outside_the_table_is_never_deleted(table, victim, through):
    """A data file entry that points elsewhere is removed from the table, and expires."""
    data = folder_of(table) / "data"
    data.joinpath("link").symlink_to(victim.parent)
    place = {
        "symbolic link": f"file://{data}/link/precious.parquet",
        "name with dots": f"file://{data}/../../../../elsewhere/data/precious.parquet",
        "plain path": f"file://{victim}",
    }[through]
    file = DataFile(
        content=FileContent.DATA,
        file_path=place,
        file_format="PARQUET",
        spec_id=0,
        partition=(),
        record_count=1,
        file_size_in_bytes=8,
    )
    change = Changeset(kind=CommitKind.APPEND, added_data_files=(file,))
    commit(table.environment, table.identifier, change)
    entries = [task.entry for task in table.scan().plan.tasks]
    [entry] = [each for each in entries if each.data_file.file_path == place]
    change = Changeset(kind=CommitKind.DELETE, removed_entries=(entry,))
    commit(table.environment, table.identifier, change)
    policy = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1)
    assert len(expire(table, ExpireOptions(policy=policy)).snapshots) == 2
    make_old(folder_of(table))
    remove_orphans(table, OLD)
    assert victim.read_bytes() == b"precious"
    assert_holds(table, Counter(BASE))


# -- R79 -----------------------------------------------------------------------------------------


def test_r79_catalog_that_commits_by_rename_is_not_offered(tmp_path):
    for kind in ("hadoop", "filesystem", "dir"):
        with pytest.raises(UnsupportedError, match="sql or rest"):
            tf.open_catalog("x", type=kind, warehouse=str(tmp_path))


@pytest.mark.parametrize("hint", [b"", b"1", b"999", b"not a number"], ids=repr)
def test_r79_hint_file_never_decides_which_version_is_read(catalog, table, hint):
    folder = folder_of(table) / "metadata"
    first = sorted(folder.glob("00000-*.metadata.json"))[0]
    (folder / "version-hint.text").write_bytes(hint)
    for name in ("v1.metadata.json", "v999.metadata.json", "99999-x.metadata.json"):
        shutil.copy(first, folder / name)
    table.append(rows_of((50, "us", "new")))
    assert_holds(opened_again(table), Counter([*BASE, (50, "us", "new")]))


def test_r79_threads_that_commit_at_once_lose_no_row(catalog, table):
    threads, commits = 8, 5
    table.set_properties({"commit.retry.num-retries": "1000", "commit.retry.min-wait-ms": "1",
                          "commit.retry.max-wait-ms": "5"})  # fmt: skip
    start, errors = threading.Barrier(threads), []

    def write(number):
        try:
            mine = catalog.load_table("t.rows")
            start.wait()
            for step in range(commits):
                mine.append(rows_of((100 * number + step, "us", "thread")))
        except BaseException as error:
            errors.append(error)

    _run_all([threading.Thread(target=write, args=(n + 1,)) for n in range(threads)])
    assert errors == []
    new = [
        (100 * (n + 1) + step, "us", "thread") for n in range(threads) for step in range(commits)
    ]
    assert_holds(table, Counter([*BASE, *new]))


def _run_all(threads):
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


# -- R80 -----------------------------------------------------------------------------------------

TIMED = pa.schema(
    [("id", pa.int64()), ("region", pa.string()), ("at", pa.timestamp("us")), ("note", pa.string())]
)


@pytest.mark.parametrize(
    "partition_by",
    [["bucket(4, id)"], ["truncate(3, id)"], ["truncate(1, region)", "bucket(3, id)"],
     ["day(at)"], ["hour(at)", "truncate(2, region)"], ["month(at)", "bucket(2, region)"]],
    ids=",".join,
)  # fmt: skip
def test_r80_transform_is_applied_once_when_manifests_and_files_are_pruned(tmp_path, partition_by):
    """One commit per few rows, so that each manifest holds few partitions."""
    table = memory_catalog(str(tmp_path)).create_table(
        "t.rows", TIMED, primary_key=["id"], partition_by=partition_by
    )
    table.set_properties({"commit.manifest-merge.enabled": "false"})
    source, model, day = random.Random(80), Model(), datetime(2026, 3, 1)

    def row(key, note):
        at = day + timedelta(hours=31 * key)
        return (key, source.choice(["eu", "us", "ea", None]), at, note)

    def arrow(rows):
        return pa.Table.from_pylist(
            [dict(zip(TIMED.names, each, strict=True)) for each in rows], TIMED
        )

    for first in range(0, 24, 4):
        new = [row(key, "base") for key in range(first, first + 4)]
        table.append(arrow(new))
        model.upsert(*new)
    for key in range(25):
        assert scanned_rows(table, filter=f"id = {key}") == Counter(
            [model[key]] if key in model else []
        )
        assert [each["id"] for each in table.lookup([key]).to_pylist()] == [key] * (key in model)
    for at in {each[2] for each in model.values()}:
        assert scanned_rows(table, filter=f"at = '{at.isoformat()}'") == _where(model, 2, at)
    for region in ("eu", "us", "ea"):
        assert scanned_rows(table, filter=f"region = '{region}'") == _where(model, 1, region)
    replaced = [row(key, "new") for key in range(20, 28)]
    table.stage(upserts=arrow(replaced), deletes=arrow([model[3]]))
    resolve(table)
    assert_holds(table, model.upsert(*replaced).drop(3))
    table.update({"note": "'x'"}, "id = 21")
    table.delete("id = 22")
    assert_holds(table, model.upsert((*model[21][:3], "x")).drop(22))


def _where(model, column, value):
    return Counter(row for row in model.values() if row[column] == value)


# -- R81 -----------------------------------------------------------------------------------------


@pytest.fixture
def commits():
    """24 data files in one manifest, their vectors in another."""
    table = CommitTable(
        properties={"commit.retry.num-retries": "1000", "commit.manifest-merge.enabled": "false"}
    )
    table.files = [table.data(f"f{number}") for number in range(24)]
    start = table.append(*table.files).snapshot.snapshot_id
    deletes = [
        table.vector(f, "p", offset=4 + 50 * at).with_(file_size_in_bytes=2000)
        for at, f in enumerate(table.files)
    ]
    table.start = table.row_delta(deletes=deletes, start=start).snapshot.snapshot_id
    return table


def removal(table, *files):
    return Changeset(
        kind=CommitKind.DELETE,
        removed_entries=tuple(table.entry(file) for file in files),
        validation=Validation(starting_snapshot_id=table.start),
    )


def test_r81_threads_that_filter_the_same_manifests_remove_each_file_once(commits):
    """Removers share decoded manifests with each other and with appenders; all must land."""
    removals = [removal(commits, *commits.files[at : at + 3]) for at in range(0, 24, 3)]
    start, errors = threading.Barrier(2 * len(removals)), []

    def run(change):
        start.wait()
        try:
            commits.commit(change)
        except BaseException as error:
            errors.append(error)

    appends = [
        Changeset(kind=CommitKind.APPEND, added_data_files=(commits.data(f"new{at}"),))
        for at in range(len(removals))
    ]
    _run_all([threading.Thread(target=run, args=(each,)) for each in (*removals, *appends)])
    assert errors == []
    assert set(commits.live()) == {f"new{at}" for at in range(len(appends))}
    check_table(commits.store.get, commits.state.metadata_location)


def test_r81_removal_that_is_tried_again_finds_its_files_in_the_shared_manifest(commits):
    def intrude(_):
        if commits.catalog.commits < 8:
            hook, commits.catalog.before_commit = commits.catalog.before_commit, None
            commits.append(commits.data(f"beside{commits.catalog.commits}"))
            commits.catalog.before_commit = hook

    change = removal(commits, *commits.files[:2])
    commits.catalog.before_commit = intrude
    assert commits.commit(change).attempts > 2
    gone = {f"f{at}" for at in (0, 1)} | {f"p.puffin@{4 + 50 * at}" for at in (0, 1)}
    assert gone.isdisjoint(commits.live())
    assert len([name for name in commits.live() if name.startswith("p.puffin")]) == 22
    check_table(commits.store.get, commits.state.metadata_location)


def test_r81_file_that_is_named_twice_in_one_removal_is_refused(commits):
    with pytest.raises(InvalidInputError, match="twice"):
        commits.commit(removal(commits, commits.files[0], commits.files[0]))
    assert len(commits.live()) == 48


def test_r81_two_threads_that_remove_the_same_file_do_not_both_succeed(commits):
    changes, outcomes = [removal(commits, commits.files[5]) for _ in range(4)], []
    start = threading.Barrier(len(changes))

    def run(change):
        start.wait()
        try:
            outcomes.append(commits.commit(change).snapshot.snapshot_id)
        except CommitConflictError:
            outcomes.append(None)

    _run_all([threading.Thread(target=run, args=(each,)) for each in changes])
    assert len([each for each in outcomes if each is not None]) == 1
    assert len(outcomes) == 4
    check_table(commits.store.get, commits.state.metadata_location)


# -- R82 -----------------------------------------------------------------------------------------


def rewrite_avro(store, location, change):
    """Rewrite an Avro file with other records and the same schema and header."""
    reader = fastavro.reader(io.BytesIO(store.get(location)))
    records = [change(record) or record for record in reader]
    header = {name: text for name, text in reader.metadata.items() if not name.startswith("avro.")}
    sink = io.BytesIO()
    fastavro.writer(sink, reader.writer_schema, records, codec="deflate", metadata=header)
    store.delete([location])
    store.put(location, sink.getvalue())
    return len(sink.getvalue())


def manifests_of(table):
    metadata = read_metadata(table.environment.store.get, table.refresh().metadata_location)
    [head] = [
        each
        for each in metadata["snapshots"]
        if each["snapshot-id"] == metadata["current-snapshot-id"]
    ]
    data = table.environment.store.get(head["manifest-list"])
    return head["manifest-list"], list(fastavro.reader(io.BytesIO(data)))


@pytest.mark.parametrize("wrong", ["entry", "list"])
def test_r82_delete_manifest_that_holds_data_files_is_never_read_as_either(staged, wrong):
    """Its entries are of the other kind, or its place in the list is."""
    table, store = staged.table, staged.environment.store
    table.delete("id = 3")
    table.stage(deletes=keys(4))
    location, listed = manifests_of(table)
    content = 1 if wrong == "entry" else 0
    [victim] = [each["manifest_path"] for each in listed if each["content"] == content]
    length = None
    if wrong == "entry":
        length = rewrite_avro(store, victim, lambda record: record["data_file"].update(content=0))

    def relist(record):
        if record["manifest_path"] == victim:
            record.update(content=1)
            record.update(manifest_length=length or record["manifest_length"])

    rewrite_avro(store, location, relist)
    clear_manifest_cache(store)
    before = table.refresh().metadata_location
    for use in (scanned_rows, resolve, lambda table: table.delete("id = 5")):
        with pytest.raises(CorruptDataError, match=victim):
            use(table)
    assert table.refresh().metadata_location == before


# -- R83 -----------------------------------------------------------------------------------------


def shard_behind(folder, older):
    """One database is at an older state than the other, as column families were."""
    for new in [path for path in folder.glob("gen-*/shard-*") if path.is_dir()]:
        [old] = older.glob(f"gen-*/{new.name}")
        shutil.rmtree(new)
        shutil.copytree(old, new)


def dictionary_behind(folder, older):
    [new], [old] = (each.glob("gen-*/files") for each in (folder, older))
    shutil.rmtree(new)
    shutil.copytree(old, new)


def hole_in_the_manifest(folder, _older):
    for path in folder.glob("gen-*/shard-*/MANIFEST-*"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def hole_in_the_log(folder, _older):
    for path in folder.glob("gen-*/*/*.log"):
        path.write_bytes(b"\0" * 100)


def nothing(_folder, _older):
    """A log that is valid must not be rejected either."""


@pytest.mark.parametrize(
    "crash",
    [shard_behind, dictionary_behind, hole_in_the_manifest, hole_in_the_log, nothing],
    ids=lambda each: each.__name__,
)
def test_r83_index_after_a_crash_never_forgets_a_key(staged, tmp_path, crash):
    table, model = staged.table, Model().upsert(*BASE)
    resolve_one(staged, model, 100)
    folder = index_folder(table.environment, table.state, "main")
    shutil.copytree(folder, tmp_path / "older")
    resolve_one(staged, model, 101)
    crash(folder, tmp_path / "older")
    table.stage(deletes=keys(100, 101, 3))
    how = resolve(table).index
    assert how == {nothing: "current", hole_in_the_log: how}.get(crash, "built")
    assert_holds(table, model.drop(100, 101, 3))
    assert verify(table).report.is_sound


def resolve_one(staged, model, key):
    staged.table.stage(upserts=staged.rows((key, "us", "new"), (1, "us", f"{key}")))
    model.upsert((key, "us", "new"), (1, "us", f"{key}"))
    return resolve(staged.table)


def test_r83_full_disk_never_stops_the_cycles_nor_loses_a_key(staged):
    """Cycles that cannot write the index publish; the first one that can catches up."""
    table, model = staged.table, Model().upsert(*BASE)
    resolve_one(staged, model, 100)
    error = StoreUnavailableError("No space left on device")
    for key in (101, 102, 103):
        interrupt(table, "resolve.after_prepare", fail_with(error))
        assert resolve_one(staged, model, key).staged_snapshots == 1
        assert_holds(table, model)
    table.stage(deletes=keys(100, 101, 102, 103))
    assert resolve(table).index == "followed"
    assert_holds(table, model.drop(100, 101, 102, 103))
    assert verify(table).report.is_sound


# -- R84 -----------------------------------------------------------------------------------------

HOLDER = """
import fcntl, sys, time
held = [open(path, "r+") for path in sys.argv[1:]]
for file in held:
    fcntl.flock(file, fcntl.LOCK_EX)
    fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""


def test_r84_lock_files_of_a_killed_process_never_keep_the_next_one_out(staged):
    table, model = staged.table, Model().upsert(*BASE)
    resolve_one(staged, model, 100)
    folder = index_folder(table.environment, table.state, "main")
    locks = [str(path) for path in folder.rglob("LOCK")]
    assert len(locks) > 2  # the folder's own, and one in each database
    table.stage(deletes=keys(100))
    before = head_id(table)
    holder = subprocess.Popen(
        [sys.executable, "-S", "-c", HOLDER, *locks], stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StoreUnavailableError, match="in use"):
            resolve(table)
        assert head_id(table) == before
        holder.send_signal(signal.SIGKILL)
    assert resolve(table).index == "current"
    assert_holds(table, model.drop(100))


def test_r84_second_opener_in_the_same_process_never_harms_the_first(staged):
    table, model = staged.table, Model().upsert(*BASE)
    resolve_one(staged, model, 100)
    table.stage(deletes=keys(100))
    folder = index_folder(table.environment, table.state, "main")
    with (folder / "LOCK").open("r+") as first:
        fcntl.flock(first, fcntl.LOCK_EX)
        with pytest.raises(StoreUnavailableError, match="in use"):
            resolve(table)
    resolve(table)
    assert_holds(table, model.drop(100))


def test_r84_unfinished_files_never_keep_the_index_from_opening(staged):
    """What a crash leaves behind: a prepared change, a build, an SST that was being written."""
    table, model = staged.table, Model().upsert(*BASE)
    resolve_one(staged, model, 100)
    folder = index_folder(table.environment, table.state, "main")
    [generation] = folder.glob("gen-*")
    for place in (generation / "pending" / "x", folder / "build" / "shard-0000"):
        place.mkdir(parents=True)
        (place / "0.sst").write_bytes(b"half an")
    shutil.copytree(generation, folder / "gen-unfinished")
    for shard in [path for path in generation.glob("shard-*") if path.is_dir()]:
        (shard / "999999.sst").write_bytes(b"half an SST")
    table.stage(deletes=keys(100))
    assert resolve(table).index == "current"
    assert_holds(table, model.drop(100))
    assert sorted(path.name for path in folder.glob("gen-*")) == [generation.name]
    assert verify(table).report.is_sound


# -- R86 -----------------------------------------------------------------------------------------

PAYLOAD_BYTES = 1024
DELETED = 20_000


class CountingFile(io.BytesIO):
    """Counts the bytes that are read."""

    read_bytes = 0

    def read(self, size=-1):
        data = super().read(size)
        CountingFile.read_bytes += len(data)
        return data


@pytest.mark.parametrize("use", ["scan", "resolve"])
def test_r86_equality_delete_file_is_never_loaded_whole(staged, monkeypatch, use):
    """Whole rows, as some writers give them: the key is two per cent of the file."""
    table, store = staged.table, staged.environment.store
    fields = [
        pa.field("id", pa.int64(), False, {"PARQUET:field_id": "1"}),
        pa.field("note", pa.binary(), True, {"PARQUET:field_id": "3"}),
    ]
    source = random.Random(86)
    columns = [range(5, 5 + DELETED), [source.randbytes(PAYLOAD_BYTES) for _ in range(DELETED)]]
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.table(columns, schema=pa.schema(fields)), sink, row_group_size=2000, compression="none"
    )
    data = sink.getvalue().to_pybytes()
    location = f"{table.state.metadata.location}/data/wide-eq-deletes.parquet"
    store.put(location, data)
    file = DataFile(
        content=FileContent.EQUALITY_DELETES,
        file_path=location,
        file_format="PARQUET",
        spec_id=0,
        partition=(),
        record_count=DELETED,
        file_size_in_bytes=len(data),
        equality_ids=(1,),
    )
    staged.commit(deletes=[file])
    table.refresh()
    opened = store.open_input

    def open_input(place):
        return pa.PythonFile(CountingFile(data), "r") if place == location else opened(place)

    monkeypatch.setattr(store, "open_input", open_input)
    monkeypatch.setattr(CountingFile, "read_bytes", 0)
    pool = pa.proxy_memory_pool(pa.default_memory_pool())
    before = pa.default_memory_pool()
    pa.set_memory_pool(pool)
    try:
        if use == "scan":
            assert scanned_rows(table, branch="staging") == Counter(BASE[:5])
        else:
            resolve(table)
    finally:
        pa.set_memory_pool(before)
    if use == "resolve":
        assert_holds(table, Counter(BASE[:5]))
    assert 0 < CountingFile.read_bytes < len(data) / 20
    assert 0 < pool.max_memory() < len(data) / 4


# -- R87 -----------------------------------------------------------------------------------------


def refused(table):
    table.catalog.before_commit = fail_with_any(CommitConflictError("lost the swap"))


def request_lost(table):
    table.catalog.before_commit = fail_with_any(CommitUnknownError("no answer"))


def request_failed(table):
    table.catalog.before_commit = fail_with_any(OSError("connection reset"))


def answer_lost(table):
    table.catalog.after_commit = fail_with_any(CommitUnknownError("no answer"))


def answer_garbled(table):
    table.catalog.after_commit = fail_with_any(ValueError("not JSON"))


def answer_is_a_bug(table):
    table.catalog.after_commit = fail_with_any(KeyError("metadata-location"))


def answer_lost_and_catalog_away(table):
    table.catalog.after_commit = fail_with_any(TimeoutError("no answer"))
    table.catalog.load_table = fail_with_any(StoreUnavailableError("away"))


def answer_is_a_conflict(table):
    """What a library hears that has sent the request twice."""
    table.catalog.after_commit = fail_with_any(CommitConflictError("somebody was first"))


def fail_with_any(error):
    def fail(_):
        raise error

    return fail


OUTCOMES = {
    refused: CommitConflictError,
    request_lost: CommitUnknownError,
    request_failed: CommitUnknownError,
    answer_lost: None,
    answer_garbled: None,
    answer_is_a_bug: None,
    answer_is_a_conflict: None,
    answer_lost_and_catalog_away: CommitUnknownError,
}


@pytest.mark.parametrize("fault", OUTCOMES, ids=lambda each: each.__name__)
def test_r87_happened_did_not_happen_and_unknown_are_never_mixed_up(fault):
    """A client that does what each error says ends with the file in the table exactly once."""
    table = CommitTable()
    table.append(table.data("x"))
    state, wanted = table.state, Changeset(
        kind=CommitKind.APPEND, added_data_files=(table.data("y"),)
    )  # fmt: skip
    fault(table)
    raised = None
    try:
        table.commit(wanted, state=state)
    except (CommitConflictError, CommitUnknownError) as error:
        raised = error
    table.catalog.before_commit = table.catalog.after_commit = None
    table.catalog.__dict__.pop("load_table", None)
    assert type(raised) is (OUTCOMES[fault] or type(None))
    assert getattr(raised, "files_safe_to_delete", False) is isinstance(raised, CommitConflictError)
    landed = "y" in table.live()
    if isinstance(raised, CommitConflictError):
        assert not landed
        table.commit(wanted)
    elif isinstance(raised, CommitUnknownError):
        found = int(raised.context["snapshot_id"])
        known = {each.snapshot_id for each in table.state.metadata.snapshots}
        assert (found in known) == landed
        if not landed:
            table.commit(wanted)
    names = check_table(table.store.get, table.state.metadata_location)[table.head()].names()
    assert Counter(names.elements()) == Counter(
        [table.data("x").file_path, table.data("y").file_path]
    )
    assert len(table.catalog.load_table(IDENTIFIER).metadata.snapshots) == 2


def test_r87_request_that_lands_late_is_found_and_not_sent_again():
    """It is still under way when its sender gives up waiting; it lands between two looks."""
    table = CommitTable()
    table.append(table.data("x"))
    inner, sent = table.catalog.inner, []

    class Delayed:
        """Keeps the first request, and delivers it at the second look at the table."""

        def __getattr__(self, name):
            return getattr(inner, name)

        def commit(self, base, updates):
            sent.append((base, updates))
            raise CommitUnknownError("no answer")

        def load_table(self, identifier):
            if sent:
                looks.append(identifier)
            if len(looks) == 2:
                inner.commit(*sent[0])
            return inner.load_table(identifier)

    looks = []
    table.catalog.inner = Delayed()
    assert table.append(table.data("y")).looked_up
    assert len(sent) == 1
    assert set(table.live()) == {"x", "y"}
