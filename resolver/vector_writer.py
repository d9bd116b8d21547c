"""Writes a cycle's deletion vectors over several publish attempts, each vector once.

A lost race changes few files; the vectors of the others are published as they were written. On a
v2 table they are position delete files, of which each holds what goes into one file together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from pyiceberg.table.metadata import TableMetadata
from pyroaring import BitMap64

from tableformat.codec.puffin.dv_file import DeletionVector
from tableformat.environment import Environment
from tableformat.errors import TableError
from tableformat.spec.data_file import DataFile
from tableformat.write.position_deletes import DeletedInFiles
from tableformat.write.row_deletes import deletes_written_together, write_row_deletes


@dataclass(slots=True)
class VectorWriter:
    """One per cycle."""

    environment: Environment
    _written: dict[tuple[object, ...], tuple[DeletedInFiles, tuple[DataFile, ...]]] = field(
        default_factory=dict
    )
    _locations: set[str] = field(default_factory=set)

    def write(self, metadata: TableMetadata, vectors: Iterable[DeletionVector]) -> list[DataFile]:
        """The delete files of `vectors`; those that an earlier attempt wrote are not written again.

        Effects: Puffin or position delete files. A crash leaves them unreferenced, for orphan
        removal.
        """
        runtime = self.environment.runtime
        runtime.fail_point("resolve.before_dv_write")
        groups = {
            _key(metadata, group): group for group in deletes_written_together(metadata, vectors)
        }
        missing = [key for key, group in groups.items() if not self._is_written(key, group)]
        files = write_row_deletes(self.environment, metadata, [groups[key] for key in missing])
        for key, written in zip(missing, files, strict=True):
            self._written[key] = (groups[key], written)
            self._locations.update(file.file_path for file in written)
        runtime.fail_point("resolve.after_dv_write")
        return [file for key in groups for file in self._written[key][1]]

    @contextmanager
    def written_elsewhere(self) -> Iterator[Callable[[Iterable[DataFile]], None]]:
        """While tasks write vectors: tell what it gives of them, so that they can be removed."""
        runtime = self.environment.runtime
        runtime.fail_point("resolve.before_dv_write")
        yield lambda files: self._locations.update(file.file_path for file in files)
        runtime.fail_point("resolve.after_dv_write")

    def delete_unused(self, used: Iterable[DataFile] = ()) -> None:
        """Remove the files that nothing in `used` lies in. Only after a known outcome.

        Best effort: what stays is for orphan removal.
        """
        unused = self._locations - {file.file_path for file in used}
        if unused:
            with suppress(TableError):
                self.environment.store.delete(sorted(unused))
        self._locations -= unused
        self._written = {
            key: (group, files)
            for key, (group, files) in self._written.items()
            if unused.isdisjoint(file.file_path for file in files)
        }

    def _is_written(self, key: tuple[object, ...], group: DeletedInFiles) -> bool:
        known = self._written.get(key)
        return known is not None and _positions(known[0]) == _positions(group)


def _positions(group: DeletedInFiles) -> list[BitMap64]:
    return [each.positions for each in group]


def _key(metadata: TableMetadata, group: DeletedInFiles) -> tuple[object, ...]:
    """What two attempts write in each other's place: never v2's files and v3's vectors."""
    paths = tuple(each.data_file.file_path for each in group)
    return (metadata.format_version, *paths)
