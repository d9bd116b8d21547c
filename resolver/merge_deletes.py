"""From dead positions to deletion vectors: one per touched data file, merged with what is there.

A data file has at most one live DV, so whatever already deletes rows of a touched file (an old DV,
a staged DV, position deletes) is merged into the new one and removed by the same commit (spec:
Deletion Vectors; I6, R43).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from resolver.target_deletes import KnownDeletes
from tableformat.codec.puffin.deletion_vector import build_positions
from tableformat.codec.puffin.dv_file import DeletionVector
from tableformat.errors import CorruptDataError, InternalError
from tableformat.spec.data_file import DataFile, ManifestEntry


@dataclass(slots=True)
class DeadPositions:
    """Deleted positions by data file path, collected from every source of one cycle."""

    by_path: dict[str, BitMap64] = field(default_factory=dict)

    def add(self, path: str, positions: npt.NDArray[np.int64] | BitMap64) -> None:
        """Add positions of one file; the union counts."""
        bitmap = positions if isinstance(positions, BitMap64) else build_positions(positions)
        if not bitmap:
            return
        known = self.by_path.get(path)
        self.by_path[path] = bitmap if known is None else known | bitmap

    def paths(self) -> Iterable[str]:
        """Files with at least one dead position."""
        return self.by_path.keys()

    def drop(self, paths: Iterable[str]) -> None:
        """Forget files; those without dead positions too."""
        for path in paths:
            self.by_path.pop(path, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversion:
    """What a cycle publishes.

    Attributes:
        vectors: One deletion vector per touched data file that stays.
        published: Staged data files with at least one live row, as entries to add.
        dropped: Paths of staged data files whose rows all died inside the batch.
        removed: Data files of the target that leave it: staged snapshots removed them.
        replaced: Live delete entries of the target that the vectors take over.
        new_positions: Positions dead now that were alive before, over all files.
    """

    vectors: tuple[DeletionVector, ...]
    published: tuple[DataFile, ...]
    dropped: tuple[str, ...]
    replaced: tuple[ManifestEntry, ...]
    new_positions: int
    removed: tuple[ManifestEntry, ...] = ()

    def vectors_of_target(self) -> tuple[DeletionVector, ...]:
        """The vectors of files that the target has already."""
        staged = {file.file_path for file in self.published}
        return tuple(each for each in self.vectors if each.data_file.file_path not in staged)


def convert(
    *,
    dead: DeadPositions,
    staged_files: Iterable[DataFile],
    target_files: Mapping[str, ManifestEntry],
    known: Mapping[str, KnownDeletes],
    removed: Collection[str] = (),
    is_cumulative: bool = True,
) -> Conversion:
    """Merge dead positions with the deletes that are already there.

    Args:
        dead: Dead positions by path, of staged data files and of files that live on the target.
        staged_files: Data files of the backlog. One that lives on the target already (picked, or
            added by another tool) is not published again, and keeps the deletes it has there.
        target_files: Live data files of the planned target head, by path.
        known: What deletes rows of touched target files already, by path.
        removed: Data files that staged snapshots removed: they leave the target, too, if no row of
            them lives there.
        is_cumulative: Whether a new delete takes that over; else it adds to it (v2, by partition).

    Raises:
        CorruptDataError: A dead position lies outside its file, or an old DV is damaged.
        InternalError: Rows of a file die that is not there: a delete would be lost.
    """
    vectors: list[DeletionVector] = []
    published: list[DataFile] = []
    dropped: list[str] = []
    replaced: list[ManifestEntry] = []
    leaving: list[ManifestEntry] = []
    new_positions = 0
    staged = {each.file_path: each for each in staged_files if each.file_path not in target_files}
    _check_all_are_there(dead, staged, target_files)
    for path, file in staged.items():
        positions = dead.by_path.get(path)
        if positions is None:
            published.append(file)
            continue
        _check_range(file, positions)
        new_positions += len(positions)
        if len(positions) == file.record_count:
            dropped.append(path)
            continue
        published.append(file)
        vectors.append(DeletionVector(file, positions))
    touched = [path for path in sorted(dead.by_path) if path in target_files]
    for path in touched:
        entry, positions = target_files[path], dead.by_path[path]
        _check_range(entry.data_file, positions)
        old = known.get(path)
        new = positions if old is None else positions - old.positions
        new_positions += len(new)
        count = len(new) + (0 if old is None else len(old.positions))
        if path in removed and count == entry.data_file.record_count:
            leaving.append(entry)
            continue
        if not new:
            continue
        if old is not None and is_cumulative:
            new = new | old.positions
            replaced += old.replaceable
        vectors.append(DeletionVector(entry.data_file, new))
    return Conversion(
        vectors=tuple(vectors),
        published=tuple(published),
        dropped=tuple(dropped),
        replaced=tuple(replaced),
        new_positions=new_positions,
        removed=tuple(leaving),
    )


def _check_all_are_there(
    dead: DeadPositions, staged: Mapping[str, DataFile], target_files: Mapping[str, ManifestEntry]
) -> None:
    lost = [path for path in dead.paths() if path not in staged and path not in target_files]
    if lost:
        raise InternalError(
            "rows of a data file that left the target were not looked for where they went",
            location=min(lost),
            files=len(lost),
        )


def _check_range(file: DataFile, positions: BitMap64) -> None:
    if positions.max() >= file.record_count:
        raise CorruptDataError(
            f"a delete names row {positions.max()} of a file with {file.record_count} rows",
            location=file.file_path,
            action="check the position delete files and DVs of the staged snapshots",
        )
