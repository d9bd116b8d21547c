"""What events say about columns that the table does not have, or has too narrow.

Tasks find out while they parse; only the driver changes the table (`schema_evolution`), and then
the batch is parsed again. So wishes cross process boundaries: they are JSON.

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
from enum import StrEnum
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from tableformat.cdc.json_objects import Path
from tableformat.cdc.options import Option, OptionKind, OptionValues
from tableformat.errors import InvalidInputError, refusing_deep_nesting
from tableformat.spec.types import iceberg_schema

DECIMAL_DIGITS_MAX = 38
_DIGITS = re.compile(r"[0-9]{1,3}")
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
SCHEMA_EVOLUTION = "schema-evolution"
IGNORED_ID = 0  # field ids of wishes mean nothing: the table gives its own

CONNECT_PLAIN: Mapping[str, IcebergType] = {
    "boolean": BooleanType(),
    "int8": IntegerType(),
    "int16": IntegerType(),
    "int32": IntegerType(),
    "int64": LongType(),
    "float": FloatType(),
    "float32": FloatType(),
    "double": DoubleType(),
    "float64": DoubleType(),
    "string": StringType(),
    "bytes": BinaryType(),
}
CONNECT_SEMANTIC: Mapping[str, IcebergType] = {
    "io.debezium.time.Date": DateType(),
    "io.debezium.time.IsoDate": DateType(),
    "io.debezium.time.Time": TimeType(),
    "io.debezium.time.MicroTime": TimeType(),
    "io.debezium.time.NanoTime": TimeType(),
    "io.debezium.time.IsoTime": TimeType(),
    "io.debezium.time.Timestamp": TimestampType(),
    "io.debezium.time.MicroTimestamp": TimestampType(),
    "io.debezium.time.NanoTimestamp": TimestampNanoType(),
    "io.debezium.time.IsoTimestamp": TimestampType(),
    "io.debezium.time.ZonedTimestamp": TimestamptzType(),
    "io.debezium.data.Uuid": UUIDType(),
    "org.apache.kafka.connect.data.Date": DateType(),
    "org.apache.kafka.connect.data.Time": TimeType(),
    "org.apache.kafka.connect.data.Timestamp": TimestampType(),
}
CONNECT_DECIMAL = "org.apache.kafka.connect.data.Decimal"
CONNECT_DIGITS = "connect.decimal.precision"


class SchemaEvolution(StrEnum):
    """What a sink may change about the table."""

    STRICT = "strict"
    ADD_COLUMNS = "add-columns"
    FULL = "full"


SCHEMA_EVOLUTION_OPTION = Option(
    name=SCHEMA_EVOLUTION,
    kind=OptionKind.CHOICE,
    choices=tuple(mode.value for mode in SchemaEvolution),
    default=SchemaEvolution.STRICT.value,
    help="columns that the table does not have; strict: the batch fails; add-columns: they are "
    "added; full: added, and types are widened (int to long, float to double, decimal digits). "
    "A renamed column is a new one",
)


def evolution_of(values: OptionValues) -> SchemaEvolution:
    """The choice of the option.

    Raises:
        InvalidInputError: Unknown columns are to be ignored as well.
    """
    mode = SchemaEvolution(values.text(SCHEMA_EVOLUTION))
    if mode is not SchemaEvolution.STRICT and values.values.get("unknown-columns") == "ignore":
        raise InvalidInputError(
            "unknown columns can be ignored or added, not both",
            action=f"leave out unknown-columns, or set {SCHEMA_EVOLUTION}=strict",
        )
    return mode


@dataclass(slots=True)
class SchemaWishes:
    """Columns to add and columns to widen, with their types.

    `declared`: what the Connect schema says about columns to add, defaults included.
    """

    added: dict[str, IcebergType] = field(default_factory=dict)
    widened: dict[str, IcebergType] = field(default_factory=dict)
    declared: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.added or self.widened)

    def want(self, schema: Schema, mode: SchemaEvolution, name: str, kind: IcebergType) -> None:
        """Note that the events have a column `name` of type `kind`."""
        known = next((each for each in schema.fields if each.name == name), None)
        if known is None:
            self.added[name] = common_type(self.added.get(name), kind, column=name)
        elif mode is SchemaEvolution.FULL and is_wider(known.field_type, kind):
            wanted = common_type(self.widened.get(name), kind, column=name)
            self.widened[name] = wanted

    def merge(self, other: SchemaWishes) -> None:
        """Take over the wishes of another task.

        Raises:
            InvalidInputError: They disagree about the type or the default of a new column.
        """
        for name in self.added.keys() & other.added.keys():
            mine_, theirs_ = (each.declared.get(name, {}).get("default") for each in (self, other))
            if mine_ != theirs_:
                raise InvalidInputError(
                    "the events disagree about the default of a new column",
                    column=name,
                    defaults=[str(mine_), str(theirs_)],
                    action="add the column to the table yourself, with the default that the "
                    "rows before it have",
                )
        self.declared.update(other.declared)
        for mine, theirs in ((self.added, other.added), (self.widened, other.widened)):
            for name, kind in theirs.items():
                mine[name] = common_type(mine.get(name), kind, column=name)

    def encode(self) -> bytes:
        """The wishes as JSON."""
        parts = (
            Schema(*(_field(name, kind) for name, kind in wishes.items())).model_dump_json()
            for wishes in (self.added, self.widened)
        )
        return "\n".join([*parts, json.dumps(self.declared)]).encode()

    @classmethod
    def decode(cls, text: bytes) -> SchemaWishes:
        """The wishes of `encode`."""
        *schemas, declared = text.split(b"\n")
        added, widened = (
            {each.name: each.field_type for each in Schema.model_validate_json(line).fields}
            for line in schemas
        )
        return cls(added, widened, json.loads(declared))


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


def is_wider(have: IcebergType, want: IcebergType) -> bool:
    """Whether `want` is a type that Iceberg can promote `have` to."""
    match have, want:
        case (IntegerType(), LongType()) | (FloatType(), DoubleType()):
            return True
        case (DecimalType(), DecimalType()):
            return have.scale == want.scale and have.precision < want.precision
    return False


def common_type(known: IcebergType | None, kind: IcebergType, *, column: str) -> IcebergType:
    """The narrowest type that holds both.

    Raises:
        InvalidInputError: There is none.
    """
    if known is None or known == kind or is_wider(known, kind):
        return kind
    if is_wider(kind, known):
        return known
    numbers = (IntegerType, LongType, FloatType, DoubleType)
    if isinstance(known, numbers) and isinstance(kind, numbers):
        return DoubleType()
    raise InvalidInputError(
        "the events disagree about the type of a new column",
        column=column,
        types=[str(known), str(kind)],
        action="add the column to the table yourself",
    )


def arrow_wishes(
    given: pa.Schema, schema: Schema, mode: SchemaEvolution, *, without: Iterable[str]
) -> SchemaWishes:
    """What typed events wish, by their Arrow types alone. All-null columns say nothing."""
    wishes = SchemaWishes()
    dropped = set(without)
    columns = [c for c in given if c.name not in dropped and not pa.types.is_null(c.type)]
    for column in columns:
        plain = column.type
        if pa.types.is_dictionary(plain) or pa.types.is_run_end_encoded(plain):
            plain = plain.value_type
        alone = iceberg_schema(pa.schema([pa.field(column.name, plain)]))
        wishes.want(schema, mode, column.name, alone.fields[0].field_type)
    return wishes


@refusing_deep_nesting("event")
def connect_wishes(
    fields: Mapping[str, Mapping[str, Any]], schema: Schema, mode: SchemaEvolution
) -> SchemaWishes:
    """What events with a Connect schema wish.

    Args:
        fields: Fields of the row's Connect schema, by name.
        schema: The table's.
        mode: What may be changed.

    Raises:
        InvalidInputError: A new column has a type that cannot be read from JSON.
    """
    wishes = SchemaWishes()
    known = {each.name for each in schema.fields}
    for name, declared in fields.items():
        if name in known and _is_open_decimal(declared):
            continue  # as many digits as its column has
        kind = _connect_type(declared)
        if kind is not None:
            wishes.want(schema, mode, name, kind)
            if name in wishes.added:
                wishes.declared[name] = declared
        elif name not in known:
            raise InvalidInputError(
                "a new column has a type that no column can be made of",
                column=name,
                type=declared.get("name") or declared.get("type"),
                action="add it to the table yourself, or set unknown-columns=ignore",
            )
    return wishes


@refusing_deep_nesting("event")
def json_wishes(
    texts: pa.Array, path: Path, names: Sequence[str], schema: Schema, mode: SchemaEvolution
) -> SchemaWishes:
    """What bare JSON events wish, by all their values. Only called when columns are missing.

    Args:
        texts: JSON objects; those that cannot be read are left out.
        path: Where the row is in them.
        names: Columns that the table does not have.
        schema: The table's.
        mode: What may be changed.
    """
    wishes = SchemaWishes()
    for row in _rows(texts, path):
        for name in names:
            kind = _json_type(row.get(name), name)
            if kind is not None:
                wishes.want(schema, mode, name, kind)
    return wishes


def check_certain(wishes: SchemaWishes, row: str) -> None:
    """Refuse new columns of bare JSON whose values may mean something else.

    Args:
        wishes: What `json_wishes` found.
        row: What the events are, for the message.

    Raises:
        InvalidInputError: There is one that is not boolean; the message names the ways out.
    """
    for name, kind in wishes.added.items():
        if not _is_certain(kind):
            raise InvalidInputError(
                f"the events have a new column '{name}', and they carry no schema: {row} writes "
                "dates and times as numbers, decimals and binaries as base64",
                action="add the column to the table with its type, or send the schema with the "
                "events (value.converter.schemas.enable=true), or set new-columns=json to take "
                f"it for what JSON says: {kind}",
                column=name,
            )


def _is_certain(kind: IcebergType) -> bool:
    match kind:
        case StructType():
            return all(_is_certain(each.field_type) for each in kind.fields)
        case ListType():
            return _is_certain(kind.element_type)
    return isinstance(kind, BooleanType)


def long_wishes(texts: pa.Array, path: Path, schema: Schema) -> SchemaWishes:
    """Columns of type int for which bare JSON events have larger integers."""
    wishes = SchemaWishes()
    narrow = [each.name for each in schema.fields if isinstance(each.field_type, IntegerType)]
    for row in _rows(texts, path):
        for name in narrow:
            value = row.get(name)
            if type(value) is int and INT_MAX < abs(value) <= LONG_MAX:
                wishes.widened[name] = LongType()
    return wishes


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


def _json_type(value: Any, column: str) -> IcebergType | None:
    match value:
        case None:
            return None
        case bool():
            return BooleanType()
        case int():
            if abs(value) > LONG_MAX:
                raise InvalidInputError(
                    "a new column has an integer of more than 64 bits",
                    column=column,
                    value=value,
                    action="add the column to the table yourself, as a decimal",
                )
            return LongType()
        case float():
            return DoubleType()
        case Decimal():
            raise InvalidInputError(
                "a new column has a number of more digits than a double holds",
                column=column,
                value=value,
                action="add the column to the table yourself, as a decimal",
            )
        case str():
            return StringType()
        case list():
            element: IcebergType | None = None
            for item in value:
                kind = _json_type(item, column)
                element = element if kind is None else common_type(element, kind, column=column)
            return None if element is None else ListType(IGNORED_ID, element, False)
        case dict():
            kinds = {name: _json_type(item, column) for name, item in value.items()}
            fields = [_field(name, kind) for name, kind in kinds.items() if kind is not None]
            return StructType(*fields) if fields else None
    return None


def _connect_type(declared: Mapping[str, Any]) -> IcebergType | None:
    name, kind = declared.get("name"), str(declared.get("type"))
    parameters = declared.get("parameters")
    if name == CONNECT_DECIMAL:
        given = parameters if isinstance(parameters, dict) else {}
        digits = str(given.get(CONNECT_DIGITS, DECIMAL_DIGITS_MAX))
        scale = str(given.get("scale", ""))
        if not (_DIGITS.fullmatch(digits) and _DIGITS.fullmatch(scale)):
            return None
        if not max(int(scale), 1) <= int(digits) <= DECIMAL_DIGITS_MAX:
            return None
        return DecimalType(int(digits), int(scale))
    if str(name) in CONNECT_SEMANTIC:
        return CONNECT_SEMANTIC[str(name)]
    if kind == "array" and isinstance(declared.get("items"), dict):
        element = _connect_type(declared["items"])
        return None if element is None else ListType(IGNORED_ID, element, False)
    if kind == "struct" and name is None and isinstance(declared.get("fields"), list):
        named = [each for each in declared["fields"] if isinstance(each, dict) and "field" in each]
        parts = {str(each["field"]): _connect_type(each) for each in named}
        if len(parts) < max(len(declared["fields"]), 1) or None in parts.values():
            return None
        return StructType(*(_field(key, part) for key, part in parts.items() if part is not None))
    return CONNECT_PLAIN.get(kind)


def _is_open_decimal(declared: Mapping[str, Any]) -> bool:
    """A decimal whose schema does not say how many digits it has."""
    parameters = declared.get("parameters")
    given = parameters if isinstance(parameters, dict) else {}
    return declared.get("name") == CONNECT_DECIMAL and CONNECT_DIGITS not in given


def _field(name: str, kind: IcebergType) -> NestedField:
    return NestedField(IGNORED_ID, name, kind, required=False)
