"""Deleted positions of a data file from its deletion vector or its position delete files."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from tableformat.codec.puffin.deletion_vector import Positions, build_positions
from tableformat.codec.puffin.dv_file import PuffinFiles
from tableformat.integer_order import stable_order
from tableformat.scan.delete_index import referenced_path
from tableformat.scan.file_source import FileSource
from tableformat.scan.plan import FileScanTask
from tableformat.scan.shared_loads import SharedLoads
from tableformat.spec.data_file import ManifestEntry
from tableformat.spec.names import DELETE_FILE_PATH_FIELD_ID, DELETE_POS_FIELD_ID

DELETE_BATCH_ROWS = 1 << 20

POSITION_DELETE_SCHEMA = Schema(
    NestedField(DELETE_FILE_PATH_FIELD_ID, "file_path", StringType(), required=True),
    NestedField(DELETE_POS_FIELD_ID, "pos", LongType(), required=True),
)


class PositionDeletes:
    """Loads deletion vectors and position delete files for the tasks of one scan.

    A position delete file that covers several data files is read once, and kept as bitmaps until
    the last task that needs it is done. A Puffin file of several vectors is opened once.
    """

    def __init__(self, source: FileSource, tasks: Iterable[FileScanTask]) -> None:
        self._source = source
        self._puffins = source.puffins or PuffinFiles(source.store)
        uses: list[object] = []
        self._paths: dict[object, set[str]] = {}
        for task in tasks:
            for delete in task.position_deletes:
                identity = delete.data_file.identity
                uses.append(identity)
                self._paths.setdefault(identity, set()).add(task.entry.data_file.file_path)
        self._files: SharedLoads[dict[str, Positions]] = SharedLoads(uses)

    def load(self, task: FileScanTask) -> Positions | None:
        """The positions deleted in the task's file; None if no delete reaches it.

        The result is the caller's to change.

        Raises:
            CorruptDataError: A delete file is damaged or contradicts its manifest entry.
            NotFoundError: A delete file is gone.
        """
        data = task.entry.data_file
        if task.dv is not None:
            return self._puffins.read([(task.dv.data_file, data.record_count)])[0]
        if not task.position_deletes:
            return None
        merged = Positions()
        for entry in task.position_deletes:
            delete = entry.data_file
            by_path = self._files.get(delete.identity, lambda each=entry: self._read(each))  # type: ignore[misc]
            found = by_path.get(data.file_path)
            if found is not None:
                merged |= found
            self._files.release(delete.identity)
        return merged

    def _read(self, entry: ManifestEntry) -> dict[str, Positions]:
        """Positions by data file path, for the paths the scan needs only."""
        delete = entry.data_file
        only = referenced_path(delete)
        wanted = pa.array(sorted(self._paths[delete.identity] if only is None else {only}))
        found: dict[str, Positions] = {}
        for batch in self._source.read(entry, POSITION_DELETE_SCHEMA, batch_rows=DELETE_BATCH_ROWS):
            for path, positions in _by_path(batch, wanted):
                known = found.get(path)
                found[path] = positions if known is None else known | positions
        return found


def _by_path(batch: pa.RecordBatch, wanted: pa.Array) -> Iterable[tuple[str, Positions]]:
    """Group a batch of (path, position) rows by path; the format sorts it, but need not."""
    codes = pc.fill_null(pc.index_in(batch.column(0), value_set=wanted), -1)
    code = codes.to_numpy(zero_copy_only=False)
    order = stable_order(code)
    position = batch.column(1).to_numpy(zero_copy_only=False)[order]
    starts = np.searchsorted(code[order], np.arange(len(wanted) + 1))
    for ordinal, path in enumerate(wanted.to_pylist()):
        part = position[starts[ordinal] : starts[ordinal + 1]]
        if part.size:
            yield path, build_positions(part)
