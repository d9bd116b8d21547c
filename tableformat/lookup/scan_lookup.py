"""Rows by key without an index: files and row groups that may hold a key are read and compared."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThanOrEqual,
    Or,
)

from tableformat.array_types import Int64s
from tableformat.catalog.base import TableState
from tableformat.environment import Environment
from tableformat.integer_order import stable_order
from tableformat.lookup.keys import KeyColumns
from tableformat.scan.key_set import build_key_set, plain
from tableformat.scan.plan import ScanPlan, plan_scan
from tableformat.scan.reader import read_scan, scan_schema

IN_VALUES_MAX = 200  # statistics of more values are compared by their range


def scan_for_keys(
    environment: Environment,
    state: TableState,
    plan: ScanPlan,
    key: KeyColumns,
    keys: pa.Table,
    columns: Sequence[str],
) -> tuple[pa.Table, Int64s]:
    """All live rows of the keys, and the ordinal of each row's key; NULL equals NULL.

    Args:
        environment: Where files are.
        state: The table.
        plan: Its snapshot and schema; the files are planned afresh, with the keys as a filter.
        key: The key's columns.
        keys: One column per key column, of its type.
        columns: Columns wanted; the key's roots must be among them.

    Cost: follows the files whose statistics cannot rule the keys out.
    """
    assert plan.snapshot is not None
    pruned = plan_scan(
        environment,
        state,
        snapshot_id=plan.snapshot.snapshot_id,
        row_filter=key_filter(key, keys),
        schema=plan.schema,
    )
    arrays = [column.combine_chunks() for column in keys.columns]
    wanted = build_key_set(arrays, np.arange(keys.num_rows, dtype=np.int64))
    # Of equal keys the set knows the last one; rows are repeated for the others below.
    last = wanted.newest_delete(arrays)
    found: list[pa.RecordBatch] = []
    ordinals: list[Int64s] = [np.empty(0, dtype=np.int64)]
    with closing(read_scan(environment, pruned, columns=columns)) as batches:
        for batch in batches:
            table = pa.table(batch)
            ordinal = wanted.newest_delete([key.leaf(table, at) for at in range(len(key.names))])
            hit = np.flatnonzero(ordinal >= 0)
            if hit.size:
                found.append(batch.take(pa.array(hit)))
                ordinals.append(ordinal[hit])
    rows = pa.Table.from_batches(found, scan_schema(pruned, columns=columns))
    return _repeat_for_equal_keys(rows, np.concatenate(ordinals), last)


def key_filter(key: KeyColumns, keys: pa.Table) -> BooleanExpression:
    """A filter that every row of the keys passes; without keys none does."""
    if not keys.num_rows:
        return AlwaysFalse()
    parts = [
        _column_filter(name, plain(column.combine_chunks()), column)
        for name, column in zip(key.names, keys.columns, strict=True)
    ]
    return reduce(And, parts)


def _column_filter(name: str, values: pa.Array, column: pa.ChunkedArray) -> BooleanExpression:
    if values.null_count == len(values):
        return _null(name)
    present = column.drop_null()
    if pa.types.is_timestamp(column.type):
        present = present.cast(pa.int64())  # Python's values end at microseconds, and at year 9999
    elif pa.types.is_date(column.type):
        present = present.cast(pa.int32())
    if len(values) <= IN_VALUES_MAX:
        distinct = {value.as_py() for chunk in present.chunks for value in chunk}
        matching: BooleanExpression = In(name, distinct)  # type: ignore[call-arg]
    else:
        plain_values = plain(present)
        if pa.types.is_fixed_size_binary(plain_values.type):
            return AlwaysTrue()  # Arrow does not order them
        low, high = (pc.min_max(plain_values)[bound].as_py() for bound in ("min", "max"))
        matching = And(
            GreaterThanOrEqual(name, low),  # type: ignore[call-arg]
            LessThanOrEqual(name, high),  # type: ignore[call-arg]
        )
    return Or(matching, _null(name)) if values.null_count else matching


def _null(name: str) -> BooleanExpression:
    return IsNull(name)  # type: ignore[call-arg]


def _repeat_for_equal_keys(
    rows: pa.Table, ordinal: Int64s, last: Int64s
) -> tuple[pa.Table, Int64s]:
    """One copy of a row for every key that equals its key."""
    if (last == np.arange(len(last))).all():
        return rows, ordinal
    order = stable_order(last)  # keys by the last equal one
    first = np.searchsorted(last[order], ordinal, side="left")
    counts = np.searchsorted(last[order], ordinal, side="right") - first
    row = np.repeat(np.arange(len(ordinal)), counts)
    within = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rows.take(pa.array(row)), order[np.repeat(first, counts) + within]
