from __future__ import annotations

import random
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest

from tableformat.scan.equality_deletes import _KeyParts
from tableformat.scan.key_set import build_key_set

KINDS: dict[pa.DataType, list] = {
    pa.int64(): [None, 0, -1, 5, 5 + 2**32, 2**63 - 1],
    pa.string(): [None, "", "a", "a\0", "ab", "é", "e\u0301"],
    pa.binary(): [None, b"", b"\0", b"a"],
    pa.bool_(): [None, True, False],
    pa.date32(): [None, date(1969, 12, 31), date(2020, 1, 1)],
    pa.timestamp("us", "UTC"): [
        None,
        datetime(2020, 1, 1, tzinfo=UTC),
        datetime(1960, 1, 1, tzinfo=UTC),
    ],
    pa.decimal128(20, 2): [None, Decimal("1.00"), Decimal("-1.00"), Decimal("123456789012345.67")],
    pa.uuid(): [None, UUID(int=0).bytes, UUID(int=2**127).bytes],
    pa.binary(2): [None, b"ab", b"\0\0"],
}


def naive(deleted: list[tuple], sequences: list[int], rows: list[tuple]) -> list[int]:
    newest: dict[tuple, int] = {}
    for key, sequence in zip(deleted, sequences, strict=True):
        newest[key] = max(sequence, newest.get(key, -1))
    return [newest.get(row, -1) for row in rows]


def columns(kinds: list[pa.DataType], rows: list[tuple]) -> list[pa.Array]:
    return [pa.array([row[at] for row in rows], kind) for at, kind in enumerate(kinds)]


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("compact_rows", [4 << 20, 3])
def test_lookup_finds_the_newest_delete_of_every_key(seed: int, compact_rows: int) -> None:
    rng = random.Random(seed)
    kinds = rng.choices(list(KINDS), k=rng.randint(1, 4))
    deleted = [tuple(rng.choice(KINDS[kind]) for kind in kinds) for _ in range(rng.randint(0, 30))]
    sequences = [rng.randint(1, 9) for _ in deleted]
    rows = [tuple(rng.choice(KINDS[kind]) for kind in kinds) for _ in range(50)]
    parts = _KeyParts(len(kinds))
    parts._limit = compact_rows
    for key, sequence in zip(deleted, sequences, strict=True):
        parts.add(columns(kinds, [key]), sequence)
        parts._limit = compact_rows
    found = parts.finish().newest_delete(columns(kinds, rows))
    assert found.tolist() == naive(deleted, sequences, rows)


def test_composite_keys_that_concatenate_alike_differ() -> None:
    keys = build_key_set([pa.array(["a", "ab"]), pa.array(["bc", "d"])], np.array([1, 1]))
    found = keys.newest_delete([pa.array(["ab", "a", "ab"]), pa.array(["c", "bc", "d"])])
    assert found.tolist() == [-1, 1, 1]


def test_chunked_columns_are_looked_up_whole() -> None:
    keys = build_key_set([pa.chunked_array([[1], [2, 1]])], np.array([3, 4, 5]))
    assert len(keys) == 2
    assert keys.newest_delete([pa.chunked_array([[2], [9], [1]])]).tolist() == [4, -1, 5]
