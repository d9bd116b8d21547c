from __future__ import annotations

import base64
from collections.abc import Callable
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tableformat.cdc.binary_text import decode_base64, decode_hex, decode_unscaled

BYTES = st.lists(st.none() | st.binary(max_size=40), max_size=20)


@given(BYTES, st.sampled_from([base64.b64encode, base64.urlsafe_b64encode]))
def test_base64_is_decoded_as_the_standard_library_does(
    values: list[bytes | None], encode: Callable[[bytes], bytes]
) -> None:
    texts = [None if v is None else encode(v).decode() for v in values]
    assert decode_base64(pa.array(texts, pa.string())).to_pylist() == values


@given(BYTES)
def test_hex_is_decoded_in_both_letter_cases(values: list[bytes | None]) -> None:
    texts = [None if v is None else v.hex() for v in values]
    upper = [None if text is None else text.upper() for text in texts]
    assert decode_hex(pa.array(texts, pa.string())).to_pylist() == values
    assert decode_hex(pa.array(upper, pa.string())).to_pylist() == values


@given(st.lists(st.none() | st.integers(-(10**38) + 1, 10**38 - 1), max_size=20))
def test_unscaled_is_javas_big_integer(values: list[int | None]) -> None:
    encoded = [
        None if v is None else v.to_bytes((v.bit_length() // 8) + 1, "big", signed=True)
        for v in values
    ]
    decoded = decode_unscaled(pa.array(encoded, pa.binary()), 4).to_pylist()
    assert decoded == [
        None if v is None else Decimal((v < 0, tuple(map(int, str(abs(v)))), -4)) for v in values
    ]


def test_slices_are_decoded_like_whole_arrays() -> None:
    texts = pa.array(["AQ==", "AAEC", "/w==", ""])
    assert decode_base64(texts.slice(1, 2)).to_pylist() == [b"\0\1\2", b"\xff"]
    assert decode_hex(pa.array(["00", "0a0B", "ff"]).slice(1)).to_pylist() == [b"\n\x0b", b"\xff"]


@pytest.mark.parametrize("text", ["AQ", "A===", "AQ=A", "A?==", "AQ==AQ==", "===="])
def test_wrong_base64_is_refused(text: str) -> None:
    with pytest.raises(pa.ArrowInvalid, match="base64"):
        decode_base64(pa.array(["AQ==", text]))


@pytest.mark.parametrize("text", ["0", "0g", " 0"])
def test_wrong_hex_is_refused(text: str) -> None:
    with pytest.raises(pa.ArrowInvalid, match="hexadecimal"):
        decode_hex(pa.array(["00", text]))


@pytest.mark.parametrize("data", [b"", b"\0" * 17, b"\x7f" + b"\xff" * 15])
def test_unscaled_that_no_decimal_holds_is_refused(data: bytes) -> None:
    with pytest.raises(pa.ArrowInvalid):
        decode_unscaled(pa.array([b"\1", data], pa.binary()), 2)
