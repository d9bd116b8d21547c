"""Virtual columns: what may be declared, what scans compute, and what schema changes do to them."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyiceberg.types import DoubleType, LongType

from resolver import resolve
from tableformat.errors import AlreadyExistsError, InvalidInputError, NotFoundError
from tests.support.memory_tables import memory_catalog

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("price", pa.float64()),
        ("fee", pa.float64()),
        ("quantity", pa.int32()),
        ("note", pa.string()),
        ("at", pa.struct([("x", pa.int64())])),
    ]
)
EXPRESSIONS = {  # the oracle's SQL is the same text
    "total": ("price * 2.5 + Fee", "double"),
    "twice": ("quantity * 2", "int"),
    "wide": ("id * 1000 - quantity", "long"),
    "same": ("quantity", "long"),
    "seven": ("7", "long"),
}


def rows(ids):
    ids = list(ids)
    return pa.table(
        {
            "id": ids,
            "price": [None if i % 5 == 4 else i / 3 for i in ids],
            "fee": [i * 0.1 for i in ids],
            "quantity": [None if i % 7 == 6 else i for i in ids],
            "note": [f"n{i}" for i in ids],
            "at": [{"x": i} for i in ids],
        },
        schema=SCHEMA,
    )


@pytest.fixture
def plain():
    table = memory_catalog().create_table("t.rows", SCHEMA, primary_key=["id"])
    table.append(rows(range(30)))
    table.stage(upserts=rows([40]), deletes=pa.table({"id": [3]}))
    resolve(table)
    return table


@pytest.fixture
def table(plain):
    for name, (expression, kind) in EXPRESSIONS.items():
        plain.add_computed_column(name, expression, kind)
    return plain


def test_scans_compute_what_duckdb_computes_from_the_same_text(table):
    stored = table.scan(columns=SCHEMA.names).to_arrow()
    columns = ", ".join(f"({sql})::{kind} AS {name}" for name, (sql, kind) in EXPRESSIONS.items())
    query = f"SELECT *, {columns.replace('::long', '::bigint')} FROM stored ORDER BY id"
    wanted = duckdb.from_arrow(stored).query("stored", query).to_arrow_table()
    found = table.scan().to_arrow().sort_by("id")
    assert sorted(found.column_names) == sorted(wanted.column_names)
    assert found.schema.field("twice").type == pa.int32()
    for name in EXPRESSIONS:
        assert found[name].to_pylist() == wanted[name].to_pylist(), name
    assert found.schema == table.scan().arrow_schema()
    assert pa.table(table.scan()).num_rows == found.num_rows


def test_columns_asked_for_come_in_order_and_only_they(table):
    found = table.scan(columns=["total", "note", "_pos", "seven"], filter="id = 6").to_arrow()
    assert found.column_names == ["total", "note", "_pos", "seven"]
    assert found.to_pylist() == [{"total": 5 + 6 * 0.1, "note": "n6", "_pos": 6, "seven": 7}]
    assert table.scan(columns=["seven"], limit=2).to_arrow().to_pylist() == [{"seven": 7}] * 2
    assert table.scan(columns=["note"]).to_arrow().column_names == ["note"]
    assert table.scan(columns=["total"]).count() == 30
    with pytest.raises(InvalidInputError, match="asked for twice"):
        table.scan(columns=["total", "total"]).to_arrow()
    empty = table.scan(filter="id < 0").to_arrow()
    assert (empty.num_rows, empty.schema.field("wide").type) == (0, pa.int64())


def test_other_exports_have_them(table):
    polars = pytest.importorskip("polars")
    lazy = table.scan().to_polars(lazy=True).select(polars.col("twice").sum())
    assert (
        lazy.collect().item() == pc.sum(table.scan(columns=["twice"]).to_arrow()["twice"]).as_py()
    )
    assert table.scan().to_duckdb(view="v").sql("SELECT max(seven) FROM v").fetchall() == [(7,)]


@pytest.mark.parametrize(
    ("name", "expression", "kind", "text"),
    [
        ("x", "price * 2.5 +", "double", "cannot read the expression"),
        ("x", "upper(note)", "long", "not every reader can compute"),
        ("x", "rand()", "double", "not every reader can compute"),
        ("x", "price * quantity", "double", "not every reader can compute"),
        ("x", "price / fee", "double", "not every reader can compute"),
        ("x", "id", "int", "not every reader can compute"),
        ("x", "nope + 1", "long", "names no column of the table"),
        ("x", "at.x + 1", "long", "names no column of the table"),
        ("x", "total * 2.0", "double", "names no column of the table"),
        ("x", "DEFAULT", "double", "names no column of the table"),
        ("x", "(SELECT max(id) FROM other)", "long", "not every reader can compute"),
        ("x", "'text'", "long", "wrong type"),
        ("x", "3000000000", "int", "does not fit"),
        ("x", "price", "string", "one of three types"),
        ("_x", "price", "double", "not a name"),
        ("a.b", "price", "double", "not a name"),
        ("NOTE", "price", "double", "has a column 'NOTE'"),
        ("total", "price", "double", "another computed column 'total'"),
    ],
)
def test_what_cannot_be_computed_everywhere_is_refused(table, name, expression, kind, text):
    before = table.refresh().state.metadata_location
    with pytest.raises((InvalidInputError, AlreadyExistsError), match=text) as caught:
        table.add_computed_column(name, expression, kind)
    assert "\n" not in str(caught.value)
    assert table.refresh().state.metadata_location == before


def test_declarations_are_repeated_dropped_and_listed(table):
    before = table.state.metadata_location
    table.add_computed_column("total", *EXPRESSIONS["total"])
    assert table.state.metadata_location == before
    assert {n: (c.expression, c.type) for n, c in table.computed_columns.items()} == EXPRESSIONS
    table.drop_computed_column("total")
    assert "total" not in table.scan().to_arrow().column_names
    assert not any("computed.total" in name for name in table.state.metadata.properties)
    with pytest.raises(NotFoundError, match="no computed column 'total'"):
        table.drop_computed_column("total")


def test_a_rename_is_followed_also_onto_a_name_of_another_column(table):
    before = table.scan(columns=["id", "total"]).to_arrow()
    table.update_schema(lambda update: update.rename_column("fee", "odd `name`"))
    table.update_schema(lambda update: update.rename_column("price", "fee"))
    after = table.scan(columns=["id", "total"]).to_arrow()
    assert after.to_pylist() == before.to_pylist()


def test_inputs_cannot_be_dropped_and_names_cannot_be_taken(table):
    with pytest.raises(InvalidInputError, match="cannot drop a column"):
        table.update_schema(lambda update: update.delete_column("fee"))
    with pytest.raises(InvalidInputError, match="has a computed column of this name"):
        table.update_schema(lambda update: update.add_column("Total", LongType()))
    table.update_schema(lambda update: update.delete_column("note"))
    assert "total" in table.scan().to_arrow().column_names


def test_a_version_that_lacks_an_input_lacks_the_column(table):
    old = table.state.head("main").snapshot_id
    table.update_schema(lambda update: update.add_column("late", DoubleType()))
    table.add_computed_column("later", "late * 2.0", "double")
    table.append(rows([50]).append_column("late", pa.array([1.5])))
    found = table.scan(columns=["later"], filter="id = 50").to_arrow()
    assert found.to_pylist() == [{"later": 3.0}]
    assert "later" not in table.scan(snapshot_id=old).to_arrow().column_names
    with pytest.raises(InvalidInputError, match="no column 'later'"):
        table.scan(snapshot_id=old, columns=["later"]).to_arrow()


def test_an_input_may_become_wider_and_what_no_longer_fits_is_named(table):
    table.add_computed_column("narrow", "quantity", "int")
    table.update_schema(lambda update: update.update_column("quantity", LongType()))
    assert table.scan(columns=["twice"], filter="id = 2").to_arrow()["twice"].to_pylist() == [4]
    with pytest.raises(InvalidInputError, match="column=narrow, expression=quantity, type=int"):
        table.scan().to_arrow()
    table.drop_computed_column("narrow")
    assert table.scan().to_arrow().num_rows == 30


def test_a_result_that_does_not_fit_fails_the_read_with_one_line(table):
    table.append(rows([60]).set_column(3, "quantity", pa.array([2**31 - 1], pa.int32())))
    with pytest.raises(InvalidInputError) as caught:
        table.scan().to_arrow()
    assert "overflow" in str(caught.value)
    assert "column=twice, expression=quantity * 2" in str(caught.value)
    assert table.scan(columns=["id", "wide"]).to_arrow().num_rows == 31


def test_writers_do_not_see_them(table):
    with pytest.raises(InvalidInputError, match="total"):
        table.append(rows([70]).append_column("total", pa.array([1.0])))


def test_properties_set_by_hand_are_refused_in_one_line(plain):
    plain.set_properties({"icefold.computed.x.expression": "id + 1"})
    with pytest.raises(InvalidInputError, match="cannot be read; column=x"):
        plain.refresh().scan().to_arrow()
    by_hand = {"icefold.computed.x.type": "long", "icefold.computed.x.field-ids": '{"fee": 3}'}
    plain.set_properties(by_hand)
    with pytest.raises(InvalidInputError, match="missing=id, expression"):
        plain.refresh().scan().to_arrow()
