"""How columns are encoded: what no dictionary holds does not start with one."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tableformat.codec.parquet.options import parquet_options
from tableformat.codec.parquet.writer import LEAST_ROWS, ROWS_SAMPLED, ParquetFileWriter
from tableformat.spec.types import LINEAGE_FIELDS, iceberg_schema
from tests.support.memory_store import MemoryObjectStore

LOCATION = "memory://warehouse/t/data/a.parquet"


def encodings_of(rows, fields=()):
    """By column: whether its first chunk has a dictionary."""
    store = MemoryObjectStore()
    schema = iceberg_schema(rows.schema)
    schema = type(schema)(*schema.fields, *fields)
    writer = ParquetFileWriter(
        store, LOCATION, schema=schema, options=parquet_options({}), properties={}
    )
    for field in fields:
        rows = rows.append_column(field.name, pa.array(np.arange(rows.num_rows)))
    writer.write(rows)
    writer.close()
    with store.open_input(LOCATION) as file:
        written = pq.ParquetFile(file)
        assert written.read().equals(rows.cast(written.schema_arrow))
        group = written.metadata.row_group(0)
        columns = [group.column(number) for number in range(group.num_columns)]
    return {each.path_in_schema: each.has_dictionary_page for each in columns}


def numbered(count):
    number = np.arange(count)
    return pa.table(
        {
            "id": number,
            "few": number % 900,
            "many": number * 99 // 100,
            "half": number // 2,
            "again": number % (count // 3),
            "nothing": pa.nulls(count, pa.int64()),
            "price": number / 7,
            "word": [str(each) for each in range(count)],
            "bytes": [str(each).encode() for each in range(count)],
            "name": [str(each % 900) for each in range(count)],
        }
    )


@pytest.mark.parametrize("count", [LEAST_ROWS, 8 * ROWS_SAMPLED])
@pytest.mark.parametrize("fields", [(), LINEAGE_FIELDS[:1]], ids=["rows", "with row ids"])
def test_columns_whose_values_differ_have_no_dictionary(fields, count):
    found = encodings_of(numbered(count), fields)

    assert {name for name, has in found.items() if not has} == {
        "id",
        "many",
        "price",
        "word",
        "bytes",
        *(field.name for field in fields),
    }


def test_few_rows_and_tables_with_lists_are_encoded_as_the_library_does():
    few = encodings_of(numbered(LEAST_ROWS - 1))
    lists = encodings_of(numbered(2_000).append_column("list", pa.array([[1]] * 2_000)))

    assert all(few.values())
    assert all(lists.values())


@pytest.mark.parametrize("kind", [pa.int64(), pa.list_(pa.uuid()), pa.struct([("u", pa.uuid())])])
def test_file_without_rows_is_whole(kind):
    store = MemoryObjectStore()
    writer = ParquetFileWriter(
        store,
        LOCATION,
        schema=iceberg_schema(pa.schema([("a", kind)])),
        options=parquet_options({}),
        properties={},
    )

    writer.close()

    with store.open_input(LOCATION) as file:
        assert pq.ParquetFile(file).metadata.num_rows == 0


REQUIRED = {
    pa.int32(): 7,
    pa.string(): "x",
    pa.uuid(): b"\1" * 16,
    pa.binary(3): b"abc",
    pa.decimal128(9, 2): Decimal("1.25"),
    pa.timestamp("us", tz="UTC"): 0,
    pa.list_(pa.field("element", pa.int32(), nullable=False)): [1],
    pa.map_(pa.string(), pa.int32()): [("a", 1)],
    pa.struct([pa.field("q", pa.int32(), nullable=False), ("r", pa.int32())]): {"q": 1, "r": None},
}


def struct_with_nulls(kind, mask):
    """Of a required field that is null wherever the struct is."""
    value = pa.array([REQUIRED[kind]], kind)
    values = pa.concat_arrays([pa.nulls(1, kind) if gone else value for gone in mask])
    field = pa.field("k", kind, nullable=False)
    return pa.StructArray.from_arrays([values], fields=[field], mask=pa.array(mask))


@pytest.mark.parametrize("kind", REQUIRED, ids=str)
@pytest.mark.parametrize("where", ["column", "struct", "list", "map", "slice"])
def test_null_struct_may_have_nulls_in_required_fields(kind, where):
    values = struct_with_nulls(kind, [True, False, True])
    if where == "slice":
        values = pa.concat_arrays([values, values])[2:5]
    elif where == "struct":  # the inner one is not null where the outer one is
        inner = pa.StructArray.from_arrays([values.field(0)], fields=list(values.type))
        outer = [pa.field("s", inner.type, nullable=False)]
        values = pa.StructArray.from_arrays([inner], fields=outer, mask=values.is_null())
    elif where == "list":
        values = pa.ListArray.from_arrays([0, 2, 3], values)
    elif where == "map":
        keys = pa.array(["a", "b", "c"])
        values = pa.MapArray.from_arrays([0, 2, 3], keys, values)
    rows = pa.table({"id": list(range(len(values))), "s": values})
    store = MemoryObjectStore()
    schema = iceberg_schema(rows.schema)
    writer = ParquetFileWriter(
        store, LOCATION, schema=schema, options=parquet_options({}), properties={}
    )
    writer.write(rows)
    writer.close()
    with store.open_input(LOCATION) as file:
        assert pq.ParquetFile(file).read().to_pylist() == rows.to_pylist()
