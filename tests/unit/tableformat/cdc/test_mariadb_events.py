"""Real events of a MariaDB against what was written into it: never a wrong value without a word."""

from __future__ import annotations

import datetime as dt
import json
import struct
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema

from tableformat.cdc.events import KIND, ORDINAL
from tableformat.cdc.many.table_making import plan_table
from tableformat.cdc.many.table_options import TableOptions
from tableformat.cdc.rowkind import TRUNCATE, RowKind
from tests.support.change_events import parse, reasons
from tests.support.debezium_events import batch

FORMAT = "debezium-json"
UNSIGNED = 2**64 - 1
STREAMED = 100  # what ids of rows that were written after the snapshot have more


def table(topic: str, **columns: str) -> Schema:
    """The schema of the table that makes itself of a topic's first event."""
    options = {"columns": json.dumps(columns)}
    first = pa.Table.from_batches([batch(topic, "r").rows])
    return plan_table("shop.t", first, TableOptions.of(options)).schema


def rows(topic: str, wanted: str = "rc", **columns: str) -> list[dict[str, Any]]:
    parsed = parse(FORMAT, table(topic, **columns), batch(topic, wanted))
    assert reasons(parsed) == []
    return sorted(parsed.changes.to_pylist(), key=lambda row: row[ORDINAL])


def folded(topic: str, *key: str) -> dict[Any, dict[str, Any]]:
    """The rows that are left of all events, by a plain fold."""
    parsed = parse(FORMAT, table(topic), batch(topic, "crudt"), on_truncate="apply")
    assert reasons(parsed) == []
    left: dict[Any, dict[str, Any]] = {}
    for row in sorted(parsed.changes.to_pylist(), key=lambda each: each[ORDINAL]):
        if row[KIND] == TRUNCATE:
            left.clear()
        elif row[KIND] == RowKind.DELETE.value:
            del left[tuple(row[name] for name in key)]
        else:
            left[tuple(row[name] for name in key)] = row
    return left


def wkb(*numbers: float) -> bytes:
    return struct.pack("<BIdd", 1, 1, *numbers)


INTEGERS: Mapping[str, tuple[str, int, int]] = {
    "ti": ("int", -(2**7), 2**7 - 1), "tiu": ("int", 0, 2**8 - 1),
    "si": ("int", -(2**15), 2**15 - 1), "siu": ("int", 0, 2**16 - 1),
    "mi": ("int", -(2**23), 2**23 - 1), "miu": ("int", 0, 2**24 - 1),
    "i": ("int", -(2**31), 2**31 - 1), "iu": ("long", 0, 2**32 - 1),
    "bi": ("long", -(2**63), 2**63 - 1), "biu": ("decimal(20, 0)", 0, UNSIGNED),
}  # fmt: skip
NUMBERS: list[dict[str, Any]] = [
    {name: high for name, (_, _, high) in INTEGERS.items()} | {
        "bit1": True, "bit10": b"\x01\x02", "bit64": b"\xff" * 8, "boo": 1, "iz": 42,
        "d0": 9999999999, "d38": Decimal("9999999999999999999999999999.9999999999"),
        "du": Decimal("9999999999.99"), "d": 1.7976931348623157e308, "dbu": 1e300,
    },
    {name: low for name, (_, low, _) in INTEGERS.items()} | {
        "bit1": False, "bit10": b"\x01\x00", "bit64": b"\x00" * 8, "boo": 0, "iz": 0,
        "d0": -9999999999, "d38": Decimal("-9999999999999999999999999999.9999999999"),
        "du": Decimal(0), "d": -2.2250738585072014e-308, "dbu": 0,
    },
    dict.fromkeys(["bit1", "bit10", "boo", "ti", "biu", "d38", "f", "d", "f73"]),
    {"boo": 5, "tiu": 200, "siu": 40000, "miu": 9000000, "iu": 3000000000, "biu": 2**63,
     "d38": Decimal("0.0000000001"), "d": 0.1, "dbu": 4.9e-324},
    {"boo": -1, "d38": Decimal("-1.5"), "d": 0.0},
]  # fmt: skip


def test_numbers_are_those_that_were_written() -> None:
    kinds = {f.name: str(f.field_type) for f in table("my.shop.t_num").fields}
    assert {name: kinds[name] for name in INTEGERS} == {n: k for n, (k, _, _) in INTEGERS.items()}
    found = {row["id"]: row for row in rows("my.shop.t_num")}
    assert len(found) == 2 * len(NUMBERS)
    for number, expected in enumerate(NUMBERS):
        for row in (found[number], found[number + STREAMED]):
            assert {name: row[name] for name in expected} == expected
    single = struct.unpack("f", struct.pack("f", -1.1))[0]
    assert found[1]["f"] == found[1 + STREAMED]["f"] == single
    assert found[3 + STREAMED]["f"] == 16777216.0, "a float of MariaDB"


def test_unsigned_number_is_a_key_whose_changes_find_it() -> None:
    assert {k: row["v"] for k, row in folded("my.shop.t_uk", "k").items()} == {
        (0,): 1, (100,): 8, (UNSIGNED - 1,): 2, (UNSIGNED - 101,): 2,
    }  # fmt: skip


def test_keys_that_only_their_case_or_their_zeros_tell_apart_are_different_rows() -> None:
    """MariaDB takes them for the same, or not, before it writes; its log has what is stored."""
    assert {k[0]: row["v"] for k, row in folded("my.shop.t_ci", "k").items()} == {
        "ABC": 1, "a x": 13, "bBC": 77, "bü": 9, "b x ": 3,
    }  # fmt: skip
    found = {k[0]: row["v"] for k, row in folded("my.shop.t_vb", "k").items()}
    assert found == {
        b"\0\0": 1, b"\0\0\0": 2, b"\0\0\xff": 3, b"\x65\0": 1, b"\0\x64\0": 20,
    }  # fmt: skip


def test_truncate_takes_what_was_there_before() -> None:
    assert {k[0]: row["a"] for k, row in folded("my.shop.t_trunc", "id").items()} == {3: 3}


def test_texts_and_bytes_are_those_that_were_written() -> None:
    found = {row["id"]: row for row in rows("my.shop.t_text")}
    for first in (0, STREAMED):
        row = found[first]
        assert row["vc"] == "ünï 😀"
        assert (row["l1"], row["l1t"]) == ("größe €", "Š‰ÿ")
        assert (row["u2"], row["u16"], row["u3"], row["sj"]) == ("üß", "😀", "€", "日本")
        assert (row["bn"], row["vb"], row["bl"]) == (b"\1\0\0\0", b"\1\0", b"\0\1\0\0")
        assert (row["st"], row["js"]) == ("x,z w", '{"a": 1, "b": [1, 2.50, null], "ü": "😀"}')
        assert found[first + 1]["vb"] == b""
        assert found[first + 3]["vc"] == "tr  "
        assert found[first + 3]["lt"] == "ü😀" * 5000
        assert found[first + 3]["bl"] == b"\0\xff" * 500
        assert found[first + 3]["en"] == "d'e"
        assert found[first + 4]["vc"] == "a\0b"


def test_default_takes_the_place_of_no_null() -> None:
    """The connector's converter has `replace.null.with.default=false`."""
    found = {row["id"]: row for row in rows("my.shop.t_def", dti="long")}
    for row in (found[1], found[1 + STREAMED]):
        assert {name for name, value in row.items() if value is not None} == {
            "id", "nn", KIND, ORDINAL,
        }  # fmt: skip
    assert (found[0]["dn"], found[0]["dbi"], found[0]["ds"]) == (5, UNSIGNED, "x")


def test_times_are_those_that_were_written() -> None:
    found = {row["id"]: row for row in rows("my.shop.t_time", tm="long", tm3="long", tm6="long")}
    day_us = 86_400_000_000
    for first in (0, STREAMED):
        row = found[first]
        assert row["da"] == dt.date(9999, 12, 31)
        assert row["tm"] == 3_020_399_000_000
        assert row["dt6"] == dt.datetime(9999, 12, 31, 23, 59, 59, 999999)
        assert row["dt3"] == dt.datetime(9999, 12, 31, 23, 59, 59, 999000)
        assert row["ts6"] == dt.datetime(2038, 1, 19, 3, 14, 7, 999999, tzinfo=dt.UTC)
        assert row["y"] == 2155
        row = found[first + 1]
        assert row["tm6"] == -3_020_399_000_000
        assert row["dt6"] == dt.datetime(1000, 1, 1, 0, 0, 0, 1)
        assert row["ts"] == dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)
        row = found[first + 4]
        assert (row["tm6"], row["tm"]) == (-1, 0)
        assert found[first + 5]["tm"] == day_us


@pytest.mark.parametrize("kind", ["time", None])
def test_duration_that_is_no_time_of_day_is_bad_and_says_what_takes_it(kind: str | None) -> None:
    """A column of MicroTime makes itself a `time`; MariaDB's TIME goes from -838 to 838 hours."""
    schema = table("my.shop.t_time", **({"tm": kind} if kind else {}))
    assert str(schema.find_field("tm").field_type) == "time"
    found = set(reasons(parse(FORMAT, schema, batch("my.shop.t_time", "rc"))))
    assert "column 'tm': not a time of day; a column of type long takes durations" in " ".join(
        found
    )


def test_zero_dates_are_null_or_the_epoch_as_debezium_writes_them() -> None:
    """Nothing in the event tells them from others: docs/mariadb.md."""
    found = {row["id"]: row for row in rows("my.shop.t_zero", tmn="long")}
    epoch = dt.datetime(1970, 1, 1)
    for row in (found[0], found[STREAMED]):
        assert (row["da"], row["dan"]) == (None, epoch.date())
        assert (row["dt"], row["dtn"]) == (None, epoch)


def test_geometries_are_structs_with_their_wkb() -> None:
    found = {row["id"]: row for row in rows("my.shop.t_geo")}
    for first in (0, STREAMED):
        assert found[first]["pt"] == {"x": 1.5, "y": -2.0, "wkb": wkb(1.5, -2), "srid": None}
        assert found[first + 1]["pt"] is None
        assert found[first + 2]["gm"]["wkb"] == wkb(7, 8)
        assert found[first + 3]["pt"]["srid"] == 4326
