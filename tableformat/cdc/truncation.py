"""A truncate of the source: every row that a branch has is deleted by position.

Each live data file of the branch gets one deletion vector over all of its rows, in place of the one
it has. So a commit can delete everything and bring new rows, and the resolver, which follows rows
that others move meanwhile, publishes it like any other staged change. The vectors are those of one
head: a commit that loses it needs new ones.

Cost: an entry per live data file, whatever its rows. Where the table has a sequence column, rows
with a greater sequence stay: that column is read of files that may have some.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import NestedField

from tableformat.catalog.base import TableState
from tableformat.environment import Environment
from tableformat.files.deletion_vector import Positions, build_positions
from tableformat.files.dv_file import DeletionVector, write_deletion_vectors
from tableformat.paths import puffin_locations
from tableformat.scan.bounds import key_range
from tableformat.scan.file_source import FileSource
from tableformat.scan.plan import FileScanTask, ScanPlan, plan_scan
from tableformat.scan.position_deletes import PositionDeletes
from tableformat.spec.constraints import sequence_field_id
from tableformat.spec.data_file import DataFile, ManifestEntry
from tableformat.spec.properties import dv_placement

READ_ROWS = 1 << 20


@dataclass(frozen=True, slots=True)
class Truncation:
    """All rows go, but for those that are newer.

    Attributes:
        sequence: The truncate's value of the table's sequence column; None: the table has none.
    """

    sequence: pa.Scalar | None = None

    @classmethod
    def of(cls, truncate: pa.Table, sequence: str | None) -> Truncation | None:
        """The truncate of a table of at most one row; `sequence` is its sequence column."""
        if not truncate.num_rows:
            return None
        value = pa.scalar(None) if sequence is None else truncate.column(sequence)[0]
        return cls(value if value.is_valid else None)

    def as_table(self, name: str) -> pa.Table:
        """One row, from which `of` makes it again."""
        value = pa.scalar(None) if self.sequence is None else self.sequence
        return pa.table({name: pa.repeat(value, 1)})


@dataclass(frozen=True, slots=True)
class VectorsAtHead:
    """Vectors to add, and those that they replace."""

    added: tuple[DataFile, ...] = ()
    removed: tuple[ManifestEntry, ...] = ()


def vectors_of_all_rows(
    environment: Environment, state: TableState, head: Snapshot | None, truncation: Truncation
) -> VectorsAtHead:
    """Delete the rows of `head`, the branch's own in `state`.

    Raises:
        TableError: A manifest, or with a sequence column a file, cannot be read.

    Effects: Puffin files, which mean nothing until a commit names them.
    """
    if head is None:
        return VectorsAtHead()
    plan = plan_scan(environment, state, snapshot_id=head.snapshot_id)
    older = _OlderRows.of(environment, state, plan, truncation)
    vectors: list[DeletionVector] = []
    removed: list[ManifestEntry] = []
    for task in plan.tasks:
        positions = older.positions(task)
        if len(positions) > (0 if task.dv is None else task.dv.data_file.record_count):
            vectors.append(DeletionVector(task.entry.data_file, positions))
            removed += [] if task.dv is None else [task.dv]
    metadata = state.metadata
    added = write_deletion_vectors(
        environment.store,
        vectors,
        location_for=puffin_locations(metadata, environment.runtime.ids),
        placement=dv_placement(metadata.properties),
        bounds_of=metadata.schema().identifier_field_ids,
    )
    return VectorsAtHead(tuple(added), tuple(removed))


@dataclass(frozen=True, slots=True, kw_only=True)
class _OlderRows:
    """Which rows of a file a truncate deletes, with those that are deleted already."""

    column: NestedField | None
    sequence: pa.Scalar | None
    source: FileSource
    deletes: PositionDeletes

    @classmethod
    def of(
        cls, environment: Environment, state: TableState, plan: ScanPlan, truncation: Truncation
    ) -> _OlderRows:
        metadata = state.metadata
        field_id = None if truncation.sequence is None else sequence_field_id(metadata)
        source = FileSource(environment.store, plan.specs, plan.properties)
        return cls(
            column=None if field_id is None else metadata.schema().find_field(field_id),
            sequence=truncation.sequence,
            source=source,
            deletes=PositionDeletes(source, plan.tasks),
        )

    def positions(self, task: FileScanTask) -> Positions:
        file = task.entry.data_file
        if not self._may_have_newer(file):
            every = Positions()
            every.add_range(0, file.record_count)
            return every
        older = self._older(task.entry)
        known = self.deletes.load(task)
        return older if known is None else older | known

    def _may_have_newer(self, file: DataFile) -> bool:
        if self.column is None or self.sequence is None:
            return False
        upper, own = key_range(file, self.column).upper, self.sequence.as_py()
        return not (isinstance(upper, int) and isinstance(own, int) and upper <= own)

    def _older(self, entry: ManifestEntry) -> Positions:
        assert self.column is not None
        batches = self.source.read(entry, Schema(self.column), batch_rows=READ_ROWS)
        newer = [
            pc.fill_null(pc.greater(batch.column(0), self.sequence), False) for batch in batches
        ]
        return build_positions(np.flatnonzero(~pa.chunked_array(newer, pa.bool_()).to_numpy()))
