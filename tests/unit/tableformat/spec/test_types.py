"""`docs/types.md` is held to the code, and every row of it goes through a Parquet file."""

import datetime as dt
import re
import struct
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    GeographyType,
    GeometryType,
    IcebergType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from tableformat.errors import InvalidInputError, UnsupportedError
from tableformat.spec.types import arrow_schema, iceberg_schema
from tableformat.write.rows import check_columns, conform_batch
from tests.support.data_files import DataFiles

UTC = dt.UTC
DOC = Path(__file__).parents[4] / "docs" / "types.md"


class Row(NamedTuple):
    iceberg: str
    arrow: str
    taken: tuple[str, ...]
    parquet: str
    spark: str


def _documented() -> list[Row]:
    rows = []
    for line in DOC.read_text().splitlines():
        if line.startswith("| `"):
            iceberg, arrow, taken, parquet, spark = (
                cell.strip() for cell in line.strip("|").split("|")
            )
            names = tuple(re.findall("`([^`]+)`", taken))
            rows.append(Row(iceberg.strip("`"), arrow.strip("`"), names, parquet, spark.strip("`")))
    return rows


ROWS = _documented()
STORED = [row for row in ROWS if row.arrow != "refused"]

NESTED: dict[str, IcebergType] = {
    "struct<1: a: optional int>": StructType(NestedField(1, "a", "int", required=False)),
    "list<int>": ListType(2, "int", element_required=False),
    "map<string, int>": MapType(2, "string", 3, "int", value_required=False),
}

# Smallest, largest and ordinary values of every type, as Arrow's Python objects.
MIN64, MAX64 = -(1 << 63), (1 << 63) - 1
VALUES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "int": [-(1 << 31), (1 << 31) - 1, 0],
    "long": [MIN64, MAX64, 0],
    "float": [1.5, -0.0, float("inf"), float("-inf"), 3.4028234663852886e38],
    "double": [0.1, -0.0, float("inf"), 5e-324],
    "decimal(9, 2)": [Decimal("9999999.99"), Decimal("-9999999.99"), Decimal("0.00")],
    "decimal(18, 4)": [Decimal("99999999999999.9999"), Decimal("-0.0001")],
    "decimal(38, 10)": [Decimal("9" * 28 + "." + "9" * 10), Decimal("-0.0000000001")],
    "date": [dt.date(1, 1, 1), dt.date(9999, 12, 31)],
    "time": [dt.time(0), dt.time(23, 59, 59, 999999)],
    "timestamp": [dt.datetime(1900, 1, 1, 0, 0, 0, 1), dt.datetime(2262, 1, 1)],
    "timestamptz": [dt.datetime(1900, 1, 1, tzinfo=UTC)],
    "timestamp_ns": [MIN64 + 1, MAX64, 1],
    "timestamptz_ns": [MIN64 + 1, MAX64, 1],
    "string": ["", "é\U0001f600", "x" * 5000],
    "uuid": [uuid.UUID(int=0), uuid.UUID(int=(1 << 128) - 1)],
    "fixed[7]": [b"\x00" * 7, b"\xff" * 7],
    "binary": [b"", b"\xff\x00"],
    "unknown": [],
    "struct<1: a: optional int>": [{"a": 1}, {"a": None}],
    "list<int>": [[1, None], []],
    "map<string, int>": [[("k", 1), ("n", None)], []],
}


def _iceberg(name: str) -> IcebergType:
    return NESTED.get(name) or IcebergType.handle_primitive_type(name, None)


def _column_schema(name: str) -> Schema:
    return Schema(
        NestedField(100, "id", LongType(), required=True),
        NestedField(101, "c", _iceberg(name), required=False),
    )


def _values(row: Row) -> pa.Array:
    kind = arrow_schema(_column_schema(row.iceberg)).field("c").type
    if isinstance(kind, pa.UuidType):
        raw = [value.bytes for value in VALUES[row.iceberg]]
        return pa.ExtensionArray.from_storage(kind, pa.array([*raw, None], pa.binary(16)))
    return pa.array([*VALUES[row.iceberg], None], kind)


def _ids(row: Row) -> str:
    return row.iceberg


def test_document_names_every_type_of_the_spec() -> None:
    primitive = {row.iceberg.split("(")[0].split("[")[0] for row in ROWS}
    assert primitive >= {
        *("boolean", "int", "long", "float", "double", "decimal", "date", "time"),
        *("timestamp", "timestamptz", "timestamp_ns", "timestamptz_ns", "string", "uuid"),
        *("fixed", "binary", "unknown", "variant", "geometry", "geography"),
    }
    assert {row.iceberg for row in STORED} == VALUES.keys()


@pytest.mark.parametrize("row", STORED, ids=_ids)
def test_arrow_type_is_the_documented_one(row: Row) -> None:
    assert str(arrow_schema(_column_schema(row.iceberg)).field("c").type) == row.arrow


@pytest.mark.parametrize("row", STORED, ids=_ids)
def test_schema_survives_arrow_and_back(row: Row) -> None:
    schema = _column_schema(row.iceberg)
    assert iceberg_schema(arrow_schema(schema)) == schema


@pytest.mark.parametrize("row", STORED, ids=_ids)
def test_values_survive_a_parquet_file(row: Row) -> None:
    files = DataFiles(_column_schema(row.iceberg))
    values = _values(row)
    table = pa.table({"id": pa.array(range(len(values))), "c": values})
    file = files.write_one(table)
    found = files.read(file)
    assert found.schema.equals(arrow_schema(files.schema))
    assert found.column("c").combine_chunks().equals(values)
    stored = [
        column
        for column in map(files.parquet(file).schema.column, range(len(files.parquet(file).schema)))
        if column.path.split(".")[0] == "c"
    ]
    if row.parquet == "not stored":
        assert stored == []
    elif not row.parquet.startswith("group"):
        (column,) = stored
        annotation = f" ({column.logical_type.type})" if column.logical_type.type != "NONE" else ""
        assert column.physical_type + annotation == row.parquet


# Layouts that the document says are taken, by the name Arrow gives them.
_LAYOUTS: tuple[pa.DataType, ...] = (
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(), pa.float16(), pa.float32()),
    *(pa.decimal32(9, 2), pa.decimal64(18, 2), pa.decimal256(40, 2), pa.decimal128(12, 4)),
    *(pa.decimal64(18, 4), pa.decimal256(40, 4), pa.decimal256(40, 10), pa.date64()),
    *(pa.time32("s"), pa.time32("ms"), pa.time64("ns")),
    *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
    *(pa.timestamp("ms", "Europe/Berlin"), pa.timestamp("us", "America/New_York")),
    pa.timestamp("ns", "UTC"),
    *(pa.string(), pa.large_string(), pa.string_view()),
    *(pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(7), pa.binary(16)),
    pa.large_list(pa.field("element", pa.int32())),
    pa.list_(pa.field("element", pa.int32()), 2),
    pa.list_view(pa.field("element", pa.int32())),
)
LAYOUTS = {str(kind): kind for kind in _LAYOUTS}

# One exact value per Iceberg type that all of its layouts hold.
SAMPLE: dict[str, Any] = {
    "int": 7,
    "long": 7,
    "float": 1.5,
    "double": 1.5,
    "decimal(9, 2)": Decimal("12.30"),
    "decimal(18, 4)": Decimal("12.3000"),
    "decimal(38, 10)": Decimal("12.3"),
    "date": dt.date(2024, 2, 29),
    "time": dt.time(1, 2, 3),
    "timestamp": dt.datetime(2024, 2, 29, 1, 2, 3),
    "timestamp_ns": dt.datetime(2024, 2, 29, 1, 2, 3),
    "timestamptz": dt.datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC),
    "timestamptz_ns": dt.datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC),
    "string": "é",
    "uuid": b"0123456789abcdef",
    "fixed[7]": b"1234567",
    "binary": b"1234567",
    "list<int>": [1, 2],
}


def _take(array: pa.Array, name: str) -> pa.Array:
    schema = Schema(NestedField(101, "c", _iceberg(name), required=False))
    batch = pa.record_batch({"c": array})
    check_columns(batch.schema, schema)
    return conform_batch(batch, schema, arrow_schema(schema)).column(0)


@pytest.mark.parametrize(
    ("name", "layout"), [(row.iceberg, layout) for row in STORED for layout in row.taken]
)
def test_documented_layouts_are_taken_exactly(name: str, layout: str) -> None:
    sample = SAMPLE[name]
    if name == "uuid" and layout == "string":
        sample = str(uuid.UUID(bytes=sample))
    array = pa.array([None, sample, None, sample], LAYOUTS[layout])
    plain = arrow_schema(_column_schema(name)).field("c").type
    expected = (
        pa.ExtensionArray.from_storage(plain, pa.array([SAMPLE[name]], pa.binary(16)))
        if name == "uuid"
        else pa.array([SAMPLE[name]], plain)
    )
    for part in (array[1:2], array[3:]):  # slices: offsets are where layouts go wrong
        assert _take(part, name).equals(expected)
    assert _take(array, name).is_null().to_pylist() == [True, False, True, False]
    kind = array.type
    if not pa.types.is_nested(kind) and not layout.startswith(("halffloat", "decimal")):
        assert _take(array.dictionary_encode()[1:2], name).equals(expected)
    for runs in (array[:2], pa.concat_arrays([expected, expected])):
        repeated = pa.RunEndEncodedArray.from_arrays(pa.array([2, 5], pa.int16()), runs)
        assert _take(repeated[3:4], name).equals(expected)
        assert (
            _take(repeated, name).is_null().to_pylist()
            == [runs[0].as_py() is None] * 2 + [False] * 3
        )


@pytest.mark.parametrize(
    ("array", "name"),
    [
        (pa.array([1 << 31]), "int"),
        (pa.array([-(1 << 31) - 1]), "int"),
        (pa.array([1 << 63], pa.uint64()), "long"),
        (pa.array([1.5]), "float"),
        (pa.array([1]), "double"),
        (pa.array([1.0]), "long"),
        (pa.array([1]), "boolean"),
        (pa.array([1]), "string"),
        (pa.array(["1"]), "int"),
        (pa.array(["x"]), "binary"),
        (pa.array([b"x"]), "string"),
        (pa.array([Decimal("1.234")]), "decimal(9, 2)"),
        (pa.array([Decimal("99999999.00")]), "decimal(9, 2)"),
        (pa.array([1]), "timestamp_ns"),
        (pa.array([1], pa.timestamp("us")), "timestamptz"),
        (pa.array([1], pa.timestamp("us", "UTC")), "timestamp"),
        (pa.array([1], pa.timestamp("ns")), "timestamp"),
        (pa.array([MAX64], pa.timestamp("us")), "timestamp_ns"),
        (pa.array([1], pa.timestamp("us")), "date"),
        (pa.array([1], pa.time64("ns")), "time"),
        (pa.array([b"123456"]), "fixed[7]"),
        (pa.array([b"123456"], pa.binary(6)), "fixed[7]"),
        (pa.array([b"123"]), "uuid"),
        (pa.array(["not-a-uuid"]), "uuid"),
        (pa.array(["zzzzzzzz-0000-0000-0000-000000000000"]), "uuid"),
        (pa.array([1]), "unknown"),
        (pa.array([1]), "list<int>"),
        (pa.array([["x"]]), "list<int>"),
        (pa.array([{"b": 1}]), "struct<1: a: optional int>"),
        (pa.array([[(1, 1)]], pa.map_(pa.int32(), pa.int32())), "map<string, int>"),
        (pa.array([1], pa.duration("us")), "long"),
    ],
)
def test_value_that_does_not_fit_is_refused_and_the_column_named(
    array: pa.Array, name: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        _take(array, name)
    assert caught.value.context["column"].split(".")[0] == "c"


@pytest.mark.parametrize("kind", [GeometryType(), GeographyType()])
def test_unsupported_type_is_refused_by_column_name(kind: IcebergType) -> None:
    inside = StructType(NestedField(2, "shape", kind, required=False))
    with pytest.raises(UnsupportedError, match=r"column=place\.shape"):
        arrow_schema(Schema(NestedField(1, "place", inside, required=False)))


@pytest.mark.parametrize(
    "kind",
    [pa.duration("us"), pa.month_day_nano_interval(), pa.decimal256(50, 2), pa.decimal128(5, -2)],
)
def test_arrow_type_without_iceberg_type_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(UnsupportedError):
        iceberg_schema(pa.schema([pa.field("a", pa.struct([pa.field("b", kind)]))]))


def test_schema_without_field_ids_gets_fresh_ones_level_by_level() -> None:
    given = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("tags", pa.map_(pa.string(), pa.list_(pa.uint32()))),
            pa.field("at", pa.struct([pa.field("x", pa.float16(), nullable=False)])),
        ]
    )
    assert iceberg_schema(given).as_struct() == StructType(
        NestedField(1, "id", LongType(), required=True),
        NestedField(
            2,
            "tags",
            MapType(4, StringType(), 5, ListType(6, LongType(), False), False),
            required=False,
        ),
        NestedField(
            3, "at", StructType(NestedField(7, "x", "float", required=True)), required=False
        ),
    )


def test_schema_with_some_field_ids_is_refused() -> None:
    with_id = pa.field("a", pa.int32(), metadata={b"PARQUET:field_id": b"4"})
    with pytest.raises(InvalidInputError, match="column=b"):
        iceberg_schema(pa.schema([with_id, pa.field("b", pa.int32())]))
    broken = pa.field("a", pa.int32(), metadata={b"PARQUET:field_id": b"four"})
    with pytest.raises(InvalidInputError, match="column=a"):
        iceberg_schema(pa.schema([broken]))


def test_doc_strings_survive() -> None:
    schema = Schema(NestedField(5, "a", LongType(), required=True, doc="why"))
    assert iceberg_schema(arrow_schema(schema)).find_field("a").doc == "why"


def test_uuid_text_is_exact_for_slices_nulls_and_both_cases() -> None:
    from tableformat.spec.uuid_text import format_uuids, parse_uuids

    values = [uuid.UUID(bytes=struct.pack(">QQ", i * 7919, i)) for i in range(20)]
    text = pa.array([str(v) if i % 3 else None for i, v in enumerate(values)])
    for start in (0, 1, 9):
        part = text[start:]
        parsed = parse_uuids(part)
        assert [v and str(v) for v in parsed.to_pylist()] == part.to_pylist()
        assert format_uuids(parsed).to_pylist() == part.to_pylist()
        assert format_uuids(parse_uuids(text)[start:]).to_pylist() == part.to_pylist()
    assert parse_uuids(pa.array([str(values[3]).upper()])).to_pylist() == [values[3]]
    assert parse_uuids(pa.array([], pa.string())).to_pylist() == []
    with pytest.raises(ValueError, match="UUID"):
        parse_uuids(pa.array(["0" * 36]))
