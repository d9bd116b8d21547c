"""Orders of any type, with nulls, in memory and through buckets on disk: as Python sorts them."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from tableformat.write.order_bits import order_bits
from tableformat.write.ordering import Ordering, SortColumn, ordered

DRAW = random.Random(7)
COUNT = 3_000


def values(make, nulls=0.1):
    return [None if DRAW.random() < nulls else make() for _ in range(COUNT)]


COLUMNS = {
    "few": pa.array(values(lambda: DRAW.choice(["eu", "us", "", "europe-west", "europe-east"]))),
    "wide": pa.array(values(lambda: DRAW.randint(-(2**62), 2**62)), pa.int64()),
    "real": pa.array(values(lambda: DRAW.uniform(-5, 5)), pa.float64()),
    "price": pa.array(
        values(lambda: Decimal(DRAW.randint(-(10**6), 10**6)) / 100), pa.decimal128(12, 2)
    ),
    "exact": pa.array(values(lambda: DRAW.randint(-50, 50), nulls=0), pa.int32()),
    "time": pa.array(
        values(lambda: dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=DRAW.randint(-9, 9)), 0),
        pa.timestamp("us"),
    ),
    "day": pa.array(values(lambda: dt.date(2020, 1, 1 + DRAW.randrange(28)))),
    "raw": pa.array(values(lambda: DRAW.randbytes(DRAW.randint(0, 12))), pa.binary()),
    "flag": pa.array(values(lambda: DRAW.random() < 0.5)),
}
TABLE = pa.table({**COLUMNS, "at": pa.array(range(COUNT))})


def run(columns, *, is_z_order=False, memory_bytes=1 << 40):
    batches = TABLE.to_batches(max_chunksize=113)
    order = Ordering(columns=columns, is_z_order=is_z_order)

    def read(names):
        return iter(TABLE.select(list(names)).to_batches(max_chunksize=97))

    found = ordered(order, iter(batches), read, rows=COUNT, memory_bytes=memory_bytes)
    return pa.Table.from_batches(found)


def _with_nulls(column):
    name = column.path[0]
    known = sorted(set(TABLE[name].drop_null().to_pylist()))
    ranks = {value: rank for rank, value in enumerate(known)}

    def key(row):
        if row[name] is None:
            return -1 if column.nulls_first else len(ranks)
        rank = ranks[row[name]]
        return len(ranks) - 1 - rank if column.descending else rank

    return key


@pytest.mark.parametrize("memory_bytes", [1 << 40, 20_000], ids=["memory", "buckets"])
@pytest.mark.parametrize(
    "names",
    [
        ["few", "wide"],
        ["flag", "few", "price"],
        ["wide"],
        ["raw"],
        ["day", "real"],
        ["price"],
        ["exact"],
        ["time"],
    ],
)
@pytest.mark.parametrize("descending", [False, True])
def test_rows_come_in_the_order_that_python_gives(memory_bytes, names, descending):
    columns = tuple(
        SortColumn(path=(name,), descending=descending, nulls_first=not descending)
        for name in names
    )
    found = run(columns, memory_bytes=memory_bytes)
    assert found.num_rows == COUNT
    assert sorted(found["at"].to_pylist()) == list(range(COUNT))
    keys = [_with_nulls(column) for column in columns]
    ranks = [tuple(key(row) for key in keys) for row in found.to_pylist()]
    assert ranks == sorted(ranks)


def test_z_order_keeps_rows_and_brings_neighbours_together():
    columns = (SortColumn(path=("wide",)), SortColumn(path=("real",)))
    in_memory = run(columns, is_z_order=True)
    by_buckets = run(columns, is_z_order=True, memory_bytes=20_000)
    for found in (in_memory, by_buckets):
        assert sorted(found["at"].to_pylist()) == list(range(COUNT))
        # A quarter of the rows spans about half of each column's range, not all of it.
        for name in ("wide", "real"):
            part = np.array(found[name].drop_null().to_pylist()[: COUNT // 5], dtype=float)
            whole = np.array(found[name].drop_null().to_pylist(), dtype=float)
            assert np.ptp(part) < 0.8 * np.ptp(whole)


@pytest.mark.parametrize("name", list(COLUMNS))
def test_order_bits_never_contradict_the_values(name):
    bits = order_bits(TABLE[name])
    known = [(v, k) for v, k, ok in zip(TABLE[name].to_pylist(), bits.keys.tolist(),
                                        bits.valid.tolist(), strict=True) if ok]  # fmt: skip
    known.sort(key=lambda pair: pair[0])
    keys = [key for _, key in known]
    assert keys == sorted(keys)
    if bits.is_exact:
        assert len(set(keys)) == len({value for value, _ in known})
