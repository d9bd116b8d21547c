"""How a column's values travel in JSON: which wire types they have, and how they are decoded.

| column type | wire | encodings |
|---|---|---|
| boolean | true/false, 0/1 | |
| int, long | integer | |
| float, double | number, "NaN", "Infinity" | |
| decimal | base64; {scale, value}; number or text; number | precise, variable, text, double |
| date | days since the epoch; ISO 8601 text | days, iso |
| time | integer; ISO 8601 text | s, ms, us, ns, iso |
| timestamp(tz), both _ns | integer since the epoch; ISO 8601 text | s, ms, us, ns, iso |
| string | text | |
| uuid | 8-4-4-4-12 text | |
| binary, fixed | text | base64, hex |
| struct, list | object, array, of the types without an encoding | |

`precise` has the scale of the Connect schema, else the column's. Texts of timestamptz have a zone,
those of timestamp have none, but for the Z of `iso`: Debezium's `isostring` puts it behind local
times and dates too. Where no encoding is declared, both wire types are read.

A value that its column cannot hold exactly is refused, never rounded (`double` decimals apart,
which are rounded to the column's scale because their writer has lost the digits already).
Source: Debezium's documentation of `time.precision.mode`, `decimal.handling.mode`,
`binary.handling.mode` and its semantic types; a text is never guessed to be base64 or a number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa
import pyarrow.compute as pc
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
    ListType,
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

from tableformat.cdc.binary_text import decode_base64, decode_hex, decode_unscaled
from tableformat.cdc.halving import read_in_halves
from tableformat.errors import InvalidInputError, UnsupportedError
from tableformat.spec.types import arrow_type
from tableformat.spec.uuid_text import parse_uuids

DAY_US = 86_400_000_000
VARIABLE_SCALE = pa.struct([("scale", pa.int32()), ("value", pa.string())])


class Encoding(StrEnum):
    """Names that users write in the option `encodings`."""

    SECONDS = "s"
    MILLIS = "ms"
    MICROS = "us"
    NANOS = "ns"
    DAYS = "days"
    ISO = "iso"
    PRECISE = "precise"
    VARIABLE = "variable"
    TEXT = "text"
    DOUBLE = "double"
    BASE64 = "base64"
    HEX = "hex"


UNITS = (Encoding.SECONDS, Encoding.MILLIS, Encoding.MICROS, Encoding.NANOS)
TIMESTAMPS = (TimestampType, TimestamptzType, TimestampNanoType, TimestamptzNanoType)
ENCODINGS_OF: tuple[tuple[tuple[type[IcebergType], ...], tuple[Encoding, ...]], ...] = (
    ((TimeType, *TIMESTAMPS), (*UNITS, Encoding.ISO)),
    ((DateType,), (Encoding.DAYS, Encoding.ISO)),
    ((DecimalType,), (Encoding.PRECISE, Encoding.VARIABLE, Encoding.TEXT, Encoding.DOUBLE)),
    ((BinaryType, FixedType), (Encoding.BASE64, Encoding.HEX)),
)
PLAIN = (BooleanType, IntegerType, LongType, FloatType, DoubleType, StringType)


@dataclass(frozen=True, slots=True)
class Hint:
    """The encoding of one column, from the user or from the event's own Connect schema."""

    encoding: Encoding
    scale: int | None = None  # of PRECISE; None: the column's


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingDefaults:
    """Encodings of columns without a hint, per type."""

    timestamps: Encoding = Encoding.MICROS
    times: Encoding = Encoding.MICROS
    decimals: Encoding = Encoding.PRECISE
    binaries: Encoding = Encoding.BASE64


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDecoder:
    """How one column is read.

    Attributes:
        target: Arrow type of the table's column.
        wires: Types that JSON values of it may have; the first is tried first.
        decode: From an array of one of the wire types to `target`. Raises `ValueError` (which
            `pa.ArrowInvalid` is) if any value is wrong.
    """

    name: str
    target: pa.DataType
    wires: tuple[pa.DataType, ...]
    decode: Callable[[pa.Array], pa.Array]
    is_text: bool = False  # can hold Debezium's placeholder for an unchanged value


def column_decoder(
    column: NestedField, hint: Hint | None, defaults: EncodingDefaults
) -> ColumnDecoder:
    """The decoder of one table column.

    Raises:
        InvalidInputError: The hint is no encoding of the column's type.
        UnsupportedError: The column's type cannot be read from JSON; the message names it.
    """
    kind = column.field_type
    target = arrow_type(kind, path=column.name, with_field_ids=False)
    encoding = _encoding_of(column, hint, defaults)
    wires: tuple[pa.DataType, ...]
    decode: Callable[[pa.Array], pa.Array]
    match kind:
        case BooleanType():
            wires, decode = (pa.bool_(), pa.int64()), _boolean
        case DecimalType():
            scale = kind.scale if hint is None or hint.scale is None else hint.scale
            wires, decode = _decimal(target, encoding, scale)
        case DateType():
            wires, decode = _instant_wires(hint, integer_first=True), _date
        case TimeType():
            wires, decode = _instant_wires(hint, integer_first=True), _time_of(encoding)
        case TimestampType() | TimestampNanoType():
            wires = _instant_wires(hint, integer_first=True)
            decode = _timestamp_of(target, encoding)
        case TimestamptzType() | TimestamptzNanoType():
            wires = _instant_wires(hint, integer_first=False)
            decode = _timestamp_of(target, encoding)
        case UUIDType():
            wires, decode = (pa.string(),), parse_uuids
        case BinaryType() | FixedType():
            wires, decode = (pa.string(),), _binary_of(target, encoding)
        case FloatType() | DoubleType():
            wires, decode = (pa.float64(), pa.string()), _float_of(target)
        case IntegerType() | LongType():
            wires, decode = (pa.int64(),), lambda values: values.cast(target)
        case _:
            _check_plain(kind, column.name)
            wires, decode = (target,), lambda values: values
    return ColumnDecoder(
        name=column.name,
        target=target,
        wires=wires,
        decode=decode,
        is_text=pa.types.is_string(wires[0]),
    )


def decode_rows(values: pa.Array, decoder: ColumnDecoder) -> tuple[pa.Array, dict[int, str]]:
    """Decode a column; wrong values become null and are returned with the reason, by row."""
    bad: dict[int, str] = {}
    pieces: list[pa.Array] = []

    def decode(start: int, stop: int) -> pa.Array:
        return _exact_type(decoder.decode(values.slice(start, stop - start)), decoder.target)

    errors = (ValueError, pa.ArrowNotImplementedError)
    for start, stop, found in read_in_halves(len(values), decode, errors):
        if isinstance(found, Exception):
            bad[start] = f"column '{decoder.name}': {str(found).splitlines()[0]}"
            pieces.append(pa.nulls(stop - start, decoder.target))
        else:
            pieces.append(found)
    return (pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)), bad


def _exact_type(values: pa.Array, target: pa.DataType) -> pa.Array:
    return values if values.type == target else values.cast(target)


def fits(column: NestedField, encoding: Encoding) -> bool:
    """Whether values of the column's type can be encoded so."""
    return encoding in _allowed(column)


def _allowed(column: NestedField) -> tuple[Encoding, ...]:
    kind = column.field_type
    for kinds, encodings in ENCODINGS_OF:
        if isinstance(kind, kinds):
            return encodings
    return ()


def _encoding_of(column: NestedField, hint: Hint | None, defaults: EncodingDefaults) -> Encoding:
    allowed = _allowed(column)
    if hint is None:
        by_default = (
            defaults.timestamps if isinstance(column.field_type, TIMESTAMPS) else defaults.times,
            Encoding.DAYS,
            defaults.decimals,
            defaults.binaries,
        )
        return next((encoding for encoding in by_default if encoding in allowed), Encoding.TEXT)
    if hint.encoding not in allowed:
        raise InvalidInputError(
            f"encoding '{hint.encoding}' does not fit the column's type",
            action=f"use one of {', '.join(allowed)}" if allowed else "remove it",
            column=column.name,
            type=column.field_type,
        )
    return hint.encoding


def _instant_wires(hint: Hint | None, *, integer_first: bool) -> tuple[pa.DataType, ...]:
    if hint is not None:
        return (pa.string(),) if hint.encoding == Encoding.ISO else (pa.int64(),)
    return (pa.int64(), pa.string()) if integer_first else (pa.string(), pa.int64())


def _check_plain(kind: IcebergType, column: str) -> None:
    """Nested values are taken as JSON has them, so they hold what JSON can say itself."""
    match kind:
        case StructType():
            for field in kind.fields:
                _check_plain(field.field_type, f"{column}.{field.name}")
        case ListType():
            _check_plain(kind.element_type, f"{column}.element")
        case _ if not isinstance(kind, PLAIN):
            raise UnsupportedError(
                f"cannot read {kind} from JSON here",
                action="leave the column out or use a typed DataFrame",
                column=column,
            )


def _boolean(values: pa.Array) -> pa.Array:
    if pa.types.is_integer(values.type):
        low_high = pc.min_max(values).as_py()
        if low_high["min"] not in (None, 0, 1) or low_high["max"] not in (None, 0, 1):
            raise pa.ArrowInvalid("neither 0 nor 1")
        return values.cast(pa.bool_())
    return values


def _float_of(target: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    def decode(values: pa.Array) -> pa.Array:
        wide = values.cast(pa.float64())
        narrow = wide.cast(target)
        if pc.any(pc.and_(pc.is_inf(narrow), pc.is_finite(wide)), min_count=0).as_py():
            raise pa.ArrowInvalid(f"too large for {target}")
        return narrow

    return decode


def _date(values: pa.Array) -> pa.Array:
    if pa.types.is_integer(values.type):
        return values.cast(pa.int32()).cast(pa.date32())
    return _without_utc(values).cast(pa.date32())


def _time_of(encoding: Encoding) -> Callable[[pa.Array], pa.Array]:
    unit = _unit(encoding)

    def decode(values: pa.Array) -> pa.Array:
        if pa.types.is_string(values.type):
            # Arrow parses instants, not times. ZonedTime always ends with Z (UTC).
            instants = pc.binary_join_element_wise("1970-01-01T", _without_utc(values), "")
            micros = instants.cast(pa.timestamp("us")).cast(pa.int64())
        else:
            micros = values.cast(pa.timestamp(unit)).cast(pa.timestamp("us")).cast(pa.int64())
        low_high = pc.min_max(micros).as_py()
        if low_high["min"] is not None and not 0 <= low_high["min"] <= low_high["max"] < DAY_US:
            raise pa.ArrowInvalid("not a time of day")
        return micros.cast(pa.time64("us"))

    return decode


def _timestamp_of(target: pa.TimestampType, encoding: Encoding) -> Callable[[pa.Array], pa.Array]:
    unit = _unit(encoding)

    def decode(values: pa.Array) -> pa.Array:
        if pa.types.is_string(values.type):
            is_local = target.tz is None and encoding == Encoding.ISO
            return (_without_utc(values) if is_local else values).cast(target)
        return values.cast(pa.timestamp(unit, target.tz)).cast(target)

    return decode


def _without_utc(texts: pa.StringArray) -> pa.StringArray:
    return pc.replace_substring_regex(texts, "Z$", "")


def _unit(encoding: Encoding) -> str:
    return "us" if encoding == Encoding.ISO else encoding.value


def _binary_of(target: pa.DataType, encoding: Encoding) -> Callable[[pa.Array], pa.Array]:
    decode_text = decode_hex if encoding == Encoding.HEX else decode_base64
    return lambda values: decode_text(values).cast(target)


def _decimal(
    target: pa.DataType, encoding: Encoding, scale: int
) -> tuple[tuple[pa.DataType, ...], Callable[[pa.Array], pa.Array]]:
    def precise(values: pa.Array) -> pa.Array:
        if pa.types.is_struct(values.type):
            return variable(values)
        return decode_unscaled(decode_base64(values), scale).cast(target)

    def variable(values: pa.Array) -> pa.Array:
        scales, texts = pc.struct_field(values, "scale"), pc.struct_field(values, "value")
        result = pa.nulls(len(values), target)
        for one in pc.drop_null(pc.unique(scales)).to_pylist():
            mask = pc.fill_null(pc.equal(scales, one), False)
            unscaled = decode_base64(texts.filter(mask))
            result = pc.replace_with_mask(result, mask, decode_unscaled(unscaled, one).cast(target))
        if result.null_count != values.null_count:
            raise pa.ArrowInvalid("a decimal without scale or value")
        return result

    def rounded(values: pa.Array) -> pa.Array:
        return pc.round(values, target.scale).cast(target)

    by_encoding: Mapping[Encoding, tuple[tuple[pa.DataType, ...], Callable[..., pa.Array]]] = {
        Encoding.PRECISE: ((pa.string(), VARIABLE_SCALE), precise),
        Encoding.VARIABLE: ((VARIABLE_SCALE,), variable),
        # Arrow's JSON reader takes decimals from numbers and from texts, digit by digit.
        Encoding.TEXT: ((target,), lambda values: values),
        Encoding.DOUBLE: ((pa.float64(),), rounded),
    }
    return by_encoding[encoding]
