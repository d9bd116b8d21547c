"""Rows by values: which row has which of some values. Vectorized; a null equals nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tableformat.array_types import Int64s
from tableformat.changelog.pairing import one_array
from tableformat.changelog.value_codes import value_codes
from tableformat.integer_order import distinct_first

NOWHERE = -1


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """Rows, and for each the ordinal of the value that it has; shape `(rows,)`."""

    rows: pa.Table
    place: Int64s


@dataclass(frozen=True, slots=True)
class Versions:
    """Rows in the old version of a table and in the new one."""

    old: Found
    new: Found


def columns_of(rows: pa.Table, columns: Sequence[str], names: Sequence[str] = ()) -> pa.Table:
    """Some columns, each in one piece, under the names given or their own."""
    return pa.table([one_array(rows, name) for name in columns], names=list(names or columns))


def distinct(*parts: pa.Table) -> pa.Table:
    """The distinct rows of tables with the same columns; those with a null are left out."""
    rows = pa.concat_tables(parts).drop_null()
    codes = value_codes([one_array(rows, name) for name in rows.column_names])
    _, first = distinct_first(codes)
    return rows.take(pa.array(first))


def place_in(values: pa.Table, rows: pa.Table) -> Int64s:
    """For each row the ordinal of the value that equals it, or `NOWHERE`.

    Args:
        values: Distinct, without nulls.
        rows: The same number of columns, of the same types, in the same order.
    """
    both = pa.concat_tables([values, rows.rename_columns(values.column_names)])
    codes = value_codes([one_array(both, name) for name in both.column_names])
    count = values.num_rows
    place = np.full(int(codes.max(initial=-1)) + 1, NOWHERE, dtype=np.int64)
    place[codes[:count]] = np.arange(count)
    return place[codes[count:]]
