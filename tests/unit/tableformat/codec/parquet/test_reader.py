"""Reading data files: schema evolution, lineage, positions, other writers' files, broken files."""

import datetime as dt
import io
import json
import struct
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    UnknownType,
    UUIDType,
)

from tableformat.codec.parquet import reader as parquet_reader
from tableformat.codec.parquet.reader import EXPANSION
from tableformat.errors import (
    CorruptDataError,
    InvalidInputError,
    NotFoundError,
    StoreUnavailableError,
    UnsupportedError,
)
from tableformat.spec.data_file import DataFile
from tableformat.spec.types import LAST_UPDATED_FIELD, ROW_ID_FIELD, arrow_schema, iceberg_schema
from tests.support.data_files import DataFiles

MAPPING = "schema.name-mapping.default"


def _field(field_id: int, name: str, kind: IcebergType, **options: Any) -> NestedField:
    return NestedField(field_id, name, kind, **({"required": False} | options))


ID = _field(1, "id", LongType(), required=True)
SCHEMA = Schema(ID, _field(2, "name", StringType()))
ROWS = pa.table({"id": range(10), "name": [f"n{i}" for i in range(10)]})


# ---- projection by field id


def test_columns_are_found_by_id_whatever_they_are_called() -> None:
    files = DataFiles(SCHEMA)
    file = files.write_one(ROWS)
    renamed = Schema(_field(2, "id", StringType()), _field(1, "number", LongType(), required=True))
    found = files.read(file, schema=renamed)
    assert found.column_names == ["id", "number"]
    assert found.slice(3, 1).to_pylist() == [{"id": "n3", "number": 3}]


@pytest.mark.parametrize(
    ("old", "new", "stored", "read"),
    [
        (IntegerType(), LongType(), [-(1 << 31), None], [-(1 << 31), None]),
        (FloatType(), DoubleType(), [1.5, float("inf")], [1.5, float("inf")]),
        (DecimalType(9, 2), DecimalType(20, 2), [Decimal("-1.25")], [Decimal("-1.25")]),
        (DecimalType(20, 2), DecimalType(38, 2), [Decimal("-1.25")], [Decimal("-1.25")]),
        (DateType(), TimestampType(), [dt.date(1969, 12, 31)], [dt.datetime(1969, 12, 31)]),
        (UnknownType(), StringType(), [None], [None]),
    ],
)
def test_older_types_are_promoted(
    old: IcebergType, new: IcebergType, stored: list[Any], read: list[Any]
) -> None:
    files = DataFiles(Schema(ID, _field(2, "c", old)))
    kind = arrow_schema(files.schema).field("c").type
    table = pa.table({"id": range(len(stored)), "c": pa.array(stored, kind)})
    file = files.write_one(table)
    found = files.read(file, schema=Schema(ID, _field(2, "c", new)))
    assert found.column("c").to_pylist() == read


def test_date_is_promoted_to_nanoseconds_or_refused_beyond_their_range() -> None:
    files = DataFiles(Schema(_field(2, "c", DateType())))
    wanted = Schema(_field(2, "c", TimestampNanoType()))
    near = files.write_one(pa.table({"c": [dt.date(2000, 1, 1)]}))
    found = files.read(near, schema=wanted).column("c")
    assert found.cast(pa.int64()).to_pylist() == [946_684_800 * 10**9]
    far = files.write_one(pa.table({"c": [dt.date(9999, 1, 1)]}))
    with pytest.raises(CorruptDataError, match="column=c"):
        files.read(far, schema=wanted)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (LongType(), IntegerType()),
        (LongType(), StringType()),
        (LongType(), DoubleType()),
        (DoubleType(), FloatType()),
        (DecimalType(9, 2), DecimalType(9, 3)),
        (DecimalType(20, 2), DecimalType(9, 2)),
        (DateType(), TimestamptzType()),
        (TimestampType(), DateType()),
        (TimestampType(), TimestamptzType()),
        (StringType(), LongType()),
        (UUIDType(), StringType()),
        (ListType(5, LongType(), False), LongType()),
        (LongType(), ListType(5, LongType(), False)),
        (StructType(_field(5, "x", LongType())), MapType(6, LongType(), 7, LongType(), False)),
    ],
)
def test_other_changes_of_type_are_an_error_and_no_cast(old: IcebergType, new: IcebergType) -> None:
    files = DataFiles(Schema(ID, _field(2, "c", old)))
    file = files.write_one(pa.table({"id": [1]}))
    with pytest.raises(CorruptDataError, match="column=c") as caught:
        files.read(file, schema=Schema(ID, _field(2, "c", new)))
    assert caught.value.context["location"] == file.file_path


def test_missing_column_is_partition_constant_then_default_then_null() -> None:
    spec = PartitionSpec(
        PartitionField(5, 1000, IdentityTransform(), "day"),
        PartitionField(6, 1001, IdentityTransform(), "gone"),
        PartitionField(7, 1002, BucketTransform(4), "bucket"),
    )
    stored = pa.table({"id": pa.array([1, 2], pa.int64())})
    files = DataFiles(Schema(ID), spec=spec)
    file = files.foreign(
        stored.cast(arrow_schema(Schema(ID))), partition=(3, None, 2), spec_id=spec.spec_id
    )
    wanted = Schema(
        ID,
        _field(5, "day", DateType(), initial_default=dt.date(2020, 1, 1)),
        _field(6, "gone", StringType(), initial_default="unused"),
        _field(7, "bucketed", LongType(), initial_default=9),
        _field(8, "note", StringType(), required=True, initial_default="d"),
        _field(9, "nothing", ListType(10, LongType(), False)),
    )
    row = {
        "day": dt.date(1970, 1, 4),
        "gone": None,
        "bucketed": 9,
        "note": "d",
        "nothing": None,
    }
    assert files.read(file, schema=wanted).to_pylist() == [{"id": 1} | row, {"id": 2} | row]


@pytest.mark.parametrize(
    "field",
    [
        _field(9, "c", LongType(), required=True),
        _field(9, "c", StructType(_field(10, "x", LongType())), required=True),
    ],
)
def test_missing_required_column_is_an_error(field: NestedField) -> None:
    files = DataFiles(SCHEMA)
    file = files.write_one(ROWS)
    with pytest.raises(CorruptDataError, match=r"required column is missing.*column=c"):
        files.read(file, schema=Schema(ID, field))


OLD_NESTED = Schema(
    ID,
    _field(
        2,
        "s",
        StructType(
            _field(3, "a", IntegerType()),
            _field(4, "gone", StringType()),
            _field(
                5, "deep", StructType(_field(6, "x", FloatType()), _field(7, "y", StringType()))
            ),
        ),
    ),
    _field(8, "l", ListType(9, StructType(_field(10, "p", IntegerType())), False)),
    _field(11, "m", MapType(12, StringType(), 13, StructType(_field(14, "v", LongType())), False)),
)
OLD_ROWS = [
    {
        "id": 1,
        "s": {"a": 1, "gone": "g", "deep": {"x": 1.5, "y": "y"}},
        "l": [{"p": 1}, None],
        "m": [("k", {"v": 1}), ("n", None)],
    },
    {"id": 2, "s": None, "l": None, "m": None},
    {"id": 3, "s": {"a": None, "gone": None, "deep": None}, "l": [], "m": []},
]


def test_nested_fields_evolve_by_id() -> None:
    files = DataFiles(OLD_NESTED)
    file = files.write_one(pa.Table.from_pylist(OLD_ROWS, schema=arrow_schema(OLD_NESTED)))
    new = Schema(
        _field(
            11,
            "map",
            MapType(
                12,
                StringType(),
                13,
                StructType(_field(15, "added", StringType(), initial_default="d")),
                False,
            ),
        ),
        _field(8, "l", ListType(9, StructType(_field(10, "q", LongType())), False)),
        _field(
            2,
            "s",
            StructType(
                _field(
                    5,
                    "deep",
                    StructType(_field(16, "new", LongType()), _field(6, "x", DoubleType())),
                ),
                _field(3, "b", LongType()),
            ),
        ),
    )
    assert files.read(file, schema=new).to_pylist() == [
        {
            "map": [("k", {"added": "d"}), ("n", None)],
            "l": [{"q": 1}, None],
            "s": {"deep": {"new": None, "x": 1.5}, "b": 1},
        },
        {"map": None, "l": None, "s": None},
        {"map": [], "l": [], "s": {"deep": None, "b": None}},
    ]


@pytest.mark.parametrize(
    "kind",
    [
        StructType(_field(20, "new", LongType())),
        StructType(_field(5, "deep", StructType(_field(20, "new", LongType())))),
    ],
)
def test_struct_without_a_stored_field_still_knows_where_it_is_null(kind: StructType) -> None:
    files = DataFiles(OLD_NESTED)
    file = files.write_one(pa.Table.from_pylist(OLD_ROWS, schema=arrow_schema(OLD_NESTED)))
    found = files.read(file, schema=Schema(_field(2, "s", kind))).column("s")
    assert found.is_null().to_pylist() == [False, True, False]


def test_only_wanted_columns_are_read() -> None:
    files = DataFiles(SCHEMA)
    file = files.write_one(ROWS)
    data = bytearray(files.store.get(file.file_path))
    chunk = files.parquet(file).metadata.row_group(0).column(1)
    data[chunk.dictionary_page_offset + chunk.total_compressed_size - 1] ^= 255  # ruin `name`
    broken = files.replace(file, bytes(data))
    assert files.read(broken, schema=SCHEMA.select("id")).num_rows == 10
    with pytest.raises(CorruptDataError):
        files.read(broken)


def test_no_stored_column_wanted_still_gives_every_row() -> None:
    files = DataFiles(SCHEMA)
    file = files.write_one(ROWS)
    wanted = Schema(_field(9, "c", LongType(), initial_default=4))
    found = files.read(file, schema=wanted, positions=True, batch_rows=4)
    assert found.to_pylist() == [{"c": 4, "_pos": i} for i in range(10)]


def test_names_with_dots_are_no_paths() -> None:
    schema = Schema(
        _field(1, "a.b", LongType()),
        _field(2, "a", StructType(_field(3, "c", StringType()))),
    )
    files = DataFiles(schema)
    file = files.write_one(pa.table({"a.b": [1], "a": [{"c": "x"}]}))
    assert files.read(file, schema=Schema(schema.fields[0])).to_pylist() == [{"a.b": 1}]
    assert files.read(file, schema=Schema(schema.fields[1])).to_pylist() == [{"a": {"c": "x"}}]


# ---- batches, positions, row groups, lineage

GROUPED = {"write.parquet.row-group-limit": "100"}


@pytest.mark.parametrize("batch_rows", [1, 7, 100, 1000])
def test_positions_count_rows_of_the_whole_file(batch_rows: int) -> None:
    files = DataFiles(SCHEMA, properties=GROUPED)
    file = files.write_one(pa.table({"id": np.arange(350)}))
    found = files.read(file, positions=True, batch_rows=batch_rows)
    assert found.column("_pos").to_pylist() == list(range(350))
    assert found.schema.field("_pos").type == pa.int64()
    assert max(len(chunk) for chunk in found.column("id").chunks) <= batch_rows


def test_rows_of_large_values_come_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    files = DataFiles(Schema(_field(1, "id", LongType())))
    [file] = files.write(pa.table({"id": range(1000)}))
    found = files.read(file)
    assert found.column("id").num_chunks == 1
    monkeypatch.setattr(parquet_reader, "BATCH_BYTES", EXPANSION * file.file_size_in_bytes // 10)
    assert files.read(file).equals(found)
    assert {len(chunk) for chunk in files.read(file).column("id").chunks} <= {99, 100, 10}


def _bound(file: DataFile, field_id: int) -> tuple[int, int]:
    low, high = (file.lower_bounds or {}), (file.upper_bounds or {})
    return struct.unpack("<q", low[field_id])[0], struct.unpack("<q", high[field_id])[0]


def test_skipped_row_groups_leave_positions_and_lineage_right() -> None:
    files = DataFiles(SCHEMA, properties=GROUPED)
    file = files.write_one(pa.table({"id": np.arange(600)})).with_(first_row_id=5000)
    seen: list[tuple[int, int]] = []

    def may_match(group: DataFile) -> bool:
        assert group.record_count == 100
        assert group.null_value_counts == {1: 0, 2: 100}
        low, high = _bound(group, 1)
        seen.append((low, high))
        return low in (100, 200, 400)

    found = files.read(
        file,
        schema=Schema(ID, _field(2, "name", StringType()), ROW_ID_FIELD),
        positions=True,
        sequence_number=3,
        row_group_filter=may_match,
    )
    expected = [*range(100, 300), *range(400, 500)]
    assert seen == [(start, start + 99) for start in range(0, 600, 100)]
    assert found.column("id").to_pylist() == expected
    assert found.column("_pos").to_pylist() == expected
    assert found.column("_row_id").to_pylist() == [5000 + each for each in expected]
    assert files.read(file, row_group_filter=lambda _: False).num_rows == 0


def test_row_group_bounds_are_given_in_the_wanted_type_or_not_at_all() -> None:
    old = Schema(_field(1, "i", IntegerType()), _field(2, "d", DateType()))
    files = DataFiles(old)
    file = files.write_one(
        pa.table({"i": pa.array([-5, 7], pa.int32()), "d": [dt.date(1970, 1, 2)] * 2})
    )
    wanted = Schema(_field(1, "i", LongType()), _field(2, "d", TimestampType()))
    groups: list[DataFile] = []
    files.read(file, schema=wanted, row_group_filter=lambda group: not groups.append(group))
    assert _bound(groups[0], 1) == (-5, 7)
    assert set(groups[0].lower_bounds or ()) == {1}  # days are no microseconds


LINEAGE = Schema(ID, ROW_ID_FIELD, LAST_UPDATED_FIELD)


def _lineage(files: DataFiles, file: DataFile, sequence_number: int | None) -> list[Any]:
    found = files.read(file, schema=LINEAGE, sequence_number=sequence_number).to_pydict()
    return [found["_row_id"], found["_last_updated_sequence_number"]]


def test_lineage_is_inherited_where_it_is_not_stored() -> None:
    files = DataFiles(SCHEMA)
    plain = files.write_one(pa.table({"id": [7, 8]}))
    assert _lineage(files, plain.with_(first_row_id=40), 9) == [[40, 41], [9, 9]]
    assert _lineage(files, plain, 9) == [[None, None], [None, None]]
    stored = files.write_one(
        pa.table(
            {
                "id": [7, 8, 9],
                "_row_id": pa.array([None, 3, None], pa.int64()),
                "_last_updated_sequence_number": pa.array([2, None, None], pa.int64()),
            }
        )
    )
    assert _lineage(files, stored.with_(first_row_id=40), 9) == [[40, 3, 42], [2, 9, 9]]
    # Spec: null while the file has no first row id, whatever is stored.
    assert _lineage(files, stored, 9) == [[None] * 3, [None] * 3]


# ---- files of other writers


def test_names_give_ids_where_the_file_has_none() -> None:
    schema = Schema(
        ID,
        _field(2, "s", StructType(_field(3, "x", LongType()))),
        _field(4, "l", ListType(5, StructType(_field(6, "y", StringType())), False)),
        _field(7, "m", MapType(8, StringType(), 9, LongType(), False)),
        _field(10, "new", StringType()),
    )
    mapping = [
        {"field-id": 1, "names": ["id", "ID"]},
        {"field-id": 2, "names": ["s"], "fields": [{"field-id": 3, "names": ["x", "old_x"]}]},
        {
            "field-id": 4,
            "names": ["l"],
            "fields": [
                {
                    "field-id": 5,
                    "names": ["element"],
                    "fields": [{"field-id": 6, "names": ["y"]}],
                }
            ],
        },
        {
            "field-id": 7,
            "names": ["m"],
            "fields": [{"field-id": 8, "names": ["key"]}, {"field-id": 9, "names": ["value"]}],
        },
    ]
    files = DataFiles(schema, properties={MAPPING: json.dumps(mapping)})
    row = {"ID": 1, "s": {"old_x": 5}, "l": [{"y": "a"}], "unmapped": 3}
    table = pa.Table.from_pylist([row]).append_column(
        "m", pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))
    )
    file = files.foreign(table, column_sizes={10: 5})
    assert files.read(file).to_pylist() == [
        {"id": 1, "s": {"x": 5}, "l": [{"y": "a"}], "m": [("k", 1)], "new": None}
    ]
    with pytest.raises(CorruptDataError, match=r"no field ids.*name-mapping"):
        files.read(file, properties={})
    with pytest.raises(InvalidInputError, match="name mapping"):
        files.read(file, properties={MAPPING: "{"})


@pytest.mark.parametrize(
    ("stored", "wanted", "read"),
    [
        (pa.array([1], pa.int8()), IntegerType(), [1]),
        (pa.array([1], pa.uint16()), IntegerType(), [1]),
        (
            pa.array([1], pa.timestamp("ms")),
            TimestampType(),
            [dt.datetime(1970, 1, 1, 0, 0, 0, 1000)],
        ),
        (pa.array([1], pa.timestamp("us", "Asia/Tokyo")), TimestamptzType(), None),
        (pa.array(["a"]).dictionary_encode(), StringType(), ["a"]),
        (pa.array(["a"], pa.large_string()), StringType(), ["a"]),
        (pa.array([b"0" * 16], pa.binary(16)), UUIDType(), None),
        (pa.array([[1]], pa.large_list(pa.int64())), ListType(2, LongType(), False), [[1]]),
    ],
)
@pytest.mark.parametrize("store_schema", [False, True])
def test_other_writers_layouts_are_read(
    stored: pa.Array, wanted: IcebergType, read: list[Any] | None, store_schema: bool
) -> None:
    names = [{"field-id": 1, "names": ["c"]}]
    if isinstance(wanted, ListType):
        names[0]["fields"] = [{"field-id": 2, "names": ["element"]}]
    files = DataFiles(Schema(_field(1, "c", wanted)), properties={MAPPING: json.dumps(names)})
    file = files.foreign(pa.table({"c": stored}), options={"store_schema": store_schema})
    found = files.read(file).column("c")
    assert found.type == arrow_schema(files.schema).field("c").type
    assert found.null_count == 0
    assert read is None or found.to_pylist() == read


@pytest.mark.parametrize("kind", [TimestampType(), TimestamptzType()])
@pytest.mark.parametrize("nested", [False, True])
def test_int96_timestamps_are_read(kind: IcebergType, nested: bool) -> None:
    """As Spark writes them unless it is told otherwise: nothing says whether they are instants."""
    names: dict[str, Any] = {"field-id": 1, "names": ["c"]}
    wanted = kind
    if nested:
        names["fields"] = [{"field-id": 2, "names": ["element"]}]
        wanted = ListType(2, kind)
    files = DataFiles(Schema(_field(1, "c", wanted)), properties={MAPPING: json.dumps([names])})
    zone = dt.UTC if isinstance(kind, TimestamptzType) else None
    moments = [dt.datetime(year, 5, 6, 7, 8, 9, 123456, zone) for year in (1, 1969, 2024, 9999)]
    bare = [each.replace(tzinfo=None) for each in moments]
    file = files.foreign(
        pa.table({"c": pa.array([bare] if nested else bare)}),
        options={"use_deprecated_int96_timestamps": True},
    )
    found = files.read(file).column("c").to_pylist()
    assert found == ([moments] if nested else moments)


def test_value_of_a_wider_unsigned_type_that_does_not_fit_is_an_error() -> None:
    files = DataFiles(
        Schema(_field(1, "c", IntegerType())),
        properties={MAPPING: json.dumps([{"field-id": 1, "names": ["c"]}])},
    )
    file = files.foreign(pa.table({"c": pa.array([1 << 31], pa.uint32())}))
    with pytest.raises(CorruptDataError, match="column=c"):
        files.read(file)


def test_nulls_in_a_required_column_are_an_error() -> None:
    files = DataFiles(Schema(ID))
    field = pa.field("id", pa.int64(), metadata={b"PARQUET:field_id": b"1"})
    file = files.foreign(pa.table({"id": [1, None]}, schema=pa.schema([field])))
    with pytest.raises(CorruptDataError, match=r"required column holds nulls.*column=id"):
        files.read(file)
    inner = pa.field(
        "s",
        pa.struct([pa.field("x", pa.int64(), metadata={b"PARQUET:field_id": b"3"})]),
        metadata={b"PARQUET:field_id": b"2"},
    )
    nested = Schema(_field(2, "s", StructType(_field(3, "x", LongType(), required=True))))
    fine = files.foreign(pa.table({"s": [{"x": 1}, None]}, schema=pa.schema([inner])))
    assert files.read(fine, schema=nested).column("s").to_pylist() == [{"x": 1}, None]
    wrong = files.foreign(pa.table({"s": [{"x": None}]}, schema=pa.schema([inner])))
    with pytest.raises(CorruptDataError, match=r"required column holds nulls.*column=s\.x"):
        files.read(wrong, schema=nested)


# ---- files that are not what the manifest entry says


def test_missing_file_is_not_found() -> None:
    files = DataFiles(SCHEMA)
    file = files.write_one(ROWS)
    files.store.delete([file.file_path])
    with pytest.raises(NotFoundError, match=file.file_path):
        files.read(file)


def test_other_format_is_refused() -> None:
    files = DataFiles(SCHEMA)
    file = files.write_one(ROWS).with_(file_format="ORC")
    with pytest.raises(UnsupportedError, match=f"ORC.*{file.file_path}"):
        files.read(file)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"record_count": 9}, "row count differs"),
        ({"file_size_in_bytes": 1}, "file size differs"),
        ({"column_sizes": {1: 5, 2: 5, 3: 5}}, "describes a column.*field_id=3"),
        ({"partition": (1,)}, "partition does not fit"),
    ],
)
def test_entry_that_says_otherwise_is_an_error(change: dict[str, Any], message: str) -> None:
    files = DataFiles(SCHEMA)
    file = files.write_one(ROWS).with_(**change)
    wanted = Schema(*SCHEMA.fields, _field(3, "later", LongType()))
    with pytest.raises(CorruptDataError, match=message) as caught:
        files.read(file, schema=wanted)
    assert caught.value.context["location"] == file.file_path


def test_wrong_field_ids_are_an_error_and_no_nulls() -> None:
    files = DataFiles(SCHEMA)
    file = files.write_one(ROWS)
    other = DataFiles(Schema(ID, _field(7, "name", StringType())))
    twin = other.write_one(ROWS)
    swapped = files.replace(file, other.store.get(twin.file_path))
    with pytest.raises(CorruptDataError, match=r"column=name.*field_id=2"):
        files.read(swapped)


def test_lost_id_of_a_struct_is_an_error_and_no_nulls() -> None:
    schema = Schema(ID, _field(2, "s", StructType(_field(3, "x", LongType()))))
    files = DataFiles(schema)
    rows = pa.table({"id": [1], "s": [{"x": 1}]})
    file = files.write_one(rows)
    moved = Schema(ID, _field(9, "s", StructType(_field(3, "x", LongType()))))
    other = DataFiles(moved)
    swapped = files.replace(file, other.store.get(other.write_one(rows).file_path))
    with pytest.raises(CorruptDataError, match=r"column=s\.x"):
        files.read(swapped)


def _broken(data: bytes) -> dict[str, bytes]:
    return {
        "tail cut": data[:-1],
        "footer cut": data[:-30],
        "middle cut": data[:40] + data[45:],
        "head cut": data[4:],
        "empty": b"",
        "magic only": b"PAR1",
        "magic twice": b"PAR1PAR1",
        "footer length": data[:-8] + struct.pack("<I", 2**31 - 1) + b"PAR1",
        "footer length beyond": data[:-8] + struct.pack("<I", 2**32 - 1) + b"PAR1",
        "footer of nothing": data[:-8] + struct.pack("<I", 0) + b"PAR1",
        "zeros": bytes(len(data)),
        "text": b"not a Parquet file at all",
    }


@pytest.mark.parametrize("kind", _broken(b"x" * 100))
def test_broken_file_is_a_typed_error_naming_it(kind: str) -> None:
    files = DataFiles(SCHEMA)
    file = files.write_one(ROWS)
    data = _broken(files.store.get(file.file_path))[kind]
    broken = files.replace(file, data)
    with pytest.raises(CorruptDataError) as caught:
        files.read(broken)
    assert caught.value.context["location"] == file.file_path
    if len(data) != file.file_size_in_bytes:
        with pytest.raises(CorruptDataError, match="size differs"):
            files.read(file)


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["uncompressed", "zstd"])
def test_no_flipped_bit_ever_reads_as_other_rows(codec: str) -> None:
    count = 16
    table = pa.table(
        {
            "id": np.arange(count),
            "name": [f"v{i % 9}" for i in range(count)],
            "price": np.arange(count) / 3,
            "at": pa.array(np.arange(count), pa.timestamp("us")),
            "s": [None if i % 5 == 0 else {"a": i, "b": [i, None]} for i in range(count)],
        }
    )
    properties = {
        "write.parquet.compression-codec": codec,
        "write.parquet.row-group-limit": "8",
    }
    files = DataFiles(iceberg_schema(table.schema), properties=properties)
    file = files.write_one(table)
    data = files.store.get(file.file_path)
    good = files.read(file)
    noticed = 0
    for offset in range(len(data)):
        flipped = bytearray(data)
        flipped[offset] ^= 1 << (offset * 5 % 8)
        try:
            assert files.read(files.replace(file, bytes(flipped))).equals(good), offset
        except CorruptDataError:
            noticed += 1
    assert noticed > len(data) // 2  # the rest is page indexes and names that are not looked at


def test_changed_value_in_a_page_of_another_writer_is_noticed_by_its_checksum() -> None:
    files = DataFiles(SCHEMA)
    table = files.read(files.write_one(ROWS))
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    file = files.foreign(table, options=options)
    data = bytearray(files.store.get(file.file_path))
    chunk = pq.read_metadata(io.BytesIO(data)).row_group(0).column(0)
    data[chunk.data_page_offset + chunk.total_compressed_size - 1] ^= 1
    with pytest.raises(CorruptDataError, match="CRC"):
        files.read(files.replace(file, bytes(data)))


def test_error_of_the_system_is_no_corruption() -> None:
    class Failing(io.BytesIO):
        def read(self, *_: Any) -> bytes:
            raise OSError(5, "Input/output error")

    files = DataFiles(SCHEMA)
    file = files.write_one(ROWS)
    broken = pa.PythonFile(Failing(files.store.get(file.file_path)), mode="r")
    files.store.open_input = lambda _: broken
    with pytest.raises(StoreUnavailableError, match=r"Input/output error"):
        files.read(file)


def test_error_of_the_store_passes_through() -> None:
    class Failing(io.BytesIO):
        def read(self, *_: Any) -> bytes:
            raise StoreUnavailableError("injected", location="s3://b/x")

    files = DataFiles(SCHEMA)
    file = files.write_one(ROWS)
    broken = pa.PythonFile(Failing(files.store.get(file.file_path)), mode="r")
    files.store.open_input = lambda _: broken
    with pytest.raises(StoreUnavailableError, match="injected"):
        files.read(file)
