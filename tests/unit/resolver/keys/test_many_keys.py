"""As many keys as values, for 20 000 values of every type (I5, G12)."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.types import IcebergType

from tests.support.goals import goal
from tests.unit.resolver.keys.test_encode import ARROW, IDS, arrow_of, encode


def stored_values(arrow_type: pa.DataType, count: int) -> list[Any]:
    """Values in the type's storage: some equal, many neighbours, all magnitudes, NULLs."""
    rng = np.random.default_rng(count)
    if pa.types.is_boolean(arrow_type):
        values: list[Any] = rng.integers(2, size=count).astype(bool).tolist()
    elif pa.types.is_string(arrow_type) or arrow_type == pa.binary():
        texts = [rng.choice(list("ab\0é "), size=n) for n in rng.integers(9, size=count)]
        values = ["".join(text) for text in texts]
        if arrow_type == pa.binary():
            values = [value.encode() for value in values]
    elif pa.types.is_fixed_size_binary(arrow_type):
        rows = rng.choice([0, 1, 127, 128, 255], size=(count, arrow_type.byte_width))
        values = [bytes(row) for row in rows.tolist()]
    else:
        bits, low = 63, -1
        if pa.types.is_decimal(arrow_type):
            bits = 29 if arrow_type.precision < 10 else 126  # below 10**9 and 10**38
        elif arrow_type in (pa.int32(), pa.date32()):
            bits = 31
        elif pa.types.is_time64(arrow_type):
            bits, low = 36, 0  # below a day
        draw = random.Random(count)
        edges = [edge for n in range(bits) for edge in (2**n - 1, 2**n, 2**n + 1) if n < bits - 1]
        values = [
            draw.choice(edges) if draw.random() < 0.3 else draw.getrandbits(draw.randrange(bits))
            for _ in range(count)
        ]
        values = [draw.choice((1, low)) * value if low else value for value in values]
    return [
        None if gone else value
        for gone, value in zip(rng.random(count) < 0.01, values, strict=True)
    ]


@pytest.mark.parametrize(("field_type", "arrow_type", "values"), ARROW, ids=IDS)
def test_many_values_have_as_many_keys(
    field_type: IcebergType, arrow_type: pa.DataType, values: object
) -> None:
    rows = stored_values(arrow_type, 20_000)
    keys = encode(field_type, arrow_of(rows, arrow_type))
    pairs = set(zip(rows, keys, strict=True))
    assert len(pairs) == len(set(rows)) == len(set(keys))
    goal("G12", values=len(rows))
