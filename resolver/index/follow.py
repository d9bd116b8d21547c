"""How an index follows the table: the difference of two snapshots, whoever committed in between.

Only manifests that one of the two snapshots has and the other has not are looked at, so the cost
follows what changed. From the live entries of those manifests:

| difference | change of the index |
|---|---|
| data file only in the newer snapshot | its rows are read (key columns) and put |
| data file only in the older snapshot | its path is dropped; nothing is read |
| DV came or grew | nothing: see below |
| DV went or shrank (rollback, replaced branch) | the rows at positions deleted no more are put |
| position or equality deletes went, history not forward | rebuild: which rows return is unknown |

Deletes by others are not read back. Their index entries stay, pointing at positions that the
file's own DV deletes, and merging such a position into that DV changes nothing. Removing them would
mean to read the key columns of every file that a foreign DELETE touched. The index must not miss a
live row, and it does not: the rows it knows are always a superset of the live rows, and the surplus
is in the current DVs (`verify` proves exactly this).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pyarrow as pa

from resolver.index.base import Entries, IndexChanges, IndexedFile
from resolver.index.entry import POSITION_COLUMN
from resolver.keys import KeySchema, encode_batch
from tableformat.scan.ordered_stream import stream_ordered
from tableformat.spec.data_file import DataFile, FileContent, ManifestEntry
from tableformat.store.locations import requests_of


@dataclass(frozen=True, slots=True)
class ChangedVector:
    """The DV of a file that stayed was replaced or removed.

    Attributes:
        data_file_path: The file.
        old, new: Its DV in the older and in the newer snapshot; `new` None when it has none.
    """

    data_file_path: str
    old: DataFile
    new: DataFile | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDifference:
    """What an index has to do to get from one snapshot to another.

    Attributes:
        added: Data files to read and put.
        dropped: Paths of data files that left.
        vectors: DVs to compare: positions in `old` and not in `new` are alive again, and their
            rows must be read and put.
        rebuild: Why the difference cannot be followed; None when it can.
    """

    added: tuple[ManifestEntry, ...] = ()
    dropped: tuple[str, ...] = ()
    vectors: tuple[ChangedVector, ...] = ()
    rebuild: str | None = None

    @property
    def added_rows(self) -> int:
        """Rows in added files; what following costs, against a rebuild."""
        return sum(entry.data_file.record_count for entry in self.added)


def table_difference(
    old: Iterable[ManifestEntry], new: Iterable[ManifestEntry], *, is_forward: bool
) -> TableDifference:
    """Compare live entries.

    Args:
        old: Entries of the manifests that only the older snapshot has, data and deletes; those that
            are not live are ignored. Entries of all manifests give the same result.
        new: The same of the newer one.
        is_forward: Whether the older snapshot is an ancestor of the newer one. Going forward a
            DV only grows while its file lives (I6), and a delete file is only replaced by
            something that deletes the same rows.
    """
    before, after = _Live.of(old), _Live.of(new)
    dropped = [path for path in before.data if path not in after.data]
    lost = before.other_deletes - after.other_deletes
    if lost and not is_forward:
        return TableDifference(
            rebuild=f"delete file {min(lost)} is gone, and the history was not continued"
        )
    gone = set(dropped)
    vectors = [
        ChangedVector(path, vector, after.vectors.get(path))
        for path, vector in before.vectors.items()
        if path not in gone and _may_have_shrunk(vector, after.vectors.get(path), is_forward)
    ]
    return TableDifference(
        added=tuple(entry for path, entry in after.data.items() if path not in before.data),
        dropped=tuple(dropped),
        vectors=tuple(vectors),
    )


def _may_have_shrunk(old: DataFile, new: DataFile | None, is_forward: bool) -> bool:
    if new is None:
        return True
    if new.identity == old.identity:
        return False
    return not is_forward or new.record_count <= old.record_count


@dataclass(slots=True)
class _Live:
    """Live entries by what they are."""

    data: dict[str, ManifestEntry] = field(default_factory=dict)
    vectors: dict[str, DataFile] = field(default_factory=dict)
    other_deletes: set[str] = field(default_factory=set)

    @staticmethod
    def of(entries: Iterable[ManifestEntry]) -> _Live:
        live = _Live()
        for entry in entries:
            file = entry.data_file
            if not entry.is_live:
                continue
            if file.content == FileContent.DATA:
                live.data[file.file_path] = entry
            elif file.is_dv and file.referenced_data_file is not None:
                live.vectors[file.referenced_data_file] = file
            else:
                live.other_deletes.add(file.file_path)
        return live


@dataclass(frozen=True, slots=True)
class RowsToPut:
    """Rows of one data file that the index has to learn.

    Attributes:
        file: What the dictionary keeps.
        read: Yields the key's columns and int64 `_pos` of those rows.
    """

    file: IndexedFile
    read: Callable[[], Iterator[pa.RecordBatch]]


def changes_to_follow(
    dropped: Sequence[str], rows: Sequence[RowsToPut], key: KeySchema
) -> IndexChanges:
    """The change of the index; rows are read while it is prepared, file by file.

    Args:
        dropped: `TableDifference.dropped`.
        rows: Rows of added files, and rows of files that stayed that are alive again. A file
            may occur once.
        key: The indexed key.
    """
    return IndexChanges(
        dropped_files=tuple(dropped),
        added_files=tuple(source.file for source in rows),
        put=EntriesOfFiles(tuple(rows), key),
    )


@dataclass(frozen=True, slots=True)
class EntriesOfFiles:
    """Entries of files, read when iterated."""

    rows: tuple[RowsToPut, ...]
    key: KeySchema

    def __iter__(self) -> Iterator[Entries]:
        producers = [partial(self._of_file, ordinal) for ordinal in range(len(self.rows))]
        threads = requests_of(self.rows[0].file.file_path) if self.rows else 1
        with stream_ordered(producers, threads=threads) as found:
            yield from found

    def _of_file(self, ordinal: int) -> Iterator[Entries]:
        for batch in self.rows[ordinal].read():
            positions = batch.column(POSITION_COLUMN).to_numpy()
            yield Entries(
                encode_batch(batch, self.key),
                np.full(len(positions), ordinal, dtype=np.int64),
                positions.astype(np.int64, copy=False),
            )
