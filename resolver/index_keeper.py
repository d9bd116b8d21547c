"""Keeps a local index of a target branch in step with its head.

Bound to the head: used as it is. Bound to another snapshot that can still be read: it follows the
difference of the two, whoever committed in between, also over a rollback. Missing, damaged, for
another key, or bound to a snapshot that is gone: built afresh from the head. A lost index costs
time, never rows.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.table.snapshots import Snapshot
from pyroaring import BitMap64

from resolver.index.base import IndexBinding, IndexedFile, PrimaryKeyIndex
from resolver.index.build import BuildOptions, BuildProgress, SourceFile, build_index
from resolver.index.entry import POSITION_COLUMN
from resolver.index.follow import (
    ChangedVector,
    RowsToPut,
    TableDifference,
    changes_to_follow,
    table_difference,
)
from resolver.index.local import LocalIndex
from resolver.index.open import open_index
from resolver.key_reader import KeyReader
from resolver.open_indexes import OpenIndexes
from resolver.target import LiveFiles, live_entries
from resolver.target_deletes import deleted_positions
from tableformat.catalog.base import TableState
from tableformat.codec.avro.manifest_store import (
    load_manifest_list,
    note_manifests,
    recall_manifests,
)
from tableformat.codec.puffin.deletion_vector import position_array
from tableformat.codec.puffin.dv_file import PuffinFiles
from tableformat.commit.branch_history import is_ancestor
from tableformat.environment import Environment
from tableformat.errors import CorruptDataError, InvalidInputError, NotFoundError
from tableformat.spec.data_file import DataFile, ManifestEntry
from tableformat.store.base import ObjectStore
from tableformat.store.locations import home_path, local_path
from tableformat.write.row_deletes import has_vectors

logger = logging.getLogger("icefold.resolver")

INDEX_DIRECTORY = "index-directory"
# In an index's folder; an older icefold, too, builds in one that holds files called so.
MANIFEST_NOTES = "CURRENT.manifests"
FILE_NOTES = "CURRENT.files"
WAREHOUSE_FOLDER = ".icefold/index"
# A row that an index has to follow costs about four times one that a build reads (sorted, by all
# cores, without look-ups): after a compaction of half a table a build is done sooner.
FOLLOW_TO_BUILD = 4
FOLLOWED_ROWS_MIN = 200_000

Progress = Callable[[BuildProgress], None]


def index_folder(
    environment: Environment, state: TableState, target: str, name: str | None = None
) -> Path:
    """Where the index of one branch of one table lives; `name` is a secondary index.

    The catalog property `index-directory`, else `.icefold/index` in a local warehouse, else the
    user's cache folder. By table uuid, so a table of the same name made later has its own.

    Raises:
        InvalidInputError: The property is the address of a bucket.
    """
    properties = environment.catalog.properties
    root = properties.get(INDEX_DIRECTORY)
    if root is not None and root.startswith("file:"):
        root = local_path(root)
    elif root is not None and "://" in root:
        raise InvalidInputError(
            "a local index is in a folder of this machine",
            action="index-location is for indexes in a bucket",
            key=INDEX_DIRECTORY,
            value=root,
        )
    warehouse = properties.get("warehouse", "")
    if root is None and warehouse.startswith(("file:", "/")):
        root = str(Path(local_path(warehouse)) / WAREHOUSE_FOLDER)
    if root is None:
        root = str(user_cache() / "index")
    # Quoting leaves no @ in a branch's name.
    folder = quote(target, safe="") + ("" if name is None else f"@{name}")
    return Path(root) / str(state.metadata.table_uuid) / folder


def user_cache() -> Path:
    """The folder for copies and indexes that have no place of their own.

    Raises:
        InvalidInputError: There is no home folder.
    """
    return Path(os.environ.get("XDG_CACHE_HOME") or home_path("~/.cache")) / "icefold"


def note_seen(environment: Environment, folder: Path, live: LiveFiles | None) -> None:
    """Note what was read of manifests, for a later process.

    Effects: as `note_manifests`; where the folder cannot be written, nothing: it would have saved
    time.
    """
    if live is not None:
        with suppress(OSError):
            note_manifests(environment.store, folder / MANIFEST_NOTES, live.manifests)


@dataclass(slots=True)
class LocalIndexKeeper:
    """`IndexKeeper` over a folder. Close it: it holds the folder's lock.

    Attributes:
        environment: Where data files are read.
        folder: The index folder.
        rebuild: Build afresh once, whatever is there.
        progress: Told how far a build is.
        field_ids: The indexed columns; None: the primary key.
        indexes: Where the index stays open; None: it is closed.
    """

    environment: Environment
    folder: Path
    rebuild: bool = False
    progress: Progress | None = None
    field_ids: tuple[int, ...] | None = None
    indexes: OpenIndexes | None = None
    _index: LocalIndex | None = field(default=None, init=False)
    _live: LiveFiles | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.field_ids is None:
            recall_manifests(self.environment.store, self.folder / MANIFEST_NOTES)

    def close(self) -> None:
        """Release the index and its folder; for a later process, note what was read."""
        if self._index is not None and self.indexes is not None:
            self._note_seen()
            self.indexes.keep(self.folder, self._index)
            self._index = None
        self._close_index()

    def _close_index(self) -> None:
        if self._index is not None:
            self._note_seen()
            self._index.close()
            self._index = None

    def _note_seen(self) -> None:
        if self.field_ids is None:
            note_seen(self.environment, self.folder, self._live)

    def at_head(
        self, state: TableState, target: str, live: LiveFiles, *, rebuild: bool = False
    ) -> tuple[PrimaryKeyIndex, str]:
        """See `IndexKeeper`."""
        self.rebuild = self.rebuild or rebuild
        self._live = live
        head = TargetHead.of(self.environment, state, target, live, field_ids=self.field_ids)
        return bring_to_head(head, self._opened(head.wanted), self._build, name=str(self.folder))

    def _opened(self, wanted: IndexBinding) -> LocalIndex | None:
        if self._index is None and self.indexes is not None:
            self._index = self.indexes.take(self.folder, wanted)
        if self.rebuild:
            return None
        if self._index is None:
            opened = open_index(self.folder, wanted, runtime=self.environment.runtime)
            if opened.index is None and opened.detail:
                logger.info("index %s: %s (%s)", self.folder, opened.refusal, opened.detail)
            self._index = opened.index
        return self._index

    def _build(self, head: TargetHead) -> LocalIndex:
        self._close_index()
        self._index = build_index(
            self.folder,
            head.wanted,
            head.reader.key,
            head.sources(),
            runtime=self.environment.runtime,
            options=BuildOptions.of_table(head.state.metadata.location),
            progress=self.progress,
        )
        self.rebuild = False
        return self._index


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetHead:
    """The head of a target branch, as an index sees it.

    Attributes:
        environment: Where files are read.
        state: The table version.
        snapshot: The head; None for a branch without snapshots.
        live: Its live files.
        reader: Reads the key.
        wanted: What an index of it is bound to.
    """

    environment: Environment
    state: TableState
    snapshot: Snapshot | None
    live: LiveFiles
    reader: KeyReader
    wanted: IndexBinding

    @staticmethod
    def of(
        environment: Environment,
        state: TableState,
        target: str,
        live: LiveFiles,
        *,
        field_ids: tuple[int, ...] | None = None,
    ) -> TargetHead:
        """The head of `target`, whose live files are `live`; None: the primary key's columns."""
        ids = field_ids or sorted(state.metadata.schema().identifier_field_ids)
        reader = KeyReader(environment.store, state.metadata, ids)
        snapshot = state.head(target)
        return TargetHead(
            environment=environment,
            state=state,
            snapshot=snapshot,
            live=live,
            reader=reader,
            wanted=head_binding(state, target, reader.key.fingerprint, snapshot),
        )

    def sources(self) -> list[SourceFile]:
        """Every live data file, to build an index from."""
        store, live = self.environment.store, self.live
        metadata, puffins = self.state.metadata, PuffinFiles(store)
        by_files = (  # v2's delete files: each may name many data files
            {} if has_vectors(metadata) else deleted_positions(store, metadata, live, live.data)
        )
        return [
            SourceFile(
                file=indexed_file(entry.data_file),
                record_count=entry.data_file.record_count,
                read=partial(
                    _live_rows,
                    puffins,
                    self.reader,
                    entry.data_file,
                    live.dvs.get(path),
                    by_files.get(path),
                ),
            )
            for path, entry in live.data.items()
        ]


def snapshot_difference(
    environment: Environment, state: TableState, old: Snapshot | None, new: Snapshot | None
) -> TableDifference:
    """What has changed from one snapshot to another. Reads the manifests that one of them has."""
    store = environment.store
    lists = [[] if each is None else load_manifest_list(store, each) for each in (old, new)]
    both = {m.manifest_path for m in lists[0]} & {m.manifest_path for m in lists[1]}
    only_old, only_new = ([m for m in each if m.manifest_path not in both] for each in lists)
    is_forward = old is None or (
        new is not None and is_ancestor(state.metadata, old.snapshot_id, of=new.snapshot_id)
    )
    return table_difference(
        live_entries(store, only_old),
        live_entries(store, only_new),
        is_forward=is_forward,
    )


def bring_to_head(
    head: TargetHead,
    index: PrimaryKeyIndex | None,
    build: Callable[[TargetHead], PrimaryKeyIndex],
    *,
    name: str,
) -> tuple[PrimaryKeyIndex, str]:
    """Use an index as it is, let it follow, or build it; and say which.

    Args:
        head: Where to.
        index: What is there; None: nothing that can be used.
        build: Builds it afresh.
        name: Where the index lives, for the log.
    """
    if index is None:
        return build(head), "built"
    if index.binding.snapshot_id == head.wanted.snapshot_id:
        return index, "current"
    why_not = _follow(index, head)
    if why_not is None:
        return index, "followed"
    logger.info("index %s: built afresh: %s", name, why_not)
    return build(head), "built"


def _follow(index: PrimaryKeyIndex, head: TargetHead) -> str | None:
    """Bring an index to the head; returns why that cannot be done, None when it is."""
    bound = index.binding.snapshot_id
    old = None if bound is None else head.state.metadata.snapshot_by_id(bound)
    if bound is not None and old is None:
        return f"snapshot {bound}, which it reflects, has gone (expired, or a catalog restored)"
    try:
        difference = snapshot_difference(head.environment, head.state, old, head.snapshot)
    except NotFoundError as error:
        return f"snapshot {bound}, which it reflects, cannot be read ({error})"
    if difference.rebuild is not None:
        return difference.rebuild
    moved = difference.added_rows
    if moved > FOLLOWED_ROWS_MIN:
        total = head.live.rows
        if moved * FOLLOW_TO_BUILD > total:
            return f"{moved:,} of {total:,} rows are in new files: building takes less time"
    try:
        prepared = index.prepare(
            changes_to_follow(
                difference.dropped,
                rows_to_put(head.environment.store, head.reader, difference, head.live),
                head.reader.key,
            )
        )
        index.apply(prepared, head.wanted)
    except CorruptDataError as error:
        if "location" in error.context:  # a data file, which no rebuild repairs
            raise
        return f"it is damaged ({error})"
    return None


def head_binding(
    state: TableState, target: str, key_fingerprint: str, head: Snapshot | None
) -> IndexBinding:
    """What an index of `target`'s head is bound to."""
    return IndexBinding(
        table_uuid=str(state.metadata.table_uuid),
        branch=target,
        key_fingerprint=key_fingerprint,
        snapshot_id=None if head is None else head.snapshot_id,
        sequence_number=0 if head is None else head.sequence_number or 0,
    )


def indexed_file(file: DataFile) -> IndexedFile:
    """A data file as the index keeps it."""
    return IndexedFile(file_path=file.file_path, spec_id=file.spec_id, partition=file.partition)


def rows_to_put(
    store: ObjectStore, reader: KeyReader, difference: TableDifference, live: LiveFiles
) -> list[RowsToPut]:
    """The rows that an index has to learn to follow a difference; `live` is the newer snapshot."""
    rows = [
        RowsToPut(indexed_file(entry.data_file), partial(reader.read_rows, entry.data_file))
        for entry in difference.added
    ]
    files = live.find([vector.data_file_path for vector in difference.vectors])
    puffins = PuffinFiles(store)
    for vector in difference.vectors:
        file = files[vector.data_file_path].data_file
        read = partial(_undeleted_rows, puffins, reader, file, vector)
        rows.append(RowsToPut(indexed_file(file), read))
    return rows


def _live_rows(
    puffins: PuffinFiles,
    reader: KeyReader,
    file: DataFile,
    dv: ManifestEntry | None,
    known: BitMap64 | None,
) -> Iterator[pa.RecordBatch]:
    deleted = known or _positions(puffins, None if dv is None else dv.data_file, file)
    for batch in reader.read_rows(file):
        yield batch.filter(pa.array(~_is_in(batch, deleted))) if deleted else batch


def _undeleted_rows(
    puffins: PuffinFiles, reader: KeyReader, file: DataFile, vector: ChangedVector
) -> Iterator[pa.RecordBatch]:
    alive_again = _positions(puffins, vector.old, file) - _positions(puffins, vector.new, file)
    for batch in reader.read_rows(file) if alive_again else ():
        yield batch.filter(pa.array(_is_in(batch, alive_again)))


def _positions(puffins: PuffinFiles, dv: DataFile | None, file: DataFile) -> BitMap64:
    return BitMap64() if dv is None else puffins.read([(dv, file.record_count)])[0]


def _is_in(batch: pa.RecordBatch, positions: BitMap64) -> npt.NDArray[np.bool_]:
    """Which rows of a batch of consecutive positions are in `positions`."""
    found = np.zeros(batch.num_rows, dtype=np.bool_)
    if batch.num_rows:
        start = batch.column(POSITION_COLUMN)[0].as_py()
        inside = positions & BitMap64(range(start, start + batch.num_rows))
        found[position_array(inside) - start] = True
    return found
