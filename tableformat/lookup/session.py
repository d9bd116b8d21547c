"""Lookups of one table: what stays open and in memory between them.

```
keys ─> key columns ─┬─ index (RowLocator) ─> (file, position) ─> deletes ─> rows ─> keys equal?
                     └─ no index, not to be trusted ─> pruned scan                       │ no
                                       ^─────────────────────────────────────────────────┘
```

An index is derived state: whatever it says is held against the snapshot (its files, its deletes)
and against the rows themselves, whose key columns are read and compared. What does not fit is not
returned; the rows are then found by a scan, and the result says so.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tableformat.array_types import Int64s
from tableformat.catalog.base import Identifier, TableState
from tableformat.codec.parquet.rows import CACHE_BYTES, ParquetRows
from tableformat.environment import Environment
from tableformat.errors import InvalidInputError
from tableformat.integer_order import stable_order
from tableformat.lookup.keys import KeyColumns, parse_keys
from tableformat.lookup.locator import KeyQuery, Located, NotLocated, RowLocator, open_locator
from tableformat.lookup.result import LookupResult, LookupSource
from tableformat.lookup.scan_lookup import scan_for_keys
from tableformat.lookup.snapshot_rows import RowCaches, RowsOfFile, SnapshotRows
from tableformat.scan.key_set import plain
from tableformat.scan.plan import plan_scan
from tableformat.scan.projection import project
from tableformat.scan.snapshot_selection import SelectedSnapshot, select_snapshot
from tableformat.spec.names import MAIN_BRANCH
from tableformat.spec.secondary_indexes import secondary_index

logger = logging.getLogger("icefold.lookup")

NO_PROVIDER = "no index is installed here"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    """One lookup, checked."""

    state: TableState
    selected: SelectedSnapshot
    branch: str
    index: str | None
    key: KeyColumns
    keys: pa.Table
    columns: tuple[str, ...]

    @property
    def read_columns(self) -> tuple[str, ...]:
        """The columns wanted, and the key's, which are compared."""
        return tuple(dict.fromkeys([*self.columns, *self.key.roots]))


class Lookup:
    """Rows of a table by key. Keep it while lookups follow each other; for several threads.

    Args:
        environment: Catalog, store, clock.
        identifier: The table.
        cache_bytes: Bound of the decoded values kept in memory.
    """

    def __init__(
        self, environment: Environment, identifier: Identifier, *, cache_bytes: int = CACHE_BYTES
    ) -> None:
        self._environment = environment
        self._identifier = identifier
        self._caches = RowCaches(environment, cache_bytes)
        self._lock = threading.Lock()
        self._head_lock = threading.Lock()
        self._head: tuple[float, TableState] | None = None
        self._locator: RowLocator | None = None
        self._is_open = False
        self._snapshot: tuple[tuple[int, int], SnapshotRows] | None = None

    def find(
        self,
        keys: Any,
        columns: Sequence[str] | None = None,
        *,
        index: str | None = None,
        branch: str | None = None,
        tag: str | None = None,
        snapshot_id: int | None = None,
        head_age_max_ms: float = 0,
    ) -> LookupResult:
        """The rows of keys; see `Table.lookup`.

        `head_age_max_ms` lets it read the version that the catalog named at most so long ago; 0
        asks the catalog. What has expired since may be gone: stay below the age of expiry.
        """
        if branch is not None and tag is not None:
            raise InvalidInputError("name a branch or a tag, not both", branch=branch, tag=tag)
        state = self._state(head_age_max_ms)
        selected = select_snapshot(
            state, snapshot_id=snapshot_id, ref=tag if branch is None else branch
        )
        key = self._key_columns(state, selected, index)
        wanted = _Wanted(
            state=state,
            selected=selected,
            branch=MAIN_BRANCH if branch is None else branch,
            index=index,
            key=key,
            keys=parse_keys(keys, key),
            columns=_result_columns(selected, columns),
        )
        if selected.snapshot is None:
            return _empty(wanted, plan_scan(self._environment, state, schema=selected.schema))
        with self._lock:
            rows = self._rows_of(wanted)
            located = self._locate(wanted)
        project(rows.plan, wanted.columns)  # unknown columns are an error before anything is read
        if isinstance(located, Located):
            result = _read(wanted, rows, located)
            if isinstance(result, LookupResult):
                return result
            logger.warning("%s: %s; rows are found by a scan", state.name, result)
            located = NotLocated(result)
        return self._scan(wanted, rows, located.reason)

    @property
    def files(self) -> ParquetRows:
        """What reads the rows; for who reads others of the same files."""
        return self._caches.files

    def close(self) -> None:
        """Release the index and forget what is cached."""
        with self._lock:
            if self._locator is not None:
                self._locator.close()
            self._locator, self._is_open, self._snapshot = None, False, None
            self._head = None
        self._caches.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _state(self, age_max_ms: float) -> TableState:
        """The table as the catalog named it at most so long ago; one thread asks for all."""
        if not age_max_ms:
            return self._environment.catalog.load_table(self._identifier)
        clock = self._environment.runtime.clock
        with self._head_lock:
            asked_ms = clock.monotonic_ms()  # before the answer, so that the age is never more
            if self._head is None or asked_ms - self._head[0] > age_max_ms:
                self._head = (asked_ms, self._environment.catalog.load_table(self._identifier))
            return self._head[1]

    def _key_columns(
        self, state: TableState, selected: SelectedSnapshot, index: str | None
    ) -> KeyColumns:
        if index is None:
            ids = state.required_key_ids("look up by key in")
            return KeyColumns.of(selected.schema, ids, what="the primary key")
        ids = secondary_index(state.metadata, index).field_ids
        return KeyColumns.of(selected.schema, ids, what=f"index {index}")

    def _rows_of(self, wanted: _Wanted) -> SnapshotRows:
        snapshot = wanted.selected.snapshot
        assert snapshot is not None
        key = (snapshot.snapshot_id, wanted.selected.schema.schema_id)
        if self._snapshot is None or self._snapshot[0] != key:
            plan = plan_scan(
                self._environment,
                wanted.state,
                snapshot_id=snapshot.snapshot_id,
                schema=wanted.selected.schema,
            )
            self._snapshot = (key, SnapshotRows(self._environment, plan, self._caches))
        return self._snapshot[1]

    def _locate(self, wanted: _Wanted) -> Located | NotLocated:
        if not self._is_open:
            self._locator = open_locator(self._environment)
            self._is_open = True
        if self._locator is None:
            return NotLocated(NO_PROVIDER)
        assert wanted.selected.snapshot is not None
        return self._locator.locate(
            KeyQuery(
                state=wanted.state,
                snapshot=wanted.selected.snapshot,
                branch=wanted.branch,
                index=wanted.index,
                field_ids=wanted.key.field_ids,
                keys=wanted.keys,
            )
        )

    def _scan(self, wanted: _Wanted, rows: SnapshotRows, reason: str) -> LookupResult:
        table, key = scan_for_keys(
            self._environment,
            wanted.state,
            rows.plan,
            wanted.key,
            wanted.keys,
            wanted.read_columns,
        )
        return _result(wanted, table, key, LookupSource.SCAN, reason)


def _result_columns(selected: SelectedSnapshot, columns: Sequence[str] | None) -> tuple[str, ...]:
    if columns is None:
        return tuple(field.name for field in selected.schema.fields)
    return (columns,) if isinstance(columns, str) else tuple(columns)


def _read(wanted: _Wanted, rows: SnapshotRows, located: Located) -> LookupResult | str:
    """The rows at what was located; a line of text when that is not where they are."""
    files = _live_rows(rows, located)
    if files is None:
        return "the index names a file or a row that the snapshot does not have"
    table, ordinal = rows.read(files, wanted.read_columns)
    if not _keys_equal(wanted, table, located.key[ordinal]):
        return "the index leads to rows of other keys"
    return _result(wanted, table, located.key[ordinal], located.source, located.reason)


def _live_rows(rows: SnapshotRows, located: Located) -> list[RowsOfFile] | None:
    found = rows.by_file(located.paths, located.file, located.position)
    if found is None:
        return None
    lives = list(zip(found, rows.lives(found), strict=True))
    return [
        RowsOfFile(each.task, each.position[live], each.ordinal[live])
        for each, live in lives
        if live.any()
    ]


def _keys_equal(wanted: _Wanted, table: pa.Table, key: Int64s) -> bool:
    ordinals = pa.array(key)
    for at in range(len(wanted.key.names)):
        found = plain(wanted.key.leaf(table, at))
        asked = plain(wanted.keys.column(at)).take(ordinals)
        equal = pc.fill_null(pc.equal(found, asked), fill_value=False)
        both_null = pc.and_(pc.is_null(found), pc.is_null(asked))
        if not pc.all(pc.or_(equal, both_null), min_count=0).as_py():
            return False
    return True


def _result(
    wanted: _Wanted, table: pa.Table, key: Int64s, source: LookupSource, reason: str | None
) -> LookupResult:
    order: npt.NDArray[np.int64] = stable_order(key)
    if not (order == np.arange(len(order))).all():
        table, key = table.take(pa.array(order)), key[order]
    assert wanted.selected.snapshot is not None
    return LookupResult(
        rows=table.select(list(wanted.columns)),
        key=key,
        key_count=wanted.keys.num_rows,
        source=source,
        reason=reason,
        snapshot_id=wanted.selected.snapshot.snapshot_id,
    )


def _empty(wanted: _Wanted, plan: Any) -> LookupResult:
    return LookupResult(
        rows=project(plan, wanted.columns).arrow_schema.empty_table(),
        key=np.empty(0, dtype=np.int64),
        key_count=wanted.keys.num_rows,
        source=LookupSource.SCAN,
        reason="the table is empty",
        snapshot_id=None,
    )
