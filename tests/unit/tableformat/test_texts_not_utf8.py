"""Texts with half a character, as Python has bytes of a command line that are no UTF-8.

Each is refused in one line before anything is written.
"""

import pyarrow as pa
import pytest

import tableformat as tf

HALF = "\udc80x"
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture
def catalog(tmp_path):
    return tf.open_catalog("local", warehouse=str(tmp_path / "warehouse"))


def create(catalog, name="shop.other", **arguments):
    return catalog.create_table(name, SCHEMA, primary_key=["id"], **arguments)


USES = {
    "table name": lambda catalog, _: catalog.load_table(f"shop.{HALF}"),
    "table of a statement": lambda catalog, _: catalog.sql(f'DELETE FROM shop."{HALF}"'),
    "new table": lambda catalog, _: create(catalog, f"shop.{HALF}"),
    "new namespace": lambda catalog, _: create(catalog, f"{HALF}.orders"),
    "property of a new table": lambda catalog, _: create(catalog, properties={"a": HALF}),
    "name of a property": lambda catalog, _: create(catalog, properties={HALF: "a"}),
    "property": lambda _, table: table.set_properties({"a": HALF}),
    "branch": lambda _, table: table.refs.create_branch(HALF),
    "filter": lambda _, table: table.scan(filter=f"name = '{HALF}'").to_arrow(),
    "statement": lambda catalog, _: catalog.sql(f"DELETE FROM shop.orders WHERE name = '{HALF}'"),
    "condition": lambda _, table: table.delete(f"name = '{HALF}'"),
    "value": lambda _, table: table.update({"name": f"'{HALF}'"}),
}


@pytest.mark.parametrize("use", USES.values(), ids=list(USES))
def test_it_is_refused_and_nothing_is_written(catalog, use):
    table = create(catalog, "shop.orders")
    table.append(pa.table({"id": [1], "name": ["a"]}, schema=table.scan().to_arrow().schema))
    before = table.metadata_location
    with pytest.raises(tf.InvalidInputError):
        use(catalog, table)
    assert catalog.list_tables() == ["shop.orders"]
    assert catalog.load_table("shop.orders").metadata_location == before
