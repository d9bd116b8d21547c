"""Tables of one MariaDB type each under drawn changes, and what their values are compared as.

What Debezium itself changes, or refuses (docs/mariadb.md), is not among the values.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tests.support.drawn_types import (
    BITS,
    DECIMAL,
    DOUBLE,
    MICROS,
    REAL,
    Draw,
    DrawnTable,
    Kind,
    shown_zoned,
)
from tests.support.mariadb_tables import duration_us, quoted

TEXT = Kind("CONVERT({x} USING utf8mb4)")
NUMBER = Kind("CAST({x} AS char)")
BYTES = Kind("lower(hex({x}))")
DATE = Kind("CAST(DATEDIFF({x}, '1970-01-01') AS char)")
STAMP = Kind("CAST(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {x}) AS char)", shown=MICROS.shown)


@dataclass(frozen=True)
class MariaDbTable(DrawnTable):
    """One table of MariaDB's."""

    def _cast(self, literal: str) -> str:
        return literal


def _shown_span(text: str, kind: str) -> Any:
    return int(text) if kind in ("BIGINT", "TIME") else int(shown_zoned(text, kind))


SPAN = Kind("CAST({x} AS char)", duration_us, _shown_span)
PLACE = Kind(
    "CONCAT(ST_SRID({x}), ' ', lower(hex(ST_AsBinary({x}))))",
    here="coalesce(c.srid, 0)::VARCHAR || ' ' || lower(hex(c.wkb))",
)
EXACT = Kind("CAST({x} AS char)", Decimal, DECIMAL.shown)
FLOAT = Kind("CAST(CAST({x} AS double) AS char)", REAL.wanted, REAL.shown)
DOUBLES = Kind("CAST({x} AS char)", DOUBLE.wanted, DOUBLE.shown)
FILLED = Kind("CAST({x} + 0 AS char)")
FLAGS = Kind("CAST({x} + 0 AS char)", int, BITS.shown)


def _integer(low: int, high: int) -> Draw:
    def draw(drawn: random.Random) -> str:
        near = drawn.choice([low, high, 0])
        return str(min(high, max(low, near + drawn.randint(-(2**16), 2**16))))

    return draw


def _decimal(digits: int, scale: int) -> Draw:
    def draw(drawn: random.Random) -> str:
        top = 10 ** drawn.randint(1, digits)
        number = Decimal(drawn.randint(1 - top, top - 1)).scaleb(-scale)
        return f"{number:f}"

    return draw


def _six_digits(drawn: random.Random) -> str:
    """A snapshot has no more of a float."""
    return f"{drawn.uniform(-1, 1) * 10 ** drawn.randint(-30, 30):.5e}"


def _double(drawn: random.Random) -> str:
    return repr(drawn.uniform(-1, 1) * 10 ** drawn.randint(-300, 300))


def _text(pool: str, most: int = 12) -> Draw:
    def draw(drawn: random.Random) -> str:
        chosen = "".join(drawn.choice(pool) for _ in range(drawn.randint(0, most)))
        return quoted(chosen)

    return draw


def _bytes(most: int) -> Draw:
    return lambda drawn: f"X'{drawn.randbytes(drawn.randint(0, most)).hex()}'"


def _bits(most: int) -> Draw:
    return lambda drawn: f"b'{drawn.getrandbits(most) >> drawn.randrange(most):b}'"


def _clock(drawn: random.Random, digits: int, hours: int) -> str:
    part = f".{drawn.randrange(10**digits):0{digits}d}" if digits else ""
    return f"{drawn.randrange(hours):02d}:{drawn.randrange(60):02d}:{drawn.randrange(60):02d}{part}"


def _span(digits: int) -> Draw:
    return lambda drawn: f"'{drawn.choice(['', '-'])}{_clock(drawn, digits, 838)}'"


def _time(digits: int) -> Draw:
    return lambda drawn: f"'{_clock(drawn, digits, 24)}'"


def _day(drawn: random.Random, years: tuple[int, int]) -> str:
    year = drawn.randint(*years)
    return f"{year:04d}-{drawn.randint(1, 12):02d}-{drawn.randint(1, 28):02d}"


def _date(drawn: random.Random) -> str:
    return f"'{_day(drawn, drawn.choice([(1, 1500), (1600, 9999)]))}'"


def _stamp(digits: int, *years: int) -> Draw:
    low, high = years
    return lambda drawn: f"'{_day(drawn, (low, high))} {_clock(drawn, digits, 24)}'"


def _shape(kind: str) -> Draw:
    def numbers(drawn: random.Random) -> str:
        return f"{drawn.uniform(-180, 180)!r} {drawn.randint(-90, 90)}"

    def draw(drawn: random.Random) -> str:
        if kind == "POINT":
            return f"ST_GeomFromText('POINT({numbers(drawn)})', {drawn.choice([0, 4326])})"
        return f"ST_GeomFromText('LINESTRING({numbers(drawn)}, {numbers(drawn)})', 4326)"

    return draw


_ASCII = "aAbB zZ09_-%'\"\\\n\t{}[]"
_LATIN = _ASCII + "äßÿ€"
_ANY = _ASCII + "äß€日😀\u00a0\u200b\ufeff"
_TEXTS = [
    quoted(each) for each in ("", " ", "a  ", "größe", "it's", "null", "{}", "aGVsbG8=", "\x01")
]
_DOCS = [quoted(t) for t in ("null", "{}", '{"b":1, "a" : [1, 2.50, null]}', '"\\u00e9"', " 1 ")]
_BLOBS = ("X''", "X'00'", "X'0000'", "X'FF00'", "X'0100000000'", "X'FBEFBE'", "X'3E3F'")
_SPANS = ("'838:59:59'", "'-838:59:59'", "'00:00:00'", "'-00:00:01'", "'23:59:59'", "'24:00:00'")
_STAMPS = ("'1970-01-01 00:00:00'", "'1969-12-31 23:59:59'", "'1700-01-01'", "'2262-01-01'")
_ZONED = ("'1970-01-01 00:00:01'", "'2038-01-19 03:14:07'", "'2024-03-31 02:30:00'")
_SHAPES = tuple(
    f"ST_GeomFromText('{each}')"
    for each in (
        "POINT(1 2)", "LINESTRING(0 0, 1 1)", "POLYGON((0 0, 1 0, 1 1, 0 0))",
        "MULTIPOINT(0 0, 1 1)",
        "MULTILINESTRING((0 0, 1 1), (2 2, 3 3))", "MULTIPOLYGON(((0 0, 1 0, 1 1, 0 0)))",
        "GEOMETRYCOLLECTION(POINT(1 2), LINESTRING(0 0, 1 1))",
    )
)  # fmt: skip


def _whole(name: str, kind: str, low: int, high: int) -> tuple[Any, ...]:
    return name, kind, NUMBER, (str(low), str(high), "0"), _integer(low, high), "ck"


_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_UBIG = ("7", "18446744073709551613")
_NINES = f"{'9' * 28}.{'9' * 10}"
_TINY = f"-0.{'0' * 29}1"
_LARGE = ("1.7976931348623157e308", "4.9e-324", "0.1", "1e22")
_CJK, _CYRILLIC = _text("ab日本表"), _text("abЖЩЯ")
_MOODS = ("'sad'", "'so so'", "'it''s'", "'ü'", "'none of it'")
# Name, type, kind, literals, how others are drawn, and where: a column, a key.
_DRAWN: Sequence[tuple[Any, ...]] = (
    *(
        each
        for name, bits in _BITS.items()
        for each in (
            _whole(name, name, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1),
            _whole(f"u{name}", f"{name} unsigned", 0, 2**bits - 1),
        )
    ),
    ("filled", "int(8) zerofill", FILLED, ("7", "4294967295"), None, "ck"),
    ("filled64", "bigint zerofill", FILLED, _UBIG, None, "ck"),
    ("serial", "serial", NUMBER, _UBIG, None, "k"),
    ("bool", "bool", NUMBER, ("0", "1", "5", "-1"), None, "ck"),
    ("bit1", "bit(1)", FLAGS, ("b'0'", "b'1'"), None, "ck"),
    ("bit8", "bit(8)", FLAGS, ("b'0'", "b'1'", "b'11111111'"), _bits(8), "ck"),
    ("bit10", "bit(10)", FLAGS, ("b'0'", "b'1'", "b'1000000001'"), _bits(10), "c"),
    ("bit64", "bit(64)", FLAGS, ("b'0'", f"b'{'1' * 64}'"), _bits(64), "c"),
    ("dec38", "decimal(38,10)", EXACT, (_NINES, "-0.0000000001"), _decimal(37, 10), "ck"),
    ("dec65", "decimal(65,30)", EXACT, ("99999999.5", _TINY), _decimal(37, 30), "c"),
    ("decu", "decimal(10,2) unsigned", EXACT, ("99999999.99", "0"), None, "ck"),
    ("dec0", "decimal(10,0) zerofill", EXACT, ("9999999999", "0"), None, "ck"),
    ("dec5", "decimal(5,5)", EXACT, ("0.99999", "-0.00001"), _decimal(5, 5), "ck"),
    ("float", "float", FLOAT, ("0", "-2.5e10", "123456", "0.1"), _six_digits, "c"),
    ("float73", "float(7,3)", FLOAT, ("0", "-12.125", "123.456"), None, "c"),
    ("floatu", "float unsigned", FLOAT, ("0", "0.1"), None, "c"),
    ("double", "double", DOUBLES, _LARGE, _double, "c"),
    ("double103", "double(10,3)", DOUBLES, ("1234567.125", "-0.25"), None, "c"),
    ("doubleu", "double unsigned", DOUBLES, ("1234567.125", "0"), None, "c"),
    ("real", "real", DOUBLES, ("0.1", "1e23"), _double, "c"),
    ("day", "date", DATE, ("'9999-12-31'", "'0001-01-01'", "'1969-12-31'"), _date, "ck"),
    ("span0", "time", SPAN, _SPANS, _span(0), "c"),
    ("span3", "time(3)", SPAN, (*_SPANS, "'-838:59:58.999'"), _span(3), "c"),
    ("span6", "time(6)", SPAN, (*_SPANS, "'-838:59:58.999999'"), _span(6), "c"),
    ("clock0", "time", SPAN, ("'00:00:00'", "'23:59:59'"), _time(0), "ck"),
    ("clock3", "time(3)", SPAN, ("'00:00:00'", "'23:59:59.999'"), _time(3), "ck"),
    ("clock6", "time(6)", SPAN, ("'00:00:00'", "'23:59:59.999999'"), _time(6), "ck"),
    ("stamp0", "datetime", STAMP, _STAMPS, _stamp(0, 1700, 2250), "ck"),
    ("stamp3", "datetime(3)", STAMP, _STAMPS, _stamp(3, 1700, 2250), "ck"),
    ("stamp6", "datetime(6)", STAMP, _STAMPS, _stamp(6, 1700, 2250), "ck"),
    ("zoned0", "timestamp NULL", STAMP, _ZONED, _stamp(0, 1971, 2037), "c"),
    ("zoned3", "timestamp(3) NULL", STAMP, _ZONED, _stamp(3, 1971, 2037), "c"),
    ("zoned6", "timestamp(6) NULL", STAMP, _ZONED, _stamp(6, 1971, 2037), "c"),
    ("zoned", "timestamp(6)", STAMP, _ZONED, _stamp(6, 1971, 2037), "k"),
    ("year", "year", NUMBER, ("1901", "2155", "2000"), None, "ck"),
    ("char", "char(9)", TEXT, _TEXTS, _text(_ANY, 9), "ck"),
    ("charbin", "char(9) COLLATE utf8mb4_bin", TEXT, _TEXTS, _text(_ANY, 9), "ck"),
    ("varchar", "varchar(30)", TEXT, _TEXTS, _text(_ANY), "ck"),
    ("nopad", "varchar(30) COLLATE utf8mb4_nopad_bin", TEXT, _TEXTS, _text(_ANY), "ck"),
    ("latin", "varchar(30) CHARACTER SET latin1", TEXT, _TEXTS, _text(_LATIN), "ck"),
    ("ucs2", "varchar(30) CHARACTER SET ucs2", TEXT, _TEXTS, _text(_LATIN), "ck"),
    ("utf16", "varchar(30) CHARACTER SET utf16", TEXT, _TEXTS, _text(_ANY), "ck"),
    ("utf16le", "varchar(30) CHARACTER SET utf16le", TEXT, _TEXTS, _text(_ANY), "ck"),
    ("utf32", "varchar(30) CHARACTER SET utf32", TEXT, _TEXTS, _text(_ANY), "ck"),
    ("utf8", "varchar(30) CHARACTER SET utf8mb3", TEXT, _TEXTS, _text(_LATIN + "日"), "ck"),
    ("sjis", "varchar(30) CHARACTER SET sjis", TEXT, (quoted("日本"), quoted("表")), _CJK, "ck"),
    ("gbk", "varchar(30) CHARACTER SET gbk", TEXT, (quoted("中文"),), _text("ab中文"), "ck"),
    ("koi8r", "varchar(30) CHARACTER SET koi8r", TEXT, (quoted("Ж"),), _CYRILLIC, "ck"),
    ("tinytext", "tinytext", TEXT, _TEXTS, _text(_ANY), "c"),
    ("text", "text", TEXT, (*_TEXTS, "REPEAT('ü😀', 9000)"), _text(_ANY), "c"),
    ("mediumtext", "mediumtext", TEXT, (*_TEXTS, "REPEAT('ü😀', 30000)"), _text(_ANY), "c"),
    ("longtext", "longtext", TEXT, _TEXTS, _text(_ANY), "c"),
    ("mood", "enum('sad','so so','it''s','ü')", TEXT, _MOODS, None, "ck"),
    ("tags", "set('x','y','z w','ü')", TEXT, ("''", "'x'", "'x,z w'", "'x,y,z w,ü'"), None, "ck"),
    ("json", "json", TEXT, _DOCS, None, "c"),
    ("binary", "binary(5)", BYTES, ("X''", "X'01'", "X'0100'", "X'FFFFFFFFFF'"), _bytes(5), "ck"),
    ("varbinary", "varbinary(20)", BYTES, _BLOBS, _bytes(20), "ck"),
    ("binchar", "varchar(20) CHARACTER SET binary", BYTES, _BLOBS, _bytes(20), "ck"),
    ("tinyblob", "tinyblob", BYTES, _BLOBS, _bytes(20), "c"),
    ("blob", "blob", BYTES, (*_BLOBS, "REPEAT(X'00FF', 9000)"), _bytes(20), "c"),
    ("mediumblob", "mediumblob", BYTES, (*_BLOBS, "REPEAT(X'00FF', 50000)"), _bytes(20), "c"),
    ("longblob", "longblob", BYTES, _BLOBS, _bytes(20), "c"),
    ("point", "point", PLACE, _SHAPES[:1], _shape("POINT"), "c"),
    ("line", "linestring", PLACE, _SHAPES[1:2], _shape("LINESTRING"), "c"),
    ("polygon", "polygon", PLACE, _SHAPES[2:3], None, "c"),
    ("points", "multipoint", PLACE, _SHAPES[3:4], None, "c"),
    ("lines", "multilinestring", PLACE, _SHAPES[4:5], None, "c"),
    ("polygons", "multipolygon", PLACE, _SHAPES[5:6], None, "c"),
    ("shapes", "geometrycollection", PLACE, _SHAPES[6:], None, "c"),
    ("shape", "geometry", PLACE, _SHAPES, _shape("LINESTRING"), "c"),
    ("virtual", "bigint AS (n * 3) VIRTUAL", NUMBER, ("DEFAULT",), None, "c"),
    ("stored", "varchar(30) AS (concat('n', n)) STORED", TEXT, ("DEFAULT",), None, "c"),
    ("given", "int DEFAULT 5", NUMBER, ("DEFAULT", "6"), None, "c"),
)  # fmt: skip
_FORMS = {"c": "col", "k": "key"}
MARIADB_TABLES = tuple(
    MariaDbTable(f"{_FORMS[form]}_{name}", kind, how, values, draw, is_key=form == "k")
    for name, kind, how, values, draw, forms in _DRAWN
    for form in forms
)
