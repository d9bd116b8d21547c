from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resolver.index.base import IndexDamagedError
from resolver.index.entry import (
    FILE_ID_LIMIT,
    POSITION_LIMIT,
    file_id_of,
    pack_rows,
    position_of,
)
from resolver.index.format_1 import decode_values
from tableformat.errors import UnsupportedError


@given(st.lists(st.tuples(st.integers(0, FILE_ID_LIMIT - 1), st.integers(0, POSITION_LIMIT - 1))))
def test_rows_are_packed_without_loss_and_in_order(pairs: list[tuple[int, int]]) -> None:
    ids = np.array([pair[0] for pair in pairs], dtype=np.int64)
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


def test_cut_value_is_damage() -> None:
    with pytest.raises(IndexDamagedError, match="rebuild"):
        decode_values([b"12345678", b"1234567"])
