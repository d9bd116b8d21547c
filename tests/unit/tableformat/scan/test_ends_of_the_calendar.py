"""The first and the last day are asked for in every way, under every transform of dates.

PyIceberg takes a step over the ends of the calendar to project some comparisons.
"""

from __future__ import annotations

import datetime as dt
import operator

import pyarrow as pa
import pytest

import tableformat as tf

DAYS = [dt.date(1, 1, 1), dt.date(1970, 1, 1), dt.date(9999, 12, 31)]
OPERATORS = {
    "<": operator.lt,
    "<=": operator.le,
    "=": operator.eq,
    ">=": operator.ge,
    ">": operator.gt,
    "<>": operator.ne,
}


@pytest.mark.parametrize("by", ["day", "day(day)", "month(day)", "year(day)", "bucket(3, day)"])
def test_rows_of_the_first_and_the_last_day_are_found_and_deleted(tmp_path, by) -> None:
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32())])
    catalog = tf.open_catalog("local", warehouse=str(tmp_path))
    table = catalog.create_table("a.t", schema, primary_key=["id"], partition_by=[by])
    table.append(pa.table({"id": range(len(DAYS)), "day": DAYS}, schema=schema))
    for end in (DAYS[0], DAYS[-1]):
        for sign, holds in OPERATORS.items():
            found = table.refresh().scan(f"day {sign} '{end}'").to_arrow()["day"].to_pylist()
            assert sorted(found) == [day for day in DAYS if holds(day, end)], (sign, end)
    table.delete("day > '9999-12-31'")
    table.refresh().delete("day < '0001-01-01'")
    assert table.refresh().scan().to_arrow().num_rows == len(DAYS)
