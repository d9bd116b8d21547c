"""Dates, times of day and timestamps of JSON events: integers in a unit, or ISO 8601 texts.

PostgreSQL's `infinity` and `-infinity` travel as numbers far away (source: Debezium's
`PostgresValueConverter`, pgjdbc's `PGStatement.DATE_POSITIVE_INFINITY`). No Iceberg type has them,
so they are refused, and so is what lies before the first day that a database can hold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc

DAY_US = 86_400_000_000
# PostgreSQL's dates: 4714-11-24 BC to 5874897-12-31, proleptic Gregorian, in days since 1970.
DAYS_MIN, DAYS_MAX = -2_440_589, 2_145_042_905
SECONDS_MIN = DAYS_MIN * 86_400
# PGStatement.DATE_POSITIVE_INFINITY, taken for microseconds by Debezium; its nanoseconds overflow,
# of both infinities into the minutes around 1970.
POSITIVE_INFINITY_US = 9_223_372_036_825_200_000
INFINITIES_NS = (-29_575_808_000, 22_375_808_000)
INFINITIES = ("infinity", "-infinity")  # of a timestamptz, which is text
YEARS_OF_CYCLE, DAYS_OF_CYCLE = 400, 146_097
UNITS_PER_S = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_OFFSET = "[+-][0-9:]+$"
NANOS_MIN, NANOS_MAX = -(2**63), 2**63 - 1
# Zeros behind all digits that a unit has, which Arrow does not read.
_ZEROS = {"us": r"(\.[0-9]{6})0+([^0-9]|$)", "ns": r"(\.[0-9]{9})0+([^0-9]|$)"}
_BEYOND_MICROS = r"\.[0-9]{7}"

Decode = Callable[[pa.Array], pa.Array]


def decode_dates(values: pa.Array) -> pa.Array:
    """Days since 1970, or ISO texts, as dates."""
    if pa.types.is_integer(values.type):
        _check_between(values, DAYS_MIN, DAYS_MAX)
        return values.cast(pa.int32()).cast(pa.date32())
    days = _of_any_year(without_utc(values), pa.date32())
    _check_between(days.cast(pa.int32()), DAYS_MIN, DAYS_MAX)
    return days


def times_decoder(unit: str | None) -> Decode:
    """To times of day; integers need a unit."""

    def decode(values: pa.Array) -> pa.Array:
        if pa.types.is_string(values.type):
            if pc.any(pc.match_substring_regex(values, _OFFSET), min_count=0).as_py():
                raise pa.ArrowInvalid(
                    "a time of day with an offset from UTC: no column can hold it"
                )
            # Arrow parses instants, not times. Debezium's ZonedTime ends with Z (UTC).
            instants = pc.binary_join_element_wise("1970-01-01T", without_utc(values), "")
            found = _of_texts(instants, pa.timestamp("us"))
        else:
            found = _of_numbers(values, unit, pa.timestamp("us"))
        micros = found.cast(pa.int64())
        low_high = pc.min_max(micros).as_py()
        if low_high["min"] is not None and not 0 <= low_high["min"] <= low_high["max"] < DAY_US:
            raise pa.ArrowInvalid(
                "not a time of day; a column of type long takes durations, as MySQL's TIME has them"
            )
        return micros.cast(pa.time64("us"))

    return decode


def timestamps_decoder(target: pa.TimestampType, unit: str | None, *, ends_with_z: bool) -> Decode:
    """To timestamps; integers need a unit. `ends_with_z`: local times in ISO form do, too."""

    def decode(values: pa.Array) -> pa.Array:
        if pa.types.is_string(values.type):
            is_local = target.tz is None and ends_with_z
            if target.tz is None and not is_local:
                _check_local(values)
            found = _of_any_year(without_utc(values) if is_local else values, target)
            _check_finite(found.cast(pa.int64()), target.unit)
            return found
        assert unit is not None
        _check_finite(values, unit)
        if unit == "ns":
            overflown = pc.is_in(values, pa.array(INFINITIES_NS, values.type))
            if pc.any(overflown, min_count=0).as_py():
                _infinite()
        return _of_numbers(values, unit, target)

    return decode


def _of_numbers(values: pa.Array, unit: str | None, target: pa.TimestampType) -> pa.Array:
    """Integers in a unit as timestamps."""
    found = values.cast(pa.timestamp(unit, target.tz))
    try:
        return found.cast(target)
    except pa.ArrowInvalid:
        if unit == "ns":
            _too_fine()
        raise


def _of_texts(texts: pa.StringArray, target: pa.DataType) -> pa.Array:
    """ISO texts as dates or timestamps, also with zeros beyond the target's unit."""
    try:
        return texts.cast(target)
    except pa.ArrowInvalid:
        if not pa.types.is_timestamp(target):
            raise
        plain = pc.replace_substring_regex(texts, _ZEROS[target.unit], r"\1\2")
        is_fine = pc.match_substring_regex(plain, _BEYOND_MICROS)
        if target.unit == "us" and pc.any(is_fine, min_count=0).as_py():
            _too_fine()
        return plain.cast(target)


def _of_any_year(texts: pa.StringArray, target: pa.DataType) -> pa.Array:
    """ISO texts as dates or timestamps, also of years with a sign.

    Java writes one before years past 9999 and before Christ; Arrow reads none.
    """
    try:
        return _of_texts(texts, target)
    except pa.ArrowInvalid as error:
        parts = pc.extract_regex(texts, r"^[+]?(?P<year>-?[0-9]{4,9})(?P<rest>-.*)$")
        signed = pc.and_(pc.match_substring_regex(texts, "^[+-]"), parts.is_valid())
        if pc.any(pc.is_in(texts, pa.array(INFINITIES)), min_count=0).as_py():
            _infinite()
        if not pc.any(signed, min_count=0).as_py():
            raise pa.ArrowInvalid(str(error).split(". If these")[0]) from None
        years = pc.struct_field(parts, "year").cast(pa.int64())
        # The calendar repeats every 400 years.
        cycles = pc.floor(pc.divide(pc.subtract(years, 2000).cast(pa.float64()), YEARS_OF_CYCLE))
        cycles = pc.if_else(signed, cycles.cast(pa.int64()), 0)
        near = pc.subtract(years, pc.multiply(cycles, YEARS_OF_CYCLE)).cast(pa.string())
        near = pc.binary_join_element_wise(near, pc.struct_field(parts, "rest"), "")
        plain = _of_texts(pc.if_else(signed, near, texts), target)
        day = 1 if pa.types.is_date(target) else 86_400 * UNITS_PER_S[target.unit]
        counts = plain.cast(pa.int32() if day == 1 else pa.int64()).cast(pa.int64())
        moved_days = pc.multiply(cycles, DAYS_OF_CYCLE)
        try:
            moved = pc.add_checked(counts, pc.multiply_checked(moved_days, day))
            return moved.cast(pa.int32() if day == 1 else pa.int64()).cast(target)
        except pa.ArrowInvalid:
            _infinite()


def without_utc(texts: pa.StringArray) -> pa.StringArray:
    """The texts without the Z at their end."""
    return pc.replace_substring_regex(texts, "Z$", "")


def _check_local(texts: pa.StringArray) -> None:
    if pc.any(pc.ends_with(texts, "Z"), min_count=0).as_py():
        raise pa.ArrowInvalid(
            "a moment of UTC (Z) in a column without a time zone; encodings=COLUMN=iso says that "
            "it is a local time, as time.precision.mode=isostring writes it"
        )


def _check_finite(values: pa.Array, unit: str) -> None:
    if unit == "ns":
        _check_between(values, NANOS_MIN + 1, NANOS_MAX - 1)
        return
    per_s = UNITS_PER_S[unit]
    _check_between(values, SECONDS_MIN * per_s, POSITIVE_INFINITY_US // (1_000_000 // per_s) - 1)


def _check_between(values: pa.Array, low: int, high: int) -> None:
    found = pc.min_max(values).as_py()
    if found["min"] is not None and not low <= found["min"] <= found["max"] <= high:
        _infinite()


def _infinite() -> NoReturn:
    raise pa.ArrowInvalid("infinity, or out of range: no column can hold it")


def _too_fine() -> NoReturn:
    raise pa.ArrowInvalid(
        "digits beyond microseconds: of timestamps, a column of type timestamp_ns or "
        "timestamptz_ns takes them (from 1677 to 2262); else a long takes numbers, a string texts"
    )
