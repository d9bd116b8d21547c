"""`icefold.publish` = `rewrite`: staged rows are written once more and keep their row ids."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table.update import RemoveSnapshotsUpdate

from maintenance.tasks.compact import compact
from maintenance.tasks.expire import expire
from maintenance.tasks.options import CompactOptions, ExpireOptions
from resolver import resolve, rewrite_batch, staged_rows
from resolver.cycle_match import BroughtMeanwhileError, Matcher
from resolver.rewrite_batch import BatchWriter
from resolver.staged_rows import StagedSource
from tableformat.codec.avro.manifest_store import clear_manifest_cache
from tableformat.codec.parquet.reader import read_data_file
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.errors import InvalidInputError, UnsupportedError
from tests.support.another_tool import another_tool, set_unchecked
from tests.support.staged_tables import StagedTable, keys

CAME = {"+I", "+U"}
REWRITE = {"icefold.publish": "rewrite"}


PARTITIONS = [(), ("bucket(2, id)",), ("region",)]


@pytest.fixture(
    params=[*((each, True) for each in PARTITIONS), (("region",), False)],
    ids=["", "by key", "by region", "by region, not read ahead"],
)
def staged(request, tmp_path, monkeypatch):
    partition_by, reads_ahead = request.param
    if not reads_ahead:
        monkeypatch.setattr(rewrite_batch, "AHEAD_FILE_BYTES", 0)
    table = StagedTable(tmp_path, partition_by=partition_by)
    table.table.set_properties(REWRITE)
    table.table.append(table.rows(*((key, "eu", "base") for key in range(6))))
    return table


def ids(staged, branch="main"):
    rows = staged.table.refresh().scan(columns=["id", "note", "_row_id"], branch=branch).to_arrow()
    found = {row["id"]: (row["note"], row["_row_id"]) for row in rows.to_pylist()}
    assert len(found) == rows.num_rows
    return found


def stored(staged):
    return {each.location for each in staged.environment.store.list_prefix(staged.table.location())}


def upsert(staged, *rows):
    staged.table.stage(staged.rows(*((key, "eu", note) for key, note in rows)))


def resolve_all(staged, limit):
    while resolve(staged.table, limit=limit).staged_snapshots:
        pass


@pytest.mark.parametrize("limit", [None, 1, 2])
def test_upserted_row_keeps_its_id_whatever_the_cycles(staged, limit):
    before = ids(staged)
    for version in range(5):
        upsert(staged, (1, f"v{version}"), (2, f"v{version}"))
    upsert(staged, (7, "new"))
    upsert(staged, (7, "newer"))
    staged.table.stage(deletes=keys(2))
    upsert(staged, (2, "again"))
    again = ids(staged, "staging")[2][1]
    resolve_all(staged, limit)
    after = ids(staged)
    assert after[1] == ("v4", before[1][1])
    assert after[2] == ("again", again)
    assert again not in {row_id for _, row_id in before.values()}
    assert after[7][0] == "newer"
    assert {key: after[key] for key in (0, 3, 4, 5)} == {key: before[key] for key in (0, 3, 4, 5)}
    upsert(staged, (7, "newest"), (1, "last"))
    resolve_all(staged, None)
    assert ids(staged)[7] == ("newest", after[7][1])
    assert ids(staged)[1] == ("last", before[1][1])


@pytest.mark.slow
def test_chain_of_a_hundred_upserts_ends_with_the_first_id(staged):
    """Published one by one, some at once, and with compactions in between."""
    first = ids(staged)[1][1]
    for version in range(100):
        staged.table.stage(staged.rows((1, ("eu", "us")[version % 2], f"v{version}")))
        if version < 30 or version % 7 == 0:
            resolve(staged.table)
        if version in (20, 60):
            compact(staged.table, CompactOptions(rewrite_all=True, input_files_min=1))
    resolve(staged.table)
    assert ids(staged)[1] == ("v99", first)


def test_unknown_value_is_refused_before_anything_is_written(staged):
    upsert(staged, (1, "new"))
    set_unchecked(staged.table, {"icefold.publish": "copy"})
    before = stored(staged)
    with pytest.raises(InvalidInputError, match="no such value"):
        resolve(staged.table)
    assert stored(staged) == before


def test_micro_batches_become_one_file_per_partition(staged):
    for version in range(10):
        upsert(staged, *((key, f"v{version}") for key in range(6)))
    report = resolve(staged.table)
    partitions = {entry.entry.data_file.partition for entry in staged.tasks()}
    assert report.data_files == len(partitions)
    assert {note for note, _ in ids(staged).values()} == {"v9"}
    assert resolve(staged.table).staged_snapshots == 0


@pytest.mark.parametrize(("is_wide", "times"), [(False, 1), (True, 2)])
def test_rows_of_a_small_batch_are_read_once(tmp_path, monkeypatch, is_wide, times):
    staged = StagedTable(tmp_path, partition_by=("region",), properties=REWRITE)
    reads = Counter()
    read_in_order = StagedSource.read_in_order
    if is_wide:
        monkeypatch.setattr(StagedSource, "read_in_order", lambda self, _: read_in_order(self, 0))

    def read_noted(store, file, **options):
        for batch in read_data_file(store, file, **options):
            reads[file.file_path] += 1
            yield batch

    monkeypatch.setattr(staged_rows, "read_data_file", read_noted)
    staged.table.stage(staged.rows((1, "eu", "new"), (2, "us", "new")))
    resolve(staged.table)
    assert list(reads.values()) == [times, times]
    assert ids(staged).keys() == {1, 2}


def test_rows_read_ahead_are_read_again_for_the_columns_of_a_later_version(staged):
    upsert(staged, (1, "new"), (9, "new"))
    points = staged.environment.runtime.fail_points

    def change_columns(name):
        del points.armed[name]
        staged.table.refresh().update_schema(lambda change: change.rename_column("note", "text"))
        staged.table.refresh().append(staged.table.scan().to_arrow().slice(0, 0))

    points.armed["commit.before_swap"] = change_columns
    assert resolve(staged.table).attempts == 2
    rows = staged.table.refresh().scan().to_arrow().to_pylist()
    assert {row["id"]: row["text"] for row in rows} == {
        **dict.fromkeys(range(6), "base"),
        **dict.fromkeys((1, 9), "new"),
    }


def test_rows_read_ahead_for_a_plan_that_failed_are_not_written(staged, monkeypatch):
    upsert(staged, (1, "first"), (9, "first"))
    match = Matcher.match

    def match_once_more(*args):
        monkeypatch.setattr(Matcher, "match", match)
        match(*args)
        upsert(staged, (8, "second"), (1, "second"))
        staged.table.stage(staged.rows((9, "us", "second")))
        raise BroughtMeanwhileError("others were faster")

    def read_once(*args):
        read_ahead(*args)
        monkeypatch.setattr(rewrite_batch, "AHEAD_FILE_BYTES", 0)

    read_ahead = BatchWriter.read_ahead
    monkeypatch.setattr(BatchWriter, "read_ahead", read_once)
    monkeypatch.setattr(Matcher, "match", match_once_more)
    resolve(staged.table)
    notes = {key: note for key, (note, _) in ids(staged).items()}
    assert notes == dict.fromkeys(range(6), "base") | dict.fromkeys((1, 8, 9), "second")


@pytest.mark.parametrize("limits", [(1,), (1, 1)])
def test_commit_that_another_tool_repeats_takes_effect_once(tmp_path, limits):
    staged = StagedTable(tmp_path)
    staged.table.set_properties(REWRITE)
    data, deletes = staged.data_files((4, "eu", "d"), (5, "eu", "e")), keys(4, 5)
    deletes = staged.equality_deletes(deletes)
    staged.commit(data=data, deletes=deletes)
    staged.table.stage(deletes=keys(5))
    for limit in limits:
        resolve(staged.table, limit=limit)
    with another_tool(staged.environment):
        staged.commit(data=data, deletes=deletes)
    resolve(staged.table)
    assert staged.published() == {(4, "eu", "d"): 1}


def test_what_publishes_covered_is_not_read_again(tmp_path, monkeypatch):
    """With commits of other tools, too: reads per cycle do not grow with the publishes."""
    staged = StagedTable(tmp_path)
    staged.table.set_properties(REWRITE)
    store = staged.environment.store
    read = []
    for name in ("get", "open_input"):
        real = getattr(store, name)
        monkeypatch.setattr(
            store,
            name,
            lambda location, *args, _real=real, **options: (
                read.append(location),
                _real(location, *args, **options),
            )[1],
        )

    def older_read(key):
        """Cycles of a process that has just started: which older staged snapshots it reads."""
        older = [each.manifest_list for each in staged.table.refresh().state.metadata.snapshots]
        with another_tool(staged.environment):
            data = staged.data_files((key, "eu", "new"))
            staged.commit(data=data, deletes=staged.equality_deletes(keys(key)))
        clear_manifest_cache(store)
        read.clear()
        resolve(staged.table)
        return len(set(read).intersection(older)), len(read)

    counted = [older_read(key) for key in range(6)]
    assert {older for older, _ in counted[1:]} == {1}, "more than the head of main"
    assert counted[5][1] - counted[4][1] <= 2, "more than the manifest that a publish adds"
    assert set(staged.published()) == {(key, "eu", "new") for key in range(6)}


def test_repeated_commit_is_told_by_the_publish_once_its_snapshot_has_expired(tmp_path):
    staged = StagedTable(tmp_path)
    staged.table.set_properties(REWRITE)
    data = staged.data_files((4, "eu", "d"))
    deletes = staged.equality_deletes(keys(4))
    first = staged.commit(data=data, deletes=deletes).snapshot.snapshot_id
    resolve(staged.table)
    upsert(staged, (4, "newer"))
    resolve(staged.table)
    with another_tool(staged.environment):
        staged.commit(data=data, deletes=deletes)
    policy = ExpiryPolicy(max_snapshot_age_ms=-1, min_snapshots_to_keep=10)
    expire(staged.table, ExpireOptions(policy=policy))
    assert first not in {s.snapshot_id for s in staged.table.refresh().state.metadata.snapshots}
    resolve(staged.table)
    assert staged.published() == {(4, "eu", "newer"): 1}


def test_repeated_file_with_other_deletes_is_refused_and_can_be_passed(tmp_path):
    """The deletes would reach the rows where the publish wrote them, and the file is not added."""
    staged = StagedTable(tmp_path)
    staged.table.set_properties(REWRITE)
    data = staged.data_files((4, "eu", "d"), (5, "eu", "e"))
    staged.commit(data=data, deletes=staged.equality_deletes(keys(4, 5)))
    resolve(staged.table)
    before = stored(staged)
    with another_tool(staged.environment):
        staged.commit(data=data, deletes=staged.equality_deletes(keys(4)))
    again = staged.table.refresh().state.head("staging")
    with pytest.raises(UnsupportedError, match="with other deletes than the first one") as caught:
        resolve(staged.table)
    assert caught.value.context["snapshot_id"] == str(again.snapshot_id)
    assert staged.published() == {(4, "eu", "d"): 1, (5, "eu", "e"): 1}
    assert stored(staged) >= before
    upsert(staged, (6, "after"))
    resolve(staged.table, from_snapshot=again.snapshot_id, skip_unpublished=True)
    assert set(staged.published()) == {(4, "eu", "d"), (5, "eu", "e"), (6, "eu", "after")}


def test_staged_position_in_a_repeated_file_finds_the_row_where_a_publish_wrote_it(tmp_path):
    staged = StagedTable(tmp_path)
    staged.table.set_properties(REWRITE)
    staged.table.append(staged.rows((4, "eu", "base"), (9, "eu", "base")))
    before = ids(staged)
    data = staged.data_files((4, "eu", "d"), (5, "eu", "e"), (6, "eu", "f"))
    deletes = staged.equality_deletes(keys(4, 5, 6))
    staged.commit(data=data, deletes=deletes)
    resolve(staged.table)
    assert ids(staged)[4] == ("d", before[4][1])
    with another_tool(staged.environment):
        staged.commit(data=data, deletes=deletes)
    staged.stage_vector(data[0], 0, 1)
    resolve(staged.table)
    assert staged.published() == {(6, "eu", "f"): 1, (9, "eu", "base"): 1}


def test_staged_position_finds_the_row_that_a_publish_wrote_anew(staged):
    before = ids(staged)
    upsert(staged, (1, "new"), (8, "other"))
    files = [task.entry.data_file for task in staged.tasks("staging")]
    [new] = [f for f in files if "new" in notes_of(staged, f)]
    upsert(staged, (3, "later"))
    resolve(staged.table, limit=1)
    assert ids(staged)[1] == ("new", before[1][1])
    staged.stage_vector(new, notes_of(staged, new).index("new"))
    resolve(staged.table)
    assert 1 not in ids(staged)
    assert ids(staged)[8][0] == "other"
    assert ids(staged)[3] == ("later", before[3][1])


def test_publish_has_not_written_what_was_on_main_before_a_rollback(tmp_path):
    """A file of another tool's compaction below staging, which main was rolled back behind."""
    staged = StagedTable(tmp_path, properties=REWRITE)
    staged.table.append(staged.rows(*((key, "eu", "base") for key in range(6))))
    before = staged.table.refresh().state.head("main").snapshot_id
    with another_tool(staged.environment):
        staged.rewrite()
        compacted = staged.only_file()
        upsert(staged, (1, "new"))
        upsert(staged, (2, "later"))
    staged.table.refs.rollback(snapshot_id=before)
    resolve(staged.table, limit=1)
    staged.stage_vector(compacted, notes_of(staged, compacted).index("base"))
    resolve(staged.table)
    assert ids(staged).keys() == {1, 2, 3, 4, 5}


def test_staged_position_is_refused_where_the_publish_that_wrote_its_row_has_expired(staged):
    """The row has the id of the one that it replaced: older than what staging stands on."""
    upsert(staged, (1, "new"))
    files = [task.entry.data_file for task in staged.tasks("staging")]
    [new] = [f for f in files if "new" in notes_of(staged, f)]
    upsert(staged, (3, "later"))
    resolve(staged.table, limit=1)
    publish = staged.table.refresh().state.head("main").snapshot_id
    staged.stage_vector(new, notes_of(staged, new).index("new"))
    staged.table.append(staged.rows((10, "eu", "appended")))
    state = staged.table.refresh().state
    staged.environment.catalog.commit(state, [RemoveSnapshotsUpdate(snapshot_ids=[publish])])
    with pytest.raises(UnsupportedError, match="history has expired"):
        resolve(staged.table)
    assert ids(staged)[1][0] == "new"


def notes_of(staged, file):
    with staged.environment.store.open_input(file.file_path) as source:
        return pq.read_table(source)["note"].to_pylist()


def test_row_ids_survive_compaction_and_are_found_in_its_files(staged):
    before = ids(staged)
    upsert(staged, (1, "a"), (2, "a"))
    resolve(staged.table)
    staged.rewrite()
    upsert(staged, (1, "b"))
    resolve(staged.table)
    assert ids(staged)[1] == ("b", before[1][1])
    assert ids(staged)[2] == ("a", before[2][1])


def test_changes_and_lineage_agree(staged):
    upsert(staged, (1, "a"))
    resolve(staged.table)
    since = staged.table.refresh().current_snapshot()
    upsert(staged, (1, "b"), (9, "new"))
    staged.table.stage(deletes=keys(2))
    resolve(staged.table)
    table = staged.table.refresh()
    columns = ["id", "note", "_last_updated_sequence_number"]
    rows = table.scan(columns=columns).to_arrow().to_pylist()
    newer = {
        (row["id"], row["note"])
        for row in rows
        if row["_last_updated_sequence_number"] > since.sequence_number
    }
    assert newer == {(1, "b"), (9, "new")}
    changed = table.changes(since.snapshot_id).to_arrow().to_pylist()
    came = {(c["id"], c["note"]) for c in changed if c["_change_type"] in CAME}
    assert came == newer


def test_table_with_a_column_of_that_name_is_refused(tmp_path, monkeypatch):
    # as another tool would make it
    monkeypatch.setattr("tableformat.commit.creation.check_new_column_names", list)
    schema = pa.schema([("id", pa.int64()), ("_row_id", pa.int64())])
    table = StagedTable(tmp_path, schema=schema)
    table.table.set_properties(REWRITE)
    table.table.stage(table.rows((1, 2)))
    with pytest.raises(UnsupportedError, match="reserved name"):
        resolve(table.table)
