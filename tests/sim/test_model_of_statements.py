"""What the simulator takes a drawn statement for is what icefold makes of it, NULLs too."""

import random
from collections import Counter

import pyarrow as pa
import pytest

from tests.support.memory_tables import memory_catalog
from tests.support.sim_draw import draw_statement
from tests.support.sim_schema import AMOUNT, ID, REGION, read_schema

SCHEMA = pa.schema(
    [("id", pa.int64()), ("region", pa.string()), ("amount", pa.int64()), ("x0", pa.int64())]
)
ROWS = [
    (key, region, amount, x0)
    for key, (region, amount, x0) in enumerate(
        (region, amount, x0)
        for region in ("eu", "us", None)
        for amount in (None, 1)
        for x0 in (None, 5)
    )
]


@pytest.mark.parametrize("seed", range(12))
def test_statement_drawn_over_rows_with_nulls_means_what_icefold_makes_of_it(tmp_path, seed):
    table = memory_catalog(str(tmp_path)).create_table("t.rows", SCHEMA, primary_key=["id"])
    rows = pa.table(dict(zip(SCHEMA.names, zip(*ROWS, strict=True), strict=True)), schema=SCHEMA)
    table.append(rows)
    metadata = table.state.metadata.model_dump(by_alias=True, mode="json")
    schema = read_schema(metadata["schemas"][-1])
    assert [schema.by_id[each].name for each in (ID, REGION, AMOUNT)] == ["id", "region", "amount"]
    drawn = draw_statement(random.Random(seed), 6, schema)
    if drawn.assignments:
        changed = table.update(drawn.assignments, drawn.where).updated_rows
    else:
        changed = table.delete(drawn.where).deleted_rows
    became = [(row, drawn.becomes(row)) for row in rows.to_pylist()]
    assert changed == sum(old != new for old, new in became), drawn.where
    expected = Counter(tuple(new.values()) for _, new in became if new is not None)
    found = table.refresh().scan().to_arrow().to_pylist()
    assert Counter(tuple(row.values()) for row in found) == expected
