"""The tables of the pipeline: in PostgreSQL, in icefold, and how their values are compared.

`account` has every column type that Debezium maps in a way of its own. What PostgreSQL says comes
through `psycopg` from `SourceColumn.oracle`; what an engine says is an Arrow table. Both become the
same plain values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pyarrow as pa

TOAST_BYTES = 2560  # above PostgreSQL's threshold of 2 kB; EXTERNAL: not compressed below it


@dataclass(frozen=True)
class SourceColumn:
    """One column on both sides.

    Attributes:
        definition: Its type and constraints in PostgreSQL.
        type: In icefold; None: nobody declares it (it is dropped, or arrives later).
        oracle: SQL for its value, if not its name alone.
        encoding: What icefold has to be told where events carry no schema.
        encoded_part: The field of a struct that `encoding` is about.
        optional: Whether icefold's column is.
    """

    name: str
    definition: str
    type: pa.DataType | None
    oracle: str | None = None
    encoding: str | None = None
    optional: bool = True
    encoded_part: str | None = None

    @property
    def path(self) -> str:
        return self.name if self.encoded_part is None else f"{self.name}.{self.encoded_part}"

    @property
    def expression(self) -> str:
        return f"{self.oracle or self.name} AS {self.name}"


@dataclass(frozen=True)
class SourceTable:
    """A table that is captured."""

    name: str
    columns: Sequence[SourceColumn]
    key: Sequence[str]
    identity: str = "DEFAULT"
    after: Sequence[str] = ()

    @property
    def ddl(self) -> list[str]:
        body = ", ".join(f"{each.name} {each.definition}" for each in self.columns)
        made = f"CREATE TABLE {self.name} ({body}, PRIMARY KEY ({', '.join(self.key)}))"
        identity = f"ALTER TABLE {self.name} REPLICA IDENTITY {self.identity}"
        return [made, identity, *(text.format(table=self.name) for text in self.after)]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema(
            [
                pa.field(each.name, each.type, nullable=each.name not in self.key and each.optional)
                for each in self.columns
                if each.type is not None
            ]
        )

    def encodings(self, known: Collection[str] = ()) -> str:
        """The option for events without a schema, but for encodings that other options say."""
        told = (each for each in self.columns if each.encoding and each.encoding not in known)
        return ",".join(f"{each.path}={each.encoding}" for each in told)


_US, _UTC = pa.timestamp("us"), pa.timestamp("us", tz="UTC")
_POINT = pa.struct(
    [("x", pa.float64()), ("y", pa.float64()), ("wkb", pa.binary()), ("srid", pa.int32())]
)
_ACCOUNT = (
    SourceColumn("id", "bigint", pa.int64()),
    SourceColumn("region", "text NOT NULL", pa.string(), optional=False),
    SourceColumn("balance", "numeric(18,4)", pa.decimal128(18, 4), encoding="precise"),
    SourceColumn("weird", "numeric", pa.decimal128(38, 9), encoding="variable"),
    SourceColumn("created", "timestamptz NOT NULL DEFAULT 'epoch'", _UTC, encoding="iso"),
    SourceColumn("updated", "timestamp(6)", _US, encoding="us"),
    SourceColumn("ms", "timestamp(3)", _US, encoding="ms"),
    SourceColumn("day", "date", pa.date32(), encoding="days"),
    SourceColumn("tod", "time", pa.time64("us"), encoding="us"),
    SourceColumn("doc", "jsonb", pa.string(), "doc::text"),
    SourceColumn("tags", "text[]", pa.list_(pa.string())),
    SourceColumn("ints", "int[]", pa.list_(pa.int32())),
    SourceColumn("note", "text", pa.string()),
    SourceColumn("mood", "mood", pa.string(), "mood::text"),
    SourceColumn("uid", "uuid", pa.uuid()),
    SourceColumn("raw", "bytea", pa.binary(), encoding="base64"),
    SourceColumn("ok", "boolean", pa.bool_()),
    SourceColumn("small", "smallint", pa.int32()),
    SourceColumn("n", "int", pa.int32()),
    SourceColumn("r", "real", pa.float32()),
    SourceColumn("d", "double precision", pa.float64()),
    SourceColumn("iv", "interval", pa.int64(), "(extract(epoch FROM iv) * 1000000)::bigint"),
    SourceColumn("ip", "inet", pa.string(), "host(ip)"),
    SourceColumn("c", "char(5)", pa.string(), "rpad(c, 5)"),
    SourceColumn("vc", "varchar(40)", pa.string()),
    SourceColumn(
        "loc",
        "point",
        _POINT,
        "CASE WHEN loc IS NOT NULL THEN ARRAY[loc[0], loc[1]] END",
        encoding="base64",
        encoded_part="wkb",
    ),
)
_EXTERNAL = "ALTER TABLE {table} ALTER note SET STORAGE EXTERNAL"
ACCOUNT = SourceTable("account", _ACCOUNT, ["id"], after=[_EXTERNAL])
ACCOUNT_FULL = SourceTable("account_full", _ACCOUNT, ["id"], "FULL", [_EXTERNAL])
LINE = SourceTable(
    "line",
    (
        SourceColumn("order_id", "int", pa.int32()),
        SourceColumn("line_no", "int", pa.int32()),
        SourceColumn("sku", "text", pa.string()),
        SourceColumn("qty", "numeric(10,2)", pa.decimal128(10, 2), encoding="precise"),
        SourceColumn("at", "timestamptz", _UTC, encoding="iso"),
    ),
    ["order_id", "line_no"],
)
# What an update of `n` leaves where it is. With the identity FULL the events have it all the same,
# with the default one Debezium sends a placeholder in its place.
LARGE = ("ints", "longs", "texts", "ids", "doc", "raw", "body")
_TOAST = (
    SourceColumn("id", "int", pa.int32()),
    SourceColumn("n", "int", pa.int32()),
    SourceColumn("ints", "int[]", pa.list_(pa.int32())),
    SourceColumn("longs", "bigint[]", pa.list_(pa.int64())),
    SourceColumn("texts", "text[]", pa.list_(pa.string())),
    SourceColumn("ids", "uuid[]", pa.list_(pa.string()), "ids::text[]"),
    SourceColumn("doc", "jsonb", pa.string(), "doc::text"),
    SourceColumn("raw", "bytea", pa.binary()),
    SourceColumn("body", "text", pa.string()),
)
_EXTERNALS = [f"ALTER TABLE {{table}} ALTER {name} SET STORAGE EXTERNAL" for name in LARGE]
TOAST = SourceTable("toast", _TOAST, ["id"], "FULL", _EXTERNALS)
TORN = SourceTable("torn", _TOAST, ["id"], "DEFAULT", _EXTERNALS)
# Debezium has no placeholder for these: an update that leaves them alone says null.
UNTOLD_COLUMNS = ("smalls", "reals", "bools", "prices", "times", "stamps", "zoned", "digits")
# Debezium cuts the times in an array off there, and declares microseconds.
_IN_MILLIS = "ARRAY(SELECT date_trunc('milliseconds', t::interval)::time FROM unnest(times) t)"
UNTOLD = SourceTable(
    "untold",
    (
        SourceColumn("id", "int", pa.int32()),
        SourceColumn("n", "int", pa.int32()),
        SourceColumn("smalls", "smallint[]", pa.list_(pa.int32())),
        SourceColumn("reals", "real[]", pa.list_(pa.float32())),
        SourceColumn("bools", "boolean[]", pa.list_(pa.bool_())),
        SourceColumn("prices", "numeric(10,2)[]", pa.list_(pa.decimal128(10, 2))),
        SourceColumn("times", "time[]", pa.list_(pa.time64("us")), _IN_MILLIS),
        SourceColumn("stamps", "timestamp[]", pa.list_(_US)),
        SourceColumn("zoned", "timestamptz[]", pa.list_(_UTC)),
        SourceColumn("digits", "numeric", None),  # more of them than a decimal has
    ),
    ["id"],
    after=[f"ALTER TABLE {{table}} ALTER {name} SET STORAGE EXTERNAL" for name in UNTOLD_COLUMNS],
)
WIPED = SourceTable(
    "wiped",
    (SourceColumn("id", "int", pa.int32()), SourceColumn("note", "text", pa.string())),
    ["id"],
)
GROWN = SourceTable(
    "grown",
    (
        SourceColumn("id", "int", pa.int32()),
        SourceColumn("n", "int", pa.int32()),
        SourceColumn("gone", "text", pa.string()),
    ),
    ["id"],
    "FULL",
)
GROWTH = (
    "ALTER TABLE grown ADD COLUMN rank int NOT NULL DEFAULT 7",
    "ALTER TABLE grown ADD COLUMN price numeric(12,2) DEFAULT 9.50",
    "ALTER TABLE grown ADD COLUMN since date DEFAULT '2020-02-29'",
    "ALTER TABLE grown DROP COLUMN gone",
    "ALTER TABLE grown ALTER n TYPE bigint",
)
GROWN_LATER = (
    SourceColumn("id", "int", pa.int32()),
    SourceColumn("n", "bigint", pa.int64()),
    SourceColumn("rank", "int", pa.int32()),
    SourceColumn("price", "numeric(12,2)", pa.decimal128(12, 2)),
    SourceColumn("since", "date", pa.date32()),
)
MARK = SourceTable("mark", (SourceColumn("id", "bigint", pa.int64()),), ["id"])
TABLES = (ACCOUNT, ACCOUNT_FULL, GROWN, LINE, MARK, TOAST, TORN, UNTOLD, WIPED)
# A row of `account` as a function of its key and a version. Every seventh is as empty as can be,
# some values are at the ends of what their types hold.
ACCOUNT_ROW = f"""
CREATE FUNCTION account_row(i bigint, v bigint) RETURNS account LANGUAGE sql IMMUTABLE AS $$
SELECT CASE WHEN (i + v) % 7 = 0 THEN ROW(i, 'none',
    NULL, NULL, 'epoch', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)::account
ELSE ROW(i, (ARRAY['eu','us','ap'])[1 + (i + v) % 3],
    CASE WHEN i % 11 = 0 THEN -99999999999999.9999 ELSE i * 1.2345 - v END,
    i * 1234567890.123456789 - v / 8.0,
    timestamptz '2000-01-01 00:00:00.000001Z' + i * interval '1 day' + v * interval '1 microsecond',
    timestamp '1850-01-03 00:00:00.000007' + i * interval '31 days 1 microsecond',
    timestamp '2024-02-29 04:26:40.001' + v * interval '1 millisecond',
    date '1960-02-29' + (i * 37 + v)::int, time '23:59:59.999999' - i * interval '1 second',
    jsonb_build_object('k', i, 'a', jsonb_build_array(v, null), 's', 'ü"' || i),
    CASE WHEN i % 5 = 0 THEN '{{}}' ELSE ARRAY['a' || i, NULL, 'c,{{}}"'] END,
    ARRAY[i, NULL, -v]::int[],
    repeat(md5(i || '-' || v), {TOAST_BYTES // 32}),
    (ARRAY['sad','ok','happy'])[1 + (i + v) % 3]::mood, md5(i::text)::uuid,
    decode(md5(v::text), 'hex'), i % 2 = 0,
    CASE WHEN i % 13 = 0 THEN -32768 ELSE i % 1000 END, (i - v)::int,
    CASE WHEN i % 17 = 0 THEN 'NaN' ELSE i / 3.0 END,
    CASE WHEN i % 19 = 0 THEN '-Infinity' ELSE v / 7.0 END,
    i * interval '1 hour' + v * interval '1 second', -- Debezium loses microseconds of intervals
    ('10.0.' || i % 256 || '.' || v % 256)::inet, 'x' || i % 100, 'v' || v, point(i, -v))::account
END $$
"""
TOAST_ROW = """
CREATE FUNCTION toast_row(i int, v int) RETURNS toast LANGUAGE sql IMMUTABLE AS $$
SELECT ROW(i, v,
    (SELECT array_agg(g * v) FROM generate_series(1, 1000) g),
    (SELECT array_agg(g * 10000000000 + v) FROM generate_series(1, 500) g),
    (SELECT array_agg(md5(g || '-' || v)) FROM generate_series(1, 100) g),
    (SELECT array_agg(md5(g || '-' || v)::uuid) FROM generate_series(1, 200) g),
    (SELECT jsonb_object_agg(md5(g::text), v) FROM generate_series(1, 100) g),
    (SELECT string_agg(decode(md5(g || '-' || v), 'hex'), '') FROM generate_series(1, 200) g),
    (SELECT string_agg(md5(g || '-' || v), ' ') FROM generate_series(1, 100) g)
)::toast $$
"""
UNTOLD_ROW = """
CREATE FUNCTION untold_row(i int) RETURNS untold LANGUAGE sql IMMUTABLE AS $$
SELECT ROW(i, 0,
    (SELECT array_agg(g - 1000) FROM generate_series(1, 2000) g),
    (SELECT array_agg(g / 4.0) FROM generate_series(1, 1000) g),
    (SELECT array_agg(g % 3 = i) FROM generate_series(1, 3000) g),
    (SELECT array_agg(i + g / 100.0) FROM generate_series(1, 500) g),
    (SELECT array_agg(time '00:00:00.123456' + g * interval '1 s') FROM generate_series(1, 500) g),
    (SELECT array_agg(timestamp '1969-12-31 23:59:59.999999' + g * interval '1 h')
        FROM generate_series(1, 500) g),
    (SELECT array_agg(timestamptz '2024-02-29 12:00:00.000001Z' + g * interval '1 h')
        FROM generate_series(1, 500) g),
    repeat('1234567890', 600)::numeric)::untold $$
"""
# Waits for as long as somebody holds the lock of this number; a lock of a table would hold up the
# making of the replication slot already.
GATE = """
CREATE FUNCTION passes_gate() RETURNS boolean LANGUAGE plpgsql AS $$ BEGIN
PERFORM pg_advisory_lock_shared(1); PERFORM pg_advisory_unlock_shared(1); RETURN true; END $$
"""


def create_tables(connection: psycopg.Connection[Any]) -> None:
    """Everything that is captured, empty."""
    connection.execute("CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy')")
    for table in TABLES:
        for statement in table.ddl:
            connection.execute(statement)
    connection.execute(ACCOUNT_ROW)
    connection.execute(TOAST_ROW)
    connection.execute(UNTOLD_ROW)
    connection.execute(GATE)


def source_rows(
    connection: psycopg.Connection[Any], table: str, columns: Sequence[SourceColumn]
) -> list[tuple[Any, ...]]:
    """What PostgreSQL has, as plain values."""
    query = f"SELECT {', '.join(each.expression for each in columns)} FROM {table}"
    rows = connection.execute(query).fetchall()  # type: ignore[arg-type]
    readers = [_OF_SOURCE.get(each.name, _plain) for each in columns]
    return [tuple(read(value) for read, value in zip(readers, row, strict=True)) for row in rows]


def engine_rows(found: pa.Table, columns: Sequence[SourceColumn]) -> list[tuple[Any, ...]]:
    """What an engine has, as plain values."""
    lists = [[_plain(value) for value in found[each.name].to_pylist()] for each in columns]
    return list(zip(*lists, strict=True))


def differences(
    expected: Sequence[tuple[Any, ...]],
    found: Sequence[tuple[Any, ...]],
    columns: Sequence[SourceColumn],
    key: Sequence[str],
) -> dict[str, list[str]]:
    """What differs, by column; `(rows)` for rows that are missing, too many or there twice."""
    places = [index for index, each in enumerate(columns) if each.name in key]
    expected_by, found_by = _by_key(expected, places), _by_key(found, places)
    problems: dict[str, list[str]] = {}

    def note(what: str, text: str) -> None:
        problems.setdefault(what, []).append(text[:300])

    if len(found_by) != len(found):
        note("(rows)", f"{len(found) - len(found_by)} keys have two rows")
    for row_key in expected_by.keys() ^ found_by.keys():
        note("(rows)", f"{row_key} {'is missing' if row_key in expected_by else 'is too many'}")
    for row_key in expected_by.keys() & found_by.keys():
        pairs = zip(columns, expected_by[row_key], found_by[row_key], strict=True)
        for column, wanted, value in pairs:
            if wanted != value:
                note(column.name, f"{row_key}: PostgreSQL {wanted!r:.120}, here {value!r:.120}")
    return problems


def _by_key(
    rows: Sequence[tuple[Any, ...]], places: Sequence[int]
) -> Mapping[tuple[Any, ...], tuple[Any, ...]]:
    return {tuple(row[place] for place in places): row for row in rows}


def _plain(value: Any) -> Any:
    match value:
        case float() if value != value:
            return "NaN"
        case Decimal():
            return Decimal(f"{value.normalize():f}")
        case datetime() if value.tzinfo is not None:
            return value.astimezone(UTC)
        case dict():
            return tuple(_plain(each) for each in value.values())
        case list() | tuple():
            return tuple(_plain(each) for each in value)
        case UUID():
            return str(value)
        case memoryview() | bytearray():
            return bytes(value)
    return value


def _point(value: Any) -> Any:
    """What Debezium makes of a point: its coordinates and their WKB, little endian, type 1."""
    if value is None:
        return None
    x, y = value
    return (x, y, struct.pack("<BIdd", 1, 1, x, y), None)


def _real(value: Any) -> Any:
    """The nearest float32, as an engine shows it in a double."""
    return None if value is None else _plain(struct.unpack("<f", struct.pack("<f", value))[0])


_OF_SOURCE: dict[str, Callable[[Any], Any]] = {"loc": _point, "r": _real}
