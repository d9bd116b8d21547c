"""Column types as people write them: Iceberg's names and Spark's, lists, structs and maps.

```
column   := NAME ':' type ['!']
type     := primitive | ('list' | 'array') '<' type ['!'] '>' | 'map' '<' type ',' type ['!'] '>'
          | 'struct' '<' NAME ':' type ['!'] {',' NAME ':' type ['!']} '>'
```

`!`, or `NOT NULL` as in Spark, is required. Field ids are counted from 1; a table assigns its own.
`timestamp` has no time zone, as in Iceberg: Spark's `timestamp` is `timestamptz`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

from tableformat.errors import InvalidInputError

DEPTH_MAX = 32
DECIMAL_PRECISION_MAX = 38
KNOWN = (
    "boolean, int, long, float, double, decimal(P,S), date, time, timestamp, timestamptz, "
    "timestamp_ns, timestamptz_ns, string, uuid, fixed[N], binary, list<T>, map<K,V> or "
    "struct<name:T,...>"
)
_PLAIN: dict[str, Callable[[], iceberg.IcebergType]] = {
    "boolean": iceberg.BooleanType,
    "bool": iceberg.BooleanType,
    "tinyint": iceberg.IntegerType,
    "byte": iceberg.IntegerType,
    "smallint": iceberg.IntegerType,
    "short": iceberg.IntegerType,
    "int": iceberg.IntegerType,
    "integer": iceberg.IntegerType,
    "long": iceberg.LongType,
    "bigint": iceberg.LongType,
    "float": iceberg.FloatType,
    "real": iceberg.FloatType,
    "double": iceberg.DoubleType,
    "date": iceberg.DateType,
    "time": iceberg.TimeType,
    "timestamp": iceberg.TimestampType,
    "timestamp_ntz": iceberg.TimestampType,
    "timestamptz": iceberg.TimestamptzType,
    "timestamp_ltz": iceberg.TimestamptzType,
    "timestamp_ns": iceberg.TimestampNanoType,
    "timestamptz_ns": iceberg.TimestamptzNanoType,
    "string": iceberg.StringType,
    "uuid": iceberg.UUIDType,
    "binary": iceberg.BinaryType,
}
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`|[\w.-]+)|([<>():,!\[\]]))")


def parse_columns_ddl(texts: tuple[str, ...]) -> Schema:
    """`NAME:TYPE[!]` words as a schema.

    Raises:
        InvalidInputError: One is no such word, or its type is not known.
    """
    ids = itertools.count(1)
    fields = []
    for text in texts:
        name, required, kind = parse_column(text, ids)
        fields.append(iceberg.NestedField(next(ids), name, kind, required=required))
    return Schema(*fields)


def parse_column(
    text: str, ids: Iterator[int] | None = None
) -> tuple[str, bool, iceberg.IcebergType]:
    """One `NAME:TYPE[!]`: the name, whether it is required, and its type.

    Raises:
        InvalidInputError: See `parse_columns_ddl`.
    """
    name, separator, type_text = text.partition(":")
    if not separator or not name.strip():
        raise InvalidInputError("not a column", column=repr(text), action="write NAME:TYPE")
    kind, required = _parse(type_text, name, ids)
    return name.strip(), required, kind


def parse_type(text: str) -> iceberg.IcebergType:
    """A type by itself.

    Raises:
        InvalidInputError: It is not known.
    """
    kind, required = _parse(text, None, None)
    if required:
        raise InvalidInputError("a type alone has no '!'", type=repr(text))
    return kind


def _parse(
    text: str, column: str | None, ids: Iterator[int] | None
) -> tuple[iceberg.IcebergType, bool]:
    reader = _Reader(text, column, ids or itertools.count(1))
    kind = reader.type()
    required = reader.required()
    if reader.at < len(reader.tokens):
        raise reader.wrong(f"{reader.tokens[reader.at]!r} was not expected")
    return kind, required


@dataclass(slots=True)
class _Reader:
    """Reads one type from left to right."""

    text: str
    column: str | None
    ids: Iterator[int]
    tokens: list[str] = field(default_factory=list)
    at: int = 0
    depth: int = 0

    def __post_init__(self) -> None:
        position = 0
        text = self.text.rstrip()
        while position < len(text):
            found = _TOKEN.match(text, position)
            if found is None:
                raise self.wrong(f"{text[position:].strip()[:1]!r} was not expected")
            self.tokens.append(found[1] or found[2])
            position = found.end()

    def type(self) -> iceberg.IcebergType:
        """The type that begins here."""
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise self.wrong(f"more than {DEPTH_MAX} levels")
        name = self._next().lower()
        try:
            match name:
                case "list" | "array":
                    return self._list()
                case "map":
                    return self._map()
                case "struct":
                    return self._struct()
                case "decimal" | "dec" | "numeric":
                    return self._decimal()
                case "varchar" | "char":
                    self._length()
                    return iceberg.StringType()
                case "fixed":
                    return iceberg.FixedType(self._length())
            plain = _PLAIN.get(name)
            if plain is None:
                raise self.wrong(f"{name!r} is no type")
            return plain()
        finally:
            self.depth -= 1

    def required(self) -> bool:
        """Whether `!` or NOT NULL stands here; takes it."""
        if self._peek() == "!":
            self.at += 1
            return True
        if [token.lower() for token in self.tokens[self.at : self.at + 2]] == ["not", "null"]:
            self.at += 2
            return True
        return False

    def wrong(self, why: str) -> InvalidInputError:
        """The error for what stands here."""
        context = {} if self.column is None else {"column": self.column}
        return InvalidInputError(
            f"not an Iceberg type: {why}",
            action=f"write {KNOWN}",
            **context,
            type=repr(self.text.strip()),
        )

    def _list(self) -> iceberg.ListType:
        self._expect("<")
        element_id, element = next(self.ids), self.type()
        required = self.required()
        self._expect(">")
        return iceberg.ListType(element_id, element, element_required=required)

    def _map(self) -> iceberg.MapType:
        self._expect("<")
        key_id, key = next(self.ids), self.type()
        self.required()  # keys always are
        self._expect(",")
        value_id, value = next(self.ids), self.type()
        required = self.required()
        self._expect(">")
        return iceberg.MapType(key_id, key, value_id, value, value_required=required)

    def _struct(self) -> iceberg.StructType:
        self._expect("<")
        fields: list[iceberg.NestedField] = []
        while True:
            name = _unquoted(self._next())
            if self._peek() == ":":
                self.at += 1
            field_id, kind = next(self.ids), self.type()
            if any(each.name.lower() == name.lower() for each in fields):
                raise self.wrong(f"the struct has two fields {name!r}")
            fields.append(iceberg.NestedField(field_id, name, kind, required=self.required()))
            if self._next_of(",>") == ">":
                return iceberg.StructType(*fields)

    def _decimal(self) -> iceberg.DecimalType:
        if self._peek() != "(":
            return iceberg.DecimalType(10, 0)  # as in Spark
        self.at += 1
        precision = self._integer()
        scale = self._integer() if self._next_of(",)") == "," else None
        if scale is not None:
            self._expect(")")
        if not 1 <= precision <= DECIMAL_PRECISION_MAX or (scale or 0) > precision:
            raise self.wrong(f"a decimal has 1 to {DECIMAL_PRECISION_MAX} digits in all")
        return iceberg.DecimalType(precision, scale or 0)

    def _length(self) -> int:
        """`[16]` or `(16)`."""
        closing = {"[": "]", "(": ")"}[self._next_of("[(")]
        length = self._integer()
        self._expect(closing)
        return length

    def _integer(self) -> int:
        token = self._next()
        if not re.fullmatch(r"[0-9]{1,9}", token):
            raise self.wrong(f"{token!r} is no number")
        return int(token)

    def _peek(self) -> str | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def _next(self) -> str:
        token = self._peek()
        if token is None:
            raise self.wrong("it ends too early")
        self.at += 1
        return token

    def _next_of(self, allowed: str) -> str:
        token = self._next()
        if token not in allowed:
            raise self.wrong(f"{token!r} was not expected")
        return token

    def _expect(self, token: str) -> None:
        self._next_of(token)


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name
