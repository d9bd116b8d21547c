"""Writes a cycle's deletion vectors over several publish attempts, each vector once.

A lost race changes few files; the vectors of the others are published as they were written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pyiceberg.table.metadata import TableMetadata
from pyroaring import BitMap64

from tableformat.codec.puffin.dv_file import DeletionVector, write_deletion_vectors
from tableformat.environment import Environment
from tableformat.paths import puffin_locations
from tableformat.spec.data_file import DataFile
from tableformat.spec.properties import dv_placement


@dataclass(slots=True)
class VectorWriter:
    """One per cycle."""

    environment: Environment
    _written: dict[str, tuple[BitMap64, DataFile]] = field(default_factory=dict)
    _locations: set[str] = field(default_factory=set)

    def write(self, metadata: TableMetadata, vectors: Iterable[DeletionVector]) -> list[DataFile]:
        """The delete files of `vectors`; those that an earlier attempt wrote are not written again.

        Effects: Puffin files. A crash leaves them unreferenced, for orphan removal.
        """
        vectors = list(vectors)
        runtime = self.environment.runtime
        runtime.fail_point("resolve.before_dv_write")
        missing = [vector for vector in vectors if self._known(vector) is None]
        files = write_deletion_vectors(
            self.environment.store,
            missing,
            location_for=puffin_locations(metadata, runtime.ids),
            placement=dv_placement(metadata.properties),
            bounds_of=metadata.schema().identifier_field_ids,
        )
        for vector, file in zip(missing, files, strict=True):
            self._written[vector.data_file.file_path] = (vector.positions, file)
            self._locations.add(file.file_path)
        runtime.fail_point("resolve.after_dv_write")
        return [self._written[vector.data_file.file_path][1] for vector in vectors]

    def delete_unused(self, used: Iterable[DataFile] = ()) -> None:
        """Remove the Puffin files that nothing in `used` lies in. Only after a known outcome."""
        unused = self._locations - {file.file_path for file in used}
        if unused:
            self.environment.store.delete(sorted(unused))
        self._locations -= unused
        self._written = {
            path: (positions, file)
            for path, (positions, file) in self._written.items()
            if file.file_path not in unused
        }

    def _known(self, vector: DeletionVector) -> DataFile | None:
        positions, file = self._written.get(vector.data_file.file_path, (None, None))
        return file if positions is not None and positions == vector.positions else None
