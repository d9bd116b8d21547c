"""Where the live rows of keys are in one snapshot: by the index, else by a pruned scan."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import pyarrow as pa
from pyiceberg.table.snapshots import Snapshot

from tableformat.catalog.base import TableState
from tableformat.environment import Environment
from tableformat.lookup.keys import KeyColumns
from tableformat.lookup.locator import KeyQuery, LiveRows, Located, open_locator
from tableformat.lookup.scan_lookup import scan_for_keys
from tableformat.lookup.snapshot_rows import RowCaches, SnapshotRows
from tableformat.scan.plan import ScanPlan, plan_scan

FILE, POSITION = "_file", "_pos"


def live_rows_of_keys(
    environment: Environment,
    state: TableState,
    snapshot: Snapshot,
    branch: str,
    key: KeyColumns,
    keys: pa.Table,
) -> LiveRows:
    """The live rows of primary keys in `snapshot`, without reading the rows; NULL equals NULL.

    Args:
        environment: Where files and the index are.
        state: The table.
        snapshot: What is looked at.
        branch: The branch it is of, whose index is asked.
        key: The primary key, by the table's current schema.
        keys: One column per key column, of its type.

    Cost: with an index that of its lookup; else that of reading the key columns of the files and
    row groups whose statistics cannot rule the keys out.
    """
    schema = state.metadata.schema()
    plan = plan_scan(environment, state, snapshot_id=snapshot.snapshot_id, schema=schema)
    query = KeyQuery(
        state=state,
        snapshot=snapshot,
        branch=branch,
        index=None,
        field_ids=key.field_ids,
        keys=keys,
    )
    return _by_index(environment, plan, query) or _by_scan(environment, state, plan, key, keys)


def _by_index(environment: Environment, plan: ScanPlan, query: KeyQuery) -> LiveRows | None:
    """None: there is no index, or what it says is not of this snapshot."""
    locator = open_locator(environment)
    if locator is None:
        return None
    with closing(locator):
        located = locator.locate(query)
    if not isinstance(located, Located):
        return None
    caches = RowCaches(environment, cache_bytes=1)  # no row is read
    try:
        return _without_deleted(SnapshotRows(environment, plan, caches), located)
    finally:
        caches.close()


def _without_deleted(rows: SnapshotRows, located: Located) -> LiveRows | None:
    found = rows.by_file(located.paths, located.file, located.position)
    if found is None:
        return None
    alive = zip(found, rows.lives(found), strict=True)
    lives = [each.ordinal[live] for each, live in alive]
    live = np.concatenate([np.empty(0, dtype=np.int64), *lives])
    return LiveRows(
        key=located.key[live],
        file=located.file[live],
        position=located.position[live],
        paths=located.paths,
    )


def _by_scan(
    environment: Environment, state: TableState, plan: ScanPlan, key: KeyColumns, keys: pa.Table
) -> LiveRows:
    columns = [*key.roots, FILE, POSITION]
    table, ordinal = scan_for_keys(environment, state, plan, key, keys, columns)
    files = table.column(FILE).combine_chunks().dictionary_encode()
    return LiveRows(
        key=ordinal,
        file=np.asarray(files.indices).astype(np.int64),
        position=np.asarray(table.column(POSITION)).astype(np.int64),
        paths=tuple(files.dictionary.to_pylist()),
    )
