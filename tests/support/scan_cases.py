"""Tables that grew in odd but valid ways, each with a filter and the rows that must come out.

Run by every reader: here, on Spark's workers, and other engines where they can.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
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
    TimeType,
    UUIDType,
)

from tableformat.spec.data_file import DataFile, FileContent
from tests.support.scan_tables import HandMadeTable, write_parquet

NewTable = Callable[..., HandMadeTable]
Rows = list[tuple]


@dataclass(frozen=True)
class ScanCase:
    """A table and what reading it gives.

    `expected` are result rows as Python values in any order; `filters` maps a filter to the rows
    that pass it.
    """

    table: HandMadeTable
    expected: Rows
    filters: dict[str, Rows] = field(default_factory=dict)


def opt(field_id: int, name: str, kind: IcebergType, **extra: object) -> NestedField:
    return NestedField(field_id, name, kind, required=False, **extra)


def table_of(**columns: tuple[pa.DataType, list]) -> pa.Table:
    return pa.table({name: pa.array(values, kind) for name, (kind, values) in columns.items()})


def schema(*fields: NestedField, schema_id: int = 0) -> Schema:
    return Schema(*fields, schema_id=schema_id)


def renamed_column(new: NewTable) -> ScanCase:
    table = new(schema(opt(1, "a", LongType()), opt(2, "b", StringType())))
    table.commit()
    table.add(table_of(a=(pa.int64(), [1, 2]), b=(pa.string(), ["x", "y"])))
    table.evolve(schema(opt(1, "z", LongType()), opt(2, "b", StringType()), schema_id=1))
    table.commit()
    table.add(table_of(z=(pa.int64(), [3]), b=(pa.string(), ["w"])))
    return ScanCase(
        table, [(1, "x"), (2, "y"), (3, "w")], {"z >= 2": [(2, "y"), (3, "w")], "z = 1": [(1, "x")]}
    )


def swapped_names(new: NewTable) -> ScanCase:
    table = new(schema(opt(1, "a", LongType()), opt(2, "b", LongType())))
    table.commit()
    table.add(table_of(a=(pa.int64(), [1, 2, 3]), b=(pa.int64(), [100, 200, 300])))
    table.evolve(schema(opt(1, "b", LongType()), opt(2, "a", LongType()), schema_id=1))
    return ScanCase(
        table,
        [(1, 100), (2, 200), (3, 300)],
        {
            "a > 50": [(1, 100), (2, 200), (3, 300)],
            "b > 50": [],
            "a = 200": [(2, 200)],
            "b = 3": [(3, 300)],
        },
    )


def name_used_again(new: NewTable) -> ScanCase:
    table = new(schema(opt(1, "a", LongType()), opt(2, "keep", LongType())))
    table.commit()
    table.add(table_of(a=(pa.int64(), [1, 2]), keep=(pa.int64(), [10, 20])))
    table.evolve(schema(opt(2, "keep", LongType()), opt(3, "A", StringType()), schema_id=1))
    table.commit()
    table.add(table_of(keep=(pa.int64(), [30]), A=(pa.string(), ["new"])))
    return ScanCase(
        table,
        [(10, None), (20, None), (30, "new")],
        {
            "A is null": [(10, None), (20, None)],
            "A is not null": [(30, "new")],
            "keep > 15": [(20, None), (30, "new")],
        },
    )


def nested_name_used_again(new: NewTable) -> ScanCase:
    first = schema(opt(1, "s", StructType(opt(2, "x", LongType()), opt(3, "y", LongType()))))
    table = new(first)
    table.commit()
    kind = pa.struct([("x", pa.int64()), ("y", pa.int64())])
    table.add(table_of(s=(kind, [{"x": 1, "y": 50}, {"x": 2, "y": 60}, None])))
    table.evolve(
        schema(
            opt(1, "s", StructType(opt(3, "x", LongType()), opt(2, "y", LongType()))), schema_id=1
        )
    )
    rows: Rows = [({"x": 50, "y": 1},), ({"x": 60, "y": 2},), (None,)]
    return ScanCase(
        table,
        rows,
        {"s.x > 55": rows[1:2], "s.y = 1": rows[:1], "s.x is null": rows[2:]},
    )


def renamed_struct(new: NewTable) -> ScanCase:
    kind = StructType(opt(2, "x", LongType()), opt(3, "y", LongType()))
    table = new(schema(opt(1, "s", kind)))
    table.commit()
    arrow = pa.struct([("x", pa.int64()), ("y", pa.int64())])
    [entry] = table.add(table_of(s=(arrow, [{"x": 1, "y": 50}, {"x": 2, "y": 60}, None])))
    table.evolve(schema(opt(1, "t", kind), schema_id=1))
    table.commit()
    table.delete_vector(entry, [0])
    return ScanCase(
        table,
        [({"x": 2, "y": 60},), (None,)],
        {"t.x = 2": [({"x": 2, "y": 60},)], "t.x is null": [(None,)]},
    )


def added_column_with_default(new: NewTable) -> ScanCase:
    table = new(schema(opt(1, "id", LongType())))
    table.commit()
    table.add(table_of(id=(pa.int64(), [1, 2])))
    table.evolve(
        schema(
            opt(1, "id", LongType()),
            opt(2, "n", IntegerType(), initial_default=7),
            opt(3, "day", DateType(), initial_default=19000),
            opt(4, "price", DecimalType(9, 2), initial_default=Decimal("1.50")),
            opt(5, "at", TimestampType(), initial_default=1_700_000_000_000_001),
            opt(6, "z", TimestamptzType(), initial_default=1_700_000_000_000_001),
            opt(7, "bytes", BinaryType(), initial_default=b"\x00\xff"),
            schema_id=1,
        )
    )
    table.commit()
    table.add(
        table_of(
            id=(pa.int64(), [3, 4]),
            n=(pa.int32(), [None, 8]),
            day=(pa.date32(), [None] * 2),
            price=(pa.decimal128(9, 2), [None] * 2),
            at=(pa.timestamp("us"), [None] * 2),
            z=(pa.timestamp("us", "UTC"), [None] * 2),
            bytes=(pa.binary(), [None] * 2),
        )
    )
    defaults = (
        7,
        date(2022, 1, 8),
        Decimal("1.50"),
        datetime(2023, 11, 14, 22, 13, 20, 1),
        _utc(2023, 11, 14, 22, 13, 20, 1),
        b"\x00\xff",
    )
    old: Rows = [(1, *defaults), (2, *defaults)]
    third, fourth = (3, *[None] * 6), (4, 8, *[None] * 5)
    return ScanCase(
        table,
        [*old, third, fourth],
        {
            "n = 7": old,
            "n is null": [third],
            "n > 7": [fourth],
            "day = '2022-01-08'": old,
            "price > 1.2": old,
        },
    )


def default_in_a_key(new: NewTable) -> ScanCase:
    """Rows of old files have the default, so a delete of the default value deletes them."""
    table = new(schema(opt(1, "id", LongType())))
    table.commit()
    table.add(table_of(id=(pa.int64(), [1, 2])))
    table.evolve(
        schema(opt(1, "id", LongType()), opt(2, "n", IntegerType(), initial_default=7), schema_id=1)
    )
    table.add(table_of(id=(pa.int64(), [3, 4, 5]), n=(pa.int32(), [7, None, 9])))
    table.commit()
    table.delete_keys(table_of(id=(pa.int64(), [2, 3, 4]), n=(pa.int32(), [7, 7, 7])), [1, 2])
    return ScanCase(table, [(1, 7), (4, None), (5, 9)])


def promoted_columns(new: NewTable) -> ScanCase:
    table = new(
        schema(
            opt(1, "i", IntegerType()),
            opt(2, "f", FloatType()),
            opt(3, "d", DecimalType(9, 2)),
            opt(4, "t", DateType()),
        )
    )
    table.commit()
    table.add(
        table_of(
            i=(pa.int32(), [5, -1, None]),
            f=(pa.float32(), [0.5, -0.25, None]),
            d=(pa.decimal128(9, 2), [Decimal("1.10"), Decimal("-2.20"), None]),
            t=(pa.date32(), [date(2020, 1, 1), date(1969, 12, 31), None]),
        )
    )
    table.evolve(
        schema(
            opt(1, "i", LongType()),
            opt(2, "f", DoubleType()),
            opt(3, "d", DecimalType(20, 2)),
            opt(4, "t", TimestampType()),
            schema_id=1,
        )
    )
    table.commit()
    table.add(
        table_of(
            i=(pa.int64(), [5 + 2**32]),
            f=(pa.float64(), [1e300]),
            d=(pa.decimal128(20, 2), [Decimal("123456789012345.67")]),
            t=(pa.timestamp("us"), [datetime(2021, 1, 1, 12)]),
        )
    )
    old1 = (5, 0.5, Decimal("1.10"), datetime(2020, 1, 1))
    old2 = (-1, -0.25, Decimal("-2.20"), datetime(1969, 12, 31))
    old3 = (None,) * 4
    late = (5 + 2**32, 1e300, Decimal("123456789012345.67"), datetime(2021, 1, 1, 12))
    return ScanCase(
        table,
        [old1, old2, old3, late],
        {
            "i = 5": [old1],
            "i > 3000000000": [late],
            "i < 0": [old2],
            "f > 0.1": [old1, late],
            "d < 0": [old2],
            "t >= '2020-01-01T00:00:00'": [old1, late],
            "t is null": [old3],
        },
    )


def promoted_key(new: NewTable) -> ScanCase:
    """R20: after int to long a delete of 5 + 2**32 must not reach 5, nor NULL."""
    table = new(schema(opt(1, "k", IntegerType()), opt(2, "v", StringType())))
    table.commit()
    table.add(table_of(k=(pa.int32(), [5, 6, None]), v=(pa.string(), ["a", "b", "c"])))
    table.delete_keys(table_of(k=(pa.int32(), [9])), [1])
    table.evolve(schema(opt(1, "k", LongType()), opt(2, "v", StringType()), schema_id=1))
    table.commit()
    table.add(table_of(k=(pa.int64(), [5 + 2**32]), v=(pa.string(), ["d"])))
    table.delete_keys(table_of(k=(pa.int64(), [6, 6 + 2**32])), [1])
    table.commit()
    table.delete_keys(table_of(k=(pa.int64(), [5 + 2**32])), [1])
    return ScanCase(table, [(5, "a"), (None, "c")])


def dropped_key(new: NewTable) -> ScanCase:
    """R22: a delete goes on applying after its column was dropped."""
    table = new(schema(opt(1, "id", LongType()), opt(2, "k", StringType())))
    table.commit()
    table.add(table_of(id=(pa.int64(), [1, 2, 3, 4]), k=(pa.string(), ["a", "b", None, ""])))
    table.commit()
    table.delete_keys(table_of(k=(pa.string(), ["a", None])), [2])
    table.evolve(schema(opt(1, "id", LongType()), opt(3, "k", IntegerType()), schema_id=1))
    return ScanCase(table, [(2, None), (4, None)], {"id > 2": [(4, None)]})


def nested_key(new: NewTable) -> ScanCase:
    """A null parent means a null leaf."""
    kind = StructType(opt(2, "x", LongType()), opt(3, "note", StringType()))
    table = new(schema(opt(1, "s", kind), opt(4, "v", LongType())))
    arrow = pa.struct([("x", pa.int64()), ("note", pa.string())])
    structs = [{"x": 1, "note": "p"}, {"x": None, "note": "q"}, None, {"x": 4, "note": None}]
    table.commit()
    table.add(table_of(s=(arrow, structs), v=(pa.int64(), [1, 2, 3, 4])))
    table.commit()
    key = pa.struct([("x", pa.int64())])
    path = write_equality_file(
        table, pa.table({"s": pa.array([{"x": 1}, None], key)}), {"s": 1, "s.x": 2}, [2]
    )
    assert path
    return ScanCase(table, [({"x": 4, "note": None}, 4)])


def many_types(new: NewTable) -> ScanCase:
    """Types Spark does not have, as values and as keys."""
    table = new(
        schema(
            opt(1, "u", UUIDType()),
            opt(2, "x", FixedType(3)),
            opt(3, "t", TimeType()),
            opt(4, "n", TimestampNanoType()),
        )
    )
    ids = [UUID(int=1), UUID(int=2**127), UUID(int=7), None]
    table.commit()
    stored = table_of(
        u=(pa.uuid(), [None if i is None else i.bytes for i in ids]),
        x=(pa.binary(3), [b"abc", b"\x00\x00\x00", b"\xff\xff\xff", None]),
        t=(pa.time64("us"), [1, 86_399_999_999, 0, None]),
        n=(pa.timestamp("ns"), [1, 1_700_000_000_000_000_001, -1, None]),
    )
    table.add(stored)
    table.commit()
    table.delete_keys(table_of(u=(pa.uuid(), [ids[2].bytes]), t=(pa.time64("us"), [0])), [1, 3])
    table.commit()
    table.delete_keys(table_of(x=(pa.binary(3), [None]), n=(pa.timestamp("ns"), [None])), [2, 4])
    live = stored.slice(0, 2).to_pylist()
    rows = [tuple(row.values()) for row in live]
    return ScanCase(
        table,
        rows,
        {"u = '00000000-0000-0000-0000-000000000001'": rows[:1]},
    )


def nested_types(new: NewTable) -> ScanCase:
    kind = StructType(opt(4, "p", LongType()), opt(5, "q", ListType(6, StringType(), False)))
    table = new(
        schema(
            opt(1, "id", LongType()),
            opt(2, "l", ListType(3, kind, False)),
            opt(7, "m", MapType(8, StringType(), 9, DoubleType(), False)),
        )
    )
    table.commit()
    item = pa.struct([("p", pa.int64()), ("q", pa.list_(pa.string()))])
    lists = [[{"p": 1, "q": ["a", None]}, None], [], None]
    maps = [[("k", 1.5)], [], None]
    [entry] = table.add(
        table_of(
            id=(pa.int64(), [1, 2, 3]),
            l=(pa.list_(item), lists),
            m=(pa.map_(pa.string(), pa.float64()), maps),
        )
    )
    table.commit()
    table.delete_vector(entry, [1])
    return ScanCase(table, [(1, lists[0], maps[0]), (3, None, None)], {"id = 3": [(3, None, None)]})


def odd_names(new: NewTable) -> ScanCase:
    names = ["a.b", "with space", "q`uo'te\"", "ü", "_metadata", "_pos", "SELECT"]
    fields = [opt(i, name, LongType()) for i, name in enumerate(names, 1)]
    table = new(schema(*fields))
    table.commit()
    [entry] = table.add(pa.table({name: pa.array([i, i + 10]) for i, name in enumerate(names)}))
    table.add(pa.table({name: pa.array([i, i + 20]) for i, name in enumerate(names)}))
    table.commit()
    table.delete_vector(entry, [0])
    table.delete_keys(pa.table({"_pos": [25], "ü": [23]}), [4, 6])
    return ScanCase(table, [tuple(range(10, 17)), tuple(range(7))], {"_pos < 6": [tuple(range(7))]})


def floats_with_nan(new: NewTable) -> ScanCase:
    """NaN is above every number, and outside of every bound."""
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"), spec_id=0)
    table = new(schema(opt(1, "f", DoubleType()), opt(2, "p", FloatType())), [spec])
    table.commit()
    nan = math.nan
    table.add(
        table_of(f=(pa.float64(), [1.0, nan, None, 9.0]), p=(pa.float32(), [nan, 1.0, 1.0, None]))
    )
    rows: Rows = [(1.0, nan), (nan, 1.0), (None, 1.0), (9.0, None)]
    return ScanCase(
        table,
        rows,
        {
            "f > 5": [rows[1], rows[3]],
            "f >= 1": [rows[0], rows[1], rows[3]],
            "f < 5": [rows[0]],
            "f != 9": [rows[0], rows[1]],
            "f is nan": [rows[1]],
            "f is not nan": [rows[0], rows[2], rows[3]],
            "p > 0.5": rows[:3],
            "p > 1.5": rows[:1],
            "p < 2": rows[1:3],
            "p = 1": rows[1:3],
            "p is nan": rows[:1],
            "p is not nan": rows[1:],
            "p in (1, 2)": rows[1:3],
            "p not in (1, 2)": rows[:1],
        },
    )


def column_only_in_the_partition(new: NewTable) -> ScanCase:
    """Migrated tables: the folder knows the value, the file does not."""
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "region"), spec_id=0)
    table = new(schema(opt(1, "id", LongType()), opt(2, "region", StringType())), [spec])
    table.commit()
    location = f"{table.location}/data/region=eu/hive-0.parquet"
    size = write_parquet(table.store, location, with_ids(pa.table({"id": [1, 2]}), {"id": 1}))
    table.register(
        parquet_file(location, size, 2, partition=("eu",)), [{1: 1, 2: "eu"}, {1: 2, 2: "eu"}]
    )
    table.add(table_of(id=(pa.int64(), [3]), region=(pa.string(), ["us"])))
    return ScanCase(
        table, [(1, "eu"), (2, "eu"), (3, "us")], {"region = 'eu' and id > 1": [(2, "eu")]}
    )


def files_without_ids(new: NewTable) -> ScanCase:
    mapping = '[{"field-id": 1, "names": ["id", "old_id"]}, {"field-id": 2, "names": ["v"]}]'
    table = new(
        schema(opt(1, "id", LongType()), opt(2, "v", StringType())),
        properties={"schema.name-mapping.default": mapping},
    )
    table.commit()
    location = f"{table.location}/data/plain.parquet"
    plain = pa.table({"extra": [0, 0], "old_id": [1, 2], "v": ["a", "b"]})
    size = write_parquet(table.store, location, plain)
    entry = table.register(parquet_file(location, size, 2), [{1: 1, 2: "a"}, {1: 2, 2: "b"}])
    table.add(table_of(id=(pa.int64(), [3]), v=(pa.string(), ["c"])))
    table.commit()
    table.delete_vector(entry, [0])
    return ScanCase(table, [(2, "b"), (3, "c")], {"id > 2": [(3, "c")]})


def hidden_partitions(new: NewTable) -> ScanCase:
    """Filters on source columns prune by day and truncated string, also under older specs."""
    specs = [
        PartitionSpec(PartitionField(1, 1000, DayTransform(), "d"), spec_id=0),
        PartitionSpec(PartitionField(2, 1001, TruncateTransform(2), "n2"), spec_id=1),
    ]
    table = new(schema(opt(1, "at", TimestamptzType()), opt(2, "n", StringType())), specs)
    moments = [_utc(2020, 1, 1, 23, 59), _utc(2020, 1, 2), _utc(1969, 12, 31, 23), None]
    names = ["abc", "abd", "b", None]
    rows: Rows = list(zip(moments, names, strict=True))
    for spec_id in (0, 1):
        table.commit()
        table.add(
            table_of(at=(pa.timestamp("us", "UTC"), moments), n=(pa.string(), names)), spec_id
        )
    return ScanCase(
        table,
        rows * 2,
        {
            "at >= '2020-01-02T00:00:00+00:00'": rows[1:2] * 2,
            "at < '1970-01-01T00:00:00+00:00'": rows[2:3] * 2,
            "n = 'abd'": rows[1:2] * 2,
            "n like 'ab%'": rows[:2] * 2,
            "n not like 'abc%'": rows[1:3] * 2,
            "n > 'abc' and at is not null": rows[1:3] * 2,
            "n is null": rows[3:] * 2,
        },
    )


def keys_that_look_alike(new: NewTable) -> ScanCase:
    """R24, R31: NULL, the empty string, blanks and composites that concatenate alike differ."""
    table = new(schema(opt(1, "a", StringType()), opt(2, "b", StringType())))
    pairs: Rows = [
        ("a", "bc"),
        ("ab", "c"),
        ("", None),
        (None, ""),
        ("", ""),
        (None, None),
        ("a ", "bc"),
        ("a\0", "bc"),
        ("é", "x"),
        ("e\u0301", "x"),
    ]
    table.commit()
    table.add(
        table_of(a=(pa.string(), [p[0] for p in pairs]), b=(pa.string(), [p[1] for p in pairs]))
    )
    table.commit()
    gone: Rows = [("ab", "c"), (None, ""), ("", ""), ("é", "x")]
    table.delete_keys(
        table_of(a=(pa.string(), [g[0] for g in gone]), b=(pa.string(), [g[1] for g in gone])),
        [1, 2],
    )
    return ScanCase(table, [pair for pair in pairs if pair not in gone])


CASES: tuple[Callable[[NewTable], ScanCase], ...] = (
    renamed_column,
    swapped_names,
    name_used_again,
    nested_name_used_again,
    renamed_struct,
    added_column_with_default,
    default_in_a_key,
    promoted_columns,
    promoted_key,
    dropped_key,
    nested_key,
    many_types,
    nested_types,
    odd_names,
    floats_with_nan,
    column_only_in_the_partition,
    files_without_ids,
    hidden_partitions,
    keys_that_look_alike,
)


def comparable(rows: list[tuple]) -> list[str]:
    """Rows as sorted texts: NaN equals itself, order does not matter."""
    return sorted(repr(_plain(row)) for row in rows)


def with_ids(table: pa.Table, ids: dict[str, int]) -> pa.Table:
    """The table with Parquet field ids on its columns, nested ones by dotted path."""
    fields = [_with_id(field, field.name, ids) for field in table.schema]
    return table.cast(pa.schema(fields))


def parquet_file(
    location: str, size: int, count: int, *, partition: tuple = (), spec_id: int = 0
) -> DataFile:
    """A data file entry without any statistics."""
    return DataFile(
        content=FileContent.DATA,
        file_path=location,
        file_format="PARQUET",
        spec_id=spec_id,
        partition=partition,
        record_count=count,
        file_size_in_bytes=size,
    )


def write_equality_file(
    table: HandMadeTable, keys: pa.Table, ids: dict[str, int], equality_ids: list[int]
) -> str:
    """An equality delete file by another writer, global."""
    location = f"{table.location}/data/other-{len(table.deletes)}.parquet"
    size = write_parquet(table.store, location, with_ids(keys, ids))
    file = parquet_file(location, size, keys.num_rows).with_(
        content=FileContent.EQUALITY_DELETES, equality_ids=tuple(equality_ids)
    )
    table.deletes.append(table.entry(file))
    return location


def _with_id(field: pa.Field, path: str, ids: dict[str, int]) -> pa.Field:
    kind = field.type
    if pa.types.is_struct(kind):
        kind = pa.struct([_with_id(child, f"{path}.{child.name}", ids) for child in kind])
    return pa.field(field.name, kind, True, {"PARQUET:field_id": str(ids[path])})


def _plain(value: object) -> object:
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    if isinstance(value, float):
        return struct.pack(">d", value)
    if isinstance(value, dict):
        return sorted((key, _plain(each)) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, datetime) and value.tzinfo is not None:
        return ("instant", value.timestamp())
    return value


def _utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)
