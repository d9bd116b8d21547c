"""Statements that write a primary key must not give one to a second row.

```
new rows' files ─> keys, how many rows each ─┐
                                             ├─> rows per key, before and after ─> refused where
rows of these keys in the snapshot read ─────┘   (without the rows that go)        > 1 and > before
```

Checked once against the snapshot that the statement read, and again before every attempt of the
commit against the head it is to follow, when that is another one. So what a statement commits gives
no key a second row on that branch, at every isolation level. What lands later is its own writer's
business: `append` never looks, another statement checks again, a staged change replaces the row.

Keys that have several rows already may keep as many: a statement is held to what it adds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyiceberg.table.snapshots import Snapshot

from tableformat.array_types import Int64s
from tableformat.catalog.base import TableState
from tableformat.codec.puffin.deletion_vector import Positions, build_positions, position_array
from tableformat.environment import Environment
from tableformat.errors import CommitConflictError, InvalidInputError
from tableformat.lookup.keys import KeyColumns, parse_keys
from tableformat.lookup.live_rows import live_rows_of_keys
from tableformat.lookup.locator import LiveRows
from tableformat.lookup.written_rows import number_keys, read_written
from tableformat.rowlevel.planning import OperationPlan
from tableformat.spec.arrow_arrays import python_rows
from tableformat.spec.data_file import DataFile
from tableformat.spec.names import CHECK_PRIMARY_KEY
from tableformat.spec.properties import property_bool
from tableformat.sql.statement import RowLevelOperation

_CANNOT_CHANGE = "the statement would give a primary key to more than one row"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeyCheck:
    """The keys that a statement writes, each once, and the rows that go.

    Attributes:
        environment: Where files and the index are.
        plan: The statement.
        key: The primary key.
        keys: One column per key column; no key twice.
        counts: Shape `(keys,)`: new rows of each key.
        gone: Positions of rows that go, by data file path.
    """

    environment: Environment
    plan: OperationPlan
    key: KeyColumns
    keys: pa.Table
    counts: Int64s
    gone: Mapping[str, Positions]

    def check(self) -> None:
        """Hold the keys against the snapshot that the statement read.

        Raises:
            InvalidInputError: A key would have more rows than before, and more than one.
        """
        found = self._too_many(self.plan.state, self.plan.scan.snapshot)
        if found.size:
            raise InvalidInputError(
                _CANNOT_CHANGE,
                action=f"change the statement, or set {CHECK_PRIMARY_KEY}=false on the table",
                **self._context(found),
            )

    def check_head(self, state: TableState) -> None:
        """Hold the keys against the branch's head, if it moved since the statement read it.

        Raises:
            CommitConflictError: Rows of a key have landed since.
        """
        head = state.head(self.plan.context.branch)
        if head is None or head.snapshot_id == self.plan.context.target.snapshot_id:
            return
        found = self._too_many(state, head)
        if found.size:
            raise CommitConflictError(
                f"{_CANNOT_CHANGE}, with what landed since its scan",
                action="run it again on the current head",
            ).with_context(branch=self.plan.context.branch, **self._context(found))

    def _too_many(self, state: TableState, snapshot: Snapshot | None) -> Int64s:
        """Ordinals of keys that would have more than one row, and more than they have."""
        none = np.zeros(len(self.counts), dtype=np.int64)
        if snapshot is None:
            before = stays = none
        else:
            rows = self._rows(state, snapshot)
            before = np.bincount(rows.key, minlength=len(none))
            stays = before - np.bincount(rows.key[self._is_gone(rows)], minlength=len(none))
        after = stays + self.counts
        return np.flatnonzero((after > 1) & (after > before))

    def _rows(self, state: TableState, snapshot: Snapshot) -> LiveRows:
        """Columns may have been renamed or widened since the statement was planned."""
        key = KeyColumns.of(state.metadata.schema(), self.key.field_ids, what="the primary key")
        keys = parse_keys(self.keys.rename_columns(list(key.names)), key)
        branch = self.plan.context.branch
        return live_rows_of_keys(self.environment, state, snapshot, branch, key, keys)

    def _is_gone(self, rows: LiveRows) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        is_gone = np.zeros(len(rows.key), dtype=np.bool_)
        for ordinal in np.unique(rows.file).tolist():
            gone = self.gone.get(rows.paths[ordinal])
            if gone is None:
                continue
            of_file = np.flatnonzero(rows.file == ordinal)
            position = rows.position[of_file]
            both = build_positions(position) & gone
            is_gone[of_file] = np.isin(position, position_array(both))
        return is_gone

    def _context(self, found: Int64s) -> dict[str, str]:
        [example] = python_rows(self.keys.slice(int(found[0]), 1))
        return {
            "table": self.plan.state.name,
            "statement": self.plan.context.operation.upper(),
            "key": ", ".join(f"{name}={value!r}" for name, value in example.items()),
            "keys": str(len(found)),
        }


def key_check(
    environment: Environment,
    plan: OperationPlan,
    written: Sequence[DataFile],
    gone: Mapping[str, Positions],
) -> KeyCheck | None:
    """What to check; None when the statement writes no key, or the table's property says not to.

    Args:
        environment: Where files are.
        plan: The statement.
        written: Files of rows that come; their key columns are read.
        gone: Positions of rows that go, by data file path.

    Raises:
        InvalidInputError: The property is neither true nor false.
    """
    metadata = plan.state.metadata
    ids = plan.state.key_ids
    checks = property_bool(metadata.properties, CHECK_PRIMARY_KEY, default=True)
    if not ids or not written or not checks:
        return None
    key = KeyColumns.of(metadata.schema(), ids, what="the primary key")
    if not _writes_key(plan, key):
        return None
    keys = read_written(environment, metadata, key, written)
    distinct, counts = np.unique(number_keys(keys), return_counts=True)
    return KeyCheck(
        environment=environment,
        plan=plan,
        key=key,
        keys=keys.take(pa.array(distinct)),
        counts=counts,
        gone=gone,
    )


def _writes_key(plan: OperationPlan, key: KeyColumns) -> bool:
    if plan.context.operation == RowLevelOperation.DELETE:
        return False
    return plan.context.inserts_rows or not set(key.roots).isdisjoint(plan.context.updated_columns)
