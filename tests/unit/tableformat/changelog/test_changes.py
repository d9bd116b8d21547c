import tempfile
from collections import Counter

import pyarrow as pa
import pytest
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.types import LongType, StringType

from maintenance import expire
from maintenance.tasks.options import ExpireOptions
from resolver import resolve
from tableformat.catalog.base import TableState
from tableformat.changelog import buckets
from tableformat.changelog.changes import new_changes
from tableformat.commit.evolution import update_schema
from tableformat.commit.expiry_plan import ExpiryPolicy
from tableformat.errors import InvalidInputError, NotFoundError, UnsupportedError
from tests.support import random_tables
from tests.support.memory_tables import memory_catalog
from tests.support.scan_cases import opt, schema
from tests.support.scan_tables import HandMadeTable

SCHEMA = pa.schema([("id", pa.int64()), ("note", pa.string()), ("amount", pa.int32())])


def table_rows(*values):
    return pa.table(list(map(list, zip(*values, strict=True))), schema=SCHEMA)


@pytest.fixture
def table(tmp_path):
    made = memory_catalog(str(tmp_path)).create_table("t.rows", SCHEMA, primary_key=["id"])
    made.append(table_rows(*((key, "old", key) for key in range(10))))
    made.start = made.state.head("main").snapshot_id
    return made


def upsert(table, *values, deletes=()):
    gone = pa.table({"id": pa.array(deletes, pa.int64())})
    table.stage(table_rows(*values) if values else None, gone if deletes else None)
    resolve(table)
    return table.refresh().state.head("main").snapshot_id


def kinds(changes):
    return sorted(
        (kind, *row)
        for *row, kind, _, _ in zip(*(c.to_pylist() for c in changes.columns), strict=True)
    )


def test_upserts_and_deletes_have_their_images(table):
    upsert(table, (3, "new", 3), (99, "new", 99), deletes=[4])
    assert kinds(table.changes(table.start).to_arrow()) == [
        ("+I", 99, "new", 99),
        ("+U", 3, "new", 3),
        ("-D", 4, "old", 4),
        ("-U", 3, "old", 3),
    ]


def test_columns_tell_commit_and_order(table):
    first = upsert(table, (3, "new", 3))
    second = upsert(table, (3, "newer", 3))
    changes = table.changes(table.start, columns=["note"]).to_arrow()
    assert changes.schema.names == [
        "note",
        "_change_type",
        "_change_ordinal",
        "_commit_snapshot_id",
    ]
    assert changes.column("_commit_snapshot_id").to_pylist() == [first, first, second, second]
    assert changes.column("_change_ordinal").to_pylist() == [0, 0, 1, 1]
    assert changes.column("note").to_pylist() == ["old", "new", "new", "newer"]
    net = table.changes(table.start, columns=["note"], net=True).to_arrow()
    assert net.column("note").to_pylist() == ["old", "newer"]
    assert set(net.column("_commit_snapshot_id").to_pylist()) == {second}


def test_upsert_of_equal_values_is_no_change(table):
    upsert(table, (3, "old", 3), (4, "old", None))
    assert kinds(table.changes(table.start).to_arrow()) == [
        ("+U", 4, "old", None),
        ("-U", 4, "old", 4),
    ]
    assert table.changes(table.start, columns=["note"]).to_arrow().num_rows == 0


def test_filter_gives_the_changes_of_the_filtered_table(table):
    upsert(table, (3, "new", 30), (4, "new", 4), (9, "new", 0), (50, "new", 50))
    assert kinds(table.changes(table.start, filter="amount >= 5").to_arrow()) == [
        ("+I", 3, "new", 30),
        ("+I", 50, "new", 50),
        ("-D", 9, "old", 9),
    ]


def test_from_nothing_every_row_is_an_insert(table):
    upsert(table, (3, "new", 3))
    net = table.changes(None, net=True).to_arrow()
    assert net.num_rows == 10
    assert set(net.column("_change_type").to_pylist()) == {"+I"}
    single = Counter(table.changes(None).to_arrow().column("_change_type").to_pylist())
    assert single == {"+I": 10, "-U": 1, "+U": 1}


def test_names_of_branches_and_tags_are_taken(table):
    table.refs.create_tag("before")
    table.stage(table_rows((3, "new", 3)))
    assert table.changes("before", "staging").to_arrow().num_rows == 2
    assert table.changes("before", branch="staging").to_arrow().num_rows == 2
    assert table.changes("before").to_arrow().num_rows == 0
    assert kinds(table.changes("staging", "before").to_arrow()) == [
        ("+U", 3, "old", 3),
        ("-U", 3, "new", 3),
    ]


def test_keys_that_occur_twice_are_paired_as_often_as_they_can_be(table):
    table.append(table_rows((3, "twin", 1), (3, "twin", 1), (5, "old", 5)))
    assert kinds(table.changes(table.start, net=True).to_arrow()) == [
        ("+I", 3, "twin", 1),
        ("+I", 3, "twin", 1),
        ("+I", 5, "old", 5),
    ]
    twins = table.state.head("main").snapshot_id
    upsert(table, (3, "one", 1), deletes=[5])
    changes = table.changes(twins).to_arrow()
    assert Counter(changes.column("_change_type").to_pylist()) == {"-D": 4, "-U": 1, "+U": 1}


def test_many_changes_go_through_temporary_files(table, tmp_path, monkeypatch):
    expected = upsert(table, *((key, "new", key) for key in range(0, 300, 3)), deletes=[1, 2])
    plain = table.changes(table.start, expected).to_arrow()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    spilled = table.changes(table.start, expected)
    monkeypatch.setattr(buckets.ChangeBuckets.__init__, "__kwdefaults__", {"buffer_bytes": 100})
    batches = spilled.to_batches()
    first = next(batches)
    assert list(tmp_path.glob("icefold-changes-*"))
    found = pa.Table.from_batches([first, *batches])
    assert not list(tmp_path.glob("icefold-changes-*"))
    assert kinds(found) == kinds(plain)
    names = found.column("_change_type").to_pylist()
    ids = found.column("id").to_pylist()
    for place, kind in enumerate(names):
        if kind == "-U":
            assert (names[place + 1], ids[place + 1]) == ("+U", ids[place])


def test_metadata_columns_come_along_and_are_not_compared(table):
    table.overwrite(table_rows(*((key, "old", key) for key in range(10))), filter="id >= 0")
    columns = ["id", "_file", "_pos", "_row_id"]
    assert table.changes(table.start, columns=columns).to_arrow().num_rows == 0
    upsert(table, deletes=[7])
    [change] = table.changes(table.start, columns=columns, net=True).to_arrow().to_pylist()
    assert (change["id"], change["_pos"], change["_row_id"]) == (7, 7, 7)


def test_rolled_back_changes_are_undone_first(table):
    upsert(table, (3, "new", 3))
    gone = upsert(table, (4, "new", 4))
    table.refs.rollback(snapshot_id=table.start)
    table.append(table_rows((50, "later", 50)))
    changes = table.changes(gone).to_arrow()
    assert kinds(changes.filter(pa.compute.equal(changes["_change_ordinal"], 0))) == [
        ("+U", 3, "old", 3),
        ("+U", 4, "old", 4),
        ("-U", 3, "new", 3),
        ("-U", 4, "new", 4),
    ]
    assert changes.column("_commit_snapshot_id").to_pylist()[0] == table.start
    assert kinds(changes)[0] == ("+I", 50, "later", 50)


def test_expired_snapshots_are_one_clear_error(table):
    middle = upsert(table, (3, "new", 3))
    last = upsert(table, (4, "new", 4))
    table.refs.create_tag("kept", snapshot_id=table.start)
    policy = ExpiryPolicy(max_snapshot_age_ms=0, min_snapshots_to_keep=1)
    table.environment.runtime.clock.sleep_ms(5)
    expire(table, ExpireOptions(policy=policy))
    with pytest.raises(NotFoundError, match=f"there is no snapshot {middle}; .*expired"):
        table.changes(middle)
    with pytest.raises(NotFoundError, match=f"snapshot {middle} has expired.*ask for net changes"):
        table.changes("kept", last).to_batches()
    assert table.changes("kept", last, net=True).to_arrow().num_rows == 4


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"to_snapshot": "main", "branch": "main"}, "not both"),
        ({"columns": ["nope"]}, "no column 'nope'"),
        ({"filter": "nope = 1"}, "no column 'nope'"),
        ({"filter": "id =="}, "cannot read the filter"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_read(table, arguments, text):
    with pytest.raises(InvalidInputError, match=text):
        table.changes(None, **arguments)


def test_unknown_snapshots_and_refs_are_named(table):
    for wrong in (17, "nope"):
        with pytest.raises(NotFoundError, match=f"{wrong}"):
            table.changes(wrong)
        with pytest.raises(NotFoundError, match=f"{wrong}"):
            table.changes(None, wrong)


def test_column_named_like_a_changelog_column_must_be_left_out(tmp_path):
    fields = pa.schema([("id", pa.int64()), ("_change_type", pa.string())])
    made = memory_catalog(str(tmp_path)).create_table("t.rows", fields, primary_key=["id"])
    with pytest.raises(InvalidInputError, match="has the name of a changelog column"):
        made.changes(None)
    assert made.changes(None, columns=["id"]).to_arrow().num_rows == 0


def test_same_snapshot_and_empty_table_have_no_changes(table, tmp_path):
    assert table.changes("main").to_arrow().num_rows == 0
    empty = memory_catalog(str(tmp_path / "e")).create_table("t.rows", SCHEMA, primary_key=["id"])
    assert empty.changes(None).to_arrow().num_rows == 0
    assert empty.changes(None).to_arrow().schema == empty.changes(None).arrow_schema()


def test_only_row_groups_with_changed_rows_are_read(tmp_path, monkeypatch):
    properties = {"write.parquet.row-group-size-bytes": "4096"}
    made = memory_catalog(str(tmp_path)).create_table(
        "t.rows", SCHEMA, primary_key=["id"], properties=properties
    )
    made.append(table_rows(*((key, f"note {key}", key) for key in range(20_000))))
    start = made.state.head("main").snapshot_id
    upsert(made, deletes=[5, 19_999])
    seen = []
    from tableformat.codec.parquet import reader as parquet_reader

    original = parquet_reader._groups_with

    def spy(footer, groups, wanted):
        kept = original(footer, groups, wanted)
        seen.append((len(kept), footer.num_row_groups))
        return kept

    monkeypatch.setattr(parquet_reader, "_groups_with", spy)
    assert made.changes(start).to_arrow().column("id").to_pylist() == [5, 19_999]
    [(read, total)] = seen
    assert total > 10
    assert read == 2


class TwoVersions:
    """A hand-made table whose versions are snapshots of one table."""

    def __init__(self, made):
        self.made = made
        self.states = []

    def keep(self):
        self.states.append((self.made.state(), [dict(r.values) for r in self.made.live_rows()]))

    def changes(self, old, new, **options):
        snapshots = [
            state.metadata.snapshots[0].model_copy(
                update={
                    "snapshot_id": number,
                    "parent_snapshot_id": number - 1 or None,
                    "summary": Summary(Operation.OVERWRITE),
                }
            )
            for number, (state, _) in enumerate(self.states, start=1)
        ]
        head = SnapshotRef(snapshot_id=len(snapshots), snapshot_ref_type=SnapshotRefType.BRANCH)
        last = self.states[-1][0].metadata
        changed = {
            "snapshots": snapshots,
            "refs": {"main": head},
            "current_snapshot_id": len(snapshots),
        }
        metadata = type(last)(**{**dict(last), **changed})
        state = TableState(("db", "t"), metadata, "memory://x.metadata.json")
        return new_changes(
            self.made.environment(), state, from_snapshot=old + 1, to_snapshot=new + 1, **options
        ).to_arrow()


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("net", [False, True])
def test_any_valid_mix_of_deletes_leads_from_version_to_version(seed, net):
    """Position deletes, deletes on other columns, several specs, no primary key, NULL keys."""

    versions = TwoVersions(HandMadeTable(random_tables.KEYED, list(random_tables.SPECS)))
    original = HandMadeTable.commit

    def commit(self):
        if self is versions.made and self.sequence_number:
            versions.keep()
        return original(self)

    HandMadeTable.commit = commit
    try:
        random_tables.random_table(seed, new_table=lambda *_: versions.made)
    finally:
        HandMadeTable.commit = original
    versions.keep()
    last = len(versions.states) - 1
    for old, new in {(0, last), (last, 0), (last // 2, last), (0, last // 2)}:
        found = versions.changes(old, new, net=net)
        result = Counter(tuple(row.get(i) for i in (1, 2, 3)) for row in versions.states[old][1])
        for *row, kind, _, _ in zip(*(c.to_pylist() for c in found.columns), strict=True):
            step = 1 if kind in ("+I", "+U") else -1
            result[tuple(row)] += step
            assert result[tuple(row)] >= 0
        wanted = Counter(tuple(row.get(i) for i in (1, 2, 3)) for row in versions.states[new][1])
        assert +result == wanted


def test_column_that_older_files_cannot_give_need_not_be_asked_for(table):
    def edit(update):
        update.add_column("must", StringType(), required=True)

    update_schema(table.environment, table.identifier, edit, allow_incompatible_changes=True)
    table.refresh().append(
        pa.table({"id": [99], "note": ["new"], "amount": pa.array([9], pa.int32()), "must": ["m"]})
    )
    found = table.changes(None, columns=["note"], filter="amount > 8").to_arrow()
    assert sorted(found["note"].to_pylist()) == ["new", "old"]
    for asked in ({}, {"columns": ["note"], "filter": "must = 'm'"}):
        with pytest.raises(UnsupportedError, match="column 'must' is required, and was not there"):
            table.changes(None, **asked).to_arrow()


def test_rows_without_a_primary_key_are_known_by_their_row_id():
    made = HandMadeTable(schema(opt(1, "a", LongType()), opt(2, "b", StringType())))
    versions = TwoVersions(made)
    made.commit()
    [entry] = made.add(pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"]}))
    versions.keep()
    made.commit()
    made.delete_vector(entry, [0, 1])
    stored = pa.table(
        {"a": [1, 20, 4], "b": ["x", "y", "n"], "_row_id": pa.array([0, 1, None], pa.int64())}
    )
    made.add(stored)
    versions.keep()
    assert kinds(versions.changes(0, 1)) == [("+I", 4, "n"), ("+U", 20, "y"), ("-U", 2, "y")]
