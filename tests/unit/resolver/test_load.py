"""`icefold load` beside changes: every change wins, every row comes once, whatever is killed."""

from __future__ import annotations

import datetime as dt
import json
import random
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from resolver import resolve, resolve_group
from resolver.group_report import GroupReport
from tableformat.cdc import load_source
from tableformat.cdc.load import LoadResult, abandon_load, load_files, read_load
from tableformat.cdc.load_source import LoadSource, open_source
from tableformat.errors import (
    FencedError,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
)
from tableformat.runtime import FailPoints, Runtime
from tableformat.spec.names import LOAD
from tests.support.memory_tables import memory_catalog

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), ("note", pa.string())])
POINTS = ("load.begun", "load.before_commit", "load.after_commit", "load.before_end",
          "catalog.before_swap", "catalog.after_swap", "commit.before_swap")  # fmt: skip


class Killed(BaseException):
    """A process that died."""


class World:
    def __init__(self, folder, rows=40, group=5):
        self.points = FailPoints()
        self.catalog = memory_catalog(str(folder / "index"), Runtime(fail_points=self.points))
        self.table = self.catalog.create_table("shop.orders", SCHEMA, primary_key=["id"])
        self.environment = self.table.environment
        self.files = folder / "files"
        self.files.mkdir()
        self.loaded = {key: f"loaded {key}" for key in range(rows)}
        for number, first in enumerate(range(0, rows, 20)):
            part = dict(list(self.loaded.items())[first : first + 20])
            path = self.files / f"part-{number}.parquet"
            pq.write_table(as_table(part), path, row_group_size=group)
        self.changed = {}

    def load(self, **more):
        source = open_source(str(self.files))
        return load_files(self.environment, self.table.identifier, source, **more)

    def stage(self, changes):
        self.changed |= changes
        upserts = {key: note for key, note in changes.items() if note is not None}
        deletes = [key for key, note in changes.items() if note is None]
        self.table.stage(
            as_table(upserts) if upserts else None,
            deletes=pa.table({"id": deletes}) if deletes else None,
        )

    def rows(self):
        found = self.table.refresh().scan().to_arrow().to_pylist()
        assert len({row["id"] for row in found}) == len(found), "a key has two rows"
        return {row["id"]: row["note"] for row in found}

    def wanted(self):
        both = self.loaded | self.changed
        return {key: note for key, note in both.items() if note is not None}

    def killed_at(self, name, turn):
        turns = iter(range(turn))

        def die(_):
            if next(turns, None) is None:
                self.points.armed.clear()
                raise Killed

        self.points.armed[name] = die


def as_table(rows):
    return pa.table([list(rows), list(rows.values())], schema=SCHEMA)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch):
    monkeypatch.setattr(load_source, "PIECE_BYTES", 600)


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_changes_win_whether_they_were_staged_before_meanwhile_or_after(world):
    world.stage({0: "before", 1: None, 100: "new"})
    told = []

    def progress(result):
        told.append(result.rows)
        if len(told) == 2:
            assert world.rows().keys() == set(range(told[-1]))  # no change is published yet
            world.stage({2: "meanwhile", 3: None, 39: None, 1: "back"})
            report = resolve(world.table)
            assert report.staged_snapshots == 0
            assert resolve_group([world.table]) == GroupReport()

    result = world.load(progress=progress)
    assert (result.rows, result.skipped_pieces) == (40, 0)
    assert result.pieces == len(told) > 3
    world.stage({4: "after", 5: None})
    resolve(world.table)
    assert world.rows() == world.wanted()
    assert LOAD not in world.table.refresh().properties


def test_loaded_rows_are_plain_appends(world):
    world.load()
    for snapshot in world.table.refresh().state.metadata.snapshots:
        assert snapshot.summary.operation.value == "append"
    assert world.rows() == world.loaded


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_load_killed_at_any_step_goes_on_and_loads_each_row_once(tmp_path, point):
    for turn in range(12):
        folder = tmp_path / str(turn)
        folder.mkdir()
        world = World(folder, rows=20)
        world.stage({0: "before", 1: None})
        world.killed_at(point, turn)
        try:
            world.load()
        except Killed:
            world.stage({2: None, 3: "between"})
            if world.rows() or LOAD in world.table.properties:  # it had begun
                resolve(world.table)  # nothing, while it is unfinished
            world.load()
        else:
            assert turn > 0, "it was never killed"
            break
        resolve(world.table)
        assert world.rows() == world.wanted()
    assert world.load() == LoadResult(skipped_pieces=len(open_source(str(world.files)).pieces()))


@pytest.mark.slow
def test_loads_beside_random_changes_and_kills_end_as_a_dict_says(tmp_path):
    for seed in range(12):
        drawn = random.Random(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        world = World(folder)

        def change(world=world, drawn=drawn):
            armed = dict(world.points.armed)  # the load is killed, not its writers
            world.points.armed.clear()
            keys = drawn.sample(range(60), drawn.randint(1, 6))
            world.stage({key: drawn.choice([None, f"changed {key}"]) for key in keys})
            if world.rows() or LOAD in world.table.properties:
                resolve(world.table)
            world.points.armed.update(armed)

        world.stage({drawn.randrange(60): None})
        for _ in range(3):
            world.killed_at(drawn.choice(POINTS), drawn.randint(0, 5))
            try:
                world.load(progress=lambda _, change=change: change())
            except Killed:
                world.points.armed.clear()
                change()
        world.points.armed.clear()
        world.load()
        change()
        resolve(world.table)
        assert world.rows() == world.wanted(), seed


def test_publish_that_had_begun_before_the_load_does_not_land(world):
    world.stage({0: "before"})
    text = json.dumps({"load": "load:x", "cursor": None})

    def begin(_):
        world.points.armed.clear()
        world.catalog.load_table("shop.orders").set_properties({LOAD: text})

    world.points.armed["resolve.after_match"] = begin
    with pytest.raises(InvalidInputError, match="not published while a load goes on"):
        resolve(world.table)
    assert world.rows() == {}


def test_load_stops_when_changes_were_published_nevertheless(world):
    world.stage({0: "before"})

    def progress(_):
        held = world.table.refresh().properties[LOAD]
        abandon_load(world.environment, world.table.identifier)
        resolve(world.table)
        world.catalog.load_table("shop.orders").set_properties({LOAD: held})

    with pytest.raises(FencedError, match="changes were published since the load began"):
        world.load(progress=progress)


def test_table_with_rows_or_published_changes_is_refused_unless_keys_are_said_to_be_new(world):
    world.table.append(as_table({100: "there"}))
    with pytest.raises(InvalidInputError, match="the table has rows"):
        world.load()
    world.load(assume_new_keys=True)
    assert world.rows() == world.loaded | {100: "there"}


def test_table_whose_rows_are_all_deleted_by_a_published_change_is_refused(world):
    world.stage({1: "x"})
    resolve(world.table)
    world.stage({1: None})
    resolve(world.table)
    assert world.rows() == {}
    with pytest.raises(InvalidInputError, match="the table has"):
        world.load()
    assert read_load(world.table.refresh().state) is None


def test_other_files_are_refused_while_a_load_is_unfinished_and_it_can_be_abandoned(world):
    world.killed_at("load.before_commit", 2)
    with pytest.raises(Killed):
        world.load()
    pq.write_table(as_table({70: "more"}), world.files / "more.parquet")
    with pytest.raises(InvalidInputError, match="a load of other files is unfinished"):
        world.load()
    part = world.rows()
    assert 0 < len(part) < 40
    world.stage({0: "changed"})
    assert abandon_load(world.environment, world.table.identifier)
    assert not abandon_load(world.environment, world.table.identifier)
    resolve(world.table)
    assert world.rows() == part | {0: "changed"}


@pytest.mark.parametrize("is_through", [True, False])
def test_files_that_were_replaced_by_others_of_their_size_are_another_load(world, is_through):
    if is_through:
        world.load()
    else:
        world.killed_at("load.after_commit", 0)
        with pytest.raises(Killed):
            world.load()
    path = world.files / "part-1.parquet"
    before = path.read_bytes()
    pq.write_table(
        as_table({key: f"LOADED {key}" for key in range(20, 40)}), path, row_group_size=5
    )
    assert path.stat().st_size == len(before)
    with pytest.raises(InvalidInputError, match="has rows" if is_through else "other files"):
        world.load()
    path.write_bytes(before)
    world.load()
    assert world.rows() == world.loaded


def test_load_that_an_older_release_has_done_is_not_done_again(world, monkeypatch):
    with monkeypatch.context() as older:
        older.setattr(LoadSource, "fingerprint", LoadSource.former_fingerprint)
        world.load()
    assert world.load(assume_new_keys=True).rows == 0
    assert world.rows() == world.loaded


def test_load_that_an_older_release_has_begun_goes_on(world, monkeypatch):
    with monkeypatch.context() as older:
        older.setattr(LoadSource, "fingerprint", LoadSource.former_fingerprint)
        world.killed_at("load.after_commit", 0)
        with pytest.raises(Killed):
            world.load()
    assert world.load().skipped_pieces
    assert world.rows() == world.loaded


def test_of_two_loads_that_begin_at_once_one_is_refused(world):
    other = open_source(str(world.files / "part-1.parquet"))

    def come_first(_):
        world.points.armed.clear()
        with pytest.raises(FencedError):
            load_files(world.environment, world.table.identifier, other, progress=lambda _: stop())

    def stop():
        raise FencedError("killed after its first piece")

    world.points.armed["catalog.before_swap"] = come_first
    with pytest.raises(InvalidInputError, match="a load of other files is unfinished"):
        world.load()
    load_files(world.environment, world.table.identifier, other)
    assert world.rows() == dict(list(world.loaded.items())[20:])


@pytest.mark.parametrize("assume_new_keys", [False, True])
def test_load_that_another_process_has_done_before_it_begins_is_told(world, assume_new_keys):
    def come_first(_):
        world.points.armed.clear()
        world.load()

    world.points.armed["catalog.before_swap"] = come_first
    with pytest.raises(FencedError, match="another process has ended the load"):
        world.load(assume_new_keys=assume_new_keys)
    assert world.load() == LoadResult(skipped_pieces=4)
    assert world.rows() == world.loaded


def test_end_of_an_abandoned_load_leaves_the_next_one_unfinished(world):
    other = world.files.parent / "other.parquet"
    pq.write_table(as_table(dict.fromkeys(range(100, 120), "other")), other, row_group_size=5)

    def begin_another(_):
        world.points.armed.clear()
        abandon_load(world.environment, world.table.identifier)
        world.killed_at("load.before_commit", 1)
        with pytest.raises(Killed):
            load_files(
                world.environment,
                world.table.identifier,
                open_source(str(other)),
                assume_new_keys=True,
            )

    world.points.armed["load.before_end"] = begin_another
    world.load()
    world.stage({100: "changed", 119: None})
    assert resolve(world.table).staged_snapshots == 0
    load_files(
        world.environment, world.table.identifier, open_source(str(other)), assume_new_keys=True
    )
    resolve(world.table)
    wanted = world.loaded | dict.fromkeys(range(100, 119), "other") | {100: "changed"}
    assert world.rows() == wanted


@pytest.mark.parametrize("after", [1, 2, -1])
def test_load_whose_pieces_are_rolled_back_stops_and_loads_them_when_it_is_run_again(world, after):
    total = len(open_source(str(world.files)).pieces())
    heads = []

    def progress(result):
        heads.append(world.table.refresh().state.head("main").snapshot_id)
        if result.pieces == after % total + 1:
            world.table.refs.rollback(snapshot_id=heads[0])

    with pytest.raises(FencedError, match="no longer has batch"):
        world.load(progress=progress)
    world.load()
    assert world.rows() == world.loaded


def test_key_that_stands_twice_is_refused_with_its_value(world):
    path = world.files / "part-0.parquet"
    pq.write_table(as_table({0: "a"} | {1: "b"}), path)
    doubled = pa.concat_tables([as_table({7: "a"}), as_table({7: "b"})])
    pq.write_table(doubled, path)
    with pytest.raises(InvalidInputError, match="more than once") as refused:
        world.load()
    assert "'id': 7" in str(refused.value)
    assert world.rows() == {}


def test_bad_first_file_begins_nothing_and_the_corrected_one_is_simply_loaded(world):
    path = world.files / "part-0.parquet"
    good = path.read_bytes()
    doubled = pa.concat_tables([as_table({7: "a"}), as_table({7: "b"})])
    nameless = pa.table({"id": pa.array([1, None]), "note": ["a", "b"]})
    for bad in (doubled, nameless, pa.table({"id": ["x"], "note": ["a"]})):
        pq.write_table(bad, path)
        with pytest.raises(InvalidInputError):
            world.load()
        assert read_load(world.table.refresh().state) is None
    path.write_bytes(good)
    world.load()
    assert world.rows() == world.loaded


@pytest.mark.parametrize("name", ["z.parquet", "z.csv"])
def test_last_file_whose_columns_do_not_fit_is_told_before_anything_is_begun(world, name):
    if name.endswith("csv"):
        for number in range(2):
            (world.files / f"part-{number}.parquet").unlink()
            rows = "".join(f"{200 * number + key},b\n" for key in range(200))
            (world.files / f"part-{number}.csv").write_text(f"id,note\n{rows}")
        (world.files / name).write_text("id,notes\n300,c\n")
    else:
        pq.write_table(pa.table({"id": [300], "notes": ["c"]}), world.files / name)
    with pytest.raises(InvalidInputError, match="notes"):
        world.load()
    assert world.rows() == {}
    assert read_load(world.table.refresh().state) is None


@pytest.mark.parametrize(("text", "number"), [
    ("98765432109876543210987654321098765", None), ("1E+30", None), ("1.23456789012", None),
    ("1.5x", None), (" 1.5 ", "1.5"), ("1e5", "100000"), ("7.1" + "0" * 60, "7.1"),
    ("1234567890123456789012345678", "1234567890123456789012345678"),
])  # fmt: skip
def test_decimal_of_a_csv_file_is_its_number_or_refused(tmp_path, text, number):
    """Arrow's reader makes another number of one that 128 bits do not hold."""
    catalog = memory_catalog(str(tmp_path / "index"))
    kinds = [pa.field("id", pa.int64(), nullable=False), ("price", pa.decimal128(38, 10))]
    table = catalog.create_table("shop.csv", pa.schema(kinds), primary_key=["id"])
    (tmp_path / "a.csv").write_text(f"id,price\n1,{text}\n2,\n")
    source = open_source(str(tmp_path / "a.csv"))
    if number is None:
        with pytest.raises(InvalidInputError, match="column 'price'"):
            load_files(table.environment, table.identifier, source)
        return
    load_files(table.environment, table.identifier, source)
    found = {row["id"]: row["price"] for row in table.refresh().scan().to_arrow().to_pylist()}
    assert found == {1: Decimal(number), 2: None}


def test_years_far_away_in_int96_are_loaded_as_they_are(tmp_path):
    at = [dt.datetime(1, 1, 1), dt.datetime(2024, 2, 29, 1, 2, 3, 4), dt.datetime(9999, 12, 31)]
    rows = pa.table({"id": [1, 2, 3], "at": pa.array(at, pa.timestamp("us"))})
    pq.write_table(rows, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    table = memory_catalog().create_table("shop.far", rows.schema, primary_key=["id"])
    load_files(table.environment, table.identifier, open_source(str(tmp_path)))
    assert table.refresh().scan().to_arrow().column("at").to_pylist() == at


def test_int96_of_spark_is_what_the_column_says(tmp_path):
    at = [dt.datetime(2024, 2, 29, 1, 2, 3, 4), None]
    naive = pa.array(at, pa.timestamp("us"))
    rows = pa.table({"id": [1, 2], "at": naive, "local": naive})
    pq.write_table(rows, tmp_path / "a.parquet", use_deprecated_int96_timestamps=True)
    instant = pa.timestamp("us", "UTC")
    schema = rows.schema.set(1, pa.field("at", instant))
    table = memory_catalog().create_table("shop.spark", schema, primary_key=["id"])
    load_files(table.environment, table.identifier, open_source(str(tmp_path)))
    found = table.refresh().scan().to_arrow()
    assert found.column("local").to_pylist() == at
    assert found.column("at").to_pylist() == [at[0].replace(tzinfo=dt.UTC), None]
    pq.write_table(rows, tmp_path / "a.parquet")  # INT64, which says that it is local
    other = memory_catalog().create_table("shop.local", schema, primary_key=["id"])
    with pytest.raises(InvalidInputError, match="at"):
        load_files(other.environment, other.identifier, open_source(str(tmp_path)))


def test_csv_is_read_as_databases_write_it(tmp_path):
    catalog = memory_catalog(str(tmp_path / "index"))
    schema = pa.schema([
        pa.field("id", pa.int64(), nullable=False), ("note", pa.string()), ("day", pa.date32()),
        ("price", pa.decimal128(9, 2)), ("at", pa.timestamp("us", tz="UTC")), ("ok", pa.bool_()),
    ])  # fmt: skip
    table = catalog.create_table("shop.csv", schema, primary_key=["id"])
    (tmp_path / "a.csv").write_text(
        'id,note,day,price,at,ok\n1,"two\nlines, ""quoted""",2024-02-29,1.50,'
        '2024-02-29T12:00:00.000001Z,true\n2,,,,,\n3,"",,,,\n4,NA,,,,false\n'
    )
    load_files(table.environment, table.identifier, open_source(str(tmp_path / "a.csv")))
    rows = sorted(table.refresh().scan().to_arrow().to_pylist(), key=lambda row: row["id"])
    assert rows[0] == {
        "id": 1, "note": 'two\nlines, "quoted"', "day": dt.date(2024, 2, 29),
        "price": Decimal("1.50"),
        "at": dt.datetime(2024, 2, 29, 12, 0, 0, 1, tzinfo=dt.UTC), "ok": True,
    }  # fmt: skip
    assert [row["note"] for row in rows[1:]] == [None, "", "NA"]
    (tmp_path / "b.csv").write_text("id,price\n9,cheap\n")
    with pytest.raises(InvalidInputError, match="a file cannot be read") as refused:
        load_files(table.environment, table.identifier, open_source(str(tmp_path / "b.csv")),
                   assume_new_keys=True)  # fmt: skip
    assert "b.csv" in str(refused.value)


def test_sources_that_cannot_be_right_are_told_in_one_line(world, tmp_path):
    for text, kind, line in [
        ("jdbc:postgresql://me:hunter2@db/shop", UnsupportedError, "no database"),
        ("https://example.org/a.parquet", UnsupportedError, "web servers"),
        ("what://me:hunter2@x/y", InvalidInputError, "cannot read from this URL"),
        (str(tmp_path / "nowhere"), NotFoundError, "no file to load"),
        (str(tmp_path / "nowhere" / "*.parquet"), NotFoundError, "no file to load"),
    ]:
        with pytest.raises(kind, match=line) as refused:
            open_source(text)
        assert "hunter2" not in str(refused.value)
        assert "\n" not in str(refused.value)
    (world.files / "b.csv").write_text("id\n1\n")
    with pytest.raises(InvalidInputError, match="Parquet files or CSV files"):
        open_source(str(world.files))
    found = open_source(str(world.files / "*.parquet")).files
    assert [path.rpartition("/")[2] for path, _ in found] == ["part-0.parquet", "part-1.parquet"]
    (world.files / "_SUCCESS").touch()
    assert len(open_source(str(world.files / "[!b]*")).files) == 2
    (tmp_path / "day=1").mkdir()
    pq.write_table(as_table({1: "x"}), tmp_path / "day=1" / "a.parquet")
    with pytest.raises(InvalidInputError, match="column=value"):
        open_source(str(tmp_path / "day=1"))
    (world.files / "part-0.parquet").write_bytes(b"PAR1nothing")
    with pytest.raises(InvalidInputError, match="cannot be read"):
        open_source(str(world.files / "part*")).pieces()
