"""The simulator's model takes a column of another type where the product does, and only there."""

from itertools import product

import pyarrow as pa
import pytest

import tableformat as tf
from tests.support.sim_draw import ARROW, BEYOND_INT, as_table
from tests.support.sim_operation import Operation
from tests.support.sim_schema import read_schema

VALUES = {"int": [None, 5], "long": [None, 5, BEYOND_INT, -BEYOND_INT], "string": [None, "p"]}
CASES = [
    (given, value, stored, required)
    for given, stored, required in product(VALUES, VALUES, [False, True])
    for value in VALUES[given]
]


@pytest.mark.parametrize(("given", "value", "stored", "required"), CASES)
def test_staged_column_is_taken_by_both_or_neither(tmp_path, given, value, stored, required):
    catalog = tf.open_catalog("local", warehouse=str(tmp_path))
    schema = pa.schema(
        [
            pa.field("id", pa.int64()),
            pa.field("x", ARROW[stored], nullable=not required),
        ]
    )
    table = catalog.create_table("shop.rows", schema, primary_key=["id"])
    typed, rows = {"id": "long", "x": given}, ((1, value),)
    metadata = table.state.metadata.model_dump(by_alias=True, mode="json")
    model = Operation("writer", "stage", rows, typed=typed)
    expected = model.rows_under(read_schema(metadata["schemas"][-1]))
    if expected is None:
        with pytest.raises(tf.InvalidInputError):
            table.stage(upserts=as_table(typed, rows))
    else:
        table.stage(upserts=as_table(typed, rows))
        (found,) = table.scan(branch="staging").to_arrow().to_pylist()
        assert expected == [tuple(found.values())]
