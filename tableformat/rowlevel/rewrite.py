"""Writing rows for statements: new rows into files, and the rest of files that lose rows.

Copy-on-write is this: whatever the query found, the rows of a touched file that are not among its
row ids are written again, with their identity. So a row stays unless its condition is true, and a
condition that is NULL keeps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata

from tableformat.codec.puffin.deletion_vector import Positions, position_array
from tableformat.paths import data_file_locations
from tableformat.rowlevel.changes import LAST_UPDATED, POSITION, ROW_ID
from tableformat.runtime import IdSource
from tableformat.scan.file_source import FileSource
from tableformat.scan.plan import FileScanTask, ScanPlan
from tableformat.scan.projection import project
from tableformat.scan.reader import TaskReader
from tableformat.spec.data_file import DataFile
from tableformat.store.base import ObjectStore
from tableformat.write.data_files import StoredChoice, write_data_files


@dataclass(frozen=True, slots=True)
class RowWriter:
    """Writes rows of the target. Pickles when its store does.

    Attributes:
        store: Where the files go.
        metadata: The target's, without history.
    """

    store: ObjectStore
    metadata: TableMetadata

    @property
    def schema(self) -> Schema:
        """The target's schema."""
        return self.metadata.schema()

    def write(
        self,
        batches: Iterable[pa.RecordBatch],
        ids: IdSource,
        *,
        stored: StoredChoice = "computed",
    ) -> list[DataFile]:
        """New data files; `_row_id` and `_last_updated_sequence_number` are kept if present.

        `stored`: as for `write_data_files`.
        """
        return write_data_files(
            self.store,
            batches,
            schema=self.schema,
            spec=self.metadata.spec(),
            properties=self.metadata.properties,
            location_for=data_file_locations(self.metadata, ids),
            stored=stored,
        )


@dataclass(frozen=True, slots=True)
class FileRewrite:
    """A data file to be written again without some rows."""

    task: FileScanTask
    dead: Positions


def surviving_rows(
    store: ObjectStore, plan: ScanPlan, rewrites: Sequence[FileRewrite]
) -> Iterator[pa.RecordBatch]:
    """Rows of the files that live on: all columns, then the two of row lineage.

    A row moved unchanged keeps its id and the sequence number of its last update (spec: Row
    Lineage).
    """
    names = [field.name for field in plan.schema.fields]
    everything = replace(plan, row_filter=AlwaysTrue(), tasks=())
    projection = project(everything, [*names, ROW_ID, LAST_UPDATED, POSITION])
    tasks = [replace(each.task, residual=AlwaysTrue()) for each in rewrites]
    source = FileSource(store, plan.specs, plan.properties)
    reader = TaskReader(source, everything, projection, tasks)
    for task, rewrite in zip(tasks, rewrites, strict=True):
        dead = position_array(rewrite.dead)
        for batch in reader.read(task):
            positions = np.asarray(batch.column(POSITION))
            at = np.searchsorted(dead, positions)
            is_dead = at < len(dead)
            is_dead[is_dead] = dead[at[is_dead]] == positions[is_dead]
            kept = batch.filter(pa.array(~is_dead)) if is_dead.any() else batch
            if kept.num_rows:
                yield kept.select([*names, ROW_ID, LAST_UPDATED])
