"""Rows of random nested schemas survive a file: whole, sliced, in row groups, and projected."""

import math
from collections.abc import Iterator
from itertools import count
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DoubleType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    UnknownType,
)

from tableformat.spec.types import arrow_schema
from tests.support.data_files import DataFiles

FLAT: dict[type[IcebergType], Any] = {
    BooleanType: st.booleans(),
    IntegerType: st.integers(-(1 << 31), (1 << 31) - 1),
    LongType: st.integers(-(1 << 63), (1 << 63) - 1),
    DoubleType: st.floats(allow_nan=False),
    StringType: st.text(st.characters(exclude_categories=("Cs",)), max_size=5),
    BinaryType: st.binary(max_size=5),
}


@st.composite
def _types(draw: Any, ids: Iterator[int], depth: int) -> IcebergType:
    shape = draw(st.sampled_from(["flat"] * 2 + ["struct", "list", "map"] * (depth > 0)))
    if shape == "flat":
        return draw(st.sampled_from(list(FLAT)))()
    if shape == "struct":
        fields = draw(_fields(ids, depth - 1))
        if draw(st.booleans()):
            fields = (*fields, NestedField(next(ids), "void", UnknownType(), required=False))
        return StructType(*fields)
    if shape == "list":
        element_id = next(ids)
        return ListType(element_id, draw(_types(ids, depth - 1)), draw(st.booleans()))
    key_id, value_id = next(ids), next(ids)
    key = draw(st.sampled_from([StringType(), LongType()]))
    return MapType(key_id, key, value_id, draw(_types(ids, depth - 1)), draw(st.booleans()))


@st.composite
def _fields(draw: Any, ids: Iterator[int], depth: int) -> tuple[NestedField, ...]:
    return tuple(
        NestedField(next(ids), f"f{index}", draw(_types(ids, depth)), required=draw(st.booleans()))
        for index in range(draw(st.integers(1, 3)))
    )


def _values(kind: IcebergType, required: bool) -> Any:
    if isinstance(kind, UnknownType):
        return st.none()
    if isinstance(kind, StructType):
        found: Any = st.fixed_dictionaries(
            {field.name: _values(field.field_type, field.required) for field in kind.fields}
        )
    elif isinstance(kind, ListType):
        found = st.lists(_values(kind.element_type, kind.element_required), max_size=3)
    elif isinstance(kind, MapType):
        pairs = st.tuples(
            _values(kind.key_type, True), _values(kind.value_type, kind.value_required)
        )
        found = st.lists(pairs, max_size=3, unique_by=lambda pair: pair[0])
    else:
        found = FLAT[type(kind)]
    return found if required else st.none() | found


def _same(left: Any, right: Any) -> bool:
    """Equal, and zeros of the same sign."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, float) and isinstance(right, float):
        return left == right and math.copysign(1, left) == math.copysign(1, right)
    return bool(left == right) and type(left) is type(right)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.data())
def test_rows_of_any_schema_survive(data: st.DataObject) -> None:
    fields = data.draw(_fields(count(1), 2))
    schema = Schema(*fields)
    rows = data.draw(st.lists(_values(schema.as_struct(), True), max_size=8))
    table = pa.Table.from_pylist(rows, schema=arrow_schema(schema))
    files = DataFiles(schema, properties={"write.parquet.row-group-limit": "3"})
    start = data.draw(st.integers(0, max(len(rows) - 1, 0)))
    for part, expected in ((table, rows), (table.slice(start), rows[start:])):
        found = files.read(*files.write(part), batch_rows=2)
        assert found.schema.equals(arrow_schema(schema))
        assert _same(found.to_pylist(), expected)
    kept = data.draw(st.sets(st.sampled_from([field.field_id for field in fields]), min_size=1))
    narrow = Schema(*(field for field in reversed(fields) if field.field_id in kept))
    projected = files.read(*files.write(table), schema=narrow).to_pylist()
    names = [field.name for field in narrow.fields]
    assert _same(projected, [{name: row[name] for name in names} for row in rows])
