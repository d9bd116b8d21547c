"""Splitting by partition: against PyIceberg's own per-value transforms, row by row."""

import datetime as dt
import math
import struct
import uuid
from collections import defaultdict
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    UnknownTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import IcebergType, LongType, NestedField, StructType, UnknownType

from tableformat.codec.avro.partition_values import partition_normalizer, partition_type
from tableformat.errors import InvalidInputError, UnsupportedError
from tableformat.spec.data_file import canonical_partition
from tableformat.spec.types import arrow_schema
from tableformat.write.partitioning import Partitioner, encode_values

# Not the very smallest ones: truncating those wraps around (in Java too), but not in Python.
I32, I64 = (-(1 << 31) + 100, (1 << 31) - 1), (-(1 << 63) + 100, (1 << 63) - 1)
US = (-62_135_596_800_000_000, 253_402_300_799_999_999)  # years 1 to 9999, what Python can hold
ALL_TIME = (YearTransform(), MonthTransform(), DayTransform())
TRANSFORMS: dict[str, tuple[Any, tuple[Transform[Any, Any], ...]]] = {
    "boolean": (st.booleans(), ()),
    "int": (st.integers(*I32), (BucketTransform(7), TruncateTransform(10))),
    "long": (st.integers(*I64), (BucketTransform(7), TruncateTransform(10))),
    "float": (st.floats(width=32), ()),
    "double": (st.floats(), ()),
    "date": (st.integers(-719_162, 2_932_896), (*ALL_TIME, BucketTransform(7))),
    "time": (st.integers(0, 86_399_999_999), (BucketTransform(7),)),
    "timestamp": (st.integers(*US), (*ALL_TIME, HourTransform(), BucketTransform(7))),
    "timestamptz": (st.integers(*US), (*ALL_TIME, HourTransform(), BucketTransform(7))),
    "timestamp_ns": (st.integers(*I64), (*ALL_TIME, HourTransform(), BucketTransform(7))),
    "timestamptz_ns": (st.integers(*I64), (*ALL_TIME, HourTransform(), BucketTransform(7))),
    "decimal(9, 2)": (
        st.decimals(-9999999, 9999999, places=2),
        (BucketTransform(7), TruncateTransform(50)),
    ),
    "decimal(38, 2)": (
        st.decimals(-(10**35), 10**35, places=2),
        (BucketTransform(7), TruncateTransform(50)),
    ),
    "string": (
        st.text(st.characters(exclude_categories=("Cs",)), max_size=6),
        (BucketTransform(7), TruncateTransform(2)),
    ),
    "uuid": (st.uuids(), (BucketTransform(7),)),
    "fixed[3]": (st.binary(min_size=3, max_size=3), (BucketTransform(7),)),
    "binary": (st.binary(max_size=5), (BucketTransform(7), TruncateTransform(2))),
}
CASES = [
    pytest.param(name, values, transform, id=f"{name}-{transform}")
    for name, (values, transforms) in TRANSFORMS.items()
    for transform in (IdentityTransform(), VoidTransform(), *transforms)
]


def _table(kind: IcebergType, values: list[Any]) -> tuple[Schema, pa.Table]:
    schema = Schema(
        NestedField(1, "row", LongType(), required=True),
        NestedField(2, "c", kind, required=False),
    )
    target = arrow_schema(schema)
    wanted = target.field("c").type
    if isinstance(wanted, pa.UuidType):
        raw = [None if value is None else value.bytes for value in values]
        column = pa.ExtensionArray.from_storage(wanted, pa.array(raw, pa.binary(16)))
    else:
        column = pa.array(values, wanted)
    return schema, pa.table([pa.array(range(len(values)), pa.int64()), column], schema=target)


@pytest.mark.parametrize(("name", "values", "transform"), CASES)
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_every_row_lands_in_the_partition_of_its_value(
    name: str, values: Any, transform: Transform[Any, Any], data: st.DataObject
) -> None:
    kind = IcebergType.handle_primitive_type(name, None)
    drawn = data.draw(st.lists(st.none() | values, max_size=12))
    schema, table = _table(kind, drawn)
    spec = PartitionSpec(PartitionField(2, 1000, transform, "p"), spec_id=1)
    partitioner = Partitioner(spec, schema)
    one_by_one = transform.transform(kind)
    expected: dict[Any, list[int]] = defaultdict(list)
    for row, value in enumerate(drawn):
        found = None if value is None else one_by_one(value)
        found = dt.date.toordinal(found) if isinstance(found, dt.date) else found
        expected[canonical_partition((found,))].append(row)
    split = list(partitioner.split(table))
    normalize = partition_normalizer(partition_type(spec, schema))
    got = {canonical_partition(part): rows.column("row").to_pylist() for part, rows in split}
    assert got == expected
    for partition, rows in split:
        assert repr(normalize(partition)) == repr(partition)  # internal form, exact type
        assert partitioner.path(partition).startswith("p=")
        assert rows.schema.equals(table.schema)
        originals = [repr(drawn[row]) for row in rows.column("row").to_pylist()]
        if name in ("string", "long", "uuid"):
            assert [repr(v) for v in rows.column("c").to_pylist()] == originals


def test_several_fields_and_a_nested_source_split_together() -> None:
    inner = StructType(NestedField(3, "x", LongType(), required=False))
    schema = Schema(
        NestedField(1, "a", "string", required=False), NestedField(2, "s", inner, required=False)
    )
    spec = PartitionSpec(
        PartitionField(3, 1000, TruncateTransform(10), "x_trunc"),
        PartitionField(1, 1001, VoidTransform(), "gone"),
        PartitionField(1, 1002, IdentityTransform(), "a"),
    )
    rows = [
        {"a": "l", "s": {"x": 11}},
        {"a": None, "s": None},
        {"a": "l", "s": {"x": 19}},
        {"a": None, "s": {"x": None}},
        {"a": "m", "s": {"x": -1}},
    ]
    table = pa.Table.from_pylist(rows, schema=arrow_schema(schema))
    got = {part: piece.to_pylist() for part, piece in Partitioner(spec, schema).split(table)}
    assert got == {
        (10, None, "l"): [rows[0], rows[2]],
        (None, None, None): [rows[1], rows[3]],
        (-10, None, "m"): [rows[4]],
    }


def test_zero_signs_and_nans_make_exactly_three_partitions() -> None:
    schema, table = _table(IcebergType.handle_primitive_type("double", None), [])
    quiet = struct.unpack("<d", b"\x01\x00\x00\x00\x00\x00\xf8\xff")[0]
    table = pa.table(
        [pa.array(range(5)), pa.array([0.0, -0.0, math.nan, quiet, 0.0])], schema=table.schema
    )
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"))
    split = list(Partitioner(spec, schema).split(table))
    assert [rows.column("row").to_pylist() for _, rows in split] == [[0, 4], [1], [2, 3]]
    assert repr([part for part, _ in split]) == "[(0.0,), (-0.0,), (nan,)]"


@pytest.mark.slow
def test_more_partitions_than_sixteen_bits_hold() -> None:
    schema, _ = _table(LongType(), [])
    values = np.arange(70_000) * 3 % 70_000
    table = pa.table([pa.array(np.arange(70_000)), pa.array(values)], schema=arrow_schema(schema))
    spec = PartitionSpec(
        PartitionField(2, 1000, IdentityTransform(), "p"),
        PartitionField(2, 1001, BucketTransform(4), "b"),
    )
    seen = 0
    for (value, _bucket), rows in Partitioner(spec, schema).split(table):
        assert rows.column("c").to_pylist() == [value] * rows.num_rows
        seen += rows.num_rows
    assert seen == 70_000


def test_codes_of_many_fields_do_not_overflow() -> None:
    fields = [NestedField(i, f"c{i}", LongType(), required=False) for i in range(1, 6)]
    schema = Schema(*fields)
    spec = PartitionSpec(
        *(PartitionField(i, 1000 + i, IdentityTransform(), f"p{i}") for i in range(1, 6))
    )
    # Five fields of 2^13 values: in 64 bits the last row would wrap around to the first one's code.
    count = 1 << 13
    first = np.append(np.arange(count), count >> 1)
    others = np.append(np.arange(count), 0)
    columns = [pa.array(first), *[pa.array(others)] * 4]
    table = pa.table(columns, schema=arrow_schema(schema))
    split = list(Partitioner(spec, schema).split(table))
    assert len(split) == count + 1
    for partition, rows in split:
        assert tuple(rows.to_pylist()[0].values()) == partition


def test_parts_do_not_keep_the_whole_alive() -> None:
    schema, _ = _table(LongType(), [])
    values = np.arange(10_000) % 10
    table = pa.table([pa.array(np.arange(10_000)), pa.array(values)], schema=arrow_schema(schema))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"))
    for _, rows in Partitioner(spec, schema).split(table):
        assert rows.get_total_buffer_size() < table.nbytes / 5


def test_unpartitioned_rows_stay_one_piece() -> None:
    schema, table = _table(LongType(), [3, 1, 2])
    for fields, partition in (
        ((), ()),
        ((PartitionField(2, 1000, VoidTransform(), "v"),), (None,)),
    ):
        ((found, rows),) = Partitioner(PartitionSpec(*fields), schema).split(table)
        assert (found, rows) == (partition, table)
    assert list(Partitioner(PartitionSpec(), schema).split(table.slice(0, 0))) == []


def test_partition_of_an_unknown_column_is_null() -> None:
    schema, table = _table(UnknownType(), [None, None])
    spec = PartitionSpec(PartitionField(2, 1000, VoidTransform(), "v"))
    assert [part for part, _ in Partitioner(spec, schema).split(table)] == [(None,)]


@pytest.mark.parametrize(
    ("field", "error"),
    [
        (PartitionField(9, 1000, IdentityTransform(), "p"), InvalidInputError),
        (PartitionField(2, 1000, YearTransform(), "p"), InvalidInputError),
        (PartitionField(2, 1000, UnknownTransform("zorder"), "p"), UnsupportedError),
    ],
)
def test_spec_that_does_not_fit_is_refused(field: PartitionField, error: type[Exception]) -> None:
    schema, _ = _table(LongType(), [])
    with pytest.raises(error, match="partition_field=p"):
        Partitioner(PartitionSpec(field), schema)


def test_path_is_escaped() -> None:
    schema, _ = _table(IcebergType.handle_primitive_type("string", None), [])
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "a b"))
    path = Partitioner(spec, schema).path(("x/../y=é",))
    assert path == "a+b=x%2F..%2Fy%3D%C3%A9"


def test_encoded_values_are_internal_ones() -> None:
    value = uuid.UUID(int=5)
    storage = pa.array([value.bytes, None], pa.binary(16))
    assert encode_values(pa.ExtensionArray.from_storage(pa.uuid(), storage))[1] == [value, None]
    assert encode_values(pa.array([Decimal("1.20")]))[1] == [Decimal("1.20")]
    assert encode_values(pa.array([dt.date(1970, 1, 3)]))[1] == [2]
