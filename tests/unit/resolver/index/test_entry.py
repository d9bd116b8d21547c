from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resolver.index.base import IndexDamagedError
from resolver.index.entry import (
    FILE_ID_LIMIT,
    POSITION_LIMIT,
    decode_values,
    encode_values,
    file_id_of,
    pack_rows,
    position_of,
)
from tableformat.errors import UnsupportedError


@given(st.lists(st.tuples(st.integers(0, FILE_ID_LIMIT - 1), st.integers(0, POSITION_LIMIT - 1))))
def test_rows_are_packed_without_loss_and_in_order(pairs: list[tuple[int, int]]) -> None:
    ids = np.array([pair[0] for pair in pairs], dtype=np.int32)
    positions = np.array([pair[1] for pair in pairs], dtype=np.int64)
    rows = pack_rows(ids, positions)
    assert file_id_of(rows).tolist() == ids.tolist()
    assert position_of(rows).tolist() == positions.tolist()
    assert np.argsort(rows, kind="stable").tolist() == sorted(
        range(len(pairs)), key=pairs.__getitem__
    )


@pytest.mark.parametrize("position", [-1, POSITION_LIMIT])
def test_position_out_of_range_is_refused(position: int) -> None:
    with pytest.raises(UnsupportedError):
        pack_rows(0, np.array([0, position]))


@given(st.lists(st.lists(st.integers(0, 2**63), max_size=3, unique=True).map(sorted)))
def test_values_decode_to_what_was_encoded(rows_by_key: list[list[int]]) -> None:
    key = np.repeat(np.arange(len(rows_by_key)), [len(rows) for rows in rows_by_key])
    rows = np.array([row for rows in rows_by_key for row in rows], dtype=np.uint64)
    values = encode_values(key, rows, len(rows_by_key))
    assert [len(value) for value in values] == [8 * len(rows) for rows in rows_by_key]
    found_key, found = decode_values(values)
    assert found_key.tolist() == key.tolist()
    assert found.tolist() == rows.tolist()


def test_value_has_golden_bytes() -> None:
    """On disk: file id 5, position 6, little-endian."""
    (value,) = encode_values(np.array([0]), pack_rows(5, np.array([6])), 1)
    assert value.hex() == "0600000050000000"


def test_cut_value_is_damage() -> None:
    with pytest.raises(IndexDamagedError, match="rebuild"):
        decode_values([b"12345678", b"1234567"])
