"""Whole numbers that are stored as text."""

import pytest

from tableformat.spec.decimal_text import parse_decimal


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("007", 7), (str(2**63), 2**63)])
def test_digits_are_a_number(text: str, number: int) -> None:
    assert parse_decimal(text) == number


@pytest.mark.parametrize(
    "text", ["", " 1", "-1", "+1", "1.0", "1_0", "\u00b2", "\u0661", "many", "9" * 5_000]
)
def test_anything_else_is_none(text: str) -> None:
    assert parse_decimal(text) is None
