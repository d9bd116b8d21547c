"""Avro schemas, as Kafka Connect's Avro converters write them, as Connect's own.

A converter keeps what Avro cannot say in attributes: `connect.name` (Debezium's semantic type),
`connect.parameters`, `connect.default`, `connect.type` (int8, int16). Avro's own logical types are
taken for the Connect types of the same meaning, on the types that they belong to. What Connect has
nothing for (a union of several types) becomes a type that no column can be made of. Pure.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Connect = dict[str, Any]

_PLAIN = {
    "boolean": "boolean", "int": "int32", "long": "int64", "float": "float", "double": "double",
    "string": "string", "bytes": "bytes", "fixed": "bytes", "enum": "string", "map": "map",
}  # fmt: skip
_LOGICAL = {
    ("bytes", "decimal"): "org.apache.kafka.connect.data.Decimal",
    ("fixed", "decimal"): "org.apache.kafka.connect.data.Decimal",
    ("int", "date"): "org.apache.kafka.connect.data.Date",
    ("int", "time-millis"): "org.apache.kafka.connect.data.Time",
    ("long", "time-micros"): "io.debezium.time.MicroTime",
    ("long", "local-timestamp-millis"): "io.debezium.time.Timestamp",
    ("long", "local-timestamp-micros"): "io.debezium.time.MicroTimestamp",
    ("long", "local-timestamp-nanos"): "io.debezium.time.NanoTimestamp",
    ("long", "timestamp-millis"): "org.apache.kafka.connect.data.Timestamp",
    ("long", "timestamp-micros"): "io.debezium.time.MicroTimestamp",
    ("long", "timestamp-nanos"): "io.debezium.time.NanoTimestamp",
    ("string", "uuid"): "io.debezium.data.Uuid",
}
DIGITS = "connect.decimal.precision"
# What Connect's converters write of a decimal whose digits they do not know: `money`.
UNKNOWN_DIGITS = 64
_NULL = "null"


def connect_schema(schemas: Sequence[Any]) -> Connect:
    """The Connect schema of the last of some Avro schemas, which may name the others.

    Names are whole in them (`fastavro.parse_schema`).
    """
    reading = _Reading()
    return [reading.of(each) for each in schemas][-1]


def without_logical_types(avro: Any) -> Any:
    """The same schema, whose values are read as they are written: days, bytes, microseconds."""
    if isinstance(avro, list):
        return [without_logical_types(each) for each in avro]
    if not isinstance(avro, dict):
        return avro
    kept = {name: each for name, each in avro.items() if name != "logicalType"}
    for name in ("type", "items", "values"):
        if name in kept:
            kept[name] = without_logical_types(kept[name])
    if isinstance(kept.get("fields"), list):
        kept["fields"] = [without_logical_types(each) for each in kept["fields"]]
    return kept


def without_invalid_decimals(avro: Any) -> Any:
    """The same schema, where decimals that Avro does not have are the bytes that they are.

    PostgreSQL has them, as `numeric(3,5)`. Source: Avro's specification, "Logical Types": one that
    is invalid is ignored.
    """
    if isinstance(avro, list):
        return [without_invalid_decimals(each) for each in avro]
    if not isinstance(avro, dict):
        return avro
    kept = {name: without_invalid_decimals(each) for name, each in avro.items()}
    if avro.get("logicalType") == "decimal" and not _is_valid(avro):
        del kept["logicalType"]
    return kept


def _is_valid(decimal: Mapping[str, Any]) -> bool:
    digits, scale = decimal.get("precision"), decimal.get("scale", 0)
    return isinstance(digits, int) and isinstance(scale, int) and 0 <= scale <= digits > 0


@dataclass(slots=True)
class _Reading:
    """One schema; `named`: what its names mean, None while one is being read."""

    named: dict[str, Connect | None] = field(default_factory=dict)

    def of(self, avro: Any) -> Connect:
        if isinstance(avro, list):
            return self._union(avro)
        if isinstance(avro, str):
            if avro in _PLAIN:
                return {"type": _PLAIN[avro], "optional": False}
            known = self.named.get(avro)
            return dict(known) if known is not None else {"type": avro, "optional": False}
        kind = avro["type"]
        if isinstance(kind, (dict, list)):  # {"type": {"type": "string"}}
            return self.of(kind)
        found = self._typed(avro, kind)
        if kind in ("record", "enum", "fixed"):
            self.named[str(avro["name"])] = found
        return dict(found)

    def _typed(self, avro: Mapping[str, Any], kind: str) -> Connect:
        if kind == "record":
            self.named[str(avro["name"])] = None
            fields = [self._field(each) for each in avro["fields"]]
            found: Connect = {"type": "struct", "optional": False, "fields": fields}
        elif kind == "array":
            found = {"type": "array", "optional": False, "items": self.of(avro["items"])}
        elif kind in _PLAIN:
            found = {"type": avro.get("connect.type") or _PLAIN[kind], "optional": False}
        else:
            return self.of(kind)
        name = avro.get("connect.name") or _LOGICAL.get((kind, str(avro.get("logicalType"))))
        if name is not None:
            found["name"] = name
        parameters = dict(avro.get("connect.parameters") or {})
        if avro.get("logicalType") == "decimal":
            parameters.setdefault("scale", str(avro.get("scale", 0)))
            if avro.get("precision", UNKNOWN_DIGITS) != UNKNOWN_DIGITS:
                parameters.setdefault(DIGITS, str(avro["precision"]))
        if parameters:
            found["parameters"] = parameters
        doc = avro.get("connect.doc") or avro.get("doc")
        if isinstance(doc, str):
            found["doc"] = doc
        if "connect.default" in avro:
            found["default"] = _default(avro["connect.default"], found)
        return found

    def _field(self, avro: Mapping[str, Any]) -> Connect:
        found = self.of(avro["type"])
        doc = avro.get("doc")
        if isinstance(doc, str):
            found["doc"] = doc
        given = avro.get("default")
        if given is not None and "default" not in found:
            found["default"] = _default(given, found)
        return found | {"field": avro["name"]}

    def _union(self, branches: list[Any]) -> Connect:
        values = [each for each in branches if each != _NULL]
        is_optional = len(values) < len(branches)
        found = self.of(values[0]) if len(values) == 1 else {"type": "union"}
        return found | {"optional": is_optional}


def _default(value: Any, found: Connect) -> Any:
    """A default as JSON has it: Avro writes bytes as text of their code points."""
    if found["type"] == "bytes" and isinstance(value, str):
        try:
            return base64.b64encode(value.encode("latin-1")).decode()
        except UnicodeEncodeError:
            return None
    return value
