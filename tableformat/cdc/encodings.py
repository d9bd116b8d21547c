"""How a column's values travel in JSON: which wire types they have, and how they are decoded.

| column type | wire | encodings |
|---|---|---|
| boolean | true/false, 0/1 | |
| int, long | integer | |
| float | number, "NaN", "Infinity"; text | text, double |
| double | number, "NaN", "Infinity"; text | text |
| decimal | base64; {scale, value}; number or text; number | precise, variable, text, double |
| date | days since the epoch; ISO 8601 text | days, iso |
| time | integer; ISO 8601 text | s, ms, us, ns, iso |
| timestamp(tz), both _ns | integer since the epoch; ISO 8601 text | s, ms, us, ns, iso |
| string | text | text |
| uuid | 8-4-4-4-12 text | |
| binary, fixed | text | base64, hex |
| struct, list | object, array of these | of their parts |

An encoding comes from the event's own schema or from an option. Without either, what says itself
how it is encoded is read (a text of ISO 8601, {scale, value}); an integer timestamp or time, a
decimal and a binary are refused: 1709208000001 is a valid time in three units, "1234" a valid
decimal in two forms, and a wrong guess shows nowhere. Days are no guess: all writers count dates
so.

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
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import types as iceberg

from tableformat.cdc.binary_text import decode_base64, decode_hex, decode_unscaled
from tableformat.cdc.split_on_failure import read_in_halves
from tableformat.cdc.temporal_values import decode_dates, times_decoder, timestamps_decoder
from tableformat.errors import InvalidInputError, UnsupportedError
from tableformat.spec.arrow_arrays import constant_array
from tableformat.spec.decimal_casts import parse_decimals, rescale_decimals, wide_decimal
from tableformat.spec.types import arrow_type
from tableformat.spec.uuid_text import parse_uuids

VARIABLE_SCALE = pa.struct([("scale", pa.int32()), ("value", pa.string())])
_PRINTED = r"^-?[0-9]+\.?(?P<digits>[0-9]*)(?:e\+?(?P<shift>-?[0-9]+))?$"  # a double, by Arrow
NOT_FINITE = ("NaN", "Infinity", "-Infinity")
ELEMENT = "element"  # names the part of a list
Decode = Callable[[pa.Array], pa.Array]
WiresAndDecode = tuple[tuple[pa.DataType, ...], Decode]


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
TIMESTAMPS = (
    iceberg.TimestampType,
    iceberg.TimestamptzType,
    iceberg.TimestampNanoType,
    iceberg.TimestamptzNanoType,
)
TEMPORALS = (iceberg.DateType, iceberg.TimeType, *TIMESTAMPS)
BINARIES = (iceberg.BinaryType, iceberg.FixedType)
FLOATS = (iceberg.FloatType, iceberg.DoubleType)
ENCODINGS_OF: tuple[tuple[tuple[type[iceberg.IcebergType], ...], tuple[Encoding, ...]], ...] = (
    ((iceberg.TimeType, *TIMESTAMPS), (*UNITS, Encoding.ISO)),
    ((iceberg.DateType,), (Encoding.DAYS, Encoding.ISO)),
    ((iceberg.DecimalType,), (Encoding.PRECISE, Encoding.VARIABLE, Encoding.TEXT, Encoding.DOUBLE)),
    (BINARIES, (Encoding.BASE64, Encoding.HEX)),
    ((iceberg.FloatType,), (Encoding.TEXT, Encoding.DOUBLE)),
    ((iceberg.DoubleType, iceberg.StringType), (Encoding.TEXT,)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """What the user or the event's own Connect schema says about the encoding of a column.

    Attributes:
        encoding: None where it is not said.
        scale: Of PRECISE; None: the column's.
        is_integer: The values of a float column are integers, which are read digit by digit.
        is_exact: The events' schema says DOUBLE of a decimal column, which may not round them.
        is_single: It says FLOAT.
        is_unsigned: The source has no values below zero: one there is one that overflowed.
        is_absent: The events' schema does not have this part of a struct.
        contradiction: Set if the schema says that the values are of another kind than the column:
            what they are.
        parts: Hints of the fields of a struct, or of the `element` of a list.
    """

    encoding: Encoding | None = None
    scale: int | None = None
    is_integer: bool = False
    is_exact: bool = False
    is_single: bool = False
    is_unsigned: bool = False
    is_absent: bool = False
    contradiction: str | None = None
    parts: Mapping[str, Hint] = field(default_factory=dict)

    def overlaid(self, other: Hint) -> Hint:
        """This hint where `other` says nothing."""
        if other.encoding is not None:
            same = other.encoding == self.encoding and other.scale is None
            return replace(self, is_exact=False) if same else other
        return replace(self, parts=overlaid(self.parts, other.parts))


def overlaid(below: Mapping[str, Hint], above: Mapping[str, Hint]) -> dict[str, Hint]:
    """Hints by column of two sources; those of `above` win."""
    both = {name: below[name].overlaid(hint) for name, hint in above.items() if name in below}
    return {**below, **above, **both}


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodingDefaults:
    """Encodings of columns without a hint, per type; None: it must be said.

    `has_options`: there is an option for each of them.
    """

    timestamps: Encoding | None = None
    times: Encoding | None = None
    decimals: Encoding | None = None
    binaries: Encoding | None = None
    has_options: bool = False

    def of(self, kind: iceberg.IcebergType) -> Encoding | None:
        """The encoding of a type without a hint."""
        if isinstance(kind, TIMESTAMPS):
            return self.timestamps
        if isinstance(kind, iceberg.TimeType):
            return self.times
        if isinstance(kind, BINARIES):
            return self.binaries
        # A float that comes as a text is a number in the form that decimals have.
        is_text = self.decimals is Encoding.TEXT
        if isinstance(kind, iceberg.DecimalType) or (isinstance(kind, FLOATS) and is_text):
            return self.decimals
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDecoder:
    """How one column is read.

    Attributes:
        target: Arrow type of the table's column.
        wires: Types that JSON values of it may have; the first is tried first.
        decode: From an array of one of the wire types to `target`. Raises `ValueError` (which
            `pa.ArrowInvalid` is) if any value is wrong, `_UndeclaredError` if nothing says what
            the values mean.
        parts: Decoders of the fields of a struct.
    """

    name: str
    target: pa.DataType
    wires: tuple[pa.DataType, ...]
    decode: Decode
    parts: Mapping[str, ColumnDecoder] = field(default_factory=dict)


class _UndeclaredError(Exception):
    """Not an error of a value: the whole batch needs an option."""

    def __init__(self, error: InvalidInputError) -> None:
        super().__init__(str(error))
        self.error = error


def column_decoder(
    column: iceberg.NestedField,
    hint: Hint | None,
    defaults: EncodingDefaults,
    *,
    path: str | None = None,
) -> ColumnDecoder:
    """The decoder of one table column, or of a part of one at `path`.

    Raises:
        InvalidInputError: The hint is no encoding of the column's type.
        UnsupportedError: The column's type cannot be read from JSON; the message names it.
    """
    path = path or column.name
    hint = hint or Hint()
    kind = column.field_type
    target = arrow_type(kind, path=path, with_field_ids=False)
    parts: Mapping[str, ColumnDecoder] = {}
    encoding = _encoding_of(kind, hint, defaults, path)

    def refusing() -> Decode:
        return _refusing(_undeclared(kind, path, defaults))

    match kind:
        case _ if hint.contradiction is not None and hint.encoding is None:
            wires = _all_wires(kind, target)
            decode = _refusing(_contradiction(kind, path, hint.contradiction))
        case _ if hint.is_absent and column.initial_default is not None:
            wires, decode = (pa.null(),), partial(_all, column.initial_default, kind)
        case iceberg.StructType():
            parts = {
                each.name: column_decoder(
                    each, hint.parts.get(each.name), defaults, path=f"{path}.{each.name}"
                )
                for each in kind.fields
            }
            wires, decode = _struct(target, parts)
        case iceberg.ListType():
            inner = column_decoder(
                kind.element_field, hint.parts.get(ELEMENT), defaults, path=f"{path}.{ELEMENT}"
            )
            wires, decode = _list(target, inner)
        case _ if isinstance(kind, TEMPORALS):
            wires, decode = _instant(kind, target, hint, encoding, refusing)
        case iceberg.DecimalType() | iceberg.BinaryType() | iceberg.FixedType():
            wires, decode = _encoded(kind, target, hint, encoding, refusing)
        case iceberg.FloatType() | iceberg.DoubleType():
            wires = (pa.int64(),) if hint.is_integer else (pa.float64(), pa.string())
            decode = _float_of(target, encoding)
        case iceberg.LongType() if hint.is_unsigned:
            wires, decode = (target,), _unsigned
        case _:
            wires, decode = _plain(kind, target, path)
    return ColumnDecoder(name=column.name, target=target, wires=wires, decode=decode, parts=parts)


def _instant(
    kind: iceberg.IcebergType,
    target: pa.DataType,
    hint: Hint,
    encoding: Encoding | None,
    refusing: Callable[[], Decode],
) -> WiresAndDecode:
    """Dates, times and timestamps: integers in a unit, or texts."""
    has_zone = isinstance(kind, (iceberg.TimestamptzType, iceberg.TimestamptzNanoType))
    wires = _instant_wires(hint, integer_first=not has_zone)
    if isinstance(kind, iceberg.DateType):
        return wires, decode_dates
    if isinstance(kind, iceberg.TimeType):
        decode = times_decoder(_unit(encoding))
    else:
        decode = timestamps_decoder(target, _unit(encoding), ends_with_z=encoding == Encoding.ISO)
    if encoding is None:  # texts are ISO; integers need an encoding that was declared
        decode = _self_describing(decode, pa.types.is_string, refusing(), target)
    return wires, decode


def _encoded(
    kind: iceberg.DecimalType | iceberg.BinaryType | iceberg.FixedType,
    target: pa.DataType,
    hint: Hint,
    encoding: Encoding | None,
    refusing: Callable[[], Decode],
) -> WiresAndDecode:
    """Decimals and binaries: what a text of them means has to be said."""
    if isinstance(kind, iceberg.DecimalType):
        if encoding is None:
            variable = _decimal(target, Encoding.VARIABLE, kind.scale)[1]
            decode = _self_describing(variable, pa.types.is_struct, refusing(), target)
            return _all_wires(kind, target), decode
        scale = kind.scale if hint.scale is None else hint.scale
        wires, decode = _decimal(target, encoding, scale)
        return wires, _exactly(target, is_single=hint.is_single) if hint.is_exact else decode
    if encoding is None:
        return (pa.string(),), refusing()
    return (pa.string(),), _binary_of(target, encoding)


def _plain(kind: iceberg.IcebergType, target: pa.DataType, path: str) -> WiresAndDecode:
    """Values that JSON has a form for."""
    match kind:
        case iceberg.BooleanType():
            return (pa.bool_(), pa.int64()), _boolean
        case iceberg.UUIDType():
            return (pa.string(),), parse_uuids
        case iceberg.IntegerType() | iceberg.LongType():
            return (pa.int64(),), lambda values: values.cast(target)
        case iceberg.StringType():
            return (target,), lambda values: values
    raise UnsupportedError(
        f"cannot read {kind} from JSON here",
        action="leave the column out or use a typed DataFrame",
        column=path,
    )


def decode_rows(values: pa.Array, decoder: ColumnDecoder) -> tuple[pa.Array, dict[int, str]]:
    """Decode a column; wrong values become null and are returned with the reason, by row.

    Raises:
        InvalidInputError: Nothing says how the values are encoded; the message names the option.
    """
    bad: dict[int, str] = {}
    pieces: list[pa.Array] = []

    def decode(start: int, stop: int) -> pa.Array:
        return _exact_type(decoder.decode(values.slice(start, stop - start)), decoder.target)

    errors = (ValueError, pa.ArrowNotImplementedError)
    try:
        for start, stop, found in read_in_halves(len(values), decode, errors):
            if isinstance(found, Exception):
                bad[start] = f"column '{decoder.name}': {str(found).splitlines()[0]}"
                pieces.append(pa.nulls(stop - start, decoder.target))
            else:
                pieces.append(found)
    except _UndeclaredError as undeclared:
        raise undeclared.error from None
    return (pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)), bad


def _exact_type(values: pa.Array, target: pa.DataType) -> pa.Array:
    return values if values.type == target else values.cast(target)


def encodings_of(kind: iceberg.IcebergType) -> tuple[Encoding, ...]:
    """How values of a type can be encoded; nothing for a type with one form only."""
    for kinds, encodings in ENCODINGS_OF:
        if isinstance(kind, kinds):
            return encodings
    return ()


def _encoding_of(
    kind: iceberg.IcebergType, hint: Hint, defaults: EncodingDefaults, path: str
) -> Encoding | None:
    if hint.encoding is None:
        return defaults.of(kind)
    allowed = encodings_of(kind)
    if hint.encoding not in allowed:
        raise InvalidInputError(
            f"encoding '{hint.encoding}' does not fit the column's type",
            action=f"use one of {', '.join(allowed)}" if allowed else "remove it",
            column=path,
            type=kind,
        )
    return hint.encoding


def _instant_wires(hint: Hint, *, integer_first: bool) -> tuple[pa.DataType, ...]:
    if hint.encoding is not None:
        return (pa.string(),) if hint.encoding == Encoding.ISO else (pa.int64(),)
    return (pa.int64(), pa.string()) if integer_first else (pa.string(), pa.int64())


def _unit(encoding: Encoding | None) -> str | None:
    return encoding.value if encoding in UNITS else None


def _all_wires(kind: iceberg.IcebergType, target: pa.DataType) -> tuple[pa.DataType, ...]:
    """Whatever values of the type may look like, so that they can be refused by name."""
    if isinstance(kind, iceberg.DecimalType):
        return (pa.string(), VARIABLE_SCALE, wide_decimal(target))
    return (pa.int64(), pa.string(), pa.float64())


def _refusing(error: InvalidInputError) -> Decode:
    def decode(values: pa.Array) -> pa.Array:
        if values.null_count < len(values):
            raise _UndeclaredError(error)
        return values

    return decode


def _self_describing(
    decode_known: Decode,
    is_known: Callable[[pa.DataType], bool],
    refuse: Decode,
    target: pa.DataType,
) -> Decode:
    """Values of a type that tells what they mean are read, others refused."""

    def decode(values: pa.Array) -> pa.Array:
        if is_known(values.type):
            return decode_known(values)
        return pa.nulls(len(refuse(values)), target)

    return decode


# What may be meant by a value, which option says it for all columns, and the connector's setting.
_MEANINGS: tuple[tuple[tuple[type[iceberg.IcebergType], ...], str, str, str], ...] = (
    (
        TIMESTAMPS,
        "an integer may count s, ms, us or ns",
        "timestamp-unit",
        "time.precision.mode (adaptive: ms up to timestamp(3), else us)",
    ),
    (
        (iceberg.TimeType,),
        "an integer may count s, ms, us or ns",
        "time-unit",
        "time.precision.mode (adaptive: ms up to time(3), else us)",
    ),
    (
        (iceberg.DecimalType,),
        "a text may be digits or base64 of bytes",
        "decimals",
        "decimal.handling.mode (precise by default)",
    ),
    (BINARIES, "a text may be base64 or hex", "binaries", "binary.handling.mode"),
)


def _undeclared(
    kind: iceberg.IcebergType, path: str, defaults: EncodingDefaults
) -> InvalidInputError:
    meaning, option, setting = next(each[1:] for each in _MEANINGS if isinstance(kind, each[0]))
    column = path.removesuffix(f".{ELEMENT}")
    for_all = f"{option}=..., or for this column alone " if defaults.has_options else ""
    cause = (
        f"; as the connector's {setting} says; or send the schema with the events "
        "(value.converter.schemas.enable=true)"
        if defaults.has_options
        else ""
    )
    choices = "|".join(encodings_of(kind))
    return InvalidInputError(
        f"nothing says how the events encode column '{path}', and they carry no schema for it: "
        f"{meaning}",
        action=f"set {for_all}encodings={column}={choices}{cause}",
        column=path,
        type=kind,
    )


def _contradiction(kind: iceberg.IcebergType, path: str, declared: str) -> InvalidInputError:
    allowed = encodings_of(kind)
    column = path.removesuffix(f".{ELEMENT}")
    forced = f", or set encodings={column}={'|'.join(allowed)} if you know better"
    return InvalidInputError(
        f"the events' schema says that column '{path}' is {declared}, the table that it is {kind}",
        action=f"give the table's column the type of the source{forced if allowed else ''}",
        column=path,
        type=kind,
    )


def _struct(target: pa.StructType, parts: Mapping[str, ColumnDecoder]) -> WiresAndDecode:
    wire = pa.struct([(name, part.wires[0]) for name, part in parts.items()])
    if all(part.wires == (part.target,) and not part.parts for part in parts.values()):
        return (target,), lambda values: values

    def decode(values: pa.Array) -> pa.Array:
        columns = [
            _exact_type(part.decode(pc.struct_field(values, name)), part.target)
            for name, part in parts.items()
        ]
        return pa.StructArray.from_arrays(columns, fields=list(target), mask=values.is_null())

    return (wire,), decode


def _list(target: pa.ListType, inner: ColumnDecoder) -> WiresAndDecode:
    if inner.wires == (inner.target,) and not inner.parts:
        return (target,), lambda values: values

    def decode(values: pa.Array) -> pa.Array:
        items = _exact_type(inner.decode(values.flatten()), inner.target)
        lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        mask = values.is_null() if values.null_count else None
        return pa.ListArray.from_arrays(pa.array(offsets), items, type=target, mask=mask)

    return tuple(pa.list_(wire) for wire in inner.wires), decode


def _all(value: Any, kind: iceberg.IcebergType, values: pa.Array) -> pa.Array:
    return constant_array(value, kind, len(values))


def _unsigned(values: pa.Array) -> pa.Array:
    if pc.any(pc.less(values, 0), min_count=0).as_py():
        raise pa.ArrowInvalid(
            "below zero in a BIGINT UNSIGNED, so it is 2^64 less than its value; set "
            "bigint.unsigned.handling.mode=precise in Debezium, and make the column decimal(20, 0)"
        )
    return values


def _boolean(values: pa.Array) -> pa.Array:
    if pa.types.is_integer(values.type):
        low_high = pc.min_max(values).as_py()
        if low_high["min"] not in (None, 0, 1) or low_high["max"] not in (None, 0, 1):
            raise pa.ArrowInvalid("neither 0 nor 1")
        return values.cast(pa.bool_())
    return values


def _float_of(target: pa.DataType, encoding: Encoding | None) -> Decode:
    def decode(values: pa.Array) -> pa.Array:
        if pa.types.is_string(values.type) and encoding is not Encoding.TEXT:
            known = pc.is_in(values.drop_null(), pa.array(NOT_FINITE))
            if not pc.all(known, min_count=0).as_py():
                # Digits may be base64: "1234" is a valid text of either.
                raise pa.ArrowInvalid("a text, which may be base64; encodings=COLUMN=text says no")
        is_integer = pa.types.is_integer(values.type)
        wide = values.cast(pa.float64(), safe=not is_integer)
        narrow = wide.cast(target)
        if pc.any(pc.and_(pc.is_inf(narrow), pc.is_finite(wide)), min_count=0).as_py():
            raise pa.ArrowInvalid(f"too large for {target}")
        rounded = pc.and_(pc.not_equal(narrow.cast(pa.float64()), wide), pc.is_finite(wide))
        if is_integer:  # not cast back: the double next to the greatest long is none
            exact = values.cast(pa.decimal128(38, 0))
            rounded = pc.or_(rounded, pc.not_equal(wide.cast(pa.decimal128(38, 0)), exact))
        says_digits = is_integer or encoding is Encoding.DOUBLE
        if says_digits and pc.any(rounded, min_count=0).as_py():
            raise pa.ArrowInvalid(
                f"a number of more digits than a {target} has; give the table's column the type of "
                "the source (schema-evolution=full does where it can), or encodings=COLUMN=text "
                "takes it rounded"
            )
        return narrow

    return decode


def _binary_of(target: pa.DataType, encoding: Encoding) -> Decode:
    decode_text = decode_hex if encoding == Encoding.HEX else decode_base64
    return lambda values: decode_text(values).cast(target)


def _exactly(target: pa.DataType, *, is_single: bool) -> Decode:
    """Doubles, or floats, as the decimals that they are printed as; others are refused."""

    def decode(values: pa.Array) -> pa.Array:
        try:
            return parse_decimals(values.cast(pa.string()), target)
        except pa.ArrowInvalid:
            single = values.cast(pa.float32(), safe=False)  # Avro's floats are longer as doubles
            if is_single and pc.all(pc.equal(single, values), min_count=0).as_py():
                with suppress(pa.ArrowInvalid):
                    return parse_decimals(single.cast(pa.string()), target)
            raise pa.ArrowInvalid(
                "a number of more digits than the column has; give the table's column the type of "
                "the source, or encodings=COLUMN=double takes it rounded"
            ) from None

    return decode


def _rescaled(values: pa.Array, target: pa.DataType) -> pa.Array:
    try:
        return rescale_decimals(values, target)
    except pa.ArrowInvalid:
        column = f"decimal({target.precision}, {target.scale})"
        raise pa.ArrowInvalid(f"a number of more digits than a {column} has") from None


def _decimal(target: pa.DataType, encoding: Encoding, scale: int) -> WiresAndDecode:
    def precise(values: pa.Array) -> pa.Array:
        if pa.types.is_struct(values.type):
            return variable(values)
        if pa.types.is_decimal(values.type):
            return _rescaled(values, target)
        return _rescaled(decode_unscaled(decode_base64(values), scale), target)

    def variable(values: pa.Array) -> pa.Array:
        scales, texts = pc.struct_field(values, "scale"), pc.struct_field(values, "value")
        result = pa.nulls(len(values), target)
        for one in pc.drop_null(pc.unique(scales)).to_pylist():
            mask = pc.fill_null(pc.equal(scales, one), False)
            unscaled = decode_base64(texts.filter(mask))
            decimals = _rescaled(decode_unscaled(unscaled, one), target)
            result = pc.replace_with_mask(result, mask, decimals)
        if result.null_count != values.null_count:
            raise pa.ArrowInvalid("a decimal without scale or value")
        return result

    def text(values: pa.Array) -> pa.Array:
        is_text = pa.types.is_string(values.type)
        return parse_decimals(values, target) if is_text else _rescaled(values, target)

    def rounded(values: pa.Array) -> pa.Array:
        # As it is printed, where that fits: Arrow's cast makes digits of what a double lacks.
        texts = values.cast(pa.string())
        parts = pc.extract_regex(texts, _PRINTED)
        shift = pc.struct_field(parts, "shift")
        shift = pc.if_else(pc.equal(shift, ""), "0", shift).cast(pa.int32())
        digits = pc.subtract(pc.binary_length(pc.struct_field(parts, "digits")), shift)
        fits = pc.fill_null(pc.less_equal(digits, target.scale), False)
        others = pc.if_else(fits, pa.scalar(None, values.type), values).cast(target)
        return pc.replace_with_mask(others, fits, parse_decimals(texts.filter(fits), target))

    by_encoding: Mapping[Encoding, WiresAndDecode] = {
        Encoding.PRECISE: ((pa.string(), VARIABLE_SCALE, wide_decimal(target)), precise),
        Encoding.VARIABLE: ((VARIABLE_SCALE,), variable),
        # A number (decimal.format=NUMERIC) is taken digit by digit by Arrow's JSON reader.
        Encoding.TEXT: ((pa.string(), wide_decimal(target)), text),
        Encoding.DOUBLE: ((pa.float64(),), rounded),
    }
    return by_encoding[encoding]
