"""Debezium's placeholder for a large value that an update did not touch (PostgreSQL's TOAST).

The database's log does not have the value, so the event cannot either. It is never stored as if it
were data: it is taken from `before` (replica identity FULL), else the event is a bad record.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

RowNumbers = npt.NDArray[np.int64]


def fill_placeholders(
    after: Mapping[str, pa.Array],
    before: Mapping[str, pa.Array],
    *,
    placeholder: str,
    keep_null: bool,
    rows: RowNumbers,
    bad: dict[int, str],
) -> dict[str, pa.Array]:
    """Replace placeholders in wire columns.

    Args:
        after: Wire columns of the new rows, each of shape `(len(rows),)`.
        before: The same of the old rows, null where there is none.
        placeholder: The connector's `unavailable.value.placeholder`.
        keep_null: Put null where `before` has no value either, instead of reporting the event.
        rows: The event of each row.
        bad: Receives events whose value is nowhere.
    """
    filled = dict(after)
    for name, values in after.items():
        stands = _is_placeholder(values, placeholder)
        if stands is None or not pc.any(stands, min_count=0).as_py():
            continue
        old = before[name]
        usable = old.is_valid()
        old_stands = _is_placeholder(old, placeholder)
        if old_stands is not None:
            usable = pc.and_(usable, pc.invert(old_stands))
        absent = pa.nulls(len(values), values.type)
        if old.type == values.type:
            replacement = pc.if_else(usable, old, absent)
        else:
            replacement, usable = absent, pa.array(np.zeros(len(values), np.bool_))
        filled[name] = pc.if_else(stands, replacement, values)
        lost = pc.and_(stands, pc.invert(usable)).to_numpy(zero_copy_only=False)
        if not keep_null:
            for place in np.flatnonzero(lost).tolist():
                reason = f"column '{name}' is unavailable: it did not change, and 'before' lacks it"
                bad.setdefault(int(rows[place]), reason)
    return filled


def _is_placeholder(values: pa.Array, placeholder: str) -> pa.BooleanArray | None:
    """Which values are the placeholder; None where the type cannot hold it. Never null."""
    if pa.types.is_string(values.type):
        # Binary columns and precise decimals carry the placeholder's bytes.
        encoded = base64.b64encode(placeholder.encode()).decode()
        texts = [placeholder, encoded, placeholder.encode().hex()]
        return pc.is_in(values, pa.array(texts))
    if pa.types.is_list(values.type) and pa.types.is_string(values.type.value_type):
        single = pc.fill_null(pc.equal(pc.list_value_length(values), 1), False)
        first = pc.list_element(pc.if_else(single, values, pa.scalar([None], values.type)), 0)
        return pc.fill_null(pc.equal(first, placeholder), False)
    return None
