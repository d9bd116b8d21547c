"""table.lookup: what may be asked for, where rows are found, and what an index cannot spoil."""

from __future__ import annotations

import datetime as dt
import shutil
import uuid
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import tableformat as tf
from resolver import build_index, resolve
from resolver.index_keeper import index_folder
from tableformat import LookupSource
from tableformat.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from tableformat.runtime import Runtime
from tableformat.scan.reader import read_scan
from tests.support.commit_tables import ManualClock
from tests.support.memory_tables import memory_catalog

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("customer_id", pa.int64()),
        ("region", pa.string()),
        ("note", pa.string()),
    ]
)


def rows(ids, note="first"):
    ids = list(ids)
    return pa.table(
        {
            "id": ids,
            "customer_id": [None if i % 10 == 9 else i // 3 for i in ids],
            "region": ["EU" if i % 2 else "US" for i in ids],
            "note": [f"{note} {i}" for i in ids],
        },
        schema=SCHEMA,
    )


@pytest.fixture
def catalog(tmp_path):
    return tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"))


@pytest.fixture
def table(catalog):
    """Ids 0 to 99, 10 to 19 updated, 20 to 24 deleted; the index is current."""
    table = catalog.create_table("t.rows", SCHEMA, primary_key=["id"])
    table.append(rows(range(100)))
    table.stage(upserts=rows(range(10, 20), "second"), deletes=pa.table({"id": range(20, 25)}))
    resolve(table)
    return table


def notes(result):
    return result.rows.column("note").to_pylist()


@pytest.mark.parametrize(
    "keys",
    [
        [3, 12],
        (3, 12),
        [(3,), (12,)],
        [{"id": 3}, {"id": 12}],
        {"id": [3, 12]},
        pa.table({"id": [3, 12]}),
        pa.table({"id": pa.array([3, 12], pa.int16())}),
        pa.record_batch({"id": [3, 12]}),
        pa.array([3, 12]),
        np.array([3, 12]),
    ],
    ids=lambda keys: type(keys).__name__,
)
def test_keys_may_be_given_in_many_forms(table, keys):
    found = table.lookup(keys)
    assert (found.source, found.reason) == (LookupSource.INDEX, None)
    assert notes(found) == ["first 3", "second 12"]
    assert found.key.tolist() == [0, 1]
    assert found.snapshot_id == table.state.head("main").snapshot_id


@pytest.mark.parametrize("key", [3, {"id": 3}, np.int64(3), {"id": np.int16(3)}, [np.uint8(3)]])
def test_one_key_is_a_value_or_a_dict(table, key):
    assert notes(table.lookup(key)) == ["first 3"]


def test_polars_and_pandas_frames_are_keys(table):
    polars, pandas = pytest.importorskip("polars"), pytest.importorskip("pandas")
    for frame in (polars.DataFrame({"id": [3]}), pandas.DataFrame({"id": [3]})):
        assert notes(table.lookup(frame)) == ["first 3"]


def test_absent_deleted_and_repeated_keys(table):
    found = table.lookup([500, 21, 12, 12, 3])
    assert found.missing.tolist() == [0, 1]
    assert found.key.tolist() == [2, 3, 4]
    assert notes(found) == ["second 12", "second 12", "first 3"]
    assert len(table.lookup([])) == 0


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ({"customer_id": 3}, "'customer_id' is no column of the key"),
        (pa.table({"id": [1], "note": ["x"]}), "'note' is no column of the key"),
        ([{"id": 1}, {"note": 2}], "different columns"),
        ("three", "does not fit its column"),
        ([1.5], "does not fit its column"),
        (2**70, "does not fit its column"),
        (object(), "does not fit its column"),
        ([(1, 2)], "does not fit its column"),
        ([Decimal("3.5")], "does not fit its column"),
        ([np.float32(3.5)], "does not fit its column"),
        (np.bool_(True), "does not fit its column"),
        (np.array([[3, 12]]), "1-dimensional"),
    ],
)
def test_keys_that_are_wrong_are_one_clear_line(table, keys, text):
    with pytest.raises(InvalidInputError, match=text) as raised:
        table.lookup(keys)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "key",
    [dt.datetime(2024, 2, 29, 23), pa.array([dt.datetime(2024, 2, 29, 23)], pa.timestamp("us"))],
    ids=["datetime", "array"],
)
def test_time_of_day_is_not_cut_off_to_find_a_date(catalog, key):
    schema = pa.schema([("day", pa.date32())])
    table = catalog.create_table("t.days", schema, primary_key=["day"])
    table.append(pa.table({"day": [dt.date(2024, 2, 29)]}))
    assert len(table.lookup(dt.date(2024, 2, 29))) == 1
    with pytest.raises(InvalidInputError, match="does not fit its column"):
        table.lookup(key)


BEYOND = 28335866171888863528086874558239339319
WRAPPED = Decimal("9112520769080847818597012580.0629468160")  # the 128 bits of it at scale 10


@pytest.mark.parametrize(
    "key",
    [
        pa.array([Decimal(BEYOND)], pa.decimal128(38, 0)),
        pa.array([str(BEYOND)]),
        pa.array([0.1]),
        np.array([0.1]),
    ],
    ids=["decimal", "text", "double", "numpy"],
)
def test_number_that_is_no_key_finds_no_other_one(catalog, key):
    kind = pa.decimal128(38, 10)
    table = catalog.create_table("t.numbers", pa.schema([("n", kind)]), primary_key=["n"])
    table.append(pa.table({"n": pa.array([WRAPPED, Decimal("0.1")], kind)}))
    assert len(table.lookup({"n": pa.array(["0.1"])})) == 1
    with pytest.raises(InvalidInputError, match="does not fit its column"):
        table.lookup({"n": key})


@pytest.mark.parametrize("zone", [None, "UTC"])
@pytest.mark.parametrize("copies", [1, 150])
def test_nanosecond_keys_are_found_by_a_scan(catalog, zone, copies):
    kind = pa.timestamp("ns", zone)
    keys = pa.array([1_700_000_000_000_000_001, 5], pa.int64()).cast(kind)
    schema = pa.schema([("at", kind), ("v", pa.int64())])
    table = catalog.create_table("t.instants", schema, primary_key=["at"])
    table.append(pa.table({"at": keys, "v": [0, 1]}, schema=schema))
    found = table.lookup(pa.table({"at": pa.concat_arrays([keys] * copies)}), ["v"])
    assert found.source == LookupSource.SCAN
    assert found.rows.column("v").to_pylist() == [0, 1] * copies


def test_names_of_columns_may_hold_dots(catalog):
    schema = pa.schema([("a.b", pa.int64()), ("note", pa.string()), ("c.d", pa.int64())])
    table = catalog.create_table("t.dots", schema, primary_key=["a.b"])
    table.append(pa.table({"a.b": [1, 2], "note": ["one", "two"], "c.d": [5, 6]}))
    table.add_index("by_cd", ["c.d"]).set_immutable_columns(["c.d"])
    for source in (LookupSource.SCAN, LookupSource.INDEX):
        found = table.lookup({"a.b": [2, 9]}, ["note"])
        assert (found.source, notes(found)) == (source, ["two"])
        found = table.lookup(5, ["note"], index="by_cd")
        assert (found.source, notes(found)) == (source, ["one"])
        build_index(table)
        build_index(table, "by_cd")


def test_no_keys_read_no_files(catalog, monkeypatch):
    table = catalog.create_table("t.unread", SCHEMA, primary_key=["id"])
    table.append(rows(range(10)))
    planned = []

    def read(environment, plan, **options):
        planned.extend(plan.tasks)
        return read_scan(environment, plan, **options)

    monkeypatch.setattr("tableformat.lookup.scan_lookup.read_scan", read)
    assert len(table.lookup([])) == 0
    assert planned == []
    assert len(table.lookup([3])) == len(planned) == 1


def test_columns_are_chosen_and_checked(table):
    found = table.lookup([12], ["note", "_pos", "_file"])
    assert found.rows.column_names == ["note", "_pos", "_file"]
    with pytest.raises(InvalidInputError, match="no column 'nope'"):
        table.lookup(12, ["nope"])


def test_composite_keys_of_many_types_with_and_without_index(catalog):
    day = dt.date(2024, 2, 29)
    names = [uuid.UUID(int=i) for i in range(3)]
    schema = pa.schema(
        [("u", pa.uuid()), ("day", pa.date32()), ("s", pa.string()), ("v", pa.int32())]
    )
    table = catalog.create_table("t.composite", schema, primary_key=["u", "day", "s"])
    storage = pa.array([n.bytes for n in names], pa.binary(16))
    table.append(
        pa.table(
            [
                pa.ExtensionArray.from_storage(pa.uuid(), storage),
                pa.array([day] * 3),
                pa.array(["", "a", "b"]),
                pa.array([0, 1, 2], pa.int32()),
            ],
            schema=schema,
        )
    )
    asked = [(names[2], day, "b"), (str(names[1]), day, "a"), (names[0], day, "b")]
    without = table.lookup(asked)
    assert without.source == LookupSource.SCAN
    build_index(table)
    found = table.lookup(asked)
    assert found.source == LookupSource.INDEX
    for result in (without, found):
        assert result.rows.column("v").to_pylist() == [2, 1]
        assert result.missing.tolist() == [2]
    with pytest.raises(InvalidInputError, match="tuple of its values"):
        table.lookup([names[0]])


def test_without_an_index_a_scan_finds_the_rows_and_says_so(catalog):
    table = catalog.create_table("t.plain", SCHEMA, primary_key=["id"])
    assert table.lookup(3).reason == "the table is empty"
    table.append(rows(range(1000)))
    table.append(rows(range(1000, 2000)))
    found = table.lookup([5, 1500, 5, 4000])
    assert found.source == LookupSource.SCAN
    assert "no index yet" in found.reason
    assert notes(found) == ["first 5", "first 1500", "first 5"]
    assert found.key.tolist() == [0, 1, 2]
    many = table.lookup(pa.table({"id": np.arange(0, 3000, 2)}))
    assert len(many) == 1000
    assert many.missing.tolist() == list(range(1000, 1500))


def test_commits_the_index_has_not_seen_are_followed_in_memory(table):
    table.append(rows(range(200, 220)))
    found = table.lookup([3, 12, 210, 22])
    assert found.source == LookupSource.FOLLOWED
    assert "20 rows followed" in found.reason
    assert notes(found) == ["first 3", "second 12", "first 210"]
    build_index(table)
    assert table.lookup(210).source == LookupSource.INDEX


def test_staging_a_tag_and_an_old_snapshot_are_looked_up_as_they_are(table):
    before = table.state.head("main").snapshot_id
    table.refs.create_tag("then")
    table.stage(upserts=rows([12, 300], "staged"), deletes=pa.table({"id": [3]}))
    fresh = table.lookup([3, 12, 300], branch="staging")
    assert fresh.source == LookupSource.FOLLOWED
    assert notes(fresh) == ["staged 12", "staged 300"]
    assert notes(table.lookup([3, 12, 300])) == ["first 3", "second 12"]
    with pytest.raises(InvalidInputError, match="not both"):
        table.lookup(3, branch="main", tag="then")
    resolve(table)
    table.lookup(1)  # opens the index where it is
    for options in ({"tag": "then"}, {"snapshot_id": before}):
        old = table.lookup([3, 12, 300], **options)
        assert old.source == LookupSource.FOLLOWED
        assert notes(old) == ["first 3", "second 12"]
    assert notes(table.lookup([3, 12, 300])) == ["staged 12", "staged 300"]


def test_too_many_unseen_rows_are_scanned_and_the_reason_says_what_to_do(table, monkeypatch):
    monkeypatch.setattr("resolver.lookup.FOLLOWED_ROWS_MAX", 10)
    table.append(rows(range(200, 220)))
    found = table.lookup([210, 12])
    assert found.source == LookupSource.SCAN
    assert "run resolve" in found.reason
    assert notes(found) == ["first 210", "second 12"]


def test_an_open_lookup_sees_what_a_resolver_publishes_meanwhile(table):
    for version in range(5):
        table.stage(upserts=rows([7], f"v{version}"))
        assert notes(table.lookup(7)) == [f"v{version - 1} 7" if version else "first 7"]
        resolve(
            tf.open_catalog(table.environment.catalog.name, **catalog_of(table)).load_table(
                "t.rows"
            )
        )
        found = table.lookup(7)
        assert (notes(found), found.source) == ([f"v{version} 7"], LookupSource.INDEX)


def catalog_of(table):
    return {"warehouse": table.environment.catalog.properties["warehouse"].removeprefix("file://")}


def test_lookups_run_beside_an_index_that_is_open_for_writing(table):
    from resolver.index.open import open_index
    from resolver.index_keeper import head_binding
    from resolver.key_reader import KeyReader

    state = table.state
    reader = KeyReader(table.environment.store, state.metadata, [1])
    wanted = head_binding(state, "main", reader.key.fingerprint, state.head("main"))
    folder = index_folder(table.environment, state, "main")
    opened = open_index(folder, wanted, runtime=table.environment.runtime).index
    try:
        assert table.lookup(12).source == LookupSource.INDEX
    finally:
        opened.close()


@pytest.mark.parametrize("what", ["runs", "files", "CURRENT", "all"])
def test_a_damaged_index_costs_time_and_no_rows(table, what):
    folder = index_folder(table.environment, table.state, "main")
    for path in sorted(folder.rglob("*")):
        is_content = path.is_file() and path.suffix in (".run", ".sst", "") and path.name != "LOCK"
        if is_content and (what == "all" or what in str(path.relative_to(folder))):
            path.write_bytes(bytes(b ^ 0x55 for b in path.read_bytes()))
    found = table.lookup([3, 12, 21])
    assert found.source == LookupSource.SCAN
    assert found.reason
    assert notes(found) == ["first 3", "second 12"]


def test_an_index_of_other_rows_is_found_out_by_the_rows(table, catalog):
    """Bound to this very snapshot, and wrong: only the rows themselves can tell."""
    other = catalog.create_table("t.other", SCHEMA, primary_key=["id"])
    other.append(rows(range(50, 150)))
    environment, state = table.environment, table.state
    build_index(other)
    mine = index_folder(environment, state, "main")
    theirs = index_folder(environment, other.state, "main")
    shutil.rmtree(mine)
    _rebind(theirs, mine, table, other)
    for key in (60, 55):  # behind the rows of the file; another row of the file
        found = table.lookup([3, key])
        assert found.source == LookupSource.SCAN
        assert notes(found) == ["first 3", f"first {key}"]


def _rebind(source: Path, target: Path, table, other):
    """Build the index of `other`'s keys under the binding and the file of `table`."""
    from resolver.index import BuildOptions, IndexedFile, SourceFile
    from resolver.index import build_index as build
    from resolver.index_keeper import head_binding
    from resolver.key_reader import KeyReader

    shutil.rmtree(source)
    state = table.state
    reader = KeyReader(table.environment.store, state.metadata, [1])
    file = table.scan().plan.tasks[0].entry.data_file
    wrong = other.scan().plan.tasks[0].entry.data_file
    build(
        target,
        head_binding(state, "main", reader.key.fingerprint, state.head("main")),
        reader.key,
        [
            SourceFile(
                IndexedFile(file_path=file.file_path, spec_id=0),
                100,
                lambda: reader.read_rows(wrong),
            )
        ],
        runtime=table.environment.runtime,
        options=BuildOptions(shard_count=1),
    ).close()


def test_secondary_indexes_are_declared_built_followed_and_verified(table):
    from resolver.index_check import verify

    table.add_index("by_customer", ["customer_id"]).add_index("by_place", ["region", "customer_id"])
    assert table.indexes == {"by_customer": ("customer_id",), "by_place": ("customer_id", "region")}
    first = table.lookup(4, index="by_customer")
    assert (first.source, sorted(first.rows.column("id").to_pylist())) == (
        LookupSource.SCAN,
        [12, 13, 14],
    )
    table.stage(upserts=rows(range(12, 14), "third"), deletes=pa.table({"id": [14]}))
    resolve(table)
    found = table.lookup([4, 7, 900], index="by_customer")
    assert found.source == LookupSource.INDEX
    assert sorted(notes(found)) == ["third 12", "third 13"]  # 21 to 23 are deleted
    assert found.missing.tolist() == [1, 2]
    place = table.lookup({"region": "EU", "customer_id": 4}, ["id"], index="by_place")
    assert (place.source, place.to_pylist()) == (LookupSource.INDEX, [{"id": 13}])
    for name in ("by_customer", "by_place", None):
        assert verify(table, name=name).report.is_sound
    table.append(rows([1002]))
    assert table.lookup(334, index="by_customer").source == LookupSource.FOLLOWED


def test_null_is_found_by_null_with_and_without_index(table):
    table.add_index("by_customer", ["customer_id"])
    expected = list(range(9, 100, 10))
    without = table.lookup([None], index="by_customer")
    build_index(table, "by_customer")
    found = table.lookup([{"customer_id": None}], index="by_customer")
    assert (without.source, found.source) == (LookupSource.SCAN, LookupSource.INDEX)
    for result in (without, found):
        assert sorted(result.rows.column("id").to_pylist()) == expected


def test_an_index_survives_a_rename_and_ends_with_its_column(table):
    table.add_index("by_customer", ["customer_id"])
    build_index(table, "by_customer")
    table.update_schema(lambda s: s.rename_column("customer_id", "client"))
    assert table.lookup({"client": 4}, ["id"], index="by_customer").source == LookupSource.INDEX
    table.update_schema(lambda s: s.delete_column("client"))
    with pytest.raises(InvalidInputError, match="has been dropped"):
        table.lookup(4, index="by_customer")
    table.drop_index("by_customer")
    assert table.indexes == {}


def test_wrong_declarations_are_refused(table):
    table.add_index("by_customer", ["customer_id"]).add_index("by_customer", ["customer_id"])
    with pytest.raises(AlreadyExistsError, match="on other columns"):
        table.add_index("by_customer", ["region"])
    for name, columns in (
        ("x", ["nope"]),
        ("x", []),
        ("a/b", ["id"]),
        ("x", ["id", "id"]),
        ("x", "id"),
    ):
        with pytest.raises(InvalidInputError):
            table.add_index(name, columns)
    with pytest.raises(NotFoundError, match="no index 'nope'"):
        table.lookup(1, index="nope")
    with pytest.raises(NotFoundError):
        table.drop_index("nope")


def test_folders_of_dropped_indexes_are_removed(table):
    table.add_index("by_customer", ["customer_id"])
    build_index(table, "by_customer")
    folder = index_folder(table.environment, table.state, "main", "by_customer")
    assert folder.is_dir()
    table.drop_index("by_customer")
    table.stage(upserts=rows([1], "x"))
    resolve(table)
    assert not folder.exists()
    assert index_folder(table.environment, table.state, "main").is_dir()


@pytest.mark.slow
def test_a_user_of_tableformat_alone_gets_the_index(table, tmp_path):
    """The provider is found through its entry point, not because a test imported it."""
    import subprocess
    import sys

    warehouse = catalog_of(table)["warehouse"]
    code = (
        "import sys, tableformat as tf\n"
        f"t = tf.open_catalog('local', warehouse={warehouse!r}).load_table('t.rows')\n"
        "assert 'resolver' not in sys.modules\n"
        "print(t.lookup(12).source)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout.strip() == "index", done.stderr


def test_an_allowed_age_of_the_head_saves_asking_and_is_never_exceeded(tmp_path):
    clock = ManualClock()
    catalog = memory_catalog(str(tmp_path / "index"), Runtime(clock=clock))
    table = catalog.create_table("t.rows", SCHEMA, primary_key=["id"])
    table.append(rows([1], "first"))
    with tf.Lookup(table.environment, table.identifier) as lookup:

        def note(age_ms):
            return notes(lookup.find([1], head_age_max_ms=age_ms))

        assert note(1000) == ["first 1"]
        table.stage(upserts=rows([1], "second"))
        resolve(table)
        clock.advance(1000)
        assert note(1000) == ["first 1"], "as old as allowed"
        assert note(999) == ["second 1"]
        table.stage(upserts=rows([1], "third"))
        resolve(table)
        assert note(0) == ["third 1"], "0 always asks"
        clock.advance(1001)
        assert note(1000) == ["third 1"]


def test_lookups_of_one_age_ask_the_catalog_once(table, monkeypatch):
    asked = []
    load = type(table.environment.catalog).load_table

    def counted(self, identifier):
        asked.append(identifier)
        return load(self, identifier)

    monkeypatch.setattr(type(table.environment.catalog), "load_table", counted)
    with tf.Lookup(table.environment, table.identifier) as lookup, ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda i: lookup.find([i], head_age_max_ms=60_000), range(40)):
            assert found.key_count == 1
    assert len(asked) == 1


@pytest.mark.parametrize(("zone", "other"), [("UTC", None), (None, "UTC")])
def test_timestamp_with_a_zone_is_no_key_without_one_nor_the_other_way_round(tmp_path, zone, other):
    schema = pa.schema([("id", pa.timestamp("us", tz=zone)), ("n", pa.int64())])
    catalog = tf.open_catalog("local", warehouse=str(tmp_path))
    table = catalog.create_table("t.moments", schema, primary_key=["id"])
    table.append(pa.table([pa.array([0], schema.field("id").type), [1]], schema=schema))
    table.refresh()
    assert len(table.lookup(pa.table({"id": pa.array([0], schema.field("id").type)})).rows) == 1
    with pytest.raises(InvalidInputError, match="time zone"):
        table.lookup(pa.table({"id": pa.array([0], pa.timestamp("us", tz=other))}))
    moment = dt.datetime(1970, 1, 1, tzinfo=None if zone is None else dt.UTC)
    assert len(table.lookup(moment).rows) == 1
    with pytest.raises(InvalidInputError, match="time zone"):
        table.lookup([{"id": dt.datetime(1970, 1, 1, tzinfo=None if other is None else dt.UTC)}])


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (pa.date32(), 5),
        (pa.date32(), Decimal("5.5")),
        (pa.date32(), dt.datetime(2024, 1, 1, 5)),
        (pa.time64("us"), -1),
        (pa.time64("us"), dt.time(10, tzinfo=dt.UTC)),
        (pa.timestamp("us"), Decimal(5)),
        (pa.timestamp("us"), uuid.UUID(int=5)),
    ],
)
def test_what_is_another_moment_or_none_is_no_key(kind, given):
    table = memory_catalog().create_table(
        "t.moments", pa.schema([("id", kind)]), primary_key=["id"]
    )
    with pytest.raises(InvalidInputError, match="does not fit its column"):
        table.lookup([{"id": given}])


def test_nanoseconds_of_pandas_are_not_left_out():
    pandas = pytest.importorskip("pandas")
    schema = pa.schema([("id", pa.timestamp("us"))])
    table = memory_catalog().create_table("t.moments", schema, primary_key=["id"])
    with pytest.raises(InvalidInputError, match="does not fit its column"):
        table.lookup(pandas.Timestamp("2024-01-01T00:00:00.123456789"))
