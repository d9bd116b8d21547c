"""`truncate` wraps the smallest integers around to large partition values, in every engine."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyiceberg.types import LongType

import tableformat as tf

KINDS = [
    pytest.param(pa.int32(), -(2**31), id="int"),
    pytest.param(pa.int64(), -(2**63), id="long"),
]


@pytest.mark.parametrize("beside", [[], [0, 2**31 - 1]])
@pytest.mark.parametrize(("kind", "least"), KINDS)
def test_smallest_integers_are_found_and_not_taken_for_large_ones(
    tmp_path, kind, least, beside
) -> None:
    numbers = [least, least + 1, *beside]
    table = _table(tmp_path, kind, numbers)
    for where, meant in [
        ("n < 0", lambda n: n < 0),
        ("n > 0", lambda n: n > 0),
        (f"n = {least + 1}", lambda n: n == least + 1),
        (f"n <= {least + 1}", lambda n: n <= least + 1),
        ("n IS NULL", lambda n: False),
    ]:
        assert _numbers(table, where) == sorted(filter(meant, numbers)), where
    table.delete("n > 0")
    assert _numbers(table.refresh(), None) == sorted(n for n in numbers if n <= 0)


def test_an_int_that_became_a_long_is_still_where_it_was_filed(tmp_path) -> None:
    table = _table(tmp_path, pa.int32(), [-(2**31)])
    table.update_schema(lambda update: update.update_column("n", LongType()))
    assert _numbers(table.refresh(), "n < 0") == [-(2**31)]
    assert _numbers(table, "n > 0") == []


def _table(folder, kind: pa.DataType, numbers: list[int]) -> tf.Table:
    catalog = tf.open_catalog("local", warehouse=str(folder))
    schema = pa.schema([("id", pa.int64()), ("n", kind)])
    table = catalog.create_table(
        "a.t", schema, primary_key=["id"], partition_by=["truncate(10, n)"]
    )
    table.append(pa.table({"id": range(len(numbers)), "n": numbers}, schema=schema))
    return table


def _numbers(table: tf.Table, where: str | None) -> list[int]:
    return sorted(table.scan(filter=where, columns=["n"]).to_arrow()["n"].to_pylist())
