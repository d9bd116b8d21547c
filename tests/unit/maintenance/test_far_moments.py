"""Moments that Python has no values for: years before 1 and after 9999, nanoseconds.

Iceberg and Arrow hold them, and databases send them (`9999-12-31` of a zone west of Greenwich is
one). They go through partitions, keys, lookups and what commands print.
"""

import json

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner

import tableformat as tf
from maintenance.cli.main import cli
from resolver import resolve

FAR = ["-0043-03-15", "+12345-12-31", "9999-12-31"]


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.timestamp("us", tz="UTC")])
@pytest.mark.parametrize("partition_by", [[], ["at"], ["day(at)"], ["year(at)"]])
@pytest.mark.parametrize("key", ["id", "at"])
def test_far_moment_is_a_value_like_others(
    tmp_path, kind: pa.DataType, partition_by: list[str], key: str
) -> None:
    warehouse = str(tmp_path)
    catalog = tf.open_catalog("local", warehouse=warehouse)
    schema = pa.schema([pa.field("id", pa.int64(), key != "id"), pa.field("at", kind, key != "at")])
    table = catalog.create_table("t.far", schema, primary_key=[key], partition_by=partition_by)
    storage, unit = (pa.int32(), "D") if pa.types.is_date(kind) else (pa.int64(), "us")
    numbers = np.array([text.lstrip("+") for text in FAR], f"M8[{unit}]").astype(np.int64)
    moments = pa.array(numbers).cast(storage).cast(kind)
    rows = pa.table({"id": [1, 2, 3], "at": moments}, schema=schema)
    table.append(rows)
    table.stage(rows.slice(0, 1), deletes=rows.slice(2).select([key]))
    resolve(table)

    found = table.scan().to_arrow().sort_by("id")["at"].combine_chunks()
    assert found.cast(storage).to_pylist() == numbers[:2].tolist()
    assert len(table.lookup(rows.select([key]))) == 2
    assert len(table.lookup(rows.select([key])).to_pylist()) == 2
    for words in (["scan", "t.far"], ["changes", "t.far"], ["inspect", "t.far", "partitions"]):
        printed = CliRunner().invoke(cli, ["--warehouse", warehouse, *words])
        assert printed.exit_code == 0, (words, printed.exception)
    printed = CliRunner().invoke(cli, ["--warehouse", warehouse, "scan", "t.far", "--json"])
    shown = {each["id"]: each["at"][:11] for each in map(json.loads, printed.stdout.splitlines())}
    assert shown == {1: "-0043-03-15", 2: "12345-12-31"}
