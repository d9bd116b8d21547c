"""Where the rows of keys are, from the index of a branch, beside the resolver that maintains it.

The index is opened read-only. Bound to the snapshot that is looked at, it is asked as it is. Bound
to another one, it is opened again if it has changed meanwhile; else the difference of the two
snapshots is followed in memory, whoever committed it, as the resolver would follow it on disk. Too
large a difference, or none that can be followed, is answered with the reason, and the rows are then
found by a scan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import numpy as np
import numpy.typing as npt
from pyiceberg.table.snapshots import Snapshot

from resolver.index.base import IndexBinding, IndexedFile, Matches
from resolver.index.entry import (
    KeyedRows,
    Rows,
    concat_rows,
    file_id_of,
    keyed_batches,
    position_of,
)
from resolver.index.follow import RowsToPut
from resolver.index.reader import IndexReader, current_state, open_reader
from resolver.index_keeper import head_binding, index_folder, rows_to_put, snapshot_difference
from resolver.key_reader import KeyReader
from resolver.keys import EncodedKeys, KeySchema, concat_keys, encode_keys
from resolver.number_text import plural
from resolver.shared_keeper import configured_root
from resolver.target import live_files
from tableformat.codec.parquet.reader import NAME_MAPPING_PROPERTY
from tableformat.environment import Environment
from tableformat.errors import CorruptDataError, NotFoundError, StoreUnavailableError
from tableformat.integer_order import distinct
from tableformat.lookup.locator import KeyQuery, Located, NotLocated
from tableformat.lookup.result import LookupSource
from tableformat.side_by_side import run_ahead
from tableformat.spec.names import MAIN_BRANCH
from tableformat.store.locations import requests_of

# Rows that are followed in memory. Above, a scan of what the statistics
# cannot rule out is cheaper, until the next `resolve` brings the index on.
FOLLOWED_ROWS_MAX = 200_000
OPEN_INDEXES_MAX = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class _AddedRows:
    """Rows by the hashes of their keys.

    Attributes:
        hashes: Shape `(rows,)`, ascending.
        keys: The keys, in the same order.
        rows: The rows; their file ids are the keys of `files`.
        files: The files.
    """

    hashes: npt.NDArray[np.uint64]
    keys: EncodedKeys
    rows: Rows
    files: dict[int, IndexedFile]

    @staticmethod
    def read(sources: Sequence[RowsToPut], key: KeySchema) -> _AddedRows:
        """Read the rows of some files."""

        def keyed(number: int) -> list[KeyedRows]:
            return list(keyed_batches(sources[number].read(), key, number))

        at_once = requests_of(sources[0].file.file_path) if sources else 1
        read = run_ahead(keyed, range(len(sources)), at_once=at_once)
        found = concat_rows(list(chain.from_iterable(read)))
        hashes = found.keys.hash64()
        order = np.argsort(hashes)
        return _AddedRows(
            hashes=hashes[order],
            keys=found.keys.take(order),
            rows=found.rows[order],
            files={number: source.file for number, source in enumerate(sources)},
        )

    def lookup(self, keys: EncodedKeys) -> Matches:
        """All rows of each key."""
        hashes = keys.hash64()
        begin = np.searchsorted(self.hashes, hashes, "left")
        counts = np.searchsorted(self.hashes, hashes, "right") - begin
        ordinal = np.repeat(np.arange(len(keys)), counts)
        at = np.arange(len(ordinal)) + np.repeat(begin - (np.cumsum(counts) - counts), counts)
        pairs = concat_keys([keys.take(ordinal), self.keys.take(at)])
        side_by_side = np.arange(len(pairs)).reshape(2, -1).T.ravel()
        same = ~pairs.take(side_by_side).differs_from_previous()[1::2]
        rows = self.rows[at[same]]
        file_id = file_id_of(rows)
        files = {number: self.files[number] for number in distinct(file_id).tolist()}
        return Matches(ordinal[same], file_id, position_of(rows), files)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Overlay:
    """What separates an index from another snapshot.

    Attributes:
        snapshot_id: The snapshot.
        dropped: Data files that it does not have.
        added: Rows of files that only it has, and rows that are alive again.
        reason: What the index is behind.
    """

    snapshot_id: int
    dropped: frozenset[str]
    added: _AddedRows
    reason: str


@dataclass(slots=True, kw_only=True)
class _OpenIndex:
    reader: IndexReader
    state: tuple[str, float] | None
    overlay: _Overlay | None = None


class _CannotFollowError(Exception):
    """Why; never leaves this module."""


@dataclass(slots=True)
class IndexLocator:
    """`RowLocator` over the local indexes of a catalog's tables."""

    environment: Environment
    _open: dict[Path, _OpenIndex] = field(default_factory=dict)
    _reader: tuple[object, KeyReader] | None = None

    def locate(self, query: KeyQuery) -> Located | NotLocated:
        """See `RowLocator`."""
        reader = self._key_reader(query)
        branch = self._branch(query)
        wanted = head_binding(query.state, branch, reader.key.fingerprint, query.snapshot)
        folder = index_folder(self.environment, query.state, branch, query.index)
        try:
            opened = self._opened(folder, wanted)
            if opened is None:
                return NotLocated(self._why_missing(query))
            if not opened.reader.binding.is_like(wanted):
                return NotLocated("the index is for another table or key; resolve builds it afresh")
            keys = encode_keys(query.keys.columns, reader.key)
            if opened.reader.binding.snapshot_id == wanted.snapshot_id:
                return _located([opened.reader.lookup(keys)])
            overlay = self._followed(query, opened, reader)
            return _merged(opened.reader, overlay, keys)
        except _CannotFollowError as error:
            return NotLocated(str(error))
        except CorruptDataError as error:
            if "location" in error.context:  # a data file: no index is at fault
                raise
            self._forget(folder)
            return NotLocated(f"the index cannot be read: {error}")
        except StoreUnavailableError as error:
            self._forget(folder)
            return NotLocated(f"the index cannot be read: {error}")

    def close(self) -> None:
        """See `RowLocator`."""
        for folder in list(self._open):
            self._forget(folder)

    def _why_missing(self, query: KeyQuery) -> str:
        if query.index is None and configured_root(self.environment) is not None:
            return "the index is in shared storage; 'icefold index build' makes one on this machine"
        return "there is no index yet; resolve builds it"

    def _branch(self, query: KeyQuery) -> str:
        """The branch whose index to ask: its own, else the published one's."""
        for branch in (query.branch, MAIN_BRANCH):
            if index_folder(self.environment, query.state, branch, query.index).is_dir():
                return branch
        return MAIN_BRANCH

    def _key_reader(self, query: KeyQuery) -> KeyReader:
        # What a reader holds of a version: schemas, specs (none ever changes), the name mapping.
        metadata = query.state.metadata
        schemas = metadata.current_schema_id, metadata.schemas
        specs = [spec.spec_id for spec in metadata.partition_specs]
        mapping = metadata.properties.get(NAME_MAPPING_PROPERTY)
        key = (metadata.table_uuid, *schemas, specs, mapping, query.field_ids)
        if self._reader is None or self._reader[0] != key:
            made = KeyReader(self.environment.store, metadata, query.field_ids)
            self._reader = (key, made)
        return self._reader[1]

    def _opened(self, folder: Path, wanted: IndexBinding) -> _OpenIndex | None:
        known = self._open.get(folder)
        if known is not None:
            if known.reader.binding.snapshot_id == wanted.snapshot_id:
                return known
            if known.state == current_state(folder):
                return known
            self._forget(folder)
        state = current_state(folder)
        reader = open_reader(folder, self.environment.runtime)
        if reader is None:
            return None
        while len(self._open) >= OPEN_INDEXES_MAX:
            self._forget(next(iter(self._open)))
        self._open[folder] = _OpenIndex(reader=reader, state=state)
        return self._open[folder]

    def _forget(self, folder: Path) -> None:
        known = self._open.pop(folder, None)
        if known is not None:
            known.reader.close()

    def _followed(self, query: KeyQuery, opened: _OpenIndex, reader: KeyReader) -> _Overlay:
        if opened.overlay is None or opened.overlay.snapshot_id != query.snapshot.snapshot_id:
            opened.overlay = self._follow(query, opened.reader.binding, reader)
        return opened.overlay

    def _follow(self, query: KeyQuery, bound: IndexBinding, reader: KeyReader) -> _Overlay:
        old = self._bound_snapshot(query, bound)
        live = live_files(self.environment, query.snapshot)
        try:
            difference = snapshot_difference(self.environment, query.state, old, query.snapshot)
        except NotFoundError as error:
            raise _CannotFollowError(f"the index's snapshot cannot be read ({error})") from error
        if difference.rebuild is not None:
            raise _CannotFollowError(f"the index cannot be followed: {difference.rebuild}")
        revived = sum(vector.old.record_count for vector in difference.vectors)
        rows = difference.added_rows + revived
        if rows > FOLLOWED_ROWS_MAX:
            raise _CannotFollowError(
                f"the index is {plural(rows, 'row')} behind, more than are followed in memory; "
                "run resolve"
            )
        sources = rows_to_put(self.environment.store, reader, difference, live)
        return _Overlay(
            snapshot_id=query.snapshot.snapshot_id,
            dropped=frozenset(difference.dropped),
            added=_AddedRows.read(sources, reader.key),
            reason=f"the index is at snapshot {bound.snapshot_id}; {plural(rows, 'row')} followed",
        )

    def _bound_snapshot(self, query: KeyQuery, bound: IndexBinding) -> Snapshot | None:
        if bound.snapshot_id is None:
            return None
        found = query.state.metadata.snapshot_by_id(bound.snapshot_id)
        if found is None:
            raise _CannotFollowError(
                f"the index is at snapshot {bound.snapshot_id}, which has expired; run resolve"
            )
        return found


def _merged(reader: IndexReader, overlay: _Overlay, keys: EncodedKeys) -> Located:
    on_disk = reader.lookup(keys)
    gone = [i for i, file in on_disk.files.items() if file.file_path in overlay.dropped]
    if gone:
        stays = ~np.isin(on_disk.file_id, np.array(gone, dtype=np.int64))
        on_disk = Matches(
            on_disk.key_ordinal[stays],
            on_disk.file_id[stays],
            on_disk.position[stays],
            on_disk.files,
        )
    added = overlay.added.lookup(keys)
    return _located([on_disk, added], LookupSource.FOLLOWED, overlay.reason)


def _located(
    parts: list[Matches], source: LookupSource = LookupSource.INDEX, reason: str | None = None
) -> Located:
    """Matches of several indexes as one answer; a row that both know is given once."""
    paths: dict[str, int] = {}
    files = []
    for part in parts:
        numbers = {
            file_id: paths.setdefault(file.file_path, len(paths))
            for file_id, file in part.files.items()
        }
        ids = distinct(part.file_id)
        renumbered = np.array([numbers[i] for i in ids.tolist()], dtype=np.int64)
        at = np.searchsorted(ids, part.file_id)
        files.append(renumbered[at] if len(ids) else np.empty(0, dtype=np.int64))
    rows = np.stack(
        [
            np.concatenate([part.key_ordinal for part in parts]),
            np.concatenate(files),
            np.concatenate([part.position for part in parts]),
        ]
    )
    if len(parts) > 1:
        rows = np.unique(rows, axis=1)
    return Located(
        key=rows[0],
        file=rows[1],
        position=rows[2],
        paths=tuple(paths),
        source=source,
        reason=reason,
    )
