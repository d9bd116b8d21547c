"""`icefold index`: what an index says, held against a full scan of what it is bound to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import numpy as np
from pyiceberg.table.snapshots import Snapshot

from resolver.index.base import IndexBinding
from resolver.index.local import LocalIndex
from resolver.index.open import open_index
from resolver.index.shared import SharedIndex
from resolver.index.verify import FileRows, VerifyReport, verify_index
from resolver.index_keeper import head_binding, index_folder
from resolver.key_reader import KeyReader
from resolver.keys import encode_batch
from resolver.position_files import read_position_file
from resolver.secondary import key_columns
from resolver.shared_keeper import configured_root, index_depot, open_here
from resolver.target import LiveFiles, live_files
from tableformat import NotFoundError, Table
from tableformat.array_types import Int64s
from tableformat.catalog.base import TableState
from tableformat.codec.puffin.deletion_vector import position_array
from tableformat.codec.puffin.dv_file import PuffinFiles
from tableformat.commit.branch_history import ancestors
from tableformat.errors import InvalidInputError
from tableformat.scan.ordered_stream import stream_ordered
from tableformat.spec.names import MAIN_BRANCH
from tableformat.store.locations import readers_of


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexCheck:
    """What a verification found.

    Attributes:
        folder: The index folder.
        snapshot_id: The snapshot that the index is bound to.
        snapshots_behind: How many snapshots the branch has committed since; None: not an ancestor.
        report: The comparison with a full scan of that snapshot.
    """

    folder: str
    snapshot_id: int | None
    snapshots_behind: int | None
    report: VerifyReport


def verify(
    table: Table,
    *,
    target: str = MAIN_BRANCH,
    name: str | None = None,
    index_location: str | None = None,
) -> IndexCheck:
    """Compare the index of a branch with a full scan of the snapshot that it is bound to.

    Args:
        table: The table. Refreshed.
        target: The branch.
        name: A secondary index; None: the primary key's.
        index_location: Where shared indexes are; None: the catalog property `index-location`, else
            the index is a local one.

    Raises:
        NotFoundError: There is no index, or its snapshot has expired.
        InvalidInputError: The index is damaged or for another key; `resolve --rebuild-index`.
        StoreUnavailableError: Another process has the index open.
    """
    table = table.refresh()
    state = table.state
    field_ids = key_columns(state, name)
    reader = KeyReader(table.environment.store, state.metadata, field_ids)
    wanted = head_binding(state, target, reader.key.fingerprint, state.head(target))
    index, place = _opened(table, target, name, index_location, wanted)
    with closing(index):
        bound = index.binding.snapshot_id
        snapshot = _bound_snapshot(state, bound)
        scan = _Scan(reader, live_files(table.environment, snapshot), table)
        report = verify_index(index, scan.rows, scan.deleted)
    chain = [s.snapshot_id for s in ancestors(state.metadata, wanted.snapshot_id)]
    return IndexCheck(
        folder=place,
        snapshot_id=bound,
        snapshots_behind=chain.index(bound) if bound in chain else None,
        report=report,
    )


def _opened(
    table: Table, target: str, name: str | None, index_location: str | None, wanted: IndexBinding
) -> tuple[LocalIndex | SharedIndex, str]:
    """The index and where it is: in shared storage if that is configured, else in a folder."""
    environment, state = table.environment, table.state
    root = (index_location or configured_root(environment)) if name is None else None
    if root is None:
        folder = index_folder(environment, state, target, name)
        local = open_index(folder, wanted, runtime=environment.runtime)
        if local.index is not None:
            return local.index, str(folder)
        place, why = str(folder), local.detail or str(local.refusal)
        is_missing = not folder.is_dir()
    else:
        depot = index_depot(environment, root, state, target)
        shared = open_here(environment, depot, wanted)
        if shared.index is not None:
            return shared.index, depot.root
        place, why, is_missing = depot.root, shared.detail, not depot.newest_number()
    raise (NotFoundError if is_missing else InvalidInputError)(
        f"there is no usable index: {why}",
        table=state.name,
        folder=place,
        action="run resolve; it builds the index",
    )


def _bound_snapshot(state: TableState, bound: int | None) -> Snapshot | None:
    """The snapshot that an index reflects; None for a branch without snapshots."""
    snapshot = None if bound is None else state.metadata.snapshot_by_id(bound)
    if bound is not None and snapshot is None:
        raise NotFoundError(
            "the snapshot that the index is bound to has gone (expired, or a catalog restored)",
            table=state.name,
            snapshot_id=bound,
            action="run icefold index build; the index then follows or is built afresh",
        )
    return snapshot


class _Scan:
    """Rows and deleted positions of one snapshot, straight from its files."""

    def __init__(self, reader: KeyReader, live: LiveFiles, table: Table) -> None:
        self._reader = reader
        self._live = live
        store, metadata = table.environment.store, table.state.metadata
        self._puffins = PuffinFiles(store)
        self._readers = readers_of(metadata.location)
        self._from_files: dict[str, Int64s] = {}
        for entry in live.position_deletes:
            for path, found in read_position_file(store, metadata, entry.data_file).items():
                known = self._from_files.get(path, np.empty(0, np.int64))
                self._from_files[path] = np.union1d(known, np.array(found, dtype=np.int64))

    def rows(self, paths: frozenset[str] | None) -> Iterator[FileRows]:
        producers = [
            partial(self._rows_of, path)
            for path in self._live.data
            if paths is None or path in paths
        ]
        with stream_ordered(producers, threads=self._readers) as found:
            yield from found

    def _rows_of(self, path: str) -> Iterator[FileRows]:
        deleted = self.deleted(path)
        for batch in self._reader.read_rows(self._live.data[path].data_file):
            position = batch.column(batch.num_columns - 1).to_numpy()
            alive = (
                np.ones(len(position), np.bool_) if deleted is None else ~np.isin(position, deleted)
            )
            keys = encode_batch(batch, self._reader.key)
            yield FileRows(path, keys.take(alive), position[alive])

    def deleted(self, path: str) -> Int64s | None:
        dv = self._live.dvs.get(path)
        if dv is None:
            return self._from_files.get(path)
        count = self._live.data[path].data_file.record_count
        return position_array(self._puffins.read([(dv.data_file, count)])[0])
