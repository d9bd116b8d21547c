"""Kafka Connect's `{"schema": ..., "payload": ...}` envelope (JsonConverter with schemas.enable).

The schema is repeated in every event and is most of its text, but its text is the same as long as
the table does not change. So events are grouped by the literal text around the payload, the schema
is parsed once per group, and only payloads are read as JSON. Who sorts the names of objects (TiCDC,
CockroachDB, jq) writes the payload first.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

from tableformat.array_types import Int64s
from tableformat.cdc.encodings import (
    BINARIES,
    ELEMENT,
    FLOATS,
    TEMPORALS,
    TIMESTAMPS,
    UNITS,
    Encoding,
    EncodingDefaults,
    Hint,
    column_decoder,
    decode_rows,
    encodings_of,
)
from tableformat.cdc.events import PayloadSchemas
from tableformat.cdc.json_objects import JsonLayout, parse_json_objects
from tableformat.cdc.schema_changes import source_type
from tableformat.errors import InvalidInputError
from tableformat.spec.column_defaults import exact_default

# A flattened row may have columns `schema` and `payload` of its own.
SCHEMA_FIRST = re.compile(r'\s*\{\s*"schema"\s*:\s*(?:\{|null\s*,\s*"payload"\s*:)')
ENVELOPE = re.compile(rf'(?:{SCHEMA_FIRST.pattern}|\s*\{{\s*"payload"\s*:\s*(?:\{{|null\b))')
_SCALE = re.compile(r"-?[0-9]{1,3}")  # decimals have 38 digits
# PostgreSQL's numeric(5, -2) has 2046, eleven bits, and values of as many zeros.
_NEGATIVE_SCALE = re.compile(r"1[0-9]{3}|20[0-4][0-9]")
_MEMBER = re.compile(r'\s*[{,]\s*"(schema|payload)"\s*:\s*')

# Connect's and Debezium's semantic types (the schema's `name`) that say how a value is encoded, and
# the columns that such values can go to.
SEMANTICS: Mapping[str, tuple[Encoding, tuple[type[iceberg.IcebergType], ...]]] = {
    "io.debezium.time.Date": (Encoding.DAYS, (iceberg.DateType,)),
    "io.debezium.time.IsoDate": (Encoding.ISO, (iceberg.DateType,)),
    "io.debezium.time.Time": (Encoding.MILLIS, (iceberg.TimeType,)),
    "io.debezium.time.MicroTime": (Encoding.MICROS, (iceberg.TimeType,)),
    "io.debezium.time.NanoTime": (Encoding.NANOS, (iceberg.TimeType,)),
    "io.debezium.time.IsoTime": (Encoding.ISO, (iceberg.TimeType,)),
    "io.debezium.time.ZonedTime": (Encoding.ISO, (iceberg.TimeType,)),
    "io.debezium.time.Timestamp": (Encoding.MILLIS, TIMESTAMPS),
    "io.debezium.time.MicroTimestamp": (Encoding.MICROS, TIMESTAMPS),
    "io.debezium.time.NanoTimestamp": (Encoding.NANOS, TIMESTAMPS),
    "io.debezium.time.IsoTimestamp": (Encoding.ISO, TIMESTAMPS),
    "io.debezium.time.ZonedTimestamp": (Encoding.ISO, TIMESTAMPS),
    "io.debezium.data.VariableScaleDecimal": (Encoding.VARIABLE, (iceberg.DecimalType,)),
    "org.apache.kafka.connect.data.Date": (Encoding.DAYS, (iceberg.DateType,)),
    "org.apache.kafka.connect.data.Time": (Encoding.MILLIS, (iceberg.TimeType,)),
    "org.apache.kafka.connect.data.Timestamp": (Encoding.MILLIS, TIMESTAMPS),
    "org.apache.kafka.connect.data.Decimal": (Encoding.PRECISE, (iceberg.DecimalType,)),
    # CockroachDB's: declared as float64, and written with digits that a double does not hold.
    "decimal": (Encoding.TEXT, (iceberg.DecimalType,)),
}
TIMES = "io.debezium.time."
UNSIGNED_LONG = "BIGINT UNSIGNED"
INTEGERS = ("int8", "int16", "int32", "int64")
NUMBER = "number"  # of a JSON Schema that Connect did not write: of any digits
DOUBLES = ("double", "float64", NUMBER)
SINGLES = ("float", "float32")
FRACTIONS = (*SINGLES, *DOUBLES)


@dataclass(frozen=True, slots=True)
class PayloadGroup:
    """Events with one schema text. `schema` is None for events without an envelope."""

    schema: Mapping[str, Any] | None
    rows: Int64s
    payloads: pa.StringArray

    def filter(self, mask: npt.NDArray[np.bool_]) -> PayloadGroup:
        """The events where `mask` is set."""
        return PayloadGroup(self.schema, self.rows[mask], self.payloads.filter(pa.array(mask)))


@dataclass(frozen=True, slots=True)
class _Envelope:
    """What is around the payload: `schema`, and the texts `before` and `behind` the payload."""

    schema: Mapping[str, Any] | None
    before: str
    behind: str

    @classmethod
    def of(cls, text: str) -> _Envelope | None:
        """The envelope of an event; None: it has none.

        Raises:
            ValueError: It cannot be read.
        """
        if ENVELOPE.match(text) is None:
            return None
        found: dict[str, tuple[int, int, Any]] = {}
        end = 0
        while (member := _MEMBER.match(text, end)) is not None and member[1] not in found:
            if found and member[1] == "payload":  # may be long, and ends where the event does
                return cls(found["schema"][2], text[: member.end()], "}")
            try:
                value, end = json.JSONDecoder().raw_decode(text, member.end())
            except (ValueError, RecursionError) as error:
                raise ValueError(f"the envelope's {member[1]} is not JSON: {error}") from None
            found[member[1]] = (member.end(), end, value)
        if "payload" not in found:
            raise ValueError("the envelope's schema is not followed by its payload")
        if text[end:].strip() != "}":
            return None  # a row with a column of this name
        start, stop, _ = found["payload"]
        schema = found["schema"][2] if "schema" in found else None
        if not (schema is None or isinstance(schema, dict)):
            return None
        return cls(schema, text[:start], text[stop:].rstrip())

    def is_around(self, texts: pa.StringArray) -> pa.BooleanArray:
        """Of which texts it is, which do not end with white space."""
        return pc.and_(pc.starts_with(texts, self.before), pc.ends_with(texts, self.behind))

    def payloads(self, texts: pa.StringArray) -> pa.StringArray:
        """What is inside of it."""
        ends = len(self.before.encode()), -len(self.behind.encode())
        return pc.binary_slice(texts.cast(pa.binary()), *ends).cast(pa.string())


def split_payloads(
    texts: pa.StringArray, bad: dict[int, str], schemas: PayloadSchemas | None = None
) -> Iterator[PayloadGroup]:
    """Group events by their schema.

    Args:
        texts: Events, shape (n,); null rows belong to no group.
        bad: Receives the rows whose envelope cannot be read.
        schemas: Those of texts that are payloads only.
    """
    remaining = np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False))
    if schemas is not None:
        numbers = schemas.numbers[remaining]
        for number, declared in enumerate(schemas.declared):
            rows = remaining[numbers == number]
            if len(rows):
                yield PayloadGroup(declared, rows, texts.take(pa.array(rows)))
        remaining = remaining[numbers < 0]
    while len(remaining):
        left = texts.take(pa.array(remaining))
        first = left[0].as_py()
        try:
            envelope = _Envelope.of(first)
        except ValueError as error:
            bad[int(remaining[0])] = str(error)
            remaining = remaining[1:]
            continue
        if envelope is None:
            rest = SCHEMA_FIRST if ENVELOPE.match(first) else ENVELOPE
            enveloped = pc.match_substring_regex(left, f"^{rest.pattern}")
            taken = ~enveloped.to_numpy(zero_copy_only=False)
            yield PayloadGroup(None, remaining[taken], left.filter(pa.array(taken)))
        else:
            left = pc.utf8_rtrim_whitespace(left)
            same = envelope.is_around(left)
            taken = same.to_numpy(zero_copy_only=False)
            if not taken[0]:
                bad[int(remaining[0])] = "not a JSON object"
                remaining = remaining[1:]
                continue
            payloads = envelope.payloads(left.filter(same))
            yield PayloadGroup(envelope.schema, remaining[taken], payloads)
        remaining = remaining[~taken]


def declared_schema(text: str) -> Mapping[str, Any] | None:
    """The Connect schema that an event carries; None: it carries none, or it cannot be read."""
    try:
        envelope = _Envelope.of(text)
    except ValueError:
        return None
    return None if envelope is None else envelope.schema


def row_hints(schema: Mapping[str, Any] | None, table: Schema, *path: str) -> dict[str, Hint]:
    """What the Connect schema of a row says about the encodings of the table's columns.

    Args:
        schema: The schema of the whole payload; None gives no hints.
        table: The table's schema.
        path: Where the row is in the payload: `("after",)`, or nothing when the payload is the row.
    """
    declared = row_fields(schema, *path)
    return {
        column.name: hint_for(column.field_type, declared[column.name])
        for column in table.fields
        if column.name in declared
    }


def units_not_taken(
    declared: Mapping[str, Mapping[str, Any]], table: Schema, said: Mapping[str, Hint]
) -> frozenset[tuple[str, str]]:
    """Columns whose values count units that nobody looks at, each with a sentence for people.

    Such a column goes on when its unit changes at the source, so that its rows differ in it.

    Args:
        declared: Of a row, as `row_fields` gives it.
        table: The table's schema.
        said: What the user said of columns.
    """
    found: set[tuple[str, str]] = set()
    for column in table.fields:
        field = declared.get(column.name, {})
        field, kind = field.get("items", field), _item_type(column.field_type)
        name = str(field.get("name"))
        encoding, _ = SEMANTICS.get(name, (None, ()))
        if encoding not in (*UNITS, Encoding.DAYS):
            continue
        hint = said.get(column.name, Hint())
        believed = hint.parts.get(ELEMENT, hint).encoding
        if isinstance(kind, (iceberg.IntegerType, iceberg.LongType)):
            found.add((column.name, f"is {kind} and takes the numbers of {name} as they are"))
        elif believed not in (None, encoding):
            reading = f"is read as {believed}, as the option encodings says"
            found.add((column.name, f"{reading}, and the events' schema says {name}"))
    return frozenset(found)


def _item_type(kind: iceberg.IcebergType) -> iceberg.IcebergType:
    return kind.element_type if isinstance(kind, iceberg.ListType) else kind


def row_fields(schema: Mapping[str, Any] | None, *path: str) -> dict[str, Mapping[str, Any]]:
    """The fields of a row by name, as the payload's Connect schema declares them."""
    for name in path:
        schema = None if schema is None else _fields(schema).get(name)
    return {} if schema is None else _fields(schema)


def _fields(schema: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    fields = schema.get("fields")
    if not isinstance(fields, list):
        return {}
    return {str(f["field"]): f for f in fields if isinstance(f, dict) and "field" in f}


def hint_for(kind: iceberg.IcebergType, declared: Mapping[str, Any]) -> Hint:
    """How values of a declared Connect type come to a column of type `kind`.

    A hint without encoding says nothing; one with a `contradiction` says that the values are
    something else, so that reading them as `kind` would change their meaning.
    """
    name, wire = declared.get("name"), str(declared.get("type"))
    match kind:
        case iceberg.ListType() if wire == "array" and isinstance(declared.get("items"), dict):
            return Hint(parts={ELEMENT: hint_for(kind.element_type, declared["items"])})
        case iceberg.StructType() if wire == "struct":
            inner = _fields(declared)
            absent = Hint(is_absent=True)
            parts = {
                f.name: hint_for(f.field_type, inner[f.name]) if f.name in inner else absent
                for f in kind.fields
            }
            return Hint(parts=parts)
    encoding, kinds = SEMANTICS.get(str(name), (None, ()))
    if isinstance(kind, iceberg.LongType) and source_type(declared).startswith(UNSIGNED_LONG):
        return Hint(is_unsigned=True)
    if encoding is None:
        return _plain_hint(kind, wire, None if name is None else str(name))
    if not isinstance(kind, kinds):
        is_text = isinstance(kind, iceberg.StringType) and wire != "bytes"
        return Hint(contradiction=str(name)) if encodings_of(kind) and not is_text else Hint()
    if encoding is not Encoding.PRECISE:
        return Hint(encoding=encoding)
    parameters = declared.get("parameters")
    scale = parameters.get("scale") if isinstance(parameters, dict) else None
    if _NEGATIVE_SCALE.fullmatch(str(scale)):
        return Hint(contradiction=f"{name} of a negative scale")
    if not _SCALE.fullmatch(str(scale)):
        return Hint()
    return Hint(encoding=Encoding.PRECISE, scale=int(str(scale)))


def _plain_hint(kind: iceberg.IcebergType, wire: str, name: str | None) -> Hint:
    if wire == "bytes":
        if isinstance(kind, BINARIES):
            return Hint(encoding=Encoding.BASE64)
        return Hint(contradiction=name or "bytes") if encodings_of(kind) else Hint()
    is_named = name is not None or isinstance(kind, iceberg.DateType)  # which needs no unit
    if isinstance(kind, TEMPORALS) and is_named and wire in INTEGERS:
        return Hint(contradiction=name or wire)
    if isinstance(kind, iceberg.DecimalType) and (name or "").startswith(TIMES):  # of durations
        return Hint(contradiction=name)
    if isinstance(kind, iceberg.DecimalType):
        # Decimals of decimal.handling.mode=string and double have no semantic type.
        plain = {"string": Encoding.TEXT, **dict.fromkeys(FRACTIONS, Encoding.DOUBLE)}
        encoding = (plain | dict.fromkeys((*INTEGERS, NUMBER), Encoding.TEXT)).get(wire)
        is_exact = encoding is Encoding.DOUBLE
        return Hint(encoding=encoding, is_exact=is_exact, is_single=wire in SINGLES)
    if isinstance(kind, FLOATS) and wire == "string":
        return Hint(encoding=Encoding.TEXT)
    if isinstance(kind, FLOATS) and wire in INTEGERS:
        return Hint(is_integer=True)
    if isinstance(kind, iceberg.FloatType) and wire in DOUBLES:
        return Hint(encoding=Encoding.DOUBLE)
    return Hint()


def declared_default(kind: iceberg.IcebergType, declared: Mapping[str, Any]) -> Any | None:
    """The default that a Connect schema declares for a field, as a value of a column's type.

    None also where nothing can be said for sure: a field that has an expression for its default
    (now(), nextval) is declared with Debezium's zero (0, '', 1970-01-01).
    """
    if "default" not in declared or not isinstance(kind, iceberg.PrimitiveType):
        return None
    column = iceberg.NestedField(1, "default", kind, required=False)
    try:
        decoder = column_decoder(column, hint_for(kind, declared), EncodingDefaults())
        text = json.dumps({"default": declared["default"]})
        layout = JsonLayout(
            schema=pa.schema([("default", decoder.wires[0])]),
            alternatives={("default",): decoder.wires},
        )
        pieces = parse_json_objects(pa.array([text]), layout).pieces
        if not pieces:
            return None
        values, wrong = decode_rows(pieces[0][1].column("default").combine_chunks(), decoder)
        value = values[0].as_py()
        if wrong or value is None:
            return None
        if _is_zero(value, optional=declared.get("optional") is True):
            return None
        return exact_default(value, kind, "default")
    except (ValueError, TypeError, OverflowError, InvalidInputError):
        return None


def columns_with_replaced_nulls(fields: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Columns that may be null and have a default, as a row's Connect schema declares them.

    Connect's converters write their nulls as the default unless they are told not to, and events
    say nothing of it (source: KIP-581; Confluent's `ignore.default.for.nullables`).
    """
    return [
        name
        for name, each in fields.items()
        if each.get("optional") is True and each.get("default") is not None
    ]


def _is_zero(value: Any, *, optional: bool) -> bool:
    """What Debezium declares in place of an expression.

    Numbers and texts of a column that may be null are believed: there they are mostly meant.
    """
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=dt.UTC) == dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    if isinstance(value, uuid.UUID):
        return value.int == 0
    if value in (dt.date(1970, 1, 1), dt.time()):
        return True
    return not optional and (not value or value in ("{}", "[]"))
