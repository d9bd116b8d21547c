"""`Table.upsert` replaces rows by key in one commit. The oracle is a dict."""

from __future__ import annotations

import random
import subprocess
import sys
from datetime import date

import pyarrow as pa
import pytest

from maintenance import compact
from resolver import build_index, resolve
from tableformat.errors import CommitConflictError, InvalidInputError
from tableformat.runtime import FailPoints, Runtime
from tests.support.memory_tables import memory_catalog

SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string()), ("amount", pa.int64())])


def rows(*given: tuple) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(SCHEMA.names, r, strict=True)) for r in given], SCHEMA)


def make(tmp_path, *given: tuple, runtime: Runtime | None = None, **options):
    catalog = memory_catalog(index_directory=str(tmp_path), runtime=runtime)
    table = catalog.create_table("t.rows", SCHEMA, primary_key=["id"], **options)
    if given:
        table.append(rows(*given))
    return table


def stored(table, **where) -> dict[int, tuple]:
    found = table.scan(columns=["id", "region", "amount", "_row_id"], **where).to_arrow()
    listed = [tuple(row.values()) for row in found.to_pylist()]
    by_key = {row[0]: row[1:] for row in listed}
    assert len(by_key) == len(listed), "a key twice"
    return by_key


@pytest.mark.parametrize("mode", ["merge-on-read", "copy-on-write"])
@pytest.mark.parametrize("indexed", [False, True], ids=["scan", "index"])
def test_rows_of_known_keys_are_replaced_and_new_ones_added(tmp_path, indexed, mode) -> None:
    table = make(tmp_path, (1, "eu", 1), (2, "eu", 2), (3, "us", 3), partition_by=["region"])
    if indexed:
        build_index(table)
    before = stored(table)
    result = table.upsert(rows((2, "us", 20), (4, "eu", 40)), mode=mode)
    assert (result.updated_rows, result.inserted_rows, result.deleted_rows) == (1, 1, 0)
    after = stored(table)
    assert {key: row[:2] for key, row in after.items()} == {
        1: ("eu", 1),
        2: ("us", 20),
        3: ("us", 3),
        4: ("eu", 40),
    }
    assert {key: after[key][2] for key in before} == {key: before[key][2] for key in before}


@pytest.mark.slow
def test_a_history_of_upserts_keeps_each_row_and_its_id(tmp_path) -> None:
    """Beside staged changes, compaction and an index that is behind."""
    draw = random.Random(7)
    table = make(tmp_path, partition_by=["bucket(2, id)"])
    model: dict[int, tuple] = {}
    ids: dict[int, int] = {}
    for step in range(40):
        keys = draw.sample(range(12), draw.randint(1, 5))
        new = {key: (draw.choice(["eu", "us"]), step * 100 + key) for key in keys}
        kind = draw.choice(["upsert", "upsert", "upsert", "stage", "delete", "compact", "index"])
        if kind == "upsert":
            result = table.upsert(rows(*((key, *row) for key, row in new.items())))
            assert result.updated_rows == len(keys & model.keys())
            model |= new
        elif kind == "stage":
            table.stage(upserts=rows(*((key, *row) for key, row in new.items())))
            resolve(table)
            model |= new
            ids = {key: row_id for key, row_id in ids.items() if key not in new}
        elif kind == "delete":
            table.delete(f"id = {keys[0]}")
            model.pop(keys[0], None)
            ids.pop(keys[0], None)
        elif kind == "compact":
            compact(table)
        else:
            build_index(table)
        found = stored(table)
        assert {key: row[:2] for key, row in found.items()} == model
        assert {key: found[key][2] for key in ids} == ids
        ids = {key: row[2] for key, row in found.items()}


def test_several_rows_of_a_key_become_one_with_the_newest_id(tmp_path) -> None:
    table = make(tmp_path, (1, "eu", 1))
    table.append(rows((1, "eu", 2)))
    result = table.upsert(rows((1, "eu", 3)))
    assert (result.updated_rows, result.deleted_rows) == (1, 1)
    assert stored(table) == {1: ("eu", 3, 1)}


def test_first_rows_of_a_table_and_of_a_branch(tmp_path) -> None:
    table = make(tmp_path)
    assert table.upsert(rows((1, "eu", 1))).inserted_rows == 1
    table.refs.create_branch("fix")
    assert table.upsert(rows((1, "eu", 2), (2, "eu", 2)), branch="fix").updated_rows == 1
    assert [row[1] for row in stored(table).values()] == [1]
    assert [row[1] for row in stored(table, branch="fix").values()] == [2, 2]


def test_nothing_to_upsert_commits_nothing(tmp_path) -> None:
    table = make(tmp_path, (1, "eu", 1))
    assert table.upsert(rows()).snapshot is None
    assert len(table.refresh().snapshots()) == 1


@pytest.mark.parametrize("when", ["after_plan", "before_commit"])
def test_a_row_of_the_key_that_came_meanwhile_is_a_conflict(tmp_path, when) -> None:
    points = FailPoints()
    table = make(tmp_path, (1, "eu", 1), runtime=Runtime(fail_points=points))

    def other(_: str) -> None:
        points.armed.clear()
        make_other.append(rows((5, "us", 50)))

    make_other = open_other(table)
    points.armed[f"rowlevel.{when}"] = other
    with pytest.raises(CommitConflictError):
        table.upsert(rows((5, "eu", 5)))
    assert stored(table)[5][:2] == ("us", 50)
    assert table.upsert(rows((5, "eu", 5)), retries=1).updated_rows == 1


def open_other(table):
    return type(table)(table.environment, table.state)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (rows((1, "eu", 1), (1, "us", 2)), "upserted more than once"),
        (pa.table({"region": ["eu"]}), "column=id"),
        (pa.table({"idx": [1]}), "unknown column"),
        (pa.table({"id": ["x"]}), "does not fit"),
        (rows((None, "eu", 1)), "null"),
        (rows((1, "eu", 1)).append_column("_row_id", pa.array([7])), "unknown column"),
    ],
)
def test_rows_that_cannot_be_right_are_refused(tmp_path, given, message) -> None:
    table = make(tmp_path, (1, "eu", 0))
    with pytest.raises(InvalidInputError, match=message) as caught:
        table.upsert(given)
    assert "\n" not in str(caught.value)
    assert stored(table) == {1: ("eu", 0, 0)}


def test_keys_in_structs_and_of_several_columns(tmp_path) -> None:
    key = pa.struct([("a b", pa.string()), ("day", pa.date32())])
    schema = pa.schema([("k", key), ("u", pa.uuid()), ("v", pa.int64())])
    table = memory_catalog(index_directory=str(tmp_path)).create_table(
        "t.rows", schema, primary_key=["k.a b", "k.day", "u"]
    )

    def one(value: int) -> pa.Table:
        uuid = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)], pa.binary(16)))
        named = pa.array([{"a b": "x", "day": date(2026, 1, 2)}], key)
        return pa.table([named, uuid, [value]], schema=schema)

    table.upsert(one(1))
    assert table.upsert(one(2)).updated_rows == 1
    assert table.scan(columns=["v"]).to_arrow().to_pylist() == [{"v": 2}]


def test_enforced_immutable_columns_are_not_replaced(tmp_path) -> None:
    table = make(tmp_path, (1, "eu", 1))
    table.set_immutable_columns(["region"], enforced=True)
    with pytest.raises(InvalidInputError, match="IMMUTABLE"):
        table.upsert(rows((1, "us", 2)))


@pytest.mark.slow
def test_it_needs_no_spark(tmp_path) -> None:
    text = f"""
import sys
sys.modules["pyspark"] = None
import pyarrow as pa
from tableformat import open_catalog
table = open_catalog(warehouse={str(tmp_path)!r}).create_table(
    "t.rows", pa.schema([("id", pa.int64())]), primary_key=["id"])
table.upsert(pa.table({{"id": [1, 2]}}))
print(table.upsert(pa.table({{"id": [2, 3]}})).updated_rows)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"
