"""Writes the vectors of dead rows that tasks have left: one task per group of data files.

A task reads what was left of its files, merges it with their vectors (`merge_deletes.convert`),
and writes Puffin files under fresh names. The answer describes them: the driver has positions of no
row. A task that is repeated writes other files, which nothing names: for orphan removal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from pyiceberg.table.metadata import TableMetadata

from resolver.index.left import LeftBytes, bitmaps_from_bytes
from resolver.merge_deletes import Conversion, DeadPositions, convert
from resolver.runner import Runner
from resolver.target_deletes import known_vectors
from tableformat.runtime import SystemIds
from tableformat.spec.data_file import DataFile, ManifestEntry
from tableformat.store.base import ObjectStore
from tableformat.write.row_deletes import write_vectors


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorGroup:
    """Data files whose vectors one task writes.

    Attributes:
        paths: The files by the numbers that dead positions are left under.
        staged: Those that are staged.
        target: Those that live on the target, by path.
        dvs: The vectors of those, by path of the data file.
        left: Dead positions of files of the group.
    """

    paths: Mapping[int, str]
    staged: Sequence[DataFile]
    target: Mapping[str, ManifestEntry]
    dvs: Mapping[str, ManifestEntry]
    left: Sequence[LeftBytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenVectors:
    """What a task has written.

    Attributes:
        files: The vectors as delete files to commit.
        dropped: Staged files whose rows are all dead: they get none.
        new_positions: Positions dead now that were alive before.
    """

    files: tuple[DataFile, ...]
    dropped: tuple[str, ...]
    new_positions: int


def write_group(store: ObjectStore, metadata: TableMetadata, group: VectorGroup) -> WrittenVectors:
    """Merge and write the vectors of a group of files.

    Raises:
        CorruptDataError: What was left, or a vector, is damaged; or a position lies outside its
            file.
        InternalError: Rows of a file die that is not there.
        StoreUnavailableError: A file could not be stored.

    Effects: Puffin files. A crash leaves them unreferenced, for orphan removal.
    """
    dead = DeadPositions()
    for left in group.left:
        for number, positions in bitmaps_from_bytes(left.read(store)):
            dead.add(group.paths[number], positions)
    files = {path: group.target[path] for path in group.dvs if path in group.target}
    conversion = convert(
        dead=dead,
        staged_files=group.staged,
        target_files=group.target,
        known=known_vectors(store, group.dvs, files),
    )
    return WrittenVectors(
        files=tuple(write_vectors(store, SystemIds(), metadata, conversion.vectors)),
        dropped=conversion.dropped,
        new_positions=conversion.new_positions,
    )


def write_groups(
    store: ObjectStore,
    metadata: TableMetadata,
    runner: Runner,
    groups: Sequence[VectorGroup],
    staged: Iterable[DataFile],
) -> tuple[Conversion, list[DataFile]]:
    """Write all vectors of a cycle by tasks.

    Args:
        store: Where the files lie.
        metadata: A v3 table.
        runner: Runs the tasks.
        groups: The files of which rows die.
        staged: The staged files, those included of which none dies.

    Returns:
        The conversion, without the vectors' positions, and the vectors as delete files to commit.

    Raises, effects: see `write_group`.
    """
    slim = metadata.model_copy(update={"snapshots": [], "snapshot_log": [], "metadata_log": []})
    written = runner.run(partial(write_group, store, slim), groups)
    files = [file for each in written for file in each.files]
    dropped = {path for each in written for path in each.dropped}
    dvs = {path: dv for group in groups for path, dv in group.dvs.items()}
    replaced = (dvs.get(file.referenced_data_file or "") for file in files)
    conversion = Conversion(
        vectors=(),
        published=tuple(file for file in staged if file.file_path not in dropped),
        dropped=tuple(sorted(dropped)),
        replaced=tuple(dv for dv in replaced if dv is not None),
        new_positions=sum(each.new_positions for each in written),
    )
    return conversion, files
