"""Casts to decimals, held against Python's: the same number or an error, never another number."""

from __future__ import annotations

import random
from decimal import Context, Decimal, localcontext

import pyarrow as pa
import pytest

from tableformat.spec.decimal_casts import exact_cast, parse_decimals, rescale_decimals

TARGETS = [(5, 0), (10, 2), (18, 4), (38, 0), (38, 10), (38, 38)]
ZEROS = (0, 1, 2, 5, 20, 38, 39, 60, 300, 65_534)
EXPONENTS = (0, 1, 5, 38, 39, 99, 128, 256, 70_000)


def fits(number, precision, scale):
    with localcontext() as context:
        context.prec, context.Emax, context.Emin = 80_000, 10**9, -(10**9)
        scaled = number.scaleb(scale)
        return scaled == scaled.to_integral_value() and abs(scaled) < Decimal(10) ** precision


def drawn_text(rng):
    whole = rng.choice(
        [0, 1, 5, 10 ** rng.randint(0, 45), rng.randint(0, 10 ** rng.randint(0, 45))]
    )
    digits = "".join(rng.choices("0123456789", k=rng.choice((0, 1, 3, 12, 40))))
    text = f"{rng.choice(['', '-', '+'])}{whole}.{digits}{'0' * rng.choice(ZEROS)}"
    if rng.random() < 0.3:
        return f"{text[:60]}{rng.choice('eE')}{rng.choice(['', '-', '+'])}{rng.choice(EXPONENTS)}"
    return text if rng.random() < 0.9 else text.partition(".")[0]


@pytest.mark.parametrize(("precision", "scale"), TARGETS)
def test_text_is_its_number_or_refused(precision, scale):
    rng, target, read = random.Random(scale), pa.decimal128(precision, scale), 0
    for _ in range(400):
        text = drawn_text(rng)
        number = Decimal(text)
        try:
            found = parse_decimals(
                pa.array([text, None, "1" if precision > scale else "0"]), target
            )
        except pa.ArrowInvalid:
            assert "e" in text.lower() or not fits(number, precision, scale)
            continue
        assert found[0].as_py() == number
        assert found[1].as_py() is None
        read += 1
    assert read > 5


@pytest.mark.parametrize(("precision", "scale"), TARGETS)
def test_decimal_is_its_number_or_refused(precision, scale):
    rng, target, read = random.Random(scale), pa.decimal128(precision, scale), 0
    for _ in range(400):
        own = rng.randint(0, 38)
        number = Decimal(rng.randint(0, 10 ** rng.randint(0, 38) - 1)).scaleb(-own)
        values = pa.array([number, None], pa.decimal128(38, own))
        texts = pa.array([f"{number:f}", None], rng.choice([pa.string(), pa.large_string()]))
        if not fits(number, precision, scale):
            for each in (values, texts):
                with pytest.raises(pa.ArrowInvalid):
                    exact_cast(each, target)
            continue
        assert exact_cast(texts, target).to_pylist() == [number, None]
        assert rescale_decimals(values, target).to_pylist() == [number, None]
        read += 1
    assert read > 5


@pytest.mark.parametrize(("precision", "scale"), TARGETS)
@pytest.mark.parametrize("own", [-77, -39, -1, 39, 60, 75, 76, 77, 120])
def test_decimal_of_a_scale_beyond_its_digits_is_its_number_or_refused(own, precision, scale):
    target = pa.decimal128(precision, scale)
    for unscaled in (0, 1, -1, 10**37, 1 - 10**38, 2**120):
        raw = unscaled.to_bytes(16, "little", signed=True) + bytes(16)
        buffers = [pa.py_buffer(b"\1"), pa.py_buffer(raw)]
        values = pa.Array.from_buffers(pa.decimal128(38, own), 2, buffers)
        number = Decimal(unscaled).scaleb(-own, Context(prec=50))
        if fits(number, precision, scale):
            assert rescale_decimals(values, target).to_pylist() == [number, None]
        else:
            with pytest.raises(pa.ArrowInvalid):
                rescale_decimals(values, target)


@pytest.mark.parametrize("text", ["", "x", "1x", ".", "1e", "--1", "NaN", "NAN"])
def test_text_that_is_no_number_is_refused(text):
    with pytest.raises(pa.ArrowInvalid):
        parse_decimals(pa.array([text, "0" * 60]), pa.decimal128(10, 2))
