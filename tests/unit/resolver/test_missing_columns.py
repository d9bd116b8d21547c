"""Staged rows that leave columns out, and what `resolve` fills in."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table.update import RemoveSnapshotsUpdate
from pyiceberg.types import LongType

from maintenance.tasks.compact import compact
from maintenance.tasks.options import CompactOptions
from resolver import resolve
from tableformat import TableCatalog
from tableformat.errors import CommitUnknownError, InvalidInputError, UnsupportedError
from tests.support.change_events import envelope, events_table
from tests.support.memory_tables import memory_catalog
from tests.support.other_deletes import delete_by

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("region", pa.string()),
        pa.field("name", pa.string(), nullable=False),
        ("tags", pa.list_(pa.string())),
        ("n", pa.int64()),
    ]
)
BASE = [(key, "eu", f"name {key}", [f"tag {key}"], key) for key in range(6)]
PLACEHOLDER = "__debezium_unavailable_value"


@pytest.fixture(params=["link", "rewrite"])
def mode(request):
    return request.param


@pytest.fixture(params=[(), ("region",), ("bucket(2, id)",)], ids=["", "by region", "by key"])
def table(request, mode, tmp_path):
    return make(tmp_path, mode, partition_by=request.param)


@pytest.fixture
def plain(mode, tmp_path):
    return make(tmp_path, mode)


def make(folder, mode, **more):
    catalog = memory_catalog(str(folder))
    table = catalog.create_table("t.rows", SCHEMA, primary_key=["id"], **more)
    table.set_properties({"icefold.publish": mode})
    table.append(rows(*BASE))
    return table


def rows(*values):
    return pa.Table.from_pylist(
        [dict(zip(SCHEMA.names, row, strict=True)) for row in values], SCHEMA
    )


def partial(table, **columns):
    table.stage(pa.table(columns), columns="partial")


def published(table, branch="main"):
    found = table.refresh().scan(branch=branch).to_arrow().to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: tuple(row.values())[1:] for row in found}


def ids(table):
    found = table.refresh().scan(columns=["id", "_row_id"]).to_arrow().to_pylist()
    return {row["id"]: row["_row_id"] for row in found}


@pytest.mark.parametrize("limit", [None, 1])
def test_row_that_a_delete_of_other_columns_took_is_not_what_a_later_one_replaces(plain, limit):
    plain.set_properties({"icefold.on-missing-row": "null"})
    before = ids(plain)
    plain.stage(rows((2, "eu", "staged", None, 20)))
    delete_by(plain, region=["eu"])
    partial(plain, id=[1, 2], name=["new", "new"])
    while resolve(plain, limit=limit).staged_snapshots:
        pass
    assert published(plain) == dict.fromkeys((1, 2), (None, "new", None, None))
    assert not set(ids(plain).values()) & set(before.values())


@pytest.mark.parametrize("limit", [None, 1])
def test_later_delete_of_other_columns_finds_the_value_that_a_row_left_out(plain, limit):
    partial(plain, id=[2], n=[20])
    delete_by(plain, region=["eu"])
    plain.stage(rows((7, "us", "seven", None, 7)))
    while resolve(plain, limit=limit).staged_snapshots:
        pass
    assert published(plain) == {7: ("us", "seven", None, 7)}


def test_state_of_staging_is_refused_where_a_cycle_would_have_to_end_inside_it(plain):
    """Its log has expired, so no marker can say that the rows are published and the deletes not."""
    partial(plain, id=[2], n=[20])
    delete_by(plain, region=["eu"])
    staged = plain.refresh().state.head("staging")
    plain.stage(rows((7, "us", "seven", None, 7)))
    forget_log(plain)
    before = published(plain)
    refused = rf"staged after rows that leave columns out.*sequence_number={staged.sequence_number}"
    with pytest.raises(UnsupportedError, match=refused):
        resolve(plain, from_staging_state=True)
    assert published(plain) == before


def test_state_of_staging_with_deletes_before_rows_that_leave_columns_out_is_published(plain):
    delete_by(plain, region=["us"])
    partial(plain, id=[2], n=[20])
    partial(plain, id=[2], region=["us"])
    forget_log(plain)
    resolve(plain, from_staging_state=True)
    assert published(plain)[2] == ("us", "name 2", ["tag 2"], 20)


def forget_log(table):
    """Expire all snapshots but the heads, as another tool does."""
    state = table.refresh().state
    heads = {ref.snapshot_id for ref in state.metadata.refs.values()}
    gone = [s.snapshot_id for s in state.metadata.snapshots if s.snapshot_id not in heads]
    table.environment.catalog.commit(state, [RemoveSnapshotsUpdate(snapshot_ids=gone)])


def test_column_of_a_void_partition_field_can_be_left_out(mode, tmp_path):
    table = make(tmp_path, mode, partition_by=["void(region)"])
    partial(table, id=[1], n=[10])
    resolve(table)
    assert published(table)[1] == ("eu", "name 1", ["tag 1"], 10)


@pytest.mark.parametrize("limit", [None, 1])
def test_missing_columns_come_from_earlier_staged_rows_then_from_the_published_one(table, limit):
    before = ids(table)
    partial(table, id=[1, 2], n=[10, 20])
    partial(table, id=[1, 3], name=["renamed", "three"])
    partial(table, id=[1], region=["us"])
    while resolve(table, limit=limit).staged_snapshots:
        pass
    expected = {key: row for key, *row in BASE}
    expected[1] = ["us", "renamed", ["tag 1"], 10]
    expected[2][3], expected[3][1] = 20, "three"
    assert published(table) == {key: tuple(row) for key, row in expected.items()}
    keeps = table.properties["icefold.publish"] == "rewrite"
    assert [ids(table)[key] == before[key] for key in (1, 2, 3)] == [keeps] * 3
    regions = table.scan("region = 'us'").to_arrow()
    assert regions.column("id").to_pylist() == [1]
    regions = table.scan("region = 'eu'").to_arrow()
    assert sorted(regions.column("id").to_pylist()) == [0, 2, 3, 4, 5]


def test_staged_position_finds_the_filled_row_whatever_partition_it_is_in(table):
    """The partition's column was left out, so the row is staged in another one."""
    partial(table, id=[1, 2], n=[10, 20])
    table.write_changes(
        events_table([envelope("t")]),
        format_name="debezium-json",
        options={"on-truncate": "apply"},
    )
    resolve(table, limit=1)
    assert published(table)[1] == ("eu", "name 1", ["tag 1"], 10)
    assert resolve(table).staged_snapshots == 1
    assert published(table) == {}


def test_staging_shows_null_and_zero_and_other_readers_see_no_more_columns(plain):
    partial(plain, id=[1], n=[10])
    assert published(plain, "staging")[1] == (None, "", None, 10)
    task = plain.environment
    paths = [each.location for each in task.store.list_prefix(plain.location())]
    stored = [path for path in paths if path.endswith(".parquet") and "delete" not in path]
    names = set()
    for path in stored:
        with task.store.open_input(path) as source:
            names |= set(pq.read_schema(source).names)
    assert "_icefold_missing_columns" in names
    assert published(plain)[1] == BASE[1][1:]
    resolve(plain)
    for entry in plain.inspect.data_files().column("file_path").to_pylist():
        with task.store.open_input(entry) as source:
            assert "_icefold_missing_columns" not in pq.read_schema(source).names


def test_a_column_set_to_null_is_not_missing(plain):
    partial(
        plain, id=[1], tags=pa.array([None], pa.list_(pa.string())), n=pa.array([None], pa.int64())
    )
    resolve(plain)
    assert published(plain)[1] == ("eu", "name 1", None, None)


def test_compaction_statement_and_schema_change_between_stage_and_publish(table):
    partial(table, id=[1, 2], n=[10, 20])
    compact(table.refresh(), CompactOptions(rewrite_all=True))
    table.refresh().upsert(rows((2, "eu", "by hand", ["tag 2"], 2)))
    table.refresh().update_schema(lambda update: update.add_column("more", LongType()))
    table.refresh().update_schema(lambda update: update.rename_column("tags", "labels"))
    partial(table, id=[2], more=[7])
    partial(table, id=[2], region=["us"])
    resolve(table)
    assert published(table)[1] == ("eu", "name 1", ["tag 1"], 10, None)
    assert published(table)[2] == ("us", "by hand", ["tag 2"], 20, 7)


def test_a_column_that_came_later_is_kept_by_rows_that_name_what_they_carry(plain):
    partial(plain, id=[1], n=[10])
    plain.refresh().update_schema(lambda update: update.add_column("more", LongType()))
    new = rows(BASE[1]).append_column("more", pa.array([5]))
    plain.refresh().upsert(new)
    resolve(plain)
    assert published(plain)[1] == ("eu", "name 1", ["tag 1"], 10, 5)


def test_rollback_and_publish_again_fills_from_the_row_that_is_there_then(plain):
    before = plain.refresh().state.head("main").snapshot_id
    partial(plain, id=[1], n=[10])
    resolve(plain)
    plain.refs.rollback(snapshot_id=before)
    partial(plain, id=[1], name=["again"])
    resolve(plain)
    assert published(plain)[1] == ("eu", "again", ["tag 1"], 10)


def test_lost_answer_of_the_publish_settles_to_one_row(plain, monkeypatch):
    partial(plain, id=[1], n=[10])
    environment = plain.environment
    armed = [True]

    def fail(name):
        if name == "resolve.after_publish" and armed:
            armed.clear()
            raise CommitUnknownError("lost")

    monkeypatch.setattr(type(environment.runtime), "fail_point", lambda self, name: fail(name))
    with pytest.raises(CommitUnknownError):
        resolve(plain)
    partial(plain, id=[1], name=["again"])
    resolve(plain)
    assert published(plain)[1] == ("eu", "again", ["tag 1"], 10)


def test_delete_between_leaves_nothing_to_fill_from(plain):
    plain.stage(deletes=pa.table({"id": [1]}))
    partial(plain, id=[1], n=[10])
    with pytest.raises(InvalidInputError, match=r"leaves out a column.*nothing was published"):
        resolve(plain)
    plain.set_properties({"icefold.on-missing-row": "null"})
    with pytest.raises(InvalidInputError, match=r"column=name, key=\{'id': 1\}"):
        resolve(plain)
    partial(plain, id=[1], name=["given"])
    resolve(plain)
    assert published(plain)[1] == (None, "given", None, 10)


def test_row_without_an_older_one_goes_to_the_dead_letters_once(plain):
    plain.set_properties({"icefold.on-missing-row": "dead-letter"})
    partial(plain, id=[1, 8], n=[10, 80])
    partial(plain, id=[8, 9], region=["us", "us"])

    before = plain.refresh().state.head("main").snapshot_id
    report = resolve(plain)
    plain.refs.rollback(snapshot_id=before)
    resolve(plain)
    assert report.staged_rows == 4
    found = published(plain)
    assert found[1] == ("eu", "name 1", ["tag 1"], 10)
    assert 8 not in found
    assert 9 not in found
    letters = TableCatalog(plain.environment).load_table("t.rows_dead_letter").scan().to_arrow()
    values = sorted(json.loads(value)["id"] for value in letters.column("value").to_pylist())
    assert values == [8, 9]


def test_sequence_column_decides_which_row_is_the_older_one(plain):
    options = {"columns": "partial", "sequence-column": "n"}

    def change(**columns):
        plain.write_changes(pa.table(columns), options=options)

    change(id=[1], n=[30], region=["thirty"])
    change(id=[1], n=[20], name=["twenty"])  # late, and still before the other one
    change(id=[2], n=[1], name=["too late"])  # main has version 2
    resolve(plain)
    assert published(plain)[1] == ("thirty", "twenty", ["tag 1"], 30)
    assert published(plain)[2] == BASE[2][1:]


def test_placeholders_of_one_batch_are_filled_inside_it_and_across(table):
    def event(op, **after):
        return json.dumps({"op": op, "after": after})

    lacks = {"name": PLACEHOLDER, "tags": [PLACEHOLDER]}
    events = [
        event("u", id=1, region="us", **lacks | {"name": "one"}, n=1),
        event("u", id=1, region="asia", **lacks, n=2),
        event("u", id=2, region="eu", **lacks, n=22),
        event("c", id=9, region="eu", name="nine", tags=[], n=9),
        event("u", id=9, region="eu", **lacks, n=99),
    ]
    table.write_changes(
        pa.table({"value": events}),
        format_name="debezium-json",
        options={"on-unavailable-value": "keep"},
    )
    resolve(table)
    found = published(table)
    assert found[1] == ("asia", "one", ["tag 1"], 2)
    assert found[2] == ("eu", "name 2", ["tag 2"], 22)
    assert found[9] == ("eu", "nine", [], 99)


def test_changed_key_with_a_placeholder_is_a_bad_record(plain):
    event = {"op": "u", "before": {"id": 1}, "after": {"id": 7, "name": PLACEHOLDER, "n": 1}}
    with pytest.raises(InvalidInputError, match="'name' is unavailable"):
        plain.write_changes(
            pa.table({"value": [json.dumps(event)]}),
            format_name="debezium-json",
            options={"on-unavailable-value": "keep"},
        )


def test_row_after_a_delete_of_its_batch_is_new(plain):
    changes = pa.table(
        {"id": [1, 1], "op": ["d", "u"], "n": [None, 5]},
        schema=pa.schema([("id", pa.int64()), ("op", pa.string()), ("n", pa.int64())]),
    )
    plain.write_changes(changes, options={"columns": "partial", "kind-column": "op"})
    with pytest.raises(InvalidInputError, match="replaces no row"):
        resolve(plain)


def test_partial_row_needs_the_columns_that_place_it(tmp_path):
    table = make(tmp_path, "link", partition_by=["region"], immutable_columns=["region"])
    with pytest.raises(InvalidInputError, match=r"cannot leave out .* column=region"):
        partial(table, id=[1], n=[1])
    with pytest.raises(InvalidInputError, match=r"cannot leave out .* column=id"):
        partial(table, n=[1])
    with pytest.raises(InvalidInputError, match="whole or partial"):
        table.stage(pa.table({"id": [1]}), columns="some")
    partial(table, id=[1], region=["eu"], n=[1])
    resolve(table)
    assert published(table)[1] == ("eu", "name 1", ["tag 1"], 1)


def test_partial_rows_are_not_brought_to_main_as_they_are(plain):
    partial(plain, id=[1], n=[10])
    plain.refresh()
    head = plain.state.head("staging").snapshot_id
    with pytest.raises(UnsupportedError, match="leave out columns"):
        plain.refs.fast_forward("main", to="staging")
    with pytest.raises(UnsupportedError, match="leave out columns"):
        plain.refs.cherry_pick(snapshot_id=head)
    resolve(plain)
    assert published(plain)[1] == ("eu", "name 1", ["tag 1"], 10)
