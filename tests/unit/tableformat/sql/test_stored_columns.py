"""Stored computed columns: declared, computed by every writer, refused where they cannot be right.

That the values are those of another engine: tests/property/test_stored_columns.py.
"""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import LongType

from maintenance.tasks.compact import compact
from maintenance.tasks.options import CompactOptions
from resolver import resolve
from tableformat.commit.evolution import update_schema
from tableformat.errors import (
    AlreadyExistsError,
    InvalidInputError,
    NotFoundError,
    UnsupportedError,
)
from tableformat.rowlevel.operation import begin
from tests.support.memory_tables import memory_catalog

SCHEMA = pa.schema(
    [("id", pa.int64()), ("n", pa.int32()), ("price", pa.float64()), ("note", pa.string())]
)


def rows(ids, **columns):
    ids = list(ids)
    values = {"id": ids, "n": ids, "price": [i / 2 for i in ids], "note": ["x"] * len(ids)}
    return pa.table(values | columns, schema=SCHEMA)


@pytest.fixture
def plain():
    return memory_catalog().create_table("t.rows", SCHEMA, primary_key=["id"])


@pytest.fixture
def table(plain):
    return plain.add_computed_column("twice", "n * 2", "int", stored=True)


def held(table, column="twice"):
    found = table.refresh().scan(columns=["id", column]).to_arrow().to_pylist()
    return {row["id"]: row[column] for row in found}


def test_it_is_a_plain_column_that_metadata_describes(table):
    field = table.schema().find_field("twice")
    assert (str(field.field_type), field.required, field.doc) == ("int", False, "computed: n * 2")
    assert [str(each) for each in table.computed_columns.values()] == ["twice int = n * 2 (stored)"]
    table.append(rows([1, 2]))
    [path] = [f["file_path"] for f in table.inspect.files().to_pylist()]
    stored = pq.read_schema(pa.BufferReader(table.environment.store.get(path)))
    assert "twice" in stored.names
    assert table.scan(filter="twice = 4").to_arrow()["id"].to_pylist() == [2]
    assert table.lookup([1]).rows["twice"].to_pylist() == [2]
    [change] = table.changes(None).to_arrow().filter(pc.field("id") == 2).to_pylist()
    assert change["twice"] == 4


def test_a_given_value_has_to_be_the_computed_one_or_null(table):
    right = rows([1, 2]).append_column("twice", pa.array([2, None], pa.int32()))
    table.append(right)
    wrong = rows([3, 4]).append_column("twice", pa.array([6, 9], pa.int32()))
    for write in (table.append, table.upsert, table.stage, table.overwrite):
        with pytest.raises(InvalidInputError, match="another value than its expression") as caught:
            write(wrong)
        assert "\n" not in str(caught.value)
        assert "column=twice, expression=n * 2, given=9, computed=8" in str(caught.value)
    with pytest.raises(InvalidInputError, match="another value"):
        table.append(pa.RecordBatchReader.from_batches(wrong.schema, wrong.to_batches()))
    assert held(table) == {1: 2, 2: 4}
    nothing = rows([5], n=[None]).append_column("twice", pa.array([1], pa.int32()))
    with pytest.raises(InvalidInputError, match="given=1, computed=None"):
        table.append(nothing)


def test_a_result_that_does_not_fit_fails_the_write_with_one_line(table):
    with pytest.raises(InvalidInputError, match="overflow") as caught:
        table.append(rows([1], n=[2**31 - 1]))
    assert "column=twice, expression=n * 2" in str(caught.value)
    table.append(rows([1]))
    with pytest.raises(InvalidInputError, match="overflow"):
        table.update({"n": "2147483647"})
    assert held(table) == {1: 2}


@pytest.mark.parametrize(
    ("name", "expression", "kind", "text"),
    [
        ("x", "twice + 1", "int", "names another one.*write its expression instead: n \\* 2"),
        ("x", "x + 1", "int", "names no column of the table"),
        ("x", "rand()", "double", "not every reader can compute"),
        ("x", "upper(note)", "long", "not every reader can compute"),
        ("x", "(SELECT max(id) FROM other)", "long", "not every reader can compute"),
        ("x", "sum(n)", "long", "not every reader can compute"),
        ("x", "n", "string", "one of three types"),
        ("_x", "n", "int", "not a name"),
        ("Note", "n", "int", "has a column 'Note'"),
        ("twice", "n * 3", "int", "another computed column 'twice'"),
        ("twice", "n * 2", "long", "another computed column 'twice'"),
        ("virtual", "n * 2", "int", "another computed column 'virtual'"),
        ("Virtual", "n * 3", "int", "has a computed column of this name"),
    ],
)
def test_what_cannot_be_stored_is_refused_when_it_is_declared(table, name, expression, kind, text):
    table.add_computed_column("virtual", "n * 2", "int")
    before = table.refresh().metadata_location
    with pytest.raises((InvalidInputError, AlreadyExistsError), match=text) as caught:
        table.add_computed_column(name, expression, kind, stored=True)
    assert "\n" not in str(caught.value)
    assert table.refresh().metadata_location == before


def test_it_is_declared_again_dropped_and_cannot_become_virtual(table):
    before = table.metadata_location
    assert (
        table.add_computed_column("twice", "n * 2", "int", stored=True).metadata_location == before
    )
    with pytest.raises(AlreadyExistsError, match="has a column 'twice'"):
        table.add_computed_column("twice", "n * 2", "int")
    with pytest.raises(InvalidInputError, match="only a stored computed column"):
        table.add_computed_column("x", "n", "int", backfill=True)
    table.append(rows([1]))
    table.drop_computed_column("twice")
    with pytest.raises(NotFoundError):
        table.drop_computed_column("twice")
    assert not any("computed" in name for name in table.properties)
    table.append(rows([2]).append_column("twice", pa.array([7], pa.int32())))
    assert held(table) == {1: 2, 2: 7}  # a column like others now


def test_a_table_with_rows_wants_a_backfill_which_goes_on_where_it_was_cut_short(plain):
    plain.append(rows([1, 2]))
    before = plain.metadata_location
    with pytest.raises(InvalidInputError, match=r"has rows.*backfill"):
        plain.add_computed_column("twice", "n * 2", "int", stored=True)
    assert plain.refresh().metadata_location == before
    ids = dict(plain.scan(columns=["id", "_row_id"]).to_arrow().to_pydict().items())
    plain.update = lambda *_, **__: None  # killed between the declaration and the backfill
    plain.add_computed_column("twice", "n * 2", "int", stored=True, backfill=True)
    del plain.update
    assert held(plain) == {1: None, 2: None}
    assert plain.check_computed_columns() == {"twice": 2}
    plain.append(rows([3]))
    plain.add_computed_column("twice", "n * 2", "int", stored=True, backfill=True)
    assert held(plain) == {1: 2, 2: 4, 3: 6}
    assert plain.check_computed_columns() == {"twice": 0}
    now = plain.scan(columns=["id", "_row_id"]).to_arrow().sort_by("id")
    assert now["_row_id"].to_pylist()[:2] == ids["_row_id"]


def test_a_table_of_v2_computes_and_has_no_backfill():
    catalog = memory_catalog()
    made = catalog.create_table(
        "t.two", SCHEMA, primary_key=["id"], properties={"format-version": "2"}
    )
    made.add_computed_column("twice", "n * 2", "int", stored=True).append(rows([4]))
    assert held(made) == {4: 8}
    before = made.metadata_location
    with pytest.raises(UnsupportedError):
        made.add_computed_column("thrice", "n * 3", "int", stored=True, backfill=True)
    assert made.refresh().metadata_location == before


def test_columns_of_an_expression_are_renamed_and_not_dropped(table):
    table.append(rows([1]))
    table.update_schema(lambda update: update.rename_column("n", "odd `name`"))
    table.append(rows([2]).rename_columns(["id", "odd `name`", "price", "note"]))
    assert held(table) == {1: 2, 2: 4}
    with pytest.raises(InvalidInputError, match="cannot drop a column"):
        table.update_schema(lambda update: update.delete_column("odd `name`"))
    with pytest.raises(InvalidInputError, match="cannot drop a column"):
        table.update_schema(lambda update: update.delete_column("twice"))
    for edit in (
        lambda update: update.rename_column("twice", "double"),
        lambda update: update.update_column("twice", required=True),
    ):
        with pytest.raises(InvalidInputError, match="cannot be renamed, be required") as caught:
            update_schema(
                table.environment, table.identifier, edit, allow_incompatible_changes=True
            )
        assert "\n" not in str(caught.value)


def test_types_may_widen_as_long_as_the_expression_fits(table):
    table.add_computed_column("same", "n", "int", stored=True)
    with pytest.raises(InvalidInputError, match=r"not every reader can compute.*column=same"):
        table.update_schema(lambda update: update.update_column("n", LongType()))
    table.drop_computed_column("same")
    table.update_schema(lambda update: update.update_column("twice", LongType()))
    table.update_schema(lambda update: update.update_column("n", LongType()))
    wide = rows([1]).set_column(1, "n", pa.array([2**40]))
    table.append(wide.append_column("same", pa.array([1], pa.int32())))
    assert held(table) == {1: 2**41}


def test_it_cannot_be_what_deletes_would_have_to_name(table):
    for declare, text in (
        (lambda: table.set_primary_key(["id", "twice"]), "cannot be renamed, be required or be of"),
        (lambda: table.set_immutable_columns(["twice"]), "cannot be IMMUTABLE"),
        (lambda: table.set_sequence_column("twice"), "cannot be the sequence column"),
    ):
        with pytest.raises(InvalidInputError, match=text) as caught:
            declare()
        assert "\n" not in str(caught.value)


def test_a_secondary_index_and_a_partition_follow_it(table):
    table.update_partitioning(lambda update: update.add_field("twice", "identity"))
    table.add_index("by_twice", ["twice"])
    table.stage(rows([1, 2, 3]))
    resolve(table)
    table.stage(pa.table({"id": [1], "n": pa.array([2], pa.int32())}), columns="partial")
    resolve(table)
    assert held(table) == {1: 4, 2: 4, 3: 6}
    assert sorted(table.lookup([4], index="by_twice").rows["id"].to_pylist()) == [1, 2]
    files = table.inspect.files().to_pylist()
    assert {each["partition"]["twice"] for each in files} >= {4, 6}
    assert table.scan(filter="twice = 4").count() == 2


def test_statements_do_not_assign_it_but_default_computes_it(table):
    table.append(rows([1, 2]))
    for assignments in ({"twice": "4"}, {"twice": "n"}, {"Twice": "NULL"}):
        with pytest.raises(InvalidInputError, match="computed column cannot be assigned"):
            table.update(assignments)
    with pytest.raises(InvalidInputError, match="computed column cannot be assigned"):
        begin(table, "update", updated_columns=["twice"])
    assert table.update({"twice": "DEFAULT"}).updated_rows == 2
    assert held(table) == {1: 2, 2: 4}


@pytest.mark.parametrize("publish", ["link", "rewrite"])
def test_what_other_writers_store_is_kept_found_and_mended(table, publish):
    table.set_properties({"icefold.publish": publish})
    declared = {k: v for k, v in table.properties.items() if k.startswith("icefold.computed.")}
    table.drop_computed_column("twice")  # others know nothing of it
    table.stage(rows([1, 2, 3]).append_column("twice", pa.array([2, None, 99], pa.int32())))
    table.set_properties(declared)
    table.stage(rows([4]))
    resolve(table)
    assert held(table) == {1: 2, 2: None, 3: 99, 4: 8}  # a cycle changes no value
    compact(table.refresh(), CompactOptions(rewrite_all=True))
    assert held(table) == {1: 2, 2: None, 3: 99, 4: 8}
    assert table.check_computed_columns() == {"twice": 2}
    table.delete("id = 4", mode="copy-on-write")
    assert held(table) == {1: 2, 2: None, 3: 99}  # rows that stay are as they were
    table.update({"note": "'y'"}, "id = 2")
    assert table.check_computed_columns() == {"twice": 1}  # who changes a row computes it
    table.update({"twice": "DEFAULT"})
    assert table.check_computed_columns() == {"twice": 0}
    table.drop_computed_column("twice")
    assert table.check_computed_columns() == {}


def test_rows_of_a_kept_join_are_computed_from_its_result(tmp_path):
    catalog = memory_catalog(str(tmp_path))
    orders = catalog.create_table("t.orders", SCHEMA, primary_key=["id"])
    lines = pa.schema([("line", pa.int64()), ("of", pa.int64()), ("count", pa.int64())])
    lines = catalog.create_table("t.lines", lines, primary_key=["line"])
    lines.add_index("by_order", ["of"])
    result = pa.schema([("line", pa.int64()), ("price", pa.float64()), ("count", pa.int64())])
    result = catalog.create_table("t.both", result, primary_key=["line"])
    result.add_computed_column("cost", "price * 3.0", "double", stored=True)
    definition = {
        "into": "t.both",
        "from": {"table": "t.lines", "as": "l"},
        "join": [{"table": "t.orders", "as": "o", "on": {"l.of": "o.id"}}],
        "select": {"line": "l.line", "price": "o.price", "count": "l.count"},
    }
    orders.append(rows([1, 2]))
    lines.append(pa.table({"line": [7, 8], "of": [1, 2], "count": [1, 1]}))
    with catalog.delta_join(definition) as join:
        join.run()
        resolve(result)
        orders.stage(rows([2], price=[50.0]))
        resolve(orders)
        join.run()
    resolve(result)
    found = result.refresh().scan(columns=["line", "cost"]).to_arrow().to_pylist()
    assert {row["line"]: row["cost"] for row in found} == {7: 1.5, 8: 150.0}


def debezium(*rows):
    return pa.table({"value": [json.dumps({"op": "c", "after": row}) for row in rows]})


def test_bad_values_of_change_events_are_bad_records(table):
    events = debezium(
        {"id": 1, "n": 1, "twice": 2},
        {"id": 2, "n": 2, "twice": 5},
        {"id": 3, "n": 2**31 - 1},
        {"id": 4, "n": 4},
        {"id": 5, "n": None, "twice": None},
    )
    with pytest.raises(InvalidInputError, match=r"bad record.*another value.*given=5, computed=4"):
        table.write_changes(events, format_name="debezium-json")
    options = {"on-bad-record": "dead-letter"}
    table.write_changes(events, format_name="debezium-json", options=options)
    resolve(table)
    assert held(table) == {1: 2, 4: 8, 5: None}
    letters = table.environment.catalog.load_table(("t", "rows_dead_letter"))
    assert letters.head("main").summary.additional_properties["total-records"] == "2"


def test_deletes_with_whole_rows_of_zeros_are_still_whole(table):
    schema = [{"id": 7, "n": 0, "price": 0.0, "note": ""}]
    table.write_changes(debezium(*schema), format_name="debezium-json")
    gone = json.dumps({"op": "d", "before": schema[0]})
    options = {"deletes": "row"}
    table.write_changes(pa.table({"value": [gone]}), format_name="debezium-json", options=options)
    resolve(table)
    assert held(table) == {}


def test_a_row_that_leaves_out_nothing_but_it_is_whole(table):
    """Else it would be filled, or put aside where there is no older row."""
    table.set_properties({"icefold.on-missing-row": "fail"})
    table.stage(rows([1]), columns="partial")
    options = {"columns": "partial"}
    table.write_changes(rows([2]), options=options)
    resolve(table)
    assert held(table) == {1: 2, 2: 4}


def test_a_filled_row_that_does_not_fit_stops_the_cycle_with_one_line(table):
    table.stage(rows([1]))
    resolve(table)
    table.add_computed_column("sum", "n + 2147483600", "int", stored=True, backfill=True)
    table.stage(pa.table({"id": [1], "note": ["z"]}), columns="partial")
    resolve(table)
    table.stage(pa.table({"id": [1], "n": pa.array([2000], pa.int32())}), columns="partial")
    with pytest.raises(InvalidInputError, match=r"overflow.*column=sum") as caught:
        resolve(table)
    assert "\n" not in str(caught.value)
    table.drop_computed_column("sum")
    resolve(table)
    assert held(table) == {1: 4000}


def test_properties_set_by_hand_are_refused_in_one_line(plain):
    by_hand = {
        "icefold.computed.x.expression": "n + 1",
        "icefold.computed.x.type": "int",
        "icefold.computed.x.field-ids": '{"n": 77}',
        "icefold.computed.x.stored": "2",
    }
    plain.set_properties(by_hand)
    with pytest.raises(InvalidInputError, match=r"is gone, or .*; column=x, missing=n"):
        plain.append(rows([1]))
    plain.set_properties({"icefold.computed.x.field-ids": "{}"})
    with pytest.raises(InvalidInputError, match="field id is not noted; column=x"):
        plain.append(rows([1]))
    plain.set_properties({"icefold.computed.x.stored": "two"})
    with pytest.raises(InvalidInputError, match="cannot be read; column=x"):
        plain.append(rows([1]))
    plain.set_properties({"icefold.computed.x.stored": "99"})  # its column is gone: nothing is due
    plain.set_properties({"icefold.computed.x.field-ids": '{"n": 2}'})
    plain.append(rows([1]))
    assert plain.scan().to_arrow().column_names == SCHEMA.names
