"""Kafka Connect's `{"schema": ..., "payload": ...}` envelope (JsonConverter with schemas.enable).

The schema is repeated in every event and is most of its text, but its text is the same as long as
the table does not change. So events are grouped by the literal text before the payload, the schema
is parsed once per group, and only payloads are read as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tableformat.cdc.encodings import Encoding, Hint

RowNumbers = npt.NDArray[np.int64]

SCHEMA_START = re.compile(r'\s*\{\s*"schema"\s*:\s*')
_SCALE = re.compile(r"-?[0-9]{1,3}")  # decimals have 38 digits
PAYLOAD_START = re.compile(r'\s*,\s*"payload"\s*:\s*')

# Connect's and Debezium's semantic types (the schema's `name`) that say how a value is encoded.
SEMANTIC_ENCODINGS = {
    "io.debezium.time.Date": Encoding.DAYS,
    "io.debezium.time.IsoDate": Encoding.ISO,
    "io.debezium.time.Time": Encoding.MILLIS,
    "io.debezium.time.MicroTime": Encoding.MICROS,
    "io.debezium.time.NanoTime": Encoding.NANOS,
    "io.debezium.time.IsoTime": Encoding.ISO,
    "io.debezium.time.ZonedTime": Encoding.ISO,
    "io.debezium.time.Timestamp": Encoding.MILLIS,
    "io.debezium.time.MicroTimestamp": Encoding.MICROS,
    "io.debezium.time.NanoTimestamp": Encoding.NANOS,
    "io.debezium.time.IsoTimestamp": Encoding.ISO,
    "io.debezium.time.ZonedTimestamp": Encoding.ISO,
    "io.debezium.data.VariableScaleDecimal": Encoding.VARIABLE,
    "org.apache.kafka.connect.data.Date": Encoding.DAYS,
    "org.apache.kafka.connect.data.Time": Encoding.MILLIS,
    "org.apache.kafka.connect.data.Timestamp": Encoding.MILLIS,
    "org.apache.kafka.connect.data.Decimal": Encoding.PRECISE,
}


@dataclass(frozen=True, slots=True)
class PayloadGroup:
    """Events with one schema text. `schema` is None for events without an envelope."""

    schema: Mapping[str, Any] | None
    rows: RowNumbers
    payloads: pa.StringArray

    def filter(self, mask: npt.NDArray[np.bool_]) -> PayloadGroup:
        """The events where `mask` is set."""
        return PayloadGroup(self.schema, self.rows[mask], self.payloads.filter(pa.array(mask)))


def split_payloads(texts: pa.StringArray, bad: dict[int, str]) -> Iterator[PayloadGroup]:
    """Group events by their schema.

    Args:
        texts: Events, shape (n,); null rows belong to no group.
        bad: Receives the rows whose envelope cannot be read.
    """
    remaining = np.flatnonzero(texts.is_valid().to_numpy(zero_copy_only=False))
    while len(remaining):
        left = texts.take(pa.array(remaining))
        first = left[0].as_py()
        if SCHEMA_START.match(first) is None:
            enveloped = pc.match_substring_regex(left, rf"^{SCHEMA_START.pattern}")
            taken = ~enveloped.to_numpy(zero_copy_only=False)
            yield PayloadGroup(None, remaining[taken], left.filter(pa.array(taken)))
        else:
            schema, prefix, reason = _read_prefix(first)
            if reason is not None:
                bad[int(remaining[0])] = reason
                remaining = remaining[1:]
                continue
            same = pc.and_(pc.starts_with(left, prefix), pc.match_substring_regex(left, r"\}\s*$"))
            taken = same.to_numpy(zero_copy_only=False)
            if not taken[0]:
                bad[int(remaining[0])] = "not a JSON object"
                remaining = remaining[1:]
                continue
            yield PayloadGroup(schema, remaining[taken], _payloads(left.filter(same), prefix))
        remaining = remaining[~taken]


def _read_prefix(text: str) -> tuple[Mapping[str, Any] | None, str, str | None]:
    """The schema, everything before the payload, and what is wrong with it."""
    start = SCHEMA_START.match(text)
    assert start is not None
    try:
        schema, end = json.JSONDecoder().raw_decode(text, start.end())
    except (ValueError, RecursionError) as error:
        return None, "", f"the envelope's schema is not JSON: {error}"
    payload = PAYLOAD_START.match(text, end)
    if payload is None:
        return None, "", "the envelope's schema is not followed by its payload"
    if schema is not None and not isinstance(schema, dict):
        return None, "", "the envelope's schema is not an object"
    return schema, text[: payload.end()], None


def _payloads(texts: pa.StringArray, prefix: str) -> pa.StringArray:
    """What stands between the prefix and the last `}`."""
    trimmed = pc.utf8_rtrim_whitespace(texts).cast(pa.binary())
    return pc.binary_slice(trimmed, len(prefix.encode()), -1).cast(pa.string())


def row_hints(schema: Mapping[str, Any] | None, *path: str) -> dict[str, Hint]:
    """Encodings of a row's columns as its Connect schema declares them.

    Args:
        schema: The schema of the whole payload; None gives no hints.
        path: Where the row is in it: `("after",)`, or nothing when the payload is the row.
    """
    hints: dict[str, Hint] = {}
    for name, column in row_fields(schema, *path).items():
        hint = _hint(column)
        if hint is not None:
            hints[name] = hint
    return hints


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


def _hint(column: Mapping[str, Any]) -> Hint | None:
    name, kind = column.get("name"), column.get("type")
    if name is None:
        # Decimals of decimal.handling.mode=string and double have no semantic type.
        plain = {"string": Encoding.TEXT, "double": Encoding.DOUBLE}.get(str(kind))
        return None if plain is None else Hint(plain)
    encoding = SEMANTIC_ENCODINGS.get(str(name))
    if encoding is not Encoding.PRECISE:
        return None if encoding is None else Hint(encoding)
    parameters = column.get("parameters")
    scale = parameters.get("scale") if isinstance(parameters, dict) else None
    return Hint(Encoding.PRECISE, int(str(scale))) if _SCALE.fullmatch(str(scale)) else None
