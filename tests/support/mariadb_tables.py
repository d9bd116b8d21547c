"""The tables of the pipeline from MariaDB, and a random history over them.

What MariaDB says comes as the text that it prints (PyMySQL without its conversions), in UTC; what
icefold published as DuckDB shows it. Both become the same plain values. What Debezium itself
changes (docs/mariadb.md names it) is not among the values.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

UNSIGNED = 2**64 - 1
Read = Callable[[Any], Any]


@dataclass(frozen=True)
class SourceColumn:
    """One column.

    Attributes:
        definition: Its type in MariaDB.
        values: What is written to it, as SQL; NULL beside these.
        read: From MariaDB's text to a plain value.
        oracle: SQL for its text, if not its name alone.
        type: In icefold, where the events' schema says it otherwise.
    """

    name: str
    definition: str
    values: Sequence[str]
    read: Read
    oracle: str | None = None
    type: str | None = None


@dataclass(frozen=True)
class SourceTable:
    """A table; its key columns are the first, and never null."""

    name: str
    columns: Sequence[SourceColumn]
    key: int = 1

    @property
    def ddl(self) -> str:
        body = ", ".join(f"{each.name} {each.definition}" for each in self.columns)
        keys = ", ".join(each.name for each in self.columns[: self.key])
        return f"CREATE TABLE {self.name} ({body}, PRIMARY KEY ({keys}))"

    @property
    def names(self) -> str:
        return ", ".join(each.name for each in self.columns)

    @property
    def query(self) -> str:
        said = (f"{each.oracle or each.name} AS {each.name}" for each in self.columns)
        return f"SELECT {', '.join(said)} FROM {self.name}"

    @property
    def types(self) -> dict[str, str]:
        return {each.name: each.type for each in self.columns if each.type is not None}


def duration_us(text: str) -> int:
    """`-838:59:59.5` in microseconds."""
    sign = -1 if text.startswith("-") else 1
    hours, minutes, seconds = text.lstrip("-").split(":")
    whole, _, part = seconds.partition(".")
    micros = int(part.ljust(6, "0")) if part else 0
    return sign * (((int(hours) * 60 + int(minutes)) * 60 + int(whole)) * 1_000_000 + micros)


def _utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def _lowest_first(bits: bytes) -> bytes:
    return bits[::-1]


def _one_bit(bits: bytes) -> bool:
    return bits == b"\1"


def quoted(text: str) -> str:
    """As a literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def _ints(low: int, high: int) -> list[str]:
    return [str(low), str(high), "0", "1"]


def _int(name: str, definition: str, low: int, high: int) -> SourceColumn:
    return SourceColumn(name, definition, _ints(low, high), int)


_TIMES = ["'838:59:59'", "'-838:59:59'", "'00:00:00'", "'-00:00:01'", "'23:59:59'"]
_DATETIMES = [
    "'9999-12-31 23:59:59'", "'0001-01-01 00:00:00'", "'1969-12-31 23:59:59'",
    "'1582-10-15 12:00:00'", "'2024-03-31 02:30:00'",
]  # fmt: skip
_TEXTS = [quoted(text) for text in ("", "größe €", "a  ", 'q"\\\n\t', "l" * 300, "it's")]
_UNICODE = [*_TEXTS, quoted("日本 😀"), "CONCAT('a', CHAR(0), 'b')"]
_BYTES = ["X''", "X'00'", "X'0000'", "X'FF00'", "X'0100000000'", "X'DEADBEEF'"]
EVERY = SourceTable(
    "every",
    (
        SourceColumn("id", "int", (), int),
        SourceColumn("one_bit", "bit(1)", ["b'0'", "b'1'"], _one_bit),
        SourceColumn("bits", "bit(10)", ["b'0'", "b'1'", "b'1000000001'"], _lowest_first),
        SourceColumn("bits64", "bit(64)", [f"b'{'1' * 64}'", "b'0'", "b'1'"], _lowest_first),
        SourceColumn("flag", "bool", ["0", "1", "5", "-1"], int),
        _int("tiny", "tinyint", -128, 127),
        _int("utiny", "tinyint unsigned", 0, 255),
        _int("small", "smallint", -(2**15), 2**15 - 1),
        _int("usmall", "smallint unsigned", 0, 2**16 - 1),
        _int("medium", "mediumint", -(2**23), 2**23 - 1),
        _int("umedium", "mediumint unsigned", 0, 2**24 - 1),
        _int("plain", "int", -(2**31), 2**31 - 1),
        _int("uint", "int unsigned", 0, 2**32 - 1),
        _int("big", "bigint", -(2**63), 2**63 - 1),
        SourceColumn("ubig", "bigint unsigned", _ints(0, UNSIGNED), Decimal),
        SourceColumn("padded", "int(8) zerofill", ["7", "4294967295"], int),
        SourceColumn("price", "decimal(38,10)", [f"{'9' * 28}.{'9' * 10}", "-0.0000000001"],
                     Decimal),
        SourceColumn("single", "float", ["-2.5e10", "123456", "0.1"], float,
                     "CAST(single AS double)"),
        SourceColumn("twice", "double", ["1.7976931348623157e308", "4.9e-324", "0.1"], float),
        SourceColumn("day", "date", ["'9999-12-31'", "'0001-01-01'", "'1582-10-10'"],
                     date.fromisoformat),
        SourceColumn("span", "time", _TIMES, duration_us, type="long"),
        SourceColumn("span6", "time(6)", [*_TIMES, "'-838:59:58.999999'", "'00:00:00.000001'"],
                     duration_us, type="long"),
        SourceColumn("clock", "time(6)", ["'23:59:59.999999'", "'00:00:00'"],
                     duration_us),
        SourceColumn("dt", "datetime", _DATETIMES, datetime.fromisoformat),
        SourceColumn("dt3", "datetime(3)", [*_DATETIMES, "'2000-01-01 00:00:00.001'"],
                     datetime.fromisoformat),
        SourceColumn("dt6", "datetime(6)", [*_DATETIMES, "'9999-12-31 23:59:59.999999'"],
                     datetime.fromisoformat),
        SourceColumn("ts", "timestamp NULL", ["'2038-01-19 03:14:07'", "'1970-01-01 00:00:01'"],
                     _utc),
        SourceColumn("ts6", "timestamp(6) NULL", ["'2038-01-19 03:14:07.999999'",
                     "'2024-10-27 01:30:00.000001'"], _utc),
        SourceColumn("y", "year", ["1901", "2155"], int),
        SourceColumn("fixed", "char(5)", ["'ab'", "''", "'ü'", "'a b'"], str),
        SourceColumn("short", "varchar(300)", _UNICODE, str),
        SourceColumn("large", "mediumtext", [*_UNICODE, "REPEAT('ü😀', 5000)"], str),
        SourceColumn("latin", "varchar(300) CHARACTER SET latin1", _TEXTS, str),
        SourceColumn("zeros", "binary(5)", ["X'01'", "X'0100'", "X'FFFFFFFFFF'", "X''"], bytes),
        SourceColumn("raw", "varbinary(20)", _BYTES, bytes),
        SourceColumn("lob", "blob", [*_BYTES, "REPEAT(X'00FF', 5000)"], bytes),
        SourceColumn("mood", "enum('sad','so so','it''s','ü')", ["1", "2", "3", "4"], str),
        SourceColumn("tags", "set('x','y','z w')", ["''", "'x'", "'x,z w'", "'x,y,z w'"], str),
        SourceColumn("doc", "json", ["'{\"a\": [1, 2.50, null]}'", "'null'", "'\"ü\"'"], str),
        SourceColumn("place", "point", ["POINT(1.5, -2)", "POINT(0, 0)"], bytes,
                     "ST_AsBinary(place)"),
        SourceColumn("shape", "geometry", ["ST_GeomFromText('LINESTRING(0 0, 1 1)')"], bytes,
                     "ST_AsBinary(shape)"),
        SourceColumn("counted", "int NULL DEFAULT 5", ["5", "6"], int),
        SourceColumn("named", "varchar(9) NULL DEFAULT 'x'", ["'x'", "''"], str),
    ),
)  # fmt: skip
_VALUE = SourceColumn("v", "int", ["1", "2"], int)
FOLDED = SourceTable(
    "folded",
    (
        SourceColumn(
            "k", "varchar(9) COLLATE utf8mb4_general_ci",
            [quoted(text) for text in ("abc", "ABC", "äbc", "abd", "x y", "X Y")], str,
        ),
        _VALUE,
    ),
)  # fmt: skip
UNSIGNED_KEY = SourceTable(
    "unsigned_key",
    (
        SourceColumn("k", "bigint unsigned",
                     [str(UNSIGNED), str(UNSIGNED - 1), str(2**63), "0"], Decimal),
        _VALUE,
    ),
)  # fmt: skip
BINARY_KEY = SourceTable(
    "binary_key",
    (
        SourceColumn("k", "varbinary(8)", ["X''", "X'00'", "X'0000'", "X'01'", "X'0100'"], bytes),
        SourceColumn("f", "binary(3)", ["X''", "X'01'", "X'010001'"], bytes),
        _VALUE,
    ),
    key=2,
)
COMPOSITE = SourceTable(
    "composite",
    (
        SourceColumn("b", "varchar(9)", ["'a'", "'b'"], str),
        SourceColumn("a", "int unsigned", ["0", "4294967295"], int),
        SourceColumn("c", "date", ["'1000-01-01'", "'9999-12-31'"], date.fromisoformat),
        SourceColumn("note", "text", _UNICODE, str),
    ),
    key=3,
)
TABLES = (EVERY, FOLDED, UNSIGNED_KEY, BINARY_KEY, COMPOSITE)
LATER = SourceTable("every", (EVERY.columns[0], SourceColumn("later", "bigint", ["8"], int)))
GROWTH = "ALTER TABLE every ADD COLUMN later bigint DEFAULT 7, MODIFY COLUMN plain bigint"
KEYS = 60  # of `every`


class Workload:
    """Transactions, drawn by a seed, over one connection."""

    def __init__(self, connection: Any, seed: int) -> None:
        self._cursor = connection.cursor()
        self._random = random.Random(seed)
        self.statements = 0

    def create(self) -> None:
        for table in TABLES:
            self._execute(table.ddl)

    def edges(self, first: int) -> None:
        """Rows of `every` that hold each of its values, one that is all null, and the defaults."""
        count = max(len(each.values) for each in EVERY.columns)
        for number in range(count):
            drawn = [c.values[number % len(c.values)] for c in EVERY.columns[1:]]
            self._insert_every(first + number, drawn)
        self._insert_every(first + count, ["NULL"] * (len(EVERY.columns) - 1))
        self._execute(f"INSERT INTO every (id) VALUES ({first + count + 1})")

    def _insert_every(self, key: int, row: Sequence[str]) -> None:
        self._execute(f"INSERT INTO every ({EVERY.names}) VALUES ({key}, {', '.join(row)})")

    def run(self, transactions: int) -> None:
        """So many; one in eight is rolled back."""
        for _ in range(transactions):
            self._cursor.execute("START TRANSACTION")
            for _ in range(self._random.randint(1, 6)):
                self._change(self._random.choice(TABLES))
            self._cursor.execute("ROLLBACK" if self._random.random() < 0.125 else "COMMIT")

    def _change(self, table: SourceTable) -> None:
        row = [self._value(each, number < table.key) for number, each in enumerate(table.columns)]
        names = [each.name for each in table.columns]
        keys = list(zip(names, row, strict=True))[: table.key]
        where = " AND ".join(f"{name} = {value}" for name, value in keys)
        values = ", ".join(row)
        changed = self._random.sample(range(table.key, len(row)), 1)
        some = ", ".join(f"{names[each]} = {row[each]}" for each in changed)
        other = [self._value(each, True) for each in table.columns[: table.key]]
        moved = ", ".join(f"{n} = {v}" for n, v in zip(names, other, strict=False))
        into = f"INTO {table.name} ({table.names}) VALUES ({values})"
        match self._random.randrange(7):
            case 0:
                self._execute(f"INSERT IGNORE {into}")
            case 1:
                self._execute(f"REPLACE {into}")
            case 2:
                self._execute(f"INSERT {into} ON DUPLICATE KEY UPDATE {some}")
            case 3:
                self._execute(f"UPDATE {table.name} SET {some} WHERE {where}")
            case 4:
                self._execute(f"UPDATE {table.name} SET {some}")
            case 5:
                self._execute(f"UPDATE IGNORE {table.name} SET {moved} WHERE {where}")
            case _:
                self._execute(f"DELETE FROM {table.name} WHERE {where}")

    def _value(self, column: SourceColumn, is_key: bool) -> str:
        if not column.values:
            return str(self._random.randint(1, KEYS))
        if not is_key and self._random.random() < 0.15:
            return "NULL"
        return self._random.choice(column.values)

    def _execute(self, statement: str) -> None:
        self._cursor.execute(statement)
        self.statements += 1


def source_rows(connection: Any, table: SourceTable) -> list[tuple[Any, ...]]:
    """What MariaDB holds. The connection converts nothing."""
    cursor = connection.cursor()
    cursor.execute(table.query)
    return [
        tuple(
            None if text is None else each.read(text)
            for each, text in zip(table.columns, row, strict=True)
        )
        for row in cursor.fetchall()
    ]


def shown_rows(duck: Any, location: str, table: SourceTable) -> list[tuple[Any, ...]]:
    """What DuckDB reads."""
    names = ", ".join(f'"{each.name}"' for each in table.columns)
    rows = duck.execute(f"SELECT {names} FROM iceberg_scan('{location}')").fetchall()
    return [tuple(_plain(value) for value in row) for row in rows]


def _plain(value: Any) -> Any:
    match value:
        case {"wkb": wkb}:
            return bytes(wkb)
        case datetime() if value.tzinfo is not None:
            return value.astimezone(UTC)
        case bytearray() | memoryview():
            return bytes(value)
    if hasattr(value, "hour") and not isinstance(value, datetime):
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return seconds * 1_000_000 + value.microsecond
    return value


def differences(
    table: SourceTable, expected: Sequence[tuple[Any, ...]], found: Sequence[tuple[Any, ...]]
) -> list[str]:
    """What differs, row by row and column by column; at most twenty lines."""
    have: Mapping[Any, Any] = {row[: table.key]: row for row in found}
    want: Mapping[Any, Any] = {row[: table.key]: row for row in expected}
    lines = [f"{len(found) - len(have)} keys are there twice"] if len(have) < len(found) else []
    lines += [f"{key} is missing" for key in want.keys() - have.keys()]
    lines += [f"{key} is too many" for key in have.keys() - want.keys()]
    lines += [
        f"{key} {column.name}: MariaDB {a!r:.100}, here {b!r:.100}"
        for key in want.keys() & have.keys()
        for column, a, b in zip(table.columns, want[key], have[key], strict=True)
        if (a, type(a)) != (b, type(b))
    ]
    return sorted(lines)[:20]
