"""Bugs other projects had where equality deletes become deletion vectors, group A by their ids.

Each test makes the bug's scenario. Rows are read from the files' bytes without the product's code
and compared with plain dicts.
"""

from __future__ import annotations

import json
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table.update import RemoveSnapshotsUpdate

from maintenance.tasks.compact import compact
from maintenance.tasks.drop_dead_deletes import drop_dead_deletes
from maintenance.tasks.options import CompactOptions
from resolver import resolve
from resolver.index_check import verify
from tableformat.cdc.batch_commit import BatchId
from tableformat.cdc.ingest import write_changes
from tableformat.commit.evolution import update_spec
from tableformat.commit.refs import replace_branch, rollback
from tableformat.errors import (
    CommitConflictError,
    FencedError,
    InvalidInputError,
    StoreUnavailableError,
)
from tableformat.rowlevel.planning import plan_statement
from tableformat.rowlevel.requests import delete_statement
from tableformat.spec.data_file import FileContent
from tableformat.write.delete_scope import delete_spec
from tests.support.change_events import create_orders, envelope, events_table, order
from tests.support.interruptions import Killed, fail_with, interrupt, other_process
from tests.support.lying_lock import GrantAllLock
from tests.support.memory_tables import memory_catalog
from tests.support.raw_rows import raw_rows
from tests.support.staged_tables import StagedTable
from tests.support.table_checker import read_metadata

MARKER = "equality-convert-staging-snapshot"
CYCLE_POINTS = [
    "resolve.after_plan", "resolve.after_read", "resolve.after_match", "resolve.after_dv_write",
    "commit.before_swap",
]  # fmt: skip


def keys(*ids):
    return pa.table({"id": pa.array(ids, pa.int64())})


def placed(*pairs):
    return pa.table({"id": [i for i, _ in pairs], "region": [region for _, region in pairs]})


def notes(staged, branch="main"):
    """(id, region, note) of every live row."""
    return raw_rows(staged.table, ["id", "region", "note"], branch=branch)


def once(*rows):
    return Counter(rows)


def readable_staging(staged):
    """Staging as merge-on-read shows it."""
    rows = staged.table.scan(branch="staging", columns=["id", "region", "note"]).to_arrow()
    return Counter(tuple(row.values()) for row in rows.to_pylist())


@pytest.fixture
def staged(tmp_path):
    """Keys 1 to 6 published, and an index that knows them."""
    staged = StagedTable(tmp_path)
    staged.table.append(staged.rows(*((key, "eu", "old") for key in range(1, 6))))
    staged.table.stage(upserts=staged.rows((6, "eu", "old")))
    resolve(staged.table)
    return staged


OLD = {key: (key, "eu", "old") for key in range(1, 7)}


# -- R01 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("point", CYCLE_POINTS[1:])
@pytest.mark.parametrize("ending", [StoreUnavailableError("away"), Killed()], ids=["error", "kill"])
def test_r01_failed_cycle_never_forgets_the_keys_it_had_matched(staged, point, ending):
    staged.table.stage(upserts=staged.rows((2, "eu", "new")), deletes=keys(1, 6))
    interrupt(staged.table, point, fail_with(ending))
    with pytest.raises(type(ending)):
        resolve(staged.table)
    assert notes(staged) == once(*OLD.values()), "the failed cycle changed the target"
    report = resolve(other_process(staged.table))
    assert report.deleted_rows == 3
    left = {key: row for key, row in OLD.items() if key not in (1, 6)} | {2: (2, "eu", "new")}
    assert notes(staged) == once(*left.values())
    assert verify(staged.table).report.is_sound


def test_r01_publish_that_was_refused_leaves_the_index_where_it_was(staged):
    """The swap is refused for good, after the vectors were written; the index survives on disk."""
    staged.table.stage(deletes=keys(1, 6))
    staged.table.set_properties({"commit.retry.num-retries": "0"})
    refuse = fail_with(FencedError("a newer holder has published"))
    interrupt(staged.table, "commit.before_swap", refuse)
    with pytest.raises(FencedError):
        resolve(staged.table)
    assert resolve(staged.table).deleted_rows == 2
    assert notes(staged) == once(*(row for key, row in OLD.items() if key not in (1, 6)))


# -- R02 -----------------------------------------------------------------------------------------


def moves_of_the_marker(table):
    """Staged snapshot ids in the order in which main's history covers them."""
    metadata = read_metadata(table.environment.store.get, table.refresh().metadata_location)
    by_id = {each["snapshot-id"]: each for each in metadata["snapshots"]}
    chain, current = [], metadata["refs"]["main"]["snapshot-id"]
    while current in by_id:
        chain.append(by_id[current])
        current = by_id[current].get("parent-snapshot-id")
    markers = [each["summary"].get(MARKER) for each in reversed(chain)]
    return [
        int(new)
        for old, new in zip([None, *markers], markers, strict=False)
        if new not in (None, old)
    ]


@pytest.mark.parametrize("point", CYCLE_POINTS)
@pytest.mark.parametrize("tokens", ["rising", "same"])
@pytest.mark.parametrize("limit", [None, 1])
def test_r02_two_cycles_on_one_backlog_never_publish_it_twice_or_without_its_vector(
    staged, point, tokens, limit, tmp_path
):
    """The lock is gone in the middle: a second cycle runs from begin to end inside the first."""
    liar = GrantAllLock(tokens=tokens)
    before = moves_of_the_marker(staged.table)
    backlog = [
        staged.table.stage(**changes).snapshot.snapshot_id
        for changes in (
            {"upserts": staged.rows((2, "eu", "new"), (7, "eu", "new")), "deletes": keys(1)},
            {"deletes": keys(3)},
        )
    ]
    second = other_process(staged.table)
    interrupt(
        staged.table,
        point,
        lambda: resolve(second, lock=liar, limit=limit, index_directory=tmp_path / "second"),
    )
    with pytest.raises((CommitConflictError, FencedError)):
        resolve(staged.table, lock=liar)
    resolve(staged.table, lock=liar)
    left = {key: row for key, row in OLD.items() if key not in (1, 3)}
    left |= {2: (2, "eu", "new"), 7: (7, "eu", "new")}
    assert notes(staged) == once(*left.values())
    moves = moves_of_the_marker(staged.table)[len(before) :]
    assert moves == (backlog[1:] if limit is None else backlog)
    assert resolve(staged.table).staged_snapshots == 0


# -- R03, R15: scopes ----------------------------------------------------------------------------


def evolve(staged, edit):
    update_spec(staged.environment, staged.table.identifier, edit)
    staged.table.refresh()


@pytest.mark.parametrize("when", ["before", "meanwhile"])
@pytest.mark.parametrize("first", [(), ("void(region)",)], ids=["no fields", "void fields only"])
def test_r03_global_delete_never_stays_in_one_spec_or_partition(tmp_path, when, first):
    """Rows of one key under three specs; the last file comes before or during the cycle.

    A spec whose fields are all void partitions nothing: its deletes are global as well.
    """
    staged = StagedTable(tmp_path, partition_by=first)
    global_spec = staged.table.spec()
    staged.table.append(staged.rows((1, "eu", "first spec"), (2, "eu", "first spec")))
    evolve(staged, lambda spec: spec.add_identity("region"))
    staged.table.append(staged.rows((1, "us", "by region"), (3, "us", "by region")))
    staged.commit(data=staged.data_files((1, "ap", "staged"), (4, "ap", "staged")))
    staged.commit(deletes=staged.equality_deletes(keys(1), spec=global_spec))
    evolve(staged, lambda spec: spec.remove_field("region").add_field("id", "bucket[4]", "b"))
    late = staged.rows((1, None, "by bucket"), (5, None, "by bucket"))
    expected = {2: "first spec", 3: "by region", 4: "staged", 5: "by bucket"}
    if when == "before":
        staged.table.append(late)
    else:
        other = other_process(staged.table)
        interrupt(staged.table, "resolve.after_dv_write", lambda: other.append(late))
    on_staging = {key: note for key, note in expected.items() if key != 5}
    assert {row[0]: row[2] for row in readable_staging(staged)} == on_staging
    resolve(staged.table)
    assert {row[0]: row[2] for row in notes(staged)} == expected


def test_r03_clean_up_never_drops_a_global_delete_that_reaches_another_spec(tmp_path):
    """A foreign writer left it on the target itself, under a spec of void fields."""
    staged = StagedTable(tmp_path, partition_by=["void(region)"])
    global_spec = staged.table.spec()
    evolve(staged, lambda spec: spec.add_identity("region"))
    staged.table.append(staged.rows((1, "us", "gone"), (2, "us", "stays")))
    staged.commit(branch="main", deletes=staged.equality_deletes(keys(1), spec=global_spec))
    assert not drop_dead_deletes(staged.table.refresh()).changed
    resolve(staged.table, staging="main", target="main")
    assert notes(staged) == once((2, "us", "stays"))


@pytest.mark.parametrize("when", ["before", "staged", "meanwhile"])
def test_r15_delete_of_one_partition_never_reaches_another(tmp_path, when):
    """One key in every partition, on the target, on staging, or committed during the cycle."""
    staged = StagedTable(tmp_path, partition_by=["region"])
    spec = staged.table.spec()
    everywhere = [(1, region, when) for region in ("eu", "us", "", None)]
    staged.table.append(staged.rows((9, "us", "other")))
    if when == "before":
        staged.table.append(staged.rows(*everywhere))
    if when == "staged":
        staged.commit(data=staged.data_files(*everywhere))
    gone = placed((1, "us"), (9, None))
    staged.commit(deletes=staged.equality_deletes(gone, spec=spec))
    expected = once((9, "us", "other"), *(row for row in everywhere if row[1] != "us"))
    if when == "meanwhile":
        other = other_process(staged.table)
        rows = staged.rows(*everywhere)
        interrupt(staged.table, "resolve.after_dv_write", lambda: other.append(rows))
    else:
        assert readable_staging(staged) == expected
    resolve(staged.table)
    assert notes(staged) == expected


# -- R04 -----------------------------------------------------------------------------------------


def test_r04_conversion_on_one_branch_never_leaves_its_equality_deletes_live(staged):
    """`raw_rows` refuses a live equality delete; later rows of the keys must not be lost either."""
    table = staged.table
    for step in ("a", "b"):
        data = staged.data_files((1, "eu", step))
        staged.commit(branch="main", data=data, deletes=staged.equality_deletes(keys(1, 2)))
        report = resolve(table, staging="main", target="main")
        assert report.equality_delete_files == 1
        expected = {key: row for key, row in OLD.items() if key != 2} | {1: (1, "eu", step)}
        assert notes(staged) == once(*expected.values())
        assert resolve(table, staging="main", target="main").staged_snapshots == 0
    table.append(staged.rows((2, "eu", "again")))
    resolve(table, staging="main", target="main")
    assert notes(staged) == once(*expected.values(), (2, "eu", "again"))


# -- R06 to R13: change events -------------------------------------------------------------------


@pytest.fixture
def orders(tmp_path):
    return create_orders(memory_catalog(str(tmp_path)))


def ingest(table, events, *, keys=None, batch=None, **options):
    return write_changes(
        table.environment,
        table.identifier,
        events_table(events, keys),
        options={name.replace("_", "-"): value for name, value in options.items()},
        batch=None if batch is None else BatchId("query", batch),
    )


def published(table):
    """id to (region, note), after resolving; a key with two rows is an error."""
    resolve(table)
    rows = raw_rows(table, ["id", "region", "note"])
    assert max(rows.values(), default=1) == 1, rows
    state = {row[0]: row[1:] for row in rows}
    assert len(state) == len(rows), f"a key has two rows: {sorted(rows)}"
    return state


@pytest.mark.parametrize("resolved_between", [False, True])
@pytest.mark.parametrize(
    "point", ["ingest.before_commit", "commit.before_swap", "commit.after_swap"]
)
def test_r06_batch_given_again_after_an_aborted_checkpoint_is_never_there_twice(
    orders, point, resolved_between
):
    """Inserts of keys that are known to be new come without deletes: a second copy would stay."""
    events = [envelope("c", after=order(key, note="first")) for key in (1, 2)]
    interrupt(orders, point, fail_with(Killed()))
    with pytest.raises(Killed):
        ingest(orders, events, batch=0, assume_new_keys="true")
    if resolved_between and orders.refresh().state.ref("staging") is not None:
        resolve(orders)
    restarted = other_process(orders)
    ingest(restarted, events, batch=0, assume_new_keys="true")
    ingest(restarted, [envelope("u", after=order(1, note="second"))], batch=1)
    if resolved_between:
        resolve(restarted)
    ingest(restarted, events, batch=0, assume_new_keys="true")  # a zombie of the first attempt
    assert published(restarted) == {1: ("EU", "second"), 2: ("EU", "first")}


@pytest.mark.parametrize("new_keys", ["true", "false"])
def test_r07_key_that_is_twice_in_a_batch_never_leaves_two_rows(orders, new_keys):
    """With its other rows in between, over several files, and again in the next batch."""
    ingest(orders, [envelope("c", after=order(3, note="older"))])
    for step in ("a", "b"):
        kind = "c" if step == "a" else "u"
        ingest(
            orders,
            [
                envelope(kind, after=order(key, note=f"{step}{n}"))
                for n in range(3)
                for key in (1, 2)
            ]
            + [envelope("u", after=order(3, note=step))],
            assume_new_keys=new_keys,
        )
    assert published(orders) == {1: ("EU", "b2"), 2: ("EU", "b2"), 3: ("EU", "b")}


def test_r07_staging_a_key_twice_is_refused_before_anything_is_written(staged):
    objects = {each.location for each in staged.environment.store.list_prefix("memory://warehouse")}
    with pytest.raises(InvalidInputError, match="more than once"):
        staged.table.stage(upserts=staged.rows((1, "eu", "a"), (2, "eu", "b"), (1, "eu", "c")))
    assert {
        e.location for e in staged.environment.store.list_prefix("memory://warehouse")
    } == objects


@pytest.mark.parametrize("sequence", [None, "source.lsn"])
@pytest.mark.parametrize("is_known", [False, True])
def test_r08_insert_delete_insert_of_one_batch_never_keeps_the_first_insert(
    orders, sequence, is_known
):
    """All in one millisecond. Ranking by operation or by time would keep the first or none."""
    if is_known:
        ingest(orders, [envelope("c", after=order(1, note="older"))])
    events = [
        envelope("c", after=order(1, note="first"), lsn=1),
        envelope("d", before=order(1, note="first"), lsn=2),
        envelope("c", after=order(1, note="last"), lsn=3),
        envelope("c", after=order(2, note="first"), lsn=4),
        envelope("d", before=order(2, note="first"), lsn=5),
    ]
    options = {} if sequence is None else {"sequence": sequence}
    ingest(orders, events if sequence is None else events[::-1], **options)
    assert published(orders) == {1: ("EU", "last")}


def test_r08_staged_deletes_and_inserts_of_one_key_in_one_cycle_take_effect_in_order(staged):
    for step in range(3):
        staged.table.stage(deletes=keys(1, 2))
        staged.table.stage(upserts=staged.rows((1, "eu", f"again {step}")))
    staged.table.stage(upserts=staged.rows((2, "eu", "again")))
    staged.table.stage(deletes=keys(2))
    resolve(staged.table)
    expected = {key: row for key, row in OLD.items() if key != 2} | {1: (1, "eu", "again 2")}
    assert notes(staged) == once(*expected.values())


@pytest.fixture
def by_region(tmp_path):
    return create_orders(memory_catalog(str(tmp_path)), partition_by=["region"])


@pytest.mark.parametrize("resolved_between", [False, True])
def test_r09_update_of_the_partition_value_never_leaves_the_old_copy(by_region, resolved_between):
    """Neither when the update is resolved alone nor in one cycle, nor after a compaction."""
    for step, region in enumerate(["EU", "US", "EU", "AP"]):
        ingest(
            by_region,
            [
                envelope("c" if step == 0 else "u", after=order(1, region=region, note=str(step))),
                envelope("c", after=order(10 + step, region=region)),
            ],
        )
        if resolved_between:
            resolve(by_region)
    expected = {
        1: ("AP", "3"),
        10: ("EU", None),
        11: ("US", None),
        12: ("EU", None),
        13: ("AP", None),
    }
    assert published(by_region) == expected
    compact(by_region, CompactOptions(rewrite_all=True))
    assert {row[0]: row[1:] for row in raw_rows(by_region, ["id", "region", "note"])} == expected


@pytest.mark.parametrize(
    "event",
    [envelope("d"), envelope("d", before={"id": 1}), envelope("d", before={"id": 1, "note": None})],
    ids=["message key only", "key in before", "no partition column"],
)
@pytest.mark.parametrize("immutable", [False, True])
def test_r10_delete_without_the_partition_column_never_misses_its_row(tmp_path, event, immutable):
    """It must not be filed under the null partition, not even where the partition is IMMUTABLE."""
    catalog = memory_catalog(str(tmp_path))
    table = create_orders(catalog, partition_by=["region"])
    if immutable:
        table.set_immutable_columns(["region"])
    ingest(table, [envelope("c", after=order(key, region="EU")) for key in (1, 2)])
    resolve(table)
    ingest(table, [event], keys=['{"id":1}'])
    assert published(table) == {2: ("EU", None)}


@pytest.mark.parametrize("split", [None, 1, 2])
def test_r12_key_update_as_delete_tombstone_create_never_loses_the_row(orders, split):
    """Also when a batch ends between the parts, and for keys that change places."""
    ingest(orders, [envelope("c", after=order(key, note=f"row {key}")) for key in (1, 2, 3)])
    moves = [(1, 5, "row 1"), (2, 1, "row 2"), (5, 2, "row 1")]  # 1 and 2 change places through 5
    events, message_keys = [], []
    for old, new, note in moves:
        events += [
            envelope("d", before=order(old)),
            None,
            envelope("c", after=order(new, note=note)),
        ]
        message_keys += [json.dumps({"id": key}) for key in (old, old, new)]
    cut = len(events) if split is None else split
    ingest(orders, events[:cut], keys=message_keys[:cut])
    if split is not None:
        ingest(orders, events[cut:], keys=message_keys[cut:])
    assert published(orders) == {1: ("EU", "row 2"), 2: ("EU", "row 1"), 3: ("EU", "row 3")}


@pytest.mark.parametrize("primary_key", [["id"], ["region", "id"]])
def test_r13_full_row_is_never_written_with_the_schema_of_the_key(tmp_path, primary_key):
    """The key is not the first column, and not in the order of the columns."""
    catalog = memory_catalog(str(tmp_path))
    table = create_orders(catalog, primary_key=primary_key)
    ingest(table, [envelope("c", after=order(key, note=f"row {key}")) for key in (1, 2, 3)])
    resolve(table)
    table.stage(
        upserts=pa.Table.from_pylist([order(2, note="2")], schema=create_schema(table)),
        deletes=pa.Table.from_pylist([order(3, note="1")], schema=create_schema(table)),
    )
    ids = {field.name: field.field_id for field in table.schema().fields}
    for file in live_deletes(table):
        stored = pq.read_table(table.environment.store.open_input(file.file_path))
        named = {f.name: int(f.metadata[b"PARQUET:field_id"]) for f in stored.schema}
        assert named == {name: ids[name] for name in primary_key}
        assert sorted(file.equality_ids) == sorted(ids[name] for name in primary_key)
        assert sorted(stored.column("id").to_pylist()) == [2, 3]
    assert published(table) == {1: ("EU", "row 1"), 2: ("EU", "2")}


def create_schema(table):
    """The table's columns in another order than the table's."""
    given = table.scan().to_arrow().schema
    return pa.schema([given.field(name) for name in ("region", "note", "id", "amount", "at")])


def live_deletes(table):
    return [
        entry.data_file
        for task in table.scan(branch="staging").plan.tasks
        for entry in task.equality_deletes
        if entry.data_file.content == FileContent.EQUALITY_DELETES
    ]


# -- R14, R16: what is pruned --------------------------------------------------------------------


@pytest.mark.parametrize("partition_by", [(), ("region",)])
def test_r14_filter_on_another_column_never_prunes_a_delete(tmp_path, partition_by):
    """Deletes of keys, with statistics of their own columns and of columns they carry along."""
    staged = StagedTable(tmp_path, partition_by=partition_by)
    model = {key: (key, "eu" if key % 2 else "us", "old") for key in range(10)}
    staged.table.append(staged.rows(*model.values()))
    staged.table.stage(deletes=keys(0, 1))
    resolve(staged.table)  # these are vectors on the target
    staged.table.stage(deletes=keys(2, 3))
    staged.table.stage(upserts=staged.rows((4, "eu", "new"), (5, "us", "new")))
    for key in range(4):
        del model[key]
    model |= {4: (4, "eu", "new"), 5: (5, "us", "new")}
    for text, holds in {
        "note = 'old'": lambda row: row[2] == "old",
        "note = 'new'": lambda row: row[2] == "new",
        "note != 'new'": lambda row: row[2] != "new",
        "region = 'eu'": lambda row: row[1] == "eu",
        "region = 'us' and note = 'old'": lambda row: row[1:] == ("us", "old"),
        "region = 'eu' and id < 6": lambda row: row[1] == "eu" and row[0] < 6,
        "note is not null": lambda _: True,
    }.items():
        found = staged.table.scan(filter=text, branch="staging").to_arrow().to_pylist()
        assert Counter(tuple(row.values()) for row in found) == once(
            *(row for row in model.values() if holds(row))
        ), text


DAYS = ["2024-01-05", "2024-1-5", "2024-01-05 ", "2024-10-01", "20240105", "", None, "x"]


@pytest.mark.parametrize("partition_by", ["region", "truncate(4, region)", "truncate(8, region)"])
def test_r16_partition_of_a_text_that_looks_like_a_date_is_never_pruned_wrongly(
    tmp_path, partition_by
):
    """Text is compared as text, whatever the literal looks like; a comparison that would need a
    cast is refused or done row by row, and no delete is left out.
    """
    staged = StagedTable(tmp_path, partition_by=[partition_by])
    model = {key: (key, day, "old") for key, day in enumerate(DAYS)}
    staged.table.append(staged.rows(*model.values()))
    delete_spec(staged.environment, staged.table.refresh().state)  # adds the one of global deletes
    gone = pa.table({"region": ["2024-1-5", "x"]})
    staged.commit(deletes=staged.equality_deletes(gone, ["region"]))
    for text, holds in {
        "region = '2024-01-05'": lambda day: day == "2024-01-05",
        "region >= '2024-01-05'": lambda day: day >= "2024-01-05",
        "region < '2024-02-01'": lambda day: day < "2024-02-01",
        "region like '2024-1%'": lambda day: day.startswith("2024-1"),
        "region in ('2024-1-5', '20240105')": lambda day: day in ("2024-1-5", "20240105"),
    }.items():
        found = staged.table.scan(filter=text, branch="staging").to_arrow().to_pylist()
        assert {row["id"] for row in found} == {
            key
            for key, day, _ in model.values()
            if day not in ("2024-1-5", "x") and day is not None and holds(day)
        }, text
    resolve(staged.table)
    left = once(*(row for row in model.values() if row[1] not in ("2024-1-5", "x")))
    assert notes(staged) == left
    files = {task.entry.data_file.file_path for task in staged.table.scan().plan.tasks}
    for condition in ("CAST(region AS DATE) = DATE '2024-01-05'", "region >= DATE '2024-01-05'"):
        statement = delete_statement(staged.table.identifier, condition)
        plan = plan_statement(staged.environment, statement)
        assert not plan.covered  # no partition is dropped, and none is left out
        assert {task.entry.data_file.file_path for task in plan.scan.tasks} == files


# -- R18 -----------------------------------------------------------------------------------------


def head(staged, branch):
    return staged.table.refresh().state.head(branch).snapshot_id


def roll_staging_back(staged, first, base):
    now = head(staged, "staging")
    replace_branch(
        staged.environment, staged.table.identifier, "staging", to=first, expected_head=now
    )


def replace_staging(staged, first, base):
    now = head(staged, "staging")
    replace_branch(
        staged.environment, staged.table.identifier, "staging", to=base, expected_head=now
    )
    staged.table.stage(upserts=staged.rows((1, "eu", "on the old base")))


def expire_staging(staged, first, base):
    staged.table.stage(upserts=staged.rows((1, "eu", "unpublished")))
    staged.table.stage(deletes=keys(2))
    state = staged.table.refresh().state
    parent = state.head("staging").parent_snapshot_id
    staged.environment.catalog.commit(state, [RemoveSnapshotsUpdate(snapshot_ids=[parent])])


def replace_main(staged, first, base):
    """Main goes back to before the marker and on from there; its old history has expired."""
    rollback(staged.environment, staged.table.identifier, snapshot_id=base)
    staged.table.refresh()
    staged.table.append(staged.rows((50, "eu", "other history")))
    state = staged.table.refresh().state
    kept = {each.snapshot_id for each in (state.head("main"), state.head("staging"))}
    gone = [s.snapshot_id for s in state.metadata.snapshots if s.snapshot_id not in kept]
    staged.environment.catalog.commit(state, [RemoveSnapshotsUpdate(snapshot_ids=gone)])


@pytest.mark.parametrize(
    "trouble", [roll_staging_back, replace_staging, expire_staging, replace_main]
)
def test_r18_cycle_whose_marker_is_unreachable_never_starts_from_the_beginning(tmp_path, trouble):
    """It stops before it writes anything, and goes on from where the operator says."""
    staged = StagedTable(tmp_path)
    base = staged.table.append(staged.rows((1, "eu", "base"))).snapshot.snapshot_id
    first = staged.table.stage(upserts=staged.rows((1, "eu", "a"), (2, "eu", "a"))).snapshot
    staged.table.stage(upserts=staged.rows((1, "eu", "b")))
    resolve(staged.table, limit=1)
    resolve(staged.table, limit=1)
    trouble(staged, first.snapshot_id, base)
    before, location = notes(staged), staged.table.refresh().metadata_location
    with pytest.raises(InvalidInputError, match=r"cursor is not reachable.*--from-snapshot"):
        resolve(staged.table)
    assert staged.table.refresh().metadata_location == location
    assert notes(staged) == before
    resolve(staged.table, from_snapshot=head(staged, "staging"), skip_unpublished=True)
    assert notes(staged) == before
