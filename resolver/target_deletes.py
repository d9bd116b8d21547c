"""What deletes rows of a target's data files already, whatever its form."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.expressions import AlwaysTrue
from pyiceberg.table.metadata import TableMetadata
from pyroaring import BitMap64

from resolver.position_files import read_position_file
from resolver.target import LiveFiles
from tableformat.codec.puffin.dv_file import read_deletion_vectors
from tableformat.scan.delete_index import DeleteIndex, referenced_path
from tableformat.scan.equality_deletes import EqualityDeletes
from tableformat.scan.file_source import FileSource
from tableformat.scan.key_fields import key_fields
from tableformat.scan.plan import plan_task, plan_without_files
from tableformat.scan.position_deletes import PositionDeletes
from tableformat.spec.data_file import ManifestEntry
from tableformat.store.base import ObjectStore
from tableformat.write.row_deletes import has_vectors


@dataclass(frozen=True, slots=True)
class KnownDeletes:
    """Deletes of one data file.

    Attributes:
        positions: Its rows that are deleted by position; those that equality deletes reach are not
            among them.
        replaceable: The delete entries that are for this file alone: its vector, or v2's files.
    """

    positions: BitMap64
    replaceable: tuple[ManifestEntry, ...] = ()


def folded_deletes(metadata: TableMetadata, live: LiveFiles) -> tuple[ManifestEntry, ...]:
    """Position delete files that a publish takes over, all of them: on v3 each becomes a vector's.

    On v2 they stay as they are, what others wrote included.
    """
    return live.position_deletes if has_vectors(metadata) else ()


def known_deletes(
    store: ObjectStore, metadata: TableMetadata, live: LiveFiles, paths: Iterable[str]
) -> dict[str, KnownDeletes]:
    """Deletes of some data files, by path, that a publish leaves or replaces.

    Left out are files without any, those that are not live, and what `folded_deletes` takes over.

    Raises:
        CorruptDataError: A delete file is damaged.

    Cost: each delete file that may name one of the data files is read, once.
    """
    paths = tuple(paths)
    dvs = live.find_dvs(paths)
    found = known_vectors(store, dvs, live.find(dvs.keys()))
    if not has_vectors(metadata):
        rest = live.find([path for path in paths if path not in found])
        found |= _by_files(store, metadata, live, rest.values())
    return found


def known_vectors(
    store: ObjectStore, dvs: Mapping[str, ManifestEntry], files: Mapping[str, ManifestEntry]
) -> dict[str, KnownDeletes]:
    """What vectors delete of data files, both by the path of the data file.

    Raises:
        CorruptDataError: A vector is damaged.
    """
    pairs = [(dvs[path].data_file, entry.data_file.record_count) for path, entry in files.items()]
    return {
        path: KnownDeletes(positions, (dvs[path],))
        for path, positions in zip(files, read_deletion_vectors(store, pairs), strict=True)
    }


def deleted_positions(
    store: ObjectStore, metadata: TableMetadata, live: LiveFiles, paths: Iterable[str]
) -> dict[str, BitMap64]:
    """Rows of some live data files that are deleted by position; files without any are left out."""
    found = known_deletes(store, metadata, live, paths)
    return {path: known.positions for path, known in found.items()}


def deleted_by_key(
    store: ObjectStore, metadata: TableMetadata, live: LiveFiles, paths: Iterable[str]
) -> dict[str, BitMap64]:
    """Rows of some live data files that equality deletes on the target reach.

    Whoever commits these to the target itself may do so at any time: what a cycle finds converted
    at its begin may be there again when it publishes.

    Raises:
        CorruptDataError: A file is damaged.

    Cost: none without such deletes; else the columns that they name, of the files that they reach.
    """
    if not live.equality_deletes:
        return {}
    entries = live.find_whole(tuple(paths)).values()
    found = rows_reached(store, metadata, live.equality_deletes, entries)
    return {path: positions for path, positions in found if positions}


def rows_reached(
    store: ObjectStore,
    metadata: TableMetadata,
    deletes: Sequence[ManifestEntry],
    entries: Iterable[ManifestEntry],
) -> Iterator[tuple[str, BitMap64]]:
    """Of each of some data files: its path, and the rows that some delete files reach.

    Args:
        store: Where they are.
        metadata: Of the table.
        deletes: Equality and position delete files.
        entries: Data files; several of one path are told apart.

    Raises:
        CorruptDataError: A file is damaged.
    """
    index = DeleteIndex(deletes, specs=metadata.specs(), key_fields=key_fields(metadata))
    tasks = [plan_task(entry, AlwaysTrue(), index) for entry in entries]
    source = FileSource(store, metadata.specs(), metadata.properties)
    by_key = EqualityDeletes(source, plan_without_files(metadata, metadata.schema()), tasks)
    by_position = PositionDeletes(source, tasks)
    for task in tasks:
        reached = (by_key.load(task) or BitMap64()) | (by_position.load(task) or BitMap64())
        yield task.entry.data_file.file_path, reached


def files_with_deletes(
    metadata: TableMetadata, live: LiveFiles, entries: Iterable[ManifestEntry]
) -> set[str]:
    """Those live data files of which rows are, or may be, deleted by position. Reads no file."""
    entries = list(entries)
    index = _index(metadata, live)
    dvs = live.find_dvs([entry.data_file.file_path for entry in entries])
    return {
        entry.data_file.file_path
        for entry in entries
        if entry.data_file.file_path in dvs or index.for_data_file(entry).position_deletes
    }


def _by_files(
    store: ObjectStore,
    metadata: TableMetadata,
    live: LiveFiles,
    entries: Iterable[ManifestEntry],
) -> dict[str, KnownDeletes]:
    index = _index(metadata, live)
    read: dict[str, dict[str, BitMap64]] = {}
    found: dict[str, KnownDeletes] = {}
    for entry in entries:
        path = entry.data_file.file_path
        reaching = index.for_data_file(entry).position_deletes
        positions = BitMap64()
        for delete in reaching:
            location = delete.data_file.file_path
            if location not in read:
                read[location] = read_position_file(store, metadata, delete.data_file)
            positions |= read[location].get(path, BitMap64())
        if positions:
            own = tuple(each for each in reaching if referenced_path(each.data_file) == path)
            found[path] = KnownDeletes(positions, own)
    return found


def _index(metadata: TableMetadata, live: LiveFiles) -> DeleteIndex:
    entries = () if has_vectors(metadata) else live.position_deletes
    return DeleteIndex(entries, specs=metadata.specs(), key_fields={})
