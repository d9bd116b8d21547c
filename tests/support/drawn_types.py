"""Tables of one PostgreSQL type each under drawn changes, and what their values are compared as.

PostgreSQL says a value as the text that SQL makes of it, DuckDB says what icefold published as text
as well, and both become the same plain value. What Debezium itself changes, or refuses
(docs/change-streams.md, docs/postgresql.md), is not among the values.
"""

from __future__ import annotations

import json
import random
import re
import string
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

Draw = Callable[[random.Random], str]
TYPES = (
    "CREATE EXTENSION hstore",
    "CREATE EXTENSION citext",
    "CREATE EXTENSION ltree",
    "CREATE TYPE mood AS ENUM ('sad', 'so so', 'it''s', 'ü', '')",
    "CREATE DOMAIN a_number AS numeric(8,3)",
    "CREATE DOMAIN a_smaller_number AS a_number CHECK (VALUE < 100)",
    "CREATE DOMAIN a_text AS text",
    "CREATE DOMAIN a_moment AS timestamp(3)",
)
_TEXTS = (
    "''", "' '", "'a  '", "'größe €'", "'日本 😀'", r"E'q\"\\\n\t'", r"E'\x01\x1f'", "'it''s'",
    "'null'", "'{}'", "'[]'", "'NaN'", "'1e400'", r"E'\u2028\u0085'", r"E'\r\n'", "'aGVsbG8='",
)  # fmt: skip
_JSON = (
    "'null'", "'{}'", "'0'", "'\"x\"'", '\'{"a": 1, "a": 2}\'', '\'{"b":1,"a":2}\'', "'-0'",
    "'[1e400, -0.0, 1.10, 123456789012345678901234567890]'", r"""'"\u00e9\ud83d\ude00\n"'""",
    """' {"k" :  [ null,true ] } '""", """'{"": {"": []}}'""",
)  # fmt: skip
_HSTORE = (
    "''", "'a=>1'", """'a=>NULL, "b c"=>"x\\"y"'""", """'""=>""'""", """'"ü"=>"=>"'""",
    """'a=>"NULL"'""", """'"a,b"=>"c, d"'""",
)  # fmt: skip
_STAMPS = (
    "'1970-01-01 00:00:00'", "'1969-12-31 23:59:59.999999'", "'1700-01-01'",
    "'2016-12-31 23:59:60'", "'2250-12-31 23:59:59.999999'",
)  # fmt: skip
_TIMES = ("'00:00:00'", "'23:59:59.999999'", "'12:00:00.000001'")
_ISO = re.compile(
    r"P(?:(-?\d+)Y)?(?:(-?\d+)M)?(?:(-?\d+)D)?T?(?:(-?\d+)H)?(?:(-?\d+)M)?(?:(-?[\d.]+)S)?"
)
MONTH_US, DAY_US = 2_629_800_000_000, 86_400_000_000  # Debezium's month has 30.4375 days


def _integer(bits: int) -> Draw:
    top = 2 ** (bits - 1)
    return lambda drawn: str(drawn.randint(1 - top, top - 1) >> drawn.randint(0, bits - 1))


def _decimal(digits: int, scale: int) -> Draw:
    def draw(drawn: random.Random) -> str:
        top = 10 ** drawn.randint(1, digits)
        return f"{drawn.randint(1 - top, top - 1)}e-{drawn.randint(min(scale, 0), scale)}"

    return draw


def _double(drawn: random.Random) -> str:
    power = 10 ** drawn.randint(-300, 300)
    return repr(drawn.choice([drawn.uniform(-10, 10), drawn.uniform(-1, 1) * power]))


def _real(drawn: random.Random) -> str:
    return repr(drawn.uniform(-1, 1) * 10 ** drawn.randint(-36, 37))


def _text(drawn: random.Random) -> str:
    pool = string.printable + "äß€日😀\u00a0\u200b\ufeff"
    chosen = "".join(drawn.choice(pool) for _ in range(drawn.randint(0, 12)))
    return "E'" + chosen.replace("\\", r"\\").replace("'", r"\'") + "'"


def _time(digits: int) -> Draw:
    def draw(drawn: random.Random) -> str:
        second = drawn.randrange(86_400)
        part = f".{drawn.randrange(10**digits):0{digits}d}" if digits else ""
        return f"'{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}{part}'"

    return draw


def _date(drawn: random.Random) -> str:
    year = drawn.choice([drawn.randint(1, 1500), drawn.randint(1600, 2100), 5_000_000])
    return f"'{year:04d}-{drawn.randint(1, 12):02d}-{drawn.randint(1, 28):02d}'"


def _stamp(digits: int) -> Draw:
    time = _time(digits)

    def draw(drawn: random.Random) -> str:
        day = f"{drawn.randint(1700, 2250)}-{drawn.randint(1, 12):02d}-{drawn.randint(1, 28):02d}"
        return f"'{day} {time(drawn)[1:]}"

    return draw


def _interval(drawn: random.Random) -> str:
    years, months, days = (drawn.randint(-most, most) for most in (50, 30, 400))
    return f"make_interval({years}, {months}, 0, {days}, 0, 0, {drawn.uniform(-9e5, 9e5):.6f})"


def _bytes(drawn: random.Random) -> str:
    return rf"'\x{drawn.randbytes(drawn.randint(0, 20)).hex()}'"


def _bits(least: int, most: int) -> Draw:
    def draw(drawn: random.Random) -> str:
        count = drawn.randint(least, most)
        return "B'" + "".join(drawn.choice("01") for _ in range(count)) + "'"

    return draw


def _same(text: str, _: str = "") -> Any:
    return text


def _point(text: str) -> Any:
    return tuple(repr(float(part)) for part in text.strip("()").split(","))


def _shown_point(text: str, _: str) -> Any:
    found = json.loads(text)
    return repr(float(found["x"])), repr(float(found["y"]))


def _nearest(text: str) -> Any:
    return repr(struct.unpack("<f", struct.pack("<f", float(text)))[0])


def _shown_decimal(text: str, kind: str) -> Any:
    return Decimal(repr(float(text))) if kind == "DOUBLE" else Decimal(text)


def _shown_micros(text: str, kind: str) -> Any:
    return str(int(text) // 1000) if kind == "TIMESTAMP_NS" else text


def _shown_bits(text: str, kind: str) -> Any:
    if kind == "BOOLEAN":
        return int(text == "true")
    return int.from_bytes(bytes.fromhex(text), "little")


def shown_zoned(text: str, _: str) -> Any:
    clock, _, part = text.removesuffix("Z").partition(".")
    seconds = sum(
        int(each) * unit for each, unit in zip(clock.split(":"), (3600, 60, 1), strict=False)
    )
    return str(seconds * 1_000_000 + int(part.ljust(6, "0") or 0))


def _months(text: str) -> Any:
    months, days, micros = map(int, text.split("|"))
    return months * MONTH_US + days * DAY_US + micros


def _shown_interval(text: str, kind: str) -> Any:
    if kind == "BIGINT":
        return int(text)
    match = _ISO.fullmatch(text)
    assert match is not None, text
    years, months, days, hours, minutes, seconds = (Decimal(each or 0) for each in match.groups())
    micros = ((hours * 60 + minutes) * 60 + seconds) * 1_000_000
    return int((years * 12 + months) * MONTH_US + days * DAY_US + micros)


@dataclass(frozen=True)
class Kind:
    """How values of a type are compared.

    Attributes:
        oracle: PostgreSQL's SQL for the text of `{x}`.
        wanted: That text as a plain value.
        shown: DuckDB's text, and its type there, as the same.
        off: How far apart two numbers may be.
        here: DuckDB's SQL for its text of `c`, if its type does not say it.
    """

    oracle: str = "{x}::text"
    wanted: Callable[[str], Any] = _same
    shown: Callable[[str, str], Any] = _same
    off: int = 0
    here: str | None = None

    def differ(self, wanted: Any, shown: Any) -> bool:
        """Whether two values, or lists of them, are not the same."""
        if isinstance(wanted, list) and isinstance(shown, list) and len(wanted) == len(shown):
            return any(self.differ(*pair) for pair in zip(wanted, shown, strict=True))
        if self.off and isinstance(wanted, int) and isinstance(shown, int):
            return abs(wanted - shown) > self.off
        return bool(wanted != shown)


_MICROS = "((extract(epoch FROM {x}) * 1000000)::numeric(30,0))::text"
_PARTS = (
    "(extract(year FROM {x}) * 12 + extract(month FROM {x}))::bigint || '|' || "
    "extract(day FROM {x})::bigint || '|' || ((extract(hour FROM {x}) * 3600 + "
    "extract(minute FROM {x}) * 60 + extract(second FROM {x})) * 1000000)::bigint"
)
TEXT, BYTES = Kind(), Kind("encode({x}, 'hex')")
DECIMAL = Kind(wanted=Decimal, shown=_shown_decimal)
MONEY = Kind("{x}::numeric::text", Decimal, _shown_decimal)
DATE = Kind("({x} - date '1970-01-01')::text")
MICROS = Kind(_MICROS, shown=_shown_micros)
ZONED = Kind(_MICROS.format(x="({x} AT TIME ZONE 'UTC')::time"), shown=shown_zoned)
REAL = Kind(wanted=_nearest, shown=lambda text, _: repr(float(text)))
DOUBLE = Kind(wanted=lambda text: repr(float(text)), shown=lambda text, _: repr(float(text)))
BITS = Kind(wanted=lambda text: int(text or "0", 2), shown=_shown_bits)
INTERVAL = Kind(_PARTS, _months, _shown_interval, off=2)
POINT = Kind(wanted=_point, shown=_shown_point)
HSTORE = Kind("hstore_to_json({x})::text", json.loads, lambda text, _: json.loads(text))
CHAR = Kind("rpad({x}::text, 5)")
ADDRESS = Kind("CASE WHEN {x} IS NOT NULL THEN format('%s', {x}) END")


@dataclass(frozen=True)
class DrawnTable:
    """One table: `c` of a type beside `id`, or as the primary key itself; and `n`.

    Attributes:
        values: Literals of the type, or of a list's items.
        draw: One more.
    """

    name: str
    type: str
    kind: Kind
    values: Sequence[str]
    draw: Draw | None = None
    is_list: bool = False
    is_key: bool = False

    @property
    def ddl(self) -> str:
        if self.is_key:
            return f"CREATE TABLE {self.name} (c {self.type} PRIMARY KEY, n int)"
        return f"CREATE TABLE {self.name} (id int PRIMARY KEY, n int, c {self._column})"

    @property
    def _column(self) -> str:
        return f"{self.type}[]" if self.is_list else self.type

    def _literal(self, drawn: random.Random) -> str:
        if self.draw is not None and drawn.random() < 0.5:
            return self.draw(drawn)
        return drawn.choice(self.values)

    def _cast(self, literal: str) -> str:
        return f"{literal}::{self.type}"

    def value(self, drawn: random.Random) -> str:
        if not self.is_list:
            null = not self.is_key and drawn.random() < 0.1
            return "NULL" if null else self._cast(self._literal(drawn))
        items = (self._literal(drawn) for _ in range(drawn.randint(0, 4)))
        # An array with a NULL is nothing to Debezium where it is one of enums, ltree or tsvector.
        nulls = 0.15 if self.type not in ("mood", "ltree", "tsvector") else 0.0
        texts = ("NULL" if drawn.random() < nulls else item for item in items)
        return f"ARRAY[{', '.join(texts)}]::{self._column}"

    def first(self, drawn: random.Random, base: int) -> Iterator[str]:
        """Statements that insert every literal once, and some drawn values."""
        more = [self.value(drawn) for _ in range(4)]
        if self.is_list:
            values = [f"ARRAY[{each}]::{self._column}" for each in self.values] + more
        else:
            values = [*map(self._cast, self.values), *more]
        for number, value in enumerate(values, base):
            key = value if self.is_key else f"{number}, 0, {value}"
            yield f"INSERT INTO {self.name} VALUES ({key}{', 0' if self.is_key else ''})"

    def change(self, drawn: random.Random, base: int) -> str:
        """A drawn statement."""
        value, number = self.value(drawn), drawn.randint(0, 20) + drawn.choice([0, base])
        where = f"c = {self.value(drawn)}" if self.is_key else f"id = {number}"
        match drawn.randrange(4):
            case 0:
                return f"UPDATE {self.name} SET c = {value} WHERE {where}"
            case 1:
                return f"UPDATE {self.name} SET n = n + 1 WHERE {where}"
            case 2:
                return f"DELETE FROM {self.name} WHERE {where}"
        key = f"c = {value}" if self.is_key else f"id = {drawn.randint(100, 999)}"
        return f"UPDATE {self.name} SET {key} WHERE {where}"

    def expected(self, connection: Any) -> list[tuple[Any, Any, Any]]:
        """The source's rows: the key (of the column itself: 0), `n` and the value."""
        text = self.kind.oracle.format(x="c")
        if self.is_list:
            item = self.kind.oracle.format(x="x")
            items = f"SELECT coalesce(jsonb_agg({item} ORDER BY o), '[]')"
            text = f"({items} FROM unnest(c) WITH ORDINALITY u(x, o))::text"
            text = f"CASE WHEN c IS NOT NULL THEN {text} END"
        query = f"SELECT {0 if self.is_key else 'id'}, n, {text} FROM {self.name}"
        cursor = connection.cursor()
        cursor.execute(query)
        rows = cursor.fetchall()
        return [(key, n, self._plain(value, self.kind.wanted)) for key, n, value in rows]

    def published(self, duck: Any, location: str) -> list[tuple[Any, Any, Any]]:
        """DuckDB's."""
        source = f"iceberg_scan('{location}')"
        columns = duck.execute(f"DESCRIBE SELECT * FROM {source}").fetchall()
        kind = next(each[1] for each in columns if each[0] == "c")
        item = kind.removesuffix("[]")
        text = self.kind.here or _duck_text(item, "c")
        if self.is_list:
            text = f"to_json(list_transform(c, x -> {_duck_text(item, 'x')}))::VARCHAR"
        rows = duck.execute(f"SELECT {0 if self.is_key else 'id'}, n, {text} FROM {source}")

        def plain(value: str) -> Any:
            return self.kind.shown(value, item)

        return [(key, n, self._plain(value, plain)) for key, n, value in rows.fetchall()]

    def _plain(self, text: str | None, read: Callable[[str], Any]) -> Any:
        if text is None or not self.is_list:
            return None if text is None else read(text)
        return [None if each is None else read(each) for each in json.loads(text)]

    def differences(self, expected: Sequence[Any], found: Sequence[Any]) -> list[str]:
        """At most ten."""
        if len(expected) != len(found):
            return [f"{self.name}: {len(found)} rows for {len(expected)}"]
        # Of a key column the values are the order; of an interval, some microseconds may be off.
        pairs = zip(sorted(expected, key=_order), sorted(found, key=_order), strict=True)
        lines = [
            f"{self.name}: the source {wanted!r:.150}, here {shown!r:.150}"
            for wanted, shown in pairs
            if wanted[:2] != shown[:2] or self.kind.differ(wanted[2], shown[2])
        ]
        return lines[:10]


def _order(row: tuple[Any, Any, Any]) -> tuple[Any, ...]:
    value = row[2]
    return row[0], *((value, "") if isinstance(value, (int, Decimal)) else (0, repr(value)))


def _duck_text(kind: str, x: str) -> str:
    match kind:
        case "TIMESTAMP" | "TIMESTAMP WITH TIME ZONE" | "TIME":
            return f"epoch_us({x})::VARCHAR"
        case "TIMESTAMP_NS":
            return f"epoch_ns({x})::VARCHAR"
        case "DATE":
            return f"({x} - DATE '1970-01-01')::VARCHAR"
        case "BLOB":
            return f"lower(hex({x}))"
        case "FLOAT":
            return f"{x}::DOUBLE::VARCHAR"
    return f"to_json({x})::VARCHAR" if kind.startswith("STRUCT") else f"{x}::VARCHAR"


def _ends(bits: int) -> tuple[str, ...]:
    top = 2 ** (bits - 1)
    return (f"'{-top}'", str(top - 1), "0", "'-1'")


_REALS = ("'NaN'", "'Infinity'", "'-Infinity'", "'-0'", "0", "3.4028235e38", "1.4e-45", "16777217")
_DOUBLES = (*_REALS[:5], "1.7976931348623157e308", "4.9e-324", "0.1", "1e22", "1e23")
_NINES = f"'{'9' * 28}.{'9' * 10}'"
# Name, type, kind, literals, how others are drawn, and where: a column, an array, a key.
_DRAWN: Sequence[tuple[str, str, Kind, Sequence[str], Draw | None, str]] = (
    ("bool", "boolean", TEXT, ("true", "false"), None, "cak"),
    ("int2", "smallint", TEXT, _ends(16), _integer(16), "cak"),
    ("int4", "int", TEXT, _ends(32), _integer(32), "cak"),
    ("int8", "bigint", TEXT, _ends(64), _integer(64), "cak"),
    ("oid", "oid", TEXT, ("0", "4294967295"), None, "cak"),
    ("real", "real", REAL, _REALS, _real, "ca"),
    ("double", "double precision", DOUBLE, _DOUBLES, _double, "ca"),
    ("wide", "numeric(38,10)", DECIMAL, (_NINES, "0.0000000001"), _decimal(28, 10), "cak"),
    ("part", "numeric(5,5)", DECIMAL, ("0.99999", "0", "'-0.00001'"), None, "cak"),
    ("tiny", "numeric(3,5)", DECIMAL, ("0.00999", "'-0.00001'"), None, "cak"),
    ("whole", "numeric(10,0)", DECIMAL, ("9999999999", "0"), _decimal(10, 0), "cak"),
    ("open", "numeric", DECIMAL, ("0", "1.10", "1.1", "100", "1e20"), _decimal(20, 9), "cak"),
    ("money", "money", MONEY, ("0", "1.5", "12345.67"), None, "c"),
    ("day", "date", DATE, ("'0001-01-01'", "'5874897-12-31'", "'2000-02-29'"), _date, "cak"),
    ("clock", "time", MICROS, _TIMES, _time(6), "ck"),
    ("clock0", "time(0)", MICROS, _TIMES[:1], _time(0), "cak"),
    ("clock3", "time(3)", MICROS, ("'23:59:59.999'",), _time(3), "cak"),
    ("stamp", "timestamp", MICROS, _STAMPS, _stamp(6), "cak"),
    ("stamp0", "timestamp(0)", MICROS, _STAMPS, _stamp(0), "cak"),
    ("stamp3", "timestamp(3)", MICROS, _STAMPS, _stamp(3), "cak"),
    ("zoned", "timestamptz", MICROS, _STAMPS, _stamp(6), "cak"),
    ("zoned2", "timestamptz(2)", MICROS, _STAMPS, _stamp(2), "cak"),
    ("timetz", "timetz", ZONED, ("'00:00+00'", "'23:59:59.999999-12'"), _time(6), "c"),
    ("span", "interval", INTERVAL, ("'0'", "'1 year -2 mons 3 days -04:05:06.7'"), _interval, "c"),
    ("text", "text", TEXT, _TEXTS, _text, "cak"),
    ("short", "varchar(30)", TEXT, _TEXTS, _text, "cak"),
    ("padded", "char(5)", CHAR, ("''", "'a'", "'ü'", "'  x'"), None, "cak"),
    ("folded", "citext", TEXT, _TEXTS, _text, "ca"),
    ("mood", "mood", TEXT, ("'sad'", "'so so'", "'it''s'", "'ü'", "''"), None, "cak"),
    ("uuid", "uuid", TEXT, (f"'{'0' * 32}'", f"'{'f' * 32}'"), None, "cak"),
    ("raw", "bytea", BYTES, ("''", r"'\x00'", r"'\xfbefbe'", r"'\x3e3f'"), _bytes, "ck"),
    ("bit1", "bit(1)", BITS, ("B'0'", "B'1'"), None, "ck"),
    ("bit10", "bit(10)", BITS, ("B'0000000000'", "B'1000000001'"), _bits(10, 10), "ck"),
    ("bits", "bit varying(40)", BITS, ("B'1'", "B'100000000'"), _bits(1, 40), "c"),
    ("inet", "inet", ADDRESS, ("'10.0.0.1'", "'10.0.0.1/8'", "'::1'"), None, "cak"),
    ("cidr", "cidr", TEXT, ("'10.0.0.0/8'", "'::/0'"), None, "cak"),
    ("mac", "macaddr", TEXT, ("'08:00:2b:01:02:03'",), None, "cak"),
    ("json", "json", TEXT, _JSON, None, "ca"),
    ("jsonb", "jsonb", TEXT, _JSON, None, "cak"),
    ("xml", "xml", TEXT, ("'<a b=\"1\">x &amp; ü</a>'", "''", "' x '"), None, "c"),
    ("hstore", "hstore", HSTORE, _HSTORE, None, "ca"),
    ("ltree", "ltree", TEXT, ("''", "'Top.Science'"), None, "cak"),
    ("range", "int4range", TEXT, ("'[1,5)'", "'empty'", "'(,)'"), None, "cak"),
    ("numrange", "numrange", TEXT, ("'(1.10,2.50]'", "'(,)'"), None, "cak"),
    ("tsrange", "tsrange", TEXT, ("'[2000-01-01 00:00:00.1,infinity)'",), None, "cak"),
    ("words", "tsvector", TEXT, ("'a:1A b:2'", "''"), None, "cak"),
    ("point", "point", POINT, ("'(1.5,-2)'", "'(1e300,-1e-300)'"), None, "c"),
    ("number", "a_smaller_number", DECIMAL, ("1.5", "'-99999.999'"), None, "ck"),
    ("words2", "a_text", TEXT, _TEXTS, _text, "ck"),
    ("moment", "a_moment", MICROS, _STAMPS, _stamp(3), "ck"),
)  # fmt: skip
_FORMS = {"c": "col", "a": "arr", "k": "key"}
DRAWN_TABLES = tuple(
    DrawnTable(f"{_FORMS[form]}_{name}", kind, how, values, draw, form == "a", form == "k")
    for name, kind, how, values, draw, forms in _DRAWN
    for form in forms
)
