"""What events say about columns that the table does not have, or has too narrow.

Tasks find out while they parse; only the driver changes the table (`schema_evolution`), and then
the batch is parsed again. So they cross process boundaries, as JSON.

Types are taken from the events' own schema (Arrow, Kafka Connect) where they have one. Bare JSON
has none: a column's type is then inferred from all its values in the batch: boolean, long, double,
string, lists and objects of those. A text stays a text, whatever it looks like. Null says nothing.
A number is often a date and a text often the base64 of a decimal, so a format may ask for columns
that are certain (`check_certain`).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

from tableformat.cdc.format_options import SCHEMA_EVOLUTION, SchemaEvolution
from tableformat.cdc.json_objects import Path
from tableformat.errors import InvalidInputError, refusing_deep_nesting
from tableformat.spec.promotion import is_wider, wider_parts
from tableformat.spec.types import iceberg_schema

DECIMAL_DIGITS_MAX = 38
_DIGITS = re.compile(r"[0-9]{1,3}")
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
IGNORED_ID = 0  # field ids of new columns mean nothing: the table gives its own

CONNECT_PLAIN: Mapping[str, iceberg.IcebergType] = {
    "boolean": iceberg.BooleanType(),
    "int8": iceberg.IntegerType(),
    "int16": iceberg.IntegerType(),
    "int32": iceberg.IntegerType(),
    "int64": iceberg.LongType(),
    "float": iceberg.FloatType(),
    "float32": iceberg.FloatType(),
    "double": iceberg.DoubleType(),
    "number": iceberg.DoubleType(),
    "float64": iceberg.DoubleType(),
    "string": iceberg.StringType(),
    "bytes": iceberg.BinaryType(),
}
CONNECT_SEMANTIC: Mapping[str, iceberg.IcebergType] = {
    "io.debezium.time.Date": iceberg.DateType(),
    "io.debezium.time.IsoDate": iceberg.DateType(),
    "io.debezium.time.Time": iceberg.TimeType(),
    "io.debezium.time.MicroTime": iceberg.TimeType(),
    "io.debezium.time.NanoTime": iceberg.TimeType(),
    "io.debezium.time.IsoTime": iceberg.TimeType(),
    "io.debezium.time.Timestamp": iceberg.TimestampType(),
    "io.debezium.time.MicroTimestamp": iceberg.TimestampType(),
    "io.debezium.time.NanoTimestamp": iceberg.TimestampNanoType(),
    "io.debezium.time.IsoTimestamp": iceberg.TimestampType(),
    "io.debezium.time.ZonedTimestamp": iceberg.TimestamptzType(),
    "io.debezium.data.Uuid": iceberg.UUIDType(),
    "org.apache.kafka.connect.data.Date": iceberg.DateType(),
    "org.apache.kafka.connect.data.Time": iceberg.TimeType(),
    "org.apache.kafka.connect.data.Timestamp": iceberg.TimestampType(),
}
CONNECT_DECIMAL = "org.apache.kafka.connect.data.Decimal"
CONNECT_DIGITS = "connect.decimal.precision"
# Decimals by name, each with the parameter that has its digits. The second is CockroachDB's.
DECIMAL_DIGITS = {CONNECT_DECIMAL: CONNECT_DIGITS, "decimal": "precision"}
SOURCE_TYPE = "__debezium.source.column.type"
SOURCE_BINARIES = (
    "BYTEA", "BINARY", "VARBINARY", "TINYBLOB", "BLOB", "MEDIUMBLOB", "LONGBLOB", "IMAGE", "RAW",
)  # fmt: skip
# Structs whose fields say all; one of another name (VariableScaleDecimal) is a value.
CONNECT_STRUCTS = (
    "io.debezium.data.geometry.Point",
    "io.debezium.data.geometry.Geometry",
    "io.debezium.data.geometry.Geography",
)


@dataclass(slots=True)
class SchemaChanges:
    """Columns to add and columns to widen, with their types, and columns to be null in.

    `relaxed`: required columns that the source allows to be null by now, and that are. `declared`:
    what the Connect schema says about columns to add, defaults included. `in_order`: what is merged
    comes in the order in which the source made it.
    """

    added: dict[str, iceberg.IcebergType] = field(default_factory=dict)
    widened: dict[str, iceberg.IcebergType] = field(default_factory=dict)
    declared: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    relaxed: set[str] = field(default_factory=set)
    in_order: bool = False

    def __bool__(self) -> bool:
        return bool(self.added or self.widened or self.relaxed)

    @property
    def names(self) -> list[str]:
        """All columns that they are about."""
        return sorted({*self.added, *self.widened, *self.relaxed})

    def ask(
        self, schema: Schema, mode: SchemaEvolution, name: str, kind: iceberg.IcebergType
    ) -> None:
        """Note that the events have a column `name` of type `kind`."""
        known = next((each for each in schema.fields if each.name == name), None)
        if known is None:
            self.added[name] = common_type(self.added.get(name), kind, column=name)
        elif mode is SchemaEvolution.FULL and wider_parts(known.field_type, kind):
            wanted = common_type(self.widened.get(name), kind, column=name)
            self.widened[name] = wanted

    def merge(self, other: SchemaChanges) -> None:
        """Take over those of another task.

        In order, the first default of a new column counts: a later one changes no row from before.

        Raises:
            InvalidInputError: They disagree about the type of a new column, or, in no known order,
                about its default.
        """
        for name in self.added.keys() & other.added.keys():
            mine_, theirs_ = (each.declared.get(name, {}).get("default") for each in (self, other))
            if mine_ != theirs_ and not self.in_order:
                raise InvalidInputError(
                    "the events disagree about the default of a new column",
                    column=name,
                    defaults=[str(mine_), str(theirs_)],
                    action="add the column to the table yourself, with the default that the "
                    "rows before it have",
                )
        new = {name: each for name, each in other.declared.items() if name not in self.added}
        self.declared |= new
        self.relaxed |= other.relaxed
        for mine, theirs in ((self.added, other.added), (self.widened, other.widened)):
            for name, kind in theirs.items():
                mine[name] = common_type(mine.get(name), kind, column=name)

    def encode(self) -> bytes:
        """As JSON."""
        parts = (
            Schema(*(_field(name, kind) for name, kind in schema_changes.items())).model_dump_json()
            for schema_changes in (self.added, self.widened)
        )
        rest = (json.dumps(self.declared), json.dumps(sorted(self.relaxed)))
        return "\n".join([*parts, *rest]).encode()

    @classmethod
    def decode(cls, text: bytes) -> SchemaChanges:
        """From the bytes of `encode`."""
        *schemas, declared, relaxed = text.split(b"\n")
        added, widened = (
            {each.name: each.field_type for each in Schema.model_validate_json(line).fields}
            for line in schemas
        )
        return cls(added, widened, json.loads(declared), set(json.loads(relaxed)))


def new_columns(undeclared: Collection[Path], row: Path, mode: SchemaEvolution) -> list[str]:
    """Names of columns that JSON events have and the table does not.

    Args:
        undeclared: Paths of undeclared fields in the events.
        row: Where the row is in them.
        mode: What may be changed.

    Raises:
        InvalidInputError: They may not be added, or they are fields inside a column: those never
            are.
    """
    inner = {path for path in undeclared if len(path) > len(row) + 1}
    refused = sorted(inner or undeclared)
    if refused and (inner or mode is SchemaEvolution.STRICT):
        names = [".".join(path[len(row) :]) for path in refused]
        evolving = "" if inner else f"set {SCHEMA_EVOLUTION}=add-columns, "
        raise InvalidInputError(
            f"the events have a column '{names[0]}' that the table does not have",
            action=f"add it to the table, {evolving}or set unknown-columns=ignore",
            columns=names,
        )
    return [path[-1] for path in refused]


def common_type(
    known: iceberg.IcebergType | None, kind: iceberg.IcebergType, *, column: str
) -> iceberg.IcebergType:
    """The narrowest type that holds both.

    Raises:
        InvalidInputError: There is none.
    """
    if known is None or known == kind or is_wider(known, kind):
        return kind
    if isinstance(known, iceberg.ListType) and isinstance(kind, iceberg.ListType):
        element = common_type(known.element_type, kind.element_type, column=column)
        return iceberg.ListType(IGNORED_ID, element, False)
    if is_wider(kind, known):
        return known
    numbers = (iceberg.IntegerType, iceberg.LongType, iceberg.FloatType, iceberg.DoubleType)
    if isinstance(known, numbers) and isinstance(kind, numbers):
        return iceberg.DoubleType()
    raise InvalidInputError(
        "the events disagree about the type of a new column",
        column=column,
        types=[str(known), str(kind)],
        action="add the column to the table yourself",
    )


def arrow_columns(
    given: pa.Schema, schema: Schema, mode: SchemaEvolution, *, without: Iterable[str]
) -> SchemaChanges:
    """Columns that typed events have, by their Arrow types alone. All-null columns say nothing."""
    schema_changes = SchemaChanges()
    dropped = set(without)
    columns = [c for c in given if c.name not in dropped and not pa.types.is_null(c.type)]
    for column in columns:
        plain = column.type
        if pa.types.is_dictionary(plain) or pa.types.is_run_end_encoded(plain):
            plain = plain.value_type
        alone = iceberg_schema(pa.schema([pa.field(column.name, plain)]))
        schema_changes.ask(schema, mode, column.name, alone.fields[0].field_type)
    return schema_changes


@refusing_deep_nesting("event")
def connect_columns(
    fields: Mapping[str, Mapping[str, Any]], schema: Schema, mode: SchemaEvolution
) -> SchemaChanges:
    """Columns that events with a Connect schema have.

    Args:
        fields: Fields of the row's Connect schema, by name.
        schema: The table's.
        mode: What may be changed.

    Raises:
        InvalidInputError: A new column has a type that cannot be read from JSON.
    """
    schema_changes = SchemaChanges()
    known = {each.name for each in schema.fields}
    for name, declared in fields.items():
        if name in known and _is_open_decimal(declared):
            continue  # as many digits as its column has
        kind = connect_type(declared)
        if kind is not None:
            schema_changes.ask(schema, mode, name, kind)
            if name in schema_changes.added:
                schema_changes.declared[name] = declared
        elif name not in known:
            raise InvalidInputError(
                "a new column has a type that no column can be made of",
                column=name,
                type=declared.get("name") or declared.get("type"),
                action="add it to the table yourself, or set unknown-columns=ignore",
            )
    return schema_changes


@refusing_deep_nesting("event")
def json_columns(
    texts: pa.Array, path: Path, names: Sequence[str], schema: Schema, mode: SchemaEvolution
) -> SchemaChanges:
    """Columns that bare JSON events have, by all their values. For missing columns only.

    Args:
        texts: JSON objects; those that cannot be read are left out.
        path: Where the row is in them.
        names: Columns that the table does not have.
        schema: The table's.
        mode: What may be changed.
    """
    schema_changes = SchemaChanges()
    for row in _rows(texts, path):
        for name in names:
            kind = _json_type(row.get(name), name)
            if kind is not None:
                schema_changes.ask(schema, mode, name, kind)
    return schema_changes


def check_certain(schema_changes: SchemaChanges) -> None:
    """Refuse new columns of bare JSON whose values may mean something else.

    Args:
        schema_changes: What `json_columns` found.

    Raises:
        InvalidInputError: There is one that is not boolean; the message names the ways out.
    """
    for name, kind in schema_changes.added.items():
        if not _is_certain(kind):
            raise InvalidInputError(
                f"the events have a new column '{name}', and they carry no schema: Debezium "
                "writes dates and times as numbers, decimals and binaries as base64",
                action="add the column to the table with its type, or send the schema with the "
                "events (value.converter.schemas.enable=true), or set new-columns=json to take "
                f"it for what JSON says: {kind}",
                column=name,
            )


def _is_certain(kind: iceberg.IcebergType) -> bool:
    match kind:
        case iceberg.StructType():
            return all(_is_certain(each.field_type) for each in kind.fields)
        case iceberg.ListType():
            return _is_certain(kind.element_type)
    return isinstance(kind, iceberg.BooleanType)


def long_columns(texts: pa.Array, path: Path, schema: Schema) -> SchemaChanges:
    """Columns of int, and of lists of int, for which bare JSON events have larger integers."""
    schema_changes = SchemaChanges()
    narrow = {each.name: longs for each in schema.fields if (longs := _of_longs(each.field_type))}
    for row in _rows(texts, path):
        for name, longs in narrow.items():
            if _has_long(row.get(name)):
                schema_changes.widened[name] = longs
    return schema_changes


def _of_longs(kind: iceberg.IcebergType) -> iceberg.IcebergType | None:
    """The type with long where it is int; None: it is neither int nor a list of it."""
    match kind:
        case iceberg.IntegerType():
            return iceberg.LongType()
        case iceberg.ListType():
            element = _of_longs(kind.element_type)
            return None if element is None else iceberg.ListType(IGNORED_ID, element, False)
    return None


def _has_long(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_long, value))
    return type(value) is int and INT_MAX < abs(value) <= LONG_MAX


def _rows(texts: pa.Array, path: Path) -> Iterable[Mapping[str, Any]]:
    for text in texts.to_pylist():
        try:
            value = json.loads(text, parse_float=_exact_number)
        except (ValueError, TypeError, RecursionError):
            continue  # a bad record; reported by the parser
        for name in path:
            value = value.get(name) if isinstance(value, dict) else None
        if isinstance(value, dict):
            yield value


def _exact_number(text: str) -> float | Decimal:
    """A double if it is exactly what is written, as doubles are printed."""
    number = float(text)
    return number if math.isinf(number) or Decimal(text) == Decimal(repr(number)) else Decimal(text)


def _json_type(value: Any, column: str) -> iceberg.IcebergType | None:
    match value:
        case None:
            return None
        case bool():
            return iceberg.BooleanType()
        case int():
            if abs(value) > LONG_MAX:
                raise InvalidInputError(
                    "a new column has an integer of more than 64 bits",
                    column=column,
                    value=value,
                    action="add the column to the table yourself, as a decimal",
                )
            return iceberg.LongType()
        case float():
            return iceberg.DoubleType()
        case Decimal():
            raise InvalidInputError(
                "a new column has a number of more digits than a double holds",
                column=column,
                value=value,
                action="add the column to the table yourself, as a decimal",
            )
        case str():
            return iceberg.StringType()
        case list():
            element: iceberg.IcebergType | None = None
            for item in value:
                kind = _json_type(item, column)
                element = element if kind is None else common_type(element, kind, column=column)
            return None if element is None else iceberg.ListType(IGNORED_ID, element, False)
        case dict():
            kinds = {name: _json_type(item, column) for name, item in value.items()}
            fields = [_field(name, kind) for name, kind in kinds.items() if kind is not None]
            return iceberg.StructType(*fields) if fields else None
    return None


def connect_type(declared: Mapping[str, Any]) -> iceberg.IcebergType | None:
    """The column type of a field of a Connect schema; None: there is none for it."""
    name, kind = declared.get("name"), str(declared.get("type"))
    parameters = declared.get("parameters")
    if str(name) in DECIMAL_DIGITS:
        given = parameters if isinstance(parameters, dict) else {}
        digits = str(given.get(DECIMAL_DIGITS[str(name)], DECIMAL_DIGITS_MAX))
        scale = str(given.get("scale", ""))
        if not (_DIGITS.fullmatch(digits) and _DIGITS.fullmatch(scale)):
            return None
        # PostgreSQL's numeric(3,5) has three digits behind two zeros.
        width = max(int(scale), int(digits))
        return iceberg.DecimalType(width, int(scale)) if 1 <= width <= DECIMAL_DIGITS_MAX else None
    if str(name) in CONNECT_SEMANTIC:
        return CONNECT_SEMANTIC[str(name)]
    if kind == "array" and isinstance(declared.get("items"), dict):
        element = connect_type(declared["items"])
        return None if element is None else iceberg.ListType(IGNORED_ID, element, False)
    is_plain = name is None or name in CONNECT_STRUCTS
    if kind == "struct" and is_plain and isinstance(declared.get("fields"), list):
        named = [each for each in declared["fields"] if isinstance(each, dict) and "field" in each]
        parts = {str(each["field"]): connect_type(each) for each in named}
        if len(parts) < max(len(declared["fields"]), 1) or None in parts.values():
            return None
        return iceberg.StructType(
            *(_field(key, part) for key, part in parts.items() if part is not None)
        )
    if kind == "string" and source_type(declared) in SOURCE_BINARIES:  # hex or base64
        return iceberg.BinaryType()
    return CONNECT_PLAIN.get(kind)


def source_type(declared: Mapping[str, Any]) -> str:
    """The source's type in capitals, with Debezium's `column.propagate.source.type`; else ''."""
    parameters = declared.get("parameters")
    given = parameters if isinstance(parameters, dict) else {}
    return str(given.get(SOURCE_TYPE, "")).upper()


def _is_open_decimal(declared: Mapping[str, Any]) -> bool:
    """A decimal whose schema does not say how many digits it has, or a list of such."""
    if isinstance(items := declared.get("items"), dict):
        return _is_open_decimal(items)
    parameters = declared.get("parameters")
    given = parameters if isinstance(parameters, dict) else {}
    return declared.get("name") == CONNECT_DECIMAL and CONNECT_DIGITS not in given


def _field(name: str, kind: iceberg.IcebergType) -> iceberg.NestedField:
    return iceberg.NestedField(IGNORED_ID, name, kind, required=False)
