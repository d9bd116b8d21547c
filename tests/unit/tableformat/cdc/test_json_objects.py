from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from tableformat.cdc.json_objects import JsonLayout, parse_json_objects

LAYOUT = JsonLayout(
    pa.schema([("a", pa.int64()), ("o", pa.struct([("t", pa.int64())]))]),
    alternatives={("o", "t"): (pa.int64(), pa.string())},
    closed=(("o",),),
)
OPEN = JsonLayout(LAYOUT.schema, alternatives=LAYOUT.alternatives)


def rows_of(texts: list[str | bytes], layout: JsonLayout = LAYOUT) -> tuple[dict[int, Any], Any]:
    values = [text.encode() if isinstance(text, str) else text for text in texts]
    parsed = parse_json_objects(pa.array(values, pa.binary()), layout)
    good = {
        int(row): {"a": value["a"], "t": None if value["o"] is None else value["o"]["t"]}
        for rows, table in parsed.pieces
        for row, value in zip(rows, table.to_pylist(), strict=True)
    }
    assert sorted([*good, *parsed.bad]) == list(range(len(texts)))
    return good, parsed


@pytest.mark.parametrize("layout", [LAYOUT, OPEN])
@pytest.mark.parametrize(
    "bad",
    [
        "null",
        "12",
        "[1]",
        '"text"',
        "",
        "   ",
        '{"a":9',
        '{"a":"x"}',
        '{"a":1,"a":2}',
        '{"a":1.5}',
        '{"a":99999999999999999999}',
        '{"a":1}{"a":2}',
        '{"a":1} null',
        '{"a":1} null {"a":2}',
        '{"a":1}\n{"a":2}',
        '{"a":1},{"a":2}',
        '{"a":1}}',
        '{"a":"x\ny"}',
        '{"o":{"t":"\\ud800"}}',
        b'{"a":"\xff"}',
        b'\xfe\xff{"a":1}',
        '{"a":1,"z":' + "[" * 30_000 + "]" * 30_000 + "}",
        '{"a":1,"z":' + '{"b":' * 5_000 + "1" + "}" * 5_000 + "}",
    ],
)
def test_bad_row_among_good_ones_is_the_only_one_lost(layout: JsonLayout, bad: str | bytes) -> None:
    texts: list[str | bytes] = [json.dumps({"a": number}) for number in range(50)]
    texts[17] = bad
    good, parsed = rows_of(texts, layout)
    assert list(parsed.bad) == [17]
    assert {row: value["a"] for row, value in good.items()} == {
        row: row for row in range(50) if row != 17
    }


def test_many_bad_rows_are_all_found() -> None:
    texts: list[str | bytes] = [
        json.dumps({"a": "x" if number % 3 else number}) for number in range(300)
    ]
    good, parsed = rows_of(texts)
    assert sorted(good) == list(range(0, 300, 3))
    assert all(
        reason.startswith("'/a' is a JSON string where a number is expected")
        for reason in parsed.bad.values()
    )


@pytest.mark.parametrize("text", ['{"a":\n1}', ' {"a":1}\t', '{"a":1,"n":"} n"}', '{\r\n"a":1\r}'])
def test_odd_but_valid_layout_is_read(text: str) -> None:
    good, _ = rows_of(["{}", text])
    assert good[1]["a"] == 1


def test_value_larger_than_a_reader_block_is_read() -> None:
    good, _ = rows_of(['{"a":1}', json.dumps({"a": 2, "z": "x" * 10_000_000}), '{"a":3}'])
    assert [good[row]["a"] for row in range(3)] == [1, 2, 3]


def test_field_of_alternating_wire_types_is_read_with_each() -> None:
    texts: list[str | bytes] = [
        json.dumps({"a": n, "o": {"t": n if n % 2 else str(n)}}) for n in range(20)
    ]
    good, parsed = rows_of(texts)
    assert not parsed.bad
    assert [good[row]["t"] for row in range(20)] == [n if n % 2 else str(n) for n in range(20)]


def test_undeclared_field_of_a_closed_struct_is_reported_once() -> None:
    _, parsed = rows_of(['{"o":{"t":1}}', '{"o":{"t":1,"u":null}}', '{"o":{"u":2},"z":1}'])
    assert set(parsed.undeclared) == {("o", "u")}


def test_undeclared_field_of_changing_type_is_reported_and_rows_are_read() -> None:
    good, parsed = rows_of(['{"a":1,"o":{"u":1}}', '{"a":2,"o":{"u":"s"}}', '{"a":3}'])
    assert [good[row]["a"] for row in range(3)] == [1, 2, 3]
    assert set(parsed.undeclared) == {("o", "u")}


def test_undeclared_fields_elsewhere_are_ignored() -> None:
    good, parsed = rows_of(['{"a":1,"z":1}', '{"a":2,"z":"s"}', '{"a":3,"z":{"y":[]}}'])
    assert [good[row]["a"] for row in range(3)] == [1, 2, 3]
    assert not parsed.undeclared


def test_no_rows_are_no_pieces() -> None:
    parsed = parse_json_objects(pa.array([], pa.binary()), LAYOUT)
    assert not parsed.pieces
    assert not parsed.bad


@pytest.mark.parametrize("layout", [LAYOUT, OPEN])
def test_object_that_python_cannot_nest_so_deeply_is_bad_and_its_neighbours_are_good(
    layout: JsonLayout,
) -> None:
    deep = '{"a":1,"o":{"t":"x","new":' + "[" * 960 + "]" * 960 + "}}"
    assert len(deep) < 2000
    good, parsed = rows_of(['{"a":1,"o":{"new":1}}', deep, '{"a":3,"o":{"t":"y"}}'], layout)
    assert {0, 2} <= set(good)
    assert set(parsed.bad) <= {1}


@pytest.mark.parametrize("extra", ["[null,0]", '[null,"x"]', '{"y":[null,[1]]}', "null", "[null]"])
@pytest.mark.parametrize("closed", [("o",), ()])
def test_undeclared_list_that_begins_with_null_leaves_declared_fields_whole(
    extra: str, closed: tuple[str, ...]
) -> None:
    """Arrow infers an array that is too short for it (26.0.1), and fails when that is copied."""
    layout = JsonLayout(LAYOUT.schema, alternatives=LAYOUT.alternatives, closed=(closed,))
    texts = pa.array([f'{{"a":1,"o":{{"t":2,"x":{extra}}}}}', '{"a":2,"o":null}'])
    parsed = parse_json_objects(texts, layout)
    (rows, table), *others = parsed.pieces
    assert (rows.tolist(), others) == ([0, 1], [])
    for column in table.columns:
        column.combine_chunks().validate(full=True)
    assert [value["t"] if value else None for value in table["o"].to_pylist()] == [2, None]
    assert (("o", "x") in parsed.undeclared) == (closed == ("o",))
