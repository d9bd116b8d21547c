"""Messages of a schema registry to JSON payloads with Connect's schema beside: a `Decoder`.

In Confluent's wire format a message is a zero byte, the id of its schema as four bytes (big
endian), and its payload. What comes out is what Kafka Connect's JsonConverter would have sent, so
everything behind it (types, evolution, placeholders, tables that make themselves) is the same.

Messages are taken by schema. JSON Schema's payloads are sliced out as columns; Avro's are decoded
one by one, as its encoding asks for, in C.
"""

from __future__ import annotations

import base64
import io
import json
import logging
import math
import struct
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tableformat.array_types import Int64s
from tableformat.cdc.events import KEY, VALUE, DecodedMessages, EventBatch, PayloadSchemas
from tableformat.cdc.registry.client import RegisteredSchema, RegistrySettings, SchemaRegistry
from tableformat.errors import StoreUnavailableError, UnsupportedError
from tableformat.runtime import SystemClock

MAGIC = b"\0"
HEADER_BYTES = 5
NO_MAGIC = (
    "the message is not of a schema registry: it does not begin with a zero byte and the id of a "
    "schema"
)
RETRY_MS = 1_000
WAIT_MS = 600_000  # then a task gives up, and the stream ends with the reason
_EIGHT_BYTES = "; are its ids of 8 bytes? Apicurio's converters write 4 with as-confluent=true"
# Whatever a damaged message can make of the reader.
_DAMAGES = (
    EOFError, ValueError, IndexError, KeyError, TypeError, OverflowError, StopIteration,
    MemoryError, RecursionError, struct.error,
)  # fmt: skip
logger = logging.getLogger("icefold.ingest")
_OPENED: dict[tuple[str, tuple[tuple[str, str], ...]], SchemaRegistry] = {}


@dataclass(frozen=True, slots=True)
class RegistryDecoder:
    """See the module's text. Pickles: each process asks the registry for itself, once.

    `wait_ms`: how long `decode` waits for a registry that does not answer.
    """

    settings: RegistrySettings
    wait_ms: float = 0.0

    @property
    def registry(self) -> SchemaRegistry:
        """The registry; the same for all decoders of a process with the same settings."""
        key = (self.settings.url, tuple(sorted(self.settings.options.items())))
        found = _OPENED.get(key)
        if found is None:
            found = _OPENED.setdefault(key, SchemaRegistry(self.settings))
        return found

    def waiting(self, *, follow: bool) -> RegistryDecoder:
        """One for Spark's tasks: they wait for a registry where the stream is followed."""
        return replace(self, wait_ms=WAIT_MS if follow else 0.0)

    def learn(self, messages: Iterable[pa.Table]) -> None:
        """See `Decoder`."""
        numbers: set[int] = set()
        for table in messages:
            for name in {VALUE, KEY} & set(table.column_names):
                for chunk in table.column(name).chunks:
                    _, ids = _schema_ids(chunk.cast(pa.binary()))
                    numbers.update(np.unique(ids).tolist())
        for number in sorted(self.registry.missing(numbers)):
            if number > 0:
                with suppress(UnsupportedError):  # told where it is decoded, of its table
                    self.registry.schema(number)

    def _schema(self, number: int) -> RegisteredSchema | str:
        if number <= 0:
            return f"the message names the schema {number}, which no registry has{_EIGHT_BYTES}"
        clock = SystemClock()
        began_ms = clock.monotonic_ms()
        while True:
            try:
                return self.registry.schema(number)
            except StoreUnavailableError as error:
                if clock.monotonic_ms() - began_ms >= self.wait_ms:
                    raise
                logger.warning("%s", error)
                clock.sleep_ms(RETRY_MS)

    def decode(self, events: EventBatch) -> EventBatch:
        """See `Decoder`. A key that is not of the registry is taken as it is."""
        texts: dict[str, pa.Array] = {}
        schemas: dict[str, PayloadSchemas] = {}
        bad: dict[int, str] = {}
        for name in (VALUE, KEY):
            column = events.required(VALUE) if name == VALUE else events.optional(KEY)
            if column is None:
                continue
            of_column: dict[int, str] = {}
            texts[name], schemas[name] = self._column(column.cast(pa.binary()), of_column)
            if name == VALUE:
                bad = of_column
            else:
                for row, reason in of_column.items():
                    if reason != NO_MAGIC:
                        bad.setdefault(row, f"message key: {reason}")
                texts[name] = _or_as_it_was(texts[name], column, of_column)
        return replace(events, decoded=DecodedMessages(texts=texts, schemas=schemas, bad=bad))

    def _column(
        self, values: pa.BinaryArray, bad: dict[int, str]
    ) -> tuple[pa.Array, PayloadSchemas]:
        """Payloads as JSON, null for those that are `bad`."""
        rows, ids = _schema_ids(values)
        numbers = np.full(len(values), -1, np.int64)
        declared: list[Mapping[str, Any]] = []
        pieces = [pa.nulls(len(values), pa.binary())]
        places = np.arange(len(values), dtype=np.int64)
        end = len(values)
        unframed = np.ones(len(values), np.bool_)
        unframed[rows] = False
        unframed &= values.is_valid().to_numpy(zero_copy_only=False)
        bad.update(dict.fromkeys(np.flatnonzero(unframed).tolist(), NO_MAGIC))
        found, first = np.unique(ids, return_index=True)
        for number in found[np.argsort(first)].tolist():  # as they come: a change is seen as one
            of_schema = rows[ids == number]
            schema = self._schema(number)
            if isinstance(schema, str):
                bad.update(dict.fromkeys(of_schema.tolist(), schema))
                continue
            payloads = values.take(pa.array(of_schema))
            pieces.append(_payloads(payloads, schema, number, of_schema, bad))
            places[of_schema] = end + np.arange(len(of_schema))
            end += len(of_schema)
            numbers[of_schema] = len(declared)
            declared.append(schema.connect)
        texts = pa.concat_arrays(pieces).take(pa.array(places))
        return texts, PayloadSchemas(numbers, declared)


def _schema_ids(values: pa.BinaryArray) -> tuple[Int64s, npt.NDArray[np.int64]]:
    """The messages in the wire format, and the ids of their schemas, both of shape (m,)."""
    heads = pc.binary_slice(values, 0, HEADER_BYTES)
    is_framed = pc.and_(
        pc.equal(pc.binary_length(heads), HEADER_BYTES), pc.starts_with(heads, pattern=MAGIC)
    )
    rows = np.flatnonzero(pc.fill_null(is_framed, False).to_numpy(zero_copy_only=False))
    framed = heads.take(pa.array(rows)).cast(pa.binary(HEADER_BYTES))
    data = framed.buffers()[1]
    if not len(rows) or data is None:
        return rows, np.empty(0, np.int64)
    start = framed.offset * HEADER_BYTES
    raw = np.frombuffer(data, np.uint8)[start : start + len(rows) * HEADER_BYTES]
    bytes_of_ids = np.ascontiguousarray(raw.reshape(-1, HEADER_BYTES)[:, 1:])
    return rows, bytes_of_ids.view(">i4").ravel().astype(np.int64)


def _payloads(
    messages: pa.BinaryArray,
    schema: RegisteredSchema,
    number: int,
    rows: Int64s,
    bad: dict[int, str],
) -> pa.BinaryArray:
    """Messages of one schema as JSON; those that are damaged are null and `bad`."""
    if schema.read is None:
        # Not `binary_slice`, which fails on some arrays without a stop.
        return pc.binary_replace_slice(messages, 0, HEADER_BYTES, b"")
    found: list[bytes | None] = []
    for row, message in zip(rows.tolist(), messages.to_pylist(), strict=True):
        source = io.BytesIO(message)
        source.seek(HEADER_BYTES)
        try:
            text = _json(schema.read(source))
            left = len(message) - source.tell()
            reason = f"{left} bytes are left over" if left else None
        except _DAMAGES as error:
            reason = str(error) or type(error).__name__
        if reason is not None:
            bad[row] = f"the message is not what schema {number} says: {reason}"
        found.append(None if reason else text)
    return pa.array(found, pa.binary())


def _or_as_it_was(texts: pa.Array, column: pa.Array, bad: Mapping[int, str]) -> pa.Array:
    """Keys that are not of the registry: plain JSON, or what formats leave alone."""
    plain = np.zeros(len(texts), np.bool_)
    plain[[row for row, reason in bad.items() if reason == NO_MAGIC]] = True
    return pc.if_else(pa.array(plain), column.cast(pa.binary()), texts) if plain.any() else texts


def _base64(value: Any) -> str:
    """What JSON has no form for: Connect sends bytes as base64."""
    if not isinstance(value, bytes):
        raise TypeError(f"cannot read {type(value).__name__}")
    return base64.b64encode(value).decode()


_encode = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=_base64
).encode


def _json(value: Any) -> bytes:
    try:
        return _encode(value).encode()
    except ValueError:  # not finite
        return _encode(_with_texts(value)).encode()


def _with_texts(value: Any) -> Any:
    """The same with texts for numbers that JSON does not have, as Connect writes them."""
    if isinstance(value, dict):
        return {name: _with_texts(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_texts(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
