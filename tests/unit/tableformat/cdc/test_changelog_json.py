from __future__ import annotations

import json
from typing import Any

import pytest

from tableformat.errors import InvalidInputError
from tests.support.change_events import batch_of, kinds_and, order, orders_schema, parse, reasons

FORMAT = "changelog-json"
SCHEMA = orders_schema()


def nested(op: Any, row: Any) -> str:
    return json.dumps({"data": row, "op": op})


def test_every_row_kind_is_read_in_any_spelling() -> None:
    names = ["+I", "-U", "+U", "-D", "insert", "UPDATE_BEFORE", "update_after", "delete"]
    events = batch_of([nested(name, order(n)) for n, name in enumerate(names)])
    kinds = {id_: kind for kind, id_ in kinds_and(parse(FORMAT, SCHEMA, events), "id")}
    assert [kinds[n] for n in range(8)] == ["+I", "-U", "+U", "-D"] * 2


def test_retraction_needs_its_key_only() -> None:
    parsed = parse(FORMAT, SCHEMA, batch_of([nested("-D", {"id": 1}), nested("+I", {"id": 2})]))
    assert kinds_and(parsed, "id") == [("-D", 1)]
    assert reasons(parsed) == ["required column 'region' has no value"]


@pytest.mark.parametrize("op", [None, "", "x", "+X"])
def test_row_without_a_kind_is_bad(op: str | None) -> None:
    parsed = parse(FORMAT, SCHEMA, batch_of([nested(op, order(1))]))
    assert reasons(parsed) == ["no row kind in the field 'op'"]
    assert parsed.changes.num_rows == 0


def test_flat_layout_and_other_kind_field_are_read() -> None:
    event = json.dumps(order(1, amount="1.5") | {"kind": "-D"})
    parsed = parse(FORMAT, SCHEMA, batch_of([event]), layout="flat", kind_field="kind")
    assert kinds_and(parsed, "id") == [("-D", 1)]


@pytest.mark.parametrize("amount", [1.5, "1.5", "1.50"])
def test_decimal_is_read_digit_by_digit_from_number_and_text(amount: Any) -> None:
    parsed = parse(FORMAT, SCHEMA, batch_of([nested("+I", order(1, amount=amount))]))
    assert str(parsed.changes.column("amount")[0]) == "1.50"


def test_decimal_with_too_many_digits_is_bad() -> None:
    parsed = parse(FORMAT, SCHEMA, batch_of([nested("+I", order(1, amount="1.555"))]))
    assert parsed.bad.num_rows == 1


def test_unknown_column_fails_the_batch_by_name() -> None:
    with pytest.raises(InvalidInputError, match="a column 'extra'"):
        parse(FORMAT, SCHEMA, batch_of([nested("+I", order(1, extra=1))]))


def test_kind_field_with_a_columns_name_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="name of a column"):
        parse(FORMAT, SCHEMA, batch_of([]), layout="flat", kind_field="note")


def test_null_value_is_counted_and_bad_rows_keep_their_place() -> None:
    parsed = parse(FORMAT, SCHEMA, batch_of([None, "x", nested("+I", order(1))]))
    assert parsed.skipped == {"tombstone": 1}
    assert parsed.bad.column("position").to_pylist() == ["event 1"]
    assert kinds_and(parsed, "id", "_ordinal") == [("+I", 1, 2)]
