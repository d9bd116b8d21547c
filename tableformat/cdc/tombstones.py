"""Tombstones: null values, which Debezium sends behind each delete event.

Kafka's log compaction keeps the last message of a key, so of a delete event and its tombstone the
tombstone: whoever was away meanwhile finds that alone, and it is the delete.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tableformat.array_types import Bools, Int64s
from tableformat.cdc.events import KEY, KIND, ChangeCollector
from tableformat.cdc.message_keys import MessageKeys
from tableformat.cdc.rowkind import RowKind


def lone_tombstones(rows: Int64s, keys: MessageKeys, collector: ChangeCollector) -> Bools:
    """Which tombstones name a row, and do not stand behind the delete of it.

    Args:
        rows: The tombstones.
        keys: The events' message keys.
        collector: All changes of the batch but theirs.

    Returns:
        Shape `rows`. The first event of a batch counts as alone: a delete may be told twice.
    """
    given = collector.batch.optional(KEY)
    if given is None:
        return np.zeros(len(rows), np.bool_)
    names_row = np.ones(len(rows), np.bool_)
    for values in keys.take(rows).values():
        names_row &= values.is_valid().to_numpy(zero_copy_only=False)
    before = np.maximum(rows - 1, 0)
    same = pc.equal(*(given.take(pa.array(each)) for each in (rows, before)))
    is_behind = pc.fill_null(same, False).to_numpy(zero_copy_only=False) & (rows > 0)
    lone: Bools = names_row & ~(is_behind & _deletes_or_bad(collector)[before])
    return lone


def _deletes_or_bad(collector: ChangeCollector) -> Bools:
    """Events that delete and do nothing else, and those that are bad."""
    found = np.zeros(len(collector.batch), np.bool_)
    adds = np.zeros(len(collector.batch), np.bool_)
    for table, rows in zip(collector.tables, collector.rows, strict=True):
        is_delete = table.column(KIND).to_numpy() == RowKind.DELETE.value
        found[rows[is_delete]] = True
        adds[rows[~is_delete]] = True
    found &= ~adds
    found[list(collector.bad)] = True
    return found
