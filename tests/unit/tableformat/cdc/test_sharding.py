from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tableformat.cdc.sharding import shards_of

COLUMNS: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False, None]),
    (pa.int32(), [1, -1, None, 2**31 - 1]),
    (pa.int64(), [2**63 - 1, -(2**63), 0, None]),
    (pa.string(), ["", "a", "ab", "ba", "a\0", None, "ü"]),
    (pa.binary(), [b"", b"\0", b"\0\0", None]),
    (pa.binary(2), [b"ab", b"ba", None]),
    (pa.date32(), [dt.date(1970, 1, 1), dt.date(1969, 1, 1), None]),
    (pa.time64("us"), [dt.time(1), dt.time(2), None]),
    (pa.timestamp("us", tz="UTC"), [dt.datetime(2013, 1, 1, tzinfo=dt.UTC), None]),
    (pa.float32(), [1.5, -1.5, float("nan"), 0.0, None]),
    (pa.float64(), [1.5, 1e300, float("nan"), float("-inf"), None]),
    (pa.decimal128(20, 3), [Decimal("1.000"), Decimal("-1.000"), None]),
]


@pytest.mark.parametrize(("kind", "values"), COLUMNS)
def test_shard_depends_on_the_value_only(kind: pa.DataType, values: list[Any]) -> None:
    column = pa.array(values, kind)
    shards = shards_of([column], 1000)
    turned = shards_of([column.take(pa.array(range(len(values) - 1, -1, -1)))], 1000)
    assert shards.tolist() == turned[::-1].tolist()
    assert shards_of([column.slice(1)], 1000).tolist() == shards[1:].tolist()
    assert shards_of([pa.concat_arrays([column, column]).slice(len(values))], 1000).tolist() == (
        shards.tolist()
    )


def test_all_nans_have_one_shard() -> None:
    nans = np.array([0x7FF8000000000000, 0xFFF8000000000001, 0x7FF0000000000001], np.uint64)
    assert len(set(shards_of([pa.array(nans.view(np.float64))], 10_000).tolist())) == 1


def test_uuid_keys_have_shards() -> None:
    keys = [uuid.UUID(int=n) for n in range(100)]
    storage = pa.array([key.bytes for key in keys], pa.binary(16))
    shards = shards_of([pa.ExtensionArray.from_storage(pa.uuid(), storage)], 4)
    assert set(shards.tolist()) == {0, 1, 2, 3}


@pytest.mark.parametrize(
    "column",
    [
        pa.array(np.arange(40_000) * 1024),
        pa.array([f"customer-{n:010d}" for n in range(40_000)]),
        pa.array(np.arange(40_000) * 3_600_000_000).cast(pa.timestamp("us")),
    ],
)
def test_regular_keys_are_spread_evenly(column: pa.Array) -> None:
    counts = np.bincount(shards_of([column], 8), minlength=8)
    assert counts.min() > 4_500
    assert counts.max() < 5_500


def test_order_of_composite_columns_matters_and_all_take_part() -> None:
    a, b = pa.array(range(1000)), pa.array([str(n % 7) for n in range(1000)])
    assert shards_of([a, b], 1000).tolist() != shards_of([b, a], 1000).tolist()
    assert shards_of([a, b], 1000).tolist() != shards_of([a], 1000).tolist()


def test_shards_never_change() -> None:
    # Shards are not stored, but a rolling upgrade of executors must not split a key.
    column = pa.array(["EV", "UA", None])
    numbers = pa.array([1, 2, None])
    assert shards_of([column, numbers], 1 << 16).tolist() == [26772, 38019, 0]
