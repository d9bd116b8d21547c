"""Which columns make the key, and what their canonical bytes mean.

The order of the fields is their field-id order, whatever order a caller, a delete file or a set
iteration gives (R27). The fingerprint names everything the bytes depend on; two sets of key bytes
may be compared, and an index may be used, only under equal fingerprints. Promotions that keep the
bytes keep the fingerprint: int -> long, and decimal precision. date -> timestamp moves the value
to another domain (days to microseconds), so it changes the fingerprint and the index is rebuilt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from tableformat.errors import InvalidInputError, UnsupportedError

# On disk: never change. A change of any byte an encoder emits needs a new version.
ENCODING_VERSION = 1

INTEGER_WIDTH_BYTES = 8
DECIMAL_WIDTH_BYTES = 16

_INTEGER_LIKE: dict[type[IcebergType], str] = {
    BooleanType: "boolean",
    IntegerType: "long",
    LongType: "long",
    DateType: "date",
    TimeType: "time",
    TimestampType: "timestamp",
    TimestamptzType: "timestamptz",
    TimestampNanoType: "timestamp_ns",
    TimestamptzNanoType: "timestamptz_ns",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyField:
    """One key column.

    Attributes:
        field_id: The Iceberg field id.
        path: Column names from the root to the leaf; longer than one inside structs.
        field_type: The type in the schema that the columns are read with.
    """

    field_id: int
    path: tuple[str, ...]
    field_type: IcebergType

    @property
    def name(self) -> str:
        """The dotted name, for messages."""
        return ".".join(self.path)

    @property
    def canonical_type(self) -> str:
        """The type's name in the fingerprint; equal names mean comparable bytes."""
        return canonical_type(self.field_type)

    @property
    def width_bytes(self) -> int | None:
        """Bytes of one non-null value without its tag; None for variable length."""
        field_type = self.field_type
        if type(field_type) in _INTEGER_LIKE:
            return INTEGER_WIDTH_BYTES
        if isinstance(field_type, DecimalType | UUIDType):
            return DECIMAL_WIDTH_BYTES
        if isinstance(field_type, FixedType):
            return len(field_type)
        return None


@dataclass(frozen=True, slots=True)
class KeySchema:
    """The key columns in field-id order. Build it with `of`."""

    fields: tuple[KeyField, ...]

    def __post_init__(self) -> None:
        ids = [field.field_id for field in self.fields]
        if not ids:
            raise InvalidInputError("a key needs at least one column")
        if ids != sorted(set(ids)):
            raise InvalidInputError("key fields must be distinct and in field-id order", fields=ids)
        for field in self.fields:
            canonical_type(field.field_type, name=field.name)

    @staticmethod
    def of(schema: Schema, field_ids: Iterable[int]) -> KeySchema:
        """The key made of `field_ids` of `schema`, in field-id order.

        Pass the newest schema that still has the fields when one of them was dropped (R22).

        Raises:
            InvalidInputError: A field does not exist, lies in a map or list, or is a float.
            UnsupportedError: A type without canonical key bytes (variant, geometry, ...).
        """
        fields = []
        for field_id in sorted(set(field_ids)):
            chain = _find(schema.fields, field_id)
            if chain is None:
                raise InvalidInputError(
                    "key field is not a column outside maps and lists",
                    field_id=field_id,
                    schema_id=schema.schema_id,
                )
            path = tuple(field.name for field in chain)
            fields.append(KeyField(field_id=field_id, path=path, field_type=chain[-1].field_type))
        return KeySchema(tuple(fields))

    @property
    def field_ids(self) -> tuple[int, ...]:
        """Field ids, ascending."""
        return tuple(field.field_id for field in self.fields)

    @property
    def fingerprint(self) -> str:
        """What the bytes depend on, for example `v1;1:long;4:decimal(2)`."""
        parts = [f"{field.field_id}:{field.canonical_type}" for field in self.fields]
        return ";".join([f"v{ENCODING_VERSION}", *parts])


def canonical_type(field_type: IcebergType, *, name: str = "") -> str:
    """The fingerprint's name of a key type.

    Raises:
        InvalidInputError: float and double: NaN and -0.0 have no single equality (R25).
        UnsupportedError: Anything else without canonical bytes.
    """
    integer_like = _INTEGER_LIKE.get(type(field_type))
    if integer_like is not None:
        return integer_like
    match field_type:
        case DecimalType():
            return f"decimal({field_type.scale})"
        case UUIDType():
            return "uuid"
        case FixedType():
            return f"fixed[{len(field_type)}]"
        case StringType():
            return "string"
        case BinaryType():
            return "binary"
        case FloatType() | DoubleType():
            raise InvalidInputError(
                "float and double columns cannot be part of a key", column=name, type=field_type
            )
    raise UnsupportedError("this type has no key bytes", column=name, type=field_type)


def _find(fields: Sequence[NestedField], field_id: int) -> list[NestedField] | None:
    """The chain of fields from the root to `field_id`, through structs only."""
    for field in fields:
        if field.field_id == field_id:
            return [field]
        if isinstance(field.field_type, StructType):
            below = _find(field.field_type.fields, field_id)
            if below is not None:
                return [field, *below]
    return None
