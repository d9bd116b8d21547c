"""Avro records, decoded by the writer's schema and projected by Iceberg field id.

A decoder is compiled once per file from the writer's schema, which always decides the layout; the
wanted fields are picked by field id, others are read and dropped.

PyIceberg's compiled decoder is not used, because it trusts the counts in the data: a wrong one
makes it read past its buffer, and the process dies. The decoders in `values` do not.

Source: Apache Avro specification 1.11, "Schema Declaration"; Iceberg spec, appendix A "Avro".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any
from uuid import UUID

from tableformat.codec.avro.values import (
    Decoder,
    MalformedAvroError,
    fixed_decoder,
    list_decoder,
    map_decoder,
    pairs_decoder,
    read_boolean,
    read_bytes,
    read_double,
    read_float,
    read_int,
    read_int_bytes_map,
    read_int_int_map,
    read_long,
    read_null,
    read_str,
    tuple_decoder,
    union_decoder,
)
from tableformat.limits import AVRO_SCHEMA_DEPTH_MAX, AVRO_SCHEMA_VALUES_MAX


@dataclass(frozen=True, slots=True)
class AvroType:
    """A compiled Avro type.

    `kind` is what the value is in Python: `bool`, `int` (32 bits), `long`, `float`, `bytes`, `str`,
    `uuid`, `decimal`, `list<...>`, `map<...>`, `record` or `null`. `size_bytes_min` is what a value
    occupies at least; `value_count` how many values it consists of, items of lists counted once.
    """

    kind: str
    decode: Decoder
    nullable: bool = False
    size_bytes_min: int = 1
    value_count: int = 1
    fields: tuple[AvroField, ...] = field(default=(), repr=False)


@dataclass(frozen=True, slots=True)
class AvroField:
    """One field of a record in the writer's schema. `field_id` is None where there is none."""

    name: str
    field_id: int | None
    type: AvroType


@dataclass(frozen=True, slots=True)
class WantedField:
    """A field to pick from a record. No `kinds`: any kind. `required`: there, and not null."""

    name: str
    kinds: tuple[str, ...] = ()
    required: bool = False


# Fields to pick, by field id and in the order of the result.
Projection = Mapping[int, WantedField]
ROOT = -1


def _project(record_fields: Sequence[AvroField], wanted: Projection) -> Decoder:
    """A decoder that gives the wanted fields as a list, None for those that are not in the file."""
    slots = {field_id: slot for slot, field_id in enumerate(wanted)}
    steps: list[tuple[int, Decoder]] = []
    for each in record_fields:
        target = None if each.field_id is None else wanted.get(each.field_id)
        if target is None or each.field_id is None:
            steps.append((-1, each.type.decode))
            continue
        if target.kinds and each.type.kind not in target.kinds:
            raise MalformedAvroError(f"{target.name} is a {each.type.kind} in the schema")
        decode_field = each.type.decode
        if target.required and each.type.nullable:
            decode_field = _not_null(target.name, decode_field)
        steps.append((slots[each.field_id], decode_field))
    present = {slot for slot, _ in steps}
    for field_id, target in wanted.items():
        if target.required and slots[field_id] not in present:
            raise MalformedAvroError(f"{target.name} is not in the schema")
    plan = tuple(steps)
    size = len(wanted)

    def decode(buffer: bytes, position: int) -> tuple[list[Any], int]:
        values: list[Any] = [None] * size
        for slot, decode_field in plan:
            value, position = decode_field(buffer, position)
            if slot >= 0:
                values[slot] = value
        return values, position

    return decode


def _not_null(name: str, decode_field: Decoder) -> Decoder:
    def decode(buffer: bytes, position: int) -> tuple[Any, int]:
        value, position = decode_field(buffer, position)
        if value is None:
            raise MalformedAvroError(f"{name} is null")
        return value, position

    return decode


def compile_record(schema: Any, projections: Mapping[int, Projection]) -> AvroType:
    """Compile the writer's schema of a file, a record, into a decoder of the wanted fields.

    Args:
        schema: The Avro schema as JSON values.
        projections: What to pick, by the id of the field or list element that the record is the
            type of (`ROOT` for the outermost). Its value is then a list; records without a
            projection become tuples of all their fields.

    Raises:
        MalformedAvroError: It is no valid Avro schema, is nested too deeply, refers to itself, or
            has arrays of items without bytes (their count could not be bounded); or a wanted field
            has the wrong kind, or is required and not there.
    """
    picked = tuple((owner, _Same(each)) for owner, each in projections.items())
    return _compiled(_Same(schema), picked)


class _Same:
    """A value as a key of a cache, by its identity."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


@lru_cache(maxsize=64)  # the files of a table have few schemas, and compiling is a fifth of reading
def _compiled(schema: _Same, projections: tuple[tuple[int, _Same], ...]) -> AvroType:
    picked = {owner: each.value for owner, each in projections}
    compiled = _Compiler(picked).compile(schema.value, 0, ROOT)
    if compiled.kind != "record" or compiled.nullable:
        raise MalformedAvroError("the schema is not a record")
    return compiled


class _Compiler:
    """Compiles one schema; keeps named types, which may be referred to after their definition."""

    def __init__(self, projections: Mapping[int, Projection]) -> None:
        self._named: dict[str, AvroType] = {}
        self._projections = projections

    def compile(self, schema: Any, depth: int, owner: int | None) -> AvroType:
        """Compile the type of field or element `owner`."""
        if depth > AVRO_SCHEMA_DEPTH_MAX:
            raise MalformedAvroError("the schema is nested too deeply")
        if isinstance(schema, str):
            known = _PRIMITIVES.get(schema) or self._named.get(schema)
            if known is None:
                raise MalformedAvroError(f"unknown type {schema[:80]!r} in the schema")
            return known
        if isinstance(schema, list):
            return self._union(schema, depth, owner)
        if not isinstance(schema, dict):
            raise MalformedAvroError("the schema is not an Avro schema")
        kind = schema.get("type")
        if isinstance(kind, dict | list):
            return self.compile(kind, depth + 1, owner)
        if kind == "record":
            return self._record(schema, depth, owner)
        if kind == "array":
            return self._array(schema, depth)
        if kind == "map":
            values = self.compile(schema.get("values"), depth + 1, None)
            return AvroType(f"map<str,{values.kind}>", map_decoder(read_str, values.decode))
        if kind == "fixed":
            return self._fixed(schema)
        return _logical(schema, self.compile(kind, depth + 1, None))

    def _union(self, branches: list[Any], depth: int, owner: int | None) -> AvroType:
        compiled = [self.compile(branch, depth + 1, owner) for branch in branches]
        values = [each for each in compiled if each.kind != "null"]
        if not compiled or len(values) > 1:
            raise MalformedAvroError("unions other than of null and one type are not Iceberg's")
        value = values[0] if values else compiled[0]
        return AvroType(
            value.kind,
            union_decoder(tuple(each.decode for each in compiled)),
            nullable=len(values) < len(compiled),
            value_count=value.value_count,
            fields=value.fields,
        )

    def _record(self, schema: dict[str, Any], depth: int, owner: int | None) -> AvroType:
        definitions = schema.get("fields")
        if not isinstance(definitions, list):
            raise MalformedAvroError("a record without fields in the schema")
        fields = []
        for definition in definitions:
            if not isinstance(definition, dict) or not isinstance(definition.get("name"), str):
                raise MalformedAvroError("a record field without a name in the schema")
            field_id = definition.get("field-id")
            if field_id is not None and not isinstance(field_id, int):
                raise MalformedAvroError("a field id is not a number")
            compiled = self.compile(definition.get("type"), depth + 1, field_id)
            fields.append(AvroField(definition["name"], field_id, compiled))
        ids = [each.field_id for each in fields if each.field_id is not None]
        if len(set(ids)) < len(ids):
            raise MalformedAvroError("a record has the same field id twice")
        value_count = 1 + sum(each.type.value_count for each in fields)
        if value_count > AVRO_SCHEMA_VALUES_MAX:
            raise MalformedAvroError("the schema has too many values per record")
        wanted = None if owner is None else self._projections.get(owner)
        decoders = tuple(each.type.decode for each in fields)
        result = AvroType(
            "record",
            tuple_decoder(decoders) if wanted is None else _project(fields, wanted),
            size_bytes_min=sum(each.type.size_bytes_min for each in fields),
            value_count=value_count,
            fields=tuple(fields),
        )
        return self._name(schema, result)

    def _array(self, schema: dict[str, Any], depth: int) -> AvroType:
        items = self.compile(schema.get("items"), depth + 1, schema.get("element-id"))
        if items.size_bytes_min == 0:
            raise MalformedAvroError("an array of items without bytes in the schema")
        if schema.get("logicalType") == "map":  # Iceberg: maps whose keys are not strings
            key, value = _key_value(items)
            kind = f"map<{key.type.kind},{value.type.kind}>"
            plain = not (key.type.nullable or value.type.nullable)
            integral = {"int", "long"}
            if plain and key.type.kind in integral and items.fields[0] is key:
                if value.type.kind in integral:
                    return AvroType(kind, read_int_int_map)
                if value.type.kind == "bytes":
                    return AvroType(kind, read_int_bytes_map)
            first = items.fields.index(key)
            return AvroType(kind, pairs_decoder(items.decode, first))
        return AvroType(f"list<{items.kind}>", list_decoder(items.decode))

    def _fixed(self, schema: dict[str, Any]) -> AvroType:
        size = schema.get("size")
        if not isinstance(size, int) or size < 0:
            raise MalformedAvroError("a fixed type without a size in the schema")
        plain = AvroType("bytes", fixed_decoder(size), size_bytes_min=size)
        return self._name(schema, _logical(schema, plain))

    def _name(self, schema: dict[str, Any], compiled: AvroType) -> AvroType:
        name = schema.get("name")
        if isinstance(name, str):
            self._named[name] = compiled
        return compiled


def _logical(schema: dict[str, Any], plain: AvroType) -> AvroType:
    """Apply the logical types whose Python value differs; Avro says to ignore unknown ones."""
    logical = schema.get("logicalType")
    if logical == "decimal" and plain.kind == "bytes":
        scale = schema.get("scale", 0)
        if not isinstance(scale, int):
            raise MalformedAvroError("a decimal scale is not a number")
        return _converted("decimal", plain, lambda raw: _decimal(raw, scale))
    if logical == "uuid" and plain.kind == "bytes":
        return _converted("uuid", plain, lambda raw: UUID(bytes=raw))
    if logical == "uuid" and plain.kind == "str":
        return _converted("uuid", plain, UUID)
    return plain


def _converted(kind: str, plain: AvroType, convert: Callable[[Any], Any]) -> AvroType:
    decode_plain = plain.decode

    def decode(buffer: bytes, position: int) -> tuple[Any, int]:
        raw, position = decode_plain(buffer, position)
        return convert(raw), position

    return AvroType(kind, decode, size_bytes_min=plain.size_bytes_min)


def _decimal(raw: bytes, scale: int) -> Decimal:
    if len(raw) > 16:  # Iceberg's largest precision, 38 digits
        raise MalformedAvroError("a decimal is longer than 16 bytes")
    unscaled = int.from_bytes(raw, "big", signed=True)
    # By its parts: arithmetic on Decimals rounds to the 28 digits of the default context.
    digits = tuple(map(int, str(abs(unscaled))))
    return Decimal((int(unscaled < 0), digits, -scale))


def _key_value(items: AvroType) -> tuple[AvroField, AvroField]:
    by_name = {each.name: each for each in items.fields}
    if items.kind != "record" or set(by_name) != {"key", "value"}:
        raise MalformedAvroError("a map without key and value in the schema")
    return by_name["key"], by_name["value"]


_PRIMITIVES: Mapping[str, AvroType] = {
    "null": AvroType("null", read_null, nullable=True, size_bytes_min=0),
    "boolean": AvroType("bool", read_boolean),
    "int": AvroType("int", read_int),
    "long": AvroType("long", read_long),
    "float": AvroType("float", read_float, size_bytes_min=4),
    "double": AvroType("float", read_double, size_bytes_min=8),
    "bytes": AvroType("bytes", read_bytes),
    "string": AvroType("str", read_str),
}
