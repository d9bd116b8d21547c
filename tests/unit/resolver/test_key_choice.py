"""A key that the table's schema does not declare: used, and written nowhere."""

import io
import json
from collections import Counter

import fastavro
import pyarrow as pa
import pytest
from pyiceberg.types import LongType

from maintenance.table_figures import backlog_of
from resolver import resolve
from resolver.index_check import verify
from tableformat import InvalidInputError
from tests.support.adopted_tables import NAME, ROWS, Theirs
from tests.support.table_checker import check_table


@pytest.fixture(params=[2, 3], ids=["v2", "v3"])
def theirs(request, tmp_path):
    return Theirs(tmp_path, version=request.param)


def key(*ids):
    return pa.table({"id": pa.array(ids, pa.int64())})


def test_key_that_is_named_resolves_the_table_and_is_written_nowhere(theirs):
    theirs.write([(1, "paid", 1), (None, "null", 0)], key(1, 2, None))
    theirs.write([(None, "again", 0)], key(None), pa.table({"n": [0], "status": ["new"]}))
    facts = theirs.facts()
    expected = Counter(
        [row for row in ROWS if row[0] not in (1, 2) and row[2] != 0]
        + [(1, "paid", 1), (None, "again", 0)]
    )
    report = resolve(theirs.table, staging="main", target="main", key=["id"])
    assert report.equality_deletes == 5
    assert theirs.rows() == expected
    assert theirs.facts() == facts
    snapshot_id = theirs.table.current_snapshot().snapshot_id
    head = check_table(theirs.table.environment.store.get, theirs.location)[snapshot_id]
    assert not [each for each in head.live if each.content == 2]
    for manifest in head.manifests:
        data = theirs.table.environment.store.get(manifest["manifest_path"])
        header = json.loads(fastavro.reader(io.BytesIO(data)).metadata["schema"])
        assert not header.get("identifier-field-ids")  # optional ones, which Java refuses
    assert resolve(theirs.table, staging="main", target="main", key=["id"]).staged_snapshots == 0


def test_key_of_the_catalog_and_of_the_table_are_taken_without_a_call_naming_it(theirs):
    theirs.write([], key(1))
    with pytest.raises(InvalidInputError, match=r"without a primary key.*--key"):
        resolve(theirs.table, staging="main", target="main")
    table = theirs.open(**{f"key.{NAME}": "id"})
    assert resolve(table, staging="main", target="main").deleted_rows == 1
    assert table.refresh().state.head("main") == theirs.table.refresh().state.head("main")
    theirs.write([], key(2))
    theirs.table.set_properties({"icefold.primary-key": "id"})
    assert resolve(theirs.table, staging="main", target="main").deleted_rows == 1
    assert verify(theirs.table).report.is_sound
    assert theirs.table.refresh().primary_key == ("id",)
    assert not any(each.get("identifier-field-ids") for each in theirs.facts()[0])


@pytest.mark.parametrize("columns", [["nothing"], ["x"], ["id", "id"]])
def test_wrong_key_is_refused_before_anything_is_written(theirs, columns):
    theirs.write([], key(1))
    before = theirs.location
    with pytest.raises(InvalidInputError):
        resolve(theirs.table, staging="main", target="main", key=columns)
    assert theirs.location == before


def test_adopt_reports_and_changes_nothing_unless_told(theirs):
    theirs.write([(1, "paid", 1)], key(1, 2))
    theirs.write([], pa.table({"n": [0], "status": ["new"]}))
    before = theirs.location
    shown = theirs.cli("adopt", NAME)
    assert "no key is declared: --key id is what its deletes name" in shown
    report = json.loads(theirs.cli("adopt", NAME, "--key", "id", "--json"))
    assert (report["rows"], report["key"], report["key_from"]) == (10, ["id"], "--key")
    by = {tuple(each["columns"]): each for each in report["equality_deletes"]}
    assert by["id",]["keys"] == 2
    assert by["id",]["is_key"]
    assert not by["status", "n"]["is_key"]
    assert report["key_bytes"] > 0
    assert theirs.location == before
    [told] = [each for each in report["next"] if "set-properties" in each]
    theirs.cli(*told.partition(": icefold ")[2].split())
    report = json.loads(theirs.cli("adopt", NAME, "--key", "id", "--json"))
    assert not any("set-properties" in each for each in report["next"])
    theirs.cli("adopt", NAME, "--key", "id", "--apply", "key")
    assert theirs.table.refresh().properties["icefold.primary-key"] == "id"
    assert (
        json.loads(theirs.cli("table", "describe", NAME, "--json"))["icefold.primary-key"] == "id"
    )
    theirs.cli("maintain", NAME, "--once", "--staging", "main", "--target", "main")
    assert theirs.rows() == Counter([(1, "paid", 1), *(r for r in ROWS[3:] if r[2] != 0)])


def test_backlog_of_a_table_that_is_resolved_in_place_is_its_equality_deletes(theirs):
    def backlog():
        return backlog_of(theirs.table.refresh().state, staging="main", target="main")

    assert backlog().commits == 0
    theirs.write([], key(1))
    theirs.table.append(theirs.arrow([(20, "new", 0)]))
    theirs.write([], key(2, 3))
    assert (backlog().commits, backlog().deletes) == (2, 3)
    assert backlog().oldest_ms < theirs.table.current_snapshot().timestamp_ms + 1
    resolve(theirs.table, staging="main", target="main", key=["id"])
    assert (backlog().commits, backlog().deletes, backlog().oldest_ms) == (0, 0, None)


@pytest.mark.parametrize("said_by", ["call", "catalog", "names", "names and ids"])
def test_renamed_key_column_stays_the_key_and_a_new_one_of_its_name_is_not_taken(theirs, said_by):
    table = theirs.open(**{f"key.{NAME}": "id"}) if said_by == "catalog" else theirs.table
    given = ["id"] if said_by == "call" else None
    if said_by == "names":
        table.set_properties({"icefold.primary-key": "id"})
    elif said_by == "names and ids":
        theirs.cli("adopt", NAME, "--key", "id", "--apply", "key")
    theirs.write([], key(1))
    theirs.table.update_schema(lambda change: change.rename_column("id", "number"))
    report = resolve(table, staging="main", target="main", key=given)
    assert report.deleted_rows == 1
    theirs.table.refresh().update_schema(lambda change: change.add_column("id", LongType()))
    theirs.write_number(2)
    if said_by == "names and ids":
        assert resolve(table, staging="main", target="main", key=given).deleted_rows == 1
        assert "key: number (from property)" in theirs.cli("adopt", NAME)
        return
    before = theirs.location
    with pytest.raises(InvalidInputError, match=r"name another column has had.*#1, #5.*#5") as told:
        resolve(table, staging="main", target="main", key=given)
    assert NAME in str(told.value)
    assert theirs.location == before
    assert resolve(table, staging="main", target="main", key=["#1"]).deleted_rows == 1


def test_key_column_that_was_dropped_and_ids_of_other_names_are_refused(theirs):
    theirs.cli("adopt", NAME, "--key", "id", "--apply", "key")
    theirs.write([], key(1))
    theirs.table.set_properties({"icefold.primary-key": "n"})  # by hand: the ids are id's
    with pytest.raises(InvalidInputError, match=r"do not mean the same columns.*--apply key"):
        resolve(theirs.table, staging="main", target="main")
    theirs.table.set_properties({"icefold.primary-key": "id"})
    with pytest.raises(InvalidInputError, match=r"cannot drop a column of the table's key.*=id"):
        theirs.table.update_schema(lambda change: change.delete_column("id"))
    theirs.drop("id")
    with pytest.raises(InvalidInputError, match=r"column that was dropped.*field_id=1"):
        resolve(theirs.table, staging="main", target="main")
