"""Bugs other projects had in catalogs, pruning, manifests and the outcomes of commits: group G.

R79 to R82 and R87; R78 is in `test_commit_regressions.py`.
"""

from __future__ import annotations

import io
import random
import shutil
import threading
from collections import Counter
from datetime import datetime, timedelta

import fastavro
import pyarrow as pa
import pytest

import tableformat as tf
from resolver import resolve
from tableformat.codec.avro.manifest_store import clear_manifest_cache
from tableformat.commit.changeset import Changeset, CommitKind, Validation
from tableformat.errors import (
    CommitConflictError,
    CommitUnknownError,
    CorruptDataError,
    InvalidInputError,
    StoreUnavailableError,
    UnsupportedError,
)
from tests.support.commit_tables import IDENTIFIER, CommitTable
from tests.support.memory_tables import memory_catalog
from tests.support.row_model import Model, assert_holds, scanned_rows
from tests.support.staged_tables import BASE, keys, rows_of
from tests.support.table_checker import check_table, read_metadata
from tests.support.table_folders import folder_of, opened_again

# -- R79 -----------------------------------------------------------------------------------------


def test_r79_catalog_that_commits_by_rename_is_not_offered(tmp_path):
    for kind in ("hadoop", "filesystem", "dir"):
        with pytest.raises(UnsupportedError, match=r"unknown catalog type.*known=sql, rest"):
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
