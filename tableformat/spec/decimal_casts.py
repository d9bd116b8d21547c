"""Decimals from texts and from other decimals: the same number, or none.

Arrow multiplies by a power of ten and does not notice that 128 bits overflow: 35 digits are another
number as a `decimal(38, 10)`. Beyond its powers of ten it takes whatever lies there: 1E-39 is 0 as
a `decimal(38, 0)`. Of a text with a hundred zeros behind its point it makes 0.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from tableformat.spec.types import is_string

_DIGITS_MAX = 38
_PLAIN = r"^(?P<sign>[+-]?)0*(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*?)0*)?$"
_SHORT = r"^[+-]?[0-9]{0,38}\.?[0-9]{0,38}[eE][+-]?[0-9]{1,2}$"
_NOISE = 1e-9  # a number that overflowed is no neighbour of the right one


def wide_decimal(target: pa.DataType) -> pa.DataType:
    """A type of the same scale for numbers that may not fit; `rescale_decimals` refuses those."""
    return pa.decimal256(2 * _DIGITS_MAX, target.scale)


def rescale_decimals(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Decimals as another decimal type.

    Raises:
        pa.ArrowInvalid: A number has more digits than `target`.
    """
    more = target.scale - values.type.scale
    if more >= target.precision or -more >= values.type.precision:
        values = _only_zeros(values)
    elif more <= 0:
        return values.cast(target)
    return values.cast(wide_decimal(target)).cast(target)


def _only_zeros(values: pa.Array) -> pa.Array:
    signs = pc.sign(values.cast(pa.decimal256(2 * _DIGITS_MAX, values.type.scale)))
    if _any(pc.not_equal(signs, 0)):
        raise pa.ArrowInvalid("a number of more digits than the column has")
    return signs.cast(pa.decimal128(_DIGITS_MAX, 0))


def exact_cast(values: pa.Array, target: pa.DataType) -> pa.Array:
    """Arrow's safe cast, which is none for decimals.

    Raises:
        pa.ArrowInvalid: A value is none of `target`.
    """
    if pa.types.is_decimal(target):
        if pa.types.is_decimal(values.type):
            return rescale_decimals(values, target)
        if is_string(values.type):
            return parse_decimals(values.cast(pa.string()), target)
    return values.cast(target, safe=True)


def parse_decimals(texts: pa.Array, target: pa.DataType) -> pa.Array:
    """Texts as decimals; zeros at their ends count for nothing.

    Raises:
        pa.ArrowInvalid: A text is no number, or has more digits than `target`.
    """
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    if longest <= _DIGITS_MAX - target.scale and not _any(
        pc.match_substring(texts, "e", ignore_case=True)
    ):
        return texts.cast(target)
    parts = pc.extract_regex(texts, _PLAIN)
    sign, whole, part = (pc.struct_field(parts, at) for at in range(3))
    _check_length(whole, target.precision - target.scale)
    _check_length(part, target.scale)
    found = pc.binary_join_element_wise(sign, "0", whole, ".", part, "").cast(target)
    is_number = pc.and_(pc.is_valid(parts), pc.match_substring_regex(texts, "[0-9]"))
    others = pc.and_(pc.is_valid(texts), pc.invert(pc.fill_null(is_number, False)))
    return pc.replace_with_mask(found, others, _with_exponents(texts.filter(others), target))


def _with_exponents(texts: pa.Array, target: pa.DataType) -> pa.Array:
    found = texts.cast(target)  # raises for what is no number
    if _any(pc.invert(pc.match_substring_regex(texts, _SHORT))):
        raise pa.ArrowInvalid("a number of more digits than the column has")
    wanted = texts.cast(pa.float64())
    error = pc.abs(pc.subtract(found.cast(pa.float64()), wanted))
    if _any(pc.greater(error, pc.multiply(pc.abs(wanted), _NOISE))):
        raise pa.ArrowInvalid("a number of more digits than the column has")
    return found


def _check_length(digits: pa.Array, most: int) -> None:
    if _any(pc.greater(pc.binary_length(digits), most)):
        raise pa.ArrowInvalid("a number of more digits than the column has")


def _any(flags: pa.Array) -> bool:
    return bool(pc.any(flags, min_count=0).as_py())
